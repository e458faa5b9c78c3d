# Every target sets up what it needs on a machine that has only python3 (with venv), make and a C compiler.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: demo test check format lint types contracts proto docs lock packaged deb bench proof-spine proof-watch proof-conclude proof-lifecycle proof-identity proof-install clean

$(STAMP): requirements.lock pyproject.toml
	@echo "setting up $(VENV) (once; about a minute)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install -q --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: $(STAMP)       ## the main job: hosts report, fail, are booked, cleared, moved and repaired; the receiver tells
	@$(BIN)/python -m tests.demo

test: $(STAMP)       ## every test but the long proofs
	@$(BIN)/pytest -n 2

check: format lint types contracts test

format: $(STAMP)
	@$(BIN)/ruff format --check .

lint: $(STAMP)
	@$(BIN)/ruff check .

types: $(STAMP)
	@$(BIN)/mypy agent receiver proto/bettercompute/contract docs packaging/build.py packaging/files.py tests

contracts: $(STAMP)
	@$(BIN)/lint-imports

proto: $(STAMP)      ## regenerate the committed stubs
	@PATH=$(abspath $(BIN)):$$PATH $(BIN)/python proto/generate.py

docs: $(STAMP)       ## rewrite the tables in docs/ from the tables in the code
	@$(BIN)/python docs/generate.py

packaged: $(STAMP)   ## rewrite packaging/config from the settings in the code
	@$(BIN)/python packaging/files.py --config packaging/config

deb: $(STAMP)        ## packages of bcd and bc-receiver in dist/, for a distribution's Python: make deb PYTHON=python3.12
	@$(BIN)/python packaging/build.py --python $(PYTHON)

lock:                ## rewrite requirements.lock, and of it the locks of the packages (needs uv)
	uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --no-emit-index-url \
	  --extra receiver --extra dev --extra build pyproject.toml -o requirements.lock
	for package in bcd "bc-receiver --extra receiver"; do set -- $$package; name=$$1; shift; \
	  uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --no-emit-index-url \
	  -c requirements.lock "$$@" pyproject.toml -o packaging/locks/$$name.txt; done

bench: $(STAMP)      ## one table: what, figure, floor, ratio, aim, met or missed
	@$(BIN)/python -m tests.bench

proof-spine: $(STAMP)  ## the tests of the spine with all their repetitions: `make test` has a tenth of them
	@BC_PROOF=1 $(BIN)/pytest -n 2 --timeout=3000 tests/agent/test_hosts.py tests/agent/test_collection.py \
	  tests/end_to_end/test_spine.py tests/end_to_end/test_receivers.py tests/receiver/gateway/test_hostile.py

proof-watch: $(STAMP)  ## the same for the watch: storms, kills, latency; it floods this machine's kernel log
	@BC_PROOF=1 $(BIN)/pytest --timeout=3000 tests/agent/kmsg tests/agent/test_watch.py tests/agent/test_hotplug.py \
	  tests/agent/test_signs.py tests/agent/doctor tests/end_to_end/test_watch.py tests/end_to_end/test_commands.py

proof-conclude: $(STAMP)  ## the same for what the receiver concludes: a fleet of 100,000 nodes, races
	@BC_PROOF=1 $(BIN)/pytest --timeout=3000 tests/receiver/read/test_scale.py tests/receiver/test_races.py

proof-lifecycle: $(STAMP)  ## the same for the loops: a fleet of 1,000 nodes that fails, and 50 kills of its receivers
	@BC_PROOF=1 $(BIN)/pytest --timeout=3000 tests/simulation tests/receiver/test_handing_over.py tests/receiver/apply/test_hygiene_at_scale.py \
	  tests/receiver/apply/test_acceptance_histories.py tests/receiver/apply/test_repairs_histories.py

proof-install: $(STAMP)  ## the packages on fresh Debian machines (debootstrap, systemd-nspawn; as root), figures at the end
	@mkdir -p build/install && rm -f build/install/figures
	@BC_PROOF=1 BC_FIGURES=build/install/figures $(BIN)/pytest --timeout=3000 tests/packaging
	@cat build/install/figures

proof-identity: $(STAMP)  ## the same for identity: attacks, 60 s of fuzz, copies of a node, 1,000 reconnects, 200 kills, a receiver that goes
	@BC_PROOF=1 $(BIN)/pytest --timeout=3000 tests/attacks tests/end_to_end/test_identity.py

clean:
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
