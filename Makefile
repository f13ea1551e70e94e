# The broker of `demo` and `test` is chosen by BROKER (see testbed/broker.py); everything they need is set up by itself.

PYTHON ?= python3
INSTALLED := .venv/.installed
# This project as users install it: its hot modules compiled.
PACKAGES := $(shell find ring proxy -name '*.py' -o -name '*.css' -o -name '*.html' -o -name '*.js' -o -name '*.json' -o -name '*.md' | sort)
# With the names in its own, so that it is made again when a file is gone.
COMPILED := build/compiled/.built-$(shell echo $(PACKAGES) | cksum | cut -d ' ' -f 1)
# Tests of rooms that have compiled modules, for the same modules as Python; the other rooms are the same either way.
ON_SOURCE := $(addprefix tests/unit/proxy/,wire routing publisher session groups/consuming journal http/admission http/formats http/sending) tests/unit/ring/test_hashing.py
WITH_COMPILED := --override-ini="pythonpath=build/compiled ."
# Each process has a broker of its own, unless one is named. Where tests wait, there is one process more than cores.
PROCESSES ?= $(if $(filter amqp%,$(BROKER)),0,$(shell echo $$((1 + $$(nproc)))))
PYTEST := .venv/bin/pytest --dist loadfile --durations 20 --durations-min 8
WAITING := $(PYTEST) --numprocesses $(PROCESSES)
SECOND = .venv/bin/python -m testbed.second -- $(WAITING) $(WITH_COMPILED)
COMPUTING := $(PYTEST) --numprocesses auto
# Of the integration tests, with a broker chosen, the image's do not depend on it.
INTEGRATION := tests/integration $(if $(BROKER),--ignore=tests/integration/test_image.py)

# The data pipeline's packages, half a gigabyte: not for who only wants the sidecar.
PIPELINE := .venv/.pipeline

.PHONY: help demo try pipeline-demo docs wheel quick test unit integration test-second test-all checked-and-compiled prepared coverage bench chaos chaos-groups fuzz check dashboards lock clean

help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 16

demo: $(INSTALLED) ## Show the proxy at work with a real RabbitMQ
	.venv/bin/python -m testbed.demo

try: $(INSTALLED) ## Play with a group of workers on a real RabbitMQ: kill one, add one, fail an order, and watch
	.venv/bin/python -m testbed.playground

pipeline-demo: $(PIPELINE) ## Show the data pipeline at work: a real sidecar's journal, every job, each report in a browser
	.venv/bin/python -m testbed.pipeline_demo

quick: $(INSTALLED) ## Lint, and run the unit tests of what has changed, within a minute
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/python -m testbed.quick

test: $(if $(BROKER),,unit) integration ## Check and test, but for what takes long; with BROKER=sid (or another), test against that RabbitMQ

unit: checked-and-compiled ## Of `make test`, all that needs no RabbitMQ, and the Spark jobs
	$(COMPUTING) $(WITH_COMPILED) -m "not long" tests/unit tests/pipeline

integration: checked-and-compiled ## Of `make test`, what talks to a RabbitMQ
	$(WAITING) $(WITH_COMPILED) $(if $(BROKER),,-m "not long") $(INTEGRATION)

test-second: checked-and-compiled ## Test what depends on RabbitMQ's version on a second, older RabbitMQ, but for what takes long
	$(SECOND) -m "versions and not long" tests/integration tests/pipeline

test-all: checked-and-compiled ## Check and test all: also what takes long, on the source, and on a second, older RabbitMQ
	$(COMPUTING) $(WITH_COMPILED) tests/unit tests/pipeline
	$(WAITING) $(WITH_COMPILED) $(INTEGRATION)
	RINGPROXY_PURE=1 $(COMPUTING) $(ON_SOURCE)
	$(SECOND) -m versions tests/integration tests/pipeline

# At the same time, as each waits long for the network or for one core.
checked-and-compiled: $(INSTALLED)
	$(MAKE) --no-print-directory --jobs=3 $(if $(BROKER),,check) $(COMPILED) prepared

prepared: $(INSTALLED)
	.venv/bin/python -m testbed --prepare

coverage: $(INSTALLED) ## Of ring/ and proxy/, the lines and branches that the unit tests reach: fails below what it was
	$(COMPUTING) --quiet -m "not long" --cov --cov-report=term tests/unit --ignore tests/unit/test_compiled.py --ignore tests/unit/test_build.py --ignore tests/unit/chaos --ignore tests/unit/bench

bench: $(COMPILED) ## Measure how fast it is, into bench/results, and draw the plots; with FULL=1, at length; with BROKER=installed, on that RabbitMQ
	.venv/bin/python -m bench $(if $(FULL),--full)

chaos: $(COMPILED) ## Break all there is around the sidecars, and judge: docs/development/chaos.md; with SEED and FAULTS, otherwise or longer
	PYTHONSAFEPATH=1 PYTHONPATH=build/compiled:. .venv/bin/python -m tests.chaos --seed=$(or $(SEED),44) --faults=$(or $(FAULTS),30)

chaos-groups: $(COMPILED) ## Break all there is around two consumer groups of an exchange, one of them in series, and judge; with SEED, FAULTS and NODES, otherwise or longer
	PYTHONSAFEPATH=1 PYTHONPATH=build/compiled:. .venv/bin/python -m tests.chaos.groups --seed=$(or $(SEED),44) --faults=$(or $(FAULTS),12) --nodes=$(or $(NODES),1) --groups=2 --mixed

fuzz: $(INSTALLED) ## Fuzz all that reads bytes, each harness for SECONDS (60); on Linux, x86-64
	.venv/bin/pip install --quiet --disable-pip-version-check --require-hashes -r constraints-fuzz.txt
	.venv/bin/python -m tests.fuzz $(or $(SECONDS),60)

check: $(INSTALLED) $(PIPELINE) ## Lint, formatting and types
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

$(COMPILED): $(INSTALLED) setup.py testbed/build-compiled $(PACKAGES)
	testbed/build-compiled
	touch $@

$(PIPELINE): $(INSTALLED) constraints-pipeline.txt
	@echo "installing the packages of constraints-pipeline.txt into .venv ..."
	.venv/bin/pip install --quiet --disable-pip-version-check --require-hashes -r constraints-pipeline.txt
	touch $@

$(INSTALLED): constraints.txt pyproject.toml testbed/setup-venv
	testbed/setup-venv $(PYTHON)
	touch $@

wheel: $(INSTALLED) ## Make a compiled wheel for this version of Python and this kind of machine, in build/wheel
	rm -rf build/wheel
	RINGPROXY_COMPILE=1 .venv/bin/pip wheel -v --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir build/wheel .

docs: $(INSTALLED) ## Build the documents as a site in build/site; a broken link fails it
	NO_MKDOCS_2_WARNING=1 .venv/bin/python -m mkdocs build --strict --quiet
	@echo "open build/site/index.html"

dashboards: $(INSTALLED) ## Write the Grafana dashboards of deploy/grafana from testbed/dashboards
	.venv/bin/python -m testbed.dashboards

lock: $(INSTALLED) ## Re-make constraints*.txt with the newest versions pyproject.toml allows
	.venv/bin/python -m venv .venv/uv
	.venv/uv/bin/pip install --quiet --disable-pip-version-check uv
	export SSL_CERT_FILE="$${PIP_CERT:-$$(.venv/uv/bin/pip config get global.cert 2>/dev/null || echo "$$SSL_CERT_FILE")}"; \
	set -e -- --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
		--custom-compile-command "make lock" --quiet; \
	.venv/uv/bin/uv pip compile "$$@" --upgrade pyproject.toml --group dev --output-file constraints.txt; \
	.venv/uv/bin/uv pip compile "$$@" --extra otel pyproject.toml --constraints constraints.txt --output-file constraints-runtime.txt; \
	.venv/bin/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' | \
		.venv/uv/bin/uv pip compile "$$@" - --constraints constraints.txt --output-file constraints-build.txt; \
	.venv/uv/bin/uv pip compile "$$@" --extra pipeline pyproject.toml --constraints constraints.txt --output-file constraints-pipeline.txt; \
	.venv/uv/bin/uv pip compile "$$@" --upgrade --group celery --output-file constraints-celery.txt; \
	.venv/uv/bin/uv pip compile "$$@" --upgrade --group fuzz --output-file constraints-fuzz.txt
	rm -r .venv/uv

clean: ## Remove what the other targets made here
	rm -rf .venv build .mypy_cache .pytest_cache .ruff_cache .hypothesis *.egg-info
