"""How scripts and reads are put to Redis, and what a missing key means. Used by the store and `redis_replace.py`."""

from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from typing import Any, TypeVar

from worker.errors import StateCorrupted, StateMissing
from worker.state.checkpoint import IDENTITY_BYTES
from worker.state.keys import Keys
from worker.state.redis_connect import REDIS_ERRORS, REFUSALS, Link

_T = TypeVar("_T")
_LAST = IDENTITY_BYTES - 1
_REMEDY = "`gradstream state restore --previous`, or begin again with `gradstream state reset --yes`"


def script(name: str) -> str:
    """Return the text of a script without its comments: it goes along each time, for a restarted server forgot it."""
    text = resources.files("worker.state").joinpath(name).read_text(encoding="utf-8")
    return "\n".join(line for line in text.splitlines() if line and not line.startswith("--"))


def pool_of(client: Any, key: str) -> Any:
    """Return the pool of connections to the node that holds `key`."""
    find = getattr(client, "get_node_from_key", None)
    return (client.get_redis_connection(find(key)) if find else client).connection_pool


def atomic(client: Any, key: str, *calls: Sequence[Any], raise_on_error: bool = True) -> list[Any]:
    """Run the calls as one transaction on the node that holds `key`; return their replies as the server sent them.

    Written on connections because the client's own pipeline interprets replies, differently for one node and for a
    cluster, quotes arguments in its errors, and takes 0.1 ms longer. An error of the connection says nothing about
    what was done. `raise_on_error=False` leaves the error of a single call in its place among the replies.
    """
    pool = pool_of(client, key)
    connection = pool.get_connection()
    try:
        connection.send_packed_command(connection.pack_commands([("MULTI",), *calls, ("EXEC",)]))
        refused = [
            reply for reply in (reply_of(connection) for _ in range(len(calls) + 1)) if isinstance(reply, Exception)
        ]
        replies = reply_of(connection)
    except BaseException:
        connection.disconnect()  # replies may still be on their way: nobody must take them for answers to others
        raise
    finally:
        pool.release(connection)
    if isinstance(replies, Exception):
        raise refused[0] if refused else replies
    for reply in replies:
        if raise_on_error and isinstance(reply, Exception):
            raise reply
    return list(replies)


def reply_of(connection: Any) -> Any:
    """Return the next reply, an error of the server as a value; errors of the connection are raised."""
    try:
        return connection.read_response()
    except REFUSALS as error:
        return error


def flat(fields: Mapping[str, str | bytes]) -> list[str | bytes]:
    """Return names and values by turns, as scripts take them."""
    return [value for pair in fields.items() for value in pair]


class Calls:
    """Calls about one model. Every error of the client leaves as one of ours, its connection dropped."""

    def __init__(self, link: Link, keys: Keys) -> None:
        self.link = link
        self.keys = keys

    def ask(self, doing: str, call: Callable[[Any], _T]) -> _T:
        """Return what `call` returns, given the client; `doing` names it in errors."""
        try:
            return call(self.link.client)
        except REDIS_ERRORS as error:
            raise self.link.translated(error, doing) from error

    def run(self, doing: str, text: str, keys: Sequence[str], arguments: Sequence[Any]) -> list[bytes]:
        """Run a script and return its reply. Raises `StateCorrupted` where it found a key of another type."""
        reply = self.ask(doing, lambda client: list(client.eval(text, len(keys), *keys, *arguments)))
        self.refuse_type(reply)
        return reply

    def identities(self, keys: Sequence[str]) -> list[bytes]:
        """Return the first 80 bytes under each key at one moment, b"" where there is no string."""
        calls = [call for key in keys for call in (("TYPE", key), ("GETRANGE", key, 0, _LAST))]
        replies = self.ask(
            "read identities", lambda client: atomic(client, self.keys.state, *calls, raise_on_error=False)
        )
        return [
            identity if kind == b"string" else b"" for kind, identity in zip(replies[::2], replies[1::2], strict=True)
        ]

    def claimed_partitions(self) -> list[int]:
        """Return the numbers of all partitions that were ever claimed."""
        return sorted(map(int, self.ask("list the partitions", lambda client: client.smembers(self.keys.partitions))))

    def refuse_type(self, reply: Sequence[bytes]) -> None:
        """Raise `StateCorrupted` if a script found that a key holds something that is not ours."""
        if reply[0] == b"type":
            raise StateCorrupted(f"{reply[1].decode()} holds another type than Gradstream writes: {_REMEDY}")

    def missing(self, *, was_there: bool = False) -> StateMissing:
        """Return the error that tells a lost state from one that never was."""
        keys, place = self.keys, self.link.place
        traces = [keys.previous_state, keys.partitions, keys.commits]
        if was_there or self.ask("look for traces of a state", lambda client: client.exists(*traces)):
            return StateMissing(
                f"the state under {keys.state} in Redis {place} is gone (evicted or deleted) although it was there: "
                f"{_REMEDY}"
            )
        return StateMissing(
            f"there is no state under {keys.state} in Redis {place}: check redis.url; where nothing was ever trained "
            "`gradstream worker --init`, to begin again `gradstream state reset --yes`"
        )

    def lost_partition(self, key: str) -> StateMissing:
        """Return the error for a partition that the state lists and that is not there."""
        return StateMissing(
            f"{key} in Redis {self.link.place} is gone (evicted or deleted) although the state lists it: {_REMEDY}"
        )
