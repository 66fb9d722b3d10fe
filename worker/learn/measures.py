"""What each measure means, as plain functions. Must not know states. Undefined is None: never 0, never NaN.

log_loss            mean of −log of the probability given to what happened
baseline_log_loss   the same of a constant prediction, the share of positives among these very rows: their entropy
normalized_entropy  log_loss / baseline_log_loss: 1 is no better than knowing the share of positives, 0 is perfect
accuracy            share of rows with (p > 0.5) = label; beside it that of the commoner class (`majority_accuracy`) and
                    of repeating the label before (`no_change_accuracy`; the first row has none and is not counted)
auc                 probability that a positive is scored above a negative, ties ½; undefined with one class
f1                  2 TP / (2 TP + FP + FN) · calibration: Σp / Σy
mae, rmse           mean absolute error, root of the mean squared error; beside them those of repeating the label
                    before, and `baseline_rmse` of a constant, the mean of these very labels
score_max           largest |score| of the window, in logits or label units
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from math import isfinite, log, sqrt

import numpy as np
import numpy.typing as npt

from worker.learn.loss import losses, sigmoid
from worker.spec import Task

Vector = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Measures:
    """All measures of some rows, both tasks'; those that do not apply are None."""

    examples: int
    positives: int | None = None
    log_loss: float | None = None
    baseline_log_loss: float | None = None
    normalized_entropy: float | None = None
    accuracy: float | None = None
    majority_accuracy: float | None = None
    no_change_accuracy: float | None = None
    auc: float | None = None
    calibration: float | None = None
    f1: float | None = None
    mae: float | None = None
    rmse: float | None = None
    baseline_rmse: float | None = None
    no_change_mae: float | None = None
    no_change_rmse: float | None = None
    score_max: float | None = None

    def plain(self) -> dict[str, object]:
        return asdict(self)


def binary(
    *,
    examples: int,
    positives: int,
    right: int,
    f1: float | None,
    log_loss: float | None,
    baseline_log_loss: float | None,
    auc: float | None,
    calibration: float | None,
    no_change_accuracy: float | None,
    score_max: float | None = None,
) -> Measures:
    """Complete the measures of a binary task with those that follow from the others."""
    entropy_known = log_loss is not None and baseline_log_loss is not None
    return Measures(
        examples=examples,
        positives=positives,
        log_loss=log_loss,
        baseline_log_loss=baseline_log_loss,
        normalized_entropy=ratio(log_loss or 0.0, baseline_log_loss or 0.0) if entropy_known else None,
        accuracy=ratio(right, examples),
        majority_accuracy=ratio(max(positives, examples - positives), examples),
        no_change_accuracy=no_change_accuracy,
        auc=auc,
        calibration=calibration,
        f1=f1,
        score_max=score_max,
    )


def regression(
    *,
    examples: int,
    mae: float | None,
    rmse: float | None,
    baseline_rmse: float | None,
    no_change_mae: float | None,
    no_change_rmse: float | None,
    score_max: float | None = None,
) -> Measures:
    return Measures(
        examples=examples,
        mae=mae,
        rmse=rmse,
        baseline_rmse=baseline_rmse,
        no_change_mae=no_change_mae,
        no_change_rmse=no_change_rmse,
        score_max=score_max,
    )


def of_window(task: Task, size: int, score: Vector, label: Vector) -> Measures:
    """Measure the last `size` of the rows given, oldest first; the row before them serves as a no-change prediction."""
    before = label[-size - 1 : -1]
    follow = label[len(label) - len(before) :]
    score, label = score[-size:], label[-size:]
    with np.errstate(over="ignore"):
        if task == "binary":
            return _binary_window(score, label, before == follow)
        return _regression_window(score, label, follow - before)


def _binary_window(score: Vector, label: Vector, repeated: npt.NDArray[np.bool_]) -> Measures:
    n, positive, said = len(label), label == 1.0, score > 0.0
    positives, hits = int(np.count_nonzero(positive)), int(np.count_nonzero(said & positive))
    return binary(
        examples=n,
        positives=positives,
        right=int(np.count_nonzero(said == positive)),
        f1=ratio(2 * hits, positives + int(np.count_nonzero(said))),
        log_loss=mean(losses("binary", score, label)),
        baseline_log_loss=entropy(positives, n),
        auc=auc(score, positive),
        calibration=ratio(float(sigmoid(score).sum()), positives),
        no_change_accuracy=mean(repeated.astype(np.float64)),
        score_max=_largest(score),
    )


def _regression_window(score: Vector, label: Vector, change: Vector) -> Measures:
    error = score - label
    return regression(
        examples=len(label),
        mae=mean(np.abs(error)),
        rmse=root(mean(np.square(error))),
        baseline_rmse=root(mean(np.square(label - label.mean()))) if len(label) else None,
        no_change_mae=mean(np.abs(change)),
        no_change_rmse=root(mean(np.square(change))),
        score_max=_largest(score),
    )


def auc(score: Vector, positive: npt.NDArray[np.bool_]) -> float | None:
    """Return the exact area under the ROC curve (the Mann–Whitney statistic), None with one class only."""
    good, bad = score[positive], np.sort(score[~positive])
    if not len(good) or not len(bad):
        return None
    below = np.searchsorted(bad, good, "left") + np.searchsorted(bad, good, "right")
    return float(below.sum()) / (2.0 * len(good) * len(bad))


def binned_auc(histogram: npt.NDArray[np.generic]) -> float | None:
    """Return the area under the ROC curve from counts by score, negatives and positives [2, bins]; a bin is a tie."""
    bad, good = (np.asarray(row, np.float64) for row in histogram)
    below = np.cumsum(bad) - 0.5 * bad
    return ratio(float(good.dot(below)), float(good.sum() * bad.sum()))


def entropy(positives: int, examples: int) -> float | None:
    """Return the entropy of the share of positives (natural logarithm), 0 with one class only."""
    if not examples:
        return None
    shares = (positives / examples, 1.0 - positives / examples)
    return -sum(p * log(p) for p in shares if p > 0.0) + 0.0


def ratio(part: float, whole: float) -> float | None:
    """Return part / whole, None where that is undefined."""
    return part / whole if whole > 0 and isfinite(part / whole) else None


def root(value: float | None) -> float | None:
    return None if value is None else sqrt(value)


def mean(values: Vector) -> float | None:
    return _finite(np.mean)(values)


def _largest(score: Vector) -> float | None:
    return _finite(np.max)(np.abs(score))


def _finite(measure: Callable[[Vector], np.float64]) -> Callable[[Vector], float | None]:
    def measured(values: Vector) -> float | None:
        result = float(measure(values)) if len(values) else float("nan")
        return result if isfinite(result) else None

    return measured
