"""One suite for every `Source`: the fake that other tests use must behave as Kafka does."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import pytest

from tests.fakes.source import FakeLog, FakeRecord, FakeSource
from tests.services.kafka import create_topics, eventually, produce
from tests.services.require import docker_answers, left_out
from worker.errors import OffsetsLost, Transient
from worker.stream.kafka.connection import KafkaConfig
from worker.stream.kafka.source import KafkaSource
from worker.stream.records import Records, TopicPartition
from worker.stream.source import Source


class World(Protocol):
    """A log with two topics of two partitions, `features` and `labels`."""

    features: str
    labels: str
    whole: bool  # False: the embedded broker, which does less than Kafka

    def join(self, topics: Sequence[str] | None = None) -> Source: ...
    def append(self, tp: TopicPartition, *values: bytes | None) -> None: ...


class FakeWorld:
    features, labels, whole = "features", "labels", True

    def __init__(self) -> None:
        self.log = FakeLog()
        self.log.create(self.features, self.labels, partitions=2)

    def join(self, topics: Sequence[str] | None = None) -> Source:
        return FakeSource(self.log, "g", topics or [self.features, self.labels])

    def append(self, tp: TopicPartition, *values: bytes | None) -> None:
        self.log.append(tp.topic, tp.partition, *(FakeRecord(b"k", value) for value in values))


class KafkaWorld:
    def __init__(self, servers: str, prefix: str) -> None:
        self.features, self.labels = prefix + "features", prefix + "labels"
        self.whole = docker_answers()
        self._config = KafkaConfig(servers, prefix + "g", session_timeout_ms=6_000, max_poll_records=500)
        self._joined: list[KafkaSource] = []
        create_topics(servers, self.features, self.labels, partitions=2)

    def join(self, topics: Sequence[str] | None = None) -> Source:
        self._joined.append(KafkaSource(self._config, topics or [self.features, self.labels]))
        return self._joined[-1]

    def append(self, tp: TopicPartition, *values: bytes | None) -> None:
        produce(self._config.bootstrap_servers, tp.topic, [(b"k", value) for value in values], partition=tp.partition)

    def close(self) -> None:
        for source in self._joined:
            source.close()


@pytest.fixture(params=["fake", "kafka"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    if request.param == "fake":
        yield FakeWorld()
        return
    real = KafkaWorld(request.getfixturevalue("kafka"), request.getfixturevalue("topic_prefix"))
    yield real
    real.close()


def settle(*sources: Source, shares: Sequence[int]) -> None:
    """Poll until the numbers of partitions that the sources own are `shares`, in any order."""

    def settled() -> bool:
        for source in sources:
            source.poll(0.03)
            source.take_rebalance()
        return sorted(len(source.assignment()) for source in sources) == list(shares)

    eventually(settled, what=f"shares {shares}")


def read(source: Source, until: Callable[[list[Records]], bool], others: Sequence[Source] = ()) -> list[Records]:
    """Poll until enough has come. `others` have nothing to read, but a rebalance waits until each of them polls."""
    got: list[Records] = []

    def done() -> bool:
        got.extend(source.poll(0.05))
        assert all(other.poll(0.01) == [] for other in others)
        return until(got)

    eventually(done, what="records")
    return got


def count(chunks: list[Records]) -> int:
    return sum(map(len, chunks))


def test_partition_counts_are_told_without_asking(world: World) -> None:
    source = world.join()
    settle(source, shares=[4])
    assert source.partition_counts() == {world.features: 2, world.labels: 2}


def test_a_rebalance_is_told_once_and_the_assignment_is_all_pairs(world: World) -> None:
    source = world.join()
    told = 0

    def owns_all() -> bool:
        nonlocal told
        source.poll(0.05)
        told += source.take_rebalance()
        return len(source.assignment()) == 4

    eventually(owns_all, what="an assignment")
    assert told >= 1
    assert not source.take_rebalance()
    assert source.assignment() == {
        TopicPartition(topic, partition) for topic in (world.features, world.labels) for partition in (0, 1)
    }


def test_the_group_confirms_a_member_again_and_again_until_it_leaves(world: World) -> None:
    """Heartbeats go on: after any moment there is a later answer."""
    source = world.join()
    settle(source, shares=[4])
    moment = time.monotonic()
    eventually(lambda: bool(source.poll(0.03)) or source.confirmed_since(moment))
    source.close()
    assert not source.confirmed_since(moment)


def test_nothing_comes_before_a_seek_and_then_all_from_there(world: World) -> None:
    tp = TopicPartition(world.features, 1)
    world.append(tp, b"0", None, b"", b"3")
    source = world.join()
    settle(source, shares=[4])
    assert source.poll(0.1) == []
    source.seek(tp, 1)
    chunks = read(source, lambda got: count(got) == 3)
    assert {chunk.source for chunk in chunks} == {tp}
    assert [value for chunk in chunks for value in chunk.values] == [None, b"", b"3"]
    assert [offset for chunk in chunks for offset in chunk.offsets] == [1, 2, 3]
    assert [key for chunk in chunks for key in chunk.keys] == [b"k"] * 3
    assert chunks[-1].next_offset == 4
    assert source.poll(0.1) == []


def test_a_later_seek_reads_again_and_nothing_else(world: World) -> None:
    tp = TopicPartition(world.labels, 0)
    world.append(tp, *(b"%d" % i for i in range(50)))
    source = world.join()
    settle(source, shares=[4])
    source.seek(tp, 0)
    read(source, lambda got: count(got) == 50)
    source.seek(tp, 48)
    chunks = read(source, lambda got: count(got) == 2)
    assert [value for chunk in chunks for value in chunk.values] == [b"48", b"49"]


def test_only_what_is_wanted_is_read(world: World) -> None:
    features, labels = TopicPartition(world.features, 0), TopicPartition(world.labels, 0)
    for tp in (features, labels):
        world.append(tp, b"v")
    source = world.join()
    settle(source, shares=[4])
    source.fetch_only(frozenset((labels,)))
    source.seek(features, 0)
    source.seek(labels, 0)
    assert {chunk.source for chunk in read(source, lambda got: count(got) == 1)} == {labels}
    assert source.poll(0.1) == []
    source.fetch_only(frozenset((features, labels)))
    assert {chunk.source for chunk in read(source, lambda got: count(got) == 1)} == {features}


def test_offsets_are_asked_of_the_log(world: World) -> None:
    one, two = TopicPartition(world.features, 0), TopicPartition(world.features, 1)
    world.append(one, b"a")
    world.append(one, b"b")
    source = world.join()
    assert source.beginning_offsets([one, two]) == {one: 0, two: 0}
    assert source.end_offsets([one, two]) == {one: 2, two: 0}
    assert source.end_offsets([]) == {}


def test_topics_have_an_identity_each(world: World) -> None:
    ids = world.join().topic_ids()
    assert set(ids) == {world.features, world.labels}
    assert ids[world.features] != ids[world.labels] or not ids[world.features]


def test_a_position_beyond_the_log_is_refused(world: World) -> None:
    if not world.whole:
        left_out("docker", "the embedded broker waits for ever behind its end")
    tp = TopicPartition(world.features, 0)
    world.append(tp, b"a")
    source = world.join()
    settle(source, shares=[4])
    source.seek(tp, 7)
    with pytest.raises(OffsetsLost, match=rf"{world.features}, partition 0: offset 7 .* 0 to 1"):
        read(source, lambda got: count(got) > 0)


def test_a_kept_partition_goes_on_and_one_that_went_is_not_read(world: World) -> None:
    first = world.join()
    settle(first, shares=[4])
    for tp in first.assignment():
        first.seek(tp, 0)
    second = world.join()
    settle(first, second, shares=[2, 2])
    assert {tp.partition for tp in first.assignment()} & {tp.partition for tp in second.assignment()} == set()
    kept, went = next(iter(first.assignment())), next(iter(second.assignment()))
    world.append(went, b"went")
    world.append(kept, b"kept")
    assert {chunk.source for chunk in read(first, lambda got: count(got) == 1, [second])} == {kept}
    first.seek(went, 0)  # too late: passed over
    second.seek(went, 0)
    assert {chunk.source for chunk in read(second, lambda got: count(got) == 1, [first])} == {went}
    assert first.poll(0.1) == []
    second.close()
    settle(first, shares=[4])


def test_acknowledging_is_never_a_position_and_never_raises(world: World) -> None:
    tp = TopicPartition(world.features, 0)
    world.append(tp, b"a")
    source = world.join()
    source.acknowledge({tp: 1})  # before it joined
    settle(source, shares=[4])
    source.acknowledge({tp: 1, TopicPartition("other", 9): 5})
    source.close()
    assert source.assignment() == frozenset()
    again = world.join()
    settle(again, shares=[4])
    assert again.poll(0.1) == []
    again.seek(tp, 0)
    assert count(read(again, lambda got: count(got) == 1)) == 1


def test_a_missing_topic_does_not_answer(world: World) -> None:
    if not world.whole:
        left_out("docker", "the embedded broker creates every topic that it is asked for")
    source = world.join([world.features, "none-" + world.features])
    assert source.poll(0.05) == []
    with pytest.raises(Transient, match="does not exist"):
        source.topic_ids()
