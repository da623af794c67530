# Each target works as the first command in a fresh clone, with Python 3.11 or newer and make.
#
#   make demo        train CartPole-v1 by PPO through a real server and a real client
#   make test        the tests, one configuration for each clause
#   make test-full   every combination
#   make check       formatting, lint and types
#   make chaos       kill, stop and cut a training run for MINUTES=10, and account for every step
#   make fuzz        FRAMES=1000000 broken frames, some to a live server beside a good client
#   make soak        MINUTES=30 of 32 clients that join and leave; memory and open files
#   make notebooks   run the notebooks in full, and write their outputs in place
#   make docs        the reference of the public modules, as HTML in build/docs
#
# Where Chromium or Chrome is found, the tests look at the server's page in it, one at a time;
# BROWSER_ARGS=--required fails where none is.
# PIP_ARGS reaches pip, for example to name PyTorch's own index of builds without CUDA.

VENV ?= .venv
PIP_ARGS ?=
# More workers than cores: many tests wait for sockets and processes. A file stays with one worker,
# for some have what all of their tests share.
PYTEST_ARGS ?= -n 4 --dist loadfile --no-loadscope-reorder

ifeq ($(OS),Windows_NT)
  PYTHON ?= python
  BIN := $(VENV)/Scripts
else
  PYTHON ?= python3
  BIN := $(VENV)/bin
endif

INSTALL = $(BIN)/python .ci/install.py -c constraints.txt $(PIP_ARGS)

.PHONY: demo test test-full check chaos fuzz soak notebooks docs clean

demo: $(VENV)/installed-demo
	$(BIN)/python -m plugrl_gym.train CartPole-v1 --algo ppo --seed 0 --goal 475

test: $(VENV)/installed-dev
	$(BIN)/python -m pytest $(PYTEST_ARGS)
	$(BIN)/python -m tests.support.browser $(BROWSER_ARGS)

test-full: $(VENV)/installed-full
	$(BIN)/python -m pytest -m "not browser" $(PYTEST_ARGS)
	$(BIN)/python -m tests.support.browser $(BROWSER_ARGS)

check: $(VENV)/installed-dev
	$(BIN)/python -m ruff format --check
	$(BIN)/python -m ruff check
	$(BIN)/python -m mypy

chaos: $(VENV)/installed-dev
	$(BIN)/python -m tests.chaos --minutes $(or $(MINUTES),10)

fuzz: $(VENV)/installed-dev
	$(BIN)/python -m tests.fuzz --frames $(or $(FRAMES),1000000)

soak: $(VENV)/installed-dev
	$(BIN)/python -m tests.soak --minutes $(or $(MINUTES),30)

notebooks: $(VENV)/installed-dev
	$(BIN)/python -m tests.notebooks

docs: $(VENV)/installed-docs
	$(BIN)/python -W error .ci/docs.py --out build/docs

clean:
	rm -rf $(VENV)

$(VENV)/made:
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11))" || \
	  { echo "make: $(PYTHON) is older than Python 3.11; try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/installed-demo: $(VENV)/made pyproject.toml constraints.txt
	$(INSTALL) -e ".[sb3,plot]"
	@touch $@

$(VENV)/installed-docs: $(VENV)/made pyproject.toml constraints.txt
	$(INSTALL) -e ".[docs]"
	@touch $@

$(VENV)/installed-full: $(VENV)/installed-dev
	$(INSTALL) -e ".[dev,envpool]"
	@touch $@

$(VENV)/installed-dev: $(VENV)/made pyproject.toml constraints.txt
	$(INSTALL) -e ".[dev]"
	@touch $@ $(VENV)/installed-demo $(VENV)/installed-docs
