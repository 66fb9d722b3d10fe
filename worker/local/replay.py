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
    """

    events: Sequence[Event]
    topics: Mapping[Role, str]
    speed: float
    watermark: int = -1


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
        marks = sum(map(len, self._partitions.values())) if self._plan.watermark >= 0 else 0
        return len(self._plan.events) + marks

    def run(self) -> bool:
        """Send everything; False when `stop` was set before the end. Raises `Transient` when Kafka does not take it."""
        start, first_ts = self._clock(), self._plan.events[0].ts if self._plan.events else 0
        for event in self._plan.events:
            if self._plan.speed:
                due = start + (event.ts - first_ts) / 1000 / self._plan.speed
                self._stop.wait(max(0.0, due - self._clock()))
            if self._stop.is_set():
                return False
            self._producer.send(self._plan.topics[event.role], event.key, event.value)
            self.sent += 1
            self.event_ms = event.ts
        # The watermarks close the windows of what was sent before, so all of that has to be there first.
        self._producer.flush()
        self._close_windows()
        return True

    def _close_windows(self) -> None:
        if self._plan.watermark < 0:
            return
        value = json.dumps({"watermark": self._plan.watermark}).encode()
        for topic, partitions in self._partitions.items():
            for partition in partitions:
                self._producer.send(topic, None, value, partition)
                self.sent += 1
        self._producer.flush()
