"""How a worker begins and ends: signals, exit codes, its port, and what it tells of itself while it runs."""

import json
import signal
import socket
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from prometheus_client.parser import text_string_to_metric_families
from referencing import Registry, Resource

from tests.e2e import streams
from tests.e2e.world import Child, NewWorld, World, wait_for, worlds
from tests.services.redis import RedisServer
from worker.observe import catalogue

pytestmark = [pytest.mark.crash, pytest.mark.timeout(200)]

SCHEMAS = Path(__file__).parents[2] / "schemas"
EVENTS = streams.joined(12, 4_000)
SETTINGS: dict[str, Any] = {
    "join.window_s": streams.WINDOW_MS / 1000,
    "commit.every_examples": 64,
    "commit.every_s": 60,
}


@pytest.fixture
def new_world(kafka: str, redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewWorld]:
    with worlds(kafka, redis_url, tmp_path_factory, streams.SCHEMA) as make:
        yield make


@pytest.fixture(scope="module")
def own_redis(start_redis: Callable[..., RedisServer]) -> RedisServer:
    """A store that these tests may freeze."""
    return start_redis("--appendonly", "yes")


@pytest.fixture
def fragile(kafka: str, own_redis: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with worlds(kafka, own_redis.url, tmp_path_factory, streams.SCHEMA) as make:
        yield make(**SETTINGS)


# -- ending ---------------------------------------------------------------------------------------------------------


def test_a_worker_that_is_told_to_end_commits_what_it_took_and_acknowledges_exactly_that(new_world: NewWorld) -> None:
    """What was polled and not learned is neither in the state nor in Kafka's committed offsets."""
    world = new_world(**SETTINGS)
    sent = world.send(EVENTS)
    child = world.start("--init")
    world.freeze_at_commit(child, 10)
    child.kill(signal.SIGTERM)
    assert child.stop(signal.SIGCONT) == 0, child.tail()
    assert child.said("ended")
    ledger = world.ledger()
    assert 0 < ledger.consumed < sent
    assert ledger.trained == 2 * world.checkpoint().learner.examples
    assert world.acknowledged() == world.positions()
    world.drain()
    undisturbed = new_world(events_of=world, **SETTINGS)
    undisturbed.drain()
    assert world.ledger() == undisturbed.ledger()
    weights = [one.checkpoint().learner.arrays["weight"] for one in (world, undisturbed)]
    assert weights[0] == pytest.approx(weights[1], rel=1e-9, abs=1e-9), "one batch may be learned in two steps"


def test_a_draining_worker_without_a_partition_ends_when_the_others_are_done(new_world: NewWorld) -> None:
    """What was there at its start has to be committed, whoever owns it."""
    world = new_world(**SETTINGS | {"commit.every_s": 0.2})
    owner = world.start("--init")
    world.wait_until_shared(1)
    sent = world.send(EVENTS)
    idle = world.start("--drain")
    assert idle.wait() == 0, idle.tail()
    assert world.ledger().consumed == sent
    assert owner.stop() == 0


def test_an_idle_worker_ends_at_once_by_sigint_too(new_world: NewWorld) -> None:
    world = new_world()
    child = world.start("--init")
    wait_for(lambda: child.said("partition claimed"), "it is in its group")
    assert child.stop(signal.SIGINT) == 0, child.tail()


def test_a_worker_that_waits_for_a_topic_says_so_and_ends_when_told(new_world: NewWorld) -> None:
    """A start with a missing topic is no end by itself, and never a deaf process."""
    world = new_world(stream__labels_topic="nowhere-to-be-found")
    child = world.start("--init")
    wait_for(lambda: "nowhere-to-be-found does not exist" in child.not_ready_because(), "it says what it waits for")
    assert child.get("/healthz")[0] == 200
    assert child.stop() == 0, child.tail()


def test_a_worker_that_waits_for_redis_at_its_start_ends_when_told(fragile: World, own_redis: RedisServer) -> None:
    own_redis.pause()
    try:
        child = fragile.start("--init")
        child.wait_until_not_ready("Redis")
        assert child.get("/healthz")[0] == 200
        assert child.stop() == 0, child.tail()
    finally:
        own_redis.resume()


def test_a_worker_whose_redis_is_away_ends_when_told(fragile: World, own_redis: RedisServer) -> None:
    fragile.send(EVENTS)
    child = fragile.start("--init")
    fragile.freeze_at_commit(child, 5)
    own_redis.pause()
    try:
        child.kill(signal.SIGCONT)
        child.wait_until_not_ready("Redis")
        assert child.stop() in (0, 6), child.tail()
    finally:
        own_redis.resume()
    fragile.ledger()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_it_at_once(fragile: World, own_redis: RedisServer, number: int) -> None:
    fragile.send(EVENTS)
    child = fragile.start("--init")
    fragile.freeze_at_commit(child, 5)
    own_redis.pause()  # so that the first signal can not be followed at once
    try:
        child.kill(signal.SIGCONT)
        child.wait_until_not_ready("Redis")
        wait_for(lambda: _told_again(child, number), "it ends long before the grace of the first one is over", 5)
        assert child.wait() == 128 + number
    finally:
        own_redis.resume()


def _told_again(child: Child, number: int) -> bool:
    """Send a signal once more, for two that arrive together are one; say whether the process has ended."""
    child.kill(number)
    return child.process.poll() is not None


# -- what it tells --------------------------------------------------------------------------------------------------


def test_a_port_that_is_taken_is_refused(new_world: NewWorld) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        world = new_world(**{"observe.http_port": taken.getsockname()[1]})
        child = world.start("--init")
        assert child.wait() == 2
    assert "observe.http_port" in child.tail()


def test_two_workers_on_one_host_can_both_be_looked_at(new_world: NewWorld) -> None:
    world = new_world(partitions=2, **SETTINGS | {"commit.every_s": 0.2})
    children = [world.start("--init")]
    world.wait_until_shared(1)
    children.append(world.start())
    world.wait_until_shared(2)
    sent = world.send(EVENTS)
    world.wait_until_taken(sent)
    for child in children:
        wait_for(lambda c=child: c.metric("gradstream_consumer_lag_records") == 0, "lag 0")  # type: ignore[misc]
        assert child.not_ready_because() == ""
    learned = sum(child.metric("gradstream_examples_total") for child in children)
    assert learned == world.checkpoint().learner.examples
    ledger = world.ledger()
    for outcome in ("trained", "dead_lettered", "expired", "duplicate", "late", "withdrawn", "control"):
        counted = sum(child.metric("gradstream_events_total", outcome=outcome) for child in children)
        assert counted == getattr(ledger, outcome), outcome
    told = world.json("status")
    assert [len(told["workers"]), told["examples"]] == [2, learned]
    assert {child.http() for child in children} == {worker["http"] for worker in told["workers"]}
    assert [child.stop() for child in children] == [0, 0]


def test_every_promised_metric_is_there_and_every_message_is_valid(new_world: NewWorld) -> None:
    world = new_world(**SETTINGS | {"observe.metrics_every_ms": 0, "commit.every_s": 0.2, "train.batch_size": 16})
    sent = world.send(EVENTS)
    child = world.start("--init")
    world.wait_until_taken(sent)
    wait_for(lambda: child.metric("gradstream_consumer_lag_records", topic=world.topics["labels"]) == 0, "lag is told")
    text = child.get("/metrics")[1]
    families = {family.name for family in text_string_to_metric_families(text)}
    promised = {metric.name.removesuffix("_total") for metric in catalogue.CATALOGUE if metric.built}
    ours = {name for name in families if name.startswith("gradstream_")}
    # A series by partition begins with the first offset that is skipped.
    assert promised - ours <= {"gradstream_skipped_offsets"}
    assert ours <= promised
    assert child.stop() == 0
    messages = [json.loads(record.value, parse_constant=_not_json) for record in world.read("metrics")]
    assert messages
    schema = _schema("metrics-message.schema.json")
    for message in messages:
        schema.validate(message)
    learned = world.checkpoint().learner
    assert [message["step"] for message in messages] == list(range(1, learned.steps + 1)), "one a step"
    assert list(accumulate(message["rows"] for message in messages)) == [message["examples"] for message in messages]
    assert messages[-1]["examples"] == learned.examples


def _not_json(literal: str) -> None:
    raise AssertionError(f"{literal} is not JSON")


def _schema(name: str) -> Draft202012Validator:
    documents = {path.name: json.loads(path.read_text("utf-8")) for path in SCHEMAS.glob("*.schema.json")}
    registry: Registry[Any] = Registry().with_resources(
        (document["$id"], Resource.from_contents(document)) for document in documents.values()
    )
    return Draft202012Validator(documents[name], registry=registry)
