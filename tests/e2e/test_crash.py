"""A worker killed at any moment has learned, after its restart, exactly what an undisturbed one learned."""

import random
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from tests.e2e import streams
from tests.e2e.world import Child, Event, World, wait_for
from worker.stream.positions import Ledger

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]

COUNT = 12_000
SETTINGS: dict[str, Any] = {
    "join.window_s": streams.WINDOW_MS / 1000,
    "commit.every_examples": 256,  # boundaries by count: the data decides them, so the bytes have to be equal
    "commit.turn_wait_ms": 1,  # who was killed may have had the turn: the next one collects while it waits for it
    "commit.every_s": 60,
    "train.l2": 0.001,
    "train.clip_norm": 2.0,
}


class Undisturbed(NamedTuple):
    world: World
    settings: dict[str, Any]
    digest: str
    ledger: Ledger
    dead_letters: list[tuple[str, int, int, str]]
    commits: int
    examples: int


NewWorld = Callable[..., World]


@pytest.fixture(scope="module")
def new_world(apache_kafka: str, redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewWorld]:
    worlds: list[World] = []

    def make(**settings: Any) -> World:
        worlds.append(World(apache_kafka, redis_url, tmp_path_factory.mktemp("world"), streams.SCHEMA, **settings))
        return worlds[-1]

    yield make
    for world in worlds:
        world.close()


def _undisturbed(new_world: NewWorld, events: list[Event], settings: dict[str, Any]) -> Undisturbed:
    world = new_world(**settings)
    world.send(events)
    world.drain()
    end = world.checkpoint()
    commits, examples = end.version.number, end.learner.examples
    return Undisturbed(world, settings, world.digest(), world.ledger(), world.dead_letters(), commits, examples)


@pytest.fixture(scope="module")
def joined(new_world: NewWorld) -> Undisturbed:
    run = _undisturbed(new_world, streams.joined(7, COUNT), SETTINGS)
    ledger = run.ledger
    assert min(ledger.trained, ledger.dead_lettered, ledger.expired, ledger.duplicate, ledger.late) > 0
    assert ledger.withdrawn > 0
    assert ledger.pending == 0
    return run


@pytest.fixture(scope="module")
def inline(new_world: NewWorld) -> Undisturbed:
    return _undisturbed(new_world, list(streams.inline(8, COUNT)), SETTINGS | {"stream.mode": "inline"})


def _wait_until_learned(world: World, child: Child, examples: int) -> None:
    def learned() -> bool:
        assert child.process.poll() is None, f"ended early:\n{child.tail()}"
        return world.store.version() is not None and world.checkpoint().learner.examples >= examples

    wait_for(learned, f"{examples} examples")


def _kill_and_finish(new_world: NewWorld, undisturbed: Undisturbed, seed: int) -> None:
    rng = random.Random(seed)
    world = new_world(events_of=undisturbed.world, **undisturbed.settings)
    targets = sorted(rng.sample(range(1, undisturbed.commits - 1), 2))
    for target in targets:
        child = world.start("--init", "--drain")
        _wait_until_learned(world, child, target * undisturbed.examples // undisturbed.commits)
        time.sleep(rng.uniform(0, 0.01))  # anywhere within a turn
        child.kill()
        assert child.wait() == -9, f"ended before it was killed:\n{child.tail()}"
        world.ledger()  # balanced at the moment of the kill
    world.drain()
    assert world.ledger() == undisturbed.ledger
    assert world.dead_letters() == undisturbed.dead_letters
    assert world.digest() == undisturbed.digest


@pytest.mark.parametrize("seed", range(10))
def test_killed_at_random_moments_joined_learns_the_same_bytes(
    new_world: NewWorld, joined: Undisturbed, seed: int
) -> None:
    _kill_and_finish(new_world, joined, seed)


@pytest.mark.parametrize("seed", range(10, 20))
def test_killed_at_random_moments_inline_learns_the_same_bytes(
    new_world: NewWorld, inline: Undisturbed, seed: int
) -> None:
    _kill_and_finish(new_world, inline, seed)


def test_commit_placement_and_batch_size_change_no_example_and_no_weight_beyond_rounding(
    new_world: NewWorld, joined: Undisturbed
) -> None:
    """`sequential`: 1e-9 on weights, statistics and evaluation, whatever the boundaries."""
    world = new_world(
        events_of=joined.world,
        **{**joined.settings, "train.batch_size": 7, "commit.every_examples": 0, "commit.every_s": 0.05},
    )
    world.drain()
    assert world.ledger() == joined.ledger
    mine, theirs = world.checkpoint().learner.arrays, joined.world.checkpoint().learner.arrays
    for name in ("weight", "intercept", "normalizer.mean", "normalizer.m2", "normalizer.count"):
        assert mine[name] == pytest.approx(theirs[name], rel=1e-9, abs=1e-9), name
