"""Sending that is not over before the broker has acknowledged: what fails is kept and sent again.

At least once: a record whose acknowledgement was lost is sent twice.
"""

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from kafka import KafkaProducer, errors

from worker.errors import ConfigError, Transient
from worker.stream.kafka import guards
from worker.stream.kafka.connection import MIB, KafkaConfig, client_arguments, opened, translated

TRUNCATED = "gradstream-truncated"
_CUTS = (100_000, 1_000, 0)  # bytes of a value that is too large for the broker, tried one after the other
_BLOCK_MS = 1_000  # how long one record may wait for the metadata of its topic
_MIN_WAIT_S = 0.05


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A record to send. `partition` None: chosen by the key. Headers are (name, value) pairs."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()
    partition: int | None = None

    def shorter(self) -> "Outgoing | None":
        """Return it cut to the next smaller size, marked with its original size; None when nothing is left to cut."""
        size = len(self.value or b"")
        for cut in _CUTS:
            if size > cut:
                marked = any(name == TRUNCATED for name, _ in self.headers)
                headers = self.headers if marked else (*self.headers, (TRUNCATED, str(size).encode()))
                return replace(self, value=(self.value or b"")[:cut], headers=headers)
        return None if self.key is None else replace(self, key=None, value=b"")


class Outbox:
    """Records on their way. One producer, made when first needed, so that a worker without rejects opens none."""

    def __init__(self, config: KafkaConfig) -> None:
        self._config = config
        self._producer: KafkaProducer | None = None
        self._flowing = False  # the last flush succeeded: topics are known, sending will not block
        self._waiting: list[Outgoing] = []
        self._under_way: list[tuple[Outgoing, Any]] = []

    def __len__(self) -> int:
        return len(self._waiting) + len(self._under_way)

    def send(self, records: Iterable[Outgoing]) -> None:
        """Take records; hand them to the client at once where that can not block. Never raises."""
        self._waiting.extend(records)
        if self._flowing and self._producer is not None:
            self._hand_over(self._producer)

    def flush(self, timeout_s: float) -> None:
        """Return once everything is acknowledged; raise `Transient` when that takes longer (call again).

        Raises `ConfigError` for what no waiting mends: a refused topic, or one that takes no record at all.
        """
        deadline = time.monotonic() + timeout_s
        why = ""
        while len(self):
            producer = self._opened()
            why = self._hand_over(producer) or why
            why = self._settle(deadline) or why
            if len(self) and time.monotonic() >= deadline:
                self._flowing = False
                topic = (self._waiting or [record for record, _ in self._under_way])[0].topic
                raise Transient(f"{len(self)} records for topic {topic} are not acknowledged yet{why and f': {why}'}")
        self._flowing = True

    def close(self, timeout_s: float = 1.0) -> None:
        """Give what is under way a moment. What is not acknowledged was never promised to be."""
        producer, self._producer = self._producer, None
        if producer is not None:
            _close(producer, timeout_s)

    def _opened(self) -> KafkaProducer:
        if self._producer is None:
            self._producer = opened(
                KafkaProducer,
                self._config,
                **client_arguments(self._config),
                acks="all",
                # Its sequence numbers end in a state that only a new producer leaves; resending is our own business.
                enable_idempotence=False,
                max_request_size=64 * MIB,  # an event that is refused as too large must fit
                max_block_ms=_BLOCK_MS,
                delivery_timeout_ms=self._config.request_timeout_ms * 2,
                metrics_enabled=False,
                linger_ms=0,
            )
            guards.never_create_topics(self._producer)
        return self._producer

    def _hand_over(self, producer: KafkaProducer) -> str:
        """Give waiting records to the client in order; return why it stopped, "" when it took all."""
        queue = deque(self._waiting)
        self._waiting = []
        try:
            while queue:
                record = queue[0]
                try:
                    future = _send(producer, record)
                except errors.MessageSizeTooLargeError:
                    queue[0] = _cut(record)
                except errors.KafkaTimeoutError:
                    self._flowing = False
                    return f"topic {record.topic} is not there (create it with `gradstream init`) or no broker answers"
                else:
                    self._under_way.append((queue.popleft(), future))
        finally:
            self._waiting += queue
        return ""

    def _settle(self, deadline: float) -> str:
        """Wait for answers until `deadline`; what failed waits again. Return why, "" when nothing failed."""
        why = ""
        queue = deque(self._under_way)
        self._under_way = []
        try:
            while queue:
                record, future = queue[0]
                again, reason = _answer(record, future, deadline)
                queue.popleft()
                why = reason or why
                if again is not None:
                    self._waiting.append(again)
                elif reason:
                    self._under_way.append((record, future))
        finally:
            self._under_way += queue
        return why


def _send(producer: KafkaProducer, record: Outgoing) -> Any:
    """Hand a record to the client; raise its size and time errors, and other ones as ours."""
    try:
        return producer.send(
            record.topic,
            # The client refuses a record without key and value.
            value=b"" if record.value is None and record.key is None else record.value,
            key=record.key,
            headers=list(record.headers),
            partition=record.partition,
        )
    except (errors.MessageSizeTooLargeError, errors.KafkaTimeoutError):
        raise
    except ValueError as error:
        raise ConfigError(f"sending to topic {record.topic}: {error}") from error
    except errors.KafkaError:
        with translated(f"sending to topic {record.topic}"):
            raise


def _answer(record: Outgoing, future: Any, deadline: float) -> tuple[Outgoing | None, str]:
    """Return (what to send again or None, why it is not acknowledged or "")."""
    try:
        future.get(max(_MIN_WAIT_S, deadline - time.monotonic()))
    except errors.KafkaTimeoutError:
        return (record if future.is_done else None), "no answer"
    except (errors.MessageSizeTooLargeError, errors.RecordListTooLargeError):
        return _cut(record), ""
    except (errors.AuthorizationError, errors.InvalidTopicError):
        with translated(f"sending to topic {record.topic}"):
            raise
    except errors.KafkaError as error:
        return record, type(error).__name__
    return None, ""


def _cut(record: Outgoing) -> Outgoing:
    shorter = record.shorter()
    if shorter is None:
        raise ConfigError(f"topic {record.topic} refuses every record as too large: raise its max.message.bytes")
    return shorter


def _close(producer: KafkaProducer, timeout_s: float) -> None:
    try:
        producer.close(timeout=timeout_s)
    except (errors.KafkaError, OSError, RuntimeError):
        return
