"""The demo's live view: draws figures, measures nothing. Pure but for the terminal's own width."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from worker.cli.output import facts, figure, table
from worker.local.figures import Figures
from worker.observe import catalogue as c

BARS = "▁▂▃▄▅▆▇█"
PLAIN_BARS = "_.-=+*#@"  # for terminals without these characters
RECENT = "1000"
QUESTION = "Will this flight arrive more than 15 minutes late? Asked at departure, learned at arrival."

_QUALITY = (
    ("accuracy", "accuracy"),
    ("  always the commoner answer", "majority_accuracy"),
    ("  the same as the flight before", "no_change_accuracy"),
    ("log loss", "log_loss"),
    ("normalised entropy (1: knows nothing)", "normalized_entropy"),
    ("AUC", "auc"),
    ("calibration (1: as many as said)", "calibration"),
)


@dataclass(frozen=True, slots=True)
class Scene:
    """All that one picture shows. `event_ms`: how far the replay has come, -1 unknown. `places`: where to look."""

    now: Figures
    sent: int
    total: int
    event_ms: int = -1
    examples_per_s: float | None = None
    losses: Sequence[float] = ()
    refused: Mapping[str, int] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict)
    ended: bool = False


def sparkline(values: Sequence[float], width: int = 60, bars: str = BARS) -> str:
    """Draw the last `width` values between their smallest and their largest, the newest at the right."""
    shown = list(values)[-width:]
    if not shown:
        return ""
    low, high = min(shown), max(shown)
    step = (high - low) / (len(bars) - 1)
    return "".join(bars[round((value - low) / step) if step else 0] for value in shown)


def picture(scene: Scene, bars: str = BARS) -> RenderableType:
    """Return the whole view."""
    columns = Table.grid(padding=(0, 4))
    columns.add_row(_learning(scene), _quality(scene.now), _records(scene))
    where = facts()
    for name, place in scene.places.items():
        where.add_row(name, place)
    line = sparkline(scene.losses, bars=bars)
    span = f"  {min(scene.losses):.3f} to {max(scene.losses):.3f}" if scene.losses else ""
    return Group(
        Text(QUESTION, style="bold"), Text(_progress(scene), style="dim"), Text(),
        columns, Text(),
        Text.assemble((f"log loss of {RECENT} flights  ", "dim"), (line, "cyan"), (span, "dim")), Text(),
        where,
    )  # fmt: skip


def plain_line(scene: Scene) -> str:
    """Return the same in one line, for logs and pipes."""
    now = scene.now
    accuracy, no_change = (now.evaluation.get((name, "all")) for name in ("accuracy", "no_change_accuracy"))
    parts = {
        "sent": f"{scene.sent}/{scene.total}",
        "examples": now.examples,
        "loss": figure(now.evaluation.get(("log_loss", "all"))),
        "accuracy": figure(accuracy),
        "no-change": figure(no_change),
        "grad_norm": figure(now.value(c.GRAD_NORM_LAST)),
        "pending": sum(now.pending.values()),
        "refused": now.outcomes.get("dead_lettered", 0),
        "expired": now.outcomes.get("expired", 0),
        "lag": figure(now.lag),
        "health": now.health,
    }
    return "  ".join(f"{name} {value}" for name, value in parts.items())


def _progress(scene: Scene) -> str:
    if scene.ended:
        return f"All {figure(scene.sent)} records are settled."
    clock = f"{datetime.fromtimestamp(scene.event_ms / 1000, UTC):%d %b %Y %H:%M} UTC, " if scene.event_ms >= 0 else ""
    return f"{clock}{figure(scene.sent)} of {figure(scene.total)} records sent"


def _learning(scene: Scene) -> Table:
    now = scene.now
    made = facts()
    made.add_row("flights learned", figure(now.examples))
    made.add_row("  a second", figure(scene.examples_per_s, 0))
    made.add_row("loss, last batch", figure(now.value(c.LOSS)))
    made.add_row("gradient norm", figure(now.value(c.GRAD_NORM_LAST)))
    made.add_row("weight norm", figure(now.value(c.WEIGHT_NORM)))
    made.add_row("learning rate", figure(now.value(c.LEARNING_RATE)))
    version = now.value(c.STATE_VERSION)
    made.add_row("state version", figure(None if version is None else int(version)))
    made.add_row("health", Text(now.health.replace("_", " "), style=_mood(now.health)))
    return made


def _mood(health: str) -> str:
    return "green" if health in ("converging", "learning") else "dim" if health == "starting" else "yellow"


def _quality(now: Figures) -> Table:
    made = table("", "all", f"last {RECENT}", right=("all", f"last {RECENT}"))
    for words, metric in _QUALITY:
        values = [now.evaluation.get((metric, window)) for window in ("all", RECENT)]
        if any(value is not None for value in values):
            style = "dim" if words.startswith(" ") else ""
            made.add_row(Text(words, style=style), *(figure(value) for value in values))
    return made


def _records(scene: Scene) -> Table:
    now = scene.now
    made = facts()
    made.add_row("records trained", figure(now.outcomes.get("trained", 0)))
    made.add_row("waiting for a label", figure(now.pending.get("features", 0)))
    made.add_row("labels waiting", figure(now.pending.get("labels", 0)))
    made.add_row("expired (cancelled)", figure(now.outcomes.get("expired", 0)))
    made.add_row("late, duplicate", figure(now.outcomes.get("late", 0) + now.outcomes.get("duplicate", 0)))
    made.add_row("refused", figure(now.outcomes.get("dead_lettered", 0)))
    for reason, count in sorted(scene.refused.items()):
        made.add_row(f"  {reason}", figure(count))
    made.add_row("lag", figure(now.lag))
    return made
