# marl-verl: `make` lists the targets. Needs Python 3.11 or 3.12, and nothing else.
.DEFAULT_GOAL := help
.PHONY: help install demo demo-verl demo-pretrained test test-fast lint docs bench results clean
.DELETE_ON_ERROR:
# Without bytecode files, every process of a run compiles 1,700 modules again.
unexport PYTHONDONTWRITEBYTECODE

STAMP := .venv/.installed
BIN := .venv/bin

help:  ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-16s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

install: $(STAMP)  ## create .venv with all packages; does nothing if it is up to date

# Run each Python instead of only finding it: version managers put commands on the path that fail when they run.
$(STAMP): pyproject.toml scripts/install.py $(wildcard plugins/*/pyproject.toml)
	@for python in python3.12 python3.11 python3 python; do \
	  if $$python -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))' \
	      >/dev/null 2>&1; then exec $$python scripts/install.py; fi; \
	done; \
	echo 'marl-verl needs Python 3.11 or 3.12 with the venv module: none of python3.12, python3.11, python3, python is suitable.' >&2; \
	exit 2

demo: $(STAMP)  ## train two tiny models in one process
	$(BIN)/marl-verl train recipes/quickstart/split_plan_path.yaml

demo-verl: $(STAMP)  ## the same on Ray and vLLM
	$(BIN)/marl-verl train recipes/quickstart/split_plan_path.yaml marl.run.backend=verl

demo-pretrained: $(STAMP)  ## train two pretrained models on a CPU
	$(BIN)/marl-verl train recipes/quickstart/pretrained.yaml

lint: $(STAMP)  ## ruff, mypy, import-linter, the size of the house
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/size.py

test: lint  ## lint and all tests, including those of the real stack
	$(BIN)/python -m pytest -m 'not e2e' -n 3 --dist loadfile --no-loadscope-reorder
	$(BIN)/python -m pytest -m e2e

test-fast: lint  ## lint and the tests without the real stack
	$(BIN)/python -m pytest -m 'not e2e' -n 3 --dist loadfile --no-loadscope-reorder

docs: $(STAMP)  ## build the documentation site into site/; a broken link fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet
	@echo "The site is in site/. To search it, serve it: $(BIN)/python -m http.server --directory site"

bench: $(STAMP)  ## run the benchmarks of docs/benchmarks.md
	$(BIN)/python -m tests.benchmarks.advantage
	$(BIN)/python -m tests.benchmarks.sampling
	$(BIN)/python -m tests.benchmarks.startup
	$(BIN)/python -m tests.benchmarks.run

results: $(STAMP)  ## write docs/results.md; MARL_VERL_LONG=1 trains its missing runs first, for hours
	$(BIN)/python -m tests.benchmarks.results

clean:  ## remove .venv and caches (runs/ stays)
	rm -rf .venv site .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
