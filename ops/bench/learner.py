"""The learner alone: µs an example by batch size, on finished examples in memory."""

import json

import numpy as np

from ops.bench.events import SPEC, D, example
from ops.bench.figure import Figure, cost, timed
from ops.bench.sizes import Sizes
from worker.learn.learner import Learner
from worker.learn.model import initial_state
from worker.spec import Hyper
from worker.stream.rows import Examples

TARGET_US = {64: 3.0}


def measure(sizes: Sizes) -> list[Figure]:
    return [_batches_of(size, sizes) for size in sizes.batch_sizes]


def _batches_of(batch_size: int, sizes: Sizes) -> Figure:
    n = sizes.micro if batch_size > 1 else max(1, sizes.micro // 10)
    rows, learner, state = examples(n), Learner(SPEC, Hyper(batch_size=batch_size)), initial_state(SPEC)
    state, _ = learner(state, rows)
    taken = timed(lambda: learner(state, rows), sizes.repeats, 1e6 / n)
    return cost(f"learner alone, d = {D}, batches of {batch_size}", "µs/example", taken, TARGET_US.get(batch_size))


def examples(n: int) -> Examples:
    events = [json.loads(example(i)[2]) for i in range(n)]
    dense = np.array([list(event["features"].values()) for event in events], np.float64)
    labels = np.array([event["label"] for event in events], np.float64)
    return Examples(dense, np.empty((n, 0), np.int64), labels, np.ones(n))
