"""One suite for every `Read`: what replay reads from in other tests must behave as Kafka does."""

from collections.abc import Iterator
from contextlib import closing
from typing import Protocol

import pytest
from kafka import TopicPartition as ClientPartition
from kafka.admin import KafkaAdminClient

from tests.fakes.reader import FakeReader
from tests.fakes.source import FakeLog, FakeRecord
from tests.services.kafka import create_topics, produce, produce_transaction
from worker.errors import OffsetsLost
from worker.lineage.replay import Read
from worker.stream.kafka.connection import KafkaConfig, client_arguments
from worker.stream.kafka.reader import KafkaReader
from worker.stream.records import TopicPartition

MANY = 20


class World(Protocol):
    """A log of one topic with two partitions. In the first: `MANY` records, then an aborted one, a marker, a record."""

    topic: str
    read: Read

    def delete_before(self, offset: int) -> None: ...


class FakeWorld:
    topic = "features"

    def __init__(self) -> None:
        self._log = FakeLog()
        self._log.create(self.topic, partitions=2)
        gone = FakeRecord(None, b"gone", deliverable=False)
        for value in range(MANY):
            self._log.append(self.topic, 0, FakeRecord(b"k", b"%d" % value))
        self._log.append(self.topic, 0, gone, gone, FakeRecord(b"k", b"last"))
        self._log.append(self.topic, 1, FakeRecord(b"k", b"other"))
        self.read: Read = FakeReader(self._log)

    def delete_before(self, offset: int) -> None:
        self._log.delete_before(TopicPartition(self.topic, 0), offset)


class KafkaWorld:
    def __init__(self, servers: str, topic: str) -> None:
        self._config = KafkaConfig(servers)
        self.topic = topic
        create_topics(servers, topic, partitions=2)
        produce(servers, topic, [(b"k", b"%d" % value) for value in range(MANY)])
        produce_transaction(servers, topic, [(b"k", b"gone")], abort=True)
        produce(servers, topic, [(b"k", b"last")])
        produce(servers, topic, [(b"k", b"other")], partition=1)
        self.reader = KafkaReader(self._config)
        self.read: Read = self.reader

    def delete_before(self, offset: int) -> None:
        with closing(KafkaAdminClient(**client_arguments(self._config))) as admin:
            admin.delete_records({ClientPartition(self.topic, 0): offset})


@pytest.fixture(params=["fake", "kafka"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    if request.param == "fake":
        yield FakeWorld()
        return
    made = KafkaWorld(request.getfixturevalue("apache_kafka"), request.getfixturevalue("topic_prefix") + "features")
    with closing(made.reader):
        yield made


def _read(world: World, offset: int, partition: int = 0, count: int = 5) -> tuple[list[int], list[bytes | None]]:
    """Read on from an offset to the end of the log, about `count` records at a time."""
    source, offsets, values = TopicPartition(world.topic, partition), list[int](), list[bytes | None]()
    while len(records := world.read(source, offset, count)):
        assert records.source == source
        offsets += records.offsets
        values += records.values
        assert records.next_offset > records.offsets[-1]
        offset = records.next_offset
    return offsets, values


def test_everything_from_an_offset_on_is_read_once_without_what_was_aborted(world: World) -> None:
    offsets, values = _read(world, 3)
    assert offsets == [*range(3, MANY), MANY + 2]
    assert values == [*(b"%d" % value for value in range(3, MANY)), b"last"]


def test_one_goes_from_partition_to_partition_and_back(world: World) -> None:
    first = world.read(TopicPartition(world.topic, 0), 0, 2)
    assert first.values[:1] == [b"0"]
    assert _read(world, 0, partition=1) == ([0], [b"other"])
    again = world.read(TopicPartition(world.topic, 0), first.next_offset, 2)
    assert again.offsets[0] == first.next_offset
    assert _read(world, 1)[0][0] == 1, "also to where one has been"


def test_at_the_end_there_is_nothing_and_reading_stays_there(world: World) -> None:
    end = MANY + 3
    for _ in range(2):
        nothing = world.read(TopicPartition(world.topic, 0), end, 5)
        assert (len(nothing), nothing.next_offset) == (0, end)


def test_what_retention_took_is_named_wherever_one_stands(world: World) -> None:
    source = TopicPartition(world.topic, 0)
    assert world.read(source, 8, 2).offsets[0] == 8
    world.delete_before(6)
    for offset in (0, 5):
        with pytest.raises(OffsetsLost, match=f"topic {world.topic}, partition 0: .* begins at 6"):
            world.read(source, offset, 2)
    assert _read(world, 6)[0][0] == 6
