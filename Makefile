# The one definition of every check. Set-up is part of each target: a fresh machine needs Python 3.11+ and make.
PYTHON ?= python3
PY := .venv/bin/python
PYTEST := $(PY) -m pytest

.DEFAULT_GOAL := help
.PHONY: help demo test test-unit test-order chaos lint format bench ci clean

help: ## what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | sort | awk -F'\t' '{printf "  make %-14s %s\n", $$1, $$2}'

.venv/ready: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info < (3, 14) else "Python 3.11 to 3.13 is needed: make PYTHON=python3.12 ...")'
	test -x $(PY) || $(PYTHON) -m venv .venv
	$(PY) -m pip install --quiet --upgrade pip
	$(PY) -m pip install --quiet --editable '.[dev]'
	touch .venv/ready

demo: .venv/ready ## two weeks of real flights through an embedded broker and store, learned and shown live
	.venv/bin/gradstream demo $(DEMO)

test: .venv/ready ## every test that this machine can run; says what it left out and why
	$(PYTEST) tests/unit
	$(PYTEST) tests/contract tests/integration tests/e2e -m 'not crash and not stack'
	$(PYTEST) tests/e2e -m 'crash or stack'

test-unit: .venv/ready ## the pure parts, seconds
	$(PYTEST) tests/unit

lint: .venv/ready ## style, types, import rules
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports

format: .venv/ready ## rewrite the code in house style
	.venv/bin/ruff check --fix --quiet . ; .venv/bin/ruff format .

bench: .venv/ready ## measured figures, with the commands that give them (see docs/figures.md)
	$(PY) -m ops.bench

test-order: .venv/ready ## the unit tests once more, in another random order
	$(PYTEST) tests/unit -p randomly -q

chaos: .venv/ready ## five fixed seeds of a minute; one of your own with SEED=7 MINUTES=2 (see docs/chaos.md)
	$(if $(SEED),$(PY) -m tests.chaos --seeds $(SEED) --seconds $$(($(or $(MINUTES),1) * 60)),$(PYTEST) tests/chaos)

ci: test lint test-order chaos ## everything, nothing left out (GRADSTREAM_REQUIRE=all)

clean: ## remove what set-up and tests made
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

include ops/docker/stack.mk
