"""The pieces of the bench, at sizes that take no time: they run, and what they report is what they were given."""

import io
import json

import pytest
from rich.console import Console

from ops.bench import __main__ as bench
from ops.bench import decode, end_to_end, events, join, learner, memory, report
from ops.bench.figure import Figure, cost, rate, timed
from ops.bench.machine import describe, processor_seconds
from ops.bench.sizes import Sizes
from worker.observe.prometheus import Identity, Meters
from worker.stream.events import Decoder

TINY = Sizes(examples=50, rounds=1, repeats=1, micro=200, batch_sizes=(1, 64), pending=(10,), waiting=300)


def test_events_are_of_the_size_that_is_claimed_and_decode_plainly() -> None:
    records = [events.feature(i) for i in range(300)]
    assert 470 < sum(len(value) for _, _, value in records) / len(records) < 490
    assert not Decoder(events.SPEC, "features").decode(decode.chunk(records)).refusals


def test_joined_events_are_whole_and_labels_follow_a_thousand_records_later() -> None:
    sent = list(events.joined(1500))
    assert sent.count(events.feature(0)) == sent.count(events.label(1499)) == 1
    assert len(sent) == 3000
    assert sent.index(events.label(0)) == events.DELAY + 1


def test_the_measured_join_finishes_every_example() -> None:
    assert join.run(join.decoded(12_000)) == 12_000


def test_the_measured_examples_are_those_that_are_sent() -> None:
    rows = learner.examples(3)
    event = json.loads(events.example(2)[2])
    assert rows.dense[2].tolist() == list(event["features"].values())
    assert rows.labels[2] == event["label"]


def test_waiting_features_take_memory() -> None:
    assert memory.bytes_each(5000) >= 0


@pytest.mark.parametrize("name", bench.PURE)
def test_each_figure_without_servers_comes_out(name: str) -> None:
    figures = bench.run([name], TINY)
    assert figures
    assert all(figure.value >= 0 and figure.unit for figure in figures)


def test_targets_are_judged_by_the_best_repeat() -> None:
    assert cost("c", "s", [3.0, 1.0, 2.0], at_most=1.0) == Figure("c", "s", 2.0, 1.0, "≤ 1", met=True)
    assert cost("c", "s", [3.0, 1.1, 2.0], at_most=1.0).met is False
    assert rate("r", "1/s", [3.0, 1.0, 2.0], at_least=3.0) == Figure("r", "1/s", 2.0, 3.0, "≥ 3", met=True)
    assert rate("r", "1/s", [2.0]).met is None


@pytest.mark.parametrize(
    ("seconds", "met"),
    [((10.0, 12.0), True), ((10.0, 17.0), False), ((6.0, 100.0), True)],
    ids=["by the share", "by neither", "by the rate"],
)
def test_end_to_end_is_met_by_the_rate_or_by_the_share(seconds: tuple[float, float], *, met: bool) -> None:
    client, worker = (end_to_end.Run(s, s, {"poll": 1.0}) for s in seconds)
    if met and seconds[0] == 6.0:
        client, worker = worker, client
    assert end_to_end.whole("joined", [worker], [client], 200_000).met is met


def test_stages_are_read_from_what_a_worker_serves() -> None:
    meters = Meters(Identity("0", "m", "binary", "numpy"), ["features"])
    meters.stage("poll", 1.5)
    meters.stage("learn", 0.5)
    spent = end_to_end.stage_seconds(meters.text("")[0].decode())
    assert (spent["poll"], spent["learn"], spent["commit"]) == (1.5, 0.5, 0.0)


def test_a_worker_that_has_ended_has_no_stages() -> None:
    assert end_to_end.scrape("http://127.0.0.1:9") == {}
    assert processor_seconds(2**31) == 0.0


def test_table_and_document_hold_every_figure() -> None:
    figures = [cost("one", "ms", [1.0], 2.0, {"p95": 1.5}), rate("two", "1/s", [12_345.6], 20_000)]
    screen = io.StringIO()
    Console(file=screen, width=160).print(report.table(describe(), figures))
    assert all(
        text in screen.getvalue() for text in ("one", "met", "two", "short", "12,346", "p95 1.5", "load_average")
    )
    document = json.loads(json.dumps(report.document(describe(), figures)))
    assert [figure["name"] for figure in document["figures"]] == ["one", "two"]
    assert document["machine"]["cores"]


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench.main(["speed"])
    assert "no such figure: speed" in capsys.readouterr().err


def test_repeats_are_counted_and_scaled() -> None:
    calls: list[int] = []
    assert len(timed(lambda: calls.append(1), 3, 1e6)) == len(calls) == 3
