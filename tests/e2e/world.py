"""One model on real Kafka and Redis, with workers as child processes: what the end-to-end tests are written in.

Everything is fresh for each world (topics, group, model name), so worlds share servers and nothing else.
"""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as ClientPartition
from kafka.admin import KafkaAdminClient, NewTopic
from prometheus_client.parser import text_string_to_metric_families

from worker.state import checkpoint as codec
from worker.state.redis_connect import connect
from worker.state.redis_store import RedisStore
from worker.state.store import Checkpoint
from worker.stream.kafka.connection import KafkaConfig
from worker.stream.kafka.topics import TopicAdmin
from worker.stream.positions import Ledger
from worker.stream.records import TopicPartition

STOPPED_S = 10.0  # promised: how long a worker takes to end after SIGTERM


class Event(NamedTuple):
    """One record to send. `topic` is the role (`features`, `labels`, `examples`)."""

    topic: str
    key: str | None
    value: bytes | None
    partition: int | None = None


def feature(id_: str, ts: int, **features: object) -> Event:
    return Event("features", id_, json.dumps({"id": id_, "ts": ts, "features": features}).encode())


def label(id_: str, ts: int, value: object, **more: object) -> Event:
    return Event("labels", id_, json.dumps({"id": id_, "ts": ts, "label": value, **more}).encode())


def example(id_: str, ts: int, value: object, **features: object) -> Event:
    document = {"id": id_, "ts": ts, "features": features, "label": value}
    return Event("examples", id_, json.dumps(document).encode())


def wait_for(condition: Callable[[], Any], what: str, deadline_s: float = 60.0) -> Any:
    """Return the first true value of `condition`; fail with `what` after the deadline."""
    end = time.monotonic() + deadline_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f"not within {deadline_s} s: {what}"
        time.sleep(0.02)  # the pause between two looks, not a wait for something to happen


class Child:
    """A `gradstream` process with its log lines."""

    def __init__(self, arguments: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        self.log_path = log
        self._log = log.open("wb")
        command = [sys.executable, "-m", "worker", *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=self._log, env=dict(env))

    def lines(self) -> list[dict[str, Any]]:
        lines = []
        for line in self.log_path.read_text(errors="replace").splitlines():
            try:
                lines.append(json.loads(line))
            except ValueError:
                lines.append({"event": line})  # an error of the command line, or a line half written
        return lines

    def said(self, event: str) -> bool:
        return any(line.get("event") == event for line in self.lines())

    def said_times(self, event: str) -> int:
        return sum(line.get("event") == event for line in self.lines())

    def wait_until_said(self, event: str, deadline_s: float = 60.0) -> None:
        def look() -> bool:
            assert self.process.poll() is None or self.said(event), f"ended early:\n{self.tail()}"
            return self.said(event)

        wait_for(look, f"{event!r} in the log of the worker", deadline_s)

    def http(self) -> str:
        self.wait_until_said("serving metrics")
        return str(next(line["url"] for line in self.lines() if line.get("event") == "serving metrics"))

    def get(self, path: str) -> tuple[int, str]:
        """Return status and body of the worker's HTTP endpoint."""
        try:
            with urllib.request.urlopen(self.http() + path, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum over all series of this name that carry these labels."""
        return sum(
            sample.value
            for family in text_string_to_metric_families(self.get("/metrics")[1])
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def not_ready_because(self) -> str:
        """Return why the worker says that it is not ready; "" when it says that it is."""
        status, body = self.get("/readyz")
        answer = json.loads(body)
        assert (status == 200) == answer["ready"]
        return answer["reason"] or ""

    def wait_until_not_ready(self, word: str = "") -> None:
        """Return once the worker says that it is not ready, for a reason with this word in it."""

        def noticed() -> bool:
            assert self.process.poll() is None, f"ended early:\n{self.tail()}"
            reason = self.not_ready_because()
            return reason != "" and word in reason

        wait_for(noticed, f"the worker says that it is not ready ({word})")

    def tail(self) -> str:
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-15:])

    def kill(self, number: int = signal.SIGKILL) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)

    def wait(self, deadline_s: float = 90.0) -> int:
        try:
            return self.process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"did not end within {deadline_s} s:\n{self.tail()}") from None
        finally:
            self._log.close()

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Ask it to end and return its exit code; it has to be gone within what is promised."""
        self.kill(number)
        return self.wait(STOPPED_S)

    def close(self) -> None:
        self.kill()
        self.process.wait()
        self._log.close()


class World:
    """Topics, settings file and state of one model. `settings` are dotted keys that differ from the defaults below."""

    def __init__(
        self, kafka: str, redis_url: str, folder: Path, features: Iterable[Mapping[str, object]],
        partitions: int = 1, events_of: "World | None" = None, **settings: object,
    ) -> None:  # fmt: skip
        self.kafka = kafka
        self.redis_url = redis_url
        self.partitions = partitions
        self.folder = folder
        self.name = f"m-{uuid.uuid4().hex[:12]}"
        self.topics = {
            role: f"{self.name}-{role}" for role in ("features", "labels", "examples", "metrics", "dead-letters")
        }
        if events_of is not None:  # another model that learns from the same events
            self.topics |= {role: events_of.topics[role] for role in ("features", "labels", "examples")}
        self.children: list[Child] = []
        self.settings: dict[str, object] = {
            "model.name": self.name,
            "model.features": list(features),
            "stream.features_topic": self.topics["features"],
            "stream.labels_topic": self.topics["labels"],
            "stream.examples_topic": self.topics["examples"],
            "stream.metrics_topic": self.topics["metrics"],
            "stream.dead_letters_topic": self.topics["dead-letters"],
            "stream.max_idle_ms": 200,
            "kafka.bootstrap_servers": kafka,
            "kafka.session_timeout_ms": 6000,
            "redis.url": redis_url,
            "observe.http_port": 0,
            "commit.every_s": 0.2,
            "train.kernel": "numpy",  # the one that is always there; numba has tests of its own
            **{key.replace("__", ".", 1): value for key, value in settings.items()},
        }
        self.store = RedisStore(connect(redis_url), self.name)
        self.producer = KafkaProducer(bootstrap_servers=kafka, acks="all", linger_ms=5)
        self._admin = KafkaAdminClient(bootstrap_servers=kafka)
        self.create_topics(partitions)

    def create_topics(self, partitions: int) -> None:
        small = ("metrics", "dead-letters")
        new = [
            NewTopic(name, 1 if role in small else partitions, 1)
            for role, name in self.topics.items()
            if name.startswith(self.name)
        ]
        self._admin.create_topics(new)

    def env(self) -> dict[str, str]:
        variables = {
            f"GRADSTREAM_{key.replace('.', '__').upper()}": value if isinstance(value, str) else json.dumps(value)
            for key, value in self.settings.items()
        }
        clean = {k: v for k, v in os.environ.items() if not k.startswith("GRADSTREAM_")}
        return clean | variables

    def start(self, *arguments: str) -> Child:
        """Start `gradstream worker` with these arguments."""
        log = self.folder / f"worker-{len(self.children)}.log"
        child = Child(["worker", *arguments], self.env(), log)
        self.children.append(child)
        return child

    def drain(self, *arguments: str, deadline_s: float = 90.0) -> Child:
        """Run a worker until everything sent so far is learned."""
        child = self.start("--init", "--drain", *arguments)
        code = child.wait(deadline_s)
        assert code == 0, f"exit {code}:\n{child.tail()}"
        return child

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "worker", *arguments]
        return subprocess.run(command, env=self.env(), capture_output=True, text=True, timeout=60, check=False)

    def json(self, *arguments: str) -> Any:
        done = self.command(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def send(self, events: Iterable[Event]) -> int:
        """Send events and return how many, once the broker has them all."""
        count = 0
        futures = []
        for event in events:
            key = event.key.encode() if event.key is not None else None
            futures.append(
                self.producer.send(self.topics[event.topic], key=key, value=event.value, partition=event.partition)
            )
            count += 1
        self.producer.flush()
        for future in futures:
            future.get(10)
        return count

    def checkpoint(self) -> Checkpoint:
        return self.store.load()

    def digest(self) -> str:
        """Digest of everything learned, independent of version and commits."""
        return codec.digest(self.checkpoint().learner)

    def ledger(self) -> Ledger:
        ledger = sum((stored.state.ledger for stored in self.store.partitions()), Ledger())
        assert ledger.balanced(), ledger
        return ledger

    def read(self, role: str) -> list[Any]:
        """Return every record of a topic, partition by partition, as the client gives them."""
        topic = self.topics[role]
        consumer = KafkaConsumer(
            bootstrap_servers=self.kafka, enable_auto_commit=False, isolation_level="read_committed"
        )
        try:
            sources = [ClientPartition(topic, n) for n in sorted(consumer.partitions_for_topic(topic))]
            consumer.assign(sources)
            consumer.seek_to_beginning(*sources)
            ends = consumer.end_offsets(sources)
            records: list[Any] = []
            while any(consumer.position(source) < ends[source] for source in sources):
                for batch in consumer.poll(200).values():
                    records += batch
            return sorted(records, key=lambda r: (r.partition, r.offset))
        finally:
            consumer.close()

    def wait_for_commit(self, child: Child, number: int) -> None:
        """Return as soon as the state has this version, or a later one."""

        def committed() -> bool:
            assert child.process.poll() is None, f"ended early:\n{child.tail()}"
            version = self.store.version()
            return version is not None and version.number >= number

        wait_for(committed, f"commit {number}")

    def freeze_at_commit(self, child: Child, number: int) -> None:
        """Stop the process in the middle of its work, so that something can be taken away from under it."""
        self.wait_for_commit(child, number)
        child.kill(signal.SIGSTOP)

    def wait_until_taken(self, records: int, deadline_s: float = 60.0) -> None:
        """Return once this many records are in the books."""

        def taken() -> bool:
            assert any(child.process.poll() is None for child in self.children), self.children[-1].tail()
            return self.ledger().consumed >= records

        wait_for(taken, f"{records} records in the ledger", deadline_s)

    def wait_until_shared(self, workers: int) -> None:
        """Return once this many workers say that they own partitions, each its own, none left over."""
        every = sorted(range(self.partitions))

        def shared() -> bool:
            said: list[dict[str, Any]] = self.store.workers()
            owned = [one["partitions"] for one in said]
            return len(owned) == workers and all(owned) and sorted(chain.from_iterable(owned)) == every

        wait_for(shared, f"{workers} workers share the partitions")

    def damage_state(self) -> None:
        """Flip one bit in the middle of the stored state."""
        client, key = connect(self.redis_url).client, self.store.keys.state
        where = client.strlen(key) // 2
        byte = client.getrange(key, where, where)
        client.setrange(key, where, bytes([byte[0] ^ 1]))

    def forget_state(self) -> None:
        """Delete everything that the store knows of this model, as a FLUSHALL would."""
        client = connect(self.redis_url).client
        client.delete(*client.keys(f"gradstream:{{{self.name}}}:*"))

    def stored(self) -> dict[bytes, bytes]:
        """Return everything that the store holds of this model."""
        client = connect(self.redis_url).client
        return {key: client.dump(key) for key in client.keys(f"gradstream:{{{self.name}}}:*")}

    def go_back(self, past: Mapping[bytes, bytes]) -> None:
        """Put the store back to what it held before, in one step."""
        change = connect(self.redis_url).client.pipeline(transaction=True)
        for key in self.stored().keys() | past.keys():
            change.delete(key)
        for key, dump in past.items():
            change.restore(key, 0, dump)
        change.execute()

    def positions(self) -> dict[TopicPartition, int]:
        """Return the next offsets that the state holds."""
        return {
            TopicPartition(side.topic, stored.state.partition): side.next_offset
            for stored in self.store.partitions()
            for side in stored.state.sides
        }

    def acknowledged(self) -> dict[TopicPartition, int]:
        """Return the offsets that the group has committed in Kafka."""
        with closing(TopicAdmin(KafkaConfig(self.kafka))) as admin:
            return admin.group_committed(f"gradstream-{self.name}", self.topics.values())

    def dead_letters(self) -> list[tuple[str, int, int, str]]:
        """Return (topic, partition, offset, reason) of each refused record, once."""
        letters = set()
        for record in self.read("dead-letters"):
            head = {name: value.decode() for name, value in record.headers}
            place = (head["gradstream-topic"], int(head["gradstream-partition"]), int(head["gradstream-offset"]))
            letters.add((*place, head["gradstream-reason"]))
        return sorted(letters)

    def close(self) -> None:
        for child in self.children:
            child.close()
        self.producer.close()
        self._admin.close()


NewWorld = Callable[..., World]


@contextmanager
def worlds(
    kafka: str, redis_url: str, folders: pytest.TempPathFactory, features: Iterable[Mapping[str, object]]
) -> Iterator[NewWorld]:
    """Yield a function that makes worlds on these servers; all of them are closed at the end."""
    made: list[World] = []

    def make(**settings: Any) -> World:
        made.append(World(kafka, redis_url, folders.mktemp("world"), features, **settings))
        return made[-1]

    yield make
    for world in made:
        world.close()
