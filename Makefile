# Two commands matter: `make demo` runs kvgate on a real model, `make test` runs everything that can be tested here.

PYTHON ?= python3
BIN := .venv/bin
ARGS ?=
READY := .venv/.ready

.PHONY: demo test check quick proof format docs clean

demo: $(READY)
	$(BIN)/kvgate demo $(ARGS)

test: $(READY)
	$(BIN)/python -m engine.demo_model smollm2
	$(BIN)/python -m engine.demo_model random
	$(MAKE) --no-print-directory check
	$(BIN)/pytest -m "not engine and not proof" -n 2 --dist loadfile
	$(BIN)/pytest -m "engine and not proof"

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m docs.generate --check

quick: $(READY)
	$(BIN)/pytest -m "not engine and not network and not slow and not proof" -n 3 -q

proof: $(READY)
	$(BIN)/python -m loadtests.proof $(ARGS)

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(READY)
	$(BIN)/python -m docs.generate

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "kvgate needs Python 3.11 or newer; set PYTHON=" >&2; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv .venv || { echo "python3 -m venv failed; on Debian: apt-get install python3-venv" >&2; exit 1; }
	@echo "installing kvgate and its tools into .venv"
	@$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@
