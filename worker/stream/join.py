"""The join of one partition pair: a state machine over event time, one clock a side. Pure.

Records come in any interleaving of the two sides; which pairs are found does not depend on it. It reads no clock and
no settings, keeps payloads only of what waits, and forgets an id once it is `remember` records behind.

An arriving event is matched, then moves its side's clock, then expiry runs on the other side:
a feature expires when the *label* clock passes it, a label when the *feature* clock does. One shared clock would lose
pairs whenever one topic is read ahead of the other.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Literal

from pyroaring import BitMap64

from worker.stream.positions import Ledger, PartitionState, SideState

OnExpiry = Literal["drop", "negative"]


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

    rows: list[bytes] = field(default_factory=list)
    labels: list[float] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    delays_ms: list[int] = field(default_factory=list)  # label minus feature event time; -1 for a negative on expiry
    owners: list[int] = field(default_factory=list)

    def add(self, owner: int, row: bytes, label: float, weight: float, delay_ms: int) -> None:
        self.rows.append(row)
        self.labels.append(label)
        self.weights.append(weight)
        self.delays_ms.append(delay_ms)
        self.owners.append(owner)

    def without(self, owner: int) -> "Finished":
        """Return the examples of all other partitions."""
        keep = [i for i, o in enumerate(self.owners) if o != owner]
        return Finished(
            [self.rows[i] for i in keep],
            [self.labels[i] for i in keep],
            [self.weights[i] for i in keep],
            [self.delays_ms[i] for i in keep],
            [self.owners[i] for i in keep],
        )


class Side:
    """One topic of a pair: what waits, what was trained, and how far event time has come.

    `waiting` maps an id to (offset, event time, payload…), `trained` maps an id to (offset, label).
    Bitmaps of offsets follow lazily: they are brought up to date when a snapshot is taken.
    """

    __slots__ = (
        "clock", "counts", "gone", "heap", "new_trained", "new_waiting", "next_offset", "order_key",
        "pending_bits", "topic", "topic_id", "trained", "trained_bits", "waiting",
    )  # fmt: skip

    def __init__(self, state: SideState) -> None:
        self.topic = state.topic
        self.topic_id = state.topic_id
        self.next_offset = state.next_offset
        self.clock = state.clock
        self.order_key = state.order_key
        self.pending_bits = BitMap64.deserialize(state.pending) if state.pending else BitMap64()
        self.trained_bits = BitMap64.deserialize(state.trained) if state.trained else BitMap64()
        self.waiting: dict[str, tuple[int, int, bytes]] | dict[str, tuple[int, int, float, float]] = {}
        self.trained: dict[str, tuple[int, float]] = {}
        self.heap: list[tuple[int, int, str]] = []
        self.new_waiting: list[int] = []
        self.gone: list[int] = []
        self.new_trained: list[int] = []
        self.counts = dict.fromkeys(Ledger.__struct_fields__, 0)

    def wait(self, id_: str, entry: tuple) -> None:  # type: ignore[type-arg]  # (offset, time, payload…): the hot path
        self.waiting[id_] = entry
        self.new_waiting.append(entry[0])
        heappush(self.heap, (entry[1], entry[0], id_))
        if len(self.heap) > 2 * len(self.waiting) + 1000:
            # Entries of matched events would otherwise stay for a whole window: memory = rate x window.
            self.heap = [(e[1], e[0], i) for i, e in self.waiting.items()]
            heapify(self.heap)

    def recall(self, id_: str, entry: tuple) -> None:  # type: ignore[type-arg]
        """Put back what waited when the stored state was written (its offset is in the bitmap already)."""
        self.waiting[id_] = entry
        heappush(self.heap, (entry[1], entry[0], id_))

    def leave(self, id_: str) -> tuple:  # type: ignore[type-arg]
        entry = self.waiting.pop(id_)
        self.gone.append(entry[0])
        return entry

    def remember(self, id_: str, offset: int, label: float, limit: int) -> None:
        """Note that the record at `offset` was trained; forget what is more than `limit` records behind."""
        horizon = self.next_offset - limit
        if offset < horizon:
            return
        self.trained[id_] = (offset, label)
        self.new_trained.append(offset)
        if len(self.trained) > 2 * limit + 1000:
            self.trained = {i: t for i, t in self.trained.items() if t[0] >= horizon}

    def remembered(self, id_: str, limit: int) -> float | None:
        """Return the label (NaN on the feature side) of a trained id that is still remembered, or None."""
        entry = self.trained.get(id_)
        return None if entry is None or entry[0] < self.next_offset - limit else entry[1]

    def pop_expired(self, before: int) -> list[str]:
        """Remove and return the ids that still wait with an event time below `before`, oldest first."""
        ids = []
        while self.heap and self.heap[0][0] < before:
            _, offset, id_ = heappop(self.heap)
            entry = self.waiting.get(id_)
            if entry is not None and entry[0] == offset:
                ids.append(id_)
        return ids

    def snapshot(self, next_offset: int, limit: int) -> SideState:
        """Return the side as a value, with reading to go on at `next_offset`."""
        pending, trained = self.pending_bits, self.trained_bits
        pending.update(self.new_waiting)
        pending.difference_update(BitMap64(self.gone))
        trained.update(self.new_trained)
        if (horizon := next_offset - limit) > 0:
            trained.remove_range(0, horizon)
        self.new_waiting, self.gone, self.new_trained = [], [], []
        oldest = min([next_offset, *(bits.min() for bits in (pending, trained) if bits)])
        return SideState(
            self.topic, self.topic_id, next_offset, self.clock, self.order_key, oldest,
            pending.serialize(), trained.serialize(),
        )  # fmt: skip


NO_LABEL = float("nan")
Conflict = Callable[[int], None]


class Join:
    """Two sides of one partition pair. `finished` receives examples, `conflict(offset)` label conflicts."""

    def __init__(self, rules: JoinRules, state: PartitionState, finished: Finished, conflict: Conflict) -> None:
        self.rules = rules
        self.partition = state.partition
        self.sides = tuple(Side(side) for side in state.sides)
        self.features, self.labels = self.sides
        self.finished = finished
        self._conflict = conflict
        self._feature_span = rules.window_ms + rules.disorder_ms
        self._label_span = max(rules.window_ms, rules.lateness_ms) + rules.disorder_ms

    def feature(self, offset: int, id_: str, time: int, row: bytes) -> None:
        """Take one feature event (event time in ms, packed row)."""
        mine, other = self.features, self.labels
        limit = self.rules.remember
        if id_ in mine.waiting or mine.remembered(id_, limit) is not None or other.remembered(id_, limit) is not None:
            mine.counts["duplicate"] += 1
        elif (label := other.waiting.get(id_)) is not None and self._meet(time, label[1]):
            other.leave(id_)
            self._train(id_, offset, row, label[0], label[2], label[3], label[1] - time)  # type: ignore[arg-type,misc]
        else:
            if label is not None:  # outside the window for the only feature it could have met
                other.leave(id_)
                other.counts["late"] += 1
            mine.wait(id_, (offset, time, row))
            if other.clock > time + self._feature_span:
                self._expire_features()
        if time > mine.clock:
            mine.clock = time
            if other.heap and other.heap[0][0] < time - self._label_span:
                self._expire_labels()

    def label(self, offset: int, id_: str, time: int, value: float, weight: float) -> None:
        """Take one label event (event time in ms)."""
        mine, other = self.labels, self.features
        limit = self.rules.remember
        waiting = mine.waiting.get(id_)
        known = waiting[2] if waiting is not None else mine.remembered(id_, limit)
        if known is not None:
            if known != value:
                mine.counts["dead_lettered"] += 1
                self._conflict(offset)
                return  # refused: moves no clock
            mine.counts["duplicate"] += 1
        elif other.remembered(id_, limit) is not None:
            # Learned without this topic's memory: as a negative, or with a label too far back to compare with.
            mine.counts["late" if self.rules.on_expiry == "negative" else "duplicate"] += 1
        elif (feature := other.waiting.get(id_)) is not None:
            if self._meet(feature[1], time):
                other.leave(id_)
                self._train(id_, feature[0], feature[2], offset, value, weight, time - feature[1])  # type: ignore[arg-type]
            else:
                mine.counts["late"] += 1
        else:
            mine.wait(id_, (offset, time, value, weight))
            if other.clock > time + self._label_span:
                self._expire_labels()
        self._move_label_clock(time)

    def watermark(self, side: int, time: int) -> None:
        """Move the clock of side 0 (features) or 1 (labels) to `time`, if that is later."""
        self.sides[side].counts["control"] += 1
        if side:
            self._move_label_clock(time)
        elif time > self.features.clock:
            self.features.clock = time
            self._expire_labels()

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
        self._move_label_clock(self.features.clock)
        return True

    def _meet(self, feature_time: int, label_time: int) -> bool:
        return -self.rules.lateness_ms <= label_time - feature_time <= self.rules.window_ms

    def _train(
        self, id_: str, feature_offset: int, row: bytes, label_offset: int, value: float, weight: float, delay_ms: int
    ) -> None:
        limit = self.rules.remember
        self.features.counts["trained"] += 1
        self.labels.counts["trained"] += 1
        self.features.remember(id_, feature_offset, NO_LABEL, limit)
        self.labels.remember(id_, label_offset, value, limit)
        self.finished.add(self.partition, row, value, weight, delay_ms)

    def _move_label_clock(self, time: int) -> None:
        if time > self.labels.clock:
            self.labels.clock = time
            if self.features.heap and self.features.heap[0][0] < time - self._feature_span:
                self._expire_features()

    def _expire_features(self) -> None:
        negative = self.rules.on_expiry == "negative"
        for id_ in self.features.pop_expired(self.labels.clock - self._feature_span):
            offset, _, row = self.features.leave(id_)
            if not negative:
                self.features.counts["expired"] += 1
                continue
            self.features.counts["trained"] += 1
            self.features.remember(id_, offset, NO_LABEL, self.rules.remember)
            self.finished.add(self.partition, row, 0.0, 1.0, -1)

    def _expire_labels(self) -> None:
        for id_ in self.labels.pop_expired(self.features.clock - self._label_span):
            self.labels.leave(id_)
            self.labels.counts["late"] += 1


class Inline:
    """The label travels with its features: nothing waits, but an id is still learned once."""

    def __init__(self, rules: JoinRules, state: PartitionState, finished: Finished) -> None:
        self.rules = rules
        self.partition = state.partition
        self.sides = tuple(Side(side) for side in state.sides)
        (self.examples,) = self.sides
        self.finished = finished

    def example(self, offset: int, id_: str, time: int, row: bytes, value: float, weight: float) -> None:
        """Take one example event."""
        mine = self.examples
        if mine.remembered(id_, self.rules.remember) is not None:
            mine.counts["duplicate"] += 1
        else:
            mine.counts["trained"] += 1
            mine.remember(id_, offset, value, self.rules.remember)
            self.finished.add(self.partition, row, value, weight, 0)
        mine.clock = max(mine.clock, time)

    def watermark(self, side: int, time: int) -> None:
        self.sides[side].counts["control"] += 1
        self.examples.clock = max(self.examples.clock, time)

    def tombstone(self, side: int, id_: str) -> None:  # noqa: ARG002  (nothing waits here: the id has no effect)
        self.sides[side].counts["withdrawn"] += 1

    def follow_feature_clock(self) -> bool:
        return False
