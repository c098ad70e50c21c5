# The commands of the project. Only make and a Python of 3.11 to 3.13 are needed beforehand.

VENV := .venv
BIN := $(VENV)/bin
PIP_FLAGS ?= --quiet

.PHONY: help setup run test check lint types clean

help:
	@echo "make run     install the simulator into $(VENV) and run the main example"
	@echo "make test    install what the tests need (PyTorch too) and run them"
	@echo "make check   what a change must pass: format, lint, types, tests"
	@echo "make setup   only install the simulator into $(VENV)"
	@echo "make clean   remove caches and builds, keep $(VENV)"

setup: $(VENV)/.simulator

run: $(VENV)/.simulator
	$(BIN)/oasis-sim run --profile h100 --trace aime.jsonl

test: $(VENV)/.test
	$(BIN)/python -m pytest

check: lint types test

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(VENV)/.dev
	$(BIN)/mypy

clean:
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis

# The stamps say which extras are installed; they are renewed when pyproject.toml changes.
$(VENV)/.simulator: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install $(PIP_FLAGS) --editable .
	@echo "compiling the simulator's core, once: 10 to 15 s"
	@$(BIN)/oasis-sim run --requests 1 --output-tokens 8 --quiet --force --out $(VENV)/first-run >/dev/null
	@touch $@

$(VENV)/.test: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install $(PIP_FLAGS) --editable '.[test]'
	@touch $@ $(VENV)/.simulator

$(VENV)/.dev: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install $(PIP_FLAGS) --editable '.[dev]'
	@touch $@ $(VENV)/.test $(VENV)/.simulator

# Takes PYTHON if it is given, else the newest suitable one on the path.
$(VENV)/bin/python:
	@for python in $(PYTHON) python3.13 python3.12 python3.11 python3 python; do \
	    if "$$python" -c 'import sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' \
	        2>/dev/null; then \
	        echo "creating $(VENV) with $$("$$python" --version)"; \
	        "$$python" -m venv $(VENV) && exit 0; \
	        rm -rf $(VENV); \
	    fi; \
	done; \
	echo "no Python 3.11, 3.12 or 3.13 with the venv module found" \
	    "(on Debian and Ubuntu: apt install python3-venv); name one: make PYTHON=/path/to/python" >&2; \
	exit 1
