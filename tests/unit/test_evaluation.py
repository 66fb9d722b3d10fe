"""What the measures mean: against scikit-learn, against windows recomputed from all rows, and undefined as None."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.datasets import bananas, elec2, learned, phishing, spec
from worker.learn import evaluation
from worker.learn.evaluation import summary
from worker.learn.health import STATES
from worker.learn.learner import Learner
from worker.learn.loss import losses
from worker.learn.measures import auc, binned_auc
from worker.learn.model import initial_state
from worker.learn.parameters import parameters
from worker.learn.state import LearnerState
from worker.spec import Feature, Hyper, Spec, Task
from worker.stream.rows import Examples


def judged(task: Task, score: np.ndarray, label: np.ndarray, *cuts: int) -> LearnerState:
    """Return a state that has seen scores and labels, in calls cut at `cuts`."""
    arrays: evaluation.Arrays = evaluation.initial(task)
    for low, high in zip((0, *cuts), (*cuts, len(score)), strict=True):
        s, y = score[low:high], label[low:high]
        arrays = evaluation.observe(arrays, task, s, losses(task, s, y), y)
    return LearnerState(arrays)


def window(figures: dict[str, object], size: int) -> dict[str, object]:
    windows = figures["windows"]
    assert isinstance(windows, dict)
    found = windows[str(size)]
    assert isinstance(found, dict)
    return found


def drawn(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    score = random.normal(-1, 2, n)
    return score, (random.random(n) < 1 / (1 + np.exp(-score))).astype(np.float64)


def test_binary_measures_are_those_of_the_textbook() -> None:
    score, label = drawn(5000)
    p = 1 / (1 + np.exp(-score))
    figures = summary(judged("binary", score, label, 700, 3000), "binary")
    rate = label.mean()
    entropy = -(rate * np.log(rate) + (1 - rate) * np.log(1 - rate))
    log_loss = -np.mean(np.where(label == 1, np.log(p), np.log(1 - p)))
    hits = np.sum((score > 0) & (label == 1))
    assert figures["positives"] == label.sum()
    assert figures["log_loss"] == pytest.approx(log_loss)
    assert figures["baseline_log_loss"] == pytest.approx(entropy)
    assert figures["normalized_entropy"] == pytest.approx(log_loss / entropy)
    assert figures["accuracy"] == pytest.approx(np.mean((score > 0) == (label == 1)))
    assert figures["majority_accuracy"] == pytest.approx(max(rate, 1 - rate))
    assert figures["no_change_accuracy"] == pytest.approx(np.mean(label[1:] == label[:-1]))
    assert figures["calibration"] == pytest.approx(p.sum() / label.sum())
    assert figures["f1"] == pytest.approx(2 * hits / (np.sum(score > 0) + label.sum()))


def test_regression_measures_are_those_of_the_textbook() -> None:
    """Labels around a million: sums of plain squares would lose the spread."""
    random = np.random.default_rng(1)
    label = 1e6 + random.normal(size=3000)
    score = label + random.normal(0, 0.5, 3000)
    figures = summary(judged("regression", score, label, 1, 1500), "regression")
    change = np.diff(label)
    assert figures["mae"] == pytest.approx(np.abs(score - label).mean())
    assert figures["rmse"] == pytest.approx(np.sqrt(np.mean((score - label) ** 2)))
    assert figures["baseline_rmse"] == pytest.approx(label.std(), rel=1e-9)
    assert figures["no_change_mae"] == pytest.approx(np.abs(change).mean())
    assert figures["no_change_rmse"] == pytest.approx(np.sqrt(np.mean(change**2)))
    assert figures["log_loss"] is None


@given(st.integers(1, 2300), st.sets(st.integers(1, 2299), max_size=5), st.sampled_from(["binary", "regression"]))
@settings(max_examples=60, deadline=None)
def test_windows_are_the_last_rows_exactly(n: int, cuts: set[int], task: Task) -> None:
    """Whatever the calls were: a window equals the measures of a state that saw just these rows (and the one before)."""
    score, label = drawn(n)
    figures = summary(judged(task, score, label, *sorted(c for c in cuts if c < n)), task)
    for size in (100, 1000):
        found = window(figures, size)
        fresh = summary(judged(task, score[-size:], label[-size:]), task)
        assert found["examples"] == min(n, size)
        for name in ("log_loss", "accuracy", "f1", "calibration", "baseline_log_loss", "mae", "rmse", "baseline_rmse"):
            assert found[name] == (None if fresh[name] is None else pytest.approx(fresh[name])), name
        pairs = label[-size - 1 :]
        repeats = float(np.mean(pairs[1:] == pairs[:-1])) if len(pairs) > 1 else None
        if task == "binary":
            assert found["no_change_accuracy"] == (None if repeats is None else pytest.approx(repeats))


@pytest.mark.parametrize(
    ("rate", "spread"), [(0.5, 0.05), (0.5, 0.5), (0.5, 2.0), (0.5, 8.0), (0.02, 0.3), (0.005, 1.0), (0.005, 4.0)]
)
def test_the_binned_auc_is_close_to_the_exact_one(spread: float, rate: float) -> None:
    """From a model that has hardly begun to one that is sure of itself, and for rare positives: within 1e-3."""
    random = np.random.default_rng(int(spread * 100))
    label = (random.random(40_000) < rate).astype(np.float64)
    score = np.log(rate / (1 - rate)) + spread * (random.normal(size=40_000) + label)
    figures = summary(judged("binary", score, label), "binary")
    assert figures["auc"] == pytest.approx(auc(score, label == 1), abs=1e-3)


def test_auc_is_the_mann_whitney_statistic_with_ties() -> None:
    score = np.random.default_rng(3).integers(0, 6, 200).astype(np.float64)
    positive = np.random.default_rng(4).random(200) < 0.4
    pairs = score[positive][:, None] - score[~positive][None, :]
    expected = np.mean((pairs > 0) + 0.5 * (pairs == 0))
    assert auc(score, positive) == pytest.approx(expected)
    counts = [np.bincount(score[side].astype(int), minlength=6) for side in (~positive, positive)]
    assert binned_auc(np.array(counts)) == pytest.approx(expected)


@pytest.mark.parametrize("label", [0.0, 1.0])
def test_one_class_only_is_learned_and_leaves_undefined_what_is_undefined(label: float) -> None:
    """AUC and normalised entropy of one class are None, not 0, not ½, not NaN; so are F1 and calibration of none."""
    random = np.random.default_rng(0)
    model = spec(2)
    rows = Examples(random.normal(size=(150, 2)), np.empty((150, 0), np.int64), np.full(150, label), np.ones(150))
    figures = summary(Learner(model, Hyper())(initial_state(model), rows)[0], "binary")
    for found in (figures, window(figures, 100)):
        assert found["auc"] is None
        assert found["normalized_entropy"] is None
        assert found["baseline_log_loss"] == 0.0
        assert found["no_change_accuracy"] == 1.0
        assert (found["calibration"] is None) == (label == 0.0)
    assert figures["accuracy"] is not None


@pytest.mark.parametrize("task", ["binary", "regression"])
def test_nothing_seen_is_null_everywhere_and_json_takes_it(task: Task) -> None:
    figures = summary(initial_state(spec(1, task)), task)
    text = json.dumps(figures, allow_nan=False)
    for found in (figures, window(figures, 100), window(figures, 1000)):
        assert found["examples"] == 0
        numbers = [v for k, v in found.items() if k not in {"examples", "positives", "windows"}]
        assert numbers == [None] * len(numbers)
    assert json.loads(text)["windows"]["100"]["auc"] is None


def test_absurd_scores_leave_finite_measures() -> None:
    """The loss of a score of −1e200 is 1e200: finite, and so is every sum of such."""
    score = np.array([-1e200, 1e308, 1e308, -1e308, 1e308, 0.0])
    label = np.array([1.0, 0.0, 0.0, 1.0, 0.0, 1.0])
    state = judged("binary", score, label)
    assert np.isfinite(np.asarray(state.arrays["evaluation.loss_sum"], np.float64)).all()
    json.dumps(summary(state, "binary"), allow_nan=False)


def test_figures_of_real_streams_stand_beside_their_baselines() -> None:
    """Elec2 is the warning: no plain linear model beats repeating the last label."""
    elec = summary(learned(elec2(), "binary", Hyper(0.005, 0.01)), "binary")
    assert elec["no_change_accuracy"] == pytest.approx(0.853303, abs=5e-7)
    fish = summary(learned(phishing(), "binary", Hyper()), "binary")
    assert window(fish, 1000)["auc"] == pytest.approx(0.9647, abs=5e-5)
    fruit = summary(learned(bananas(), "binary", Hyper(0.005, 0.01)), "binary")
    assert fruit["majority_accuracy"] == pytest.approx(2924 / 5300)


def test_parameters_go_by_the_names_of_their_features() -> None:
    """In the order of the spec, whatever the order of the columns; only buckets that have a weight are shown."""
    features = (Feature("carrier", "categorical", bits=3), Feature("distance"), Feature("hour"))
    model = Spec(features)
    dense = np.array([[1.0, np.nan], [3.0, np.nan]])
    rows = Examples(dense, np.array([[8], [2]]), np.array([1.0, 0.0]), np.ones(2))
    shown = parameters(model, Learner(model, Hyper())(initial_state(model), rows)[0])
    weights, normalizer = shown["weights"], shown["normalizer"]
    assert isinstance(weights, dict)
    assert isinstance(normalizer, dict)
    assert shown["dtype"] == "float64"
    assert list(weights) == ["carrier", "distance", "hour"]
    assert set(weights["carrier"]) == {"2", "8"}
    assert weights["carrier"]["8"] == pytest.approx(0.005)
    assert weights["hour"] == 0.0
    assert normalizer == {
        "distance": {"mean": 2.0, "std": 1.0, "count": 2},
        "hour": {"mean": None, "std": None, "count": 0},
    }
    json.dumps(shown, allow_nan=False)


def test_the_page_on_learning_explains_every_key() -> None:
    page = (Path(__file__).parents[2] / "docs" / "learning.md").read_text()
    figures = summary(initial_state(spec(1)), "binary")
    keys = {*figures, *window(figures, 100), *STATES} - {"windows"}
    assert [key for key in sorted(keys) if f"`{key}`" not in page] == []


def test_showing_a_state_needs_no_torch() -> None:
    """`status` has to answer at once: importing torch takes seconds."""
    script = (
        "import sys, worker.learn.evaluation, worker.learn.parameters, worker.learn.health, worker.learn.state\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
