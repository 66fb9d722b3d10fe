"""Members that come and go: pairs stay together, kept partitions go on, and nobody is harmed by a stale generation."""

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from kafka.admin import KafkaAdminClient

from tests.fakes.observer import Recorder
from tests.fakes.store import MemoryStore
from tests.services.kafka import create_topics, eventually, produce
from tests.unit.rig import SPEC, Rig
from worker.errors import ConfigError
from worker.ownership import Ownership
from worker.stream.intake import Intake
from worker.stream.join import JoinRules
from worker.stream.kafka import guards
from worker.stream.kafka.connection import KafkaConfig, client_arguments
from worker.stream.kafka.source import KafkaSource
from worker.stream.records import TopicPartition
from worker.stream.rows import RowFormat

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

    def make(instance: str = "", max_poll_interval_ms: int = 300_000) -> KafkaSource:
        config = KafkaConfig(
            kafka, topic_prefix + "g", session_timeout_ms=6_000, group_instance_id=instance,
            max_poll_interval_ms=max_poll_interval_ms,
        )  # fmt: skip
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


class Member:
    """A source with what it owns, in a store that members share."""

    def __init__(self, source: KafkaSource, rig: Rig, topics: tuple[str, str]) -> None:
        self.source = source
        self.observer = Recorder()
        intake = Intake(True, JoinRules(600_000), RowFormat(SPEC), 8)
        self.ownership = Ownership(source, MemoryStore(rig.server, "m"), intake, topics, "earliest", self.observer)

    def work(self) -> None:
        """One round, as the loop does it."""
        self.ownership.follow(frozenset())
        self.ownership.check_fences()
        self.source.poll(0.03)


def test_a_member_slower_than_the_poll_limit_loses_its_partitions_once_and_the_group_comes_to_rest(
    join: Open, topics: tuple[str, str]
) -> None:
    """It heartbeats all the while, so only the poll limit finds it; it may not take back what it believes in."""
    rig = Rig(partitions=4)
    slow, other = (Member(join(max_poll_interval_ms=3_000), rig, topics) for _ in range(2))

    def shared() -> bool:
        slow.work()
        other.work()
        return len(slow.ownership.fences) == len(other.ownership.fences) == 2

    def taken_over() -> bool:
        other.work()
        return len(other.ownership.fences) == 4

    eventually(shared, what="two pairs each")
    eventually(taken_over, what="the other one owns all while the slow one does not poll")
    assert slow.ownership.check_fences()
    assert not slow.ownership.fences
    eventually(shared, what="two pairs each again")
    before = [(member.source.rebalances, list(member.observer.claims)) for member in (slow, other)]
    for _ in range(60):
        assert shared()
    assert [(member.source.rebalances, member.observer.claims) for member in (slow, other)] == before


def test_members_hear_of_new_partitions_within_seconds(kafka: str, topics: tuple[str, str], join: Open) -> None:
    first, second = join(), join()
    settle(first, second, shares=[2, 2])
    assert first.partition_counts() == dict.fromkeys(topics, 4)
    with closing(KafkaAdminClient(**client_arguments(KafkaConfig(kafka)))) as admin:
        admin.create_partitions(dict.fromkeys(topics, 6))

    def shared() -> bool:
        for source in (first, second):
            source.poll(0.03)
            source.take_rebalance()
        return len(first.assignment()) == len(second.assignment()) == 6

    eventually(shared, what="three pairs each")
    assert sorted(pairs(first) + pairs(second)) == list(range(6))
    assert first.partition_counts() == second.partition_counts() == dict.fromkeys(topics, 6)


def test_a_member_that_fell_out_of_its_group_in_silence_is_found_and_comes_back(
    join: Open, topics: tuple[str, str]
) -> None:
    """Its heartbeats have died, and the client believes to be a member: only the group's silence tells."""
    rig = Rig(partitions=4)
    lost, other = (Member(join(), rig, topics) for _ in range(2))

    def shared() -> bool:
        lost.work()
        other.work()
        return len(lost.ownership.fences) == len(other.ownership.fences) == 2

    def taken_over() -> bool:
        lost.work()
        other.work()
        return len(other.ownership.fences) == 4 and not lost.ownership.fences

    eventually(shared, what="two pairs each")
    client: Any = lost.source._consumer
    client._coordinator._close_heartbeat()
    eventually(taken_over, what="the other one owns all, and nobody disputes it")
    assert guards.is_stable(client)
    claimed = len(lost.observer.claims)
    eventually(shared, 60, what="two pairs each again")
    assert lost.source.reopened == 1
    assert len(lost.observer.claims) == claimed + 2


def test_members_that_read_other_topics_are_told_that_the_group_is_misconfigured(
    kafka: str, topic_prefix: str, topics: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their pairs are split, though all topics have as many partitions, and stay so."""
    monkeypatch.setattr("worker.pairing.SPLIT_S", 2.0)
    other = topics[0], topic_prefix + "answers"
    create_topics(kafka, other[1], partitions=4)
    config = KafkaConfig(kafka, topic_prefix + "g", session_timeout_ms=6_000)
    with closing(KafkaSource(config, topics)) as one, closing(KafkaSource(config, other)) as two:
        members = Member(one, Rig(partitions=4), topics), Member(two, Rig(partitions=4), other)

        def work() -> bool:
            for member in members:
                member.work()
            return False

        with pytest.raises(ConfigError, match="are assigned to different workers"):
            eventually(work, what="a refusal")
