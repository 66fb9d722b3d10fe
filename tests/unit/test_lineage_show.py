"""`lineage show`: which events a version was trained on, and what became of every record of one event."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import pytest
from rich.console import Console

from tests.e2e import streams
from tests.fakes.reader import FakeReader
from tests.unit.rig import Rig
from tests.unit.streams_in_memory import fill
from worker.cli.lineage_show import event_document, print_event, print_version, version_document
from worker.errors import VerificationFailed
from worker.lineage.chain import Chain, Path
from worker.lineage.events import Traced, trace, trained_by
from worker.lineage.summary import changes, summarise
from worker.recipe import Recipe
from worker.spec import Hyper
from worker.state.store import LogEntry, Version
from worker.stream.join import JoinRules, OnExpiry
from worker.stream.positions import Consumed
from worker.stream.records import TopicPartition

T0 = streams.T0
RULES = JoinRules(window_ms=10_000, remember=150)
UNDONE = LogEntry("restore", "command", Consumed((), b"", 0), 0, 8, "numpy", "", "")


def feature(id_: str, at: int, **other: object) -> bytes:
    return json.dumps({"id": id_, "ts": T0 + at, "features": {"x1": 1.0, "carrier": "AA"}, **other}).encode()


def label(id_: str, at: int, value: object = 1) -> bytes:
    return json.dumps({"id": id_, "ts": T0 + at, "label": value}).encode()


def path_of(rig: Rig, number: int | None = None) -> Path:
    tip = rig.store.load().version
    chain = Chain(rig.store.commit_log())
    return chain.path(chain.find(tip.number if number is None else number, tip))


def traced(rig: Rig, id_: str, number: int | None = None) -> list[Traced]:
    return trace(
        id_, path_of(rig, number), rig.store.commit_log(), FakeReader(rig.log), rig.store.recipe, lambda _: None
    )


def told(rig: Rig, id_: str, number: int | None = None) -> list[tuple[str, int, str]]:
    return [(one.source.topic, one.offset, one.outcome) for one in traced(rig, id_, number)]


def drained(rig: Rig, *values: tuple[str, bytes | None, bytes | None]) -> Rig:
    """Append (topic, value, key), one poll and one commit after the other."""
    for topic, value, key in values:
        rig.append(topic, value, key=key)
    rig.worker().drain()
    return rig


def joined(*values: tuple[str, bytes], **changed: Any) -> Rig:
    rules = replace(RULES, **changed)
    return drained(Rig(rules=rules), *[(topic, value, None) for topic, value in values])


def test_an_event_that_was_trained_names_the_version_that_learned_it() -> None:
    rig = joined(("features", feature("a", 0)), ("features", feature("b", 1)), ("labels", label("a", 2)))
    tip = rig.store.load().version
    assert told(rig, "a") == [("features", 0, "trained"), ("labels", 0, "trained")]
    assert [commit.version for commit in trained_by(traced(rig, "a"))] == [tip]


def test_an_event_that_waits_is_trained_by_the_later_version_in_which_its_label_came() -> None:
    rig = joined(("features", feature("a", 0)))
    waits = rig.store.load().version.number
    assert told(rig, "a") == [("features", 0, "waiting")]
    assert trained_by(traced(rig, "a")) == []
    drained(rig, ("labels", label("a", 5), None))
    first, second = traced(rig, "a")
    assert first.taken.version.number == waits < first.settled.version.number
    assert second.taken.version == second.settled.version == first.settled.version
    assert told(rig, "a", waits) == [("features", 0, "waiting")], "what came later is not in that version"


@pytest.mark.parametrize(
    ("on_expiry", "of_feature", "of_label"),
    [("drop", "expired", "waiting"), ("negative", "trained_as_negative", "late")],
)
def test_a_feature_whose_time_is_over_and_a_label_that_is_late(
    on_expiry: OnExpiry, of_feature: str, of_label: str
) -> None:
    rig = joined(("features", feature("a", 0)), ("labels", label("other", 99_000)), on_expiry=on_expiry)
    drained(rig, ("labels", label("a", 99_001), None))
    assert told(rig, "a") == [("features", 0, of_feature), ("labels", 1, of_label)]


def test_a_label_before_its_feature_is_late_and_the_feature_waits() -> None:
    rig = joined(("labels", label("a", 0)), ("features", feature("a", 1)))
    assert sorted(told(rig, "a")) == [("features", 0, "waiting"), ("labels", 0, "late")]


def test_duplicates_conflicts_and_refused_records_are_told_with_their_reasons() -> None:
    rig = joined(("features", feature("a", 0)), ("labels", label("a", 1)))
    drained(
        rig, ("features", feature("a", 2), None), ("labels", label("a", 3), None), ("labels", label("a", 4, 0), None)
    )
    bad = feature("a", 5, features={"x1": "no number", "carrier": "AA"})
    drained(rig, ("features", bad, None), ("features", b"{", b"a"), ("features", feature("b", 6), b"a"))
    found = traced(rig, "a")
    assert Counter((one.source.topic, one.outcome, one.reason) for one in found) == {
        ("features", "trained", ""): 1, ("labels", "trained", ""): 1,
        ("features", "duplicate", ""): 1, ("labels", "duplicate", ""): 1,
        ("labels", "dead_lettered", "label_conflict"): 1,
        ("features", "dead_lettered", "wrong_type"): 1,
        ("features", "dead_lettered", "not_json"): 1,
    }  # fmt: skip
    assert len(trained_by(found)) == 1


def test_a_withdrawn_event_and_what_withdrew_it() -> None:
    rig = joined(("features", feature("a", 0)))
    drained(rig, ("features", None, b"a"))
    found = traced(rig, "a")
    assert [(one.outcome, one.time >= 0) for one in found] == [("withdrawn", True), ("withdrawn", False)]
    assert found[0].settled.version == found[1].taken.version


def test_an_id_that_is_spelled_with_escapes_is_the_same_id() -> None:
    raw = feature("ä/1", 0).replace(b"/", b"\\/")
    assert b"\\u00e4\\/1" in raw
    assert told(joined(("features", raw)), "ä/1") == [("features", 0, "waiting")]


def test_an_id_that_only_occurs_inside_another_record_is_not_that_record() -> None:
    rig = joined(("features", feature("a1", 0, note="a")), ("features", feature("b", 1, a={"id": "a"})))
    assert told(rig, "a") == []


@pytest.mark.parametrize(("mode", "on_expiry"), [("joined", "drop"), ("joined", "negative"), ("inline", "drop")])
def test_the_outcomes_of_all_ids_together_are_the_ledger(
    mode: Literal["joined", "inline"], on_expiry: OnExpiry
) -> None:
    """Several partitions and workers, anything in any order: every record that has an id is told rightly."""
    rules = JoinRules(window_ms=streams.WINDOW_MS, remember=15, on_expiry=on_expiry)
    rig = Rig(joined=mode == "joined", partitions=3, rules=rules)
    fill(rig, streams.joined(3, 90) if mode == "joined" else streams.inline(4, 120))
    workers = [rig.worker(9), rig.worker(9)]
    for worker in workers * 3:
        worker.rounds(2)
    for worker in workers:
        worker.crash()
    rig.worker(20).drain()
    outcomes = Counter(one.outcome for id_ in _ids(rig) for one in traced(rig, id_))
    ledger = rig.ledger()
    assert outcomes["trained"] + outcomes["trained_as_negative"] == ledger.trained > 0
    assert outcomes["waiting"] == ledger.pending
    for column in ("duplicate", "late", "expired", "withdrawn"):
        assert outcomes[column] == getattr(ledger, column), column
    assert outcomes["dead_lettered"] <= ledger.dead_lettered, "what has no id is nobody's"


def _ids(rig: Rig) -> list[str]:
    found = set()
    for topic in rig.log.topics.values():
        for record in [record for partition in topic.partitions for record in partition]:
            if record.value is None:
                found.add((record.key or b"").decode(errors="replace"))
                continue
            try:
                named = json.loads(record.value)
            except ValueError:
                continue
            if isinstance(named, dict) and isinstance(named.get("id"), str):
                found.add(named["id"])
    return sorted(found - {""})


def _restored(rig: Rig) -> Version:
    """Learn two commits and take the second one back; return it."""
    drained(rig, ("features", feature("a", 0), None), ("labels", label("a", 1), None))
    drained(rig, ("features", feature("b", 2), None), ("labels", label("b", 3), None))
    undone = rig.store.load().version
    rig.store.restore_previous(UNDONE)
    return undone


def test_what_was_undone_has_trained_nothing_until_it_is_learned_again() -> None:
    rig = Rig(rules=RULES)
    undone = _restored(rig)
    assert told(rig, "a") != []
    assert told(rig, "b") == []
    again = drained(rig)
    (commit,) = trained_by(traced(again, "b"))
    assert commit.version != undone
    assert commit.version.number > undone.number


def test_records_that_retention_took_are_named_with_the_place() -> None:
    rig = joined(("features", feature("a", 0)), ("features", feature("b", 1)), ("labels", label("a", 2)))
    rig.log.delete_before(TopicPartition("features", 0), 1)
    with pytest.raises(VerificationFailed, match="topic features, partition 0: the log begins at 1"):
        traced(rig, "b")


# -- a version -------------------------------------------------------------------------------------------------------


def document(rig: Rig, recipe: Callable[[str], Recipe | None] | None = None) -> dict[str, Any]:
    path, version = path_of(rig), rig.store.load().version
    summary = summarise(path, rig.store.commit_log())
    return version_document(version, len(path.links), summary, changes(summary.recipes, recipe or rig.store.recipe))


def _two_recipes() -> Rig:
    events = streams.joined(3, 150)
    rig = fill(Rig(partitions=4, rules=replace(RULES, window_ms=streams.WINDOW_MS)), events[:150])
    rig.worker().drain()
    rig.hyper = Hyper(learning_rate=0.3, batch_size=4)
    fill(rig, events[150:]).worker().drain()
    return rig


def test_a_version_tells_what_it_took_from_every_partition() -> None:
    rig = _two_recipes()
    found = json.loads(json.dumps(document(rig)))
    ends = {(s.topic, s.partition): rig.log.end(s) for s in rig.sources()}
    assert {(p["topic"], p["partition"]): p["next"] for p in found["partitions"]} == ends
    assert all((p["first"], p["records"]) == (0, p["next"]) for p in found["partitions"])
    assert found["trained"]["records"] == rig.ledger().consumed == sum(ends.values())
    assert found["trained"]["examples"] == rig.store.load().learner.examples
    assert found["trained"]["commits"] == found["log_entries"] - 1
    assert (found["root"], found["undone"]) == ("init", {"restore": 0, "rollback": 0})
    for name in ("workers", "kernels", "recipes"):
        assert sum(share["examples"] for share in found[name]) == found["trained"]["examples"], name


def test_recipes_are_told_by_what_differs_from_the_first() -> None:
    rig = _two_recipes()
    first, second = document(rig)["recipes"]
    assert first["differs"] == []
    assert {change["name"]: change["now"] for change in second["differs"]} == {
        "hyper.batch_size": 4, "hyper.clip_norm": 0.0, "hyper.l2": 0.0, "hyper.learning_rate": 0.3,
    }  # fmt: skip
    lost = document(rig, lambda digest: None if digest == second["digest"] else rig.store.recipe(digest))
    assert [recipe["kept"] for recipe in lost["recipes"]] == [True, False]


def test_a_version_counts_what_went_back_and_leaves_out_what_was_undone() -> None:
    rig = Rig(rules=RULES)
    _restored(rig)
    found = document(rig)
    assert found["undone"] == {"restore": 1, "rollback": 0}
    assert found["trained"]["examples"] == 1
    assert {span["next"] for span in found["partitions"]} == {1}


def test_a_version_before_anything_was_learned() -> None:
    found = document(Rig())
    assert (found["trained"]["commits"], found["workers"], found["partitions"]) == (0, [], [])


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Console:
    """A terminal of 80 columns that keeps what it shows."""
    made = Console(width=80, record=True, highlight=False, markup=False, force_terminal=True)
    monkeypatch.setattr("worker.cli.output.console", lambda: made)
    return made


def test_sixteen_workers_and_both_topics_of_32_partitions_fit_80_columns(screen: Console) -> None:
    share = {"commits": 12_345, "examples": 123_456_789, "records": 246_913_578, "first_at": "", "last_at": ""}
    shown = document(_two_recipes()) | {
        "workers": [{"worker": f"trainer-7d9c5b6f4-{i:05}-{i}", **share} for i in range(16)],
        "partitions": [
            {"topic": topic, "partition": i, "first": 1_000_000, "next": 123_456_790, "records": 122_456_790}
            for topic in ("flights.features.v1", "flights.labels.v1")
            for i in range(32)
        ],
    }
    print_version(shown)
    lines = screen.export_text().splitlines()
    assert max(len(line.rstrip()) for line in lines) <= 80
    assert len(lines) < 16 + 32 + 30, "a row a worker, a row a partition"
    assert sum("1 000 000 to 123 456 789" in line for line in lines) == 32, "no number is broken over two lines"


def test_an_event_is_told_in_one_sentence_and_a_row_a_record(screen: Console) -> None:
    rig = joined(("features", feature("a", 0)))
    drained(rig, ("labels", label("a", 5), None), ("labels", label("a", 6, 0), None))
    drained(rig, ("features", feature("b", 7), None))
    found = event_document("a", rig.store.load().version, traced(rig, "a"))
    assert [record["outcome"] for record in found["records"]] == ["trained", "trained", "dead_lettered"]
    assert found["records"][0]["taken"]["state_version"] == 1
    assert found["records"][0]["settled"]["state_version"] == 2
    assert found["trained"] == [found["records"][1]["settled"]]
    assert json.loads(json.dumps(found)) == found
    print_event(found)
    text = screen.export_text()
    assert "version 2; every later one up to 3 stands on it" in text
    assert "trained by 2" in text
    assert "dead lettered: label_conflict" in " ".join(text.split())
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
