"""Three workers on real data: the figures that they show are those of one worker that learns in the order of their log.

Equal to the last bit. One worker in the order of the file would show others: the order is another one.
"""

import csv
import gzip
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from typing import NamedTuple

import pytest

from tests.e2e.test_replay import replaying
from tests.e2e.world import Event, World, feature, label
from tests.unit.datasets import DATA
from worker.learn.evaluation import summary
from worker.local import flights
from worker.local.flights_settings import LEARNING_RATE
from worker.spec import Hyper
from worker.state import checkpoint as codec

pytestmark = pytest.mark.timeout(180)

T0 = 1_764_000_000_000
WORKERS = 3
PIECE = 500  # records sent at a time, so that turns fall between them


class Data(NamedTuple):
    """Records in the order of the file, and the settings under which they are learned."""

    events: Sequence[Event]
    features: Sequence[Mapping[str, object]]
    hyper: Hyper


def elec2() -> Data:
    """Prices of electricity; each label follows its feature."""
    with gzip.open(DATA / "elec2.csv.gz", "rt") as file:
        header, *rows = islice(csv.reader(file), 3001)
    names, events = header[:-1], list[Event]()
    for i, row in enumerate(rows):
        features = {name: float(value) for name, value in zip(names, row[:-1], strict=True)}
        events += feature(f"e-{i}", T0 + i, **features), label(f"e-{i}", T0 + i, int(row[-1] == "UP"))
    return Data(events, [{"name": name} for name in names], Hyper(learning_rate=0.005, intercept_learning_rate=0.01))


def flown() -> Data:
    """Flights: labels hours late, some that never come, some records that are refused."""
    events = [Event(e.role, e.key.decode(), e.value) for e in flights.events(spoil_every=100)[:6000]]
    features = [
        {"name": f.name, "kind": f.kind} | ({"bits": f.bits} if f.kind == "categorical" else {})
        for f in flights.FEATURES
    ]
    return Data(events, features, Hyper(learning_rate=LEARNING_RATE))


@pytest.fixture
def new_world(
    kafka: str, redis_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[Data], World]]:
    made: list[World] = []

    def make(data: Data) -> World:
        settings: dict[str, object] = {
            "train__learning_rate": data.hyper.learning_rate,
            "train__batch_size": data.hyper.batch_size,
            "join__window_s": flights.WINDOW_S,
            "commit__every_s": 0.05,
            "stream__max_idle_ms": 50,
        }
        if data.hyper.intercept_learning_rate is not None:
            settings["train__intercept_learning_rate"] = data.hyper.intercept_learning_rate
        folder = tmp_path_factory.mktemp("several")
        made.append(World(kafka, redis_url, folder, data.features, WORKERS, None, **settings))
        return made[-1]

    yield make
    for world in made:
        world.close()


@pytest.mark.parametrize("data", [elec2, flown])
def test_the_log_loss_of_three_workers_is_that_of_their_log_learned_by_one(
    new_world: Callable[[Data], World], data: Callable[[], Data]
) -> None:
    given = data()
    world = new_world(given)
    _learn_together(world, given.events)
    log = list(world.store.commit_log())
    owners = [commit.entry.worker for commit in log[1:]]
    assert len(set(owners)) == WORKERS
    assert sum(a != b for a, b in pairwise(owners)) > WORKERS, "they have learned by turns, not one after the other"
    with replaying(world, log) as replay:
        for commit in log:
            replay.follow(commit)
    assert codec.digest(replay.state) == world.digest()
    shown = world.json("status")
    assert shown["examples"] == replay.state.examples > 0
    assert shown["evaluation"]["log_loss"] == summary(replay.state, "binary")["log_loss"]
    assert shown["evaluation"] == summary(replay.state, "binary")


def _learn_together(world: World, events: Sequence[Event]) -> None:
    for _ in range(WORKERS):
        world.start("--init")
    world.wait_until_shared(WORKERS)
    for low in range(0, len(events), PIECE):
        world.send(events[low : low + PIECE])
    world.wait_until_taken(len(events))
    for child in world.children:
        assert child.stop() == 0, child.tail()
