"""Several workers on one real Redis: races, and a server that comes back with older data."""

import threading
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest
import redis

from tests.contract.store_samples import checkpoint, commit_on, entry, learner, partition
from tests.services.redis import RedisServer
from worker.state.checkpoint import fence_after
from worker.state.redis_connect import Link, connect
from worker.state.redis_store import RedisStore
from worker.state.store import Commit, Committed, Fence, Fenced, Moved


@pytest.fixture
def open_store(model: str) -> Iterator[Callable[[str], RedisStore]]:
    links: list[Link] = []

    def make(url: str) -> RedisStore:
        links.append(connect(url))
        return RedisStore(links[-1], model)

    yield make
    for link in links:
        link.drop_connections()


def test_workers_that_race_lose_no_example_and_count_none_twice(
    open_store: Callable[[str], RedisStore], redis_url: str
) -> None:
    """Each commit learns one example of its worker's own partition; who is too late learns it again on what is there."""
    rounds, workers = 25, 3
    shared = open_store(redis_url)
    assert shared.create(checkpoint(state=learner(0)), entry("init"))
    problems: list[BaseException] = []

    def work(number: int) -> None:
        store = open_store(redis_url)
        fence = store.claim(number, Fence(""), partition(number))
        assert fence is not None
        for done in range(1, rounds + 1):
            outcome: object = Moved()
            while outcome == Moved():
                seen = store.load()
                blank = commit_on(seen, {number: fence}, state=learner(seen.learner.examples + 1))
                moved = {number: (fence, partition(number, done))}
                commit = Commit(blank.base, blank.checkpoint, moved, blank.entry)
                outcome = store.commit(commit)
            assert isinstance(outcome, Committed)
            fence = outcome.fences[number]

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as problem:  # noqa: BLE001 - shown by the test's own thread
            problems.append(problem)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert problems == []
    assert shared.load().learner.examples == rounds * workers
    assert [stored.state.sides[0].next_offset for stored in shared.partitions()] == [rounds] * workers
    log = list(shared.commit_log())
    assert len(log) == rounds * workers + 1
    assert all(after.base == before.version for before, after in pairwise(log))


def test_a_server_that_comes_back_with_older_data_takes_nothing_stale(
    open_store: Callable[[str], RedisStore], start_redis: Callable[..., RedisServer]
) -> None:
    """A machine crash lost the last commits. The old number comes round again; the nonce keeps the stale commit out."""
    server = start_redis("--appendonly", "no")
    mine, other = (open_store(server.url) for _ in range(2))
    base = checkpoint()
    assert mine.create(base, entry("init"))
    fences = {number: mine.claim(number, Fence(""), partition(number)) for number in (0, 1)}
    assert fences[0] is not None
    assert fences[1] is not None
    with redis.Redis.from_url(server.url) as raw:
        raw.config_set("save", "")
        raw.save()
    lost = commit_on(base, {0: fences[0]})
    assert isinstance(mine.commit(lost), Committed)
    server.kill()
    server.start()
    mine.wait_until_ready(20)

    stale = commit_on(lost.checkpoint, {0: fence_after(lost)}, next_offset=4)
    assert mine.commit(stale) == Fenced(frozenset({0}))
    assert mine.load().version == base.version
    again = commit_on(base, {1: fences[1]})
    assert isinstance(other.commit(again), Committed)
    assert again.checkpoint.version.number == lost.checkpoint.version.number
    # Same number, other nonce: also a commit whose fence still fits is told that the state is another one.
    late = Commit(lost.checkpoint.version, stale.checkpoint, {0: (fences[0], partition(0, 4))}, entry())
    assert mine.commit(late) == Moved()
    stored = mine.load_partition(0)
    assert stored is not None
    assert stored.state.sides[0].next_offset == 0
