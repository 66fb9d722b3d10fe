"""Both kernels compute the same rule: results agree to 1e-12, over drawn rules and over whole streams."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.datasets import NUMBA, elec2, phishing, spec
from tests.unit.test_learner_rules import hypers, rows
from worker.learn.learner import Learner
from worker.learn.model import initial_state
from worker.learn.state import LearnerState, Report
from worker.spec import Hyper, Spec, Task
from worker.stream.rows import Examples

pytestmark = NUMBA

# Counts of scores by cell and by sign: one on an edge may fall to either side.
THRESHOLDS = ("evaluation.histogram", "evaluation.predicted_positives", "evaluation.true_positives")


def both(model: Spec, hyper: Hyper, given: Examples) -> list[tuple[LearnerState, Report]]:
    return [Learner(model, hyper, kernel)(initial_state(model), given) for kernel in ("numpy", "numba")]


def difference(ours: object, theirs: object) -> float:
    """Return the largest |a − b| / max(1, |a|)."""
    a, b = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    return float(np.max(np.abs(a - b) / np.maximum(1.0, np.abs(a)), initial=0.0))


def differences(model: Spec, hyper: Hyper, given: Examples) -> dict[str, float]:
    (state, report), (other, told) = both(model, hyper, given)
    found = {
        name: difference(array, other.arrays[name]) for name, array in state.arrays.items() if name not in THRESHOLDS
    }
    for name in ("loss", "grad_norm", "grad_norm_max", "weight_norm", "learning_rate"):
        found[f"report.{name}"] = difference(getattr(report, name), getattr(told, name))
    assert (report.rows, report.skipped, report.guilty) == (told.rows, told.skipped, told.guilty)
    return found


@given(st.data(), hypers, st.sampled_from(["binary", "regression"]), st.booleans())
@settings(max_examples=150, deadline=None)
def test_state_predictions_and_norms_agree(data: st.DataObject, hyper: Hyper, task: Task, standardize: bool) -> None:
    drawn = data.draw(rows(task))
    model = spec(drawn.dense.shape[1], task, categorical=drawn.buckets.shape[1], standardize=standardize)
    for name, value in differences(model, calm(hyper, model), drawn).items():
        assert value <= 1e-12, name


def calm(hyper: Hyper, model: Spec) -> Hyper:
    """Return rates at which no step overshoots: past that point every row multiplies every rounding, in any kernel."""
    scale = (1.0 if model.standardize else 1e-4) * (1.0 if model.task == "binary" else 0.1)
    own = hyper.intercept_learning_rate
    return replace(
        hyper,
        learning_rate=scale * hyper.learning_rate,
        intercept_learning_rate=None if own is None else 0.1 * own,
    )


@pytest.mark.parametrize("source", [phishing, elec2], ids=["phishing", "elec2"])
def test_whole_streams_agree(source: Callable[[], Examples]) -> None:
    given, hyper = source(), Hyper(learning_rate=0.005, intercept_learning_rate=0.01)
    for name, value in differences(spec(given.dense.shape[1]), hyper, given).items():
        assert value <= 1e-12, name
