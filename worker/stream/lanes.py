"""What was read and not yet taken: one lane a topic partition, and the pair of lanes that a join belongs to. Pure."""

from collections import Counter
from collections.abc import Callable, Mapping

import msgspec
import numpy as np

from worker.errors import OffsetsLost
from worker.stream.dead_letters import DeadLetter
from worker.stream.events import EventKind, Events
from worker.stream.join import NO_LABEL, Inline, Join
from worker.stream.order import Keys, running_keys
from worker.stream.positions import Ledger, PartitionState
from worker.stream.records import TopicPartition


class Lane:
    """Decoded records of one topic partition that wait to be taken, column by column.

    The columns are kinds, offsets, ids, times, then the payload of the topic: rows, or labels and weights, or all.
    """

    def __init__(self, source: TopicPartition, pair: "Pair", index: int, read_offset: int) -> None:
        self.source = source
        self.pair = pair
        self.index = index
        self.side = pair.join.sides[index]
        self.read_offset = read_offset  # where reading goes on
        self.recall_until = self.side.next_offset  # records before this offset only rebuild the join
        self.passed = False  # nothing is left to read here: holds nobody up until something comes
        self.keys: Keys = np.empty(0, np.int64)
        self.columns: tuple[list, ...] = ()  # type: ignore[type-arg]
        self.refused: dict[int, DeadLetter] = {}
        self.raw: dict[int, tuple[bytes | None, bytes | None]] = {}  # labels only: a conflict goes out as it came
        self.raw_bytes = 0
        self._reported: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def last_key(self) -> int:
        """Order key of the last record read, taken or not."""
        return int(self.keys[-1]) if len(self.keys) else self.side.order_key

    @property
    def next_offset(self) -> int:
        """Where a new owner would go on: before what is buffered, after any transaction markers read."""
        return int(self.columns[1][0]) if len(self) else self.read_offset

    @property
    def full(self) -> bool:
        """Say whether as many events wait here as may."""
        return len(self.side.waiting) >= self.pair.join.rules.max_pending

    def add(self, events: Events, start: int) -> None:
        """Buffer the events from index `start` on."""
        records = events.records
        payload = [column[start:] for column in (events.rows, events.labels, events.weights) if column]
        new = (events.kinds[start:], records.offsets[start:], events.ids[start:], events.times[start:], *payload)
        if not self.columns:
            self.columns = tuple([] for _ in new)
        for column, values in zip(self.columns, new, strict=True):
            column.extend(values)
        self.keys = np.concatenate([self.keys, running_keys(events.times[start:], self.last_key)])
        self.passed = False
        for i, refusal in events.refusals.items():
            if i >= start:
                offset = records.offsets[i]
                self.refused[offset] = DeadLetter(self.source, offset, records.keys[i], records.values[i], refusal)
        if self.index == 1:
            for i in range(start, len(records)):
                self.raw[records.offsets[i]] = (records.keys[i], records.values[i])
                self.raw_bytes += len(records.values[i] or b"")

    def recall(self, events: Events, start: int, stop: int) -> None:
        """Rebuild from these records what waited and what is remembered as trained."""
        side, labels, weights = self.side, events.labels, events.weights
        offsets = events.records.offsets
        for i in range(start, stop):
            if events.kinds[i] != EventKind.EVENT:
                continue
            offset = offsets[i]
            if offset in side.pending_bits:
                payload = (labels[i], weights[i]) if self.index else (events.rows[i],)
                side.recall(events.ids[i], (offset, events.times[i], *payload))
            elif offset in side.trained_bits:
                side.trained[events.ids[i]] = (offset, labels[i] if labels else NO_LABEL)

    def check_recall(self) -> None:
        """Raise `OffsetsLost` unless everything that waited was found again."""
        side = self.side
        lost = len(side.pending_bits) - len(side.waiting)
        if lost:
            raise OffsetsLost(
                f"{lost} waiting events can not be read again from topic {self.source.topic}, partition "
                f"{self.source.partition}, offsets {side.pending_bits.min()} to {self.recall_until - 1}: retention took "
                f"their records, or the settings that read them changed; put back records or settings, or begin again "
                f"with `gradstream state reset --yes`"
            )

    def acceptor(self) -> Callable[..., None]:
        """Return the function that takes one record given its columns."""
        side, join, index = self.side, self.pair.join, self.index
        event: Callable[..., None] = join.example if isinstance(join, Inline) else join.label if index else join.feature

        def accept(kind: int, offset: int, id_: str, time: int, *payload: object) -> None:
            side.next_offset = offset + 1
            if kind == 0:  # EventKind.EVENT
                event(offset, id_, time, *payload)
            elif kind == EventKind.REFUSED:
                side.counts["dead_lettered"] += 1
                self.pair.letters.append(self.refused.pop(offset))
            elif kind == EventKind.WATERMARK:
                join.watermark(index, time)
            else:
                join.tombstone(index, id_)

        return accept

    def forget(self, count: int) -> None:
        """Drop the first `count` buffered records, which were taken."""
        if not count:
            return
        self.side.order_key = int(self.keys[count - 1])
        self.side.counts["consumed"] += count
        if self.index == 1:
            for offset in self.columns[1][:count]:
                self.raw_bytes -= len(self.raw.pop(offset)[1] or b"")
        for column in self.columns:
            del column[:count]
        self.keys = self.keys[count:]

    def report(self) -> Mapping[str, int]:
        """Return how many records were decided, by outcome, since the last call."""
        now = Counter(self.side.counts)
        fresh = now - self._reported
        self._reported = now
        return fresh


class Pair:
    """One partition of the event topics: its join, a lane for each topic, and letters not sent yet."""

    def __init__(self, state: PartitionState, join: Join | Inline) -> None:
        self.join = join
        self.letters: list[DeadLetter] = []
        self.lanes = [
            Lane(TopicPartition(side.topic, state.partition), self, i, side.oldest)
            for i, side in enumerate(state.sides)
        ]
        self.ready = False  # once everything that waited is rebuilt
        self.committed = state
        self._ledger = msgspec.structs.replace(state.ledger, pending=0)  # what waits is counted from the join itself

    def maybe_ready(self) -> None:
        """Become ready when everything before the stored positions was read again; check what was rebuilt."""
        if self.ready or any(lane.read_offset < lane.recall_until for lane in self.lanes):
            return
        for lane in self.lanes:
            lane.check_recall()
        self.ready = True

    def snapshot(self) -> PartitionState:
        rules = self.join.rules
        ledger = self._ledger
        for lane in self.lanes:
            ledger += Ledger(**{**lane.side.counts, "pending": len(lane.side.waiting)})
        sides = tuple(lane.side.snapshot(lane.next_offset, rules.remember) for lane in self.lanes)
        return PartitionState(self.join.partition, ledger, sides)

    def moved(self) -> bool:
        """Say whether there is anything that the last commit does not hold."""
        return self.ready and any(
            lane.next_offset != side.next_offset or lane.side.clock != side.clock
            for lane, side in zip(self.lanes, self.committed.sides, strict=True)
        )
