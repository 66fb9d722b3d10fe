"""A state store in memory, held to the same contract suite as the one on Redis.

Several stores on one `MemoryServer` are several workers. A test makes calls fail through `server.failures`, and makes
the server lose what it took by `server.snapshot()` and `server.go_back()`. The token of the turn is in `turn.py`.
"""

import secrets
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from tests.fakes.turn import MemoryTurn
from worker.errors import StateCorrupted, StateMissing, Transient
from worker.state import checkpoint as codec
from worker.state.commit_log import LoggedCommit, to_fields
from worker.state.keys import Keys
from worker.state.moment import Moment
from worker.state.redis_rewind import Rewind
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

Failure = Literal["before", "after"]  # the write did not happen, or it happened and no reply ever came


@dataclass
class MemoryServer:
    """What a server holds. `failures` makes the next writing calls raise `Transient`, one entry a call (None: fine).

    `silent`: it does not answer those who ask for the turn.
    """

    blobs: dict[str, bytes] = field(default_factory=dict)
    previous_partitions: dict[str, dict[int, bytes]] = field(default_factory=dict)
    logs: dict[str, list[LoggedCommit]] = field(default_factory=dict)
    workers: dict[str, dict[str, dict[str, object]]] = field(default_factory=dict)
    claimed: dict[str, set[int]] = field(default_factory=dict)
    failures: deque[Failure | None] = field(default_factory=deque)
    recipes: dict[str, dict[str, bytes]] = field(default_factory=dict)
    turns: dict[str, MemoryTurn] = field(default_factory=dict)
    archived: dict[str, str] = field(default_factory=dict)
    appended: int = 0  # places in a log are never used twice
    silent: bool = False

    def snapshot(self) -> "MemoryServer":
        return MemoryServer(
            dict(self.blobs),
            {model: dict(old) for model, old in self.previous_partitions.items()},
            {model: list(log) for model, log in self.logs.items()},
            {},
            {model: set(numbers) for model, numbers in self.claimed.items()},
            recipes={model: dict(documents) for model, documents in self.recipes.items()},
            turns={model: MemoryTurn(turn.issued, turn.free) for model, turn in self.turns.items()},
            archived=dict(self.archived),
        )

    def go_back(self, to: "MemoryServer") -> None:
        """Lose what was written since the snapshot, as a server does whose disk was behind."""
        past = to.snapshot()
        self.blobs, self.previous_partitions = past.blobs, past.previous_partitions
        self.logs, self.claimed, self.workers = past.logs, past.claimed, past.workers
        self.recipes, self.turns, self.archived = past.recipes, past.turns, past.archived


class MemoryStore:
    """`Store` for one model on a `MemoryServer`."""

    def __init__(self, server: MemoryServer, model: str) -> None:
        self.server = server
        self.model = model
        self.keys = Keys(model)

    def check_server(self) -> list[str]:
        return []

    def wait_until_ready(self, deadline_s: float) -> None:
        return

    def load(self) -> Checkpoint:
        blob = self.server.blobs.get(self.keys.state)
        if blob is None:
            raise self._missing()
        return codec.decode(blob, self.model)

    def version(self) -> Version | None:
        blob = self.server.blobs.get(self.keys.state)
        return None if blob is None else codec.read_version(blob[: codec.IDENTITY_BYTES], self.keys.state)

    def state_bytes(self) -> int:
        return len(self.server.blobs.get(self.keys.state, b""))

    def load_partition(self, partition: int) -> StoredPartition | None:
        key = self.keys.partition(partition)
        blob = self.server.blobs.get(key)
        if blob is not None:
            return codec.decode_partition(blob, self.model, partition)
        if self.keys.state in self.server.blobs and partition in self.load().partitions:
            raise StateMissing(f"{key} is gone (evicted or deleted) although the state lists it")
        return None

    def fences(self, partitions: Iterable[int]) -> dict[int, Fence]:
        return {n: codec.read_fence(self._identity(self.keys.partition(n))) for n in partitions}

    def partitions(self) -> Iterator[StoredPartition]:
        for number in sorted(self.server.claimed.get(self.model, ())):
            stored = self.load_partition(number)
            if stored is not None:
                yield stored

    def create(self, checkpoint: Checkpoint, entry: LogEntry) -> bool:
        blob, digest = codec.encode(checkpoint, self.model)
        lost = self._maybe_fail()
        there = self.version()
        if there is not None:
            return there == checkpoint.version
        if self._traces():
            raise self._missing()
        self.server.blobs[self.keys.state] = blob
        self._log(None, checkpoint.version, digest, entry)
        self._lose(lost)
        return True

    def claim(self, partition: int, expected: Fence, state: PartitionState) -> Fence | None:
        fence = Fence(secrets.token_hex(16))
        blob = codec.encode_partition(state, fence, self.model)
        lost = self._maybe_fail()
        if self.keys.state not in self.server.blobs:
            raise self._missing(was_there=True)
        if self._identity(self.keys.partition(partition)) != codec.partition_identity(expected):
            return None
        self.server.blobs[self.keys.partition(partition)] = blob
        self.server.claimed.setdefault(self.model, set()).add(partition)
        self._lose(lost)
        return fence

    def commit(self, commit: Commit) -> Committed | Moved | Fenced:
        if not commit.partitions:
            raise ValueError("a commit without partitions could not be recognised as one's own")
        blob, digest = codec.encode(commit.checkpoint, self.model)
        fence = codec.fence_after(commit)
        done = Committed(dict.fromkeys(commit.partitions, fence), len(blob))
        lost = self._maybe_fail()
        refused = self._refusal(commit, codec.partition_identity(fence))
        if refused is None:
            self._keep_recipe(commit)
            self._write(commit, blob, digest, fence)
            turn = self.server.turns.setdefault(self.model, MemoryTurn())
            turn.pass_on(commit.turn, str(commit.checkpoint.version))
        self._lose(lost)
        return done if refused is None or isinstance(refused, Committed) else refused

    def recipe(self, digest: str) -> Recipe | None:
        document = self.server.recipes.get(self.model, {}).get(digest)
        return codec.read_recipe(document, digest, self.keys.recipes) if document is not None else None

    def reset(self, empty: Checkpoint, entry: LogEntry) -> Version:
        version = self._fresh_version()
        blob, digest = codec.encode(replace(empty, version=version), self.model)
        root = self.keys.partition(0)[:-1]
        for key in [key for key in self.server.blobs if key.startswith(root)]:
            del self.server.blobs[key]
        self.server.blobs.pop(self.keys.previous_state, None)
        for room in (self.server.previous_partitions, self.server.logs, self.server.claimed):
            room.pop(self.model, None)
        self.server.blobs[self.keys.state] = blob
        self._log(None, version, digest, entry)
        return version

    def restore_previous(self, entry: LogEntry) -> Version:
        old = self.server.previous_partitions.get(self.model)
        if self.keys.previous_state not in self.server.blobs or not old:
            raise StateMissing(f"there is no previous state under {self.keys.previous_state}; `gradstream state reset`")
        before = codec.decode(self.server.blobs[self.keys.previous_state], self.model, self.keys.previous_state)
        version = self._fresh_version()
        for number, blob in old.items():
            key = f"{self.keys.previous_partitions} field {number}"
            if blob:
                state = codec.decode_partition(blob, self.model, number, key).state
                fenced = codec.encode_partition(state, Fence(version.nonce), self.model)
                self.server.blobs[self.keys.partition(number)] = fenced
            else:
                self.server.blobs.pop(self.keys.partition(number), None)
        restored, digest = codec.encode(replace(before, version=version), self.model)
        self.server.blobs[self.keys.state] = restored
        self._log(before.version, version, digest, entry)
        return version

    def commit_log(
        self, first: str | None = None, last: str | None = None, count: int | None = None
    ) -> Iterator[LoggedCommit]:
        log = self.server.logs.get(self.model, [])
        low, high = _place(first or "0-0"), _place(last) if last else (2**64, 0)
        chosen = [logged for logged in log if low <= _place(logged.id) <= high]
        yield from chosen if count is None else chosen[:count]

    def announce(self, worker: str, facts: Mapping[str, object], ttl_s: float) -> None:
        if ttl_s > 0:
            self.server.workers.setdefault(self.model, {})[worker] = dict(facts)

    def workers(self) -> list[dict[str, object]]:
        said = self.server.workers.get(self.model, {})
        return [{"worker": worker} | facts for worker, facts in sorted(said.items())]

    def snapshot(self) -> Moment:
        state = self.server.blobs.get(self.keys.state)
        if state is None:
            raise self._missing()
        return self._moment(state, {})

    def previous(self) -> Moment | None:
        state, old = self.server.blobs.get(self.keys.previous_state), self.server.previous_partitions.get(self.model)
        return self._moment(state, {n: blob for n, blob in old.items() if blob}) if state and old else None

    def _moment(self, state: bytes, replaced: Mapping[int, bytes]) -> Moment:
        numbers = self.server.claimed.get(self.model, set())
        partitions = {n: self.server.blobs[self.keys.partition(n)] for n in sorted(numbers)} | dict(replaced)
        version = codec.read_version(state[: codec.IDENTITY_BYTES], self.keys.state)
        for logged in reversed(self.server.logs.get(self.model, [])):
            if logged.version == version:
                return Moment(state, partitions, logged.id, logged.entry.committed_at)
        return Moment(state, partitions)

    def rewind(self, back: Rewind) -> Version:
        blobs, claimed = self.server.blobs, self.server.claimed.setdefault(self.model, set())
        try:
            present = self.load()
        except (StateCorrupted, StateMissing):
            present = None
        added = {n: stored.state for n in claimed - back.positions.keys() if (stored := self.load_partition(n))}
        states = {**back.positions, **back.others(present, added)}
        version = self._fresh_version()
        version = Version(max(version.number, back.floor + 1), version.nonce)
        blob, digest = codec.encode(replace(back.checkpoint, version=version), self.model)
        blobs.pop(self.keys.previous_state, None)
        self.server.previous_partitions.pop(self.model, None)
        if present:
            blobs[self.keys.previous_state] = blobs[self.keys.state]
            old = {n: blobs.get(self.keys.partition(n), b"") for n in states}
            self.server.previous_partitions[self.model] = old
        blobs[self.keys.state] = blob
        for n, state in states.items():
            blobs[self.keys.partition(n)] = codec.encode_partition(state, Fence(version.nonce), self.model)
            claimed.add(n)
        self._log(back.checkpoint.version, version, digest, back.entry)
        return version

    def log_page(self, after: str, count: int) -> list[tuple[str, dict[bytes, bytes]]]:
        log = self.server.logs.get(self.model, [])
        return [(logged.id, _raw(logged)) for logged in log if _place(logged.id) > _place(after or "0-0")][:count]

    def log_length(self) -> int:
        return len(self.server.logs.get(self.model, []))

    def version_at(self, place: str) -> str:
        log = self.server.logs.get(self.model, [])
        return next((str(logged.version) for logged in log if logged.id == place), "")

    def archived(self) -> str:
        return self.server.archived.get(self.model, "")

    def note_archived(self, place: str, version: str) -> bool:
        if self.version_at(place) != version:
            return False
        self.server.archived[self.model] = place
        return True

    def trim(self, version: str) -> int | None:
        place, log = self.archived(), self.server.logs.get(self.model, [])
        if not place or self.version_at(place) != version:
            return None
        kept = [logged for logged in log if _place(logged.id) >= _place(place)]
        self.server.logs[self.model] = kept
        return len(log) - len(kept)

    def _refusal(self, commit: Commit, mine: bytes) -> Committed | Moved | Fenced | None:
        """Return why nothing may be written (`Committed`: it was written before), or None."""
        seen = {number: self._identity(self.keys.partition(number)) for number in commit.partitions}
        if all(identity == mine for identity in seen.values()):
            return Committed({}, 0)
        state = self._identity(self.keys.state)
        if not state:
            raise self._missing(was_there=True)
        there = codec.read_version(state, self.keys.state)
        fenced = [n for n, (fence, _) in commit.partitions.items() if seen[n] != codec.partition_identity(fence)]
        for number in fenced:
            self.load_partition(number)
        if fenced:
            return Fenced(frozenset(fenced))
        return None if there == commit.base else Moved()

    def _write(self, commit: Commit, blob: bytes, digest: str, fence: Fence) -> None:
        blobs = self.server.blobs
        old = {number: blobs.get(self.keys.partition(number), b"") for number in commit.partitions}
        blobs[self.keys.previous_state] = blobs[self.keys.state]
        blobs[self.keys.state] = blob
        self.server.previous_partitions[self.model] = old
        for number, (_, state) in commit.partitions.items():
            blobs[self.keys.partition(number)] = codec.encode_partition(state, fence, self.model)
            self.server.claimed.setdefault(self.model, set()).add(number)
        self._log(commit.base, commit.checkpoint.version, digest, commit.entry)

    def _keep_recipe(self, commit: Commit) -> None:
        kept = self.server.recipes.setdefault(self.model, {})
        if commit.recipe is not None and commit.entry.recipe not in kept:
            kept[commit.entry.recipe] = codec.recipe_document(commit)

    def _identity(self, key: str) -> bytes:
        return self.server.blobs.get(key, b"")[: codec.IDENTITY_BYTES]

    def _log(self, base: Version | None, version: Version, digest: str, entry: LogEntry) -> None:
        log = self.server.logs.setdefault(self.model, [])
        self.server.appended += 1
        log.append(LoggedCommit(f"{self.server.appended}-0", base, version, digest, entry))

    def _fresh_version(self) -> Version:
        numbers = [logged.version.number for logged in self.server.logs.get(self.model, [])[-1:]]
        for key in (self.keys.state, self.keys.previous_state):
            try:
                numbers.append(codec.read_version(self._identity(key), key).number)
            except StateCorrupted:
                continue
        return Version(max(numbers, default=-1) + 1, secrets.token_hex(16))

    def _traces(self) -> bool:
        named = (self.server.logs, self.server.claimed, self.server.previous_partitions)
        return any(room.get(self.model) for room in named) or self.keys.previous_state in self.server.blobs

    def _missing(self, *, was_there: bool = False) -> StateMissing:
        if was_there or self._traces():
            return StateMissing(f"the state under {self.keys.state} is gone: `gradstream state restore --previous`")
        return StateMissing(f"there is no state under {self.keys.state}: `gradstream worker --init`")

    def _maybe_fail(self) -> Failure | None:
        failure = self.server.failures.popleft() if self.server.failures else None
        if failure == "before":
            raise Transient("memory did not answer: nothing was written")
        return failure

    def _lose(self, failure: Failure | None) -> None:
        if failure == "after":
            raise Transient("memory did not answer: the reply was lost")


def _place(text: str) -> tuple[int, int]:
    number, _, rest = text.partition("-")
    return int(number), int(rest or 0)


def _raw(logged: LoggedCommit) -> dict[bytes, bytes]:
    fields = to_fields(logged.base, logged.version, logged.digest, logged.entry)
    return {name.encode(): value if isinstance(value, bytes) else value.encode() for name, value in fields.items()}
