# Two commands, on any machine with Python >= 3.11 and its venv module:
#   make check   judge refopt itself and every recording of the suite
#   make test    run the tests
# Both make .venv on the first run and again only when pyproject.toml changes.

VENV := .venv
FRAMEWORKS := .venv-frameworks
PIP := python -m pip install --quiet --disable-pip-version-check

# The first of the commands $(2) that is a Python with venv and satisfies $(3) makes the folder $(1).
define make_venv
@for python in $(2); do \
	if $$python -c 'import ensurepip, sys, venv; sys.exit(not ($(3)))' 2>/dev/null; then \
		echo "making $(1) with $$python"; exec $$python -m venv $(1); \
	fi; \
done; \
echo 'refopt needs a Python with venv where $(3); tried: $(2)' >&2; exit 1
endef

.PHONY: check check-fused test lint bench test-frameworks site clean

check: $(VENV)/.base
	@$(VENV)/bin/refopt check

check-fused: $(FRAMEWORKS)/.frameworks
	@REFOPT_ENGINE=tape $(FRAMEWORKS)/bin/refopt check --execution fused
	@REFOPT_ENGINE=numba $(FRAMEWORKS)/bin/refopt check --execution fused
	@$(FRAMEWORKS)/bin/refopt check --execution jax

test: $(VENV)/.dev
	@$(VENV)/bin/python -m pytest -n auto --dist worksteal -m "not torch and not jax and not slow and not gpu"

lint: $(VENV)/.dev
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/mypy

bench: $(VENV)/.dev
	@$(VENV)/bin/python -m pytest tests/bench_*.py --benchmark-enable --benchmark-only

test-frameworks: $(FRAMEWORKS)/.frameworks
	@$(FRAMEWORKS)/bin/python -m pytest -n auto --dist worksteal -m "(torch or jax or slow) and not gpu"

site: $(VENV)/.docs
	@$(VENV)/bin/python docs/build.py build/site

clean:
	rm -rf $(VENV) $(FRAMEWORKS)

# pip is the last thing that venv installs: where it is missing, the environment is incomplete.
$(VENV)/bin/pip:
	$(call make_venv,$(VENV),python3.14 python3.13 python3.12 python3.11 python3,sys.version_info >= (3, 11))

# PyTorch 2.13.0 comes without CUDA for this Python only.
$(FRAMEWORKS)/bin/pip:
	$(call make_venv,$(FRAMEWORKS),python3.11 python3,sys.version_info[:2] == (3, 11))

$(VENV)/.base: pyproject.toml | $(VENV)/bin/pip
	@$(VENV)/bin/$(PIP) -e .
	@touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/bin/pip
	@$(VENV)/bin/$(PIP) -e '.[dev]'
	@touch $(VENV)/.base $@

$(VENV)/.docs: pyproject.toml | $(VENV)/bin/pip
	@$(VENV)/bin/$(PIP) -e '.[docs]'
	@touch $(VENV)/.base $@

$(FRAMEWORKS)/.frameworks: pyproject.toml | $(FRAMEWORKS)/bin/pip
	@$(FRAMEWORKS)/bin/$(PIP) -e '.[dev,docs,nvrtc,teach,torch,jax]' torch==2.13.0
	@touch $@
