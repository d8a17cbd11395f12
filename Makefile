# Two commands matter: `make demo` runs kvgate on a real model, `make test` runs everything that can be tested here.
# `make demo ENGINE=llama` needs no GPU and a tenth of the download.

PYTHON ?= python3
BIN := .venv/bin
ARGS ?=
ENGINE ?= vllm
# Tests start some hundreds of processes; what is compiled once need not be compiled by each.
unexport PYTHONDONTWRITEBYTECODE
READY := .venv/.ready
# What the demo needs, without the tools of development.
DEMO := .venv/.demo

INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check

.PHONY: demo test suite models collected check quick coverage proof wheel format docs site screenshots manifest lock clean

demo: $(if $(wildcard $(READY)),$(READY),$(DEMO))
	$(BIN)/kvgate demo --engine $(ENGINE) $(ARGS)

# On a new machine the models take a minute of one core: they are set up beside the first tests, and tests that need one wait.
test: $(READY)
	@$(MAKE) --no-print-directory --jobs 3 models suite

# Four workers on two cores: they wait for engines and clocks half of their time.
suite: check collected
	$(BIN)/pytest -n 4 --no-loadscope-reorder

models: $(READY)
	$(BIN)/python -m engine.demo_model smollm2
	$(BIN)/python -m engine.demo_model random

# What pytest makes of the tests' modules is kept, and no worker makes it again.
collected: $(READY)
	@printed=$$($(BIN)/pytest --collect-only -q 2>&1) || { echo "$$printed"; exit 1; }

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m docs.generate --check
	$(BIN)/python -m docs.site

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

# The pages as a site, in build/site. They can be read from the disk; the search needs a server:
# python3 -m http.server --directory build/site
site: $(READY)
	$(BIN)/python -m docs.site

# deploy/kubernetes/kvgate.yaml: the chart with its defaults.
manifest: $(READY)
	$(BIN)/python -m tests.deploy.helm

# Of the live page, in a real browser, under a real overload.
screenshots: $(READY)
	$(BIN)/python -m docs.screenshots
	$(BIN)/python -m docs.screenshot_of_top

# `make lock ARGS=--upgrade` takes the newest of everything; without it only what pyproject.toml changed does.
LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header

lock: $(READY)
	@$(BIN)/pip install --quiet --disable-pip-version-check uv
	$(LOCK) $(ARGS) pyproject.toml --extra dev --output-file requirements/dev.txt
	$(LOCK) pyproject.toml --constraint requirements/dev.txt --output-file requirements/image.txt
	printf 'setuptools\n' | $(LOCK) pyproject.toml - --extra demo --extra llama --constraint requirements/dev.txt \
		--output-file requirements/demo.txt
	printf 'setuptools\nmypy\n' | $(LOCK) - --constraint requirements/dev.txt --output-file requirements/build.txt

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage

# The newest pip, which reads an index in a third of the time of one that comes with Python 3.11.
.venv/bin/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "kvgate needs Python 3.11 or newer; set PYTHON=" >&2; exit 1; }
	@$(PYTHON) -m venv --upgrade-deps .venv || { echo "no .venv, for the reason above; on Debian it may be: apt-get install python3-venv" >&2; exit 1; }

# --no-deps: a lock is whole. pip would look for packages with extras again, and find releases that are not locked.
# Modules are compiled when they are imported: that is for few of them, and pip would compile all.
$(READY): requirements/dev.txt pyproject.toml | .venv/bin/pip
	@echo "installing kvgate and its tools into .venv"
	@$(INSTALL) --no-compile --no-deps --require-hashes --requirement requirements/dev.txt
	@$(INSTALL) --no-compile --no-deps --no-build-isolation --editable .
	@touch $@

$(DEMO): requirements/demo.txt pyproject.toml | .venv/bin/pip
	@echo "installing kvgate into .venv"
	@$(INSTALL) --no-compile --no-deps --require-hashes --requirement requirements/demo.txt
	@$(INSTALL) --no-compile --no-deps --no-build-isolation --editable .
	@touch $@
