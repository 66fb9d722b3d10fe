"""`learn`: from a state and examples to the next state and a report. A pure function; reads no clock and no chance.

Must not know where examples come from or where states go.
"""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from worker.errors import ConfigError
from worker.learn import evaluation
from worker.learn.kernel import Kernel, choose_kernel
from worker.learn.layout import Layout
from worker.learn.minibatch import MiniBatch, warm_up
from worker.learn.model import one_thread
from worker.learn.rates import rates
from worker.learn.sequential import Desk, Sequential
from worker.learn.state import LearnerState, Report
from worker.learn.work import Rows, Rule, Trace, Vector, Work
from worker.spec import Hyper, Spec
from worker.stream.rows import Examples

if TYPE_CHECKING:
    from worker.learn.compiled import Compiled


class Learner:
    """The rule of learning under one spec: call it with a state and examples (the protocol `Learn`)."""

    def __init__(self, spec: Spec, hyper: Hyper, kernel: Kernel = "numpy") -> None:
        """Get ready: what takes seconds (compiling, loading) is done here, not in the first turn.

        Raises `ConfigError` where the kernel can not compute this spec or is not installed.
        """
        self.kernel: Kernel = choose_kernel(kernel, spec)
        one_thread()
        if spec.reduction != "sequential":
            warm_up()
        self._rule = Rule(spec, hyper, Layout.of(spec))
        self._compiled = _machine_code(self._rule) if kernel == "numba" else None
        self._desks: dict[int, Desk] = {}

    def __call__(self, state: LearnerState, examples: Examples) -> tuple[LearnerState, Report]:
        """Predict, then learn, every row in order; batches are cut every `batch_size` rows from the first.

        The arrays that come in are never changed. Every value that goes out is finite if those that came in are.
        """
        work, trace = Work.of(state, self._rule.layout), Trace.of(len(examples))
        # Overflow is part of the plan: it is looked for batch by batch and led back to its rows.
        with np.errstate(all="ignore"), torch.no_grad():
            self._run(work, examples, trace)
            judged = _evaluation(self._rule, state, trace, examples.labels)
            after = LearnerState({**_arrays(state, work, trace), **judged})
            return after, _report(self._rule, state, work, trace, examples.weights)

    def _run(self, work: Work, examples: Examples, trace: Trace) -> None:
        if self._compiled is not None:
            self._compiled.run(work, examples, trace)
            return
        rows = Rows.of(examples, self._rule.layout)
        batches = (
            Sequential(self._rule, work, trace, self._desks)
            if self._rule.spec.reduction == "sequential"
            else MiniBatch(self._rule, work, trace)
        )
        for low in range(0, len(rows), self._rule.hyper.batch_size):
            batches.step(rows[low : low + self._rule.hyper.batch_size])


def _machine_code(rule: Rule) -> "Compiled":
    """Return the recursion as machine code. Loads numba, which only those who learn with it should pay for."""
    try:
        from worker.learn.compiled import Compiled  # noqa: PLC0415
    except ImportError as problem:
        raise ConfigError(f"numba does not load here ({problem}): mend it, or set train.kernel to numpy") from problem
    return Compiled(rule)


def _arrays(state: LearnerState, work: Work, trace: Trace) -> dict[str, npt.NDArray[np.generic]]:
    skipped = np.flatnonzero(~trace.good)
    last = state.arrays["counters.last_skipped"]
    if len(skipped):
        last = np.array([state.examples + np.count_nonzero(trace.good[: skipped[-1]])])
    return {
        "weight": work.w,
        "intercept": work.b,
        "normalizer.count": work.normalizer.count,
        "normalizer.mean": work.normalizer.mean,
        "normalizer.m2": work.normalizer.m2,
        "counters.examples": np.array([work.examples], np.int64),
        "counters.steps": np.array([work.steps], np.int64),
        "counters.skipped": np.array([int(state.arrays["counters.skipped"][0]) + len(skipped)], np.int64),
        "counters.last_skipped": last.astype(np.int64),
    }


def _evaluation(rule: Rule, state: LearnerState, trace: Trace, labels: Vector) -> evaluation.Arrays:
    score, loss = trace.score, trace.loss
    if not trace.good.all():
        score, loss, labels = score[trace.good], loss[trace.good], labels[trace.good]
    return evaluation.observe(state.arrays, rule.spec.task, score, loss, labels)


def _report(rule: Rule, state: LearnerState, work: Work, trace: Trace, weights: Vector) -> Report:
    n, size = len(weights), rule.hyper.batch_size
    cuts = np.arange(0, n, size)
    good = np.add.reduceat(trace.good, cuts, dtype=np.int64) if n else np.zeros(0, np.int64)
    weight = np.where(trace.good, weights, 0.0)
    loss = _sums(weight * trace.loss, cuts) / _sums(weight, cuts)
    alike = rule.spec.reduction != "sequential"  # every row carries the norm of its batch
    highest = np.maximum.reduceat(trace.norm, cuts) if n else np.zeros(0)
    highest[good == 0] = np.nan
    change = work.w - np.asarray(state.arrays["weight"], np.float64)
    weight_norm = _length(work.w)
    return Report(
        rows=good.tolist(),
        skipped=(np.minimum(size, n - cuts) - good).tolist(),
        loss=loss.tolist(),
        grad_norm=(highest if alike else _sums(trace.norm, cuts) / good).tolist(),
        grad_norm_max=highest.tolist(),
        learning_rate=float(rates(rule.hyper, max(_moment(rule, work) - 1, 0), 1).weight[0]),
        weight_norm=weight_norm,
        update_ratio=_length(change) / weight_norm if weight_norm else 0.0,
        guilty=np.flatnonzero(~trace.good).tolist(),
    )


def _moment(rule: Rule, work: Work) -> int:
    return work.examples if rule.spec.reduction == "sequential" else work.steps


def _sums(values: Vector, cuts: npt.NDArray[np.int64]) -> Vector:
    return np.add.reduceat(values, cuts) if len(values) else np.zeros(0)


def _length(vector: Vector) -> float:
    # No `dot`: from 10 000 numbers on it wakes other threads, and on a busy machine the turn waits for them.
    plain = float(np.sqrt(np.square(vector).sum()))
    if np.isfinite(plain):
        return plain
    largest = float(np.abs(vector).max())  # finite values, of which the squares are not
    return largest * float(np.sqrt(np.square(vector / largest).sum()))
