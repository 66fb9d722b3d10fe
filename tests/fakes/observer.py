"""Writes down what the loop tells."""

from collections import Counter
from collections.abc import Mapping, Sequence

from worker.observe.observer import Turn
from worker.state.store import Version
from worker.stream.records import TopicPartition


class Recorder:
    """Answers to `worker.observe.observer.Observer`."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self.lost_turns: list[str] = []
        self.problems: list[str] = []
        self.lost: list[tuple[frozenset[int], str]] = []
        self.back: list[tuple[Version, Version]] = []
        self.skipped: dict[TopicPartition, int] = {}
        self.notes: list[str] = []
        self.reasons: list[str] = []
        self.claims: list[int] = []
        self.stages: Counter[str] = Counter()
        self.last_lag: dict[TopicPartition, int] = {}
        self.is_ready = False
        self.topics_have = 0

    def tick(self) -> None: ...

    def ready(self) -> None:
        self.is_ready = True

    def waiting(self, problem: str) -> None:
        self.is_ready = False
        self.problems.append(problem)

    def idle(self, reason: str) -> None:
        self.is_ready = False
        self.reasons.append(reason)

    def stage(self, name: str, seconds: float) -> None:
        assert seconds >= 0
        self.stages[name] += 1

    def turn(self, turn: Turn) -> None:
        self.turns.append(turn)

    def turn_lost(self, outcome: str) -> None:
        self.lost_turns.append(outcome)

    def pending(self, waiting: Mapping[str, int]) -> None: ...

    def lag(self, lag: Mapping[TopicPartition, int]) -> None:
        self.last_lag = dict(lag)

    def claimed(self, partition: int, positions: Mapping[TopicPartition, int], recall: int) -> None:
        assert positions
        assert recall >= 0
        self.claims.append(partition)

    def dropped(self, partitions: frozenset[int], reason: str) -> None:
        self.lost.append((partitions, reason))

    def topic_partitions(self, count: int) -> None:
        assert count >= 0
        self.topics_have = count

    def rebalanced(self, assigned: frozenset[TopicPartition]) -> None: ...

    def went_back(self, mine: Version, stored: Version) -> None:
        self.back.append((mine, stored))

    def skipped_offsets(self, source: TopicPartition, count: int) -> None:
        self.skipped[source] = count

    def note(self, message: str) -> None:
        self.notes.append(message)

    def findings(self, messages: Sequence[str]) -> None:
        self.notes += messages

    def unknown_feature(self, topic: str, name: str) -> None:
        self.notes.append(f"{topic}: {name}")
