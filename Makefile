# Two commands on a fresh machine: `make demo` and `make test`. Each makes .venv, installs pinned versions and does its job.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEV := $(VENV)/.installed-dev
PIP := $(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt

.PHONY: demo test lint install clean

demo: $(STAMP)
	$(BIN)/fedstill demo

test: $(DEV) lint
	@start=$$SECONDS; \
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 3 --dist loadfile; status=$$?; \
	echo "tests took $$((SECONDS - start)) s"; exit $$status

lint: $(DEV)
	$(BIN)/ruff format --check -q .
	$(BIN)/ruff check -q .
	$(BIN)/mypy

install: $(DEV)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e .
	@touch $@

$(DEV): $(STAMP)
	$(PIP) -e '.[dev,flower,text,dicom,tensorboard,mlflow,onnx,pretrained]'
	@touch $@

clean:
	rm -rf $(VENV) runs build dist .pytest_cache .ruff_cache .mypy_cache
