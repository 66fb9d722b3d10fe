"""One simulated worker: its preparation is a timed wait, its turns are the product's own queue, learner and commit.

What a real worker does between two looks at the queue (read, decode, join) is a sleep here, so that many of them fit
on few cores. Must not know how many others there are.
"""

import secrets
import time
from array import array
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import NamedTuple
from zlib import compress

import numpy as np
from pyroaring import BitMap64

from worker.learn.state import Learn
from worker.loop import COLLECTED_EXAMPLES, WAITING_EXAMPLES
from worker.spec import Spec
from worker.state.store import (
    Checkpoint,
    Commit,
    Committed,
    Consumed,
    Fence,
    LogEntry,
    Moved,
    PartitionState,
    SideState,
    Store,
    TurnQueue,
    Version,
)
from worker.stream.positions import Ledger
from worker.stream.rows import Examples, RowFormat

WAITING = 1000  # features of a partition whose label is still to come
BATCH = 64
FULL_WAIT_S = 0.1  # between two looks of who has nothing to prepare: shorter ones would take the cores from the others


@dataclass(frozen=True, slots=True)
class Pace:
    """`prepare_us` an example, `chunk` examples between two looks at the queue; a commit is due at `every` examples.

    At `most` examples a worker stops preparing and only waits.
    """

    prepare_us: float = 5.0
    every: int = 8_000
    chunk: int = WAITING_EXAMPLES
    most: int = COLLECTED_EXAMPLES
    turn_wait_s: float = 2.0


class Taken(NamedTuple):
    """One turn: when it ended, what it learned, how long each part of it took, and how often it was learned anew."""

    ended: float
    examples: int
    wait_s: float  # from getting in line to the turn; preparing goes on meanwhile
    build_s: float  # matrices, positions and order of what was collected
    load_s: float  # what others have learned
    learn_s: float
    commit_s: float
    conflicts: int


@dataclass(frozen=True, slots=True)
class Pool:
    """Finished examples as they wait for a turn: packed rows and labels; and an order of records of two topics."""

    rows: bytes
    labels: "array[float]"
    order: bytes

    @classmethod
    def of(cls, spec: Spec, examples: int, seed: int = 1) -> "Pool":
        """Return rows whose label depends on them, and an order as irregular as it can be."""
        rng = np.random.default_rng(seed)
        dense = rng.normal(size=(examples, len(spec.numeric)))
        chance = 1.0 / (1.0 + np.exp(-dense.sum(axis=1)))
        labels = array("d", (rng.random(examples) < chance).astype(float).tolist())
        sizes = [1 << feature.bits for feature in spec.categorical]
        buckets = rng.integers(0, sizes, size=(examples, len(sizes))) if sizes else np.empty((examples, 0), np.int64)
        pack = RowFormat(spec).pack
        rows = [pack(*x, *cells) for x, cells in zip(dense.tolist(), buckets.tolist(), strict=True)]
        return cls(b"".join(rows), labels, rng.integers(0, 2, 2 * examples).astype("<u2").tobytes())


class SimulatedWorker:
    """Prepares, queues and commits for one partition of its own."""

    def __init__(self, store: Store, queue: TurnQueue, learn: Learn, rows: RowFormat, pool: Pool, pace: Pace) -> None:
        self.store = store
        self.queue = queue
        self.learn = learn
        self.rows = rows
        self.pool = pool
        self.pace = pace
        self.turns: list[Taken] = []
        self._ready = 0
        self._asked_at: float | None = None

    def claim(self, partition: int) -> None:
        self._partition, self._records = partition, 0
        fence = self.store.claim(partition, Fence(""), self._positions(0))
        assert fence is not None, f"partition {partition} belongs to another one"
        self._fence = fence
        self._checkpoint = self.store.load()

    def warm_up(self) -> None:
        """Touch everything once: a process that was just forked copies each page at its first use."""
        self._examples(self.pace.most)
        self._consumed(self.pace.most)
        self.learn(self._checkpoint.learner, self._examples(self.pace.every))

    def run(self, until: float) -> None:
        """Work until this moment of the monotonic clock, then leave the line."""
        while time.monotonic() < until:
            full = self._prepare()
            if self._asked_at is None and self._ready >= self.pace.every:
                self.queue.ask()
                self._asked_at = time.monotonic()
            if self._asked_at is not None and self.queue.granted(FULL_WAIT_S if full else 0.0):
                self.turns.append(self._turn(self._asked_at))
        self.queue.leave()

    def _prepare(self) -> bool:
        """Prepare a chunk; return whether there is no room for more. A sleep that came out longer prepared more."""
        room = self.pace.most - self._ready
        if room > 0:
            started = time.monotonic()
            time.sleep(min(self.pace.chunk, room) * self.pace.prepare_us / 1e6)
            prepared = int((time.monotonic() - started) * 1e6 / self.pace.prepare_us)
            self._ready += min(room, prepared)
        return self._ready >= self.pace.most

    def _turn(self, asked_at: float) -> Taken:
        clock = Laps()
        wait_s, conflicts, n = clock.started - asked_at, 0, self._ready // BATCH * BATCH
        if self.queue.token != str(self._checkpoint.version) and self.store.version() != self._checkpoint.version:
            self._checkpoint = self.store.load()
        clock.lap("load")
        while True:
            examples, consumed = self._examples(n), self._consumed(n)
            positions = self._positions(n)
            clock.lap("build")
            state, _ = self.learn(self._checkpoint.learner, examples)
            clock.lap("learn")
            commit = self._commit(replace(self._checkpoint, learner=state), positions, consumed, n)
            outcome = self.store.commit(commit)
            clock.lap("commit")
            if isinstance(outcome, Committed):
                break
            assert isinstance(outcome, Moved), "nobody else wants this partition"
            conflicts += 1
            self._checkpoint = self.store.load()
            clock.lap("load")
        self.queue.passed_on()
        self._checkpoint, self._fence = commit.checkpoint, outcome.fences[self._partition]
        self._ready, self._records, self._asked_at = self._ready - n, self._records + n, None
        s = clock.seconds
        return Taken(clock.now, n, wait_s, s["build"], s["load"], s["learn"], s["commit"], conflicts)

    # -- what a real worker's intake would hand out -----------------------------------------------------------------

    def _examples(self, n: int) -> Examples:
        dense, buckets = self.rows.unpack(self.pool.rows[: n * self.rows.size], n)
        return Examples(dense, buckets, np.array(self.pool.labels[:n], float), np.ones(n))

    def _consumed(self, n: int) -> Consumed:
        sources = tuple((topic, self._partition, self._records) for topic in ("features", "labels"))
        return Consumed(sources, compress(self.pool.order[: 4 * n], 1), 2 * n)

    def _positions(self, n: int) -> PartitionState:
        """Return the state after n more examples: some features wait, the last 100 000 records are remembered."""
        taken = self._records + n
        trained = BitMap64(range(max(0, taken - 100_000), taken)).serialize()
        pending = BitMap64(range(taken, taken + WAITING)).serialize()
        ledger = Ledger(consumed=2 * taken + WAITING, trained=2 * taken, pending=WAITING)
        sides = (("features", taken + WAITING, pending), ("labels", taken, BitMap64().serialize()))
        return PartitionState(
            self._partition, ledger, tuple(SideState(t, "-" * 20, o, 1, 1, 0, p, trained) for t, o, p in sides)
        )

    def _commit(self, checkpoint: Checkpoint, positions: PartitionState, consumed: Consumed, n: int) -> Commit:
        base = checkpoint.version
        entry = LogEntry(
            "train", f"w{self._partition}", consumed, n, BATCH, checkpoint.kernel, "0" * 64,
            datetime.now(UTC).isoformat(timespec="milliseconds"),
        )  # fmt: skip
        new = replace(
            checkpoint,
            version=Version(base.number + 1, secrets.token_hex(8)),
            partitions=checkpoint.partitions | {self._partition},
        )
        return Commit(base, new, {self._partition: (self._fence, positions)}, entry, self.queue.token)


class Laps:
    """Seconds by part, of one turn."""

    def __init__(self) -> None:
        self.started = self.now = time.monotonic()
        self.seconds = dict.fromkeys(("build", "load", "learn", "commit"), 0.0)

    def lap(self, part: str) -> None:
        now = time.monotonic()
        self.seconds[part] += now - self.now
        self.now = now
