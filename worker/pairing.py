"""Which partitions a worker has whole, and what there is to say of those that it has not.

A partition is whole where this worker is assigned the same number of every topic: an event and its label meet nowhere
else. Reads nothing and decides nothing by itself: ownership acts on the answers.
"""

from collections.abc import Callable, Mapping

from worker.errors import ConfigError
from worker.stream.records import TopicPartition

SPLIT_S = 30.0  # the group's leader may know of new partitions later than the others do: by then it does


class Pairing:
    """Compares what is assigned with the topics' numbers of partitions.

    `confirmed_since(moment)`: whether the group is settled and has said so after `moment`. `note`: told once of what an
    operator should know.
    """

    def __init__(
        self, topics: tuple[str, ...], confirmed_since: Callable[[float], bool], note: Callable[[str], None]
    ) -> None:
        self._topics = topics
        self._confirmed_since = confirmed_since
        self._note = note
        self._seen: tuple[frozenset[TopicPartition], dict[str, int]] = (frozenset(), {})
        self._equal = 0  # the number of partitions when all topics last had as many; 0: not yet
        self._split_since: float | None = None
        self.whole: frozenset[int] = frozenset()
        self.split: frozenset[int] = frozenset()
        self.problem: str | None = None

    def look(self, assigned: frozenset[TopicPartition], counts: Mapping[str, int], now: float) -> None:
        """Bring `whole`, `split` and `problem` up to date.

        Raises `ConfigError` for pairs that stay split although the topics have equal numbers of partitions: then
        another member of the group reads other topics. `now`: monotonic seconds.
        """
        if self._seen != (assigned, counts):
            self._seen = assigned, dict(counts)
            shares = [frozenset(s.partition for s in assigned if s.topic == topic) for topic in self._topics]
            self.whole = frozenset.intersection(*shares)
            self.split = frozenset.union(*shares) - self.whole
            self._judge(now)
        since = self._split_since
        if since is not None and now - since >= SPLIT_S and self._confirmed_since(since + SPLIT_S):
            raise ConfigError(
                f"partitions {sorted(self.split)} of topics {', '.join(self._topics)} are assigned to different "
                f"workers: all workers of a group need the same topics, each with the same number of partitions"
            )

    def _judge(self, now: float) -> None:
        _, counts = self._seen
        known = len(counts) == len(self._topics)
        equal = len(set(counts.values())) == 1
        self._split_since = now if self.split and equal else None
        self.problem = None
        if known and not equal:
            self._say_unequal(counts)
        elif self.split:
            self.problem = f"partitions {sorted(self.split)} are not whole at any worker until the group has settled"
        if known and equal:
            self._note_growth(next(iter(counts.values())))

    def _say_unequal(self, counts: Mapping[str, int]) -> None:
        named = ", ".join(f"{topic} has {count}" for topic, count in counts.items())
        unequal = f"the topics differ in their number of partitions ({named})"
        self._note(
            f"{unequal}: only partitions that are whole at one worker are read; give the smaller topic as many as the "
            f"other one has, and the rest is read from its beginning"
        )
        if self.split:
            self.problem = f"{unequal}: partitions {sorted(self.split)} are not read here until the numbers are equal"

    def _note_growth(self, count: int) -> None:
        before, self._equal = self._equal or count, count
        if count <= before:
            return
        apart = (
            "an event and its label that were sent on either side of the change lie apart and do not meet"
            if len(self._topics) > 1
            else "an event sent again after the change may lie apart from the first one, and is then learned twice"
        )
        self._note(f"topics {', '.join(self._topics)} went from {before} to {count} partitions: ids moved, and {apart}")
