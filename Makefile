# make chat [PROMPT="..."] [MODEL=...]   talk to a model; the first run installs, downloads and compiles
# make test [TRITON=3.9]                 the whole test suite; with TRITON: what Triton compiles, by another version of it
# make lint                              ruff and mypy
# make check                             both
# PYTHON=python3.12 chooses the interpreter of a new .venv.
export PYTHON ?= python3
export MODEL PROMPT TRITON

.PHONY: help chat test lint check clean

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

chat:
	@scripts/setup
	@.venv/bin/pumice chat $(if $(MODEL),--model "$$MODEL") $(if $(PROMPT),--prompt "$$PROMPT")

test:
	@$(if $(TRITON),scripts/test_triton "$$TRITON",scripts/test)

lint:
	@scripts/lint

check:
	@scripts/check

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis
