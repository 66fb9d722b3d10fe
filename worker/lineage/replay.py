"""Learn again what a commit log says was learned, from the records, and compare. Pure: reads through a protocol.

Holds in memory what a commit needs, not what a topic holds. Must not know Kafka or Redis.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from worker.errors import OffsetsLost, VerificationFailed
from worker.learn.model import initial_state
from worker.learn.state import Learn, LearnerState
from worker.lineage.taken import followed_first, taken
from worker.recipe import Recipe
from worker.spec import Spec, read_spec
from worker.state import checkpoint as codec
from worker.state.commit_log import LoggedCommit
from worker.stream.events import Decoder
from worker.stream.intake import Intake, Work
from worker.stream.join import JoinRules
from worker.stream.lanes import Lane
from worker.stream.positions import Ledger, PartitionState, SideState
from worker.stream.records import Records, TopicPartition
from worker.stream.rows import RowFormat

CHUNK = 5_000  # records read at once

Read = Callable[[TopicPartition, int, int], Records]
"""`read(source, offset, count)`: the next records from `offset` on, about `count`; none only at the end of the log.

Raises `OffsetsLost` where retention took that offset.
"""


class Differs(VerificationFailed):
    """A commit could not be learned again as it was: which one, and why.

    `computed`: everything was there, and the numbers came out otherwise.
    """

    def __init__(self, commit: LoggedCommit, reason: str, *, computed: bool = False) -> None:
        super().__init__(f"state version {commit.version.number}: {reason}")
        self.commit = commit
        self.reason = reason
        self.computed = computed


Learners = Callable[[Recipe], Learn]
"""Returns the rule of learning of a recipe. Raises `ConfigError` where its kernel is not there."""


@dataclass(slots=True)
class Table:
    """Everything that turns the records of some partitions into examples, under one set of rules."""

    intake: Intake
    decoders: Mapping[str, Decoder]
    topics: tuple[str, ...]

    @classmethod
    def of(cls, recipe: Recipe) -> "Table":
        spec, rules = read_spec(recipe.spec), JoinRules(**plain(recipe.join))
        topics = tuple(sorted(recipe.roles, key=lambda topic: recipe.roles[topic]))  # features before labels
        decoding = plain(recipe.decoding)
        decoders = {topic: Decoder(spec, role, **decoding) for topic, role in plain(recipe.roles).items()}
        return cls(Intake(len(topics) == 2, rules, RowFormat(spec), 1), decoders, topics)


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return keyword arguments as a mutable dictionary of whatever the recipe holds."""
    return dict(values)


Run = Callable[[Table, LoggedCommit], None]
"""Takes what a commit took, all of it buffered: at once, or in pieces for who has to look in between."""


def in_order(table: Table, commit: LoggedCommit) -> None:
    """Take it at once."""
    table.intake.take_in_order(commit.entry.consumed)


class Joining:
    """The records of a path, taken commit by commit in the order of the log. Learns nothing by itself."""

    def __init__(self, read: Read, firsts: Mapping[TopicPartition, int], run: Run = in_order) -> None:
        self._read = read
        self._firsts = firsts
        self._run = run
        self._tables: dict[bytes, Table] = {}
        self._seats: dict[int, Table] = {}
        self._kept: dict[int, PartitionState] = {}

    def begin(self, partitions: Iterable[PartitionState]) -> None:
        """Begin with partitions that had come so far; all others begin where the path first takes from them."""
        self._kept = {state.partition: state for state in partitions}

    def take(self, commit: LoggedCommit, recipe: Recipe) -> Work:
        """Take what the commit took; return it, settled. Raises `Differs`, `OffsetsLost`."""
        consumed = commit.entry.consumed
        table = self._table(recipe)
        for partition in sorted({partition for _, partition, _ in consumed.sources}):
            self._seat(partition, table)
        for source, count, followed in zip(consumed.sources, taken(consumed), followed_first(consumed), strict=True):
            topic, partition, first = source
            lane = _lane(table, topic, partition)
            self._fill(table, lane, lambda lane=lane, count=count: len(lane) >= count)  # type: ignore[misc]
            there = lane.next_offset >= first if followed else lane.next_offset == first
            if count and (len(lane) < count or not there):
                raise Differs(commit, _gap(lane, first, count))
        self._run(table, commit)
        work = table.intake.work()
        table.intake.take_letters()
        table.intake.settle(work)
        return work

    def sides(self) -> dict[TopicPartition, Any]:
        """Return the side of the join (what waits, what was trained) of every topic partition taken from so far."""
        return {lane.source: lane.side for table in self._tables.values() for lane in table.intake.lanes()}

    def ledgers(self) -> dict[int, Ledger]:
        """Return the ledger of every partition taken from so far."""
        return {n: table.intake.pairs[n].committed.ledger for n, table in self._seats.items()}

    def _table(self, recipe: Recipe) -> Table:
        key = msgspec.json.encode((recipe.spec, recipe.roles, recipe.decoding, recipe.join), order="deterministic")
        if key not in self._tables:
            self._tables[key] = Table.of(recipe)
        return self._tables[key]

    def _seat(self, partition: int, table: Table) -> None:
        """Give the partition to this table; under other rules than before it is rebuilt, as a new owner rebuilds it."""
        before = self._seats.get(partition)
        if before is table:
            return
        if before is not None:
            state = before.intake.pairs[partition].committed
            before.intake.drop(partition)
        else:
            state = self._kept[partition] if partition in self._kept else self._fresh(partition, table)
        self._seats[partition] = table
        table.intake.own(state)
        pair = table.intake.pairs[partition]
        for lane in pair.lanes:
            self._fill(table, lane, lambda lane=lane: lane.read_offset >= lane.recall_until)  # type: ignore[misc]

    def _fresh(self, partition: int, table: Table) -> PartitionState:
        def side(topic: str) -> SideState:
            first = self._firsts.get(TopicPartition(topic, partition), 0)
            return SideState(topic, "", first, -1, -1, first, b"", b"")

        return PartitionState(partition, Ledger(), tuple(side(topic) for topic in table.topics))

    def _fill(self, table: Table, lane: Lane, enough: Callable[[], bool]) -> None:
        """Read until there is enough, or nothing more."""
        while not enough():
            records = self._read(lane.source, lane.read_offset, CHUNK)
            if not len(records) and records.next_offset <= lane.read_offset:
                return
            table.intake.add(table.decoders[lane.source.topic].decode(records))


class Replay:
    """Retrains a model along a path. `state` is what was learned so far."""

    def __init__(
        self, recipes: Callable[[str], Recipe | None], learners: Learners, joining: Joining, state: LearnerState
    ) -> None:
        self._recipes = recipes
        self._learners = learners
        self._learned: dict[str, Learn] = {}
        self.joining = joining
        self.state = state
        self.examples = 0

    def follow(self, commit: LoggedCommit) -> None:
        """Learn what one commit learned. Raises `Differs` where the outcome is not what the log says of it."""
        if commit.entry.kind == "train":
            self._train(commit)
        if (mine := codec.digest(self.state)) != commit.digest:
            told = f"the state comes to {mine[:16]}…, the log says {commit.digest[:16]}…"
            raise Differs(commit, told, computed=True)

    def _train(self, commit: LoggedCommit) -> None:
        name = commit.entry.recipe
        recipe = self._recipes(name)
        if recipe is None:
            raise Differs(commit, f"its recipe {name[:16] or '(none)'} is not kept: how it was learned is not known")
        if name not in self._learned:
            self._learned[name] = self._learners(recipe)
        try:
            work = self.joining.take(commit, recipe)
        except OffsetsLost as lost:
            raise Differs(commit, str(lost)) from lost
        if len(work.examples) != commit.entry.examples:
            told = f"its records make {len(work.examples)} examples, the log says {commit.entry.examples}"
            raise Differs(commit, told, computed=True)
        self.state, _ = self._learned[name](self.state, work.examples)
        self.examples += len(work.examples)


def empty(spec: Spec) -> LearnerState:
    """Return the state at the root of every path."""
    return initial_state(spec)


def _lane(table: Table, topic: str, partition: int) -> Lane:
    return next(lane for lane in table.intake.pairs[partition].lanes if lane.source.topic == topic)


def _gap(lane: Lane, first: int, count: int) -> str:
    where = f"topic {lane.source.topic}, partition {lane.source.partition}"
    if len(lane) < count:
        return f"{where}: {count} records were taken from offset {first} on, {len(lane)} are there"
    return f"{where}: the record at offset {first} is gone, the next one lies at {lane.next_offset}"
