"""`python -m tests.chaos.table FILE`: what a campaign came to, as the tables of docs/chaos.md."""

import json
import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

NONE = {
    "lost": "examples or records lost",
    "doubly_learned": "learned twice, or not due",
    "unbalanced": "ledgers that do not balance at the end",
    "unbalanced_on_the_way": "ledgers that did not balance, looked at every second",
    "broken_chain": "breaks in the commit log",
    "miscounted_commits": "commits with another number of examples than due",
    "wrong_columns": "records in another column of the ledger, or in a bitmap, than due",
    "wrong_letters": "dead letters missing or too many",
    "wrong_weights": "weights and statistics off by more than 1e-9",
    "versions_not_rebuilt": "versions that `lineage verify` does not rebuild, of three a run",
    "unplanned_exits": "workers that ended by themselves, or not in time",
}
SUMS = {
    "records": "records sent",
    "settled": "records of which the topics alone say what they become",
    "examples_due": "examples due",
    "learned": "examples learned",
    "commits": "commits",
    "conflicts": "commits learned again because another worker was faster",
    "fenced": "times a worker was fenced",
    "went_back_seen": "times the store went back",
    "rebalances": "rebalances",
    "starts": "worker processes",
}
SPREADS = {
    "longest_silence_s": "longest time without a commit, seconds",
    "longest_silence_in_peace_s": "the same, while no server was away and no connection disturbed",
    "drained_s": "from the last fault until everything was learned",
    "longest_end_s": "from SIGTERM to the end of the process",
}


def tables(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return the tables of runs as Markdown."""
    counters = [run["counters"] for run in runs if run["counters"]]
    failed = sorted(run["seed"] for run in runs if run["verdict"] != "sound")
    commits = ", ".join(sorted({str(run["commit"]) for run in runs}))
    lines = [f"{len(runs)} runs, {len(failed)} failed {failed or ''}; commit {commits}".replace(" ;", ";"), ""]
    lines += ["| must be 0 | |", "|---|--:|"]
    lines += [f"| {text} | {_sum(counters, name):,} |" for name, text in NONE.items()]
    lines += ["", "| in all | |", "|---|--:|"]
    lines += [f"| {text} | {_sum(counters, name):,} |" for name, text in SUMS.items()]
    lines += ["", "| of a run | median | 90 % | most |", "|---|--:|--:|--:|"]
    lines += [f"| {text} | {_spread(counters, name)} |" for name, text in SPREADS.items()]
    faults = sum((Counter(run.get("faults", {})) for run in runs), Counter[str]())
    lines += ["", "| fault | times |", "|---|--:|"]
    lines += [f"| `{kind}` | {count} |" for kind, count in sorted(faults.items())]
    return "\n".join(lines)


def _sum(counters: Iterable[Mapping[str, Any]], name: str) -> int:
    return sum(counter.get(name) or 0 for counter in counters)


def _spread(counters: Iterable[Mapping[str, Any]], name: str) -> str:
    values = sorted(float(counter[name]) for counter in counters if counter.get(name) is not None)
    if not values:
        return "| |"
    return f"{statistics.median(values):.1f} | {values[int(0.9 * (len(values) - 1))]:.1f} | {values[-1]:.1f}"


if __name__ == "__main__":
    print(tables([json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]))
