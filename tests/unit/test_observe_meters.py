"""What a scrape shows after what the loop reported; read with the official parsers."""

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from worker.learn.model import initial_state
from worker.learn.state import Report
from worker.observe import catalogue as c
from worker.observe.observer import Turn
from worker.observe.prometheus import Identity, Meters, Tally
from worker.spec import Feature, Spec
from worker.state.store import Version
from worker.stream.records import TopicPartition

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]
IDENTITY = Identity("0.1.0", "flights", "binary", "numpy")


@pytest.fixture
def meters() -> Meters:
    return Meters(IDENTITY, ("features", "labels"))


def scrape(meters: Meters) -> Samples:
    body, _ = meters.text("")
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for f in parse_text(body.decode()) for s in f.samples}


def value(meters: Meters, name: str, **labels: str) -> float | None:
    return scrape(meters).get((name, tuple(sorted(labels.items()))))


def report(
    loss: list[float] | None = None, norms: list[float] | None = None, rows: list[int] | None = None, **more: float
) -> Report:
    loss = [0.5] if loss is None else loss
    return Report(
        rows=rows or [4] * len(loss),
        skipped=[0] * len(loss),
        loss=loss,
        grad_norm=norms or [1.0] * len(loss),
        grad_norm_max=norms or [1.0] * len(loss),
        learning_rate=more.get("learning_rate", 0.01),
        weight_norm=more.get("weight_norm", 2.0),
        update_ratio=more.get("update_ratio", 0.001),
        guilty=[],
    )


def turn(conflicts: int = 0, commit_s: float = 0.004, **more: Any) -> Turn:
    learned = more.pop("report", None) or report()
    state = initial_state(Spec((Feature("x1"),)))
    return Turn(Version(7, "n"), state, learned, Counter(), {}, [], -1, 0.1, commit_s, conflicts, 1024, **more)


def test_every_built_metric_is_exposed_under_its_catalogue_name_and_type(meters: Meters) -> None:
    body, content_type = meters.text("")
    families = {f.name: f for f in parse_text(body.decode())}
    assert content_type.startswith("text/plain")
    for metric in c.CATALOGUE:
        name = metric.name.removesuffix("_total") if metric.type == "counter" else metric.name
        assert (name in families) == metric.built, metric.name
        if metric.built:
            assert families[name].type == metric.type
            assert families[name].documentation == metric.help


def test_openmetrics_on_request_says_the_same(meters: Meters) -> None:
    meters.step(report())
    body, content_type = meters.text("application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    families = parse_openmetrics(body.decode())  # type: ignore[no-untyped-call]
    samples = {s.name: s.value for f in families for s in f.samples}
    assert samples["gradstream_examples_total"] == 4
    assert samples["gradstream_grad_norm_count"] == 1


@pytest.mark.parametrize("accept", ["text/plain; version=nonsense", "a/b;;;version", "*/*", "text/plain;version="])
def test_an_odd_accept_header_still_gets_text(meters: Meters, accept: str) -> None:
    body, content_type = meters.text(accept)
    assert b"gradstream_examples_total 0.0" in body
    assert content_type.startswith("text/plain")


def test_counters_are_there_before_their_first_event(meters: Meters) -> None:
    samples = scrape(meters)
    for name in (
        "examples",
        "fenced",
        "rebalances",
        "commit_conflicts",
        "metrics_dropped",
        "claims",
        "state_went_back",
    ):
        assert samples[(f"gradstream_{name}_total", ())] == 0
    assert {value(meters, "gradstream_turns_total", outcome=outcome) for outcome in c.TURN_OUTCOMES} == {0}
    assert value(meters, "gradstream_partitions") == 0
    assert value(meters, "gradstream_events_total", topic="labels", outcome="late") == 0
    assert value(meters, "gradstream_stage_seconds_total", stage="learn") == 0


def test_a_turn_is_counted_by_batch_and_row(meters: Meters) -> None:
    meters.step(Report([4, 2, 0], [0, 2, 4], [0.9, 0.7, 0.0], [2.0, 4.0, 0.0], [3.0, 5.0, 0.0], 0.1, 7.0, 0.02, [4]))
    assert value(meters, "gradstream_examples_total") == 6
    assert {o: value(meters, "gradstream_steps_total", outcome=o) for o in c.STEP_OUTCOMES} == {
        "learned": 1,
        "partial": 1,
        "skipped": 1,
    }
    assert value(meters, "gradstream_nonfinite_total", where="row") == 6
    assert value(meters, "gradstream_loss") == 0.7
    assert value(meters, "gradstream_grad_norm_last") == 4.0
    assert value(meters, "gradstream_grad_norm_count") == 2
    assert value(meters, "gradstream_weight_norm") == 7.0
    assert value(meters, "gradstream_update_ratio") == 0.02
    assert value(meters, "gradstream_learning_rate") == 0.1


def test_a_turn_without_rows_leaves_what_was_last_learned(meters: Meters) -> None:
    meters.step(report())
    meters.step(Report([], [], [], [], [], 0.01, 2.0, 0.0, []))
    assert value(meters, "gradstream_update_ratio") == 0.001
    assert value(meters, "gradstream_loss") == 0.5


def test_values_that_are_not_finite_never_reach_a_sum(meters: Meters) -> None:
    meters.step(report([0.5, math.nan], [0.0, math.inf]))
    meters.step(report([0.4], [1e12]))
    samples = scrape(meters)
    assert samples[("gradstream_grad_norm_sum", ())] == 1e12
    assert samples[("gradstream_grad_norm_count", ())] == 2
    assert samples[("gradstream_grad_norm_bucket", (("le", "1e-06"),))] == 1
    assert samples[("gradstream_grad_norm_bucket", (("le", "1000000.0"),))] == 1
    assert samples[("gradstream_grad_norm_bucket", (("le", "+Inf"),))] == 2
    assert samples[("gradstream_loss", ())] == 0.4
    assert value(meters, "gradstream_nonfinite_total", where="loss") == 1
    assert value(meters, "gradstream_nonfinite_total", where="grad_norm") == 1
    finite = [v for (name, labels), v in samples.items() if not name.endswith("_bucket")]
    assert all(map(math.isfinite, finite))


def test_a_gauge_keeps_its_last_finite_value(meters: Meters) -> None:
    meters.step(report(weight_norm=3.0))
    meters.step(report(weight_norm=math.nan, update_ratio=math.inf, learning_rate=math.nan))
    assert value(meters, "gradstream_weight_norm") == 3.0
    for where in ("weight_norm", "update_ratio", "learning_rate"):
        assert value(meters, "gradstream_nonfinite_total", where=where) == 1


def test_a_sum_at_the_end_of_float64_stays_finite() -> None:
    tally = Tally((1.0,))
    tally.add(np.array([1.7e308, 1.7e308]))
    tally.add(np.array([1.7e308]))
    assert {s.name: s.value for s in tally.family(c.GRAD_NORM).samples}["gradstream_grad_norm_sum"] < math.inf


def test_bucket_edges_are_inclusive_and_cumulative() -> None:
    tally = Tally((1.0, 10.0))
    tally.add(np.array([0.5, 1.0, 1.0000001, 10.0, 11.0]))
    assert [s.value for s in tally.family(c.GRAD_NORM).samples if s.name.endswith("_bucket")] == [2, 4, 5]


def test_label_delays_are_counted_in_bulk_and_negative_ones_as_zero(meters: Meters) -> None:
    meters.label_delays(np.array([-5.0, 0.05, 59.0, 1e9]))
    meters.label_delays([60.0, math.nan])
    meters.label_delays([])
    samples = scrape(meters)
    assert samples[("gradstream_label_delay_seconds_bucket", (("le", "0.1"),))] == 2
    assert samples[("gradstream_label_delay_seconds_bucket", (("le", "60.0"),))] == 4
    assert samples[("gradstream_label_delay_seconds_count", ())] == 5
    assert samples[("gradstream_label_delay_seconds_sum", ())] == pytest.approx(1e9 + 119.05)
    assert value(meters, "gradstream_nonfinite_total", where="label_delay") == 1


@pytest.mark.parametrize("broken", [-0.1, math.nan, math.inf])
def test_a_duration_that_can_not_be_is_zero_and_counted(meters: Meters, broken: float) -> None:
    """A clock that steps must not make a histogram negative."""
    meters.commit(turn(commit_s=broken, wait_s=broken))
    meters.stage("poll", broken)
    assert value(meters, "gradstream_turn_wait_seconds_sum") == 0
    assert value(meters, "gradstream_commit_seconds_sum") == 0
    assert value(meters, "gradstream_commit_seconds_count") == 1
    assert value(meters, "gradstream_stage_seconds_total", stage="poll") == 0
    assert value(meters, "gradstream_nonfinite_total", where="negative_duration") == 3


def test_commits_conflicts_fences_and_rebalances(meters: Meters) -> None:
    meters.commit(turn(conflicts=2))
    meters.fenced()
    meters.rebalance()
    meters.metrics_dropped(3)
    assert value(meters, "gradstream_commit_seconds_bucket", le="0.005") == 1
    assert value(meters, "gradstream_commit_seconds_bucket", le="0.002") == 0
    assert value(meters, "gradstream_commit_conflicts_total") == 2
    assert value(meters, "gradstream_state_version") == 7
    assert value(meters, "gradstream_state_bytes") == 1024
    assert value(meters, "gradstream_fenced_total") == 1
    assert value(meters, "gradstream_rebalances_total") == 1
    assert value(meters, "gradstream_metrics_dropped_total") == 3


def test_turns_are_counted_by_their_end_and_measured_where_they_committed(meters: Meters) -> None:
    """Every learning ends in one of three ways, so that the share that was for nothing can be told."""
    meters.commit(turn(wait_s=0.3, staleness=3, report=report(rows=[64], loss=[0.5])))
    meters.commit(turn(conflicts=2, wait_s=2.0, staleness=4, token=False, report=report(rows=[16], loss=[0.5])))
    meters.turn_lost("fenced")
    meters.turn_lost("passed_on")
    assert {outcome: value(meters, "gradstream_turns_total", outcome=outcome) for outcome in c.TURN_OUTCOMES} == {
        "committed": 1,
        "without_token": 1,
        "conflict": 2,
        "fenced": 1,
        "passed_on": 1,
    }
    samples = scrape(meters)
    for name, edge, total in (("wait_seconds", "2.0", 2.3), ("examples", "64.0", 80), ("staleness", "7.0", 7)):
        assert samples[(f"gradstream_turn_{name}_bucket", (("le", edge),))] == 2, name
        assert samples[(f"gradstream_turn_{name}_sum", ())] == pytest.approx(total)
        assert samples[(f"gradstream_turn_{name}_count", ())] == 2
    assert samples[("gradstream_turn_staleness_bucket", (("le", "3.0"),))] == 1


def test_claims_partitions_and_a_state_that_went_back(meters: Meters) -> None:
    meters.topic_partitions(4)
    for partition in (0, 1, 0):
        meters.claim()
        meters.owned({0, partition})
    meters.went_back()
    assert value(meters, "gradstream_claims_total") == 3
    assert value(meters, "gradstream_partitions") == 1
    assert value(meters, "gradstream_topic_partitions") == 4
    assert value(meters, "gradstream_state_went_back_total") == 1


def test_series_of_a_revoked_partition_end(meters: Meters) -> None:
    two, three = TopicPartition("features", 2), TopicPartition("features", 3)
    meters.skipped_offsets(three, 3900)
    meters.owned({2, 3})
    meters.lag({two: 5, three: 7})
    assert value(meters, "gradstream_consumer_lag_records", topic="features", partition="3") == 7
    assert value(meters, "gradstream_skipped_offsets_total", topic="features", partition="3") == 3900
    meters.owned({2})
    assert value(meters, "gradstream_consumer_lag_records", topic="features", partition="2") == 5
    assert value(meters, "gradstream_partitions") == 1
    meters.owned(())
    assert value(meters, "gradstream_partitions") == 0
    names = {name for name, labels in scrape(meters) if ("topic", "features") in labels and name != c.EVENTS.name}
    assert names == set()


def test_evaluation_shows_defined_values_and_the_mean_loss_of_each_window(meters: Meters) -> None:
    meters.evaluation(
        {"log_loss": 0.4, "accuracy": 0.8, "auc": None, "windows": {"1000": {"log_loss": 0.3, "auc": math.nan}}}
    )
    assert value(meters, "gradstream_evaluation", metric="accuracy", window="all") == 0.8
    assert value(meters, "gradstream_evaluation", metric="auc", window="all") is None
    assert value(meters, "gradstream_evaluation", metric="auc", window="1000") is None
    assert value(meters, "gradstream_loss_mean", window="all") == 0.4
    assert value(meters, "gradstream_loss_mean", window="1000") == 0.3
    assert value(meters, "gradstream_nonfinite_total", where="evaluation") == 1
    meters.evaluation({"rmse": 3.0, "mae": 2.0})
    assert value(meters, "gradstream_loss_mean", window="all") == 9.0
    assert value(meters, "gradstream_evaluation", metric="accuracy", window="all") is None


def test_health_is_one_state_at_a_time(meters: Meters) -> None:
    for state in ("learning", "diverging"):
        meters.health(state)
        shown = {dict(labels)["state"]: v for (name, labels), v in scrape(meters).items() if name == c.HEALTH.name}
        assert shown == {known: float(known == state) for known in c.HEALTH_STATES}


def test_labels_never_grow_with_the_data(meters: Meters) -> None:
    """Ten thousand ids, names and versions as labels, fifty rebalances: the same few series."""

    def everything(name: Callable[[int], str], n: int) -> None:
        for i in range(n):
            meters.events(name(i), "trained", 1)
            meters.events("features", name(i), 1)
            meters.stage(name(i), 0.1)
            meters.pending(name(i), 1)
            meters.health(name(i))
            meters.evaluation({name(i): 1.0, "accuracy": 0.5})
        for i in range(50):
            meters.owned(range(i, i + 4))
            meters.lag({TopicPartition(t, p + i): 1 for t in ("features", "labels") for p in range(4)})
            meters.claim()
            meters.rebalance()
        meters.commit(turn(staleness=n))
        meters.turn_lost(name(n))
        meters.step(report())

    everything(str, 10)
    few = len(scrape(meters))
    everything(lambda i: f"e-{i}", 10_000)
    assert len(scrape(meters)) == few < 200
    assert value(meters, "gradstream_events_total", topic="other", outcome="trained") == 10_010


def test_two_workers_in_one_process_do_not_mix(meters: Meters) -> None:
    other = Meters(Identity("0.1.0", "clicks", "binary", "numpy"), ("features",))
    meters.step(report())
    assert value(other, "gradstream_examples_total") == 0
    assert value(other, "gradstream_build_info", version="0.1.0", model="clicks", task="binary", kernel="numpy") == 1


def test_gauges_of_the_join_and_the_clock(meters: Meters) -> None:
    meters.pending("features", 12)
    meters.pending("labels", 3)
    meters.event_age(-3.0)
    assert value(meters, "gradstream_pending", kind="features") == 12
    assert value(meters, "gradstream_pending", kind="labels") == 3
    assert value(meters, "gradstream_event_age_seconds") == 0
