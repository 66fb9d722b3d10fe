"""Every rule of the step, for every batch size, against the plain loop of `reference.py`."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.datasets import kernels, part, spec
from tests.unit.reference import PlainModel, Settings
from worker.learn.kernel import Kernel
from worker.learn.learner import Learner
from worker.learn.model import LinearModel, initial_state
from worker.learn.state import LearnerState, Report
from worker.spec import Hyper, Spec
from worker.stream.rows import Examples

CELLS = 9  # buckets drawn per categorical feature, of 17


@st.composite
def rows(draw: st.DrawFn, task: str) -> Examples:
    """Draw rows with gaps, constant stretches, large offsets, repeated buckets and uneven weights."""
    seed, n = draw(st.integers(0, 2**32 - 1)), draw(st.integers(1, 150))
    d, c = draw(st.integers(0, 4)), draw(st.integers(0, 2))
    random = np.random.default_rng(seed)
    dense = random.integers(-8, 9, (n, d)) / 4.0 + draw(st.sampled_from([0.0, 100.0]))
    dense[:, : d // 3] = 0.1
    dense[random.random((n, d)) < draw(st.sampled_from([0.0, 0.3]))] = np.nan
    labels = np.where(task == "binary", random.integers(0, 2, n), random.normal(3.0, 2.0, n)).astype(np.float64)
    weights = random.choice([0.5, 1.0, 3.0], n) if draw(st.booleans()) else np.ones(n)
    return Examples(dense, random.integers(0, CELLS, (n, c)), labels, weights)


hypers = st.builds(
    Hyper,
    learning_rate=st.sampled_from([0.003, 0.05, 0.2]),
    intercept_learning_rate=st.sampled_from([None, 0.0, 0.01, 0.1]),
    schedule=st.sampled_from(["constant", "inverse_sqrt", "inverse"]),
    l2=st.sampled_from([0.0, 0.001, 0.3, 5.0]),
    clip_norm=st.sampled_from([0.0, 0.2, 1.0]),
    batch_size=st.sampled_from([1, 2, 3, 5, 32, 64, 65, 128, 1000]),
)


@kernels
@given(st.data(), hypers, st.sampled_from(["binary", "regression"]), st.booleans())
@settings(max_examples=120, deadline=None)
def test_a_sequential_batch_is_one_example_at_a_time(
    kernel: Kernel, data: st.DataObject, hyper: Hyper, task: str, standardize: bool
) -> None:
    """Weights, predictions and gradient norms, with all settings at once, are those of the plain loop to 1e-9."""
    compare(data.draw(rows(task)), hyper, task, "sequential", kernel, standardize=standardize)


@kernels
@pytest.mark.parametrize("decay", [1e-5, 0.0, 0.4, 0.6])
def test_weights_that_decay_at_once_are_no_trap(decay: float, kernel: Kernel) -> None:
    """64 factors of 1e-5 leave the range of floats, and a factor of 0 cannot be divided by."""
    random = np.random.default_rng(6)
    dense, labels = random.normal(size=(64, 3)), random.integers(0, 2, 64).astype(np.float64)
    given = Examples(dense, random.integers(0, CELLS, (64, 1)), labels, np.ones(64))
    compare(given, Hyper(0.2, l2=(1.0 - decay) / 0.2), "binary", "sequential", kernel, standardize=True)


@given(st.data(), hypers, st.sampled_from(["binary", "regression"]), st.sampled_from(["mean", "sum"]), st.booleans())
@settings(max_examples=80, deadline=None)
def test_a_minibatch_is_one_gradient(
    data: st.DataObject, hyper: Hyper, task: str, reduction: str, standardize: bool
) -> None:
    """In `mean` and `sum` all rows are predicted before the batch; statistics still move row by row."""
    compare(data.draw(rows(task)), hyper, task, reduction, "numpy", standardize=standardize)


def compare(given: Examples, hyper: Hyper, task: str, reduction: str, kernel: Kernel, *, standardize: bool) -> None:
    d, c = given.dense.shape[1], given.buckets.shape[1]
    # Raw values of 100 at a rate of 0.2 explode in any implementation: two explosions cannot be compared.
    scale = 1.0 if standardize else 1e-4
    hyper = Hyper(
        hyper.learning_rate * scale,
        hyper.intercept_learning_rate,
        hyper.schedule,
        hyper.l2,
        hyper.clip_norm,
        hyper.batch_size,
    )
    if reduction == "sum":  # as above: 1000 gradients at once
        hyper = Hyper(hyper.learning_rate / 100, 1e-4, hyper.schedule, hyper.l2, hyper.clip_norm, hyper.batch_size)
    model = spec(d, task, categorical=c, reduction=reduction, standardize=standardize)  # type: ignore[arg-type]
    state, report = Learner(model, hyper, kernel)(initial_state(model), given)
    plain = taught(given, hyper, task, reduction, standardize=standardize)
    close(state.arrays["weight"][:d], plain.numbers)
    for k, table in enumerate(plain.tables):
        close(state.arrays["weight"][d + 17 * k : d + 17 * (k + 1)], [table.get(b, 0.0) for b in range(17)])
    close(state.arrays["intercept"], [plain.intercept])
    close(state.arrays["evaluation.window_score"][: len(given)], plain.scores)
    close(report.grad_norm, batch_norms(plain, hyper, reduction)[0])
    close(report.grad_norm_max, batch_norms(plain, hyper, reduction)[1])
    assert report.guilty == []
    assert (state.examples, state.steps) == (len(given), plain.steps)


def close(ours: object, theirs: object) -> None:
    np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=1e-9, atol=1e-9)


def taught(given: Examples, hyper: Hyper, task: str, reduction: str, *, standardize: bool) -> PlainModel:
    own = hyper.intercept_learning_rate
    plain = PlainModel.of(
        Settings(
            task,
            reduction,
            standardize,
            hyper.learning_rate,
            hyper.learning_rate if own is None else own,
            hyper.schedule,
            hyper.l2,
            hyper.clip_norm,
        ),
        given.dense.shape[1],
        given.buckets.shape[1],
    )
    columns = (given.dense, given.buckets, given.labels, given.weights)
    everything = list(zip(*(column.tolist() for column in columns), strict=True))
    for low in range(0, len(given), hyper.batch_size):
        plain.learn(everything[low : low + hyper.batch_size])
    return plain


def batch_norms(plain: PlainModel, hyper: Hyper, reduction: str) -> tuple[list[float], list[float]]:
    """Return mean and largest norm of each batch."""
    if reduction != "sequential":
        return plain.norms, plain.norms
    size = hyper.batch_size
    batches = [plain.norms[low : low + size] for low in range(0, len(plain.norms), size)]
    return [sum(b) / len(b) for b in batches], [max(b) for b in batches]


@given(st.data(), st.sampled_from(["binary", "regression"]))
@settings(max_examples=25, deadline=None)
def test_autograd_equals_the_closed_form_and_central_differences(data: st.DataObject, task: str) -> None:
    """One full-batch step at rate 1 moves the parameters by the gradient: by autograd, by formula, by differences."""
    given = data.draw(rows(task))
    d, c = given.dense.shape[1], given.buckets.shape[1]
    model = spec(d, task, categorical=c, reduction="sum", standardize=False)  # type: ignore[arg-type]
    dense = np.nan_to_num(given.dense) / 100.0
    given = Examples(dense, given.buckets, given.labels, given.weights)
    start = scattered(model)
    after, _ = Learner(model, Hyper(1.0, 1.0, batch_size=len(given)))(start, given)
    closed = start.arrays["weight"].astype(float) - after.arrays["weight"].astype(float)
    net = LinearModel.of(model, start)
    torch.autograd.backward(total_loss(net, given, task))
    assert net.weight.grad is not None
    np.testing.assert_allclose(net.weight.grad.numpy(), closed, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(differences(net, given, task), closed, rtol=1e-5, atol=1e-5)


def scattered(model: Spec) -> LearnerState:
    state = initial_state(model)
    random = np.random.default_rng(1)
    weight = random.normal(size=len(state.arrays["weight"]))
    return LearnerState({**state.arrays, "weight": weight, "intercept": np.array([0.3])})


def total_loss(net: LinearModel, given: Examples, task: str) -> torch.Tensor:
    score = net(torch.from_numpy(given.dense), torch.from_numpy(given.buckets))
    y = torch.from_numpy(given.labels)
    each = (
        torch.nn.functional.binary_cross_entropy_with_logits(score, y, reduction="none")
        if task == "binary"
        else (score - y) ** 2
    )
    return (torch.from_numpy(given.weights) * each).sum()


def differences(net: LinearModel, given: Examples, task: str) -> np.ndarray:
    h, result = 1e-6, []
    with torch.no_grad():
        for i in range(len(net.weight)):
            sides = []
            for sign in (1.0, -1.0):
                net.weight[i] += sign * h
                sides.append(float(total_loss(net, given, task)))
                net.weight[i] -= sign * h
            result.append((sides[0] - sides[1]) / (2 * h))
    return np.array(result)


@kernels
def test_what_comes_in_is_never_changed(kernel: Kernel) -> None:
    """`learn` is pure: the same call gives the same bytes again, and its inputs may be read-only."""
    random = np.random.default_rng(5)
    given = Examples(random.normal(size=(200, 3)), random.integers(0, 16, (200, 2)), np.ones(200), np.ones(200))
    model = spec(3, categorical=2)
    learner = Learner(model, Hyper(l2=0.01), kernel)
    state, _ = learner(initial_state(model), given)
    for array in (*state.arrays.values(), given.dense, given.buckets, given.labels, given.weights):
        array.setflags(write=False)
    first, second = learner(state, given), learner(state, given)
    assert contents(first[0]) == contents(second[0])
    assert first[1] == second[1]


def contents(state: LearnerState) -> dict[str, bytes]:
    return {name: np.ascontiguousarray(array).tobytes() for name, array in state.arrays.items()}


@kernels
def test_no_examples_change_nothing(kernel: Kernel) -> None:
    model = spec(2)
    empty = Examples(np.empty((0, 2)), np.empty((0, 0), np.int64), np.empty(0), np.empty(0))
    state, report = Learner(model, Hyper(), kernel)(initial_state(model), empty)
    assert contents(state) == contents(initial_state(model))
    assert report == Report([], [], [], [], [], 0.01, 0.0, 0.0, [])


@kernels
def test_a_report_speaks_of_each_batch(kernel: Kernel) -> None:
    random = np.random.default_rng(7)
    given = Examples(random.normal(size=(70, 3)), np.empty((70, 0), np.int64), np.ones(70), np.ones(70))
    model = spec(3)
    state, report = Learner(model, Hyper(batch_size=32, schedule="inverse"), kernel)(initial_state(model), given)
    assert (report.rows, report.skipped, len(report.loss)) == ([32, 32, 6], [0, 0, 0], 3)
    assert report.learning_rate == pytest.approx(0.01 / 70)
    assert report.weight_norm == pytest.approx(float(np.linalg.norm(state.arrays["weight"])))
    assert report.update_ratio == pytest.approx(1.0)
    first = Learner(model, Hyper(batch_size=32, schedule="inverse"), kernel)(initial_state(model), part(given, 0, 32))[
        1
    ]
    assert first.loss[0] == report.loss[0]
