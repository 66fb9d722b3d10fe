"""Whether a state version is what its commit log and its records make of it; if not, from where on and why. Pure."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from worker.errors import ConfigError
from worker.learn.learner import Learner
from worker.learn.state import Learn
from worker.lineage.chain import Path
from worker.lineage.replay import Differs, Replay
from worker.recipe import Recipe
from worker.spec import Hyper, read_spec
from worker.state import checkpoint as codec
from worker.state.commit_log import LoggedCommit


@dataclass(frozen=True, slots=True)
class Verdict:
    """`failed` is the first commit that differs, with the reason; None where every digest on the way is equal."""

    commits: int
    examples: int
    digest: str
    failed: LoggedCommit | None = None
    reason: str = ""

    @property
    def equal(self) -> bool:
        return self.failed is None


@dataclass(frozen=True, slots=True)
class Here:
    """What computes in this process: see `Recipe`."""

    software: Mapping[str, str]
    code: str


def learner(recipe: Recipe) -> Learn:
    """Return the rule of learning of a recipe. Raises `ConfigError` where its kernel is not there."""
    kernel: Any = recipe.kernel
    return Learner(read_spec(recipe.spec), Hyper(**dict[str, Any](recipe.hyper)), kernel)


def verify(
    path: Path,
    log: Iterable[LoggedCommit],
    replay: Replay,
    recipe: Callable[[str], Recipe | None],
    here: Callable[[str], Here],
    progress: Callable[[int], None],
) -> Verdict:
    """Follow the path through the log. `here(kernel)`: what computes now; `progress` is told each commit done."""
    done = 0
    for commit in log:
        if commit.version not in path.versions:
            continue
        try:
            replay.follow(commit)
        except Differs as differs:
            reason = _explained(differs, recipe(commit.entry.recipe), here)
            return Verdict(done, replay.examples, codec.digest(replay.state), commit, reason)
        except ConfigError as missing:  # its kernel is not installed here
            return Verdict(done, replay.examples, codec.digest(replay.state), commit, str(missing))
        done += 1
        progress(done)
    return Verdict(done, replay.examples, codec.digest(replay.state))


def _explained(differs: Differs, recipe: Recipe | None, here: Callable[[str], Here]) -> str:
    """Add what computes otherwise here than there, where that may be the reason."""
    if recipe is None or not differs.computed:
        return differs.reason
    others = differences(recipe, here(recipe.kernel))
    if others:
        return f"{differs.reason}; computed otherwise than here: {', '.join(others)}"
    return f"{differs.reason}; nothing that computes differs from here: records or log were changed"


def differences(recipe: Recipe, here: Here) -> list[str]:
    """Return what computed a commit and is another one here, in words."""
    mine, theirs = dict(here.software), dict(recipe.software)
    names = sorted(mine.keys() | theirs.keys())
    found = [
        f"{name} {theirs.get(name, 'none')} there, {mine.get(name, 'none')} here"
        for name in names
        if mine.get(name) != theirs.get(name)
    ]
    if recipe.code != here.code:
        found.append(f"code {recipe.code[:12]} there, {here.code[:12]} here")
    return found
