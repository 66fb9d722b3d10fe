"""`reduction = "sequential"`: a batch as one vectorised step that equals one example at a time. Must not know metrics.

With standardised rows x_i, decay D_i = Π_{k<i} (1 − η_k λ) and the plain rule w_{i+1} = (1 − η_i λ) w_i − η_i g_i x_i,
b_{i+1} = b_i − β_i g_i, unrolling the steps before row i gives its score from what was known before the block:

    z_i = D_i w_0·x_i + b_0 − Σ_{j<i} g_j (D_i x_i · η_j x_j / D_{j+1} + β_j)
        = w_0·l_i + b_0 − Σ_{j<i} g_j (l_i·r_j + β_j)     with l_i = D_i x_i and r_j = η_j x_j / D_{j+1}

Two matrix products and one scalar recursion. Predictions use the statistics before the row, learning those with it,
hence two scores a row; only the second one feeds the recursion.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite, sqrt

import numpy as np
import torch
from torch import Tensor

from worker.learn import loss
from worker.learn.normalizer import advance, advance_row
from worker.learn.rates import rates
from worker.learn.work import Matrix, Rows, Rule, Trace, Vector, Work, finite

BLOCK = 64  # the Gram matrix grows with the square of it
_FEW = 4  # below, the products cost more than they save
_EARLIER = np.tril(np.ones((BLOCK, BLOCK)), -1)


@dataclass(frozen=True, slots=True)
class Desk:
    """Memory for blocks of n rows, used again and again: torch's own, aligned, so that products repeat bit for bit.

    `left` [2n, d]: l_i, first as predicted, then as learned; `right` [n, d]: r_j; `influence` [2n, n]: by how much a
    unit gradient of row j lowers the scores of row i; `start` [2n]: scores without the block; `clipped` [n]: gradients;
    `change` [d]: Σ g_j r_j. The tensors are the same memory; `dots` holds the method `dot` of each row as learned.
    """

    tensors: tuple[Tensor, ...]
    left: Matrix
    right: Matrix
    influence: Matrix
    start: Vector
    clipped: Vector
    change: Vector
    dots: tuple[Callable[[Vector], np.float64], ...]

    @classmethod
    def of(cls, n: int, numeric: int) -> "Desk":
        shapes = ((2 * n, numeric), (n, numeric), (2 * n, n), (2 * n,), (n,), (numeric,))
        tensors = tuple(torch.zeros(shape, dtype=torch.float64) for shape in shapes)
        left, right, influence, start, clipped, change = (tensor.numpy() for tensor in tensors)
        dots = tuple(row.dot for row in influence[n:])
        return cls(tensors, left, right, influence, start, clipped, change, dots)

    def multiply(self, weight: Tensor) -> None:
        """Fill `influence` and `start` from `left`, `right` and the weights [d]."""
        left, right, influence, start, _, _ = self.tensors
        torch.mm(left, right.T, out=influence)
        torch.mv(left, weight, out=start)

    def gather(self) -> None:
        """Fill `change` from `right` and `clipped`."""
        _, right, _, _, clipped, change = self.tensors
        torch.mv(right.T, clipped, out=change)


class Sequential:
    """The rule over one call."""

    def __init__(self, rule: Rule, work: Work, trace: Trace, desks: dict[int, Desk]) -> None:
        """Learn on `work` and note in `trace`. `desks` keeps memory by block size from call to call, and no values."""
        self._rule = rule
        self._work = work
        self._trace = trace
        self._desks = desks

    def step(self, rows: Rows) -> None:
        """Learn one batch, in blocks counted from its first row, so that the batch alone decides every rounding.

        Rows that are not finite leave no trace: not in the weights, not in the statistics, not in the counters.
        """
        for low in range(0, len(rows), BLOCK):
            block = rows if len(rows) <= BLOCK else rows[low : low + BLOCK]
            if len(block) < _FEW or not _block(self._rule, self._work, block, self._trace, self._desk(len(block))):
                _one_by_one(self._rule, self._work, block, self._trace)
        self._work.steps += bool(self._trace.good[rows.start : rows.start + len(rows)].any())

    def _desk(self, n: int) -> Desk:
        if n not in self._desks:
            self._desks[n] = Desk.of(n, self._rule.layout.numeric)
        return self._desks[n]


def _block(rule: Rule, work: Work, rows: Rows, trace: Trace, desk: Desk) -> bool:
    """Learn up to BLOCK rows at once; return False, with nothing changed, where that is not possible."""
    n, d, hyper = len(rows), rule.layout.numeric, rule.hyper
    rate = rates(hyper, work.examples, n)
    factors = 1.0 - rate.weight * hyper.l2
    if factors.min() < 0.5:
        return False  # D_i / D_{j+1}: a product of 64 small factors may underflow, and one factor of 0 divides by 0
    decay = _products(factors) if hyper.l2 else None
    left, task = desk.left, rule.spec.task
    after = advance(work.normalizer, rows.dense, left[:n], left[n:], standardize=rule.spec.standardize)
    lengths = np.sqrt(np.vecdot(left[n:], left[n:]) + (rows.cells.shape[1] + 1.0))
    pull = rate.weight if decay is None else rate.weight / decay[1:]
    np.multiply(left[n:], pull[:, None], out=desk.right)
    if decay is not None:
        left.reshape(2, n, d)[...] *= decay[:n, None]
    desk.multiply(work.numeric)
    if rows.cells.shape[1]:
        _add_categories(work, rows, pull, decay, desk)
    np.add(desk.influence, rate.intercept, out=desk.influence)
    start = desk.start + work.b[0]
    data = _recursion(rule, rows, start[n:], desk, lengths)
    earlier = np.multiply(desk.influence[:n], _EARLIER[:n, :n], out=desk.influence[:n])
    score = start[:n] - earlier.dot(desk.clipped)
    losses, norm = loss.losses(task, score, rows.labels), np.abs(data) * lengths
    desk.gather()
    shrink = 1.0 if decay is None else float(decay[n])
    new = shrink * (work.w[:d] - desk.change)
    intercept = float(work.b[0] - rate.intercept.dot(desk.clipped))
    cells = (shrink * pull * desk.clipped)[:, None]
    bound = float(np.abs(cells).sum() + np.abs(work.w[rows.cells]).sum()) if rows.cells.shape[1] else 0.0
    if not (isfinite(intercept + bound) and finite(losses) and finite(norm) and finite(new) and finite(after.m2)):
        return False
    _apply(work, rows, new, intercept, cells, shrink)
    work.normalizer = after
    work.examples += n
    here = slice(rows.start, rows.start + n)
    trace.score[here], trace.loss[here], trace.norm[here], trace.good[here] = score, losses, norm, True
    return True


def _products(factors: Vector) -> Vector:
    """Return 1, f_0, f_0 f_1, …, [n + 1]."""
    products = np.ones(len(factors) + 1)
    np.multiply.accumulate(factors, out=products[1:])
    return products


def _apply(work: Work, rows: Rows, new: Vector, intercept: float, cells: Matrix, shrink: float) -> None:
    d = len(new)
    if shrink != 1.0:
        work.w[d:] *= shrink
    work.w[:d] = new
    work.b[0] = intercept
    if rows.cells.shape[1]:
        np.subtract.at(work.w, rows.cells, cells)


def _add_categories(work: Work, rows: Rows, pull: Vector, decay: Vector | None, desk: Desk) -> None:
    """Two rows share a 1 for each categorical feature in which they hit the same bucket."""
    n = len(rows)
    same = np.zeros((n, n))
    for column in rows.cells.T:
        same += column[:, None] == column
    same *= pull
    table = work.w[rows.cells].sum(axis=1)
    if decay is not None:
        same *= decay[:n, None]
        table *= decay[:n]
    for half in (slice(n), slice(n, None)):
        desk.influence[half] += same
        desk.start[half] += table


def _recursion(rule: Rule, rows: Rows, start: Vector, desk: Desk, lengths: Vector) -> Vector:
    """Fill `desk.clipped` with the slope of each row's weighted loss, clipped, in turn; return them unclipped, [n].

    What is not known yet is 0, so a whole row of `influence` may be used.
    """
    slope, limit, clipped = loss.slope(rule.spec.task), rule.hyper.clip_norm, desk.clipped
    clipped[:] = 0.0
    parts = zip(desk.dots, start.tolist(), rows.labels.tolist(), rows.weights.tolist(), strict=True)
    if not limit:
        for i, (dot, z, y, weight) in enumerate(parts):
            clipped[i] = weight * slope(z - float(dot(clipped)), y)
        return clipped
    data = np.zeros(len(rows))
    for i, (dot, z, y, weight) in enumerate(parts):
        data[i] = g = weight * slope(z - float(dot(clipped)), y)
        norm = abs(g) * lengths[i]
        clipped[i] = g * (limit / norm) if norm > limit else g
    return data


def _one_by_one(rule: Rule, work: Work, rows: Rows, trace: Trace) -> None:
    """The plain rule. Slower, but nothing can go wrong between rows: a row that is not finite is simply left out."""
    for i in range(len(rows)):
        trace.good[rows.start + i] = _row(rule, work, rows, i, trace)


def _row(rule: Rule, work: Work, rows: Rows, i: int, trace: Trace) -> bool:
    """Learn row i; return False, with nothing changed, if anything about it is not finite."""
    task, hyper, d = rule.spec.task, rule.hyper, rule.layout.numeric
    eta, beta = (float(r[0]) for r in rates(hyper, work.examples, 1))
    predicted, x, normalizer = advance_row(work.normalizer, rows.dense[i], standardize=rule.spec.standardize)
    w, cells, y = work.w[:d], rows.cells[i], rows.labels[i]
    table = work.w[cells]
    base = float(table.sum()) + float(work.b[0])
    score = float(w.dot(predicted)) + base
    loss_of_row = float(loss.losses(task, np.array([score]), rows.labels[i : i + 1])[0])
    g = float(rows.weights[i]) * loss.slope(task)(float(w.dot(x)) + base, float(y))
    norm = abs(g) * sqrt(float(x.dot(x)) + len(cells) + 1.0)
    if not (isfinite(norm) and isfinite(loss_of_row)):
        return False  # before clipping: limit / inf is 0, and would hide it
    if hyper.clip_norm and norm > hyper.clip_norm:
        g *= hyper.clip_norm / norm
    keep = 1.0 - eta * hyper.l2
    new, new_table, intercept = keep * w - (eta * g) * x, keep * table - eta * g, float(work.b[0]) - beta * g
    if not (isfinite(intercept) and finite(new) and finite(new_table) and finite(normalizer.m2)):
        return False
    if keep < -1.0 and not finite(keep * work.w[d:]):
        return False  # decay overshoots: weights that no row hits grow as well
    if hyper.l2:
        work.w[d:] *= keep
    work.w[:d] = new
    work.w[cells] = new_table
    work.b[0] = intercept
    work.normalizer = normalizer
    work.examples += 1
    at = rows.start + i
    trace.score[at], trace.loss[at], trace.norm[at] = score, loss_of_row, norm
    return True
