"""From decoded records to finished examples: buffers, order and join of every partition pair that a worker owns. Pure.

What was taken since the last commit is kept as one piece of work: the examples to learn, the positions that go with
them, and the order in which records were taken. It reads no clock: who may be passed is said from outside.
"""

import zlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from worker.errors import OffsetsLost
from worker.stream.dead_letters import DeadLetter, Refusal
from worker.stream.events import Events
from worker.stream.join import Finished, Inline, Join, JoinRules
from worker.stream.lanes import Lane, Pair
from worker.stream.order import first, merge
from worker.stream.positions import MARK, Consumed, PartitionState
from worker.stream.records import TopicPartition
from worker.stream.rows import Examples, RowFormat

BUFFERED_RECORDS = 20_000  # a lane: more than one poll brings, little enough to read ahead
BUFFERED_BYTES = 64_000_000  # a lane: wide rows and large refused records fill the memory before their number does
CLOSE_TO_FULL = 1000  # with less room than this, records are taken one at a time
UNLIMITED = 1 << 62

Codes = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Work:
    """What was taken since the last commit: becomes durable as a whole, or is done again."""

    examples: Examples
    delays_ms: list[int]
    partitions: Mapping[int, PartitionState]
    consumed: Consumed
    newest_ms: int  # largest event time taken so far, -1 for none


class Intake:
    """All owned pairs. `add` decoded chunks, `take` records in order, `work` and `settle` around a commit."""

    def __init__(self, joined: bool, rules: JoinRules, rows: RowFormat, batch_size: int) -> None:
        self.joined = joined
        self.rules = rules
        self.rows = rows
        self.batch_size = batch_size
        self.pairs: dict[int, Pair] = {}
        self.finished = Finished()
        self._lanes: dict[TopicPartition, Lane] = {}  # sorted: the order that breaks ties
        self._order: list[npt.NDArray[np.uint16]] = []
        self._codes: dict[Lane, tuple[int, int]] = {}  # code and first offset, in this piece of work

    # -- owning ---------------------------------------------------------------------------------------------------

    def own(self, state: PartitionState) -> None:
        """Begin with a partition at its stored positions; what waits there is rebuilt from the records read first."""
        self.drop(state.partition)
        join: Join | Inline
        if self.joined:
            join = Join(self.rules, state, self.finished, lambda offset: self._conflict(state.partition, offset))
        else:
            join = Inline(self.rules, state, self.finished)
        pair = self.pairs[state.partition] = Pair(state, join)
        self._lanes = dict(sorted({**self._lanes, **{lane.source: lane for lane in pair.lanes}}.items()))
        pair.maybe_ready()

    def drop(self, partition: int) -> None:
        """Give up a partition with all work on it that is not committed."""
        pair = self.pairs.pop(partition, None)
        if pair is None:
            return
        self._replace_finished(self.finished.without(partition))
        for lane in pair.lanes:
            del self._lanes[lane.source]
            if lane in self._codes:
                code = self._codes[lane][0]
                self._order = [part[(part != code) & (part != code + MARK)] for part in self._order]

    def _replace_finished(self, finished: Finished) -> None:
        self.finished = finished
        for pair in self.pairs.values():
            pair.join.finished = finished

    # -- reading --------------------------------------------------------------------------------------------------

    def add(self, events: Events) -> None:
        """Take in a decoded chunk: what lies before the stored position rebuilds the join, the rest is buffered.

        Raises `OffsetsLost` when a waiting event can not be rebuilt because its record is gone.
        """
        records = events.records
        lane = self._lanes.get(records.source)
        if lane is None:
            return  # of a partition that was dropped while its records were on their way
        start = bisect_left(records.offsets, lane.read_offset)  # a seek leaves nothing behind it; this makes sure
        recalled = max(start, bisect_left(records.offsets, lane.recall_until))
        lane.recall(events, start, recalled)
        lane.read_offset = max(lane.read_offset, records.next_offset)
        if recalled < len(records):
            lane.add(events, recalled)
        lane.pair.maybe_ready()

    def wanted(self) -> frozenset[TopicPartition]:
        """Return the sources to go on reading from: those that are not far ahead of the others."""
        return frozenset(
            source
            for source, lane in self._lanes.items()
            if len(lane) < BUFFERED_RECORDS and lane.buffered_bytes < BUFFERED_BYTES
        )

    def lanes(self) -> Iterable[Lane]:
        return self._lanes.values()

    def blocking(self) -> list[Lane]:
        """Return the lanes that hold the others up because nothing of them is buffered."""
        return [lane for lane in self._active() if not len(lane) and not lane.passed and not lane.full]

    # -- taking ---------------------------------------------------------------------------------------------------

    def take(self, limit: int | None = None) -> int:
        """Take records in order as far as the order is certain; return how many.

        With a limit, stop as soon as that many examples are finished and they fill whole batches.
        """
        total = 0
        while not self.whole(limit):
            lanes = self._active()
            close = any(lane.room < CLOSE_TO_FULL for lane in lanes)
            codes = (self._take_singly if close else self._take_certain)(lanes, limit)
            self._note(lanes, codes)
            total += len(codes)
            if not len(codes):
                break
        return total

    def take_in_order(self, consumed: Consumed) -> None:
        """Take buffered records in the order that a commit log entry gives: replay."""
        lanes = [self._lanes[TopicPartition(topic, partition)] for topic, partition, _ in consumed.sources]
        codes = np.frombuffer(zlib.decompress(consumed.order), "<u2").astype(np.int64)
        marks = np.flatnonzero(codes >= MARK).tolist()
        start = 0
        for stop in [*marks, len(codes)]:
            part = codes[start:stop]
            _check_buffered(lanes, part)
            self._run(lanes, part, None)
            self._note(lanes, part)
            if stop < len(codes):
                self._follow(lanes[int(codes[stop]) - MARK])
            start = stop + 1

    def follow_idle(self) -> None:
        """Let label sides on which nothing is left follow their feature side's clock."""
        for pair in self.pairs.values():
            lane = pair.lanes[-1]
            if pair.ready and lane.passed and not len(lane):  # what is buffered still has to meet its features
                self._follow(lane)

    def _follow(self, lane: Lane) -> None:
        if lane.pair.join.follow_feature_clock():
            self._order.append(np.array([self._code(lane) + MARK], np.uint16))

    def within_reach(self, most: int) -> int:
        """Return to how many examples, in whole batches, what is buffered may lead; at most `most` more than there are.

        An estimate: a record that is refused, or waits for its other half, makes no example. No more than there are
        where it does not fill a batch.
        """
        records = sum(len(lane) for lane in self._lanes.values()) // (2 if self.joined else 1)
        n = len(self.finished.labels)
        return max(n, (n + min(records, most)) // self.batch_size * self.batch_size)

    def whole(self, limit: int | None) -> bool:
        """Say whether at least `limit` examples are finished and fill whole batches."""
        n = len(self.finished.labels)
        return limit is not None and n >= limit and n % self.batch_size == 0

    def _active(self) -> list[Lane]:
        """Return the lanes to take from.

        A worker that starts takes nothing before all its pairs are rebuilt: the order of a backlog would else depend
        on which one was first. A pair that is running is not held up by one that comes later.
        """
        rebuilt = all(pair.ready for pair in self.pairs.values())
        return [lane for lane in self._lanes.values() if lane.pair.ready and (rebuilt or lane.pair.running)]

    def _take_certain(self, lanes: list[Lane], limit: int | None) -> Codes:
        """Take all records whose order is certain, as far as no lane can become full. Return the lane of each."""
        codes = merge([lane.keys for lane in lanes], [lane.last_key for lane in lanes], [lane.passed for lane in lanes])
        for i, lane in enumerate(lanes):
            if len(lane) > lane.room:
                codes = codes[: 1 + next(iter(np.flatnonzero(codes == i)[lane.room - 1 :]), len(codes))]
        return codes[: self._run(lanes, codes, limit)]

    def _take_singly(self, lanes: list[Lane], limit: int | None) -> Codes:
        """Take records one by one, as each may fill a side or free one: a full lane waits, and holds nobody up."""
        takers, taken, codes = [lane.taker() for lane in lanes], [0] * len(lanes), list[int]()
        heads, passed = list[int | None]([None] * len(lanes)), [False] * len(lanes)
        last = [lane.last_key for lane in lanes]
        changed = list(range(len(lanes)))
        of_pair = {lane.pair: [i for i in changed if lanes[i].pair is lane.pair] for lane in lanes}
        while len(codes) < CLOSE_TO_FULL and not self.whole(limit):
            for i in changed:
                lane, full = lanes[i], lanes[i].full
                heads[i] = None if full or taken[i] == len(lane) else int(lane.keys[taken[i]])
                passed[i] = full or lane.passed
            code = first(heads, last, passed)
            if code is None:
                break
            takers[code]()
            taken[code] += 1
            codes.append(code)
            changed = of_pair[lanes[code].pair]
        return np.array(codes, np.int64)

    def _run(self, lanes: list[Lane], codes: Codes, limit: int | None) -> int:
        """Take the next record of each lane named; return after how many the limit is reached in whole batches."""
        takers = [lane.taker() for lane in lanes]
        labels = self.finished.labels
        stop = UNLIMITED if limit is None else self._whole_batches(max(limit, len(labels)))
        for taken, code in enumerate(codes.tolist(), 1):
            takers[code]()
            if len(labels) >= stop:
                if self.whole(limit):
                    return taken
                stop = self._whole_batches(len(labels))  # an expiry finishes many at once
        return len(codes)

    def _whole_batches(self, examples: int) -> int:
        return -(-examples // self.batch_size) * self.batch_size

    def _note(self, lanes: list[Lane], codes: Codes) -> None:
        """Keep the order in which records were taken, and drop them from the buffers."""
        if not len(codes):
            return
        counts = np.bincount(codes, minlength=len(lanes)).tolist()
        mapped = np.array([self._code(lane) if n else 0 for lane, n in zip(lanes, counts, strict=True)], np.uint16)
        self._order.append(mapped[codes])
        for lane, count in zip(lanes, counts, strict=True):
            lane.forget(count)
            lane.pair.running |= count > 0

    def _code(self, lane: Lane) -> int:
        return self._codes.setdefault(lane, (len(self._codes), lane.next_offset))[0]

    def _conflict(self, partition: int, offset: int) -> None:
        pair = self.pairs[partition]
        key, value = pair.lanes[1].original(offset)
        refusal = Refusal("label_conflict", "label: another value was given for this id before")
        pair.letters.append(DeadLetter(pair.lanes[1].source, offset, key, value, refusal))

    # -- committing -----------------------------------------------------------------------------------------------

    def has_work(self) -> bool:
        return any(pair.moved() for pair in self.pairs.values())

    def mark(self) -> tuple[int, ...]:
        """Return a value that is another one once anything more was taken, finished, or dropped."""
        return (len(self.finished.labels), *(lane.next_offset for lane in self._lanes.values()))

    def work(self) -> Work:
        """Return what was taken since the last commit."""
        finished = self.finished
        # Copies: who still holds them when more is finished must not keep the buffers from growing.
        dense, buckets = self.rows.unpack(bytes(finished.rows), len(finished.labels))
        examples = Examples(dense, buckets, np.array(finished.labels, float), np.array(finished.weights, float))
        partitions = {n: pair.snapshot() for n, pair in self.pairs.items() if pair.moved()}
        newest = max((lane.side.clock for lane in self._lanes.values()), default=-1)
        return Work(examples, finished.delays_ms, partitions, self._consumed(), newest)

    def settle(self, work: Work) -> Counter[tuple[str, str]]:
        """Begin the next piece of work: this one is durable. Return records by (topic, outcome)."""
        outcomes: Counter[tuple[str, str]] = Counter()
        for n, state in work.partitions.items():
            self.pairs[n].committed = state
            for lane in self.pairs[n].lanes:
                for outcome, count in lane.report().items():
                    outcomes[lane.source.topic, outcome] += count
        self._replace_finished(Finished())
        self._order, self._codes = [], {}
        return outcomes

    def take_letters(self) -> list[DeadLetter]:
        """Return the letters that were not handed out yet."""
        letters = [letter for pair in self.pairs.values() for letter in pair.letters]
        for pair in self.pairs.values():
            pair.letters.clear()
        return letters

    def pending(self) -> dict[str, int]:
        """Return how many events wait, by topic."""
        totals: Counter[str] = Counter()
        for lane in self._lanes.values():
            totals[lane.source.topic] += len(lane.side.waiting)
        return dict(totals)

    def _consumed(self) -> Consumed:
        order = np.concatenate([np.empty(0, np.uint16), *self._order])
        codes = order & (MARK - 1)
        # Codes of dropped partitions are left out: who replays this need not own them.
        used = np.flatnonzero(np.bincount(codes, minlength=len(self._codes)))
        renumber = np.zeros(len(self._codes), np.uint16)
        renumber[used] = np.arange(len(used))
        named = [(lane.source.topic, lane.source.partition, first) for lane, (_, first) in self._codes.items()]
        sources = tuple(named[code] for code in used.tolist())
        packed = (renumber[codes] | (order & MARK)).astype("<u2").tobytes()
        return Consumed(sources, zlib.compress(packed, 1), len(order))


def _check_buffered(lanes: list[Lane], codes: Codes) -> None:
    for lane, count in zip(lanes, np.bincount(codes, minlength=len(lanes)).tolist(), strict=True):
        if count > len(lane):
            raise OffsetsLost(
                f"topic {lane.source.topic}, partition {lane.source.partition}: the commit log names {count} records "
                f"from offset {lane.next_offset} on, {len(lane)} of them were read"
            )
