"""What the last turns of a worker were like, in a few numbers, and those of all workers together. Pure values.

A worker tells them with its announcement; `status` puts them together. Nothing here decides anything.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from worker.observe.observer import Turn

KEPT = 32  # long enough to be calm, short enough to be about now


class LastTurns:
    """The last committed turns of one worker."""

    def __init__(self) -> None:
        self._turns: deque[tuple[float, int, int, int]] = deque(maxlen=KEPT)

    def add(self, turn: Turn) -> None:
        self._turns.append((turn.wait_s * 1000, sum(turn.report.rows), turn.staleness, turn.conflicts))

    def facts(self) -> dict[str, Any]:
        """Return means over `count` turns (None without any), and how often these had to be learned again.

        `wait_ms`: from asking for the turn to having it. `examples`: rows learned. `staleness`: versions of others.
        """
        waits, examples, staleness, conflicts = list(zip(*self._turns, strict=True)) or ((), (), (), ())
        return {
            "count": len(waits),
            "wait_ms": _mean(waits),
            "examples": _mean(examples),
            "staleness": _mean(staleness),
            "conflicts": sum(conflicts),
        }


def together(workers: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the turns of all living workers as one; None where nobody is alive.

    `conflict_rate` is the share of learning that was for nothing: conflicts over conflicts and commits. Means weigh
    each turn alike. Undefined values (no turn yet) are None.
    """
    alive = list(workers)
    if not alive:
        return None
    told = [facts for worker in alive if (facts := worker.get("turns")) and facts["count"]]
    commits, conflicts = (sum(facts[name] for facts in told) for name in ("count", "conflicts"))
    made: dict[str, Any] = {
        "workers": len(alive),
        "conflict_rate": round(conflicts / (conflicts + commits), 4) if commits else None,
    }
    for name in ("wait_ms", "examples", "staleness"):
        made[name] = round(sum(facts[name] * facts["count"] for facts in told) / commits, 1) if commits else None
    return made


def _mean(values: Iterable[float]) -> float | None:
    """Return the mean to a tenth: more digits would be noise."""
    found = list(values)
    return round(sum(found) / len(found), 1) if found else None
