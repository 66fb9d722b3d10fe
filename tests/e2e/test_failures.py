"""Servers that die, restart, freeze or come back older: nothing of it changes what is learned."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import pairwise
from typing import Any, NamedTuple

import pytest

from tests.e2e import streams
from tests.e2e.world import Child, Event, NewWorld, World, example, feature, label, wait_for, worlds
from tests.services.kafka import KafkaServer
from tests.services.redis import RedisServer
from worker.stream.kafka.connection import KafkaConfig, client_arguments
from worker.stream.kafka.topics import TopicAdmin
from worker.stream.positions import Ledger

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]

EVENTS = streams.joined(11, 6_000)
SETTINGS: dict[str, Any] = {
    "join.window_s": streams.WINDOW_MS / 1000,
    "commit.every_examples": 64,  # boundaries by count: the data decides them, so the bytes have to be equal
    "commit.every_s": 60,
    "train.l2": 0.001,
    "train.clip_norm": 2.0,
}
SMALL: list[dict[str, object]] = [{"name": "x1"}]
OUTAGE_S = 20.0
GRADSTREAM_RESET = "gradstream state reset --yes"


class Learned(NamedTuple):
    """What has to be the same whatever happened."""

    digest: str
    ledger: Ledger
    dead_letters: list[tuple[str, int, int, str]]

    @classmethod
    def of(cls, world: World) -> "Learned":
        letters = [(topic.removeprefix(f"{world.name}-"), *rest) for topic, *rest in world.dead_letters()]
        return cls(world.digest(), world.ledger(), letters)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def new_world(kafka: str, redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewWorld]:
    with worlds(kafka, redis_url, tmp_path_factory, streams.SCHEMA) as make:
        yield make


@pytest.fixture(scope="module")
def undisturbed(new_world: NewWorld) -> Learned:
    world = new_world(**SETTINGS)
    world.send(EVENTS)
    world.drain()
    return Learned.of(world)


@pytest.fixture(scope="module")
def own_kafka(start_kafka: Callable[[], KafkaServer]) -> KafkaServer:
    """A broker that these tests may stop and freeze."""
    return start_kafka()


@pytest.fixture(scope="module")
def own_redis(start_redis: Callable[..., RedisServer]) -> RedisServer:
    """A store that these tests may kill and freeze; it keeps what it was told."""
    return start_redis("--appendonly", "yes")


@pytest.fixture
def fragile(
    own_kafka: KafkaServer, own_redis: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    """A world on servers that may fail, with all events sent."""
    with worlds(own_kafka.bootstrap_servers, own_redis.url, tmp_path_factory, streams.SCHEMA) as make:
        # One worker: the turn that a server took with it is not waited for, or the next one would take all that is left.
        world = make(**SETTINGS | {"commit.turn_wait_ms": 1})
        world.send(EVENTS)
        yield world


# -- servers that go away -------------------------------------------------------------------------------------------


def test_redis_killed_and_restarted_while_a_worker_drains_changes_nothing(
    fragile: World, own_redis: RedisServer, undisturbed: Learned
) -> None:
    child = fragile.start("--init", "--drain")
    for commit in (5, 40):
        fragile.freeze_at_commit(child, commit)
        own_redis.kill()
        child.kill(signal.SIGCONT)
        child.wait_until_not_ready()
        own_redis.start()
    assert child.wait() == 0, child.tail()
    assert Learned.of(fragile) == undisturbed


def test_a_broker_restarted_while_a_worker_drains_changes_nothing(
    fragile: World, own_kafka: KafkaServer, undisturbed: Learned
) -> None:
    child = fragile.start("--init", "--drain")
    fragile.freeze_at_commit(child, 10)
    own_kafka.stop()
    child.kill(signal.SIGCONT)
    child.wait_until_not_ready()
    own_kafka.start()
    assert child.wait() == 0, child.tail()
    assert Learned.of(fragile) == undisturbed


@pytest.mark.parametrize("away", ["Redis", "Kafka"])
def test_a_server_that_does_not_answer_for_a_while_makes_the_worker_wait_alive(
    fragile: World, own_kafka: KafkaServer, own_redis: RedisServer, undisturbed: Learned, away: str
) -> None:
    """Not ready, and it says why; alive all the time, so that nobody restarts it; then it goes on by itself."""
    server = own_redis if away == "Redis" else own_kafka
    child = fragile.start("--init", "--drain")
    child.http()
    fragile.freeze_at_commit(child, 10)
    server.pause()
    try:
        child.kill(signal.SIGCONT)
        back_at = time.monotonic() + OUTAGE_S
        child.wait_until_not_ready()
        _stays_alive_until(child, back_at)
        reason = child.not_ready_because()
    finally:
        server.resume()
    assert away in reason or "not acknowledged" in reason, reason
    assert child.wait() == 0, child.tail()
    assert Learned.of(fragile) == undisturbed


def _stays_alive_until(child: Child, end: float) -> None:
    def over() -> bool:
        assert child.process.poll() is None, child.tail()
        assert child.get("/healthz")[0] == 200
        return time.monotonic() >= end

    wait_for(over, "the end of the outage")


def test_a_worker_whose_kafka_does_not_answer_ends_when_told(fragile: World, own_kafka: KafkaServer) -> None:
    """Its dead letters can not be acknowledged, so it may end without a commit, but it ends in time."""
    child = fragile.start("--init")
    fragile.freeze_at_commit(child, 10)
    own_kafka.pause()
    try:
        child.kill(signal.SIGCONT)
        child.wait_until_not_ready()
        assert child.stop() in (0, 6), child.tail()
    finally:
        own_kafka.resume()
    fragile.ledger()


def test_a_store_that_comes_back_older_is_filled_again_from_the_log(new_world: NewWorld, undisturbed: Learned) -> None:
    """A machine that crashed has lost its last second: the worker falls back to what is stored, and relearns."""
    world = new_world(**SETTINGS)
    world.send(EVENTS)
    child = world.start("--init", "--drain")
    world.freeze_at_commit(child, 10)
    past = world.stored()
    child.kill(signal.SIGCONT)
    world.freeze_at_commit(child, 30)
    world.go_back(past)
    child.kill(signal.SIGCONT)
    assert child.wait() == 0, child.tail()
    assert child.said("the state store went back")
    assert Learned.of(world) == undisturbed


# -- workers that stand still ---------------------------------------------------------------------------------------


def _wait_until_out_of_the_group(world: World, members: int = 0) -> None:
    """Wait until the broker has given up on a frozen member."""
    from kafka.admin import KafkaAdminClient

    with closing(KafkaAdminClient(**client_arguments(KafkaConfig(world.kafka)))) as admin:
        group = f"gradstream-{world.name}"

        def gone() -> bool:
            found: Any = admin.describe_groups([group])[group]
            return len(found["members"]) <= members

        wait_for(gone, "the session of the frozen worker ends", 30)


def test_a_worker_frozen_for_longer_than_its_session_goes_on_as_if_nothing_had_been(
    new_world: NewWorld, undisturbed: Learned
) -> None:
    world = new_world(**SETTINGS)
    world.send(EVENTS)
    child = world.start("--init", "--drain")
    world.freeze_at_commit(child, 20)
    _wait_until_out_of_the_group(world)
    child.kill(signal.SIGCONT)
    assert child.wait() == 0, child.tail()
    assert Learned.of(world) == undisturbed


def test_two_workers_of_which_one_freezes_train_every_example_once(new_world: NewWorld) -> None:
    """The other one takes over; the frozen one comes back with work in hand, is fenced, and joins again."""
    world = new_world(partitions=2, commit__every_s=1.0, join__window_s=streams.WINDOW_MS / 1000)
    first = world.start("--init")
    world.wait_until_shared(1)
    second = world.start()
    world.wait_until_shared(2)
    cuts = [len(EVENTS) * i // 4 for i in range(5)]
    parts = [EVENTS[low:high] for low, high in pairwise(cuts)]
    sent = world.send(parts[0])
    world.wait_until_taken(sent)
    sent += world.send(parts[1])
    first.kill(signal.SIGSTOP)  # with a second's work in hand
    world.wait_until_taken(sent)
    first.kill(signal.SIGCONT)
    world.wait_until_shared(2)
    sent += world.send(parts[2])
    world.wait_until_taken(sent)
    fenced = [child.metric("gradstream_fenced_total") for child in (first, second)]
    assert sum(fenced) <= 4, fenced
    sent += world.send(parts[3])
    world.wait_until_taken(sent)
    assert fenced == [child.metric("gradstream_fenced_total") for child in (first, second)], "they fence each other"
    assert [first.stop(), second.stop()] == [0, 0]
    alone = new_world(partitions=2, events_of=world, join__window_s=streams.WINDOW_MS / 1000)
    alone.drain()
    assert world.ledger() == alone.ledger()
    assert world.checkpoint().learner.examples == alone.checkpoint().learner.examples
    assert world.dead_letters() == alone.dead_letters()


# -- records and state that are gone --------------------------------------------------------------------------------


def _pairs(start: int, count: int) -> list[Event]:
    """Return features, each followed by its label."""
    pairs = []
    for i in range(start, start + count):
        ts = streams.T0 + i * 1000
        pairs += [feature(f"p-{i}", ts, x1=float(i % 7)), label(f"p-{i}", ts + 500, i % 2)]
    return pairs


@pytest.fixture
def small(kafka: str, redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewWorld]:
    with worlds(kafka, redis_url, tmp_path_factory, SMALL) as make:
        yield make


def _refused(world: World, *arguments: str) -> str:
    child = world.start(*arguments)
    assert child.wait() == 7, child.tail()
    return child.tail().splitlines()[-1]


def test_a_topic_made_anew_stops_the_worker_until_the_state_is_reset(small: NewWorld) -> None:
    """Its offsets would fit again, and mean other records."""
    world = small()
    world.send(_pairs(0, 50))
    running = world.start("--init")
    world.wait_until_taken(100)
    with closing(TopicAdmin(KafkaConfig(world.kafka))) as admin:
        topics = [world.topics["features"], world.topics["labels"]]
        admin.delete(topics)
        wait_for(lambda: not admin.describe(topics), "the topics are gone")
        admin.create(topics, 1, 1)
    assert running.wait() == 7, running.tail()
    assert "created again" in running.tail() or "was deleted" in running.tail()
    world.send(_pairs(0, 80))
    line = _refused(world, "--init", "--drain")
    assert "deleted and created again" in line
    assert GRADSTREAM_RESET in line
    assert world.command("state", "reset", "--yes").returncode == 0
    world.drain()
    assert world.ledger() == Ledger(consumed=160, trained=160)


def test_records_that_retention_removed_stop_the_worker_until_the_state_is_reset(small: NewWorld) -> None:
    """It says how many are lost; nothing is skipped in silence."""
    from kafka import TopicPartition as ClientPartition
    from kafka.admin import KafkaAdminClient

    world = small()
    world.send(_pairs(0, 50))
    world.drain()
    world.send(_pairs(50, 50))
    with closing(KafkaAdminClient(**client_arguments(KafkaConfig(world.kafka)))) as admin:
        admin.delete_records({ClientPartition(world.topics[role], 0): 70 for role in ("features", "labels")})
    line = _refused(world, "--drain")
    assert "20 records" in line
    assert GRADSTREAM_RESET in line
    assert world.command("state", "reset", "--yes").returncode == 0
    world.drain()
    assert world.ledger() == Ledger(consumed=60, trained=60)


def test_a_state_that_is_missing_is_never_taken_for_a_fresh_start(small: NewWorld) -> None:
    world = small()
    world.send(_pairs(0, 10))
    assert "gradstream worker --init" in _refused(world)
    world.drain()
    wait_for(lambda: world.acknowledged() == world.positions(), "offsets in Kafka")
    world.forget_state()
    assert GRADSTREAM_RESET in _refused(world, "--init")
    assert world.command("state", "reset", "--yes").returncode == 0
    world.drain()
    assert world.ledger() == Ledger(consumed=20, trained=20)


def test_a_damaged_state_is_refused_and_the_commit_before_heals_it(new_world: NewWorld, undisturbed: Learned) -> None:
    world = new_world(**SETTINGS)
    world.send(EVENTS)
    child = world.start("--init")
    world.freeze_at_commit(child, 20)
    child.kill()
    world.damage_state()
    line = _refused(world, "--drain")
    assert "checksum" in line
    assert "gradstream state restore --previous" in line
    assert world.command("state", "restore", "--previous").returncode == 0
    world.drain()
    assert Learned.of(world) == undisturbed


def test_a_state_lost_under_a_running_worker_stops_it(small: NewWorld) -> None:
    world = small()
    world.send(_pairs(0, 10))
    child = world.start("--init")
    world.wait_until_taken(20)
    world.forget_state()
    assert child.wait() == 7, child.tail()
    assert world.store.version() is None, "nothing was begun again"


def test_a_reset_under_a_running_worker_is_followed(small: NewWorld) -> None:
    world = small()
    world.send(_pairs(0, 50))
    child = world.start("--init")
    world.wait_until_taken(100)
    reset = world.json("state", "reset", "--yes")["state_version"]
    wait_for(lambda: world.ledger().consumed == 100 and world.checkpoint().version.number > reset, "it learns again")
    assert world.ledger() == Ledger(consumed=100, trained=100)
    assert world.checkpoint().learner.examples == 50
    assert child.stop() == 0


# -- the metrics topic ----------------------------------------------------------------------------------------------


def test_a_missing_metrics_topic_costs_messages_and_nothing_else(small: NewWorld) -> None:
    """Not a commit waits for it, it is not created by the way, and the worker ends when told to."""
    world = small(
        stream__mode="inline", stream__metrics_topic="nowhere-to-be-found", observe__metrics_every_ms=0,
        train__batch_size=8,
    )  # fmt: skip
    child = world.start("--init")
    world.send(example(f"e-{i}", streams.T0 + i, i % 2, x1=float(i % 5)) for i in range(1000))
    world.wait_until_taken(1000)
    assert world.ledger().trained == 1000
    wait_for(lambda: child.metric("gradstream_metrics_dropped_total") > 0, "dropped messages are counted")
    assert child.not_ready_because() == ""
    assert child.stop() == 0, child.tail()
    with closing(TopicAdmin(KafkaConfig(world.kafka))) as admin:
        assert not admin.describe(["nowhere-to-be-found"])
