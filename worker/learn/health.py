"""Numbers into words: one state from a closed list, and the evidence with what to do. Pure; no arrays, no torch.

`starting`                 too few examples to judge
`learning`                 better than the baselines that count, nothing alarming
`no_better_than_baseline`  a constant prediction would do as well
`diverging`                the last examples went far worse than those before, or scores are absurdly large
`non_finite`               rows were left out lately because a step on them was not finite

The worst one that applies is the state; `reasons` hold a sentence for each thing seen, also under `learning`.
"""

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple, get_args

State = Literal["starting", "learning", "no_better_than_baseline", "diverging", "non_finite"]
STATES: tuple[State, ...] = get_args(State)  # from best to worst

ENOUGH = 100  # examples before anything is said about quality
RECENT = 1000  # examples for which a skipped row is news
WORSE = 3.0  # times the loss before, and the constant's loss: an alarm
ABSURD = 50.0  # logits: a belief of 1 : 10^21
NO_GAIN = 0.99  # share of the constant's loss that counts as "no better"
FEW = 10  # of a class in a window: its entropy says too little


class Finding(NamedTuple):
    state: State
    reason: str


def health(evaluation: Mapping[str, object], *, skipped: int = 0, last_skipped: int = -1) -> dict[str, object]:
    """Return {"state", "reasons"} from `evaluation.summary` and a state's counters of skipped rows."""
    examples = int(_number(evaluation, "examples") or 0)
    findings = list(_skips(examples, skipped, last_skipped))
    if examples < ENOUGH:
        findings.append(Finding("starting", f"{examples} examples so far; judged from {ENOUGH} on"))
    else:
        findings += [*_alarms(evaluation), *_baselines(evaluation)]
    state = max((f.state for f in findings), key=STATES.index, default="learning")
    return {"state": state, "reasons": [finding.reason for finding in findings]}


def _skips(examples: int, skipped: int, last: int) -> Iterator[Finding]:
    if skipped and examples - last <= RECENT:
        yield Finding(
            "non_finite",
            f"{skipped} rows left out because their step was not finite, the last {examples - last} examples ago: "
            "lower train.learning_rate, or begin again with a lower max_abs for the features",
        )


def _alarms(evaluation: Mapping[str, object]) -> Iterator[Finding]:
    window = _window(evaluation, "100")
    binary = _number(evaluation, "log_loss") is not None
    size = _number(window, "score_max")
    if binary and size is not None and size > ABSURD:
        yield Finding(
            "diverging",
            f"a score of {size:.3g} among the last 100 examples (beyond {ABSURD:.0f} no probability is meant): a "
            "feature left its range (begin again with a lower max_abs for it) or train.learning_rate is too high",
        )
    name = "log_loss" if binary else "rmse"
    now, constant = _number(window, name), _number(window, f"baseline_{name}")
    before = _before(evaluation, window, name)
    if now is None or constant is None or before is None:
        return
    if now > WORSE * max(before, constant):
        yield Finding(
            "diverging",
            f"{name} {now:.4g} over the last 100 examples, {before:.4g} before them, {constant:.4g} for a constant "
            "prediction: lower train.learning_rate, set train.clip_norm, and look for a feature that left its range",
        )


def _baselines(evaluation: Mapping[str, object]) -> Iterator[Finding]:
    for name in ("log_loss", "rmse"):
        where, scope = _judged(evaluation)
        own, constant = _number(where, name), _number(where, f"baseline_{name}")
        if own is not None and constant and own >= NO_GAIN * constant:
            yield Finding(
                "no_better_than_baseline",
                f"no better than baseline: {name} {own:.4g} {scope}, {constant:.4g} for a constant prediction; the "
                "features carry nothing that a linear model can use, or train.learning_rate is too low or too high",
            )
    hits, repeat = _number(evaluation, "accuracy"), _number(evaluation, "no_change_accuracy")
    if hits is not None and repeat is not None and repeat > hits:
        yield Finding("learning", f"repeating the label before is right more often: {repeat:.4f} against {hits:.4f}")
    error, repeat = _number(evaluation, "mae"), _number(evaluation, "no_change_mae")
    if error is not None and repeat is not None and repeat < error:
        yield Finding("learning", f"repeating the label before is closer: mae {repeat:.4g} against {error:.4g}")
    if evaluation.get("positives") in (0, evaluation["examples"]):
        yield Finding("learning", "labels of one class only so far: nothing to tell apart, auc is undefined")


def _judged(evaluation: Mapping[str, object]) -> tuple[Mapping[str, object], str]:
    """Return the last 1000 examples where they say enough, else the whole life."""
    window = _window(evaluation, "1000")
    examples, positives = _number(window, "examples") or 0.0, _number(window, "positives")
    telling = positives is None or FEW <= positives <= examples - FEW
    return (window, "over the last 1000 examples") if telling and examples >= 1000 else (evaluation, "over its life")


def _before(evaluation: Mapping[str, object], window: Mapping[str, object], name: str) -> float | None:
    """Return the measure over all examples before the window (root of the mean square for `rmse`)."""
    power = 2 if name == "rmse" else 1
    whole, part = _number(evaluation, name), _number(window, name)
    n, k = _number(evaluation, "examples") or 0.0, _number(window, "examples") or 0.0
    if whole is None or part is None or n <= k:
        return None
    return float(max((whole**power * n - part**power * k) / (n - k), 0.0) ** (1 / power))


def _window(evaluation: Mapping[str, object], size: str) -> Mapping[str, object]:
    windows = evaluation.get("windows")
    window = windows.get(size) if isinstance(windows, Mapping) else None
    return window if isinstance(window, Mapping) else {}


def _number(values: Mapping[str, object], name: str) -> float | None:
    value = values.get(name)
    return float(value) if isinstance(value, int | float) else None
