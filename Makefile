# Everything a checkout needs, from nothing but Python 3.11+, Java 17+ and make. `make` lists the targets.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
EVENTS := packages/dagster-batched-events
PLAIN := backfill_assets_tests/unit $(EVENTS)/tests
MIN_JAVA := 17
BENCH_SCALE ?= 1
PIP_AUDIT := 2.10.1
# The object store of the tests; below 1.8.0 several of many who create an object at once are told that they did.
VERSITYGW := v1.8.0
STORE := $(HOME)/.cache/backfill_assets/versitygw
STRESS_COMMITS ?= 1000
STORE_COMMITS ?= 3000
WORKERS ?= 3
SOAK_MINUTES ?= 20
# Two machines share a night: PART=1/2 on one, PART=2/2 on the other.
PART ?=

# One home and one state folder for every target. PWD is set because `.env` is built on it and `make -C` leaves the
# caller's; UTC because a day must not depend on where the machine stands.
export PWD := $(CURDIR)
export DAGSTER_HOME := $(CURDIR)
export BACKFILL_ASSETS_STATE := $(CURDIR)/.state
export BACKFILL_ASSETS_DAGSTER_STATE := $(BACKFILL_ASSETS_STATE)/dagster
export PATH := $(CURDIR)/$(BIN):$(PATH)
export TZ := UTC
# Containers often set it: each of the many processes would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

# pip (before 23.3) takes `name` and `name[extra]` for two requirements and wants the hashes of both.
define BOTH_WITH_AND_WITHOUT_EXTRAS
function out() { if (b ~ /^[a-z0-9._-]+\[/) { c = b; sub(/\[[^]]*\]/, "", c); printf "%s", c } printf "%s", b } \
BEGIN { print "# Written by `make lock`: all extras, for every Python that pyproject.toml names." } \
/^#/ { next } /^[^ ]/ { out(); b = "" } { b = b $$0 "\n" } END { out() }
endef

.PHONY: help setup java store demo demo-campaign dev bench soak test test-all test-faults planted-bugs check static unit lock audit dist clean
.PHONY: lanes lane-plain lane-spark lane-store

help: ## List all targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  \033[1mmake %-14s\033[0m %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: java $(STAMP) ## Create .venv and install everything from the lock (no-op when nothing changed)

# No recipe touches what is already right: the stamp is older only when the lock or the project's metadata changed.
$(STAMP): requirements.lock pyproject.toml $(EVENTS)/pyproject.toml
	@command -v $(PYTHON) >/dev/null 2>&1 \
	  || { echo "make: '$(PYTHON)' was not found. Install Python 3.11 or newer, or name one: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' \
	  || { echo "make: $$($(PYTHON) --version 2>&1) is not supported, 3.11 to 3.14 are. Name one: make PYTHON=python3.12" >&2; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv --clear $(VENV) \
	  || { echo "make: no virtual environment could be made; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@echo "Installing from requirements.lock into $(VENV) (the first time this takes some minutes: Spark is large) …"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable $(EVENTS) --editable .
	@touch $@

java: ## Say what is missing, if Java is
	@java="$${JAVA_HOME:+$$JAVA_HOME/bin/}java"; \
	version=$$("$$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p'); \
	if [ -z "$$version" ]; then \
	  echo "make: Java was not found ('$$java' does not run). Spark needs Java $(MIN_JAVA) or newer: install one (Debian: apt-get install openjdk-17-jre-headless) or set JAVA_HOME." >&2; exit 1; \
	elif [ "$$version" -lt $(MIN_JAVA) ]; then \
	  echo "make: '$$java' is Java $$version, Spark needs $(MIN_JAVA) or newer: install one or set JAVA_HOME." >&2; exit 1; \
	fi

# Built once, outside of the checkout.
store: ## Build the object store of the tests, unless one is there (needs Go 1.25 or newer, and the network)
	@test -x $(STORE)/versitygw || command -v versitygw >/dev/null 2>&1 || { \
	  command -v go >/dev/null 2>&1 || { echo "make: Go was not found, and the tests of object stores need versitygw: install Go 1.25 or newer (https://go.dev/dl), or versitygw $(VERSITYGW)" >&2; exit 1; }; \
	  echo "Building versitygw $(VERSITYGW) into $(STORE) (once; some minutes) …"; \
	  GOBIN=$(STORE) GOTOOLCHAIN=auto go install github.com/versity/versitygw/cmd/versitygw@$(VERSITYGW) 2>/dev/null \
	    || { echo "make: versitygw could not be built with $$(go version); it needs Go 1.25 or newer, or one from 1.21 on that may download it, and the network" >&2; exit 1; }; \
	}

demo: setup ## Run the main job on real flights: build, break, correct, backfill, publish
	@$(BIN)/python -m demo $(ARGS)

demo-campaign: setup ## Play a campaign over 18 months of sales, from its specification to its clean-up
	@$(BIN)/python -m demo campaign $(ARGS)

dev: setup ## Open the Dagster UI with its daemon (more options: make dev ARGS="--port 3001")
	@mkdir -p "$$BACKFILL_ASSETS_DAGSTER_STATE"
	@exec $(BIN)/dagster dev $(ARGS)

bench: setup ## Measure the pipeline beside a bare Spark job (BENCH_SCALE=0.01 is quick; make bench ARGS="--json")
	@$(BIN)/python -m benchmarks --scale $(BENCH_SCALE) $(ARGS)

soak: setup ## Work under random kills and judge what readers saw (SOAK_MINUTES=20; SOAK_SEED repeats what was tried)
	@$(BIN)/python -m benchmarks.soak --minutes $(SOAK_MINUTES) $(if $(SOAK_SEED),--seed $(SOAK_SEED)) $(ARGS)

# Each lane runs what is not left to the night, unless test-all or test-faults says otherwise.
CASES = -m "not nightly"
PYTEST = $(BIN)/python -m pytest $(CASES) -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(LIMITS) $(ARGS)
test-all test-faults: export BACKFILL_ASSETS_TEST_COMMITS = $(STRESS_COMMITS)
test-all test-faults: export HOSTILE_EXAMPLES ?= 100
# At night many tests have installations and Spark servers of their own: few at once, and they wait longer before they give up.
test-all test-faults: WORKERS = 2
test-all test-faults: export BACKFILL_ASSETS_TEST_PATIENCE ?= 3
test-all test-faults: LIMITS = -o timeout=2700

# A Spark server that lives for minutes spends 60 % of its CPU on compiling: queries, and itself. Only with spark.testing does Spark heed
# the setting that keeps it from generating code. The JVM does not verify classes either. test-all runs all as it is shipped.
test: export JAVA_TOOL_OPTIONS ?= -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:MetaspaceSize=512m -XX:+UseSerialGC \
  -XX:InitialRAMPercentage=6 -XX:NewRatio=1 -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote \
  -Dspark.testing=true -Dspark.sql.codegen.wholeStage=false -Dspark.sql.codegen.factoryMode=NO_CODEGEN \
  -Dspark.sql.planChangeValidation=false -Dspark.sql.lightweightPlanChangeValidation=false
# Tests sync small files thousands of times: in memory where there is plenty of it (not in most containers); at night always on the disk.
SHM = $(shell df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 > 4000000' | grep -o /dev/shm$$)
test: export TMPDIR := $(or $(TMPDIR),$(SHM),/tmp)
test: setup ## What .ci/run runs: a witness for every promise (some 15 minutes on two cores)
	@$(MAKE) --no-print-directory -j2 static lanes

test-all test-faults: export BACKFILL_ASSETS_TEST_PART = $(PART)
test-all: CASES =
test-all: setup static lanes lane-store ## Everything that there is, each night: all examples, kill points and the long stress (three hours on two cores)

test-faults: CASES = -m faults
test-faults: setup lanes lane-store ## Inject all faults and print what was found (STRESS_COMMITS=80 takes half of the time)

# While a test waits for Dagster, others work. The many short ones come last, so that all processes end at about the same time.
lanes: $(STAMP) java ## Only the tests, all lanes side by side
	@$(PYTEST) $(addprefix backfill_assets_tests/,dagster ui spark) $(PLAIN)

lane-plain: $(STAMP) ## Only the tests that need no JVM
	@$(PYTEST) $(PLAIN)

lane-spark: $(STAMP) java ## Only the tests that need Spark: on one server, on whole installations with Dagster, in the browser
	@$(PYTEST) $(addprefix backfill_assets_tests/,dagster ui spark)

# Everything that a release does, and its death at each step, is tested once more where a table lies in a bucket. Power cuts and
# disks that refuse are faults of folders; test_object_store.py has those of a store. Source tables are read alike in both cases.
ON_A_STORE = release doctor control/test_campaign_crashes.py control/test_campaign_release.py control/test_going_round_a_campaign.py \
  faults/test_any_interruption.py faults/test_clocks.py faults/test_hosts_and_postgres.py faults/test_in_between.py faults/test_others_at_the_table.py \
  faults/test_restored_ledgers.py faults/test_standing_still.py
lane-store: export BACKFILL_ASSETS_TEST_COMMITS = $(STORE_COMMITS)
lane-store: $(STAMP) store ## Only the tests of releases, with the tables in a bucket
	@$(PYTEST) -p backfill_assets_tests.on_a_store $(addprefix backfill_assets_tests/unit/,$(ON_A_STORE))

planted-bugs: setup ## Plant a bug in each room, chosen by SEED, and see that make test finds it
	@$(BIN)/python -m backfill_assets_tests.planted_bugs $(if $(SEED),--seed $(SEED)) $(ARGS)

check: static unit ## Lint, types, import contracts and the tests without a JVM (about a minute)

static: $(STAMP) ## Lint, format, types, import contracts and the sizes of the house only
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m tools.house

unit: $(STAMP) ## The quick tests without a JVM only
	@$(BIN)/python -m pytest $(PLAIN) -q -n auto -m "not slow" $(ARGS)

lock: $(STAMP) ## Write requirements.lock anew from pyproject.toml (newest versions: make lock ARGS=--upgrade)
	@$(BIN)/uv pip compile pyproject.toml --all-extras --universal --python-version 3.11 --generate-hashes \
	  --no-strip-extras --no-header --no-annotate --no-emit-index-url --no-emit-package dagster-batched-events \
	  --quiet --output-file requirements.lock $(ARGS) >/dev/null
	@awk '$(BOTH_WITH_AND_WITHOUT_EXTRAS)' requirements.lock > requirements.lock.new && mv requirements.lock.new requirements.lock

# Hashes are checked against the registry as well. A package that nobody knows fails it: nothing is left out in silence.
audit: $(STAMP) ## Look up every pinned package in the advisories of known vulnerabilities (needs the network)
	@$(BIN)/uv tool run --quiet --python $(BIN)/python --from pip-audit==$(PIP_AUDIT) pip-audit --requirement requirements.lock \
	  --require-hashes --disable-pip --strict --progress-spinner off $(ARGS)

dist: $(STAMP) ## Build both packages and the constraints to install them with into dist/ (needs the network)
	@rm -rf dist
	@for package in $(EVENTS) .; do $(BIN)/uv build --quiet --python $(BIN)/python --out-dir dist $$package || exit 1; done
	@sed -n 's/^\([a-z0-9._-]*\)\(\[[^]]*\]\)\{0,1\}\(==.*\) \\$$/\1\3/p' requirements.lock | sort -u > dist/constraints.txt

clean: ## Stop the Spark server and remove all state (tables, ledger, runs); .venv stays
	@if [ -d "$$BACKFILL_ASSETS_STATE" ] && [ -x $(BIN)/backfill ]; then \
	  $(BIN)/backfill spark stop \
	    || { echo "make: the Spark server did not stop; its files are left alone." >&2; exit 1; }; \
	fi
	@rm -rf "$$BACKFILL_ASSETS_STATE" .logs_queue .nux .telemetry logs test-artifacts
