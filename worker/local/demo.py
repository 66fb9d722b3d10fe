"""`gradstream demo`: real flights through real topics into one worker, with nothing to install or start.

Puts the parts together and decides how they end; `place.py` starts them, `follow.py` watches, `view.py` draws.
"""

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live

from worker.cli.connect import quick_kafka_config
from worker.cli.output import print_json
from worker.errors import ConfigError, GradstreamError
from worker.local.flights import closing_watermark, events
from worker.local.follow import Follow, Sending
from worker.local.place import Place, own_place, stack_place
from worker.local.refusals import Refusals
from worker.local.replay import Plan, Replay
from worker.local.result import print_result, result_document
from worker.local.view import BARS, PLAIN_BARS, Scene, picture, plain_line
from worker.stream.kafka.replay_producer import EventProducer

DEFAULT_SPEED = 17_000.0  # two weeks and a day in 75 seconds
_FAST = 0.0
_LOOK_S = 0.5
_LINE_EVERY_S = 3.0

Show = Callable[[Scene], None]


def run_demo(*, once: bool, to_stack: bool, json_output: bool, speed: float | None, config: Path | None = None) -> None:
    """Send the flights and show how they are learned, until Ctrl-C; `once`: until all are, then the result.

    `config` is the settings file of the stack to play on (`to_stack`); without it the one of `make up` is meant.
    `speed` is event time over wall time, 0 as fast as it goes; None: 75 seconds to watch, as fast as it goes `once`.
    Raises `ConfigError` where there are no servers to embed, `Unreachable` where the stack does not answer,
    `Stalled` when records stay unsettled, `GradstreamError` when worker or ledger fail.
    """
    if config is not None and not to_stack:
        raise ConfigError(
            "the demo brings settings of its own: --config names those of a running stack, with --to-stack"
        )
    pace = speed if speed is not None else _FAST if once else DEFAULT_SPEED
    started = time.monotonic()
    with _interruptible(), ExitStack() as stage:
        try:
            place = stack_place(stage, config) if to_stack else own_place(stage)
            last = _play(stage, place, pace, once=once, json_output=json_output)
            if once:
                _conclude(place, last, time.monotonic() - started, json_output=json_output)
        except KeyboardInterrupt:
            if once:
                raise
            print("Stopped.", file=sys.stderr)


def _play(stage: ExitStack, place: Place, speed: float, *, once: bool, json_output: bool) -> Scene:
    """Run the replay under the view; return the last scene (without `once` only Ctrl-C ends it)."""
    stop = threading.Event()
    sending = _sending(stage, place, speed, stop)
    before = place.read() if place.worker is None else None  # a stack may have a past
    follow = Follow(place.read, sending, place.worker, before.settled if before else 0)
    refusals = Refusals(place.settings)
    show = stage.enter_context(_screen(sys.stderr if json_output else sys.stdout))
    sending.start()
    stage.callback(sending.join)  # before its producer is closed
    stage.callback(stop.set)
    wait = threading.Event()
    for scene in follow.scenes(_LOOK_S, wait.wait):
        show(_complete(scene, place, refusals))
    while not once:
        wait.wait(1.0)
        scene = follow.look()
        show(_complete(scene, place, refusals))
    return scene


def _sending(stage: ExitStack, place: Place, speed: float, stop: threading.Event) -> Sending:
    stream = place.settings.stream
    flights = events()
    producer = EventProducer(quick_kafka_config(place.settings))
    stage.callback(producer.close)
    topics = {"features": stream.features_topic, "labels": stream.labels_topic}
    plan = Plan(flights, topics, speed, closing_watermark(flights), place.mark_every)  # type: ignore[arg-type]
    return Sending(Replay(plan, producer, stop))


def _complete(scene: Scene, place: Place, refusals: Refusals) -> Scene:
    refused = refusals.by_reason(scene.now.outcomes.get("dead_lettered", 0))
    return replace(scene, refused=refused, places=place.shown)


def _conclude(place: Place, last: Scene, seconds: float, *, json_output: bool) -> None:
    """Print the result as it is in the state store; raise when its books do not balance."""
    refused = Refusals(place.settings).by_reason(last.now.outcomes.get("dead_lettered", 0))
    document = result_document(place.settings, last.now.lags, refused, sent=last.total, seconds=seconds)
    if json_output:
        print_json(document)
    else:
        print_result(document)
    if not document["balanced"]:
        raise GradstreamError(f"the ledger does not balance: {document['ledger']}")


@contextmanager
def _screen(stream: Any) -> Iterator[Show]:
    """Draw in place on a terminal, write a line every few seconds elsewhere."""
    console = Console(file=stream, highlight=False)
    if not console.is_terminal:
        yield _lines(stream)
        return
    bars = BARS if "utf" in (console.encoding or "").lower() else PLAIN_BARS
    with Live(console=console, auto_refresh=False) as live:
        yield lambda scene: live.update(picture(scene, bars), refresh=True)


def _lines(stream: Any) -> Show:
    due = 0.0

    def show(scene: Scene) -> None:
        nonlocal due
        if not due:
            for name, where in scene.places.items():
                print(f"{name}: {where}", file=stream)
        if time.monotonic() >= due or scene.ended:
            due = time.monotonic() + _LINE_EVERY_S
            print(plain_line(scene), file=stream, flush=True)

    return show


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let SIGTERM end the demo as Ctrl-C does: every part is stopped, in order."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
