"""The features of a chunk of typed events, from structs to packed rows. Fast part of decoding; refuses nothing.

What it is not certain of (a number too large, a feature that must not be missing) it leaves to the exact rules.
"""

import math
import struct
from collections.abc import Sequence
from operator import getitem
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import UNSET, UnsetType
from msgspec.structs import astuple

from worker.spec import Feature, Missing, Spec
from worker.stream.event_rules import MAX_EXACT
from worker.stream.rows import RowFormat, bucket, missing_bucket

Bools = npt.NDArray[np.bool_]
Counts = npt.NDArray[np.int64]
Values = tuple[Any, ...]  # numbers (NaN: absent, None: null), then strings (UNSET: absent, None: null)

_CACHED_VALUES = 65_536


class BucketTable(dict[str | UnsetType | None, int]):
    """Bucket of each value of one categorical feature. Filled when asked, emptied when it has grown too large."""

    def __init__(self, feature: Feature) -> None:
        super().__init__()
        self._feature = feature

    def __missing__(self, value: str | UnsetType | None) -> int:
        if len(self) >= _CACHED_VALUES:  # a feature of unbounded values (an id, say) must not fill the memory
            self.clear()
        f = self._feature
        found = bucket(f.name, value, f.bits) if isinstance(value, str) else missing_bucket(f.bits)
        self[value] = found
        return found


def expressible(spec: Spec) -> bool:
    """Say whether a struct can carry the feature names: none needs an escape in JSON."""
    return not any(c in '"\\' or c < " " for feature in spec.features for c in feature.name)


class TypedRows:
    """Struct type of the features of one spec, and the way from many of them to packed rows."""

    def __init__(self, spec: Spec) -> None:
        features = (*spec.numeric, *spec.categorical)
        self.struct = msgspec.defstruct(
            "Features",
            [(f"n{i}", float | None, math.nan) for i in range(len(spec.numeric))]
            + [(f"c{i}", str | UnsetType | None, UNSET) for i in range(len(spec.categorical))],
            rename={field: f.name for field, f in zip(_field_names(spec), features, strict=True)},
            gc=False,
        )
        self._plain_names = not any(":" in f.name for f in features)
        self._name_colons = [f.name.count(":") for f in features]
        self._format = RowFormat(spec)
        self._tables = [BucketTable(f) for f in spec.categorical]
        self._missing_buckets = np.array([missing_bucket(f.bits) for f in spec.categorical], np.int64)
        # From here on the exact rules decide: beyond max_abs, and where an integer may have been rounded.
        self._limits = np.array([min(np.nextafter(f.max_abs, np.inf), MAX_EXACT) for f in spec.numeric])
        self._zero = _columns(spec, "zero")
        self._reject = _columns(spec, "reject")

    def read(self, structs: Sequence[Any], certain: Bools) -> tuple[list[Values], list[bytes], Counts]:
        """Return values, packed row and number of present features of each struct (null counted as absent).

        Clears `certain` (in place) where a row may have to be refused.
        """
        tuples: list[Values] = [astuple(s) for s in structs]
        rows = self._pack(tuples)
        dense, buckets = self._format.matrix(rows)
        nan = np.isnan(dense)
        certain &= ~(np.abs(dense) >= self._limits).any(axis=1)
        certain &= ~nan[:, self._reject].any(axis=1)
        for i in np.flatnonzero(nan[:, self._zero].any(axis=1)).tolist():
            rows[i] = self._with_zeros(dense[i], buckets[i])
        absent = nan.sum(axis=1) + (buckets == self._missing_buckets).sum(axis=1)
        return tuples, rows, len(self._name_colons) - absent

    def colons_in_strings(self, values: Values) -> int:
        """Return the colons that one event's features hold inside names and strings, as decoded."""
        colons = sum(v.count(":") for v in values[self._format.numeric_count :] if isinstance(v, str))
        if self._plain_names:
            return colons
        return colons + sum(n for v, n in zip(values, self._name_colons, strict=True) if not _is_absent(v))

    def _pack(self, tuples: list[Values]) -> list[bytes]:
        try:
            return self._pack_all(tuples)
        except struct.error:  # a null among the numbers of some event
            d = self._format.numeric_count
            nan = math.nan
            return self._pack_all([(*[nan if v is None else v for v in t[:d]], *t[d:]) for t in tuples])

    def _pack_all(self, tuples: list[Values]) -> list[bytes]:
        pack, tables, d = self._format.pack, self._tables, self._format.numeric_count
        if not tables:
            return [pack(*t) for t in tuples]
        return [pack(*t[:d], *map(getitem, tables, t[d:])) for t in tuples]

    def _with_zeros(self, dense: npt.NDArray[np.float64], buckets: npt.NDArray[np.int64]) -> bytes:
        numbers = dense.copy()
        numbers[self._zero] = np.nan_to_num(numbers[self._zero], nan=0.0)
        return self._format.pack(*numbers.tolist(), *buckets.tolist())


def _is_absent(value: object) -> bool:
    return value is UNSET or (isinstance(value, float) and math.isnan(value))


def _field_names(spec: Spec) -> list[str]:
    return [*(f"n{i}" for i in range(len(spec.numeric))), *(f"c{i}" for i in range(len(spec.categorical)))]


def _columns(spec: Spec, missing: Missing) -> npt.NDArray[np.intp]:
    """Return the matrix columns of the numeric features with this rule for missing values."""
    return np.array([i for i, f in enumerate(spec.numeric) if f.missing == missing], np.intp)
