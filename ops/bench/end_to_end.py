"""Examples a second through the whole worker, beside what the client alone can read of the same topics.

One core for whoever reads, the broker on the others; the readers take turns, so that a ratio compares the same minute.
"""

import json
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

from ops.bench.events import example, joined, send
from ops.bench.figure import Figure, rate
from ops.bench.machine import keep_on_core, processor_seconds
from ops.bench.model import Model, Worker, models, wait_for
from ops.bench.servers import Servers
from ops.bench.sizes import Sizes

EXAMPLES_S = 30_000  # either this or that is the target, joined
SHARE = 0.6
_STAGE = re.compile(r'^gradstream_stage_seconds_total\{stage="(\w+)"\} (\S+)', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Run:
    """One reader over one backlog: seconds, seconds of the processor, and the share of each stage (a worker's)."""

    seconds: float
    busy: float
    stages: dict[str, float] = field(default_factory=dict)


def measure(servers: Servers, sizes: Sizes) -> list[Figure]:
    with models(servers) as make:
        events = make()
        send(servers.kafka, events.topics, joined(sizes.examples))
        send(servers.kafka, events.topics, map(example, range(sizes.examples)))
        return [
            *_mode(make, events, sizes, "joined", ("features", "labels")),
            *_mode(make, events, sizes, "inline", ("examples",)),
        ]


def _mode(make: Callable[..., Model], events: Model, sizes: Sizes, mode: str, roles: Sequence[str]) -> list[Figure]:
    topics, records = [events.topics[role] for role in roles], sizes.examples * len(roles)
    client, source, worker = list[Run](), list[Run](), list[Run]()
    for _ in range(sizes.rounds):
        client.append(alone("client", events.servers.kafka, topics, records))
        source.append(alone("adapter", events.servers.kafka, topics, records))
        worker.append(learn(make(events, stream__mode=mode), sizes.examples))
    return [
        whole(mode, worker, client, sizes.examples),
        rate(f"end to end, {mode}: share of what the client alone reads", "", _shares(worker, client)),
        _reader(f"the client alone, {mode}", client, sizes.examples),
        _reader(f"the worker's source alone, {mode}", source, sizes.examples),
    ]


def _shares(worker: list[Run], client: list[Run]) -> list[float]:
    """Return the worker's speed as a share of the client's, round by round."""
    return [c.seconds / w.seconds for w, c in zip(worker, client, strict=True)]


def _reader(name: str, runs: list[Run], examples: int) -> Figure:
    more = {"processor µs/example": round(min(run.busy for run in runs) * 1e6 / examples, 2)}
    return rate(name, "examples/s", [examples / run.seconds for run in runs], more=more)


def whole(mode: str, worker: list[Run], client: list[Run], examples: int) -> Figure:
    figure = _reader(f"end to end, {mode}", worker, examples)
    percent = {stage: round(100 * median(run.stages[stage] for run in worker), 1) for stage in worker[0].stages}
    more = {**figure.more, **{f"{stage} %": value for stage, value in percent.items()}}
    if mode != "joined":
        return rate(figure.name, figure.unit, [examples / run.seconds for run in worker], more=more)
    met = figure.best >= EXAMPLES_S or max(_shares(worker, client)) >= SHARE
    target = f"≥ {EXAMPLES_S:,}, or {SHARE:.0%} of the client"
    return Figure(figure.name, figure.unit, figure.value, figure.best, target, met, more)


def alone(way: str, broker: str, topics: list[str], count: int) -> Run:
    """Let `ops.bench.poll` read `count` records in a process on the worker's core."""
    command = [sys.executable, "-m", "ops.bench.poll", way, broker, str(count), *topics]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        keep_on_core(process.pid)
        output, _ = process.communicate(timeout=300)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed")
    seconds, busy = json.loads(output)
    return Run(seconds, busy)


def learn(model: Model, count: int) -> Run:
    """Let a worker learn a backlog, from its claim to its last commit.

    Both times are the worker's own, in its log and in the commit log: starting Python and joining the group are not
    in them. Stages and processor time are what it showed last before it ended.
    """
    worker = model.start("--init", "--drain")
    claimed, url = worker.at("partition claimed"), _url(worker)
    started = busy = processor_seconds(worker.process.pid)
    spent: dict[str, float] = {}

    def over() -> bool:
        nonlocal spent, busy
        spent = scrape(url) or spent
        if not worker.said("ended"):  # what follows is the end of Python, no part of learning
            busy = processor_seconds(worker.process.pid) or busy
        return worker.process.poll() is not None

    wait_for(over, "the end of a worker that drains", pause_s=0.25)
    learned = model.store.load().learner.examples
    if worker.process.returncode or learned != count:
        raise SystemExit(f"a worker learned {learned} of {count} examples, exit code {worker.process.returncode}")
    total = sum(spent.values()) or 1.0
    shares = {stage: seconds / total for stage, seconds in spent.items()}
    return Run(model.last_commit_at() - claimed, busy - started, shares)


def _url(worker: Worker) -> str:
    worker.at("serving metrics")
    line = worker.said("serving metrics")
    assert line is not None
    return str(line["url"])


def scrape(url: str) -> dict[str, float]:
    """Return the seconds spent in each stage so far; nothing once the worker has ended."""
    try:
        with urllib.request.urlopen(f"{url}/metrics", timeout=5) as answer:  # noqa: S310  (the worker's own http)
            return stage_seconds(answer.read().decode())
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return {}


def stage_seconds(text: str) -> dict[str, float]:
    return {stage: float(seconds) for stage, seconds in _STAGE.findall(text)}
