"""A queue for the turn in memory, held to the same contract suite as the one on Redis.

Queues on one `MemoryServer` share its token. Time is what the given clock says, and nothing here ever waits: a test
moves the clock, or asks again.
"""

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.fakes.store import MemoryServer


@dataclass
class MemoryTurn:
    """What a server holds of one model's turn: the token that counts, the one that lies free, and who is in line."""

    issued: str = ""
    free: str = ""
    line: list["MemoryTurnQueue"] = field(default_factory=list)

    def enter(self, queue: "MemoryTurnQueue") -> None:
        """Take the free token at once, or stand at the end of the line."""
        if self.free:
            queue.sent, self.free = self.free, ""
        elif queue not in self.line:
            self.line.append(queue)

    def pass_on(self, token: str, new: str) -> None:
        """Make `new` the token that counts and give it to the first in line; nothing if `token` does not count."""
        if token and token == self.issued:
            self.issued, self.free = new, new
            if self.line:
                self.line.pop(0).sent, self.free = new, ""

    def renew(self, silent: str, new: str) -> str:
        """Return a token for who found `silent` ("": none) not to move: the free one, a new one, or "" (it did move)."""
        taken, self.free = self.free, ""
        if taken and taken == self.issued:
            return taken
        if self.issued and self.issued != silent:
            return ""
        self.issued = new
        return new


class MemoryTurnQueue:
    """`TurnQueue` for one worker of one model on a `MemoryServer`."""

    def __init__(
        self, server: "MemoryServer", model: str, turn_wait_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.server = server
        self.model = model
        self.turn_wait_s = turn_wait_s
        self.clock = clock
        self.sent = ""  # a token that the server gave to this place in line, and that was not looked at yet
        self._token = ""
        self._asked = self._at_turn = False
        self._seen, self._since = "", 0.0

    @property
    def token(self) -> str:
        return self._token

    def ask(self) -> None:
        if not self._asked:
            self._asked, self._since, self._seen = True, self.clock(), ""
            if not self.server.silent:
                self._seen = self._turn.issued
                self._turn.enter(self)

    def granted(self, timeout_s: float = 0.0) -> bool:
        if self._asked and not self._at_turn:
            if not self.server.silent:
                self._look()
            elif self.clock() - self._since >= self.turn_wait_s:
                self._at_turn = True  # without a token
        return self._at_turn

    def passed_on(self) -> None:
        self._out()

    def leave(self) -> None:
        if not self.server.silent:
            if self in self._turn.line:
                self._turn.line.remove(self)
            self._turn.pass_on(self._token or self.sent, _new_token())
        self._out()

    def crash(self) -> None:
        """Die, and the server notices. (One that was stopped is not called any more, and keeps its place.)"""
        if self in self._turn.line:
            self._turn.line.remove(self)
        self.sent = ""

    @property
    def _turn(self) -> MemoryTurn:
        return self.server.turns.setdefault(self.model, MemoryTurn())

    def _look(self) -> None:
        turn = self._turn
        sent, self.sent = self.sent, ""
        if sent and sent == turn.issued:
            self._take(sent)
        elif not turn.issued:
            self._take(turn.renew("", _new_token()))
        elif turn.issued != self._seen:
            self._seen, self._since = turn.issued, self.clock()
        elif self.clock() - self._since >= self.turn_wait_s:
            self._take(turn.renew(self._seen, _new_token()))
        if not self._at_turn:
            turn.enter(self)  # also after the server has forgotten who was in line

    def _take(self, token: str) -> None:
        if self in self._turn.line:
            self._turn.line.remove(self)
        self._token, self._at_turn = token, token != ""

    def _out(self) -> None:
        self._token, self.sent, self._asked, self._at_turn = "", "", False, False


def _new_token() -> str:
    return secrets.token_hex(8)
