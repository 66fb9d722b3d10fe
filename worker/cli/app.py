"""The table of commands. Each one's file holds its options and help, and imports the rest when it runs."""

from collections.abc import Callable
from inspect import cleandoc
from typing import Any

import typer

from worker.cli.options import Debug

_HELP = """Online learning from Kafka: every event has exactly one effect.

Begin:
  gradstream demo                     see it learn, nothing to install or start
  gradstream init                     write gradstream.toml and create the topics
  gradstream worker --init            train
  gradstream status                   what has been learned, and how well

Exit codes: 0 done, 1 unexpected, 2 usage or settings, 4 not verified, 6 unreachable, 7 state missing or corrupt,
8 stalled.
"""

_STATE = """See what is learned, begin again, go one commit back.

Example:
  gradstream state show
"""
_LETTERS = """What was refused and why; send it again.

Example:
  gradstream dead-letters list
"""
_LINEAGE = """How a version came to be, and the proof of it.

Example:
  gradstream lineage verify
"""
_TRAIN = """Go back to an earlier state.

Example:
  gradstream train rollback --to 412 --dry-run
"""


def _new(help_text: str) -> typer.Typer:
    # Plain help: with rich it takes twice as long to appear.
    return typer.Typer(help=help_text, rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)


def _add(app: typer.Typer, name: str, function: Callable[..., None]) -> None:
    app.command(name, help=_kept_lines(cleandoc(function.__doc__ or "")))(function)


def _kept_lines(text: str) -> str:
    """Mark paragraphs of indented lines, which would be wrapped into one."""
    return "\n\n".join(f"\b\n{part}" if "\n  " in part else part for part in text.split("\n\n"))


def command() -> Any:
    """Build the command line."""
    from worker.cli import (
        config,
        dead_letters,
        demo,
        init,
        lineage,
        lineage_archive,
        lineage_show,
        state,
        status,
        train,
        worker,
    )

    app = _new(_kept_lines(_HELP))

    @app.callback(invoke_without_command=True)
    def root(
        context: typer.Context,
        version: bool = typer.Option(False, "--version", help="Show the version and exit"),
        _debug: Debug = False,
    ) -> None:
        if version:
            from importlib.metadata import version as version_of

            print(f"gradstream {version_of('gradstream')}")
            raise typer.Exit
        if context.invoked_subcommand is None:
            print(context.get_help())
            raise typer.Exit

    _add(app, "demo", demo.demo)
    _add(app, "init", init.init)
    _add(app, "worker", worker.worker)
    _add(app, "status", status.status)
    states = _new(_kept_lines(_STATE))
    _add(states, "show", state.show)
    _add(states, "reset", state.reset)
    _add(states, "restore", state.restore)
    app.add_typer(states, name="state")
    letters = _new(_kept_lines(_LETTERS))
    _add(letters, "list", dead_letters.list_letters)
    _add(letters, "show", dead_letters.show)
    _add(letters, "replay", dead_letters.replay)
    app.add_typer(letters, name="dead-letters")
    proofs = _new(_kept_lines(_LINEAGE))
    _add(proofs, "verify", lineage.verify)
    _add(proofs, "show", lineage_show.show)
    _add(proofs, "archive", lineage_archive.archive)
    _add(proofs, "list", lineage_archive.list_archive)
    app.add_typer(proofs, name="lineage")
    training = _new(_kept_lines(_TRAIN))
    training.callback()(lambda: None)  # else a group of one command would be that command
    _add(training, "rollback", train.rollback)
    app.add_typer(training, name="train")
    _add(app, "config", config.config)
    return typer.main.get_command(app)
