"""Which partitions are whole at a worker, and what is said of the others."""

import pytest

from worker.errors import ConfigError
from worker.pairing import SPLIT_S, Pairing
from worker.stream.records import TopicPartition

TOPICS = ("features", "labels")


class Group:
    """A group whose answers the test decides."""

    def __init__(self, topics: tuple[str, ...] = TOPICS) -> None:
        self.notes: list[str] = []
        self.confirmed_at = 0.0
        self.pairing = Pairing(topics, lambda moment: self.confirmed_at > moment, self.notes.append)


def assigned(**partitions: list[int]) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(topic, n) for topic, numbers in partitions.items() for n in numbers)


def equal(count: int) -> dict[str, int]:
    return dict.fromkeys(TOPICS, count)


def test_only_partitions_with_every_topic_are_whole() -> None:
    group = Group()
    group.pairing.look(assigned(features=[0, 1], labels=[0, 1]), equal(4), 0.0)
    assert (group.pairing.whole, group.pairing.split, group.pairing.problem) == (frozenset({0, 1}), frozenset(), None)
    assert not group.notes


def test_topics_that_differ_are_named_once_and_what_is_not_whole_is_left_alone_for_as_long_as_it_takes() -> None:
    group = Group()
    group.pairing.look(assigned(features=[0, 1], labels=[0, 1]), equal(4), 0.0)
    for now in (1.0, 2.0, 1_000.0):
        group.confirmed_at = now
        group.pairing.look(assigned(features=[0, 1, 2], labels=[0, 1]), {"features": 6, "labels": 4}, now)
    assert (group.pairing.whole, group.pairing.split) == (frozenset({0, 1}), frozenset({2}))
    problem = str(group.pairing.problem)
    assert "features has 6, labels has 4" in problem
    assert "[2]" in problem
    assert len(group.notes) == 1
    group.pairing.look(assigned(features=[0, 1, 2], labels=[0, 1, 2]), equal(6), 1_001.0)
    assert (group.pairing.whole, group.pairing.split, group.pairing.problem) == (
        frozenset({0, 1, 2}),
        frozenset(),
        None,
    )
    assert "from 4 to 6 partitions" in group.notes[-1]
    assert len(group.notes) == 2


def test_pairs_that_stay_split_though_the_numbers_are_equal_are_a_misconfigured_group() -> None:
    group = Group()
    half = assigned(features=[0], labels=[0, 1])
    group.pairing.look(half, equal(2), 100.0)
    assert group.pairing.problem
    group.confirmed_at = 100.0 + SPLIT_S - 1
    group.pairing.look(half, equal(2), 100.0 + SPLIT_S)  # a group in the middle of a join has not said so
    group.confirmed_at = 101.0 + SPLIT_S
    with pytest.raises(ConfigError, match="assigned to different workers"):
        group.pairing.look(half, equal(2), 102.0 + SPLIT_S)


def test_a_split_that_ends_in_time_is_forgotten() -> None:
    """The leader shared out what it knew; a moment later it knows better."""
    group = Group()
    group.pairing.look(assigned(features=[0, 1, 2], labels=[0, 1]), equal(4), 0.0)
    group.pairing.look(assigned(features=[0, 1], labels=[0, 1]), equal(4), SPLIT_S - 1)
    group.confirmed_at = 10 * SPLIT_S
    group.pairing.look(assigned(features=[0, 1], labels=[0, 1]), equal(4), 10 * SPLIT_S)
    assert group.pairing.problem is None


def test_numbers_that_are_not_known_for_a_moment_say_nothing() -> None:
    group = Group()
    group.pairing.look(assigned(features=[0], labels=[0]), equal(1), 0.0)
    group.pairing.look(frozenset(), {}, 1.0)
    group.pairing.look(frozenset(), {"features": 1}, 2.0)
    group.pairing.look(assigned(features=[0], labels=[0]), equal(1), 3.0)
    assert not group.notes
    assert group.pairing.problem is None


def test_one_topic_alone_is_never_split_and_its_growth_is_told() -> None:
    group = Group(("examples",))
    group.pairing.look(assigned(examples=[0]), {"examples": 1}, 0.0)
    group.pairing.look(assigned(examples=[0, 1]), {"examples": 2}, 1.0)
    assert group.pairing.whole == {0, 1}
    assert "from 1 to 2 partitions" in group.notes[0]
