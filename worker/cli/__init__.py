"""The entry point: runs a command and turns every error into one line and an exit code.

Imports nothing heavy: `gradstream --help` has to answer at once. Commands import what they need when they run.
"""

import os
import sys
import traceback
from collections.abc import Sequence
from types import TracebackType
from typing import NoReturn

from worker.errors import GradstreamError

USAGE = 2
INTERRUPTED = 130


def main() -> None:
    """Run the command line of this process and exit."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a terminal that knows no UTF-8 still gets its table
    if "--debug" not in sys.argv:
        sys.excepthook = _unexpected
    code = run(sys.argv[1:])
    if "torch" in sys.modules:
        _leave(code)
    sys.exit(code)


def _leave(code: int) -> NoReturn:
    """End the process without the interpreter's farewell.

    torch takes its operators back one by one as it is unloaded: half a second of a core, and on a busy machine longer
    than a worker that was told to end may take. Everything of ours is closed by now.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run one command; return its exit code. Unexpected exceptions pass through."""
    import typer

    from worker.cli.app import command

    try:
        code = command().main(list(arguments), prog_name="gradstream", standalone_mode=False)
        sys.stdout.flush()
    except GradstreamError as error:
        if "--debug" in arguments:
            traceback.print_exc()
        return _fail(str(error), error.exit_code)
    except BrokenPipeError:
        return _closed_pipe()
    except (typer.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except _usage_error() as error:
        return _fail(f"{error.format_message()} ({_help_of(error)})", USAGE)  # type: ignore[attr-defined]
    return code if isinstance(code, int) else 0


def _usage_error() -> type[Exception]:
    """Return the class of wrong options and unknown commands: typer has its own one since it stopped needing click."""
    import typer

    base = typer.BadParameter.__base__
    assert base is not None
    assert issubclass(base, Exception)
    return base


def _fail(message: str, code: int) -> int:
    print("gradstream: error:", " ".join(message.split()), file=sys.stderr)
    return code


def _help_of(error: BaseException) -> str:
    context = getattr(error, "ctx", None)
    return f"{context.command_path if context else 'gradstream'} --help"


def _closed_pipe() -> int:
    """Whoever read our output has had enough: no message, also none when the interpreter flushes at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


def _unexpected(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Show an exception that nobody expected as one line (the interpreter exits with 1)."""
    del trace
    if isinstance(error, KeyboardInterrupt):
        return
    _fail(f"unexpected {kind.__name__}: {error}; run again with --debug for the traceback", 1)
