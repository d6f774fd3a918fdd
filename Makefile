PYTHON ?= python3
# Installed first where there is no CUDA device. An environment that offers a CPU build gets that one.
TORCH ?= torch==2.13.0
BIN := .venv/bin

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: demo test lint clean help

demo: .venv/ready ## walk synth, sft, rl and eval on the embedded world and model, and show what was learned
	@$(BIN)/star run demo && $(BIN)/star report runs/demo

test: .venv/ready ## all tests
	@$(BIN)/pytest -q

lint: .venv/ready ## format, lint and types
	@$(BIN)/ruff format --check . && $(BIN)/ruff check . && $(BIN)/mypy

reproduce-%: .venv/ready ## the paper's settings on real data: 1.5b, 3b or 7b
	@$(BIN)/star run paper-$* && $(BIN)/star report runs/paper-$*

ablate-%: .venv/ready ## algorithms or rewards on the demo, three seeds each, in one table
	@$(BIN)/star ablate $*

clean: ## remove caches and builds; runs/ and data/ stay
	@rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis

help: ## this list
	@awk -F ':[^#]*## ' '/^[a-z%-]+:.*## /{printf "make %-14s %s\n", $$1, $$2}' Makefile

.venv/pyvenv.cfg:
	@$(PYTHON) -m venv .venv

.venv/torch: .venv/pyvenv.cfg
	@{ command -v nvidia-smi >/dev/null || $(BIN)/pip install -q "$(TORCH)"; } && touch $@

.venv/ready: pyproject.toml .venv/torch
	@echo "Installing star-agents into .venv" && $(BIN)/pip install -q -e '.[train,dev]' && touch $@
