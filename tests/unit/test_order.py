"""The order in which records of several lanes are taken."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.stream.order import first, merge, running_keys


def keys(*times: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(times, np.int64)


def test_a_key_is_the_largest_event_time_read_so_far() -> None:
    assert running_keys([5, -1, 3, 9, 9, -1], 4).tolist() == [5, 5, 5, 9, 9, 9]
    assert running_keys([3, 6], 4).tolist() == [4, 6]
    assert running_keys([], 4).tolist() == []


def test_the_smallest_key_is_taken_first_as_far_as_every_lane_was_read() -> None:
    assert merge([keys(1, 4, 7), keys(2, 3, 5)], [7, 5], [False, False]).tolist() == [0, 1, 1, 0, 1]


def test_a_lane_that_was_never_read_holds_everybody_up_until_it_is_passed() -> None:
    assert merge([keys(1, 2), keys()], [2, -1], [False, False]).tolist() == []
    assert merge([keys(1, 2), keys()], [2, -1], [False, True]).tolist() == [0, 0]


def test_ties_go_to_the_first_lane_whatever_one_poll_brought() -> None:
    """With the same key buffered on both, the second lane waits: the first may still bring more of it."""
    assert merge([keys(5), keys(5)], [5, 5], [False, False]).tolist() == [0]
    assert merge([keys(5, 5, 6), keys(5)], [6, 5], [False, False]).tolist() == [0, 0, 1]


@st.composite
def lanes(draw: st.DrawFn) -> tuple[list[list[int]], list[int], list[bool]]:
    n = draw(st.integers(1, 4))
    buffered = [sorted(draw(st.lists(st.integers(0, 6), max_size=6))) for _ in range(n)]
    last = [b[-1] if b else draw(st.integers(-1, 6)) for b in buffered]
    return buffered, last, draw(st.lists(st.booleans(), min_size=n, max_size=n))


@given(lanes())
def test_merging_at_once_is_taking_the_first_again_and_again(
    case: tuple[list[list[int]], list[int], list[bool]],
) -> None:
    buffered, last, passed = case
    left = [list(b) for b in buffered]
    singly: list[int] = []
    while (lane := first([b[0] if b else None for b in left], last, passed)) is not None:
        left[lane].pop(0)
        singly.append(lane)
    assert merge([keys(*b) for b in buffered], last, passed).tolist() == singly


@given(st.lists(st.lists(st.integers(0, 8), min_size=1, max_size=8), min_size=2, max_size=4), st.data())
def test_no_way_of_reading_changes_the_order(logs: list[list[int]], data: st.DataObject) -> None:
    """Taken piece by piece, the sequence is a beginning of that of everything read at once."""
    logs = [sorted(log) for log in logs]
    last_of_all = [log[-1] for log in logs]
    whole = merge([keys(*log) for log in logs], last_of_all, [True] * len(logs)).tolist()
    read, taken, order = [0] * len(logs), [0] * len(logs), list[int]()
    while read != [len(log) for log in logs]:
        lane = data.draw(st.sampled_from([i for i, log in enumerate(logs) if read[i] < len(log)]))
        read[lane] += data.draw(st.integers(1, len(logs[lane]) - read[lane]))
        buffered = [keys(*log[t:r]) for log, t, r in zip(logs, taken, read, strict=True)]
        last = [log[r - 1] if r else -1 for log, r in zip(logs, read, strict=True)]
        for code in merge(buffered, last, [False] * len(logs)).tolist():
            taken[code] += 1
            order.append(code)
    assert order == whole[: len(order)]


@pytest.mark.parametrize("passed", [False, True])
def test_one_lane_alone_is_never_held_up(passed: bool) -> None:
    assert merge([keys(1, 2, 3)], [3], [passed]).tolist() == [0, 0, 0]
    assert first([1], [3], [passed]) == 0
    assert first([None], [3], [passed]) is None
