"""One and two real workers over the same backlog, on all cores of the machine, which broker and store share with them.

No figure of what a second machine would bring: what one machine has left once everything runs on it.
"""

from collections.abc import Callable, Sequence
from datetime import datetime

from ops.bench.events import joined, send
from ops.bench.figure import Figure, rate
from ops.bench.machine import worker_core
from ops.bench.model import Model, models
from ops.bench.servers import Servers
from ops.bench.sizes import Sizes
from worker.state.commit_log import LoggedCommit

PARTITIONS = 4
EVERY_S = 0.25  # more turns than a second would bring in so short a run


def measure(servers: Servers, sizes: Sizes) -> list[Figure]:
    with models(servers) as make:
        events = make(partitions=PARTITIONS)
        send(servers.kafka, events.topics, joined(2 * sizes.examples))
        one, two = list[float](), list[float]()
        for _ in range(sizes.rounds):
            one.append(_run(make, events, 1, 2 * sizes.examples))
            two.append(_run(make, events, 2, 2 * sizes.examples))
    where = "pinned to the other cores" if worker_core() is not None else "where they like"
    more = {"times one worker (median)": sorted(b / a for a, b in zip(one, two, strict=True))[len(one) // 2]}
    return [
        rate("one worker on any core, joined", "examples/s", one),
        rate(f"two workers on any core, joined, servers {where}", "examples/s", two, more=more),
    ]


def _run(make: Callable[..., Model], events: Model, workers: int, examples: int) -> float:
    model = make(events, PARTITIONS, stream__mode="joined", commit__every_s=EVERY_S)
    started = [model.start("--init", "--drain", pinned=False) for _ in range(workers)]
    for worker in started:
        worker.wait()
    learned = model.store.load().learner.examples
    if learned != examples or any(worker.process.returncode for worker in started):
        ends = [(worker.process.returncode, worker.lines()[-1:]) for worker in started]
        raise SystemExit(f"{workers} workers learned {learned} of {examples} examples: {ends}")
    return together(list(model.store.commit_log()), workers)


def together(log: Sequence[LoggedCommit], workers: int) -> float:
    """Return the examples a second from the moment when all had committed once to that when the first was done.

    Raises `SystemExit` where one of them has had no share: nothing was measured then.
    """
    turns = [
        (datetime.fromisoformat(c.entry.committed_at).timestamp(), c.entry) for c in log if c.entry.kind == "train"
    ]
    times: dict[str, list[float]] = {}
    for at, entry in turns:
        times.setdefault(entry.worker, []).append(at)
    start, end = max(map(min, times.values()), default=0.0), min(map(max, times.values()), default=0.0)
    if len(times) != workers or end <= start:
        raise SystemExit(f"{len(times)} of {workers} workers had a share of this backlog: take a larger one")
    return sum(entry.examples for at, entry in turns if start < at <= end) / (end - start)
