"""The model: a linear score over standardised numbers and hashed categories. Home of the parameters, in torch.

Must not know how it is trained. The parameters share memory with the arrays of a state, so nothing is converted.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from worker.learn import evaluation
from worker.learn.layout import Layout
from worker.learn.state import LearnerState
from worker.spec import Spec


def one_thread() -> None:
    """Keep torch on one thread, before its first product: how work is split over threads decides the last bits.

    A model this small is also slower on many threads than on one.
    """
    if torch.get_num_threads() != 1:
        torch.set_num_threads(1)


def tensor(array: npt.NDArray[np.generic]) -> Tensor:
    """Return a copy in torch's own memory: aligned, so that a product has the same bits wherever the copy lies."""
    source = np.asarray(array)
    copy = torch.empty(source.shape, dtype=torch.float64)
    copy.numpy()[...] = source
    return copy


class LinearModel(nn.Module):
    """score = weight · x + intercept, where x holds the numeric features and a 1 for each bucket that is hit."""

    def __init__(self, spec: Spec, weight: Tensor, intercept: Tensor) -> None:
        """Wrap `weight` [P] and `intercept` [1], float64, without copying them."""
        super().__init__()
        layout = Layout.of(spec)
        self.numeric = layout.numeric
        self.offsets: Tensor
        self.register_buffer("offsets", torch.from_numpy(layout.offsets))
        self.weight = nn.Parameter(weight)
        self.intercept = nn.Parameter(intercept)

    @classmethod
    def of(cls, spec: Spec, state: LearnerState) -> "LinearModel":
        """Build the model of a state; the state's arrays are copied, never changed."""
        return cls(spec, tensor(state.arrays["weight"]), tensor(state.arrays["intercept"]))

    def forward(self, dense: Tensor, buckets: Tensor) -> Tensor:
        """Return the score [n] of standardised numbers [n, d] and bucket indices [n, c] (int64)."""
        cells = self.weight[buckets + self.offsets]
        return dense @ self.weight[: self.numeric] + cells.sum(dim=1) + self.intercept


def initial_state(spec: Spec) -> LearnerState:
    """Return the state before the first example: everything zero."""
    layout = Layout.of(spec)
    zero = np.zeros(layout.numeric)
    return LearnerState(
        {
            "weight": np.zeros(layout.size),
            "intercept": np.zeros(1),
            "normalizer.count": zero,
            "normalizer.mean": zero.copy(),
            "normalizer.m2": zero.copy(),
            "counters.examples": np.zeros(1, np.int64),
            "counters.steps": np.zeros(1, np.int64),
            "counters.skipped": np.zeros(1, np.int64),
            "counters.last_skipped": np.full(1, -1, np.int64),
            **evaluation.initial(spec.task),
        }
    )
