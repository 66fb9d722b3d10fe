"""What the loop tells the outside world. Values and a protocol; the loop knows no metric and no log library."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from worker.learn.state import LearnerState, Report
from worker.state.store import Version
from worker.stream.records import TopicPartition


@dataclass(frozen=True, slots=True)
class Turn:
    """One committed turn. `outcomes` counts records by (topic, outcome); times are seconds, event times ms.

    `wait_s`: from asking for the turn to having it. `staleness`: versions that others committed since this worker's
    last own one or load. `token`: it had the turn, and did not go ahead without.
    """

    version: Version
    state: LearnerState
    report: Report
    outcomes: Counter[tuple[str, str]]
    positions: Mapping[TopicPartition, int]
    delays_ms: list[int]
    newest_ms: int
    learn_s: float
    commit_s: float
    conflicts: int
    state_bytes: int
    wait_s: float = 0.0
    staleness: int = 0
    token: bool = True


class Observer(Protocol):
    """Best effort: no call may fail or block training."""

    def tick(self) -> None:
        """The loop is alive."""
        ...

    def ready(self) -> None: ...

    def waiting(self, problem: str) -> None:
        """Something does not answer, or nothing is assigned yet: alive, not ready."""
        ...

    def idle(self, reason: str) -> None:
        """There is nothing for this worker to do, and nothing to mend: alive, not ready."""
        ...

    def stage(self, name: str, seconds: float) -> None: ...

    def turn(self, turn: Turn) -> None: ...

    def turn_lost(self, outcome: str) -> None:
        """A turn ended without a commit: "fenced" (another owner has the work) or "passed_on" (no whole batches)."""
        ...

    def pending(self, waiting: Mapping[str, int]) -> None: ...

    def lag(self, lag: Mapping[TopicPartition, int]) -> None: ...

    def claimed(self, partition: int, positions: Mapping[TopicPartition, int], recall: int) -> None:
        """A partition is owned from these offsets on; `recall` records before them are read again first."""
        ...

    def dropped(self, partitions: frozenset[int], reason: str) -> None: ...

    def topic_partitions(self, count: int) -> None:
        """How many partitions (pairs, where joined) the event topics have, whoever owns them."""
        ...

    def rebalanced(self, assigned: frozenset[TopicPartition]) -> None: ...

    def went_back(self, mine: Version, stored: Version) -> None:
        """The store holds an older state than this worker had seen."""
        ...

    def skipped_offsets(self, source: TopicPartition, count: int) -> None: ...

    def note(self, message: str) -> None:
        """Something an operator should know, said once: shown in the log and in `status`."""
        ...

    def findings(self, messages: Sequence[str]) -> None:
        """What is wrong with the producers, as far as is known by now: replaces what was said before."""
        ...

    def unknown_feature(self, topic: str, name: str) -> None:
        """The first event with a feature that the model does not have."""
        ...
