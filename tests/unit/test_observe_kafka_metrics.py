"""The message of the metrics topic."""

import json
import math

import pytest

from worker.learn.state import Report
from worker.observe.kafka_metrics import Moment, metrics_message

MOMENT = Moment("flights", "w-1", 1764000000000, 7, 12, 96, 1500, 30, 2)
REPORT = Report([4, 2], [0, 1], [0.6, 0.9], [1.0, 4.0], [2.0, 5.0], 0.01, 3.0, 0.001, [5])


def test_the_promised_fields_are_there() -> None:
    message = metrics_message(MOMENT, REPORT)
    assert json.loads(json.dumps(message)) == message
    assert message == {
        "model": "flights",
        "worker": "w-1",
        "ts": 1764000000000,
        "state_version": 7,
        "step": 12,
        "examples": 96,
        "loss": pytest.approx(0.7),
        "grad_norm": pytest.approx(2.0),
        "grad_norm_max": 5.0,
        "learning_rate": 0.01,
        "weight_norm": 3.0,
        "update_ratio": 0.001,
        "rows": 6,
        "rows_skipped": 1,
        "event_lag_ms": 1500,
        "pending_features": 30,
        "pending_labels": 2,
        "non_finite": [],
    }


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_null_and_named(bad: float) -> None:
    report = Report([4, 2], [0, 0], [0.6, bad], [1.0, 4.0], [2.0, bad], bad, 3.0, 0.001, [])
    message = metrics_message(MOMENT, report)
    json.dumps(message, allow_nan=False)
    assert message["non_finite"] == ["loss", "grad_norm_max", "learning_rate"]
    assert message["loss"] is message["grad_norm_max"] is message["learning_rate"] is None
    assert message["grad_norm"] == 2.0


def test_a_turn_without_rows_has_undefined_values_and_no_flag() -> None:
    for report in (
        Report([], [], [], [], [], 0.01, 3.0, 0.0, []),
        Report([0], [4], [math.nan], [math.nan], [math.nan], 0.01, 3.0, 0.0, [0]),
    ):
        message = metrics_message(MOMENT, report)
        assert (message["loss"], message["grad_norm"], message["grad_norm_max"]) == (None, None, None)
        assert message["non_finite"] == []


def test_nan_is_found_wherever_it_stands_among_the_maxima() -> None:
    for values in ([math.nan, 1.0], [1.0, math.nan]):
        message = metrics_message(MOMENT, Report([1, 1], [0, 0], [1.0, 1.0], [1.0, 1.0], values, 0.1, 1.0, 0.1, []))
        assert message["non_finite"] == ["grad_norm_max"]
