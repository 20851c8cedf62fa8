# Every target sets up what it needs: a virtual environment in .venv from the pinned lists in requirements/.
# A stamp inside the environment remembers which list it was made from, so an unchanged list costs nothing.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV ?= .venv
BIN := $(VENV)/bin
# The first interpreter that is 3.11 or newer.
PYTHON ?= $(shell for p in python3.11 python3; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$$p"; break; }; done)
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
UV_VERSION := 0.13.8
# Cores that tests may use.
JOBS ?= 2
SEEDS ?= 20
SEED ?= 1
CUTS ?= 60
ARGS ?=

# Else each process of a run compiles all of the sources anew: a third of what it takes to collect the tests.
ifneq ($(PYTHONDONTWRITEBYTECODE),)
export PYTHONDONTWRITEBYTECODE :=
export PYTHONPYCACHEPREFIX ?= $(CURDIR)/build/bytecode
endif

.PHONY: help demo spread test test-fast check house format sim sim-planted reached conformance conformance-clients conformance-cqlsh conformance-capture conformance-go compare bench corrupt mutants proof story package first-hour session reference lock clean setup setup-spark

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

demo: $(VENV)/.stamp-spark ## the whole tour: a cluster, load, topology changes under traffic, a Spark job, the proof
	$(BIN)/lockstep demo $(ARGS)

# Tests of real processes wait half of their time: two processes more than cores keep these busy.
test: $(VENV)/.stamp-spark build/java/.stamp ## the whole test suite
	$(BIN)/pytest -n $$(($(JOBS) + 2)) --dist loadfile $(ARGS)

test-fast: $(VENV)/.stamp-dev ## under a minute: tests of pure code, which need nothing of the machine, without slow ones
	$(BIN)/pytest --pure -m "not slow" -n $(JOBS) --dist worksteal -q $(ARGS)

check: $(VENV)/.stamp-spark ## formatting, lint, types, import contract, house rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -q tests/house

house: $(VENV)/.stamp-dev ## sizes, cycles, asserts and five walks of the sources; ARGS="--json FILE", "--compare FILE"
	@$(BIN)/python -m tests.house.report $(ARGS)

format: $(VENV)/.stamp-dev ## rewrite the sources in the house format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

sim: $(VENV)/.stamp-dev ## SEEDS=n deterministic simulations, from SEED=s on, the crash matrix, CUTS=n (0: all) power cuts, placements, rings
	$(BIN)/lockstep sim run --seed $(SEED) --seeds $(SEEDS) $(ARGS)
	$(BIN)/lockstep sim matrix --seed $(SEED)
	$(BIN)/lockstep sim cuts --seed $(SEED) --sample $(CUTS)
	$(BIN)/lockstep sim placements --seed $(SEED) --nodes 50 --operations 90
	$(BIN)/lockstep sim placements --seed $(SEED) --nodes 300 --operations 320 --dcs 3 --factor 3 --tokens 1 --concurrency 5
	$(BIN)/lockstep sim ring --seed $(SEED) --seeds $(SEEDS)
	$(BIN)/lockstep sim ring --seed $(SEED) --seeds $(SEEDS) --mode unanimous --careful

reached: $(VENV)/.stamp-dev ## which branches of the pure rooms, requests and storage the nightly set does not reach
	$(BIN)/python -m mutation.branches build/mutation/branches
	$(BIN)/lockstep sim reached --tests build/mutation/branches $(ARGS)

sim-planted: $(VENV)/.stamp-dev ## SEEDS=n look for each planted bug in up to n seeds
	$(BIN)/lockstep sim planted --seeds $(SEEDS) $(ARGS)
	$(BIN)/lockstep sim ring --plant all --seeds $(SEEDS)

conformance: $(VENV)/.stamp-dev ## SUITE=path runs a fetched foreign test suite against a local cluster
	@test -n "$(SUITE)" || { echo "usage: make conformance SUITE=path/to/suite" >&2; exit 2; }
	$(BIN)/python conformance/run.py "$(SUITE)" $(ARGS)

conformance-cqlsh: $(VENV)/.stamp-dev ## SUITE=path runs cqlsh's own tests from a checkout of Cassandra
	@test -n "$(SUITE)" || { echo "usage: make conformance-cqlsh SUITE=path/to/cassandra" >&2; exit 2; }
	$(BIN)/python conformance/cqlsh_run.py "$(SUITE)" $(ARGS)

conformance-clients: $(VENV)/.stamp-dev ## drivers of other languages (Rust, C++, Node, Go, Java) against a local cluster
	$(BIN)/python conformance/clients_run.py $(ARGS)

conformance-go: $(VENV)/.stamp-dev ## tests of gocql and of Temporal's store, unchanged, against a local cluster
	$(BIN)/python conformance/go_run.py $(ARGS)

conformance-capture: $(VENV)/.stamp-dev ## the library scylla-cdc-go follows tables' changes while tablets split, a node joins and one is killed
	$(BIN)/python conformance/capture_run.py $(ARGS)

compare: $(VENV)/.stamp-dev ## STATEMENTS=file runs statements here and on Cassandra 5.0.6 (fetched by Maven), and prints what differs
	$(BIN)/python conformance/compare_run.py "$(or $(STATEMENTS),conformance/compare/statements.cql)" $(ARGS)

bench: $(VENV)/.stamp-dev ## benchmarks; results under bench/results
	$(BIN)/python bench/run.py $(ARGS)

corrupt: $(VENV)/.stamp-dev ## damage every file of a data directory in turn: no silent loss in 10,000 cases
	$(BIN)/python bench/corrupt.py $(ARGS)

package: $(VENV)/.stamp-dev ## build the wheel, install it into a fresh environment, and have it serve
	$(BIN)/python bench/package.py

mutants: $(VENV)/.stamp-dev ## ROOM=name SAMPLE=n SEED=s SIM=seeds: how many small changes of a room the tests and the simulator notice
	@test -n "$(ROOM)" || { echo "usage: make mutants ROOM=consensus [SAMPLE=90] [SEED=1] [SIM=0]" >&2; exit 2; }
	$(BIN)/python -m mutation.run --room "$(ROOM)" --sample $(or $(SAMPLE),90) --seed $(SEED) --sim $(or $(SIM),0) $(ARGS)

proof: $(VENV)/.stamp-dev ## a million requests to real nodes that are killed, stopped and cut off, and what came of each
	nice -n 5 $(BIN)/python bench/proof.py $(ARGS)

story: $(VENV)/.stamp-dev ## MB=200 in three tables: nodes come, die, are replaced and leave, tablets move, split and merge: nothing is lost
	STORY_MB=$(or $(MB),200) nice -n 5 $(BIN)/pytest -q -s -n 0 tests/acceptance/test_tablet_story.py $(ARGS)

first-hour: ## a new user's first hour by the README and the page of that name, with PYTHON=python3.13; ARGS="--whole"
	@$(PYTHON) bench/first_hour.py --python "$(PYTHON)" $(ARGS)

session: $(VENV)/.stamp-dev ## run the README's terminal session anew and write what it printed
	$(BIN)/python docs/session.py

spread: $(VENV)/.stamp-dev ## CASES=n random clusters (10,000): how evenly the balancer lays each table over shards
	$(BIN)/python -m tests.placement.tablets.spread $(or $(CASES),10000)

reference: $(VENV)/.stamp-dev ## write docs/reference anew from the code
	$(BIN)/python docs/reference/generate.py

setup: $(VENV)/.stamp-dev ## only make the environment

setup-spark: $(VENV)/.stamp-spark ## the environment with PySpark and its Java runtime

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "error: Python 3.11 or newer is needed (set PYTHON=...)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.stamp-dev: requirements/base.lock requirements/dev.lock pyproject.toml | $(VENV)/bin/python
	$(PIP) install -r requirements/base.lock -r requirements/dev.lock
	$(PIP) install --no-deps --no-build-isolation --editable .
	touch $@

# Java with the classes of Spark at hand, for tests.
build/java/.stamp: $(VENV)/.stamp-spark
	$(BIN)/python -m tests.quick_java
	@mkdir -p $(@D) && touch $@

$(VENV)/.stamp-spark: requirements/spark.lock $(VENV)/.stamp-dev
	$(PIP) install -r requirements/base.lock -r requirements/spark.lock
	touch $@

# The lists name exact versions and nothing else: no index, no host, so any mirror serves them.
COMPILE = build/lock/bin/uv --no-config pip compile pyproject.toml --universal --python-version 3.11 --no-header \
	--no-emit-index-url --no-emit-find-links --quiet --upgrade

lock: ## compute requirements/*.lock anew from pyproject.toml
	test -x build/lock/bin/uv || { $(PYTHON) -m venv build/lock && \
		build/lock/bin/python -m pip --quiet install uv==$(UV_VERSION); }
	mkdir -p requirements
	$(COMPILE) --output-file requirements/base.lock
	$(COMPILE) --extra dev --constraints requirements/base.lock --output-file requirements/dev.lock
	$(COMPILE) --extra spark --constraints requirements/dev.lock --output-file requirements/spark.lock

clean: ## remove the environment, caches and everything built
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache \
		.benchmarks bench/results demo-report
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
