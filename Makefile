# A newcomer's way in: `make demo`, `make test`. Each target sets up what it needs first; see tests/README.md for what the
# tests prove. PYTHON=… chooses the interpreter, TESTS=… which tests run, DATA=… a folder of data that is no part of this project.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?=
TESTS ?=
DATA ?=
BIN := .venv/bin
# A file's tests stay together: they share servers.
PARALLEL := --numprocesses logical --maxprocesses 4 --dist loadfile

export PYTHON

.PHONY: help demo test test-faults test-observability mlflow check bench bench-screening train-classifier replay gen lock clean environment etcd

help:
	@echo 'make demo         agents review real code together, keep what is private, purge a bad source, resume a task; all proved'
	@echo 'make test         the tests, in minutes (TESTS=tests/core for a part)'
	@echo 'make check        style, types, rooms, the API contract, generated code, documents'
	@echo 'make test-faults  the long tests: real processes killed and cut, 100,000 calls that look for leaks'
	@echo 'make test-observability  a race of two agents, read back from a real trace viewer (installs 850 MB into build/mlflow)'
	@echo 'make bench        measure, into build/bench.json'
	@echo 'make bench-screening DATA=…   measure what screening finds in texts that you have, into build/screening.json'
	@echo 'make train-classifier DATA=…  train the classifier again, with texts that you have'
	@echo 'make replay DATA=…            replay recorded runs of agents as tasks whose workers are killed, into build/replay.json'
	@echo 'make gen          make the generated code again: stubs from proto/, the client for threads'
	@echo 'make lock         choose the versions in requirements.lock again'
	@echo 'make clean        remove what was built; the environment in .venv stays'

demo: environment
	$(BIN)/kokuban demo

test: environment etcd
	$(BIN)/pytest -m "not faults and not observability" $(PARALLEL) $(TESTS)

test-faults: environment etcd
	$(BIN)/pytest -m faults $(TESTS)

test-observability: environment etcd mlflow
	$(BIN)/pytest -m observability tests/telemetry

check: environment
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/buf lint
	$(BIN)/buf format -d --exit-code
	proto/breaking.sh $(BIN)/buf
	$(BIN)/python proto/generate.py --check
	$(BIN)/python client/unasync.py --check
	$(BIN)/pytest tests/contract/test_documents.py

bench: environment etcd
	mkdir -p build
	$(BIN)/python tests/bench/run.py

# One thread: sums in another order would be rounded otherwise.
bench-screening: environment
	@test -n '$(DATA)' || { echo 'DATA=… names the folder that has the texts, as JSON Lines; they are no part of this project'; exit 2; }
	mkdir -p build
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python tests/screening/bench.py '$(DATA)'

train-classifier: environment
	@test -n '$(DATA)' || { echo 'DATA=… names the folder that has the texts, as JSON Lines; they are no part of this project'; exit 2; }
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m training.train '$(DATA)'

replay: environment
	@test -n '$(DATA)' || { echo 'DATA=… names the recorded runs, a file or a folder of JSON; they are no part of this project'; exit 2; }
	$(BIN)/python tests/replay/replay.py '$(DATA)'

gen: environment
	$(BIN)/python proto/generate.py
	$(BIN)/python client/unasync.py

# No address of an index may get into the lock: it must hold wherever it is installed from.
lock: environment
	$(BIN)/python -m pip install --quiet 'uv>=0.9,<1'
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
		--extra server --extra telemetry --group dev pyproject.toml --output-file requirements.lock
	@! grep -n '://' requirements.lock

clean:
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find client server tests proto -name __pycache__ -type d -prune -exec rm -rf {} +

# Makes .venv, or brings it up to date when what it is made from has changed.
environment:
	@deploy/development.sh environment

# Sees to an etcd; the demo does without.
etcd:
	@deploy/development.sh etcd

# A trace viewer that keeps links, in an environment of its own: no part of the project needs it.
mlflow:
	@deploy/development.sh mlflow
