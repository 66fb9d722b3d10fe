"""Seeded streams of events with everything in them that a join has to tell apart."""

import json
import random
from collections.abc import Iterator

from tests.e2e.world import Event, example, feature, label

T0 = 1_764_000_000_000
WINDOW_MS = 600_000
SCHEMA: list[dict[str, object]] = [
    {"name": "x1"},
    {"name": "x2", "missing": "zero"},
    {"name": "carrier", "kind": "categorical", "bits": 6},
]


def _features(rng: random.Random) -> dict[str, object]:
    values: dict[str, object] = {"x1": rng.gauss(0, 1), "x2": rng.gauss(50, 20), "carrier": rng.choice("ABCDEFG")}
    if rng.random() < 0.05:
        del values[rng.choice(list(values))]
    return values


def _truth(values: dict[str, object], rng: random.Random) -> int:
    x1, x2 = values.get("x1", 0.0), values.get("x2", 0.0)
    assert isinstance(x1, float)
    assert isinstance(x2, float)
    return int(x1 + (x2 - 50) / 30 + (values.get("carrier") == "A") + rng.gauss(0, 1) > 0)


def joined(seed: int, count: int) -> list[Event]:
    """Features and labels in event-time order: both orders of arrival, late, missing, repeated, contradicting,
    withdrawn and refused ones, and watermarks.
    """
    rng = random.Random(seed)
    timed: list[tuple[int, int, Event]] = []

    def at(ts: int, event: Event) -> None:
        timed.append((ts, len(timed), event))

    for i in range(count):
        ts, id_ = T0 + i * 1000, f"e-{seed}-{i}"
        values = _features(rng)
        at(ts, feature(id_, ts, **values))
        kind, due = rng.random(), ts + rng.randint(0, WINDOW_MS)
        value = _truth(values, rng)
        if kind < 0.03:
            continue  # never labelled
        if kind < 0.05:
            due = ts + WINDOW_MS + rng.randint(1, WINDOW_MS)  # too late
        at(due, label(id_, due, value))
        if kind > 0.98:
            at(due + 2000, label(id_, due + 2000, value))
        elif kind > 0.96:
            at(due + 2000, label(id_, due + 2000, 1 - value))
        elif kind > 0.94:
            at(ts + 500, feature(id_, ts, **_features(rng)))
        elif kind > 0.93:
            at(ts + 600, Event("features", id_, None))
        elif kind > 0.91:
            at(ts, Event("features", id_, json.dumps({"id": id_, "ts": ts, "features": {"x1": "1.5"}}).encode()))
        elif kind > 0.90:
            at(due, Event("labels", id_, b'{"id": "x", "ts": 1, "label": NaN}'))
    end = T0 + count * 1000 + 3 * WINDOW_MS
    for topic in ("features", "labels"):
        at(end, Event(topic, None, json.dumps({"watermark": end}).encode(), 0))
    return [event for _, _, event in sorted(timed, key=lambda entry: entry[:2])]


def inline(seed: int, count: int) -> Iterator[Event]:
    """Examples, one in twenty-five sent again, one in fifty refused."""
    rng = random.Random(seed)
    for i in range(count):
        ts, id_ = T0 + i * 1000, f"e-{seed}-{i}"
        values = _features(rng)
        event = example(id_, ts, _truth(values, rng), **values)
        yield event
        if rng.random() < 0.04:
            yield event
        if rng.random() < 0.02:
            yield Event("examples", id_, b'{"id": "e", "ts": 5}')
