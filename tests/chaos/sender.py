"""The producers of a run: one thread that sends each message when its time has come, and keeps the order of a topic."""

import threading
import time
from collections.abc import Mapping, Sequence

from kafka import KafkaProducer
from kafka.errors import KafkaError

from tests.chaos.stream import Message


class Sender:
    """Sends `messages` from the moment of `start` on. `problem` is what kept it from sending everything."""

    def __init__(self, bootstrap_servers: str, topics: Mapping[str, str], messages: Sequence[Message]) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._topics = topics
        self._messages = messages
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.sent = 0
        self.problem = ""

    def start(self) -> None:
        self._thread.start()

    def done(self) -> bool:
        return not self._thread.is_alive()

    def join(self, deadline_s: float) -> None:
        """Return once everything is acknowledged, or could not be."""
        self._thread.join(deadline_s)
        if self._thread.is_alive():
            self.problem = f"not everything was sent within {deadline_s:g} s"

    def _run(self) -> None:
        # Idempotent: a retry neither repeats nor reorders, so the order inside a topic is the seed's.
        producer = KafkaProducer(bootstrap_servers=self._bootstrap_servers, acks="all", linger_ms=10)
        begun = time.monotonic()
        try:
            futures = []
            for message in self._messages:
                if (early_s := begun + message.at_s - time.monotonic()) > 0:
                    time.sleep(early_s)
                topic, partition = self._topics[message.role], message.partition
                futures.append(producer.send(topic, key=message.key, value=message.value, partition=partition))
                self.sent += 1
            for future in futures:
                future.get(60)
        except KafkaError as error:
            self.problem = f"{type(error).__name__}: {error}"
        finally:
            producer.close(timeout=10)
