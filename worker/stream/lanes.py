"""What was read and not yet taken: one lane a topic partition, and the pair of lanes that a join belongs to. Pure."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

import msgspec
import numpy as np

from worker.errors import OffsetsLost
from worker.stream.dead_letters import DeadLetter
from worker.stream.events import EventKind, Events
from worker.stream.join import Inline, Join
from worker.stream.order import Keys, running_keys
from worker.stream.positions import Ledger, PartitionState
from worker.stream.records import TopicPartition
from worker.stream.side import NO_LABEL, Side

EVENT = int(EventKind.EVENT)  # the hot path compares plain numbers
Columns = tuple[list[Any], ...]


class Lane:
    """Decoded records of one topic partition that wait to be taken, column by column.

    `columns` are kinds, offsets, ids, times, then what the topic carries: rows, or labels and weights, or all three.
    `originals` (keys, values; labels of a joined pair only) run beside them: a label conflict goes out as it came.
    """

    def __init__(self, source: TopicPartition, pair: "Pair", index: int, read_offset: int) -> None:
        join = pair.join
        self.source = source
        self.pair = pair
        self.index = index
        self.side: Side[Any] = join.sides[index]
        self.read_offset = read_offset  # where reading goes on
        self.recall_until = self.side.next_offset  # records before this offset only rebuild the join
        self.passed = False  # nothing is left to read here: holds nobody up until something comes
        self.keys: Keys = np.empty(0, np.int64)
        self._take: Callable[..., None] = (
            join.example if isinstance(join, Inline) else join.label if index else join.feature
        )
        self._has_rows = index == 0
        self._has_labels = isinstance(join, Inline) or index == 1
        self.columns: Columns = tuple([] for _ in range(4 + self._has_rows + 2 * self._has_labels))
        self.originals: Columns = ([], []) if index else ()
        self.refused: dict[int, DeadLetter] = {}
        self.buffered_bytes = 0  # payloads held until they are taken
        self._unusual = 0  # buffered records that are no events
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
    def room(self) -> int:
        """How many more events may wait here."""
        return self.pair.join.rules.max_pending - len(self.side.waiting)

    @property
    def full(self) -> bool:
        """Say whether as many events wait here as may."""
        return self.room <= 0

    # -- reading --------------------------------------------------------------------------------------------------

    def add(self, events: Events, start: int) -> None:
        """Buffer the events from index `start` on."""
        records = events.records
        payload = [events.rows] * self._has_rows + [events.labels, events.weights] * self._has_labels
        new = [events.kinds, records.offsets, events.ids, events.times, *payload]
        for column, values in zip(self.columns, new, strict=True):
            column.extend(values[start:] if start else values)
        if self.originals:
            self.originals[0].extend(records.keys[start:])
            self.originals[1].extend(records.values[start:])
        self.keys = np.concatenate([self.keys, running_keys(events.times[start:], self.last_key)])
        self.passed = False
        count = len(records) - start
        self.buffered_bytes += self._payload_bytes(len(self) - count)
        self._unusual += count - self.columns[0][-count:].count(EVENT)
        for i, refusal in events.refusals.items():
            if i >= start:
                offset, value = records.offsets[i], records.values[i]
                self.refused[offset] = DeadLetter(self.source, offset, records.keys[i], value, refusal)
                self.buffered_bytes += len(value or b"")

    def _payload_bytes(self, start: int = 0, stop: int | None = None) -> int:
        payloads = self.originals[1] if self.originals else self.columns[4]
        return sum(map(len, filter(None, islice(payloads, start, stop))))

    def recall(self, events: Events, start: int, stop: int) -> None:
        """Rebuild from these records what waited and what is remembered as trained."""
        if start >= stop:
            return
        side, offsets, ids, labels = self.side, events.records.offsets, events.ids, events.labels
        pending, trained, memory = side.pending_bits, side.trained_bits, self.pair.join.memory
        for i in range(start, stop):
            offset = offsets[i]
            if offset in pending:
                if events.kinds[i] == EVENT:
                    payload = (labels[i], events.weights[i]) if self.index else (events.rows[i],)
                    side.recall_waiting(ids[i], (offset, events.times[i], *payload))
            elif offset in trained and events.kinds[i] == EVENT:
                side.recall_trained(offset)
                memory.recall(ids[i], self.index, offset, labels[i] if self._has_labels else NO_LABEL)
        side.next_offset = offsets[stop - 1] + 1  # what is remembered goes by records, not by transaction markers

    def check_recall(self) -> None:
        """Raise `OffsetsLost` unless everything that waited was found again."""
        side = self.side
        if lost := side.finish_recall():
            raise OffsetsLost(
                f"{lost} waiting events can not be read again from topic {self.source.topic}, partition "
                f"{self.source.partition}, offsets {side.pending_bits.min()} to {self.recall_until - 1}: retention "
                f"took their records, or the settings that read them changed; put back either, or begin again "
                f"with `gradstream state reset --yes`"
            )

    # -- taking ---------------------------------------------------------------------------------------------------

    def taker(self) -> Callable[[], None]:
        """Return a function that takes one buffered record a call, from the first on; `forget` what was taken after."""
        kinds, *columns = self.columns
        if self._unusual:
            return map(self._take_any, kinds, *columns).__next__
        return map(self._take, *columns).__next__

    def _take_any(self, kind: int, offset: int, id_: str, time: int, *payload: object) -> None:
        if kind == EVENT:
            self._take(offset, id_, time, *payload)
            return
        self.side.next_offset = offset + 1
        if kind == EventKind.REFUSED:
            self.side.counts["dead_lettered"] += 1
            letter = self.refused.pop(offset)
            self.buffered_bytes -= len(letter.value or b"")
            self.pair.letters.append(letter)
        elif kind == EventKind.WATERMARK:
            self.pair.join.watermark(self.index, time)
        else:
            self.pair.join.tombstone(self.index, id_)

    def original(self, offset: int) -> tuple[bytes | None, bytes | None]:
        """Return key and value of a buffered label record as they came."""
        i = bisect_left(self.columns[1], offset)
        return self.originals[0][i], self.originals[1][i]

    def forget(self, count: int) -> None:
        """Drop the first `count` buffered records, which were taken. Moves the rest of the buffer, once a call."""
        if not count:
            return
        self.side.order_key = int(self.keys[count - 1])
        self.side.counts["consumed"] += count
        self.buffered_bytes -= self._payload_bytes(0, count)
        if self._unusual:
            self._unusual -= count - self.columns[0][:count].count(EVENT)
        for column in (*self.columns, *self.originals):
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
        self.running = False  # once anything was taken
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
        sides = tuple(lane.side.snapshot(lane.next_offset, rules.remember) for lane in self.lanes)
        ledger = self._ledger
        for lane in self.lanes:
            ledger += Ledger(**{**lane.side.counts, "pending": len(lane.side.waiting)})
        return PartitionState(self.join.partition, ledger, sides)

    def moved(self) -> bool:
        """Say whether there is anything that the last commit does not hold."""
        return self.ready and any(
            lane.next_offset != side.next_offset or lane.side.clock != side.clock
            for lane, side in zip(self.lanes, self.committed.sides, strict=True)
        )
