"""The intake: buffers, order, limits, what is dropped and what is replayed."""

import random
import re
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.joins import (
    ROWS,
    T0,
    WINDOW,
    Log,
    Reader,
    Record,
    columns,
    events,
    example,
    examples,
    feature,
    fresh,
    label,
    pair_logs,
    plain,
    refused,
    taken_order,
    tombstone,
    watermark,
)
from worker.errors import OffsetsLost
from worker.stream.intake import BUFFERED_BYTES, BUFFERED_RECORDS, Intake
from worker.stream.join import JoinRules
from worker.stream.positions import MARK
from worker.stream.records import TopicPartition

WIDE = JoinRules(window_ms=100_000)
FEATURES, LABELS = TopicPartition("features", 0), TopicPartition("labels", 0)


def many_pairs(seed: int, pairs: int = 2, n: int = 60) -> dict[TopicPartition, Log]:
    """Return logs of features and labels that meet, with ties, disorder, duplicates, and records of all other kinds."""
    rng = random.Random(seed)
    logs: dict[TopicPartition, Log] = {}
    for p in range(pairs):
        features: list[Record | None] = []
        labels: list[tuple[int, Record]] = []
        for i in range(n):
            id_ = f"{p}-{i}"
            features.append(feature(id_, 2 * i + rng.randrange(-3, 4), x=1000 * p + i))
            if rng.random() < 0.8:
                value = float(rng.randrange(2))
                time = 2 * i + rng.randrange(-4, WINDOW + 4)
                labels += [(time, label(id_, time, value))]
                if rng.random() < 0.2:
                    labels += [(time + 1, label(id_, time + 1, float(rng.randrange(2))))]
            if rng.random() < 0.3:
                again = rng.randrange(i + 1)
                features.append(
                    rng.choice([None, refused(), feature(f"{p}-{again}", 2 * i, x=-1), tombstone(f"{p}-{again}")])
                )
        by_time = [record for _, record in sorted(labels, key=lambda entry: entry[0] + rng.randrange(3))]
        mixed: list[Record | None] = []
        for record in by_time:
            mixed.append(record)
            if rng.random() < 0.2:
                mixed.append(rng.choice([None, refused(), tombstone(record.id), watermark(record.time - T0)]))
        logs |= pair_logs(features, mixed, p)
    return logs


# -- order ------------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 5), st.sampled_from([1, 2, 3]), st.sampled_from([2, 5, 1_000_000]), st.data())
def test_a_backlog_is_learned_in_the_same_order_however_it_is_read(
    seed: int, pairs: int, max_pending: int, data: st.DataObject
) -> None:
    """Also where sides fill up and open again, and whenever commits come."""
    logs = many_pairs(seed, pairs, 25)
    rules = JoinRules(window_ms=WINDOW, disorder_ms=6, lateness_ms=3, max_pending=max_pending)
    whole = Reader(logs, rules).finish()
    reader = Reader(logs, rules)
    rng = random.Random(data.draw(st.integers(0, 10**6)))
    chunk = data.draw(st.sampled_from([1, 4, 20]))
    while not reader.at_end():
        reader.read(rng.choice(sorted(logs)), rng.randint(1, chunk))
        if rng.random() < 0.7:
            reader.intake.take(rng.choice([None, None, 3]))
        if rng.random() < 0.1:
            reader.commit()
    assert reader.finish().committed == whole.committed
    assert {n: plain(s) for n, s in reader.states.items()} == {n: plain(s) for n, s in whole.states.items()}


def test_a_quiet_partition_holds_the_others_up_until_it_is_passed() -> None:
    """Two windows of one pair are learned while the label partition of the other pair stays empty."""
    busy = pair_logs(
        [feature(str(i), i) for i in range(2 * WINDOW)], [label(str(i), i + 1) for i in range(2 * WINDOW)], 0
    )
    reader = Reader({**busy, **pair_logs([], [], 3)})
    reader.read_all()
    assert reader.intake.take() == 0
    quiet = {lane.source for lane in reader.intake.blocking()}
    assert quiet == {TopicPartition("features", 3), TopicPartition("labels", 3)}
    for lane in reader.intake.blocking():
        lane.passed = True
    reader.intake.take()
    assert len(reader.commit().examples) > WINDOW
    reader.pass_all()
    reader.intake.take()
    reader.commit()
    assert len(reader.committed) == 2 * WINDOW
    assert reader.intake.pending() == {"features": 0, "labels": 0}


def test_a_passed_lane_holds_up_again_once_something_comes() -> None:
    reader = Reader(pair_logs([feature("a", 0), feature("b", 5)], [label("a", 1)]), WIDE)
    features, labels = reader.intake.pairs[0].lanes
    labels.passed = True
    reader.read_all()
    assert not labels.passed
    assert reader.intake.take() == 2  # the second feature is above the last label read
    features.passed = labels.passed = True
    assert reader.intake.take() == 1


def test_features_with_tied_event_times_go_before_labels() -> None:
    reader = Reader(pair_logs([feature("a", 5), feature("b", 5)], [label("a", 5), label("b", 5)]), WIDE).finish()
    assert taken_order(reader.works[0]) == [0, 0, 1, 1]


# -- limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("limit", "expected"), [(0, [0, 0]), (1, [4, 4]), (4, [4, 4]), (5, [8, 8]), (11, [12, 14])])
def test_taking_stops_exactly_at_whole_batches(limit: int, expected: list[int]) -> None:
    logs = pair_logs([feature(str(i), i, x=i) for i in range(14)], [label(str(i), i) for i in range(14)])
    reader = Reader(logs, WIDE, batch_size=4)
    reader.read_all()
    reader.pass_all()
    reader.intake.take(limit)
    stopped = len(reader.intake.finished.labels)
    assert reader.intake.whole(limit)
    reader.intake.take(limit)
    assert [stopped, len(reader.intake.finished.labels)] == [expected[0], expected[0]]
    assert reader.commit().consumed.records == 2 * stopped
    reader.intake.take()
    reader.commit()
    assert reader.committed == [(i, 1, 1, 0) for i in range(14)]


def test_expiries_that_overshoot_a_batch_are_taken_up_to_the_next_whole_one() -> None:
    rules = JoinRules(window_ms=WINDOW, on_expiry="negative")
    features = [feature(str(i), i) for i in range(6)] + [feature("x", 100), feature("y", 100)]
    labels = [watermark(50), label("x", 101), label("y", 102), label("z", 103)]
    reader = Reader(pair_logs(features, labels), rules, batch_size=4)
    reader.read_all()
    reader.pass_all()
    reader.intake.take(1)
    assert len(reader.intake.finished.labels) == 8
    assert len(reader.intake.pairs[0].lanes[1]) == 1  # z is left for the next piece of work


def test_a_lane_asks_for_more_until_enough_records_or_bytes_are_buffered() -> None:
    source = TopicPartition("features", 0)
    reader = Reader(pair_logs([feature(str(i), i) for i in range(BUFFERED_RECORDS)], []), WIDE)
    assert reader.intake.wanted() == {source, TopicPartition("labels", 0)}
    reader.read(source, BUFFERED_RECORDS - 1)
    assert source in reader.intake.wanted()
    reader.read(source)
    assert reader.intake.wanted() == {TopicPartition("labels", 0)}
    reader.pass_all()
    reader.intake.take()
    assert source in reader.intake.wanted()


@pytest.mark.parametrize("topic", ["features", "labels"])
def test_large_refused_records_fill_a_lane_by_their_bytes_and_leave_nothing_behind(topic: str) -> None:
    source = TopicPartition(topic, 0)
    reader = Reader(pair_logs([refused()] * 3, [refused()] * 3), WIDE)
    chunk = events(source, reader.logs[source], 0, 3)
    chunk.records.values[:] = [b"x" * (BUFFERED_BYTES // 2)] * 3
    reader.intake.add(chunk)
    assert source not in reader.intake.wanted()
    reader.pass_all()
    reader.intake.take()
    assert len(reader.intake.take_letters()) == 3
    assert all(lane.buffered_bytes == 0 for lane in reader.intake.lanes())


def test_what_is_buffered_is_counted_and_counted_off() -> None:
    reader = Reader(many_pairs(1)).finish()
    assert [lane.buffered_bytes for lane in reader.intake.lanes()] == [0] * 4
    assert [len(lane.refused) for lane in reader.intake.lanes()] == [0] * 4


# -- full sides -------------------------------------------------------------------------------------------------------


def test_at_max_pending_features_are_paused_and_never_dropped() -> None:
    logs = pair_logs([feature(str(i), i, x=i) for i in range(20)], [label(str(i), i + 5) for i in range(20)])
    reader = Reader(logs, JoinRules(window_ms=WINDOW, max_pending=3))
    features, labels = reader.intake.pairs[0].lanes
    reader.read(features.source)
    labels.passed = True
    reader.intake.take()
    assert features.full
    assert reader.intake.pending() == {"features": 3, "labels": 0}
    assert reader.intake.blocking() == []  # the label lane was passed: nothing is left to wait for
    reader.finish()
    assert [e[0] for e in reader.committed] == list(range(20))
    assert columns(reader.ledger()) == {"consumed": 40, "trained": 40}


def test_a_full_label_side_waits_for_its_features() -> None:
    logs = pair_logs([feature(str(i), i, x=i) for i in range(20)], [label(str(i), i) for i in range(20)])
    reader = Reader(logs, JoinRules(window_ms=WINDOW, max_pending=3))
    features, labels = reader.intake.pairs[0].lanes
    reader.read(labels.source)
    features.passed = True
    reader.intake.take()
    assert reader.intake.pending() == {"features": 0, "labels": 3}
    assert len(reader.finish().committed) == 20


def test_a_full_pair_does_not_hold_another_one_up() -> None:
    stuck = pair_logs([feature(f"s{i}", i) for i in range(5)], [], 0)
    busy = pair_logs([feature(str(i), i) for i in range(9)], [label(str(i), i + 1) for i in range(9)], 1)
    reader = Reader({**stuck, **busy}, JoinRules(window_ms=WINDOW, max_pending=3)).finish()
    assert len(reader.committed) == 9
    assert reader.ledger().pending == 3


def test_a_full_side_opens_when_the_other_clock_ends_its_windows() -> None:
    reader = Reader(pair_logs([feature(str(i), i) for i in range(9)], [watermark(100)]), JoinRules(WINDOW, 0, 0, 9, 3))
    assert columns(reader.finish().ledger()) == {"consumed": 10, "expired": 9, "control": 1}


# -- partitions that go -----------------------------------------------------------------------------------------------


def test_dropping_a_partition_removes_exactly_its_examples_and_its_order() -> None:
    logs = many_pairs(3, pairs=3)
    reader = Reader(logs)
    reader.read_all()
    reader.intake.take(40)
    before = reader.intake.work()
    assert len({x // 1000 for x, *_ in examples(before)}) == 3
    reader.intake.drop(1)
    after = reader.intake.work()
    assert examples(after) == [e for e in examples(before) if e[0] // 1000 != 1]
    assert sorted(after.partitions) == [0, 2]
    names = [(t, p) for t, p, _ in before.consumed.sources]
    left = [names[code] for code in taken_order(before) if names[code][1] != 1]
    kept = [(t, p) for t, p, _ in after.consumed.sources]
    assert [kept[code] for code in taken_order(after)] == left
    assert after.consumed.records == len(left)
    assert all(p != 1 for _, p in kept)
    for n in (0, 2):
        assert plain(after.partitions[n]) == plain(before.partitions[n])


def test_a_partition_that_comes_back_in_the_same_piece_of_work_is_taken_from_its_stored_position() -> None:
    logs = many_pairs(4)
    whole = Counter(Reader(logs).finish().committed)
    reader = Reader(logs)
    reader.read_all()
    reader.intake.take(30)
    reader.intake.drop(0)
    reader.intake.own(reader.states[0])
    reader.finish()
    assert Counter(reader.committed) == whole
    assert len(reader.works[0].consumed.sources) == 4


def test_records_of_a_dropped_partition_that_were_on_their_way_are_left_alone() -> None:
    logs = many_pairs(5)
    reader = Reader(logs)
    late = events(TopicPartition("features", 0), logs[TopicPartition("features", 0)], 0, 5)
    reader.intake.drop(0)
    reader.intake.add(late)
    assert reader.intake.pending() == {"features": 0, "labels": 0}
    reader.intake.drop(0)  # twice is once


# -- idle labels ------------------------------------------------------------------------------------------------------


def test_an_idle_label_side_follows_the_feature_clock_and_the_order_says_when() -> None:
    reader = Reader(pair_logs([feature("a", 0), feature("b", 100)], []))
    reader.read_all()
    reader.intake.follow_idle()
    assert not reader.intake.has_work()  # not passed: the label may still come
    reader.pass_all()
    reader.intake.take()
    reader.intake.follow_idle()
    reader.intake.follow_idle()
    work = reader.commit()
    assert columns(reader.ledger()) == {"consumed": 2, "expired": 1, "pending": 1}
    assert [(t, p) for t, p, _ in work.consumed.sources] == [("features", 0), ("labels", 0)]
    assert taken_order(work) == [0, 0, MARK + 1]


def test_following_alone_is_work_to_commit() -> None:
    reader = Reader(pair_logs([feature("a", 0)], []))
    reader.read_all()
    reader.pass_all()
    reader.intake.take()
    reader.commit()
    assert not reader.intake.has_work()
    reader.intake.follow_idle()
    assert reader.intake.has_work()
    assert reader.commit().consumed.records == 1
    assert reader.states[0].sides[1].clock == T0


def test_a_side_with_buffered_labels_does_not_follow() -> None:
    """Two labels fill the label side, so the third is buffered: its feature must not expire before it is taken."""
    features = [feature("a", 0), watermark(WINDOW + 2), watermark(WINDOW + 7)]
    labels = [label("x", 6), label("y", 6), label("a", 7)]
    reader = Reader(pair_logs(features, labels), JoinRules(window_ms=WINDOW, max_pending=2))
    reader.read(LABELS)
    reader.read(FEATURES, 2)
    reader.pass_all()
    reader.intake.take()
    assert len(reader.intake.pairs[0].lanes[1]) == 1
    reader.intake.follow_idle()
    reader.finish()
    assert [e[3] for e in reader.committed] == [7]


# -- replay -----------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 4), st.integers(0, 10**6))
def test_a_commit_log_entry_replays_the_same_examples_in_the_same_order(seed: int, schedule: int) -> None:
    """Live: arrival decides, idle sides follow, a side fills up. The log alone gives it back."""
    logs = many_pairs(seed, pairs=2, n=30)
    rules = JoinRules(window_ms=WINDOW, on_expiry="negative", max_pending=6)
    live, rng = Reader(logs, rules), random.Random(schedule)
    while not live.at_end():
        live.read(rng.choice(sorted(logs)), rng.randint(1, 9))
        for lane in live.intake.blocking():
            lane.passed = rng.random() < 0.5
        live.intake.take(rng.choice([None, 5]))
        if rng.random() < 0.5:
            live.intake.follow_idle()
        if rng.random() < 0.3:
            live.commit()
    live.finish()
    again = Reader(logs, rules)
    again.read_all()
    for work in live.works:
        again.intake.take_in_order(work.consumed)
        replayed = again.commit()
        assert examples(replayed) == examples(work)
        assert taken_order(replayed) == taken_order(work)
        for n, state in work.partitions.items():
            assert again.states[n].ledger == state.ledger
            assert [s.clock for s in again.states[n].sides] == [s.clock for s in state.sides]
    assert again.committed == live.committed


def test_replaying_more_than_was_read_says_so() -> None:
    logs = pair_logs([feature("a", 0), feature("b", 1)], [label("a", 2)])
    entry = Reader(logs, WIDE).finish().works[0].consumed
    again = Reader(logs, WIDE)
    again.read(TopicPartition("features", 0), 1)
    with pytest.raises(OffsetsLost, match=re.escape("topic features, partition 0: the commit log names 2 records")):
        again.intake.take_in_order(entry)


# -- the rest ---------------------------------------------------------------------------------------------------------


def test_outcomes_are_reported_once_by_topic() -> None:
    reader = Reader(many_pairs(6))
    reader.read_all()
    reader.intake.take(10)
    reader.commit()
    reader.finish()
    ledger = reader.ledger()
    for column in ("consumed", "trained", "dead_lettered", "expired", "duplicate", "late", "withdrawn", "control"):
        assert sum(n for (_, outcome), n in reader.outcomes.items() if outcome == column) == getattr(ledger, column)
    assert ("features", "late") not in reader.outcomes
    assert ("labels", "expired") not in reader.outcomes


def test_letters_are_handed_out_once_and_name_their_record() -> None:
    reader = Reader(pair_logs([refused(), feature("a", 0)], [label("a", 1, 1), label("a", 2, 0), refused()]), WIDE)
    reader.read_all()
    reader.pass_all()
    reader.intake.take()
    letters = reader.intake.take_letters()
    assert [(x.source.topic, x.offset, x.refusal.reason) for x in letters] == [
        ("features", 0, "not_json"),
        ("labels", 1, "label_conflict"),
        ("labels", 2, "not_json"),
    ]
    assert [x.value for x in letters] == [b"features:0", b"labels:1", b"labels:2"]
    assert reader.intake.take_letters() == []


def test_transaction_markers_at_the_end_are_passed_over_so_that_lag_reaches_zero() -> None:
    reader = Reader(pair_logs([feature("a", 0), None, None], [None]), WIDE).finish()
    assert [s.next_offset for s in reader.states[0].sides] == [3, 1]


def test_an_inline_event_is_learned_once_and_a_tombstone_withdraws_nothing() -> None:
    log: list[Record | None] = [
        example("a", 0, x=1), example("a", 0, x=1, value=0), tombstone("a"), watermark(50), refused(), example("b", 9, x=2),
    ]  # fmt: skip
    reader = Reader({TopicPartition("examples", 0): log}, joined=False).finish()
    assert reader.committed == [(1, 1, 1, 0), (2, 1, 1, 0)]
    assert columns(reader.ledger()) == {
        "consumed": 6, "trained": 2, "duplicate": 1, "withdrawn": 1, "control": 1, "dead_lettered": 1,
    }  # fmt: skip
    assert reader.states[0].sides[0].clock == T0 + 50


def test_a_worker_that_starts_takes_nothing_before_all_its_pairs_are_rebuilt() -> None:
    """Else the order of a backlog would depend on which partition was read again first."""
    reader = Reader(many_pairs(7), JoinRules(window_ms=WINDOW))
    reader.read_all()
    reader.intake.take(20)
    reader.commit()
    reader.crash()
    for topic in ("features", "labels"):
        reader.read(TopicPartition(topic, 0))
    assert reader.intake.pairs[0].ready
    assert reader.intake.take() == 0


def test_a_pair_that_is_running_is_not_held_up_by_one_that_is_rebuilt() -> None:
    intake = Intake(True, WIDE, ROWS, 1)
    logs = pair_logs([feature("a", 0), feature("b", 5)], [label("a", 1), label("b", 6)])
    intake.own(fresh(0))
    for source, log in logs.items():
        intake.add(events(source, log, 0, 2))
    assert intake.take() == 3
    other = Reader(pair_logs([feature("c", 0)], [watermark(0)], 1), WIDE).finish()
    intake.own(other.states[1])
    for lane in intake.pairs[0].lanes:
        lane.passed = True
    assert intake.take() == 1


def test_newest_is_the_latest_event_time_taken() -> None:
    reader = Reader(pair_logs([feature("a", 7)], [label("a", 9)]))
    assert reader.intake.work().newest_ms == -1
    assert reader.finish().works[0].newest_ms == T0 + 9
