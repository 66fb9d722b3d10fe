"""Which events a version was trained on, from the commit log alone: who took how much, from where, and how. Pure.

Memory grows with commits, workers, recipes and partitions, never with records.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from worker.lineage.chain import Path
from worker.lineage.taken import taken
from worker.recipe import Recipe
from worker.state.commit_log import LoggedCommit
from worker.stream.records import TopicPartition

UNDO = ("restore", "rollback")
_SECTIONS = ("spec", "hyper", "roles", "decoding", "join", "software")


@dataclass(slots=True)
class Share:
    """What some of the commits on a path did. Times as logged (RFC 3339), "" for none."""

    commits: int = 0
    examples: int = 0
    records: int = 0
    first_at: str = ""
    last_at: str = ""

    def add(self, commit: LoggedCommit) -> None:
        self.commits += 1
        self.examples += commit.entry.examples
        self.records += commit.entry.consumed.records
        self.first_at = self.first_at or commit.entry.committed_at
        self.last_at = commit.entry.committed_at


@dataclass(slots=True)
class Span:
    """The offsets taken of a topic partition: `first` to before `next`; `records` of them were there to be read.

    `next` follows from the last commit's first offset and its records: where transaction markers lie among those, the
    real end is as many further on.
    """

    first: int
    next: int
    records: int


@dataclass(slots=True)
class Summary:
    """`root`: kind of the entry at which the path begins. `undone`: restores and rollbacks on the way, by kind."""

    root: str = ""
    total: Share = field(default_factory=Share)
    workers: dict[str, Share] = field(default_factory=dict)
    kernels: dict[str, Share] = field(default_factory=dict)
    recipes: dict[str, Share] = field(default_factory=dict)  # in order of first use
    spans: dict[TopicPartition, Span] = field(default_factory=dict)
    undone: dict[str, int] = field(default_factory=lambda: dict.fromkeys(UNDO, 0))


def summarise(path: Path, log: Iterable[LoggedCommit]) -> Summary:
    """Return what the commits on the path took and learned."""
    made = Summary(path.links[0].kind)
    for commit in log:
        if commit.version not in path.versions:
            continue
        entry = commit.entry
        if entry.kind in UNDO:
            made.undone[entry.kind] += 1
        if entry.kind != "train":
            continue
        shares = [made.total, made.workers.setdefault(entry.worker, Share())]
        shares += [made.kernels.setdefault(entry.kernel, Share()), made.recipes.setdefault(entry.recipe, Share())]
        for share in shares:
            share.add(commit)
        _widen(made.spans, commit)
    made.spans = dict(sorted(made.spans.items()))
    return made


def _widen(spans: dict[TopicPartition, Span], commit: LoggedCommit) -> None:
    consumed = commit.entry.consumed
    for (topic, partition, first), count in zip(consumed.sources, taken(consumed), strict=True):
        span = spans.setdefault(TopicPartition(topic, partition), Span(first, first, 0))
        span.next = max(span.next, first + count)
        span.records += count


@dataclass(frozen=True, slots=True)
class Change:
    """One thing in which a recipe is not as the first one: `software.torch`, `hyper.learning_rate`, `code`."""

    name: str
    was: object
    now: object


def changes(names: Iterable[str], recipe: Callable[[str], Recipe | None]) -> dict[str, list[Change] | None]:
    """Return in what each recipe differs from the first of them; None for one that is not kept."""
    first: dict[str, Any] | None = None
    found: dict[str, list[Change] | None] = {}
    for name in names:
        kept = recipe(name)
        flat = _flat(msgspec.to_builtins(kept)) if kept else None
        first = first or flat
        found[name] = _between(first, flat) if first is not None and flat is not None else None
    return found


def _flat(document: Mapping[str, Any]) -> dict[str, Any]:
    flat = {name: value for name, value in document.items() if name not in _SECTIONS}
    for section in _SECTIONS:
        flat |= {f"{section}.{name}": value for name, value in document[section].items()}
    return flat


def _between(first: Mapping[str, Any], other: Mapping[str, Any]) -> list[Change]:
    names = sorted(first.keys() | other.keys())
    return [Change(name, first.get(name), other.get(name)) for name in names if first.get(name) != other.get(name)]
