# make sweep   set up .venv, then sweep the engine over every length from 11 to 2,560
# make test    set up .venv, then run the tests and the linters
# make lint    set up .venv, then run the linters only
#
# PYTHON=python3 given: that interpreter is used as it is, without a virtual environment and
# without installing anything.

TORCH ?= 2.13.0
# Installed where torch brings no Triton of its own (its CPU builds).
TRITON ?= 3.6.0
BASE_PYTHON ?= python3
DEVICE ?= auto
TARGET ?= engine
SWEEP_ARGS ?=
# Sweeps are processes of their own: two test files at a time fill two cores.
PYTEST_ARGS ?= $(if $(SETUP),-n 2 --dist loadfile)
# Kernels whose arithmetic is checked in Triton's interpreter.
INTERPRETED := tests/engine/kernels

# Two test processes share the cores already: torch's threads would only wait for one another.
export OMP_NUM_THREADS ?= 1

VENV := .venv
STAMP := $(VENV)/.set-up

ifeq ($(origin PYTHON),undefined)
PY := $(VENV)/bin/python
SETUP := $(STAMP)
else
PY := $(PYTHON)
SETUP :=
endif

# Expanded when a recipe runs, so after the set-up. A GPU compiles for real; without one the
# variants' names are enough.
HAS_GPU = $(shell $(PY) -c 'import torch; print(torch.cuda.is_available())' 2>/dev/null)
KEYS_ONLY = $(if $(filter True,$(HAS_GPU)),,--keys-only)

.PHONY: sweep test lint pytest interpreted
.DEFAULT_GOAL := test

sweep: $(SETUP)
	$(PY) -m jitwatch sweep --target $(TARGET) --min 11 --max 2560 \
	    --device $(DEVICE) $(KEYS_ONLY) $(SWEEP_ARGS)

test: pytest interpreted lint

pytest: $(SETUP)
	$(PY) -m pytest $(PYTEST_ARGS)

# The interpreter must be chosen before triton is imported: kernel tests are a run of their own.
# Arguments of the caller's may select none of them.
interpreted: $(SETUP)
	TRITON_INTERPRET=1 $(PY) -m pytest $(PYTEST_ARGS) $(INTERPRETED) \
	    $(if $(filter command%,$(origin PYTEST_ARGS)),|| test $$? -eq 5)

ifeq ($(SETUP),)
# A borrowed interpreter may lack the linters: say so rather than fail what it was borrowed for.
lint:
	@if $(PY) -c 'import mypy, ruff' 2>/dev/null; then \
	    $(MAKE) --no-print-directory lint-here; \
	else \
	    echo "lint: not run, $(PY) has no mypy or no ruff" >&2; \
	fi
else
lint: $(SETUP)
	@$(MAKE) --no-print-directory lint-here
endif

.PHONY: lint-here
lint-here:
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

$(STAMP): pyproject.toml setup.py $(wildcard jitwatch/sources/driver.c)
	$(BASE_PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet torch==$(TORCH)
	$(VENV)/bin/python -c 'import sys, importlib.util as u; sys.exit(u.find_spec("triton") is None)' \
	    || $(VENV)/bin/python -m pip install --quiet triton==$(TRITON)
	$(VENV)/bin/python -m pip install --quiet --editable '.[dev]'
	@touch $@
