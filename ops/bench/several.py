"""Three workers on real data, one model: what they learn together is what one alone learns in the order of their log.

Beside it, the same events learned by one worker in the order of the file: another order, another (as good) model.
"""

import csv
import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ops.bench.events import T0, Record, send
from ops.bench.figure import Figure
from ops.bench.model import Model, models, wait_for
from ops.bench.servers import Servers
from ops.bench.sizes import Sizes
from worker.local import flights
from worker.local.flights_settings import LEARNING_RATE

WORKERS = 3
EVERY_S = 0.05
ELEC2 = Path(__file__).parents[2] / "tests" / "data" / "elec2.csv.gz"


class Data(NamedTuple):
    """Records in the order of the file, and the settings under which they are learned."""

    name: str
    records: Callable[[], list[Record]]
    settings: dict[str, object]


def measure(servers: Servers, sizes: Sizes) -> list[Figure]:
    with models(servers) as make:
        return [_of(data, make, sizes) for data in (elec2(), flown())]


def elec2() -> Data:
    """Electricity prices, 45 312 half hours; each label follows its feature."""
    with gzip.open(ELEC2, "rt") as file:
        header, *rows = csv.reader(file)
    names = header[:-1]

    def records() -> Iterator[Record]:
        for i, row in enumerate(rows):
            key = f"half-hour-{i:06d}"
            features = {name: float(value) for name, value in zip(names, row[:-1], strict=True)}
            yield _record("features", key, T0 + i, features=features)
            yield _record("labels", key, T0 + i, label=int(row[-1] == "UP"))

    settings: dict[str, object] = {
        "model.features": [{"name": name} for name in names],
        "train.learning_rate": 0.005,
        "train.intercept_learning_rate": 0.01,
    }
    return Data("Elec2", lambda: list(records()), settings)


def flown() -> Data:
    """Two weeks of flights, labels hours late, among them some that never come and some records that are refused."""
    features = [
        {"name": f.name, "kind": f.kind} | ({"bits": f.bits} if f.kind == "categorical" else {})
        for f in flights.FEATURES
    ]
    settings: dict[str, object] = {
        "model.features": features,
        "train.learning_rate": LEARNING_RATE,
        "join.window_s": flights.WINDOW_S,
    }
    return Data("flights", lambda: [(e.role, e.key, e.value) for e in flights.events()], settings)


def _record(role: str, key: str, ts: int, **more: object) -> Record:
    return role, key.encode(), json.dumps({"id": key, "ts": ts, **more}).encode()


def _of(data: Data, make: Callable[..., Model], sizes: Sizes) -> Figure:
    records = data.records()[: sizes.real]
    alone, together = _alone(data, make, records), _together(data, make, records)
    status = json.loads(together.command("status", "--json")[1])
    in_file_order = json.loads(alone.command("status", "--json")[1])["evaluation"]["log_loss"]
    # Its digest covers the sums from which the log loss comes. 4: it was retrained, and differs.
    version = str(status["state_version"])
    code, _ = together.command("lineage", "verify", "--state-version", version, accepted=(0, 4))
    loss = float(status["evaluation"]["log_loss"])
    more = {
        "six digits": round(loss, 6),
        "one worker, order of the file": round(float(in_file_order), 6),
        "commits": float(status["state_version"]),
        "examples": float(status["examples"]),
    }
    name, target = f"{data.name}: log loss of {WORKERS} workers", "retrained from their log: equal"
    return Figure(name, "log loss", loss, loss, target, code == 0, more)


def _alone(data: Data, make: Callable[..., Model], records: Sequence[Record]) -> Model:
    model = make(None, 1, commit__every_s=EVERY_S, **_keywords(data.settings))
    send(model.servers.kafka, model.topics, records)
    model.start("--init", "--drain", pinned=False).wait()
    return model


def _together(data: Data, make: Callable[..., Model], records: Sequence[Record]) -> Model:
    """Send the events while all workers are there, so that all of them have a share."""
    model = make(None, WORKERS, commit__every_s=EVERY_S, **_keywords(data.settings))
    for _ in range(WORKERS):
        model.start("--init", pinned=False)
    wait_for(lambda: model.shared_by() == WORKERS, f"{WORKERS} workers share the partitions")
    send(model.servers.kafka, model.topics, records)
    model.start("--drain", pinned=False).wait()
    for worker in model.workers:
        worker.stop()
    return model


def _keywords(settings: dict[str, object]) -> dict[str, object]:
    return {key.replace(".", "__", 1): value for key, value in settings.items()}
