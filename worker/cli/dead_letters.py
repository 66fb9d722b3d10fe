"""`gradstream dead-letters`: what was refused and why, byte by byte, and sent again after a fix."""

import sys
from collections import Counter
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from worker.cli.options import Config, Debug, Json, Set, settings
from worker.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from worker.settings import Settings
    from worker.stream.dead_letters import DeadLetter
    from worker.stream.kafka.letter_reader import StoredLetter

Reason = Annotated[str | None, typer.Option("--reason", metavar="REASON", help="Only this reason")]
Topic = Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="Only what came from this topic")]
SHOWN = 20


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
        print_json({"dead_letters": [_plain(stored.letter) for stored in letters[-(limit or len(letters) or 1) :]]})
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
    loaded = settings(config, sets)
    letters = [stored.letter for stored in _chosen(loaded, reason, topic)]
    if not dry_run:
        _send(loaded, letters, quiet=as_json)
    counts = Counter(letter.source.topic for letter in letters)
    if as_json:
        from worker.cli.output import print_json

        print_json({"sent": 0 if dry_run else len(letters), "would_send": len(letters), "topics": dict(counts)})
        return
    where = ", ".join(f"{count} to {name}" for name, count in sorted(counts.items())) or "nothing"
    print(f"would send {where}" if dry_run else f"sent {where}")


@contextmanager
def _reading(loaded: "Settings") -> "Iterator[Iterator[StoredLetter]]":
    from worker.cli.connect import quick_kafka_config
    from worker.stream.kafka.letter_reader import LetterReader

    with closing(LetterReader(quick_kafka_config(loaded), loaded.stream.dead_letters_topic)) as reader:
        yield reader.read()


def _chosen(loaded: "Settings", reason: str | None, topic: str | None) -> "Iterator[StoredLetter]":
    from worker.stream.dead_letters import REASONS

    if reason is not None and reason not in REASONS:
        raise ConfigError(f"{reason} is not a reason for refusal: {', '.join(REASONS)}")
    with _reading(loaded) as letters:
        for stored in letters:
            letter = stored.letter
            if reason in (None, letter.refusal.reason) and topic in (None, letter.source.topic):
                yield stored


def _find(loaded: "Settings", topic: str, partition: int, offset: int) -> "DeadLetter":
    with _reading(loaded) as letters:
        found = [s.letter for s in letters if (*s.letter.source, s.letter.offset) == (topic, partition, offset)]
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


def _plain(letter: "DeadLetter") -> dict[str, Any]:
    return {
        "reason": letter.refusal.reason,
        "topic": letter.source.topic,
        "partition": letter.source.partition,
        "offset": letter.offset,
        "detail": letter.refusal.detail,
    }


def _text(content: bytes | None) -> str | None:
    r"""Return bytes as text that is safe to print: what is no printable character becomes an escape (`\x1b`)."""
    if content is None:
        return None
    text = content.decode("utf-8", errors="backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _print_list(letters: "list[StoredLetter]", limit: int) -> None:
    from rich.text import Text

    from worker.cli.output import console, figure, rfc3339, table

    screen = console()
    if not letters:
        screen.print("no dead letters")
        return
    reasons = table("reason", "records", right=("records",))
    for name, count in Counter(stored.letter.refusal.reason for stored in letters).most_common():
        reasons.add_row(name, figure(count))
    rows = table("record", "reason", "detail", "refused at")
    for stored in letters[-limit:]:
        letter = stored.letter
        position = f"{letter.source.topic}:{letter.source.partition}:{letter.offset}"
        detail = _text(letter.refusal.detail.encode()) or ""
        rows.add_row(Text(position), letter.refusal.reason, Text(detail), Text(rfc3339(stored.written_ms) or "-"))
    screen.print(reasons)
    screen.print()
    screen.print(rows)
    if len(letters) > limit:
        screen.print(f"\nthe newest {limit} of {figure(len(letters))}; --limit shows more", style="dim")


def _print_letter(letter: "DeadLetter") -> None:
    from rich.text import Text

    from worker.cli.output import console, facts

    made = facts()
    made.add_row("record", Text(f"{letter.source.topic}:{letter.source.partition}:{letter.offset}"))
    made.add_row("reason", letter.refusal.reason)
    made.add_row("detail", Text(_text(letter.refusal.detail.encode()) or "-"))
    made.add_row("key", Text(_text(letter.key) if letter.key is not None else "null"))  # type: ignore[arg-type]
    size = "null" if letter.value is None else f"{len(letter.value)} bytes"
    made.add_row("value", Text(size))
    screen = console()
    screen.print(made)
    if letter.value:
        screen.print()
        screen.print(Text(_text(letter.value) or ""), soft_wrap=True)


def _send(loaded: "Settings", letters: "list[DeadLetter]", *, quiet: bool) -> None:
    """Send in the order of the letters; return once the broker has acknowledged all of them."""
    from rich.console import Console
    from rich.progress import Progress

    from worker.cli.connect import quick_kafka_config
    from worker.stream.kafka.replay_producer import EventProducer

    with (
        closing(EventProducer(quick_kafka_config(loaded))) as producer,
        Progress(console=Console(stderr=True), transient=True, disable=quiet) as progress,
    ):
        there = {name: producer.partitions(name) for name in {letter.source.topic for letter in letters}}
        for letter in progress.track(letters, description="sending again"):
            topic, partition = letter.source
            producer.send(topic, letter.key, letter.value, partition if partition in there[topic] else None)
        producer.flush()
