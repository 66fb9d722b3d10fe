"""The rules of events, one event at a time: what is accepted, and why the rest is refused. Exact, not fast.

This file decides; the typed decoder may only take over what these rules would have accepted with the same outcome.
No clock is read: how far in the future an event may lie is measured against its record's own timestamp.
"""

import math
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Literal, NamedTuple

from worker.spec import Feature, Role, Spec
from worker.stream.dead_letters import REASONS, Reason, Refusal
from worker.stream.rows import RowFormat, bucket, missing_bucket
from worker.stream.strict_json import NotJson, StrictJson

FIRST_MS = 978_307_200_000  # 2001-01-01
END_MS = 4_133_980_800_000  # 2101-01-01, the first instant that is too late
MAX_ID_BYTES = 256
MAX_EXACT = 2**53  # beyond it a 64-bit float no longer holds every integer
NAME_LENGTH = 64

_RANK = {reason: rank for rank, reason in enumerate(REASONS)}
_TYPES = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
    type(None): "null",
}


class EventKind(IntEnum):
    """What a record turned out to be."""

    EVENT = 0
    REFUSED = 1
    TOMBSTONE = 2
    WATERMARK = 3


class Decoded(NamedTuple):
    """One record that was not refused. `time` is in ms since 1970, -1 where there is none (tombstone)."""

    kind: EventKind
    id: str
    time: int
    row: bytes = b""
    label: float = 0.0
    weight: float = 1.0


def printable(name: str) -> str:
    """Return a name from a payload as it may stand in a message: at most 64 characters, none that breaks a line."""
    cut = name if len(name) <= NAME_LENGTH else name[: NAME_LENGTH - 1] + "…"
    return "".join(c if c.isprintable() else "�" for c in cut)


class EventRules:
    """The rules for the events of one topic. `note_unknown` is called with each unknown feature name that is seen."""

    def __init__(
        self,
        spec: Spec,
        role: Role,
        note_unknown: Callable[[str], None],
        *,
        max_event_bytes: int,
        max_future_s: float,
        unknown_features: Literal["ignore", "refuse"],
    ) -> None:
        self._binary = spec.task == "binary"
        self._numeric, self._categorical = spec.numeric, spec.categorical
        self._features = {f.name: f"features.{printable(f.name)}" for f in spec.features}
        self._has_row = role != "labels"
        self._has_label = role != "features"
        self._fields = ("id", "ts", *(("features",) * self._has_row), *(("label",) * self._has_label))
        self._pack = RowFormat(spec).pack
        self._note_unknown = note_unknown
        self._max_event_bytes = max_event_bytes
        self._max_future_s = max_future_s
        self._refuse_unknown = unknown_features == "refuse"
        self._json = StrictJson()

    def read(self, key: bytes | None, value: bytes | None, timestamp: int, content_type: bytes) -> Decoded | Refusal:
        """Decide one record. `timestamp` is the record's own in ms (negative: unknown), `content_type` b"" if absent.

        Of several reasons the first of the closed list is given. Raises on no bytes whatever.
        """
        if value is None:
            return _tombstone(key)
        event = self._unread(value, content_type) or self._object(value)
        if isinstance(event, Refusal):
            return event
        if event.keys() == {"watermark"}:
            return self._watermark(event["watermark"], timestamp)
        return self._event(event, timestamp)

    def _unread(self, value: bytes, content_type: bytes) -> Refusal | None:
        """Refuse what is not even looked at as JSON: size first, so that no 50 MB are parsed only to be refused."""
        if len(value) > self._max_event_bytes:
            return Refusal("too_large", f"{len(value)} bytes, at most {self._max_event_bytes} are accepted")
        if not value:
            return Refusal("empty", "no bytes (a null value withdraws, an empty one means nothing)")
        if content_type.partition(b";")[0].strip().lower() not in (b"", b"application/json"):
            return Refusal("unsupported_content_type", "content-type header: expected application/json")
        return None

    def _object(self, value: bytes) -> dict[str, object] | Refusal:
        document = self._json.parse(value)
        if isinstance(document, NotJson):
            return Refusal("not_json", document.detail)
        if not isinstance(document.value, dict):
            return Refusal("not_object", f"{_type(document.value)}, expected an object")
        if document.repeated_key is not None:
            return Refusal("duplicate_key", self._repeated(document.repeated_key))
        return document.value

    def _repeated(self, key: str) -> str:
        """Name a repeated key if it is one of ours; any other may be data (an address as a key, say)."""
        if key in self._features or key in (*self._fields, "weight", "watermark"):
            return f"{printable(key)}: twice in one object"
        return "a key occurs twice in one object"

    def _watermark(self, value: object, timestamp: int) -> Decoded | Refusal:
        refusals: list[Refusal] = []
        time = self._time("watermark", value, timestamp, refusals)
        return _first(refusals) or Decoded(EventKind.WATERMARK, "", time)

    def _event(self, event: Mapping[str, object], timestamp: int) -> Decoded | Refusal:
        refusals = [Refusal("missing_field", f"{name}: missing") for name in self._fields if name not in event]
        id_, time, row, label, weight = "", -1, b"", 0.0, 1.0
        if "id" in event:
            id_ = _id("id", event["id"], refusals)
        if "ts" in event:
            time = self._time("ts", event["ts"], timestamp, refusals)
        if self._has_row and "features" in event:
            row = self._row(event["features"], refusals)
        if self._has_label and "label" in event:
            label = self._label(event["label"], refusals)
        if self._has_label and "weight" in event:
            weight = _weight(event["weight"], refusals)
        return _first(refusals) or Decoded(EventKind.EVENT, id_, time, row, label, weight)

    def _time(self, field: str, value: object, timestamp: int, refusals: list[Refusal]) -> int:
        number = _number(field, value, "bad_timestamp", "milliseconds since 1970", refusals)
        if number is None:
            return -1
        problem = self._time_problem(number, timestamp)
        if problem:
            refusals.append(Refusal("bad_timestamp", f"{field}: {problem}"))
        return int(number)

    def _time_problem(self, number: float, timestamp: int) -> str | None:
        if number != int(number):
            return "not a whole number of milliseconds"
        if not FIRST_MS <= number < END_MS:
            for unit, factor in (("seconds", 1000), ("microseconds", 0.001), ("nanoseconds", 1e-6)):
                if FIRST_MS <= number * factor < END_MS:
                    return f"looks like {unit}, expected milliseconds since 1970"
            return "outside the years 2001 to 2100 in milliseconds since 1970"
        if timestamp >= 0 and number > timestamp + self._max_future_s * 1000:
            return f"more than {self._max_future_s:g} s ahead of the record's own timestamp"
        return None

    def _row(self, features: object, refusals: list[Refusal]) -> bytes:
        if not isinstance(features, dict):
            refusals.append(Refusal("wrong_type", f"features: {_type(features)}, expected an object"))
            return b""
        for name in features:
            if name not in self._features:
                self._note_unknown(name)
                if self._refuse_unknown:
                    refusals.append(Refusal("unknown_feature", f"features.{printable(name)}: not in the model"))
        fields = self._features
        numbers = [_numeric(f, fields[f.name], features.get(f.name), refusals) for f in self._numeric]
        buckets = [_categorical(f, fields[f.name], features.get(f.name), refusals) for f in self._categorical]
        return b"" if refusals else self._pack(*numbers, *buckets)

    def _label(self, value: object, refusals: list[Refusal]) -> float:
        if self._binary and isinstance(value, bool):
            return float(value)
        expected = "0 or 1" if self._binary else "a finite number"
        number = _number("label", value, "bad_label", expected, refusals)
        if number is None:
            return 0.0
        if self._binary and number not in (0, 1):
            refusals.append(Refusal("bad_label", "label: another number, expected 0 or 1"))
        return number + 0.0  # -0.0 is 0.0


def _tombstone(key: bytes | None) -> Decoded | Refusal:
    if key is None:
        return Refusal("bad_id", "key: null, the key of a null value is the id that it withdraws")
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return Refusal("bad_id", "key: not UTF-8")
    refusals: list[Refusal] = []
    id_ = _id("key", text, refusals)
    return _first(refusals) or Decoded(EventKind.TOMBSTONE, id_, -1)


def _id(field: str, value: object, refusals: list[Refusal]) -> str:
    if not isinstance(value, str):
        refusals.append(Refusal("bad_id", f"{field}: {_type(value)}, expected a string of 1 to {MAX_ID_BYTES} bytes"))
        return ""
    if not 0 < len(value.encode()) <= MAX_ID_BYTES:
        size = "longer" if value else "empty"
        refusals.append(Refusal("bad_id", f"{field}: {size}, expected a string of 1 to {MAX_ID_BYTES} bytes"))
    return value


def _weight(value: object, refusals: list[Refusal]) -> float:
    number = _number("weight", value, "bad_weight", "a number above 0", refusals)
    if number is None:
        return 1.0
    if number <= 0:
        refusals.append(Refusal("bad_weight", "weight: not above 0"))
    return number


def _numeric(feature: Feature, field: str, value: object, refusals: list[Refusal]) -> float:
    """Return the number that the row holds: NaN stands for a missing value that is replaced when it is learned."""
    if value is None:
        if feature.missing == "reject":
            refusals.append(Refusal("missing_feature", f"{field}: missing, and its rule is reject"))
        return 0.0 if feature.missing == "zero" else math.nan
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > MAX_EXACT:
        refusals.append(Refusal("wrong_type", f"{field}: an integer beyond 2^53, which no 64-bit float holds exactly"))
        return math.nan
    number = _number(field, value, "wrong_type", "a number", refusals)
    if number is None:
        return math.nan
    if abs(number) > feature.max_abs:
        refusals.append(Refusal("out_of_range", f"{field}: beyond max_abs = {feature.max_abs:g}"))
    return number


def _categorical(feature: Feature, field: str, value: object, refusals: list[Refusal]) -> int:
    if isinstance(value, str):
        return bucket(feature.name, value, feature.bits)
    if value is not None:
        refusals.append(Refusal("wrong_type", f"{field}: {_type(value)}, expected a string"))
    return missing_bucket(feature.bits)


def _number(field: str, value: object, reason: Reason, expected: str, refusals: list[Refusal]) -> float | None:
    """Return a finite float, or None after noting why it is none. Python counts `True` as a number; JSON does not."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        refusals.append(Refusal(reason, f"{field}: {_type(value)}, expected {expected}"))
        return None
    try:
        number = float(value)
    except OverflowError:  # an integer of more than 308 digits
        number = math.inf
    if math.isinf(number):
        refusals.append(Refusal("not_finite", f"{field}: too large for a 64-bit float"))
        return None
    return number


def _type(value: object) -> str:
    return _TYPES[type(value)]


def _first(refusals: list[Refusal]) -> Refusal | None:
    return min(refusals, key=lambda refusal: _RANK[refusal.reason], default=None)
