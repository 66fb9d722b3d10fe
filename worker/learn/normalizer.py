"""Running mean and population standard deviation of numeric features. Must not know weights, labels or torch.

A row is seen twice: with the statistics *before* it (to be predicted) and with those that *include* it (to be learned
from), as in B. Welford, Technometrics 4 (1962) and T. Chan, G. Golub, R. LeVeque, The American Statistician 37 (1983).
A missing value (NaN) is in no statistics; standardised it is 0, unstandardised it is the running mean.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


_STEPS = np.arange(1025.0)[:, None]


@dataclass(frozen=True, slots=True)
class Normalizer:
    """Per feature, [d] each: values seen, their mean, and the sum of squared deviations from it."""

    count: Vector
    mean: Vector
    m2: Vector


def advance(old: Normalizer, dense: Matrix, predict: Matrix, learn: Matrix, *, standardize: bool) -> Normalizer:
    """Fill `predict` and `learn` [n, d] with what each raw row of `dense` looks like before and after it was counted.

    One pass of prefix sums over deviations from a shift: the mean before the batch, or a feature's first value.
    With such a shift Σδ² exceeds the result at most (count + n) / count times, so no digits are lost to cancellation,
    and a constant feature has a standard deviation of exactly 0. Returns the statistics after the last row.
    """
    n, d = dense.shape
    missing = np.isnan(dense)
    gaps = bool(missing.any())
    shift = _shift(old, dense, missing)
    deviation = dense - shift
    if gaps:
        deviation[missing] = 0.0
    total, squares = np.empty((n + 1, d)), np.empty((n + 1, d))  # Σδ and Σδ²: before the first row, and after each
    total[0], squares[0] = 0.0, old.m2
    total[1:] = deviation
    np.multiply(deviation, deviation, out=squares[1:])
    np.add.accumulate(total, axis=0, out=total)
    np.add.accumulate(squares, axis=0, out=squares)
    count = _counts(old.count, missing, gaps=gaps)
    centre = total / count
    m2 = np.subtract(squares, np.multiply(total, centre, out=total), out=squares)
    np.maximum(m2, 0.0, out=m2)
    seen = old.count + n - missing.sum(axis=0) if gaps else old.count + n
    after = Normalizer(seen, shift + centre[-1], m2[-1].copy())
    if standardize:
        scale = _scale(count, m2)
        np.multiply(np.subtract(deviation, centre[:-1], out=predict), scale[:-1], out=predict)
        np.multiply(np.subtract(deviation, centre[1:], out=learn), scale[1:], out=learn)
        if gaps:
            predict[missing] = learn[missing] = 0.0
    else:
        # Nothing was seen before a leading gap: its mean is 0, not the shift that a later value chose.
        unseen = np.logical_and.accumulate(missing, axis=0) & (old.count == 0.0)
        predict[:] = np.where(missing, np.where(unseen, 0.0, shift + centre[:-1]), dense)
        learn[:] = predict
    return after


def advance_row(old: Normalizer, row: Vector, *, standardize: bool) -> tuple[Vector, Vector, Normalizer]:
    """Return (the row as predicted, the row as learned, the statistics with it) of one raw row [d]."""
    deviation = row - old.mean
    missing = np.isnan(row)
    gaps = bool(missing.any())
    if gaps:
        deviation[missing] = 0.0
        count = old.count + ~missing
    else:
        count = old.count + 1.0
    mean = old.mean + deviation / (np.maximum(count, 1.0) if gaps else count)
    rest = row - mean
    if gaps:
        rest[missing] = 0.0
    m2 = old.m2 + deviation * rest
    after = Normalizer(count, mean, m2)
    if not standardize:
        filled = np.where(missing, old.mean, row) if gaps else row
        return filled, filled, after
    return deviation * _scale(old.count, old.m2), rest * _scale(count, m2), after


def _shift(old: Normalizer, dense: Matrix, missing: Mask) -> Vector:
    fresh = old.count == 0.0
    if not fresh.any():
        return old.mean
    first = missing.argmin(axis=0)  # row of the first value; row 0 where there is none
    value = dense[first, np.arange(dense.shape[1])]
    return np.where(fresh, np.where(np.isnan(value), 0.0, value), old.mean)


def _counts(before: Vector, missing: Mask, *, gaps: bool) -> Matrix:
    """Return how many values were seen before the first row and after each, [n + 1, d], at least 1.

    Where nothing was seen the sums are 0, and so is 0 / 1.
    """
    n, d = missing.shape
    if not gaps:
        count: Matrix = before + (_STEPS[: n + 1] if n < len(_STEPS) else np.arange(n + 1.0)[:, None])
    else:
        count = np.empty((n + 1, d))
        count[0] = before
        np.subtract(1.0, missing, out=count[1:])
        np.cumsum(count, axis=0, out=count)
    return np.maximum(count, 1.0, out=count)


def _scale(count: Matrix, m2: Matrix) -> Matrix:
    """Return 1 / standard deviation, and 0 where that is 0."""
    scale: Matrix = np.sqrt(count / m2)
    if not m2.all():
        scale[m2 == 0.0] = 0.0
    return scale
