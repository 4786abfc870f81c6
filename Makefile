# Everything runs in .venv, which is set up once, without root. `make help` lists the targets.
# Only tests and benchmarks of the node in nginx need more, and are skipped without it.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
EXTRA_demo := server,dashboard
EXTRA_test := test
EXTRA_bench := bench
# Of Debian, for the node in nginx. Not its luajit, which conflicts with the Lua module of nginx.
DEBIAN_test := nginx libnginx-mod-http-lua lua-resty-core lua-cjson luajit2 lua-check
DEBIAN_bench := nginx libnginx-mod-http-lua lua-resty-core lua-cjson luajit2 wrk
CORE := $(shell find src -name '*.pyx' -o -name '*.pxd')
# Tests with real processes mostly wait: one more at a time than there are cores.
PYTEST := $(BIN)/python -m pytest -n $(shell echo $$(($$(nproc) + 1))) --dist loadfile --no-loadscope-reorder
# What computes and has no real time in it: a busy machine makes it slower, and nothing else.
WITHOUT_REAL_TIME := --ignore=tests/sim --ignore=tests/test_package.py -m "not hypothesis"
# What does not wait for each other is done at once: pip and the checks use one core, gcc all, and
# apt-get mostly waits for the network.
AT_ONCE := $(MAKE) --no-print-directory --output-sync=line --jobs=$(shell echo $$(($$(nproc) + 1))) AT_ONCE_HERE=yes
export PATH := $(CURDIR)/$(BIN):$(PATH)
# Tests start hundreds of processes: each would compile the package once more.
export PYTHONDONTWRITEBYTECODE :=

CHECKS := check-stubs check-types check-cython check-style check-imports check-lua
.PHONY: help demo test coverage test-busy lint bench soak clean $(CHECKS)
ifndef AT_ONCE_HERE
.NOTPARALLEL:
endif

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 18

demo: .venv/demo .venv/core ## watch a fleet held to its limits, live in the terminal (Ctrl-C ends it)
	@$(BIN)/sluicegate demo

test: lint ## what a change must pass: lint, types, import contracts, tests, docs
	$(PYTEST) --durations=10

# Not a part of `make test`: tracing takes about a sixth of the CPU time of all tests.
coverage: .venv/test .venv/core .venv/debian-test ## the same tests, traced: which lines and branches none of them runs
	$(PYTEST) --cov --cov-report=term

test-busy: .venv/test .venv/core .venv/debian-test ## the tests with real time in them, while the machine is kept busy
	$(BIN)/python -m tests.busy $(PYTEST) tests $(WITHOUT_REAL_TIME) --durations=10

lint: .venv/made ## style, types and import contracts
	@$(AT_ONCE) $(CHECKS)

check-stubs: .venv/core .venv/test
	$(BIN)/python -m mypy.stubtest sluicegate

check-types: .venv/test
	$(BIN)/mypy

check-cython: .venv/test
	$(BIN)/cython-lint src

check-style: .venv/test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

check-imports: .venv/test
	$(BIN)/lint-imports

check-lua: .venv/debian-test
	@if command -v luacheck >/dev/null; then \
	  echo "luacheck --std ngx_lua lua tests/lua"; luacheck --quiet --no-color --std ngx_lua lua tests/lua; \
	else \
	  echo "sluicegate: without luacheck the Lua files are not checked: apt-get install lua-check"; [ -z "$$CI" ]; \
	fi

bench: .venv/bench .venv/core .venv/debian-bench ## ours and the peers side by side; ONLY=limits,redis runs these parts
	$(BIN)/python -m benchmarks $(ONLY)

soak: .venv/test .venv/core .venv/debian-test ## the tests with many more examples, kills and random seeds (four hours)
	HYPOTHESIS_PROFILE=soak $(PYTEST) tests -o timeout=1500 -o faulthandler_timeout=1800
	$(BIN)/sluicegate simulate random --runs 20000 --jobs $$(nproc) --seed $$(date +%s)
	$(BIN)/sluicegate simulate random-faults --runs 2000 --jobs $$(nproc) --seed $$(date +%s)
	$(BIN)/sluicegate simulate pacing-random --runs 10000 --jobs $$(nproc) --seed $$(date +%s)
	$(BIN)/sluicegate simulate dispatch-random --runs 20000 --jobs $$(nproc) --seed $$(date +%s)
	$(BIN)/sluicegate simulate election-random --runs 100000 --jobs $$(nproc) --seed $$(date +%s)

clean: ## remove .venv and everything that was built
	rm -rf .venv build dist src/*.egg-info .coverage .*_cache .hypothesis
	find src \( -name '*.c' -o -name '*.so' \) -delete
	find . -name __pycache__ -prune -exec rm -rf {} +

.venv/made:
	@echo "sluicegate: creating .venv (the first time only, about two minutes)"
	@$(PYTHON) -c 'import sys; v = sys.version.split()[0]; sys.version_info >= (3, 11) or sys.exit("sluicegate: Python 3.11 or newer is needed, $(PYTHON) is " + v)'
	@command -v gcc >/dev/null || command -v "$${CC:-cc}" >/dev/null || { echo "sluicegate: no C compiler found, and the core must be compiled: install gcc (Debian: apt-get install gcc)"; exit 1; }
	@rm -rf .venv; $(PYTHON) -m venv .venv >/dev/null 2>&1 || { \
	  rm -rf .venv; \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "sluicegate: installing python3-venv and python3-dev"; \
	    apt-get update -qq && apt-get install -y -qq python3-venv python3-dev >/dev/null && $(PYTHON) -m venv .venv; \
	  else \
	    echo "sluicegate: '$(PYTHON) -m venv' does not work: install it (Debian: apt-get install python3-venv python3-dev)"; exit 1; \
	  fi; }
	@$(PIP) --upgrade pip "setuptools>=77" "Cython>=3.1,<4"
	@touch $@

# The core is compiled once, in its place, whatever is installed after that.
.venv/demo .venv/test .venv/bench: .venv/%: .venv/made Makefile pyproject.toml setup.py
	@echo "sluicegate: installing what 'make $*' needs"
	@SLUICEGATE_CORE_IS_COMPILED=1 $(PIP) --no-build-isolation --editable ".[$(EXTRA_$*)]"
	@touch $@

# Tried once: a machine without root, or without apt-get, is told what to install.
.venv/debian-test .venv/debian-bench: .venv/debian-%: .venv/made Makefile tests/debian_packages.sh
	@sh tests/debian_packages.sh "make $*" $(DEBIAN_$*)
	@touch $@

.venv/core: $(CORE) setup.py | .venv/made
	@echo "sluicegate: compiling what has changed of the core"
	@$(BIN)/python setup.py --quiet build_ext --inplace
	@touch $@
