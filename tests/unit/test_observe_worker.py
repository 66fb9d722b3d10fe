"""What a running loop shows of itself: the real loop and observer, scraped as Prometheus would, on fakes of the rest."""

import json
import math
import random
import time
import zlib
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import worker.observe.worker
import worker.turn
from tests.e2e import streams
from tests.fakes.metrics import FakeMetricsTopic
from tests.unit.rig import QUICK, Rig, Worker
from worker.learn.evaluation import summary
from worker.learn.state import LearnerState
from worker.observe import catalogue as c
from worker.observe.endpoint import Pulse
from worker.observe.last_turns import KEPT
from worker.observe.prometheus import Identity, Meters
from worker.observe.worker import WorkerObserver
from worker.spec import Feature, Hyper, Spec
from worker.stream.join import JoinRules

RULES = JoinRules(window_ms=streams.WINDOW_MS, remember=150)
JOINED = streams.joined(7, 120)
TWO = Spec((Feature("x1"), Feature("x2")))


class Watched:
    """A worker on a rig that is looked at from outside."""

    def __init__(self, rig: Rig, metrics_every_s: float = 0.0) -> None:
        self.meters = Meters(Identity("0.1.0", "m", rig.spec.task, "numpy"), rig.topics)
        self.metrics = FakeMetricsTopic()
        self.announced: list[dict[str, Any]] = []
        roles = {topic: topic for topic in rig.topics}
        facts = {"model": "m", "worker": "w", "kernel": "numpy"}
        self.observer = WorkerObserver(
            self.meters, Pulse(), self.metrics, lambda said: self.announced.append(dict(said)), facts, rig.spec.task,
            roles, metrics_every_s,
        )  # fmt: skip
        self.worker: Worker = rig.worker(max_poll_records=40, observer=self.observer)

    def series(self, name: str) -> dict[tuple[str, ...], float]:
        """Return the values of all samples of this name by their label values."""
        families = text_string_to_metric_families(self.meters.text("")[0].decode())
        return {
            tuple(sample.labels.values()): sample.value
            for family in families
            for sample in family.samples
            if sample.name == name
        }

    def all_samples(self) -> dict[str, float]:
        families = text_string_to_metric_families(self.meters.text("")[0].decode())
        return {f"{s.name}{s.labels}": s.value for family in families for s in family.samples}

    def health(self) -> str:
        return next((state for (state,), shown in self.series(c.HEALTH.name).items() if shown), "")


def _filled(rig: Rig, partitions: int = 1) -> Rig:
    for event in JOINED:
        key = event.key.encode() if event.key is not None else None
        rig.append(event.topic, event.value, key=key, partition=zlib.crc32(key or b"") % partitions)
    return rig


# -- clocks -----------------------------------------------------------------------------------------------------------


class WallClock:
    """A clock on the wall that somebody sets. It also runs backwards: a duration taken by it is negative."""

    def __init__(self) -> None:
        self.now_s = streams.T0 / 1000 + 1800

    def __call__(self) -> float:
        self.now_s -= 0.001
        return self.now_s


def _set_clocks(patch: pytest.MonkeyPatch) -> WallClock:
    clock = WallClock()

    class Dates(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
            return datetime.fromtimestamp(clock.now_s, UTC)

    patch.setattr(time, "time", clock)
    patch.setattr(worker.observe.worker, "WALL_CLOCK_STAMP", clock)
    patch.setattr(worker.turn, "datetime", Dates)
    return clock


def _run(rig: Rig, clock: WallClock, steps: dict[int, float]) -> Watched:
    watched = Watched(_filled(rig))
    for turn in range(60):
        clock.now_s += steps.get(turn, 0.0)
        watched.worker.rounds(1)
        assert min(watched.all_samples().values()) >= 0
    watched.worker.drain()
    return watched


@pytest.mark.parametrize("every_s", [0.0, 60.0])
def test_a_wall_clock_that_is_set_moves_stamps_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, every_s: float
) -> None:
    """An hour back in the middle of a run, then two on: every commit, message and expiry is where it was."""
    clock = _set_clocks(monkeypatch)
    pace = replace(QUICK, commit_every_s=every_s)
    steady, stepped = Rig(rules=RULES, pace=pace), Rig(rules=RULES, pace=pace)
    usual = _run(steady, clock, {})
    seen = _run(stepped, clock, {4: -3600.0, 8: 7200.0})
    assert stepped.ledger() == steady.ledger()
    assert stepped.digest() == steady.digest()
    commits, usual_commits = list(stepped.store.commit_log()), list(steady.store.commit_log())
    assert [(one.version.number, one.digest) for one in commits] == [
        (one.version.number, one.digest) for one in usual_commits
    ]
    assert len({one.entry.committed_at[:13] for one in commits[1:]}) > 1, "the stamps did move"
    assert [m["step"] for m in seen.metrics.messages] == [m["step"] for m in usual.metrics.messages]
    assert [m["loss"] for m in seen.metrics.messages] == [m["loss"] for m in usual.metrics.messages]
    assert seen.series(c.NONFINITE.name)["negative_duration",] == 0
    assert seen.all_samples().keys() == usual.all_samples().keys()


# -- partitions that go -----------------------------------------------------------------------------------------------


def test_what_is_shown_of_a_partition_ends_when_it_goes_and_begins_when_it_comes() -> None:
    """Lag of a partition that another worker owns would hold an alert for ever."""
    rig = Rig(partitions=4)
    rig.append("features", b'{"id":"a","ts":%d,"features":{"x1":1}}' % streams.T0, partition=3)
    first = Watched(rig)
    first.worker.rounds(5)
    both = {(str(n), topic) for topic in rig.topics for n in range(4)}
    assert first.series(c.LAG.name).keys() == both
    assert first.series(c.PENDING.name) == {("features",): 1, ("labels",): 0}
    second = Watched(rig)
    for _ in range(5):
        first.worker.rounds(1)
        second.worker.rounds(1)
    shown = [set(watched.series(c.LAG.name)) for watched in (first, second)]
    assert shown[0] | shown[1] == both
    assert not shown[0] & shown[1]
    assert ("3", "features") in shown[1]
    assert [w.series(c.PARTITIONS.name)[()] for w in (first, second)] == [len(places) / 2 for places in shown]
    assert [w.series(c.TOPIC_PARTITIONS.name)[()] for w in (first, second)] == [4, 4]
    assert first.series(c.CLAIMS.name)[()] == 4
    assert first.announced[-1]["partitions"] == sorted({int(n) for n, _ in shown[0]})
    assert first.announced[-1]["lag"].keys() == {f"{topic}:{n}" for n, topic in shown[0]}
    assert first.series(c.PENDING.name) == {("features",): 0, ("labels",): 0}
    assert second.series(c.PENDING.name) == {("features",): 1, ("labels",): 0}


def test_a_worker_that_is_left_without_partitions_shows_none() -> None:
    """An empty assignment alone may be a group in the middle of a join; another's commit says that it is not."""
    rig = Rig(partitions=1)
    rig.append("features", b'{"id":"a","ts":%d,"features":{"x1":1}}' % streams.T0)
    first = Watched(rig)
    first.worker.rounds(5)
    assert first.series(c.PENDING.name)["features",] == 1
    second = Watched(rig)
    rig.log.members["g"].reverse()
    rig.log.rebalance("g")
    rig.append("labels", b'{"id":"a","ts":%d,"label":1}' % streams.T0)
    for _ in range(5):
        first.worker.rounds(1)
        second.worker.rounds(1)
    assert rig.ledger().trained == 2
    assert first.series(c.LAG.name) == {}
    assert first.series(c.PARTITIONS.name)[()] == 0
    assert first.announced[-1]["partitions"] == []
    assert first.series(c.PENDING.name) == {("features",): 0, ("labels",): 0}
    assert second.series(c.LAG.name) == {("0", "features"): 0, ("0", "labels"): 0}


# -- turns ------------------------------------------------------------------------------------------------------------


def test_turns_of_two_workers_are_told_by_each() -> None:
    """What others committed in between is this one's staleness; the last turns go into what it announces."""
    rig = _filled(Rig(rules=RULES, partitions=2, pace=QUICK), partitions=2)
    first, second = Watched(rig), Watched(rig)
    for _ in range(60):
        first.worker.rounds(1)
        second.worker.rounds(1)
    told = [watched.announced[-1] for watched in (first, second)]
    commits = [
        watched.series(c.TURNS.name)["committed",] + watched.series(c.TURNS.name)["without_token",]
        for watched in (first, second)
    ]
    log = [one for one in rig.store.commit_log() if one.entry.kind == "train"]
    assert min(commits) > 0
    assert sum(commits) == len(log)
    for watched, count, facts in zip((first, second), commits, told, strict=True):
        for name in ("wait_seconds", "examples", "staleness"):
            assert watched.series(f"gradstream_turn_{name}_count")[()] == count
        assert facts["turns"]["count"] == min(count, KEPT)
        assert facts["kernel"] == "numpy"
    learned = sum(watched.series("gradstream_turn_examples_sum")[()] for watched in (first, second))
    assert learned == rig.store.load().learner.examples
    assert sum(watched.series("gradstream_turn_staleness_sum")[()] for watched in (first, second)) > 0


def test_a_state_that_went_back_is_counted_and_announced() -> None:
    rig = _filled(Rig(rules=RULES, pace=QUICK))
    watched = Watched(rig)
    watched.worker.rounds(2)
    kept = rig.server.snapshot()
    watched.worker.rounds(20)
    rig.server.go_back(kept)
    watched.worker.drain()
    assert watched.series(c.WENT_BACK.name)[()] == 1
    assert watched.announced[-1]["went_back"] == 1
    assert any("went back" in note for note in watched.announced[-1]["notes"])


# -- numbers that are not what they should be -------------------------------------------------------------------------


def _examples(seed: int, count: int, first: int = 0) -> list[bytes]:
    rng = random.Random(seed)
    found = []
    for i in range(count):
        x1, x2 = rng.gauss(0, 1), rng.gauss(0, 1)
        label = int(x1 + 0.3 * rng.gauss(0, 1) > 0)
        found.append(_example(f"e-{first + i}", first + i, label, x1=x1, x2=x2))
    return found


def _example(id_: str, at: int, label: object, **features: float) -> bytes:
    document = {"id": id_, "ts": streams.T0 + at, "features": features, "label": label}
    return json.dumps(document).encode()


POISON = [
    _example("p-1", 200, 1, x1=1e9, x2=1),
    _example("p-2", 200, 1, x1=1e9, x2=0),
    _example("p-3", 200, 0, x1=1, x2=0),
]


def _poisoned(max_abs: float, poison: list[bytes]) -> tuple[Rig, set[str]]:
    """Return the rig after everything was learned, and every state of health that a scrape could have seen."""
    spec = Spec((Feature("x1", max_abs=max_abs), Feature("x2", max_abs=max_abs)))
    rig = Rig(joined=False, spec=spec, hyper=Hyper(learning_rate=0.05, batch_size=8), pace=QUICK)
    rig.append("examples", *_examples(1, 200), *poison, *_examples(2, 200, first=203))
    watched = Watched(rig)
    seen = set()
    for _ in range(80):
        watched.worker.rounds(1)
        seen.add(watched.health())
    assert rig.ledger().consumed == 400 + len(poison)
    return rig, seen - {""}


def _deviation(state: LearnerState) -> float:
    arrays = state.arrays
    return math.sqrt(float(arrays["normalizer.m2"][0]) / float(arrays["normalizer.count"][0]))


def _loss_at_the_end(state: LearnerState) -> float:
    windows: Any = summary(state, "binary")["windows"]
    return float(windows["100"]["log_loss"])


def test_a_feature_a_billion_times_too_large_is_alarming_on_the_dashboard() -> None:
    """Weights stay finite; that the scale of the feature is spoiled for good has to be said."""
    rig, seen = _poisoned(1e12, POISON)
    learned = rig.store.load().learner
    assert all(math.isfinite(x) for array in learned.arrays.values() for x in array.ravel().tolist())
    assert "diverging" in seen
    assert _deviation(learned) > 1e6


def test_a_bound_keeps_model_scale_and_health_as_if_it_had_never_come() -> None:
    rig, seen = _poisoned(1e6, POISON)
    clean, _ = _poisoned(1e6, [])
    assert rig.refused() == [("examples", 0, n, "out_of_range") for n in (200, 201)]
    assert not seen & {"diverging", "non_finite"}
    assert _deviation(rig.store.load().learner) < 2
    mine, theirs = (_loss_at_the_end(r.store.load().learner) for r in (rig, clean))
    assert mine == pytest.approx(theirs, rel=0.1)


def test_steps_that_are_not_finite_leave_metrics_that_every_reader_takes() -> None:
    """Rows of which the gradient overflows, alone in their batch and among others."""
    spec = Spec((Feature("x1", max_abs=1e308), Feature("x2")))
    rig = Rig(joined=False, spec=spec, hyper=Hyper(batch_size=8))
    bad = [_example(f"b-{i}", 40, 1, x1=1e300, x2=0) for i in range(9)]
    rig.append("examples", *_examples(3, 40), *bad, *_examples(4, 39, first=50))
    watched = Watched(rig)
    watched.worker.drain()
    watched.observer.close()
    told = watched.metrics.messages
    assert sum(message["rows_skipped"] for message in told) == 9
    assert sum(message["rows"] for message in told) == 79
    assert [m["loss"] for m in told if m["rows"] == 0] == [None]
    samples = watched.all_samples()
    assert all(map(math.isfinite, samples.values()))
    steps = watched.series(c.STEPS.name)
    assert steps == {("learned",): 9, ("partial",): 1, ("skipped",): 1}
    assert watched.series("gradstream_grad_norm_count")[()] == 10
    assert watched.series(c.NONFINITE.name)["row",] == 9
    assert watched.health() == "non_finite"
    assert rig.ledger().trained == 88


# -- what is held back ------------------------------------------------------------------------------------------------


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Set the monotonic clock as the observer sees it."""
    now = [1000.0]

    class Clock:
        monotonic = staticmethod(lambda: now[0])

    monkeypatch.setattr(worker.observe.worker, "time", Clock)

    def forward(by: float) -> None:
        now[0] += by

    return forward


def test_the_last_turn_before_a_silence_is_told_once_its_time_has_come(seconds: Callable[[float], None]) -> None:
    """Nothing comes after it that it could be told together with."""
    rig = Rig(joined=False, spec=TWO)
    rig.append("examples", *_examples(5, 16))
    watched = Watched(rig, metrics_every_s=1.0)
    watched.worker.rounds(10)
    assert [m["examples"] for m in watched.metrics.messages] == [16]
    rig.append("examples", *_examples(6, 120, first=16))
    watched.worker.rounds(20)
    assert rig.store.load().learner.examples == 136
    assert [m["examples"] for m in watched.metrics.messages] == [16]
    assert watched.health() == "starting"
    seconds(1.0)
    watched.worker.rounds(3)
    assert [(m["examples"], m["rows"]) for m in watched.metrics.messages] == [(16, 16), (136, 120)]
    assert watched.health() == "learning"


def test_what_is_held_back_is_told_at_the_end(seconds: Callable[[float], None]) -> None:
    rig = Rig(joined=False, spec=TWO)
    rig.append("examples", *_examples(5, 40))
    watched = Watched(rig, metrics_every_s=1.0)
    watched.worker.drain()
    watched.observer.close()
    watched.observer.close()
    assert sum(m["rows"] for m in watched.metrics.messages) == 40
    assert watched.metrics.messages[-1]["examples"] == 40
