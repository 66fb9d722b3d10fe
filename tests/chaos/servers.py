"""Apache Kafka and Redis in containers, for one run after another: killed, stopped, started, and cut short.

Kafka has a listener of its own for each worker, and advertises it at that worker's proxy: so one worker can be cut off.
"""

import json
import random
import socket
import subprocess
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import NamedTuple

import redis
from kafka import KafkaConsumer
from kafka.errors import KafkaError

from tests.chaos.plan import SLOTS

KAFKA_IMAGE, REDIS_IMAGE = "apache/kafka:4.1.1", "redis:7.4"
LABEL = "gradstream-chaos"
START_S = 90.0
AOF = "/data/appendonlydir/appendonly.aof.1.incr.aof"


class Ports(NamedTuple):
    """`direct` is for producers and checker; `listeners` are the broker's, `proxies` what it advertises for them."""

    direct: int
    listeners: list[int]
    proxies: list[int]
    redis: int
    redis_proxies: list[int]

    @classmethod
    def free(cls) -> "Ports":
        direct, redis_port, *many = _free_ports(2 + 3 * SLOTS)
        return cls(direct, many[:SLOTS], many[SLOTS : 2 * SLOTS], redis_port, many[2 * SLOTS :])


@dataclass(frozen=True)
class Servers:
    """Names of two containers and where they answer. Can be handed to another process as text."""

    kafka_name: str
    redis_name: str
    ports: Ports

    @property
    def kafka(self) -> str:
        return f"localhost:{self.ports.direct}"

    @property
    def redis_url(self) -> str:
        return f"redis://127.0.0.1:{self.ports.redis}/0"

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> "Servers":
        document = json.loads(text)
        return cls(document["kafka_name"], document["redis_name"], Ports(*document["ports"]))

    @classmethod
    def start(cls) -> "Servers":
        name = f"{LABEL}-{uuid.uuid4().hex[:8]}"
        servers = cls(f"{name}-kafka", f"{name}-redis", Ports.free())
        try:
            ports = servers.ports
            published = _published(ports.direct, *ports.listeners)
            options = [part for key, value in _kafka_settings(ports).items() for part in ("-e", f"{key}={value}")]
            _docker(
                "run", "--detach", "--label", LABEL, "--name", servers.kafka_name, *published, *options, KAFKA_IMAGE
            )
            servers.new_redis()
            servers.wait_for_kafka()
        except BaseException:
            servers.close()
            raise
        return servers

    def close(self) -> None:
        _docker("rm", "--force", "--volumes", self.kafka_name, self.redis_name, check=False)

    def heal(self) -> None:
        """Start what was left stopped, and begin with an empty Redis."""
        _docker("start", self.kafka_name)
        self.new_redis()
        self.wait_for_kafka()

    # -- Kafka ----------------------------------------------------------------------------------------------------

    def wait_for_kafka(self) -> None:
        _wait(lambda: _kafka_answers(self.kafka), f"Kafka at {self.kafka}")

    def restart_kafka(self, down_s: float, *, kill: bool) -> None:
        _docker(*(("kill",) if kill else ("stop", "--time", "10")), self.kafka_name)
        time.sleep(down_s)
        _docker("start", self.kafka_name)
        self.wait_for_kafka()

    # -- Redis ----------------------------------------------------------------------------------------------------

    def new_redis(self) -> None:
        _docker("rm", "--force", "--volumes", self.redis_name, check=False)
        command = ["redis-server", "--port", str(self.ports.redis), "--appendonly", "yes"]
        quiet = ["--save", "", "--auto-aof-rewrite-percentage", "0"]  # one file that grows, so that its end can be cut
        name = ["--label", LABEL, "--name", self.redis_name]
        _docker("run", "--detach", *name, *_published(self.ports.redis), REDIS_IMAGE, *command, *quiet)
        self.wait_for_redis()

    def wait_for_redis(self) -> None:
        _wait(lambda: _redis_answers(self.redis_url), f"Redis at {self.redis_url}")

    def restart_redis(self, down_s: float, *, kill: bool, lost_bytes: Callable[[], int] = lambda: 0) -> int:
        """Stop and start it. `lost_bytes` is asked once it is down; return how many were cut off its log."""
        _docker(*(("kill",) if kill else ("stop", "--time", "10")), self.redis_name)
        if lost := lost_bytes():
            truncate = ["--entrypoint", "truncate", REDIS_IMAGE, "--no-create", f"--size=-{lost}", AOF]
            _docker("run", "--rm", "--label", LABEL, "--volumes-from", self.redis_name, *truncate)
        time.sleep(down_s)
        _docker("start", self.redis_name)
        self.wait_for_redis()
        return lost


def _free_ports(count: int) -> list[int]:
    """Below those that the system gives to outgoing connections, one of which would take a port between two runs."""
    ports = list[int]()
    for port in random.SystemRandom().sample(range(12_000, 32_000), 2_000):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            ports.append(port)
        if len(ports) == count:
            break
    return ports


def _published(*ports: int) -> list[str]:
    return [part for port in ports for part in ("--publish", f"127.0.0.1:{port}:{port}")]


def _kafka_settings(ports: Ports) -> dict[str, str]:
    names = [f"SLOT{i}" for i in range(SLOTS)]
    listeners = [f"{name}://:{port}" for name, port in zip(names, ports.listeners, strict=True)]
    advertised = [f"{name}://localhost:{port}" for name, port in zip(names, ports.proxies, strict=True)]
    return {
        "KAFKA_NODE_ID": "1",
        "KAFKA_PROCESS_ROLES": "broker,controller",
        "KAFKA_LISTENERS": ",".join([f"DIRECT://:{ports.direct}", "CONTROLLER://:9093", *listeners]),
        "KAFKA_ADVERTISED_LISTENERS": ",".join([f"DIRECT://localhost:{ports.direct}", *advertised]),
        "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
        "KAFKA_INTER_BROKER_LISTENER_NAME": "DIRECT",
        "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": ",".join(f"{n}:PLAINTEXT" for n in ("CONTROLLER", "DIRECT", *names)),
        "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@localhost:9093",
        "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
        "KAFKA_OFFSETS_TOPIC_NUM_PARTITIONS": "1",
        "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
        "KAFKA_GROUP_MIN_SESSION_TIMEOUT_MS": "1000",
        "KAFKA_BROKER_SESSION_TIMEOUT_MS": "3000",  # a killed broker is let in again once its old session is over
        "KAFKA_BROKER_HEARTBEAT_INTERVAL_MS": "500",
        "KAFKA_HEAP_OPTS": "-Xmx512m",
    }


def _docker(*arguments: str, check: bool = True) -> str:
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, timeout=120, check=False)
    if check and done.returncode:
        raise RuntimeError(f"docker {arguments[0]}: {done.stderr.strip()}")
    return done.stdout.strip()


def _wait(answers: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + START_S
    while not answers():
        if time.monotonic() > end:
            raise RuntimeError(f"{what} did not answer within {START_S:g} s")
        time.sleep(0.2)


def _kafka_answers(address: str) -> bool:
    try:
        consumer = KafkaConsumer(bootstrap_servers=address, bootstrap_timeout_ms=1000)
        try:
            consumer.topics()
        finally:
            consumer.close()
    except KafkaError:
        return False
    return True


def _redis_answers(url: str) -> bool:
    try:
        with redis.Redis.from_url(url, socket_timeout=1) as client:
            return bool(client.ping())
    except redis.RedisError:
        return False
