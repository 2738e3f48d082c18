# `make` lists the targets. Each one makes what it needs: a virtual environment in .venv, and the test control plane.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help env demo test unit field-cases soak lint format types generate bench clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

env: $(STAMP) ## make .venv with the package in editable form

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "pyreconcile needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V 2>&1). Try: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $(STAMP)

demo: env ## show the main job: groups on a real control plane
	$(BIN)/python -m hack.demo

test: lint types generate-check unit ## everything CI checks

unit: env ## run the tests
	$(BIN)/python -m pytest

RUNS ?= 20
field-cases: env ## run each field case 20 times (RUNS=1: once); about 40 minutes
	$(BIN)/python -m hack.field_bench --runs $(RUNS)

SOAK ?=
soak: env ## LeaderWorkerSets under random trouble for 20 minutes, judged independently; docs/soak.md
	$(BIN)/python -m hack.soak $(SOAK)

lint: env ## format, lint and import order
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports

format: env ## format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

types: env ## mypy --strict
	$(BIN)/mypy -p pyreconcile -p pyreconcile_controllers -p hack

generate: env ## write models, CRDs and the table of rules anew
	$(BIN)/python -m hack.generate

.PHONY: generate-check
generate-check: env
	$(BIN)/python -m hack.generate --check

BENCHED := $(VENV)/.installed-bench
BENCH   ?=

bench: $(BENCHED) ## measure beside kopf and Go, into docs/benchmarks.md; BENCH="--sizes 300 --repeats 1" for a short one
	$(BIN)/python -m hack.bench $(BENCH)

$(BENCHED): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,bench]'
	@touch $(BENCHED)

clean: ## remove what the targets made here (the built control plane stays in the user's cache)
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .pyreconcile
