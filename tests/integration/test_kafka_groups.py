"""Members that come and go: pairs stay together, kept partitions go on, and nobody is harmed by a stale generation."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.services.kafka import create_topics, eventually, produce
from worker.errors import ConfigError
from worker.stream.kafka.connection import KafkaConfig
from worker.stream.kafka.source import KafkaSource
from worker.stream.records import TopicPartition

pytestmark = pytest.mark.usefixtures("apache_kafka")  # the embedded broker does less

Open = Callable[..., KafkaSource]


@pytest.fixture
def topics(kafka: str, topic_prefix: str) -> tuple[str, str]:
    names = topic_prefix + "features", topic_prefix + "labels"
    create_topics(kafka, *names, partitions=4)
    return names


@pytest.fixture
def join(kafka: str, topic_prefix: str, topics: tuple[str, str]) -> Iterator[Open]:
    joined = []

    def make(instance: str = "") -> KafkaSource:
        config = KafkaConfig(kafka, topic_prefix + "g", session_timeout_ms=6_000, group_instance_id=instance)
        joined.append(KafkaSource(config, topics))
        return joined[-1]

    yield make
    for source in joined:
        source.close()


def pairs(source: KafkaSource) -> list[int]:
    """Return the partitions a source owns; fail where it owns one side of a pair only."""
    by_partition: dict[int, set[str]] = {}
    for tp in source.assignment():
        by_partition.setdefault(tp.partition, set()).add(tp.topic)
    assert all(len(sides) == 2 for sides in by_partition.values()), by_partition
    return sorted(by_partition)


def settle(*sources: KafkaSource, shares: list[int]) -> None:
    """Poll all until the numbers of pairs they own are `shares`."""

    def settled() -> bool:
        for source in sources:
            source.poll(0.03)
            source.take_rebalance()
        return sorted(len(source.assignment()) // 2 for source in sources) == shares

    eventually(settled, what=f"shares {shares}")
    owned = [number for source in sources for number in pairs(source)]
    assert sorted(owned) == list(range(4))


@pytest.mark.parametrize("instances", [("", ""), ("one", "two")])
def test_a_second_member_takes_whole_pairs_and_gives_them_back(join: Open, instances: tuple[str, str]) -> None:
    first = join(instances[0])
    settle(first, shares=[4])
    second = join(instances[1])
    settle(first, second, shares=[2, 2])
    second.close()
    settle(first, shares=[4])
    assert first.rebalances >= 3


def test_a_kept_partition_goes_on_without_a_seek_and_a_new_one_waits_for_it(
    kafka: str, topics: tuple[str, str], join: Open
) -> None:
    first = join()
    settle(first, shares=[4])
    for tp in first.assignment():
        first.seek(tp, 0)
    second = join()
    settle(first, second, shares=[2, 2])
    kept, moved = next(iter(first.assignment())), next(iter(second.assignment()))
    for tp in (kept, moved):
        produce(kafka, tp.topic, [(None, b"v")], partition=tp.partition)
    got: list[TopicPartition] = []

    def came() -> bool:
        got.extend(records.source for records in first.poll(0.05))
        got.extend(records.source for records in second.poll(0.05))
        return kept in got

    eventually(came, what="the kept partition's record")
    assert got == [kept]
    second.seek(moved, 0)
    eventually(lambda: bool(came() or moved in got), what="the moved partition's record")


def test_a_refused_acknowledgement_is_counted_and_the_member_joins_again(
    kafka: str, topics: tuple[str, str], join: Open
) -> None:
    source = join()
    settle(source, shares=[4])
    coordinator: Any = source._consumer._coordinator  # type: ignore[union-attr]
    generation = coordinator._generation
    coordinator._generation = type(generation)(77, generation.member_id, generation.protocol)
    before = source.rebalances
    source.acknowledge({TopicPartition(topics[0], 0): 0})
    eventually(lambda: bool(source.poll(0.05) or source.refused_acknowledgements == 1), what="the refusal")
    eventually(lambda: bool(source.poll(0.05) or source.rebalances > before), what="a new assignment")
    settle(source, shares=[4])
    source.acknowledge({TopicPartition(topics[0], 0): 0})
    source.close()
    assert source.refused_acknowledgements == 1


def test_outside_its_group_a_member_owns_nothing(join: Open) -> None:
    source = join()
    settle(source, shares=[4])
    coordinator: Any = source._consumer._coordinator  # type: ignore[union-attr]
    coordinator.reset_generation()  # what the client does when the group has thrown it out
    assert source.assignment() == frozenset()
    settle(source, shares=[4])


def test_two_members_with_one_instance_id_are_told(join: Open) -> None:
    first = join("same")
    settle(first, shares=[4])
    second = join("same")
    with pytest.raises(ConfigError, match=r"same kafka\.group_instance_id"):
        eventually(lambda: bool(second.poll(0.05) or first.poll(0.05)), what="a refusal")
