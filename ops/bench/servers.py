"""Kafka and Redis for the bench: containers of its own, or servers that are there already."""

import platform
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from ops.bench.machine import other_cores
from worker.errors import GradstreamError
from worker.state.redis_connect import connect
from worker.stream.kafka.connection import KafkaConfig
from worker.stream.kafka.topics import TopicAdmin

KAFKA_IMAGE = "apache/kafka:4.1.1"
REDIS_IMAGE = "redis:7.4"
START_S = 90.0


@dataclass(frozen=True, slots=True)
class Servers:
    """Where they are."""

    kafka: str
    redis: str


@contextmanager
def servers(kafka: str = "", redis: str = "") -> Iterator[Servers]:
    """Give the servers named, or start containers for those that are not; end what was started."""
    with ExitStack() as started:
        kafka = kafka or started.enter_context(_kafka())
        redis = redis or started.enter_context(_redis())
        yield Servers(kafka, redis)


@contextmanager
def _kafka() -> Iterator[str]:
    port = _free_port()
    address = f"localhost:{port}"
    settings = {
        "KAFKA_NODE_ID": "1",
        "KAFKA_PROCESS_ROLES": "broker,controller",
        "KAFKA_LISTENERS": f"PLAINTEXT://:{port},CONTROLLER://:9093",
        "KAFKA_ADVERTISED_LISTENERS": f"PLAINTEXT://{address}",
        "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
        "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@localhost:9093",
        "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
        "KAFKA_OFFSETS_TOPIC_NUM_PARTITIONS": "1",
        "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
        "KAFKA_HEAP_OPTS": "-Xmx1g",
    }
    options = [part for name, value in settings.items() for part in ("-e", f"{name}={value}")]
    with _container(KAFKA_IMAGE, [*_published(port), *options], []):
        _wait(lambda: _kafka_answers(address), f"Kafka at {address}")
        yield address


@contextmanager
def _redis() -> Iterator[str]:
    port = _free_port()
    url = f"redis://127.0.0.1:{port}/0"
    # Where it can be had, the host's own network: passing through Docker's costs a commit of 800 KB up to 0.3 ms.
    network = ["--network", "host"] if platform.system() == "Linux" else _published(port)
    command = ["redis-server", "--bind", "127.0.0.1" if network[0] == "--network" else "0.0.0.0"]  # noqa: S104
    with _container(REDIS_IMAGE, network, [*command, "--port", str(port), "--appendonly", "yes"]):
        _wait(lambda: _redis_answers(url), f"Redis at {url}")
        yield url


@contextmanager
def _container(image: str, options: list[str], command: list[str]) -> Iterator[None]:
    """Run a container on all cores but the worker's, remove it afterwards."""
    cores = other_cores()
    pinned = ["--cpuset-cpus", cores] if cores else []
    docker = shutil.which("docker") or "docker"
    run = [docker, "run", "--detach", "--rm", *pinned, *options]
    try:
        started = subprocess.run([*run, image, *command], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        why = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else error
        raise SystemExit(f"{image} did not start ({why}): name servers with --kafka and --redis") from error
    try:
        yield
    finally:
        subprocess.run([docker, "rm", "--force", "--volumes", started.stdout.strip()], capture_output=True, check=False)


def _published(port: int) -> list[str]:
    return ["--publish", f"127.0.0.1:{port}:{port}"]


def _wait(answers: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + START_S
    while not answers():
        if time.monotonic() > end:
            raise SystemExit(f"{what} did not answer within {START_S:g} s")
        time.sleep(0.2)


def _kafka_answers(address: str) -> bool:
    try:
        with TopicAdmin(KafkaConfig(address, bootstrap_timeout_ms=1000)) as admin:
            admin.describe(["none"])
    except GradstreamError:
        return False
    return True


def _redis_answers(url: str) -> bool:
    try:
        connect(url).wait_until_ready(1.0)
    except GradstreamError:
        return False
    return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
