"""The turn: learn what was collected on the newest state, and make state and positions durable in one step.

Workers queue for it, so that one learns while the others prepare. Nothing correct rests on the queue: the same examples
are learned again when another worker was faster after all. One worker is the case in which nobody is.
"""

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from worker.errors import ConfigError, NonFiniteStep
from worker.learn.state import Learn, LearnerState, Report
from worker.observe.observer import Turn
from worker.ownership import RESET, Ownership
from worker.patience import Patience
from worker.spec import Spec
from worker.state.store import Checkpoint, Commit, Committed, Fenced, LogEntry, Moved, Recipe, TurnQueue, Version
from worker.stream.intake import Work
from worker.stream.records import TopicPartition
from worker.stream.source import DeadLetters

FLUSH_S = 5.0
NON_FINITE_STEPS = 100  # in a row: then the model has diverged and more events will not mend it


@dataclass(frozen=True, slots=True)
class Stamp:
    """What a commit log entry says of who made it and how."""

    worker: str
    kernel: str
    settings_digest: str
    recipe: Recipe | None = None  # kept beside the log, so that the commit can be learned again


@dataclass(frozen=True, slots=True)
class Effort:
    """What a turn took: seconds of learning and of all the rest, versions of others in between."""

    learn_s: float
    commit_s: float
    conflicts: int
    staleness: int


def next_version(base: Version) -> Version:
    """Return a new identity: a counter alone could come round again after a store went back."""
    return Version(base.number + 1, secrets.token_hex(8))


def check_spec(spec: Spec, checkpoint: Checkpoint) -> None:
    """Raise `ConfigError` naming the setting in which a stored state was made under another spec."""
    if key := spec.difference(dict(checkpoint.spec)):
        raise ConfigError(
            f"{key} differs from the setting under which state version {checkpoint.version.number} was learned: set it "
            f"back, or begin again with {RESET}"
        )


class Turns:
    """Takes turns for one worker; holds the newest state it knows."""

    def __init__(
        self, ownership: Ownership, learn: Learn, spec: Spec, dead_letters: DeadLetters, patience: Patience,
        queue: TurnQueue, stamp: Stamp,
    ) -> None:  # fmt: skip
        self.ownership = ownership
        self.store = ownership.store
        self.intake = ownership.intake
        self.observer = ownership.observer
        self.learn = learn
        self.spec = spec
        self.dead_letters = dead_letters
        self.patience = patience
        self.queue = queue
        self.stamp = stamp
        self.checkpoint = self._load()
        self._recipe_digest = stamp.recipe.digest() if stamp.recipe else ""
        self._asked: float | None = None  # since when one waits for the turn, or has it
        self._granted: float | None = None
        self._non_finite = 0

    # -- whose turn it is -----------------------------------------------------------------------------------------

    @property
    def asked(self) -> bool:
        """Whether this worker is in line, or at turn already."""
        return self._asked is not None

    def ask(self) -> None:
        """Get in line. Dead letters are seen off first: the others must not wait for their broker."""
        if self._asked is None:
            self.patience(lambda: self.dead_letters.flush(FLUSH_S))
            self._asked = time.monotonic()
            self.queue.ask()

    def granted(self, timeout_s: float = 0.0) -> bool:
        """Say whether it is this worker's turn, after at most `timeout_s`."""
        if self._granted is None and self._asked is not None and self.queue.granted(timeout_s):
            self._granted = time.monotonic()
        return self._granted is not None

    def give_back(self, outcome: str = "") -> None:
        """Let the next one have the turn; `outcome` says why, where it is worth telling."""
        if outcome:
            self.observer.turn_lost(outcome)
        self._asked = self._granted = None
        self.queue.leave()

    def _waited_s(self) -> float:
        if self._asked is None:
            return 0.0
        return (self._granted or time.monotonic()) - self._asked

    def held_s(self) -> float:
        """Return for how long the others have been waiting for this worker."""
        return 0.0 if self._granted is None else time.monotonic() - self._granted

    # -- the turn -------------------------------------------------------------------------------------------------

    def take(self) -> Mapping[TopicPartition, int]:
        """Commit everything that was taken; return the positions that are durable now.

        Raises `Unreachable` when the store or the dead-letter topic stays away, `StateMissing`, `StateCorrupted`,
        and `NonFiniteStep` once nothing finite was learned for too long.
        """
        started, conflicts, fenced = time.monotonic(), 0, False
        self.patience(lambda: self.dead_letters.flush(FLUSH_S))
        staleness = self._catch_up()
        while (work := self.intake.work()).partitions:
            begun = time.monotonic()
            state, report = self.learn(self.checkpoint.learner, work.examples)
            learn_s = time.monotonic() - begun
            commit = self._commit(work, state)
            outcome = self.patience(lambda commit=commit: self.store.commit(commit))  # type: ignore[misc]
            if isinstance(outcome, Committed):
                seconds = time.monotonic() - started - learn_s
                return self._done(work, commit, outcome, report, Effort(learn_s, seconds, conflicts, staleness))
            if isinstance(outcome, Fenced):
                fenced = True
                self.ownership.lose(outcome.partitions)
            else:
                assert isinstance(outcome, Moved)
                conflicts += 1
            staleness += self._reload()  # also where fenced: after a reset nothing is known of the partitions
        self.give_back("fenced" if fenced else "")
        return {}

    def _catch_up(self) -> int:
        """Load what others committed since; return how many versions that was.

        A token that a commit has passed on names the newest version, which saves the question; a new one does not.
        """
        token, mine = self.queue.token, self.checkpoint.version
        if ":" in token:
            return 0 if token == str(mine) else self._reload()
        return 0 if self.patience(self.store.version) == mine else self._reload()

    def look(self) -> None:
        """Notice, with nothing to commit, that the store went back, was reset, or lost the state.

        What others merely added is loaded when it is this worker's turn, and not each time one looks.
        """
        mine, there = self.checkpoint.version, self.patience(self.store.version)
        if there == mine:
            return
        fenced = self.patience(self.ownership.check_fences)
        if fenced or there is None or there.number <= mine.number:
            self._reload()

    def _commit(self, work: Work, state: LearnerState) -> Commit:
        base = self.checkpoint
        checkpoint = replace(
            base,
            version=next_version(base.version),
            kernel=self.stamp.kernel,
            partitions=base.partitions | work.partitions.keys(),
            learner=state,
        )
        entry = LogEntry(
            "train", self.stamp.worker, work.consumed, len(work.examples), self.intake.batch_size,
            self.stamp.kernel, self.stamp.settings_digest, datetime.now(UTC).isoformat(timespec="milliseconds"),
            self._recipe_digest,
        )  # fmt: skip
        touched = {n: (self.ownership.fences[n], state) for n, state in work.partitions.items()}
        return Commit(base.version, checkpoint, touched, entry, self.queue.token, self.stamp.recipe)

    def _done(
        self, work: Work, commit: Commit, done: Committed, report: Report, effort: Effort
    ) -> Mapping[TopicPartition, int]:
        self.checkpoint = commit.checkpoint
        wait_s, token = self._waited_s(), self.queue.token != ""
        self._asked = self._granted = None
        self.queue.passed_on()
        self.ownership.fences.update(done.fences)
        outcomes = self.intake.settle(work)
        positions = {
            TopicPartition(side.topic, n): side.next_offset for n, s in work.partitions.items() for side in s.sides
        }
        turn = Turn(
            commit.checkpoint.version, commit.checkpoint.learner, report, outcomes, positions, work.delays_ms,
            work.newest_ms, effort.learn_s, effort.commit_s, effort.conflicts, done.state_bytes,
            wait_s, effort.staleness, token,
        )  # fmt: skip
        self.observer.turn(turn)
        self._check_finite(report)
        return positions

    def _check_finite(self, report: Report) -> None:
        for rows in report.rows:
            self._non_finite = 0 if rows else self._non_finite + 1
        if self._non_finite >= NON_FINITE_STEPS:
            raise NonFiniteStep(
                f"{self._non_finite} steps in a row had no finite gradient: the model has diverged; lower "
                f"train.learning_rate or set train.clip_norm, and go back with `gradstream state restore --previous` "
                f"or begin again with {RESET}"
            )

    def _load(self) -> Checkpoint:
        checkpoint = self.patience(self.store.load)
        check_spec(self.spec, checkpoint)
        return checkpoint

    def _reload(self) -> int:
        """Take over the stored state; return by how many versions it is ahead (0 if it went back)."""
        mine, self.checkpoint = self.checkpoint.version, self._load()
        stored = self.checkpoint.version
        if stored.number < mine.number or (stored.number == mine.number and stored != mine):
            self.observer.went_back(mine, stored)
        return max(0, stored.number - mine.number)
