"""A model state and the states of all its partitions at one moment: what going back needs, whole. Values only."""

from collections.abc import Mapping
from dataclasses import dataclass

from worker.state import checkpoint as codec
from worker.state.keys import Keys
from worker.state.store import Checkpoint, PartitionState


@dataclass(frozen=True, slots=True)
class Moment:
    """As stored: `state` and `partitions` are the blobs.

    `place`, `committed_at`: of the log entry of this version, "" where the log has none.
    """

    state: bytes
    partitions: Mapping[int, bytes]
    place: str = ""
    committed_at: str = ""

    def checkpoint(self, model: str, key: str | None = None) -> Checkpoint:
        """Return the model state. Raises `StateCorrupted`, naming `key`."""
        return codec.decode(self.state, model, key)

    def positions(self, model: str) -> dict[int, PartitionState]:
        """Return the state of each partition. Raises `StateCorrupted`."""
        return {
            number: codec.decode_partition(blob, model, number, Keys(model).partition(number)).state
            for number, blob in self.partitions.items()
        }
