"""A connection of one's own, on which a question may wait for its answer while its owner goes on with other work.

The pool's connections will not do: any call that fails closes them all, and a place in line would be lost with them.
"""

import socket
from collections.abc import Sequence
from typing import Any

from worker.state.redis_calls import pool_of, reply_of
from worker.state.redis_connect import REDIS_ERRORS, Link


class Wire:
    """One connection to the node that holds `key`, made when it is needed. Errors of the client leave as they are.

    After any of them the connection is gone: what is still on its way must not be taken for another answer.
    """

    def __init__(self, link: Link, key: str, timeout_s: float) -> None:
        self._link = link
        self._key = key
        self._timeout_s = timeout_s
        self._connection: Any = None

    def send(self, *calls: Sequence[Any]) -> None:
        """Send calls whose replies are read later."""
        try:
            if self._connection is None:
                self._connection = self._unconnected()
                self._connection.connect()  # sending would connect as well, without asking a sentinel where to
            self._connection.send_packed_command(self._connection.pack_commands(calls), check_health=False)
        except REDIS_ERRORS:
            self.drop()
            raise

    def readable(self, timeout_s: float) -> bool:
        """Say whether (a part of) a reply is there, after at most `timeout_s`."""
        try:
            return bool(self._connection.can_read(timeout_s))
        except REDIS_ERRORS:
            self.drop()
            raise

    def reply(self) -> Any:
        """Return the next reply, an error of the server as a value."""
        try:
            return reply_of(self._connection)
        except REDIS_ERRORS:
            self.drop()
            raise

    def ask(self, *call: Any) -> Any:
        """Send a call and return its reply; an error of the server is raised."""
        self.send(call)
        reply = self.reply()
        if isinstance(reply, Exception):
            raise reply
        return reply

    def finish(self) -> list[Any]:
        """Close in order, and return the replies that were on their way.

        The server closes its side once it has read ours: then nothing that it gives away can come here any more.
        """
        replies = []
        end = getattr(self._connection, "_sock", None)  # the client has no call that closes one direction
        try:
            if end is not None:
                end.shutdown(socket.SHUT_WR)
                while self._connection.can_read(self._timeout_s):
                    replies.append(reply_of(self._connection))
        except REDIS_ERRORS:
            pass  # that is how the end of the connection shows
        self.drop()
        return replies

    def drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()

    def _unconnected(self) -> Any:
        pool = pool_of(self._link.client, self._key)
        options = dict(pool.connection_kwargs)
        for name in ("socket_timeout", "socket_connect_timeout"):
            options[name] = min(options.get(name) or self._timeout_s, self._timeout_s)
        return pool.connection_class(**options)
