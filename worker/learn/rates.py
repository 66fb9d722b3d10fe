"""Learning rates by schedule. Must not know what they are used for.

constant: η · inverse_sqrt: η / √(1 + t) · inverse: η / (1 + t).
t counts what was learned before: rows in `sequential`, steps in `mean` and `sum`.
The intercept's rate follows the same factor.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from worker.spec import Hyper

Vector = npt.NDArray[np.float64]


class Rates(NamedTuple):
    """Rates of consecutive moments: `weight` [n] and `intercept` [n]."""

    weight: Vector
    intercept: Vector


def rates(hyper: Hyper, t: int, n: int) -> Rates:
    """Return the rates of the moments t, t + 1, …, t + n − 1."""
    own = hyper.intercept_learning_rate
    factor = _factor(hyper, t, n)
    return Rates(hyper.learning_rate * factor, (hyper.learning_rate if own is None else own) * factor)


def _factor(hyper: Hyper, t: int, n: int) -> Vector:
    if hyper.schedule == "constant":
        return np.ones(n)
    later = np.arange(1 + t, 1 + t + n, dtype=np.float64)
    return 1.0 / (np.sqrt(later) if hyper.schedule == "inverse_sqrt" else later)
