"""A fleet of simulated workers on one real Redis: examples a second, conflicts and waits by number of workers.

`python -m ops.bench.fleet [--kernels …] [--workers …] [--parameters …] [--every …] [--plot FILE] [--redis URL]` prints
Markdown: the table, and the formula fitted to it.
"""

import argparse
import multiprocessing
import os
import secrets
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path

from ops.bench import machine
from ops.bench.events import SPEC, D
from ops.bench.figure import Figure, rate
from ops.bench.fleet_fit import Fit, Point, fit, markdown, summarise
from ops.bench.fleet_worker import BATCH, Pace, Pool, SimulatedWorker
from ops.bench.servers import Servers, servers
from ops.bench.sizes import Sizes
from worker.learn.kernel import Kernel
from worker.learn.learner import Learner
from worker.learn.model import initial_state
from worker.learn.state import Learn
from worker.spec import Feature, Hyper, Spec
from worker.state.redis_connect import connect
from worker.state.redis_store import RedisStore
from worker.state.redis_turn import RedisTurnQueue
from worker.state.store import Checkpoint, Consumed, LogEntry, Version
from worker.stream.rows import RowFormat

KERNELS: tuple[Kernel, ...] = ("numba", "numpy")
WORKERS = (1, 2, 4, 8, 16, 32, 64)
BITS: dict[int, tuple[int, ...]] = {0: (), 1_000: (10,), 100_000: (16, 15)}  # of hashed features, beside 20 numeric
EVERY = (8_000, 1_000)
SECONDS = 6.0
TARGETS = {"numba": 2_000_000, "numpy": 300_000}
# Processes are forked, because 64 of them would otherwise each import torch and compile for seconds.
_FORK = multiprocessing.get_context("fork")


def measure(there: Servers, sizes: Sizes) -> list[Figure]:
    """Return the ceiling of each kernel, and how linear the way to it is."""
    pace, figures = Pace(), []
    for kernel in KERNELS:
        points = [run(there.redis, kernel, 0, pace, workers, sizes.fleet_s) for workers in sizes.fleet]
        best = max(points, key=lambda point: point.rate)
        more = {f"{p.workers} workers": round(p.rate) for p in points} | {"conflicts": float(conflicts(points))}
        name = f"fleet, d = {D}, {kernel}: most of {len(points)} sizes"
        figures.append(rate(name, "examples/s", [best.rate], TARGETS[kernel], more))
    return figures


def best_of(
    repeats: int, redis: str, kernel: Kernel, hashed: int, pace: Pace, workers: int, seconds: float
) -> Point:  # fmt: skip
    """Return the fastest of some runs: whatever else runs on the machine only ever adds to a time."""
    points = [run(redis, kernel, hashed, pace, workers, seconds) for _ in range(repeats)]
    return max(points, key=lambda point: point.rate)


def conflicts(points: Sequence[Point]) -> int:
    return sum(point.conflicts for point in points)


def spec_of(hashed: int) -> Spec:
    features = (Feature(f"c{i}", "categorical", bits=bits) for i, bits in enumerate(BITS[hashed]))
    return Spec((*SPEC.features, *features))


def run(redis: str, kernel: Kernel, hashed: int, pace: Pace, workers: int, seconds: float) -> Point:
    """Let a fleet work on a model of its own for some seconds; drop the model afterwards."""
    spec = spec_of(hashed)
    learner, pool = Learner(spec, Hyper(batch_size=BATCH), kernel), Pool.of(spec, pace.most)
    link = connect(redis)
    store = RedisStore(link, f"bench-{secrets.token_hex(6)}")
    empty = Checkpoint(Version(0, secrets.token_hex(8)), spec.document(), kernel, frozenset(), initial_state(spec))
    assert store.create(empty, LogEntry("init", "bench", Consumed((), b"", 0), 0, BATCH, kernel, "", ""))
    link.drop_connections()  # a connection must not be shared with those who are forked
    gate, pipes, processes = _FORK.Barrier(workers), [], []
    for number in range(workers):
        here, there = _FORK.Pipe(duplex=False)
        arguments = (redis, store.model, spec, learner, pool, pace, number, gate, seconds, there)
        processes.append(_FORK.Process(target=_work, args=arguments, daemon=True))
        processes[-1].start()
        there.close()  # so that a worker's end is seen here
        pipes.append(here)
    try:
        taken = [turn for pipe in pipes for turn in pipe.recv()]
    except EOFError as error:
        raise SystemExit("a simulated worker ended before its time: see its error above") from error
    finally:
        for process in processes:
            process.join(10)
            process.kill()
        link.client.unlink(*link.client.keys(f"gradstream:{{{store.model}}}*"))
        link.drop_connections()
    return summarise(kernel, hashed, pace.every, workers, taken)


def _work(
    redis: str, model: str, spec: Spec, learn: Learn, pool: Pool, pace: Pace, number: int, gate: Barrier,
    seconds: float, result: Connection,
) -> None:  # fmt: skip
    link = connect(redis)
    queue = RedisTurnQueue(link, model, pace.turn_wait_s)
    worker = SimulatedWorker(RedisStore(link, model), queue, learn, RowFormat(spec), pool, pace)
    worker.claim(number)
    worker.warm_up()
    gate.wait(120)
    worker.run(time.monotonic() + seconds)
    result.send(worker.turns)


def fits(points: Sequence[Point], prepare_us: float) -> dict[tuple[str, int], Fit]:
    """Return L and c of each kernel and size of state, over all fleets and sizes of turns."""
    keys = dict.fromkeys((point.kernel, point.parameters) for point in points)
    return {key: fit([p for p in points if (p.kernel, p.parameters) == key], prepare_us) for key in keys}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m ops.bench.fleet", description=__doc__)
    parser.add_argument("--kernels", nargs="+", choices=KERNELS, default=KERNELS)
    parser.add_argument("--workers", nargs="+", type=int, default=WORKERS, metavar="N")
    parser.add_argument("--parameters", nargs="+", type=int, choices=BITS, default=(0, 1_000, 100_000), metavar="P")
    parser.add_argument("--every", nargs="+", type=int, default=EVERY, metavar="K", help="examples at which one is due")
    parser.add_argument("--prepare-us", type=float, default=5.0, metavar="US", help="preparation of an example")
    parser.add_argument("--seconds", type=float, default=SECONDS, metavar="S", help="how long each fleet works")
    parser.add_argument("--repeats", type=int, default=1, metavar="R", help="runs of each fleet; the fastest is shown")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="where to put a plot (SVG)")
    parser.add_argument("--redis", default="", metavar="URL", help="a Redis that is there already")
    given = parser.parse_args(arguments)
    said, points = machine.describe(), list[Point]()
    with servers("not needed", given.redis) as there:
        for kernel in given.kernels:
            for hashed in given.parameters:
                for every in given.every:
                    for workers in given.workers:
                        pace = Pace(given.prepare_us, every)
                        p = best_of(given.repeats, there.redis, kernel, hashed, pace, workers, given.seconds)
                        points.append(p)
                        print(f"{kernel} {hashed} {every} {workers}: {p.rate:,.0f} examples/s", file=sys.stderr)
    found = fits(points, given.prepare_us)
    print(markdown(points, found))
    load = os.getloadavg()[0]
    print("\n" + ", ".join(f"{name} {value}" for name, value in said.items()) + f"; at the end {load:.2f}")
    if given.plot:
        from ops.bench.fleet_plot import draw  # noqa: PLC0415  (matplotlib is for those who want a plot)

        draw(points, found, given.prepare_us, given.plot)


if __name__ == "__main__":
    main()
