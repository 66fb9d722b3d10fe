"""The state store on Redis: one script a change, each a compare-and-set over identities. Judges replies, never guesses.

With `redis_connect.py` the only place that knows redis. Nothing is tried again here: the caller has the deadline.
"""

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from worker.errors import Transient
from worker.state import checkpoint as codec
from worker.state import redis_log, redis_replace, redis_rewind
from worker.state.commit_log import LoggedCommit, from_fields, to_fields
from worker.state.keys import Keys
from worker.state.moment import Moment
from worker.state.redis_calls import Calls, atomic, flat, script
from worker.state.redis_connect import REDIS_ERRORS, REPLY_LOST, Link, check_server
from worker.state.redis_turn import RedisTurnQueue
from worker.state.store import (
    Checkpoint,
    Commit,
    Committed,
    Fence,
    Fenced,
    LogEntry,
    Moved,
    PartitionState,
    Recipe,
    StoredPartition,
    Version,
)

_LAST = codec.IDENTITY_BYTES - 1
_PAGE = 500  # entries of the commit log read at once
_COMMIT, _CLAIM, _CREATE, _ANNOUNCE = map(script, ("commit.lua", "claim.lua", "create.lua", "announce.lua"))
_KEEP_RECIPE = script("keep_recipe.lua")


class RedisStore:
    """`Store` for one model in one Redis (see the protocol), and what commands need beside it."""

    def __init__(self, link: Link, model: str) -> None:
        self.keys = Keys(model)
        self.model = model
        self._link = link
        self._calls = Calls(link, self.keys)

    def wait_until_ready(self, deadline_s: float) -> None:
        """Wait for a server that is starting or loading. Raises `Unreachable` after `deadline_s`, `ConfigError`."""
        self._link.wait_until_ready(deadline_s)

    def check_server(self) -> list[str]:
        """Return warnings; raises `ConfigError` for an evicting server, a replica, or a client that decodes replies."""
        return check_server(self._link, self.keys.state)

    def turn_queue(self, turn_wait_s: float) -> RedisTurnQueue:
        """Return this process's place in the queue for the turn; a silent holder is respected for `turn_wait_s`."""
        return RedisTurnQueue(self._link, self.model, turn_wait_s)

    def load(self) -> Checkpoint:
        """Return the current state. Raises `StateMissing`, `StateCorrupted`, `Transient`."""
        blob = self._calls.ask("load the state", lambda client: client.get(self.keys.state))
        if blob is None:
            raise self._calls.missing()
        return codec.decode(blob, self.model)

    def version(self) -> Version | None:
        """Return who the current state is without reading it, None where there is none."""
        identity = self._calls.ask("read the version", lambda client: client.getrange(self.keys.state, 0, _LAST))
        return codec.read_version(identity, self.keys.state) if identity else None

    def state_bytes(self) -> int:
        """Return the size of the state blob, 0 where there is none."""
        return int(self._calls.ask("read the size of the state", lambda client: client.strlen(self.keys.state)))

    def load_partition(self, partition: int) -> StoredPartition | None:
        """Return what is stored, None where it never was. Raises `StateMissing` where the state says that it was."""
        key = self.keys.partition(partition)
        blob = self._calls.ask(f"load {key}", lambda client: client.get(key))
        if blob is None:
            # Both in one transaction: apart, another worker's first commit could fall in between.
            blob, state = self._calls.ask(
                f"load {key}", lambda client: atomic(client, key, ("GET", key), ("GET", self.keys.state))
            )
            if blob is None and state is not None and partition in codec.decode(state, self.model).partitions:
                raise self._calls.lost_partition(key)
        return codec.decode_partition(blob, self.model, partition) if blob is not None else None

    def fences(self, partitions: Iterable[int]) -> dict[int, Fence]:
        """Return the fence of each partition at one moment, without its state; "" where nothing is stored."""
        numbers = list(partitions)
        identities = self._calls.identities([self.keys.partition(number) for number in numbers])
        return {n: codec.read_fence(identity) for n, identity in zip(numbers, identities, strict=True)}

    def partitions(self) -> Iterator[StoredPartition]:
        """Yield every partition that was ever claimed, by number."""
        for number in self._calls.claimed_partitions():
            stored = self.load_partition(number)
            if stored is not None:
                yield stored

    def create(self, checkpoint: Checkpoint, entry: LogEntry) -> bool:
        """Write the first state; False where one exists. Raises `StateMissing` where one was lost."""
        blob, digest = codec.encode(checkpoint, self.model)
        keys = [self.keys.state, self.keys.previous_state, self.keys.partitions, self.keys.commits]
        arguments = [blob, *flat(to_fields(None, checkpoint.version, digest, entry))]
        reply = self._calls.run("create the state", _CREATE, keys, arguments)
        if reply[0] == b"exists":
            # A lost reply makes the caller come again: then it is its own state that exists.
            return bool(reply[1] == codec.state_identity(checkpoint.version))
        if reply[0] == b"traces":
            raise self._calls.missing()
        return True

    def claim(self, partition: int, expected: Fence, state: PartitionState) -> Fence | None:
        """Write the partition under a fresh fence, or return None where its fence is not the expected one."""
        key, fence = self.keys.partition(partition), Fence(secrets.token_hex(16))
        blob = codec.encode_partition(state, fence, self.model)
        keys = [self.keys.state, key, self.keys.partitions]
        arguments = [partition, codec.partition_identity(expected), blob]
        try:
            reply = self._link.client.eval(_CLAIM, len(keys), *keys, *arguments)
        except REPLY_LOST as error:
            lost = self._link.translated(error, f"claim {key}")
            if self._calls.identities([key])[0] == codec.partition_identity(fence):
                return fence
            raise lost from error
        except REDIS_ERRORS as error:
            raise self._link.translated(error, f"claim {key}") from error
        if reply[0] == b"missing":
            raise self._calls.missing(was_there=True)
        self._calls.refuse_type(reply)
        return fence if reply[0] == b"claimed" else None

    def commit(self, commit: Commit) -> Committed | Moved | Fenced:
        """Make state and positions durable together, or nothing. The same commit may be given again and again.

        Raises `ValueError` where its log entry names another recipe than it has, or where it touches no partition.
        """
        if not commit.partitions:
            raise ValueError("a commit without partitions could not be recognised as one's own")
        blob, digest = codec.encode(commit.checkpoint, self.model)
        keys, arguments = self._commit_call(commit, digest)
        done = Committed(dict.fromkeys(commit.partitions, codec.fence_after(commit)), len(blob))
        # The state travels as a plain SET, which Redis keeps without copying; a script argument is copied twice
        # (0.4 against 1.7 ms at 800 KB).
        calls = ("SET", self.keys.next_state, blob), ("EVAL", _COMMIT, len(keys), *keys, *arguments)
        try:
            reply = atomic(self._link.client, self.keys.state, *calls)[1]
            if reply[0] == b"recipe":  # the first commit under it, or the store went back to before that one
                self._keep_recipe(commit)
                reply = atomic(self._link.client, self.keys.state, *calls)[1]
        except REPLY_LOST as error:
            return self._recognise(commit, done, error)
        except REDIS_ERRORS as error:
            raise self._link.translated(error, f"commit {commit.checkpoint.version.number}") from error
        return self._judge(commit, done, reply)

    def recipe(self, digest: str) -> Recipe | None:
        """Return what commits that name this digest were learned under. Raises `StateCorrupted`, `Transient`."""
        document = self._calls.ask("read a recipe", lambda client: client.hget(self.keys.recipes, digest))
        return codec.read_recipe(document, digest, self.keys.recipes) if document is not None else None

    def reset(self, empty: Checkpoint, entry: LogEntry) -> Version:
        """Begin again with `empty` under a version never used before; return that version.

        Partition states, commit log and previous state are dropped. Works whatever is there, or is not.
        """
        return redis_replace.reset(self._calls, empty, entry)

    def restore_previous(self, entry: LogEntry) -> Version:
        """Put the state and the partitions before the last commit back; return the version they have now.

        Works when the current state is damaged or gone. Raises `StateMissing` where there is no previous state,
        `StateCorrupted` where that one is damaged too.
        """
        return redis_replace.restore_previous(self._calls, entry)

    def commit_log(
        self, first: str | None = None, last: str | None = None, count: int | None = None
    ) -> Iterator[LoggedCommit]:
        """Yield commits in order, from id `first` to id `last` (both included; None: open), at most `count`."""
        start, left = first or "-", count
        while left is None or left > 0:
            page = _PAGE if left is None else min(left, _PAGE)
            entries = self._calls.ask(
                "read the commit log",
                lambda client, s=start, n=page: client.xrange(self.keys.commits, s, last or "+", n),  # type: ignore[misc]
            )
            for place, fields in entries:
                yield from_fields(place.decode(), fields, self.keys.commits)
            if len(entries) < page:
                return
            start = f"({entries[-1][0].decode()}"
            left = None if left is None else left - len(entries)

    def announce(self, worker: str, facts: Mapping[str, object], ttl_s: float) -> None:
        """Say who is alive, for `status`; what goes wrong here is none of the training's business."""
        arguments = [worker, msgspec.json.encode(dict(facts)), int(ttl_s * 1000)]
        try:
            self._link.client.eval(_ANNOUNCE, 1, self.keys.workers, *arguments)
        except REDIS_ERRORS:
            self._link.drop_connections()

    def workers(self) -> list[dict[str, object]]:
        """Return what each living worker last said, with its name under `worker`, sorted by name."""
        said = self._calls.ask("list the workers", lambda client: client.hgetall(self.keys.workers))
        seconds, micros = self._calls.ask(
            "read the clock", lambda client: client.time(**self._link.node_of(self.keys.state))
        )
        alive: list[dict[str, object]] = []
        for worker, text in sorted(said.items()):
            until_ms, _, facts = text.partition(b" ")
            if int(until_ms) >= seconds * 1000 + micros // 1000:
                alive.append({"worker": worker.decode()} | msgspec.json.decode(facts, type=dict[str, object]))
        return alive

    # For the archive of the log, and for going back.

    def snapshot(self) -> Moment:
        """Return the state and all partitions of one moment. Raises `StateMissing`."""
        return redis_rewind.snapshot(self._calls)

    def previous(self) -> Moment | None:
        """Return the moment before the last commit, None where it is not held any more."""
        return redis_rewind.previous(self._calls)

    def rewind(self, back: redis_rewind.Rewind) -> Version:
        """Put a state of earlier and its positions back, under fresh identities; return the version it has now."""
        return redis_rewind.rewind(self._calls, back)

    def log_page(self, after: str, count: int) -> list[redis_log.Entry]:
        """Return up to `count` raw log entries after a place ("": from the first on)."""
        return redis_log.page(self._calls, after, count)

    def log_length(self) -> int:
        """Return how many entries the log has."""
        return redis_log.length(self._calls)

    def version_at(self, place: str) -> str:
        """Return the version (`number:nonce`) that the log entry at a place made, "" where there is none."""
        return redis_log.version_at(self._calls, place)

    def archived(self) -> str:
        """Return the place up to which the log is archived, "" where none was noted."""
        return redis_log.archived(self._calls)

    def note_archived(self, place: str, version: str) -> bool:
        """Note that place; False where the log entry there is not the one that made this version."""
        return redis_log.note_archived(self._calls, place, version)

    def trim(self, version: str) -> int | None:
        """Remove log entries before the archived place; None where that entry is not the one of this version."""
        return redis_log.trim(self._calls, version)

    # What follows serves the calls above.

    def _commit_call(self, commit: Commit, digest: str) -> tuple[list[str], list[Any]]:
        fence, version, keys = codec.fence_after(commit), commit.checkpoint.version, self.keys
        names = [
            keys.state,
            keys.next_state,
            keys.previous_state,
            keys.partitions,
            keys.previous_partitions,
            keys.commits,
            *map(keys.partition, commit.partitions),
            keys.recipes,
            keys.turn,
            keys.turn_issued,
        ]
        arguments: list[Any] = [
            codec.state_identity(commit.base),
            codec.state_identity(version),
            commit.entry.recipe if commit.recipe is not None else "",
            commit.turn,
            str(version),
            len(commit.partitions),
        ]
        for number, (expected, state) in commit.partitions.items():
            blob = codec.encode_partition(state, fence, self.model)
            arguments += [number, codec.partition_identity(expected), blob]
        return names, arguments + flat(to_fields(commit.base, version, digest, commit.entry))

    def _keep_recipe(self, commit: Commit) -> None:
        kept = (self.keys.recipes, commit.entry.recipe, codec.recipe_document(commit))
        self._calls.ask("keep the recipe", lambda client: client.eval(_KEEP_RECIPE, 1, *kept))

    def _recognise(self, commit: Commit, done: Committed, error: Exception) -> Committed | Moved | Fenced:
        """The reply was lost: look at what is there. Raises `Transient` where the commit has not happened (yet)."""
        lost = self._link.translated(error, f"commit {commit.checkpoint.version.number}")
        state, *seen = self._calls.identities([self.keys.state, *map(self.keys.partition, commit.partitions)])
        mine = codec.partition_identity(codec.fence_after(commit))
        if all(identity == mine for identity in seen):
            return done
        expected = [codec.partition_identity(fence) for fence, _ in commit.partitions.values()]
        if state == codec.state_identity(commit.base) and seen == expected:
            raise lost from error
        return self._judge(commit, done, [b"differs", state, *seen])

    def _judge(self, commit: Commit, done: Committed, reply: Sequence[bytes]) -> Committed | Moved | Fenced:
        if reply[0] == b"applied":
            return done
        self._calls.refuse_type(reply)
        if reply[0] != b"differs":
            raise Transient(
                f"Redis {self._link.place} lost what was staged for the commit; nothing was written, commit again"
            )
        state, seen = reply[1], dict(zip(commit.partitions, reply[2:], strict=True))
        if not state:
            raise self._calls.missing(was_there=True)
        codec.read_version(state, self.keys.state)
        fenced = [n for n, (fence, _) in commit.partitions.items() if seen[n] != codec.partition_identity(fence)]
        for number in fenced:
            if not seen[number]:
                self.load_partition(number)  # raises where the state says that it has to be there
        return Fenced(frozenset(fenced)) if fenced else Moved()
