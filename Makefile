# Everything lives in .cache, and is reused when present.
PYTHON ?= python3
CACHE := $(CURDIR)/.cache
BIN := $(CACHE)/venv/bin
SPARK := $(shell sed -n 's/.*pyspark==\([0-9.]*\).*/\1/p' '{{ cookiecutter.repo_name }}/pyproject.toml')
EXAMPLE := $(CACHE)/example/cold-store
export KEDRO_DISABLE_TELEMETRY := 1
# Compiled modules are kept, whatever the machine says: every command imports the same.
export PYTHONDONTWRITEBYTECODE :=
export PATH := $(BIN):$(PATH)
export UV_FIND_LINKS := $(CACHE)/wheels

.PHONY: demo test lint bench chaos soak pictures setup clean

demo: setup            ## generate a project, run its streams on sample data, show the results
	@$(BIN)/python tools/demo.py $(CACHE)/demo

test: setup            ## everything
	@$(BIN)/python -m pytest tests

lint: setup            ## what CI checks first; the tests check the generated project too
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

bench: setup           ## ratios, measured side by side; written to benchmarks/results.json
	@$(BIN)/python benchmarks/run.py

chaos: setup           ## kill -9 a hundred times, count what was lost or written twice
	@$(BIN)/python tests/chaos.py

soak: setup            ## half an hour of small batches and restarts; written to benchmarks/soak.json
	@$(BIN)/python benchmarks/soak.py

pictures: setup        ## the pictures of the README (needs chromium)
	@$(BIN)/python tools/pictures.py docs

setup:
	@$(PYTHON) tools/check_machine.py
	@test -x $(BIN)/uv || { echo "Preparing $(CACHE)/venv; pyspark is large, so the first time takes a minute or two ..." \
		&& $(PYTHON) -m venv $(CACHE)/venv && $(BIN)/pip install -q "uv>=0.8,<1"; }
	@test -e $(CACHE)/wheels/pyspark-$(SPARK)-*.whl || $(BIN)/pip wheel -q --no-deps -w $(CACHE)/wheels pyspark==$(SPARK)
	@VIRTUAL_ENV=$(CACHE)/venv $(BIN)/uv pip install -q -e . --group dev
	@rm -rf $(CACHE)/example && mkdir -p $(CACHE)/example
	@cd $(CACHE)/example && $(BIN)/kedro new --starter=spark-streaming --name="Cold Store" > kedro-new.log \
		|| { cat kedro-new.log; exit 1; }
	@VIRTUAL_ENV=$(CACHE)/venv $(BIN)/uv pip install -q -r $(EXAMPLE)/pyproject.toml --extra dev --extra kafka --extra postgres --extra viz

clean:                 ## forget everything that was prepared
	rm -rf $(CACHE)
