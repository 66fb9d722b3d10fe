"""Progressive evaluation: every row is judged by the prediction made before it was learned. No torch here.

Kept in the arrays `evaluation.…` of the state, so that it survives whatever the state survives. Sums are added row by
row in order: neither batches nor commits change a bit of them. Rows count once each, whatever their weight.

`examples`, `positives`, `predicted_positives`, `true_positives`, `no_change_hits` int64 [1] · `loss_sum`,
`prediction_sum` float64 [1] · `histogram` int64 [2, 2048]: scores of negatives and of positives (binary) ·
`absolute_sum`, `squared_sum`, `no_change_absolute_sum`, `no_change_squared_sum`, `label_shift`, `label_sum`,
`label_square_sum` float64 [1] (regression) · `window_score`, `window_label` float64 [1001]: rings of the last rows, the
one before the longest window included, for it is the no-change prediction of the first one inside.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from worker.learn.loss import sigmoid
from worker.learn.measures import Measures, binary, binned_auc, entropy, of_window, ratio, regression, root
from worker.learn.state import LearnerState
from worker.spec import Task

Vector = npt.NDArray[np.float64]
Array = npt.NDArray[np.generic]
Arrays = Mapping[str, Array]

WINDOWS = (100, 1000)
RING = max(WINDOWS) + 1
BINS = 2048
LARGEST = float(np.finfo(np.float64).max)

_COUNTS = ("positives", "predicted_positives", "true_positives", "no_change_hits")
_LABEL_SUMS = ("label_shift", "label_sum", "label_square_sum")
_SUMS: dict[Task, tuple[str, ...]] = {
    "binary": ("loss_sum", "prediction_sum"),
    "regression": (
        "absolute_sum",
        "squared_sum",
        "no_change_absolute_sum",
        "no_change_squared_sum",
        *_LABEL_SUMS,
    ),
}


def initial(task: Task) -> dict[str, Array]:
    """Return the `evaluation.…` arrays before the first example."""
    arrays: dict[str, Array] = {"examples": np.zeros(1, np.int64)}
    arrays |= {name: np.zeros(1) for name in _SUMS[task]}
    if task == "binary":
        arrays |= {name: np.zeros(1, np.int64) for name in _COUNTS}
        arrays["histogram"] = np.zeros((2, BINS), np.int64)
    arrays |= {"window_score": np.zeros(RING), "window_label": np.zeros(RING)}
    return {f"evaluation.{name}": array for name, array in arrays.items()}


def observe(arrays: Arrays, task: Task, score: Vector, loss: Vector, label: Vector) -> Arrays:
    """Return the `evaluation.…` arrays after n more rows: score (a logit in `binary`), loss and label, [n] each."""
    old = {name.removeprefix("evaluation."): a for name, a in arrays.items() if name.startswith("evaluation.")}
    n = len(label)
    if not n:
        return {f"evaluation.{name}": a for name, a in old.items()}
    seen = int(old["examples"][0])
    last = (seen - 1) % RING
    known = np.asarray(old["window_label"][last : last + 1 if seen else last], np.float64)
    before = np.concatenate((known, label[:-1]))  # one shorter than `label` at the very first row
    follow = label[len(label) - len(before) :]
    with np.errstate(over="ignore"):  # sums are kept below infinity by `_total`
        new = _binary(old, score, loss, label) if task == "binary" else _regression(old, score, loss, label)
        if task == "binary":
            new["no_change_hits"] = _counts(old["no_change_hits"]) + np.count_nonzero(before == follow)
        else:
            new["no_change_absolute_sum"] = _total(old["no_change_absolute_sum"], np.abs(follow - before))
            new["no_change_squared_sum"] = _total(old["no_change_squared_sum"], np.square(follow - before))
    new["examples"] = _counts(old["examples"]) + n
    new["window_score"] = _turned(old["window_score"], seen, score)
    new["window_label"] = _turned(old["window_label"], seen, label)
    return {f"evaluation.{name}": a for name, a in new.items()}


def summary(state: LearnerState, task: Task) -> dict[str, object]:
    """Return what `status` shows as `evaluation`: whole life, and `windows` by size. Undefined values are None.

    All keys are always there, those of the other task as None; for their meaning see `measures.py`.
    """
    old = {name.removeprefix("evaluation."): a for name, a in state.arrays.items() if name.startswith("evaluation.")}
    seen = int(old["examples"][0])
    score, label = _ring(old["window_score"], seen), _ring(old["window_label"], seen)
    windows: dict[str, object] = {str(size): of_window(task, size, score, label).plain() for size in WINDOWS}
    life = _binary_life(old, seen) if task == "binary" else _regression_life(old, seen)
    return {**life.plain(), "windows": windows}


def _binary(old: Arrays, score: Vector, loss: Vector, label: Vector) -> dict[str, Array]:
    positive, said = label == 1.0, score > 0.0
    cells = positive * BINS + _bin(score)
    return {
        "loss_sum": _total(old["loss_sum"], loss),
        "prediction_sum": _total(old["prediction_sum"], sigmoid(score)),
        "positives": _counts(old["positives"]) + np.count_nonzero(positive),
        "predicted_positives": _counts(old["predicted_positives"]) + np.count_nonzero(said),
        "true_positives": _counts(old["true_positives"]) + np.count_nonzero(said & positive),
        "histogram": _counts(old["histogram"]) + np.bincount(cells, minlength=2 * BINS).reshape(2, BINS),
    }


def _regression(old: Arrays, score: Vector, loss: Vector, label: Vector) -> dict[str, Array]:
    # Labels are summed from the first one ever seen: far from zero, plain squares would cancel to nothing.
    shift = np.asarray(old["label_shift"], np.float64) if int(old["examples"][0]) else label[:1].copy()
    moved = label - shift
    return {
        "absolute_sum": _total(old["absolute_sum"], np.abs(score - label)),
        "squared_sum": _total(old["squared_sum"], loss),
        "label_shift": shift,
        "label_sum": _total(old["label_sum"], moved),
        "label_square_sum": _total(old["label_square_sum"], np.square(moved)),
    }


def _bin(score: Vector) -> npt.NDArray[np.int64]:
    """Return the histogram cell of each logit: 0.007 wide around 0, 0.02 around ±5, the last ones open beyond ±30."""
    step = 2.0 * float(np.arcsinh(15.0)) / BINS
    cell = np.floor(np.arcsinh(0.5 * score) / step) + BINS // 2
    return np.asarray(np.minimum(np.maximum(cell, 0.0), BINS - 1.0), np.int64)


def _counts(array: Array) -> npt.NDArray[np.int64]:
    return np.asarray(array, np.int64)


def _total(start: Array, values: Vector) -> Vector:
    """Return start + values[0] + values[1] + …, added in this order, kept below infinity, [1]."""
    total = np.cumsum(np.concatenate((start, values)))[-1:]
    return np.minimum(np.maximum(total, -LARGEST), LARGEST)


def _turned(ring: Array, seen: int, values: Vector) -> Vector:
    """Return the ring with the last of `values` written where row number `seen` and the following ones belong."""
    last = values[-RING:]
    turned = np.array(ring, np.float64)
    at = (seen + len(values) - len(last)) % RING
    to_the_end = min(len(last), RING - at)
    turned[at : at + to_the_end] = last[:to_the_end]
    turned[: len(last) - to_the_end] = last[to_the_end:]
    return turned


def _ring(ring: Array, seen: int) -> Vector:
    """Return what the ring holds, oldest first, at most RING values."""
    if seen < RING:
        return np.asarray(ring[:seen], np.float64)
    return np.roll(np.asarray(ring, np.float64), -(seen % RING))


def _binary_life(old: Arrays, seen: int) -> Measures:
    positives, said, hits = (int(old[name][0]) for name in ("positives", "predicted_positives", "true_positives"))
    right = seen - positives - said + 2 * hits
    return binary(
        examples=seen,
        positives=positives,
        right=right,
        f1=ratio(2 * hits, positives + said),
        log_loss=ratio(float(old["loss_sum"][0]), seen),
        baseline_log_loss=entropy(positives, seen),
        auc=binned_auc(old["histogram"]),
        calibration=ratio(float(old["prediction_sum"][0]), positives),
        no_change_accuracy=ratio(int(old["no_change_hits"][0]), seen - 1),
    )


def _regression_life(old: Arrays, seen: int) -> Measures:
    sums = {name: float(old[name][0]) for name in _SUMS["regression"]}
    spread = ratio(sums["label_square_sum"], seen)
    mean = ratio(sums["label_sum"], seen)
    return regression(
        examples=seen,
        mae=ratio(sums["absolute_sum"], seen),
        rmse=root(ratio(sums["squared_sum"], seen)),
        baseline_rmse=None if spread is None or mean is None else root(max(spread - mean * mean, 0.0)),
        no_change_mae=ratio(sums["no_change_absolute_sum"], seen - 1),
        no_change_rmse=root(ratio(sums["no_change_squared_sum"], seen - 1)),
    )
