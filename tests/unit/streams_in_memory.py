"""Events of the end-to-end streams on a log in memory."""

from collections.abc import Iterable
from zlib import crc32

from tests.e2e.world import Event
from tests.unit.rig import Rig


def fill(rig: Rig, events: Iterable[Event]) -> Rig:
    """Append the events, keyed as producers key them; return the rig."""
    for event in events:
        key = event.key.encode() if event.key is not None else None
        partition = (crc32(key) if key else 0) % rig.partitions
        rig.append(event.topic, event.value, key=key, partition=partition)
    return rig
