# Every target works in a path with spaces, and needs only python3 and make; see tools/setup.py.

# Left by another project's shell, these would send Python or Spark to another installation.
unexport SPARK_HOME SPARK_CONF_DIR SPARK_DIST_CLASSPATH PYSPARK_PYTHON PYSPARK_DRIVER_PYTHON
unexport PYSPARK_DRIVER_PYTHON_OPTS PYSPARK_SUBMIT_ARGS PYTHONHOME PYTHONPATH VIRTUAL_ENV

PYTHON ?= python3
RUN := .venv/bin/python -m
# Passed on, for example: make demo ARGS="--dir /tmp/lake", make test ARGS="-k publish"
ARGS ?=
PYTEST := $(RUN) pytest
NO_SERVER := tests/unit tests/contract tests/lake
# Folders that exist: some come with later work.
SERVERS := $(wildcard tests/setup tests/stack tests/chaos tests/pages)

.DEFAULT_GOAL := help
.PHONY: help check-machine setup demo test check lint test-all test-rest lock clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 24

check-machine: ## look at this machine and list every fault with its fix
	@$(PYTHON) tools/setup.py --check

setup: ## install everything into this folder; at once when nothing is missing
	@$(PYTHON) tools/setup.py

demo: setup ## restate a real table in front of you (ARGS="--dir DIR")
	@.venv/bin/lakehouse-backfill demo $(if $(findstring --dir,$(ARGS)),,--dir demo-lake) $(ARGS)

test: setup ## tests that need no server and no root
	$(PYTEST) $(NO_SERVER) --req-report $(if $(ARGS),$(ARGS),--req-enforce)

lint: setup ## style, types, layers and house rules
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) mypy
	.venv/bin/lint-imports
	.venv/bin/python tools/check_house.py

check: lint ## lint, and the tests that need no Spark; no network
	$(PYTEST) tests/unit tests/contract $(ARGS)

test-all: test test-rest ## all tests: also the set-up in fresh copies, servers, faults

test-rest: setup
	$(if $(SERVERS),$(PYTEST) $(SERVERS) $(ARGS))

lock: setup ## bring requirements.lock up to date with pyproject.toml
	UV_CACHE_DIR="$${UV_CACHE_DIR:-.tools/cache/uv}" .venv/bin/uv pip compile pyproject.toml --universal --python-version 3.10 \
	  --generate-hashes --extra java --extra demo --group dev --upgrade --quiet \
	  --constraint tools/lock-constraints.txt --no-header --no-annotate \
	  --no-emit-index-url --no-emit-find-links -o requirements.lock

clean: ## remove what the set-up, the demo and the tests made
	rm -rf .venv .tools demo-lake build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
