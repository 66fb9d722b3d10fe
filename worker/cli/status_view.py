"""How `status` looks to people: one screen, quiet, the important first."""

from collections.abc import Mapping
from typing import Any

from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from worker.cli.output import console, facts, figure, rfc3339, table

_COLOURS = {
    "starting": "cyan",
    "learning": "green",
    "no_better_than_baseline": "yellow",
    "diverging": "red",
    "non_finite": "red",
}
_MEASURES = {
    "log_loss": "log loss",
    "normalized_entropy": "normalised entropy",
    "auc": "AUC",
    "accuracy": "accuracy",
    "no_change_accuracy": "  no change",
    "majority_accuracy": "  commoner class",
    "f1": "F1",
    "calibration": "calibration",
    "mae": "mean absolute error",
    "no_change_mae": "  no change",
    "rmse": "root mean squared error",
    "no_change_rmse": "  no change",
}


def print_status(document: Mapping[str, Any], clocks: Mapping[str, int], difference: str | None) -> None:
    """Print what `status --json` holds; `clocks`: latest event time of each topic; `difference`: see `Spec`."""
    parts: list[RenderableType] = [_head(document, clocks, difference), Text()]
    parts += [Columns([_evaluation(document["evaluation"]), _ledger(document["ledger"])], padding=(0, 4)), Text()]
    parts.append(_workers(document["workers"]))
    console().print(Group(*parts))


def _head(document: Mapping[str, Any], clocks: Mapping[str, int], difference: str | None) -> Table:
    made = facts()
    made.add_row("model", Text(document["model"], style="bold"))
    made.add_row(
        "state",
        f"version {figure(document['state_version'])}, {figure(document['examples'])} examples "
        f"in {figure(document['steps'])} steps",
    )
    made.add_row("health", _health(document["health"]))
    made.add_row("lag", _lag(document["lag"]))
    if clocks:
        made.add_row("event time", Text("\n".join(f"{rfc3339(clock)}  {topic}" for topic, clock in clocks.items())))
    if difference:
        made.add_row("settings", Text(f"{difference} differs from the state's: a worker will be refused", "yellow"))
    return made


def _health(health: Mapping[str, Any]) -> Text:
    state = str(health["state"])
    made = Text(state.replace("_", " "), style=f"bold {_COLOURS.get(state, 'default')}")
    for reason in health["reasons"]:
        made.append(f"\n{reason}", style="not bold default")
    return made


def _lag(lag: Mapping[str, int] | None) -> Text:
    if lag is None:
        return Text("unknown: Kafka does not answer", style="yellow")
    total = sum(lag.values())
    worst = [(name, n) for name, n in sorted(lag.items(), key=lambda item: -item[1])[:3] if n]
    most = f", most in {', '.join(f'{name} ({figure(n)})' for name, n in worst)}" if len(lag) > 1 and worst else ""
    return Text(f"{figure(total)} records{most}")


def _evaluation(evaluation: Mapping[str, Any]) -> Table:
    windows = {"all": evaluation} | {f"last {size}": w for size, w in evaluation["windows"].items()}
    made = table("evaluation", *windows, right=tuple(windows))
    for key, name in _MEASURES.items():
        values = [window.get(key) for window in windows.values()]
        if any(value is not None for value in values):
            made.add_row(name, *(figure(value) for value in values), style="dim" if name.startswith(" ") else "")
    if not made.row_count:
        made.add_row("nothing learned yet", *("" for _ in windows))
    return made


def _ledger(ledger: Mapping[str, int]) -> Table:
    made = table("ledger", "records", right=("records",))
    for column, count in ledger.items():
        style = "bold" if column == "consumed" else "" if count else "dim"
        made.add_row(column.replace("_", " "), figure(count), style=style)
    return made


def _workers(workers: list[dict[str, Any]]) -> Table | Text:
    if not workers:
        return Text("no worker is running", style="dim")
    made = table("worker", "host", "partitions", "waits for", "notes")
    for worker in workers:
        partitions = ", ".join(str(number) for number in worker.get("partitions", ()))
        notes = "\n".join(str(note) for note in worker.get("notes", ()))
        made.add_row(
            Text(str(worker["worker"])), Text(str(worker.get("host", "-"))), partitions or "-",
            Text(str(worker.get("waits_for") or "-")), Text(notes or "-"),
        )  # fmt: skip
    return made
