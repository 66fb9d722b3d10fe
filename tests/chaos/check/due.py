"""Which examples had to be learned, from the topics alone: no order between the two topics, no commit log. Checker.

For nearly every id the rules leave no choice, whatever was read first: those are *settled*, and what each of their
records must become is stated here. The others (an id used again, withdrawn while it may have met its label, out of
reach of the memory) depend on the order in which a worker took them; that order is in the commit log, and
`pairs` judges them by it. A stream decides what is settled by its content, which is looked at and not assumed.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tests.chaos.check.events import Rules, Seen
from tests.chaos.check.pairs import FEATURES, LABELS

Decoded = Mapping[int, Seen]  # by offset
Settled = dict[tuple[int, int], str]  # (side, offset) to column


class Due(NamedTuple):
    """`columns`: what settled records become. `examples`: settled examples as (feature offset, label offset or -1)."""

    columns: Settled
    examples: set[tuple[int, int]]
    open_ids: set[str]


class _Event(NamedTuple):
    offset: int
    seen: Seen
    clock: int  # the latest event time before it in its topic partition


def due(sides: Sequence[Decoded], rules: Rules) -> Due:
    """Judge one partition pair (or the one topic of inline examples)."""
    result = Due({}, set(), set())
    events = [_by_id(side) for side in sides]
    withdrawn = {seen.id for side in sides for seen in side.values() if seen.kind == "tombstone"}
    for index, side in enumerate(sides):
        for offset, seen in side.items():
            if seen.kind in ("refused", "watermark"):
                result.columns[index, offset] = "dead_lettered" if seen.kind == "refused" else "control"
            elif seen.kind == "tombstone" and (len(sides) == 1 or not any(seen.id in ids for ids in events)):
                result.columns[index, offset] = "withdrawn"
    for id_ in {id_ for ids in events for id_ in ids}:
        groups = [ids.get(id_, []) for ids in events]
        if len(sides) == 1:
            _inline(id_, groups[0], rules, result)
        elif id_ in withdrawn or rules.follows or not _settle(groups[FEATURES], groups[LABELS], rules, result):
            result.open_ids.add(id_)
    return result


def _by_id(side: Decoded) -> dict[str, list[_Event]]:
    events: dict[str, list[_Event]] = defaultdict(list)
    clock = -1
    for offset, seen in sorted(side.items()):
        if seen.kind == "event":
            events[seen.id].append(_Event(offset, seen, clock))
        if seen.kind in ("event", "watermark"):
            clock = max(clock, seen.ts)  # of a conflicting label as well: that can only make fewer ids settled
    return events


def _inline(id_: str, events: list[_Event], rules: Rules, result: Due) -> None:
    first, *more = events
    if more and more[-1].offset + 1 - rules.remember > first.offset:
        result.open_ids.add(id_)
        return
    result.columns[0, first.offset] = "trained"
    result.examples.add((first.offset, -1))
    result.columns.update({(0, event.offset): "duplicate" for event in more})


def _settle(features: list[_Event], labels: list[_Event], rules: Rules, result: Due) -> bool:
    """State what the events of one id become; False where that depends on the order."""
    if not features and len(labels) == 1:
        result.columns[LABELS, labels[0].offset] = "late"
        return True
    if len(features) == 1 and len(labels) <= 1 and not (labels and _inside(features[0], labels[0], rules)):
        if labels and not _apart(features[0], labels[0]):
            return False
        result.columns[FEATURES, features[0].offset] = "trained" if rules.negative else "expired"
        if rules.negative:
            result.examples.add((features[0].offset, -1))
        result.columns.update({(LABELS, label.offset): "late" for label in labels})
        return True
    if not (features and labels and len(features) + len(labels) <= 3) or not _meet(features[0], labels[0], rules):
        return False
    if any(group[-1].offset - group[0].offset >= rules.remember for group in (features, labels)):
        return False
    feature, label = features[0], labels[0]
    result.columns[FEATURES, feature.offset] = result.columns[LABELS, label.offset] = "trained"
    result.examples.add((feature.offset, label.offset))
    result.columns.update({(FEATURES, event.offset): "duplicate" for event in features[1:]})
    for event in labels[1:]:
        same = event.seen.label == label.seen.label
        result.columns[LABELS, event.offset] = "duplicate" if same else "dead_lettered"
    return True


def _inside(feature: _Event, label: _Event, rules: Rules) -> bool:
    return -rules.lateness_ms <= label.seen.ts - feature.seen.ts <= rules.window_ms


def _apart(feature: _Event, label: _Event) -> bool:
    """Say whether a label outside the window is so by being too late: its feature is then expired sooner or later."""
    return label.seen.ts > feature.seen.ts


def _meet(feature: _Event, label: _Event, rules: Rules) -> bool:
    """Say whether the two are inside the window, and neither topic can have run past the one before it is read."""
    span = max(rules.window_ms, rules.lateness_ms) + rules.disorder_ms
    return (
        _inside(feature, label, rules)
        and label.clock <= feature.seen.ts + rules.window_ms + rules.disorder_ms
        and feature.clock <= label.seen.ts + span
    )
