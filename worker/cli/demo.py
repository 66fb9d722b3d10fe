"""`gradstream demo`: the whole thing on this machine, with nothing to install or start."""

from typing import Annotated

import typer

from worker.cli.options import Config, Debug, Json


def demo(
    once: Annotated[bool, typer.Option("--once", help="End when the events are learned and show the result")] = False,
    to_stack: Annotated[bool, typer.Option("--to-stack", help="Play on the stack that 'make up' started")] = False,
    speed: Annotated[
        float | None,
        typer.Option("--speed", metavar="FACTOR", min=0.0, help="Event time over wall time; 0: as fast as it goes"),
    ] = None,
    config: Config = None,
    as_json: Json = False,
    _debug: Debug = False,
) -> None:
    """Watch it learn which flights will be late.

    Real departures, and their arrivals as late as they were, on a broker and a state store of its own.

    Example:
      gradstream demo
      gradstream demo --once --json
    """
    from worker.local.demo import run_demo

    run_demo(once=once, to_stack=to_stack, json_output=as_json, speed=speed, config=config)
