# Two commands do all the set-up: `make design` and `make test`. Both need only Python >= 3.11.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

DESIGN := --params 7B --vocab 128256 --context 8192 --gpu h100-sxm --gpus 64 --tokens 2T

.PHONY: design test lint bench docs handbook validation backtest recipe clean

design: $(VENV)/.installed  ## The main job: from a 7 B budget to shapes.
	$(BIN)/scantling design $(DESIGN)

test: $(VENV)/.test-installed  ## Everything: unit, property, exactness and documentation tests.
	$(BIN)/pytest -q

lint: $(VENV)/.test-installed  ## Linter, formatter and types.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.test-installed  ## Speed, as ratios to something in the same run.
	$(BIN)/python benchmarks/sweep.py
	$(BIN)/python benchmarks/start.py
	$(BIN)/python benchmarks/lint.py
	$(BIN)/python benchmarks/many.py
	$(BIN)/python benchmarks/columns.py

handbook: $(VENV)/.installed  ## A page a rule: handbook/index.html.
	$(BIN)/scantling rules --handbook handbook

docs: $(VENV)/.installed  ## Pages that are written from data.
	$(BIN)/scantling claims page docs/claims.md
	$(BIN)/scantling models stats --plot docs/trends.svg

validation: $(VENV)/.installed  ## Every error against the public tables, as docs/validation.md.
	$(BIN)/scantling validate --tables ../shared/data/measured --markdown docs/validation.md

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[plot]'
	touch $@

$(VENV)/.test-installed: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	touch $@ $(VENV)/.installed

backtest: $(VENV)/.installed  ## Released shapes against what design would have said, as docs/backtest.md.
	$(BIN)/python benchmarks/backtest.py --write

recipe: $(VENV)/.installed  ## A recipe table corrected, as docs/recipe.md.
	$(BIN)/python benchmarks/recipe.py --write

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
