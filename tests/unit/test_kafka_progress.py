"""Whom the watchdog calls stuck, and whom it does not."""

import pytest

from worker.stream.kafka.progress import Progress
from worker.stream.records import TopicPartition

A, B = TopicPartition("features", 0), TopicPartition("labels", 0)


def polls(progress: Progress, count: int = 30) -> None:
    for _ in range(count):
        progress.polled()


def test_a_partition_that_has_records_and_stands_still_is_stuck_after_the_patience() -> None:
    progress = Progress(10)
    progress.moved(A, 0)
    assert progress.quiet([A, B], 1, quiet_s=2) == []
    assert progress.quiet([A, B], 3, quiet_s=2) == [A, B]
    assert progress.stuck({A: 5, B: 9}, {A: 6, B: 9}, 3) == []
    polls(progress)
    assert progress.stuck({A: 5, B: 9}, {A: 6, B: 9}, 12.9) == []
    assert progress.stuck({A: 5, B: 9}, {A: 6, B: 9}, 13) == [A]


def test_moving_or_reaching_the_end_takes_the_suspicion_away() -> None:
    progress = Progress(10)
    progress.quiet([A], 0, 0)
    progress.stuck({A: 5}, {A: 6}, 0)
    polls(progress)
    progress.moved(A, 9)
    assert progress.stuck({A: 6}, {A: 7}, 20) == []
    assert progress.stuck({A: 7}, {A: 7}, 25) == []
    polls(progress)
    assert progress.stuck({A: 7}, {A: 8}, 34) == []


def test_a_busy_loop_that_did_not_poll_is_not_held_against_the_client() -> None:
    progress = Progress(10)
    progress.quiet([A], 0, 0)
    progress.stuck({A: 5}, {A: 6}, 0)
    polls(progress, 3)
    assert progress.stuck({A: 5}, {A: 6}, 60) == []


def test_many_partitions_have_to_wait_for_their_turn() -> None:
    progress = Progress(10)
    many = [TopicPartition("features", number) for number in range(40)]
    progress.quiet(many, 0, 0)
    ends = dict.fromkeys(many, 6)
    positions = dict.fromkeys(many, 5)
    progress.stuck(positions, ends, 0)
    polls(progress)
    assert progress.stuck(positions, ends, 99) == []
    assert progress.stuck(positions, ends, 100) == many


@pytest.mark.parametrize("forget", [True, False])
def test_paused_time_and_a_time_without_answers_do_not_count(forget: bool) -> None:
    progress = Progress(10)
    progress.quiet([A], 0, 0)
    progress.stuck({A: 5}, {A: 6}, 0)
    polls(progress)
    if forget:
        progress.forget()
    else:
        progress.quiet([], 5, 2)  # paused
    assert progress.quiet([A], 20, 2) == []
    assert progress.stuck({A: 5}, {A: 6}, 20) == []
