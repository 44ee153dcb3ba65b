# marl-verl: `make` alone lists what there is. Needs Python 3.11 or 3.12, and nothing else.
.DEFAULT_GOAL := help
.PHONY: help install demo test test-fast lint bench clean
.DELETE_ON_ERROR:

STAMP := .venv/.installed
BIN := .venv/bin

help:  ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

install: $(STAMP)  ## .venv with everything in it; nothing to do the second time

# A Python is tried, not only looked up: version managers put commands on the path that fail when they are run.
$(STAMP): pyproject.toml scripts/install.py $(wildcard plugins/*/pyproject.toml)
	@for python in python3.12 python3.11 python3 python; do \
	  if $$python -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))' \
	      >/dev/null 2>&1; then exec $$python scripts/install.py; fi; \
	done; \
	echo 'marl-verl needs Python 3.11 or 3.12 with its venv module, and none of python3.12, python3.11, python3 and python is one.' >&2; \
	exit 2

demo: $(STAMP)  ## two models learn to work together: train, print, plot
	$(BIN)/marl-verl train recipes/quickstart/split_plan_path.yaml

lint: $(STAMP)  ## ruff, mypy, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint  ## ruff, mypy and all tests, the real stack included
	$(BIN)/python -m pytest -m 'not e2e' -n 2 --dist loadfile
	$(BIN)/python -m pytest -m e2e

test-fast: lint  ## the same without the real stack
	$(BIN)/python -m pytest -m 'not e2e' -n 2 --dist loadfile

bench: $(STAMP)  ## the measurements of docs/benchmarks.md
	$(BIN)/python -m tests.benchmarks.advantage
	$(BIN)/python -m tests.benchmarks.sampling
	$(BIN)/python -m tests.benchmarks.startup
	$(BIN)/python -m tests.benchmarks.run

clean:  ## remove .venv and caches (runs/ stays)
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
