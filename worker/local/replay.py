"""Sends events to Kafka at their own pace, faster: the time between two of them is divided by `speed`.

Records carry the time of sending as their timestamp (a broker's retention would delete what looks thirteen years
old); event times stay what they were. Knows no Kafka client, and not what it sends.
"""

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from worker.local.flights import Event, Role


class Producer(Protocol):
    """Where events go: see `stream/kafka/replay_producer.py`."""

    def partitions(self, topic: str) -> list[int]: ...

    def send(self, topic: str, key: bytes | None, value: bytes, partition: int | None = None) -> None: ...

    def flush(self, timeout_s: float = 30.0) -> None: ...


@dataclass(frozen=True, slots=True)
class Plan:
    """What to send where. `speed` is event time over wall time; 0: as fast as it goes.

    `watermark` is sent to every partition of both topics when all events are: what still waits for a partner then
    expires, so that a replay ends with nothing pending. -1: none.
    `mark_every`: after so many events a watermark record with the event time reached goes to every partition, once all
    before it has arrived. 0: none. A producer with pauses would do so to keep clocks moving; here they also are the
    last batches of their partitions, and single: the embedded broker's answer to "where does the log end" is the
    offset after the first record of the last batch.
    """

    events: Sequence[Event]
    topics: Mapping[Role, str]
    speed: float
    watermark: int = -1
    mark_every: int = 0


class Replay:
    """One run of a plan. `sent` and `event_ms` (the event time it has come to) grow; read them from any thread."""

    def __init__(
        self,
        plan: Plan,
        producer: Producer,
        stop: threading.Event,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.sent = 0
        self.event_ms = -1
        self._plan = plan
        self._producer = producer
        self._stop = stop
        self._clock = clock
        self._partitions = {topic: producer.partitions(topic) for topic in plan.topics.values()}

    @property
    def total(self) -> int:
        """Records that a whole run sends, watermarks included."""
        return len(self._plan.events) + self.marks

    @property
    def marks(self) -> int:
        """Watermark records that a whole run sends."""
        rounds = len(self._plan.events) // self._plan.mark_every if self._plan.mark_every else 0
        return (rounds + (self._plan.watermark >= 0)) * sum(map(len, self._partitions.values()))

    def run(self) -> bool:
        """Send everything; False when `stop` was set before the end. Raises `Transient` when Kafka does not take it."""
        plan, start = self._plan, self._clock()
        for number, event in enumerate(plan.events, start=1):
            if plan.speed:
                due = start + (event.ts - plan.events[0].ts) / 1000 / plan.speed
                self._stop.wait(max(0.0, due - self._clock()))
            if self._stop.is_set():
                return False
            self._producer.send(plan.topics[event.role], event.key, event.value)
            self.sent += 1
            self.event_ms = event.ts
            if plan.mark_every and number % plan.mark_every == 0:
                self._mark(event.ts)
        if plan.watermark >= 0:
            self._mark(plan.watermark)
        self._producer.flush()
        return True

    def _mark(self, watermark: int) -> None:
        """Send a watermark record to every partition. All that it speaks of has to be there first."""
        self._producer.flush()
        value = json.dumps({"watermark": watermark}).encode()
        for topic, partitions in self._partitions.items():
            for partition in partitions:
                self._producer.send(topic, None, value, partition)
                self.sent += 1
        self._producer.flush()
