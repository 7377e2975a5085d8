# Everything a person or CI runs here. `make help` lists it.

PYTHON ?= python3
BIN := .venv/bin
CORE := .venv/core.stamp
DEV := .venv/dev.stamp
WEB := .venv/web.stamp
PIPELINE := .venv/pipeline.stamp
COVERED ?= not spark
# Tests also wait, so there are more workers than cores; most tests that only `make test` runs wait for processes.
WORKERS ?= 4
WORKERS_ALL ?= 5
# Tests start hundreds of Python processes, and each would compile every module again.
unexport PYTHONDONTWRITEBYTECODE
DATA ?= data
LISTEN ?= 127.0.0.1:7400

.DEFAULT_GOAL := help
.PHONY: web help demo demo-core test test-fast test-spark coverage chaos lint dist format serve protocol sync docs system clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  \033[1m%-10s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(PIPELINE) ## Show the main job: schedule, deliver, kill -9 the broker in the middle, lose nothing; audit it with Spark
	$(BIN)/python scripts/demo.py --pipeline

demo-core: $(CORE) ## The same without the data pipeline
	$(BIN)/python scripts/demo.py

# `make test REPORTS=directory` keeps what scripts/chaos_report.py reads.
test: $(DEV) ## Run the test suite: Spark's tests on two workers, and all others on five at the same time
	$(BIN)/python scripts/run_tests.py --workers $(WORKERS_ALL) $(if $(REPORTS),--reports $(REPORTS))

test-fast: $(DEV) ## Run the tests that need no server and little time
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not (server or slow or chaos or spark)"

coverage: $(DEV) ## Count the lines that tests run, in the processes that they start too (COVERED="server" for some of them)
	$(BIN)/python -m coverage erase
	$(BIN)/python -m coverage run -m pytest -n $(WORKERS) --dist worksteal -m "$(COVERED)"
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage report --skip-covered --sort=cover

# Here Spark's tests share one session; `make test` has two.
test-spark: $(DEV) ## Run only the tests of the pipeline and the connector, on a real Spark
	$(BIN)/python -m pytest -m spark tests/spark

chaos: $(DEV) ## Run the fault tests at full size, for hours, and write docs/reliability.md (ONLY="R5 R13" for some of them)
	$(BIN)/python scripts/chaos_report.py --full $(ONLY)

lint: $(DEV) ## Check style, types, imports and that generated files are fresh
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/bandit --quiet --recursive src --severity-level high
	$(BIN)/python scripts/audit_dependencies.py
	$(BIN)/python scripts/generate_protocol.py --check
	$(BIN)/python scripts/generate_sync.py --check
	$(BIN)/python scripts/generate_docs.py --check

dist: $(DEV) ## Build the source distribution and the wheel into dist/
	$(BIN)/python -m build --no-isolation

format: $(DEV) ## Rewrite the source in the house format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

serve: $(CORE) ## Run a broker on ./data, listening on 127.0.0.1:7400 (DATA= and LISTEN= change that)
	$(BIN)/dejaq serve --data $(DATA) --listen $(LISTEN)

web: $(WEB) ## Show the pages of `dejaq web` on http://127.0.0.1:7480, with a broker and sample data that move
	$(BIN)/python scripts/demo_web.py

protocol: $(DEV) ## Generate src/dejaq/protocol/v1 from proto/
	$(BIN)/python scripts/generate_protocol.py

sync: $(DEV) ## Generate the blocking client from the async one
	$(BIN)/python scripts/generate_sync.py

docs: $(DEV) ## Generate the reference pages in docs/
	$(BIN)/python scripts/generate_docs.py

system: ## Install the Debian packages that are missing
	scripts/install_system.sh

clean: ## Remove the virtual environment, caches and build leftovers
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -rf src/*.egg-info

$(CORE): requirements/core.txt pyproject.toml scripts/build_venv.sh
	PYTHON="$(PYTHON)" scripts/build_venv.sh
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	touch $@

$(PIPELINE): $(CORE) requirements/pipeline.txt
	scripts/install_system.sh java
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements/pipeline.txt
	scripts/install_java.sh
	touch $@

$(WEB): $(PIPELINE) requirements/web.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements/web.txt
	touch $@

$(DEV): $(PIPELINE) requirements/dev.txt requirements/postgres.txt requirements/forward.txt requirements/security.txt requirements/patroni.txt requirements/web.txt requirements/otel.txt tests/integration/security/openid/package-lock.json scripts/kafka_jars.txt scripts/kafka_server.xml
	scripts/install_system.sh
	scripts/install_node.sh
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements/dev.txt --requirement requirements/postgres.txt --requirement requirements/forward.txt --requirement requirements/security.txt --requirement requirements/patroni.txt --requirement requirements/web.txt --requirement requirements/otel.txt
	$(BIN)/python scripts/install_kafka.py || true
	touch $@

BENCH := .venv/bench.stamp
.PHONY: bench bench-quick bench-report

bench: $(BENCH) ## Measure beside every peer (hours) and write docs/performance.md
	$(BIN)/python -m bench run
	$(BIN)/python -m bench report

bench-quick: $(BENCH) ## Six minutes: each figure as a ratio to a peer, beside the committed ratio
	$(BIN)/python -m bench quick

bench-report: $(BENCH) ## Write docs/performance.md from bench/results/latest.json
	$(BIN)/python -m bench report

$(BENCH): $(CORE) requirements/bench.txt scripts/kafka_jars.txt scripts/kafka_server.xml
	scripts/install_bench.sh
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements/bench.txt
	$(BIN)/python scripts/install_kafka.py || true
	touch $@
