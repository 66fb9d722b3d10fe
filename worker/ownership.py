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
from worker.state.store import Fence, Store
from worker.stream.intake import Intake
from worker.stream.positions import Ledger, PartitionState, SideState
from worker.stream.records import TopicPartition
from worker.stream.source import Source

FENCED = "fenced"
RESET = "`gradstream state reset --yes`"


class Ownership:
    """Follows the group's assignment: claims what came, drops what went, keeps what stayed."""

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
        self._topic_ids: dict[str, str] = {}
        self._moved = False
        self._fenced_at: float | None = None

    def follow(self, known: frozenset[int]) -> None:
        """Bring what is owned in line with the assignment. `known`: partitions that were ever committed."""
        self._moved |= self.source.take_rebalance()  # kept until it was acted on: any call below may fail this time
        assigned = self.source.assignment()
        partitions = self._whole(assigned)
        if self._moved:
            self.observer.rebalanced(assigned)
            if assigned:
                self._topic_ids = self.source.topic_ids()
            for partition in self.fences.keys() & partitions:
                self._keep(partition)
            # An empty assignment is a group in the middle of a join: what is kept then is guarded by its fence.
            if assigned and (gone := self.fences.keys() - partitions):
                self._drop(gone, "assigned to another worker")
        if self._confirmed():
            for partition in sorted(partitions - self.fences.keys()):
                self._claim(partition, must_exist=partition in known)
        self._moved = False

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

    def check_fences(self) -> None:
        """Drop partitions that somebody else claimed, or that a store which went back has never heard of."""
        moved = {
            n for n, fence in self.fences.items() if (s := self.store.load_partition(n)) is None or s.fence != fence
        }
        if moved:
            self._drop(moved, FENCED)

    def _drop(self, partitions: Iterable[int], reason: str) -> None:
        gone = frozenset(partitions)
        for partition in gone:
            self.intake.drop(partition)
            self.fences.pop(partition, None)
        if reason == FENCED:
            self._fenced_at = time.monotonic()
        self.observer.dropped(gone, reason)

    def _whole(self, assigned: frozenset[TopicPartition]) -> set[int]:
        """Return the partitions of which every topic is assigned here."""
        shares = [{s.partition for s in assigned if s.topic == topic} for topic in self.topics]
        whole = set.intersection(*shares)
        if split := set.union(*shares) - whole:
            raise ConfigError(
                f"partitions {sorted(split)} of topics {', '.join(self.topics)} are assigned to different workers: "
                f"all workers of a group need the same topics, each with the same number of partitions"
            )
        return whole

    def _keep(self, partition: int) -> None:
        """Go on where reading was, unless somebody else had the partition in between."""
        stored = self.store.load_partition(partition)
        if stored is None or stored.fence != self.fences[partition]:
            self._drop({partition}, FENCED)
            return
        for lane in self.intake.pairs[partition].lanes:
            self.source.seek(lane.source, lane.read_offset)

    def _claim(self, partition: int, *, must_exist: bool) -> None:
        stored = self.store.load_partition(partition)
        if stored is None and must_exist:
            raise StateMissing(
                f"the positions of partition {partition} are gone from the state store, but the model was trained on "
                f"it: restore the store, or begin again with {RESET}"
            )
        sources = [TopicPartition(topic, partition) for topic in self.topics]
        begin, end = self.source.beginning_offsets(sources), self.source.end_offsets(sources)
        if stored is None:
            state = self._fresh(partition, begin if self.start == "earliest" else end)
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

    def _fresh(self, partition: int, offsets: dict[TopicPartition, int]) -> PartitionState:
        def side(topic: str) -> SideState:
            offset = offsets[TopicPartition(topic, partition)]
            return SideState(topic, self._topic_ids.get(topic, ""), offset, -1, -1, offset, b"", b"")

        return PartitionState(partition, Ledger(), tuple(side(topic) for topic in self.topics))

    def _check(
        self, side: SideState, partition: int, begin: dict[TopicPartition, int], end: dict[TopicPartition, int]
    ) -> None:
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


def readable(state: PartitionState, begin: dict[TopicPartition, int]) -> PartitionState:
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
