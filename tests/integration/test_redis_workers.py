"""Several workers on one real Redis: races, and a server that comes back with older data."""

import threading
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest
import redis

from tests.contract.store_samples import RECIPE, checkpoint, commit_on, entry, learner, partition, under_recipe
from tests.contract.turn_benches import RedisBench, Worker
from tests.services.redis import ContainerServer, RedisServer, wait_until
from tests.services.require import left_out
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


@pytest.mark.parametrize("where", ["in the first turn", "in the commit after it"])
def test_an_append_only_file_that_lost_its_end_takes_nothing_stale_and_heals(
    model: str, start_redis: Callable[..., RedisServer], where: str
) -> None:
    """A machine crash cuts the file in the middle of a commit: that one and all later ones never happened."""
    server = start_redis("--appendonly", "yes", "--save", "", "--auto-aof-rewrite-percentage", "0")
    if not isinstance(server, ContainerServer):
        left_out("docker", "only the file of a server in a container can be cut")
        return
    bench = RedisBench(server.url, model, 0.3)
    one, two, idle = (bench.worker() for _ in range(3))

    def takes_its_turn(worker: Worker) -> Commit:
        worker.queue.ask()
        wait_until(lambda: worker.queue.granted(0.02))
        assert isinstance(worker.commit(under_recipe(worker.prepared())), Committed)
        assert worker.last is not None
        return worker.last

    assert isinstance(two.commit(), Committed)
    assert isinstance(idle.commit(), Committed)
    kept = one.store.version()
    size = bench.raw.info("persistence")["aof_current_size"]
    lost = takes_its_turn(one)
    first_turn = where == "in the first turn"
    cut = size + 10 if first_turn else bench.raw.info("persistence")["aof_current_size"] - 10
    takes_its_turn(one)
    one.queue.ask()
    wait_until(lambda: one.queue.granted(0.02))
    stale, unmoved = one.prepared(), idle.prepared()
    server.kill()
    server.cut_aof(cut)
    server.start()
    one.store.wait_until_ready(20)

    assert one.store.version() == kept != stale.base, "recognised by the nonce"
    assert one.store.recipe(RECIPE.digest()) == (None if first_turn else RECIPE)
    assert bool(bench.issued()) != first_turn, "the token of the lost turn counts, and nobody has it"
    again, following = takes_its_turn(two), takes_its_turn(two)
    assert again.checkpoint.version.number == lost.checkpoint.version.number
    assert following.checkpoint.version.number == stale.base.number, "the number has come round again"
    assert one.store.commit(stale) == Fenced(frozenset({one.number}))
    assert idle.store.commit(unmoved) == Moved()
    assert two.store.version() == following.checkpoint.version
    assert two.store.recipe(RECIPE.digest()) == RECIPE
    assert bench.free() == [bench.issued()] == [str(following.checkpoint.version)]
    bench.close()
