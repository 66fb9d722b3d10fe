"""The checker itself: it accepts a run that is in order, and every kind of damage is found and named."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.chaos.check.due import due
from tests.chaos.check.events import Record, Rules, decode
from tests.chaos.check.pairs import Pair
from tests.chaos.check.stored import COLUMNS, Books, Entry, Model, Side, Stored
from tests.chaos.check.verdict import Case, Findings, judge
from tests.chaos.plan import FEATURES, plan
from tests.chaos.run import learning, rules
from tests.chaos.stream import messages
from tests.unit.reference import PlainModel

SETTINGS = {
    "stream.mode": "joined",
    "join.idle_labels": "wait",
    "join.on_expiry": "drop",
    "train.reduction": "sequential",
}
PLAN = plan(1, 4.0)._replace(partitions=2)
PLAN = PLAN._replace(settings={**PLAN.settings, **SETTINGS})
NAMES = {"features": "f", "labels": "l"}
NOW = 1_790_000_000_000
COMMIT = 150  # records


def _topics() -> dict[tuple[str, int], list[Record]]:
    topics: dict[tuple[str, int], list[Record]] = {(role, n): [] for role in NAMES for n in range(2)}
    for message in messages(PLAN):
        n = message.partition if message.partition is not None else sum(message.key or b"") % 2
        place = topics[message.role, n]
        place.append(Record(len(place), NOW, message.key, message.value))
    return topics


def _run() -> Case:
    """What an honest worker leaves behind: records taken by turns from all topics, a commit now and then."""
    these, topics = rules(PLAN), _topics()
    pairs = {n: Pair(n, these) for n in range(2)}
    learner = PlainModel.of(learning(PLAN), 2, 1)
    order = [
        (role, n) for i in range(max(map(len, topics.values()))) for (role, n), rs in topics.items() if i < len(rs)
    ]
    log = [Entry("init", "", "0:a", "", "w", [], [], 0, 64)]
    for low in range(0, len(order), COMMIT):
        taken, sources, codes, examples = order[low : low + COMMIT], list[tuple[str, int, int]](), list[int](), []
        for role, n in taken:
            side = list(NAMES).index(role)
            offset, place = pairs[n].sides[side].next, (role, n)
            if (NAMES[role], n) not in [source[:2] for source in sources]:
                sources.append((NAMES[role], n, offset))
            codes.append([source[:2] for source in sources].index((NAMES[role], n)))
            examples += pairs[n].take(side, offset, decode(topics[place][offset], role, these))
        for start in range(0, len(examples), 64):
            batch = examples[start : start + 64]
            learner.learn([(e.row.numbers, e.row.buckets, e.label, e.weight) for e in batch])
        version = f"{len(log)}:{low}"
        log.append(Entry("train", log[-1].version, version, version, "w", sources, codes, len(examples), 64))
    model = Model(log[-1].version, log[-1].digest, _arrays(learner))
    letters = {
        (NAMES[role], n, offset, reason)
        for n, pair in pairs.items()
        for role, side in zip(NAMES, pair.sides, strict=True)
        for offset, reason in side.refused.items()
    }
    stored = Stored(model, None, [_books(pair) for pair in pairs.values()], log)
    return Case(these, learning(PLAN), NAMES, topics, stored, frozenset(letters))


def _arrays(learner: PlainModel) -> dict[str, Any]:
    table = [learner.tables[0].get(bucket, 0.0) for bucket in range(65)]
    return {
        "weight": np.array([*learner.numbers, *table]),
        "intercept": np.array([learner.intercept]),
        "normalizer.mean": np.array([s.mean for s in learner.statistics]),
        "normalizer.m2": np.array([s.m2 for s in learner.statistics]),
        "normalizer.count": np.array([float(s.n) for s in learner.statistics]),
        "counters.examples": np.array([learner.rows]),
    }


def _books(pair: Pair) -> Books:
    ledger = pair.ledger()
    sides = [
        Side(name, side.next, pair.offsets(i, "pending"), pair.offsets(i, "trained"))
        for i, (name, side) in enumerate(zip(NAMES.values(), pair.sides, strict=True))
    ]
    return Books(pair.partition, {column: ledger[column] for column in ("consumed", *COLUMNS)}, sides)


@pytest.fixture(scope="module")
def case() -> Case:
    return _run()


def _with_log(case: Case, change: Callable[[list[Entry]], list[Entry]]) -> Case:
    return replace(case, stored=case.stored._replace(log=change(list(case.stored.log))))


def _with_books(case: Case, change: Callable[[Books], Books]) -> Case:
    first, *others = case.stored.books
    return replace(case, stored=case.stored._replace(books=[change(first), *others]))


def test_a_run_in_order_is_sound_and_most_of_it_is_settled_by_the_topics_alone(case: Case) -> None:
    found = judge(case)
    assert found.problems == []
    assert found.examples_due == found.learned > 100
    assert found.settled > 0.9 * found.records
    assert found.records == sum(map(len, case.topics.values()))


def _again(log: list[Entry]) -> list[Entry]:
    """The third commit's records are learned once more in a commit of their own, at the end."""
    return [*log, log[3]._replace(base=log[-1].version, version="99:x", digest=log[-1].digest)]


def _without(log: list[Entry]) -> list[Entry]:
    return [*log[:3], log[4]._replace(base=log[2].version), *log[5:]]


def _shortened(log: list[Entry]) -> list[Entry]:
    last = log[-1]
    return [*log[:-1], last._replace(order=last.order[:-7])]


@pytest.mark.parametrize(
    ("damage", "counter"),
    [
        (lambda case: _with_log(case, _again), "doubly_learned"),
        (lambda case: _with_log(case, _without), "lost"),
        (lambda case: _with_log(case, _shortened), "lost"),
        (lambda case: _with_log(case, lambda log: [*log[:2], log[2]._replace(base="1:other"), *log[3:]]), "broken_chain"),
        (lambda case: _with_log(case, lambda log: log[:-1]), "broken_chain"),
        (lambda case: _with_log(case, lambda log: [*log[:2], log[2]._replace(examples=1), *log[3:]]), "miscounted_commits"),
        (lambda case: _with_books(case, lambda b: b._replace(ledger={**b.ledger, "late": b.ledger["late"] + 1})), "unbalanced"),
        (lambda case: _with_books(case, lambda b: b._replace(
            ledger={**b.ledger, "late": b.ledger["late"] + 1, "expired": b.ledger["expired"] - 1})), "wrong_columns"),
        (lambda case: _with_books(case, lambda b: b._replace(sides=[b.sides[0]._replace(pending={3}), b.sides[1]])), "wrong_columns"),
        (lambda case: _with_books(case, lambda b: b._replace(
            sides=[b.sides[0], b.sides[1]._replace(trained=b.sides[1].trained - {max(b.sides[1].trained)})])), "wrong_columns"),
    ],
)  # fmt: skip
def test_damage_to_log_and_books_is_found(case: Case, damage: Callable[[Case], Case], counter: str) -> None:
    found = judge(damage(case))
    assert not found.sound
    assert getattr(found, counter) > 0, found.problems


def _changed(case: Case, **changes: Any) -> Findings:
    return judge(replace(case, **changes))


def test_a_letter_that_is_missing_or_too_many_is_found(case: Case) -> None:
    letter = min(case.letters)
    assert _changed(case, letters=case.letters - {letter}).wrong_letters == 1
    assert _changed(case, letters=case.letters | {("f", 0, 10**6, "empty")}).wrong_letters == 1


def test_a_weight_that_is_off_by_a_millionth_is_found(case: Case) -> None:
    arrays = {name: array.copy() for name, array in case.stored.model.arrays.items()}
    arrays["weight"][1] += 1e-6
    stored = case.stored._replace(model=case.stored.model._replace(arrays=arrays))
    assert _changed(case, stored=stored).wrong_weights == 1


def test_records_that_nobody_took_are_found(case: Case) -> None:
    topics = {place: list(records) for place, records in case.topics.items()}
    more = json.dumps({"id": "more", "ts": 1_764_000_000_000, "label": 1}).encode()
    topics["labels", 0].append(Record(len(topics["labels", 0]), NOW, b"more", more))
    assert _changed(case, topics=topics).lost == 1


def test_an_id_used_against_the_rules_is_left_to_the_order() -> None:
    """A withdrawn feature may have met its label before: the topics alone do not say."""
    these = Rules(FEATURES, window_ms=1000)
    event = json.dumps({"id": "a", "ts": 1_764_000_000_000, "features": {}}).encode()
    features = [Record(0, NOW, b"a", event), Record(1, NOW, b"a", None)]
    labels = [Record(0, NOW, b"a", json.dumps({"id": "a", "ts": 1_764_000_000_500, "label": 1}).encode())]
    sides = [
        {record.offset: decode(record, role, these) for record in records}
        for role, records in (("features", features), ("labels", labels))
    ]
    assert due(sides, these).open_ids == {"a"}
    assert due([{0: sides[0][0]}, sides[1]], these).examples == {(0, 0)}
