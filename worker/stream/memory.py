"""Which ids a partition pair has trained lately: what recognises a producer's duplicates. Pure.

Each topic forgets at its own pace, by offset, so that re-reading the log rebuilds exactly the same memory.
"""

from collections.abc import Sequence
from typing import Any

from worker.stream.side import NO_LABEL, SPARE, Side

NOWHERE = -(1 << 62)  # the offset of a record that was not there, or is forgotten: before every horizon


class Memory:
    """Maps an id to (offset of its first topic's record, offset of its label record, label).

    What lies more than `limit` records behind the last record taken from its topic is not remembered. It is thrown
    out now and then, at a cost that each new id pays a constant share of.
    """

    __slots__ = ("_first", "_last", "_limit", "_sweep_at", "ids")

    def __init__(self, sides: Sequence[Side[Any]], limit: int) -> None:
        self.ids: dict[str, tuple[int, int, float]] = {}
        self._first, self._last = sides[0], sides[-1]
        self._limit = limit
        self._sweep_at = limit + SPARE

    def add(self, id_: str, offset: int, label_offset: int, label: float) -> None:
        self.ids[id_] = (offset, label_offset, label)
        if len(self.ids) > self._sweep_at:
            self._sweep()

    def recall(self, id_: str, index: int, offset: int, label: float) -> None:
        """Put back what one topic (0: the first, 1: labels) remembered when the stored state was written."""
        offset_before, label_offset, label_before = self.ids.get(id_, (NOWHERE, NOWHERE, NO_LABEL))
        self.ids[id_] = (offset_before, offset, label) if index else (offset, label_offset, label_before)

    def holds(self, id_: str) -> bool:
        """Say whether any topic remembers the id."""
        offset, label_offset, _ = self.ids.get(id_, (NOWHERE, NOWHERE, NO_LABEL))
        return offset >= self._first.next_offset - self._limit or label_offset >= self._last.next_offset - self._limit

    def label(self, id_: str) -> float | None:
        """Return the label of the id if the label topic remembers it, else None."""
        _, label_offset, label = self.ids.get(id_, (NOWHERE, NOWHERE, NO_LABEL))
        return label if label_offset >= self._last.next_offset - self._limit else None

    def _sweep(self) -> None:
        first, last = self._first.next_offset - self._limit, self._last.next_offset - self._limit
        self.ids = {i: entry for i, entry in self.ids.items() if entry[0] >= first or entry[1] >= last}
        self._sweep_at = 2 * len(self.ids) + SPARE
