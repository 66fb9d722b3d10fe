"""The page about failures names a test for each, and these exist."""

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "failures.md"
NAMED = re.compile(r"`([\w/]+\.py)::(\w+)`")


def _functions(path: Path) -> set[str]:
    return {node.name for node in ast.parse(path.read_text("utf-8")).body if isinstance(node, ast.FunctionDef)}


def test_every_failure_names_a_test_and_every_test_named_exists() -> None:
    rows = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| ")]
    rows = [row for row in rows if not row.startswith("| what goes wrong")]
    assert len(rows) > 40
    for row in rows:
        named = NAMED.findall(row)
        assert named, f"no test is named: {row}"
        assert row.count(" | ") == 4, f"five columns: {row}"
        for path, name in named:
            assert name in _functions(TESTS / path), f"{path} has no {name}"
