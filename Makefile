# domino-serve: `make demo` and `make test` do everything from a fresh clone.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
WORKERS ?= 2
# Address of PyTorch's CPU wheel index, for machines whose package index has CUDA builds only.
TORCH_INDEX ?=

BIN := .venv/bin
READY := .venv/.ready
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
TORCH := torch==$(shell sed -n 's/^torch==//p' constraints.txt)
# Linux without an NVIDIA driver: ask for the CPU build by name, the default one carries several GB of CUDA.
CPU_LINUX := $(shell [ "$$(uname -s)" = Linux ] && ! command -v nvidia-smi >/dev/null && echo yes)
# Where no C compiler is found, pip installs one; where that fails, torch computes.
KERNELS := $(BIN)/python -m domino_kernels.native
# Workers share the cores: two threads each would wait for one another at barriers. Byte code is
# kept, as hundreds of processes read the same files.
TEST_ENV := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=

.PHONY: help setup demo test chaos lint format protos deploy-render deploy-check bench bench-cpu bench-router clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s%s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## create .venv with everything the project needs (about 2 minutes, once)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "setup: Python 3.11 or newer is needed; name one with 'make setup PYTHON=...'"; exit 1; }
	@echo "setup 1/4: virtual environment in .venv"
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv .venv
ifeq ($(CPU_LINUX),yes)
	@echo "setup 2/4: $(TORCH), CPU build"
	@$(PIP) install -c constraints.txt $(addprefix --extra-index-url ,$(TORCH_INDEX)) '$(TORCH)+cpu' || { \
	  echo "setup 2/4: no CPU-only build in the package index, taking the default (large) one;"; \
	  echo "           stop and run 'make setup TORCH_INDEX=<PyTorch CPU wheel index>' to avoid that"; \
	  $(PIP) install -c constraints.txt '$(TORCH)'; }
else
	@echo "setup 2/4: $(TORCH)"
	@$(PIP) install -c constraints.txt '$(TORCH)'
endif
	@echo "setup 3/4: domino-serve and its development tools (a minute or two)"
	@$(PIP) install -c constraints.txt -e '.[dev]'
	@echo "setup 4/4: CPU kernels for this processor"
	@$(KERNELS) || { $(PIP) install -c constraints.txt ziglang && $(KERNELS); } || true
	@touch $@

demo: setup ## answer three prompts in AR, DFlash and Domino mode on this machine and compare
	@$(BIN)/domino-serve demo

test: setup ## run the tests, two files at a time (WORKERS=N for more; 0: one by one)
	@$(TEST_ENV) $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

chaos: setup ## kill, flood, update and fuzz the services for an hour and a half; figures in benchmarks/
	@$(BIN)/python -m tests.chaos --json benchmarks/chaos.json

lint: setup ## ruff, mypy --strict, buf lint
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@cd protos && ../$(BIN)/buf lint

format: setup ## let ruff fix and format
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

protos: setup ## regenerate protos/gen from the .proto files
	@$(BIN)/python protos/generate.py

deploy-render: ## render deploy/kubernetes/overlays to deploy/rendered; needs kubectl
	@set -e; for overlay in deploy/kubernetes/overlays/*; do \
	  kubectl kustomize $$overlay > deploy/rendered/$$(basename $$overlay).yaml; done

deploy-check: setup deploy-render ## container files, manifests and their commands, without a cluster
	@git diff --exit-code --stat deploy/rendered
	@CI=true $(BIN)/python -m pytest tests/deploy tests/router/test_discovery*.py tests/router/test_endpoint_slices.py

bench: setup ## AR, DFlash and Domino under load (C1, C8) by locust on this CPU; a few minutes
	@$(BIN)/domino-serve bench serve --preset cpu

bench-router: setup ## the router by itself: 1,000 streams at once
	@$(BIN)/domino-serve bench router

bench-cpu: setup ## speed of AR, DFlash and Domino against transformers on this CPU
	@$(BIN)/domino-serve bench cpu

clean: ## remove the environment and caches (not the model cache)
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
