"""Which partitions this worker owns, under which fences, and from which offsets it goes on.

Positions come from the state, never from committed offsets. Nothing here trusts a clock or a group generation:
a claim or a commit under a moved fence is refused by the store.
"""

import time
from collections.abc import Iterable
from typing import Literal

from msgspec.structs import replace

from worker.errors import ConfigError, OffsetsLost, StateMissing
from worker.observe.observer import Observer
from worker.pairing import Pairing
from worker.state.store import Fence, Store, StoredPartition
from worker.stream.intake import Intake
from worker.stream.positions import Ledger, PartitionState, SideState
from worker.stream.records import TopicPartition
from worker.stream.source import Source

FENCED = "fenced"
RESET = "`gradstream state reset --yes`"


Offsets = dict[TopicPartition, int]


class Ownership:
    """Follows the group's assignment: claims what came, drops what went, keeps what stayed.

    `idle`: why nothing is owned, while that is as it should be; else None.
    """

    def __init__(
        self, source: Source, store: Store, intake: Intake, topics: tuple[str, ...],
        start: Literal["earliest", "latest"], observer: Observer,
    ) -> None:  # fmt: skip
        self.source = source
        self.store = store
        self.intake = intake
        self.topics = topics
        self.start = start
        self.observer = observer
        self.fences: dict[int, Fence] = {}
        self.idle: str | None = None
        self._pairing = Pairing(topics, source.confirmed_since, observer.note)
        self._topic_ids: dict[str, str] = {}
        self._moved = False
        self._moved_at = 0.0
        self._fenced_at: float | None = None

    def follow(self, known: frozenset[int]) -> None:
        """Bring what is owned in line with the assignment. `known`: partitions that were ever committed."""
        self._moved |= self.source.take_rebalance()  # kept until it was acted on: any call below may fail this time
        assigned = self.source.assignment()
        if self._moved:
            self.observer.rebalanced(assigned)
            self._moved_at = time.monotonic()
            if assigned:
                self._topic_ids = self.source.topic_ids()
        self._pairing.look(assigned, self.source.partition_counts(), time.monotonic())
        whole = self._pairing.whole
        if self._moved:
            self._keep(self.fences.keys() & whole)
            # An empty assignment is a group in the middle of a join: what is kept then is guarded by its fence.
            if assigned:
                self._let_go(self.fences.keys() - whole)
        if (new := whole - self.fences.keys()) and self._confirmed():
            self._claim_all(new, known)
        self._moved = False
        self.idle = None if self.fences else self._why_idle(assigned)

    def _why_idle(self, assigned: frozenset[TopicPartition]) -> str | None:
        if self._pairing.problem:
            return self._pairing.problem
        if self._pairing.whole and self._fenced_at is not None:
            return (
                "what this worker held has another owner or was put back: it waits until its group confirms that it "
                "is a member"
            )
        if assigned or not self.source.confirmed_since(self._moved_at):
            return None
        count = max(self.source.partition_counts().values(), default=0)
        return (
            f"no partition is assigned to this worker: there are {count}, and other workers have them; it takes over "
            f"when one of them goes"
        )

    def _confirmed(self) -> bool:
        """After a fence moved, claim again only once the group says that this is still a member.

        A worker that was stopped for long believes that it owns what others have by now: the two would take the
        partition from each other until the group's answer comes.
        """
        if self._fenced_at is not None and self.source.confirmed_since(self._fenced_at):
            self._fenced_at = None
        return self._fenced_at is None

    def lose(self, partitions: frozenset[int]) -> None:
        """Drop the work of partitions whose fence moved: somebody else owns them, or the state was reset."""
        self._drop(partitions, FENCED)

    def check_fences(self) -> bool:
        """Drop partitions that somebody else claimed, or that a store which went back has never heard of.

        Return whether there were any.
        """
        moved = self._of_others(self.fences)
        if moved:
            self._drop(moved, FENCED)
        return bool(moved)

    def _of_others(self, partitions: Iterable[int]) -> set[int]:
        """Return those whose fence is no longer this worker's."""
        mine = {n: self.fences[n] for n in partitions}
        return {n for n, fence in self.store.fences(mine).items() if fence != mine[n]} if mine else set()

    def _drop(self, partitions: Iterable[int], reason: str) -> None:
        gone = frozenset(partitions)
        for partition in gone:
            self.intake.drop(partition)
            self.fences.pop(partition, None)
        if reason == FENCED:
            self._fenced_at = time.monotonic()
        self.observer.dropped(gone, reason)

    def _let_go(self, gone: Iterable[int]) -> None:
        """Drop, without a commit, what is not this worker's any more: its new owner does it again."""
        apart = self._pairing.split & set(gone)
        for partitions, reason in ((apart, "not whole at this worker"), (set(gone) - apart, "assigned to another one")):
            if partitions:
                self._drop(partitions, reason)

    def _keep(self, partitions: Iterable[int]) -> None:
        """Go on where reading was, unless somebody else had a partition in between."""
        kept = set(partitions)
        if moved := self._of_others(kept):
            self._drop(moved, FENCED)
        for partition in sorted(kept - moved):
            for lane in self.intake.pairs[partition].lanes:
                self.source.seek(lane.source, lane.read_offset)

    def _claim_all(self, partitions: Iterable[int], known: frozenset[int]) -> None:
        numbers = sorted(partitions)
        if self.start == "latest" and not known:
            self._begin_at_the_end()
        stored = {n: self.store.load_partition(n) for n in numbers}
        if gone := [n for n in numbers if stored[n] is None and n in known]:
            raise StateMissing(
                f"the positions of partitions {gone} are gone from the state store, but the model was trained on them: "
                f"restore the store, or begin again with {RESET}"
            )
        # Asked for after the positions were loaded: an owner that is still at work may commit beyond an older answer.
        sources = self._sources(numbers)
        begin, end = self.source.beginning_offsets(sources), self.source.end_offsets(sources)
        for partition in numbers:
            self._claim(partition, stored[partition], begin, end)

    def _claim(self, partition: int, stored: StoredPartition | None, begin: Offsets, end: Offsets) -> None:
        if stored is None:
            state = self._fresh(partition, begin)
        else:
            for side in stored.state.sides:
                self._check(side, partition, begin, end)
            state = readable(stored.state, begin)
        fence = self.store.claim(partition, stored.fence if stored else Fence(""), state)
        if fence is None:
            return  # somebody was faster: looked at again with the next poll
        self.fences[partition] = fence
        self.intake.own(state)
        lanes = self.intake.pairs[partition].lanes
        for lane in lanes:
            self.source.seek(lane.source, lane.read_offset)
        recall = sum(lane.recall_until - lane.read_offset for lane in lanes)
        self.observer.claimed(partition, {lane.source: lane.recall_until for lane in lanes}, recall)

    def _begin_at_the_end(self) -> None:
        """Where a model begins with what comes next, store that as the positions of all partitions at once.

        One that is not stored afterwards came into being later, and begins with its first record: starting at its end
        as well would lose what was sent before it was noticed. Partition 0 comes last: while it is not stored, this was
        not done, or not to its end.
        """
        if self.store.fences([0])[0]:
            return
        numbers = range(min(self.source.partition_counts().values(), default=0))
        end = self.source.end_offsets(self._sources(numbers))
        for partition in reversed(numbers):
            self.store.claim(partition, Fence(""), self._fresh(partition, end))  # None: another worker was faster

    def _sources(self, partitions: Iterable[int]) -> list[TopicPartition]:
        return [TopicPartition(topic, partition) for partition in partitions for topic in self.topics]

    def _fresh(self, partition: int, offsets: Offsets) -> PartitionState:
        def side(topic: str) -> SideState:
            offset = offsets[TopicPartition(topic, partition)]
            return SideState(topic, self._topic_ids.get(topic, ""), offset, -1, -1, offset, b"", b"")

        return PartitionState(partition, Ledger(), tuple(side(topic) for topic in self.topics))

    def _check(self, side: SideState, partition: int, begin: Offsets, end: Offsets) -> None:
        """Refuse positions that point to no record: retention, truncation, or a topic made anew."""
        if side.topic not in self.topics:
            raise ConfigError(
                f"the stored positions of partition {partition} are for topic {side.topic}, the settings name "
                f"{' and '.join(self.topics)}: name the topic again, or begin again with {RESET}"
            )
        source = TopicPartition(side.topic, partition)
        where = f"topic {side.topic}, partition {partition}"
        topic_id = self._topic_ids.get(side.topic, "")
        if side.topic_id and topic_id and side.topic_id != topic_id:
            raise OffsetsLost(
                f"{where}: the topic was deleted and created again since the last commit (stored offset "
                f"{side.next_offset}, log {begin[source]} to {end[source]}): begin again with {RESET}"
            )
        if side.next_offset > end[source]:
            raise OffsetsLost(
                f"{where}: stored offset {side.next_offset} lies beyond the end of the log, {end[source]}: the topic "
                f"was created again or cut; put its records back, or begin again with {RESET}"
            )
        if (skipped := begin[source] - side.next_offset) > 0:
            self.observer.skipped_offsets(source, skipped)
            raise OffsetsLost(
                f"{where}: stored offset {side.next_offset} lies before the start of the log, {begin[source]}: "
                f"retention removed {skipped} records that were never learned; begin again with {RESET}, and keep "
                f"records longer"
            )


def readable(state: PartitionState, begin: Offsets) -> PartitionState:
    """Return the state with re-reading to begin no earlier than the log does: what retention took can not be read.

    Ids remembered against duplicates are then forgotten early; a waiting event among them is refused later.
    """
    return replace(
        state,
        sides=tuple(
            replace(side, oldest=max(side.oldest, begin[TopicPartition(side.topic, state.partition)]))
            for side in state.sides
        ),
    )
