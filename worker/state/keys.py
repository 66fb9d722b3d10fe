"""Names of everything a model keeps in the store, in one place. Values only; no client, no bytes.

All keys of one model share the hash tag `{model}`: one slot in a cluster, so one script can change them together.
"""

import re
from dataclasses import dataclass

from worker.errors import ConfigError

# Braces would break the hash tag, a colon would let one model reach into the keys of another.
_MODEL = re.compile(r"[a-z0-9-]{1,64}")


@dataclass(frozen=True, slots=True)
class Keys:
    """Key names of one model. Raises `ConfigError` for a name that could leave its own keys."""

    model: str

    def __post_init__(self) -> None:
        if not _MODEL.fullmatch(self.model):
            raise ConfigError(f"model.name {self.model!r} is not allowed: use 1 to 64 of a-z, 0-9 and '-'")

    @property
    def _root(self) -> str:
        return f"gradstream:{{{self.model}}}"

    @property
    def state(self) -> str:
        """String: the model state."""
        return f"{self._root}:state"

    @property
    def next_state(self) -> str:
        """String: a state on its way in; exists only inside the transaction that commits it."""
        return f"{self._root}:state:next"

    @property
    def previous_state(self) -> str:
        """String: the model state before the last commit."""
        return f"{self._root}:state:previous"

    def partition(self, number: int) -> str:
        """String: fence, positions, clocks, ledger and bitmaps of one partition."""
        return f"{self._root}:partition:{number}"

    @property
    def partitions(self) -> str:
        """Set: numbers of all partitions that were ever claimed (what a reset has to drop)."""
        return f"{self._root}:partitions"

    @property
    def previous_partitions(self) -> str:
        """Hash, number to bytes: the partitions that the last commit replaced, as they were before it."""
        return f"{self._root}:partitions:previous"

    @property
    def commits(self) -> str:
        """Stream: one entry a commit."""
        return f"{self._root}:commits"

    @property
    def recipes(self) -> str:
        """Hash, digest to document: how the commits of the log were learned."""
        return f"{self._root}:recipes"

    @property
    def archived(self) -> str:
        """String: place of the last entry of the commit log that is in the artifact store as well."""
        return f"{self._root}:commits:archived"

    @property
    def turn(self) -> str:
        """List, one element at most: the token of whose turn it is, while nobody holds it."""
        return f"{self._root}:turn"

    @property
    def turn_issued(self) -> str:
        """String: the token that counts; every other one has been taken over or passed on."""
        return f"{self._root}:turn:issued"

    @property
    def workers(self) -> str:
        """Hash, worker to what it last said: for `status` only."""
        return f"{self._root}:workers"
