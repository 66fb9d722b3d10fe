"""A worker that is killed and one that takes over go on exactly where the last commit was."""

import random
import re
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.joins import (
    T0,
    WINDOW,
    Log,
    Reader,
    Record,
    bits,
    columns,
    events,
    example,
    feature,
    label,
    pair_logs,
    plain,
    refused,
    tombstone,
    watermark,
)
from tests.unit.test_intake import many_pairs
from worker.errors import OffsetsLost
from worker.stream.events import EventKind
from worker.stream.join import JoinRules
from worker.stream.records import TopicPartition

FEATURES, LABELS = TopicPartition("features", 0), TopicPartition("labels", 0)


def inline_logs(seed: int, partitions: int = 2, n: int = 60) -> dict[TopicPartition, Log]:
    rng = random.Random(seed)
    logs: dict[TopicPartition, Log] = {}
    for p in range(partitions):
        log: list[Record | None] = []
        for i in range(n):
            log.append(example(f"{p}-{i}", 2 * i + rng.randrange(5), x=1000 * p + i, value=float(rng.randrange(2))))
            if rng.random() < 0.5:
                again = example(f"{p}-{max(0, i - rng.randrange(15))}", 2 * i, x=-1)
                log.append(rng.choice([None, refused(), tombstone("x"), watermark(2 * i), again]))
        logs[TopicPartition("examples", p)] = log
    return logs


def run_with_crashes(reader: Reader, rng: random.Random, crashes: int) -> Reader:
    """Read, take and commit at random, crash at random moments, and finish. Commits are at whole batches."""
    steps = 0
    while not reader.at_end():
        reader.read(rng.choice(sorted(reader.logs)), rng.randint(1, 12))
        limit = rng.choice([None, 2])
        reader.intake.take(limit)
        if rng.random() < 0.4 and reader.intake.whole(0):
            reader.commit()
        if crashes and rng.random() < 0.15:
            crashes -= 1
            reader.crash()
        steps += 1
        assert steps < 5000
    return reader.finish()


@settings(deadline=None, max_examples=60)
@given(
    st.booleans(), st.integers(0, 3), st.sampled_from(["drop", "negative"]), st.sampled_from([1, 3, 20, 1000]),
    st.sampled_from([4, 1000]), st.integers(1, 2), st.integers(0, 10**6),
)  # fmt: skip
def test_no_crash_changes_what_is_learned_or_what_is_stored(
    joined: bool, seed: int, on_expiry: str, remember: int, max_pending: int, partitions: int, schedule: int
) -> None:
    """Examples in order, ledger, clocks, order keys, waiting and remembered offsets: all as in the undisturbed run."""
    logs = many_pairs(seed, partitions, 40) if joined else inline_logs(seed, partitions)
    rules = JoinRules(
        window_ms=WINDOW, lateness_ms=2, disorder_ms=3, remember=remember, max_pending=max_pending,
        on_expiry="negative" if on_expiry == "negative" else "drop",
    )  # fmt: skip
    whole = Reader(logs, rules, joined=joined, batch_size=3).finish()
    assert whole.ledger().balanced()
    cut = run_with_crashes(Reader(logs, rules, joined=joined, batch_size=3), random.Random(schedule), crashes=6)
    assert cut.committed == whole.committed
    assert {n: plain(s) for n, s in cut.states.items()} == {n: plain(s) for n, s in whole.states.items()}


def test_the_ledger_balances_in_every_committed_state() -> None:
    reader, rng = Reader(many_pairs(2), JoinRules(window_ms=WINDOW)), random.Random(1)
    while not reader.at_end():
        reader.read(rng.choice(sorted(reader.logs)), 3)
        reader.intake.take()
        for state in reader.commit().partitions.values():
            assert state.ledger.balanced()
            assert state.ledger.pending == sum(len(bits(side.pending)) for side in state.sides)
    assert reader.finish().ledger().consumed == sum(1 for log in reader.logs.values() for r in log if r is not None)


def test_repeated_corrected_and_late_records_train_once_with_a_restart_between_any_two() -> None:
    """Feature, label, label again, another label, feature again with other values."""
    features = [feature("e-1", 0, x=1), feature("e-1", 3, x=2)]
    labels = [label("e-1", 1, 1), label("e-1", 1, 1), label("e-1", 2, 0)]
    steps = [FEATURES, LABELS, LABELS, LABELS, FEATURES]
    for restarts in (c for n in range(5) for c in combinations(range(1, 5), n)):
        reader = Reader(pair_logs(features, labels), JoinRules(window_ms=WINDOW))
        letters = 0
        for i, source in enumerate(steps):
            if i in restarts:
                reader.commit()
                reader.crash()
                reader.read(FEATURES, reader.states[0].sides[0].next_offset - reader.states[0].sides[0].oldest)
                reader.read(LABELS, reader.states[0].sides[1].next_offset - reader.states[0].sides[1].oldest)
            reader.read(source, 1)
            reader.pass_all()
            reader.intake.take()
            letters += len(reader.intake.take_letters())
        reader.commit()
        assert reader.committed == [(1, 1, 1, 1)]
        assert letters == 1
        assert columns(reader.ledger()) == {"consumed": 5, "trained": 2, "duplicate": 2, "dead_lettered": 1}


def test_events_that_wait_over_a_restart_meet_their_partners() -> None:
    n = 500
    logs = pair_logs([feature(str(i), i, x=i) for i in range(n)], [label(str(i), n, i % 2) for i in range(n)])
    reader = Reader(logs, JoinRules(window_ms=n))
    reader.read(FEATURES)
    reader.pass_all()
    reader.intake.take()
    reader.commit()
    assert reader.ledger().pending == n
    reader.crash()
    reader.finish()
    assert reader.committed == [(i, i % 2, 1, n - i) for i in range(n)]


def test_what_was_not_committed_is_done_again() -> None:
    reader = Reader(pair_logs([feature("a", 0)], [label("a", 1)]))
    reader.read_all()
    reader.pass_all()
    reader.intake.take()
    reader.crash()
    assert len(reader.finish().committed) == 1


def waiting(features: Log) -> Reader:
    """Return a reader that has committed these features as waiting, and starts again."""
    reader = Reader(pair_logs(features, [label("t", 1)]))
    reader.finish()
    reader.crash()
    return reader


def test_a_waiting_event_whose_record_is_gone_is_an_error_that_says_where() -> None:
    reader = waiting([feature("a", 0), feature("b", 1)])
    reader.read(LABELS)
    message = "1 waiting events can not be read again from topic features, partition 0, offsets 0 to 1"
    with pytest.raises(OffsetsLost, match=re.escape(message)):
        reader.intake.add(events(FEATURES, [None, feature("b", 1)], 0, 2))


def test_a_waiting_event_that_is_refused_now_is_lost_too() -> None:
    """A tighter `max_abs`, say: the settings that read it have changed."""
    reader = waiting([feature("a", 0)])
    reader.read(LABELS)
    with pytest.raises(OffsetsLost, match="settings"):
        reader.intake.add(events(FEATURES, [refused()], 0, 1))


def test_trained_ids_that_retention_removed_are_forgotten_and_not_looked_for_again() -> None:
    logs = pair_logs([feature("a", 0), feature("b", 1), feature("a", 3)], [label("a", 2), label("b", 2)])
    reader = Reader(logs)
    reader.read(FEATURES, 2)
    reader.read(LABELS)
    reader.pass_all()
    reader.intake.take()
    reader.commit()
    assert bits(reader.states[0].sides[0].trained) == [0, 1]
    reader.crash()
    reader.intake.add(events(FEATURES, [None, feature("b", 1)], 0, 2))
    reader.intake.add(events(LABELS, [None, label("b", 2)], 0, 2))
    reader.read(FEATURES)
    reader.pass_all()
    reader.intake.take()
    reader.commit()
    features, labels = reader.states[0].sides
    assert (bits(features.trained), features.oldest) == ([1], 1)
    assert (bits(labels.trained), labels.oldest) == ([1], 1)
    assert columns(reader.ledger()) == {"consumed": 5, "trained": 4, "pending": 1}  # the second "a" is new now


def test_transaction_markers_do_not_shorten_what_is_remembered_across_a_restart() -> None:
    """Positions move over markers as they are read; the memory of ids counts from the last record taken."""
    features: Log = [feature("a", 0), None, None, None]
    labels: Log = [label("a", 1), None, None, None, label("a", 2)]
    for restart in (False, True):
        reader = Reader(pair_logs(features, labels), JoinRules(window_ms=WINDOW, remember=2))
        reader.read(FEATURES)
        reader.read(LABELS, 4)
        reader.pass_all()
        reader.intake.take()
        reader.commit()
        if restart:
            reader.crash()
        assert bits(reader.states[0].sides[0].trained) == [0]
        assert reader.states[0].sides[0].next_offset == 4
        ledger = columns(reader.finish().ledger())
        assert ledger == {"consumed": 3, "trained": 2, "duplicate": 1}


def test_reading_begins_at_the_oldest_offset_that_matters() -> None:
    n = 30
    features = [feature(str(i), i) for i in range(n)]
    labels = [label(str(i), i + 1) for i in range(n) if i != 20]
    reader = Reader(pair_logs(features, labels), JoinRules(window_ms=1000, remember=5)).finish()
    assert [side.oldest for side in reader.states[0].sides] == [20, n - 1 - 5]
    assert bits(reader.states[0].sides[0].pending) == [20]
    reader.crash()
    assert [lane.read_offset for lane in reader.intake.lanes()] == [20, n - 6]
    ready = [reader.intake.pairs[0].ready]
    reader.read_all()
    assert [*ready, reader.intake.pairs[0].ready] == [False, True]
    assert not reader.intake.has_work()


def test_bitmaps_hold_offsets_beyond_32_bits() -> None:
    far = 1 << 40
    logs = pair_logs([feature("a", 0)], [label("b", 1)])
    reader = Reader(logs)
    state = reader.states[0]
    sides = tuple(type(s)(s.topic, "", far, -1, -1, far, b"", b"") for s in state.sides)
    reader.states[0] = type(state)(0, state.ledger, sides)
    reader.start()
    for source, log in logs.items():
        chunk = events(source, log, 0, 1)
        chunk.records.offsets[0] = far
        reader.intake.add(
            type(chunk)(
                type(chunk.records)(source, [far], [-1], chunk.records.keys, chunk.records.values, far + 1),
                [EventKind.EVENT], chunk.ids, chunk.times, chunk.rows, chunk.labels, chunk.weights,
            )
        )  # fmt: skip
    reader.pass_all()
    reader.intake.take()
    reader.commit()
    assert bits(reader.states[0].sides[0].pending) == [far]
    assert reader.states[0].sides[0].next_offset == far + 1
    assert reader.states[0].sides[1].clock == T0 + 1
