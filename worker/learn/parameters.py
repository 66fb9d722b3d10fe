"""What a state holds, by the names of its features, as `state show` prints it. No torch here."""

import numpy as np

from worker.learn.layout import Layout
from worker.learn.state import LearnerState
from worker.spec import Spec


def parameters(spec: Spec, state: LearnerState) -> dict[str, object]:
    """Return {"dtype", "intercept", "weights", "normalizer"} in plain values; weights are in standardised units.

    A categorical feature shows its non-zero buckets, {bucket: weight}, with bucket numbers as text, as JSON will have
    them. Statistics of a feature that was never seen are None.
    """
    layout, weight = Layout.of(spec), np.asarray(state.arrays["weight"], np.float64)
    weights: dict[str, object] = {f.name: w for f, w in zip(spec.numeric, weight.tolist(), strict=False)}
    for feature, offset in zip(spec.categorical, layout.offsets.tolist(), strict=True):
        table = weight[offset : offset + (1 << feature.bits) + 1]
        weights[feature.name] = {str(bucket): float(table[bucket]) for bucket in np.flatnonzero(table).tolist()}
    return {
        "dtype": str(state.arrays["weight"].dtype),
        "intercept": float(state.arrays["intercept"][0]),
        "weights": {feature.name: weights[feature.name] for feature in spec.features},
        "normalizer": _normalizer(spec, state),
    }


def _normalizer(spec: Spec, state: LearnerState) -> dict[str, dict[str, float | int | None]]:
    columns = (np.asarray(state.arrays[f"normalizer.{part}"], np.float64).tolist() for part in ("count", "mean", "m2"))
    return {
        feature.name: {
            "mean": mean if count else None,
            "std": (m2 / count) ** 0.5 if count else None,
            "count": int(count),
        }
        for feature, count, mean, m2 in zip(spec.numeric, *columns, strict=True)
    }
