"""The plan of a run: the same seed does the same things, and over the seeds everything is done."""

import ast
from pathlib import Path

from tests.chaos.plan import KINDS, Fault, plan
from tests.chaos.stream import Message, messages

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
SEEDS = range(1, 101)


def test_the_same_seed_gives_the_same_plan_and_the_same_stream() -> None:
    assert plan(7, 60.0) == plan(7, 60.0)
    assert messages(plan(7, 5.0)) == messages(plan(7, 5.0))
    assert plan(7, 60.0).faults != plan(8, 60.0).faults


def test_a_hundred_seeds_leave_no_kind_of_fault_and_no_setting_out() -> None:
    plans = [plan(seed, 60.0) for seed in SEEDS]
    kinds = {fault.kind for one in plans for fault in one.faults}
    assert kinds == set(KINDS)
    drawn = {(name, str(value)) for one in plans for name, value in one.settings.items()}
    assert {
        ("stream.mode", "inline"), ("stream.mode", "joined"), ("train.reduction", "mean"), ("join.on_expiry", "negative"),
        ("join.idle_labels", "advance"), ("train.kernel", "numba"), ("train.kernel", "numpy"), ("join.remember", "1500"),
    } <= drawn  # fmt: skip
    assert {one.workers for one in plans} == {2, 3, 4}
    assert {one.static for one in plans} == {True, False}


def test_faults_leave_time_to_begin_and_to_heal() -> None:
    for seed in SEEDS:
        faults: tuple[Fault, ...] = plan(seed, 60.0).faults
        assert len(faults) > 10, "a run without faults shows nothing"
        assert all(2.0 < fault.at_s < 56.0 for fault in faults)
        assert list(faults) == sorted(faults, key=lambda fault: fault.at_s)


def test_every_topic_is_sent_in_its_own_order() -> None:
    """What is late in one topic against the other never changes the order inside a topic."""
    one = plan(3, 4.0)
    level = one._replace(stream=one.stream._replace(delays_s=(0.0, 0.0), holds=()))
    assert _by_topic(messages(one)) == _by_topic(messages(level))


def _by_topic(sent: list[Message]) -> dict[str, list[Message]]:
    topics: dict[str, list[Message]] = {}
    for message in sent:
        topics.setdefault(message.role, []).append(message._replace(at_s=0.0))
    return topics


def test_the_checker_imports_nothing_of_the_program() -> None:
    """Followed through every module of this repository that it imports, by reading the source."""
    todo = sorted((HERE / "check").glob("*.py"))
    seen: set[Path] = set()
    while todo:
        path = todo.pop()
        if path in seen:
            continue
        seen.add(path)
        for module in _imports(path):
            assert module.partition(".")[0] != "worker", f"{path.relative_to(ROOT)} imports {module}"
            todo += _sources(module)
    assert {path.name for path in seen} >= {
        "verdict.py",
        "pairs.py",
        "due.py",
        "stored.py",
        "events.py",
        "reference.py",
    }


def _imports(path: Path) -> set[str]:
    modules: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "no relative imports: this test could not follow them"
            modules |= {str(node.module), *(f"{node.module}.{name.name}" for name in node.names)}
    return modules


def _sources(module: str) -> list[Path]:
    """Return the files of a module of this repository; none for a library."""
    place = ROOT.joinpath(*module.split("."))
    candidates = [place.with_suffix(".py"), place / "__init__.py"]
    return [path for path in candidates if module.startswith("tests") and path.is_file()]
