"""`gradstream worker`: train."""

from typing import Annotated

import typer

from worker.cli.options import Config, Debug, Set, settings


def worker(
    drain: Annotated[bool, typer.Option("--drain", help="End when what is there now has been committed")] = False,
    init: Annotated[bool, typer.Option("--init", help="Create the empty state first if there is none")] = False,
    http_port: Annotated[
        int | None, typer.Option("--http-port", metavar="PORT", help="observe.http_port; 0: a free one")
    ] = None,
    log_format: Annotated[
        str | None, typer.Option("--log-format", metavar="json|console", help="observe.log_format")
    ] = None,
    config: Config = None,
    sets: Set = None,
    _debug: Debug = False,
) -> None:
    """Train: read events, join, learn, commit.

    SIGTERM or Ctrl-C finishes the commit and ends with exit code 0; a second one ends at once.

    Example:
      gradstream worker --init
      gradstream worker --drain --set commit.every_s=5
    """
    loaded = settings(config, sets, observe__http_port=http_port, observe__log_format=log_format)
    from worker.app import run_worker

    run_worker(loaded, drain=drain, init=init)
