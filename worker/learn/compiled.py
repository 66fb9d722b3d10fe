"""`reduction = "sequential"` as machine code: the plain rule, row by row, for a whole call. The one file with numba.

The same rule as `sequential.py`, with batches cut inside. No option that lets a compiler reorder sums is used, so the
same rows and batches give the same bits wherever the call is cut between batches. Importing this file compiles.
"""

from collections.abc import Callable
from math import exp, inf, log1p, sqrt
from typing import NamedTuple, TypeVar, cast

import numpy as np
from numba import njit, types

from worker.learn.layout import Layout
from worker.learn.rates import rates
from worker.learn.work import LARGEST_NUMBER, Cells, Flags, Matrix, Rule, Trace, Vector, Work
from worker.stream.rows import Examples

_FINITE = float(np.finfo(np.float64).max)  # a comparison with it vectorises, `isfinite` does not

Array = TypeVar("Array", Matrix, Cells)
Types = tuple[types.Type, ...]
Function = TypeVar("Function", bound=Callable[..., object])


class Numeric(NamedTuple):
    """What is known of each numeric feature, [d] each; `scale` is 1 / standard deviation, 0 where that is 0."""

    seen: Vector
    mean: Vector
    m2: Vector
    scale: Vector
    weight: Vector


def _part(function: Function) -> Function:
    """Make a function callable from machine code. Division by zero is inf or nan, as in numpy, and is looked for."""
    return cast("Function", njit(error_model="numpy", inline="always")(function))


@_part
def _look(
    dense: Matrix, i: int, old: Numeric, new: Numeric, predicted: Vector, x: Vector, standardize: bool, bound: float
) -> bool:
    """Count row i in `new`, fill how it looks before and after; tell whether the statistics stayed finite (Welford)."""
    fine = True
    for j in range(len(x)):
        raw = dense[i, j] if not abs(dense[i, j]) > bound else inf
        here = raw == raw  # noqa: PLR0124  (not NaN: a missing value is in no statistics)
        deviation = raw - old.mean[j] if here else 0.0
        count = old.seen[j] + 1.0 if here else old.seen[j]
        mean = old.mean[j] + deviation / (count if count > 0.0 else 1.0)
        rest = raw - mean if here else 0.0
        m2 = old.m2[j] + deviation * rest
        scale = sqrt(count / m2) if m2 != 0.0 else 0.0
        if standardize:
            predicted[j], x[j] = deviation * old.scale[j], rest * scale
        else:
            predicted[j] = x[j] = raw if here else old.mean[j]
        new.seen[j], new.mean[j], new.m2[j], new.scale[j] = count, mean, m2, scale
        fine &= m2 <= _FINITE
    return fine


@_part
def _products(weight: Vector, predicted: Vector, x: Vector) -> tuple[float, float, float]:
    """Return w·predicted, w·x and x·x, added in this order."""
    before, after, square = 0.0, 0.0, 0.0
    for j in range(len(x)):
        before += weight[j] * predicted[j]
        after += weight[j] * x[j]
        square += x[j] * x[j]
    return before, after, square


@_part
def _loss(score: float, y: float, regression: bool) -> float:
    if regression:
        return (score - y) * (score - y)
    against = (1.0 - 2.0 * y) * score
    return max(against, 0.0) + log1p(exp(-abs(against)))


@_part
def _slope(score: float, y: float, regression: bool) -> float:
    if regression:
        return 2.0 * (score - y)
    e = exp(-abs(score))
    return (1.0 if score >= 0.0 else e) / (1.0 + e) - y


@_part
def _descend(old: Numeric, new: Numeric, x: Vector, keep: float, pull: float) -> bool:
    """Fill the weights after the step; tell whether they are finite."""
    fine = True
    for j in range(len(x)):
        new.weight[j] = keep * old.weight[j] - pull * x[j]
        fine &= abs(new.weight[j]) <= _FINITE
    return fine


@_part
def _take_over(old: Numeric, new: Numeric) -> None:
    for j in range(len(old.mean)):
        old.seen[j], old.mean[j], old.m2[j] = new.seen[j], new.mean[j], new.m2[j]
        old.scale[j], old.weight[j] = new.scale[j], new.weight[j]


@_part
def _hit(w: Vector, buckets: Cells, offsets: Cells, i: int) -> float:
    """Return the sum of the categorical weights that row i hits."""
    total = 0.0
    for k in range(len(offsets)):
        total += w[offsets[k] + buckets[i, k]]
    return total


@_part
def _tables_bear(w: Vector, buckets: Cells, offsets: Cells, i: int, d: int, share: float, pull: float) -> bool:
    """Tell whether categorical weights are finite after decay by `share` and the step of row i.

    What is kept may be twice as large as the weight itself, see `_learn`, hence the half.
    """
    fine = True
    for k in range(len(offsets)):
        fine &= abs(share * w[offsets[k] + buckets[i, k]] - pull) <= 0.5 * _FINITE
    if share < -1.0:  # a rate at which decay overshoots: weights that no row hits grow as well
        for cell in range(d, len(w)):
            fine &= abs(share * w[cell]) <= _FINITE
    return fine


@_part
def _step_tables(w: Vector, buckets: Cells, offsets: Cells, i: int, pull: float) -> None:
    for k in range(len(offsets)):
        w[offsets[k] + buckets[i, k]] -= pull


@_part
def _decay(w: Vector, d: int, share: float) -> float:
    """Multiply all categorical weights by `share`; return what they still have to be multiplied by: 1."""
    for cell in range(d, len(w)):
        w[cell] *= share
    return 1.0


def _learn(
    dense: Matrix, buckets: Cells, labels: Vector, weights: Vector, offsets: Cells, eta: Vector, beta: Vector,
    batch: int, l2: float, clip: float, regression: bool, standardize: bool, bound: float,
    w: Vector, b: Vector, count: Vector, mean: Vector, m2: Vector,
    score: Vector, loss: Vector, norm: Vector, good: Flags,
) -> tuple[int, int]:  # fmt: skip
    """Learn n rows in batches, change parameters and statistics in place, fill the trace; return (rows, steps) learned.

    Categorical weights are kept as w / share, so that decay costs one product a row and not one a bucket. `share`
    stays above a half and is 1 between batches. No index is checked here.
    """
    (n, d), c = dense.shape, len(offsets)
    old = Numeric(count, mean, m2, np.empty(d), np.empty(d))
    new = Numeric(np.empty(d), np.empty(d), np.empty(d), np.empty(d), np.empty(d))
    predicted, x = np.empty(d), np.empty(d)
    for j in range(d):
        old.weight[j] = w[j]
        old.scale[j] = sqrt(count[j] / m2[j]) if m2[j] != 0.0 else 0.0
    learned, steps, share, intercept = 0, 0, 1.0, b[0]
    for low in range(0, n, batch):
        learned_before = learned
        for i in range(low, min(low + batch, n)):
            fine = _look(dense, i, old, new, predicted, x, standardize, bound)
            z_before, z, square = _products(old.weight, predicted, x)
            base = share * _hit(w, buckets, offsets, i) + intercept
            score_of_row = z_before + base
            loss_of_row = _loss(score_of_row, labels[i], regression)
            g = weights[i] * _slope(z + base, labels[i], regression)
            norm_of_row = abs(g) * sqrt(square + c + 1.0)
            # Before clipping: limit / inf is 0, and would hide it.
            fine &= abs(loss_of_row) <= _FINITE and norm_of_row <= _FINITE
            if clip > 0.0 and norm_of_row > clip:
                g *= clip / norm_of_row
            keep, pull = 1.0 - eta[learned] * l2, eta[learned] * g
            after = intercept - beta[learned] * g
            fine &= _descend(old, new, x, keep, pull) and abs(after) <= _FINITE
            fine &= _tables_bear(w, buckets, offsets, i, d, share * keep, pull)
            good[i] = fine
            if not fine:
                continue
            _take_over(old, new)
            share *= keep
            if share < 0.5:  # w / share would leave the range of floats, and share may be 0
                share = _decay(w, d, share)
            _step_tables(w, buckets, offsets, i, pull / share)
            intercept = after
            score[i], loss[i], norm[i] = score_of_row, loss_of_row, norm_of_row
            learned += 1
        if share != 1.0:
            share = _decay(w, d, share)
        steps += learned > learned_before
    for j in range(d):
        w[j] = old.weight[j]
    b[0] = intercept
    return learned, steps


def _types() -> Types:
    """Return the types of `_learn`: what is only read may be read-only, as arrays over received bytes are."""

    def read(dtype: types.Type, dimensions: int = 1) -> types.Type:
        return types.Array(dtype, dimensions, "C", readonly=True)

    def write(dtype: types.Type) -> types.Type:
        return types.Array(dtype, 1, "C")

    f8, i8, yes = types.float64, types.int64, types.boolean
    rows = (read(f8, 2), read(i8, 2), read(f8), read(f8), read(i8), read(f8), read(f8))
    settings = (i8, f8, f8, yes, yes, f8)
    parameters, trace = [write(f8)] * 5, [*[write(f8)] * 3, write(yes)]
    return (*rows, *settings, *parameters, *trace)


def compiled(function: Function, arguments: Types) -> Function:
    """Return the function as machine code, from numba's cache on this machine where that has it.

    Where no directory of the cache can be written, or what lies there can not be read, it is compiled each time.
    """
    try:
        return cast("Function", njit([arguments], error_model="numpy", cache=True)(function))
    except (RuntimeError, OSError, EOFError):
        return cast("Function", njit([arguments], error_model="numpy")(function))


_LEARN = compiled(_learn, _types())


def _check(work: Work, layout: Layout, examples: Examples) -> None:
    """Raise `IndexError` where machine code would read or write beyond an array: it looks at no bounds."""
    cells = examples.buckets + layout.offsets if len(layout.offsets) else None
    inside = cells is None or not cells.size or (cells.min() >= layout.numeric and cells.max() < layout.size)
    columns = {len(c) for c in (examples.dense, examples.buckets, examples.labels, examples.weights)}
    shapes = (examples.dense.shape[1], len(work.normalizer.mean), len(work.w), len(columns))
    if shapes != (layout.numeric, layout.numeric, layout.size, 1) or not inside:
        raise IndexError("examples or state do not fit the layout of the spec")


def _plain(array: Array) -> Array:
    """Return the array itself where its rows lie one after the other, aligned; else a copy that does."""
    return np.require(array, requirements=["C", "A"])


class Compiled:
    """The rule over whole calls."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule

    def run(self, work: Work, examples: Examples, trace: Trace) -> None:
        """Learn all examples in order, batches cut every `batch_size` rows, and note in `trace`."""
        spec, hyper, normalizer = self._rule.spec, self._rule.hyper, work.normalizer
        _check(work, self._rule.layout, examples)
        rate = rates(hyper, work.examples, len(examples))
        learned, steps = _LEARN(
            _plain(examples.dense), _plain(examples.buckets), _plain(examples.labels), _plain(examples.weights),
            self._rule.layout.offsets, rate.weight, rate.intercept, hyper.batch_size, hyper.l2, hyper.clip_norm,
            spec.task == "regression", spec.standardize, LARGEST_NUMBER,
            work.w, work.b, normalizer.count, normalizer.mean, normalizer.m2,
            trace.score, trace.loss, trace.norm, trace.good,
        )  # fmt: skip
        work.examples += learned
        work.steps += steps
