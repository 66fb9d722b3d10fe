"""What ships beside the program: checked against the metric catalogue, the settings and the documentation."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from worker.local.flights_settings import flights_settings
from worker.observe.catalogue import CATALOGUE, Metric
from worker.settings.load import load_settings

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "ops/grafana/dashboards/gradstream.json"
RULES = ROOT / "ops/prometheus/rules.yml"
COMPOSE = (ROOT / "docker-compose.yml").read_text()
DOCKERFILE = (ROOT / "ops/docker/Dockerfile").read_text()
OPERATIONS = (ROOT / "docs/operations.md").read_text()

SELECTOR = re.compile(r"(gradstream_[a-z_]+)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)\s*(=~|!=|!~|=)\s*"([^"]*)"')


def series_names() -> dict[str, Metric]:
    """Return every name that can be asked for: a histogram has three, and never its own."""
    names: dict[str, Metric] = {}
    for metric in CATALOGUE:
        suffixes = ("_bucket", "_sum", "_count") if metric.type == "histogram" else ("",)
        names |= {metric.name + suffix: metric for suffix in suffixes}
    return names


def dashboard_expressions() -> list[str]:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel["targets"]]


def rule_expressions() -> list[str]:
    """Take what follows `expr:` up to the next key; the rules are written with keys on their own lines."""
    return re.findall(r"expr: ((?:.|\n)+?)\n +(?:for|labels):", RULES.read_text())


def selectors(expressions: list[str]) -> Iterator[tuple[str, str]]:
    for expression in expressions:
        yield from SELECTOR.findall(expression)


EXPRESSIONS = [*dashboard_expressions(), *rule_expressions()]


def test_there_is_something_to_check() -> None:
    assert len(dashboard_expressions()) > 20
    assert len(rule_expressions()) == RULES.read_text().count("- alert:") > 10


def test_every_metric_in_panels_and_alerts_exists_and_is_built() -> None:
    known = series_names()
    for name, _ in selectors(EXPRESSIONS):
        assert name in known, name
        assert known[name].built, name


def test_every_label_and_label_value_in_panels_and_alerts_can_occur() -> None:
    known = series_names()
    for name, matchers in selectors(EXPRESSIONS):
        metric = known[name]
        for label, operator, value in MATCHER.findall(matchers):
            if label in {"job", "instance"}:
                continue
            assert label in metric.labels, (name, label)
            closed = metric.values.get(label)
            if closed:
                wanted = value.split("|") if "~" in operator else [value]
                assert set(wanted) <= set(closed), (name, label, value)


def test_labels_grouped_by_in_panels_and_alerts_exist() -> None:
    known = series_names()
    for expression in EXPRESSIONS:
        labels = {label for name, _ in selectors([expression]) for label in known[name].labels}
        for group in re.findall(r"by \(([^)]*)\)", expression):
            assert set(group.replace(" ", "").split(",")) <= labels | {"le", "instance"}, expression


def test_rates_are_taken_of_counters_only() -> None:
    known = series_names()
    for expression in EXPRESSIONS:
        for name in re.findall(r"(?:rate|increase)\((gradstream_\w+)", expression):
            assert known[name].type in {"counter", "histogram"}, expression
        for name in re.findall(r"deriv\((gradstream_\w+)", expression):
            assert known[name].type == "gauge", expression


def test_the_dashboard_shows_what_was_promised() -> None:
    shown = " ".join(dashboard_expressions())
    for needed in ("loss", "grad_norm_bucket", "examples_total", "consumer_lag_records", "pending", "dead_lettered"):
        assert needed in shown


def test_panels_do_not_overlap_and_have_ids_of_their_own() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_the_dashboard_asks_the_provisioned_data_source() -> None:
    text = DASHBOARD.read_text()
    (uid,) = re.findall(r"uid: (\S+)", (ROOT / "ops/grafana/provisioning/datasources/prometheus.yml").read_text())
    assert set(re.findall(r'"uid": "([^"]+)"', text)) == {uid, "gradstream"}


def test_every_alert_has_a_case_and_a_paragraph() -> None:
    alerts = re.findall(r"- alert: (\w+)", RULES.read_text())
    tested = (ROOT / "ops/prometheus/rules_test.yml").read_text()
    for alert in alerts:
        assert tested.count(f"alertname: {alert}") >= 2, f"{alert}: a case where it fires, one where it does not"
        assert f"`{alert}`" in OPERATIONS, alert
    assert set(re.findall(r"^\| `([A-Z]\w+)`", OPERATIONS, re.MULTILINE)) == set(alerts)


def test_the_documented_metrics_are_those_of_the_catalogue() -> None:
    rows = re.findall(r"^\| `(gradstream_\w+)`(?: \{([^}]*)\})? \| (\w+) \| (.+) \|$", OPERATIONS, re.MULTILINE)
    documented = [(name, tuple(labels.split(", ")) if labels else (), kind) for name, labels, kind, _ in rows]
    assert documented == [(m.name, m.labels, m.type) for m in CATALOGUE]
    meanings = {name: meaning for name, _, _, meaning in rows}
    for metric in CATALOGUE:
        later = "" if metric.built else " *Not in this version.*"
        assert meanings[metric.name] == metric.help.replace("|", "\\|") + later


def test_every_port_is_bound_to_the_loopback_address() -> None:
    ports = re.findall(r'^ +- "([^"]*:\d+)"$', COMPOSE, re.MULTILINE)
    assert len(ports) == 5
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_images_are_pinned() -> None:
    images = re.findall(r"image: (\S+)", COMPOSE) + re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)
    assert len(images) == 8
    assert all(re.search(r":(local|v?\d+\.\d+\S*)$", image) for image in images), images


def test_redis_neither_forgets_nor_evicts() -> None:
    assert '"--appendonly", "yes"' in COMPOSE
    assert '"--maxmemory-policy", "noeviction"' in COMPOSE


@pytest.mark.parametrize("only_buildkit", ["--mount", "--link", "<<", "# syntax=", "--chmod", "--exclude"])
def test_the_image_builds_with_the_classic_builder(only_buildkit: str) -> None:
    instructions = [line for line in DOCKERFILE.splitlines() if not line.startswith("# ") or "syntax=" in line]
    assert only_buildkit not in "\n".join(instructions)


def test_the_image_runs_as_nobody_special_and_names_no_registry() -> None:
    assert re.search(r"^USER 10001", DOCKERFILE, re.MULTILINE)
    assert 'ARG TORCH_INDEX=""' in DOCKERFILE
    assert not re.search(r"https?://(?!127\.0\.0\.1)", DOCKERFILE)


def test_the_image_holds_nothing_but_the_program() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert ignored[ignored.index("*") + 1 :] == [
        "!pyproject.toml",
        "!README.md",
        "!LICENSE",
        "!worker",
        "**/__pycache__",
        "**/*.pyc",
    ]


def test_the_stack_learns_what_the_demo_learns(tmp_path: Path) -> None:
    """The file is written for people; a difference from the demo's settings would be an accident."""
    demo = tmp_path / "demo.toml"
    demo.write_text(
        flights_settings(
            bootstrap_servers="kafka:9092", redis_url="redis://redis:6379/0", http_host="0.0.0.0", http_port=9108
        )
    )
    stack = load_settings(ROOT / "ops/docker/gradstream.toml", {}, environ={})
    assert stack.shown() == load_settings(demo, {}, environ={}).shown()


def test_the_stacks_settings_match_its_addresses() -> None:
    settings = load_settings(ROOT / "ops/docker/gradstream.toml", {}, environ={})
    assert f"INTERNAL://{settings.kafka.bootstrap_servers}" in COMPOSE
    assert settings.redis.url.get_secret_value() == "redis://redis:6379/0"
    assert settings.observe.http_host == "0.0.0.0"
    port = settings.observe.http_port
    assert f'"127.0.0.1::{port}"' in COMPOSE
    assert f"port: {port}" in (ROOT / "ops/prometheus/prometheus.yml").read_text()
    assert f"'{port}'" in DOCKERFILE
