"""What commands make of a state, of partitions and of topics, without any server."""

import json
import zlib

import numpy as np
import pytest
from rich.console import Console

from worker.cli.connect import kafka_config, log_entry, quick_kafka_config, redis_store
from worker.cli.dead_letters import _escaped, _parse, _text
from worker.cli.output import figure, rfc3339
from worker.cli.state import state_document
from worker.cli.status import status_document
from worker.cli.status_view import print_status, spans
from worker.cli.topics import event_topics, missing_topics, other_topics
from worker.errors import ConfigError, StateCorrupted
from worker.learn.learner import Learner
from worker.learn.model import initial_state
from worker.learn.state import LearnerState
from worker.observe.last_turns import LastTurns
from worker.settings import Settings, load_settings
from worker.spec import Feature, Hyper, Spec, read_spec
from worker.state.checkpoint import digest
from worker.state.store import Checkpoint, Ledger, PartitionState, SideState, Version
from worker.stream.rows import Examples

SPEC = Spec((Feature("carrier", "categorical", bits=3), Feature("x1")))


def settings(**flags: str) -> Settings:
    given = {key.replace("__", "."): value for key, value in flags.items()}
    return load_settings(None, {"model.features": '[{"name": "x1"}]'} | given, environ={})


def learned(spec: Spec = SPEC, rows: int = 200) -> LearnerState:
    draw = np.random.default_rng(5)
    dense = draw.normal(size=(rows, 1))
    buckets = draw.integers(0, 8, size=(rows, 1))
    labels = (dense[:, 0] > 0).astype(np.float64)
    state, _ = Learner(spec, Hyper())(initial_state(spec), Examples(dense, buckets, labels, np.ones(rows)))
    return state


def checkpoint(state: LearnerState, spec: Spec = SPEC) -> Checkpoint:
    document = json.loads(json.dumps(spec.document()))
    return Checkpoint(Version(7, "ab"), document, "numpy", frozenset({0}), state)


def partition(number: int, ledger: Ledger, clock: int) -> PartitionState:
    side = SideState("features", "", 10, clock, clock, 5, b"", b"")
    return PartitionState(number, ledger, (side,))


def test_the_spec_stored_with_a_state_is_read_back() -> None:
    for spec in (SPEC, Spec((Feature("a", missing="zero", max_abs=5.0),), task="regression", reduction="sum")):
        assert read_spec(json.loads(json.dumps(spec.document()))) == spec


@pytest.mark.parametrize("document", [{}, {"features": [{"nam": "a"}]}, {"features": [], "colour": 1}])
def test_a_stored_spec_that_is_none_of_ours_is_corrupt(document: dict[str, object]) -> None:
    with pytest.raises(StateCorrupted):
        read_spec(document)


def test_state_show_names_parameters() -> None:
    state = learned()
    shown = json.loads(json.dumps(state_document(checkpoint(state)), allow_nan=False))
    assert shown["state_version"] == 7
    assert shown["digest"] == digest(state)
    assert shown["spec_digest"] == SPEC.digest()
    assert shown["dtype"] == "float64"
    assert list(shown["weights"]) == ["carrier", "x1"]
    assert shown["weights"]["x1"] == state.arrays["weight"][0] != 0
    assert shown["intercept"] == state.arrays["intercept"][0]
    assert set(shown["normalizer"]) == {"x1"}
    assert shown["normalizer"]["x1"]["count"] == 200


def test_status_adds_up_partitions_and_is_strict_json() -> None:
    partitions = [
        partition(0, Ledger(consumed=5, trained=4, pending=1), 1_700_000_000_000),
        partition(1, Ledger(consumed=3, trained=2, late=1), -1),
    ]
    document = status_document("m", checkpoint(learned()), partitions, [], None)
    plain = json.loads(json.dumps(document, allow_nan=False))
    assert list(plain) == [
        "model", "state_version", "examples", "steps", "ledger", "evaluation", "health", "workers", "turns", "lag",
    ]  # fmt: skip
    assert plain["turns"] is None
    assert plain["ledger"] == {
        "consumed": 8, "trained": 6, "dead_lettered": 0, "expired": 0, "duplicate": 0, "late": 1, "withdrawn": 0,
        "control": 0, "pending": 1,
    }  # fmt: skip
    assert (plain["examples"], plain["steps"], plain["lag"]) == (200, 4, None)
    assert plain["evaluation"]["accuracy"] > 0.5
    assert plain["evaluation"]["mae"] is None
    assert set(plain["evaluation"]["windows"]) == {"100", "1000"}
    assert set(plain["health"]) == {"state", "reasons"}


def alive(name: str, partitions: list[int], turns: dict[str, object], **more: object) -> dict[str, object]:
    lag = {f"features:{n}": 3 for n in partitions}
    return {"worker": name, "partitions": partitions, "lag": lag, "kernel": "numpy", "turns": turns} | more


BUSY: dict[str, object] = {"count": 30, "wait_ms": 20.0, "examples": 800.0, "staleness": 2.0, "conflicts": 10}
SLOW: dict[str, object] = {"count": 10, "wait_ms": 120.0, "examples": 400.0, "staleness": 6.0, "conflicts": 0}
NONE = LastTurns().facts()


def test_status_puts_the_turns_of_all_living_workers_together() -> None:
    """A worker that took no turn counts as a worker, and moves no mean."""
    workers: list[dict[str, object]] = [
        alive("a", [0], BUSY),
        alive("b", [1], SLOW),
        alive("c", [], NONE),
        {"worker": "older"},
    ]
    document = status_document("m", checkpoint(learned()), [], workers, None)
    assert document["turns"] == {
        "workers": 4,
        "conflict_rate": 0.2,
        "wait_ms": 45.0,
        "examples": 700.0,
        "staleness": 3.0,
    }
    assert document["workers"] == workers


def test_turns_of_workers_that_took_none_are_undefined() -> None:
    document = status_document("m", checkpoint(learned()), [], [alive("a", [], NONE)], None)
    assert document["turns"] == {
        "workers": 1, "conflict_rate": None, "wait_ms": None, "examples": None, "staleness": None,
    }  # fmt: skip


@pytest.mark.parametrize("count", [1, 16])
@pytest.mark.parametrize("width", [80, 120])
def test_every_worker_has_a_line_and_a_sentence_is_said_once(
    count: int, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two of sixteen are idle for the same reason: it is told once, below, with their names."""
    reason = "no partition is assigned to this worker"
    workers = [alive(f"host-4711-{n}", [n, n + 16, n + 17], BUSY, notes=["look [here]"]) for n in range(count)]
    workers += [alive(name, [], NONE, waits_for=reason) for name in ("spare-1", "spare-2")]
    monkeypatch.setattr("worker.cli.status_view.console", lambda: Console(width=width, highlight=False, markup=False))
    document = status_document("m", checkpoint(learned()), [], workers, None)
    print_status(document, {}, None)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    rows = [line.split() for line in lines if line.startswith(("host-4711-", "spare-"))]
    assert len(rows) == count + 2
    assert rows[0] == ["host-4711-0", "0,", "16-17", "9", "20", "800", "2.0", "25%"]
    assert rows[-1] == ["spare-2", "none", "-", "-", "-", "-", "-"]
    text = " ".join(" ".join(lines).split())
    assert text.count(reason) == text.count("look [here]") == 1
    assert f"{reason} (spare-1, spare-2)" in text
    assert f"turns 800 examples each, after waiting 20 ms; 2.0 turns of others in between; {0.25:.1%} learned" in text


def test_partitions_that_follow_each_other_are_written_as_a_span() -> None:
    assert [spans(numbers) for numbers in ([], [3], [1, 0], [0, 1, 2, 3, 7, 9, 10])] == ["", "3", "0-1", "0-3, 7, 9-10"]


@pytest.mark.parametrize("rows", [0, 200])
def test_status_for_people_shows_everything(rows: int, capsys: pytest.CaptureFixture[str]) -> None:
    worker: dict[str, object] = {
        "worker": "w-1",
        "host": "here",
        "partitions": [0, 1],
        "waits_for": "labels",
        "notes": ["look [here]"],
    }
    state = learned(rows=rows) if rows else initial_state(SPEC)
    document = status_document("m", checkpoint(state), [partition(0, Ledger(consumed=5, pending=5), 9)], [worker], None)
    print_status(document, {"features": 1_700_000_000_000}, "train.reduction")
    out = capsys.readouterr().out
    for words in ("version 7", "Kafka does not answer", "2023-11-14T22:13:20.000Z", "train.reduction", "pending"):
        assert words in out
    for words in ("w-1 on here", "0-1", "waits  labels", "note   look [here]", "turns       none yet"):
        assert words in out
    assert ("log loss" in out) is bool(rows)
    document["workers"], document["lag"] = [], {"features:0": 12_000, "labels:0": 0}
    print_status(document, {}, None)
    out = capsys.readouterr().out
    assert "no worker is running" in out
    assert "12 000 records, most in features:0 (12 000)" in out


def test_topics_follow_the_mode() -> None:
    joined, inline = settings(), settings(stream__mode="inline", stream__metrics_topic="")
    assert event_topics(joined) == ("features", "labels")
    assert other_topics(joined) == ("dead-letters", "metrics")
    assert event_topics(inline) == ("examples",)
    assert other_topics(inline) == ("dead-letters",)


def test_missing_topics_are_co_partitioned_with_what_is_there() -> None:
    """With other numbers of partitions an event and its label would never meet."""
    events, others = ("features", "labels"), ("dead-letters",)
    assert missing_topics(events, others, {}, 4) == {"features": 4, "labels": 4, "dead-letters": 1}
    assert missing_topics(events, others, {"features": 7}, 4) == {"labels": 7, "dead-letters": 1}
    assert missing_topics(events, others, {"features": 7, "labels": 7, "dead-letters": 3}, 4) == {}


def test_positions_are_read_strictly() -> None:
    assert _parse("features:0:17") == ("features", 0, 17)
    for wrong in ("features", "features:0", ":0:17", "features:0:", "features:-1:2", "features:a:2", "a:b:0:1x"):
        with pytest.raises(ConfigError, match="TOPIC:PARTITION:OFFSET"):
            _parse(wrong)


def test_bytes_are_shown_so_that_they_can_not_command_the_terminal() -> None:
    assert _text(None) is None
    assert _text(b"") == ""
    assert _text('{"id": "é"}'.encode()) == '{"id": "é"}'
    assert _text(b"\xff\x1b[31m\x00\n\r") == "\\xff\\x1b[31m\\x00\\n\\r"
    assert _escaped("\u202eabc") == "\\u202eabc"


def test_times_and_numbers_are_written_one_way() -> None:
    assert rfc3339(1_764_000_000_123) == "2025-11-24T16:00:00.123Z"
    assert rfc3339(-1) is None
    assert rfc3339(None) is None
    assert [figure(v) for v in (None, 1_234_567, 0.46051, 0.0, 1e-9, 1e9, True)] == [
        "-", "1 234 567", "0.4605", "0.0000", "1e-09", "1e+09", "yes",
    ]  # fmt: skip


def test_connections_carry_the_settings() -> None:
    s = settings(
        kafka__bootstrap_servers="a:1,b:2",
        kafka__security_protocol="SASL_SSL",
        kafka__sasl_mechanism="PLAIN",
        kafka__sasl_username="me",
        kafka__sasl_password="secret",
        kafka__ssl_cafile="ca.pem",
        stream__max_event_bytes="20000000",
    )
    config = kafka_config(s)
    assert (config.bootstrap_servers, config.group_id, config.session_timeout_ms) == (
        "a:1,b:2",
        "gradstream-model",
        10000,
    )
    assert (config.sasl_username, config.sasl_password, config.ssl_cafile) == ("me", "secret", "ca.pem")
    assert config.max_partition_fetch_bytes > 20_000_000
    assert quick_kafka_config(s).bootstrap_timeout_ms < config.bootstrap_timeout_ms
    assert redis_store(s).model == "model"


def test_a_commit_log_entry_of_a_command_learns_nothing() -> None:
    entry = log_entry("reset", settings(), "command", "numpy")
    assert (entry.kind, entry.worker, entry.examples, entry.consumed.records) == ("reset", "command", 0, 0)
    assert zlib.decompress(entry.consumed.order) == b""
    assert entry.settings_digest == settings().digest()
