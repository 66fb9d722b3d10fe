"""Memory of a waiting feature: `python -m ops.bench.memory COUNT` fills a join and prints resident bytes each.

A process of its own: what others have allocated and freed would hide what waiting takes.
"""

import gc
import json
import resource
import subprocess
import sys
from pathlib import Path

from ops.bench.decode import CHUNK, chunk
from ops.bench.events import SPEC, D, feature
from ops.bench.figure import Figure, cost
from ops.bench.join import fresh_intake
from ops.bench.sizes import Sizes
from worker.stream.events import Decoder
from worker.stream.join import JoinRules

TARGET_BYTES = 512 + 8 * D  # what docs/join.md promises, beside the packed row


def measure(sizes: Sizes) -> list[Figure]:
    command = [sys.executable, "-m", "ops.bench.memory", str(sizes.waiting)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    each = float(json.loads(done.stdout))
    return [cost(f"memory of a waiting feature, d = {D}, {sizes.waiting:,} wait", "bytes", [each], TARGET_BYTES)]


def bytes_each(count: int) -> float:
    """Return by how much resident memory grows for each of `count` features that wait."""
    intake = fresh_intake(JoinRules(window_ms=10**12, max_pending=2 * count))
    decoder = Decoder(SPEC, "features")
    before = _resident()
    for start in range(0, count, CHUNK):
        intake.add(decoder.decode(chunk([feature(i) for i in range(start, min(count, start + CHUNK))], start)))
        for lane in intake.lanes():
            lane.passed = True
        intake.take()
        intake.settle(intake.work())
    assert intake.pending()["features"] == count
    return (_resident() - before) / count


def _resident() -> int:
    """Return resident bytes; where there is no /proc, the most there ever were (a child on Linux inherits that)."""
    gc.collect()
    pages = Path("/proc/self/statm")
    if pages.exists():
        return int(pages.read_text().split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    print(json.dumps(bytes_each(int(sys.argv[1]))))
