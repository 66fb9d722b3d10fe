"""Trying again while Kafka or Redis does not answer: back off with jitter, within a deadline."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from worker.errors import Transient, Unreachable

T = TypeVar("T")
LONGEST_WAIT_S = 2.0


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to try. `waiting(problem)` is told before each wait; `hurry()` says that nobody wants to wait longer."""

    deadline_s: float
    waiting: Callable[[str], None]
    hurry: Callable[[], bool]
    first_wait_s: float = 0.05

    def __call__(self, call: Callable[[], T]) -> T:
        """Return what `call` returns; raise `Unreachable` once `Transient` was raised for longer than the deadline."""
        started, wait_s = time.monotonic(), self.first_wait_s
        while True:
            try:
                return call()
            except Transient as problem:
                if self.hurry() or time.monotonic() - started > self.deadline_s:
                    raise Unreachable(str(problem)) from problem
                self.waiting(str(problem))
                time.sleep(wait_s * random.uniform(0.5, 1.0))  # noqa: S311  jitter, not a secret
                wait_s = min(2 * wait_s, LONGEST_WAIT_S)
