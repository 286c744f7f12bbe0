# Two commands do everything on a fresh machine with Python 3.11+ and make: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready

.PHONY: demo test docs coverage lint format clean

demo: $(READY)
	$(BIN)/gqe demo --output report

# Two workers with one thread each: more threads than cores would only wait for each other.
test: $(READY) lint
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

# Which lines no test runs; takes a third longer.
coverage: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile --cov --cov-report=term:skip-covered

# The documentation as a site; a link that leads nowhere is an error.
docs: $(READY)
	$(BIN)/zensical build --strict --clean

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# PyTorch is installed first and by its exact version, so that nothing else chooses a larger build of it.
$(READY): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet "torch==2.13.0"
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	touch $(READY)

clean:
	rm -rf $(VENV) report site .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage
