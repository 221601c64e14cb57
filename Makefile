# `make demo` measures a real small model (the quick suite) and prints the table; `make check` runs lint, types and the fast
# tests, `make test` all tests. Each makes the virtual environment that it needs.

# Built as pyenv does, without profile-guided optimization, Python takes a third more time for all tests: the system's is
# preferred then if it can make environments, and has the headers that torch.compile needs.
SYSTEM_PYTHON ?= /usr/bin/python3
OPTIMIZED := import sys, sysconfig; sys.exit("--enable-optimizations" not in str(sysconfig.get_config_var("CONFIG_ARGS")))
COMPLETE := import ensurepip, os, sys, sysconfig; \
  sys.exit(sys.version_info < (3, 10) or not os.path.exists(sysconfig.get_path("include") + "/Python.h"))
PYTHON ?= $(shell python3 -c '$(OPTIMIZED)' || ! $(SYSTEM_PYTHON) -c '$(COMPLETE)' 2>/dev/null \
  && echo python3 || echo $(SYSTEM_PYTHON))
VENV ?= .venv
# The wheel of torch to install first. On Linux with a GPU: make TORCH=torch, or install your own build.
TORCH ?= torch==2.13.0
# What is installed beside llmtrack, and in which versions. With transformers 5: make test EXTRAS=dev CONSTRAINTS=
EXTRAS ?= onnx,genai,openvino,ray,dev
CONSTRAINTS ?= constraints.txt
# Processes that share the tests. Each may hold a model of half a GB.
WORKERS ?= 2
# A file's tests share what takes long to start, such as a cluster; files with the longest tests come first (tests/conftest.py).
BY_FILE := --dist loadfile --no-loadscope-reorder

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
LOCKED := $(if $(CONSTRAINTS),--constraint $(CONSTRAINTS))
# Python compiles what is imported when it is: all that is installed are 20,000 files, which takes a minute. And it keeps that,
# also where an image of a container says that it must not: else each of a hundred processes compiles all of it again.
export PYTHONDONTWRITEBYTECODE :=
# Half of the system's time in the tests would be faults of small pages: have malloc request huge ones (glibc).
export GLIBC_TUNABLES ?= glibc.malloc.hugetlb=1
INSTALL := $(BIN)/python install.py $(LOCKED)
DEMO_URI ?= sqlite:///$(CURDIR)/mlflow.db

.PHONY: demo plan check test lint types fast tests portable browser docs bench lock clean

$(STAMP): pyproject.toml $(CONSTRAINTS)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile $(LOCKED) uv
	$(INSTALL) $(TORCH)
	$(INSTALL) --editable '.[$(EXTRAS)]'
	$(INSTALL) --no-deps --target $(VENV)/torchao torchao
	touch $@

demo: plan $(STAMP)
	PATH="$(CURDIR)/$(BIN):$$PATH" MLFLOW_TRACKING_URI="$(DEMO_URI)" \
	  mlflow run . -e suite --env-manager local -P quick=true
	@echo "(these commands are in $(BIN): . $(BIN)/activate)"

plan:
	@echo "make demo:"
	@$(if $(wildcard $(STAMP)),,echo "- makes $(VENV) and installs llmtrack with all its backends there (once; minutes, by your network),";)\
	  echo "- measures SmolLM2-135M (93 MB, fetched once) by the quick suite: 4 to 10 minutes on two cores, by the CPU,"; \
	  echo "- ends with what it found, links into MLflow, and the next command."

# Side by side: mypy keeps one core busy for as long as most of the fast tests take.
check:
	+$(MAKE) --no-print-directory --jobs 3 lint types fast

test:
	+$(MAKE) --no-print-directory --jobs 3 lint types tests

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(STAMP)
	$(BIN)/mypy

fast: $(STAMP)
	$(BIN)/python -m pytest -n $(WORKERS) $(BY_FILE) -m 'not slow'

# Slow tests wait for the programs that they start: one process more keeps the cores busy.
tests: $(STAMP) browser
	$(BIN)/python -m pytest -n $$(($(WORKERS) + 1)) $(BY_FILE)

# The fast tests as other machines would run them; with MACHINES="old python3.13" as these: tests/portable.py has the table.
portable: $(STAMP)
	WORKERS=$(WORKERS) $(BIN)/python -m tests.portable $(MACHINES)

# The tests look at MLflow's UI with the system's Chromium, which Debian's and Ubuntu's root can install.
browser:
	@command -v chromium >/dev/null || ! command -v apt-get >/dev/null || [ "$$(id -u)" != 0 ] || \
	  { apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium; } >/dev/null || \
	  echo "chromium could not be installed: the tests in a browser are skipped"

docs: $(STAMP)
	$(BIN)/python -m llmtrack.metrics > docs/metrics.new && mv docs/metrics.new docs/metrics.md
	$(BIN)/python -m docs.commands > docs/commands.new && mv docs/commands.new docs/commands.md
	$(BIN)/python -m docs.project

# Side by side with other programs, on a machine that does nothing else: docs/benchmarks.md. An hour; with SMALL=1 a trial.
bench: $(STAMP)
	$(BIN)/python -m benchmarks $(if $(SMALL),--small)

# torch names its CUDA packages itself, and a CPU build has none: they are not locked.
lock: $(STAMP)
	( sed -n '/^#/p' constraints.txt; \
	  printf 'torch==2.13.0\n' | $(BIN)/uv pip compile pyproject.toml --constraint - --universal \
	    --python-version 3.10 --extra onnx --extra genai --extra openvino --extra ray --extra torchao --extra dev --no-annotate --no-header --quiet --upgrade \
	    | grep -vE '^(nvidia-|cuda-|triton)' ) > constraints.new
	mv constraints.new constraints.txt

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
