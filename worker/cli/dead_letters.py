"""`gradstream dead-letters`: what was refused and why, byte by byte, and sent again after a fix."""

import sys
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any
from zlib import crc32

import typer

from worker.cli.options import Config, Debug, Json, Set, settings
from worker.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from worker.settings import Settings
    from worker.stream.kafka.letters import StoredLetter

Reason = Annotated[str | None, typer.Option("--reason", metavar="REASON", help="Only this reason")]
Topic = Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="Only what came from this topic")]
SHOWN = 20
PART = 5_000  # letters acknowledged at a time, so that progress shows


def list_letters(
    reason: Reason = None,
    topic: Topic = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, metavar="N", help=f"Only the newest N [default: {SHOWN}; JSON: all]")
    ] = None,
    config: Config = None,
    sets: Set = None,
    as_json: Json = False,
    _debug: Debug = False,
) -> None:
    """List refused records with reason and position.

    Each record once, although it may have been written more than once.

    Example:
      gradstream dead-letters list
      gradstream dead-letters list --reason not_json --topic features --json
    """
    from worker.cli.output import print_json

    letters = list(_chosen(settings(config, sets), reason, topic))
    if as_json:
        print_json({"dead_letters": [_plain(letter) for letter in (letters[-limit:] if limit else letters)]})
    else:
        _print_list(letters, limit or SHOWN)


def show(
    position: Annotated[str, typer.Argument(metavar="TOPIC:PARTITION:OFFSET", help="Where the record stood")],
    raw: Annotated[bool, typer.Option("--raw", help="Write the original bytes and nothing else")] = False,
    config: Config = None,
    sets: Set = None,
    as_json: Json = False,
    _debug: Debug = False,
) -> None:
    """Show one refused record and why.

    Its bytes are escaped, so that they can not harm the terminal.

    Example:
      gradstream dead-letters show features:0:17
      gradstream dead-letters show features:0:17 --raw > event.json
    """
    topic, partition, offset = _parse(position)
    letter = _find(settings(config, sets), topic, partition, offset)
    if raw:
        sys.stdout.buffer.write(letter.value or b"")
    elif as_json:
        from worker.cli.output import print_json

        print_json(_plain(letter) | {"key": _text(letter.key), "value": _text(letter.value)})
    else:
        _print_letter(letter)


def replay(
    reason: Reason = None,
    topic: Topic = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be sent, send nothing")] = False,
    config: Config = None,
    sets: Set = None,
    as_json: Json = False,
    _debug: Debug = False,
) -> None:
    """Send refused records again, after a fix.

    The original bytes go to the partition that they came from, each record once. What is still wrong is
    refused again; what was learned in the meantime is counted as a duplicate.

    Example:
      gradstream dead-letters replay --reason unknown_feature --dry-run
      gradstream dead-letters replay --reason unknown_feature
    """
    from worker.stream.kafka.letters import can_send_again

    loaded = settings(config, sets)
    letters = list(_chosen(loaded, reason, topic))
    whole = [letter for letter in letters if can_send_again(letter)]
    if not dry_run:
        _send(loaded, whole, quiet=as_json)
    counts = Counter(letter.source.topic for letter in whole if letter.source)
    if as_json:
        from worker.cli.output import print_json

        print_json({"sent": 0 if dry_run else len(whole), "cut": len(letters) - len(whole), "topics": counts})
        return
    where = ", ".join(f"{count} to {name}" for name, count in sorted(counts.items())) or "nothing"
    print(f"would send {where}" if dry_run else f"sent {where}")
    if len(whole) < len(letters):
        print(f"left out {len(letters) - len(whole)}: cut because they were larger than the broker takes")


def _chosen(loaded: "Settings", reason: str | None, topic: str | None) -> "Iterator[StoredLetter]":
    """Yield dead letters, each once: they are delivered at least once. Records of other origin are passed over."""
    from worker.cli.connect import quick_kafka_config
    from worker.stream.dead_letters import REASONS
    from worker.stream.kafka.letters import read_all

    if reason is not None and reason not in REASONS:
        raise ConfigError(f"{reason} is not a reason for refusal: {', '.join(REASONS)}")
    seen = set()
    for letter in read_all(quick_kafka_config(loaded), loaded.stream.dead_letters_topic):
        if letter.source is None or letter.source_offset is None or letter.reason not in REASONS:
            continue
        if reason not in (None, letter.reason) or topic not in (None, letter.source.topic):
            continue
        # A topic that was created again has old positions with new bytes: those are other letters.
        identity = (letter.source, letter.source_offset, crc32(letter.value or b""))
        if identity not in seen:
            seen.add(identity)
            yield letter


def _find(loaded: "Settings", topic: str, partition: int, offset: int) -> "StoredLetter":
    wanted = ((topic, partition), offset)
    found = [letter for letter in _chosen(loaded, None, topic) if (letter.source, letter.source_offset) == wanted]
    if not found:
        raise ConfigError(
            f"no dead letter of {topic}:{partition}:{offset} in topic {loaded.stream.dead_letters_topic}: "
            "`gradstream dead-letters list` shows them"
        )
    return found[-1]


def _parse(position: str) -> tuple[str, int, int]:
    topic, partition, offset = ("::" + position).rsplit(":", 2)
    topic = topic.removeprefix("::").removeprefix(":")
    if not topic or not partition.isdecimal() or not offset.isdecimal():
        raise ConfigError(f"{position} is no position: give TOPIC:PARTITION:OFFSET, such as features:0:17")
    return topic, int(partition), int(offset)


def _plain(letter: "StoredLetter") -> dict[str, Any]:
    assert letter.source is not None
    return {
        "reason": letter.reason,
        "topic": letter.source.topic,
        "partition": letter.source.partition,
        "offset": letter.source_offset,
        "detail": letter.detail,
    }


def _position(letter: "StoredLetter") -> str:
    assert letter.source is not None
    return f"{letter.source.topic}:{letter.source.partition}:{letter.source_offset}"


def _text(content: bytes | None) -> str | None:
    """Return bytes as text that is safe to print."""
    return None if content is None else _escaped(content.decode("utf-8", errors="backslashreplace"))


def _escaped(text: str) -> str:
    r"""Replace what is no printable character by its escape (`\x1b`): a payload must not command the terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _print_list(letters: "list[StoredLetter]", limit: int) -> None:
    from rich.text import Text

    from worker.cli.output import console, figure, rfc3339, table

    screen = console()
    if not letters:
        screen.print("no dead letters")
        return
    reasons = table("reason", "records", right=("records",))
    for name, count in Counter(letter.reason for letter in letters).most_common():
        reasons.add_row(name, figure(count))
    rows = table("record", "reason", "detail", "refused at")
    for letter in letters[-limit:]:
        rows.add_row(
            Text(_position(letter)), letter.reason, Text(_escaped(letter.detail)),
            Text(rfc3339(letter.timestamp) or "-"),
        )  # fmt: skip
    screen.print(reasons)
    screen.print()
    screen.print(rows)
    if len(letters) > limit:
        screen.print(f"\nthe newest {limit} of {figure(len(letters))}; --limit shows more", style="dim")


def _print_letter(letter: "StoredLetter") -> None:
    from rich.text import Text

    from worker.cli.output import console, facts, rfc3339

    size = "null" if letter.value is None else f"{len(letter.value)} bytes"
    cut = f", cut from {letter.truncated}" if letter.truncated is not None else ""
    made = facts()
    made.add_row("record", Text(_position(letter)))
    made.add_row("reason", letter.reason)
    made.add_row("detail", Text(_escaped(letter.detail) or "-"))
    made.add_row("refused at", Text(rfc3339(letter.timestamp) or "-"))
    made.add_row("key", Text(_text(letter.key) or "null"))
    made.add_row("value", Text(size + cut))
    screen = console()
    screen.print(made)
    if letter.value:
        screen.print()
        screen.print(Text(_text(letter.value) or ""), soft_wrap=True)


def _send(loaded: "Settings", letters: "list[StoredLetter]", *, quiet: bool) -> None:
    """Send in the order of the letters; every part is acknowledged before the next one is sent."""
    from rich.console import Console
    from rich.progress import Progress

    from worker.cli.connect import quick_kafka_config
    from worker.stream.kafka.letters import send_again

    kafka = quick_kafka_config(loaded)
    with Progress(console=Console(stderr=True), transient=True, disable=quiet) as progress:
        task = progress.add_task("sending again", total=len(letters))
        for start in range(0, len(letters), PART):
            progress.advance(task, send_again(kafka, letters[start : start + PART]))
