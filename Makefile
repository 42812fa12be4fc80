# make setup   system packages, .venv, torch (unless one is there), both extensions, editable install
# make demo    the main job on real text: peers that are killed and come back
# make test    the tests, under 20 minutes on two cores
# make ci      everything that CI runs: these tests, the C++ ones under sanitizers, what takes longer, and make docs
# make docs    the documentation site, into build/site
# make clean   what was built, but not .venv
#
# PYTHON  which Python makes .venv       TORCH  which torch to install if there is none
# PIP_ARGS  more arguments for pip, for example --index-url
PYTHON ?= python3
TORCH ?= torch==2.13.0
PIP_ARGS ?=
export PYTHON TORCH PIP_ARGS

SOURCES := $(shell find csrc -type f)
INSTALLED_TORCH := $(wildcard .venv/lib/python*/site-packages/torch/version.py)

.PHONY: setup demo test ci docs clean
.DELETE_ON_ERROR:

setup: .venv/.pccl-built

demo: .venv/.pccl-built
	.venv/bin/python -m pccl_backend.demo

test: .venv/.pccl-dev .venv/.pccl-built
	scripts/test

ci: .venv/.pccl-dev .venv/.pccl-docs .venv/.pccl-built
	scripts/test ci

docs: .venv/.pccl-docs
	scripts/test docs

clean:
	rm -rf build *.egg-info pccl_backend/*.so demo-out .pytest_cache .mypy_cache .ruff_cache
	rm -f .venv/.pccl-*

# Each stamp is one stage of scripts/setup; a stage without changes is not run again.
.venv/.pccl-torch: scripts/setup
	scripts/setup torch
	@touch $@

.venv/.pccl-dev: .venv/.pccl-torch pyproject.toml
	scripts/setup dev
	@touch $@

.venv/.pccl-docs: .venv/.pccl-torch pyproject.toml
	scripts/setup docs
	@touch $@

.venv/.pccl-package: .venv/.pccl-torch pyproject.toml setup.py $(INSTALLED_TORCH)
	scripts/setup build
	scripts/setup package
	@touch $@

.venv/.pccl-built: .venv/.pccl-package $(SOURCES)
	scripts/setup build
	@touch $@
