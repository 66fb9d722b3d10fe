"""Records as they come from a log: positions and columns of bytes. Values only."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class TopicPartition(NamedTuple):
    """One partition of one topic. Sorts by topic, then partition: the order that breaks ties."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class Records:
    """Consecutive records of one topic partition, column by column (all lists of equal length, maybe empty).

    `next_offset` is where reading goes on: it may lie beyond the last record plus one, because
    transaction markers and aborted records occupy offsets and are never delivered.
    `timestamps` are the records' own (milliseconds since 1970, -1 unknown).
    `content_types` holds the `content-type` header of the rare records that carry one, by index.
    """

    source: TopicPartition
    offsets: list[int]
    timestamps: list[int]
    keys: list[bytes | None]
    values: list[bytes | None]
    next_offset: int
    content_types: Mapping[int, bytes] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.offsets)
