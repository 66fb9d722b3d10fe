"""One place for the tests of the turn: a server, in memory or real, several workers on it, and what may happen to both."""

import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import redis

from tests.contract.store_samples import checkpoint, commit_on, entry, partition
from tests.fakes.store import MemoryServer, MemoryStore
from tests.fakes.turn import MemoryTurn, MemoryTurnQueue
from tests.services.redis import free_port, wait_until
from worker.state.keys import Keys
from worker.state.redis_connect import Link, connect
from worker.state.redis_store import RedisStore
from worker.state.redis_turn import RedisTurnQueue
from worker.state.store import Commit, Committed, Fence, Fenced, Moved

PATIENT_S = 60.0  # longer than any test: whoever is granted the turn was given it, and did not take it over


@dataclass
class Worker:
    """A queue with a store and a partition of its own."""

    queue: MemoryTurnQueue | RedisTurnQueue
    store: MemoryStore | RedisStore
    number: int
    fence: Fence | None = None
    last: Commit | None = None

    def prepared(self) -> Commit:
        """Return a commit on the newest state, with the token that is held."""
        if self.fence is None:
            stored = self.store.load_partition(self.number)
            self.fence = self.store.claim(self.number, stored.fence if stored else Fence(""), partition(self.number))
            assert self.fence is not None
        plain = commit_on(self.store.load(), {self.number: self.fence})
        return Commit(plain.base, plain.checkpoint, plain.partitions, plain.entry, self.queue.token)

    def commit(self, prepared: Commit | None = None) -> Committed | Moved | Fenced:
        """Commit, and tell the queue what became of it."""
        self.last = prepared or self.prepared()
        outcome = self.store.commit(self.last)
        if isinstance(outcome, Committed):
            self.fence = outcome.fences[self.number]
            self.queue.passed_on()
        return outcome


class MemoryBench:
    """Time stands still unless a test waits for something."""

    def __init__(self, server: MemoryServer, model: str, turn_wait_s: float) -> None:
        self.server = server
        self.model = model
        self.turn_wait_s = turn_wait_s
        self.now = 0.0
        self._workers = 0
        MemoryStore(self.server, model).create(checkpoint(), entry("init"))

    def worker(self) -> Worker:
        self._workers += 1
        store = MemoryStore(self.server, self.model)
        return Worker(
            MemoryTurnQueue(self.server, self.model, self.turn_wait_s, lambda: self.now), store, self._workers
        )

    def deaf(self) -> list[Worker]:
        """Return workers whose server does not answer."""
        self.server.silent = True
        return [self.worker()]

    @property
    def turn(self) -> MemoryTurn:
        return self.server.turns.setdefault(self.model, MemoryTurn())

    def issued(self) -> str:
        return self.turn.issued

    def free(self) -> list[str]:
        return [self.turn.free] if self.turn.free else []

    def lose(self, *, turn: bool = False, issued: bool = False) -> None:
        if turn:
            self.turn.free = ""
        if issued:
            self.turn.issued = ""

    def kill(self, worker: Worker) -> None:
        assert isinstance(worker.queue, MemoryTurnQueue)
        worker.queue.crash()

    def in_line(self, worker: Worker) -> None:
        """Return once the server knows that the worker is in line."""

    def eventually(self, condition: Callable[[], bool], waits: int = 3) -> None:
        """Let up to so many turn waits pass until `condition` holds; none where nobody is to be taken over."""
        for _ in range(waits * 10):
            if condition():
                return
            if self.turn_wait_s < PATIENT_S:
                self.now += self.turn_wait_s / 9
        pytest.fail("it did not happen")


@dataclass
class RedisBench:
    """The same on a real server, where time goes by itself."""

    url: str
    model: str
    turn_wait_s: float
    links: list[Link] = field(default_factory=list)
    workers: list[Worker] = field(default_factory=list)
    deafs: list[socket.socket] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.raw: Any = redis.Redis.from_url(self.url)
        self.keys = Keys(self.model)
        RedisStore(self._link(self.url), self.model).create(checkpoint(), entry("init"))

    def _link(self, url: str) -> Link:
        self.links.append(connect(url))
        return self.links[-1]

    def worker(self, url: str = "") -> Worker:
        link = self._link(url or self.url)
        queue = RedisTurnQueue(link, self.model, self.turn_wait_s)
        self.workers.append(Worker(queue, RedisStore(link, self.model), len(self.workers)))
        return self.workers[-1]

    def deaf(self) -> list[Worker]:
        self.deafs.append(socket.create_server(("127.0.0.1", 0)))
        ports = self.deafs[-1].getsockname()[1], free_port()
        return [self.worker(f"redis://127.0.0.1:{port}/0") for port in ports]

    def issued(self) -> str:
        return str((self.raw.get(self.keys.turn_issued) or b"").decode())

    def free(self) -> list[str]:
        return [token.decode() for token in self.raw.lrange(self.keys.turn, 0, -1)]

    def lose(self, *, turn: bool = False, issued: bool = False) -> None:
        self.raw.delete(*[self.keys.turn] * turn, *[self.keys.turn_issued] * issued)

    def kill(self, worker: Worker) -> None:
        assert isinstance(worker.queue, RedisTurnQueue)
        name = worker.queue._line._connection and worker.queue._line._connection._sock.getsockname()
        worker.queue._line.drop()
        worker.queue._watch.drop()
        if name:
            gone = f"{name[0]}:{name[1]}"
            wait_until(lambda: all(client["addr"] != gone for client in self.raw.client_list()))

    def in_line(self, worker: Worker) -> None:
        queue = worker.queue
        assert isinstance(queue, RedisTurnQueue)
        wait_until(lambda: queue.granted(0.01) or queue._seen != b"")

    def eventually(self, condition: Callable[[], bool], waits: int = 3) -> None:
        wait_until(condition, 20 + waits * self.turn_wait_s if self.turn_wait_s < PATIENT_S else PATIENT_S / 3)

    def close(self) -> None:
        for worker in self.workers:
            worker.queue.leave()
        for link in self.links:
            link.drop_connections()
        for deaf in self.deafs:
            deaf.close()
        self.raw.close()


Bench = MemoryBench | RedisBench


def valid_tokens(bench: Bench, workers: list[Worker]) -> int:
    """Return how many tokens there are that count: lying free, or held."""
    issued = bench.issued()
    tokens = bench.free() + [worker.queue.token for worker in workers]
    return tokens.count(issued) if issued else 0
