# make demo, make test: each sets itself up first. PYTHON=python3.12 chooses an interpreter; pip's own
# settings (PIP_INDEX_URL, pip.conf, ...) are used as they are.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

LOWEST := .venv-lowest

.PHONY: help setup demo docs pages test test-flower test-lowest golden bench release lint clean

help:
	@echo "make demo    compare five methods on real data (about a minute)"
	@echo "make test    lint, types, import directions, all tests"
	@echo "make test-flower   every test of federations on Flower, real processes (half an hour)"
	@echo "make test-lowest   the core's tests with the lowest versions of all dependencies, in $(LOWEST)"
	@echo "make docs    the documentation as a site without network: site/index.html"
	@echo "make pages   write anew what commands write of docs/, from code and records (a minute)"
	@echo "make release   wheel and sdist in dist/, the same bytes every time, with SHA256SUMS and a bill of materials"
	@echo "make bench   how fast the engine is beside loops and peers (WORKLOADS=..., AGAINST=..., PAIRS=..., QUICK=1)"
	@echo "make golden REASON=...   record the results of every method anew (tests compare with the record)"
	@echo "make setup   only create $(VENV) and install"
	@echo "make clean   remove $(VENV) and caches (runs/ stays)"

setup: $(STAMP)

# The stamp comes last: an interrupted installation has none and is repaired by the next call.
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Intarsia needs Python 3.11 or newer; '$(PYTHON)' is older or missing." \
	       "Name one that is newer: make $(or $(MAKECMDGOALS),setup) PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "'$(PYTHON)' cannot make virtual environments." \
	       "Install the module (Debian, Ubuntu: apt-get install python3-venv)" \
	       "or name another: make $(or $(MAKECMDGOALS),setup) PYTHON=..." >&2; exit 1; }
	@rm -f $(STAMP)
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install -e '.[dev,flower]'
	@touch $(STAMP)

demo: setup
	$(BIN)/intarsia demo

# Strict: a dead link, a heading that is not there or a request to elsewhere fails. `make test` builds it too.
docs: setup
	$(BIN)/python -m benchmarks.site

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	$(BIN)/pytest -n 2 --dist loadfile

test-flower: setup
	$(BIN)/pytest tests/flower -m "flower_slow or not flower_slow"

# The lower bounds of pyproject.toml, as they are written there.
test-lowest: setup
	$(PYTHON) -m venv --clear $(LOWEST)
	$(BIN)/python -m benchmarks.supply lowest > $(LOWEST)/constraints.txt
	$(LOWEST)/bin/python -m pip install -c $(LOWEST)/constraints.txt -e . 'pytest>=8' 'hypothesis>=6.100'
	$(LOWEST)/bin/python -m pytest -p no:warnings tests/core tests/blocks tests/data tests/experiment/test_settings.py \
	  tests/runs/test_resume.py tests/methods/test_methods.py

release: setup
	$(BIN)/python -m benchmarks.supply release

# QUICK=1 only tries everything; WORKLOADS="cifar-b20 job" and AGAINST="again plain pfl" choose; PAIRS=3 is a trial (fewer
# than 9: results go to benchmarks/.trials); PFLLIB=path and FEDLAB=path add peers that pip does not install.
bench: setup
	$(BIN)/python -m benchmarks.speed $(if $(QUICK),--quick) $(if $(WORKLOADS),--workloads $(WORKLOADS)) \
	  $(if $(AGAINST),--against $(AGAINST)) $(if $(PAIRS),--pairs $(PAIRS)) \
	  $(if $(PFLLIB),--pfllib $(PFLLIB)) $(if $(FEDLAB),--fedlab $(FEDLAB))

# Results of every method are recorded bit for bit in tests/golden; what changes them says why.
golden: setup
	$(BIN)/python -m tests.golden "$(REASON)"

# In this order: pages of methods have rows of docs/trust/sent.md.
pages: setup
	$(BIN)/python -m benchmarks.sent
	$(BIN)/python -m benchmarks.method_pages
	$(BIN)/python -m benchmarks.reference
	$(BIN)/python -m benchmarks.papers_page
	$(BIN)/python -m benchmarks.many page

clean:
	rm -rf $(VENV) $(LOWEST) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis site \
	  benchmarks/.envs benchmarks/.quick benchmarks/.trials
