"""Where each feature's weights lie in the one weight vector. Must not know torch or rules of learning.

Numeric features come first, in the order of the spec; then one table of 2^bits + 1 buckets for each categorical one.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from worker.spec import Spec


@dataclass(frozen=True, slots=True)
class Layout:
    """`numeric` is d; `offsets` int64 [c] is where each categorical table begins; `size` is P."""

    numeric: int
    offsets: npt.NDArray[np.int64]
    size: int

    @classmethod
    def of(cls, spec: Spec) -> "Layout":
        starts = [len(spec.numeric)]
        for feature in spec.categorical:
            starts.append(starts[-1] + (1 << feature.bits) + 1)
        return cls(len(spec.numeric), np.array(starts[:-1], np.int64), starts[-1])
