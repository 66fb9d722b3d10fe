"""`reduction = "mean" | "sum"`: one gradient for the batch, through torch's own SGD. Must not know metrics.

Every row is predicted with the weights at the start of the batch and the statistics before the row; the gradient uses
its score with the statistics that include it. `mean` divides by the sum of the weights.
"""

from math import isfinite, sqrt

import numpy as np
import torch
from torch import Tensor

from worker.learn import loss
from worker.learn.model import LinearModel, tensor
from worker.learn.normalizer import Normalizer, advance, advance_row
from worker.learn.rates import rates
from worker.learn.work import Rows, Rule, Trace, Work, finite


def warm_up() -> None:
    """Take an empty step: the first one of any optimizer makes torch load its compiler, which takes seconds.

    At start that is a delay; inside the first turn it would hold up commits.
    """
    nothing = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    nothing.grad = torch.zeros(1, dtype=torch.float64)
    torch.optim.SGD([nothing], lr=0.0).step()


class MiniBatch:
    """The optimizer around the parameters of one call."""

    def __init__(self, rule: Rule, work: Work, trace: Trace) -> None:
        self._rule = rule
        self._work = work
        self._trace = trace
        self._model = LinearModel(rule.spec, work.weight, work.intercept)
        self._optimizer = torch.optim.SGD(
            [
                {"params": [self._model.weight], "lr": 0.0, "weight_decay": rule.hyper.l2},
                {"params": [self._model.intercept], "lr": 0.0, "weight_decay": 0.0},
            ]
        )

    def step(self, rows: Rows) -> None:
        """Learn one batch. If it is not finite: without its guilty rows; if that does not help: not at all."""
        everyone = np.arange(len(rows))
        if self._attempt(rows, everyone):
            return
        innocent = everyone[_innocent(self._rule, self._work, rows)]
        if 0 < len(innocent) < len(rows):
            self._attempt(rows, innocent)

    def _attempt(self, batch: Rows, who: np.ndarray[tuple[int], np.dtype[np.int64]]) -> bool:
        """Learn the rows `who` of the batch; return False, with nothing changed, if anything is not finite."""
        rule, work = self._rule, self._work
        dense, cells, labels, weights = batch.dense[who], batch.cells[who], batch.labels[who], batch.weights[who]
        n, d = len(who), rule.layout.numeric
        both = torch.empty((2 * n, d), dtype=torch.float64)
        view = both.numpy()
        normalizer = advance(work.normalizer, dense, view[:n], view[n:], standardize=rule.spec.standardize)
        scores = (both @ work.numeric).numpy().reshape(2, n) + work.w[cells].sum(axis=1) + work.b[0]
        losses = loss.losses(rule.spec.task, scores[0], labels)
        share = weights / weights.sum() if rule.spec.reduction == "mean" else weights
        pull = share * loss.slopes(rule.spec.task, scores[1], labels)
        gradient = torch.zeros_like(work.weight)
        gradient[:d] = both[n:].T @ tensor(pull)
        np.add.at(gradient.numpy(), cells, pull[:, None])
        intercept = torch.tensor([pull.sum()], dtype=torch.float64)
        norm = sqrt(float(gradient @ gradient) + float(intercept @ intercept))
        if not (isfinite(norm) and finite(losses) and finite(normalizer.m2)):
            return False  # before clipping: limit / inf is 0, and would hide it
        if not self._descend(gradient, intercept, norm):
            return False
        work.normalizer = normalizer
        work.examples += n
        work.steps += 1
        trace, at = self._trace, batch.start + who
        trace.score[at], trace.loss[at], trace.norm[at], trace.good[at] = scores[0], losses, norm, True
        return True

    def _descend(self, gradient: Tensor, intercept: Tensor, norm: float) -> bool:
        hyper, work = self._rule.hyper, self._work
        if hyper.clip_norm and norm > hyper.clip_norm:
            gradient *= hyper.clip_norm / norm
            intercept *= hyper.clip_norm / norm
        rate = rates(hyper, work.steps, 1)
        for group, value in zip(self._optimizer.param_groups, rate, strict=True):
            group["lr"] = float(value[0])
        before = work.weight.clone(), work.intercept.clone()
        self._model.weight.grad, self._model.intercept.grad = gradient, intercept
        self._optimizer.step()
        if bool(torch.isfinite(work.weight).all() & torch.isfinite(work.intercept).all()):
            return True
        work.weight.copy_(before[0])
        work.intercept.copy_(before[1])
        return False


def _innocent(rule: Rule, work: Work, rows: Rows) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Tell which rows of the batch are finite by themselves, [n], each on the statistics of the innocent before it."""
    normalizer, verdict = work.normalizer, np.zeros(len(rows), np.bool_)
    for i in range(len(rows)):
        fine, after = _one(rule, work, normalizer, rows[i : i + 1])
        verdict[i] = fine
        normalizer = after if fine else normalizer
    return verdict


def _one(rule: Rule, work: Work, normalizer: Normalizer, row: Rows) -> tuple[bool, Normalizer]:
    predicted, x, after = advance_row(normalizer, row.dense[0], standardize=rule.spec.standardize)
    w = work.w[: rule.layout.numeric]
    scores = np.array([w.dot(predicted), w.dot(x)]) + work.w[row.cells[0]].sum() + work.b[0]
    task, labels = rule.spec.task, row.labels
    value = loss.losses(task, scores[:1], labels)
    pull = row.weights * loss.slopes(task, scores[1:], labels)
    length = x.dot(x) + row.cells.shape[1] + 1.0
    return all(map(finite, (scores, value, pull * pull * length, after.m2))), after
