"""From SIGKILL to learning again, by number of waiting features; and whether anything was lost or learned twice."""

import time
import uuid
from dataclasses import replace

from ops.bench.events import feature, label, send
from ops.bench.figure import Figure, cost
from ops.bench.model import Model, models, wait_for
from ops.bench.servers import Servers
from ops.bench.sizes import Sizes

TARGET_S = 10.0
DELAY_MS = 3_600_000
FIRST = 0.01  # of the labels are sent at once, the others when it learns again


def measure(servers: Servers, sizes: Sizes) -> list[Figure]:
    with models(servers) as make:
        static = [
            restarted(make(kafka__group_instance_id=f"bench-{uuid.uuid4().hex}"), count, "static member")
            for count in sizes.pending
        ]
        return [*static, restarted(make(), sizes.pending[-1], "dynamic member, session 10 s")]


def restarted(model: Model, count: int, how: str) -> Figure:
    """Kill a worker while `count` features wait, start it again, and have their labels learned to the last one."""
    send(model.servers.kafka, model.topics, map(feature, range(count)))
    worker = model.start("--init")
    wait_for(lambda: model.ledger().pending == count, f"{count} waiting features")
    killed = time.monotonic()
    worker.kill()
    model.start()
    first = max(1, round(FIRST * count))
    send(model.servers.kafka, model.topics, (label(i, DELAY_MS) for i in range(first)))
    wait_for(lambda: model.store.load().learner.examples, "an example learned after the restart", pause_s=0.01)
    seconds = time.monotonic() - killed
    send(model.servers.kafka, model.topics, (label(i, DELAY_MS) for i in range(first, count)))
    wait_for(lambda: not model.ledger().pending, "all labels learned")
    ledger, learned = model.ledger(), model.store.load().learner.examples
    wrong = abs(ledger.trained - 2 * count) + abs(learned - count) + abs(ledger.consumed - 2 * count)
    model.close()
    name = f"SIGKILL to learning again, {count:,} features wait, {how}"
    figure = cost(name, "s", [seconds], TARGET_S, {"lost or learned twice": float(wrong)})
    return replace(figure, target=f"{figure.target}, none lost or twice", met=bool(figure.met) and not wrong)
