"""`gradstream lineage show` on real servers: from the log alone, and with an event, from the records."""

from collections.abc import Iterator
from contextlib import closing

import pytest
from kafka import TopicPartition as ClientPartition
from kafka.admin import KafkaAdminClient

from tests.e2e.streams import T0
from tests.e2e.world import Event, NewWorld, feature, label, worlds
from worker.stream.kafka.connection import KafkaConfig, client_arguments

pytestmark = [pytest.mark.timeout(120)]


@pytest.fixture
def new_world(apache_kafka: str, redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewWorld]:
    with worlds(apache_kafka, redis_url, tmp_path_factory, [{"name": "x1"}]) as make:
        yield make


def _events(first: int, count: int) -> list[Event]:
    features = [feature(f"p-{i}", T0 + i * 1000, x1=float(i % 7)) for i in range(first, first + count)]
    return [*features, *(label(f"p-{i}", T0 + i * 1000 + 500, i % 2) for i in range(first, first + count - 1))]


def test_which_events_trained_a_version_and_which_version_an_event_trained(new_world: NewWorld) -> None:
    world = new_world()
    world.send(_events(0, 30))
    world.drain()
    before = world.checkpoint().version.number
    world.send([label("p-29", T0 + 29_900, 1), *_events(30, 20)])
    world.settings["train.learning_rate"] = 0.5  # another recipe
    world.drain()
    last = world.checkpoint().version.number

    told = world.json("lineage", "show")
    assert (told["state_version"], told["trained"]["examples"], len(told["recipes"])) == (last, 49, 2)
    assert {(part["topic"], part["next"]) for part in told["partitions"]} == {
        (world.topics["features"], 50),
        (world.topics["labels"], 49),
    }
    event = world.json("lineage", "show", "--event", "p-29")
    assert event["trained"][0]["state_version"] > before
    assert [record["outcome"] for record in event["records"]] == ["trained", "trained"]
    assert event["records"][0]["taken"]["state_version"] <= before
    earlier = world.json("lineage", "show", "--event", "p-29", "--state-version", str(before))
    assert [record["outcome"] for record in earlier["records"]] == ["waiting"]
    for arguments in ((), ("--event", "p-29")):
        shown = world.command("lineage", "show", *arguments)
        assert (shown.returncode, shown.stderr) == (0, "")
        assert f"version {last}" in shown.stdout

    unknown = world.command("lineage", "show", "--event", "p-999")
    assert (unknown.returncode, unknown.stderr.count("\n")) == (2, 1)
    with closing(KafkaAdminClient(**client_arguments(KafkaConfig(world.kafka)))) as admin:
        admin.delete_records({ClientPartition(world.topics["labels"], 0): 5})
    gone = world.command("lineage", "show", "--event", "p-29")
    assert gone.returncode == 4
    assert f"topic {world.topics['labels']}, partition 0" in gone.stderr
