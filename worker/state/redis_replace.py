"""Another state in the place of the current one, by a person's decision: begin again, or go back one commit.

Works on whatever is there: missing, damaged, of another type. Versions and fences are fresh, so running workers drop
what they hold.
"""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from worker.errors import StateCorrupted, StateMissing, Transient
from worker.state import checkpoint as codec
from worker.state.commit_log import from_fields, to_fields
from worker.state.redis_calls import Calls, atomic, flat, script
from worker.state.store import Checkpoint, Fence, LogEntry, Version

_REPLACE = script("replace.lua")
_ATTEMPTS = 20  # against workers that keep committing


@dataclass(frozen=True, slots=True)
class _Replacement:
    """What one attempt writes, and over what: `now` and `previous` are the identities that it read."""

    how: str
    now: bytes
    previous: bytes
    version: Version
    blob: bytes
    partitions: Mapping[int, bytes]  # b"": drop it
    fields: Mapping[str, str | bytes]


def reset(calls: Calls, empty: Checkpoint, entry: LogEntry) -> Version:
    """Write `empty` under a version never used before; drop partitions, commit log and previous state."""

    def prepare() -> _Replacement:
        now, previous = calls.identities([calls.keys.state, calls.keys.previous_state])
        version = fresh_version(calls, now, previous)
        blob, digest = codec.encode(replace(empty, version=version), calls.keys.model)
        partitions = dict.fromkeys(_all_partitions(calls), b"")
        fields = to_fields(None, version, digest, entry)
        return _Replacement("reset", now, previous, version, blob, partitions, fields)

    return _decide(calls, prepare)


def restore_previous(calls: Calls, entry: LogEntry) -> Version:
    """Put the state and the partitions before the last commit back.

    Raises `StateMissing` where there is no previous state, `StateCorrupted` where that one is damaged too.
    """

    def prepare() -> _Replacement:
        now, blob, old = _read_previous(calls)
        before = codec.decode(blob, calls.keys.model, calls.keys.previous_state)
        version = fresh_version(calls, now, blob[: codec.IDENTITY_BYTES])
        restored, digest = codec.encode(replace(before, version=version), calls.keys.model)
        partitions = {number: _under_fresh_fence(calls, number, old_blob, version) for number, old_blob in old.items()}
        fields = to_fields(before.version, version, digest, entry)
        return _Replacement("restore", now, blob[: codec.IDENTITY_BYTES], version, restored, partitions, fields)

    return _decide(calls, prepare)


def _decide(calls: Calls, prepare: Callable[[], _Replacement]) -> Version:
    for _ in range(_ATTEMPTS):
        replacement = prepare()
        if _write(calls, replacement):
            return replacement.version
    raise Transient("workers keep committing in between: stop them, or try again")


def _write(calls: Calls, new: _Replacement) -> bool:
    """Write it all at once; False (and nothing written) where someone wrote since it was read."""
    keys = calls.keys
    names = [
        keys.state,
        keys.next_state,
        keys.previous_state,
        keys.partitions,
        keys.previous_partitions,
        keys.commits,
        *map(keys.partition, new.partitions),
    ]
    pairs = [value for pair in new.partitions.items() for value in pair]
    arguments = [new.how, new.now, new.previous, new.blob, len(new.partitions), *pairs, *flat(new.fields)]
    return calls.run(f"{new.how} the state", _REPLACE, names, arguments)[0] == b"replaced"


def _read_previous(calls: Calls) -> tuple[bytes, bytes, dict[int, bytes]]:
    """Return (identity of the state, previous state blob, previous partition blobs), all of one moment."""
    keys = calls.keys
    reads = (
        ("TYPE", keys.state),
        ("GETRANGE", keys.state, 0, codec.IDENTITY_BYTES - 1),
        ("GET", keys.previous_state),
        ("HGETALL", keys.previous_partitions),
    )
    kind, now, blob, old = calls.ask(
        "read the previous state", lambda c: atomic(c, keys.state, *reads, raise_on_error=False)
    )
    # A commit touches a partition at least: without any, positions would stay ahead of the state and lose records.
    if not isinstance(blob, bytes) or not isinstance(old, list) or not old:
        raise StateMissing(
            f"there is no previous state under {keys.previous_state} in Redis {calls.link.place}; "
            "to begin again: `gradstream state reset --yes`"
        )
    return (
        now if kind == b"string" else b"",
        blob,
        {int(number): value for number, value in zip(old[::2], old[1::2], strict=True)},
    )


def _under_fresh_fence(calls: Calls, number: int, blob: bytes, version: Version) -> bytes:
    if not blob:
        return b""  # it did not exist before that commit
    key = f"{calls.keys.previous_partitions} field {number}"
    state = codec.decode_partition(blob, calls.keys.model, number, key).state
    return codec.encode_partition(state, Fence(version.nonce), calls.keys.model)


def fresh_version(calls: Calls, *identities: bytes) -> Version:
    """Return a version above every one that can still be read, so that numbers do not come round again."""
    numbers = [-1, _last_logged(calls)]
    for identity in identities:
        try:
            numbers.append(codec.read_version(identity, calls.keys.state).number)
        except StateCorrupted:
            continue  # absent or damaged: the others decide
    return Version(max(numbers) + 1, secrets.token_hex(16))


def _last_logged(calls: Calls) -> int:
    """Return the version number of the last entry of the commit log, -1 where there is none that can be read."""
    key = calls.keys.commits
    try:
        entries = calls.ask("read the commit log", lambda client: client.xrevrange(key, count=1))
        return max((from_fields(place.decode(), fields, key).version.number for place, fields in entries), default=-1)
    except StateCorrupted:
        return -1


def _all_partitions(calls: Calls) -> list[int]:
    """Return the partitions that were ever claimed, or whose keys are there although nobody lists them."""
    start = calls.keys.partition(0)[:-1]
    found = calls.ask("look for partitions", lambda client: list(client.scan_iter(match=f"{start}*", count=1000)))
    numbers = {int(key[len(start) :]) for key in found if key[len(start) :].isdigit()}
    try:
        return sorted(numbers.union(calls.claimed_partitions()))
    except StateCorrupted:
        return sorted(numbers)
