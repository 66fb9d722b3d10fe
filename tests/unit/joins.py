"""Builders for tests of the join: logs of records as short calls, a reader that feeds them to an intake."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
from pyroaring import BitMap64

from worker.spec import Feature, Spec
from worker.stream.dead_letters import Refusal
from worker.stream.events import EventKind, Events
from worker.stream.intake import Intake, Work
from worker.stream.join import JoinRules
from worker.stream.positions import Ledger, PartitionState, SideState
from worker.stream.records import Records, TopicPartition
from worker.stream.rows import RowFormat

T0 = 1_764_000_000_000
WINDOW = 10
ROWS = RowFormat(Spec((Feature("x"),)))


@dataclass(frozen=True, slots=True)
class Record:
    """One decoded record. `x` is the only feature of its row."""

    kind: EventKind
    id: str = ""
    time: int = -1
    x: float = 0.0
    label: float = 0.0
    weight: float = 1.0


Log = Sequence[Record | None]  # None: an offset that is never delivered (a transaction marker)


def feature(id_: str, time: int, x: float = 0.0) -> Record:
    return Record(EventKind.EVENT, id_, T0 + time, x)


def label(id_: str, time: int, value: float = 1.0, weight: float = 1.0) -> Record:
    return Record(EventKind.EVENT, id_, T0 + time, 0.0, value, weight)


def example(id_: str, time: int, x: float = 0.0, value: float = 1.0) -> Record:
    return Record(EventKind.EVENT, id_, T0 + time, x, value)


def tombstone(id_: str) -> Record:
    return Record(EventKind.TOMBSTONE, id_)


def watermark(time: int) -> Record:
    return Record(EventKind.WATERMARK, "", T0 + time)


def refused() -> Record:
    return Record(EventKind.REFUSED)


def events(source: TopicPartition, log: Log, start: int, stop: int) -> Events:
    """Return the events of `log` from offset `start` up to `stop`, as a poll would bring them."""
    at = [(offset, record) for offset, record in enumerate(log[start:stop], start) if record is not None]
    values: list[bytes | None] = [
        None if r.kind == EventKind.TOMBSTONE else f"{source.topic}:{offset}".encode() for offset, r in at
    ]
    records = Records(source, [o for o, _ in at], [r.time for _, r in at], [r.id.encode() for _, r in at], values, stop)
    return Events(
        records,
        [int(r.kind) for _, r in at],
        [r.id for _, r in at],
        [r.time for _, r in at],
        [] if source.topic == "labels" else [ROWS.pack(r.x) if r.kind == EventKind.EVENT else b"" for _, r in at],
        [] if source.topic == "features" else [r.label for _, r in at],
        [r.weight for _, r in at],
        {i: Refusal("not_json", "value") for i, (_, r) in enumerate(at) if r.kind == EventKind.REFUSED},
    )


def fresh(partition: int, topics: Sequence[str] = ("features", "labels")) -> PartitionState:
    return PartitionState(partition, Ledger(), tuple(SideState(topic, "", 0, -1, -1, 0, b"", b"") for topic in topics))


Example = tuple[float, float, float, int]  # x, label, weight, delay


def examples(work: Work) -> list[Example]:
    e = work.examples
    return list(zip(e.dense[:, 0].tolist(), e.labels.tolist(), e.weights.tolist(), work.delays_ms, strict=True))


def bits(serialised: bytes) -> list[int]:
    return list(BitMap64.deserialize(serialised)) if serialised else []


def plain(state: PartitionState) -> tuple[object, ...]:
    """Return a state with its bitmaps as lists: equal bitmaps need not have equal bytes."""
    sides = [
        (s.topic, s.next_offset, s.clock, s.order_key, s.oldest, bits(s.pending), bits(s.trained)) for s in state.sides
    ]
    return state.partition, state.ledger, sides


@dataclass
class Reader:
    """Logs, an intake that reads them, and what it has committed. `crash` forgets all that was not committed."""

    logs: Mapping[TopicPartition, Log]
    rules: JoinRules = field(default_factory=lambda: JoinRules(window_ms=WINDOW))
    batch_size: int = 1
    joined: bool = True
    committed: list[Example] = field(default_factory=list)
    works: list[Work] = field(default_factory=list)
    outcomes: dict[tuple[str, str], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        partitions = sorted({source.partition for source in self.logs})
        topics = sorted({source.topic for source in self.logs})
        self.states = {n: fresh(n, topics) for n in partitions}
        self.start()

    def start(self) -> None:
        self.intake = Intake(self.joined, self.rules, ROWS, self.batch_size)
        for state in self.states.values():
            self.intake.own(msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=PartitionState))

    crash = start

    def read(self, source: TopicPartition, count: int = 1 << 30) -> None:
        start = next(lane.read_offset for lane in self.intake.lanes() if lane.source == source)
        stop = min(len(self.logs[source]), start + count)
        self.intake.add(events(source, self.logs[source], start, stop))

    def read_all(self) -> None:
        for source in self.logs:
            self.read(source)

    def at_end(self) -> bool:
        return all(lane.read_offset == len(self.logs[lane.source]) for lane in self.intake.lanes())

    def pass_all(self) -> None:
        for lane in self.intake.lanes():
            lane.passed = True

    def commit(self) -> Work:
        work = self.intake.work()
        self.states.update(work.partitions)
        self.committed += examples(work)
        self.works.append(work)
        for key, count in self.intake.settle(work).items():
            self.outcomes[key] = self.outcomes.get(key, 0) + count
        return work

    def finish(self) -> "Reader":
        """Read and take all that is left, and commit it."""
        self.read_all()
        self.pass_all()
        self.intake.take()
        self.commit()
        return self

    def ledger(self) -> Ledger:
        total = Ledger()
        for state in self.states.values():
            total += state.ledger
        return total


def pair_logs(features: Log, labels: Log, partition: int = 0) -> dict[TopicPartition, Log]:
    return {TopicPartition("features", partition): features, TopicPartition("labels", partition): labels}


def taken_order(work: Work) -> list[int]:
    """Return the codes of a work's order, decompressed."""
    import zlib

    return [int(code) for code in np.frombuffer(zlib.decompress(work.consumed.order), "<u2")]


def columns(ledger: Ledger) -> dict[str, int]:
    """Return the columns that are not zero."""
    return {name: n for name in ledger.__struct_fields__ if (n := getattr(ledger, name))}


def interleave(reader: Reader, sides: Iterable[int]) -> None:
    """Take the records of partition 0 one by one, from the features (0) or the labels (1), in this very order."""
    lanes = reader.intake.pairs[0].lanes
    for side in sides:
        reader.read(lanes[side].source, 1)
        for lane in lanes:
            lane.passed = True
        reader.intake.take()
