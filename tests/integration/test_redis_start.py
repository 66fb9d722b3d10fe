"""What is checked before a Redis is trusted with a state, how it is reached, and what refusals say."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import redis

from tests.contract.store_samples import checkpoint, commit_on, entry, partition, under_recipe
from tests.services.redis import Proxy, RedisServer, free_port, wait_until
from worker.errors import ConfigError, StateMissing, Transient, Unreachable
from worker.state.checkpoint import fence_after
from worker.state.redis_connect import Link, connect
from worker.state.redis_store import RedisStore
from worker.state.redis_turn import RedisTurnQueue
from worker.state.store import Commit, Committed, Fence


@pytest.fixture
def links() -> Iterator[list[Link]]:
    opened: list[Link] = []
    yield opened
    for link in opened:
        link.drop_connections()


@pytest.fixture
def open_store(model: str, links: list[Link]) -> Callable[[str], RedisStore]:
    def make(url: str) -> RedisStore:
        links.append(connect(url))
        return RedisStore(links[-1], model)

    return make


def takes_its_turn(store: RedisStore, link: Link, commit: Commit) -> None:
    """Commit with a token, and see it come back under the name of the new version."""
    queue = RedisTurnQueue(link, store.model, 60)
    queue.ask()
    wait_until(lambda: queue.granted(0.02))
    assert queue.token
    assert isinstance(store.commit(replace(commit, turn=queue.token)), Committed)
    queue.passed_on()
    queue.ask()
    wait_until(lambda: queue.granted(0.02))
    assert queue.token == str(commit.checkpoint.version)
    queue.leave()
    assert not queue.granted()
    queue._line.drop()
    queue._watch.drop()


def test_a_server_that_forgets_everything_is_warned_about(
    open_store: Callable[[str], RedisStore], redis_url: str
) -> None:
    with redis.Redis.from_url(redis_url) as raw:
        raw.config_set("save", "")
    (warning,) = open_store(redis_url).check_server()
    assert "persists nothing" in warning
    assert "appendonly yes" in warning


def test_a_server_with_snapshots_only_is_warned_about(
    open_store: Callable[[str], RedisStore], start_redis: Callable[..., RedisServer]
) -> None:
    (warning,) = open_store(start_redis("--save", "3600 1").url).check_server()
    assert "snapshots only" in warning


def test_evicting_policies_are_refused_and_the_others_are_not(
    open_store: Callable[[str], RedisStore], start_redis: Callable[..., RedisServer]
) -> None:
    server = start_redis("--appendonly", "yes")
    store = open_store(server.url)
    with redis.Redis.from_url(server.url) as raw:
        for policy in ("allkeys-lru", "allkeys-lfu", "allkeys-random"):
            raw.config_set("maxmemory-policy", policy)
            with pytest.raises(ConfigError, match=f"{policy}.*noeviction"):
                store.check_server()
        for policy in ("noeviction", "volatile-lru", "volatile-ttl"):
            raw.config_set("maxmemory-policy", policy)
            assert store.check_server() == []


def test_a_state_that_was_evicted_is_told_as_lost(
    open_store: Callable[[str], RedisStore], start_redis: Callable[..., RedisServer]
) -> None:
    server = start_redis("--appendonly", "no")
    store = open_store(server.url)
    assert store.create(checkpoint(), entry("init"))
    assert store.claim(0, Fence(""), partition(0))
    with redis.Redis.from_url(server.url) as raw:
        raw.delete(store.keys.state)
    with pytest.raises(StateMissing, match="evicted or deleted"):
        store.load()


def test_a_replica_is_refused_and_a_demoted_primary_takes_no_commit(
    open_store: Callable[[str], RedisStore], start_redis: Callable[..., RedisServer]
) -> None:
    """A commit to a demoted primary is not lost, it is not made; promoted again, the same commit goes through."""
    server = start_redis("--appendonly", "no")
    store = open_store(server.url)
    base = checkpoint()
    assert store.create(base, entry("init"))
    fence = store.claim(0, Fence(""), partition(0))
    assert fence is not None
    commit = commit_on(base, {0: fence})
    nobody = free_port()
    with redis.Redis.from_url(server.url) as raw:
        raw.replicaof("127.0.0.1", nobody)
        with pytest.raises(ConfigError, match=f"replica of 127.0.0.1:{nobody}"):
            store.check_server()
        with pytest.raises(Transient, match="replica now"):
            store.commit(commit)
        with pytest.raises(Transient, match="replica now"):
            store.claim(0, fence, partition(0))
        raw.replicaof("NO", "ONE")
    assert isinstance(store.commit(commit), Committed)
    assert len(list(store.commit_log())) == 2


def test_a_server_that_is_loading_is_waited_for(
    open_store: Callable[[str], RedisStore], redis_url: str, redis_proxy: Proxy
) -> None:
    """LOADING is not "no state"."""
    first = checkpoint()
    assert open_store(redis_url).create(first, entry("init"))
    store = open_store(redis_proxy.url)
    redis_proxy.loading = True
    for call in (store.load, store.version, lambda: store.load_partition(0), store.check_server):
        with pytest.raises(Transient, match="loading"):
            call()
    with pytest.raises(Unreachable, match=f"127.0.0.1:{redis_proxy.port}.*loading.*gave up"):
        store.wait_until_ready(0.05)
    waiting = threading.Thread(target=store.wait_until_ready, args=(20,))
    seen = redis_proxy.connections
    waiting.start()
    wait_until(lambda: redis_proxy.connections > seen)
    redis_proxy.loading = False
    waiting.join(20)
    assert not waiting.is_alive()
    assert store.load().version == first.version


def test_a_server_that_is_not_there_is_named(open_store: Callable[[str], RedisStore]) -> None:
    port = free_port()
    store = open_store(f"redis://user:hunter2@127.0.0.1:{port}/3")
    with pytest.raises(Unreachable, match=f"127.0.0.1:{port} db 3 .*redis.url") as caught:
        store.wait_until_ready(0.05)
    with pytest.raises(Transient, match=f"127.0.0.1:{port}") as again:
        store.load()
    assert "hunter2" not in f"{caught.value} {again.value}"


DOCUMENTED_RIGHTS = "~gradstream:* +@read +@write +@scripting +@transaction +info +ping +time +type +config|get"


def test_a_wrong_password_is_a_setting_to_mend_and_is_not_shown(
    open_store: Callable[[str], RedisStore], start_redis: Callable[..., RedisServer], model: str, links: list[Link]
) -> None:
    server = start_redis("--appendonly", "no")
    with redis.Redis.from_url(server.url) as raw:
        raw.execute_command("ACL", "SETUSER", "trainer", "on", ">opensesame", *DOCUMENTED_RIGHTS.split())
        raw.acl_setuser(
            "narrow", enabled=True, passwords=["+opensesame"], commands=["+get", "+ping", "+getrange"], keys=["*"]
        )
    address = f"127.0.0.1:{server.port}/0"
    wrong = open_store(f"redis://trainer:hunter2@{address}")
    with pytest.raises(ConfigError, match=r"redis\.username, redis\.password") as caught:
        wrong.wait_until_ready(1)
    assert "hunter2" not in str(caught.value)

    links.append(connect(f"redis://trainer:hunter2@{address}", password="opensesame"))
    right = RedisStore(links[-1], model)
    right.wait_until_ready(5)
    base = checkpoint()
    assert right.create(base, entry("init")), "the password of the settings beats the one in the url"
    fence = right.claim(0, Fence(""), partition(0))
    assert fence is not None
    takes_its_turn(right, links[-1], under_recipe(commit_on(base, {0: fence})))
    right.announce("w", {}, 60)
    assert (len(right.workers()), len(list(right.partitions())), len(list(right.commit_log()))) == (1, 1, 2)
    assert right.check_server() != []
    right.restore_previous(entry("restore"))
    right.reset(checkpoint(), entry("reset"))

    links.append(connect(f"redis://{address}", username="narrow", password="opensesame"))
    narrow = RedisStore(links[-1], model)
    (warning,) = narrow.check_server()
    assert "does not allow INFO" in warning
    with pytest.raises(ConfigError, match="ACL"):
        narrow.claim(0, Fence(""), partition(0))


def test_a_client_that_decodes_replies_is_refused(redis_url: str, model: str) -> None:
    store = RedisStore(connect(f"{redis_url}?decode_responses=True"), model)
    with pytest.raises(ConfigError, match="decode_responses"):
        store.load()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:6379",
        "http://localhost",
        "redis://localhost:port/0",
        "redis+sentinel://localhost/service",
        "redis+sentinel://localhost:26379",
        "redis+cluster://",
        "memcached+cluster://localhost:1",
        "redis+sentinel://a:1/service/zero",
    ],
)
def test_a_url_that_is_not_understood_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"redis\.url"):
        connect(url)


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("redis://h", "h:6379 db 0"),
        ("rediss://u:secret@h:1/2", "h:1 db 2"),
        ("unix:///tmp/r.sock?db=4", "/tmp/r.sock db 4"),
        ("redis+sentinel://u:secret@a:1,b:2/main/5", "service main of sentinels a:1,b:2 db 5"),
        ("rediss+cluster://u:secret@a:1,b:2", "cluster a:1,b:2"),
    ],
)
def test_messages_name_the_place_without_the_login(url: str, place: str) -> None:
    assert connect(url).place == place


def test_a_cluster_and_its_hash_slots(start_redis: Callable[..., RedisServer], model: str, links: list[Link]) -> None:
    """All keys of a model are in one slot, so scripts and transactions work."""
    server = start_redis(
        "--cluster-enabled", "yes", "--cluster-announce-ip", "127.0.0.1", "--cluster-port", str(free_port())
    )
    with redis.Redis.from_url(server.url) as raw:
        raw.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        wait_until(lambda: raw.cluster("info")["cluster_state"] == "ok")
    links.append(connect(f"redis+cluster://127.0.0.1:{server.port}"))
    store = RedisStore(links[-1], model)
    store.wait_until_ready(10)
    assert any("persists nothing" in warning or "snapshots" in warning for warning in store.check_server())
    base = checkpoint()
    assert store.create(base, entry("init"))
    fence = store.claim(0, Fence(""), partition(0))
    assert fence is not None
    commit = under_recipe(commit_on(base, {0: fence}))
    takes_its_turn(store, links[-1], commit)
    assert isinstance(store.commit(commit), Committed)
    assert store.version() == commit.checkpoint.version
    store.announce("w", {"lag": 0}, 60)
    assert store.workers() == [{"worker": "w", "lag": 0}]
    assert store.restore_previous(entry("restore")).number == 2
    stored = store.load_partition(0)
    assert stored is not None
    assert stored.fence != fence_after(commit)
    assert [logged.entry.kind for logged in store.commit_log()] == ["init", "train", "restore"]
    store.reset(checkpoint(), entry("reset"))
    assert list(store.partitions()) == []


def test_a_cluster_that_is_not_there_is_unreachable(model: str) -> None:
    store = RedisStore(connect(f"redis+cluster://127.0.0.1:{free_port()}", connect_timeout_s=0.2), model)
    with pytest.raises(Unreachable, match=r"cluster 127\.0\.0\.1"):
        store.wait_until_ready(0.05)


def test_a_sentinel_finds_the_primary(
    start_redis: Callable[..., RedisServer], redis_server: RedisServer, model: str, links: list[Link]
) -> None:
    """A server with the sentinel commands answers who the primary is; here it is played by a small responder."""
    import socket

    listener = socket.create_server(("127.0.0.1", 0))
    port, primary = listener.getsockname()[1], str(redis_server.port)

    def respond() -> None:
        row = {"name": "main", "ip": "127.0.0.1", "port": primary, "flags": "master", "num-other-sentinels": "0"}
        words = [word.encode() for pair in row.items() for word in pair]
        table = b"*1\r\n*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words)
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            with client:
                while request := client.recv(4096):
                    client.sendall(table if b"SENTINEL" in request else b"+OK\r\n" * request.count(b"*"))

    thread = threading.Thread(target=respond, daemon=True)
    thread.start()
    links.append(connect(f"redis+sentinel://127.0.0.1:{port}/main/0"))
    store = RedisStore(links[-1], model)
    store.wait_until_ready(5)
    base = checkpoint()
    assert store.create(base, entry("init"))
    fence = store.claim(0, Fence(""), partition(0))
    assert fence is not None
    takes_its_turn(store, links[-1], commit_on(base, {0: fence}))
    assert store.load().version.number == 1
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
