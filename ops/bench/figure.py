"""A measured figure beside its target, and how repeats become one. Values and arithmetic; measures nothing itself."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median


@dataclass(frozen=True, slots=True)
class Figure:
    """`value` is the median of the repeats, `best` the least disturbed one, by which the target is judged.

    What else runs on a machine only ever adds to a time, so the best repeat is the nearest to the program's own.
    `met` is None where there is no target. `more`: numbers behind the figure, by name.
    """

    name: str
    unit: str
    value: float
    best: float
    target: str = ""
    met: bool | None = None
    more: Mapping[str, float] = field(default_factory=dict)


def cost(
    name: str, unit: str, values: Sequence[float], at_most: float | None = None, more: Mapping[str, float] | None = None
) -> Figure:
    """Return the figure of something that should be small."""
    best = min(values)
    target, met = ("", None) if at_most is None else (f"≤ {at_most:g}", best <= at_most)
    return Figure(name, unit, median(values), best, target, met, more or {})


def rate(
    name: str,
    unit: str,
    values: Sequence[float],
    at_least: float | None = None,
    more: Mapping[str, float] | None = None,
) -> Figure:
    """Return the figure of something that should be large."""
    best = max(values)
    target, met = ("", None) if at_least is None else (f"≥ {at_least:,g}", best >= at_least)
    return Figure(name, unit, median(values), best, target, met, more or {})


def timed(work: Callable[[], object], repeats: int, scale: float = 1.0) -> list[float]:
    """Return `scale` × seconds of the processor for each call: of work that waits for nothing, whatever else runs."""
    taken = []
    for _ in range(repeats):
        started = time.process_time()
        work()
        taken.append((time.process_time() - started) * scale)
    return taken
