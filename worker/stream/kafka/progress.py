"""Who has records to read and does not move: the judgement of the watchdog. Pure; time is an argument (seconds)."""

from collections.abc import Iterable, Mapping

from worker.stream.records import TopicPartition

_MIN_POLLS = 20  # a loop that is busy elsewhere lets time pass without giving the client a chance
_SHARE = 4  # partitions that one fetch serves in a backlog; with more of them each has to wait for its turn


class Progress:
    """Remembers when each partition last moved, and since when it has been known to have records and not move."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._polls = 0
        self._moved: dict[TopicPartition, float] = {}
        self._behind: dict[TopicPartition, tuple[float, int]] = {}

    def polled(self) -> None:
        self._polls += 1

    def moved(self, source: TopicPartition, now: float) -> None:
        self._moved[source] = now
        self._behind.pop(source, None)

    def quiet(self, active: Iterable[TopicPartition], now: float, quiet_s: float) -> list[TopicPartition]:
        """Return the active ones that have not moved for `quiet_s`; forget those that are no longer active.

        A partition counts from when it became active: paused time is not silence.
        """
        wanted = set(active)
        for gone in self._moved.keys() - wanted:
            self._moved.pop(gone)
            self._behind.pop(gone, None)
        return sorted(source for source in wanted if now - self._moved.setdefault(source, now) >= quiet_s)

    def stuck(
        self, positions: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], now: float
    ) -> list[TopicPartition]:
        """Take fresh end offsets of quiet partitions; return those that were behind, and stood still, too long."""
        for source, end in ends.items():
            if end > positions[source]:
                self._behind.setdefault(source, (now, self._polls))
            else:
                self._behind.pop(source, None)
        patience_s = self._patience_s * max(1.0, len(self._moved) / _SHARE)
        return sorted(
            source
            for source in ends.keys() & self._behind.keys()
            if now - self._behind[source][0] >= patience_s and self._polls - self._behind[source][1] >= _MIN_POLLS
        )

    def forget(self) -> None:
        """Begin again: nothing is known of a new client, nor of a time in which no broker answered."""
        self._moved.clear()
        self._behind.clear()
