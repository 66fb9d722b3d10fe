"""Going back to a kept state while workers run: positions, books and lineage come out as if nothing had been undone."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from tests.e2e import streams
from tests.fakes.reader import FakeReader
from tests.unit.rig import Rig, Worker
from tests.unit.streams_in_memory import fill
from worker.errors import OffsetsLost, StateMissing
from worker.lineage.archive import LineageLog, archive_once
from worker.lineage.chain import Chain
from worker.lineage.kept import kept, kept_versions
from worker.lineage.recipe_here import code, software
from worker.lineage.replay import Joining, Replay, empty
from worker.lineage.rollback import Beginnings, Range, Undone, begun_again, check_positions, sources, undone
from worker.lineage.verify import Here, learner, verify
from worker.release.artifacts import FileArtifacts
from worker.state import checkpoint as codec
from worker.state.redis_rewind import Rewind
from worker.state.store import LogEntry, PartitionState, Version
from worker.stream.join import JoinRules
from worker.stream.positions import Consumed, Ledger, SideState
from worker.stream.records import TopicPartition

RULES = JoinRules(window_ms=streams.WINDOW_MS, remember=150)
EVENTS = streams.joined(3, 120)
ROLLBACK = LogEntry("rollback", "command", Consumed((), b"", 0), 0, 8, "numpy", "", "")


class Model:
    """A rig with an archive of its log."""

    def __init__(self, folder: Path, partitions: int = 3) -> None:
        self.rig = fill(Rig(partitions=partitions, rules=RULES), EVENTS)
        self.artifacts = FileArtifacts(folder, "m")
        self.log = LineageLog(self.rig.store, self.artifacts)

    def ranges(self) -> dict[TopicPartition, Range]:
        return {s: Range(0, self.rig.log.end(s), "") for s in self.rig.sources()}

    def check(self, states: Mapping[int, PartitionState]) -> None:
        check_positions(states, self.ranges())

    def back_to(self, version: Version) -> Version:
        moment = kept(self.artifacts, "m", version)
        others = Beginnings(self.log.entries, version, self.check)
        return self.rig.store.rewind(Rewind(moment.checkpoint("m"), moment.positions("m"), others, ROLLBACK))

    def verified(self) -> None:
        """The state is what its log and its records make of it, and so are the books."""
        tip = self.rig.store.load().version
        path = Chain(self.log.entries()).path(tip)
        replay = Replay(self.log.recipe, learner, Joining(FakeReader(self.rig.log), path.firsts), empty(self.rig.spec))
        here = Here(software("numpy"), code())
        verdict = verify(path, self.log.entries(), replay, self.log.recipe, lambda _: here, lambda _: None)
        assert verdict.equal, verdict.reason
        assert verdict.digest == self.rig.digest()
        assert sum(replay.joining.ledgers().values(), Ledger()) == self.rig.ledger()


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return Model(tmp_path)


@cache
def undisturbed() -> Ledger:
    rig = fill(Rig(partitions=3, rules=RULES), EVENTS)
    rig.worker().drain()
    return rig.ledger()


def test_running_workers_reload_and_learn_what_follows_again(model: Model) -> None:
    worker = model.rig.worker()
    worker.rounds(4)
    done = archive_once(model.rig.store, model.artifacts)
    assert done.kept
    before = model.rig.ledger()
    worker.rounds(4)
    assert model.rig.ledger().consumed > before.consumed
    version = model.back_to(done.kept)
    assert model.rig.ledger() == before
    assert codec.digest(kept(model.artifacts, "m", done.kept).checkpoint("m").learner) == model.rig.digest()
    worker.drain()
    assert version.number < model.rig.store.load().version.number
    assert model.rig.ledger() == undisturbed()
    model.verified()


def test_back_to_before_the_first_example_every_partition_begins_again(model: Model) -> None:
    """Partitions that did not exist then go back to the first record that was ever taken from them."""
    done = archive_once(model.rig.store, model.artifacts)
    assert done.kept
    assert done.kept.number == 0
    assert kept_versions(model.artifacts, "m")[0].partitions == {}
    worker = model.rig.worker()
    worker.rounds(30)
    archive_once(model.rig.store, model.artifacts, trim=True)
    worker.rounds(2)
    assert model.rig.store.load().partitions
    model.back_to(done.kept)
    assert model.rig.ledger() == Ledger()
    assert model.rig.store.load().partitions == frozenset()
    assert {side.next_offset for s in model.rig.store.partitions() for side in s.state.sides} == {0}
    worker.drain()
    assert model.rig.ledger() == undisturbed()
    model.verified()


ACTS = st.lists(st.integers(0, 9), min_size=5, max_size=40)


@settings(max_examples=12, deadline=None)
@given(acts=ACTS, data=st.data())
def test_whoever_runs_dies_or_goes_back_the_books_balance_and_the_state_verifies(
    acts: list[int], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    model = Model(tmp_path_factory.mktemp("m"))
    workers: list[Worker] = [model.rig.worker(50), model.rig.worker(80)]
    for act in acts:
        if act < 5:
            workers[act % 2].rounds(2)
        elif act == 5:
            workers.pop(0).crash()
            workers.append(model.rig.worker(60))
        elif act < 8:
            archive_once(model.rig.store, model.artifacts, trim=act == 7)
        elif found := kept_versions(model.artifacts, "m"):
            model.back_to(data.draw(st.sampled_from([one.version for one in found]), "back to"))
    for worker in workers:
        worker.crash()
    model.rig.worker().drain()
    assert model.rig.ledger() == undisturbed()
    model.verified()


# -- what is not there any more -------------------------------------------------------------------------------------


def side(topic: str = "features", offset: int = 10, waiting: tuple[int, ...] = (), topic_id: str = "") -> SideState:
    pending = BitMap64(waiting).serialize() if waiting else b""
    return SideState(topic, topic_id, offset, 1, 1, 3, pending, b"")


def states(*sides: SideState) -> dict[int, PartitionState]:
    return {4: PartitionState(4, Ledger(), sides)}


@pytest.mark.parametrize(
    ("stored", "begin", "end", "words"),
    [
        (side(), 11, 20, "features, partition 4: the state needs the records from offset 10 on .* log holds 11 to 20"),
        (side(waiting=(5, 8)), 6, 20, "from offset 5 on and goes on from 10, the log holds 6 to 20"),
        (side(), 0, 9, "goes on from 10, the log holds 0 to 9"),
        (side(topic_id="old"), 0, 20, "deleted and created again"),
        (side("labels"), 0, 20, "labels, partition 4 does not exist"),
    ],
)
def test_positions_whose_records_are_gone_are_refused_with_their_place(
    stored: SideState, begin: int, end: int, words: str
) -> None:
    with pytest.raises(OffsetsLost, match=words):
        check_positions(states(stored), {TopicPartition("features", 4): Range(begin, end, "new")})


@pytest.mark.parametrize("stored", [side(), side(offset=0), side(offset=20), side(waiting=(7,)), side(topic_id="new")])
def test_positions_whose_records_are_there_pass(stored: SideState) -> None:
    begin = 0 if stored.next_offset == 0 else 7  # ids that are only remembered may be gone: `oldest` is 3
    check_positions(states(stored), {TopicPartition("features", 4): Range(begin, 20, "new")})
    assert sources(states(stored).values()) == {TopicPartition("features", 4)}


def test_a_topic_that_was_never_taken_from_stays_where_it_is() -> None:
    (state,) = states(side(), side("labels", 33)).values()
    begun = begun_again(state, {TopicPartition("features", 4): 2, TopicPartition("labels", 3): 1})
    assert [(s.topic, s.next_offset, s.oldest, s.clock, s.pending) for s in begun.sides] == [
        ("features", 2, 2, -1, b""),
        ("labels", 33, 33, -1, b""),
    ]
    assert begun.ledger == Ledger()


def test_a_log_with_gaps_is_no_ground_for_positions(model: Model) -> None:
    done = archive_once(model.rig.store, model.artifacts)
    assert done.kept
    model.rig.worker().rounds(20)
    log = model.rig.server.logs["m"]
    del log[1:3]
    before = model.rig.store.load().version
    with pytest.raises(StateMissing, match="does not go back to the beginning"):
        model.back_to(done.kept)
    assert model.rig.store.load().version == before


def test_what_is_undone_is_counted(model: Model) -> None:
    worker = model.rig.worker()
    worker.rounds(6)
    done = archive_once(model.rig.store, model.artifacts)
    assert done.kept
    then = kept(model.artifacts, "m", done.kept).checkpoint("m")
    worker.rounds(6)
    now = model.rig.store.load()
    told = undone(model.log.entries, now, then, "then")
    assert told == Undone(
        now.learner.examples - then.learner.examples, now.version.number - then.version.number, "then"
    )
    model.back_to(done.kept)
    worker.rounds(6)
    assert undone(model.log.entries, model.rig.store.load(), now, "").commits is None, "not on the way"
