"""The loop on a log and a store in memory: crashes, lost replies, a store that goes back, two workers, a stall."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.e2e import streams
from tests.fakes.store import Failure
from tests.unit.rig import QUICK, Rig
from tests.unit.streams_in_memory import fill
from worker.errors import ConfigError, OffsetsLost, Stalled, StateMissing, Transient, Unreachable
from worker.learn.model import initial_state
from worker.spec import Feature, Spec
from worker.state.store import Checkpoint, LogEntry, Version
from worker.stream.join import JoinRules
from worker.stream.positions import Consumed
from worker.stream.records import Records, TopicPartition

RULES = JoinRules(window_ms=streams.WINDOW_MS, remember=150)
FAILURES: list[Failure | None] = [None, None, "before", "after"]
JOINED = streams.joined(3, 150)
INLINE = list(streams.inline(4, 250))


def _rig(*, joined: bool, partitions: int = 1) -> Rig:
    return fill(Rig(joined=joined, partitions=partitions, rules=RULES), JOINED if joined else INLINE)


def _undisturbed(*, joined: bool) -> Rig:
    rig = _rig(joined=joined)
    rig.worker().drain()
    return rig


UNDISTURBED = {joined: _undisturbed(joined=joined) for joined in (True, False)}


def test_an_undisturbed_stream_has_everything_in_it() -> None:
    ledger = UNDISTURBED[True].ledger()
    assert min(ledger.trained, ledger.dead_lettered, ledger.expired, ledger.duplicate, ledger.late) > 0
    assert min(ledger.withdrawn, ledger.control) > 0
    assert UNDISTURBED[True].store.load().learner.examples == ledger.trained // 2


@settings(max_examples=60, deadline=None)
@given(data=st.data(), joined=st.booleans())
def test_any_crashes_and_lost_replies_change_nothing(data: st.DataObject, joined: bool) -> None:
    """Same bytes, same ledger, dead letters without holes: whatever happens between and inside commits."""
    rig, expected = _rig(joined=joined), UNDISTURBED[joined]
    for _ in range(data.draw(st.integers(0, 3), "crashes")):
        failures: list[Failure | None] = data.draw(st.lists(st.sampled_from(FAILURES), max_size=8), "failures")
        rig.server.failures.extend(failures)
        rig.letters.failures = data.draw(st.integers(0, 1), "flushes that fail")
        worker = rig.worker(max_poll_records=data.draw(st.integers(1, 120), "records a poll"))
        worker.rounds(data.draw(st.integers(0, 30), "rounds"))
        worker.crash()
        rig.ledger()
    rig.worker(max_poll_records=data.draw(st.integers(1, 500), "records a poll")).drain()
    assert rig.ledger() == expected.ledger()
    assert rig.refused() == expected.refused()
    assert rig.digest() == expected.digest()


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_two_workers_and_any_interleaving_learn_every_example_once(data: st.DataObject) -> None:
    rig = _rig(joined=True, partitions=4)
    alone = _rig(joined=True, partitions=4)
    alone.worker().drain()
    workers = [rig.worker(), rig.worker()]
    for turn in data.draw(st.lists(st.integers(0, 1), max_size=60), "who runs"):
        workers[turn].rounds(1)
    if data.draw(st.booleans(), "one dies"):
        workers.pop().crash()
    for _ in range(3):
        for worker in workers:
            worker.rounds(5)
    for worker in workers:
        worker.crash()
    rig.worker().drain()
    assert rig.ledger() == alone.ledger()
    assert rig.refused() == alone.refused()


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_store_that_went_back_is_recognised_and_filled_again(data: st.DataObject) -> None:
    """The last commits are gone, the worker goes on: it must fall back to what is stored, never build on what is not."""
    rig = _rig(joined=True)
    worker = rig.worker(max_poll_records=40)
    worker.rounds(data.draw(st.integers(2, 10), "rounds before"))
    past = rig.server.snapshot()
    worker.rounds(data.draw(st.integers(1, 10), "rounds lost"))
    rig.server.go_back(past)
    worker.drain()
    assert rig.ledger() == UNDISTURBED[True].ledger()
    assert rig.digest() == UNDISTURBED[True].digest()


def test_where_commits_fall_changes_no_example_and_no_weight_beyond_rounding() -> None:
    expected = UNDISTURBED[True]
    for batch_size, every in ((1, 1), (8, 8), (64, 0), (5, 37)):
        rig = _rig(joined=True)
        rig.hyper = replace(rig.hyper, batch_size=batch_size)
        rig.pace = replace(QUICK, commit_every_examples=every)
        rig.worker(max_poll_records=random.Random(batch_size).randint(3, 90)).drain()
        assert rig.ledger() == expected.ledger()
        mine, theirs = rig.store.load().learner.arrays, expected.store.load().learner.arrays
        for name in ("weight", "intercept", "normalizer.mean", "normalizer.m2", "normalizer.count"):
            assert mine[name] == pytest.approx(theirs[name], rel=1e-9, abs=1e-9), name


def test_a_stop_commits_what_was_taken_and_acknowledges_exactly_that() -> None:
    """Committed offsets are those of the checkpoint, never those of what was merely polled."""
    rig = _rig(joined=True)
    worker = rig.worker(max_poll_records=37)
    asked = iter([False] * 6)
    worker.loop.run(lambda: not any(True for _ in [next(asked, None)] if _ is not None))
    stored = {
        TopicPartition(side.topic, p.state.partition): side.next_offset
        for p in rig.store.partitions()
        for side in p.state.sides
    }
    assert 0 < rig.ledger().consumed < UNDISTURBED[True].ledger().consumed
    assert {source: offset for (_, source), offset in rig.log.committed.items()} == stored
    worker.crash()
    rig.worker().drain()
    assert rig.ledger() == UNDISTURBED[True].ledger()


def test_a_missing_state_is_refused_with_the_remedy() -> None:
    rig = _rig(joined=True)
    rig.server.blobs.clear()
    with pytest.raises(StateMissing, match=r"is gone: `gradstream state restore --previous`"):
        rig.worker()
    rig.server.logs.clear()
    rig.server.claimed.clear()
    with pytest.raises(StateMissing, match=r"there is no state.*`gradstream worker --init`"):
        rig.worker()


def test_a_state_that_vanishes_under_a_running_worker_stops_it() -> None:
    rig = _rig(joined=True)
    worker = rig.worker(max_poll_records=20)
    worker.rounds(8)
    rig.server.blobs.clear()
    with pytest.raises(StateMissing):
        worker.rounds(50)


def test_positions_that_vanish_are_not_taken_for_a_fresh_partition() -> None:
    rig = _undisturbed(joined=True)
    del rig.server.blobs[rig.store.keys.partition(0)]
    with pytest.raises(StateMissing):
        rig.worker().rounds(3)


def test_a_reset_under_a_running_worker_is_followed() -> None:
    rig = _rig(joined=True)
    worker = rig.worker(max_poll_records=30)
    worker.rounds(10)
    empty = Checkpoint(Version(0, "again"), rig.spec.document(), "numpy", frozenset(), initial_state(rig.spec))
    rig.store.reset(empty, LogEntry("reset", "command", Consumed((), b"", 0), 0, 8, "numpy", "", ""))
    worker.drain()
    assert rig.ledger() == UNDISTURBED[True].ledger()
    assert rig.digest() == UNDISTURBED[True].digest()


def test_a_restored_state_is_taken_up_again_by_a_running_worker() -> None:
    rig = _rig(joined=True)
    worker = rig.worker(max_poll_records=30)
    worker.rounds(14)
    rig.store.restore_previous(LogEntry("restore", "command", Consumed((), b"", 0), 0, 8, "numpy", "", ""))
    worker.drain()
    assert rig.ledger() == UNDISTURBED[True].ledger()
    assert rig.digest() == UNDISTURBED[True].digest()


def test_records_removed_by_retention_are_lost_aloud_and_counted() -> None:
    """Stored offset 100, log start 4000: 3900 offsets skipped, and the run ends."""
    rig = Rig(joined=False)
    rig.append("examples", *[b"{}"] * 100)
    rig.worker().drain()
    rig.append("examples", *[b"{}"] * 8900)
    rig.log.delete_before(TopicPartition("examples", 0), 4000)
    worker = rig.worker()
    with pytest.raises(OffsetsLost, match=r"100 lies before the start of the log, 4000.*3900 records.*state reset"):
        worker.rounds(3)
    assert worker.observer.skipped == {TopicPartition("examples", 0): 3900}


def test_a_position_beyond_the_log_is_refused() -> None:
    rig = Rig(joined=False)
    rig.append("examples", *[b"{}"] * 12)
    rig.worker().drain()
    del rig.log.topics["examples"].partitions[0][9:]
    with pytest.raises(OffsetsLost, match="beyond the end of the log, 9"):
        rig.worker().rounds(3)


def test_a_topic_made_anew_is_refused_though_its_offsets_would_fit() -> None:
    """More records than before, another identity."""
    rig = Rig(joined=False)
    rig.append("examples", *[b"{}"] * 5)
    rig.worker().drain()
    rig.log.create("examples")
    rig.append("examples", *[b"{}"] * 50)
    with pytest.raises(OffsetsLost, match="deleted and created again"):
        rig.worker().rounds(3)


def test_a_drain_that_nothing_can_free_ends_and_names_the_silent_topic() -> None:
    rig = Rig(rules=replace(RULES, max_pending=5))
    for event in streams.joined(1, 20):
        if event.topic == "features" and event.key:
            rig.append("features", event.value, key=event.key.encode())
    with pytest.raises(Stalled, match=r"5 events of topic features wait.*topic labels has nothing left"):
        rig.worker().drain()
    assert rig.ledger().pending == 5, "what was taken is committed before"


def test_a_drain_with_both_sides_full_ends_as_well() -> None:
    rig = Rig(rules=replace(RULES, max_pending=3))
    for i in range(10):
        ts = streams.T0 + i
        rig.append("features", b'{"id":"f%d","ts":%d,"features":{"x1":1}}' % (i, ts))
        rig.append("labels", b'{"id":"l%d","ts":%d,"label":1}' % (i, ts))
    with pytest.raises(Stalled, match=r"3 events of topic features wait.*topic labels holds as many"):
        rig.worker().drain()


def test_only_bad_records_move_the_positions_and_none_is_sent_again_after_the_commit() -> None:
    """A skip is part of the checkpoint even where there is nothing to learn."""
    bad: list[bytes | None] = [b"\xff\xfe{", b'{"id":', b"[1,2]", b'"text"', b"null", b"{}"]
    rig = Rig(joined=False)
    rig.append("examples", *bad)
    rig.worker().drain()
    assert len(rig.letters.stored) == 6
    rig.append("examples", INLINE[0].value)
    rig.worker().drain()
    assert len(rig.letters.stored) == 6
    assert rig.ledger().trained == 1


def test_dead_letters_that_stay_away_hold_the_commit_and_then_end_the_worker() -> None:
    rig = Rig(joined=False, patience_s=0.05)
    rig.append("examples", b"{}")
    rig.letters.failures = 1_000_000_000
    with pytest.raises(Unreachable):
        rig.worker().drain()
    assert rig.ledger().consumed == 0


def test_another_spec_is_refused_and_the_key_named() -> None:
    """Names in another order or number are another model."""
    rig = Rig()
    rig.spec = Spec((rig.spec.features[1], rig.spec.features[0], rig.spec.features[2]))
    with pytest.raises(ConfigError, match=r"model\.features\[0\]\.name"):
        rig.worker()
    rig.spec = Spec((Feature("x1"),))
    with pytest.raises(ConfigError, match=r"model\.features \(3 in the state, 1 in the settings\)"):
        rig.worker()


def test_lag_reaches_zero_behind_transaction_markers() -> None:
    """Markers and aborted records occupy offsets; the committed position passes them."""
    from tests.fakes.source import FakeRecord

    rig = Rig(joined=False)
    rig.append("examples", INLINE[0].value)
    rig.log.append("examples", 0, *[FakeRecord(None, b"aborted", deliverable=False)] * 3)
    worker = rig.worker()
    worker.drain()
    assert next(iter(rig.store.partitions())).state.sides[0].next_offset == 4


def test_a_broker_that_answers_a_poll_with_an_error_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = _rig(joined=True)
    worker = rig.worker(max_poll_records=50)
    poll, errors = worker.source.poll, iter(range(1_000_000))

    def often_failing(timeout_s: float) -> list[Records]:
        if next(errors) % 3:
            raise Transient("the coordinator has moved")
        return poll(timeout_s)

    monkeypatch.setattr(worker.source, "poll", often_failing)
    worker.drain()
    assert rig.ledger() == UNDISTURBED[True].ledger()
    assert rig.digest() == UNDISTURBED[True].digest()
    assert "the coordinator has moved" in worker.observer.problems
