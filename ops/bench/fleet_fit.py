"""What a fleet's turns add up to, and the formula behind it. Values and arithmetic; measures and draws nothing.

A turn of K examples keeps the others from learning for t·K = L·K + c, and its own worker from preparing. So N workers
that prepare an example in p together learn

    rate(N, K) = min( N / (p + t), 1 / t )        with t = L + c / K

examples a second: at most 1 / t, because one learns at a time, and linear in N below.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ops.bench.fleet_worker import Taken

Vector = npt.NDArray[np.float64]
PARTS = ("build", "load", "learn", "commit")
SETTLING = 0.25  # share of a run that is left out: turns have to grow to their size first


@dataclass(frozen=True, slots=True)
class Point:
    """A fleet at work: `rate` examples/s in all, `turn` examples a turn (mean), waits and parts of a turn in ms."""

    kernel: str
    parameters: int
    every: int
    workers: int
    rate: float
    turns: int
    turn: float
    conflicts: int
    wait_p50_ms: float
    wait_p99_ms: float
    parts_ms: dict[str, float]


@dataclass(frozen=True, slots=True)
class Fit:
    """L in µs an example, c in ms a turn, and how far each point lies from the formula (0.1: a tenth above it)."""

    learn_us: float
    turn_ms: float
    residuals: tuple[float, ...]


def summarise(kernel: str, parameters: int, every: int, workers: int, taken: Sequence[Taken]) -> Point:
    """Return what all turns of all workers add up to. Raises `ValueError` where there were too few to tell."""
    settled = _settled(taken)
    examples = np.array([turn.examples for turn in settled])
    # From the end of one turn to the end of a later one: whole turns over exactly their time.
    seconds = settled[-1].ended - settled[0].ended
    waits = np.array([turn.wait_s for turn in settled]) * 1000
    parts = {part: float(np.mean([getattr(turn, f"{part}_s") for turn in settled])) * 1000 for part in PARTS}
    return Point(
        kernel, parameters, every, workers,
        rate=float(examples[1:].sum()) / seconds,
        turns=len(settled),
        turn=float(examples.mean()),
        conflicts=sum(turn.conflicts for turn in settled),
        wait_p50_ms=float(np.quantile(waits, 0.5)),
        wait_p99_ms=float(np.quantile(waits, 0.99)),
        parts_ms=parts,
    )  # fmt: skip


def _settled(taken: Sequence[Taken]) -> list[Taken]:
    turns = sorted(taken, key=lambda turn: turn.ended)
    if turns:
        first, last = turns[0].ended, turns[-1].ended
        turns = [turn for turn in turns if turn.ended >= first + SETTLING * (last - first)]
    if len(turns) < 2:
        raise ValueError("fewer than two turns were taken: measure for longer")
    return turns


def predicted(workers: Vector, turn: Vector, prepare_us: float, learn_us: float, turn_ms: float) -> Vector:
    """Return the formula's examples a second, [n]."""
    busy = learn_us + 1000.0 * turn_ms / turn
    return np.asarray(1e6 * np.minimum(workers / (prepare_us + busy), 1.0 / busy), np.float64)


def fit(points: Sequence[Point], prepare_us: float) -> Fit:
    """Return L and c with the least sum of squared relative errors, found on a grid that closes in on them."""
    workers, turn, rate = (np.array([getattr(p, name) for p in points], float) for name in ("workers", "turn", "rate"))

    def error(learn_us: float, turn_ms: float) -> float:
        return float(np.square(np.log(rate / predicted(workers, turn, prepare_us, learn_us, turn_ms))).sum())

    centre, width = np.log([1.0, 1.0]), 5.0
    while width > 1e-4:
        steps = np.linspace(-width, width, 13)
        corners = [(centre[0] + a, centre[1] + b) for a in steps for b in steps]
        centre = np.array(min(corners, key=lambda at: error(*np.exp(at))))
        width *= 0.6
    learn_us, turn_ms = (float(value) for value in np.exp(centre))
    residuals = rate / predicted(workers, turn, prepare_us, learn_us, turn_ms) - 1.0
    return Fit(learn_us, turn_ms, tuple(residuals.tolist()))


def markdown(points: Sequence[Point], fits: dict[tuple[str, int], Fit]) -> str:
    """Return a table of all points and one of the fits."""
    columns = (
        "kernel", "hashed", "due at", "workers", "examples/s", "examples a turn", "conflicts", "wait p50, p99",
        "load + build + learn + commit", "off the formula",
    )  # fmt: skip
    lines = [_row(columns), _row(["---"] * len(columns))]
    seen = dict.fromkeys(fits, 0)
    for p in points:
        key = (p.kernel, p.parameters)
        off = fits[key].residuals[seen[key]]
        seen[key] += 1
        parts = " + ".join(f"{p.parts_ms[part]:.1f}" for part in ("load", "build", "learn", "commit"))
        waits = f"{p.wait_p50_ms:.0f}, {p.wait_p99_ms:.0f} ms"
        whole = (f"{p.parameters:,}", f"{p.every:,}", f"{p.workers}", f"{p.rate:,.0f}", f"{p.turn:,.0f}")
        lines.append(_row((p.kernel, *whole, f"{p.conflicts} of {p.turns}", waits, f"{parts} ms", f"{off:+.0%}")))
    lines += ["", _row(("kernel", "hashed", "L, µs an example", "c, ms a turn", "largest error")), _row(["---"] * 5)]
    for (kernel, parameters), found in fits.items():
        worst = max(found.residuals, key=abs)
        constants = (f"{found.learn_us:.2f}", f"{found.turn_ms:.2f}", f"{worst:+.0%}")
        lines.append(_row((kernel, f"{parameters:,}", *constants)))
    return "\n".join(lines)


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
