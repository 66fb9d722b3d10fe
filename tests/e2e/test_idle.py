"""A worker with nothing to do leaves the machine to others."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import streams
from tests.e2e.world import NewWorld, example, wait_for, worlds

pytestmark = [pytest.mark.crash, pytest.mark.timeout(120)]

LOOKED_AT_S = 3.0
# Five times what is measured, for a noisy machine. A loop that never waits takes a whole core.
SHARE = 0.2


@pytest.fixture
def new_world(kafka: str, redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewWorld]:
    with worlds(kafka, redis_url, tmp_path_factory, streams.SCHEMA) as make:
        yield make


def _processor_s(pid: int) -> float:
    """Return the processor time of a process, all of its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processor time of a child is read from /proc")
def test_an_idle_worker_takes_next_to_no_processor_time(new_world: NewWorld) -> None:
    world = new_world(stream__mode="inline")
    sent = world.send([example(f"e-{i}", streams.T0 + i, i % 2, x1=float(i)) for i in range(100)])
    child = world.start("--init")
    world.wait_until_taken(sent)
    wait_for(lambda: child.metric("gradstream_consumer_lag_records") == 0, "it has told that nothing is left")
    before, end = _processor_s(child.process.pid), time.monotonic() + LOOKED_AT_S
    wait_for(lambda: time.monotonic() >= end, "the time is over")
    used = _processor_s(child.process.pid) - before
    print(f"{used / LOOKED_AT_S:.3f} of a core")
    assert used < SHARE * LOOKED_AT_S
    assert child.stop() == 0
