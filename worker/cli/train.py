"""`gradstream train rollback`: go back to a kept state, while workers run."""

from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from worker.cli.options import Config, Debug, Json, Set, settings
from worker.errors import ConfigError, StateCorrupted, StateMissing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from worker.lineage.archive import LineageLog
    from worker.lineage.rollback import Undone
    from worker.release.artifacts import Artifacts
    from worker.settings import Settings
    from worker.state.moment import Moment
    from worker.state.redis_store import RedisStore
    from worker.state.store import Checkpoint, PartitionState, Version

    Check = Callable[[Mapping[int, PartitionState]], None]

COMMAND = "command"
SHOWN = 12  # kept versions that an error lists


class Target(NamedTuple):
    """What is gone back to."""

    checkpoint: "Checkpoint"
    positions: "Mapping[int, PartitionState]"
    since: str


def rollback(
    to: Annotated[
        str, typer.Option("--to", metavar="STATE_VERSION", help="A kept version (`lineage list`), or the previous one")
    ],
    yes: Annotated[bool, typer.Option("--yes", help="Yes, take back what was learned since")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything and tell; change nothing")] = False,
    config: Config = None,
    sets: Set = None,
    as_json: Json = False,
    _debug: Debug = False,
) -> None:
    """Go back to an earlier state, while workers run.

    Puts model and positions of a kept version back as one logged commit. Workers drop what they hold and read on from
    there: what followed is learned again. `gradstream state restore --previous` takes it back until the next commit.

    Example:
      gradstream train rollback --to 412 --dry-run
      gradstream train rollback --to 412 --yes
    """
    loaded = settings(config, sets)
    from worker.cli.connect import ready_store
    from worker.lineage.archive import LineageLog
    from worker.lineage.rollback import Beginnings
    from worker.release.artifacts import open_artifacts

    artifacts = open_artifacts(loaded.release.store, loaded.model.name) if loaded.release.store else None
    store = ready_store(loaded)
    target, floor = _find(to, store, artifacts, loaded.model.name)
    _refuse_other_spec(loaded, target.checkpoint)
    log, present = LineageLog(store, artifacts), _present(store)
    undone = _undone(log, present, target)
    if present is not None and present.version == target.checkpoint.version:
        raise ConfigError(f"state version {present.version.number} is the present one: there is nothing to take back")
    if not yes and not dry_run:
        raise ConfigError(f"train rollback {_sentence(target, undone)}: add --yes if that is meant")
    check = _kafka_check(loaded)
    check(target.positions)
    others = Beginnings(log.entries, target.checkpoint.version, check)
    if dry_run:
        others(present, _added(store, target))
        _say(as_json, target, undone, present, None)
        return
    _say(as_json, target, undone, present, _rewind(loaded, store, target, others, floor))


def _rewind(loaded: "Settings", store: "RedisStore", target: Target, others: Any, floor: int) -> "Version":
    from worker.cli.connect import log_entry
    from worker.state.redis_rewind import Rewind

    entry = log_entry("rollback", loaded, COMMAND, target.checkpoint.kernel)
    return store.rewind(Rewind(target.checkpoint, target.positions, others, entry, floor))


def _find(to: str, store: "RedisStore", artifacts: "Artifacts | None", model: str) -> tuple[Target, int]:
    """Return the state that is meant, and the highest version number that the archive knows.

    Raises `ConfigError` listing what there is.
    """
    from worker.lineage.kept import kept, kept_versions
    from worker.lineage.segments import Segments

    known = [one.version for one in kept_versions(artifacts, model)] if artifacts else []
    head = Segments(artifacts, model).head() if artifacts else None
    floor = max([version.number for version in known] + ([head.header.highest] if head else []), default=-1)
    previous = _previous(store)
    before = previous.checkpoint(model, store.keys.previous_state) if previous else None
    choice: dict[Version, Moment | None] = dict.fromkeys(known)
    if before is not None:
        choice[before.version] = previous
    meant = [version for version in choice if to in (str(version.number), str(version))]
    if len(meant) > 1:
        raise ConfigError(f"state version {to} is kept more than once: name one of {', '.join(map(str, meant))}")
    if not meant:
        raise ConfigError(f"state version {to} is not kept: {_listed(choice, artifacts is not None)}")
    moment = choice[meant[0]]
    if moment is None:
        assert artifacts is not None
        moment = kept(artifacts, model, meant[0])
    return Target(moment.checkpoint(model), moment.positions(model), moment.committed_at), floor


def _previous(store: "RedisStore") -> "Moment | None":
    """Return the state before the last commit where it can be had: without it there are the kept ones."""
    try:
        found = store.previous()
        if found is not None:
            found.checkpoint(store.model)
            found.positions(store.model)
    except (StateMissing, StateCorrupted):
        return None
    return found


def _listed(versions: "Iterable[Version]", archived: bool) -> str:
    numbers = sorted({version.number for version in versions})
    if numbers:
        left = f" and {len(numbers) - SHOWN} before" if len(numbers) > SHOWN else ""
        return f"there are {', '.join(map(str, numbers[-SHOWN:]))}{left}"
    return "none is; `gradstream lineage archive` keeps one" + ("" if archived else ", once release.store is set")


def _refuse_other_spec(loaded: "Settings", checkpoint: "Checkpoint") -> None:
    if key := loaded.spec().difference(dict(checkpoint.spec)):
        raise ConfigError(
            f"state version {checkpoint.version.number} was learned under another {key}, and workers with these "
            f"settings would refuse it: set {key} back first"
        )


def _present(store: "RedisStore") -> "Checkpoint | None":
    try:
        return store.load()
    except (StateMissing, StateCorrupted):
        return None  # going back is a way out of that


def _undone(log: "LineageLog", present: "Checkpoint | None", target: Target) -> "Undone | None":
    from worker.lineage.rollback import undone

    return undone(log.entries, present, target.checkpoint, target.since) if present else None


def _added(store: "RedisStore", target: Target) -> "dict[int, PartitionState]":
    return {s.state.partition: s.state for s in store.partitions() if s.state.partition not in target.positions}


def _kafka_check(loaded: "Settings") -> "Check":
    """Return what raises `OffsetsLost` where Kafka no longer has what positions need."""
    from worker.cli.connect import quick_kafka_config
    from worker.lineage.rollback import Range, check_positions, sources
    from worker.stream.kafka.topics import TopicAdmin

    def check(states: "Mapping[int, PartitionState]") -> None:
        wanted = sources(states.values())
        if not wanted:
            return
        with TopicAdmin(quick_kafka_config(loaded)) as admin:
            found = admin.describe({source.topic for source in wanted})
            there = [s for s in wanted if s.topic in found and s.partition < found[s.topic].partitions]
            begin, end = admin.beginning_offsets(there), admin.end_offsets(there)
        check_positions(states, {s: Range(begin[s], end[s], found[s.topic].topic_id) for s in there})

    return check


def _sentence(target: Target, undone: "Undone | None") -> str:
    number = target.checkpoint.version.number
    if undone is None:
        return f"puts state version {number} in the place of a state that is gone or damaged"
    what = f"{undone.examples} examples" if undone.examples >= 0 else "the state of an earlier rollback"
    what += "" if undone.commits is None else f" in {undone.commits} commits"
    return f"takes back to state version {number} what was learned since {undone.since or 'then'}, {what}"


def _say(
    as_json: bool, target: Target, undone: "Undone | None", present: "Checkpoint | None", new: "Version | None"
) -> None:
    from worker.cli.output import print_json

    number = target.checkpoint.version.number
    if as_json:
        print_json(
            {
                "state_version": new and new.number,
                "back_to": number,
                "from": present and present.version.number,
                "examples_undone": undone and undone.examples,
                "commits_undone": undone and undone.commits,
                "since": (undone and undone.since) or None,
                "dry_run": new is None,
            }
        )
    elif new is None:
        print(f"train rollback {_sentence(target, undone)}; nothing was changed")
    else:
        print(f"state version {number} is back as version {new.number}; workers reload and read on from there")
