"""`gradstream lineage verify` on the real thing: equal, or the first commit that differs and why."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest
from kafka import TopicPartition as ClientPartition
from kafka.admin import KafkaAdminClient

from tests.e2e import streams
from tests.e2e.test_lineage_archive import refused
from tests.e2e.world import NewWorld, worlds
from worker.learn.model import initial_state
from worker.spec import read_spec
from worker.state import checkpoint as codec
from worker.state.redis_connect import connect
from worker.stream.kafka.connection import KafkaConfig, client_arguments

pytestmark = [pytest.mark.crash, pytest.mark.timeout(200)]

EVENTS = streams.joined(9, 600)


@pytest.fixture
def new_world(apache_kafka: str, redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewWorld]:
    with worlds(apache_kafka, redis_url, tmp_path_factory, streams.SCHEMA) as make:
        yield lambda **changes: make(
            release__store=f"file://{tmp_path_factory.mktemp('store')}",
            join__window_s=streams.WINDOW_MS / 1000,
            **changes,
        )


def test_a_version_is_learned_again_until_retention_takes_its_beginning_and_from_a_kept_state_after_that(
    new_world: NewWorld,
) -> None:
    world = new_world()
    half = len(EVENTS) // 2
    world.send(EVENTS[:half])
    world.drain()
    kept = world.json("lineage", "archive", "--trim")["kept"]
    world.settings["train.learning_rate"] = 0.03  # another recipe for the second half
    world.settings["train.kernel"] = "numba"
    world.send(EVENTS[half:])
    world.drain()
    whole = world.json("lineage", "verify")
    assert whole["equal"]
    assert whole["digest"] == world.digest()
    assert whole["examples"] == world.checkpoint().learner.examples
    earlier = world.json("lineage", "verify", "--state-version", str(kept))
    assert earlier["equal"]
    assert earlier["commits"] < whole["commits"]
    kernels = {commit.entry.kernel for commit in world.store.commit_log() if commit.entry.kind == "train"}
    assert "numba" in kernels

    source = ClientPartition(world.topics["features"], 0)
    with closing(KafkaAdminClient(**client_arguments(KafkaConfig(world.kafka)))) as admin:
        admin.delete_records({source: 5})
    code, said = refused(world, "lineage", "verify")
    assert code == 4
    assert f"topic {source.topic}, partition 0" in said
    assert "retention took 5 records" in said
    rest = world.json("lineage", "verify", "--from", str(kept))
    assert rest["equal"]
    assert rest["digest"] == world.digest()
    assert rest["commits"] == whole["commits"] - earlier["commits"]


def test_what_can_not_be_verified_is_said_in_one_line(new_world: NewWorld) -> None:
    world = new_world()
    code, said = refused(world, "lineage", "verify")
    assert code == 7, said
    world.send(EVENTS[:100])
    world.drain()
    code, said = refused(world, "lineage", "verify", "--state-version", "999")
    assert (code, "there is no state version 999" in said) == (2, True), said
    code, said = refused(world, "lineage", "verify", "--from", "0")
    assert (code, "stands on no kept version 0" in said) == (2, True), said
    code, said = refused(world, "lineage", "verify", "3")
    assert (code, "releases are not in this version" in said) == (2, True), said


def test_a_stored_state_that_is_sound_but_not_the_logged_one_is_found(new_world: NewWorld) -> None:
    """Whoever writes one with right checksums still has to explain the log."""
    world = new_world()
    world.send(EVENTS[:100])
    world.drain()
    learned = world.checkpoint()
    forged = replace(learned, learner=initial_state(read_spec(learned.spec)))
    connect(world.redis_url).client.set(world.store.keys.state, codec.encode(forged, world.name)[0])
    assert world.json("state", "show")["digest"] == codec.digest(forged.learner)
    code, said = refused(world, "lineage", "verify")
    assert (code, "somebody changed one of them" in said) == (4, True), said
