# make reproduce | make test | make lab | make bench | make lint   (needs Python 3.11 and make)
PYTHON ?= python3.11
# For a CPU-only torch from pytorch.org, where plain pip would bring CUDA:
#   make test PIP_ARGS="--extra-index-url <index of PyTorch's CPU builds>"
PIP_ARGS ?=
WORKERS ?= 2
BIN := .venv/bin
# One thread per process: cells, tests and trainings are what runs side by side.
export OMP_NUM_THREADS ?= 1

.PHONY: reproduce test test-slow lab bench lint clean
.DEFAULT_GOAL := help

help:
	@echo "make reproduce  set up, run the quick studies, render every notebook, figure and table"
	@echo "make test       set up, lint, run the fast tests"
	@echo "make test-slow  the tests that take minutes: public agents, D4PG, Ray on two nodes, memory, kills"
	@echo "make lab        open the notebooks in JupyterLab"
	@echo "make bench      run the benchmarks: ratios against named peers, kept in data/bench"
	@echo "make lint       ruff and mypy"

reproduce: .venv/.installed
	$(BIN)/quarl-nb reproduce --workers $(WORKERS)

test: .venv/.installed lint
	$(BIN)/pytest -n $(WORKERS) -q -m "not slow"

test-slow: .venv/.installed
	$(BIN)/pytest -n $(WORKERS) -q -m slow

lab: .venv/.installed
	$(BIN)/jupyter lab notebooks

# make bench BENCH="train memory:60" runs these two, the second with an argument (more: a,b).
bench: .venv/.installed
	OMP_NUM_THREADS=2 $(BIN)/python tests/bench/run.py $(BENCH)

lint: .venv/.installed
	$(BIN)/ruff check quarl_nb tests
	$(BIN)/mypy

# torch first, and exactly: a later resolution must not bring another build of it.
.venv/.installed: pyproject.toml constraints.txt
	@echo "== setting up .venv (once, some minutes)"
	@command -v $(PYTHON) >/dev/null || { echo "no $(PYTHON): make PYTHON=python3"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install -q $(PIP_ARGS) $$(grep '^torch==' constraints.txt)
	$(BIN)/pip install -q $(PIP_ARGS) -c constraints.txt -e '.[all]'
	touch $@

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache
