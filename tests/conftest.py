"""Real parts for tests: see `tests/services`."""

import pytest

pytest_plugins = ["tests.services.redis", "tests.services.kafka"]

_WITH_SERVERS = ("tests/contract/", "tests/integration/", "tests/e2e/")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests use the Kafka client bare as well, and it leaves sockets and coroutines to the garbage collector.

    Which test is running when they are collected is chance: there they are shown, and do not fail it.
    """
    for item in items:
        if item.nodeid.startswith(_WITH_SERVERS):
            item.add_marker(pytest.mark.filterwarnings("default::pytest.PytestUnraisableExceptionWarning"))
