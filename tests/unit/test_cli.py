"""The command line: help, errors of one line, exit codes, and what commands print."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from worker.cli import run
from worker.errors import GradstreamError, Stalled, StateMissing, Unreachable

FEATURES = ("--set", 'model.features=[{"name": "x1"}, {"name": "c", "kind": "categorical", "bits": 4}]')
COMMANDS = [
    ["demo"],
    ["init"],
    ["worker"],
    ["status"],
    ["config"],
    ["state"],
    ["state", "show"],
    ["state", "reset"],
    ["state", "restore"],
    ["dead-letters"],
    ["dead-letters", "list"],
    ["dead-letters", "show"],
    ["dead-letters", "replay"],
]
LATER = ["gate", "models", "score", "audit", "keys", "lineage", "gradcheck", "console"]


@pytest.fixture(autouse=True)
def _nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty working directory and no variables of ours."""
    monkeypatch.chdir(tmp_path)
    for name in os.environ:
        if name.startswith("GRADSTREAM_"):
            monkeypatch.delenv(name)


def child(code: str, *arguments: str, **options: Any) -> "subprocess.CompletedProcess[str]":
    env = {name: value for name, value in os.environ.items() if not name.startswith("GRADSTREAM_")}
    env["PYTHONPATH"] = str(Path(__file__).parents[2])
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=env, check=False, **options)


def failed(capsys: pytest.CaptureFixture[str], arguments: Sequence[str]) -> tuple[int, str]:
    """Run a command that fails; return exit code and its one line."""
    code = run(arguments)
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert len(lines) == 1, captured.err
    assert lines[0].startswith("gradstream: error: ")
    return code, lines[0]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_an_example(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*command, "--help"]) == 0
    out = capsys.readouterr().out
    assert f"Example:\n    gradstream {command[0]}" in out


@pytest.mark.parametrize("arguments", [["--help"], ["worker", "--help"], ["state", "show", "--help"]], ids=" ".join)
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    """What help imports is what a user waits for. (Below the top the command line library itself loads pydantic.)"""
    heavy = ["torch", "numpy", "kafka", "redis", "rich", "structlog", "msgspec"]
    if arguments == ["--help"]:
        heavy.append("pydantic")
    code = f"import sys; from worker.cli import run; run(sys.argv[1:]); print([m for m in {heavy} if m in sys.modules])"
    done = child(code, *arguments)
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == "[]"


def test_config_does_without_torch() -> None:
    code = "import sys; from worker.cli import run; run(sys.argv[1:]); print('torch' in sys.modules)"
    assert child(code, "config", "--json", *FEATURES).stdout.splitlines()[-1] == "False"


def test_without_a_command_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 0
    assert "gradstream demo" in capsys.readouterr().out


def test_version_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("gradstream ")


@pytest.mark.parametrize("name", LATER)
def test_commands_of_parts_that_are_not_built_are_unknown(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, line = failed(capsys, [name])
    assert code == 2
    assert name in line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--nonsense"], "--nonsense"),
        (["worker", "--nonsense"], "gradstream worker --help"),
        (["state"], "gradstream state --help"),
        (["init", "--partitions", "0"], "--partitions"),
        (["init", "--partitions", "many"], "--partitions"),
        (["dead-letters", "show"], "TOPIC:PARTITION:OFFSET"),
        (["dead-letters", "show", "features", *FEATURES], "give TOPIC:PARTITION:OFFSET"),
        (["dead-letters", "show", "features:x:1", *FEATURES], "give TOPIC:PARTITION:OFFSET"),
        (["dead-letters", "list", "--reason", "ugly", *FEATURES], "not_json"),
        (["config"], "model.features is not set"),
        (["config", "--config", "absent.toml"], "absent.toml does not exist"),
        (["config", "--set", "train"], "section.key=value"),
        (["config", "--set", "train.seed=a\nb", *FEATURES], "train.seed"),
        (["worker", "--http-port", "70000", *FEATURES], "observe.http_port = 70000"),
        (["worker", "--log-format", "xml", *FEATURES], "observe.log_format"),
        (["worker", "--set", "train.optimizer=adam", *FEATURES], "not in this version"),
        (["state", "reset", *FEATURES], "add --yes"),
        (["state", "restore", *FEATURES], "add --previous"),
        (["status", "--set", "redis.url=redis://:hunter2@/x y", *FEATURES], "redis.url"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else "",
)
def test_usage_and_settings_end_with_2(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, line = failed(capsys, arguments)
    assert code == 2
    assert words in line
    assert "hunter2" not in line


@pytest.mark.parametrize(
    ("error", "exit_code"), [(GradstreamError, 1), (Unreachable, 6), (StateMissing, 7), (Stalled, 8)]
)
def test_each_error_has_its_exit_code_and_one_line(
    error: type[GradstreamError], exit_code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error("what\nhappened")

    monkeypatch.setattr("worker.settings.load_settings", fail)
    code, line = failed(capsys, ["config"])
    assert code == exit_code
    assert line == "gradstream: error: what happened"


@pytest.mark.parametrize("arguments", [["--debug", "config"], ["config", "--debug"]])
def test_a_traceback_comes_with_debug_only(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config"]) == 2
    assert "Traceback" not in capsys.readouterr().err
    assert run(arguments) == 2
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.splitlines()[-1].startswith("gradstream: error: model.features")


def test_an_interrupt_ends_with_130(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("worker.settings.load_settings", interrupt)
    assert run(["config"]) == 130
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("debug", [False, True])
def test_an_unexpected_error_is_one_line_too(debug: bool) -> None:
    code = (
        "import worker.settings, worker.cli\n"
        "def fail(*_): raise ZeroDivisionError('never\\nmeant')\n"
        "worker.settings.load_settings = fail\n"
        "worker.cli.main()"
    )
    done = child(code, "config", *(["--debug"] if debug else []))
    assert done.returncode == 1
    assert ("Traceback" in done.stderr) is debug
    if not debug:
        assert done.stderr == (
            "gradstream: error: unexpected ZeroDivisionError: never meant; run again with --debug for the traceback\n"
        )


@pytest.mark.parametrize("json_output", [False, True])
def test_a_closed_pipe_is_quiet(json_output: bool) -> None:
    """`gradstream config | head -1` must not end in a traceback."""
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-c", "from worker.cli import main; main()", "config", *FEATURES]
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    with os.fdopen(write) as pipe:
        done = subprocess.run(
            [*command, "--json"] if json_output else command,
            stdout=pipe,
            stderr=subprocess.PIPE,
            timeout=60,
            env=env,
            check=False,
        )
    assert done.stderr == b""


def test_config_shows_values_and_origins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "my.toml"
    file.write_text('[model]\nname = "flights"\n[[model.features]]\nname = "x1"\n')
    monkeypatch.setenv("GRADSTREAM_REDIS__PASSWORD", "hunter2")
    monkeypatch.setenv("GRADSTREAM_REDIS__URL", "redis://me:hunter2@host:1/0")
    arguments = ["config", "--config", str(file), "--set", "train.l2=0.5"]
    assert run([*arguments, "--json"]) == 0
    out = capsys.readouterr().out
    shown = json.loads(out)
    assert shown["model.name"] == {"value": "flights", "origin": f"file {file}"}
    assert shown["train.l2"] == {"value": 0.5, "origin": "flag"}
    assert shown["redis.url"] == {"value": "redis://***@host:1/0", "origin": "variable GRADSTREAM_REDIS__URL"}
    assert shown["train.seed"] == {"value": 0, "origin": "default"}
    assert shown["stream.group_id"]["value"] == "gradstream-flights"
    assert run(arguments) == 0
    table = capsys.readouterr().out
    assert "hunter2" not in out + table
    assert "train.l2" in table
    assert "x1 (numeric, missing: mean)" in table


def test_init_writes_a_file_that_is_valid_and_keeps_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["init", "--no-topics", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report == {"file": {"path": "gradstream.toml", "action": "written"}, "topics": []}
    file = tmp_path / "gradstream.toml"
    file.write_text(file.read_text().replace('name = "model"', 'name = "mine"'))
    before = file.read_text()
    assert run(["init", "--no-topics", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["file"]["action"] == "kept"
    assert file.read_text() == before
    assert run(["init", "--no-topics", "--force"]) == 0
    assert "overwritten" in capsys.readouterr().out
    assert 'name = "mine"' not in file.read_text()
    assert list(tmp_path.iterdir()) == [file]


def test_init_refuses_a_file_that_is_not_valid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "gradstream.toml").write_text("[model]\nnam = 'x'\n")
    code, line = failed(capsys, ["init", "--no-topics"])
    assert code == 2
    assert "did you mean model.name?" in line


def test_init_says_where_it_can_not_write(capsys: pytest.CaptureFixture[str]) -> None:
    code, line = failed(capsys, ["init", "--no-topics", "--config", "absent/folder/my.toml"])
    assert code == 2
    assert "absent/folder/my.toml" in line


@pytest.mark.parametrize("command", [c for c in COMMANDS if c not in (["state"], ["dead-letters"])], ids=" ".join)
def test_the_page_about_commands_has_every_option(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "commands.md").read_text(encoding="utf-8")
    assert run([*command, "--help"]) == 0
    shown = capsys.readouterr().out
    options = re.findall(r"^  (--[a-z-]+)", shown, re.MULTILINE)
    assert "--help" in options
    part = page.partition(f"\n## {' '.join(command)}\n")[2].partition("\n## ")[0]
    shared = page.partition("\n## What all of them share\n")[2].partition("\n## ")[0]
    assert [option for option in options if option not in part + shared] == []
    for example in re.findall(r"^    (gradstream .*)", shown, re.MULTILINE):
        assert example in part
