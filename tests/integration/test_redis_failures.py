"""The store on a real Redis that fails: replies lost, restarts, data gone, memory full, foreign bytes."""

import contextlib
import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import redis

from tests.contract.store_samples import checkpoint, commit_on, entry, learner, partition, under_recipe
from tests.services.redis import Proxy, RedisServer, wait_until
from worker.errors import StateCorrupted, StateMissing, Transient
from worker.state.checkpoint import digest, fence_after
from worker.state.redis_connect import Link, connect
from worker.state.redis_store import RedisStore
from worker.state.redis_turn import RedisTurnQueue
from worker.state.store import Checkpoint, Commit, Committed, Fence, Fenced, Moved

Open = Callable[..., RedisStore]


@pytest.fixture
def open_store(model: str) -> Iterator[Open]:
    links: list[Link] = []

    def make(url: str, timeout_s: float = 5.0) -> RedisStore:
        links.append(connect(url, timeout_s=timeout_s))
        return RedisStore(links[-1], model)

    yield make
    for link in links:
        link.drop_connections()


@pytest.fixture
def raw(redis_url: str) -> Iterator["redis.Redis"]:
    with redis.Redis.from_url(redis_url) as client:
        yield client


def started(store: RedisStore, *numbers: int) -> tuple[Checkpoint, dict[int, Fence]]:
    first = checkpoint()
    assert store.create(first, entry("init"))
    fences = {}
    for number in numbers:
        fence = store.claim(number, Fence(""), partition(number))
        assert fence is not None
        fences[number] = fence
    return first, fences


def moved_on(store: RedisStore, base: Checkpoint, fences: dict[int, Fence]) -> Commit:
    commit = commit_on(base, fences)
    assert isinstance(store.commit(commit), Committed)
    return commit


def test_a_commit_whose_reply_was_lost_is_recognised(open_store: Open, redis_url: str, redis_proxy: Proxy) -> None:
    """The client would have run the script a second time by itself."""
    direct, store = open_store(redis_url), open_store(redis_proxy.url)
    first, fences = started(direct, 0, 1)
    commit = commit_on(first, fences)
    redis_proxy.only, redis_proxy.cut_replies = b"EVAL", True
    outcome = store.commit(commit)
    assert outcome == Committed(dict.fromkeys((0, 1), fence_after(commit)), direct.state_bytes())
    assert direct.load().version == commit.checkpoint.version
    assert len(list(direct.commit_log())) == 2


def test_a_commit_that_never_arrived_is_made_on_the_next_try(
    open_store: Open, redis_url: str, redis_proxy: Proxy
) -> None:
    direct, store = open_store(redis_url), open_store(redis_proxy.url)
    first, fences = started(direct, 0)
    commit = commit_on(first, fences)
    redis_proxy.only, redis_proxy.cut_requests = b"EVAL", True
    with pytest.raises(Transient, match="did not answer"):
        store.commit(commit)
    assert direct.load().version == first.version
    redis_proxy.cut_requests = False
    assert isinstance(store.commit(commit), Committed)
    assert len(list(direct.commit_log())) == 2


def test_a_lost_reply_after_which_others_moved_on_is_still_recognised(
    open_store: Open, redis_url: str, redis_proxy: Proxy
) -> None:
    """Applied, reply lost, nothing answers for a while, another worker commits: the repeated commit is known."""
    direct, store = open_store(redis_url), open_store(redis_proxy.url)
    first, fences = started(direct, 0, 1)
    commit = commit_on(first, {0: fences[0]})
    assert store.version() == first.version
    redis_proxy.cut_replies = True
    with pytest.raises(Transient):
        store.commit(commit)
    theirs = moved_on(direct, commit.checkpoint, {1: fences[1]})
    redis_proxy.cut_replies = False
    assert isinstance(store.commit(commit), Committed)
    assert direct.load().version == theirs.checkpoint.version


def test_a_refused_commit_whose_reply_was_lost_is_told_as_refused(
    open_store: Open, redis_url: str, redis_proxy: Proxy
) -> None:
    direct, store = open_store(redis_url), open_store(redis_proxy.url)
    first, fences = started(direct, 0, 1)
    moved_on(direct, first, {1: fences[1]})
    redis_proxy.only, redis_proxy.cut_replies = b"EVAL", True
    assert store.commit(commit_on(first, {0: fences[0]})) == Moved()
    assert direct.claim(0, fences[0], partition(0)) is not None
    assert store.commit(commit_on(first, {0: fences[0]})) == Fenced(frozenset({0}))


def test_a_claim_whose_reply_was_lost_is_recognised(open_store: Open, redis_url: str, redis_proxy: Proxy) -> None:
    direct, store = open_store(redis_url), open_store(redis_proxy.url)
    started(direct)
    redis_proxy.only, redis_proxy.cut_replies = b"EVAL", True
    fence = store.claim(0, Fence(""), partition(0))
    stored = direct.load_partition(0)
    assert stored is not None
    assert stored.fence == fence


def test_a_claim_that_never_arrived_is_made_on_the_next_try(
    open_store: Open, redis_url: str, redis_proxy: Proxy
) -> None:
    direct, store = open_store(redis_url), open_store(redis_proxy.url)
    started(direct)
    redis_proxy.only, redis_proxy.cut_requests = b"EVAL", True
    with pytest.raises(Transient):
        store.claim(0, Fence(""), partition(0))
    assert direct.load_partition(0) is None
    redis_proxy.cut_requests = False
    assert store.claim(0, Fence(""), partition(0)) is not None


def test_after_a_timeout_no_reply_is_taken_for_another(open_store: Open, redis_url: str, redis_proxy: Proxy) -> None:
    """The late reply to the first question must not become the answer to the second."""
    direct, store = open_store(redis_url), open_store(redis_proxy.url, timeout_s=0.2)
    first, _ = started(direct, 0)
    assert store.version() == first.version
    redis_proxy.hold_replies = True
    with pytest.raises(Transient, match="timed out"):
        store.load_partition(0)
    before = redis_proxy.connections
    redis_proxy.hold_replies = False
    redis_proxy.release_replies()
    assert store.load().version == first.version
    assert store.workers() == []
    assert redis_proxy.connections > before


def test_a_commit_that_timed_out_but_was_done_is_recognised(
    open_store: Open, redis_url: str, redis_proxy: Proxy
) -> None:
    """A save reported as failed may have happened."""
    direct, store = open_store(redis_url), open_store(redis_proxy.url, timeout_s=0.3)
    first, fences = started(direct, 0)
    commit = commit_on(first, fences)
    redis_proxy.only, redis_proxy.hold_replies = b"EVAL", True
    assert isinstance(store.commit(commit), Committed)
    redis_proxy.release_replies()
    assert direct.load().version == commit.checkpoint.version


def test_a_pickle_under_the_key_is_refused_and_not_run(
    open_store: Open, redis_url: str, raw: "redis.Redis", tmp_path: Path
) -> None:
    store = open_store(redis_url)
    _, fences = started(store, 0)
    sprung = tmp_path / "sprung"

    class Trap:
        def __reduce__(self) -> tuple[object, ...]:
            return (Path.touch, (sprung,))

    trap = pickle.dumps(Trap())
    raw.set(store.keys.state, trap)
    raw.set(store.keys.partition(0), trap)
    for read in (store.load, store.version, lambda: store.load_partition(0)):
        with pytest.raises(StateCorrupted, match="gradstream state restore --previous"):
            read()
    with pytest.raises(StateCorrupted):
        store.commit(commit_on(checkpoint(), fences))
    assert raw.get(store.keys.state) == trap
    assert not sprung.exists()


def test_a_damaged_state_is_put_back_from_the_previous_one(
    open_store: Open, redis_url: str, raw: "redis.Redis"
) -> None:
    store = open_store(redis_url)
    base, fences = started(store, 0)
    first = moved_on(store, base, fences)
    second = moved_on(store, first.checkpoint, {0: fence_after(first)})
    raw.setrange(store.keys.state, 200, b"\x00\x01")
    with pytest.raises(StateCorrupted, match="restore --previous"):
        store.load()
    restored = store.restore_previous(entry("restore"))
    assert restored.number > second.checkpoint.version.number
    assert digest(store.load().learner) == digest(first.checkpoint.learner)


@pytest.mark.parametrize("damage", ["deleted", "another type", "foreign bytes"])
def test_restore_works_whatever_happened_to_the_state(
    open_store: Open, redis_url: str, raw: "redis.Redis", damage: str
) -> None:
    store = open_store(redis_url)
    base, fences = started(store, 0)
    commit = moved_on(store, base, fences)
    raw.delete(store.keys.state)
    if damage == "another type":
        raw.rpush(store.keys.state, b"x")
    elif damage == "foreign bytes":
        raw.set(store.keys.state, b"x" * 500)
    restored = store.restore_previous(entry("restore"))
    assert restored.number > commit.checkpoint.version.number, "the number comes from the commit log"
    assert digest(store.load().learner) == digest(base.learner)


def test_a_damaged_previous_state_is_not_put_back(open_store: Open, redis_url: str, raw: "redis.Redis") -> None:
    store = open_store(redis_url)
    base, fences = started(store, 0)
    commit = moved_on(store, base, fences)
    raw.setrange(store.keys.previous_state, 300, b"\x00\x01")
    with pytest.raises(StateCorrupted, match="state:previous"):
        store.restore_previous(entry("restore"))
    raw.hset(store.keys.previous_partitions, "0", "junk")
    assert store.load().version == commit.checkpoint.version


@pytest.mark.parametrize(
    "key", ["state", "commits", "previous_state", "partitions", "previous_partitions", "partition"]
)
def test_a_key_of_another_type_stops_the_commit_and_a_reset_clears_it(
    open_store: Open, redis_url: str, raw: "redis.Redis", key: str
) -> None:
    store = open_store(redis_url)
    base, fences = started(store, 0)
    commit = moved_on(store, base, fences)
    name = store.keys.partition(0) if key == "partition" else getattr(store.keys, key)
    raw.delete(name)
    raw.zadd(name, {"x": 1})
    with pytest.raises(StateCorrupted, match="another type"):
        store.commit(commit_on(commit.checkpoint, {0: fence_after(commit)}))
    fresh = store.reset(checkpoint(), entry("reset"))
    assert store.load().version == fresh
    assert raw.type(name) != b"zset"
    assert list(store.partitions()) == []


def test_a_deleted_state_is_missing_and_never_begun_anew(open_store: Open, redis_url: str, raw: "redis.Redis") -> None:
    """Evicted is not the same as never there."""
    store = open_store(redis_url)
    base, fences = started(store, 0)
    commit = moved_on(store, base, fences)
    raw.delete(store.keys.state)
    for attempt in (
        store.load,
        lambda: store.commit(commit_on(commit.checkpoint, {0: fence_after(commit)})),
        lambda: store.claim(1, Fence(""), partition(1)),
        lambda: store.create(checkpoint(), entry("init")),
    ):
        with pytest.raises(StateMissing, match=r"gone .*restore --previous.*reset --yes"):
            attempt()
    assert not raw.exists(store.keys.state)


def test_a_deleted_partition_is_missing_where_the_state_lists_it(
    open_store: Open, redis_url: str, raw: "redis.Redis"
) -> None:
    store = open_store(redis_url)
    base, fences = started(store, 0)
    commit = moved_on(store, base, fences)
    raw.delete(store.keys.partition(0))
    with pytest.raises(StateMissing, match=r"partition:0 .*evicted or deleted"):
        store.load_partition(0)
    with pytest.raises(StateMissing, match=r"partition:0 .*evicted or deleted"):
        store.commit(commit_on(commit.checkpoint, {0: fence_after(commit)}))
    assert store.load_partition(1) is None


def test_the_wrong_database_names_host_database_and_key(
    open_store: Open, redis_url: str, redis_server: RedisServer
) -> None:
    """Nil from another database must not look like a fresh start."""
    right, wrong = open_store(redis_url), open_store(f"redis://:@127.0.0.1:{redis_server.port}/1")
    started(right)
    with pytest.raises(StateMissing) as caught:
        wrong.load()
    assert f"127.0.0.1:{redis_server.port} db 1" in str(caught.value)
    assert right.keys.state in str(caught.value)
    assert "worker --init" in str(caught.value)


def test_a_reset_is_not_raced_by_a_claim(open_store: Open, redis_url: str, raw: "redis.Redis") -> None:
    """Also partitions that nobody lists any more are dropped: one left behind would keep old positions."""
    store = open_store(redis_url)
    started(store, 0, 1)
    raw.srem(store.keys.partitions, 1)
    store.reset(checkpoint(), entry("reset"))
    assert not raw.exists(store.keys.partition(0), store.keys.partition(1), store.keys.partitions)


def test_no_key_of_ours_has_a_time_to_live(open_store: Open, redis_url: str, raw: "redis.Redis") -> None:
    """`volatile-…` policies evict keys with a time to live only."""
    store = open_store(redis_url)
    base, fences = started(store, 0)
    queue = RedisTurnQueue(store._link, store.model, 60)
    queue.ask()
    wait_until(lambda: queue.granted(0.02))
    assert isinstance(store.commit(replace(under_recipe(commit_on(base, fences)), turn=queue.token)), Committed)
    queue.passed_on()
    store.announce("w", {}, ttl_s=60)
    names = list(raw.scan_iter(match=f"gradstream:{{{store.model}}}:*"))
    assert len(names) == 10
    assert {raw.ttl(name) for name in names} == {-1}


def test_a_silent_worker_leaves_nothing_behind(open_store: Open, redis_url: str, raw: "redis.Redis") -> None:
    store = open_store(redis_url)
    store.announce("gone", {}, ttl_s=-1)
    store.announce("here", {"lag": 1}, ttl_s=60)
    assert store.workers() == [{"worker": "here", "lag": 1}]
    assert raw.hkeys(store.keys.workers) == [b"here"]


def test_the_commit_log_is_read_in_pages(open_store: Open, redis_url: str) -> None:
    store = open_store(redis_url)
    base, fences = started(store, 0)
    for _ in range(1005):
        commit = commit_on(base, fences)
        assert isinstance(store.commit(commit), Committed)
        base, fences = commit.checkpoint, {0: fence_after(commit)}
    log = list(store.commit_log())
    assert [logged.version.number for logged in log] == list(range(1006))
    assert [logged.version.number for logged in store.commit_log(count=700)] == list(range(700))
    assert [logged.version.number for logged in store.commit_log(first=log[1000].id)] == list(range(1000, 1006))


def test_a_server_killed_between_commits_loses_nothing(
    open_store: Open, start_redis: Callable[..., RedisServer]
) -> None:
    """And a worker that meets the dead server is told to try again, then goes on with the same commit."""
    server = start_redis("--appendonly", "yes", "--appendfsync", "everysec")
    store = open_store(server.url)
    base, fences = started(store, 0)
    for _ in range(3):
        commit = moved_on(store, base, fences)
        base, fences = commit.checkpoint, {0: fence_after(commit)}
        server.kill()
        following = commit_on(base, fences)
        with pytest.raises(Transient, match=str(server.port)):
            store.commit(following)
        server.start()
        store.wait_until_ready(20)
        assert store.load().version == base.version
        assert isinstance(store.commit(following), Committed)
        base, fences = following.checkpoint, {0: fence_after(following)}
    assert [logged.version.number for logged in store.commit_log()] == list(range(7))


def test_a_flushed_server_stops_a_running_worker(open_store: Open, start_redis: Callable[..., RedisServer]) -> None:
    server = start_redis("--appendonly", "no")
    store = open_store(server.url)
    base, fences = started(store, 0)
    commit = moved_on(store, base, fences)
    with redis.Redis.from_url(server.url) as raw:
        raw.flushall()
        with pytest.raises(StateMissing, match="gone"):
            store.commit(commit_on(commit.checkpoint, {0: fence_after(commit)}))
        with pytest.raises(StateMissing, match="gone"):
            store.claim(0, Fence(""), partition(0))
        assert raw.dbsize() == 0


def test_a_full_server_keeps_the_last_state_and_takes_the_commit_once_there_is_room(
    open_store: Open, start_redis: Callable[..., RedisServer]
) -> None:
    """Out of memory is an answer, not a loss."""
    server = start_redis("--maxmemory", "3mb", "--maxmemory-policy", "noeviction")
    store = open_store(server.url)
    base, fences = started(store, 0)
    first = moved_on(store, base, fences)
    with redis.Redis.from_url(server.url) as raw:
        for number in range(100):
            with contextlib.suppress(redis.OutOfMemoryError):
                raw.set(f"junk:{number}", b"x" * 40_000)
        raw.config_set("maxmemory", "2mb")  # below what is used, whatever the buffers of clients take at the moment
        large = commit_on(first.checkpoint, {0: fence_after(first)}, state=learner(2, size=20_000))
        with pytest.raises(Transient, match=r"out of memory.*last commit stands"):
            store.commit(large)
        with pytest.raises(Transient, match="out of memory"):
            store.claim(0, fence_after(first), partition(0, 2))
        assert store.load().version == first.checkpoint.version
        stored = store.load_partition(0)
        assert stored is not None
        assert stored.fence == fence_after(first)
        assert len(list(store.commit_log())) == 2
        raw.config_set("maxmemory", "3mb")
        raw.delete(*(f"junk:{number}" for number in range(100)))
        assert isinstance(store.commit(large), Committed)
        assert not raw.exists(store.keys.next_state)


def test_a_server_that_can_not_persist_takes_no_commit(
    open_store: Open, start_redis: Callable[..., RedisServer]
) -> None:
    """MISCONF is handled like a full server."""
    server = start_redis("--save", "3600 1000000", "--stop-writes-on-bgsave-error", "yes")
    store = open_store(server.url)
    base, fences = started(store, 0)
    first = moved_on(store, base, fences)
    with redis.Redis.from_url(server.url) as raw:
        raw.config_set("dir", "/proc")  # where no file can be made
        raw.bgsave()
        wait_until(lambda: raw.info("persistence")["rdb_last_bgsave_status"] == "err")
        following = commit_on(first.checkpoint, {0: fence_after(first)})
        with pytest.raises(Transient, match=r"can not persist.*last commit stands"):
            store.commit(following)
        assert store.load().version == first.checkpoint.version
        raw.config_set("stop-writes-on-bgsave-error", "no")
        assert isinstance(store.commit(following), Committed)
