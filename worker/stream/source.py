"""What the loop asks of a log of events, of a place for refused ones, and of a topic for metrics. Protocols only."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from worker.stream.dead_letters import DeadLetter
from worker.stream.records import Records, TopicPartition


class Source(Protocol):
    """A member of a consumer group. An offset is always the next one to read.

    Nothing is fetched of a newly assigned partition until `seek` was called for it.
    Raises `Transient` when the log does not answer, `OffsetsLost` when a position points to no record.
    """

    @property
    def problem(self) -> str | None:
        """Why nothing comes, in one line; None while all is well."""
        ...

    @property
    def lost_offsets(self) -> Mapping[TopicPartition, int]:
        """After `OffsetsLost`: how many offsets of which partition were removed unread."""
        ...

    def poll(self, timeout_s: float) -> list[Records]:
        """Return what has come, bounded in records and bytes; empty columns where only the position moved."""
        ...

    def take_rebalance(self) -> bool:
        """Say whether partitions were assigned, revoked or lost since the last call."""
        ...

    def assignment(self) -> frozenset[TopicPartition]:
        """Return what this member owns now; empty while it is outside its group."""
        ...

    def confirmed_since(self, moment: float) -> bool:
        """Say whether the group has confirmed this member after `moment` (monotonic seconds)."""
        ...

    def seek(self, source: TopicPartition, offset: int) -> None:
        """Read on from `offset`; nothing from before this call is delivered afterwards."""
        ...

    def fetch_only(self, wanted: frozenset[TopicPartition]) -> None:
        """Pause every assigned partition that is not wanted, resume those that are (back-pressure)."""
        ...

    def beginning_offsets(self, sources: Iterable[TopicPartition]) -> dict[TopicPartition, int]: ...

    def end_offsets(self, sources: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Ask the broker: the first offset that can not be read yet (last stable offset)."""
        ...

    def topic_ids(self) -> dict[str, str]:
        """Return the identity of each subscribed topic ("" where the broker has none): a new one, a new topic."""
        ...

    def partition_counts(self) -> dict[str, int]:
        """Return the number of partitions of each subscribed topic as last heard, without asking; none if unknown."""
        ...

    def acknowledge(self, positions: Mapping[TopicPartition, int]) -> None:
        """Write committed offsets for lag tools; best effort, never read back as positions."""
        ...

    def close(self) -> None: ...


class DeadLetters(Protocol):
    """Where refused records go."""

    def send(self, letters: Sequence[DeadLetter]) -> None: ...

    def flush(self, timeout_s: float) -> None:
        """Return once the broker has acknowledged every letter sent; raise `Transient` otherwise (call again)."""
        ...


class MetricsTopic(Protocol):
    """Best effort: never blocks, never raises; counts what it drops."""

    @property
    def dropped(self) -> int: ...

    def send(self, message: Mapping[str, object]) -> None: ...
