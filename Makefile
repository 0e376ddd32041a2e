# Two commands on a fresh machine: `make demo` and `make test`. Each makes .venv, installs pinned versions and does its job.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEV := $(VENV)/.installed-dev
PIP := $(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt

.PHONY: demo test lint install docs results bench package clean

demo: $(STAMP)
	$(BIN)/fedstill demo

test: $(DEV) lint
	@start=$$SECONDS; \
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder; status=$$?; \
	echo "tests took $$((SECONDS - start)) s"; exit $$status

lint: $(DEV)
	$(BIN)/ruff format --check -q .
	$(BIN)/ruff check -q .
	$(BIN)/mypy

install: $(DEV)

# The site, in site/: look at it with `python -m http.server -d site` or open site/index.html.
docs: $(DEV)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build -q --clean

# docs/results/studies.md and the README's column of claims, from the kept results in docs/results/data.
results: $(DEV)
	$(BIN)/python -m fedstill.reproduce.publish

# Ratios of time and memory, in runs/bench.json and docs/results/speed.md: make bench DATA=folder. BASE=tree also compares with
# an earlier version, PFL=python with pfl-research; OLD=file.json shows what became worse.
bench: $(DEV)
	$(BIN)/python benchmarks/bench.py $(if $(DATA),--data $(DATA)) $(if $(BASE),--base $(BASE)) $(if $(PFL),--pfl $(PFL)) \
		--out runs/bench.json
	$(BIN)/python benchmarks/bench.py --page runs/bench.json docs/results/speed.md
	$(if $(OLD),$(BIN)/python benchmarks/bench.py --compare $(OLD) runs/bench.json)

# Wheel and sdist in dist/, checked, installed in fresh environments and tried with `fedstill demo`.
package: $(DEV)
	$(PIP) -e '.[release]'
	$(BIN)/python website/package.py

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e .
	@touch $@

$(DEV): $(STAMP)
	$(PIP) -e '.[dev,docs,flower,privacy,secure,text,dicom,tensorboard,mlflow,onnx,pretrained]'
	@touch $@

clean:
	rm -rf $(VENV) runs build dist site .pytest_cache .ruff_cache .mypy_cache
