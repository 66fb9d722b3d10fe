"""`gradstream init`: an annotated settings file and the topics. Never touches state."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from worker.cli.options import Config, Debug, Json, Set, settings
from worker.errors import ConfigError

if TYPE_CHECKING:
    from worker.settings import Settings


def init(
    partitions: Annotated[
        int, typer.Option("--partitions", metavar="N", min=1, max=10_000, help="Partitions of new event topics")
    ] = 4,
    replication: Annotated[
        int, typer.Option("--replication", metavar="N", min=1, max=32, help="Copies of new topics")
    ] = 1,
    no_topics: Annotated[bool, typer.Option("--no-topics", help="Write the settings file only")] = False,
    force: Annotated[bool, typer.Option("--force", help="Write the settings file anew if there is one")] = False,
    config: Config = None,
    sets: Set = None,
    as_json: Json = False,
    _debug: Debug = False,
) -> None:
    """Write an annotated gradstream.toml and create the topics.

    What is there stays as it is; topics are checked. The file holds an example model of two features: replace
    them, then run "gradstream worker --init".

    Example:
      gradstream init
      gradstream init --partitions 12 --replication 3
      gradstream init --no-topics --config flights.toml
    """
    from worker.settings.load import FILE, settings_file

    path = settings_file(config, os.environ) or Path(FILE)
    action = _write(path, force=force)
    topics = []
    if not no_topics or action == "kept":
        loaded = settings(path, sets)
        topics = [] if no_topics else _create_topics(loaded, partitions, replication)
    _report(path, action, topics, as_json)


def _write(path: Path, *, force: bool) -> str:
    """Write the file unless it is there; return what was done. A reader never sees half a file."""
    from worker.settings.annotated import settings_toml

    there = path.exists()
    if there and not force:
        return "kept"
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(settings_toml(), encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True) if draft.parent.is_dir() else None
        raise ConfigError(f"settings file {path} can not be written: {error.strerror}") from None
    return "overwritten" if there else "written"


def _create_topics(loaded: "Settings", partitions: int, replication: int) -> list[dict[str, object]]:
    """Create what is missing; return what is there then. Raises `ConfigError` for topics that can not serve."""
    from worker.cli.connect import quick_kafka_config
    from worker.cli.topics import event_topics, missing_topics, other_topics
    from worker.stream.kafka.topics import TopicAdmin, check_topics

    events, others = event_topics(loaded), other_topics(loaded)
    with TopicAdmin(quick_kafka_config(loaded)) as admin:
        before = admin.describe([*events, *others])
        check_topics(before, [name for name in events if name in before])
        missing = missing_topics(events, others, {name: t.partitions for name, t in before.items()}, partitions)
        created: list[str] = []
        for count in sorted(set(missing.values())):
            created += admin.create([name for name, n in missing.items() if n == count], count, replication)
        after = admin.describe([*events, *others])
        check_topics(after, events)  # another init may have been faster, with other numbers
    return [
        {
            "topic": name,
            "partitions": after[name].partitions if name in after else missing[name],
            "action": "created" if name in created else "kept",
        }
        for name in (*events, *others)
    ]


def _report(path: Path, action: str, topics: list[dict[str, object]], as_json: bool) -> None:
    from worker.cli.output import console, facts, print_json

    if as_json:
        print_json({"file": {"path": str(path), "action": action}, "topics": topics})
        return
    from rich.text import Text

    made = facts()
    made.add_row("settings", Text.assemble((str(path), "bold"), f"  {action}"))
    for topic in topics:
        count = topic["partitions"]
        made.add_row(
            "topic",
            Text.assemble((str(topic["topic"]), "bold"), f"  {topic['action']}, {count} partition{'s' * (count != 1)}"),
        )
    screen = console()
    screen.print(made)
    if action != "kept":
        screen.print(f"\nNext: replace the example features in {path}, then run: gradstream worker --init", style="dim")
