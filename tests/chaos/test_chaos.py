"""Five seeded runs with everything breaking around the workers: nothing lost, nothing learned twice. Minutes.

More of them: `make chaos SEED=7 MINUTES=2`, or `python -m tests.chaos --seeds 1-100`.
"""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.__main__ import campaign
from tests.services.require import docker_answers, left_out

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.timeout(1200),
    pytest.mark.filterwarnings("default::pytest.PytestUnraisableExceptionWarning"),  # the Kafka client's leftovers
]

SEEDS = (22, 23, 36, 40, 60)  # together they hold every kind of fault and every setting
MUST_BE_NONE = (
    "lost", "doubly_learned", "unbalanced", "unbalanced_on_the_way", "broken_chain", "miscounted_commits",
    "wrong_columns", "wrong_letters", "wrong_weights", "unplanned_exits",
)  # fmt: skip


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, Any]]:
    """All runs, two at a time where there are cores for them."""
    if not docker_answers():
        left_out("docker", "brokers and stores are killed, which only containers allow")
    logs = Path(tmp_path_factory.mktemp("chaos"))
    jobs = 2 if (os.cpu_count() or 1) > 1 else 1
    return {result["seed"]: result for result in campaign(SEEDS, 60.0, jobs, logs, str(logs / "runs.jsonl"))}


@pytest.mark.parametrize("seed", SEEDS)
def test_workers_that_are_killed_paused_and_cut_off_learn_every_example_once(
    results: dict[int, dict[str, Any]], seed: int
) -> None:
    result = results[seed]
    assert result["problems"] == []
    counters = result["counters"]
    assert {name: counters[name] for name in MUST_BE_NONE} == dict.fromkeys(MUST_BE_NONE, 0)
    assert not counters["versions_not_rebuilt"]
    assert counters["learned"] == counters["examples_due"] > 1000
    assert sum(result["faults"].values()) > 10
