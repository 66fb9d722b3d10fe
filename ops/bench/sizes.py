"""How much is measured. The defaults are those of docs/figures.md; tests take tiny ones."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sizes:
    """Numbers of examples, records and repeats. `pending`: how many features wait when a worker is killed."""

    examples: int = 200_000
    rounds: int = 3  # of whole runs: end to end
    repeats: int = 7  # of what takes milliseconds
    micro: int = 20_000
    batch_sizes: tuple[int, ...] = (1, 8, 64, 256, 1024)
    parameters: tuple[int, ...] = (0, 10, 16)  # bits of a categorical feature beside 20 numeric ones; 0: none
    commits: int = 200
    pending: tuple[int, ...] = (10_000, 100_000)
    waiting: int = 100_000
    fleet: tuple[int, ...] = (1, 4, 16, 64)  # simulated workers
    fleet_s: float = 6.0
    real: int = 1_000_000  # records of a real data set, at most
    takeovers: int = 20  # kills
