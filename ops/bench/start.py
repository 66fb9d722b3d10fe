"""How long `gradstream --help` takes: the start of every command."""

import subprocess
import sys
import time

from ops.bench.figure import Figure, cost
from ops.bench.sizes import Sizes

TARGET_S = 0.3


def measure(sizes: Sizes) -> list[Figure]:
    command = [sys.executable, "-m", "worker", "--help"]
    taken = []
    for _ in range(sizes.repeats):
        started = time.perf_counter()
        subprocess.run(command, capture_output=True, check=True)
        taken.append(time.perf_counter() - started)
    return [cost("gradstream --help", "s", taken, TARGET_S)]
