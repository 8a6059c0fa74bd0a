# make help says what there is. Each target sets up what it needs and is quick the second time.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# An environment is stamped with the hash of the locks that it was made from.
HASH := $(BIN)/python -c "import hashlib, sys; print(hashlib.sha256(b''.join(open(p, 'rb').read() for p in sys.argv[1:])).hexdigest()[:16])"
BASE := locks/base.txt
TEST := locks/test.txt locks/dev.txt

.PHONY: help tiny test check lock clean python base tools
.DEFAULT_GOAL := help

help:
	@echo "make tiny    grow the tiny model on any machine: CPU, no network at run time, minutes"
	@echo "make test    lint, types, workflow checks and the test suite"
	@echo "make check   the same without the test suite: seconds"
	@echo "make lock    remake locks/*.txt from pyproject.toml"
	@echo "make clean   remove the environment and caches; runs/, results/ and data/ stay"

tiny: base
	@$(BIN)/python -c "import sys; from andrea.hooks import unlock; sys.exit(unlock())"
	@echo "watch it in a browser, from another terminal: $(BIN)/andrea dashboard tiny"
	$(BIN)/snakemake --cores all train_tiny
	@echo "the report, for a browser: results/ANDREA-TINY/report.html"
	@echo "talk to it:                $(BIN)/andrea chat tiny"

test: check
	$(BIN)/python -m pytest -q

check: tools
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict andrea
	$(BIN)/snakefmt --check Snakefile workflow
	$(BIN)/snakemake --lint

python:
	@test -x $(BIN)/python || { \
	  $(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11))" || { \
	    echo "Python 3.11 or newer is needed, got: $$($(PYTHON) --version 2>&1)"; \
	    echo "fix: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11"; exit 1; }; \
	  $(PYTHON) -m venv $(VENV); }

base: python
	@test -f $(VENV)/base-$$($(HASH) $(BASE)) || test -f $(VENV)/tools-$$($(HASH) $(TEST)) || { \
	  echo "installing the locked packages into $(VENV), once: a minute or two"; \
	  $(BIN)/python -m pip install --quiet --require-hashes $(BASE:%=-r %) && \
	  $(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable . && \
	  touch $(VENV)/base-$$($(HASH) $(BASE)); }

tools: python
	@test -f $(VENV)/tools-$$($(HASH) $(TEST)) || { \
	  echo "installing the locked packages and tools into $(VENV), once: a minute or two"; \
	  $(BIN)/python -m pip install --quiet --require-hashes $(TEST:%=-r %) && \
	  $(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable . && \
	  touch $(VENV)/tools-$$($(HASH) $(TEST)); }

# Universal: one lock serves every platform and Python version from 3.11 on. Each further lock keeps the base's versions.
# Versions stay as they are while pyproject.toml allows them; UPGRADE=--upgrade asks for the newest.
UPGRADE :=
COMPILE := $(BIN)/uv pip compile --quiet --no-config --universal --generate-hashes --python-version 3.11 \
	$(UPGRADE) --custom-compile-command "make lock" --no-emit-index-url --no-emit-find-links

lock: tools
	env -u UV_FIND_LINKS -u UV_INDEX -u UV_EXTRA_INDEX_URL \
	  $(COMPILE) pyproject.toml --group build -o locks/base.txt
	for extra in test dev cuda13 cuda12; do \
	  $(COMPILE) pyproject.toml --group build --extra $$extra -c locks/base.txt -o locks/$$extra.txt || exit 1; done

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find andrea scripts tests -name __pycache__ -type d -prune -exec rm -rf {} +
