"""A feature row as packed bytes: how a decoded event waits, and how many of them become matrices.

Numeric features first (float64, NaN where missing), then one bucket index per categorical feature (uint32),
each in the order of the spec. Packed rows cost no Python object per number.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np
import numpy.typing as npt

from worker.spec import Spec


def bucket(name: str, value: str, bits: int) -> int:
    """Return the bucket of a categorical value: CRC-32 of `name=value` in UTF-8, lowest `bits` bits."""
    return crc32(f"{name}={value}".encode()) & ((1 << bits) - 1)


def missing_bucket(bits: int) -> int:
    """Return the bucket of an absent or null categorical value: the one after the last hashed bucket."""
    return 1 << bits


class RowFormat:
    """Layout of a packed row for one spec: `pack` is a `struct.Struct`, `dtype` the same layout for numpy."""

    def __init__(self, spec: Spec) -> None:
        d, c = len(spec.numeric), len(spec.categorical)
        self.numeric_count = d
        self.categorical_count = c
        self.pack = struct.Struct(f"<{d}d{c}I").pack
        self.size = struct.calcsize(f"<{d}d{c}I")
        self.dtype = np.dtype([("dense", "<f8", (d,)), ("buckets", "<u4", (c,))])

    def matrix(self, rows: Sequence[bytes]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """Return (dense float64 [n, d] with NaN where missing, buckets int64 [n, c]) of n packed rows."""
        return self.unpack(b"".join(rows), len(rows))

    def unpack(self, packed: bytes, n: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """Return what `matrix` does, of n packed rows in one piece."""
        if not self.size:
            return np.empty((n, 0)), np.empty((n, 0), np.int64)
        table = np.frombuffer(packed, self.dtype)
        return np.ascontiguousarray(table["dense"]), table["buckets"].astype(np.int64)


@dataclass(frozen=True, slots=True)
class Examples:
    """Finished examples in learning order: dense [n, d] (raw, NaN missing), buckets [n, c], labels, weights [n]."""

    dense: npt.NDArray[np.float64]
    buckets: npt.NDArray[np.int64]
    labels: npt.NDArray[np.float64]
    weights: npt.NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.labels)
