"""A whole model at one moment out of Redis, and one of earlier put back: `lineage archive`, `train rollback`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from worker.errors import StateCorrupted, Transient
from worker.state import checkpoint as codec
from worker.state.commit_log import to_fields
from worker.state.moment import Moment
from worker.state.redis_calls import Calls, atomic, flat, script
from worker.state.redis_replace import fresh_version
from worker.state.store import Checkpoint, Fence, LogEntry, PartitionState, Version

_REWIND = script("rewind.lua")
_ATTEMPTS = 100  # an attempt takes some milliseconds, and workers commit all the time
_RECENT = 20  # entries in which the one of the previous state is looked for

Others = Callable[[Checkpoint | None, Mapping[int, PartitionState]], Mapping[int, PartitionState]]
"""Given the present state (None: damaged or gone), and as they are the partitions that did not exist in the one that is
put back: return what becomes of each."""


@dataclass(frozen=True, slots=True)
class Rewind:
    """What is put back. `floor`: a version number known from elsewhere; the new one lies above it."""

    checkpoint: Checkpoint
    positions: Mapping[int, PartitionState]
    others: Others
    entry: LogEntry
    floor: int = -1


def snapshot(calls: Calls) -> Moment:
    """Return the state and all partitions of one moment. Raises `StateMissing`."""
    state, _, _, partitions, recent = _read(calls)
    if state is None:
        raise calls.missing()
    return _moment(state, partitions, recent)


def previous(calls: Calls) -> Moment | None:
    """Return the moment before the last commit, None where Redis does not hold it."""
    _, before, replaced, partitions, recent = _read(calls)
    if before is None or not replaced:
        return None
    return _moment(before, partitions | replaced, recent)


def rewind(calls: Calls, back: Rewind) -> Version:
    """Put it back under fresh identities; return the version it has now. Raises `Transient` after many attempts."""
    for _ in range(_ATTEMPTS):
        if version := _attempt(calls, back):
            return version
    raise Transient("workers keep committing in between: stop them, or try again")


def _attempt(calls: Calls, back: Rewind) -> Version | None:
    """Write it all at once; None (and nothing written) where someone wrote since it was read."""
    keys, model = calls.keys, calls.keys.model
    numbers = sorted({*calls.claimed_partitions(), *back.positions})
    now, before, *fences = calls.identities([keys.state, keys.previous_state, *map(keys.partition, numbers)])
    present = _present(calls)
    states = {**back.positions, **back.others(present, _others_now(calls, set(numbers) - back.positions.keys()))}
    version = fresh_version(calls, now, before)
    version = Version(max(version.number, back.floor + 1), version.nonce)
    blob, digest = codec.encode(replace(back.checkpoint, version=version), model)
    arguments: list[Any] = [now, blob, "keep" if present else "drop", len(states)]
    seen = dict(zip(numbers, fences, strict=True))
    for number in sorted(states):
        arguments += [number, seen[number], codec.encode_partition(states[number], Fence(version.nonce), model)]
    names = [
        keys.state,
        keys.next_state,
        keys.previous_state,
        keys.partitions,
        keys.previous_partitions,
        keys.commits,
        *map(keys.partition, sorted(states)),
    ]
    arguments += flat(to_fields(back.checkpoint.version, version, digest, back.entry))
    try:
        done = calls.run("put the state back", _REWIND, names, arguments)[0] == b"rewound"
    except Transient:
        done = calls.identities([keys.state])[0] == codec.state_identity(version)
        if not done:  # else the reply alone was lost
            raise
    return version if done else None


def _present(calls: Calls) -> Checkpoint | None:
    """Return the present state where it is whole: only then it is worth being the previous one."""
    try:
        blob = calls.ask("load the state", lambda client: client.get(calls.keys.state))
        return codec.decode(blob, calls.keys.model) if blob is not None else None
    except StateCorrupted:
        return None


def _others_now(calls: Calls, numbers: set[int]) -> dict[int, PartitionState]:
    found = {}
    for number in sorted(numbers):
        key = calls.keys.partition(number)
        blob = calls.ask(f"load {key}", lambda client, k=key: client.get(k))  # type: ignore[misc]
        if blob is None:
            raise calls.lost_partition(key)
        found[number] = codec.decode_partition(blob, calls.keys.model, number).state
    return found


_Fields = dict[bytes, bytes]


def _read(calls: Calls) -> tuple[bytes | None, bytes | None, dict[int, bytes], dict[int, bytes], dict[bytes, _Fields]]:
    """Return state, previous state, the partitions that it had otherwise, all partitions, and the last log entries."""
    keys = calls.keys
    for _ in range(_ATTEMPTS):
        numbers = calls.claimed_partitions()
        reads: Sequence[Any] = (
            ("GET", keys.state),
            ("GET", keys.previous_state),
            ("HGETALL", keys.previous_partitions),
            ("SMEMBERS", keys.partitions),
            ("XREVRANGE", keys.commits, "+", "-", "COUNT", _RECENT),
            *(("GET", keys.partition(number)) for number in numbers),
        )
        state, before, replaced, claimed, log, *blobs = calls.ask(
            "read the whole state",
            lambda client, reads=reads: atomic(client, keys.state, *reads),  # type: ignore[misc]
        )
        if {int(number) for number in claimed} == set(numbers):
            break
    else:
        raise Transient("partitions are claimed all the time: try again")
    partitions = dict(zip(numbers, blobs, strict=True))
    if gone := [number for number, blob in partitions.items() if blob is None]:
        raise calls.lost_partition(keys.partition(gone[0]))
    old = {int(number): blob for number, blob in zip(replaced[::2], replaced[1::2], strict=True) if blob}
    recent = {place: dict(zip(fields[::2], fields[1::2], strict=True)) for place, fields in log}
    return state, before, old, partitions, recent


def _moment(state: bytes, partitions: Mapping[int, bytes], recent: Mapping[bytes, _Fields]) -> Moment:
    for place, fields in recent.items():
        if codec.STATE_MAGIC + fields.get(b"version", b"").ljust(64) == state[: codec.IDENTITY_BYTES]:
            return Moment(state, partitions, place.decode(), fields.get(b"committed_at", b"").decode())
    return Moment(state, partitions)
