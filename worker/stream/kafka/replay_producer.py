"""Sends ready-made events to topics: what the demo's replay stands on. Knows no event and no clock.

Keys go through the client's default partitioner (murmur2, as Kafka's own clients have it), so both events of an id
meet in one partition. Not for dead letters or metrics, which have rules of their own.
"""

from typing import Any

from kafka import KafkaProducer, errors

from worker.errors import ConfigError, Transient
from worker.stream.kafka import guards
from worker.stream.kafka.connection import KafkaConfig, client_arguments, opened, translated


class EventProducer:
    """Sends records in order; what could not be delivered is told by the next `send` or `flush`."""

    def __init__(self, config: KafkaConfig) -> None:
        self._failure: BaseException | None = None
        self._where = config.bootstrap_servers
        arguments = client_arguments(config) | {"acks": "all", "metrics_enabled": False, "linger_ms": 5}
        self._client: Any = opened(KafkaProducer, config, **arguments)
        guards.never_create_topics(self._client)

    def partitions(self, topic: str) -> list[int]:
        """Return the partitions of a topic; raise `ConfigError` where there is no such topic."""
        with translated(f"asking Kafka at {self._where} for topic {topic}"):
            found = self._client.partitions_for(topic)
        if not found:
            raise ConfigError(f"there is no topic {topic} at {self._where}: create it with: gradstream init")
        return sorted(found)

    def send(self, topic: str, key: bytes | None, value: bytes | None, partition: int | None = None) -> None:
        """Hand over one record; wait only while the client's buffer is full. Its timestamp is now."""
        self._tell_failure()
        with translated(f"sending to topic {topic}"):
            self._client.send(topic, key=key, value=value, partition=partition).add_errback(self._failed)

    def flush(self, timeout_s: float = 30.0) -> None:
        """Return once every record is acknowledged; raise `Transient` when one was not."""
        with translated("waiting for acknowledgements"):
            self._client.flush(timeout_s)
        self._tell_failure()

    def close(self) -> None:
        """Give up after a second on what was not sent: who wants it sent calls `flush` first."""
        try:
            self._client.close(timeout=1.0)
        except errors.KafkaTimeoutError:
            guards.abandon(self._client)

    def _failed(self, error: BaseException) -> None:
        self._failure = error

    def _tell_failure(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise Transient(f"an event was not delivered to {self._where}: {type(failure).__name__}") from failure
