"""Kafka for tests: one broker a session, more on demand, topics of one's own, and producers of every kind.

A container of Apache Kafka where Docker answers, else the embedded broker, else left out.
"""

import os
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import pytest
from kafka import KafkaProducer

from tests.services.link import Link
from tests.services.redis import free_port
from tests.services.require import docker_answers, left_out
from worker.errors import GradstreamError, Transient
from worker.stream.kafka.connection import KafkaConfig
from worker.stream.kafka.topics import TopicAdmin
from worker.stream.records import TopicPartition

IMAGE = "apache/kafka:4.1.1"
CODECS = (None, "gzip", "snappy", "lz4", "zstd")

Pair = tuple[bytes | None, bytes | None]


class KafkaServer(Protocol):
    """A broker that a test may stop and start again on the same port with the same data."""

    bootstrap_servers: str

    def stop(self) -> None: ...
    def start(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def close(self) -> None: ...


def eventually(condition: Callable[[], bool], deadline_s: float = 30.0, what: str = "condition") -> None:
    """Return once `condition` holds; fail after the deadline. A broker that does not answer counts as not yet."""
    give_up, pause = time.monotonic() + deadline_s, threading.Event()
    while time.monotonic() < give_up:
        try:
            if condition():
                return
        except Transient:
            pass
        pause.wait(0.02)
    pytest.fail(f"{what} not met within {deadline_s} s")


class ContainerKafka:
    """Apache Kafka in a container on a fixed host port: its clients come back to the address it advertises."""

    def __init__(self, linked: int = 0) -> None:
        """`linked`: how many further listeners are reached through a `Link` each, which a test can cut."""
        os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")
        from testcontainers.core.container import DockerContainer

        port = free_port()
        self.bootstrap_servers = f"localhost:{port}"
        self.links = [Link(free_port()) for _ in range(linked)]
        container: Any = DockerContainer(IMAGE).with_bind_ports(port, port)
        for link in self.links:
            container = container.with_bind_ports(link.target, link.target)
        for name, value in _settings(port, self.links).items():
            container = container.with_env(name, value)
        self._container = container
        self._container.start()
        self._wait()

    def stop(self) -> None:
        self._container.get_wrapped_container().stop(timeout=10)

    def start(self) -> None:
        self._container.get_wrapped_container().start()
        self._wait()

    def pause(self) -> None:
        """Freeze it: connections stand, and nothing answers."""
        self._container.get_wrapped_container().pause()

    def resume(self) -> None:
        self._container.get_wrapped_container().unpause()

    def close(self) -> None:
        for link in self.links:
            link.close()
        self._container.stop()

    def _wait(self) -> None:
        eventually(lambda: _answers(self.bootstrap_servers), 60, "broker start")


def _settings(port: int, links: Sequence[Link]) -> dict[str, str]:
    more = [(f"LINK{n}", link) for n, link in enumerate(links)]
    listeners = [f"PLAINTEXT://:{port}", "CONTROLLER://:9093", *(f"{name}://:{link.target}" for name, link in more)]
    told = [f"PLAINTEXT://localhost:{port}", *(f"{name}://127.0.0.1:{link.port}" for name, link in more)]
    kinds = [f"{name}:PLAINTEXT" for name in ("CONTROLLER", "PLAINTEXT", *(name for name, _ in more))]
    return {
        "KAFKA_NODE_ID": "1",
        "KAFKA_PROCESS_ROLES": "broker,controller",
        "KAFKA_LISTENERS": ",".join(listeners),
        "KAFKA_ADVERTISED_LISTENERS": ",".join(told),
        "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
        "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": ",".join(kinds),
        "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@localhost:9093",
        "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
        "KAFKA_OFFSETS_TOPIC_NUM_PARTITIONS": "1",
        "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
        "KAFKA_TRANSACTION_STATE_LOG_NUM_PARTITIONS": "1",
        "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "1",
        "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
        "KAFKA_MESSAGE_MAX_BYTES": "16777216",
        "KAFKA_AUTO_CREATE_TOPICS_ENABLE": "true",  # our clients must not create topics even where that is allowed
        "KAFKA_HEAP_OPTS": "-Xmx512m",
    }


def _answers(bootstrap_servers: str) -> bool:
    with TopicAdmin(KafkaConfig(bootstrap_servers, bootstrap_timeout_ms=1_000)) as admin:
        admin.describe(["none"])
    return True


class EmbeddedKafka:
    """The embedded broker as a child process. It keeps nothing over a stop."""

    def __init__(self) -> None:
        from worker.local.broker import EmbeddedBroker

        self._broker = EmbeddedBroker().__enter__()
        self.bootstrap_servers = self._broker.bootstrap_servers

    def stop(self) -> None:
        left_out("docker", "only a broker in a container can be stopped and started with its data")

    start = pause = resume = stop

    def close(self) -> None:
        self._broker.__exit__(None, None, None)


@pytest.fixture(scope="session")
def start_kafka() -> Iterator[Callable[[], KafkaServer]]:
    """Start a broker; all are stopped at the end."""
    started: list[KafkaServer] = []

    def start() -> KafkaServer:
        server: KafkaServer
        if docker_answers():
            server = ContainerKafka()
        else:
            try:
                server = EmbeddedKafka()
            except (ImportError, GradstreamError) as error:
                left_out("docker", f"neither Docker nor the embedded broker is there ({error})")
        started.append(server)
        return server

    yield start
    for server in started:
        server.close()


@pytest.fixture(scope="module")
def linked_kafka() -> Iterator[ContainerKafka]:
    """A broker of one's own with two listeners that are reached through wires that a test can cut."""
    if not docker_answers():
        left_out("docker", "only a broker in a container has several listeners")
    server = ContainerKafka(linked=2)
    yield server
    server.close()


@pytest.fixture(scope="session")
def kafka(start_kafka: Callable[[], KafkaServer]) -> str:
    """The bootstrap servers of the session's broker, shared: never stop or reconfigure it."""
    return start_kafka().bootstrap_servers


@pytest.fixture(scope="session")
def apache_kafka(kafka: str) -> str:
    """The same, for tests of what only Apache Kafka does (the embedded broker lacks it)."""
    if not docker_answers():
        left_out("docker", "this is about Apache Kafka itself")
    return kafka


@pytest.fixture
def topic_prefix() -> str:
    """A prefix of topic and group names that no other test uses."""
    return f"t{uuid.uuid4().hex[:10]}-"


def create_topics(bootstrap_servers: str, *names: str, partitions: int = 1) -> None:
    with TopicAdmin(KafkaConfig(bootstrap_servers)) as admin:
        admin.create(names, partitions, 1)


def produce(
    bootstrap_servers: str,
    topic: str,
    pairs: Iterable[Pair],
    *,
    partition: int = 0,
    codec: str | None = None,
    headers: Sequence[tuple[str, bytes]] = (),
) -> None:
    """Write (key, value) pairs, None allowed; return when they are acknowledged."""
    producer = KafkaProducer(
        bootstrap_servers=bootstrap_servers,
        compression_type=codec,
        max_request_size=1 << 25,
        linger_ms=20,
        enable_idempotence=False,
    )
    try:
        _send(producer, topic, pairs, partition, headers)
    finally:
        producer.close(timeout=10)


def produce_transaction(
    bootstrap_servers: str, topic: str, pairs: Iterable[Pair], *, partition: int = 0, abort: bool = False
) -> None:
    """Write pairs in one transaction of its own, commit or abort it, and wait for its marker, written afterwards."""
    producer = KafkaProducer(bootstrap_servers=bootstrap_servers, transactional_id=uuid.uuid4().hex)
    try:
        producer.init_transactions()
        producer.begin_transaction()
        last = _send(producer, topic, pairs, partition, ())
        producer.abort_transaction() if abort else producer.commit_transaction()
    finally:
        producer.close(timeout=10)
    place = TopicPartition(topic, partition)
    with TopicAdmin(KafkaConfig(bootstrap_servers)) as admin:
        eventually(lambda: admin.end_offsets([place])[place] >= last + 2, what="the marker of the transaction")


def _send(
    producer: KafkaProducer, topic: str, pairs: Iterable[Pair], partition: int, headers: Sequence[tuple[str, bytes]]
) -> int:
    """Return the offset of the last one, -1 for none."""
    sent = [producer.send(topic, value, key, list(headers), partition) for key, value in pairs]
    return max((int(future.get(30).offset) for future in sent), default=-1)
