"""What the demo reads from /metrics and how it shows it."""

import io

from rich.console import Console

from worker.local.figures import Figures, read
from worker.local.view import PLAIN_BARS, Scene, picture, plain_line, sparkline
from worker.observe import catalogue as c

TEXT = f"""\
# HELP gradstream_events_total Records
# TYPE gradstream_events_total counter
{c.EVENTS.name}{{outcome="trained",topic="features"}} 10.0
{c.EVENTS.name}{{outcome="trained",topic="labels"}} 10.0
{c.EVENTS.name}{{outcome="dead_lettered",topic="labels"}} 2.0
{c.EVENTS.name}{{outcome="expired",topic="features"}} 1.0
{c.PENDING.name}{{kind="features"}} 7.0
{c.PENDING.name}{{kind="labels"}} 0.0
{c.EXAMPLES.name} 10.0
{c.LOSS.name} 0.25
{c.GRAD_NORM_LAST.name} 1.5
{c.STATE_VERSION.name} 3.0
{c.EVALUATION.name}{{metric="accuracy",window="all"}} 0.8
{c.EVALUATION.name}{{metric="log_loss",window="1000"}} 0.4
{c.LAG.name}{{partition="0",topic="features"}} 4.0
{c.LAG.name}{{partition="1",topic="labels"}} 5.0
{c.HEALTH.name}{{state="starting"}} 0.0
{c.HEALTH.name}{{state="learning"}} 1.0
"""


def test_figures_are_read_from_the_text_of_metrics() -> None:
    now = Figures.read(TEXT)
    assert now.outcomes == {"trained": 20, "dead_lettered": 2, "expired": 1}
    assert now.settled == 23
    assert now.pending == {"features": 7, "labels": 0}
    assert now.evaluation == {("accuracy", "all"): 0.8, ("log_loss", "1000"): 0.4}
    assert (now.examples, now.value(c.LOSS), now.value(c.GRAD_NORM_LAST)) == (10, 0.25, 1.5)
    assert now.lags == {"features:0": 4, "labels:1": 5}
    assert (now.lag, now.health) == (9, "learning")


def test_figures_of_several_workers_are_summed_where_they_count() -> None:
    """Prometheus' own page adds labels to each worker's series."""
    both = "\n".join(TEXT.replace("{", f'{{instance="{n}",') for n in ("a", "b"))
    both += f'\n{c.EXAMPLES.name}{{instance="a"}} 1.0 1764000000000'
    now = Figures.read(both)
    assert now.settled == 46
    assert now.examples == 21
    assert now.value(c.STATE_VERSION) == 3.0


def test_before_the_first_figure_nothing_is_invented() -> None:
    now = Figures.read("")
    assert (now.settled, now.examples, now.lag, now.value(c.LOSS)) == (0, 0, None, None)
    assert now.health == "starting"


def test_nobody_answering_is_no_reading() -> None:
    assert read("http://127.0.0.1:1/metrics") is None
    assert read("file:///etc/hostname") is None


def test_a_sparkline_spans_from_lowest_to_highest_and_keeps_the_newest() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([9, 9, 0, 7], width=2) == "▁█"
    assert sparkline([3, 3, 3]) == "▁▁▁"
    assert sparkline([]) == ""


def drawn(scene: Scene) -> str:
    console = Console(file=io.StringIO(), width=160, force_terminal=False)
    console.print(picture(scene, PLAIN_BARS))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_picture_shows_what_was_learned_what_waits_what_was_refused_and_where_to_look() -> None:
    scene = Scene(
        Figures.read(TEXT), sent=40, total=100, event_ms=1_357_035_300_000, examples_per_s=12.0,
        losses=[0.5, 0.4], refused={"not_json": 2}, places={"metrics": "http://127.0.0.1:9/metrics"},
    )  # fmt: skip
    text = drawn(scene)
    for shown in ("01 Jan 2013 10:15 UTC", "40 of 100", "0.8000", "not_json", "http://127.0.0.1:9/metrics", "learning"):
        assert shown in text
    assert text.isascii() or "─" in text


def test_the_picture_can_be_drawn_before_anything_is_known() -> None:
    assert "starting" in drawn(Scene(Figures(), sent=0, total=0))


def test_without_a_terminal_the_same_is_one_line() -> None:
    line = plain_line(Scene(Figures.read(TEXT), sent=40, total=100))
    assert "\n" not in line
    for shown in (
        "sent 40/100",
        "examples 10",
        "accuracy 0.8000",
        "pending 7",
        "refused 2",
        "lag 9",
        "health learning",
    ):
        assert shown in line
