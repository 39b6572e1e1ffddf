# Every target makes .venv and installs what it needs when that is missing; nothing goes anywhere else.
VENV := .venv
PYTHON ?= python3
BIN := $(VENV)/bin

.PHONY: run test lint bench docs models release clean

run: $(VENV)/.fpa
	$(BIN)/fpa run cues-small

# In the tests a waiting thread sleeps instead of spinning: other work on the machine then slows them far less.
# One process for each core, with one thread each: most tests are too small for more.
test: export OMP_WAIT_POLICY ?= passive
test: export OMP_NUM_THREADS ?= 1
test: $(VENV)/.test
	$(BIN)/python -m pytest -n auto --maxprocesses 8 --dist worksteal

lint: $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tools/house.py
	$(BIN)/python tools/dependencies.py

bench: $(VENV)/.bench
	$(BIN)/python benchmarks/augment.py
	$(BIN)/python benchmarks/explain_cpu.py
	$(BIN)/python benchmarks/scores.py --models "small net"

# Kills, damage, full disks, hostile files and odd calls: minutes, so not part of the tests.
attack: export OMP_NUM_THREADS = 1
attack: $(VENV)/.test
	$(BIN)/python tools/attack.py --write docs/results/reliability.md

docs: $(VENV)/.docs
	$(BIN)/mkdocs build --strict

# The trained models that ship with the package.
models: $(VENV)/.fpa
	$(BIN)/fpa train shapes --output build/models --device cpu
	for name in none rectangle fpa; do \
	  cp build/models/$$name/model.safetensors src/fpa/models/pretrained/shapes-$$name.safetensors; done

# Trained models as files for others: make release MODELS="runs/cifar10 runs/tuned/model.safetensors"
release: $(VENV)/.fpa
	$(BIN)/python tools/release.py $(MODELS)

clean:
	rm -rf $(VENV) site

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.fpa: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/.%: $(VENV)/.fpa pyproject.toml
	$(BIN)/python -m pip install --quiet --editable ".[$*]"
	touch $@
