"""One entry of the commit log as fields of a stream entry, and back. Pure: no store.

The order in which records were taken goes in as the bytes it is; everything else is text that people can read.
"""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from worker.errors import StateCorrupted
from worker.state.store import Consumed, LogEntry, Version


class LoggedCommit(NamedTuple):
    """What one commit did. `base` is None where it stood on nothing (`init`, `reset`); `id` is its place in the log."""

    id: str
    base: Version | None
    version: Version
    digest: str
    entry: LogEntry


def to_fields(base: Version | None, version: Version, digest: str, entry: LogEntry) -> dict[str, str | bytes]:
    """Return the fields of a stream entry."""
    consumed = entry.consumed
    return {
        "base": str(base) if base else "",
        "version": str(version),
        "digest": digest,
        "kind": entry.kind,
        "worker": entry.worker,
        "sources": msgspec.json.encode(consumed.sources),
        "records": str(consumed.records),
        "order": consumed.order,
        "examples": str(entry.examples),
        "batch_size": str(entry.batch_size),
        "kernel": entry.kernel,
        "settings_digest": entry.settings_digest,
        "committed_at": entry.committed_at,
        "recipe": entry.recipe,
    }


def from_fields(place: str, fields: Mapping[bytes, bytes], key: str) -> LoggedCommit:
    """Return what `to_fields` was given. Raises `StateCorrupted` naming the stream and the entry."""
    text = {name.decode(errors="replace"): value for name, value in fields.items()}
    try:
        entry = LogEntry(
            kind=text["kind"].decode(),
            worker=text["worker"].decode(),
            consumed=Consumed(
                sources=msgspec.json.decode(text["sources"], type=tuple[tuple[str, int, int], ...]),
                order=text["order"],
                records=int(text["records"]),
            ),
            examples=int(text["examples"]),
            batch_size=int(text["batch_size"]),
            kernel=text["kernel"].decode(),
            settings_digest=text["settings_digest"].decode(),
            committed_at=text["committed_at"].decode(),
            recipe=text["recipe"].decode(),
        )
        version = _version(text["version"])
        base = _version(text["base"]) if text["base"] else None
        return LoggedCommit(place, base, version, text["digest"].decode(), entry)
    except (KeyError, ValueError, msgspec.MsgspecError) as error:
        raise StateCorrupted(
            f"{key}: entry {place} of the commit log can not be read; the model is not affected"
        ) from error


def _version(text: bytes) -> Version:
    number, nonce = text.decode().split(":")
    return Version(int(number), nonce)
