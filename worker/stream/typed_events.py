"""The fast way from bytes to columns: a chunk of events through structs generated from the spec.

It accepts only what the rules of `event_rules` accept for certain, with the same outcome, and is silent about the
rest: it never refuses. Columns, not events: no Python object is made per event beside the struct and its row.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import UNSET, Meta, UnsetType

from worker.spec import Role, Spec
from worker.stream.event_rules import END_MS, FIRST_MS, MAX_ID_BYTES
from worker.stream.typed_rows import Bools, Counts, TypedRows, Values

# What a value raises that is no plain event: not JSON, another shape, null, nested without end.
_NOT_PLAIN = (msgspec.DecodeError, ValueError, TypeError, RecursionError)
_COLON = ord(":")
_BLOCK = 128


@dataclass(slots=True)
class Typed:
    """Columns of one chunk, all of equal length; only the entries where `certain` is true mean anything.

    `rows` is empty where the topic carries no features, `labels` where it carries none.
    """

    certain: Bools
    ids: list[str]
    times: list[int]
    rows: list[bytes]
    labels: list[float]
    weights: list[float]


class TypedDecoder:
    """Decodes the plain events of one topic. The spec has to be `expressible`."""

    def __init__(self, spec: Spec, role: Role, *, max_event_bytes: int, max_future_s: float) -> None:
        self._rows = TypedRows(spec) if role != "labels" else None
        self._has_label = role != "features"
        self._binary = spec.task == "binary"
        self._max_event_bytes = max_event_bytes
        self._max_future_ms = math.floor(max_future_s * 1000)
        event = _event_struct(self._rows, has_label=self._has_label, binary=self._binary)
        self._keys = len(event.__struct_fields__) - self._has_label  # without the optional weight
        self._decode = msgspec.json.Decoder(event).decode
        self._blank = msgspec.convert({"id": "-", "ts": FIRST_MS, "features": {}, "label": 0.0}, event)

    def decode(self, values: Sequence[bytes | None], timestamps: Sequence[int]) -> Typed:
        """Decode a chunk (at least one value). `timestamps` are the records' own in ms, negative where unknown."""
        structs, plain = self._structs(values)
        certain = plain.copy()
        times = [s.ts for s in structs]
        certain &= ~_too_far_ahead(times, timestamps, self._max_future_ms)
        ids = [s.id for s in structs]
        _clear_long_ids(ids, certain)
        labels, weights, keys = self._labels(structs, certain)
        tuples, rows, present = self._features(structs, certain)
        keys += present
        texts = [v for v, is_plain in zip(values, plain.tolist(), strict=True) if v is not None and is_plain]
        if _colons(texts) != keys[plain].sum():  # else each text has as few as it can: see `_each_key_once`
            for i in np.flatnonzero(certain).tolist():
                certain[i] = self._each_key_once(values[i], int(keys[i]), ids[i], tuples[i])
        return Typed(certain, ids, times, rows, labels, weights)

    def _structs(self, values: Sequence[bytes | None]) -> tuple[list[Any], Bools]:
        """Return a struct of each value, and which values are plain events (a blank struct stands for the others)."""
        limit = self._max_event_bytes
        if max(map(len, filter(None, values)), default=0) > limit:
            values = [v if v is not None and len(v) <= limit else None for v in values]
        structs: list[Any] = []
        plain = np.ones(len(values), np.bool_)
        for value in values:
            try:
                structs.append(self._decode(value))  # type: ignore[arg-type]
            except _NOT_PLAIN:
                plain[len(structs)] = False
                structs.append(self._blank)
        return structs, plain

    def _labels(self, structs: list[Any], certain: Bools) -> tuple[list[float], list[float], Counts]:
        """Return labels, weights, and the number of keys outside the features."""
        keys = np.full(len(structs), self._keys)
        if not self._has_label:
            return [], [1.0] * len(structs), keys
        labels = np.array([s.label for s in structs], np.float64) + 0.0  # -0.0 is 0.0
        if self._binary:
            certain &= (labels == 0.0) | (labels == 1.0)
        weights = [s.weight for s in structs]
        if weights.count(UNSET) != len(weights):
            keys += np.array([w is not UNSET for w in weights])
        return labels.tolist(), [1.0 if w is UNSET else w for w in weights], keys

    def _features(self, structs: list[Any], certain: Bools) -> tuple[list[Values], list[bytes], Counts]:
        if self._rows is None:
            return [()] * len(structs), [], np.zeros(len(structs), np.int64)
        return self._rows.read([s.features for s in structs], certain)

    def _each_key_once(self, raw: bytes | None, keys: int, id_: str, values: Values) -> bool:
        """Say whether an event certainly holds no key twice (structs keep the last one in silence).

        Each key takes a colon that can not be escaped, so a text with exactly as many colons as distinct keys
        holds no key twice, no unknown key, and no colon in a string. Without any escape the colons in strings can
        be counted as well. `keys` takes null for absent, which errs on the safe side: it can only be too small.
        No text can have fewer colons than keys, so if a whole chunk has no more, each of its texts has no more.
        """
        assert raw is not None
        colons = raw.count(b":")
        if colons == keys:
            return True
        unescaped = b"\\" not in raw
        in_strings = id_.count(":")
        if unescaped and colons == keys + in_strings:  # ids with colons are common
            return True
        if self._rows is not None:
            keys += values.count(None)
            in_strings += self._rows.colons_in_strings(values)
        return colons == keys or (unescaped and colons == keys + in_strings)


def _event_struct(rows: TypedRows | None, *, has_label: bool, binary: bool) -> type[msgspec.Struct]:
    """Return the type of a plain event. Numbers are bounded here, where the check costs nothing."""
    fields: list[Any] = [
        ("id", Annotated[str, Meta(min_length=1, max_length=MAX_ID_BYTES)]),
        ("ts", Annotated[int, Meta(ge=FIRST_MS, lt=END_MS)]),
    ]
    if rows is not None:
        fields.append(("features", rows.struct))
    if has_label:
        fields.append(("label", bool | float if binary else float))
        fields.append(("weight", Annotated[float, Meta(gt=0)] | UnsetType, UNSET))
    return msgspec.defstruct("Event", fields, gc=False)


def _colons(texts: list[bytes]) -> int:
    """Count the colons of all texts at the speed of memory, in blocks that stay in the cache.

    `bytes.count` takes three times as long where there are many.
    """
    blocks = (b"".join(texts[i : i + _BLOCK]) for i in range(0, len(texts), _BLOCK))
    return sum(int(np.count_nonzero(np.frombuffer(block, np.uint8) == _COLON)) for block in blocks)


def _too_far_ahead(times: list[int], timestamps: Sequence[int], limit_ms: int) -> Bools:
    own = np.array(timestamps, np.int64)
    return (own >= 0) & (np.array(times, np.int64) > own + limit_ms)


def _clear_long_ids(ids: list[str], certain: Bools) -> None:
    """Clear `certain` where an id is too long: structs count characters, the rule counts bytes."""
    if all(map(str.isascii, ids)):
        return
    for i, id_ in enumerate(ids):
        if len(id_.encode()) > MAX_ID_BYTES:
            certain[i] = False
