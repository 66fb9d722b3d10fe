"""What going back to a kept state means: which positions go with it, what is undone, whether Kafka still has it all.

Pure: is given the log, the positions and the offsets.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from msgspec.structs import replace
from pyroaring import BitMap64

from worker.errors import ConfigError, OffsetsLost, StateMissing, VerificationFailed
from worker.lineage.chain import Chain, Path
from worker.state.commit_log import LoggedCommit
from worker.state.store import Checkpoint, Ledger, PartitionState, SideState, Version
from worker.stream.records import TopicPartition

Offsets = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Range:
    """What the log of a topic partition holds: `begin` and `end` (the next to be written), and its topic's id."""

    begin: int
    end: int
    topic_id: str


class Beginnings:
    """What becomes of partitions that did not exist at the version that is put back (see `redis_rewind.Others`).

    They go back to the first position that the log knows of them on the way to the present state. One that was never
    committed stays as it is. The log is read only where that is asked for, and once for each partition.
    """

    def __init__(
        self,
        log: Callable[[], Iterable[LoggedCommit]],
        target: Version,
        check: Callable[[Mapping[int, PartitionState]], None],
    ) -> None:
        self._log = log
        self._target = target
        self._check = check
        self._first: dict[int, Mapping[TopicPartition, int]] = {}

    def __call__(
        self, present: Checkpoint | None, partitions: Mapping[int, PartitionState]
    ) -> Mapping[int, PartitionState]:
        """Raises `StateMissing` where the log has gaps, `OffsetsLost` where Kafka no longer has what is needed."""
        committed = {n for n, state in partitions.items() if present is None or n in present.partitions}
        if committed - self._first.keys():
            firsts = _first_offsets(self._log, present, self._target)
            self._first |= dict.fromkeys(committed, firsts)
        begun = {n: begun_again(state, self._first[n]) if n in committed else state for n, state in partitions.items()}
        self._check(begun)
        return begun


def _first_offsets(
    log: Callable[[], Iterable[LoggedCommit]], present: Checkpoint | None, target: Version
) -> Mapping[TopicPartition, int]:
    last: list[Version] = []

    def noting() -> Iterator[LoggedCommit]:
        for commit in log():
            last[:] = [commit.version]
            yield commit

    chain = Chain(noting())
    tip = [present.version] if present else last
    return way(chain, tip[0], target).firsts if tip else {}


def way(chain: Chain, tip: Version, target: Version) -> Path:
    """Return the commits from after the target to the tip; from the root on where the tip does not stand on it."""
    try:
        return chain.path(tip, start=target)
    except ConfigError:
        return chain.path(tip)


def begun_again(state: PartitionState, firsts: Offsets) -> PartitionState:
    """Return a partition as it was before its first record was taken; a topic not taken from is where it is."""

    def side(now: SideState) -> SideState:
        first = firsts.get(TopicPartition(now.topic, state.partition), now.next_offset)
        return SideState(now.topic, now.topic_id, first, -1, -1, first, b"", b"")

    return replace(state, ledger=Ledger(), sides=tuple(side(now) for now in state.sides))


def sources(states: Iterable[PartitionState]) -> set[TopicPartition]:
    return {TopicPartition(side.topic, state.partition) for state in states for side in state.sides}


def check_positions(states: Mapping[int, PartitionState], ranges: Mapping[TopicPartition, Range]) -> None:
    """Raise `OffsetsLost` where Kafka no longer has records that these positions need: the next, and those that wait.

    What is only remembered against duplicates may be gone: it is forgotten early.
    """
    for state in states.values():
        for side in state.sides:
            source = TopicPartition(side.topic, state.partition)
            where = f"topic {side.topic}, partition {state.partition}"
            found = ranges.get(source)
            if found is None:
                raise OffsetsLost(f"{where} does not exist, and the state goes on from offset {side.next_offset} there")
            if side.topic_id and found.topic_id and side.topic_id != found.topic_id:
                raise OffsetsLost(
                    f"{where}: the topic was deleted and created again since; the state goes on from offset "
                    f"{side.next_offset} of the old one"
                )
            waiting = BitMap64.deserialize(side.pending) if side.pending else BitMap64()
            needed = min(side.next_offset, waiting.min()) if waiting else side.next_offset
            if not found.begin <= needed or side.next_offset > found.end:
                raise OffsetsLost(
                    f"{where}: the state needs the records from offset {needed} on and goes on from "
                    f"{side.next_offset}, the log holds {found.begin} to {found.end}: choose a later version, or keep "
                    f"records longer"
                )


@dataclass(frozen=True, slots=True)
class Undone:
    """What is taken back. `commits`: None where the log does not tell."""

    examples: int
    commits: int | None
    since: str


def undone(
    log: Callable[[], Iterable[LoggedCommit]], present: Checkpoint, target: Checkpoint, since: str
) -> Undone:  # fmt: skip
    """Return what is lost by going back; `since`: when the target was committed."""
    commits = None
    # Not on the way, or the log has gaps: going back does not depend on it.
    with suppress(ConfigError, StateMissing, VerificationFailed):
        commits = len(Chain(log()).path(present.version, start=target.version).links)
    return Undone(present.learner.examples - target.learner.examples, commits, since)
