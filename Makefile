# Two commands do everything on a machine that has Python (>= 3.11), pip, git and make.
#   make demo   create the environment, set up the models and the default index, ask a question
#   make test   lint, types, tests
# For those who change the repository:
#   make docs   write the measured numbers into README, LOG, docs and the card

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export HF_HUB_OFFLINE = 1
# Compiled once: the tests start many processes, and each would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test lint types unit docs install clean

demo: $(VENV)/.installed
	$(BIN)/skipqa demo

install: $(VENV)/.installed

test: lint types unit

lint: $(VENV)/.tested
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.tested
	$(BIN)/mypy

# Two processes, each with one thread; what they share is downloaded once, before.
unit: $(VENV)/.tested
	$(BIN)/skipqa setup
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile

docs: $(VENV)/.installed
	$(BIN)/python -m tools.documents

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	touch $@

$(VENV)/.tested: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test]'
	touch $@

clean:
	rm -rf $(VENV) demo
