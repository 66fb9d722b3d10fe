"""How a process of the command line ends."""

import subprocess
import sys

PROGRAM = """
import atexit, sys, types
if {torch}:
    sys.modules["torch"] = types.ModuleType("torch")
atexit.register(print, "farewell")
sys.argv = ["gradstream", "config", "no-such-option"]
from worker.cli import main
main()
"""


def _end(*, torch: bool) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM.format(torch=torch)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_process_with_torch_ends_at_once_with_its_code_and_everything_said() -> None:
    """Unloading torch takes half a second of a core: a worker told to end on a busy machine would break its promise."""
    with_torch, without = _end(torch=True), _end(torch=False)
    assert (with_torch.returncode, with_torch.stdout) == (2, "")
    assert (without.returncode, without.stdout.strip()) == (2, "farewell")
    assert with_torch.stderr == without.stderr != ""
