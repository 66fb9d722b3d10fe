"""`gradstream lineage`: the proof of a version, and which events it came from."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from worker.cli.options import Config, Debug, Json, Set, settings
from worker.errors import ConfigError, VerificationFailed

if TYPE_CHECKING:
    from worker.learn.state import LearnerState
    from worker.lineage.chain import Chain, Path
    from worker.lineage.verify import Verdict
    from worker.settings import Settings
    from worker.state.store import Checkpoint, PartitionState, Version

StateVersion = Annotated[
    int | None, typer.Option("--state-version", metavar="V", min=0, help="A state's version [default: the current one]")
]


def verify(
    release: Annotated[int | None, typer.Argument(metavar="[N]", help="A release version")] = None,
    state_version: StateVersion = None,
    start: Annotated[
        int | None,
        typer.Option("--from", metavar="K", min=0, help="Begin at a kept state [default: at the beginning]"),
    ] = None,
    config: Config = None,
    sets: Set = None,
    as_json: Json = False,
    _debug: Debug = False,
) -> None:
    """Learn a version again from Kafka and compare.

    Reads the records that the commit log names, in its order, and holds every digest on the way against the log's.
    Exit code 0: equal. 4: the first commit that differs, and why.

    Example:
      gradstream lineage verify
      gradstream lineage verify --state-version 412 --from 300
    """
    from worker.cli.output import print_json

    if release is not None:
        raise ConfigError("releases are not in this version of gradstream: name a state with --state-version")
    loaded = settings(config, sets)
    version, path, verdict = _verified(loaded, state_version, start)
    if as_json:
        print_json(_document(version, path, verdict))
    if verdict.failed is not None:
        failed = verdict.failed
        raise VerificationFailed(
            f"state version {version.number} is not verified: the first commit that differs is version "
            f"{failed.version.number} ({failed.entry.kind} by {failed.entry.worker}, {failed.entry.committed_at}): "
            f"{verdict.reason}"
        )
    if not as_json:
        print(
            f"state version {version.number} is what its records and its log make of it: {verdict.commits} commits, "
            f"{verdict.examples} examples learned again, digest {verdict.digest}"
        )


def _verified(loaded: "Settings", number: int | None, start: int | None) -> "tuple[Version, Path, Verdict]":
    from worker.cli.connect import quick_kafka_config, ready_store
    from worker.cli.lineage_log import lineage_log
    from worker.lineage.chain import Chain
    from worker.lineage.recipe_here import code, software
    from worker.lineage.replay import Joining, Replay, empty
    from worker.lineage.verify import Here, learner, verify
    from worker.ownership import readable
    from worker.spec import read_spec
    from worker.stream.kafka.reader import KafkaReader

    store = ready_store(loaded)
    current, log = store.load(), lineage_log(store, loaded)
    chain = Chain(log.entries())
    version = chain.find(current.version.number if number is None else number, current.version)
    path, state, partitions = _way(loaded, chain, version, start)
    if version == current.version:
        _check_stored(current, chain)
    if state is None:
        state = empty(read_spec(current.spec))
    with closing(KafkaReader(quick_kafka_config(loaded))) as reader, progress(len(path.links)) as told:
        joining = Joining(reader, path.firsts)
        joining.begin(readable(partition, reader.beginning_offsets(partition)) for partition in partitions)
        replay = Replay(log.recipe, learner, joining, state)
        here: Callable[[str], Here] = lambda kernel: Here(software(kernel), code())  # noqa: E731
        return version, path, verify(path, log.entries(), replay, log.recipe, here, told)


def _check_stored(current: "Checkpoint", chain: "Chain") -> None:
    """Raise `VerificationFailed` where the state that workers go on from is not the one that was logged."""
    from worker.state.checkpoint import digest

    stored, logged = digest(current.learner), chain.digest(current.version)
    if stored != logged:
        raise VerificationFailed(
            f"state version {current.version.number} is not verified: the stored state comes to {stored[:16]}…, the "
            f"log says {str(logged)[:16]}…: somebody changed one of them"
        )


def _way(
    loaded: "Settings", chain: "Chain", version: "Version", start: int | None
) -> "tuple[Path, LearnerState | None, Iterable[PartitionState]]":
    """Return the way to the version, and what it begins with: nothing, or the kept state with this number.

    Raises `VerificationFailed` where what was kept is not what the log says of it.
    """
    if start is None:
        return chain.path(version), None, ()
    from worker.lineage.kept import kept, kept_versions
    from worker.release.artifacts import open_artifacts
    from worker.state.checkpoint import digest

    model, store = loaded.model.name, loaded.release.store
    if not store:
        raise ConfigError("--from begins at a kept state: name the artifact store in release.store")
    artifacts = open_artifacts(store, model)
    known = sorted({one.version for one in kept_versions(artifacts, model)})
    found = [one for one in known if one.number == start and chain.stands_on(version, one)]
    if not found:
        numbers = ", ".join(str(one.number) for one in known if chain.stands_on(version, one)) or "none"
        raise ConfigError(f"state version {version.number} stands on no kept version {start}: there is {numbers}")
    moment = kept(artifacts, model, found[0])
    learned = moment.checkpoint(model).learner
    logged = chain.digest(found[0])
    if logged is not None and digest(learned) != logged:
        raise VerificationFailed(f"the kept state version {start} is not the one that the commit log tells of")
    return chain.path(version, found[0]), learned, moment.positions(model).values()


def _document(version: "Version", path: "Path", verdict: "Verdict") -> dict[str, Any]:
    failed = verdict.failed
    return {
        "state_version": version.number,
        "equal": verdict.equal,
        "digest": verdict.digest,
        "commits": verdict.commits,
        "of_commits": len(path.links),
        "examples": verdict.examples,
        "failed": failed
        and {
            "state_version": failed.version.number,
            "worker": failed.entry.worker,
            "committed_at": failed.entry.committed_at,
            "reason": verdict.reason,
        },
    }


@contextmanager
def progress(commits: int) -> Iterator[Callable[[int], None]]:
    """Show how far it is, to a person who watches."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("learning again", total=commits)
        yield lambda done: bar.update(task, completed=done)
