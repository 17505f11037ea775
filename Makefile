# Two commands do everything on a fresh machine: `make demo` and `make test`.
# Both create .venv once (Python 3.11 or newer) and install the project into it: the demo with the package's own
# dependencies alone, everything else with the tools of development on top.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
RUNS   := $(VENV)/.runs
READY  := $(VENV)/.ready
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable

.PHONY: demo test test-long test-cross test-gpu test-torch test-jax lint types fix pictures api machines clean help

help:            ## list the commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## */\t/' | expand -t 12

demo: $(RUNS)    ## show what Tilewright does, on this CPU
	$(BIN)/python examples/demo.py

# A worker takes half of the tests, in order, and then from another one what that has left (worksteal): those of a file
# mostly run on one, and what their module keeps is made once.
test: $(READY) lint types  ## lint, type check, tests
	$(BIN)/python -m pytest -n auto --dist worksteal

test-long: $(READY)  ## the cases that `make test` leaves out, since they take long and are like others
	$(BIN)/python -m pytest -n auto --dist worksteal -m "long and not cross and not gpu"

test-cross: $(READY)  ## machine code of other CPUs, under Debian's qemu-user where it is installed
	$(BIN)/python -m pytest -n auto -m cross tests/cross

test-gpu: $(READY)  ## the programs of tests/targets/nvidia on the GPU at hand (extra `gpu`; a Hopper GPU)
	$(INSTALL) '.[gpu]'
	$(BIN)/python -m pytest -m gpu tests/gpu

# torch and JAX are large, and other tests are to run without them: each has an environment of its own.
test-torch: .venv-torch/.ready  ## tilewright.torch, and what its documentation shows (extra `torch`)
	.venv-torch/bin/python -m pytest -n auto --dist worksteal tests/pytorch tests/runtime src/tilewright/torch docs/pytorch.md

test-jax: .venv-jax/.ready  ## tilewright.jax, and what its documentation shows (extra `jax`)
	.venv-jax/bin/python -m pytest tests/with_jax src/tilewright/jax docs/jax.md tests/runtime/test_traced.py

lint: $(READY)   ## ruff: lint and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)  ## mypy, strict
	$(BIN)/mypy

fix: $(READY)    ## let ruff mend and format what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

pictures: $(READY)  ## draw the pictures of the tutorial anew
	$(BIN)/python docs/draw_pictures.py

api: $(READY)    ## write the API reference anew
	$(BIN)/python docs/write_api.py

machines: $(READY)  ## write the tables of machines anew
	$(BIN)/python docs/write_machines.py

clean:           ## remove the virtual environment and caches
	rm -rf $(VENV) .venv-torch .venv-jax .pytest_cache .mypy_cache .ruff_cache .hypothesis

# Stamps are renewed when pyproject.toml changes, so a second run is quick.
$(RUNS): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Tilewright needs Python 3.11 or newer; say which: make PYTHON=python3.12"; exit 1; }
	@echo "installing Tilewright and what it needs to run into $(VENV) ..."
	@$(PYTHON) -m venv $(VENV) \
	  || { echo "This Python cannot make virtual environments: install the package python3-venv"; exit 1; }
	$(INSTALL) .
	@touch $(RUNS)

$(READY): $(RUNS)
	@echo "installing the tools of development: linter, type checker, test runner, NVIDIA's assembler ..."
	$(INSTALL) '.[dev]'
	@$(INSTALL) '.[sass]' \
	  || echo "ptxas and nvdisasm could not be installed: PTX is made and not assembled in the tests"
	@touch $(READY)

.venv-%/.ready: pyproject.toml
	@echo "installing Tilewright, $* and the test runner into .venv-$* ..."
	@$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,$*]'
	@touch $@
