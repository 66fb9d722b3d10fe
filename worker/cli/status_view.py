"""How `status` looks to people: one screen, quiet, the important first."""

from collections.abc import Iterable, Mapping
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
MANY_CONFLICTS = 0.2  # as the alert ConflictsMany
_REMARKS = ("kernel", "waits", "note")
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
    if document["turns"]:
        made.add_row("turns", _turns(document["turns"]))
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


def _turns(turns: Mapping[str, Any]) -> Text:
    """Say in one line how the living workers get on with each other; a mean of their last turns."""
    if turns["wait_ms"] is None:
        return Text("none yet")
    made = Text(f"{figure(round(turns['examples']))} examples each, after waiting {_short(turns['wait_ms'])} ms")
    made.append(f"; {_short(turns['staleness'])} turns of others in between")
    share = turns["conflict_rate"]
    return made.append(f"; {share:.1%} learned again", style="yellow" if share > MANY_CONFLICTS else "")


def _workers(workers: list[dict[str, Any]]) -> RenderableType:
    if not workers:
        return Text("no worker is running", style="dim")
    numbers = ("lag", "wait ms", "examples", "staleness", "again")
    made = table("worker", "partitions", *numbers, right=numbers)
    for column in made.columns[2:]:
        column.no_wrap = True  # names and lists of partitions fold, numbers are read in columns
    for worker in workers:
        turns, partitions = worker.get("turns") or {}, worker.get("partitions") or ()
        again = f"{turns['conflicts'] / (turns['conflicts'] + turns['count']):.0%}" if turns.get("count") else "-"
        made.add_row(
            _who(worker), spans(partitions) if partitions else Text("none", style="dim"),
            figure(sum(worker["lag"].values())) if partitions and worker.get("lag") else "-",
            *(_short(turns.get(name)) for name in ("wait_ms", "examples", "staleness")), again,
        )  # fmt: skip
    return Group(made, *_remarks(workers))


def _who(worker: Mapping[str, Any]) -> Text:
    name, host = str(worker["worker"]), str(worker.get("host", ""))
    made = Text(name)
    return made if not host or name.startswith(host) else made.append(f" on {host}", style="dim")


def spans(numbers: Iterable[int]) -> str:
    """Write `0-3, 7` for 0, 1, 2, 3, 7: sixteen workers of a topic with 256 partitions still fit on a screen."""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][-1] + 1:
            found[-1][1:] = [number]
        else:
            found.append([number])
    return ", ".join("-".join(str(end) for end in span) for span in found)


def _remarks(workers: list[dict[str, Any]]) -> list[RenderableType]:
    """Return what workers wait for and have to say: a sentence once, with the names of those who say it."""
    said_by: dict[tuple[str, str], list[str]] = {}
    for worker in workers:
        waits, notes = worker.get("waits_for"), worker.get("notes", ())
        said = [("kernel", str(worker["kernel"]))] if worker.get("kernel") else []
        said += [("waits", str(waits))] if waits else []
        for remark in [*said, *(("note", str(note)) for note in notes)]:
            said_by.setdefault(remark, []).append(str(worker["worker"]))
    made = facts()
    for (kind, sentence), names in sorted(said_by.items(), key=lambda item: _REMARKS.index(item[0][0])):
        text = Text(sentence)
        if len(names) < len(workers):
            others = f" and {len(names) - 3} more" if len(names) > 3 else ""
            text.append(f"  ({', '.join(names[:3])}{others})", style="dim")
        made.add_row(kind, text)
    return [Text(), made] if made.row_count else []


def _short(value: float | None) -> str:
    """Write a mean: a tenth matters below ten only."""
    if value is None:
        return "-"
    return f"{value:.1f}" if value < 10 else figure(round(value))
