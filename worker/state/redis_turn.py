"""The queue for the turn on Redis: a pop that waits on a connection of its own while the loop goes on. No thread.

Advisory only. Nothing here raises, and nothing here decides what is committed: the compare-and-set does that. So
whenever something is in doubt, the connection is dropped and the worker gets in line again, or goes without a token.
"""

import secrets
import time
from typing import Any

import redis

from worker.state.keys import Keys
from worker.state.redis_calls import script
from worker.state.redis_connect import REDIS_ERRORS, Link
from worker.state.redis_wire import Wire

_PASS, _RENEW = map(script, ("pass_turn.lua", "renew_turn.lua"))
# A place in line ends by itself: that of a worker behind a cut cable would stay until the server notices. Longer than
# lines are, because who gets in line again stands at its end.
_PLACE_S = 30.0


class RedisTurnQueue:
    """`TurnQueue` for one worker of one model in one Redis (see the protocol)."""

    def __init__(self, link: Link, model: str, turn_wait_s: float) -> None:
        self._keys = Keys(model)
        self._turn_wait_s = turn_wait_s
        self._look_every_s = max(0.02, turn_wait_s / 100)
        self._place_s = max(_PLACE_S, 5 * turn_wait_s)
        answer_s = max(0.1, turn_wait_s / 8)  # polling stands still for so long where the server hangs
        self._line = Wire(link, self._keys.turn, answer_s)
        self._watch = Wire(link, self._keys.turn, answer_s)
        self._asked = self._at_turn = self._in_line = False
        self._broken = False  # a key of the turn holds another type
        self._token = self._made = ""  # what was made is held once the answer to making it has come
        self._seen, self._since = b"", 0.0  # the token that counts, and since when it does
        self._joined_at = self._look_at = 0.0
        self._replies: list[Any] = []

    @property
    def token(self) -> str:
        return self._token

    def ask(self) -> None:
        if self._asked:
            return
        self._asked, self._since = True, time.monotonic()
        self._look_at = self._since + self._look_every_s
        self._join()

    def granted(self, timeout_s: float = 0.0) -> bool:
        if not self._asked:
            return False
        give_up = time.monotonic() + timeout_s
        while not self._at_turn:
            self._read(min(give_up, self._look_at))
            self._maybe_look()
            if time.monotonic() >= give_up:
                break
        return self._at_turn

    def passed_on(self) -> None:
        self._out()

    def leave(self) -> None:
        held = self._token or self._quit_line() or self._made
        if held:
            try:
                self._watch.ask("EVAL", _PASS, 2, self._keys.turn, self._keys.turn_issued, held, _new_token())
            except REDIS_ERRORS:
                self._watch.drop()
        self._out()

    # -- in line --------------------------------------------------------------------------------------------------

    def _join(self) -> None:
        """Get in line. What counts is read before (to see it move) and after (to see whether the token counts)."""
        issued = ("GET", self._keys.turn_issued)
        self._replies, self._joined_at = [], time.monotonic()
        try:
            self._line.send(issued, ("BLPOP", self._keys.turn, self._place_s), issued)
        except REDIS_ERRORS:
            self._in_line = False  # tried again with the next look
        else:
            self._in_line = True

    def _read(self, until: float) -> None:
        """Take what has come on the line, waiting for it until then at most."""
        left_s = max(0.0, until - time.monotonic())
        if not self._in_line:
            time.sleep(left_s)
            return
        try:
            while self._in_line and self._line.readable(left_s):
                left_s = 0.0
                self._replies.append(self._line.reply())
                if len(self._replies) == 1:
                    self._saw(self._replies[0])
                elif len(self._replies) == 3:
                    self._in_line = False
                    self._judge(self._replies[1], self._replies[2])
        except REDIS_ERRORS:
            self._in_line = False

    def _judge(self, popped: Any, issued: Any) -> None:
        """Act on the answer to a place in line: [key, token], None (the place has ended), or an error."""
        self._saw(issued)
        if isinstance(popped, list) and popped[1] == issued:
            self._take(issued)
        elif not isinstance(popped, Exception):
            self._join()
        elif _wrong_type(popped):
            self._look_at, self._broken = 0.0, True
        else:
            self._go_without()  # refused to stand in line: waiting would not help

    def _quit_line(self) -> str:
        """Leave the line; return the token that was given to it in that moment, "" for none."""
        if not self._in_line:
            return ""
        self._in_line = False
        self._replies += self._line.finish()
        popped = self._replies[1] if len(self._replies) > 1 else None
        return popped[1].decode() if isinstance(popped, list) else ""

    # -- watching -------------------------------------------------------------------------------------------------

    def _maybe_look(self) -> None:
        """See whether the token moves, and make a new one where it has not for too long, or is not there."""
        now = time.monotonic()
        if self._at_turn or now < self._look_at:
            return
        try:
            issued = self._watch_issued()
            self._saw(issued)
            if self._made and issued == self._made.encode():
                self._take(issued)  # the answer to the renewal had been lost
            elif self._broken or not isinstance(issued, bytes):
                self._renew(b"")
            elif now - self._since >= self._turn_wait_s:
                self._renew(issued)
            if not self._at_turn:
                self._keep_place(now)
        except REDIS_ERRORS:
            self._watch.drop()
            if now - self._since >= self._turn_wait_s:
                self._go_without()
        silent_at, self._look_at = self._since + self._turn_wait_s, now + self._look_every_s
        if now < silent_at < self._look_at:
            self._look_at = silent_at

    def _keep_place(self, now: float) -> None:
        """Get in line again after the place was lost, also where its end was never said: a cable may be cut one way."""
        if self._in_line and now - self._joined_at > 2 * self._place_s:
            self._line.drop()
            self._in_line = False
        if not self._in_line:
            self._join()

    def _watch_issued(self) -> Any:
        try:
            return self._watch.ask("GET", self._keys.turn_issued)
        except redis.ResponseError as error:
            if not _wrong_type(error):
                raise
            return None  # as good as none: a renewal drops it

    def _saw(self, issued: Any) -> None:
        """Note the token that counts: silence begins with the last one seen."""
        if not isinstance(issued, bytes):
            self._look_at = 0.0
        elif issued != self._seen:
            self._seen, self._since = issued, time.monotonic()

    def _renew(self, silent: bytes) -> None:
        self._made = self._made or _new_token()  # the one before may be on its way still
        keys = self._keys.turn, self._keys.turn_issued
        token, issued = self._watch.ask("EVAL", _RENEW, 2, *keys, silent, self._made)
        self._made, self._broken = "", False
        if token:
            self._take(token)
        else:
            self._saw(issued)

    def _take(self, token: bytes) -> None:
        self._quit_line()
        self._token, self._at_turn = token.decode(), True

    def _go_without(self) -> None:
        self._line.drop()
        self._in_line, self._at_turn = False, True
        self._token = self._made  # where a renewal was done and only its answer is lost, this one counts

    def _out(self) -> None:
        self._asked = self._at_turn = self._broken = False
        self._token = self._made = ""
        self._seen = b""


def _wrong_type(error: Exception) -> bool:
    return str(error).startswith("WRONGTYPE")


def _new_token() -> str:
    return secrets.token_hex(8)
