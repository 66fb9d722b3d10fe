"""The worker's loop: poll, decode, join, turn, observe. Sees protocols only; one thread, no callbacks."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from worker.errors import OffsetsLost, Stalled, Transient
from worker.inspection import Inspection
from worker.stream.events import Decoder
from worker.stream.lanes import Lane
from worker.stream.records import Records, TopicPartition
from worker.stream.source import Source
from worker.turn import Turns

POLL_S = 0.05
IDLE_POLL_S = 0.2  # nothing is under way here: a record that comes ends the wait
COLLECTED_EXAMPLES = 65_536  # then a commit is due whatever the settings say: memory stays bounded
WAITING_EXAMPLES = 1024  # taken at a time while others are at turn: between two looks whether it is this worker's
ANSWER_S = 0.002  # more than the store takes to say that the turn is free
TURN_POLL_S = 0.01  # the longest that waiting for the turn keeps one from polling
HOLD_S = 0.05  # how long the others wait for this worker to fill its last batch
FAREWELL_S = 1.0  # how long a worker that ends waits for its turn before it commits without


@dataclass(frozen=True, slots=True)
class Pace:
    """When a commit is due, how long a silent side is waited for, and whether it then follows the other's clock."""

    commit_every_s: float = 1.0
    commit_every_examples: int = 0
    max_idle_s: float = 0.5
    advance_idle_labels: bool = False
    observe_every_s: float = 1.0
    ask_every_s: float = 0.1  # how often the broker is asked for end offsets while something waits for the answer


class Every:
    """True once per interval, by the monotonic clock."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.next = time.monotonic() + seconds

    def due(self) -> bool:
        return time.monotonic() >= self.next

    def restart(self) -> None:
        self.next = time.monotonic() + self.seconds

    def maybe_restart(self) -> bool:
        """Say whether the interval is over, and begin the next one if so."""
        due = self.due()
        if due:
            self.restart()
        return due


class Loop:
    """One worker at work. `run` ends when `stopped` says so or, draining, when everything noted is committed."""

    def __init__(
        self, source: Source, decoders: Mapping[str, Decoder], turns: Turns, inspection: Inspection, pace: Pace
    ) -> None:
        self.source = source
        self.decoders = decoders
        self.turns = turns
        self.intake = turns.intake
        self.ownership = turns.ownership
        self.dead_letters = turns.dead_letters
        self.observer = turns.observer
        self.inspection = inspection
        self.pace = pace
        self._commit = Every(pace.commit_every_s)
        self._ask_idle = Every(pace.ask_every_s)
        self._ask_edge = Every(pace.ask_every_s)  # its own: a side that stays silent must not keep a commit waiting
        self._observe = Every(pace.observe_every_s)
        self._busy = False  # records were taken the last time round: more may be buffered
        self._due_at: object = None  # what was collected when a commit fell due: as long as it is that, it is due
        self._quiet: dict[Lane, float] = {}  # since when a lane holds the others up

    def run(self, stopped: Callable[[], bool], drained: Callable[[], bool] | None = None) -> None:
        """Work until stopped or drained. Stopping commits what was taken; the last batch may be short."""
        try:
            while not stopped() and not (drained and drained()):
                self.run_once(hurry=drained is not None)
            if stopped():
                self.dead_letters.send(self.intake.take_letters())
                self.turns.ask()
                self.turns.granted(FAREWELL_S)
                self._turn()
        finally:
            self.turns.give_back()

    def run_once(self, *, hurry: bool = False) -> None:
        """Poll, decode, join, and take a turn when one is due."""
        self.observer.tick()
        self.turns.patience(lambda: self.ownership.follow(self.turns.checkpoint.partitions))
        self.source.fetch_only(self.intake.wanted())
        with self._stage("poll"):
            chunks = self._poll(hurry=hurry)
        self._say_if_ready()
        with self._stage("decode"):
            self.inspection.look(chunks)
            decoded = [self.decoders[chunk.source.topic].decode(chunk) for chunk in chunks]
        with self._stage("join"):
            for events in decoded:
                self.intake.add(events)
            self._pass_idle()
            taken = self._take()
            if self.pace.advance_idle_labels:
                self.intake.follow_idle()
        self._busy = bool(taken)
        self.dead_letters.send(self.intake.take_letters())
        self._maybe_turn(idle=not taken, hurry=hurry)
        if hurry and not taken and not chunks:
            self._check_stall()
        self._maybe_observe()

    def _poll(self, *, hurry: bool) -> list[Records]:
        under_way = hurry or self._quiet or self.intake.has_work()
        wait_s = 0.0 if self._busy or self.turns.asked else POLL_S if under_way else IDLE_POLL_S
        try:
            return self.turns.patience(lambda: self.source.poll(wait_s))
        except OffsetsLost:
            for source, count in self.source.lost_offsets.items():
                self.observer.skipped_offsets(source, count)
            raise

    # -- when -----------------------------------------------------------------------------------------------------

    def _take(self) -> int:
        """Take records in order; nothing while others are at turn and what there is fills no batch. Return how many."""
        limit = self._limit()
        if self.turns.asked and not self.turns.granted() and limit <= len(self.intake.finished.labels):
            return 0
        return self.intake.take(limit)

    def _limit(self) -> int:
        """Return how many examples to stop at (in whole batches); 0 when a commit is due and has something to say.

        While others are at turn one goes on collecting: the longer the wait, the larger the turn that it leads to. But
        only what fills batches, or the turn would come at a moment at which nothing can be committed.
        """
        if self.turns.granted():
            return 0
        if self.turns.asked:
            return min(self.intake.within_reach(WAITING_EXAMPLES), COLLECTED_EXAMPLES)
        if self._commit.due() and self.intake.has_work():
            return 0
        return self.pace.commit_every_examples or COLLECTED_EXAMPLES

    def _maybe_turn(self, *, idle: bool, hurry: bool) -> None:
        """Ask for the turn when a commit is due; take it once it has come, or give it to the next one."""
        if not self.turns.asked:
            if not self._due(idle=idle, hurry=hurry):
                return
            self.turns.ask()
            self._due_at = self.intake.mark()
            come = self.turns.granted(ANSWER_S)
        else:
            come = self.turns.granted(TURN_POLL_S if idle else 0.0)
        if not come:
            return
        if self._due_at == self.intake.mark() or self._due(idle=idle, hurry=hurry):
            self._turn()
        elif self.turns.held_s() > HOLD_S:
            self.turns.give_back("passed_on")

    def _due(self, *, idle: bool, hurry: bool) -> bool:
        """Say whether to commit now: the time or number has come, and batches are whole or there is no more to read."""
        if not self.intake.has_work():
            return False
        if self.intake.whole(self._limit()):
            return True
        if not idle or not (self._commit.due() or hurry):
            return False
        # With the turn in hand the answer is wanted at once: the others wait for it.
        asked = self.turns.granted() or self._ask_edge.maybe_restart()
        return asked and self._at_live_edge(to_the_last=hurry)

    def _at_live_edge(self, *, to_the_last: bool) -> bool:
        """Say whether there is no more to read; `to_the_last`: nor anything left to take of what was read."""
        lanes = [lane for lane in self.intake.lanes() if not lane.full]
        if to_the_last and any(len(lane) for lane in lanes):
            return False
        return not self._unread(lanes) and all(pair.ready for pair in self.intake.pairs.values())

    def _pass_idle(self) -> None:
        """Pass lanes that have held the others up for long enough, if the broker says that nothing is left there."""
        now = time.monotonic()
        self._quiet = {lane: self._quiet.get(lane, now) for lane in self.intake.blocking()}
        silent = [lane for lane, since in self._quiet.items() if now - since >= self.pace.max_idle_s]
        if silent and self._ask_idle.maybe_restart():
            unread = self._unread(silent)
            for lane in silent:
                lane.passed = lane not in unread

    def _unread(self, lanes: Iterable[Lane]) -> set[Lane]:
        """Return the lanes on which the broker has more than was read; all of them if it does not answer."""
        asked = {lane.source: lane for lane in lanes}
        try:
            ends = self.source.end_offsets(asked)
        except Transient as problem:
            self.observer.waiting(str(problem))
            return set(asked.values())
        return {lane for source, lane in asked.items() if ends[source] > lane.read_offset}

    def _check_stall(self) -> None:
        """Raise `Stalled` where a side is full and nothing left on the other one could free it."""
        for pair in self.intake.pairs.values():
            for lane in pair.lanes:
                others = [other for other in pair.lanes if other is not lane]
                if lane.full and others and all(other.full or (other.passed and not len(other)) for other in others):
                    silent = others[0].source.topic
                    what = "holds as many" if others[0].full else "has nothing left that could free them"
                    raise Stalled(
                        f"partition {lane.source.partition}: {len(lane.side.waiting)} events of topic "
                        f"{lane.source.topic} wait (join.max_pending) and topic {silent} {what}: send the missing "
                        f"events or a watermark record, or raise join.max_pending"
                    )

    # -- what -----------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        self.source.acknowledge(self.turns.take())
        self._commit.restart()

    def _say_if_ready(self) -> None:
        if problem := self.source.problem:
            self.observer.waiting(problem)
        elif self.intake.pairs:
            self.observer.ready()
        elif idle := self.ownership.idle:
            self.observer.idle(idle)

    def _maybe_observe(self) -> None:
        if not self._observe.maybe_restart():
            return
        self.turns.look()
        self.inspection.report()
        self.observer.pending(self.intake.pending())
        committed = {
            TopicPartition(side.topic, n): side.next_offset
            for n, pair in self.intake.pairs.items()
            for side in pair.committed.sides
        }
        try:
            ends = self.source.end_offsets(committed)
        except Transient as problem:
            self.observer.waiting(str(problem))
        else:
            self.observer.lag({source: max(0, ends[source] - offset) for source, offset in committed.items()})

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        yield
        self.observer.stage(name, time.monotonic() - started)
