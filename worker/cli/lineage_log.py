"""The commit log as commands read it: what Redis still has, and before it what the artifact store keeps."""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    from worker.recipe import Recipe
    from worker.settings import Settings
    from worker.state.commit_log import LoggedCommit
    from worker.state.redis_store import RedisStore


class Log(Protocol):
    """Every commit that is known, in order, as often as asked; and the recipes that they name."""

    def entries(self) -> "Iterator[LoggedCommit]": ...

    def recipe(self, digest: str) -> "Recipe | None": ...


def lineage_log(store: "RedisStore", settings: "Settings") -> Log:
    """Return the log of the model: what Redis has, and before it the archive where `release.store` names one."""
    from worker.lineage.archive import LineageLog
    from worker.release.artifacts import open_artifacts

    place = settings.release.store
    return LineageLog(store, open_artifacts(place, settings.model.name) if place else None)
