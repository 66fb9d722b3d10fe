"""`python -m ops.bench [NAME…] [--json] [--kafka HOST:PORT] [--redis URL]`: measure, and print figures and targets."""

import argparse
import json
import sys
from collections.abc import Callable, Sequence

from rich.console import Console

from ops.bench import (
    commit,
    decode,
    end_to_end,
    fleet,
    join,
    learner,
    machine,
    memory,
    report,
    restart,
    several,
    start,
    takeover,
    two_workers,
)
from ops.bench.figure import Figure
from ops.bench.servers import Servers, servers
from ops.bench.sizes import Sizes

PURE: dict[str, Callable[[Sizes], list[Figure]]] = {
    "learner": learner.measure,
    "decode": decode.measure,
    "join": join.measure,
    "memory": memory.measure,
    "help": start.measure,
}
SERVED: dict[str, Callable[[Servers, Sizes], list[Figure]]] = {
    "commit": commit.measure,
    "end-to-end": end_to_end.measure,
    "restart": restart.measure,
    "fleet": fleet.measure,
    "two-workers": two_workers.measure,
    "takeover": takeover.measure,
    "several": several.measure,
}
NAMES = (*PURE, *SERVED)


def run(names: Sequence[str], sizes: Sizes, kafka: str = "", redis: str = "") -> list[Figure]:
    """Measure what is named, in the order of `NAMES`. Servers are started only for what needs them."""
    told = Console(stderr=True)
    figures = []
    for name in (name for name in PURE if name in names):
        told.print(f"measuring {name} …", style="dim")
        figures += PURE[name](sizes)
    if not set(names) & set(SERVED):
        return figures
    told.print("starting servers …", style="dim")
    with servers(kafka, redis) as there:
        for name in (name for name in SERVED if name in names):
            told.print(f"measuring {name} …", style="dim")
            figures += SERVED[name](there, sizes)
    return figures


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m ops.bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"what to measure (all): {', '.join(NAMES)}")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    parser.add_argument("--kafka", default="", metavar="HOST:PORT", help="a broker that is there already")
    parser.add_argument("--redis", default="", metavar="URL", help="a Redis that is there already")
    given = parser.parse_args(arguments)
    if unknown := [name for name in given.names if name not in NAMES]:
        parser.error(f"no such figure: {', '.join(unknown)} (there are {', '.join(NAMES)})")
    before = machine.describe()
    figures = run(given.names or NAMES, Sizes(), given.kafka, given.redis)
    if given.json:
        json.dump(report.document(before, figures), sys.stdout, indent=2, ensure_ascii=False)
        print()
    else:
        Console(width=None if sys.stdout.isatty() else 200).print(report.table(before, figures))


if __name__ == "__main__":
    main()
