"""Small states, partitions and commits that the store tests build on."""

import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec.structs
import numpy as np

from worker.learn.state import LearnerState
from worker.spec import Feature, Spec
from worker.state.store import (
    Checkpoint,
    Commit,
    Consumed,
    Fence,
    Ledger,
    LogEntry,
    PartitionState,
    Recipe,
    SideState,
    Version,
)

SPEC: Mapping[str, object] = Spec((Feature("x1"), Feature("carrier", "categorical", bits=2))).document()


def learner(examples: int = 0, weight: float = 0.5, size: int = 6) -> LearnerState:
    arrays: dict[str, Any] = {
        "weight": np.full(size, weight),
        "intercept": np.array([-0.25]),
        "counters.examples": np.array([examples]),
        "counters.steps": np.array([examples]),
    }
    return LearnerState(arrays)


def version(number: int) -> Version:
    return Version(number, secrets.token_hex(16))


def checkpoint(
    number: int = 0, *, partitions: frozenset[int] = frozenset(), state: LearnerState | None = None
) -> Checkpoint:
    return Checkpoint(version(number), SPEC, "numpy", partitions, state or learner(number))


def partition(number: int = 0, next_offset: int = 0) -> PartitionState:
    ledger = Ledger(consumed=next_offset, trained=next_offset)
    side = SideState("features", "topic-id", next_offset, 1000, 1000, 0, b"\x00pending\xff", b"trained")
    return PartitionState(number, ledger, (side, side))


def entry(kind: str = "train") -> LogEntry:
    consumed = Consumed((("features", 0, 17), ("labels", 0, 3)), b"\x78\x9c\x00\xff\n", 4)
    return LogEntry(kind, "worker-1", consumed, 2, 64, "numpy", "5e77", "2026-01-02T03:04:05Z")


RECIPE = Recipe(
    spec=SPEC, hyper={"learning_rate": 0.1}, roles={"examples": "examples"}, decoding={}, join={}, kernel="numpy",
    software={"python": "3"}, code="c0de",
)  # fmt: skip


def under_recipe(commit: Commit, recipe: Recipe = RECIPE) -> Commit:
    """Return the commit as one that was learned under `recipe`."""
    return replace(commit, recipe=recipe, entry=msgspec.structs.replace(commit.entry, recipe=recipe.digest()))


def commit_on(
    base: Checkpoint, fences: Mapping[int, Fence], *, next_offset: int = 2, state: LearnerState | None = None
) -> Commit:
    """Return a commit on `base` that moves the given partitions to `next_offset`."""
    number = base.version.number + 1
    following = checkpoint(number, partitions=base.partitions | frozenset(fences), state=state)
    touched = {n: (fence, partition(n, next_offset)) for n, fence in fences.items()}
    return Commit(base.version, following, touched, entry())
