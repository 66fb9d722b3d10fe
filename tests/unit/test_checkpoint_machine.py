"""Random workers on one store: whatever they do and whatever fails, the books agree with a model of plain counters."""

from dataclasses import dataclass, field
from itertools import pairwise

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.contract.store_samples import checkpoint, commit_on, entry, learner, partition
from tests.fakes.store import Failure, MemoryServer, MemoryStore
from worker.errors import Transient
from worker.state.store import Checkpoint, Commit, Committed, Fence, Fenced, Moved

WORKERS, PARTITIONS = 2, 2
workers = st.integers(0, WORKERS - 1)
numbers = st.integers(0, PARTITIONS - 1)
failures = st.sampled_from([None, None, None, None, "before", "after"])


@dataclass
class Worker:
    """What a worker believes: its fences and positions, the state it has seen, the commit whose reply it awaits."""

    store: MemoryStore
    seen: Checkpoint
    fences: dict[int, Fence] = field(default_factory=dict)
    positions: dict[int, int] = field(default_factory=dict)
    unanswered: Commit | None = None


class ManyWorkers(RuleBasedStateMachine):
    """Each commit learns one example of each partition it touches, so examples must equal the sum of positions."""

    @initialize()
    def start(self) -> None:
        self.server = MemoryServer()
        self.past: MemoryServer | None = None
        first = checkpoint(state=learner(0))
        assert MemoryStore(self.server, "m").create(first, entry("init"))
        self.workers = [Worker(MemoryStore(self.server, "m"), first) for _ in range(WORKERS)]

    @rule(who=workers, number=numbers, failure=failures)
    def claim(self, who: int, number: int, failure: Failure | None) -> None:
        worker = self.workers[who]
        stored = worker.store.load_partition(number)
        state = stored.state if stored else partition(number, 0)
        self.server.failures.append(failure)
        try:
            fence = worker.store.claim(number, stored.fence if stored else Fence(""), state)
        except Transient:
            worker.fences.pop(number, None)
            return
        assert fence is not None, "nobody came in between"
        worker.fences[number] = fence
        worker.positions[number] = state.sides[0].next_offset

    @rule(who=workers, number=numbers, failure=failures)
    def commit(self, who: int, number: int, failure: Failure | None) -> None:
        """Commit what is owned; with nothing owned, take a partition first."""
        worker = self.workers[who]
        if worker.unanswered is None and not worker.fences:
            self.claim(who, number, None)
        commit = worker.unanswered or self.next_commit(worker)
        self.server.failures.append(failure)
        try:
            outcome = worker.store.commit(commit)
        except Transient:
            worker.unanswered = commit
            return
        worker.unanswered = None
        self.react(worker, commit, outcome)

    def next_commit(self, worker: Worker) -> Commit:
        learned = worker.seen.learner.examples + len(worker.fences)
        blank = commit_on(worker.seen, worker.fences, state=learner(learned))
        moved = {n: (fence, partition(n, worker.positions[n] + 1)) for n, fence in worker.fences.items()}
        return Commit(blank.base, blank.checkpoint, moved, blank.entry)

    def react(self, worker: Worker, commit: Commit, outcome: Committed | Moved | Fenced) -> None:
        if isinstance(outcome, Committed):
            worker.fences |= outcome.fences
            worker.positions |= {n: state.sides[0].next_offset for n, (_, state) in commit.partitions.items()}
        elif isinstance(outcome, Fenced):
            for number in outcome.partitions:
                worker.fences.pop(number, None)
        worker.seen = worker.store.load()

    @rule(who=workers)
    def look(self, who: int) -> None:
        self.workers[who].seen = self.workers[who].store.load()

    @rule(who=workers, what=st.sampled_from(["crash", "crash", "snapshot", "go back", "restore", "reset"]))
    def something_happens(self, who: int, what: str) -> None:
        """A snapshot taken and brought back later is what a machine crash leaves behind."""
        worker = self.workers[who]
        if what == "crash":
            self.workers[who] = Worker(worker.store, worker.store.load())
        elif what == "snapshot":
            self.past = self.server.snapshot()
        elif what == "go back" and self.past is not None:
            self.server.go_back(self.past)
        elif what == "restore" and self.server.logs["m"][-1].entry.kind == "train":
            worker.store.restore_previous(entry("restore"))
        elif what == "reset":
            worker.store.reset(checkpoint(state=learner(0)), entry("reset"))

    @invariant()
    def examples_equal_positions(self) -> None:
        store = MemoryStore(self.server, "m")
        taken = sum(stored.state.sides[0].next_offset for stored in store.partitions())
        assert store.load().learner.examples == taken

    @invariant()
    def the_log_ends_with_the_current_version(self) -> None:
        log = self.server.logs["m"]
        assert log[-1].version == MemoryStore(self.server, "m").version()

    @invariant()
    def train_entries_chain(self) -> None:
        log = self.server.logs["m"]
        for before, after in pairwise(log):
            assert after.entry.kind != "train" or after.base == before.version
            assert after.version.number > before.version.number


TestManyWorkers = ManyWorkers.TestCase
TestManyWorkers.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)
