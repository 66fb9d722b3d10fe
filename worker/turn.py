"""The turn: learn what was collected on the newest state, and make state and positions durable in one step.

The same examples are learned again when another worker was faster. One worker is the case in which nobody is.
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
from worker.state.store import Checkpoint, Commit, Committed, Fenced, LogEntry, Moved, Version
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
        self,
        ownership: Ownership,
        learn: Learn,
        spec: Spec,
        dead_letters: DeadLetters,
        patience: Patience,
        stamp: Stamp,
    ) -> None:
        self.ownership = ownership
        self.store = ownership.store
        self.intake = ownership.intake
        self.observer = ownership.observer
        self.learn = learn
        self.spec = spec
        self.dead_letters = dead_letters
        self.patience = patience
        self.stamp = stamp
        self.checkpoint = self._load()
        self._non_finite = 0

    def take(self) -> Mapping[TopicPartition, int]:
        """Commit everything that was taken; return the positions that are durable now.

        Raises `Unreachable` when the store or the dead-letter topic stays away, `StateMissing`, `StateCorrupted`,
        and `NonFiniteStep` once nothing finite was learned for too long.
        """
        started, conflicts = time.monotonic(), 0
        self.patience(lambda: self.dead_letters.flush(FLUSH_S))
        while (work := self.intake.work()).partitions:
            begun = time.monotonic()
            state, report = self.learn(self.checkpoint.learner, work.examples)
            learn_s = time.monotonic() - begun
            commit = self._commit(work, state)
            outcome = self.patience(lambda commit=commit: self.store.commit(commit))  # type: ignore[misc]
            if isinstance(outcome, Committed):
                seconds = time.monotonic() - started - learn_s
                return self._done(work, commit, outcome, report, (learn_s, seconds, conflicts))
            if isinstance(outcome, Fenced):
                self.ownership.lose(outcome.partitions)
            else:
                assert isinstance(outcome, Moved)
                conflicts += 1
                self.checkpoint = self._reload()
        return {}

    def look(self) -> None:
        """Notice, with nothing to commit, that the store went back, was reset, or lost the state."""
        if self.patience(self.store.version) != self.checkpoint.version:
            self.checkpoint = self._reload()
            self.patience(self.ownership.check_fences)

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
        )  # fmt: skip
        fences = self.ownership.fences
        return Commit(base.version, checkpoint, {n: (fences[n], s) for n, s in work.partitions.items()}, entry)

    def _done(
        self, work: Work, commit: Commit, done: Committed, report: Report, measured: tuple[float, float, int]
    ) -> Mapping[TopicPartition, int]:
        self.checkpoint = commit.checkpoint
        self.ownership.fences.update(done.fences)
        outcomes = self.intake.settle(work)
        positions = {
            TopicPartition(side.topic, n): side.next_offset for n, s in work.partitions.items() for side in s.sides
        }
        learn_s, commit_s, conflicts = measured
        turn = Turn(
            commit.checkpoint.version, commit.checkpoint.learner, report, outcomes, positions, work.delays_ms,
            work.newest_ms, learn_s, commit_s, conflicts, done.state_bytes,
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

    def _reload(self) -> Checkpoint:
        mine, stored = self.checkpoint.version, self._load()
        if stored.version.number < mine.number or (stored.version.number == mine.number and stored.version != mine):
            self.observer.went_back(mine, stored.version)
        return stored
