"""How commands print: JSON for programs, quiet tables for people. Knows nothing of what is printed."""

import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def print_json(value: object) -> None:
    """Print one JSON document (ASCII, so that no terminal can break it; a non-finite number is a bug, not `NaN`)."""
    print(json.dumps(value, indent=2, allow_nan=False))


def console() -> "Console":
    """Return a console on standard output; a pipe gets wide, plain lines instead of wrapped ones."""
    from rich.console import Console

    piped = not sys.stdout.isatty()
    return Console(highlight=False, markup=False, width=160 if piped else None, soft_wrap=False)


def table(*columns: str, right: Sequence[str] = ()) -> "Table":
    """Return a table without vertical lines; `right` names the columns of numbers."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, show_edge=False)
    for name in columns:
        made.add_column(name, justify="right" if name in right else "left", overflow="fold")
    return made


def facts() -> "Table":
    """Return a borderless grid for name and value."""
    from rich.table import Table

    made = Table.grid(padding=(0, 2))
    made.add_column(style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    return made


def rfc3339(ms: int | None) -> str | None:
    """Write milliseconds since 1970 as RFC 3339 in UTC; None stays None."""
    if ms is None or ms < 0:
        return None
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def figure(value: object, digits: int = 4) -> str:
    """Write a number for people: `1 234 567`, `0.4605`, `-` for nothing."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}".replace(",", " ")
    if isinstance(value, float):
        return f"{value:.{digits}f}" if 1e-4 <= abs(value) < 1e6 or value == 0 else f"{value:.{digits}g}"
    return str(value)
