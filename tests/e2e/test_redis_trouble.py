"""A worker whose Redis answers late or takes no writes in the middle of a commit: nothing is lost, nothing done twice."""

import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from tests.e2e import streams
from tests.e2e.world import Child, NewWorld, World, wait_for, worlds
from tests.services.redis import Proxy, RedisServer
from worker.state.redis_connect import connect
from worker.state.redis_store import RedisStore

pytestmark = [pytest.mark.crash, pytest.mark.timeout(200)]

EVENTS = streams.joined(21, 2_500)
SETTINGS: dict[str, Any] = {
    "join.window_s": streams.WINDOW_MS / 1000,
    "commit.every_examples": 64,
    "commit.every_s": 60,
}


@pytest.fixture
def new_world(kafka: str, redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewWorld]:
    with worlds(kafka, redis_url, tmp_path_factory, streams.SCHEMA) as make:
        yield make


@pytest.fixture
def behind_proxy(
    kafka: str, redis_url: str, redis_proxy: Proxy, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    """A world whose workers reach Redis through the proxy, while the test looks at it directly."""
    with worlds(kafka, redis_proxy.url, tmp_path_factory, streams.SCHEMA) as make:
        world = make(**SETTINGS)
        world.store = RedisStore(connect(redis_url), world.name)
        world.send(EVENTS)
        yield world


def _assert_same_as_undisturbed(world: World, new_world: NewWorld) -> None:
    undisturbed = new_world(events_of=world, **SETTINGS)
    undisturbed.drain()
    assert world.ledger() == undisturbed.ledger()
    assert world.digest() == undisturbed.digest()


def _assert_each_commit_was_made_once(world: World) -> None:
    versions = [logged.version.number for logged in world.store.commit_log()]
    assert versions == list(range(len(versions)))
    assert versions[-1] == world.checkpoint().version.number


@pytest.mark.parametrize("in_time", [True, False])
def test_a_signal_during_a_commit_that_is_not_answered_leaves_that_commit_once(
    behind_proxy: World, new_world: NewWorld, redis_proxy: Proxy, in_time: bool
) -> None:
    """The commit was made and its reply is kept back: a while, or longer than the worker may take to end."""
    world = behind_proxy
    child = world.start("--init")
    world.freeze_at_commit(child, 5)
    before = world.checkpoint().version.number
    redis_proxy.only, redis_proxy.hold_replies = b"EVAL", True
    child.kill(signal.SIGCONT)
    world.wait_for_commit(child, before + 1)
    child.kill(signal.SIGTERM)
    if in_time:
        redis_proxy.release_replies()
    code = child.wait(10.0)
    assert code == 0 if in_time else code in (0, 6), child.tail()
    redis_proxy.release_replies()
    _assert_each_commit_was_made_once(world)
    told = world.json("status")
    assert told["state_version"] == world.json("state", "show")["state_version"] >= before + 1
    assert told["ledger"]["consumed"] == world.ledger().consumed
    world.drain()
    _assert_each_commit_was_made_once(world)
    _assert_same_as_undisturbed(world, new_world)


@pytest.fixture(scope="module")
def own_redis(start_redis: Callable[..., RedisServer]) -> RedisServer:
    """A store that these tests may demote."""
    return start_redis("--appendonly", "yes")


def test_a_primary_that_is_demoted_under_a_worker_holds_its_commits_until_it_is_promoted(
    kafka: str, own_redis: RedisServer, new_world: NewWorld, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with worlds(kafka, own_redis.url, tmp_path_factory, streams.SCHEMA) as make, redis.Redis.from_url(
        own_redis.url
    ) as server:  # fmt: skip
        world = make(**SETTINGS)
        world.send(EVENTS)
        child = world.start("--init", "--drain")
        world.freeze_at_commit(child, 5)
        server.replicaof("127.0.0.1", "1")
        try:
            demoted_at = world.checkpoint().version
            child.kill(signal.SIGCONT)
            wait_for(lambda: "takes no writes" in _reason(child), "the worker says why it is not ready")
            assert world.checkpoint().version == demoted_at
            assert world.acknowledged() == world.positions()
        finally:
            server.replicaof("NO", "ONE")
        assert child.wait() == 0, child.tail()
        _assert_each_commit_was_made_once(world)
        _assert_same_as_undisturbed(world, new_world)


def _reason(child: Child) -> str:
    assert child.process.poll() is None, f"ended early:\n{child.tail()}"
    return child.not_ready_because()
