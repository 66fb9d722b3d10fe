"""Redis clients: how to reach one, what its errors mean, and whether it is fit to hold a state. No keys, no scripts.

The client never repeats a command by itself: a script whose reply was lost would run twice. A connection on which a
call failed is thrown away: after a timeout it would answer the next question with the reply to the last one.
"""

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import unquote, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.exceptions import RedisClusterException
from redis.retry import Retry
from redis.sentinel import Sentinel

from worker.errors import ConfigError, GradstreamError, StateCorrupted, Transient, Unreachable

REDIS_ERRORS = (redis.RedisError, RedisClusterException, OSError)
REPLY_LOST = (redis.ConnectionError, redis.TimeoutError, OSError)
REFUSALS = (redis.ResponseError, redis.BusyLoadingError)  # the server has answered, the connection is in order
_NOT_ALLOWED = (redis.AuthenticationError, redis.exceptions.AuthorizationError, redis.exceptions.NoPermissionError)

# What the first word of an error reply means; the rest of the reply may quote arguments and is never shown.
_REPLIES = {
    "LOADING": "is still loading its data",
    "READONLY": "is a replica now: it takes no writes",
    "OOM": "is out of memory, so nothing was written and the last commit stands: raise maxmemory or free memory",
    "MISCONF": "can not persist and refuses writes, so the last commit stands: see its log and disk",
    "MASTERDOWN": "has lost its primary",
    "CLUSTERDOWN": "says that its cluster is down",
    "TRYAGAIN": "is moving the keys to another node",
    "NOREPLICAS": "has too few replicas to take writes",
    "BUSY": "is busy with a script",
    "EXECABORT": "refused the transaction",
}
_NAMED_ERRORS = (
    (redis.BusyLoadingError, "LOADING"),
    (redis.ReadOnlyError, "READONLY"),
    (redis.OutOfMemoryError, "OOM"),
    (redis.exceptions.MasterDownError, "MASTERDOWN"),
    (redis.exceptions.ClusterDownError, "CLUSTERDOWN"),
    (redis.exceptions.TryAgainError, "TRYAGAIN"),
    (redis.exceptions.AskError, "TRYAGAIN"),  # also MOVED
    (redis.exceptions.ExecAbortError, "EXECABORT"),
)


class Link:
    """One Redis, reached when it is first needed. `place` names it in messages and holds no password."""

    def __init__(self, make: Callable[[], Any], place: str) -> None:
        self._make = make
        self._client: Any = None
        self.place = place

    @property
    def client(self) -> Any:
        """The client. Raises `ConfigError` if it would decode replies into text: states are bytes."""
        if self._client is None:
            client = self._make()
            if client.get_encoder().decode_responses:
                raise ConfigError("the Redis client has decode_responses=True: states are bytes; leave it off")
            self._client = client
        return self._client

    def drop_connections(self) -> None:
        """Close every connection, so that the next call starts on a new one (and asks again who the primary is)."""
        client = self._client
        if client is not None and hasattr(client, "connection_pool"):
            client.connection_pool.disconnect()
        elif client is not None:
            client.disconnect_connection_pools()
            self._client = None  # the next one asks again which node holds what

    def info(self, section: str, key: str) -> dict[str, Any]:
        """Return one section of INFO of the node that holds `key`."""
        return dict(self.client.info(section, **self.node_of(key)))

    def save_setting(self, key: str) -> str:
        """Return the setting `save` ("" = no snapshots) of the node that holds `key`."""
        return str(self.client.config_get("save", **self.node_of(key)).get("save", ""))

    def node_of(self, key: str) -> dict[str, Any]:
        """Return the argument that sends a command without keys to the node of a cluster that holds `key`."""
        find = getattr(self.client, "get_node_from_key", None)
        return {"target_nodes": find(key)} if find else {}

    def translated(self, error: Exception, doing: str) -> GradstreamError:
        """Return our error for a foreign one, after dropping the connections it may have left in doubt."""
        self.drop_connections()
        return translate(error, self.place, doing)

    def wait_until_ready(self, deadline_s: float) -> None:
        """Return once it answers and has loaded its data. Raises `Unreachable` after `deadline_s`, `ConfigError`."""
        give_up = time.monotonic() + deadline_s
        pause = threading.Event()
        while True:
            try:
                self.client.ping()
            except REDIS_ERRORS as error:
                reason = self.translated(error, "start")
            else:
                return
            if not isinstance(reason, Transient):
                raise reason
            left = give_up - time.monotonic()
            if left <= 0:
                raise Unreachable(f"{reason}; gave up after {deadline_s:g} s: start it, or check redis.url") from reason
            pause.wait(min(0.2, left))


def translate(error: Exception, place: str, doing: str) -> GradstreamError:
    """Return the error of ours that tells how to react to one of the client's. Never quotes a reply's arguments."""
    if isinstance(error, _NOT_ALLOWED) or "auth" in type(error).__name__.lower():
        return ConfigError(f"Redis {place} refused {doing}: check redis.username, redis.password and the user's ACL")
    word = next((word for kind, word in _NAMED_ERRORS if isinstance(error, kind)), "")
    word = word or str(error).split(" ", 1)[0]
    if word in _REPLIES:
        return Transient(f"Redis {place} {_REPLIES[word]} ({doing})")
    if word == "WRONGTYPE":
        return StateCorrupted(
            f"Redis {place}: a key of this model holds another type ({doing}); `gradstream state restore --previous`"
        )
    if isinstance(error, redis.ResponseError):
        return GradstreamError(
            f"Redis {place} answered {word[:40]!r} ({doing}); its version may be too old (6.2 needed)"
        )
    why = "timed out" if isinstance(error, redis.TimeoutError | TimeoutError) else "did not answer"
    return Transient(f"Redis {place} {why} ({doing})")


def connect(
    url: str,
    username: str = "",
    password: str = "",
    *,
    timeout_s: float = 5.0,
    connect_timeout_s: float = 5.0,
) -> Link:
    """Return a link to `redis://`, `rediss://`, `unix://`, `redis+sentinel://a:1,b:2/service/db`, `redis+cluster://a:1,b:2`.

    `rediss+sentinel` and `rediss+cluster` speak TLS. Nothing is sent yet. Raises `ConfigError` for another url.
    """
    options: dict[str, Any] = {
        "socket_timeout": timeout_s,
        "socket_connect_timeout": connect_timeout_s,
        "socket_read_size": 1 << 20,  # a state of 800 KB is read in 1.2 instead of 1.5 ms
        "protocol": 2,
        "retry": Retry(NoBackoff(), 0),
    }
    scheme, _, kind = urlsplit(url).scheme.partition("+")
    if scheme == "rediss" and kind:
        options["ssl"] = True
    if kind:
        name, secret, nodes, path = _split(url)
        options |= _login(username or name, password or secret)
        if scheme in ("redis", "rediss") and nodes and kind == "sentinel" and path:
            return _sentinel(nodes, path, options)
        if scheme in ("redis", "rediss") and nodes and kind == "cluster":
            return _cluster(nodes, options)
    elif scheme in ("redis", "rediss", "unix"):
        return _single(url, scheme, options | _login(username, password))
    raise ConfigError(
        "redis.url is not understood: use redis://host:port/db, rediss://…, unix:///path?db=0, "
        "redis+sentinel://host:port,host:port/service/db or redis+cluster://host:port,host:port"
    )


def check_server(link: Link, key: str) -> list[str]:
    """Return warnings about the server that holds `key`; raises `ConfigError` if it can not be trusted with a state."""
    warnings = []
    try:
        replication = link.info("replication", key)
        memory = link.info("memory", key)
        persistence = link.info("persistence", key)
    except redis.ResponseError:
        return [f"Redis {link.place} does not allow INFO: eviction policy, role and persistence could not be checked"]
    except REDIS_ERRORS as error:
        raise link.translated(error, "INFO") from error
    if replication.get("role") in ("slave", "replica"):
        primary = f"{replication.get('master_host')}:{replication.get('master_port')}"
        raise ConfigError(f"Redis {link.place} is a replica of {primary}: point redis.url at the primary")
    policy = str(memory.get("maxmemory_policy", ""))
    if policy.startswith("allkeys-"):
        raise ConfigError(
            f"Redis {link.place} has maxmemory-policy {policy}, which evicts states: set it to noeviction"
        )
    if not policy:
        warnings.append(f"Redis {link.place} does not tell its maxmemory-policy: make sure that it is noeviction")
    if not persistence.get("aof_enabled"):
        warnings += _snapshot_warnings(link, key)
    return warnings


def _snapshot_warnings(link: Link, key: str) -> list[str]:
    try:
        if link.save_setting(key):
            return [f"Redis {link.place} keeps snapshots only: a crash of it loses the commits since the last one"]
    except redis.ResponseError:
        return [f"Redis {link.place} does not allow CONFIG GET: could not check that it persists (appendonly yes)"]
    except REDIS_ERRORS as error:
        raise link.translated(error, "CONFIG GET save") from error
    return [f"Redis {link.place} persists nothing: a restart of it loses the model; set appendonly yes"]


def _login(username: str, password: str) -> dict[str, str]:
    given = {"username": username, "password": password}
    return {name: value for name, value in given.items() if value}


def _split(url: str) -> tuple[str, str, list[tuple[str, int]], list[str]]:
    """Return (username, password, [(host, port)], path parts) of a url that names several hosts."""
    parts = urlsplit(url)
    login, _, hosts = parts.netloc.rpartition("@")
    name, _, secret = login.partition(":")
    nodes = []
    for host in hosts.split(","):
        address, colon, port = host.rpartition(":")
        if not colon or not address or not port.isdigit():
            return "", "", [], []
        nodes.append((address, int(port)))
    return unquote(name), unquote(secret), nodes, [part for part in parts.path.split("/") if part]


def _single(url: str, scheme: str, options: dict[str, Any]) -> Link:
    try:
        # Arguments of the call lose against the url, so a login in the settings has to replace the one in the url.
        pool = redis.ConnectionPool.from_url(url, **options)
        pool.connection_kwargs.update(options)
        parts = urlsplit(url)
        address = parts.path if scheme == "unix" else f"{parts.hostname or 'localhost'}:{parts.port or 6379}"
    except ValueError:
        raise ConfigError("redis.url is not a valid url of Redis, like redis://localhost:6379/0") from None
    database = pool.connection_kwargs.get("db") or 0
    return Link(partial(redis.Redis, connection_pool=pool), f"{address} db {database}")


def _sentinel(nodes: list[tuple[str, int]], path: list[str], options: dict[str, Any]) -> Link:
    database = path[1] if len(path) > 1 else "0"
    if len(path) > 2 or not database.isdigit():
        raise ConfigError("redis.url: after the hosts comes /service/db, like redis+sentinel://host:26379/mymaster/0")
    service = path[0]
    names = ",".join(f"{host}:{port}" for host, port in nodes)
    transport = {name: options[name] for name in ("socket_timeout", "socket_connect_timeout", "retry", "protocol")}

    sentinel: Any = Sentinel  # not typed by the client

    def make() -> Any:
        return sentinel(nodes, sentinel_kwargs=transport, **options).master_for(service, db=int(database))

    return Link(make, f"service {service} of sentinels {names} db {database}")


def _cluster(nodes: list[tuple[str, int]], options: dict[str, Any]) -> Link:
    names = ",".join(f"{host}:{port}" for host, port in nodes)
    node_type: Any = ClusterNode  # not typed by the client
    startup = [node_type(host, port) for host, port in nodes]
    return Link(partial(RedisCluster, startup_nodes=startup, **options), f"cluster {names}")
