"""The promise of names: fixed here a second time on purpose, so that a rename fails."""

import itertools
import re
from dataclasses import fields

from worker.learn import health
from worker.learn.measures import Measures
from worker.observe.catalogue import CATALOGUE, EVALUATION_METRICS, GRAD_NORM, HEALTH_STATES, OTHER, log_steps

PROMISED = {
    "gradstream_events_total": ("topic", "outcome"),
    "gradstream_examples_total": (),
    "gradstream_steps_total": ("outcome",),
    "gradstream_loss": (),
    "gradstream_loss_mean": ("window",),
    "gradstream_grad_norm": (),
    "gradstream_grad_norm_last": (),
    "gradstream_weight_norm": (),
    "gradstream_update_ratio": (),
    "gradstream_learning_rate": (),
    "gradstream_evaluation": ("metric", "window"),
    "gradstream_health": ("state",),
    "gradstream_nonfinite_total": ("where",),
    "gradstream_pending": ("kind",),
    "gradstream_label_delay_seconds": (),
    "gradstream_consumer_lag_records": ("topic", "partition"),
    "gradstream_event_age_seconds": (),
    "gradstream_commit_seconds": (),
    "gradstream_commit_conflicts_total": (),
    "gradstream_fenced_total": (),
    "gradstream_turns_total": ("outcome",),
    "gradstream_turn_wait_seconds": (),
    "gradstream_turn_examples": (),
    "gradstream_turn_staleness": (),
    "gradstream_state_went_back_total": (),
    "gradstream_partitions": (),
    "gradstream_topic_partitions": (),
    "gradstream_claims_total": (),
    "gradstream_rebalances_total": (),
    "gradstream_state_version": (),
    "gradstream_state_bytes": (),
    "gradstream_skipped_offsets_total": ("topic", "partition"),
    "gradstream_metrics_dropped_total": (),
    "gradstream_stage_seconds_total": ("stage",),
    "gradstream_release_version": ("channel",),
    "gradstream_candidates": ("state",),
    "gradstream_approvals_total": ("decision",),
    "gradstream_export_seconds": (),
}
HISTOGRAMS = {
    "gradstream_grad_norm",
    "gradstream_label_delay_seconds",
    "gradstream_commit_seconds",
    "gradstream_turn_wait_seconds",
    "gradstream_turn_examples",
    "gradstream_turn_staleness",
    "gradstream_export_seconds",
}


def test_every_promised_metric_is_listed_once_with_its_labels() -> None:
    listed = {metric.name: metric.labels for metric in CATALOGUE if metric.name != "gradstream_build_info"}
    assert listed == PROMISED
    assert len(CATALOGUE) == len({metric.name for metric in CATALOGUE}) == len(PROMISED) + 1


def test_types_follow_from_names() -> None:
    for metric in CATALOGUE:
        expected = (
            "histogram" if metric.name in HISTOGRAMS else "counter" if metric.name.endswith("_total") else "gauge"
        )
        assert metric.type == expected, metric.name


def test_what_is_not_built_yet_is_promised_but_marked() -> None:
    assert {metric.name for metric in CATALOGUE if not metric.built} == {
        "gradstream_release_version",
        "gradstream_candidates",
        "gradstream_approvals_total",
        "gradstream_export_seconds",
    }


def test_each_metric_explains_itself_in_one_sentence() -> None:
    for metric in CATALOGUE:
        assert re.fullmatch(r"[A-Z0-9].*[.]", metric.help), metric.name
        assert "\n" not in metric.help


def test_closed_lists_belong_to_labels_and_leave_other_to_the_code() -> None:
    for metric in CATALOGUE:
        assert set(metric.values) <= set(metric.labels)
        for values in metric.values.values():
            assert len(set(values)) == len(values)
            assert OTHER not in values
            assert all(re.fullmatch("[a-z][a-z0-9_]*", value) for value in values)


def test_only_histograms_have_buckets_and_they_rise() -> None:
    for metric in CATALOGUE:
        assert bool(metric.buckets) == (metric.type == "histogram"), metric.name
        assert all(a < b for a, b in itertools.pairwise(metric.buckets)), metric.name


def test_gradient_norm_buckets_cover_a_millionth_to_a_million_in_log_steps() -> None:
    assert GRAD_NORM.buckets[0] == 1e-6
    assert GRAD_NORM.buckets[-1] == 1e6
    assert all(2.9 < b / a < 3.4 for a, b in itertools.pairwise(GRAD_NORM.buckets))


def test_log_steps_are_exact_decimals() -> None:
    assert log_steps(-1, 1) == (0.1, 0.3, 1.0, 3.0, 10.0)


def test_every_measure_of_the_evaluation_has_its_series() -> None:
    """`score_max` steers health and is of no use on a chart."""
    assert set(EVALUATION_METRICS) == {field.name for field in fields(Measures)} - {"score_max"}


def test_every_state_of_health_has_its_series() -> None:
    assert health.STATES == HEALTH_STATES
