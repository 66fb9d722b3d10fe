"""What became of every record of one event id along a path: replays the join, and learns nothing. Pure.

A commit is taken in pieces around the records that matter here, so that what each one did is seen and not inferred.
"""

import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import numpy as np

from worker.errors import OffsetsLost
from worker.lineage.chain import Path
from worker.lineage.replay import Differs, Joining, Read, Table
from worker.recipe import Recipe
from worker.state.commit_log import LoggedCommit
from worker.stream.events import EventKind
from worker.stream.lanes import Lane
from worker.stream.positions import MARK, Consumed
from worker.stream.records import Records, TopicPartition
from worker.stream.strict_json import Document, StrictJson

Outcome = Literal[
    "trained", "trained_as_negative", "waiting", "expired", "late", "duplicate", "dead_lettered", "withdrawn", "control"
]
_SIMPLE: dict[int, Outcome] = {
    EventKind.REFUSED: "dead_lettered", EventKind.TOMBSTONE: "withdrawn", EventKind.WATERMARK: "control",
}  # fmt: skip
TRAINED = ("trained", "trained_as_negative")


@dataclass(slots=True)
class Traced:
    """One record of the id. `settled` is the commit that decided it: the one that took it, or a later one.

    `time`: event time or watermark in ms since 1970, -1 where there is none. `reason`: of a refusal.
    """

    source: TopicPartition
    offset: int
    time: int
    taken: LoggedCommit
    settled: LoggedCommit
    outcome: Outcome
    reason: str = ""


def trace(
    id_: str,
    path: Path,
    log: Iterable[LoggedCommit],
    read: Read,
    recipe: Callable[[str], Recipe | None],
    progress: Callable[[int], None],
) -> list[Traced]:
    """Return the records of this id that the path took, in the order in which they were taken.

    `progress` is told each commit done. Raises `Differs` where recipe or records of a commit are not there.
    """
    tracer, done = _Tracer(id_, read), 0
    joining = Joining(tracer.read, path.firsts, tracer.run)
    for commit in log:
        if commit.version not in path.versions:
            continue
        if commit.entry.kind == "train":
            _take(joining, commit, recipe(commit.entry.recipe))
        done += 1
        progress(done)
    return tracer.traced


def trained_by(traced: Iterable[Traced]) -> list[LoggedCommit]:
    """Return the commits that learned an example of the id, each once, in order."""
    found = {one.settled.version: one.settled for one in traced if one.outcome in TRAINED}
    return sorted(found.values(), key=lambda commit: commit.version.number)


def _take(joining: Joining, commit: LoggedCommit, recipe: Recipe | None) -> None:
    if recipe is None:
        name = commit.entry.recipe[:16] or "(none)"
        raise Differs(commit, f"its recipe {name} is not kept: how it was learned is not known")
    try:
        joining.take(commit, recipe)
    except OffsetsLost as lost:
        raise Differs(commit, str(lost)) from lost


class _Tracer:
    """Notes the records of one id as they are read, and looks at the join around each of them as they are taken."""

    def __init__(self, id_: str, read: Read) -> None:
        self._id = id_
        self._mentions = _Mentions(id_)
        self._read = read
        self._noted: dict[tuple[TopicPartition, int], Records] = {}  # one record each
        self._waiting: list[Traced] = []
        self.traced: list[Traced] = []

    def read(self, source: TopicPartition, offset: int, count: int) -> Records:
        records = self._read(source, offset, count)
        for i in self._mentions.among(records):
            self._noted[source, records.offsets[i]] = _single(records, i)
        return records

    def run(self, table: Table, commit: LoggedCommit) -> None:
        """Take the commit, one piece up to each record of the id and one for that record."""
        lanes = {lane.source: lane for lane in table.intake.lanes()}
        for source, offset, piece in self._pieces(lanes, commit.entry.consumed):
            met = False
            if offset is None:
                table.intake.take_in_order(piece)
            else:
                met = self._take_one(table, lanes[source], offset, piece, commit)
            self._look_after_waiting(lanes, commit, met)

    def _pieces(
        self, lanes: dict[TopicPartition, Lane], consumed: Consumed
    ) -> Iterator[tuple[TopicPartition, int | None, Consumed]]:
        """Yield the commit in pieces, each with the place of the record that it is, None for all others."""
        codes = np.frombuffer(zlib.decompress(consumed.order), "<u2")
        start = 0
        for at, source, offset in sorted(self._places(lanes, consumed, codes)):
            yield source, None, _part(consumed, codes[start:at])
            yield source, offset, _part(consumed, codes[at : at + 1])
            start = at + 1
        yield TopicPartition("", -1), None, _part(consumed, codes[start:])

    def _places(self, lanes: dict[TopicPartition, Lane], consumed: Consumed, codes: Any) -> Iterator[Any]:
        for code, (topic, partition, _) in enumerate(consumed.sources):
            source = TopicPartition(topic, partition)
            if not (mine := [offset for noted, offset in self._noted if noted == source]):
                continue
            taken = np.flatnonzero(codes == code)
            offsets = lanes[source].columns[1][: len(taken)]
            for offset in set(mine).intersection(offsets):
                yield int(taken[offsets.index(offset)]), source, offset

    def _take_one(self, table: Table, lane: Lane, offset: int, piece: Consumed, commit: LoggedCommit) -> bool:
        """Take one record of the id; note what became of it. Say whether it completed an example of the id.

        Only records of the id can do that. What is learned of it without one is a feature whose time was over.
        """
        record = self._noted.pop((lane.source, offset))
        events = table.decoders[lane.source.topic].decode(record)
        completed = lane.pair.lanes[-1].side.new_trained  # one entry an example, except for negatives
        counts, examples = dict(lane.side.counts), len(completed)
        table.intake.take_in_order(piece)
        kind = events.kinds[0]
        met = len(completed) > examples
        outcome = _SIMPLE.get(kind) or self._outcome(lane, offset, counts, met)
        one = Traced(lane.source, offset, events.times[0], commit, commit, outcome)
        if kind == EventKind.REFUSED:
            one.reason = events.refusals[0].reason
        elif outcome == "dead_lettered":
            one.reason = "label_conflict"  # of what could be read, nothing else is refused
        elif kind == EventKind.TOMBSTONE:
            self._withdraw(lane, commit)
        self.traced.append(one)
        if outcome == "waiting":
            self._waiting.append(one)
        return met

    def _outcome(self, lane: Lane, offset: int, before: dict[str, int], met: bool) -> Outcome:
        """Return what became of an event that was just taken. Only itself can have added to the counts asked here."""
        counts = lane.side.counts
        if offset in lane.side.new_trained:
            return "trained" if met else "trained_as_negative"
        if _waits(lane, self._id, offset):
            return "waiting"
        if counts["dead_lettered"] > before["dead_lettered"]:
            return "dead_lettered"
        if counts["duplicate"] > before["duplicate"]:
            return "duplicate"
        return "late" if lane.index else "expired"  # maybe after waiting for no time at all

    def _withdraw(self, lane: Lane, commit: LoggedCommit) -> None:
        for one in [one for one in self._waiting if one.source == lane.source]:
            self._settle(one, commit, "withdrawn")

    def _look_after_waiting(self, lanes: dict[TopicPartition, Lane], commit: LoggedCommit, met: bool) -> None:
        """Settle what has left the join since the last look: it met the other side, or its time was over."""
        for one in list(self._waiting):
            lane = lanes.get(one.source)  # None: of a partition that follows other rules, and was not touched
            if lane is None or _waits(lane, self._id, one.offset):
                continue
            if one.offset in lane.side.new_trained:
                self._settle(one, commit, "trained" if met else "trained_as_negative")
            else:
                self._settle(one, commit, "late" if lane.index else "expired")

    def _settle(self, one: Traced, commit: LoggedCommit, outcome: Outcome) -> None:
        self._waiting.remove(one)
        one.settled, one.outcome = commit, outcome


class _Mentions:
    """Which records are of the id, as far as that can be told before they are decoded in full.

    What names no id (a tombstone, bytes that are no JSON, a watermark) is known by its key.
    """

    def __init__(self, id_: str) -> None:
        self._id = id_
        self._bytes = id_.encode(errors="surrogateescape")
        self._decoder = msgspec.json.Decoder(_Value)
        self._strict = StrictJson()

    def among(self, records: Records) -> Iterator[int]:
        mine = self._bytes
        for i, (key, value) in enumerate(zip(records.keys, records.values, strict=True)):
            # An escape may spell the id otherwise.
            if (key == mine or (value and (mine in value or b"\\" in value))) and self._of_id(key, value):
                yield i

    def _of_id(self, key: bytes | None, value: bytes | None) -> bool:
        named = self._named(value) if value else None
        return named == self._id if isinstance(named, str) else key == self._bytes

    def _named(self, value: bytes) -> object:
        try:
            return self._decoder.decode(value).id
        except (msgspec.MsgspecError, ValueError, RecursionError):
            parsed = self._strict.parse(value)
        found = parsed.value if isinstance(parsed, Document) else None
        return found.get("id") if isinstance(found, dict) else None


class _Value(msgspec.Struct):
    id: object = None


def _single(records: Records, i: int) -> Records:
    """Return one record as a chunk of its own."""
    types = {0: records.content_types[i]} if i in records.content_types else {}
    return Records(
        records.source, [records.offsets[i]], [records.timestamps[i]], [records.keys[i]], [records.values[i]],
        records.offsets[i] + 1, types,
    )  # fmt: skip


def _part(consumed: Consumed, codes: Any) -> Consumed:
    return Consumed(consumed.sources, zlib.compress(codes.tobytes(), 1), int((codes < MARK).sum()))


def _waits(lane: Lane, id_: str, offset: int) -> bool:
    entry = lane.side.waiting.get(id_)
    return entry is not None and entry[0] == offset
