"""How a worker is asked to end: once to finish its commit, twice to end at once."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from worker.errors import Unreachable

GRACE_S = 8.0  # after the first signal, how long what does not answer is tried again
LAST_S = 9.0  # after the first signal: it ends within 10 s, also in the middle of a call that does not return
_LAST_WORDS = (
    b"gradstream: error: ended by signal while Kafka or Redis did not answer: what was not committed is learned by the "
    b"next worker, which goes on from the last commit\n"
)


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
        signal.setitimer(signal.ITIMER_REAL, LAST_S)

    def _out_of_time(self, _number: int, _: FrameType | None) -> None:
        os.write(2, _LAST_WORDS)
        os._exit(Unreachable.exit_code)

    @contextmanager
    def installed(self) -> Iterator["Stop"]:
        handlers = {
            signal.SIGTERM: self._signalled,
            signal.SIGINT: self._signalled,
            signal.SIGALRM: self._out_of_time,
        }
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            yield self
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            for number, handler in before.items():
                signal.signal(number, handler)
