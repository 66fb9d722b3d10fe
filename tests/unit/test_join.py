"""What meets, and what becomes of the rest: the rules of the join, one pair at a time."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.joins import (
    WINDOW,
    Log,
    Reader,
    Record,
    columns,
    feature,
    interleave,
    label,
    pair_logs,
    refused,
    tombstone,
    watermark,
)
from worker.stream.join import JoinRules, OnExpiry

FAR = 10_000  # in event time: every window has ended by then


def joined(features: Log, labels: Log, order: str, rules: JoinRules | None = None) -> Reader:
    """Take records in the given order of sides (`f`, `l`), and commit."""
    reader = Reader(pair_logs(features, labels), rules or JoinRules(window_ms=WINDOW))
    interleave(reader, ["fl".index(side) for side in order])
    reader.commit()
    assert reader.ledger().balanced()
    return reader


# -- window edges -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["fl", "lf"])
@pytest.mark.parametrize(
    ("delay", "lateness", "meets"),
    [
        (-1, 0, False), (0, 0, True), (1, 0, True), (WINDOW - 1, 0, True), (WINDOW, 0, True), (WINDOW + 1, 0, False),
        (-3, 3, True), (-4, 3, False), (WINDOW + 1, 3, False),
        (-30, 30, True), (-31, 30, False),
    ],
)  # fmt: skip
@pytest.mark.parametrize("disorder", [0, 5])
def test_both_ends_of_the_window_are_inside_whichever_comes_first(
    order: str, delay: int, lateness: int, meets: bool, disorder: int
) -> None:
    rules = JoinRules(window_ms=WINDOW, lateness_ms=lateness, disorder_ms=disorder)
    reader = joined([feature("a", 100, x=7)], [label("a", 100 + delay)], order, rules)
    if meets:
        assert reader.committed == [(7, 1, 1, delay)]
        assert columns(reader.ledger()) == {"consumed": 2, "trained": 2}
    else:
        assert reader.committed == []
        assert reader.ledger().late == 1


@pytest.mark.parametrize(("disorder", "expires"), [(0, 1), (5, 6)])
def test_a_feature_expires_once_the_label_clock_is_above_window_and_disorder(disorder: int, expires: int) -> None:
    rules = JoinRules(window_ms=WINDOW, disorder_ms=disorder)
    at_the_end = joined([feature("a", 100)], [label("b", 100 + WINDOW + expires - 1)], "fl", rules)
    assert at_the_end.ledger().expired == 0
    above = joined([feature("a", 100)], [label("b", 100 + WINDOW + expires)], "fl", rules)
    assert above.ledger().expired == 1


@pytest.mark.parametrize(("lateness", "disorder", "span"), [(0, 0, WINDOW), (30, 0, 30), (3, 5, WINDOW + 5)])
def test_a_label_expires_once_the_feature_clock_is_above_the_longer_of_window_and_lateness(
    lateness: int, disorder: int, span: int
) -> None:
    rules = JoinRules(window_ms=WINDOW, lateness_ms=lateness, disorder_ms=disorder)
    assert joined([feature("b", 100 + span)], [label("a", 100)], "lf", rules).ledger().late == 0
    assert joined([feature("b", 100 + span + 1)], [label("a", 100)], "lf", rules).ledger().late == 1


def test_a_side_is_not_expired_by_its_own_clock() -> None:
    reader = joined([feature("a", 0), feature("b", FAR)], [label("a", 1)], "ffl")
    assert len(reader.committed) == 1
    reader = joined([feature("a", 0)], [label("a", 1), label("b", FAR)], "llf")
    assert len(reader.committed) == 1


def test_an_event_that_arrives_expired_leaves_at_once() -> None:
    reader = joined([feature("a", 0)], [label("b", FAR)], "lf")
    assert (reader.ledger().expired, reader.ledger().pending) == (1, 1)
    reader = joined([feature("b", FAR)], [label("a", 0)], "fl")
    assert (reader.ledger().late, reader.ledger().pending) == (1, 1)


def test_a_label_is_matched_before_it_moves_its_clock() -> None:
    """The label that ends its own feature's window is late; it does not wait for a feature that has just expired."""
    reader = joined([feature("a", 100)], [label("a", 100 + WINDOW + 1)], "fl")
    assert columns(reader.ledger()) == {"consumed": 2, "late": 1, "expired": 1}


def test_events_within_the_disorder_still_meet_and_those_beyond_may_not() -> None:
    features, labels = [feature("a", 100)], [label("b", 100 + WINDOW + 5), label("a", 100 + WINDOW)]
    assert len(joined(features, labels, "fll", JoinRules(window_ms=WINDOW, disorder_ms=5)).committed) == 1
    assert len(joined(features, labels, "fll", JoinRules(window_ms=WINDOW, disorder_ms=4)).committed) == 0


# -- duplicates, conflicts, late labels -------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["fflf", "flff", "lfff"])
def test_a_second_feature_of_an_id_is_a_duplicate_and_the_first_one_counts(order: str) -> None:
    features = [feature("a", 0, x=1), feature("a", 1, x=2), feature("a", 2, x=3)]
    reader = joined(features, [label("a", 3)], order)
    assert [e[0] for e in reader.committed] == [1]
    assert columns(reader.ledger()) == {"consumed": 4, "trained": 2, "duplicate": 2}


@pytest.mark.parametrize("order", ["flll", "lfll", "llfl", "lllf"])
def test_an_equal_second_label_is_a_duplicate_and_a_different_one_a_dead_letter(order: str) -> None:
    reader = joined([feature("a", 0)], [label("a", 1, 1), label("a", 2, 1), label("a", 3, 0)], order)
    assert [e[1] for e in reader.committed] == [1]
    assert columns(reader.ledger()) == {"consumed": 4, "trained": 2, "duplicate": 1, "dead_lettered": 1}
    (letter,) = reader.intake.take_letters()
    assert (letter.source.topic, letter.offset, letter.refusal.reason) == ("labels", 2, "label_conflict")
    assert (letter.key, letter.value) == (b"a", b"labels:2")


def test_a_conflicting_label_moves_no_clock_and_a_duplicate_does() -> None:
    features = [feature("a", 0), feature("b", 1)]
    conflict = joined(features, [label("a", 1, 1), label("a", FAR, 0)], "ffll")
    assert (conflict.ledger().dead_lettered, conflict.ledger().expired) == (1, 0)
    duplicate = joined(features, [label("a", 1, 1), label("a", FAR, 1)], "ffll")
    assert (duplicate.ledger().duplicate, duplicate.ledger().expired) == (1, 1)


def test_a_label_outside_the_window_leaves_its_feature_waiting() -> None:
    rules = JoinRules(window_ms=WINDOW, disorder_ms=20)
    reader = joined([feature("a", 100)], [label("a", 90), label("a", 105)], "fll", rules)
    assert [e[3] for e in reader.committed] == [5]
    assert reader.ledger().late == 1


@pytest.mark.parametrize("on_expiry", ["drop", "negative"])
def test_an_expired_feature_that_is_sent_again_is_new_unless_it_was_learned(on_expiry: OnExpiry) -> None:
    rules = JoinRules(window_ms=WINDOW, on_expiry=on_expiry)
    features = [feature("a", 0, x=1), feature("a", 100, x=2)]
    reader = joined(features, [watermark(50), label("a", 101)], "flfl", rules)
    if on_expiry == "drop":
        assert reader.committed == [(2, 1, 1, 1)]
        assert columns(reader.ledger()) == {"consumed": 4, "trained": 2, "expired": 1, "control": 1}
    else:
        assert reader.committed == [(1, 0, 1, -1)]
        assert columns(reader.ledger()) == {"consumed": 4, "trained": 1, "duplicate": 1, "late": 1, "control": 1}


def test_a_negative_on_expiry_is_label_zero_weight_one_and_one_record_trained() -> None:
    rules = JoinRules(window_ms=WINDOW, on_expiry="negative")
    reader = joined([feature("b", 1, x=2), feature("a", 0, x=1)], [watermark(FAR), label("a", 1)], "ffll", rules)
    assert reader.committed == [(1, 0, 1, -1), (2, 0, 1, -1)]  # the oldest first
    assert columns(reader.ledger()) == {"consumed": 4, "trained": 2, "late": 1, "control": 1}


def test_a_refused_label_that_is_sent_again_is_new() -> None:
    reader = joined([feature("a", 0)], [refused(), label("a", 1)], "fll")
    assert columns(reader.ledger()) == {"consumed": 3, "trained": 2, "dead_lettered": 1}
    assert [letter.value for letter in reader.intake.take_letters()] == [b"labels:0"]


def test_a_duplicate_beyond_what_is_remembered_is_not_seen() -> None:
    """The horizon is counted in records of the topic, the one that arrives included."""
    rules = JoinRules(window_ms=FAR, remember=3)
    others = [feature(f"o{i}", 2) for i in range(2)]
    inside = joined([feature("a", 0), *others, feature("a", 2)], [label("a", 1)], "flfff", rules)
    assert inside.ledger().duplicate == 1
    labels = [label("a", 1), *(label(f"p{i}", 2) for i in range(3))]
    outside = joined([feature("a", 0), *others, feature("o", 2), feature("a", 2)], labels, "fllllffff", rules)
    assert outside.ledger().duplicate == 0


def test_each_topic_forgets_at_its_own_pace() -> None:
    rules = JoinRules(window_ms=FAR, remember=2)
    labels = [label("a", 1), *(label(f"p{i}", 2) for i in range(5)), label("a", 3)]
    reader = joined([feature("a", 0)], labels, "flllllll", rules)
    assert reader.ledger().duplicate == 1  # the feature topic still knows that the id was learned


def test_weights_come_from_the_label() -> None:
    assert joined([feature("a", 0)], [label("a", 1, 0, weight=2.5)], "fl").committed == [(0, 0, 2.5, 1)]


# -- tombstones and watermarks ----------------------------------------------------------------------------------------


def test_a_tombstone_withdraws_what_waits_on_its_own_topic_only() -> None:
    reader = joined([feature("a", 0), tombstone("a"), feature("b", 0)], [tombstone("b"), label("b", 1)], "fffll")
    assert len(reader.committed) == 1
    assert columns(reader.ledger()) == {"consumed": 5, "trained": 2, "withdrawn": 3}


def test_after_a_tombstone_the_id_is_new_and_a_learned_one_stays_learned() -> None:
    again = joined([feature("a", 0, 1), tombstone("a"), feature("a", 1, 2)], [label("a", 2)], "fffl")
    assert [e[0] for e in again.committed] == [2]
    learned = joined([feature("a", 0, 1), tombstone("a"), feature("a", 1, 2)], [label("a", 2)], "flff")
    assert columns(learned.ledger()) == {"consumed": 4, "trained": 2, "withdrawn": 1, "duplicate": 1}


def test_a_withdrawn_label_does_not_meet_its_feature() -> None:
    reader = joined([feature("a", 0)], [label("a", 1), tombstone("a")], "llf")
    assert columns(reader.ledger()) == {"consumed": 3, "withdrawn": 2, "pending": 1}


def test_a_watermark_moves_the_clock_of_its_side_and_never_back() -> None:
    reader = joined([feature("a", 0)], [watermark(WINDOW), watermark(5), watermark(WINDOW + 1)], "fll")
    assert columns(reader.ledger()) == {"consumed": 3, "pending": 1, "control": 2}
    interleave(reader, [1])
    reader.commit()
    assert columns(reader.ledger()) == {"consumed": 4, "expired": 1, "control": 3}


def test_a_watermark_of_features_lets_labels_go() -> None:
    reader = joined([watermark(WINDOW + 2)], [label("a", 1)], "lf")
    assert columns(reader.ledger()) == {"consumed": 2, "late": 1, "control": 1}


# -- any interleaving -------------------------------------------------------------------------------------------------

ENDED = (watermark(FAR), watermark(FAR))  # what ends every window, on both sides


def outcome(features: Log, labels: Log, order: list[int], rules: JoinRules) -> tuple[object, object]:
    reader = Reader(pair_logs([*features, ENDED[0]], [*labels, ENDED[1]]), rules)
    interleave(reader, [*order, 0, 1])
    reader.commit()
    ledger = reader.ledger()
    assert ledger.balanced()
    assert ledger.pending == 0
    return sorted(reader.committed), ledger


@pytest.mark.parametrize("on_expiry", ["drop", "negative"])
def test_every_interleaving_of_sides_three_windows_apart_gives_the_same_pairs(on_expiry: OnExpiry) -> None:
    """All 462 ways of laying five labels between six features that span three windows."""
    rules = JoinRules(window_ms=WINDOW, lateness_ms=2, on_expiry=on_expiry)
    features = [feature(str(i), 6 * i, x=i) for i in range(6)]
    labels = [label("0", 0, 0), label("1", 4), label("2", 12 + WINDOW), label("4", 34), label("3", 36)]
    pairs = {(0.0, 0.0, 1.0, 0), (1.0, 1.0, 1.0, -2), (2.0, 1.0, 1.0, WINDOW), (4.0, 1.0, 1.0, WINDOW)}
    negatives = {(3.0, 0.0, 1.0, -1), (5.0, 0.0, 1.0, -1)} if on_expiry == "negative" else set()
    ledgers = set()
    for where in combinations(range(11), 6):
        found, ledger = outcome(features, labels, [0 if i in where else 1 for i in range(11)], rules)
        assert found == sorted(pairs | negatives)
        ledgers.add(ledger)
    assert len(ledgers) == 1


@st.composite
def two_sides(draw: st.DrawFn) -> tuple[list[Record], list[Record], list[int], JoinRules]:
    """Two sides over three windows, shuffled within the disorder, and an interleaving of them."""
    rules = JoinRules(
        window_ms=WINDOW,
        lateness_ms=draw(st.sampled_from([0, 3, 25])),
        disorder_ms=draw(st.sampled_from([0, 4])),
        on_expiry=draw(st.sampled_from(["drop", "negative"])),
    )
    features, labels = [], []
    for i in range(draw(st.integers(1, 25))):
        time = draw(st.integers(0, 3 * WINDOW))
        if draw(st.booleans()):
            features.append(feature(str(i), time, x=i))
        if draw(st.integers(0, 3)):
            labels.append(label(str(i), time + draw(st.integers(-30, 2 * WINDOW)), draw(st.sampled_from([0.0, 1.0]))))

    def shuffled(side: list[Record]) -> list[Record]:
        return sorted(side, key=lambda r: (r.time + draw(st.integers(0, rules.disorder_ms)), r.id))

    order = draw(st.permutations([0] * len(features) + [1] * len(labels)))
    return shuffled(features), shuffled(labels), order, rules


@settings(deadline=None)
@given(two_sides())
def test_no_interleaving_changes_pairs_or_ledger(case: tuple[list[Record], list[Record], list[int], JoinRules]) -> None:
    features, labels, order, rules = case
    found, ledger = outcome(features, labels, order, rules)
    label_of = {r.id: r for r in labels}
    pairs = [
        (f.x, label_of[f.id].label, 1.0, label_of[f.id].time - f.time)
        for f in features
        if f.id in label_of and -rules.lateness_ms <= label_of[f.id].time - f.time <= rules.window_ms
    ]
    met = {x for x, *_ in pairs}
    unmet = [(f.x, 0.0, 1.0, -1) for f in features if f.x not in met]
    negative = rules.on_expiry == "negative"
    assert found == sorted([*pairs, *(unmet if negative else [])])
    expected = {
        "consumed": len(features) + len(labels) + 2,
        "trained": 2 * len(pairs) + negative * len(unmet),
        "expired": (not negative) * len(unmet),
        "late": len(labels) - len(pairs),
        "control": 2,
    }
    assert columns(ledger) == {name: n for name, n in expected.items() if n}  # type: ignore[arg-type]


def test_equal_event_times_keep_the_order_of_their_offsets() -> None:
    features = [feature(str(i), 0, x=i) for i in range(9)]
    reader = joined(features, [watermark(FAR)], "f" * 9 + "l", JoinRules(window_ms=WINDOW, on_expiry="negative"))
    assert [e[0] for e in reader.committed] == list(range(9))
