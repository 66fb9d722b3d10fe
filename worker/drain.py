"""When a draining worker is done: everything that was there at its start is committed, whoever owns it."""

from collections.abc import Iterable
from typing import Protocol

from worker.loop import Every
from worker.patience import Patience
from worker.state.store import Store
from worker.stream.records import TopicPartition


class Ends(Protocol):
    """What is asked of Kafka, for partitions owned or not."""

    def beginning_offsets(self, sources: Iterable[TopicPartition]) -> dict[TopicPartition, int]: ...

    def end_offsets(self, sources: Iterable[TopicPartition]) -> dict[TopicPartition, int]: ...


class Drain:
    """Callable: says whether the committed positions of all partitions have reached the ends noted at construction."""

    def __init__(self, ends: Ends, store: Store, sources: list[TopicPartition], patience: Patience) -> None:
        begin = patience(lambda: ends.beginning_offsets(sources))
        end = patience(lambda: ends.end_offsets(sources))
        self.left = {source: offset for source, offset in end.items() if offset > begin[source]}
        self._store = store
        self._patience = patience
        self._look = Every(0.1)

    def __call__(self) -> bool:
        if self.left and self._look.maybe_restart():
            for stored in self._patience(lambda: list(self._store.partitions())):
                for side in stored.state.sides:
                    source = TopicPartition(side.topic, stored.state.partition)
                    if side.next_offset >= self.left.get(source, side.next_offset + 1):
                        del self.left[source]
        return not self.left
