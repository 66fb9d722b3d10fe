"""Partitions that come, stay and go, on a log and a store in memory: claims are counted, reads are counted."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.e2e.streams import T0
from tests.e2e.world import feature, label
from tests.fakes.store import MemoryStore
from tests.unit.rig import QUICK, Rig, Worker
from worker.errors import ConfigError, StateMissing
from worker.ownership import FENCED
from worker.state.store import StoredPartition
from worker.stream.positions import Ledger
from worker.stream.records import Records, TopicPartition

LAZY = replace(QUICK, commit_every_examples=10**6, observe_every_s=60)  # commits only where it hurries


class Stream:
    """Pairs for a rig, one after the other, in partitions of the test's choice."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.sent = 0

    def pairs(self, count: int, *partitions: int) -> None:
        for _ in range(count):
            ts, id_ = T0 + self.sent * 1000, f"p-{self.sent}"
            partition = partitions[self.sent % len(partitions)]
            self.sent += 1
            for event in (feature(id_, ts, x1=float(self.sent % 7)), label(id_, ts + 1, self.sent % 2)):
                self.rig.append(event.topic, event.value, partition=partition)

    def learned_by(self, *workers: Worker) -> None:
        """Let workers work until all is learned; each record counts once."""
        expected = Ledger(consumed=2 * self.sent, trained=2 * self.sent)
        for _ in range(100):
            together(1, *workers)
            if self.rig.ledger() == expected:
                break
        assert self.rig.ledger() == expected
        assert self.rig.store.load().learner.examples == self.sent


def together(count: int, *workers: Worker, also: Callable[[], None] = lambda: None) -> None:
    for _ in range(count):
        for worker in workers:
            worker.rounds(1)
        also()


def expel(worker: Worker) -> None:
    """Give a worker's partitions away behind its back: it goes on with what it believes."""
    worker.source.confirmed = False
    worker.rig.log.members["g"].remove(worker.source)
    worker.rig.log.rebalance("g")


def rejoin(worker: Worker) -> None:
    worker.source.confirmed = True
    worker.rig.log.members["g"].append(worker.source)
    worker.rig.log.rebalance("g")


def test_two_that_believe_in_one_assignment_for_long_do_not_take_it_from_each_other() -> None:
    """The one whom the group does not confirm is refused, drops its work, and claims nothing while it believes."""
    rig = Rig(partitions=2)
    stream = Stream(rig)
    old, new = rig.worker(), rig.worker()
    together(4, old, new)
    stream.pairs(20, 0, 1)
    old.loop.run_once()
    assert old.loop.intake.has_work()
    expel(old)
    together(4, new)
    before = list(old.observer.claims), list(new.observer.claims)
    together(100, old, new, also=lambda: stream.pairs(2, 0, 1))
    assert (old.observer.claims, new.observer.claims) == before, "they take it from each other"
    assert {reason for _, reason in old.observer.lost} == {FENCED}
    assert sum(len(partitions) for partitions, _ in old.observer.lost) <= 2, "each is lost once"
    assert not old.ownership.fences
    rejoin(old)
    together(6, old, new)
    assert sorted([*old.ownership.fences, *new.ownership.fences]) == [0, 1]
    assert len(old.observer.claims) + len(new.observer.claims) <= sum(map(len, before)) + 1
    stream.learned_by(old, new)


def test_a_worker_whose_fence_moved_waits_for_the_group_and_then_goes_on() -> None:
    rig = Rig()
    stream = Stream(rig)
    worker = rig.worker()
    together(3, worker)
    stored = rig.store.load_partition(0)
    assert stored is not None
    rig.store.claim(0, stored.fence, stored.state)  # by somebody who is gone again
    worker.source.confirmed = False
    together(20, worker, also=lambda: stream.pairs(1, 0))
    assert worker.observer.claims == [0]
    assert not worker.observer.is_ready
    assert "until its group confirms" in worker.observer.reasons[-1]
    worker.source.confirmed = True
    together(5, worker)
    assert worker.observer.claims == [0, 0]
    stream.learned_by(worker)


def test_what_is_kept_over_a_rebalance_is_neither_read_nor_joined_again() -> None:
    """Join, buffers and collected examples stay; what goes is dropped without a commit, and its new owner does it."""
    rig = Rig(partitions=4, pace=LAZY)
    stream = Stream(rig)
    first = rig.worker()
    delivered: Counter[tuple[str, int, int]] = Counter()
    _count_deliveries(first, delivered)
    stream.pairs(40, 0, 1, 2, 3)
    rig.append("features", feature("waits", T0 + 1, x1=1.0).value, partition=0)
    for _ in range(20):
        first.loop.run_once()
    assert len(first.loop.intake.finished.labels) == 40
    second = rig.worker()
    for _ in range(4):
        first.loop.run_once()
    assert sorted(first.ownership.fences) == [0, 1]
    assert len(first.loop.intake.finished.labels) == 20, "what was collected of kept partitions stays, and only that"
    assert rig.store.load().version.number == 0, "nothing is committed on revoke"
    assert first.observer.claims == [0, 1, 2, 3], "none of them was claimed again"
    rig.append("labels", label("waits", T0 + 100_000, 1).value, partition=0)
    stream.sent += 1
    stream.learned_by(first, second)
    kept = {place: times for place, times in delivered.items() if place[1] in (0, 1)}
    assert set(kept.values()) == {1}, "a record of a kept partition was read again"


def _count_deliveries(worker: Worker, delivered: Counter[tuple[str, int, int]]) -> None:
    poll = worker.source.poll

    def counted(timeout_s: float) -> list[Records]:
        chunks = poll(timeout_s)
        delivered.update((*chunk.source, offset) for chunk in chunks for offset in chunk.offsets)
        return chunks

    worker.source.poll = counted  # type: ignore[method-assign]


class CountingStore(MemoryStore):
    """Counts the whole partitions that are loaded."""

    loads = 0

    def load_partition(self, partition: int) -> StoredPartition | None:
        self.loads += 1
        return super().load_partition(partition)


def test_fences_are_looked_at_without_loading_what_they_guard() -> None:
    rig = Rig(partitions=50)
    worker = rig.worker()
    store = worker.ownership.store = CountingStore(rig.server, "m")
    together(3, worker)
    assert store.loads == 50, "each is loaded when it is claimed"
    other = rig.worker()
    together(4, worker, other)
    assert len(worker.ownership.fences) == 25
    assert not worker.ownership.check_fences()
    assert store.loads == 50


def test_a_worker_without_partitions_says_why_and_takes_over() -> None:
    rig = Rig(partitions=1)
    stream = Stream(rig)
    owner, spare = rig.worker(), rig.worker()
    together(4, owner, spare, also=lambda: stream.pairs(1, 0))
    assert spare.observer.claims == []
    assert "no partition is assigned to this worker: there are 1" in spare.observer.reasons[-1]
    owner.crash()
    stream.pairs(5, 0)
    together(5, spare)
    assert spare.observer.is_ready
    stream.learned_by(spare)


# -- topics that gain partitions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_partitions_added_one_topic_after_the_other_are_read_from_their_beginning(start: str) -> None:
    """While the numbers differ only what is whole is read; afterwards everything is, whatever `stream.start` says."""
    rig = Rig(partitions=2)
    stream = Stream(rig)
    workers = [rig.worker(), rig.worker()]
    for worker in workers:
        worker.ownership.start = start  # type: ignore[assignment]
    together(4, *workers)
    stream.pairs(10, 0, 1)
    rig.log.grow("features", 5)
    together(4, *workers)
    stream.pairs(3, 0)
    together(4, *workers)
    whole = {n for worker in workers for n in worker.ownership.fences}
    assert whole == {0}, "of 5 and 2 partitions the range assignor leaves one pair whole"
    assert rig.ledger().consumed == rig.ledger().trained
    assert any("features has 5, labels has 2" in note for worker in workers for note in worker.observer.notes)
    idle = next(worker for worker in workers if not worker.ownership.fences)
    assert "not read here until the numbers are equal" in idle.observer.reasons[-1]
    rig.log.grow("labels", 5)
    stream.pairs(20, 2, 3, 4)  # before any worker has noticed
    together(8, *workers)
    assert {n for worker in workers for n in worker.ownership.fences} == set(range(5))
    assert any("went from 2 to 5 partitions" in note for worker in workers for note in worker.observer.notes)
    assert all(worker.observer.is_ready for worker in workers)
    stream.learned_by(*workers)


def test_a_model_that_starts_at_the_end_does_so_everywhere_at_once() -> None:
    """Also where a partition is claimed much later, by another worker, and where the first one died on the way."""
    rig = Rig(partitions=3)
    stream = Stream(rig)
    stream.pairs(9, 0, 1, 2)
    stream.sent = 0
    dead = rig.worker()
    dead.ownership.start = "latest"
    dead.source.poll(0)
    dead.source.take_rebalance()
    ends = dead.source.end_offsets(rig.sources())
    rig.store.claim(2, rig.store.fences([2])[2], dead.ownership._fresh(2, ends))  # the first step of all
    dead.crash()
    worker = rig.worker()
    worker.ownership.start = "latest"
    together(2, worker)
    assert [stored.state.partition for stored in rig.store.partitions()] == [0, 1, 2]
    stream.pairs(6, 0, 1, 2)
    stream.learned_by(worker)


def test_positions_that_are_lost_are_not_taken_for_new_partitions() -> None:
    rig = Rig(partitions=2)
    stream = Stream(rig)
    stream.pairs(4, 0, 1)
    rig.worker().drain()
    for partition in (0, 1):
        del rig.server.blobs[rig.store.keys.partition(partition)]
    worker = rig.worker()
    worker.ownership.start = "latest"
    with pytest.raises(StateMissing):
        together(3, worker)


def test_pairs_that_another_topic_list_splits_end_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.pairing.SPLIT_S", 0.0)
    rig = Rig(partitions=2)
    worker = rig.worker()
    together(3, worker)
    share = frozenset({TopicPartition("features", 0), TopicPartition("features", 1), TopicPartition("labels", 0)})
    worker.source.pending = share
    with pytest.raises(ConfigError, match="assigned to different workers"):
        together(3, worker)
