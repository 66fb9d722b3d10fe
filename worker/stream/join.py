"""The join of one partition pair: a state machine over event time, one clock a side. Pure.

Records come in any interleaving of the two sides; which pairs are found does not depend on it. It reads no clock and
no settings, keeps payloads only of what waits, and forgets an id once it is `remember` records behind.

An arriving event is matched, then moves its side's clock, then expiry runs on the other side:
a feature expires when the *label* clock passes it, a label when the *feature* clock does. One shared clock would lose
pairs whenever one topic is read ahead of the other.
"""

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from worker.stream.memory import NOWHERE, Memory
from worker.stream.positions import PartitionState
from worker.stream.side import NO_LABEL, Side

OnExpiry = Literal["drop", "negative"]
WaitingFeature = tuple[int, int, bytes]  # offset, event time, row
WaitingLabel = tuple[int, int, float, float]  # offset, event time, label, weight
Conflict = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class JoinRules:
    """The settings of `[join]`, in milliseconds of event time, records and rows."""

    window_ms: int = 86_400_000
    lateness_ms: int = 0
    disorder_ms: int = 0
    remember: int = 100_000
    max_pending: int = 1_000_000
    on_expiry: OnExpiry = "drop"


@dataclass(slots=True)
class Finished:
    """Examples in the order in which they were finished, column by column. `owners` names the partition of each."""

    # Buffers and no lists: a matrix is then one copy away, while the others wait for this worker's turn to end.
    rows: bytearray = field(default_factory=bytearray)
    labels: "array[float]" = field(default_factory=lambda: array("d"))
    weights: "array[float]" = field(default_factory=lambda: array("d"))
    delays_ms: list[int] = field(default_factory=list)  # label minus feature event time; -1 for a negative on expiry
    owners: list[int] = field(default_factory=list)

    def add(self, owner: int, row: bytes, label: float, weight: float, delay_ms: int) -> None:
        self.rows += row
        self.labels.append(label)
        self.weights.append(weight)
        self.delays_ms.append(delay_ms)
        self.owners.append(owner)

    def without(self, owner: int) -> "Finished":
        """Return the examples of all other partitions."""
        width = len(self.rows) // max(1, len(self.owners))
        kept = Finished()
        for i, of_row in enumerate(self.owners):
            if of_row != owner:
                row = bytes(self.rows[i * width : (i + 1) * width])
                kept.add(of_row, row, self.labels[i], self.weights[i], self.delays_ms[i])
        return kept


class Join:
    """Two sides of one partition pair. `finished` receives examples, `conflict(offset)` label conflicts.

    An id waits on one side at most, and no side remembers it as trained while it waits: an event is looked up there
    first, and all else only where nothing waits.
    """

    def __init__(self, rules: JoinRules, state: PartitionState, finished: Finished, conflict: Conflict) -> None:
        self.rules = rules
        self.partition = state.partition
        self.features: Side[WaitingFeature] = Side(state.sides[0])
        self.labels: Side[WaitingLabel] = Side(state.sides[1])
        self.memory = Memory(self.sides, rules.remember)
        self.finished = finished
        self._conflict = conflict
        self._soonest = -rules.lateness_ms
        self._latest = rules.window_ms
        self._feature_span = rules.window_ms + rules.disorder_ms
        self._label_span = max(rules.window_ms, rules.lateness_ms) + rules.disorder_ms

    @property
    def sides(self) -> tuple[Side[WaitingFeature], Side[WaitingLabel]]:
        return self.features, self.labels

    def feature(self, offset: int, id_: str, time: int, row: bytes) -> None:
        """Take one feature event (event time in ms, packed row)."""
        mine, other = self.features, self.labels
        mine.next_offset = offset + 1
        if id_ in mine.waiting or (id_ in self.memory.ids and self.memory.holds(id_)):
            mine.counts["duplicate"] += 1
        elif id_ not in other.waiting or not self._meet_waiting_label(offset, id_, time, row):
            mine.wait(id_, (offset, time, row))
            if other.clock > time + self._feature_span:
                self._expire_features()
        if time > mine.clock:
            mine.clock = time
            if other.earliest < time - self._label_span:
                self._expire_labels()

    def label(self, offset: int, id_: str, time: int, value: float, weight: float) -> None:
        """Take one label event (event time in ms)."""
        mine, other = self.labels, self.features
        mine.next_offset = offset + 1
        feature = other.waiting.pop(id_, None)  # put back in the rare case: most labels meet their feature
        if feature is None:
            if not self._without_feature(offset, id_, time, value, weight):
                return  # refused: moves no clock
        elif self._soonest <= (delay := time - feature[1]) <= self._latest:
            other.gone.append(feature[0])
            self._train(id_, feature[0], feature[2], offset, value, weight, delay)
        else:
            other.waiting[id_] = feature
            mine.counts["late"] += 1
        if time > mine.clock:
            mine.clock = time
            if other.earliest < time - self._feature_span:
                self._expire_features()

    def watermark(self, side: int, time: int) -> None:
        """Move the clock of side 0 (features) or 1 (labels) to `time`, if that is later."""
        self.sides[side].counts["control"] += 1
        if time > self.sides[side].clock:
            self.sides[side].clock = time
            (self._expire_features if side else self._expire_labels)()

    def tombstone(self, side: int, id_: str) -> None:
        """Withdraw the waiting event of this id from its own topic; the tombstone counts even when nothing waited."""
        mine = self.sides[side]
        if id_ in mine.waiting:
            mine.leave(id_)
            mine.counts["withdrawn"] += 1
        mine.counts["withdrawn"] += 1

    def follow_feature_clock(self) -> bool:
        """Let an idle label side come as far in event time as the feature side; say whether it moved."""
        if self.features.clock <= self.labels.clock:
            return False
        self.labels.clock = self.features.clock
        self._expire_features()
        return True

    def _meet_waiting_label(self, offset: int, id_: str, time: int, row: bytes) -> bool:
        """Pair a new feature with the label that waits, or let that label go: it could have met no other feature."""
        label_offset, label_time, value, weight = self.labels.leave(id_)
        delay = label_time - time
        if self._soonest <= delay <= self._latest:
            self._train(id_, offset, row, label_offset, value, weight, delay)
            return True
        self.labels.counts["late"] += 1
        return False

    def _without_feature(self, offset: int, id_: str, time: int, value: float, weight: float) -> bool:
        """Take a label for which no feature waits; return False where it contradicts an earlier one."""
        mine, other = self.labels, self.features
        waiting = mine.waiting.get(id_)
        known = waiting[2] if waiting is not None else self.memory.label(id_)
        if known is not None:
            if known != value:
                mine.counts["dead_lettered"] += 1
                self._conflict(offset)
                return False
            mine.counts["duplicate"] += 1
        elif self.memory.holds(id_):
            # Learned without this topic's memory: as a negative, or with a label too far back to compare with.
            mine.counts["late" if self.rules.on_expiry == "negative" else "duplicate"] += 1
        else:
            mine.wait(id_, (offset, time, value, weight))
            if other.clock > time + self._label_span:
                self._expire_labels()
        return True

    def _train(
        self, id_: str, feature_offset: int, row: bytes, label_offset: int, value: float, weight: float, delay_ms: int
    ) -> None:
        self.features.new_trained.append(feature_offset)
        self.labels.new_trained.append(label_offset)
        self.memory.add(id_, feature_offset, label_offset, value)
        self.finished.add(self.partition, row, value, weight, delay_ms)

    def _expire_features(self) -> None:
        negative = self.rules.on_expiry == "negative"
        for id_ in self.features.pop_expired(self.labels.clock - self._feature_span):
            offset, _, row = self.features.leave(id_)
            if negative:
                self.features.new_trained.append(offset)
                self.memory.add(id_, offset, NOWHERE, NO_LABEL)
                self.finished.add(self.partition, row, 0.0, 1.0, -1)
            else:
                self.features.counts["expired"] += 1

    def _expire_labels(self) -> None:
        for id_ in self.labels.pop_expired(self.features.clock - self._label_span):
            self.labels.leave(id_)
            self.labels.counts["late"] += 1


class Inline:
    """The label travels with its features: nothing waits, but an id is still learned once."""

    def __init__(self, rules: JoinRules, state: PartitionState, finished: Finished) -> None:
        self.rules = rules
        self.partition = state.partition
        self.examples: Side[WaitingFeature] = Side(state.sides[0])
        self.memory = Memory(self.sides, rules.remember)
        self.finished = finished

    @property
    def sides(self) -> tuple[Side[WaitingFeature]]:
        return (self.examples,)

    def example(self, offset: int, id_: str, time: int, row: bytes, value: float, weight: float) -> None:
        """Take one example event."""
        mine = self.examples
        mine.next_offset = offset + 1
        if id_ in self.memory.ids and self.memory.holds(id_):
            mine.counts["duplicate"] += 1
        else:
            mine.new_trained.append(offset)
            self.memory.add(id_, offset, NOWHERE, value)
            self.finished.add(self.partition, row, value, weight, 0)
        mine.clock = max(mine.clock, time)

    def watermark(self, side: int, time: int) -> None:
        self.sides[side].counts["control"] += 1
        self.examples.clock = max(self.examples.clock, time)

    def tombstone(self, side: int, id_: str) -> None:  # noqa: ARG002  (nothing waits here: the id has no effect)
        self.sides[side].counts["withdrawn"] += 1

    def follow_feature_clock(self) -> bool:
        return False
