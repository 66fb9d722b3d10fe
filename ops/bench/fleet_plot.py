"""A plot of a fleet's figures and of the formula fitted to them. Draws what it is given; measures nothing."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from ops.bench.fleet_fit import Fit, Point, predicted

COLOURS = ("#1f77b4", "#2ca02c", "#9467bd", "#d62728", "#ff7f0e", "#8c564b")


def draw(points: Sequence[Point], fits: Mapping[tuple[str, int], Fit], prepare_us: float, place: Path) -> None:
    """Write an SVG: examples a second by workers, one line a kernel and size, for the largest turns; both axes log."""
    every = max(point.every for point in points)
    figure = Figure(figsize=(7.2, 4.4), layout="constrained")
    axes = figure.subplots()
    shown = [p for p in points if p.every == every]
    sizes = sorted({p.workers for p in shown})
    axes.plot(
        sizes, [n * 1e6 / prepare_us for n in sizes], ":", color="grey", label=f"{prepare_us:g} µs an example each"
    )
    for colour, ((kernel, parameters), found) in zip(COLOURS, fits.items(), strict=False):
        mine = [p for p in shown if (p.kernel, p.parameters) == (kernel, parameters)]
        hashed = f", {parameters:,} hashed" if parameters else ""
        workers = np.array([p.workers for p in mine], float)
        turn = np.array([p.turn for p in mine])
        axes.plot(workers, [p.rate for p in mine], "o", color=colour, label=f"{kernel}, d = 20{hashed}")
        curve = predicted(workers, turn, prepare_us, found.learn_us, found.turn_ms)
        axes.plot(workers, curve, "-", color=colour, linewidth=1)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(sizes, [str(n) for n in sizes])
    axes.set_xlabel("simulated workers")
    axes.set_ylabel("examples a second, all together")
    axes.grid(visible=True, which="major", linewidth=0.3)
    axes.legend(fontsize="small")
    place.parent.mkdir(parents=True, exist_ok=True)
    # Text as text: a tenth of the size, and the same bytes for the same numbers.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "gradstream"}):
        figure.savefig(place, format="svg", metadata={"Date": None})
