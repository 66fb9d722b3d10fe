"""The endpoint over a real socket."""

import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from worker.errors import ConfigError
from worker.observe.endpoint import Endpoint, Pulse


class Clock:
    """A monotonic clock that moves when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def text(accept: str) -> tuple[bytes, str]:
    return (b"open", "application/openmetrics-text") if "openmetrics" in accept else (b"plain", "text/plain")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def pulse(clock: Clock) -> Pulse:
    return Pulse(bound_s=10.0, clock=clock)


@pytest.fixture
def endpoint(pulse: Pulse) -> Iterator[Endpoint]:
    served = Endpoint(0, text, pulse)
    yield served
    served.close()


def get(endpoint: Endpoint, path: str, method: str = "GET", **headers: str) -> tuple[int, str, bytes]:
    request = urllib.request.Request(endpoint.url + path, headers=headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.status, response.headers["Content-Type"], response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["Content-Type"], error.read()


def test_metrics_follow_the_accept_header(endpoint: Endpoint) -> None:
    assert get(endpoint, "/metrics") == (200, "text/plain", b"plain")
    assert get(endpoint, "/metrics?name=x")[2] == b"plain"
    assert get(endpoint, "/metrics", Accept="application/openmetrics-text; version=1.0.0")[2] == b"open"
    assert get(endpoint, "/metrics", method="HEAD") == (200, "text/plain", b"")


def test_alive_while_the_last_tick_is_younger_than_the_bound(endpoint: Endpoint, pulse: Pulse, clock: Clock) -> None:
    clock.now += 9.5
    status, content_type, body = get(endpoint, "/healthz")
    assert (status, content_type) == (200, "application/json")
    assert json.loads(body) == {"alive": True, "age_s": 9.5, "bound_s": 10.0}
    clock.now += 1.0
    status, _, body = get(endpoint, "/healthz")
    assert status == 503
    assert json.loads(body)["age_s"] == 10.5
    pulse.tick()
    assert get(endpoint, "/healthz")[0] == 200


def test_ready_only_when_said_so_and_the_reason_is_in_the_answer(endpoint: Endpoint, pulse: Pulse) -> None:
    assert get(endpoint, "/readyz")[0] == 503
    assert json.loads(get(endpoint, "/readyz")[2]) == {"ready": False, "reason": "starting"}
    pulse.ready()
    assert json.loads(get(endpoint, "/readyz")[2]) == {"ready": True, "reason": None}
    pulse.not_ready("Redis does not answer")
    status, _, body = get(endpoint, "/readyz")
    assert status == 503
    assert json.loads(body)["reason"] == "Redis does not answer"


def test_a_hung_loop_is_not_ready(endpoint: Endpoint, pulse: Pulse, clock: Clock) -> None:
    pulse.ready()
    clock.now += 60
    status, _, body = get(endpoint, "/readyz")
    assert status == 503
    assert "60 s" in json.loads(body)["reason"]


def test_the_wall_clock_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    pulse = Pulse()
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert pulse.alive
    assert pulse.age_s >= 0


def test_other_paths_name_those_that_exist(endpoint: Endpoint) -> None:
    status, _, body = get(endpoint, "/")
    assert status == 404
    assert body == b"/metrics /healthz /readyz\n"


def test_a_taken_port_is_an_error_of_settings_that_names_the_key(pulse: Pulse) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"observe\.http_port.*{port}") as caught:
            Endpoint(port, text, pulse)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("port", [-1, 70_000])
def test_an_impossible_port_is_an_error_of_settings(pulse: Pulse, port: int) -> None:
    with pytest.raises(ConfigError, match=r"observe\.http_port"):
        Endpoint(port, text, pulse)


def test_two_workers_on_one_host_can_both_be_scraped(pulse: Pulse, endpoint: Endpoint) -> None:
    second = Endpoint(0, lambda _: (b"second", "text/plain"), pulse)
    assert second.port != endpoint.port
    assert get(endpoint, "/metrics")[2] == b"plain"
    assert get(second, "/metrics")[2] == b"second"
    second.close()


def test_an_ipv6_address_is_served_under_its_brackets(pulse: Pulse) -> None:
    try:
        served = Endpoint(0, text, pulse, host="::1")
    except ConfigError:
        pytest.skip("this machine has no IPv6 loopback")
    assert served.url == f"http://[::1]:{served.port}"
    assert get(served, "/metrics")[0] == 200
    served.close()


def test_close_frees_the_port_and_ends_the_thread(pulse: Pulse) -> None:
    first = Endpoint(0, text, pulse)
    get(first, "/metrics")
    first.close()
    assert not [t for t in threading.enumerate() if t.name == "endpoint" and t is not threading.current_thread()]
    again = Endpoint(first.port, text, pulse)
    assert get(again, "/metrics")[0] == 200
    again.close()


def test_a_scraper_that_goes_away_disturbs_nobody(endpoint: Endpoint) -> None:
    with socket.create_connection(("127.0.0.1", endpoint.port)) as rude:
        rude.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    assert get(endpoint, "/metrics")[0] == 200
