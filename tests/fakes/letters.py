"""A dead-letter topic in memory. `failures` flushes fail before one succeeds; nothing sent is lost."""

from collections.abc import Sequence

from worker.errors import Transient
from worker.stream.dead_letters import DeadLetter


class FakeDeadLetters:
    """Answers to `worker.stream.source.DeadLetters`."""

    def __init__(self) -> None:
        self.waiting: list[DeadLetter] = []
        self.stored: list[DeadLetter] = []
        self.failures = 0

    def send(self, letters: Sequence[DeadLetter]) -> None:
        self.waiting += letters

    def flush(self, timeout_s: float) -> None:
        if self.failures:
            self.failures -= 1
            raise Transient(f"not acknowledged within {timeout_s} s")
        self.stored += self.waiting
        self.waiting = []
