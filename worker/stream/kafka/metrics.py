"""Metrics as JSON records: best effort, in a thread of its own, so that no broker can delay learning.

The client's `send` blocks for metadata and for memory, and its constructor until a broker answers; none of that may
happen in the loop.
"""

import json
import threading
from collections import deque
from collections.abc import Mapping
from typing import Any

from kafka import KafkaProducer, errors

from worker.errors import GradstreamError
from worker.stream.kafka import guards
from worker.stream.kafka.connection import KafkaConfig, client_arguments, opened

_CAPACITY = 1_000  # messages that wait; a step a millisecond fills it in a second, a reader needs the newest
_IN_FLIGHT = 1_000
_CONNECT_MS = 1_000
_RETRY_S = 1.0
_CLOSE_S = 1.5


class KafkaMetricsTopic:
    """Answers to `worker.stream.source.MetricsTopic`. `dropped` counts what did not reach the topic, for any reason."""

    def __init__(self, config: KafkaConfig, topic: str, capacity: int = _CAPACITY) -> None:
        self._config = config
        self._topic = topic
        self._capacity = capacity
        self._queue: deque[bytes] = deque(maxlen=capacity)
        self._in_flight = 0
        self._dropped = 0
        self._lock = threading.Lock()
        self._work = threading.Event()
        self._closing = threading.Event()
        # A daemon: a broker that does not answer must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="gradstream-metrics", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        return self._dropped

    def send(self, message: Mapping[str, object]) -> None:
        """Take a message; where too many wait the oldest goes. What comes after `close` is dropped.

        So is what is not JSON, NaN and infinity included: readers in other languages would refuse it. Who measures
        writes `null` and flags it (`worker/observe/kafka_metrics.py`).
        """
        try:
            value = json.dumps(message, allow_nan=False, separators=(",", ":")).encode()
        except (TypeError, ValueError):
            self._drop(1)
            return
        with self._lock:
            if self._closing.is_set() or len(self._queue) >= self._capacity:
                self._dropped += 1
            if not self._closing.is_set():
                self._queue.append(value)
        self._work.set()

    def close(self) -> None:
        """Send what waits if that is a matter of moments, then stop; returns within two seconds."""
        self._closing.set()
        self._work.set()
        self._thread.join(_CLOSE_S)
        with self._lock:
            self._dropped += len(self._queue)
            self._queue.clear()

    def _drop(self, count: int) -> None:
        with self._lock:
            self._dropped += count

    # -- in the thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        producer: KafkaProducer | None = None
        while True:
            self._work.wait()
            self._work.clear()
            if self._queue:
                producer = producer or self._connect()
                if producer is not None:
                    self._send_waiting(producer)
                elif not self._closing.wait(_RETRY_S):
                    self._work.set()
            if self._closing.is_set():
                break
        if producer is not None:
            self._stop(producer)

    def _connect(self) -> KafkaProducer | None:
        arguments = client_arguments(self._config) | {"bootstrap_timeout_ms": _CONNECT_MS}
        try:
            producer = opened(
                KafkaProducer,
                self._config,
                **arguments,
                acks=1,
                enable_idempotence=False,
                linger_ms=50,
                max_block_ms=_CONNECT_MS,
                delivery_timeout_ms=self._config.request_timeout_ms + 1_000,
                metrics_enabled=False,
            )
        except GradstreamError:
            return None
        guards.never_create_topics(producer)
        return producer

    def _send_waiting(self, producer: KafkaProducer) -> None:
        while self._queue:
            with self._lock:
                value = self._queue.popleft()
            if self._in_flight >= _IN_FLIGHT:  # the client's own buffer has no bound
                self._drop(1)
                continue
            try:
                future = producer.send(self._topic, value=value)
            except (errors.KafkaError, ValueError):  # the topic is missing, or too large a message
                self._drop(1)
                if self._closing.is_set():
                    return
                continue
            with self._lock:
                self._in_flight += 1
            future.add_both(self._answered)
            future.add_errback(lambda _: self._drop(1))

    def _answered(self, _: Any) -> None:
        with self._lock:
            self._in_flight -= 1

    def _stop(self, producer: KafkaProducer) -> None:
        try:
            producer.close(timeout=1.0)
        except (errors.KafkaError, OSError, RuntimeError):
            return
