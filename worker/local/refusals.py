"""How many records were refused for which reason: read from the dead-letter topic, now and then. Shows no payload."""

import time
from collections import Counter

from worker.cli.connect import quick_kafka_config
from worker.errors import Transient
from worker.settings import Settings
from worker.stream.kafka.letters import read_all

_EVERY_S = 5.0  # reading takes a third of a second


class Refusals:
    """Reads again only when the number of refused records has changed, and not all the time."""

    def __init__(self, settings: Settings) -> None:
        self._config = quick_kafka_config(settings)
        self._topic = settings.stream.dead_letters_topic
        self._known: dict[str, int] = {}
        self._count = 0
        self._due = 0.0

    def by_reason(self, refused: int) -> dict[str, int]:
        """Return {reason: records}. `refused`: how many there are by the worker's count."""
        if refused == self._count or time.monotonic() < self._due:
            return self._known
        self._due = time.monotonic() + _EVERY_S
        try:
            self._known = dict(Counter(stored.reason for stored in read_all(self._config, self._topic)))
        except Transient:
            return self._known  # the next look may be luckier; the count itself is in the worker's metrics
        self._count = refused
        return self._known
