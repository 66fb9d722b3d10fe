"""How long a killed worker is missed: until its partitions are learned elsewhere, and until another one has the turn.

Two workers share a model; one of them is killed while records come in. As a module it is the holder of the turn that
is killed: it stands in line, says when its turn has come, and keeps it.
"""

import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from math import ceil
from threading import Event, Thread
from typing import Any

from kafka import KafkaProducer

from ops.bench.events import example, send
from ops.bench.figure import Figure, cost
from ops.bench.model import Model, Worker, models, wait_for
from ops.bench.servers import Servers
from ops.bench.sizes import Sizes
from worker.state.redis_connect import connect
from worker.state.redis_store import RedisStore

PARTITIONS = 4
LOOK_S = 0.005
TURN_WAIT_MS = 2000  # the default
SLACK_MS = 100.0  # what a turn may take beyond the wait, from the kill on


def measure(servers: Servers, sizes: Sizes) -> list[Figure]:
    with models(servers) as make:
        return [
            _missed(make, sizes.takeovers, static=False),
            _missed(make, sizes.takeovers, static=True),
            _next_turn(make, sizes.takeovers),
        ]


def percentile(values: list[float], share: float) -> float:
    """Return the nearest-rank percentile: the smallest value that at least this share does not exceed."""
    return sorted(values)[max(1, ceil(share * len(values))) - 1]


def _missed(make: Callable[..., Model], runs: int, *, static: bool) -> Figure:
    """Kill one of two workers over and over. A static one is started again at once, a dynamic one is replaced later."""
    model = make(partitions=PARTITIONS, stream__mode="inline", commit__every_s=0.1)
    names = [f"bench-{uuid.uuid4().hex}" for _ in range(2)] if static else ["", ""]
    alive = [_started(model, name, "--init") for name in names]
    sent, seconds = count(), list[float]()
    for _ in range(runs):
        shares = wait_for(lambda: _shares(model, alive), "two workers share the partitions")
        victim = alive.pop(0)
        before = {n: _position(model, n) for n in shares[victim.process.pid]}
        killed = time.monotonic()
        victim.kill()
        names.append(names.pop(0))
        if static:
            alive.append(_started(model, names[-1]))
        send(model.servers.kafka, model.topics, (example(next(sent)) for _ in range(40 * PARTITIONS)))
        wait_for(lambda: all(_position(model, n) > at for n, at in before.items()), "its partitions", LOOK_S)  # noqa: B023
        seconds.append(time.monotonic() - killed)
        if not static:
            alive.append(_started(model, ""))
    how = "a static member, started again at once" if static else "a dynamic member, session 10 s"
    total = next(sent)
    wait_for(lambda: model.ledger().consumed >= total, "all is learned")
    wrong = abs(model.store.load().learner.examples - total) + abs(model.ledger().trained - total)
    model.close()
    more = {"p99": round(percentile(seconds, 0.99), 2), "lost or learned twice": float(wrong)}
    return cost(f"SIGKILL to its partitions learned elsewhere, {how}", "s", seconds, more=more)


def _started(model: Model, name: str, *arguments: str) -> Worker:
    model.settings["kafka.group_instance_id"] = name
    return model.start(*arguments, pinned=False)


def _shares(model: Model, alive: list[Worker]) -> dict[int, list[int]] | None:
    """Return who owns which partitions, by process, once every partition has one owner and every worker has some."""
    told: list[dict[str, Any]] = model.store.workers()
    said = {one["pid"]: one["partitions"] for one in told}
    shares: dict[int, list[int]] = {worker.process.pid: said.get(worker.process.pid, []) for worker in alive}
    owned = sorted(n for share in shares.values() for n in share)
    return shares if all(shares.values()) and owned == list(range(PARTITIONS)) else None


def _position(model: Model, partition: int) -> int:
    stored = model.store.load_partition(partition)
    return 0 if stored is None else stored.state.sides[0].next_offset


def _next_turn(make: Callable[..., Model], runs: int) -> Figure:
    """Kill who holds the turn while two workers with work in hand stand in line behind it."""
    model = make(partitions=PARTITIONS, stream__mode="inline", commit__every_s=0.05)
    alive = [_started(model, "", "--init") for _ in range(2)]
    waits = []
    with _records(model):
        wait_for(lambda: _shares(model, alive), "two workers share the partitions")
        for _ in range(runs):
            holder = _holder(model)
            killed, before = time.monotonic(), model.store.version()
            holder.kill()
            wait_for(lambda: model.store.version() != before, "the next turn", 0.001)  # noqa: B023
            waits.append((time.monotonic() - killed) * 1000)
            holder.wait()
    model.close()
    more = {"p99": round(percentile(waits, 0.99)), "longest": round(max(waits))}
    figure = cost("SIGKILL of the turn's holder to the next turn", "ms", waits, TURN_WAIT_MS + SLACK_MS, more)
    return Figure(
        figure.name, figure.unit, figure.value, figure.best, figure.target, max(waits) <= TURN_WAIT_MS + SLACK_MS, more
    )


def _holder(model: Model) -> "subprocess.Popen[bytes]":
    """Return a process at turn."""
    command = [sys.executable, "-m", "ops.bench.takeover", model.servers.redis, model.name]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    with holder.stdout:
        holder.stdout.readline()
    return holder


@contextmanager
def _records(model: Model) -> Iterator[None]:
    """Send a record every few milliseconds."""
    over = Event()

    def feed() -> None:
        producer = KafkaProducer(bootstrap_servers=model.servers.kafka)
        for i in count():
            if over.wait(0.005):
                break
            _, key, value = example(i)
            producer.send(model.topics["examples"], value, key)
        producer.close()

    thread = Thread(target=feed)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def hold(redis: str, model: str) -> None:
    """Stand in line until the turn has come, say so, and keep it."""
    queue = RedisStore(connect(redis), model).turn_queue(TURN_WAIT_MS / 1000)
    queue.ask()
    while not queue.granted(1.0):
        pass
    print("at turn", flush=True)
    Event().wait()


if __name__ == "__main__":
    hold(*sys.argv[1:])
