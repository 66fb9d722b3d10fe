"""The pieces of the bench, at sizes that take no time: they run, and what they report is what they were given."""

import io
import json
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from ops.bench import __main__ as bench
from ops.bench import (
    decode,
    end_to_end,
    events,
    fleet,
    fleet_fit,
    fleet_plot,
    join,
    learner,
    memory,
    report,
    takeover,
    two_workers,
)
from ops.bench.figure import Figure, cost, rate, timed
from ops.bench.fleet_fit import Fit, Point
from ops.bench.fleet_worker import Pace, Pool, SimulatedWorker, Taken
from ops.bench.machine import describe, processor_seconds
from ops.bench.sizes import Sizes
from tests.fakes.store import MemoryServer, MemoryStore
from tests.fakes.turn import MemoryTurnQueue
from worker.learn.learner import Learner
from worker.learn.model import initial_state
from worker.observe.prometheus import Identity, Meters
from worker.spec import Hyper
from worker.state.commit_log import LoggedCommit
from worker.state.store import Checkpoint, Consumed, LogEntry, Version
from worker.stream.events import Decoder
from worker.stream.rows import RowFormat

TINY = Sizes(examples=50, rounds=1, repeats=1, micro=200, batch_sizes=(1, 64), pending=(10,), waiting=300)


def test_events_are_of_the_size_that_is_claimed_and_decode_plainly() -> None:
    records = [events.feature(i) for i in range(300)]
    assert 470 < sum(len(value) for _, _, value in records) / len(records) < 490
    assert not Decoder(events.SPEC, "features").decode(decode.chunk(records)).refusals


def test_joined_events_are_whole_and_labels_follow_a_thousand_records_later() -> None:
    sent = list(events.joined(1500))
    assert sent.count(events.feature(0)) == sent.count(events.label(1499)) == 1
    assert len(sent) == 3000
    assert sent.index(events.label(0)) == events.DELAY + 1


def test_the_measured_join_finishes_every_example() -> None:
    assert join.run(join.decoded(12_000)) == 12_000


def test_the_measured_examples_are_those_that_are_sent() -> None:
    rows = learner.examples(3)
    event = json.loads(events.example(2)[2])
    assert rows.dense[2].tolist() == list(event["features"].values())
    assert rows.labels[2] == event["label"]


def test_waiting_features_take_memory() -> None:
    assert memory.bytes_each(5000) >= 0


@pytest.mark.parametrize("name", bench.PURE)
def test_each_figure_without_servers_comes_out(name: str) -> None:
    figures = bench.run([name], TINY)
    assert figures
    assert all(figure.value >= 0 and figure.unit for figure in figures)


def test_targets_are_judged_by_the_best_repeat() -> None:
    assert cost("c", "s", [3.0, 1.0, 2.0], at_most=1.0) == Figure("c", "s", 2.0, 1.0, "≤ 1", met=True)
    assert cost("c", "s", [3.0, 1.1, 2.0], at_most=1.0).met is False
    assert rate("r", "1/s", [3.0, 1.0, 2.0], at_least=3.0) == Figure("r", "1/s", 2.0, 3.0, "≥ 3", met=True)
    assert rate("r", "1/s", [2.0]).met is None


@pytest.mark.parametrize(
    ("seconds", "met"),
    [((10.0, 12.0), True), ((10.0, 17.0), False), ((6.0, 100.0), True)],
    ids=["by the share", "by neither", "by the rate"],
)
def test_end_to_end_is_met_by_the_rate_or_by_the_share(seconds: tuple[float, float], *, met: bool) -> None:
    client, worker = (end_to_end.Run(s, s, {"poll": 1.0}) for s in seconds)
    if met and seconds[0] == 6.0:
        client, worker = worker, client
    assert end_to_end.whole("joined", [worker], [client], 200_000).met is met


def test_stages_are_read_from_what_a_worker_serves() -> None:
    meters = Meters(Identity("0", "m", "binary", "numpy"), ["features"])
    meters.stage("poll", 1.5)
    meters.stage("learn", 0.5)
    spent = end_to_end.stage_seconds(meters.text("")[0].decode())
    assert (spent["poll"], spent["learn"], spent["commit"]) == (1.5, 0.5, 0.0)


def test_a_worker_that_has_ended_has_no_stages() -> None:
    assert end_to_end.scrape("http://127.0.0.1:9") == {}
    assert processor_seconds(2**31) == 0.0


def test_table_and_document_hold_every_figure() -> None:
    figures = [cost("one", "ms", [1.0], 2.0, {"p95": 1.5}), rate("two", "1/s", [12_345.6], 20_000)]
    screen = io.StringIO()
    Console(file=screen, width=160).print(report.table(describe(), figures))
    assert all(
        text in screen.getvalue() for text in ("one", "met", "two", "short", "12,346", "p95 1.5", "load_average")
    )
    document = json.loads(json.dumps(report.document(describe(), figures)))
    assert [figure["name"] for figure in document["figures"]] == ["one", "two"]
    assert document["machine"]["cores"]


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench.main(["speed"])
    assert "no such figure: speed" in capsys.readouterr().err


def test_repeats_are_counted_and_scaled() -> None:
    calls: list[int] = []
    assert len(timed(lambda: calls.append(1), 3, 1e6)) == len(calls) == 3


def simulated(server: MemoryServer, workers: int, pace: Pace) -> list[SimulatedWorker]:
    spec = fleet.spec_of(1_000)
    store = MemoryStore(server, "m")
    empty = Checkpoint(Version(0, "0"), spec.document(), "numpy", frozenset(), initial_state(spec))
    assert store.create(empty, LogEntry("init", "t", Consumed((), b"", 0), 0, 64, "numpy", "", ""))
    made = []
    for number in range(workers):
        queue = MemoryTurnQueue(server, "m", pace.turn_wait_s)
        learn, pool = Learner(spec, Hyper(batch_size=64)), Pool.of(spec, pace.most)
        made.append(SimulatedWorker(MemoryStore(server, "m"), queue, learn, RowFormat(spec), pool, pace))
        made[-1].claim(number)
    return made


def test_simulated_workers_take_turns_and_commit_what_they_prepared() -> None:
    server = MemoryServer()
    pace = Pace(prepare_us=1.0, every=128, chunk=64, most=512)
    workers = simulated(server, 2, pace)
    for worker in [*workers, *workers]:
        before = len(worker.turns)
        while len(worker.turns) == before:
            worker.run(time.monotonic() + 0.02)
    learned = sum(turn.examples for worker in workers for turn in worker.turns)
    assert MemoryStore(server, "m").load().learner.examples == learned
    log = server.logs["m"][1:]
    assert {commit.entry.worker for commit in log} == {"w0", "w1"}
    assert all(128 <= commit.entry.examples <= 512 for commit in log)
    assert all(later.base == earlier.version for earlier, later in pairwise(log))


def test_a_simulated_worker_learns_again_what_another_was_faster_with() -> None:
    server = MemoryServer()
    slow, fast = simulated(server, 2, Pace(prepare_us=0.1, every=64, chunk=64, most=64, turn_wait_s=0.0))
    commit = slow.store.commit
    overtaken = iter([True])

    def late(wanted: object) -> object:
        if next(overtaken, False):
            while not fast.turns:
                fast.run(time.monotonic() + 0.02)
        return commit(wanted)  # type: ignore[arg-type]

    slow.store.commit = late  # type: ignore[method-assign, assignment]
    while not slow.turns:
        slow.run(time.monotonic() + 0.02)
    assert slow.turns[0].conflicts == 1
    learned = sum(turn.examples for worker in (slow, fast) for turn in worker.turns)
    assert MemoryStore(server, "m").load().learner.examples == learned


def test_a_fleet_is_summed_up_over_whole_turns_once_it_has_settled() -> None:
    slow = [Taken(float(i), 10, 9.0, 0, 0, 0, 0, 7) for i in range(5)]
    steady = [Taken(4.0 + i, 100, 0.5, 0.001, 0.002, 0.003, 0.004, 1) for i in range(1, 16)]
    point = fleet_fit.summarise("numpy", 0, 8000, 2, [*steady, *slow])
    assert (point.rate, point.turn, point.turns, point.conflicts) == (100.0, 100.0, 15, 15)
    assert point.wait_p50_ms == point.wait_p99_ms == 500.0
    assert list(point.parts_ms.values()) == pytest.approx([1, 2, 3, 4])
    with pytest.raises(ValueError, match="fewer than two"):
        fleet_fit.summarise("numpy", 0, 8000, 2, slow[:1])


def points(learn_us: float, turn_ms: float, off: float = 1.0) -> list[Point]:
    found = []
    for workers in (1, 4, 16, 64):
        for turn in (1000.0, 20_000.0):
            n, k = np.array([float(workers)]), np.array([turn])
            rate_of = off * float(fleet_fit.predicted(n, k, 5.0, learn_us, turn_ms)[0])
            found.append(
                Point("numba", 0, 1000, workers, rate_of, 9, turn, 0, 1.0, 2.0, dict.fromkeys(fleet_fit.PARTS, 1.0))
            )
        off = 1 / off
    return found


def test_the_formula_is_found_again_in_figures_that_follow_it() -> None:
    found = fleet_fit.fit(points(0.4, 2.5), 5.0)
    assert found.learn_us == pytest.approx(0.4, rel=1e-3)
    assert found.turn_ms == pytest.approx(2.5, rel=1e-3)
    assert max(map(abs, found.residuals)) < 1e-3
    assert max(map(abs, fleet_fit.fit(points(0.4, 2.5, off=1.1), 5.0).residuals)) > 0.05


def test_the_formula_is_linear_below_the_ceiling_and_flat_above() -> None:
    low, two, high, higher = fleet_fit.predicted(np.array([1.0, 2.0, 64.0, 128.0]), np.full(4, 1e6), 5.0, 0.5, 0.0)
    assert two == pytest.approx(2 * low)
    assert high == higher == pytest.approx(2e6)


def test_a_fleet_becomes_a_table_and_a_small_plot(tmp_path: Path) -> None:
    measured = points(0.4, 2.5)
    fits = fleet.fits(measured, 5.0)
    table = fleet_fit.markdown(measured, fits)
    assert len(table.splitlines()) == len(measured) + len(fits) + 5
    assert "| numba | 0 | 0.40 | 2.50 | " in table
    fleet_plot.draw(measured, fits, 5.0, tmp_path / "img" / "scaling.svg")
    drawn = (tmp_path / "img" / "scaling.svg").read_text()
    assert "simulated workers" in drawn
    assert len(drawn) < 60_000
    fleet_plot.draw(measured, {("numba", 0): Fit(0.4, 2.5, ())}, 5.0, tmp_path / "again.svg")


def logged(worker: str, second: int, examples: int) -> LoggedCommit:
    at = f"2026-01-01T00:00:{second:02}.000+00:00"
    entry = LogEntry("train", worker, Consumed((), b"", 0), examples, 64, "numpy", "", at)
    return LoggedCommit("1-0", None, Version(1, "a"), "", entry)


def test_two_workers_are_measured_while_both_are_at_work() -> None:
    log = [logged("a", 0, 999), logged("b", 2, 999), logged("a", 3, 100), logged("b", 4, 100), logged("b", 9, 999)]
    log.insert(4, logged("a", 6, 100))
    assert two_workers.together(log, 2) == 75.0
    with pytest.raises(SystemExit, match="1 of 2 workers"):
        two_workers.together(log[:1], 2)


def test_percentiles_are_measured_values() -> None:
    seconds = [float(n) for n in range(20, 0, -1)]
    assert takeover.percentile(seconds, 0.5) == 10.0
    assert takeover.percentile(seconds, 0.99) == 20.0
    assert takeover.percentile([3.0], 0.99) == 3.0
