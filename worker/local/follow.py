"""Watches a replay and the worker that learns it until every record is settled. Draws nothing, starts no server."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from worker.errors import GradstreamError, Stalled
from worker.local.child import Child
from worker.local.figures import Figures
from worker.local.replay import Replay
from worker.local.view import RECENT, Scene

_SAMPLES = 240  # readings that are remembered for the curve
_RATE_OVER = 10  # readings over which the rate is taken
_PATIENCE_S = 120.0  # a stack that is just starting has a worker to start as well


class Sending(threading.Thread):
    """A replay beside the view. `error` is what ended it early."""

    def __init__(self, replay: Replay) -> None:
        super().__init__(name="replay", daemon=True)
        self.replay = replay
        self.error: GradstreamError | None = None
        self.done = False

    def run(self) -> None:
        try:
            self.done = self.replay.run()
        except GradstreamError as error:
            self.error = error


@dataclass(slots=True)
class Curve:
    """The last readings: for the rate, and for the line of windowed losses."""

    counts: list[tuple[float, int]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

    def add(self, now: float, figures: Figures) -> None:
        news = not self.counts or figures.examples != self.counts[-1][1]
        self.counts = [*self.counts[-_RATE_OVER:], (now, figures.examples)]
        loss = figures.evaluation.get(("log_loss", RECENT))
        if loss is not None and news:  # a worker at rest draws no line
            self.losses = [*self.losses[1 - _SAMPLES :], loss]

    def rate(self) -> float | None:
        (start, first), (end, last) = self.counts[0], self.counts[-1]
        return (last - first) / (end - start) if end > start else None


class Follow:
    """Iterates over scenes, one a reading, until all records of the replay are settled.

    `settled_before` is what the worker had already settled when the replay began (a stack may have a past).
    Raises what ended the replay, `GradstreamError` when the worker has ended, `Stalled` when nothing moves any more.
    """

    def __init__(
        self, read: Callable[[], Figures | None], sending: Sending, worker: Child | None, settled_before: int = 0
    ) -> None:
        self._read = read
        self._sending = sending
        self._worker = worker
        self._before = settled_before
        self._figures = Figures()
        self._curve = Curve()
        self._moved = time.monotonic()

    def scenes(self, every_s: float, wait: Callable[[float], object]) -> Iterator[Scene]:
        while not (scene := self.look()).ended:
            yield scene
            wait(every_s)
        yield scene

    def look(self) -> Scene:
        """Take one reading."""
        replay, before = self._sending.replay, self._figures
        if self._sending.error is not None:
            raise self._sending.error
        code = self._worker.exit_code() if self._worker else None
        if code is not None:
            assert self._worker is not None
            raise GradstreamError(f"the worker has ended with code {code}: {last_words(self._worker)}")
        self._figures = self._read() or before
        now = time.monotonic()
        self._curve.add(now, self._figures)
        if self._figures.settled != before.settled or not self._sending.done:
            self._moved = now
        settled = self._figures.settled - self._before
        ended = self._sending.done and settled >= replay.total
        if not ended and now - self._moved > _PATIENCE_S:
            raise Stalled(f"{replay.total - settled} of {replay.total} records were not settled and nothing moves")
        return Scene(
            now=self._figures,
            sent=replay.sent,
            total=replay.total,
            event_ms=replay.event_ms,
            examples_per_s=self._curve.rate(),
            losses=self._curve.losses,
            ended=ended,
        )


def last_words(worker: Child) -> str:
    """Return the last line that a worker wrote."""
    lines = worker.log.read_text(errors="replace").strip().splitlines()
    return lines[-1][:500] if lines else "it wrote nothing"
