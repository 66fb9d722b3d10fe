"""Looks at the state store all through a run, from the side: commits, ledgers, and how fast its file grows."""

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import redis

from tests.chaos.check.stored import read_books

EVERY_S = 0.05
KEPT_S = 5.0


class Watch:
    """A thread of its own. Attributes are read when it has ended, `lost_bytes` while Redis is down."""

    def __init__(self, url: str, model: str) -> None:
        self._client: Any = redis.Redis.from_url(url, socket_timeout=1, socket_connect_timeout=1)
        self._root = f"gradstream:{{{model}}}"
        self._sizes: deque[tuple[float, int]] = deque()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._changed = 0.0
        self.version = ""
        self._peace = 0.0  # since when there was neither a commit nor trouble with a server or the way to it
        self.excused: Callable[[], bool] = bool
        self.longest_silence_s = 0.0
        self.longest_silence_in_peace_s = 0.0
        self.unbalanced = 0
        self.went_back = 0
        self.facts: dict[str, dict[str, int]] = {}  # by worker, what it last said of itself

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(10)
        self._note_silence()

    def measure_silence(self) -> None:
        """From now on the time without a commit counts."""
        self._changed = self._peace = time.monotonic()

    def end_silence(self) -> None:
        """From now on it does not: there may be nothing left to commit."""
        self._note_silence()
        self._changed = self._peace = 0.0

    def lost_bytes(self, seconds: float) -> int:
        """Return by how much the append-only file grew in the last `seconds` before Redis went away."""
        if not self._sizes:
            return 0
        last_at, last = self._sizes[-1]
        before = [size for at, size in self._sizes if at <= last_at - seconds]
        self._sizes.clear()
        return max(0, last - before[-1]) if before else 0

    def _run(self) -> None:
        rounds = 0
        while not self._stopped.wait(EVERY_S):
            if self._peace and self.excused():
                self._peace = time.monotonic()
            try:
                self._look(every=rounds % 20 == 0)
            except (redis.RedisError, OSError):
                self._client.close()
            rounds += 1

    def _look(self, *, every: bool) -> None:
        now = time.monotonic()
        version = self._client.getrange(f"{self._root}:state", 16, 79).decode().rstrip()
        if version != self.version:
            self._note_silence()
            self.went_back += bool(self.version) and bool(version) and _number(version) < _number(self.version)
            self.version = version
        size = int(self._client.info("persistence")["aof_current_size"])
        self._sizes.append((now, size))
        while self._sizes[0][0] < now - KEPT_S:
            self._sizes.popleft()
        if every:
            self._look_closely()

    def _look_closely(self) -> None:
        for number in self._client.smembers(f"{self._root}:partitions"):
            blob = self._client.get(f"{self._root}:partition:{int(number)}")
            self.unbalanced += blob is not None and not read_books(blob).balanced
        for worker, text in self._client.hgetall(f"{self._root}:workers").items():
            said = json.loads(text.partition(b" ")[2])
            self.facts[worker.decode()] = {name: said.get(name, 0) for name in ("conflicts", "fenced")}

    def _note_silence(self) -> None:
        now = time.monotonic()
        if self._changed:
            self.longest_silence_s = max(self.longest_silence_s, now - self._changed)
            self.longest_silence_in_peace_s = max(self.longest_silence_in_peace_s, now - self._peace)
            self._changed = self._peace = now

    def conflicts(self) -> int:
        return sum(facts["conflicts"] for facts in self.facts.values())

    @contextmanager
    def watching(self) -> Iterator["Watch"]:
        self.start()
        try:
            yield self
        finally:
            self.stop()
            self._client.close()


def _number(version: str) -> int:
    return int(version.partition(":")[0])
