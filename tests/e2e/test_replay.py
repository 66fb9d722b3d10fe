"""The commit log as lineage: whoever reads it beside the records retrains every version of the model, bit for bit."""

import zlib
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from tests.e2e import streams
from tests.e2e.world import NewWorld, World, worlds
from worker.learn.learner import Learner
from worker.learn.model import initial_state
from worker.spec import Hyper, Role, read_spec
from worker.state import checkpoint as codec
from worker.state.commit_log import LoggedCommit
from worker.stream.events import Decoder, Events
from worker.stream.intake import Intake
from worker.stream.join import JoinRules
from worker.stream.positions import Ledger, PartitionState, SideState
from worker.stream.records import Records, TopicPartition
from worker.stream.rows import RowFormat

pytestmark = [pytest.mark.crash, pytest.mark.timeout(200)]

EVENTS = streams.joined(21, 4_000)
HYPER = Hyper(l2=0.001, clip_norm=2.0, batch_size=16)
REMEMBER = 700  # less than a window holds: what is forgotten has to be forgotten at the same record again


class Replay:
    """Retrains a model in this process from its commit log and its records, with nothing else to go by."""

    def __init__(self, world: World, rules: JoinRules, hyper: Hyper = HYPER) -> None:
        self.world = world
        spec = read_spec(world.checkpoint().spec)
        self.learn = Learner(spec, hyper)
        self.state = initial_state(spec)
        self.intake = Intake(True, rules, RowFormat(spec), hyper.batch_size)
        self.topics = (world.topics["features"], world.topics["labels"])
        self.events: dict[TopicPartition, Events] = {}
        roles: tuple[Role, Role] = ("features", "labels")
        for role in roles:
            decoder = Decoder(spec, role)
            for chunk in _chunks(world, role):
                self.events[chunk.source] = decoder.decode(chunk)

    def own(self, partition: int) -> None:
        """Begin with a partition that nothing was taken from yet; put all of its records where they can be taken."""
        sides = tuple(SideState(topic, "", 0, -1, -1, 0, b"", b"") for topic in self.topics)
        self.intake.own(PartitionState(partition, Ledger(), sides))
        for topic in self.topics:
            if (source := TopicPartition(topic, partition)) in self.events:
                self.intake.add(self.events[source])

    def follow(self, commit: LoggedCommit) -> None:
        """Learn what one commit learned, and hold the outcome against what the log says of it."""
        consumed = commit.entry.consumed
        for topic, partition, first in consumed.sources:
            if partition not in self.intake.pairs:
                self.own(partition)
            lane = self.intake.pairs[partition].lanes[self.topics.index(topic)]
            assert lane.next_offset == first, "no record is left out, and none comes twice"
        self.intake.take_in_order(consumed)
        work = self.intake.work()
        assert len(work.examples) == commit.entry.examples
        self.state, _ = self.learn(self.state, work.examples)
        self.intake.settle(work)
        assert codec.digest(self.state) == commit.digest, f"version {commit.version.number} was not reproduced"


def _chunks(world: World, role: Role) -> Iterator[Records]:
    records = world.read(role)
    for number in sorted({record.partition for record in records}):
        mine = [record for record in records if record.partition == number]
        yield Records(
            TopicPartition(world.topics[role], number),
            [record.offset for record in mine],
            [record.timestamp for record in mine],
            [record.key for record in mine],
            [record.value for record in mine],
            mine[-1].offset + 1,
        )


@pytest.fixture
def new_world(kafka: str, redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewWorld]:
    with worlds(kafka, redis_url, tmp_path_factory, streams.SCHEMA) as make:
        yield make


@pytest.mark.parametrize("on_expiry", ["drop", "negative"])
def test_every_commit_of_many_workers_at_a_live_edge_is_retrained_bit_for_bit(
    new_world: NewWorld, on_expiry: Any
) -> None:
    """G3: two partitions, workers that come, end, are killed and come back, while the events are still arriving."""
    idle: Any = "wait" if on_expiry == "drop" else "advance"
    world = new_world(
        partitions=2, join__window_s=streams.WINDOW_MS / 1000, join__remember=REMEMBER, join__on_expiry=on_expiry,
        join__idle_labels=idle, train__l2=HYPER.l2, train__clip_norm=HYPER.clip_norm, train__batch_size=16,
        commit__every_s=0.05, stream__max_idle_ms=20,
    )  # fmt: skip
    sent = _disturbed(world)
    log = list(world.store.commit_log())
    assert [commit.entry.kind for commit in log[:1]] == ["init"]
    assert len({commit.entry.worker for commit in log[1:]}) == 4, "every worker has learned"
    replay = Replay(world, JoinRules(streams.WINDOW_MS, remember=REMEMBER, on_expiry=on_expiry))
    assert codec.digest(replay.state) == log[0].digest
    for before, commit in pairwise(log):
        assert commit.base == before.version, "an unbroken chain"
        replay.follow(commit)
    ledger = sum((pair.committed.ledger for pair in replay.intake.pairs.values()), Ledger())
    assert ledger == world.ledger()
    assert ledger.consumed == sent
    assert min(ledger.trained, ledger.expired if on_expiry == "drop" else ledger.late, ledger.duplicate) > 0
    followed = sum(b"\x80" in zlib.decompress(c.entry.consumed.order)[1::2] for c in log)
    assert (followed > 0) == (idle == "advance"), "an idle side that follows the other clock is in the log as well"
    told = world.json("lineage", "verify")
    assert told["equal"]
    assert (told["digest"], told["commits"]) == (log[-1].digest, len(log))


def _disturbed(world: World) -> int:
    """Send the events piece by piece to workers that are killed, ended and started again; return how many."""
    size = 100
    pieces = iter([EVENTS[low : low + size] for low in range(0, len(EVENTS), size)])
    sent = 0

    def send(count: int) -> None:
        nonlocal sent
        for _ in range(count):
            sent += world.send(next(pieces))
            world.wait_until_taken(sent - size)  # never far behind: this is a live edge

    first = world.start("--init")
    world.wait_until_shared(1)
    send(15)
    second = world.start()
    world.wait_until_shared(2)
    send(15)
    sent += world.send(next(pieces))
    first.kill()  # with work in hand; its partitions come back when its session ends
    first.wait()
    world.wait_until_taken(sent)
    third = world.start()
    send(10)
    assert second.stop() == 0, second.tail()
    send(10)
    assert third.stop() == 0, third.tail()
    for piece in pieces:
        sent += world.send(piece)
    world.drain()
    return sent
