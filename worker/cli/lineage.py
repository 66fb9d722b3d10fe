"""`gradstream lineage`: the proof of a version, and which events it came from."""

import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from worker.cli.options import Config, Debug, Json, Set, settings
from worker.errors import ConfigError, VerificationFailed

if TYPE_CHECKING:
    from worker.lineage.chain import Path
    from worker.lineage.verify import Verdict
    from worker.settings import Settings
    from worker.state.store import Version

StateVersion = Annotated[
    int | None, typer.Option("--state-version", metavar="V", min=0, help="A state's version [default: the current one]")
]


def verify(
    release: Annotated[int | None, typer.Argument(metavar="[N]", help="A release version")] = None,
    state_version: StateVersion = None,
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
      gradstream lineage verify --state-version 412 --json
    """
    from worker.cli.output import print_json

    if release is not None:
        raise ConfigError("releases are not in this version of gradstream: name a state with --state-version")
    loaded = settings(config, sets)
    version, path, verdict = _verified(loaded, state_version)
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


def _verified(loaded: "Settings", number: int | None) -> "tuple[Version, Path, Verdict]":
    from worker.cli.connect import quick_kafka_config, ready_store
    from worker.cli.lineage_log import lineage_log
    from worker.lineage.chain import Chain
    from worker.lineage.recipe_here import code, software
    from worker.lineage.replay import Joining, Replay, empty
    from worker.lineage.verify import Here, learner, verify
    from worker.spec import read_spec
    from worker.stream.kafka.reader import KafkaReader

    store = ready_store(loaded)
    current, log = store.load(), lineage_log(store, loaded)
    chain = Chain(log.entries())
    version = chain.find(current.version.number if number is None else number, current.version)
    path = chain.path(version)
    with closing(KafkaReader(quick_kafka_config(loaded))) as reader, _progress(len(path.links)) as told:
        joining = Joining(reader, path.firsts)
        replay = Replay(log.recipe, learner, joining, empty(read_spec(current.spec)))
        here: Callable[[str], Here] = lambda kernel: Here(software(kernel), code())  # noqa: E731
        return version, path, verify(path, log.entries(), replay, log.recipe, here, told)


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
def _progress(commits: int) -> Iterator[Callable[[int], None]]:
    """Show how far it is, to a person who watches."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("learning again", total=commits)
        yield lambda done: bar.update(task, completed=done)
