"""The commit log in the artifact store, and both as one log. Knows protocols only; decides what is safe to remove.

What makes it right: a log in Redis only grows at its end, is trimmed at its beginning, loses its end (a server that
went back) or all of it (a reset). After each pass everything that was in it is archived. So what is archived of a log
is always its beginning, and which part that is, versions tell: they are identities, places in the log are not.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from worker.errors import StateCorrupted
from worker.lineage import kept
from worker.lineage.segments import Entry, Segment, Segments, version_of
from worker.recipe import Recipe
from worker.release.artifacts import Artifacts
from worker.state import checkpoint as codec
from worker.state.commit_log import LoggedCommit, from_fields
from worker.state.moment import Moment
from worker.state.store import Version

PAGE = 500  # entries of the log in a segment at most, and read at once


class LogStore(Protocol):
    """What is asked of the store of states. See `RedisStore`."""

    model: str

    def snapshot(self) -> Moment: ...

    def log_page(self, after: str, count: int) -> list[Entry]: ...

    def log_length(self) -> int: ...

    def version_at(self, place: str) -> str: ...

    def archived(self) -> str: ...

    def note_archived(self, place: str, version: str) -> bool: ...

    def trim(self, version: str) -> int | None: ...

    def commit_log(self) -> Iterator[LoggedCommit]: ...

    def recipe(self, digest: str) -> Recipe | None: ...


@dataclass(frozen=True, slots=True)
class Archived:
    """What one pass did. `first`, `last`: versions of the commits that were put there, "" for none.

    `end`: the version that the archive ends with. `kept`: the state that was kept. `trimmed`: entries removed from
    Redis.
    """

    commits: int = 0
    segments: int = 0
    first: str = ""
    last: str = ""
    end: str = ""
    kept: Version | None = None
    trimmed: int = 0
    notes: tuple[str, ...] = ()


def archive_once(store: LogStore, artifacts: Artifacts, *, trim: bool = False) -> Archived:
    """Put into the archive what is new in the log, and keep the state of this moment where anything was.

    With `trim`, remove from Redis what is archived. Safe to run at any time, by several at once, and to be killed.
    Raises what `store` and `artifacts` raise.
    """
    moment = store.snapshot()  # before the log is read: every kept state has its way in the archive
    run = _Run(store, artifacts)
    while run.step():
        pass
    saved = kept.keep(artifacts, store.model, moment).version if run.commits else None
    noted = run.end != ("", "") and store.note_archived(*run.end)
    trimmed = store.trim(run.end[1]) if trim and noted else None
    if run.end != ("", "") and not noted:
        run.notes.append("the log in Redis changed in between (it went back, or was reset): archive once more")
    end = run.head.header.last_version if run.head else ""
    return Archived(run.commits, run.segments, run.first, run.last, end, saved, trimmed or 0, tuple(run.notes))


class _Run:
    """One pass over the log. `end`: place and version of the last entry seen that is archived."""

    def __init__(self, store: LogStore, artifacts: Artifacts) -> None:
        self.store = store
        self.artifacts = artifacts
        self.chain = Segments(artifacts, store.model)
        self.commits = self.segments = 0
        self.first = self.last = ""
        self.notes: list[str] = []
        self._recipes: set[str] = set()
        self._find_out()

    def _find_out(self) -> None:
        self.head = self.chain.head()
        self.end, self._known = _archived_part(self.store, self.chain, self.head)

    def step(self) -> bool:
        """Archive the next page; False where there is none."""
        page = self.store.log_page(self.end[0], PAGE)
        if not page:
            return False
        fresh = [entry for entry in page if version_of(entry[1]) not in self._known]
        if fresh and not self._append(fresh):
            self._find_out()  # another one archives as well: go on from what it has put there
            return True
        self.end = (page[-1][0], version_of(page[-1][1]))
        return True

    def _append(self, fresh: Sequence[Entry]) -> bool:
        self._keep_recipes(fresh)
        if self.head is None and (base := fresh[0][1].get(b"base", b"").decode()):
            self.notes.append(
                f"this archive begins in the middle: the log in Redis begins after version {base.partition(':')[0]}, "
                f"and what came before is not in {self.artifacts.place}"
            )
        written = self.chain.append(fresh, self.head)
        if written is None:
            return False
        self.head, new = written
        if new:
            self.first = self.first or version_of(fresh[0][1])
            self.last = version_of(fresh[-1][1])
            self.commits += len(fresh)
            self.segments += 1
        return True

    def _keep_recipes(self, entries: Sequence[Entry]) -> None:
        """Put the recipes that these entries name beside them, first: an entry never names what is not there.

        One that the store has lost, or holds damaged, is left out; it comes with the next commit that names it.
        """
        named = {fields.get(b"recipe", b"").decode() for _, fields in entries} - {""}
        for digest in sorted(named - self._recipes):
            try:
                recipe = self.store.recipe(digest)
            except StateCorrupted as damaged:
                self.notes.append(str(damaged))
                continue
            if recipe is not None:
                self.artifacts.write_once(_recipe_name(digest), recipe.document())
                self._recipes.add(digest)


class LineageLog:
    """Archive and Redis as one log: every commit that is known, once, bases before what stands on them."""

    def __init__(self, store: LogStore, artifacts: Artifacts | None) -> None:
        self._store = store
        self._artifacts = artifacts

    def entries(self) -> Iterator[LoggedCommit]:
        """Yield all commits, as often as asked. What is archived and trimmed meanwhile is not missed.

        Raises `VerificationFailed` where the archive is damaged, `StateCorrupted` where an entry can not be read.
        """
        if self._artifacts is None:
            yield from self._store.commit_log()
            return
        reading = _Reading(Segments(self._artifacts, self._store.model), _number(self._store.log_page("", 1)))
        yield from reading.archived()
        after = ""
        while page := self._store.log_page(after, PAGE):
            yield from reading.archived()  # the page may begin after what was archived and trimmed in between
            yield from reading.fresh(page, "the commit log in Redis")
            after = page[-1][0]

    def recipe(self, digest: str) -> Recipe | None:
        """Return the recipe of a digest, None where neither has it."""
        found = self._store.recipe(digest)
        if found is not None or not digest or self._artifacts is None:
            return found
        name = _recipe_name(digest)
        if not self._artifacts.exists(name):
            return None
        return codec.read_recipe(self._artifacts.read(name), digest, f"{self._artifacts.place}/{name}")


class _Reading:
    """Remembers only versions that Redis may have as well: from `lowest` on."""

    def __init__(self, segments: Segments, lowest: int) -> None:
        self._segments = segments
        self._lowest = lowest
        self._at: Segment | None = None
        self._seen: set[Version] = set()

    def archived(self) -> Iterator[LoggedCommit]:
        for segment in self._segments.since(self._at):
            yield from self.fresh(segment.entries(), f"segment {segment.header.number} of the archive")
            self._at = segment

    def fresh(self, entries: Sequence[Entry], where: str) -> Iterator[LoggedCommit]:
        for place, fields in entries:
            commit = from_fields(place, fields, where)
            if commit.version in self._seen:
                continue
            if commit.version.number >= self._lowest:
                self._seen.add(commit.version)
            yield commit


@dataclass(frozen=True, slots=True)
class Overview:
    """What is where. Versions are `number:nonce`, "" for none.

    `waiting`: commits in Redis that are not archived. `trimmed`: archived ones that Redis does not have (any more).
    """

    segments: int
    commits: int
    first: str
    last: str
    last_place: str
    archived_place: str  # as noted in Redis
    in_redis: int
    waiting: int
    trimmed: int


def overview(store: LogStore, artifacts: Artifacts) -> Overview:
    """Tell what is archived, what is not yet, and what is in the archive alone."""
    chain = Segments(artifacts, store.model)
    head = chain.head()
    end, known = _archived_part(store, chain, head)
    in_redis, waiting, after = store.log_length(), 0, end[0]
    while page := store.log_page(after, PAGE):
        waiting += sum(version_of(fields) not in known for _, fields in page)
        after = page[-1][0]
    if head is None:
        return Overview(0, 0, "", "", "", store.archived(), in_redis, waiting, 0)
    header, first = head.header, chain.read(1).header.first_version
    trimmed = max(0, header.total - (in_redis - waiting))
    return Overview(
        header.number, header.total, first, header.last_version, header.last, store.archived(), in_redis, waiting,
        trimmed,
    )  # fmt: skip


def _archived_part(store: LogStore, chain: Segments, head: Segment | None) -> tuple[tuple[str, str], frozenset[str]]:
    """Return what of the log in Redis is archived: all up to (place, version), and whatever has these versions."""
    if head is None:
        return ("", ""), frozenset()
    end = (head.header.last, head.header.last_version)
    if store.version_at(end[0]) == end[1]:
        return end, frozenset()
    # The log went back, was reset, or goes into another archive as well: compare one by one.
    lowest = _number(store.log_page("", 1))
    return ("", ""), frozenset(
        version_of(fields)
        for segment in chain.since(None)
        if segment.header.highest >= lowest
        for _, fields in segment.entries()
    )


def _number(page: Sequence[Entry]) -> int:
    """Return the version number of the first entry, 0 where there is none."""
    number = version_of(page[0][1]).partition(":")[0] if page else ""
    return int(number) if number.isdigit() else 0


def _recipe_name(digest: str) -> str:
    return f"lineage/recipes/{digest}.json"
