"""`python -m tests.chaos --seeds 1-100 --seconds 60 --jobs 2 --out FILE`: seeded runs, one JSON line each.

Each job has a broker and a store of its own, and each run a process of its own.
"""

import argparse
import json
import queue
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.chaos.plan import plan
from tests.chaos.servers import Servers

SLACK_S = 300.0  # beyond its seconds, after which a run is given up


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    if options.servers:
        _one(options)
        return 0
    results = campaign(
        _seeds(options.seeds), options.seconds, options.jobs, Path(options.logs), options.out, keep=options.keep
    )
    failed = [result["seed"] for result in results if result["verdict"] != "sound"]
    print(f"{len(results)} runs, {len(failed)} failed {failed or ''}", file=sys.stderr)
    return 1 if failed else 0


def campaign(
    seeds: Sequence[int], seconds: float, jobs: int, logs: Path, out: str = "", *, keep: bool = False
) -> list[dict[str, Any]]:
    """Run all seeds, `jobs` at a time; return what each came to, in order of ending."""
    todo: queue.SimpleQueue[int] = queue.SimpleQueue()
    for seed in seeds:
        todo.put(seed)
    results: list[dict[str, Any]] = []
    lock = threading.Lock()

    def job() -> None:
        with closing(Servers.start()) as servers:
            while True:
                try:
                    seed = todo.get_nowait()
                except queue.Empty:
                    return
                result = _in_a_process(seed, seconds, servers, logs, keep=keep)
                with lock:
                    results.append(result)
                    _tell(result, out)

    threads = [threading.Thread(target=job) for _ in range(min(jobs, len(seeds)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def _in_a_process(seed: int, seconds: float, servers: Servers, logs: Path, *, keep: bool) -> dict[str, Any]:
    folder = logs / f"seed-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    command = [sys.executable, "-m", "tests.chaos", "--seeds", str(seed), "--seconds", str(seconds)]
    command += ["--servers", servers.text(), "--logs", str(folder)]
    errors = folder / "harness.log"
    try:
        with errors.open("w") as log:
            done = subprocess.run(
                command, stdout=subprocess.PIPE, stderr=log, text=True, timeout=seconds + SLACK_S, check=False
            )
        result: dict[str, Any] = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError) as error:
        last = errors.read_text(errors="replace").splitlines()[-1:]
        problem = f"harness: {type(error).__name__}: {''.join(last)}"
        result = {"seed": seed, "verdict": "failed", "problems": [problem], "counters": {}}
    (folder / "result.json").write_text(json.dumps(result, indent=1))
    if result["verdict"] == "sound" and not keep:
        for log_file in folder.iterdir():
            log_file.unlink()
        folder.rmdir()
    return result | {"commit": _commit()}


def _tell(result: dict[str, Any], out: str) -> None:
    line = json.dumps(result)
    if out:
        with Path(out).open("a") as file:
            file.write(line + "\n")
    else:
        print(line, flush=True)
    print(f"seed {result['seed']}: {result['verdict']} {result['problems'][:3]}", file=sys.stderr, flush=True)


def _one(options: argparse.Namespace) -> None:
    from tests.chaos.run import Run

    (seed,) = _seeds(options.seeds)
    print(json.dumps(Run(plan(seed, options.seconds), Servers.read(options.servers), Path(options.logs)).go()))


def _commit() -> str:
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _seeds(text: str) -> list[int]:
    seeds: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        seeds += range(int(first), int(last or first) + 1)
    return seeds


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", required=True, help="1-100, or 3,7,20-30")
    parser.add_argument("--seconds", type=float, default=60.0, help="of faults, a run")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--out", default="", help="append one JSON line a run; else they are printed")
    parser.add_argument("--logs", default="chaos-logs", help="keeps the logs of runs that failed")
    parser.add_argument("--keep", action="store_true", help="keep the logs of sound runs too")
    parser.add_argument("--servers", default="", help=argparse.SUPPRESS)  # this process is one run
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
