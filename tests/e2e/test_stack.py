"""The local stack, for real: built, started, fed from the host, watched through Prometheus, taken down with its data."""

import functools
import json
import os
import secrets
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from kafka import KafkaProducer
from prometheus_client.parser import text_string_to_metric_families

from tests.services.redis import free_port, wait_until
from tests.services.require import docker_answers, left_out
from worker.local.flights import events

ROOT = Path(__file__).parents[2]
SENT = 6000  # events: some days of flights, most of them with their labels
PROMETHEUS_IMAGE = "prom/prometheus:v2.53.5"

pytestmark = [pytest.mark.stack, pytest.mark.timeout(2400)]


def run(*command: str, env: dict[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=2000, check=False)


@functools.cache
def builder() -> dict[str, str]:
    """Choose the classic builder where buildx is not installed."""
    return {} if run("docker", "buildx", "version").returncode == 0 else {"DOCKER_BUILDKIT": "0"}


@pytest.fixture(scope="module", autouse=True)
def _compose() -> None:
    if not docker_answers():
        left_out("docker", "no Docker engine answers")
    if run("docker", "compose", "version").returncode:
        left_out("docker", "Docker Compose v2 is not installed")


@dataclass(frozen=True)
class Stack:
    """One project of its own: free ports, and volumes that nobody else has."""

    project: str
    kafka: int
    prometheus: int
    env: dict[str, str]

    def compose(self, *arguments: str) -> str:
        done = run("docker", "compose", "--project-name", self.project, *arguments, env=self.env)
        assert done.returncode == 0, (
            f"docker compose {' '.join(arguments)}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
        )
        return done.stdout

    def containers(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.compose("ps", "--all", "--format", "json").splitlines()]

    def services(self) -> dict[str, dict[str, object]]:
        """Return one container of each service."""
        return {str(row["Service"]): row for row in self.containers()}

    def worker_url(self, index: int = 1) -> str:
        place = ("port", "--index", str(index), "worker", "9108")
        done = run("docker", "compose", "--project-name", self.project, *place, env=self.env)
        if done.returncode:
            raise ConnectionError(done.stderr)  # it is being started again
        return f"http://{done.stdout.strip()}"

    def ask_prometheus(self, query: str) -> list[dict[str, object]]:
        url = f"http://127.0.0.1:{self.prometheus}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        answer = json.loads(get(url))
        assert answer["status"] == "success"
        found: list[dict[str, object]] = answer["data"]["result"]
        return found


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as response:
        text: str = response.read().decode()
        return text


def holds(condition: Callable[[], bool]) -> Callable[[], bool]:
    """Count a server that does not answer yet as not yet."""

    def ask() -> bool:
        try:
            return condition()
        except OSError:
            return False

    return ask


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    kafka, redis, prometheus = free_port(), free_port(), free_port()
    ports = {"STACK_KAFKA_PORT": kafka, "STACK_REDIS_PORT": redis, "STACK_PROMETHEUS_PORT": prometheus}
    env = {**os.environ, **{name: str(port) for name, port in ports.items()}, **builder()}
    started = Stack(f"gradstream-test-{secrets.token_hex(4)}", kafka, prometheus, env)
    try:
        started.compose("build", "worker")
        started.compose("up", "--detach")
        yield started
    finally:
        print(started.compose("logs", "--no-color", "--tail", "60", "init", "worker"))  # shown where a test failed
        started.compose("down", "--volumes", "--remove-orphans", "--timeout", "20")
        left = run(
            "docker", "volume", "ls", "--quiet", "--filter", f"label=com.docker.compose.project={started.project}"
        )
        assert left.stdout == ""


def send_events(bootstrap: str) -> None:
    producer = KafkaProducer(bootstrap_servers=bootstrap, linger_ms=20)
    for event in events()[:SENT]:
        producer.send(event.role, key=event.key, value=event.value)
    producer.flush(60)
    producer.close()


def panels() -> Iterator[tuple[str, str]]:
    """Yield what the dashboard asks, with its variables filled in."""
    for panel in json.loads((ROOT / "ops/grafana/dashboards/gradstream.json").read_text())["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"].replace("$worker", ".*").replace("$__rate_interval", "1m")


def test_the_file_is_valid_with_all_profiles_and_grafana_is_optional() -> None:
    def config(*profiles: str) -> dict[str, dict[str, object]]:
        done = run("docker", "compose", *profiles, "config", "--format", "json")
        assert done.returncode == 0, done.stderr
        services: dict[str, dict[str, object]] = json.loads(done.stdout)["services"]
        return services

    everything, usual = config("--profile", "*"), config()
    assert set(usual) == {"kafka", "redis", "init", "worker", "prometheus"}
    assert set(everything) == {*usual, "grafana"}
    for name, service in everything.items():
        assert "healthcheck" in service or name == "worker", (
            f"{name} has no health check (the worker's is in its image)"
        )


def test_prometheus_accepts_its_configuration_and_every_alert_passes_its_cases() -> None:
    for arguments in (("check", "config", "prometheus.yml"), ("test", "rules", "rules_test.yml")):
        done = run(
            "docker", "run", "--rm", "--volume", f"{ROOT}/ops/prometheus:/rules:ro", "--workdir", "/rules",
            "--entrypoint", "promtool", PROMETHEUS_IMAGE, *arguments,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        assert "SUCCESS" in done.stdout


def test_a_worker_in_the_stack_learns_what_a_producer_on_the_host_sends(stack: Stack) -> None:
    """Joined examples are learned, every panel has data, more workers share the partitions, and they end when asked."""
    send_events(f"localhost:{stack.kafka}")

    def value(name: str) -> float:
        text = get(f"{stack.worker_url()}/metrics")
        samples = [s for family in text_string_to_metric_families(text) for s in family.samples if s.name == name]
        return sum(s.value for s in samples)

    wait_until(holds(lambda: value("gradstream_examples_total") > 1000), 120)
    wait_until(holds(lambda: json.loads(get(f"{stack.worker_url()}/readyz"))["ready"] is True), 30)
    assert json.loads(get(f"{stack.worker_url()}/healthz"))["alive"] is True
    assert value("gradstream_grad_norm_count") > 0
    wait_until(holds(lambda: bool(stack.ask_prometheus('up{job="gradstream"} == 1'))), 60)
    wait_until(holds(lambda: bool(stack.ask_prometheus("gradstream_examples_total > 1000"))), 60)
    wait_until(lambda: stack.services()["worker"]["Health"] == "healthy", 60)
    assert {name: s["Health"] for name, s in stack.services().items() if name in {"kafka", "redis", "prometheus"}} == {
        "kafka": "healthy",
        "redis": "healthy",
        "prometheus": "healthy",
    }
    for title, expression in panels():
        found = functools.partial(stack.ask_prometheus, expression)
        if "skipped_offsets" in expression:  # has no series until offsets are lost
            assert found() == [], title
        else:
            wait_until(lambda found=found: bool(found()), 60)  # type: ignore[misc]

    stack.compose("up", "--detach", "--no-build", "--scale", "worker=3")
    shared = "sum(gradstream_partitions) == max(gradstream_topic_partitions) and count(gradstream_partitions > 0) == 3"
    wait_until(holds(lambda: bool(stack.ask_prometheus('count(up{job="gradstream"} == 1) == 3'))), 120)
    wait_until(holds(lambda: bool(stack.ask_prometheus(shared))), 60)
    addresses = {stack.worker_url(index) for index in (1, 2, 3)}
    assert len(addresses) == 3
    assert all(json.loads(get(f"{address}/readyz"))["ready"] is True for address in addresses)

    assert stack.services()["init"]["ExitCode"] == 0
    assert stack.compose("exec", "--no-TTY", "worker", "id", "--user").strip() == "10001"

    stack.compose("stop", "worker")
    assert [row["ExitCode"] for row in stack.containers() if row["Service"] == "worker"] == [0, 0, 0]
