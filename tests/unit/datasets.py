"""The data sets of `tests/data` as examples, in stream order, and helpers to learn them."""

import csv
import gzip
import hashlib
import io
import zipfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from worker.learn.kernel import Kernel
from worker.learn.learner import Learner
from worker.learn.model import initial_state
from worker.learn.state import LearnerState
from worker.spec import Feature, Hyper, Reduction, Spec, Task
from worker.stream.rows import Examples

DATA = Path(__file__).parent.parent / "data"

NUMBA = pytest.mark.skipif(find_spec("numba") is None, reason="extra `fast` is not installed")
KERNELS = ("numpy", pytest.param("numba", marks=NUMBA))
kernels = pytest.mark.parametrize("kernel", KERNELS)
# Every rule of learning, by what computes it.
WAYS = (
    ("sequential", "numpy"),
    pytest.param("sequential", "numba", marks=NUMBA),
    ("mean", "numpy"),
    ("sum", "numpy"),
)
ways = pytest.mark.parametrize(("reduction", "kernel"), WAYS)


def table(name: str) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of a gzipped CSV file."""
    with gzip.open(DATA / name, "rt") as file:
        header, *rows = csv.reader(file)
    return header, rows


def examples(dense: np.ndarray, labels: np.ndarray) -> Examples:
    n = len(labels)
    return Examples(dense.astype(np.float64), np.empty((n, 0), np.int64), labels.astype(np.float64), np.ones(n))


def phishing() -> Examples:
    _, rows = table("phishing.csv.gz")
    values = np.array(rows, np.float64)
    return examples(values[:, :-1], values[:, -1])


def elec2() -> Examples:
    _, rows = table("elec2.csv.gz")
    return examples(np.array([row[:-1] for row in rows], np.float64), np.array([row[-1] == "UP" for row in rows]))


def trump_approval() -> Examples:
    header, rows = table("trump_approval.csv.gz")
    values, label = np.array(rows, np.float64), header.index("five_thirty_eight")
    return examples(np.delete(values, label, axis=1), values[:, label])


def bananas() -> Examples:
    with zipfile.ZipFile(DATA / "banana.zip") as archive:
        lines = io.TextIOWrapper(archive.open("banana.all.txt")).read().splitlines()
    cells = [line.split() for line in lines]
    dense = np.array([[float(value.split(":")[1]) for value in row[1:]] for row in cells])
    return examples(dense, np.array([row[0] == "1" for row in cells]))


def spec(
    numeric: int,
    task: Task = "binary",
    *,
    categorical: int = 0,
    bits: int = 4,
    reduction: Reduction = "sequential",
    standardize: bool = True,
) -> Spec:
    features = tuple(Feature(f"x{i}") for i in range(numeric))
    features += tuple(Feature(f"c{i}", "categorical", bits=bits) for i in range(categorical))
    return Spec(features, task=task, reduction=reduction, standardize=standardize)


def part(rows: Examples, low: int, high: int) -> Examples:
    return Examples(rows.dense[low:high], rows.buckets[low:high], rows.labels[low:high], rows.weights[low:high])


def learned(rows: Examples, task: Task, hyper: Hyper, kernel: Kernel = "numpy") -> LearnerState:
    """Learn all rows in one call from the empty state."""
    model = spec(rows.dense.shape[1], task)
    return Learner(model, hyper, kernel)(initial_state(model), rows)[0]


def digest(state: LearnerState) -> str:
    """Return the SHA-256 of names and bytes of all arrays."""
    total = hashlib.sha256()
    for name in sorted(state.arrays):
        total.update(name.encode() + np.ascontiguousarray(state.arrays[name]).tobytes())
    return total.hexdigest()
