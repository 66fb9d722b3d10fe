"""The last turns in a few numbers."""

from collections import Counter

from worker.learn.model import initial_state
from worker.learn.state import Report
from worker.observe.last_turns import KEPT, LastTurns, together
from worker.observe.observer import Turn
from worker.spec import Feature, Spec
from worker.state.store import Version

STATE = initial_state(Spec((Feature("x1"),)))


def turn(wait_s: float = 0.0, rows: int = 8, staleness: int = 0, conflicts: int = 0) -> Turn:
    report = Report([rows], [0], [0.5], [1.0], [1.0], 0.01, 1.0, 0.1, [])
    return Turn(
        Version(1, "n"), STATE, report, Counter(), {}, [], -1, 0.1, 0.1, conflicts, 100, wait_s, staleness
    )  # fmt: skip


def test_means_are_of_the_last_turns_only() -> None:
    """What was long ago says nothing of now."""
    last = LastTurns()
    for _ in range(KEPT):
        last.add(turn(wait_s=9.0, rows=9999, staleness=99, conflicts=9))
    for waited in (0.1, 0.3) * (KEPT // 2):
        last.add(turn(wait_s=waited, rows=100, staleness=3, conflicts=int(waited == 0.3)))
    assert last.facts() == {
        "count": KEPT,
        "wait_ms": 200.0,
        "examples": 100.0,
        "staleness": 3.0,
        "conflicts": KEPT // 2,
    }


def test_before_the_first_turn_nothing_is_said() -> None:
    assert LastTurns().facts() == {
        "count": 0, "wait_ms": None, "examples": None, "staleness": None, "conflicts": 0,
    }  # fmt: skip


def test_nobody_alive_has_no_turns() -> None:
    assert together([]) is None
