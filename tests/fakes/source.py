"""A log and its readers in memory, held to the same contract as Kafka (tests/contract/test_source.py).

Rebalances happen when a reader polls, as there: joining or closing moves partitions, and every reader learns of it
at its next poll. Topics are co-partitioned by range, so pairs stay together.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from worker.errors import OffsetsLost, Transient
from worker.stream.records import Records, TopicPartition


@dataclass(frozen=True, slots=True)
class FakeRecord:
    """One offset of a partition. `deliverable` False: a transaction marker or an aborted record."""

    key: bytes | None
    value: bytes | None
    timestamp: int = 1_764_000_000_000
    content_type: bytes | None = None
    deliverable: bool = True


@dataclass(slots=True)
class _Topic:
    identity: str
    partitions: list[list[FakeRecord]]
    starts: list[int]


@dataclass(slots=True)
class FakeLog:
    """Topics, and the groups that read them. `away` makes every call that needs an answer fail."""

    topics: dict[str, _Topic] = field(default_factory=dict)
    committed: dict[tuple[str, TopicPartition], int] = field(default_factory=dict)
    away: bool = False
    members: dict[str, list["FakeSource"]] = field(default_factory=lambda: defaultdict(list))
    _created: int = 0

    def create(self, *names: str, partitions: int = 1) -> None:
        for name in names:
            self._created += 1
            self.topics[name] = _Topic(f"id-{self._created}", [[] for _ in range(partitions)], [0] * partitions)

    def grow(self, topic: str, partitions: int) -> None:
        """Add partitions, as an administrator does: the groups that read the topic share it out anew."""
        found = self.topics[topic]
        for _ in range(partitions - len(found.partitions)):
            found.partitions.append([])
            found.starts.append(0)
        for group in list(self.members):
            self.rebalance(group)

    def append(self, topic: str, partition: int, *records: FakeRecord) -> None:
        self.topics[topic].partitions[partition].extend(records)

    def delete_before(self, source: TopicPartition, offset: int) -> None:
        """Remove records as retention does: offsets stay, the log begins later."""
        self.topics[source.topic].starts[source.partition] = offset

    def end(self, source: TopicPartition) -> int:
        return len(self.topics[source.topic].partitions[source.partition])

    def rebalance(self, group: str) -> None:
        members = self.members[group]
        shares: list[set[TopicPartition]] = [set() for _ in members]
        for name in sorted({topic for member in members for topic in member.topics}):
            count = len(self.topics[name].partitions) if name in self.topics else 0
            each, extra = divmod(count, max(1, len(members)))
            first = 0
            for index, share in enumerate(shares):
                size = each + (index < extra)
                share.update(TopicPartition(name, number) for number in range(first, first + size))
                first += size
        for member, share in zip(members, shares, strict=True):
            member.pending = frozenset(share)


class FakeSource:
    """Answers to `worker.stream.source.Source` from a `FakeLog`."""

    def __init__(self, log: FakeLog, group: str, topics: Sequence[str], max_poll_records: int = 500) -> None:
        self.topics = list(topics)
        self.pending: frozenset[TopicPartition] | None = None
        self._log, self._group, self._max = log, group, max_poll_records
        self._owned: frozenset[TopicPartition] = frozenset()
        self._changed = False
        self._positions: dict[TopicPartition, int] = {}
        self._wanted: frozenset[TopicPartition] | None = None
        self._ids = {name: topic.identity for name, topic in log.topics.items()}
        self._closed = False
        self.confirmed = True  # False: the group does not answer this member, which goes on with what it believes
        self.problem: str | None = None
        self.lost_offsets: dict[TopicPartition, int] = {}
        log.members[group].append(self)
        log.rebalance(group)

    def poll(self, timeout_s: float) -> list[Records]:
        if self._closed:
            raise Transient("the source is closed")
        self.problem = "the log does not answer" if self._log.away else None
        if self._log.away:
            return []
        if self.pending is not None:
            self._owned, self.pending, self._changed = self.pending, None, True
            return []
        found, left = [], self._max
        for source in sorted(self._positions.keys() & self._owned):
            if left <= 0 or not (self._wanted is None or source in self._wanted):
                continue
            records = self._read(source, left)
            if records.next_offset > self._positions[source]:
                self._positions[source] = records.next_offset
                left -= len(records)
                found.append(records)
        return found

    def _read(self, source: TopicPartition, limit: int) -> Records:
        self._check(source)
        topic, start = self._log.topics[source.topic], self._positions[source]
        columns: list[tuple[int, FakeRecord]] = []
        offset = start
        for offset, record in enumerate(topic.partitions[source.partition][start:], start + 1):
            if record.deliverable:
                columns.append((offset - 1, record))
            if len(columns) == limit:
                break
        return Records(
            source,
            [offset for offset, _ in columns],
            [record.timestamp for _, record in columns],
            [record.key for _, record in columns],
            [record.value for _, record in columns],
            max(start, offset),
            {i: r.content_type for i, (_, r) in enumerate(columns) if r.content_type is not None},
        )

    def _check(self, source: TopicPartition) -> None:
        topic, offset = self._log.topics.get(source.topic), self._positions[source]
        if topic is None or topic.identity != self._ids.get(source.topic, topic.identity):
            raise OffsetsLost(f"topic {source.topic} was deleted and created again")
        first, end = topic.starts[source.partition], self._log.end(source)
        if not first <= offset <= end:
            raise OffsetsLost(
                f"{source.topic}, partition {source.partition}: offset {offset} is not in the log, which holds "
                f"{first} to {end}: {max(0, first - offset)} offsets were removed unread; `gradstream state reset --yes`"
            )

    def take_rebalance(self) -> bool:
        changed, self._changed = self._changed, False
        if changed:
            self._positions = {source: offset for source, offset in self._positions.items() if source in self._owned}
        return changed

    def assignment(self) -> frozenset[TopicPartition]:
        return self._owned

    def confirmed_since(self, moment: float) -> bool:
        return self.confirmed and self.pending is None and not self._closed

    def seek(self, source: TopicPartition, offset: int) -> None:
        if source in self._owned:
            self._positions[source] = offset

    def fetch_only(self, wanted: frozenset[TopicPartition]) -> None:
        self._wanted = wanted

    def beginning_offsets(self, sources: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        self._must_answer()
        return {source: self._log.topics[source.topic].starts[source.partition] for source in sources}

    def end_offsets(self, sources: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        self._must_answer()
        return {source: self._log.end(source) for source in sources}

    def topic_ids(self) -> dict[str, str]:
        self._must_answer()
        return {name: self._log.topics[name].identity for name in self.topics}

    def partition_counts(self) -> dict[str, int]:
        return {name: len(self._log.topics[name].partitions) for name in self.topics if name in self._log.topics}

    def acknowledge(self, positions: Mapping[TopicPartition, int]) -> None:
        for source, offset in positions.items():
            if source in self._owned:
                self._log.committed[self._group, source] = offset

    def close(self) -> None:
        if not self._closed:
            self._closed, self._owned = True, frozenset()
            self._log.members[self._group].remove(self)
            self._log.rebalance(self._group)

    def _must_answer(self) -> None:
        missing = [name for name in self.topics if name not in self._log.topics]
        if self._log.away or missing:
            raise Transient(f"topic {missing[0]} does not exist" if missing else "the log does not answer")
