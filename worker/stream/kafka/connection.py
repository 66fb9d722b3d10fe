"""Settings of the connection as values, the client's arguments made of them, and the client's errors in our words.

Every call into the client goes through `translated` (or `opened`), so that no foreign exception leaves the package.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from kafka import errors
from kafka.net.compat import KafkaNetClient

from worker.errors import ConfigError, Transient
from worker.stream.kafka import guards

MIB = 1 << 20
_Client = TypeVar("_Client")


@dataclass(frozen=True, slots=True)
class KafkaConfig:
    """How to reach Kafka and how much to take at once. Empty strings: not set. Times in milliseconds.

    `max_poll_bytes` counts uncompressed bytes of one poll; `max_partition_fetch_bytes` must not be smaller than
    the largest event (a larger one still comes, alone). `fetch_max_wait_ms` is how long the broker holds an empty
    answer: 20 keeps a reader of two topics from idling for the one that has nothing.
    """

    bootstrap_servers: str = "localhost:9092"
    group_id: str = ""
    session_timeout_ms: int = 10_000
    group_instance_id: str = ""
    client_id: str = "gradstream"
    security_protocol: str = "PLAINTEXT"
    sasl_mechanism: str = ""
    sasl_username: str = ""
    sasl_password: str = ""
    ssl_cafile: str = ""
    ssl_certfile: str = ""
    ssl_keyfile: str = ""
    ssl_password: str = ""
    max_poll_records: int = 4_000
    max_poll_bytes: int = 16 * MIB
    max_poll_interval_ms: int = 300_000
    fetch_max_bytes: int = 32 * MIB
    max_partition_fetch_bytes: int = 8 * MIB
    fetch_max_wait_ms: int = 20
    request_timeout_ms: int = 15_000
    bootstrap_timeout_ms: int = 10_000

    def __repr__(self) -> str:
        return f"KafkaConfig(bootstrap_servers={self.bootstrap_servers!r}, group_id={self.group_id!r})"  # no secrets


def client_arguments(config: KafkaConfig) -> dict[str, Any]:
    """Return the arguments that consumer, producer and admin client share."""
    arguments: dict[str, Any] = {
        "bootstrap_servers": [server.strip() for server in config.bootstrap_servers.split(",") if server.strip()],
        "client_id": config.client_id,
        "security_protocol": config.security_protocol,
        "request_timeout_ms": config.request_timeout_ms,
        "bootstrap_timeout_ms": config.bootstrap_timeout_ms,
        # The client's own bound of 30 s would keep a worker away that long after a broker is back.
        "reconnect_backoff_max_ms": 1_000,
        # How soon a topic deleted and created again is noticed; the client asks in the background.
        "metadata_max_age_ms": 5_000,
    }
    optional = {
        "sasl_mechanism": config.sasl_mechanism,
        "sasl_plain_username": config.sasl_username,
        "sasl_plain_password": config.sasl_password,
        "ssl_cafile": config.ssl_cafile,
        "ssl_certfile": config.ssl_certfile,
        "ssl_keyfile": config.ssl_keyfile,
        "ssl_password": config.ssl_password,
    }
    for name in ("ssl_cafile", "ssl_certfile", "ssl_keyfile"):
        if optional[name] and not Path(optional[name]).is_file():
            raise ConfigError(f"kafka.{name} = {optional[name]!r}: there is no such file")
    return arguments | {name: value for name, value in optional.items() if value}


def consumer_arguments(config: KafkaConfig) -> dict[str, Any]:
    """Return the arguments of a consumer that never commits, never resets and never reads what was aborted."""
    return client_arguments(config) | {
        "isolation_level": "read_committed",
        "enable_auto_commit": False,
        "auto_offset_reset": "none",
        "fetch_max_wait_ms": config.fetch_max_wait_ms,
        "fetch_max_bytes": config.fetch_max_bytes,
        "max_partition_fetch_bytes": config.max_partition_fetch_bytes,
        "metrics_enabled": False,  # nobody reads them
    }


def opened(make: Callable[..., _Client], config: KafkaConfig, **arguments: Any) -> _Client:
    """Return `make(**arguments)`; when it fails, close what it left open.

    A constructor that can not reach a broker raises but leaves its thread and sockets: a worker that waits for
    Kafka in a loop would run out of both.
    """
    guards.close_failed_sockets()
    built: list[KafkaNetClient] = []
    client_log = logging.getLogger("kafka")
    if client_log.level == logging.NOTSET:
        # It writes a line of its own for every attempt to connect; `problem`, errors and counters say what matters.
        client_log.setLevel(logging.CRITICAL)

    def client(**settings: Any) -> KafkaNetClient:
        built.append(KafkaNetClient(**settings))
        return built[-1]

    succeeded = False
    try:
        with translated(f"connecting to Kafka at {config.bootstrap_servers}"):
            made = make(kafka_client=client, **arguments)
            succeeded = True
            return made
    except ValueError as error:
        raise ConfigError(f"kafka.bootstrap_servers = {config.bootstrap_servers!r}: {error}") from error
    finally:
        if not succeeded:
            for part in built:
                part.close()


@contextmanager
def translated(doing: str) -> Iterator[None]:
    """Turn the client's exceptions into `Transient` (ask again later) or `ConfigError` (a person has to act)."""
    try:
        yield
    except _REFUSED as error:
        raise ConfigError(f"{doing}: refused, {_words(error)}; check kafka.security_protocol, kafka.sasl_*, "
                          "kafka.ssl_* and the access rights on topics and group") from error  # fmt: skip
    except errors.FencedInstanceIdError as error:
        raise ConfigError(f"{doing}: another worker has joined with the same kafka.group_instance_id; "
                          "give each worker its own") from error  # fmt: skip
    except errors.UnsupportedCodecError as error:
        raise ConfigError(f"{doing}: the compression {error} can not be read here; "
                          "install its library (pip install 'kafka-python[snappy,lz4,zstd]')") from error  # fmt: skip
    except _UNUSABLE as error:
        raise ConfigError(f"{doing}: {_words(error)}") from error
    except errors.KafkaError as error:
        raise Transient(f"{doing}: {_words(error)}") from error
    except (OSError, RuntimeError) as error:
        # The client's event loop and its TLS and name look-ups raise these for a connection that went away.
        raise Transient(f"{doing}: {_words(error)}") from error


_REFUSED = (
    errors.AuthorizationError,
    errors.SaslAuthenticationFailedError,
    errors.UnsupportedSaslMechanismError,
    errors.IllegalSaslStateError,
)
_UNUSABLE = (
    errors.KafkaConfigurationError,
    errors.UnsupportedVersionError,
    errors.InconsistentGroupProtocolError,
    errors.InvalidSessionTimeoutError,
    errors.InvalidGroupIdError,
    errors.InvalidTopicError,
    errors.InvalidReplicationFactorError,
    errors.InvalidPartitionsError,
    errors.PolicyViolationError,
)


def _words(error: BaseException) -> str:
    """Return the kind of error and its first line: the client's longer texts hold whole requests."""
    text = str(error).splitlines()[0][:200] if str(error) else ""
    name = type(error).__name__
    return text if text.startswith(name) else f"{name}: {text}" if text else name
