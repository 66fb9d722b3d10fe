"""`gradstream state`: look at what has been learned; begin again; put back the state before."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from worker.cli.options import Config, Debug, Json, Set, settings
from worker.errors import ConfigError

if TYPE_CHECKING:
    from worker.state.store import Checkpoint

COMMAND = "command"  # who wrote a commit log entry that no worker wrote


def show(config: Config = None, sets: Set = None, as_json: Json = False, _debug: Debug = False) -> None:
    """Show parameters by feature name.

    With intercept, normaliser and digest. Weights are in standardised units.

    Example:
      gradstream state show
      gradstream state show --json | jq .weights
    """
    from worker.cli.connect import ready_store
    from worker.cli.output import print_json

    checkpoint = ready_store(settings(config, sets)).load()
    document = state_document(checkpoint)
    if as_json:
        print_json(document)
    else:
        _print_state(checkpoint, document)


def state_document(checkpoint: "Checkpoint") -> dict[str, Any]:
    """Return what `state show --json` prints."""
    from worker.learn.parameters import parameters
    from worker.spec import read_spec
    from worker.state.checkpoint import digest

    spec = read_spec(checkpoint.spec)
    return {
        "state_version": checkpoint.version.number,
        "digest": digest(checkpoint.learner),
        "spec_digest": spec.digest(),
        **parameters(spec, checkpoint.learner),
    }


def _print_state(checkpoint: "Checkpoint", document: dict[str, Any]) -> None:
    from rich.text import Text

    from worker.cli.output import console, facts, figure, table

    head = facts()
    head.add_row("state", f"version {document['state_version']}, {figure(checkpoint.learner.examples)} examples")
    head.add_row("digest", document["digest"])
    head.add_row("spec", document["spec_digest"])
    head.add_row("intercept", figure(document["intercept"], 6))
    made = table("feature", "weight", "mean", "std", "seen", right=("weight", "mean", "std", "seen"))
    for name, weight in document["weights"].items():
        seen = document["normalizer"].get(name)
        if seen is None:
            made.add_row(Text(name), f"{len(weight)} buckets", "", "", "")
            for bucket, w in sorted(weight.items(), key=lambda item: -abs(item[1]))[:5]:
                made.add_row(Text(f"  bucket {bucket}", style="dim"), figure(w, 6), "", "", "")
        else:
            made.add_row(
                Text(name), figure(weight, 6), figure(seen["mean"]), figure(seen["std"]), figure(seen["count"])
            )
    screen = console()
    screen.print(head)
    screen.print()
    screen.print(made)


def reset(
    yes: Annotated[bool, typer.Option("--yes", help="Yes, forget everything that was learned")] = False,
    config: Config = None,
    sets: Set = None,
    as_json: Json = False,
    _debug: Debug = False,
) -> None:
    """Begin again with an empty state.

    Partition states and commit log are dropped; running workers drop what they hold and go on from it.

    Example:
      gradstream state reset --yes
    """
    loaded = settings(config, sets)
    if not yes:
        raise ConfigError(
            f"state reset forgets everything that model {loaded.model.name} has learned, and its commit log: "
            "add --yes if that is meant"
        )
    from worker.cli.connect import empty_checkpoint, log_entry, ready_store

    empty = empty_checkpoint(loaded)
    version = ready_store(loaded).reset(empty, log_entry("reset", loaded, COMMAND, empty.kernel))
    _say(as_json, version.number, f"model {loaded.model.name} begins again: empty state, version {version.number}")


def restore(
    previous: Annotated[bool, typer.Option("--previous", help="The commit before the last one")] = False,
    config: Config = None,
    sets: Set = None,
    as_json: Json = False,
    _debug: Debug = False,
) -> None:
    """Put back the state before the last commit.

    Model and partition states, after damage; what followed is learned again.

    Example:
      gradstream state restore --previous
    """
    if not previous:
        raise ConfigError("state restore puts back the commit before the last one: add --previous if that is meant")
    from worker.cli.connect import log_entry, ready_store

    loaded = settings(config, sets)
    version = ready_store(loaded).restore_previous(log_entry("restore", loaded, COMMAND, ""))
    _say(as_json, version.number, f"the state before is back as version {version.number}; workers go on from there")


def _say(as_json: bool, number: int, sentence: str) -> None:
    from worker.cli.output import print_json

    if as_json:
        print_json({"state_version": number})
    else:
        print(sentence)
