# make demo     set up, then run pip-drift, PIP and its baseline on embedded data; ends with a table and a picture
# make test     set up, then run style checks, type checks and all tests
# make install  set up only (.venv/)
# make backbone train the embedded ViT anew (about 25 minutes on two cores)
# make mutants  change the mathematics in small ways and see whether the tests notice (docs/mutants.md)

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: install demo test backbone mutants clean

install: $(INSTALLED)

$(INSTALLED): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is " + sys.version) if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev]"
	@touch $@

demo: $(INSTALLED)
	$(BIN)/pip-flower suite --experiment digits --methods pip-drift,pip-dualprompt,fed-dualprompt

test: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/pytest --numprocesses auto --dist loadgroup

backbone: $(INSTALLED)
	$(BIN)/python scripts/pretrain_backbone.py

mutants: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev,mutants]"
	OMP_NUM_THREADS=1 $(BIN)/python scripts/mutants.py

clean:
	rm -rf $(VENV) mutants .mypy_cache .ruff_cache .pytest_cache
