"""What one record says, read by the published rules alone: an event, a watermark, a tombstone, or a refusal.

Part of the independent checker: nothing here, nor in what it imports, comes from the program under test.
"""

import json
import math
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

EARLIEST_MS, LATEST_MS = 978_307_200_000, 4_133_980_800_000  # 2001 to the end of 2100
WHOLE_NUMBERS = 2**53


class Record(NamedTuple):
    """One record as it lies in its topic."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


class Rules(NamedTuple):
    """Everything that decides what a record becomes. Times in ms of event time."""

    features: tuple[Mapping[str, Any], ...]
    joined: bool = True
    window_ms: int = 86_400_000
    lateness_ms: int = 0
    disorder_ms: int = 0
    remember: int = 100_000
    negative: bool = False
    follows: bool = False  # an idle label side may follow the feature clock: expiry then depends on arrival
    max_future_ms: int = 3_600_000


class Row(NamedTuple):
    """Raw numbers (nan: missing, counts as the mean) and one bucket a categorical feature."""

    numbers: list[float]
    buckets: list[int]


class Seen(NamedTuple):
    """A decoded record. `kind`: event, watermark, tombstone, or refused (for `reason`)."""

    kind: str
    id: str = ""
    ts: int = 0
    row: Row | None = None
    label: float = math.nan
    weight: float = 1.0
    reason: str = ""


class Refused(Exception):
    """Carries the reason."""


def decode(record: Record, role: str, rules: Rules) -> Seen:
    """Read one record of the topic that holds `features`, `labels` or `examples`."""
    try:
        if record.value is None:
            return Seen("tombstone", id=_key(record.key))
        return _event(_object(record.value), record.timestamp, role, rules)
    except Refused as refusal:
        return Seen("refused", reason=str(refusal))


def _key(key: bytes | None) -> str:
    try:
        text = key.decode() if key else ""
    except UnicodeDecodeError:
        text = ""
    if not text:
        raise Refused("bad_id")
    return text


def _object(value: bytes) -> dict[str, Any]:
    def no_constant(_: str) -> float:
        raise ValueError

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({name for name, _ in items}) < len(items):
            raise Refused("duplicate_key")
        return dict(items)

    if not value:
        raise Refused("empty")
    try:
        document = json.loads(value.decode("utf-8"), parse_constant=no_constant, object_pairs_hook=pairs)
    except ValueError:
        raise Refused("not_json") from None
    if not isinstance(document, dict):
        raise Refused("not_object")
    return document


def _event(document: dict[str, Any], timestamp: int, role: str, rules: Rules) -> Seen:
    if "watermark" in document:
        return Seen("watermark", ts=_time(document["watermark"], timestamp, rules))
    wanted = {"features": ("features",), "labels": ("label",), "examples": ("features", "label")}[role]
    if any(name not in document for name in ("id", "ts", *wanted)):
        raise Refused("missing_field")
    row = _row(document["features"], rules) if "features" in wanted else None
    ts = _time(document["ts"], timestamp, rules)
    label = _label(document["label"]) if "label" in wanted else math.nan
    weight = _weight(document) if "label" in wanted else 1.0
    id_ = document["id"]
    if not isinstance(id_, str) or not 1 <= len(id_.encode()) <= 256:
        raise Refused("bad_id")
    return Seen("event", id_, ts, row, label, weight)


def _time(value: object, timestamp: int, rules: Rules) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != int(value):
        raise Refused("bad_timestamp")
    if not EARLIEST_MS <= value < LATEST_MS or value > timestamp + rules.max_future_ms:
        raise Refused("bad_timestamp")
    return int(value)


def _label(value: object) -> float:
    if not isinstance(value, (bool, int, float)) or value not in (0, 1):
        raise Refused("bad_label")
    return float(value)


def _weight(document: dict[str, Any]) -> float:
    weight = document.get("weight", 1)
    if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not weight > 0:
        raise Refused("bad_weight")
    return float(weight)


def _row(features: object, rules: Rules) -> Row:
    if not isinstance(features, dict):
        raise Refused("wrong_type")
    row = Row([], [])
    for feature in rules.features:
        value = features.get(feature["name"])
        if feature.get("kind") == "categorical":
            row.buckets.append(_bucket(feature, value))
        else:
            row.numbers.append(_number(feature, value))
    return row


def _bucket(feature: Mapping[str, Any], value: object) -> int:
    if value is None:
        return 1 << int(feature["bits"])
    if not isinstance(value, str):
        raise Refused("wrong_type")
    return zlib.crc32(f"{feature['name']}={value}".encode()) & ((1 << int(feature["bits"])) - 1)


def _number(feature: Mapping[str, Any], value: object) -> float:
    if value is None:
        return 0.0 if feature.get("missing") == "zero" else math.nan
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Refused("wrong_type")
    if isinstance(value, int) and abs(value) > WHOLE_NUMBERS:
        raise Refused("wrong_type")
    if not math.isfinite(value):
        raise Refused("not_finite")
    if abs(value) > feature.get("max_abs", 1e12):
        raise Refused("out_of_range")
    return float(value)
