"""The commit log as a tree of versions, and the one way from its root to a version. Pure; keeps no record order.

Each commit stands on a base. What was undone (a restore, a rollback, a store that went back) is no ancestor of what
came after, so it is on no path that leads further.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from worker.errors import ConfigError, StateMissing
from worker.state.commit_log import LoggedCommit
from worker.state.store import Version
from worker.stream.records import TopicPartition


class Link(NamedTuple):
    """One commit without what it consumed: small enough to keep every one of them."""

    base: Version | None
    version: Version
    kind: str
    digest: str


@dataclass(frozen=True, slots=True)
class Path:
    """Versions from a root (or from a kept state, which is not among them) up to one version, each on the one before.

    `firsts`: the first offset of each topic partition that anything on the way was taken from.
    """

    links: list[Link]
    versions: frozenset[Version]
    firsts: Mapping[TopicPartition, int] = field(default_factory=dict)


class Chain:
    """All commits that are known, by version."""

    def __init__(self, log: Iterable[LoggedCommit]) -> None:
        self._links: dict[Version, Link] = {}
        self._firsts: dict[Version, tuple[tuple[str, int, int], ...]] = {}
        for commit in log:
            self._links[commit.version] = Link(commit.base, commit.version, commit.entry.kind, commit.digest)
            self._firsts[commit.version] = commit.entry.consumed.sources

    def __len__(self) -> int:
        return len(self._links)

    def find(self, number: int, tip: Version | None) -> Version:
        """Return the version with this number: the one that `tip` stands on, else the last one that was logged.

        Raises `ConfigError` where there is none.
        """
        at = tip
        while at is not None and at in self._links:
            if at.number == number:
                return at
            at = self._links[at].base
        found = [version for version in self._links if version.number == number]
        if not found:
            numbers = sorted(version.number for version in self._links)
            known = f"versions {numbers[0]} to {numbers[-1]} are in the commit log" if numbers else "the log is empty"
            raise ConfigError(f"there is no state version {number}: {known}")
        return found[-1]

    def digest(self, version: Version) -> str | None:
        """Return what the log says of the state of this version, None where it is not in the log."""
        link = self._links.get(version)
        return link.digest if link else None

    def stands_on(self, version: Version, base: Version) -> bool:
        """Say whether `base` is the version, or one that it was made from."""
        at: Version | None = version
        while at is not None and at != base:
            link = self._links.get(at)
            at = link.base if link else None
        return at is not None

    def path(self, version: Version, start: Version | None = None) -> Path:
        """Return the way to `version` from its root, or from the version after `start`.

        Raises `StateMissing` where a commit on the way is not in the log, `ConfigError` where `start` is not on it.
        """
        links: list[Link] = []
        at: Version | None = version
        while at is not None and at != start:
            link = self._links.get(at)
            if link is None:
                raise StateMissing(
                    f"the commit log does not go back to the beginning: version {links[-1].version.number} stands on "
                    f"version {at.number}, which is not in it; begin at a kept state with --from, or read the archive "
                    f"(release.store)"
                )
            links.append(link)
            at = link.base
        if at is None and start is not None:
            raise ConfigError(f"state version {version.number} does not stand on version {start.number}")
        links.reverse()
        return Path(links, frozenset(link.version for link in links), self._first_offsets(links))

    def _first_offsets(self, links: list[Link]) -> dict[TopicPartition, int]:
        firsts: dict[TopicPartition, int] = {}
        for link in links:
            for topic, partition, first in self._firsts[link.version]:
                firsts.setdefault(TopicPartition(topic, partition), first)
        return firsts
