"""What becomes of the records of one partition pair, taken one at a time in a given order. Part of the checker.

The published rules of the join, written down as plainly as possible: every record gets its column, every example comes
out where it is finished. Slow and simple on purpose; shares nothing with the program under test.
"""

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.chaos.check.events import Row, Rules, Seen

FAR = -(1 << 62)
FEATURES, LABELS = 0, 1


class Learned(NamedTuple):
    """One example as it was finished. Offsets are -1 where there is no such record."""

    partition: int
    feature: int
    label_offset: int
    row: Row
    label: float
    weight: float


class Remembered(NamedTuple):
    feature: int
    label_offset: int
    label: float


@dataclass
class Side:
    """One topic of the pair. `columns` maps each offset taken to where it is counted."""

    next: int
    clock: int = -1
    waiting: dict[str, tuple[int, Seen]] = field(default_factory=dict)
    columns: dict[int, str] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)  # offset to reason

    def earlier_than(self, time: int) -> list[str]:
        """Return the ids that wait with an event time before `time`, oldest first."""
        ids = [id_ for id_, (_, seen) in self.waiting.items() if seen.ts < time]
        return sorted(ids, key=lambda id_: (self.waiting[id_][1].ts, self.waiting[id_][0]))

    def refuse(self, offset: int, reason: str) -> None:
        self.columns[offset] = "dead_lettered"
        self.refused[offset] = reason


class Pair:
    """A pair of topic partitions, or the one of inline examples."""

    def __init__(self, partition: int, rules: Rules, begins: tuple[int, ...] = (0, 0)) -> None:
        self.partition = partition
        self.rules = rules
        self.sides = [Side(begin) for begin in begins]
        self.memory: dict[str, Remembered] = {}
        self.learned: list[Learned] = []

    def ledger(self) -> Counter[str]:
        """Return how many records are in each column, `consumed` included."""
        total: Counter[str] = Counter()
        for side in self.sides:
            total.update(side.columns.values())
            total["consumed"] += len(side.columns)
        return total

    def offsets(self, index: int, column: str) -> set[int]:
        return {offset for offset, where in self.sides[index].columns.items() if where == column}

    def take(self, index: int, offset: int, seen: Seen) -> list[Learned]:
        """Take one record; return the examples that it finishes, in order."""
        before, side = len(self.learned), self.sides[index]
        assert offset not in side.columns, "the caller takes every record once"
        side.next = offset + 1
        if seen.kind == "refused":
            side.refuse(offset, seen.reason)
        elif seen.kind == "watermark":
            side.columns[offset] = "control"
            self._move_clock(index, seen.ts)
        elif seen.kind == "tombstone":
            side.columns[offset] = "withdrawn"
            if len(self.sides) > 1 and seen.id in side.waiting:
                side.columns[side.waiting.pop(seen.id)[0]] = "withdrawn"
        elif len(self.sides) == 1:
            self._example(offset, seen)
        elif index == FEATURES:
            self._feature(offset, seen)
        else:
            self._label(offset, seen)
        return self.learned[before:]

    def follow(self) -> list[Learned]:
        """The idle label side comes as far in event time as the feature side."""
        before = len(self.learned)
        self._move_clock(LABELS, self.sides[FEATURES].clock)
        return self.learned[before:]

    # -- events ---------------------------------------------------------------------------------------------------

    def _example(self, offset: int, seen: Seen) -> None:
        side = self.sides[0]
        if self._remembers(seen.id):
            side.columns[offset] = "duplicate"
        else:
            assert seen.row is not None
            self._learn(seen.id, (offset, seen.row), -1, seen.label, seen.weight)
        side.clock = max(side.clock, seen.ts)

    def _feature(self, offset: int, seen: Seen) -> None:
        mine, other = self.sides
        if seen.id in mine.waiting or self._remembers(seen.id):
            mine.columns[offset] = "duplicate"
        else:
            assert seen.row is not None
            found = other.waiting.pop(seen.id, None)
            if found is not None and self._meets(seen, found[1]):
                self._learn(seen.id, (offset, seen.row), found[0], found[1].label, found[1].weight)
            else:
                if found is not None:
                    other.columns[found[0]] = "late"
                mine.waiting[seen.id] = (offset, seen)
                mine.columns[offset] = "pending"
                self._expire_features()
        self._move_clock(FEATURES, seen.ts)

    def _label(self, offset: int, seen: Seen) -> None:
        mine, other = self.sides[LABELS], self.sides[FEATURES]
        found = other.waiting.get(seen.id)
        if found is not None:
            if self._meets(found[1], seen):
                del other.waiting[seen.id]
                assert found[1].row is not None
                self._learn(seen.id, (found[0], found[1].row), offset, seen.label, seen.weight)
            else:
                mine.columns[offset] = "late"
        elif not self._alone(offset, seen):
            return  # contradicts an earlier one: refused, so it moves no clock
        self._move_clock(LABELS, seen.ts)

    def _alone(self, offset: int, seen: Seen) -> bool:
        """A label for which no feature waits. False: it is a conflict."""
        mine = self.sides[LABELS]
        waits, memory = mine.waiting.get(seen.id), self.memory.get(seen.id)
        known = math.nan
        if waits is not None:
            known = waits[1].label
        elif memory is not None and memory.label_offset >= mine.next - self.rules.remember:
            known = memory.label
        if not math.isnan(known):
            if known != seen.label:
                mine.refuse(offset, "label_conflict")
                return False
            mine.columns[offset] = "duplicate"
        elif self._remembers(seen.id):
            mine.columns[offset] = "late" if self.rules.negative else "duplicate"
        else:
            mine.waiting[seen.id] = (offset, seen)
            mine.columns[offset] = "pending"
            self._expire_labels()
        return True

    # -- rules ----------------------------------------------------------------------------------------------------

    def _meets(self, feature: Seen, label: Seen) -> bool:
        return -self.rules.lateness_ms <= label.ts - feature.ts <= self.rules.window_ms

    def _remembers(self, id_: str) -> bool:
        known = self.memory.get(id_)
        if known is None:
            return False
        first, last, limit = self.sides[0], self.sides[-1], self.rules.remember
        return known.feature >= first.next - limit or known.label_offset >= last.next - limit

    def _learn(self, id_: str, feature: tuple[int, Row], label_offset: int, label: float, weight: float) -> None:
        self.sides[0].columns[feature[0]] = "trained"
        if label_offset >= 0:
            self.sides[LABELS].columns[label_offset] = "trained"
        known = label if label_offset >= 0 else math.nan
        self.memory[id_] = Remembered(feature[0], label_offset if label_offset >= 0 else FAR, known)
        self.learned.append(Learned(self.partition, feature[0], label_offset, feature[1], label, weight))

    def _move_clock(self, index: int, ts: int) -> None:
        side = self.sides[index]
        if ts > side.clock:
            side.clock = ts
            if len(self.sides) > 1:
                (self._expire_labels, self._expire_features)[index]()

    def _expire_features(self) -> None:
        features, labels = self.sides
        for id_ in features.earlier_than(labels.clock - self.rules.window_ms - self.rules.disorder_ms):
            offset, seen = features.waiting.pop(id_)
            features.columns[offset] = "expired"
            if self.rules.negative:
                assert seen.row is not None
                self._learn(id_, (offset, seen.row), -1, 0.0, 1.0)

    def _expire_labels(self) -> None:
        features, labels = self.sides
        span = max(self.rules.window_ms, self.rules.lateness_ms) + self.rules.disorder_ms
        for id_ in labels.earlier_than(features.clock - span):
            labels.columns[labels.waiting.pop(id_)[0]] = "late"
