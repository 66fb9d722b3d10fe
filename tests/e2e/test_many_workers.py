"""Several workers of one model: who owns what, and what becomes of it when one is stopped, cut off or added."""

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer
from kafka.admin import KafkaAdminClient
from kafka.admin._groups import MemberToRemove

from tests.e2e.pairs import Pairs
from tests.e2e.world import Child, NewWorld, World, wait_for, worlds
from tests.services.kafka import ContainerKafka
from tests.services.link import Link
from tests.services.redis import RedisServer
from worker.stream.kafka.connection import KafkaConfig, client_arguments

pytestmark = [pytest.mark.crash, pytest.mark.timeout(240)]

SMALL: list[dict[str, object]] = [{"name": "x1"}]
SHARE = 0.2  # of a core, several times what an idle worker takes: the machine is shared with other tests


@pytest.fixture
def new_world(apache_kafka: str, redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewWorld]:
    with worlds(apache_kafka, redis_url, tmp_path_factory, SMALL) as make:
        yield make


def start(world: World, *arguments: str, **changes: object) -> Child:
    """Start one worker with settings of its own."""
    before = world.settings
    world.settings = before | {key.replace("__", ".", 1): value for key, value in changes.items()}
    try:
        return world.start(*arguments)
    finally:
        world.settings = before


def claims(*children: Child) -> Counter[int]:
    """Return how often each partition was claimed, by the logs of these workers."""
    return Counter(
        line["partition"] for child in children for line in child.lines() if line.get("event") == "partition claimed"
    )


def fenced(*children: Child) -> float:
    return sum(child.metric("gradstream_fenced_total") for child in children)


def told(world: World) -> list[dict[str, Any]]:
    """Return what each worker that is alive says of itself."""
    said: list[dict[str, Any]] = world.store.workers()
    return said


def shares(world: World) -> dict[str, list[int]]:
    return {one["worker"]: one["partitions"] for one in told(world)}


def notes(world: World) -> str:
    return "\n".join(note for one in told(world) for note in one["notes"])


@contextmanager
def administration(world: World) -> Iterator[KafkaAdminClient]:
    with closing(KafkaAdminClient(**client_arguments(KafkaConfig(world.kafka)))) as admin:
        yield admin


# -- one partition, two that believe in it --------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["stopped", "cut off from Kafka"])
def test_an_old_owner_is_refused_and_takes_nothing_back_before_the_group_has_it_back(
    linked_kafka: ContainerKafka, redis_url: str, tmp_path_factory: pytest.TempPathFactory, how: str
) -> None:
    """Nobody takes a partition from the other while both live: claims are counted."""
    link = linked_kafka.links[0]
    with worlds(linked_kafka.bootstrap_servers, redis_url, tmp_path_factory, SMALL) as make:
        world = make(partitions=2, commit__every_s=1.0)
        pairs = Pairs(world)
        old = start(world, "--init", kafka__bootstrap_servers=f"127.0.0.1:{link.port}")
        world.wait_until_shared(1)
        new = world.start()
        world.wait_until_shared(2)
        pairs.send(100)
        pairs.learned()
        settled = claims(old, new)
        pairs.send(100)
        link.cut() if how != "stopped" else old.kill(signal.SIGSTOP)  # with up to a second's work in hand
        pairs.learned()
        assert set(claims(new)) == {0, 1}
        taken_over = claims(old, new)
        for _ in range(5):  # both live, and one of them has not heard that it owns nothing
            pairs.send(20)
            pairs.learned()
        assert claims(old, new) == taken_over
        if how != "stopped":
            old.wait_until_not_ready()
            assert old.get("/healthz")[0] == 200
        link.mend() if how != "stopped" else old.kill(signal.SIGCONT)
        world.wait_until_shared(2)
        pairs.send(50)
        pairs.learned()
        back, refused = claims(old, new), fenced(old, new)
        assert refused <= 4
        assert all(back[n] - taken_over[n] <= 2 for n in (0, 1)), (settled, taken_over, back)
        for _ in range(5):
            pairs.send(20)
            pairs.learned()
        assert (claims(old, new), fenced(old, new)) == (back, refused), "they take it from each other"
        assert [old.stop(), new.stop()] == [0, 0]


def test_a_worker_cut_off_from_redis_alone_keeps_what_is_its_own(
    new_world: NewWorld, redis_server: RedisServer
) -> None:
    """It can not commit and nobody else may: its partition waits with it, and the other one goes on."""
    world = new_world(partitions=2)
    pairs, link = Pairs(world), Link(redis_server.port)
    try:
        apart = start(world, "--init", redis__url=f"redis://127.0.0.1:{link.port}/0")
        world.wait_until_shared(1)
        other = world.start()
        world.wait_until_shared(2)
        pairs.send(50)
        pairs.learned()
        settled = claims(apart, other)
        learned = world.ledger().consumed
        link.cut()
        pairs.send(100)
        apart.wait_until_not_ready("Redis")
        wait_for(lambda: world.ledger().consumed == learned + 100, "the other one's half is learned")
        link.mend()
        pairs.learned()
        assert claims(apart, other) == settled
        assert fenced(apart, other) == 0
        assert [apart.stop(), other.stop()] == [0, 0]
    finally:
        link.close()


# -- membership -----------------------------------------------------------------------------------------------------


def test_a_rolling_restart_of_static_workers_moves_no_partition(new_world: NewWorld) -> None:
    world = new_world(partitions=6, kafka__session_timeout_ms=45_000)
    pairs = Pairs(world)
    names = [f"{world.name}-w{n}" for n in range(3)]
    children = {name: start(world, "--init", kafka__group_instance_id=name) for name in names}
    world.wait_until_shared(3)
    pairs.send(60)
    pairs.learned()
    owned = shares(world)
    assert sorted(owned) == names
    for name in names:
        others = [child for other, child in children.items() if other != name]
        before = [child.metric("gradstream_rebalances_total") for child in others], claims(*others)
        assert children[name].stop() == 0
        pairs.send(30)
        children[name] = start(world, kafka__group_instance_id=name)
        pairs.learned()
        assert sorted(claims(children[name])) == owned[name]
        assert ([child.metric("gradstream_rebalances_total") for child in others], claims(*others)) == before
    assert shares(world) == owned
    assert [child.stop() for child in children.values()] == [0, 0, 0]


def test_of_two_workers_with_one_instance_id_the_older_one_ends_and_says_why(new_world: NewWorld) -> None:
    world = new_world(partitions=2)
    pairs = Pairs(world)
    older = start(world, "--init", kafka__group_instance_id=world.name)
    pairs.send(20)
    pairs.learned()
    newer = start(world, kafka__group_instance_id=world.name)
    assert older.wait() == 2, older.tail()
    assert "same kafka.group_instance_id" in older.tail().splitlines()[-1]
    pairs.send(20)
    pairs.learned()
    assert claims(newer) == {0: 1, 1: 1}
    assert newer.stop() == 0


def test_a_worker_that_was_removed_from_its_group_comes_back_with_what_it_has(new_world: NewWorld) -> None:
    world = new_world(partitions=2)
    pairs = Pairs(world)
    child = world.start("--init")
    pairs.send(20)
    pairs.learned()
    before = child.metric("gradstream_rebalances_total")
    group = f"gradstream-{world.name}"
    with administration(world) as admin:
        members = admin.describe_groups([group])[group]["members"]
        gone = [MemberToRemove(member_id=member["member_id"]) for member in members]
        admin.remove_group_members(group, gone)
    wait_for(lambda: child.metric("gradstream_rebalances_total") > before, "it has joined again")
    pairs.send(20)
    pairs.learned()
    assert claims(child) == {0: 1, 1: 1}, "nobody had them in between: nothing is read again"
    assert child.stop() == 0


# -- more workers than partitions -----------------------------------------------------------------------------------


def _processor_s(child: Child) -> float:
    fields = Path(f"/proc/{child.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_worker_too_many_idles_says_so_and_takes_over(new_world: NewWorld) -> None:
    """It drains as well, by waiting for what the others commit."""
    world = new_world(partitions=1, commit__every_s=4.0)
    pairs = Pairs(world)
    owner = start(world, "--init", kafka__group_instance_id=f"{world.name}-a")
    world.wait_until_shared(1)
    spare = start(world, kafka__group_instance_id=f"{world.name}-b")
    spare.wait_until_said("idle")
    assert "no partition is assigned to this worker: there are 1" in spare.not_ready_because()
    assert spare.get("/healthz")[0] == 200
    idle = [one["waits_for"] for one in told(world) if one["worker"] == f"{world.name}-b"]
    assert "no partition is assigned" in idle[0]
    before, began = _processor_s(spare), time.monotonic()
    wait_for(lambda: time.monotonic() >= began + 3.0, "three seconds are over")
    share = (_processor_s(spare) - before) / (time.monotonic() - began)
    print(f"idle: {share:.3f} of a core")
    assert share < SHARE
    pairs.send(50)
    drainer = start(world, "--drain", kafka__group_instance_id=f"{world.name}-c")
    assert drainer.wait() == 0, drainer.tail()
    assert world.ledger().consumed == 100, "it ended before the others had committed what it waited for"
    assert not claims(drainer)
    pairs.learned()
    assert spare.said_times("idle") == 1
    owner.kill()
    pairs.send(50)
    pairs.learned()
    assert claims(spare) == {0: 1}
    assert spare.not_ready_because() == ""
    assert spare.stop() == 0


# -- topics that gain partitions ------------------------------------------------------------------------------------


def test_topics_that_gain_partitions_are_read_where_pairs_are_whole_and_wholly_once_they_are_equal(
    new_world: NewWorld,
) -> None:
    """`start = "latest"` is where a model begins, and not where a partition does."""
    world = new_world(partitions=2, stream__start="latest")
    pairs = Pairs(world)
    workers = [world.start("--init"), world.start("--init")]  # whichever is first makes the state
    world.wait_until_shared(2)
    pairs.send(40)
    pairs.learned()
    with administration(world) as admin:
        admin.create_partitions({world.topics["features"]: 4})
        wait_for(lambda: "differ in their number of partitions" in notes(world), "they say that the topics differ", 30)
        wait_for(lambda: sum(bool(worker.not_ready_because()) for worker in workers) == 1, "one of them has no pair")
        pairs.send(10, 0)  # of 4 and 2 partitions, shared out by range, one pair is whole
        pairs.learned()
        pairs.send(10, 1)
        admin.create_partitions({world.topics["labels"]: 4})
    world.producer.close()
    world.producer = KafkaProducer(bootstrap_servers=world.kafka, acks="all", linger_ms=5)
    world.partitions = 4
    pairs.send(40, 2, 3)
    world.wait_until_shared(2)
    pairs.learned()
    wait_for(lambda: "went from 2 to 4 partitions" in notes(world), "they say that ids moved")
    assert [worker.not_ready_because() for worker in workers] == ["", ""]
    assert [worker.stop() for worker in workers] == [0, 0]
