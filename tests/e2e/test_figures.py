"""Published progressive figures to the printed digits, through the real loop: events over a broker, read from `--json`.

The same figures are held by the learner alone in the unit tests; here decoding, ordering, joining, turns and commits
lie in between, and none of them may change a digit.
"""

import json
import math
import uuid
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from ops.bench import commit, end_to_end, restart
from ops.bench.model import models
from ops.bench.servers import Servers
from ops.bench.sizes import Sizes
from tests.e2e.world import Event, World, example, feature, label
from tests.unit.datasets import bananas, elec2, phishing, trump_approval
from worker.stream.rows import Examples

T0 = 1_764_000_000_000
pytestmark = pytest.mark.timeout(180)
batch_sizes = pytest.mark.parametrize("batch_size", [1, 64])


class Data(NamedTuple):
    """A data set, the settings it was published with, and what must come out of each document, to how many digits."""

    rows: Callable[[], Examples]
    settings: dict[str, object]
    evaluation: dict[str, tuple[float, int]]
    intercept: tuple[float, int] | None = None


DATA = {
    "phishing": Data(
        phishing,
        {"train.learning_rate": 0.01},
        {"accuracy": (0.8928, 4), "no_change_accuracy": (0.515612, 6)},
    ),
    "elec2": Data(
        elec2,
        {"train.learning_rate": 0.005, "train.intercept_learning_rate": 0.01},
        {"accuracy": (0.822144, 6), "f1": (0.777086, 6), "no_change_accuracy": (0.853303, 6)},
    ),
    "trump_approval": Data(
        trump_approval,
        {"model.task": "regression", "train.learning_rate": 0.01, "train.intercept_learning_rate": 0.1},
        {"mae": (0.558735, 6)},
        (35.61767, 5),
    ),
    "bananas": Data(
        bananas,
        {"train.learning_rate": 0.005, "train.intercept_learning_rate": 0.01},
        {"accuracy": (0.543208, 6), "f1": (0.197015, 6), "no_change_accuracy": (0.50953, 5)},
    ),
}


def numbered(rows: Examples) -> Iterator[tuple[str, int, dict[str, object], float]]:
    """Yield id, event time, features and label of each row; the label of a class as a whole number."""
    for i, (values, value) in enumerate(zip(rows.dense.tolist(), rows.labels.tolist(), strict=True)):
        yield f"e-{i}", T0 + i, {f"x{n}": x for n, x in enumerate(values)}, value


def inline(rows: Examples) -> Iterator[Event]:
    return (example(id_, ts, value, **features) for id_, ts, features, value in numbered(rows))


def in_two_topics(rows: Examples) -> Iterator[Event]:
    """Each label right after its feature."""
    for id_, ts, features, value in numbered(rows):
        yield feature(id_, ts, **features)
        yield label(id_, ts, value)


def schema(rows: Examples) -> list[dict[str, object]]:
    return [{"name": f"x{n}"} for n in range(rows.dense.shape[1])]


def check(world: World, data: Data, count: int) -> None:
    """Hold what the commands print against what was published, to its printed digits."""
    status = world.json("status")
    assert status["examples"] == count
    figures = {name: round(status["evaluation"][name], digits) for name, (_, digits) in data.evaluation.items()}
    assert figures == {name: value for name, (value, _) in data.evaluation.items()}
    if data.intercept is not None:
        value, digits = data.intercept
        assert round(world.json("state", "show")["intercept"], digits) == value


@pytest.fixture(scope="module")
def world_of(kafka: str, redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., World]]:
    worlds: list[World] = []

    def make(rows: Examples, **settings: Any) -> World:
        worlds.append(World(kafka, redis_url, tmp_path_factory.mktemp("figures"), schema(rows), **settings))
        return worlds[-1]

    yield make
    for world in worlds:
        world.close()


@pytest.fixture(scope="module")
def sent(world_of: Callable[..., World]) -> Callable[[str], tuple[Examples, World]]:
    """Send a data set once, in order, for all models that learn from it."""
    known: dict[str, tuple[Examples, World]] = {}

    def send(name: str) -> tuple[Examples, World]:
        if name not in known:
            rows = DATA[name].rows()
            known[name] = rows, world_of(rows)
            assert known[name][1].send(inline(rows)) == len(rows)
        return known[name]

    return send


@batch_sizes
@pytest.mark.parametrize("name", DATA)
def test_published_figures_come_out_of_the_loop_to_the_printed_digits(
    world_of: Callable[..., World], sent: Callable[[str], tuple[Examples, World]], name: str, batch_size: int
) -> None:
    data = DATA[name]
    rows, topics = sent(name)
    more = {"stream.mode": "inline", "train.batch_size": batch_size, **data.settings}
    world = world_of(rows, events_of=topics, **more)
    world.drain()
    check(world, data, len(rows))
    assert world.ledger().trained == world.ledger().consumed == len(rows)


def test_features_and_labels_in_two_topics_give_the_same_figures(world_of: Callable[..., World]) -> None:
    data = DATA["phishing"]
    rows = data.rows()
    world = world_of(rows, **data.settings)
    world.send(in_two_topics(rows))
    world.drain()
    check(world, data, len(rows))
    assert world.ledger().trained == world.ledger().consumed == 2 * len(rows)


def test_one_step_on_y_equals_2x_can_be_followed_through_the_commands(world_of: Callable[..., World]) -> None:
    """By hand: loss (1/5) Σ (2x)² = 44, gradient −(2/5) Σ x · 2x = −44, so one step at 0.01 gives 0.44."""
    line = Examples(np.arange(1.0, 6.0)[:, None], np.empty((5, 0), np.int64), 2 * np.arange(1.0, 6.0), np.ones(5))
    by_hand = {"train.reduction": "mean", "train.standardize": False, "train.batch_size": 5}
    world = world_of(line, **{"stream.mode": "inline", "model.task": "regression", **by_hand})
    world.send(inline(line))
    world.drain()
    assert world.json("state", "show")["weights"] == {"x0": pytest.approx(0.44, abs=1e-12)}
    (message,) = [json.loads(record.value) for record in world.read("metrics")]
    assert message["loss"] == pytest.approx(44.0, abs=1e-12)
    # The norm has the intercept in it, whose gradient is −(2/5) Σ 2x = −12.
    assert message["grad_norm"] == pytest.approx(math.hypot(44, 12), abs=1e-12)


def test_the_bench_measures_a_few_events_through_whole_workers(apache_kafka: str, redis_url: str) -> None:
    servers, sizes = Servers(apache_kafka, redis_url), Sizes(examples=300, rounds=1, parameters=(0,), commits=3)
    figures = {figure.name: figure for figure in end_to_end.measure(servers, sizes) + commit.measure(servers, sizes)}
    assert {"end to end, joined", "end to end, inline", "the client alone, joined", "commit, 21 parameters"} < set(
        figures
    )
    assert all(figure.value > 0 for figure in figures.values())
    with models(servers) as make:
        figure = restart.restarted(make(kafka__group_instance_id=uuid.uuid4().hex), 50, "static member")
    assert figure.more == {"lost or learned twice": 0}
