"""The learner alone, whole calls on finished examples in memory: µs an example by kernel, call and batch size."""

import json
from collections.abc import Iterator
from importlib.util import find_spec

import numpy as np

from ops.bench.events import SPEC, D, example
from ops.bench.figure import Figure, cost, timed
from ops.bench.sizes import Sizes
from worker.learn.kernel import Kernel
from worker.learn.learner import Learner
from worker.learn.model import initial_state
from worker.spec import Hyper
from worker.stream.rows import Examples

TARGETS_US: dict[tuple[Kernel, int], float] = {("numpy", 64): 3.0, ("numba", 64): 0.5}
CALLS = (1000, 8000, 65_536)  # a short turn, a usual one, the largest there is
KERNELS: tuple[Kernel, ...] = ("numpy", "numba") if find_spec("numba") else ("numpy",)


def measure(sizes: Sizes) -> list[Figure]:
    return list(_figures(sizes))


def _figures(sizes: Sizes) -> Iterator[Figure]:
    """Yield kernels side by side: by batch size in calls of `sizes.micro`, then by call size in batches of 64."""
    rows = examples(min(max(CALLS), 4 * sizes.micro))
    shapes = [(sizes.micro, size) for size in sizes.batch_sizes]
    shapes += [(call, 64) for call in CALLS if call <= len(rows)]
    for call, batch_size in shapes:
        for kernel in KERNELS:
            yield _calls_of(part(rows, call), batch_size, kernel, sizes)


def _calls_of(rows: Examples, batch_size: int, kernel: Kernel, sizes: Sizes) -> Figure:
    if (kernel, batch_size) == ("numpy", 1):  # ten times slower, and no steadier for taking longer
        rows = part(rows, max(1, len(rows) // 10))
    n, learner, state = len(rows), Learner(SPEC, Hyper(batch_size=batch_size), kernel), initial_state(SPEC)
    state, _ = learner(state, rows)
    taken = timed(lambda: learner(state, rows), sizes.repeats, 1e6 / n)
    name = f"learner alone, {kernel}, d = {D}, calls of {n}, batches of {batch_size}"
    return cost(name, "µs/example", taken, TARGETS_US.get((kernel, batch_size)))


def examples(n: int) -> Examples:
    events = [json.loads(example(i)[2]) for i in range(n)]
    dense = np.array([list(event["features"].values()) for event in events], np.float64)
    labels = np.array([event["label"] for event in events], np.float64)
    return Examples(dense, np.empty((n, 0), np.int64), labels, np.ones(n))


def part(rows: Examples, n: int) -> Examples:
    return Examples(rows.dense[:n], rows.buckets[:n], rows.labels[:n], rows.weights[:n])
