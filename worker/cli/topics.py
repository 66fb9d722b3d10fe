"""Which topics a model needs, and which of them are to be created. Decides; the admin client acts."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from worker.settings import Settings


def event_topics(settings: "Settings") -> tuple[str, ...]:
    """Return the topics that hold events: features and labels, or examples."""
    return tuple(settings.stream.event_topics.values())


def other_topics(settings: "Settings") -> tuple[str, ...]:
    """Return the topics that the worker writes to."""
    names = (settings.stream.dead_letters_topic, settings.stream.metrics_topic)
    return tuple(name for name in names if name)


def missing_topics(
    events: Sequence[str], others: Sequence[str], found: Mapping[str, int], partitions: int
) -> dict[str, int]:
    """Return {name: partitions} of the topics to create; `found`: partitions of those that exist.

    A missing event topic gets as many partitions as its sibling has: an event and its label have to fall into
    partitions of the same number.
    """
    counts = {found[name] for name in events if name in found}
    count = counts.pop() if counts else partitions
    wanted = dict.fromkeys(events, count) | dict.fromkeys(others, 1)
    return {name: n for name, n in wanted.items() if name not in found}
