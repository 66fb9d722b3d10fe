"""The mutable copy that one call of `learn` works on, and what it notes down row by row.

Nothing here is shared between calls, so the state that came in is never touched. Must not know losses or rules.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from worker.learn.layout import Layout
from worker.learn.model import tensor
from worker.learn.normalizer import Normalizer
from worker.learn.state import LearnerState
from worker.spec import Hyper, Spec
from worker.stream.rows import Examples

LARGEST_NUMBER = 1e150

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]
Cells = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(slots=True)
class Work:
    """Parameters and statistics in the making.

    `w` is `weight` and `b` is `intercept`, seen through numpy; `numeric` is the part of `weight` that belongs to
    numeric features.
    """

    weight: Tensor
    numeric: Tensor
    intercept: Tensor
    w: Vector
    b: Vector
    normalizer: Normalizer
    examples: int
    steps: int

    @classmethod
    def of(cls, state: LearnerState, layout: Layout) -> "Work":
        arrays = state.arrays
        weight, intercept = tensor(arrays["weight"]), tensor(arrays["intercept"])
        parts = (np.array(arrays[f"normalizer.{part}"], np.float64) for part in ("count", "mean", "m2"))
        numeric, normalizer = weight[: layout.numeric], Normalizer(*parts)
        return cls(
            weight, numeric, intercept, weight.numpy(), intercept.numpy(), normalizer, state.examples, state.steps
        )


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a batch: raw numbers [n, d], weight cells hit [n, c], labels [n], weights [n].

    `start` is the call's index of the first one.
    """

    dense: Matrix
    cells: Cells
    labels: Vector
    weights: Vector
    start: int

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, part: slice) -> "Rows":
        first = range(len(self))[part]
        return Rows(self.dense[part], self.cells[part], self.labels[part], self.weights[part], self.start + first.start)

    @classmethod
    def of(cls, examples: Examples, layout: Layout) -> "Rows":
        return cls(_bounded(examples.dense), examples.buckets + layout.offsets, examples.labels, examples.weights, 0)


def _bounded(dense: Matrix) -> Matrix:
    """Return the numbers with inf for those whose square is not finite, so that the guard finds them.

    The first value of a feature would pass: it has no deviation yet. All later ones would then deviate too far.
    """
    excessive = np.abs(dense) > LARGEST_NUMBER
    return np.where(excessive, np.inf, dense) if excessive.any() else dense


@dataclass(frozen=True, slots=True)
class Trace:
    """What happened to each row, [n]: score and loss as predicted, gradient norm, and whether it was learned."""

    score: Vector
    loss: Vector
    norm: Vector
    good: Flags

    @classmethod
    def of(cls, n: int) -> "Trace":
        return cls(np.zeros(n), np.zeros(n), np.zeros(n), np.zeros(n, np.bool_))


@dataclass(frozen=True, slots=True)
class Rule:
    """What stays the same over a run."""

    spec: Spec
    hyper: Hyper
    layout: Layout


_ZEROS = np.zeros(4096)


def finite(vector: Vector) -> bool:
    """Tell whether all values are finite, without a temporary array: 0 · inf and 0 · nan are nan, and nan ≠ 0.

    A plain sum would also overflow over large but finite values.
    """
    n = len(vector)
    return bool(vector.dot(_ZEROS[:n] if n <= len(_ZEROS) else np.zeros(n)) == 0.0)
