# Every target works in a path with spaces, and needs only python3 and make; see tools/setup.py.

# Left by another project's shell, these would send Python or Spark to another installation.
unexport SPARK_HOME SPARK_CONF_DIR SPARK_DIST_CLASSPATH PYSPARK_PYTHON PYSPARK_DRIVER_PYTHON
unexport PYSPARK_DRIVER_PYTHON_OPTS PYSPARK_SUBMIT_ARGS PYTHONHOME PYTHONPATH VIRTUAL_ENV
# With it, each of the thousands of processes that tests start would compile the whole package.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
RUN := .venv/bin/python -m
# Passed on, for example: make demo ARGS="--dir /tmp/lake", make test ARGS="-k publish"
ARGS ?=
# Of tests marked in_turn each state of the package runs a part. TURN=all runs all of them.
TURN ?= $(shell git rev-parse HEAD:lakehouse_backfill 2>/dev/null | cksum | cut -d' ' -f1)
# Lakes of tests lie in memory where there is room: each commit to SQLite waits for the disk.
MEMORY := $(shell test -w /dev/shm && df -Pk /dev/shm 2>/dev/null | awk 'END {exit !($$4 > 6e6)}' && awk '/^MemAvailable/ && $$2 > 12e6 {print "/dev/shm"}' /proc/meminfo 2>/dev/null)
ON_DISK = $(RUN) pytest --durations=12 --durations-min=5 $(if $(ARGS),,--turn $(TURN))
PYTEST = $(if $(MEMORY),PYTEST_DEBUG_TEMPROOT=$(MEMORY) )$(ON_DISK)
# The tests of `make test`, the longest first; those with Spark as two, each with a session.
UNIT := unit-core unit-rest
PARTS := contract-m-z lake-a-i lake-j-z contract-a-l $(UNIT)
# The tests of `make test-rest`, the longest first. `make test-all` mixes both, so that all parts end together.
LONGEST := test-servers test-kills long-lake test-races
SHORTER := long-contract test-setup
FILES_lake-a-i := $(wildcard tests/lake/test_[a-i]*.py)
FILES_lake-j-z := $(wildcard tests/lake/test_[j-z]*.py)
FILES_contract-a-l := $(wildcard tests/contract/test_[a-l]*.py)
FILES_contract-m-z := $(wildcard tests/contract/test_[m-z]*.py)
FILES_unit-core := tests/unit/core tests/unit/report
FILES_unit-rest := $(filter-out $(FILES_unit-core) %/__pycache__,$(wildcard tests/unit/*))
# Folders with tests that are marked `long`.
LONG := lake contract
# What each part proved, until all are judged together.
PROOFS := .tools/proofs
# Parts side by side. Three keep two cores busy: each waits a part of its time for servers, for starts of Java, or for
# what it has killed. All parts run, so that one run names every failure.
LANES ?= 3
# Set-up is done by then (-o): else parts that need no servers would begin before the longest ones.
SIDE_BY_SIDE = $(MAKE) -j$(LANES) -o setup -o servers --keep-going $(if $(findstring output-sync,$(.FEATURES)),--output-sync=target)
# Folders that exist: some come with later work.
SERVERS := $(wildcard tests/stack tests/model tests/pages)

.DEFAULT_GOAL := help
.PHONY: help check-machine setup servers demo case-study test $(addprefix part-,$(PARTS)) $(addprefix long-,$(LONG)) check lint test-all test-rest test-chaos test-kills test-races test-servers test-setup model-test lock clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 24

check-machine: ## look at this machine and list every fault with its fix
	@$(PYTHON) tools/setup.py --check

setup: ## install everything into this folder; at once when nothing is missing
	@$(PYTHON) tools/setup.py

servers: setup ## install what the tests with real servers need, but for PostgreSQL
	@$(PYTHON) tools/setup.py --servers

demo: setup ## run a guided restatement of a real table (ARGS="--dir DIR")
	@.venv/bin/lakehouse-backfill demo $(if $(findstring --dir,$(ARGS)),,--dir demo-lake) $(ARGS)

case-study: setup ## restate a year of regulatory deadlines (ARGS="--cases N --profile P")
	@$(RUN) lakehouse_backfill.demo.case_study $(if $(findstring --dir,$(ARGS)),,--dir case-study-lake) $(ARGS)

test: setup ## tests that need no server and no root, but for the long ones
	@$(if $(ARGS),,echo "side by side, each prints when it ends: $(PARTS)")
	$(if $(ARGS),$(PYTEST) tests/unit tests/contract tests/lake --req-report $(ARGS),$(SIDE_BY_SIDE) $(addprefix part-,$(PARTS)))

$(addprefix part-,$(filter-out $(UNIT),$(PARTS))): part-%: setup
	$(PYTEST) $(FILES_$*) $(if $(ARGS),$(ARGS),-m "not long" --req-keep $(PROOFS)/$*)

# The tests of the same files that are marked `long`, for `make test-rest`.
$(addprefix long-,$(LONG)): long-%: setup
	$(PYTEST) tests/$* -m long --req-keep $(PROOFS)/long-$*

# `make check` and `make test` both need these; on files that have not changed since, once is enough.
$(addprefix part-,$(UNIT)): part-%: setup
	@files=$$(git ls-files -coz --exclude-standard 2>/dev/null | xargs -0 cat 2>/dev/null | cksum); \
	if [ -z "$(ARGS)" ] && [ -d .git ] && [ "$$files" = "$$(cat $(PROOFS)/$*.files 2>/dev/null)" ]; then \
	  echo "$*: passed on exactly these files; make clean forgets it"; \
	else \
	  rm -f $(PROOFS)/$*.files; \
	  echo $(PYTEST) $(FILES_$*) $(if $(ARGS),$(ARGS),--req-keep $(PROOFS)/$*); \
	  $(PYTEST) $(FILES_$*) $(if $(ARGS),$(ARGS),--req-keep $(PROOFS)/$*) || exit 1; \
	  [ -n "$(ARGS)" ] || echo "$$files" > $(PROOFS)/$*.files; \
	fi

lint: setup ## style, types, layers and house rules
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) mypy
	.venv/bin/lint-imports
	.venv/bin/python tools/check_house.py

check: setup ## lint, and the tests that need neither Spark nor a catalog; no network
	$(SIDE_BY_SIDE) $(addprefix part-,$(UNIT)) lint

# Last, what all parts proved is judged: the requirements that finished issues have closed.
JUDGE = $(RUN) tests.req_plugin $(addprefix $(PROOFS)/,$(PARTS) $(addprefix long-,$(LONG)))

test-all: servers ## all tests: also the set-up in fresh copies, servers, faults
	@echo "side by side, each prints when it ends: $(LONGEST) $(PARTS) $(SHORTER)"
	$(SIDE_BY_SIDE) $(LONGEST) $(addprefix part-,$(filter-out $(UNIT),$(PARTS))) $(SHORTER) $(addprefix part-,$(UNIT))
	$(JUDGE)

# Of `make test-all` what `make test` leaves out.
test-rest: servers
	$(SIDE_BY_SIDE) $(LONGEST) $(SHORTER)
	$(JUDGE)

test-chaos: test-kills test-races

KILLS := $(wildcard tests/chaos/test_*kills.py)
test-kills: servers
	$(PYTEST) $(KILLS) $(ARGS)

# With KILLS, all of tests/chaos.
test-races: servers
	$(PYTEST) tests/chaos $(addprefix --ignore=,$(KILLS)) $(ARGS)

# The client of Kafka in a process of its own, as landings have it.
KAFKA := $(wildcard tests/stack/test_kafka*.py)
test-servers: servers
	$(PYTEST) $(KAFKA) $(ARGS)
	$(PYTEST) $(SERVERS) $(addprefix --ignore=,$(KAFKA)) $(ARGS)

# On disk: each copy of the clone has an environment of its own, linked to the cache of packages.
test-setup: servers
	$(ON_DISK) tests/setup $(ARGS)

N ?= 5000
SEED ?= 1
JOBS ?= 2
model-test: setup ## N random sequences of actions and crashes against a model (N=5000 SEED=1)
	$(RUN) tests.model.run $(N) $(SEED) --jobs $(JOBS)

lock: setup ## bring the lock files up to date with pyproject.toml and tests/stack
	UV_CACHE_DIR="$${UV_CACHE_DIR:-.tools/cache/uv}" .venv/bin/uv pip compile pyproject.toml --universal --python-version 3.10 \
	  --generate-hashes --extra java --extra demo --extra kafka --group dev --upgrade --quiet \
	  --constraint tools/lock-constraints.txt --no-header --no-annotate \
	  --no-emit-index-url --no-emit-find-links -o requirements.lock
	UV_CACHE_DIR="$${UV_CACHE_DIR:-.tools/cache/uv}" .venv/bin/uv pip compile tests/stack/requirements.in --universal \
	  --python-version 3.10 --generate-hashes --upgrade --quiet --no-header --no-annotate \
	  --no-emit-index-url --no-emit-find-links -o tests/stack/requirements.lock

clean: ## remove what the set-up, the demo and the tests made
	rm -rf .venv .tools demo-lake case-study-lake build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
