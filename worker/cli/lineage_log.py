"""The commit log as commands read it: what Redis still has, and before it what the artifact store keeps."""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    from worker.recipe import Recipe
    from worker.state.commit_log import LoggedCommit
    from worker.state.redis_store import RedisStore


class Log(Protocol):
    """Every commit that is known, in order, as often as asked; and the recipes that they name."""

    def entries(self) -> "Iterator[LoggedCommit]": ...

    def recipe(self, digest: str) -> "Recipe | None": ...


class _OfRedis:
    def __init__(self, store: "RedisStore") -> None:
        self._store = store

    def entries(self) -> "Iterator[LoggedCommit]":
        return self._store.commit_log()

    def recipe(self, digest: str) -> "Recipe | None":
        return self._store.recipe(digest)


def lineage_log(store: "RedisStore") -> Log:
    """Return the log of the model."""
    return _OfRedis(store)
