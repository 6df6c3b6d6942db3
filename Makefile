# One virtual environment, .venv, holds an ordinary (not editable) installation of the package: the demo and the tests
# run what a user gets. The stamp files in it say when that installation is out of date.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_COMMAND := python -m pip --disable-pip-version-check --no-input -qq
PIP := $(BIN)/$(PIP_COMMAND)

PYTHON_SOURCES := src tests tools
NATIVE_SOURCES := $(shell find native tools -type f \( -name '*.cpp' -o -name '*.h' \) 2>/dev/null)
# Directories are listed too: their time changes when a file is added or removed.
INSTALLED_FROM := pyproject.toml CMakeLists.txt $(shell find src native \( -type d -o -type f \) \
	-not -name __pycache__ -not -name '*.pyc' -not -name '*.so' 2>/dev/null)

.DELETE_ON_ERROR:
.PHONY: neon help demo test test-all test-parity test-clients check lint types format build sanitize docs clean prerequisites

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

# ---- what a user runs ----

demo: $(VENV)/installed  ## build, install, fetch the default model, and show speculation off and on
	@$(BIN)/forerun demo

test: check  ## everything that must pass before a commit: lint, types, structure and unit tests
	$(BIN)/python -m pytest

test-all: check  ## the same and the tests marked slow (real models, minutes)
	$(BIN)/python -m pytest -m "slow or not slow"

test-parity: .venv-parity/ready  ## regenerate the golden files with torch and transformers, and compare
	.venv-parity/bin/python tools/make_parity_golden.py --check

test-clients: $(VENV)/installed $(VENV)/extra-dev .venv-clients/ready  ## litellm and the llm command against the server
	FORERUN_TEST_CLIENTS=.venv-clients $(BIN)/python -m pytest -m slow tests/server/test_other_clients.py

# ---- what a developer runs ----

check: lint types

lint: $(VENV)/extra-dev  ## style of Python and C++, nothing is changed
	$(BIN)/ruff check $(PYTHON_SOURCES)
	$(BIN)/ruff format --check $(PYTHON_SOURCES)
	$(BIN)/clang-format --dry-run -Werror $(NATIVE_SOURCES)

types: $(VENV)/installed $(VENV)/extra-dev  ## mypy --strict
	$(BIN)/mypy

format: $(VENV)/extra-dev  ## format Python and C++ in place, and mend what ruff can mend
	$(BIN)/ruff check --fix $(PYTHON_SOURCES)
	$(BIN)/ruff format $(PYTHON_SOURCES)
	$(BIN)/clang-format -i $(NATIVE_SOURCES)

build: $(VENV)/build-tools $(VENV)/extra-dev  ## editable installation: Python edits count at once, C++ edits and new files after `make build`
	@rm -f $(VENV)/installed
	$(PIP) install --no-build-isolation --editable .

sanitize: $(VENV)/installed $(VENV)/extra-dev  ## native tests under Address-, UndefinedBehavior- and ThreadSanitizer
	sh tools/sanitize.sh address $(BIN)/python
	sh tools/sanitize.sh thread $(BIN)/python

neon:  ## compile the NEON table with a cross compiler and compare it with the portable one on an emulator
	@sh tools/check_neon.sh

docs: $(VENV)/extra-docs  ## build the documentation site into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "the site is in site/index.html"

clean:  ## remove everything that these targets made, the environments too
	rm -rf $(VENV) .venv-parity .venv-clients build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -f src/forerun/_native*.so
	find src tests tools -name __pycache__ -type d -prune -exec rm -rf {} +

# ---- environments ----

prerequisites:
	@sh tools/check_prerequisites.sh $(PYTHON)

$(VENV)/created: | prerequisites
	@echo "creating $(VENV)"
	@$(PYTHON) -m venv --clear $(VENV)
	@touch $@

# The build tools live in the environment instead of a throw-away one, so that a rebuild compiles only what changed.
# Asked twice: once scikit-build-core is there, it says whether CMake and Ninja must come from pip.
$(VENV)/build-tools: pyproject.toml $(VENV)/created
	@for i in 1 2; do $(BIN)/python tools/list_requirements.py build | $(PIP) install -r /dev/stdin || exit 1; done
	@touch $@

$(VENV)/installed: $(VENV)/build-tools $(INSTALLED_FROM)
	@echo "building and installing forerun into $(VENV) (the first time takes a minute or two)"
	@$(PIP) install --no-build-isolation .
	@touch $@

$(VENV)/extra-%: pyproject.toml $(VENV)/created
	@echo "installing what '$*' needs into $(VENV)"
	@$(BIN)/python tools/list_requirements.py $* | $(PIP) install -r /dev/stdin
	@touch $@

.venv-parity/ready: pyproject.toml tools/list_requirements.py $(VENV)/created
	@echo "creating .venv-parity with torch and transformers (large downloads)"
	@$(PYTHON) -m venv --clear .venv-parity
	@$(BIN)/python tools/list_requirements.py run parity | .venv-parity/bin/$(PIP_COMMAND) install -r /dev/stdin
	@touch $@

.venv-clients/ready: $(VENV)/created
	@echo "creating .venv-clients with litellm and llm"
	@$(PYTHON) -m venv --clear .venv-clients
	@.venv-clients/bin/$(PIP_COMMAND) install "litellm>=1.60" "llm>=0.20"
	@touch $@
