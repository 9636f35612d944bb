# `make` lists the verbs. Everything lives in .venv, made from pyproject.toml at the first use and again when that changes.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

BIN := .venv/bin
READY := .venv/.ready
ARGS ?=
# Images of containers say so; then each of the hundreds of programs that tests start would compile trunq anew.
unexport PYTHONDONTWRITEBYTECODE
BESIDE := --numprocesses 2 --dist loadfile --no-loadscope-reorder

.PHONY: help
help: ## list the verbs
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-9s %s\n", $$1, $$2}'

.PHONY: demo
demo: $(READY) ## the main job: 336,776 flights through queue, workers, Spark, pipelines and a report
	@$(BIN)/trunq demo $(ARGS)

.PHONY: test
test: $(READY) ## what a push needs (ARGS="tests/sql -k lease" for some)
	@$(if $(ARGS),,TRUNQ_TEST_TURN=$${TRUNQ_TEST_TURN:-commit}) $(BIN)/python -m pytest $(or $(ARGS),$(BESIDE))

.PHONY: test-all
test-all: $(READY) ## the same on older versions of Postgres too, with every order, seed and load: some hours
	@TRUNQ_TEST_ALL=1 $(BIN)/python -m pytest --timeout 3600 $(or $(ARGS),$(BESIDE))

.PHONY: mutate
mutate: $(READY) ## break a copy of the code, and see tests notice (ARGS="--only NAME", ARGS=--list): half an hour
	@$(BIN)/python tools/mutate.py $(ARGS)

.PHONY: soak
soak: $(READY) ## publish and handle for MINUTES (30), and see what grows
	@cd benchmarks && ../$(BIN)/python soak.py --minutes $(or $(MINUTES),30) $(ARGS)

.PHONY: docs
docs: $(READY) ## build the pages as a site, into build/docs
	@$(BIN)/sphinx-build -q -W --keep-going -b html docs build/docs
	@echo "build/docs/README.html"

.PHONY: check
check: $(READY) ## style, types, layers, generated files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/column.py --check
	$(BIN)/python tools/client.py --check
	$(BIN)/python tools/unasync.py --check
	$(BIN)/python tools/reference.py --check
	$(BIN)/python tools/signature.py --check
	$(BIN)/python tools/dashboard.py --check

.PHONY: format
format: $(READY) ## put code into shape and generate what is generated
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format --quiet .
	$(BIN)/python tools/column.py
	$(BIN)/python tools/client.py
	$(BIN)/python tools/unasync.py
	$(BIN)/python tools/reference.py
	$(BIN)/python tools/signature.py
	$(BIN)/python tools/dashboard.py

.PHONY: install
install: $(READY) ## make .venv ready, with everything in it

.PHONY: clean
clean: ## remove .venv and what tests and checks leave
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache

# The stamp is written last: an install cut short is done again.
$(READY): pyproject.toml $(wildcard packages/*/pyproject.toml)
	@python=""; \
	for candidate in $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11; do \
	  if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then python="$$candidate"; break; fi; \
	done; \
	if [[ -z "$$python" ]]; then \
	  echo "trunq needs Python 3.11 or newer. Install it, or name it: make $(MAKECMDGOALS) PYTHON=/path/to/python3" >&2; exit 1; \
	fi; \
	if ! "$$python" -c 'import ensurepip, venv' 2>/dev/null; then \
	  echo "$$python comes without its venv module. On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; \
	fi; \
	echo "Installing into .venv (once; a few minutes) ..."; \
	[[ -x $(BIN)/python ]] && $(BIN)/python -c '' 2>/dev/null || "$$python" -m venv --clear .venv; \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'; \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[all]' --editable packages/demo --editable packages/pgq --group dev; \
	touch $(READY)
