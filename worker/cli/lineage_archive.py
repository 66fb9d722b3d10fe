"""`gradstream lineage archive` and `list`: the commit log put where it lasts, and what is there."""

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from worker.cli.options import Config, Debug, Json, Set, settings

if TYPE_CHECKING:
    from worker.lineage.archive import Archived, Overview
    from worker.lineage.kept import Kept
    from worker.stop import Stop

LOOK_S = 0.2  # between two looks whether a signal has come


def archive(
    trim: Annotated[bool, typer.Option("--trim", help="Remove from Redis what is archived")] = False,
    every: Annotated[
        float | None, typer.Option("--every", metavar="S", min=0.1, help="Again every S seconds, until stopped")
    ] = None,
    config: Config = None,
    sets: Set = None,
    as_json: Json = False,
    _debug: Debug = False,
) -> None:
    """Put the commit log into the artifact store.

    What is new in it, in files that never change, and the state of this moment, so that one can go back to it
    (train rollback). With --trim, Redis then keeps what is not archived, and the last entry. Needs release.store.

    Example:
      gradstream lineage archive
      gradstream lineage archive --trim --every 3600
    """
    from worker.cli.connect import ready_store
    from worker.lineage.archive import archive_once
    from worker.release.artifacts import open_artifacts

    loaded = settings(config, sets)
    artifacts = open_artifacts(loaded.release.store, loaded.model.name)
    store = ready_store(loaded)
    if every is None:
        _say(archive_once(store, artifacts, trim=trim), artifacts.place, as_json=as_json)
        return
    from worker.errors import Transient
    from worker.stop import Stop

    with Stop().installed() as stop:
        while not stop():
            try:
                done = archive_once(store, artifacts, trim=trim)
            except Transient as problem:  # the next round makes up for it
                print(f"gradstream: {problem}; tried again in {every:g} s", file=sys.stderr, flush=True)
            else:
                if done.commits or done.trimmed or done.notes:
                    _say(done, artifacts.place, as_json=as_json)
            _wait(every, stop)


def _wait(seconds: float, stop: "Stop") -> None:
    until = time.monotonic() + seconds
    while not stop() and (left := until - time.monotonic()) > 0:
        time.sleep(min(left, LOOK_S))


def archived_document(done: "Archived") -> dict[str, Any]:
    """Return what `lineage archive --json` prints, one document a line."""
    return {
        "commits": done.commits,
        "first": _number(done.first),
        "last": _number(done.last),
        "segments": done.segments,
        "archived_to": _number(done.end),
        "kept": done.kept and done.kept.number,
        "trimmed": done.trimmed,
        "notes": list(done.notes),
    }


def _say(done: "Archived", place: str, *, as_json: bool) -> None:
    if as_json:
        import json

        print(json.dumps(archived_document(done)), flush=True)
        return
    for note in done.notes:
        print(f"gradstream: note: {note}", file=sys.stderr)
    if done.commits:
        first, last = _number(done.first), _number(done.last)
        told = f"archived {done.commits} commits (versions {first} to {last}) in {place}, state version"
        told += f" {done.kept.number} kept" if done.kept else ""
    else:
        told = f"nothing new: the archive in {place} ends with version {_number(done.end)}"
    print(told + (f"; {done.trimmed} commits removed from Redis" if done.trimmed else ""), flush=True)


def list_archive(config: Config = None, sets: Set = None, as_json: Json = False, _debug: Debug = False) -> None:
    """Show what is archived, what is in Redis, and which states are kept.

    Example:
      gradstream lineage list
      gradstream lineage list --json | jq '.kept[].state_version'
    """
    from worker.cli.connect import ready_store
    from worker.cli.output import print_json
    from worker.lineage.archive import overview
    from worker.lineage.kept import kept_versions
    from worker.release.artifacts import open_artifacts

    loaded = settings(config, sets)
    artifacts = open_artifacts(loaded.release.store, loaded.model.name)
    seen, kept = overview(ready_store(loaded), artifacts), kept_versions(artifacts, loaded.model.name)
    if as_json:
        print_json(list_document(artifacts.place, seen, kept))
    else:
        _print_list(artifacts.place, seen, kept)


def list_document(place: str, seen: "Overview", kept: "list[Kept]") -> dict[str, Any]:
    """Return what `lineage list --json` prints."""
    return {
        "store": place,
        "archived": {
            "commits": seen.commits,
            "segments": seen.segments,
            "first": _number(seen.first),
            "last": _number(seen.last),
        },
        "redis": {"commits": seen.in_redis, "not_archived": seen.waiting, "trimmed": seen.trimmed},
        "kept": [
            {
                "state_version": one.number,
                "nonce": one.nonce,
                "digest": one.digest,
                "examples": one.examples,
                "partitions": len(one.partitions),
                "committed_at": one.committed_at or None,
            }
            for one in kept
        ],
    }


def _print_list(place: str, seen: "Overview", kept: "list[Kept]") -> None:
    from worker.cli.output import console, facts, figure, table

    head = facts()
    head.add_row("store", place)
    reach = f", versions {_number(seen.first)} to {_number(seen.last)}" if seen.commits else ""
    head.add_row("archived", f"{figure(seen.commits)} commits in {figure(seen.segments)} segments{reach}")
    head.add_row("in Redis", f"{figure(seen.in_redis)} commits, {figure(seen.waiting)} of them not archived")
    head.add_row("trimmed", f"{figure(seen.trimmed)} commits are in the archive alone")
    made = table("kept state", "examples", "committed", "digest", right=("kept state", "examples"))
    for one in kept:
        made.add_row(str(one.number), figure(one.examples), one.committed_at or "-", one.digest[:16])
    screen = console()
    screen.print(head)
    if kept:
        screen.print()
        screen.print(made)


def _number(version: str) -> int | None:
    """Return the number of a `number:nonce`, None for none."""
    number = version.partition(":")[0]
    return int(number) if number.isdigit() else None
