"""What has been learned, as plain arrays: parameters, normaliser, evaluation, counters. No torch here.

Everything a later step depends on is in `arrays`, so the bytes of the arrays are the state.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from worker.stream.rows import Examples


@dataclass(frozen=True, slots=True)
class LearnerState:
    """Arrays by name; never changed in place once published.

    `weight` float64 [P]: numeric features, then one table of 2^bits + 1 buckets for each categorical one ·
    `intercept` float64 [1] · `normalizer.count|mean|m2` float64 [d] · `counters.examples|steps|skipped` int64 [1] ·
    `counters.last_skipped` int64 [1]: rows learned when a row was last left out, -1 never · `evaluation.…` (see
    `evaluation.py`).
    """

    arrays: Mapping[str, npt.NDArray[np.generic]]

    @property
    def examples(self) -> int:
        """Rows learned over the model's whole life."""
        return int(self.arrays["counters.examples"][0])

    @property
    def steps(self) -> int:
        """Batches learned over the model's whole life."""
        return int(self.arrays["counters.steps"][0])


@dataclass(frozen=True, slots=True)
class Report:
    """What one call of `learn` saw, step by step (lists of equal length: one entry a batch).

    `loss` is the weighted mean loss of the predictions made before each row's own step; `grad_norm` (mean of the
    rows' norms in `sequential`, the batch's norm else) and `grad_norm_max` are before clipping, with the intercept,
    without L2, in standardised units, from finite rows. `rows` counts rows learned, `skipped` those left out because
    they were not finite; where all were left out, loss and norms of the batch are NaN.
    """

    rows: list[int]
    skipped: list[int]
    loss: list[float]
    grad_norm: list[float]
    grad_norm_max: list[float]
    learning_rate: float
    weight_norm: float
    update_ratio: float  # norm of the change of this call over the norm of the weights
    guilty: list[int]  # indices (into the examples of the call) of rows that were skipped


class Learn(Protocol):
    """A pure function of state and examples: batches are cut every `batch_size` rows, the last may be short."""

    def __call__(self, state: LearnerState, examples: Examples) -> tuple[LearnerState, Report]: ...
