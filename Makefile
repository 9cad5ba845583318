# Every target sets itself up: the stamp .venv/.ready says that .venv holds what pyproject.toml and
# constraints.txt ask for. To start over: rm -rf .venv

PYTHON ?= python3
BIN := .venv/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help demo test test-triton check bench clean

help:
	@echo "make demo    a guided tour on a small made-up catalogue, written to out/demo"
	@echo "make test    all tests this machine can run"
	@echo "make test-triton  GPU kernels in Triton's interpreter, without a GPU (fetches 200 MB once)"
	@echo "make check   format, lint, types, layers, docs"
	@echo "make bench   the benchmarks"
	@echo "make clean   remove caches, builds and out/demo (not .venv)"

demo: .venv/.ready
	$(BIN)/spdd demo

test: .venv/.ready
	$(BIN)/python -m pytest -q

# Beside .venv and not in it: torch would find it there and act as if there were a GPU to compile for.
test-triton: .venv/.ready .triton/.ready
	PYTHONPATH=.triton TRITON_INTERPRET=1 $(BIN)/python -m pytest -q -m triton tests/kernels

.triton/.ready:
	@rm -rf .triton
	@$(BIN)/python -m pip install -q --no-deps --target .triton triton==3.7.0
	@touch $@

check: .venv/.ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyrefly check
	$(BIN)/python -m pytest -q tests/test_layers.py tests/test_light_import.py tests/test_docs.py

bench: .venv/.ready
	$(BIN)/python benchmarks/run.py

clean:
	rm -rf build dist out/demo .pytest_cache .ruff_cache .hypothesis
	find src tests benchmarks -name __pycache__ -prune -exec rm -rf {} +

# Without a stamp, whatever lies in .venv may be half made: start it afresh. With one, only bring it up to date.
# The build backend goes in first, pinned: an isolated build would fetch its own, unpinned.
.venv/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, this is %d.%d. Say which: make PYTHON=python3.12" % sys.version_info[:2])'
	@if [ -e $@ ]; then echo "Bringing .venv up to date ..."; \
	 else echo "Setting up .venv (once; about two minutes, 2 GB): torch and the rest of constraints.txt ..."; \
	      $(PYTHON) -m venv --clear .venv; fi
	@$(BIN)/python -m pip install -q -c constraints.txt hatchling editables
	@$(BIN)/python -m pip install -q -c constraints.txt --no-build-isolation -e '.[dev]'
	@touch $@
	@echo ".venv is ready."
