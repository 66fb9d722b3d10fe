"""Replay: whatever several workers did, one that follows the commit log comes to the same bytes, commit by commit."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.e2e import streams
from tests.fakes.reader import FakeReader
from tests.fakes.source import FakeRecord
from tests.unit.rig import QUICK, Rig, Worker
from tests.unit.streams_in_memory import fill
from worker.learn.kernel import Kernel
from worker.lineage.chain import Chain, Path
from worker.lineage.recipe_here import code, software
from worker.lineage.replay import Joining, Replay, empty
from worker.lineage.verify import Here, Verdict, learner, verify
from worker.spec import Hyper, Reduction
from worker.state.commit_log import LoggedCommit
from worker.state.store import LogEntry
from worker.stream.join import JoinRules
from worker.stream.positions import Consumed, Ledger
from worker.stream.records import TopicPartition

RULES = JoinRules(window_ms=streams.WINDOW_MS, remember=150)
JOINED = streams.joined(3, 150)
INLINE = list(streams.inline(4, 250))
COMPUTED: list[tuple[Reduction, Kernel]] = [
    ("sequential", "numpy"), ("sequential", "numba"), ("mean", "numpy"), ("sum", "numpy"),
]  # fmt: skip


def _rig(joined: bool = True, partitions: int = 4, **changes: Any) -> Rig:
    rig = Rig(joined=joined, partitions=partitions, rules=RULES, **changes)
    return fill(rig, JOINED if joined else INLINE)


def _replay(rig: Rig, path: Path) -> Replay:
    joining = Joining(FakeReader(rig.log), path.firsts)
    return Replay(rig.store.recipe, learner, joining, empty(rig.spec))


def _verify(rig: Rig, number: int | None = None, log: list[LoggedCommit] | None = None) -> tuple[Verdict, Replay]:
    log = list(rig.store.commit_log()) if log is None else log
    tip = rig.store.load().version
    chain = Chain(log)
    path = chain.path(chain.find(tip.number if number is None else number, tip))
    replay = _replay(rig, path)
    here = Here(software("numpy"), code())
    return verify(path, log, replay, rig.store.recipe, lambda _: here, lambda _: None), replay


@pytest.mark.parametrize(("reduction", "kernel"), COMPUTED)
@settings(max_examples=12, deadline=None)
@given(data=st.data(), joined=st.booleans())
def test_many_workers_in_any_interleaving_are_one_worker_that_reads_the_logs_order(
    data: st.DataObject, joined: bool, reduction: Reduction, kernel: Kernel
) -> None:
    """G3: nothing is merged, so nothing about the number of workers, their crashes or their order is left in the state."""
    rig = _rig(joined)
    rig.spec, rig.kernel = replace(rig.spec, reduction=reduction), kernel
    rig = _rig(joined, spec=rig.spec, kernel=kernel)
    workers = [
        rig.worker(data.draw(st.integers(1, 200), "records a poll")) for _ in range(data.draw(st.integers(2, 4)))
    ]
    for index in data.draw(st.lists(st.integers(0, 5), max_size=50), "who runs, or dies"):
        if index < len(workers):
            workers[index].rounds(1)
        elif len(workers) > 1 and index == 5:
            workers.pop().crash()
            workers.append(rig.worker())
    for worker in workers:
        worker.crash()
    rig.worker().drain()
    verdict, replay = _verify(rig)
    assert verdict.equal, verdict.reason
    assert verdict.digest == rig.digest()
    assert sum(replay.joining.ledgers().values(), Ledger()) == rig.ledger()


def test_the_log_is_an_unbroken_chain() -> None:
    rig = _rig()
    for worker in (rig.worker(), rig.worker()):
        worker.rounds(4)
        worker.crash()
    rig.worker().drain()
    log = list(rig.store.commit_log())
    assert all(commit.base == before.version for before, commit in pairwise(log))


def _run(rig: Rig, *rounds: Callable[[Worker], None]) -> None:
    for step in rounds:
        worker = rig.worker()
        step(worker)
        worker.crash()


def test_a_commit_under_other_rules_is_taken_under_those() -> None:
    """Settings changed between runs: the partition is rebuilt as the worker that came after rebuilt it."""
    rig = _rig()
    _run(rig, lambda worker: worker.rounds(6))
    rig.rules = replace(RULES, remember=3, window_ms=RULES.window_ms // 2)
    rig.hyper = Hyper(learning_rate=0.3, batch_size=4)
    _run(rig, lambda worker: worker.rounds(6))
    rig.rules = RULES
    rig.worker().drain()
    assert len({commit.entry.recipe for commit in rig.store.commit_log() if commit.entry.recipe}) == 3
    verdict, _ = _verify(rig)
    assert verdict.equal, verdict.reason


def test_what_was_undone_is_on_no_path_that_leads_further() -> None:
    rig = _rig()
    _run(rig, lambda worker: worker.rounds(8))
    undone = rig.store.load().version
    rig.store.restore_previous(LogEntry("restore", "command", Consumed((), b"", 0), 0, 8, "numpy", "", ""))
    rig.worker().drain()
    log = list(rig.store.commit_log())
    assert undone in {commit.version for commit in log}
    chain = Chain(log)
    path = chain.path(chain.find(rig.store.load().version.number, rig.store.load().version))
    assert undone not in path.versions
    assert _verify(rig)[0].equal
    assert _verify(rig, undone.number)[0].equal, "what was undone can still be verified for itself"


def test_a_store_that_went_back_leaves_a_log_that_verifies() -> None:
    rig = _rig()
    worker = rig.worker(40)
    worker.rounds(5)
    past = rig.server.snapshot()
    worker.rounds(5)
    rig.server.go_back(past)
    worker.drain()
    assert _verify(rig)[0].equal


def test_a_kept_state_is_as_good_a_beginning_as_the_root() -> None:
    rig = _rig()
    _run(rig, lambda worker: worker.rounds(8))
    kept, partitions = rig.store.load(), [stored.state for stored in rig.store.partitions()]
    rig.worker().drain()
    log = list(rig.store.commit_log())
    chain = Chain(log)
    path = chain.path(rig.store.load().version, kept.version)
    joining = Joining(FakeReader(rig.log), path.firsts)
    joining.begin(partitions)
    replay = Replay(rig.store.recipe, learner, joining, kept.learner)
    here = Here({}, "")
    verdict = verify(path, log, replay, rig.store.recipe, lambda _: here, lambda _: None)
    assert verdict.equal, verdict.reason
    assert 0 < verdict.commits < len(log)
    assert verdict.digest == rig.digest()


def test_markers_between_a_clock_that_followed_and_the_first_record_accuse_nobody() -> None:
    """What the log names as first is then where reading had come to, before a transaction's marker was read."""
    rig = Rig(pace=replace(QUICK, advance_idle_labels=True), rules=RULES)
    worker = rig.worker()
    rig.append("features", b'{"id": "a", "ts": 1764000000000, "features": {"x1": 1, "x2": 2, "carrier": "AA"}}')
    for _ in range(4):
        worker.loop.run_once()
    met = b'{"id": "a", "ts": 1764000000001, "label": 1}'
    rig.log.append("labels", 0, FakeRecord(None, None, deliverable=False), FakeRecord(None, met))
    worker.drain()
    verdict, replay = _verify(rig)
    assert verdict.equal, verdict.reason
    assert replay.examples == 1


def _broken(rig: Rig, log: list[LoggedCommit]) -> Verdict:
    verdict, _ = _verify(rig, log=log)
    assert not verdict.equal
    return verdict


def test_a_record_that_was_changed_is_found_at_the_first_commit_that_took_it() -> None:
    rig = _rig(joined=False, partitions=1)
    rig.worker().drain()
    records = rig.log.topics["examples"].partitions[0]
    place = next(i for i, r in enumerate(records) if i > 90 and r.value and b'"label": 1' in r.value)
    value = records[place].value
    assert value is not None
    records[place] = replace(records[place], value=value.replace(b'"label": 1', b'"label": 0'))
    verdict = _broken(rig, list(rig.store.commit_log()))
    assert verdict.failed is not None
    assert any(
        first <= place < first + verdict.failed.entry.consumed.records
        for _, _, first in verdict.failed.entry.consumed.sources
    )


def test_retention_is_named_with_the_place() -> None:
    rig = _rig(partitions=1)
    rig.worker().drain()
    rig.log.delete_before(TopicPartition("features", 0), 20)
    verdict = _broken(rig, list(rig.store.commit_log()))
    assert "topic features, partition 0" in verdict.reason
    assert "begins at 20" in verdict.reason


def test_a_recipe_that_is_not_kept_is_named() -> None:
    rig = _rig()
    rig.worker().drain()
    log = list(rig.store.commit_log())
    changed = log[3]
    log[3] = changed._replace(entry=_with(changed.entry, recipe="ab" * 32))
    verdict = _broken(rig, log)
    assert verdict.failed is log[3]
    assert "recipe" in verdict.reason


def test_what_computes_otherwise_here_is_named_where_a_digest_differs() -> None:
    rig = _rig()
    rig.worker().drain()
    log = list(rig.store.commit_log())
    log[3] = log[3]._replace(digest="0" * 64)
    verdict = _broken(rig, log)
    assert verdict.failed is log[3]
    assert "code" in verdict.reason  # the rig's recipes name no code


def test_a_missing_commit_is_told_with_the_remedy() -> None:
    rig = _rig()
    rig.worker().drain()
    log = list(rig.store.commit_log())
    del log[2]
    with pytest.raises(Exception, match="does not go back to the beginning"):
        _verify(rig, log=log)


def test_an_unknown_version_is_refused_with_those_that_are_known() -> None:
    rig = _rig()
    rig.worker().drain()
    with pytest.raises(Exception, match="there is no state version 99999: versions 0 to"):
        _verify(rig, 99999)


def _with(entry: LogEntry, **changes: Any) -> LogEntry:
    return LogEntry(**{name: getattr(entry, name) for name in entry.__struct_fields__} | changes)
