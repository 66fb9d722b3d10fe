"""Loss and slope of a score, by task. Must not know features, weights or rates.

binary:      loss = log(1 + e^z) − y z,  slope = σ(z) − y      (y is 0 or 1)
regression:  loss = (z − y)²,            slope = 2 (z − y)
Both are written so that a finite score gives a finite binary loss, however large it is.
"""

from collections.abc import Callable
from math import exp

import numpy as np
import numpy.typing as npt

from worker.spec import Task

Vector = npt.NDArray[np.float64]


def sigmoid(z: Vector) -> Vector:
    """Return 1 / (1 + e^−z). e^−|z| cannot overflow, and small probabilities keep their digits."""
    e = np.exp(-np.abs(z))
    result: Vector = np.where(z >= 0.0, 1.0, e) / (1.0 + e)
    return result


def losses(task: Task, z: Vector, y: Vector) -> Vector:
    """Return the unweighted loss of each row, [n]."""
    if task == "binary":
        result: Vector = np.logaddexp(0.0, (1.0 - 2.0 * y) * z)
        return result
    return np.square(z - y)


def slopes(task: Task, z: Vector, y: Vector) -> Vector:
    """Return ∂loss/∂z of each row, [n]."""
    return sigmoid(z) - y if task == "binary" else 2.0 * (z - y)


def logistic_slope(z: float, y: float) -> float:
    e = exp(-abs(z))
    return (1.0 if z >= 0.0 else e) / (1.0 + e) - y


def squared_slope(z: float, y: float) -> float:
    return 2.0 * (z - y)


def slope(task: Task) -> Callable[[float, float], float]:
    """Return ∂loss/∂z for one row on plain floats: the recursion calls it once a row."""
    return logistic_slope if task == "binary" else squared_slope
