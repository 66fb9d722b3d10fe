"""Watching a replay: when it is over, and what ends it early."""

import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.test_local_replay import Pipe, plan
from worker.errors import GradstreamError, Transient
from worker.local.child import Child
from worker.local.figures import EXAMPLES, Figures
from worker.local.follow import Curve, Follow, Sending
from worker.local.replay import Replay


def sending(pipe: Pipe | None = None) -> Sending:
    return Sending(Replay(plan(watermark=99_000), pipe or Pipe(), threading.Event()))


def settled(count: int) -> Figures:
    return Figures(outcomes={"trained": count})


def test_a_replay_is_over_when_all_is_sent_and_settled() -> None:
    thread = sending()
    told: list[Figures | None] = [None, settled(3), settled(6), settled(7)]
    readings = iter(told)
    follow = Follow(lambda: next(readings), thread, None)
    thread.start()
    thread.join()
    scenes = list(follow.scenes(0.0, lambda _: None))
    assert [scene.ended for scene in scenes] == [False, False, False, True]
    assert [scene.now.settled for scene in scenes] == [0, 3, 6, 7]
    assert (scenes[-1].sent, scenes[-1].total) == (7, 7)


def test_what_was_settled_before_does_not_count() -> None:
    thread = sending()
    thread.start()
    thread.join()
    assert not Follow(lambda: settled(106), thread, None, settled_before=100).look().ended
    assert Follow(lambda: settled(107), thread, None, settled_before=100).look().ended


def test_nothing_is_over_while_it_is_being_sent() -> None:
    assert not Follow(lambda: settled(7), sending(), None).look().ended


def test_kafka_that_takes_no_more_events_ends_the_view_with_its_error() -> None:
    class Broken(Pipe):
        def flush(self, timeout_s: float = 30.0) -> None:
            raise Transient("no broker answers")

    thread = sending(Broken())
    thread.start()
    thread.join()
    with pytest.raises(Transient, match="no broker answers"):
        Follow(lambda: None, thread, None).look()


def test_a_worker_that_ends_is_told_with_its_last_words(tmp_path: Path) -> None:
    words = "print('first'); print('gradstream: error: no luck'); raise SystemExit(7)"
    with Child([sys.executable, "-c", words], tmp_path / "worker.log") as worker:
        deadline = time.monotonic() + 20
        while worker.exit_code() is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        with pytest.raises(GradstreamError, match="ended with code 7: gradstream: error: no luck"):
            Follow(lambda: None, sending(), worker).look()


def test_the_curve_knows_the_rate_and_draws_nothing_for_a_worker_at_rest() -> None:
    curve = Curve()
    busy = Figures(evaluation={("log_loss", "1000"): 0.5}, values={EXAMPLES: 100})
    for second, examples in enumerate((0, 100, 200, 200, 200)):
        curve.add(float(second), replace(busy, values={EXAMPLES: examples}))
    assert curve.rate() == 50.0
    assert len(curve.losses) == 3
