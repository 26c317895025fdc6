# hugewise: everything that a bare Debian 12 needs but make and git. `make run` measures, `make test` proves.
PYTHON ?= python3
# What `make results` is asked for, as it was written: neither make nor a shell looks for anything in it.
ASKED := STUDY ONLY ARMS SCALE TIME BLOCKS PILOT
$(foreach name,$(ASKED),$(if $(filter-out undefined,$(origin $(name))),$(eval override export $(name) := $$(value $(name)))))
PROBE_SOURCES := $(shell find probe/src probe/ground probe/exec probe/layout probe/trace -name '*.rs' -o -name '*.txt' -o -name Cargo.toml) probe/Cargo.toml probe/Cargo.lock
CARGO := cargo --quiet
MANIFEST := --manifest-path probe/Cargo.toml
LOCKED := --locked $(MANIFEST)
UV = $(or $(shell command -v uv),.tools/bin/uv)
COMPILE = $(UV) pip compile --quiet --universal --generate-hashes --python-version 3.11 --no-header --no-annotate

.PHONY: run setup test soak results fuzz check bench torture verify-statistics docs go-tpc guest-probes wheel lock clean

run: .venv/ready
	.venv/bin/hugewise run studies/demo.toml

setup: .venv/ready

# Each test that starts the program would compile it anew where bytecode may not be written.
test soak: export PYTHONDONTWRITEBYTECODE =
PYTEST := .venv/bin/pytest -q -n 2 --dist loadgroup --durations=20

# What must hold before a change lands.
test: .venv/ready
	@echo "1 of 2: tests/ (pytest), without what make soak does: about 7 min on 2 cores. Page settings are turned, and put back."
	$(PYTEST) -m 'not soak'
	@echo "2 of 2: the probe (cargo test), about 2 min on 2 cores, most of it to build them"
	$(CARGO) test $(LOCKED) --workspace

# The rest: what takes long, or a second component of a kind that `make test` has one of. PART is a folder of tests/ or a file.
soak: .venv/ready
	$(PYTEST) -m soak $(or $(PART),tests)

# Measure STUDY (a name in studies/), or the part of it that ONLY (labels) and ARMS (policies) name, for TIME or BLOCKS, and
# add the run to its page in docs/results, where all its runs are judged together; after PILOT blocks to plan from.
results: PART = $${SCALE:+--scale "$$SCALE"} $${ONLY:+--only "$$ONLY"} $${ARMS:+--arms "$$ARMS"}
results: .venv/ready
	@[ -n "$$STUDY" ] || { echo "make results: name a study, such as STUDY=redhat-2021" >&2; exit 2; }
	[ -z "$$PILOT" ] || .venv/bin/hugewise plan "studies/$$STUDY.toml" $(PART) --pilot "$$PILOT"
	.venv/bin/python -m tools.results measure "docs/results/$$STUDY$${SCALE:+-$$SCALE}.parquet" "studies/$$STUDY.toml" \
	  $(PART) $${BLOCKS:+--blocks "$$BLOCKS"} $${TIME:+--time "$$TIME"}

# 10,000 broken inputs for each reader of what others write: about an hour. `make test` has some tens.
fuzz: .venv/ready
	HUGEWISE_FUZZ=10000 HUGEWISE_EXPLORE=1 .venv/bin/pytest -q --timeout 0 tests/fuzz tests/test_visible.py

check: .venv/ready
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy
	.venv/bin/lint-imports --no-cache --no-logo
	$(CARGO) fmt --all $(MANIFEST) --check
	$(CARGO) clippy $(LOCKED) --workspace --all-targets -- -D warnings

bench: .venv/ready
	.venv/bin/python -m bench

# Kills and starves runs for up to 70 minutes, and counts what they left; called again, it goes on with what is left.
torture: .venv/ready
	.venv/bin/python -m tools.torture

# Simulates the promises that verdicts rest on: less than 15 minutes of CPU, hours with LONG=1.
verify-statistics: .venv/ready
	.venv/bin/python -m tools.verification $(if $(LONG),--long)

docs: .venv/ready
	.venv/bin/python -m tools.reference

.venv/ready: tools/setup.sh tools/guest-probe.sh tools/launcher.sh pyproject.toml requirements.lock $(PROBE_SOURCES)
	PYTHON=$(PYTHON) tools/setup.sh
	@touch $@

# The TPC-C client of the workload tpcc; it needs go, and nothing else does.
go-tpc: .venv/ready
	tools/go-tpc.sh

# The probe for QEMU guests, static: .venv/share/hugewise/probe-x86-64 and, where Rust has the target, probe-arm64.
guest-probes: .venv/share/hugewise/ready

.venv/share/hugewise/ready: tools/guest-probe.sh $(PROBE_SOURCES)
	tools/guest-probe.sh
	@[ ! -e .venv/share/hugewise/probe-arm64 ] || touch $@

# The wheel for x86-64, with the static probe, the launcher and the layout library inside, and the source distribution.
wheel: .venv/ready
	rm -rf dist
	PATH="$$PWD/.venv/bin:$$PATH" .venv/bin/python tools/wheel.py dist
	.venv/bin/auditwheel show dist/*.whl

# The newest packages that pyproject.toml allows, with the hashes of their files for all platforms.
lock: .venv/ready
	$(COMPILE) --upgrade --extra vm --extra fleet --group build --group test --group check -o requirements.lock pyproject.toml
	echo uv | $(COMPILE) --upgrade -o tools/uv.txt -

clean:
	rm -rf .venv .tools .bench dist probe/target
