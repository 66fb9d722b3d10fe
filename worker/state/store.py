"""What the loop asks of a state store. Values and a protocol; no Redis here.

Versions and fences are identities, never counters alone: a counter can come round again after a store went back.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, NewType, Protocol

import msgspec

from worker.learn.state import LearnerState
from worker.stream.positions import Consumed, Ledger, PartitionState, SideState

__all__ = [
    "Checkpoint",
    "Commit",
    "Committed",
    "Consumed",
    "Fence",
    "Fenced",
    "Ledger",
    "LogEntry",
    "Moved",
    "PartitionState",
    "SideState",
    "Store",
    "StoredPartition",
    "Version",
]

Fence = NewType("Fence", str)  # a fresh nonce at each claim and commit; "" where nothing was ever stored


class Version(NamedTuple):
    """A state version: the number people see, and the nonce that makes it one of a kind."""

    number: int
    nonce: str

    def __str__(self) -> str:
        return f"{self.number}:{self.nonce}"


class StoredPartition(NamedTuple):
    fence: Fence
    state: PartitionState


class LogEntry(msgspec.Struct, frozen=True):
    """What the commit log keeps of a commit beside base version, new version and state digest."""

    kind: str  # "train" | "init" | "reset" | "restore"
    worker: str
    consumed: Consumed
    examples: int
    batch_size: int
    kernel: str
    settings_digest: str
    committed_at: str  # RFC 3339, a stamp only


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model state as stored: who it is, under which spec, over which partitions."""

    version: Version
    spec: Mapping[str, object]  # Spec.document()
    kernel: str
    partitions: frozenset[int]  # every partition that was ever committed
    learner: LearnerState


@dataclass(frozen=True, slots=True)
class Commit:
    """State and positions to be made durable together, on top of `base`.

    `checkpoint.version` is the new identity (`base.number + 1` and a fresh nonce). `partitions` maps each touched
    partition to (the fence it is expected to have, its new state).
    """

    base: Version
    checkpoint: Checkpoint
    partitions: Mapping[int, tuple[Fence, PartitionState]]
    entry: LogEntry


@dataclass(frozen=True, slots=True)
class Committed:
    """It is durable; these are the touched partitions' new fences."""

    fences: Mapping[int, Fence]
    state_bytes: int


@dataclass(frozen=True, slots=True)
class Moved:
    """Nothing was written: another version is there (load it, learn again)."""


@dataclass(frozen=True, slots=True)
class Fenced:
    """Nothing was written: these partitions have another owner now (drop their work)."""

    partitions: frozenset[int]


class Store(Protocol):
    """Raises `Transient` (try again), `StateMissing`, `StateCorrupted`."""

    def load(self) -> Checkpoint: ...

    def version(self) -> Version | None: ...

    def load_partition(self, partition: int) -> StoredPartition | None: ...

    def create(self, checkpoint: Checkpoint, entry: LogEntry) -> bool:
        """Write the first state; False (and nothing written) where one exists."""
        ...

    def claim(self, partition: int, expected: Fence, state: PartitionState) -> Fence | None:
        """Write the partition under a fresh fence if its fence is still the expected one ("": not stored), else None.

        A lost reply is recognised by the fence: the claim is then either found done, or made again.
        """
        ...

    def commit(self, commit: Commit) -> Committed | Moved | Fenced:
        """One atomic compare-and-set. A lost reply is recognised as one's own commit, never applied twice."""
        ...

    def announce(self, worker: str, facts: Mapping[str, object], ttl_s: float) -> None:
        """Say who is alive and what it sees, for `status` only; best effort."""
        ...

    def workers(self) -> list[dict[str, object]]: ...

    def partitions(self) -> Iterable[StoredPartition]: ...
