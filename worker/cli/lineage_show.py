"""`gradstream lineage show`: which events trained a version, and which versions an event has trained."""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from worker.cli.lineage import StateVersion, progress
from worker.cli.options import Config, Debug, Json, Set, settings
from worker.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from worker.cli.lineage_log import Log
    from worker.lineage.chain import Path
    from worker.lineage.events import Traced
    from worker.lineage.summary import Change, Share, Summary
    from worker.settings import Settings
    from worker.state.commit_log import LoggedCommit
    from worker.state.store import Version

MOST_CHANGES = 8  # of a recipe, on a screen


def show(
    event: Annotated[
        str | None, typer.Option("--event", metavar="ID", help="Which versions this event trained")
    ] = None,
    state_version: StateVersion = None,
    config: Config = None,
    sets: Set = None,
    as_json: Json = False,
    _debug: Debug = False,
) -> None:
    """Show which events trained a version.

    Workers, recipes, and the offsets taken of each partition, from the commit log alone. With --event, which versions
    that event has trained, and what became of each of its records: the join is replayed from Kafka, without learning.

    Example:
      gradstream lineage show
      gradstream lineage show --event order-4711
    """
    from worker.cli.connect import ready_store
    from worker.cli.lineage_log import lineage_log
    from worker.cli.output import print_json
    from worker.lineage.chain import Chain
    from worker.lineage.summary import changes, summarise

    loaded = settings(config, sets)
    store = ready_store(loaded)
    current, log = store.load(), lineage_log(store, loaded)
    chain = Chain(log.entries())
    version = chain.find(current.version.number if state_version is None else state_version, current.version)
    path = chain.path(version)
    if event is not None:
        found = event_document(event, version, _traced(loaded, event, version, path, log))
        (print_json if as_json else print_event)(found)
        return
    summary = summarise(path, log.entries())
    document = version_document(version, len(path.links), summary, changes(summary.recipes, log.recipe))
    (print_json if as_json else print_version)(document)


def _traced(loaded: "Settings", event: str, version: "Version", path: "Path", log: "Log") -> "list[Traced]":
    from worker.cli.connect import quick_kafka_config
    from worker.lineage.events import trace
    from worker.stream.kafka.reader import KafkaReader

    with closing(KafkaReader(quick_kafka_config(loaded))) as reader, progress(len(path.links)) as told:
        traced = trace(event, path, log.entries(), reader, log.recipe, told)
    if not traced:
        raise ConfigError(
            f"state version {version.number} took no record of an event with this id: it is another one, "
            f"or was not committed by then"
        )
    return traced


# -- a version -------------------------------------------------------------------------------------------------------


def version_document(
    version: "Version", commits: int, summary: "Summary", changed: "Mapping[str, list[Change] | None]"
) -> dict[str, Any]:
    """Return what `lineage show --json` prints."""

    def shares(of: "Mapping[str, Share]", name: str) -> "list[dict[str, Any]]":
        return [{name: key, **asdict(share)} for key, share in of.items()]

    recipes = shares(summary.recipes, "digest")
    for recipe in recipes:
        differs = changed[recipe["digest"]]
        recipe["kept"] = differs is not None
        recipe["differs"] = [asdict(change) for change in differs or ()]
    return {
        "state_version": version.number,
        "nonce": version.nonce,
        "root": summary.root,
        "log_entries": commits,
        "undone": summary.undone,
        "trained": asdict(summary.total),
        "workers": sorted(shares(summary.workers, "worker"), key=lambda share: str(share["worker"])),
        "kernels": shares(summary.kernels, "kernel"),
        "recipes": recipes,
        "partitions": [{**source._asdict(), **asdict(span)} for source, span in summary.spans.items()],
    }


def print_version(document: Mapping[str, Any]) -> None:
    """Print what `version_document` returned."""
    from rich.console import Group
    from rich.text import Text

    from worker.cli.output import console

    parts: list[Any] = [_head(document)]
    if document["workers"]:
        parts += [Text(), _workers(document["workers"]), Text(), _recipes(document["recipes"])]
        parts += [Text(), _partitions(document["partitions"])]
    console().print(Group(*parts))


def _head(document: Mapping[str, Any]) -> Any:
    from worker.cli.output import facts, figure

    trained, undone = document["trained"], document["undone"]
    made = facts()
    made.add_row("state", f"version {document['state_version']}, from {document['root']} on")
    made.add_row(
        "trained",
        f"{figure(trained['examples'])} examples of {figure(trained['records'])} records "
        f"in {figure(trained['commits'])} commits",
    )
    if trained["commits"]:
        made.add_row("first commit", trained["first_at"])
        made.add_row("last commit", trained["last_at"])
        kernels = [f"{kernel['kernel']} ({figure(kernel['commits'])} commits)" for kernel in document["kernels"]]
        made.add_row("kernels", ", ".join(kernels))
    if any(undone.values()):
        told = ", ".join(f"{count} {kind}" for kind, count in undone.items() if count)
        made.add_row("went back", f"{told}; what they undid is not in these figures")
    return made


def _workers(workers: "Sequence[Mapping[str, Any]]") -> Any:
    from worker.cli.output import figure, table

    made = table("worker", "commits", "examples", "records", right=("commits", "examples", "records"))
    for worker in workers:
        made.add_row(worker["worker"], *(figure(worker[name]) for name in ("commits", "examples", "records")))
    return made


def _recipes(recipes: "Sequence[Mapping[str, Any]]") -> Any:
    from worker.cli.output import figure, table

    made = table("recipe", "commits", "differs from the first in", right=("commits",))
    for i, recipe in enumerate(recipes):
        told = _differences(recipe["differs"]) if i else "-"
        made.add_row(recipe["digest"][:12], figure(recipe["commits"]), told if recipe["kept"] else "it is not kept")
    return made


def _differences(differs: "Sequence[Mapping[str, Any]]") -> str:
    def plain(change: Mapping[str, Any]) -> str:
        was, now = change["was"], change["now"]
        if change["name"] == "code" or isinstance(was, (list, dict)) or isinstance(now, (list, dict)):
            return str(change["name"])
        return f"{change['name']} {_word(was)} to {_word(now)}"

    more = f"\nand {len(differs) - MOST_CHANGES} more" if len(differs) > MOST_CHANGES else ""
    return "\n".join(plain(change) for change in differs[:MOST_CHANGES]) + more or "nothing that is readable"


def _word(value: object) -> str:
    return "none" if value is None else str(value)


def _partitions(partitions: "Sequence[Mapping[str, Any]]") -> Any:
    """Return one row a partition, one column a topic: both topics of 32 partitions are on one screen."""
    from worker.cli.output import figure, table

    topics = sorted({span["topic"] for span in partitions})
    rows: dict[int, dict[str, str]] = {}
    records: dict[int, int] = {}
    for span in partitions:
        number = span["partition"]
        rows.setdefault(number, {})[span["topic"]] = f"{figure(span['first'])} to {figure(span['next'] - 1)}"
        records[number] = records.get(number, 0) + span["records"]
    headers = tuple(f"offsets of {topic}" for topic in topics)
    made = table("partition", *headers, "records", right=("partition", *headers, "records"))
    for number in sorted(rows):
        made.add_row(str(number), *(rows[number].get(topic, "-") for topic in topics), figure(records[number]))
    return made


# -- an event --------------------------------------------------------------------------------------------------------


def event_document(event: str, version: "Version", traced: "Sequence[Traced]") -> dict[str, Any]:
    """Return what `lineage show --event ID --json` prints."""
    from worker.cli.output import rfc3339
    from worker.lineage.events import trained_by

    return {
        "event": event,
        "state_version": version.number,
        "trained": [_commit(commit) for commit in trained_by(traced)],
        "records": [
            {
                "topic": one.source.topic,
                "partition": one.source.partition,
                "offset": one.offset,
                "event_time": rfc3339(one.time),
                "outcome": one.outcome,
                "reason": one.reason or None,
                "taken": _commit(one.taken),
                "settled": None if one.outcome == "waiting" else _commit(one.settled),
            }
            for one in traced
        ],
    }


def _commit(commit: "LoggedCommit") -> dict[str, Any]:
    return {
        "state_version": commit.version.number,
        "nonce": commit.version.nonce,
        "worker": commit.entry.worker,
        "committed_at": commit.entry.committed_at,
    }


def print_event(document: Mapping[str, Any]) -> None:
    """Print what `event_document` returned."""
    from rich.console import Group
    from rich.text import Text

    from worker.cli.output import console, facts, table

    numbers = [commit["state_version"] for commit in document["trained"]]
    head = facts()
    head.add_row("event", Text("".join(c if c.isprintable() else "�" for c in document["event"]), style="bold"))
    head.add_row("trained", _trained(numbers, document["state_version"]))
    if numbers:
        first = document["trained"][0]
        head.add_row("by", f"{first['worker']}, {first['committed_at']}")
    made = table("record", "event time", "taken by", "outcome", right=("taken by",))
    for record in document["records"]:
        place = f"{record['topic']}:{record['partition']}:{record['offset']}"
        made.add_row(place, record["event_time"] or "-", str(record["taken"]["state_version"]), _told(record))
    console().print(Group(head, Text(), made))


def _trained(numbers: "Sequence[int]", to: int) -> str:
    if not numbers:
        return f"no version up to {to}"
    also = f"; again {', '.join(map(str, numbers[1:]))}" if len(numbers) > 1 else ""
    later = f"; every later one up to {to} stands on it" if numbers[-1] < to else ""
    return f"version {numbers[0]}{also}{later}"


def _told(record: Mapping[str, Any]) -> str:
    told = str(record["outcome"]).replace("_", " ") + (f": {record['reason']}" if record["reason"] else "")
    settled = record["settled"]
    later = settled and settled["state_version"] != record["taken"]["state_version"]
    return f"{told} by {settled['state_version']}" if later else told
