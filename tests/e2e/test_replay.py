"""The commit log as lineage: whoever reads it beside the records retrains every version of the model, bit for bit."""

import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from tests.e2e import streams
from tests.e2e.world import NewWorld, World, worlds
from worker.lineage.chain import Chain
from worker.lineage.replay import Joining, Replay, empty
from worker.lineage.verify import learner
from worker.spec import read_spec
from worker.state.commit_log import LoggedCommit
from worker.stream.kafka.connection import KafkaConfig
from worker.stream.kafka.reader import KafkaReader
from worker.stream.positions import Ledger

pytestmark = [pytest.mark.crash, pytest.mark.timeout(200)]

EVENTS = streams.joined(21, 4_000)
REMEMBER = 700  # less than a window holds: what is forgotten has to be forgotten at the same record again


@contextmanager
def replaying(world: World, log: list[LoggedCommit]) -> Iterator[Replay]:
    """Retrain a model in this process from its commit log and its records, with nothing else to go by."""
    path = Chain(log).path(log[-1].version)
    assert len(path.links) == len(log), "an unbroken chain"
    with closing(KafkaReader(KafkaConfig(world.kafka))) as reader:
        spec = read_spec(world.checkpoint().spec)
        yield Replay(world.store.recipe, learner, Joining(reader, path.firsts), empty(spec))


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
        join__idle_labels=idle, train__l2=0.001, train__clip_norm=2.0, train__batch_size=16,
        commit__every_s=0.05, stream__max_idle_ms=20,
    )  # fmt: skip
    sent = _disturbed(world)
    log = list(world.store.commit_log())
    assert [commit.entry.kind for commit in log[:1]] == ["init"]
    assert len({commit.entry.worker for commit in log[1:]}) == 4, "every worker has learned"
    with replaying(world, log) as replay:
        for commit in log:
            replay.follow(commit)
    ledger = sum(replay.joining.ledgers().values(), Ledger())
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
