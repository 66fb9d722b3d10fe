"""Commit latency by size of the state: encoding, one compare-and-set on Redis, and its reply."""

import secrets
import time
from dataclasses import replace
from datetime import UTC, datetime
from zlib import compress

import numpy as np
from pyroaring import BitMap64

from ops.bench.events import SPEC, D
from ops.bench.figure import Figure, cost
from ops.bench.servers import Servers
from ops.bench.sizes import Sizes
from worker.learn.model import initial_state
from worker.learn.state import LearnerState
from worker.spec import Feature, Spec
from worker.state.redis_connect import connect
from worker.state.redis_store import RedisStore
from worker.state.store import Checkpoint, Commit, Committed, Consumed, Fence, LogEntry, Version
from worker.stream.positions import Ledger, PartitionState, SideState

TARGET_MS = 1.0
WAITING = 1000


def measure(servers: Servers, sizes: Sizes) -> list[Figure]:
    return [_of_size(servers, bits, sizes.commits) for bits in sizes.parameters]


def _of_size(servers: Servers, bits: int, commits: int) -> Figure:
    more = (Feature("c", "categorical", bits=bits), Feature("d", "categorical", bits=bits - 1)) if bits else ()
    spec = Spec(SPEC.features + more)
    link = connect(servers.redis)
    store = RedisStore(link, f"bench-{secrets.token_hex(6)}")
    checkpoint = Checkpoint(Version(1, secrets.token_hex(8)), spec.document(), "numpy", frozenset({0}), _filled(spec))
    kept = link.info("persistence", store.keys.state)["aof_enabled"]  # then every commit is written to disk as well
    try:
        taken = _commit_often(store, checkpoint, commits)
    finally:
        link.client.unlink(*link.client.keys(f"gradstream:{{{store.model}}}*"))
    weights = len(checkpoint.learner.arrays["weight"])
    target = TARGET_MS if weights < 200_000 else None
    behind = {"p95": round(float(np.quantile(taken, 0.95)), 2), "append-only file": float(kept)}
    return cost(f"commit, {weights + 1:,} parameters", "ms", taken, target, behind)


def _filled(spec: Spec) -> LearnerState:
    """Return a state whose numbers are as if learned: zeros could be cheaper."""
    rng, empty = np.random.default_rng(1), initial_state(spec)
    weight = rng.normal(size=empty.arrays["weight"].shape)
    return LearnerState({**empty.arrays, "weight": weight})


def _commit_often(store: RedisStore, checkpoint: Checkpoint, commits: int) -> list[float]:
    entry = LogEntry("train", "bench", _consumed(), 5000, 64, "numpy", "0" * 64, datetime.now(UTC).isoformat())
    assert store.create(checkpoint, entry)
    state = _partition()
    fence = store.claim(0, Fence(""), state)
    taken = []
    for _ in range(commits):
        assert fence is not None
        base = checkpoint.version
        checkpoint = replace(checkpoint, version=Version(base.number + 1, secrets.token_hex(8)))
        started = time.perf_counter()
        done = store.commit(Commit(base, checkpoint, {0: (fence, state)}, entry))
        taken.append((time.perf_counter() - started) * 1000)
        assert isinstance(done, Committed)
        fence = done.fences[0]
    return taken


def _consumed() -> Consumed:
    """Return the order of 10 000 records of two topics, packed as a worker packs it."""
    order = np.tile(np.array([0, 1], "<u2"), 5000)
    return Consumed((("features", 0, 0), ("labels", 0, 0)), compress(order.tobytes(), 1), len(order))


def _partition() -> PartitionState:
    """Return positions with a thousand waiting features, and the last 100 000 records remembered."""
    pending = BitMap64(range(100_000, 100_000 + WAITING)).serialize()
    trained = BitMap64(range(100_000)).serialize()
    ledger = Ledger(consumed=200_000 + WAITING, trained=200_000, pending=WAITING)
    return PartitionState(0, ledger, tuple(SideState(t, D * "-", 101_000, 1, 1, 0, pending, trained) for t in "fl"))
