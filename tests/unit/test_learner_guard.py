"""Nothing that is not finite enters the model: guilty rows are found, left out and named, the others learned as if alone."""

import numpy as np
import pytest

from tests.unit.datasets import kernels, spec, ways
from worker.learn.evaluation import summary
from worker.learn.health import health
from worker.learn.kernel import Kernel
from worker.learn.learner import Learner
from worker.learn.model import initial_state
from worker.learn.state import LearnerState
from worker.spec import Hyper, Reduction, Task
from worker.stream.rows import Examples


def drawn(n: int, *, seed: int = 3) -> Examples:
    random = np.random.default_rng(seed)
    dense = random.normal(size=(n, 3))
    labels = (dense[:, 0] + random.normal(size=n) > 0).astype(np.float64)
    return Examples(dense, random.integers(0, 17, (n, 1)), labels, np.ones(n))


def without(rows: Examples, guilty: list[int]) -> Examples:
    keep = np.delete(np.arange(len(rows)), guilty)
    return Examples(rows.dense[keep], rows.buckets[keep], rows.labels[keep], rows.weights[keep])


def numbers(array: object) -> list[float]:
    return np.asarray(array, np.float64).ravel().tolist()


def all_finite(state: LearnerState) -> bool:
    return all(np.isfinite(np.asarray(array, np.float64)).all() for array in state.arrays.values())


def spoiled(rows: Examples, how: str, at: int) -> None:
    if how == "huge feature":
        rows.dense[at, 1] = 1e200  # finite, but its square is not
    elif how == "infinite feature":
        rows.dense[at, 1] = np.inf
    elif how == "huge label":
        rows.labels[at] = 1e200
    elif how == "nan label":
        rows.labels[at] = np.nan
    else:
        rows.weights[at] = np.inf


@ways
@pytest.mark.parametrize(
    ("task", "how"),
    [
        *[
            (task, how)
            for task in ("binary", "regression")
            for how in ("huge feature", "infinite feature", "nan label")
        ],
        ("binary", "infinite weight"),
        ("regression", "huge label"),
    ],
)
def test_guilty_rows_leave_no_trace(reduction: Reduction, kernel: Kernel, task: Task, how: str) -> None:
    """The state is that of the other rows alone; the guilty ones are counted and named by their place in the call."""
    rows = drawn(100)
    guilty = [0, 41, 99]
    for at in guilty:
        spoiled(rows, how, at)
    model = spec(3, task, categorical=1, reduction=reduction)
    learner = Learner(model, Hyper(batch_size=100, l2=0.01, clip_norm=1.0), kernel)
    state, report = learner(initial_state(model), rows)
    alone, _ = learner(initial_state(model), without(rows, guilty))
    assert report.guilty == guilty
    assert (report.rows, report.skipped) == ([100 - len(guilty)], [len(guilty)])
    assert np.isfinite([*report.loss, *report.grad_norm, *report.grad_norm_max]).all()
    assert state.examples == 100 - len(guilty)
    assert int(state.arrays["counters.skipped"][0]) == len(guilty)
    for name, array in alone.arrays.items():
        if not name.startswith("counters"):
            assert numbers(state.arrays[name]) == pytest.approx(numbers(array), rel=1e-12, abs=1e-12), name


@ways
def test_a_batch_with_nothing_good_in_it_is_skipped_whole(reduction: Reduction, kernel: Kernel) -> None:
    """Its loss is undefined, so it is NaN in the report; whoever shows it has to look first."""
    rows = drawn(8)
    rows.dense[4:] = 1e300
    model = spec(3, categorical=1, reduction=reduction)
    state, report = Learner(model, Hyper(batch_size=4), kernel)(initial_state(model), rows)
    assert (report.rows, report.skipped, report.guilty) == ([4, 0], [0, 4], [4, 5, 6, 7])
    assert np.isfinite(report.loss[0])
    assert np.isnan([report.loss[1], report.grad_norm[1], report.grad_norm_max[1]]).all()
    assert (state.examples, state.steps) == (4, 1)
    assert all_finite(state)


@ways
def test_a_rate_that_explodes_never_yields_a_state_that_is_not_finite(reduction: Reduction, kernel: Kernel) -> None:
    """Squared loss at a rate of 1e30 overflows within a few rows; what comes out is finite and says what was left out."""
    rows = drawn(300)
    model = spec(3, "regression", categorical=1, reduction=reduction)
    learner, state = Learner(model, Hyper(learning_rate=1e30, batch_size=10), kernel), initial_state(model)
    for _ in range(3):
        state, _ = learner(state, rows)
        assert all_finite(state)
    skipped, last = (int(state.arrays[f"counters.{name}"][0]) for name in ("skipped", "last_skipped"))
    assert skipped > 0
    verdict = health(summary(state, "regression"), skipped=skipped, last_skipped=last)
    assert verdict["state"] == "non_finite"


@kernels
def test_a_gradient_norm_that_overflows_is_not_clipped_into_shape(kernel: Kernel) -> None:
    """limit / inf is 0: clipping would hide the row, so it is judged before."""
    rows = drawn(20)
    rows.weights[7] = 1e308
    rows.dense[7] = 1e10
    model = spec(3, "regression", categorical=1, standardize=False)
    state, report = Learner(model, Hyper(clip_norm=1.0), kernel)(initial_state(model), rows)
    assert report.guilty == [7]
    assert all_finite(state)


@kernels
def test_decay_that_overshoots_never_yields_a_state_that_is_not_finite(kernel: Kernel) -> None:
    """At 1 − ηλ = −1e30 the weights of buckets that no row hits grow as well, unseen by the row's own gradient."""
    rows = drawn(60)
    rows.buckets[2:] = 3
    model = spec(3, categorical=1)
    state, report = Learner(model, Hyper(learning_rate=1.0, l2=1e30), kernel)(initial_state(model), rows)
    assert all_finite(state)
    assert report.guilty


@kernels
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_feature_a_billion_times_too_large_raises_an_alarm(sign: float, kernel: Kernel) -> None:
    """Weights stay finite either way; the alarm comes also where the absurd score happens to be on the right side."""
    state, verdict = poisoned(sign, kernel, keep=True)
    assert all_finite(state)
    assert verdict["state"] == "diverging"


@kernels
def test_refusing_it_by_a_bound_leaves_model_and_statistics_sound(kernel: Kernel) -> None:
    """With `max_abs` the rows never reach the learner: the deviation stays small and nothing is alarming."""
    state, verdict = poisoned(1.0, kernel, keep=False)
    count, m2 = state.arrays["normalizer.count"][0], state.arrays["normalizer.m2"][0]
    assert (float(m2) / float(count)) ** 0.5 < 2
    assert verdict["state"] == "learning"


def poisoned(sign: float, kernel: Kernel, *, keep: bool) -> tuple[LearnerState, dict[str, object]]:
    """200 normal rows, three poisoned ones (or not), and 60 normal ones, so that they lie in the window."""
    random = np.random.default_rng(11)
    dense = random.normal(size=(260, 2))
    labels = (sign * dense[:, 0] + 0.3 * random.normal(size=260) > 0).astype(np.float64)
    if keep:
        dense = np.insert(dense, 200, [[1e9, 1.0], [1e9, 0.0], [1.0, 0.0]], axis=0)
        labels = np.insert(labels, 200, [1.0, 1.0, 0.0])
    n = len(labels)
    model = spec(2)
    state, _ = Learner(model, Hyper(learning_rate=0.05), kernel)(
        initial_state(model), Examples(dense, np.empty((n, 0), np.int64), labels, np.ones(n))
    )
    return state, health(summary(state, "binary"))
