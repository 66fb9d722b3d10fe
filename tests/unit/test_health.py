"""Health says in words what the numbers show, from a closed list, with evidence and what to do."""

import numpy as np
import pytest

from tests.unit.datasets import bananas, elec2, learned, phishing, trump_approval
from tests.unit.test_evaluation import judged
from worker.learn.evaluation import summary
from worker.learn.health import STATES, health
from worker.spec import Hyper


def reasons(verdict: dict[str, object]) -> str:
    found = verdict["reasons"]
    assert isinstance(found, list)
    return "\n".join(found)


def test_the_list_of_states_is_closed() -> None:
    assert STATES == ("starting", "learning", "no_better_than_baseline", "diverging", "non_finite")


def test_a_young_model_is_not_judged() -> None:
    verdict = health(summary(judged("binary", np.full(99, 9.0), np.zeros(99)), "binary"))
    assert verdict["state"] == "starting"
    assert "99 examples" in reasons(verdict)


def test_phishing_is_learned() -> None:
    assert health(summary(learned(phishing(), "binary", Hyper()), "binary")) == {"state": "learning", "reasons": []}


def test_elec2_is_learned_but_repeating_the_last_label_is_better() -> None:
    verdict = health(summary(learned(elec2(), "binary", Hyper(0.005, 0.01)), "binary"))
    assert verdict["state"] == "learning"
    assert "0.8533 against 0.8221" in reasons(verdict)


def test_trump_approval_is_learned_but_repeating_the_last_label_is_closer() -> None:
    verdict = health(summary(learned(trump_approval(), "regression", Hyper(0.01, 0.1)), "regression"))
    assert "repeating the label before is closer" in reasons(verdict)


def test_rare_positives_with_fine_accuracy_are_called_no_better_than_baseline() -> None:
    """46 clicks in 10 000, always predicted at 0.46 %: accuracy 0.9954, and nothing learned."""
    label = np.zeros(10_000)
    label[np.random.default_rng(0).choice(10_000, 46, replace=False)] = 1.0
    figures = summary(judged("binary", np.full(10_000, np.log(0.0046 / 0.9954)), label), "binary")
    assert figures["accuracy"] == pytest.approx(0.9954)
    verdict = health(figures)
    assert verdict["state"] == "no_better_than_baseline"
    assert "no better than baseline" in reasons(verdict)


def test_bananas_show_how_little_a_linear_model_gains() -> None:
    figures = summary(learned(bananas(), "binary", Hyper(0.005, 0.01)), "binary")
    assert health({**figures, "windows": {}})["state"] == "no_better_than_baseline"


def test_a_window_far_worse_than_what_was_before_is_diverging() -> None:
    random = np.random.default_rng(0)
    label = random.integers(0, 2, 1000).astype(np.float64)
    score = np.where(label == 1, 3.0, -3.0)
    score[930:] *= -1.0
    verdict = health(summary(judged("binary", score, label), "binary"))
    assert verdict["state"] == "diverging"
    assert "log_loss" in reasons(verdict)
    assert "train.learning_rate" in reasons(verdict)


def test_regression_that_leaves_its_range_is_diverging() -> None:
    label = np.random.default_rng(0).normal(size=1000)
    score = label.copy()
    score[-1] = 1e6
    assert health(summary(judged("regression", score, label), "regression"))["state"] == "diverging"


def test_a_burst_of_rare_positives_is_no_alarm() -> None:
    """Five positives in a hundred where one in a thousand is usual: a worse loss, but no worse than the burst itself."""
    label = np.zeros(5000)
    label[::1000] = 1.0
    label[-95::20] = 1.0
    verdict = health(summary(judged("binary", np.full(5000, np.log(0.002)), label), "binary"))
    assert verdict["state"] != "diverging"


def test_one_class_only_is_said() -> None:
    verdict = health(summary(judged("binary", np.full(200, -2.0), np.zeros(200)), "binary"))
    assert "one class only" in reasons(verdict)


@pytest.mark.parametrize(("last", "state"), [(700, "non_finite"), (100, "learning")])
def test_skipped_rows_are_news_for_a_thousand_examples(last: int, state: str) -> None:
    figures = summary(learned(phishing(), "binary", Hyper()), "binary")
    verdict = health(figures, skipped=3, last_skipped=last)
    assert verdict["state"] == state
    assert ("3 rows left out" in reasons(verdict)) == (state == "non_finite")


def test_rows_skipped_before_anything_was_learned_are_seen() -> None:
    figures = summary(judged("binary", np.empty(0), np.empty(0)), "binary")
    assert health(figures, skipped=5, last_skipped=0)["state"] == "non_finite"
