"""From settings to connections: the arguments of the Kafka and Redis adapters, made in one place.

Used by the commands and by the worker's composition root. Connects to nothing by itself.
"""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from zlib import compress

if TYPE_CHECKING:
    from worker.settings import Settings
    from worker.state.redis_store import RedisStore
    from worker.state.store import Checkpoint, LogEntry
    from worker.stream.kafka.connection import KafkaConfig

# How long a command waits for Redis: a person is watching.
WAIT_S = 5.0


def kafka_config(settings: "Settings", **changes: Any) -> "KafkaConfig":
    """Return how to reach Kafka; `changes` are fields of `KafkaConfig` that the settings do not have."""
    from worker.stream.kafka.connection import MIB, KafkaConfig

    k = settings.kafka
    fields: dict[str, Any] = {
        "bootstrap_servers": k.bootstrap_servers,
        "group_id": settings.stream.group_id,
        "session_timeout_ms": k.session_timeout_ms,
        "group_instance_id": k.group_instance_id,
        "security_protocol": k.security_protocol,
        "sasl_mechanism": k.sasl_mechanism,
        "sasl_username": k.sasl_username,
        "sasl_password": k.sasl_password.get_secret_value(),
        "ssl_cafile": k.ssl_cafile,
        "ssl_certfile": k.ssl_certfile,
        "ssl_keyfile": k.ssl_keyfile,
        "ssl_password": k.ssl_password.get_secret_value(),
        # A fetch must be able to carry the largest event; headers and key come on top.
        "max_partition_fetch_bytes": max(8 * MIB, settings.stream.max_event_bytes + MIB),
    }
    return KafkaConfig(**(fields | changes))


def quick_kafka_config(settings: "Settings") -> "KafkaConfig":
    """Return the same for a command: a person would rather read "unreachable" than wait."""
    return kafka_config(settings, bootstrap_timeout_ms=4_000, request_timeout_ms=5_000, client_id="gradstream-command")


def redis_store(settings: "Settings") -> "RedisStore":
    """Return the state store of the model. Raises `ConfigError` for an address that is not understood."""
    from worker.state.redis_connect import connect
    from worker.state.redis_store import RedisStore

    r = settings.redis
    link = connect(r.url.get_secret_value(), r.username, r.password.get_secret_value())
    return RedisStore(link, settings.model.name)


def ready_store(settings: "Settings", wait_s: float = WAIT_S) -> "RedisStore":
    """Return the store once it answers. Raises `Unreachable` after `wait_s`."""
    store = redis_store(settings)
    store.wait_until_ready(wait_s)
    return store


def empty_checkpoint(settings: "Settings") -> "Checkpoint":
    """Return the state before the first example, for `create` and `reset` (which give it its version)."""
    import secrets

    from worker.learn.model import initial_state
    from worker.state.store import Checkpoint, Version

    spec = settings.spec()
    version = Version(0, secrets.token_hex(8))
    kernel = "numpy"  # the one that is always there: nothing was computed yet
    return Checkpoint(version, spec.document(), kernel, frozenset(), initial_state(spec))


def log_entry(kind: str, settings: "Settings", worker: str, kernel: str) -> "LogEntry":
    """Return the commit log entry of what learns nothing: `init`, `reset`, `restore`."""
    from worker.state.store import Consumed, LogEntry

    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    nothing = Consumed((), compress(b""), 0)
    return LogEntry(kind, worker, nothing, 0, settings.train.batch_size, kernel, settings.digest(), now)
