"""Real parts for tests: see `tests/services`."""

pytest_plugins = ["tests.services.redis", "tests.services.kafka"]
