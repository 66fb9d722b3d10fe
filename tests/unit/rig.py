"""The real loop, turn, ownership, intake and learner on a log and a store in memory."""

from dataclasses import asdict, dataclass, field

from tests.fakes.letters import FakeDeadLetters
from tests.fakes.observer import Recorder
from tests.fakes.source import FakeLog, FakeRecord, FakeSource
from tests.fakes.store import MemoryServer, MemoryStore
from tests.fakes.turn import MemoryTurnQueue
from worker.drain import Drain
from worker.inspection import Inspection
from worker.learn.kernel import Kernel
from worker.learn.learner import Learner
from worker.learn.model import initial_state
from worker.loop import Loop, Pace
from worker.observe.observer import Observer
from worker.ownership import Ownership
from worker.patience import Patience
from worker.recipe import Recipe
from worker.spec import Feature, Hyper, Spec
from worker.state import checkpoint as codec
from worker.state.store import Checkpoint, LogEntry, Version
from worker.stream.events import Decoder
from worker.stream.intake import Intake
from worker.stream.join import JoinRules
from worker.stream.kafka.partitioning import PartitioningCheck
from worker.stream.positions import Consumed, Ledger
from worker.stream.records import TopicPartition
from worker.stream.rows import RowFormat
from worker.turn import Stamp, Turns

SPEC = Spec((Feature("x1"), Feature("x2", missing="zero"), Feature("carrier", "categorical", bits=6)))
HYPER = Hyper(l2=0.001, clip_norm=2.0, batch_size=8)
QUICK = Pace(commit_every_s=60, commit_every_examples=16, max_idle_s=0, ask_every_s=0, observe_every_s=0)


class OutOfTurns(Exception):
    """The loop went round too often: it does not get on."""


@dataclass
class Rig:
    """One model. Each `worker` is a new process in all but name."""

    joined: bool = True
    partitions: int = 1
    rules: JoinRules = field(default_factory=lambda: JoinRules(window_ms=600_000))
    pace: Pace = QUICK
    hyper: Hyper = HYPER
    patience_s: float = 60.0
    spec: Spec = SPEC
    kernel: Kernel = "numpy"
    log: FakeLog = field(default_factory=FakeLog)
    server: MemoryServer = field(default_factory=MemoryServer)
    letters: FakeDeadLetters = field(default_factory=FakeDeadLetters)

    def __post_init__(self) -> None:
        self.topics = ("features", "labels") if self.joined else ("examples",)
        self.log.create(*self.topics, partitions=self.partitions)
        self.store = MemoryStore(self.server, "m")
        empty = Checkpoint(Version(0, "first"), self.spec.document(), "numpy", frozenset(), initial_state(self.spec))
        self.store.create(empty, LogEntry("init", "test", Consumed((), b"", 0), 0, 8, "numpy", "", ""))

    def append(self, topic: str, *values: bytes | None, key: bytes | None = None, partition: int = 0) -> None:
        self.log.append(topic, partition, *(FakeRecord(key, value) for value in values))

    def sources(self) -> list[TopicPartition]:
        return [TopicPartition(topic, n) for topic in self.topics for n in range(self.partitions)]

    def worker(self, max_poll_records: int = 500, observer: Observer | None = None) -> "Worker":
        return Worker(self, max_poll_records, observer)

    def recipe(self) -> Recipe:
        """Return what decides how workers of this rig learn, as long as the log names no other."""
        return Recipe(
            spec=self.spec.document(), hyper=asdict(self.hyper), roles={topic: topic for topic in self.topics},
            decoding={}, join=asdict(self.rules), kernel=self.kernel, software={}, code="",
        )  # fmt: skip

    def digest(self) -> str:
        return codec.digest(self.store.load().learner)

    def ledger(self) -> Ledger:
        total = sum((stored.state.ledger for stored in self.store.partitions()), Ledger())
        assert total.balanced(), total
        return total

    def refused(self) -> list[tuple[str, int, int, str]]:
        letters = {(*letter.source, letter.offset, letter.refusal.reason) for letter in self.letters.stored}
        return sorted(letters)


class Worker:
    """One worker on a rig. `observer`: who is told in place of the recorder."""

    def __init__(self, rig: Rig, max_poll_records: int, observer: Observer | None = None) -> None:
        self.rig = rig
        self.observer = Recorder()
        told: Observer = observer or self.observer
        self.store = MemoryStore(rig.server, "m")
        self.source = FakeSource(rig.log, "g", rig.topics, max_poll_records)
        self.patience = Patience(rig.patience_s, told.waiting, lambda: False, first_wait_s=0.0)
        intake = Intake(rig.joined, rig.rules, RowFormat(rig.spec), rig.hyper.batch_size)
        self.ownership = Ownership(self.source, self.store, intake, rig.topics, "earliest", told)
        queue = MemoryTurnQueue(rig.server, "m", turn_wait_s=0.05)
        stamp = Stamp("w", rig.kernel, "digest", rig.recipe())
        learn = Learner(rig.spec, rig.hyper, rig.kernel)
        self.turns = Turns(self.ownership, learn, rig.spec, rig.letters, self.patience, queue, stamp)
        roles = {"features": "features", "labels": "labels", "examples": "examples"}
        decoders = {topic: Decoder(rig.spec, roles[topic]) for topic in rig.topics}  # type: ignore[arg-type]
        inspection = Inspection(PartitioningCheck(), decoders, self.source.partition_counts, told)
        self.loop = Loop(self.source, decoders, self.turns, inspection, rig.pace)

    def drain(self, rounds: int = 100_000) -> None:
        """Run until everything there now is committed."""
        drained = Drain(self.source, self.store, self.rig.sources(), self.patience)
        left = iter(range(rounds))

        def done() -> bool:
            if next(left, None) is None:
                raise OutOfTurns
            return drained()

        self.loop.run(lambda: False, done)
        self.source.close()

    def rounds(self, count: int) -> None:
        for _ in range(count):
            self.loop.run_once(hurry=True)

    def crash(self) -> None:
        """Leave without a word: what was not committed is lost. Letters on their way may arrive all the same."""
        self.rig.letters.stored += self.rig.letters.waiting
        self.rig.letters.waiting = []
        self.source.close()
