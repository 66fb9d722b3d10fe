"""Figures for people and for programs: a table, and one JSON document."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from ops.bench.figure import Figure


def document(machine: Mapping[str, object], figures: Sequence[Figure]) -> dict[str, Any]:
    """Return what `--json` prints."""
    return {"machine": dict(machine), "figures": [asdict(figure) for figure in figures]}


def table(machine: Mapping[str, object], figures: Sequence[Figure]) -> Table:
    """Return a table of figures beside their targets; the machine and its load below."""
    made = Table(title="Gradstream figures", caption=", ".join(f"{name} {value}" for name, value in machine.items()))
    made.add_column("figure")
    for name in ("median", "best"):
        made.add_column(name, justify="right")
    for name in ("unit", "target", "", "behind it"):
        made.add_column(name)
    for figure in figures:
        verdict = {None: "", True: "[green]met[/]", False: "[red]short[/]"}[figure.met]
        behind = ", ".join(f"{name} {value:g}" for name, value in figure.more.items())
        value, best = number(figure.value), number(figure.best)
        made.add_row(figure.name, value, best, figure.unit, figure.target, verdict, behind)
    return made


def number(value: float) -> str:
    """Return three significant digits, in plain writing."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
