"""What the loop asks of a state store. Values and a protocol; no Redis here.

Versions and fences are identities, never counters alone: a counter can come round again after a store went back.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, NewType, Protocol

import msgspec

from worker.learn.state import LearnerState
from worker.recipe import Recipe
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
    "Recipe",
    "SideState",
    "Store",
    "StoredPartition",
    "TurnQueue",
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

    kind: str  # "train" | "init" | "reset" | "restore" | "rollback"
    worker: str
    consumed: Consumed
    examples: int
    batch_size: int
    kernel: str
    settings_digest: str
    committed_at: str  # RFC 3339, a stamp only
    recipe: str = ""  # Recipe.digest(); "" where nothing was learned


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
    partition to (the fence it is expected to have, its new state). `turn` is the token that the committer holds, ""
    for none: the commit passes it on in the same step. `recipe` is kept beside the log, once a digest.
    """

    base: Version
    checkpoint: Checkpoint
    partitions: Mapping[int, tuple[Fence, PartitionState]]
    entry: LogEntry
    turn: str = ""
    recipe: Recipe | None = None


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


class TurnQueue(Protocol):
    """Who learns next: one advisory token a model, first come first served.

    It saves work that a compare-and-set would refuse, and decides nothing: a worker that goes without it, or with a
    token that was renewed behind its back, is as safe. So no call raises, and a store that does not answer only makes
    the worker wait `commit.turn_wait_ms` before it goes ahead.
    """

    @property
    def token(self) -> str:
        """The token held, to be passed on by the next commit; "" where it is another's turn, or one goes without."""
        ...

    def ask(self) -> None:
        """Get in line; nothing where one is in line or at turn already."""
        ...

    def granted(self, timeout_s: float = 0.0) -> bool:
        """Say whether it is this worker's turn, after at most `timeout_s`.

        A token that nobody has moved for `turn_wait_ms` is taken over: its holder is dead, stopped, or very slow.
        """
        ...

    def passed_on(self) -> None:
        """The commit that was given the token has passed it on: out of line until asked again."""
        ...

    def leave(self) -> None:
        """Leave the line; pass the token on if it is held. Before waiting for anything else, and at the end."""
        ...


class Store(Protocol):
    """Raises `Transient` (try again), `StateMissing`, `StateCorrupted`."""

    def load(self) -> Checkpoint: ...

    def version(self) -> Version | None: ...

    def load_partition(self, partition: int) -> StoredPartition | None: ...

    def fences(self, partitions: Iterable[int]) -> dict[int, Fence]:
        """Return the fence of each partition at one moment, without its state; "" where nothing is stored."""
        ...

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
