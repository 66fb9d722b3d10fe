"""The same examples and batch boundaries give the same bytes: across cuts, round trips, processes and thread counts."""

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load, save

from tests.unit.datasets import WAYS, digest, kernels, part, phishing, spec, ways
from worker.learn.kernel import Kernel
from worker.learn.learner import Learner
from worker.learn.model import initial_state
from worker.learn.state import LearnerState
from worker.spec import Hyper, Reduction
from worker.stream.rows import Examples

CUTS = (1, 31, 32, 33, 777, 1249)


def stored(state: LearnerState) -> LearnerState:
    """Write the state to bytes and read it back."""
    return LearnerState(load(save({name: np.ascontiguousarray(a) for name, a in state.arrays.items()})))


@pytest.mark.parametrize(("reduction", "kernel"), WAYS[:3])
@pytest.mark.parametrize("batch_size", [1, 32])
@pytest.mark.parametrize("cut", CUTS)
def test_a_stop_and_a_start_change_no_byte(reduction: Reduction, kernel: Kernel, batch_size: int, cut: int) -> None:
    """Cut at any row, stored and read back: as if it had gone on. Batches that the cut made short are short in both."""
    rows, model = phishing(), spec(9, reduction=reduction)
    learner = Learner(model, Hyper(batch_size=batch_size, schedule="inverse_sqrt", l2=0.001), kernel)
    first = learner(initial_state(model), part(rows, 0, cut))[0]
    went_on = learner(first, part(rows, cut, 1250))[0]
    resumed = learner(stored(first), part(rows, cut, 1250))[0]
    assert digest(resumed) == digest(went_on)
    assert resumed.examples == 1250


@ways
@given(st.sets(st.integers(0, 39), max_size=8), st.booleans(), st.sampled_from([0.0, 0.01, 5.0]))
@settings(max_examples=15, deadline=None)
def test_where_commits_fall_changes_no_byte(
    reduction: Reduction, kernel: Kernel, commits: set[int], regression: bool, l2: float
) -> None:
    """Calls cut between batches, anywhere, give the bytes of one call: evaluation and counters included."""
    random = np.random.default_rng(2)
    labels = np.where(regression, random.normal(5, 1, 625), random.integers(0, 2, 625)).astype(np.float64)
    rows = Examples(random.normal(size=(625, 5)), random.integers(0, 17, (625, 1)), labels, np.ones(625))
    model = spec(5, "regression" if regression else "binary", categorical=1, reduction=reduction)
    learner, state = Learner(model, Hyper(batch_size=16, l2=l2), kernel), initial_state(model)
    edges = [0, *sorted(16 * c for c in commits if c), 625]
    for low, high in pairwise(edges):
        state = learner(state, part(rows, low, high))[0]
    assert digest(state) == digest(learner(initial_state(model), rows)[0])


@kernels
@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_batch_size_changes_nothing_beyond_rounding(batch_size: int, kernel: Kernel) -> None:
    rows, model = phishing(), spec(9)
    state = Learner(model, Hyper(batch_size=batch_size), kernel)(initial_state(model), rows)[0]
    other = Learner(model, Hyper(batch_size=1000), kernel)(initial_state(model), rows)[0]
    for name, array in other.arrays.items():
        if name != "counters.steps":
            mine = np.asarray(state.arrays[name], np.float64)
            np.testing.assert_allclose(mine, np.asarray(array, np.float64), rtol=1e-9, atol=1e-9, err_msg=name)


SCRIPT = """
from importlib.util import find_spec
import numpy as np
from tests.unit.datasets import digest, spec
from worker.learn.learner import Learner
from worker.learn.model import initial_state
from worker.spec import Hyper
from worker.stream.rows import Examples

random = np.random.default_rng(4)
rows = Examples(random.normal(size=(600, 300)), np.empty((600, 0), np.int64), np.ones(600), np.ones(600))
compiled = [("sequential", "numba")] if find_spec("numba") else []
for reduction, kernel in (("sequential", "numpy"), ("mean", "numpy"), *compiled):
    model = spec(300, reduction=reduction)
    print(digest(Learner(model, Hyper(batch_size=200), kernel)(initial_state(model), rows)[0]))
"""


def test_processes_and_threads_change_no_byte(tmp_path: Path) -> None:
    """Fresh processes with one and with four threads allowed; wide rows, for which libraries would split the work.

    One compiles the machine code anew, the other may find it in the cache: both run the same.
    """
    outputs = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={**os.environ, "OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads, **more},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for threads, more in (("1", {"NUMBA_CACHE_DIR": str(tmp_path)}), ("4", {}))
    }
    assert len(outputs) == 1
    assert len(outputs.pop().split()) >= 2


def test_features_are_told_apart_by_name_in_the_digest() -> None:
    """The same columns under another order are another spec: a state is never continued under it in silence."""
    one, other = spec(2), spec(2)
    turned = type(one)(tuple(reversed(other.features)))
    assert one.digest() != turned.digest()
    assert turned.difference(one.document()) == "model.features[0].name"
