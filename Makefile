# Every target does its own set-up: a virtual environment with exact versions, made again when what it depends on changes.
# PYTHON names the interpreter (3.11 or newer) that the environment is made from.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Of text-generation-inference's own client, which needs an older huggingface-hub than the rest.
CLIENT := .venv-tgi-client
CLIENT_STAMP := $(CLIENT)/.installed

# Unless told otherwise, one thread a test process: two processes with a pool each would fight over the cores. Bytecode is kept even where the
# caller's environment forbids it: tests start hundreds of processes, each of which would compile the package again.
TEST := OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest

.DEFAULT_GOAL := help
.PHONY: help setup tgi-client demo test test-slow soak package check format clean

help:
	@echo "make demo       run and measure the embedded model on this machine"
	@echo "make test       run the tests"
	@echo "make test-slow  run the tests that make test leaves out"
	@echo "make tgi-client make the environment of text-generation-inference's client, which make test needs"
	@echo "make soak       random traffic against a server for ten minutes"
	@echo "make package    build the wheel and the sdist into dist/, and try them in environments of their own"
	@echo "make check      lint, format, types, who imports whom, life without torch"
	@echo "make format     apply the formatter and the safe fixes"
	@echo "make clean      remove the virtual environment and all caches here"

setup: $(STAMP)

$(STAMP): requirements-dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "inferometer needs Python 3.11 or newer; name one with make PYTHON=..." >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

tgi-client: $(CLIENT_STAMP)

$(CLIENT_STAMP): requirements-tgi-client.txt
	$(PYTHON) -m venv $(CLIENT)
	$(CLIENT)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-tgi-client.txt
	touch $@

demo: $(STAMP)
	$(BIN)/inferometer models fetch smollm2-135m
	$(BIN)/inferometer generate --raw --max-new-tokens 16 --stop "." "The capital of France is"
	$(BIN)/inferometer generate --max-new-tokens 48 "What does a harbour master do?"
	$(BIN)/inferometer devices --calibrate > /dev/null
	$(BIN)/inferometer bench --batch-size 1 --batch-size 2 --batch-size 4 --sequence-length 32 --decode-length 8 --runs 5 \
		--backend native --backend hf

test: $(STAMP) $(CLIENT_STAMP)
	$(BIN)/inferometer models fetch smollm2-135m
	$(BIN)/inferometer models fetch all-minilm-l6-v2
	# A file is one process's, so that what its tests share is made once; in the order of the files, as the longest are not the last.
	$(TEST) -n 2 --dist loadfile --no-loadscope-reorder -m "not slow"

test-slow: $(STAMP)
	$(BIN)/inferometer models fetch smollm2-135m
	$(BIN)/inferometer models fetch all-minilm-l6-v2
	$(TEST) -m slow

soak: $(STAMP)
	SOAK_SECONDS=600 $(TEST) -s tests/server/test_soak.py

package: $(STAMP)
	rm -rf dist
	$(BIN)/python -m hatchling build -d dist
	$(TEST) tests/test_package.py

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(TEST) tests/test_layering.py tests/test_no_torch.py

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(CLIENT) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
