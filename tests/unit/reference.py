"""The rules of learning once more, as a plain loop over plain floats: what `worker.learn` is held to.

Shares no code with it, and no idea of how to be fast: one row, one feature at a time, textbook Welford statistics.
"""

import math
from dataclasses import dataclass, field


@dataclass
class Statistics:
    """Welford's running mean and population variance of one feature."""

    n: int = 0
    mean: float = 0.0
    m2: float = 0.0

    def add(self, x: float) -> None:
        self.n += 1
        delta = x - self.mean
        self.mean += delta / self.n
        self.m2 += delta * (x - self.mean)

    def view(self, x: float, *, standardize: bool) -> float:
        if not standardize:
            return self.mean if math.isnan(x) else x
        deviation = math.sqrt(self.m2 / self.n) if self.n else 0.0
        return 0.0 if math.isnan(x) or deviation == 0.0 else (x - self.mean) / deviation


@dataclass
class Settings:
    task: str = "binary"
    reduction: str = "sequential"
    standardize: bool = True
    rate: float = 0.01
    intercept_rate: float = 0.01
    schedule: str = "constant"
    l2: float = 0.0
    clip: float = 0.0
    batch: int = 1


@dataclass
class PlainModel:
    """Weights of numbers, and one dictionary of weights for each categorical feature."""

    settings: Settings
    numbers: list[float]
    tables: list[dict[int, float]]
    statistics: list[Statistics]
    intercept: float = 0.0
    rows: int = 0
    steps: int = 0
    scores: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)

    @classmethod
    def of(cls, settings: Settings, numeric: int, categorical: int) -> "PlainModel":
        return cls(settings, [0.0] * numeric, [{} for _ in range(categorical)], [Statistics() for _ in range(numeric)])

    def score(self, x: list[float], buckets: list[int]) -> float:
        total = self.intercept
        for w, value in zip(self.numbers, x, strict=True):
            total += w * value
        for table, bucket in zip(self.tables, buckets, strict=True):
            total += table.get(bucket, 0.0)
        return total

    def look(self, raw: list[float]) -> list[float]:
        return [s.view(v, standardize=self.settings.standardize) for s, v in zip(self.statistics, raw, strict=True)]

    def count(self, raw: list[float]) -> None:
        for s, v in zip(self.statistics, raw, strict=True):
            if not math.isnan(v):
                s.add(v)

    def slope(self, z: float, y: float) -> float:
        if self.settings.task == "regression":
            return 2.0 * (z - y)
        return (1.0 / (1.0 + math.exp(-z)) if z > -700 else 0.0) - y

    def factor(self) -> float:
        t = self.rows if self.settings.reduction == "sequential" else self.steps
        return {"constant": 1.0, "inverse_sqrt": 1 / math.sqrt(1 + t), "inverse": 1 / (1 + t)}[self.settings.schedule]

    def descend(self, numbers: list[float], tables: list[dict[int, float]], intercept: float) -> float:
        """Clip, decay, step; return the norm before clipping."""
        s = self.settings
        squares = sum(g * g for g in numbers) + sum(g * g for t in tables for g in t.values()) + intercept**2
        norm = math.sqrt(squares)
        cut = s.clip / norm if s.clip and norm > s.clip else 1.0
        eta, beta = s.rate * self.factor(), s.intercept_rate * self.factor()
        self.numbers = [w - eta * (cut * g + s.l2 * w) for w, g in zip(self.numbers, numbers, strict=True)]
        for own, gradient in zip(self.tables, tables, strict=True):
            for bucket in own:
                own[bucket] -= eta * s.l2 * own[bucket]
            for bucket, g in gradient.items():
                own[bucket] = own.get(bucket, 0.0) - eta * cut * g
        self.intercept -= beta * cut * intercept
        return norm

    def learn(self, batch: list[tuple[list[float], list[int], float, float]]) -> None:
        """Learn rows (raw numbers, buckets, label, weight): one by one, or with one gradient for all of them."""
        if self.settings.reduction == "sequential":
            for row in batch:
                self.learn_together([row])
                self.norms.append(self.last_norm)
        else:
            self.learn_together(batch)
            self.norms.append(self.last_norm)
        self.steps += 1

    def learn_together(self, batch: list[tuple[list[float], list[int], float, float]]) -> None:
        numbers, intercept = [0.0] * len(self.numbers), 0.0
        tables: list[dict[int, float]] = [{} for _ in self.tables]
        whole = sum(weight for *_, weight in batch) if self.settings.reduction == "mean" else 1.0
        for raw, buckets, y, weight in batch:
            self.scores.append(self.score(self.look(raw), buckets))
            self.count(raw)
            x = self.look(raw)
            g = weight * self.slope(self.score(x, buckets), y) / whole
            numbers = [old + g * value for old, value in zip(numbers, x, strict=True)]
            for table, bucket in zip(tables, buckets, strict=True):
                table[bucket] = table.get(bucket, 0.0) + g
            intercept += g
        self.last_norm = self.descend(numbers, tables, intercept)
        self.rows += len(batch)

    last_norm: float = 0.0
