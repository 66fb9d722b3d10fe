"""The worker's observer: turns what the loop did into metrics, log lines, the metrics topic and `status`.

Best effort: nothing here fails or blocks training.
"""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from worker.errors import Transient
from worker.learn.evaluation import summary
from worker.learn.health import health
from worker.learn.state import Report
from worker.observe.endpoint import Pulse
from worker.observe.kafka_metrics import Moment, metrics_message
from worker.observe.last_turns import LastTurns
from worker.observe.logs import Sparing, get_logger
from worker.observe.observer import Turn
from worker.observe.prometheus import Meters
from worker.spec import Task
from worker.state.store import Store, Version
from worker.stream.records import TopicPartition
from worker.stream.source import MetricsTopic

ANNOUNCED_FOR_S = 15.0
Announce = Callable[[Mapping[str, object]], None]
WALL_CLOCK_STAMP = time.time  # stamps only: every duration is monotonic


def together(reports: list[Report]) -> Report:
    """Return one report of several turns, in order."""
    return replace(
        reports[-1],
        rows=[n for report in reports for n in report.rows],
        skipped=[n for report in reports for n in report.skipped],
        loss=[x for report in reports for x in report.loss],
        grad_norm=[x for report in reports for x in report.grad_norm],
        grad_norm_max=[x for report in reports for x in report.grad_norm_max],
        guilty=[],
    )


def by_step(moment: Moment, report: Report) -> list[tuple[Moment, Report]]:
    """Return each step apart, with the counts of steps and examples as they were right after it."""
    columns = zip(report.rows, report.skipped, report.loss, report.grad_norm, report.grad_norm_max, strict=True)
    step, examples = moment.step, moment.examples
    steps = []
    for rows, skipped, loss, norm, top in reversed(list(columns)):
        alone = replace(
            report, rows=[rows], skipped=[skipped], loss=[loss], grad_norm=[norm], grad_norm_max=[top], guilty=[]
        )
        steps.append((replace(moment, step=step, examples=examples), alone))
        step, examples = step - bool(rows), examples - rows
    return steps[::-1]


class WorkerObserver:
    """Implements `Observer` for one worker of one model."""

    def __init__(
        self, meters: Meters, pulse: Pulse, metrics: MetricsTopic | None, announce: Announce,
        identity: Mapping[str, Any], task: Task, roles: Mapping[str, str], metrics_every_s: float,
    ) -> None:  # fmt: skip
        self._meters = meters
        self._pulse = pulse
        self._metrics = metrics
        self._announce = announce
        self._identity = identity  # model, worker, host, pid, http, kernel
        self._task: Task = task
        self._roles = roles  # what each event topic holds
        self._every_s = metrics_every_s
        self._log = get_logger()
        self._sparing = Sparing(self._log)
        self._reports: list[Report] = []
        self._untold: Turn | None = None  # the last turn, while metrics and messages are behind it
        self._next_message = 0.0
        self._next_progress = 0.0
        self._notes: list[str] = []
        self._findings: list[str] = []
        self._lag: dict[str, int] = {}
        self._pending: dict[str, int] = {}
        self._owned: frozenset[int] = frozenset()
        self._last_turns = LastTurns()
        self._fenced = self._conflicts = self._dropped = self._went_back = 0

    def tick(self) -> None:
        self._pulse.tick()
        self._maybe_tell()  # the last turn before a silence has no next one to be told with

    def ready(self) -> None:
        self._pulse.ready()

    def waiting(self, problem: str) -> None:
        self._pulse.tick()
        self._pulse.not_ready(problem)
        kind = re.sub(r"\d+", "", problem)  # the same problem with other numbers is no news
        self._sparing.warning("waiting", kind, problem=problem)

    def idle(self, reason: str) -> None:
        if self._pulse.waits_for != reason:
            self._log.info("idle", reason=reason)
        self._pulse.not_ready(reason)

    def stage(self, name: str, seconds: float) -> None:
        self._meters.stage(name, seconds)

    def turn(self, turn: Turn) -> None:
        meters = self._meters
        meters.stage("learn", turn.learn_s)
        meters.stage("commit", turn.commit_s)
        meters.step(turn.report)
        meters.commit(turn)
        for (topic, outcome), count in turn.outcomes.items():
            if outcome not in ("consumed", "pending"):
                meters.events(topic, outcome, count)
        meters.label_delays(np.array(turn.delays_ms) / 1000)
        self._last_turns.add(turn)
        self._conflicts += turn.conflicts
        if turn.report.guilty:
            left_out, number = len(turn.report.guilty), turn.version.number
            self._log.warning("rows left out: their step is not finite", rows=left_out, state_version=number)
        if turn.report.rows:
            self._reports.append(turn.report)
        self._untold = turn
        self._maybe_tell()
        self.ready()

    def close(self) -> None:
        """Tell what was held back; call before the metrics topic is closed."""
        if self._untold is not None:
            self._tell(self._untold, time.monotonic())

    def pending(self, waiting: Mapping[str, int]) -> None:
        """Take what waits, by topic; a topic of which this worker owns nothing any more is 0."""
        self._pending = {topic: waiting.get(topic, 0) for topic in self._roles}
        for topic, count in self._pending.items():
            if (kind := self._roles[topic]) != "examples":  # inline, nothing waits
                self._meters.pending(kind, count)

    def lag(self, lag: Mapping[TopicPartition, int]) -> None:
        self._meters.lag(lag)
        self._lag = {f"{source.topic}:{source.partition}": records for source, records in lag.items()}
        self._count_dropped()
        facts = {
            **self._identity,
            "partitions": sorted(self._owned),
            "lag": self._lag,
            "waits_for": self._pulse.waits_for,
            "notes": [*self._notes, *self._findings],
            "fenced": self._fenced,
            "conflicts": self._conflicts,
            "went_back": self._went_back,
            "turns": self._last_turns.facts(),
        }
        try:
            self._announce(facts)
        except Transient as problem:
            self._sparing.warning("could not announce", problem=str(problem))

    def _count_dropped(self) -> None:
        dropped = self._metrics.dropped if self._metrics is not None else 0
        self._meters.metrics_dropped(dropped - self._dropped)
        self._dropped = dropped

    def claimed(self, partition: int, positions: Mapping[TopicPartition, int], recall: int) -> None:
        self._meters.claim()
        self._own(self._owned | {partition})
        self._log.info(
            "partition claimed", partition=partition, recall_records=recall,
            offsets={source.topic: offset for source, offset in positions.items()},
        )  # fmt: skip
        self.ready()

    def turn_lost(self, outcome: str) -> None:
        self._meters.turn_lost(outcome)
        self._log.debug("turn without a commit", outcome=outcome)

    def dropped(self, partitions: frozenset[int], reason: str) -> None:
        if reason == "fenced":
            self._fenced += len(partitions)
            self._meters.fenced()
        self._own(self._owned - partitions)
        self._log.warning("partitions dropped", partitions=sorted(partitions), reason=reason)

    def _own(self, partitions: frozenset[int]) -> None:
        self._owned = partitions
        self._meters.owned(partitions)

    def topic_partitions(self, count: int) -> None:
        self._meters.topic_partitions(count)

    def rebalanced(self, assigned: frozenset[TopicPartition]) -> None:
        self._meters.rebalance()
        partitions = sorted({source.partition for source in assigned})
        self._log.info("rebalanced", partitions=partitions)
        if partitions:
            self.ready()
        else:
            self._pulse.not_ready("no partition is assigned to this worker")

    def went_back(self, mine: Version, stored: Version) -> None:
        self._went_back += 1
        self._meters.went_back()
        self._log.error("the state store went back", mine=str(mine), stored=str(stored))
        self.note(f"the state store went back from version {mine.number} to {stored.number}; its log is read again")

    def skipped_offsets(self, source: TopicPartition, count: int) -> None:
        self._meters.skipped_offsets(source, count)
        self._log.error("offsets lost", topic=source.topic, partition=source.partition, skipped=count)

    def note(self, message: str) -> None:
        if message not in self._notes:
            self._notes = [*self._notes[-19:], message]
            self._log.warning(message)

    def findings(self, messages: Sequence[str]) -> None:
        if len(messages) > len(self._findings):
            for message in messages:
                self._sparing.warning("producers need a look", finding=message)
        self._findings = list(messages)

    def unknown_feature(self, topic: str, name: str) -> None:
        self._log.info("a feature that the model does not have", topic=topic, feature=name)

    def _maybe_tell(self) -> None:
        if self._untold is not None and (now := time.monotonic()) >= self._next_message:
            self._next_message = now + self._every_s
            self._tell(self._untold, now)

    def _tell(self, turn: Turn, now: float) -> None:
        """Send what the turns since the last message learned, and bring evaluation and health up to date."""
        self._untold = None
        evaluation = summary(turn.state, self._task)
        counters = turn.state.arrays
        verdict = health(
            evaluation,
            skipped=int(counters["counters.skipped"][0]),
            last_skipped=int(counters["counters.last_skipped"][0]),
        )
        self._meters.evaluation(evaluation)
        self._meters.health(str(verdict["state"]))
        stamp_ms = int(WALL_CLOCK_STAMP() * 1000)
        if turn.newest_ms >= 0:
            self._meters.event_age((stamp_ms - turn.newest_ms) / 1000)
        self._message(turn, stamp_ms)
        if now >= self._next_progress:
            self._next_progress = now + 10.0
            self._log.info(
                "learning", state_version=turn.version.number, examples=turn.state.examples,
                loss=turn.report.loss[-1] if turn.report.loss else None, health=verdict["state"],
                pending=self._pending, lag=sum(self._lag.values()),
            )  # fmt: skip

    def _message(self, turn: Turn, stamp_ms: int) -> None:
        reports, self._reports = self._reports, []
        if self._metrics is None or not reports:
            return
        waiting = {self._roles[topic]: count for topic, count in self._pending.items()}
        moment = Moment(
            model=self._identity["model"], worker=self._identity["worker"], ts=stamp_ms,
            state_version=turn.version.number, step=turn.state.steps, examples=turn.state.examples,
            event_lag_ms=stamp_ms - turn.newest_ms if turn.newest_ms >= 0 else None,
            pending_features=waiting.get("features"), pending_labels=waiting.get("labels"),
        )  # fmt: skip
        report = together(reports)
        for when, what in [(moment, report)] if self._every_s else by_step(moment, report):
            self._metrics.send(metrics_message(when, what))


def announcer(store: Store, worker: str) -> Announce:
    """Return what tells the store, and so `status`, that this worker is alive."""
    return lambda facts: store.announce(worker, facts, ANNOUNCED_FOR_S)
