# Two commands matter: `make demo` runs kvgate on a real model, `make test` runs everything that can be tested here.

PYTHON ?= python3
BIN := .venv/bin
ARGS ?=
# Tests start some hundreds of processes; what is compiled once need not be compiled by each.
unexport PYTHONDONTWRITEBYTECODE
READY := .venv/.ready

.PHONY: demo test check quick coverage proof wheel format docs lock clean

demo: $(READY)
	$(BIN)/kvgate demo $(ARGS)

test: $(READY)
	$(BIN)/python -m engine.demo_model smollm2
	$(BIN)/python -m engine.demo_model random
	$(MAKE) --no-print-directory check
	$(BIN)/pytest -n 3 --no-loadscope-reorder

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m docs.generate --check

quick: $(READY)
	$(BIN)/pytest -m "not engine and not network and not slow and not proof" -n 3 -q

# Lines and branches that unit and property tests run, by module; the suite does not wait for it.
coverage: $(READY)
	$(BIN)/pytest tests/unit tests/property -n 2 -q --cov --cov-report=term $(ARGS)

proof: $(READY)
	$(BIN)/python -m loadtests.proof $(ARGS)

# For this platform and version of Python, its core compiled; a plain one where there is no C compiler. What an earlier
# build left would be packed, too.
wheel: $(READY)
	rm -rf build dist
	KVGATE_COMPILE=auto $(BIN)/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .
	@ls dist/*.whl

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(READY)
	$(BIN)/python -m docs.generate

# `make lock ARGS=--upgrade` takes the newest of everything; without it only what pyproject.toml changed does.
LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header

lock: $(READY)
	@$(BIN)/pip install --quiet --disable-pip-version-check uv
	$(LOCK) $(ARGS) pyproject.toml --extra dev --output-file requirements/dev.txt
	$(LOCK) pyproject.toml --constraint requirements/dev.txt --output-file requirements/image.txt
	printf 'setuptools\nmypy\n' | $(LOCK) - --constraint requirements/dev.txt --output-file requirements/build.txt

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage

$(READY): requirements/dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "kvgate needs Python 3.11 or newer; set PYTHON=" >&2; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv .venv || { echo "python3 -m venv failed; on Debian: apt-get install python3-venv" >&2; exit 1; }
	@echo "installing kvgate and its tools into .venv"
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements/dev.txt
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@
