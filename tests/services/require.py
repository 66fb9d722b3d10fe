"""A part of the machine that a test needs: left out with a reason here, a failure where it was required.

`GRADSTREAM_REQUIRE=docker,java,chromium` (or `all`) turns a missing part into a failure; CI sets `all`.
"""

import functools
import os
import subprocess

import pytest


@functools.cache
def docker_answers() -> bool:
    try:
        return subprocess.run(["docker", "info"], capture_output=True, timeout=20, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def required(part: str) -> bool:
    wanted = os.environ.get("GRADSTREAM_REQUIRE", "").replace(" ", "").split(",")
    return part in wanted or "all" in wanted


def left_out(part: str, reason: str) -> None:
    """Fail where `part` is required, skip (and say why) elsewhere."""
    if required(part):
        pytest.fail(f"{part} is required (GRADSTREAM_REQUIRE) but {reason}")
    pytest.skip(f"{part}: {reason}")
