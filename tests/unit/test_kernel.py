"""Which kernel learns, and what its choice costs: numba is loaded where it computes, and nowhere else."""

import subprocess
import sys
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from tests.unit.datasets import NUMBA, spec
from worker.errors import ConfigError
from worker.learn.kernel import choose_kernel
from worker.learn.learner import Learner
from worker.spec import Hyper, Reduction


@pytest.fixture
def without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)  # as Python sees a package that is not there


@NUMBA
@pytest.mark.parametrize(
    ("setting", "reduction", "kernel"),
    [
        ("auto", "sequential", "numba"),
        ("auto", "mean", "numpy"),
        ("auto", "sum", "numpy"),
        ("numba", "sequential", "numba"),
        ("numpy", "sequential", "numpy"),
        ("numpy", "mean", "numpy"),
    ],
)
def test_auto_is_numba_where_there_is_a_recursion(
    setting: Literal["auto", "numpy", "numba"], reduction: Reduction, kernel: str
) -> None:
    assert choose_kernel(setting, spec(2, reduction=reduction)) == kernel


@pytest.mark.usefixtures("without_numba")
def test_without_the_extra_auto_is_numpy_and_numba_names_what_to_install() -> None:
    assert choose_kernel("auto", spec(2)) == "numpy"
    with pytest.raises(ConfigError, match=r"pip install 'gradstream\[fast\]'"):
        choose_kernel("numba", spec(2))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_numba_is_refused_where_there_is_no_recursion(reduction: Reduction) -> None:
    for refused in (lambda: choose_kernel("numba", spec(2, reduction=reduction)), lambda: learner(reduction)):
        with pytest.raises(ConfigError, match=f'train.reduction is "{reduction}"'):
            refused()


def learner(reduction: Reduction) -> Learner:
    return Learner(spec(2, reduction=reduction), Hyper(), "numba")


@NUMBA
def test_a_numba_that_does_not_load_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Falling back in silence would let two workers of one fleet compute differently without anybody having said so."""
    (tmp_path / "numba.py").write_text("raise ImportError('Numba needs NumPy 2.4 or less')")
    for name in [name for name in sys.modules if name.split(".")[0] == "numba" or name == "worker.learn.compiled"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"Numba needs NumPy 2.4 or less.*set train.kernel to numpy"):
        learner("sequential")


SCRIPT = """
import sys
import worker.cli.app
from tests.unit.datasets import phishing, learned
from worker.learn.kernel import choose_kernel
from worker.spec import Hyper, Spec
choose_kernel("auto", Spec(()))
learned(phishing(), "binary", Hyper())
assert "numba" not in sys.modules
"""


def test_help_and_workers_that_learn_with_numpy_never_load_numba() -> None:
    subprocess.run([sys.executable, "-c", SCRIPT], check=True)


@NUMBA
def test_where_nothing_can_be_cached_machine_code_is_made_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read-only container without a home: no directory of the cache can be written."""
    import numba
    from numba import types
    from numba.core import caching

    from worker.learn.compiled import compiled

    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])

    def twice(x: float) -> float:
        return 2.0 * x

    with pytest.raises(RuntimeError, match="cannot cache"):
        numba.njit((types.float64,), cache=True)(twice)
    assert compiled(twice, (types.float64,))(1.5) == 3.0


@NUMBA
@pytest.mark.parametrize("broken", ["bucket too large", "negative bucket", "state of another size", "too few labels"])
def test_what_does_not_fit_the_layout_is_refused_before_machine_code_runs(broken: str) -> None:
    """It looks at no bounds: a bucket outside would be a weight somewhere else in memory."""
    from worker.learn.model import initial_state
    from worker.stream.rows import Examples

    model = spec(2, categorical=1)
    buckets = np.zeros((5, 1), np.int64)
    buckets[3] = {"bucket too large": 17, "negative bucket": -1}.get(broken, 0)
    rows = Examples(np.zeros((5, 2)), buckets, np.zeros(4 if broken == "too few labels" else 5), np.ones(5))
    state = initial_state(spec(2) if broken == "state of another size" else model)
    with pytest.raises(IndexError, match="layout"):
        Learner(model, Hyper(), "numba")(state, rows)
