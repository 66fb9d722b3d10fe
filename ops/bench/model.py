"""A fresh model on the bench's servers: its topics, its settings, and its worker as a child process on one core."""

import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from ops.bench.events import NAMES
from ops.bench.machine import keep_on_core
from ops.bench.servers import Servers
from worker.state.redis_connect import connect
from worker.state.redis_store import RedisStore
from worker.stream.kafka.connection import KafkaConfig
from worker.stream.kafka.topics import TopicAdmin
from worker.stream.positions import Ledger

ROLES = ("features", "labels", "examples", "metrics", "dead-letters")
LONGEST_S = 300.0


def wait_for(condition: Callable[[], Any], what: str, pause_s: float = 0.02) -> Any:
    """Return the first true value of `condition`."""
    end = time.monotonic() + LONGEST_S
    while not (value := condition()):
        if time.monotonic() > end:
            raise SystemExit(f"not within {LONGEST_S:g} s: {what}")
        time.sleep(pause_s)
    return value


class Worker:
    """A worker process and its log."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self.process = process
        self._log = log

    def lines(self) -> list[dict[str, Any]]:
        lines = []
        for line in self._log.read_text(errors="replace").splitlines():
            try:
                lines.append(json.loads(line))
            except ValueError:
                lines.append({"event": line})
        return lines

    def said(self, event: str) -> dict[str, Any] | None:
        return next((line for line in self.lines() if line.get("event") == event), None)

    def at(self, event: str) -> float:
        """Return when the worker said this, in seconds since 1970."""
        line = wait_for(lambda: self._alive(event), f"{event!r} in the log of a worker")
        return datetime.fromisoformat(line["timestamp"]).timestamp()

    def _alive(self, event: str) -> dict[str, Any] | None:
        found = self.said(event)
        if found is None and self.process.poll() is not None:
            raise SystemExit(f"a worker ended with exit code {self.process.returncode}: {self.lines()[-1:]}")
        return found

    def wait(self) -> None:
        wait_for(lambda: self.process.poll() is not None, "the end of a worker that drains", pause_s=0.1)

    def stop(self) -> None:
        """Let it end in good order, if it has not."""
        self.process.terminate()
        self.process.wait(30)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Model:
    """`settings`: dotted keys that differ from the program's defaults. `events_of` shares another model's events."""

    def __init__(
        self,
        servers: Servers,
        folder: Path,
        settings: dict[str, object],
        events_of: "Model | None" = None,
        partitions: int = 1,
    ) -> None:
        self.servers = servers
        self.folder = folder
        self.name = f"bench-{uuid.uuid4().hex[:12]}"
        self.topics = {role: f"{self.name}-{role}" for role in ROLES}
        if events_of is not None:
            self.topics |= {role: events_of.topics[role] for role in ROLES[:3]}
        self.settings: dict[str, object] = {
            "model.name": self.name,
            "model.features": [{"name": name} for name in NAMES],
            **{f"stream.{role.replace('-', '_')}_topic": topic for role, topic in self.topics.items()},
            "kafka.bootstrap_servers": servers.kafka,
            "redis.url": servers.redis,
            "observe.http_port": 0,
            **settings,
        }
        self.store = RedisStore(connect(servers.redis), self.name)
        self.workers: list[Worker] = []
        with TopicAdmin(KafkaConfig(servers.kafka)) as admin:
            admin.create(self.topics.values(), partitions, 1)

    def environment(self) -> dict[str, str]:
        """Return the variables under which commands see this model."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith("GRADSTREAM_")}
        variables = {
            f"GRADSTREAM_{key.replace('.', '__').upper()}": value if isinstance(value, str) else json.dumps(value)
            for key, value in self.settings.items()
        }
        return clean | variables

    def start(self, *arguments: str, pinned: bool = True) -> Worker:
        """Start `gradstream worker` on its core, or on whichever is free."""
        log = self.folder / f"{self.name}-{len(self.workers)}.log"
        command = [sys.executable, "-m", "worker", "worker", *arguments]
        with log.open("wb") as file:
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=file, env=self.environment())
        if pinned:
            keep_on_core(process.pid)
        self.workers.append(Worker(process, log))
        return self.workers[-1]

    def command(self, *arguments: str, accepted: tuple[int, ...] = (0,)) -> tuple[int, str]:
        """Run a command; return its exit code, which is one of those accepted, and what it printed."""
        command = [sys.executable, "-m", "worker", *arguments]
        done = subprocess.run(command, env=self.environment(), capture_output=True, text=True, check=False)
        if done.returncode not in accepted:
            raise SystemExit(f"gradstream {' '.join(arguments)}: exit code {done.returncode}: {done.stderr.strip()}")
        return done.returncode, done.stdout

    def shared_by(self) -> int:
        """Return how many workers say that they own partitions."""
        return sum(bool(said["partitions"]) for said in self.store.workers())

    def ledger(self) -> Ledger:
        return sum((stored.state.ledger for stored in self.store.partitions()), Ledger())

    def last_commit_at(self) -> float:
        """Return when the last commit was made, in seconds since 1970."""
        *_, last = self.store.commit_log()
        return datetime.fromisoformat(last.entry.committed_at).timestamp()

    def close(self) -> None:
        for worker in self.workers:
            if worker.process.poll() is None:
                worker.kill()


@contextmanager
def models(servers: Servers) -> Iterator[Callable[..., Model]]:
    """Give a function that makes models; stop their workers at the end."""
    made: list[Model] = []
    with tempfile.TemporaryDirectory(prefix="gradstream-bench-") as folder:

        def make(events_of: Model | None = None, partitions: int = 1, **settings: object) -> Model:
            dotted = {key.replace("__", ".", 1): value for key, value in settings.items()}
            made.append(Model(servers, Path(folder), dotted, events_of, partitions))
            return made[-1]

        try:
            yield make
        finally:
            for model in made:
                model.close()
