"""How a worker is asked to end: once to finish its commit, twice to end at once."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

GRACE_S = 8.0  # after the first signal: it ends within 10 s, whatever does not answer


class Stop:
    """Set by SIGTERM or SIGINT; the second one ends the process at once, by its number."""

    def __init__(self) -> None:
        self.since: float | None = None

    def __call__(self) -> bool:
        return self.since is not None

    def overdue(self) -> bool:
        return self.since is not None and time.monotonic() - self.since > GRACE_S

    def _signalled(self, number: int, _: FrameType | None) -> None:
        if self.since is not None:
            os._exit(128 + number)  # nothing is waited for: the last commit stands
        self.since = time.monotonic()

    @contextmanager
    def installed(self) -> Iterator["Stop"]:
        before = {number: signal.signal(number, self._signalled) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
