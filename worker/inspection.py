"""What the records reveal about their producers: keys, partitioners, features that the model does not know."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from worker.observe.observer import Observer
from worker.stream.events import Decoder
from worker.stream.records import Records


class Check(Protocol):
    """Samples keys; see `stream/kafka/partitioning.py`."""

    def observe(self, records: Records, partition_count: int) -> None: ...

    def findings(self, *, joined: bool = True) -> list[str]: ...


class Inspection:
    """Looks at chunks as they come; `report` tells the observer what is worth knowing."""

    def __init__(
        self, check: Check, decoders: Mapping[str, Decoder], counts: Callable[[], Mapping[str, int]], observer: Observer
    ) -> None:
        """`counts`: how many partitions each topic has now."""
        self._check = check
        self._decoders = decoders
        self._counts = counts
        self._observer = observer

    def look(self, chunks: Sequence[Records]) -> None:
        """Sample the keys of what was read."""
        if not chunks:
            return
        counts = self._counts()
        for chunk in chunks:
            self._check.observe(chunk, counts.get(chunk.source.topic, 0))

    def report(self) -> None:
        if counts := self._counts():
            self._observer.topic_partitions(min(counts.values()))
        self._observer.findings(self._check.findings(joined=len(self._decoders) > 1))
        for topic, decoder in self._decoders.items():
            for name in decoder.take_new_unknown_features():
                self._observer.unknown_feature(topic, name)
