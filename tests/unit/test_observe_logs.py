"""What reaches stderr."""

import io
import json
import logging
import re
from collections.abc import Iterator

import pytest
import structlog

from worker.observe.logs import MASK, Sparing, configure_logs, get_logger


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root, ours = logging.getLogger(), logging.getLogger("gradstream")
    before = (root.handlers, root.level, ours.level)
    yield io.StringIO()
    root.handlers, root.level, ours.level = before
    structlog.reset_defaults()


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_json_with_time_level_event_identity_and_position(stream: io.StringIO) -> None:
    configure_logs(model="flights", worker="w-1", stream=stream)
    get_logger().info("dead letter", topic="features", partition=3, offset=41, id="e-3")
    (line,) = lines(stream)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z", str(line.pop("timestamp")))
    assert line == {
        "event": "dead letter",
        "level": "info",
        "model": "flights",
        "worker": "w-1",
        "topic": "features",
        "partition": 3,
        "offset": 41,
        "id": "e-3",
    }


def test_a_logger_made_before_the_set_up_follows_it(stream: io.StringIO) -> None:
    early = get_logger(part="loop")
    configure_logs(stream=stream)
    early.info("here")
    assert lines(stream)[0]["part"] == "loop"


def test_levels_below_the_one_in_force_are_silent(stream: io.StringIO) -> None:
    configure_logs("warning", stream=stream)
    get_logger().info("nothing")
    get_logger().warning("something")
    assert [line["event"] for line in lines(stream)] == ["something"]


def test_secrets_are_masked_by_key_and_in_urls(stream: io.StringIO) -> None:
    configure_logs(stream=stream)
    get_logger().info(
        "settings",
        sasl_plain_password="hunter2",
        redis={"url": "redis://user:hunter2@host:6379/0", "password": "hunter2", "db": 0},
        passphrase=b"hunter2",
        urls=["rediss://:hunter2@host"],
        ssl_keyfile_secret="hunter2",
    )
    text = stream.getvalue()
    assert "hunter2" not in text
    assert f"redis://{MASK}@host:6379/0" in text
    assert f"rediss://{MASK}@host" in text


def test_payloads_never_reach_a_line(stream: io.StringIO) -> None:
    configure_logs(stream=stream)
    secret = "4111-1111"
    get_logger().warning(
        "refused",
        value=secret,
        features={"card": secret},
        raw=secret.encode(),
        context={"payload": secret, "offset": 4},
        detail="x" * 5000,
    )
    text = stream.getvalue()
    assert secret not in text
    (line,) = lines(stream)
    assert line["raw"] == "<9 bytes>"
    assert line["context"] == {"offset": 4}
    assert len(text) < 1500


def test_a_topic_may_be_called_features(stream: io.StringIO) -> None:
    configure_logs(stream=stream)
    get_logger().info("partition claimed", offsets={"features": 12, "labels": 7})
    assert lines(stream)[0]["offsets"] == {"features": 12, "labels": 7}


def test_a_line_is_strict_json_whatever_is_in_it(stream: io.StringIO) -> None:
    configure_logs(stream=stream)
    get_logger().warning("odd", loss=float("nan"), text='a\n"b"\u2028', thing=object())
    (line,) = lines(stream)
    assert line["loss"] == "nan"
    assert stream.getvalue().count("\n") == 1


def test_other_libraries_speak_in_the_same_lines_from_warning_on(stream: io.StringIO) -> None:
    configure_logs(model="flights", stream=stream)
    logging.getLogger("redis.connection").info("chatter")
    logging.getLogger("redis.connection").warning("broker %s gone", 3)
    (line,) = lines(stream)
    assert (line["event"], line["level"], line["model"]) == ("broker 3 gone", "warning", "flights")


def test_console_is_text_for_people(stream: io.StringIO) -> None:
    configure_logs(log_format="console", stream=stream)
    get_logger().info("learned", examples=64)
    assert "learned" in stream.getvalue()
    assert "examples=64" in stream.getvalue()
    assert not stream.getvalue().startswith("{")


def test_an_exception_keeps_its_traceback_when_asked_for(stream: io.StringIO) -> None:
    configure_logs(stream=stream)
    try:
        list[int]().pop()
    except IndexError:
        get_logger().exception("crashed")
    (line,) = lines(stream)
    assert "IndexError: pop from empty list" in str(line["exception"])


def test_repeated_warnings_pass_once_per_interval_and_say_how_many_were_kept_back(stream: io.StringIO) -> None:
    configure_logs(stream=stream)
    now = [0.0]
    sparing = Sparing(get_logger(), every_s=60.0, clock=lambda: now[0])
    for offset in range(5):
        sparing.warning("features and labels never meet", offset=offset)
    sparing.warning("another")
    now[0] = 60.0
    sparing.warning("features and labels never meet", offset=5)
    shown = [(line["event"], line.get("offset"), line.get("kept_back")) for line in lines(stream)]
    assert shown == [
        ("features and labels never meet", 0, None),
        ("another", None, None),
        ("features and labels never meet", 5, 4),
    ]


def test_one_kind_of_a_warning_does_not_keep_another_one_back(stream: io.StringIO) -> None:
    """A worker that waited for Kafka at its start still says, a moment later, that Redis is away."""
    configure_logs(stream=stream)
    sparing = Sparing(get_logger(), every_s=60.0, clock=lambda: 0.0)
    for kind in ("Kafka", "Redis", "Kafka", "Redis"):
        sparing.warning("waiting", kind, problem=f"{kind} does not answer")
    assert [line["problem"] for line in lines(stream)] == ["Kafka does not answer", "Redis does not answer"]
