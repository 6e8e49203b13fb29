# make help lists the targets. PYTHON picks the interpreter: make test PYTHON=python3.12

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Modules are compiled when they are imported: most never are.
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet --no-compile
# What makes each of the example reports in reports/, REPORT_<name of the file>.
REPORT_loop := report sample_traces/one_gpu/loop/rank0.json.gz
REPORT_grouped := report sample_traces/one_gpu/grouped/rank0.json.gz
REPORT_diff_loop_grouped := diff sample_traces/one_gpu/loop sample_traces/one_gpu/grouped
REPORT_ep4_baseline := report sample_traces/ladder/ep4/00_baseline
REPORT_ladder_ep4 := workload ladder --from sample_traces/ladder/ep4
REPORT_ladder_large_ep4 := workload ladder --from sample_traces/ladder_large/ep4
REPORT_whatif_ep4 := project whatif sample_traces/ladder/ep4/00_baseline
REPORT_published := project published
REPORT_memory_1t := project memory --model moe_1t --gpus 768 --framework amd-guide --device mi300x --device mi355x \
	--layout 'pp=24 ep=8 vpp=4' --layout 'pp=24 ep=8 vpp=4 cp=2' --layout 'pp=24 ep=16 vpp=4' \
	--layout 'pp=24 ep=16 vpp=4 cp=2' --layout 'pp=48 ep=8 vpp=2' --layout 'pp=48 ep=8 vpp=2 cp=2'
# Of traces of MI300X that AMD's TraceLens publishes with its tests, in a folder named by TRACELENS_CORPUS.
PUBLIC_mi300x_resnet := report mi300x/resnet_act_checkpoint.json.gz
PUBLIC_mi300x_timesformer := report mi300x/facebook_timesformer-base-finetuned-k400__1016002.json.gz
PUBLIC_mi300x_bert := report mi300x/gaunernst_bert-small-uncased__1016001.json.gz
# The report of four ranks is long in JSON.
REPORTS := loop.md loop.json grouped.md grouped.json diff_loop_grouped.md diff_loop_grouped.json \
	ep4_baseline.md ladder_ep4.md ladder_ep4.json ladder_large_ep4.md whatif_ep4.md memory_1t.md published.md
PUBLIC_REPORTS := $(if $(TRACELENS_CORPUS),mi300x_resnet.md mi300x_timesformer.md mi300x_bert.md)
BENCH ?= check --json bench_figures.json
WORKERS := 2
# A browser that does not answer in time is asked once more; no test whose assertion fails is.
RERUNS = --reruns 1 --only-rerun TimeoutException --only-rerun WebDriverException
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(RERUNS)
# What the package is built with, and what is compiled then.
BUILT := pyproject.toml hatch_build.py $(wildcard tracelens/native/*.cpp tracelens/native/*.h) \
	tracelens/rendering/templates.py $(wildcard tracelens/rendering/assets/*.j2) \
	tracelens/rendering/plotly_js.py tracelens/bundled.py $(wildcard tracelens/*/*.toml tracelens/*/*/*.toml tracelens/*/*/*/*.toml)

# Containers often say that Python shall write no bytecode. Each of some hundred processes that tests start
# would then compile the package again, and pytest all tests.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-slow test-workload test-rest lint docs pictures reports notebooks bench lock clean

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | while IFS="$$(printf '\t')" read -r name text; do \
		printf '  make %-14s %s\n' "$$name" "$$text"; done

demo: $(VENV)/.core ## make a report of four GPUs that train together: demo_report.html
	$(BIN)/tracelens report sample_traces/ladder/ep4/00_baseline -o demo_report.html
	@echo "The report is $(CURDIR)/demo_report.html - open it in a browser."

# mypy has use for one core only, and takes most of a minute: tests run beside it. What it says stands at the end.
test: RERUNS := -p no:rerunfailures  # none of these opens a browser, and the plugin keeps a book on each test
test: $(VENV)/.dev ## run the linters, the type checker and the tests that take seconds
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	@mkdir -p build
	@echo "$(BIN)/mypy, beside the tests"; $(BIN)/mypy >build/mypy.txt 2>&1 & types=$$!; \
		$(PYTEST) -m "not slow"; tests=$$?; \
		wait $$types; types=$$?; cat build/mypy.txt; exit $$((tests ? tests : types))

test-slow: $(VENV)/.dev ## run the slow tests: real traces, attacks, mutants, growth, wheels, notebooks
	$(PYTEST) -m slow

# Who else computes makes ranks late, so that faults are injected alone; those tests are rare.
ALONE := tests/workload/test_faults.py
# Files with tests that need torch, or test more with it.
TORCH_FILES = $(sort $(shell grep -rlE --include='test_*.py' 'importorskip."torch|mark.(torch|more_with_torch)' tests))
test-workload: $(VENV)/.torch ## run the tests that need torch: of the workload, of recording, of calibrate and of replayed scripts
	$(PYTEST) -m "torch or more_with_torch" $(filter-out $(ALONE),$(TORCH_FILES))
	$(BIN)/python -m pytest $(ALONE)

# Many of these wait for processes that they start: a third worker fills the gaps.
test-rest: WORKERS := 3
test-rest: $(VENV)/.torch ## run test-slow and test-workload in one go, without what takes long and breaks rarely
	$(PYTEST) -m "(slow or torch or more_with_torch) and not rare"

lint: $(VENV)/.dev ## run ruff and mypy
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

docs: $(VENV)/.dev ## build the documentation: build/site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

pictures: $(VENV)/.dev ## remake the pictures of the README: docs/images (needs Chromium)
	$(BIN)/python docs/generate/pictures.py

reports: $(VENV)/.core ## remake reports/ from sample_traces/, and from public traces where there is TRACELENS_CORPUS
	@mkdir -p reports
	@$(foreach file,$(REPORTS),$(BIN)/tracelens $(REPORT_$(basename $(file))) -o reports/$(file) &&) true
	@$(foreach file,$(PUBLIC_REPORTS),(cd $(TRACELENS_CORPUS) && \
		$(abspath $(BIN))/tracelens $(PUBLIC_$(basename $(file))) -o $(CURDIR)/reports/$(file)) &&) true

notebooks: $(VENV)/.dev ## run notebooks/ and store their outputs (one: make notebooks NAME=roofline)
	$(BIN)/python notebooks/remake.py $(NAME)

bench: $(VENV)/.dev ## hold CPU time, memory and imports against budgets (in a minute: make bench BENCH="check --quick")
	$(BIN)/python -m benchmarks.bench $(BENCH)

LOCK := uv pip compile --quiet --universal --python-version 3.11.5 --generate-hashes --no-header --no-annotate \
	-c constraints.txt pyproject.toml -
lock: ## write requirements*.txt, the pins of constraints.txt with hashes (needs uv)
	@command -v uv >/dev/null || { echo "make lock needs uv: https://docs.astral.sh/uv" >&2; exit 1; }
	printf 'hatchling\neditables\n' | $(LOCK) -o requirements.txt
	printf 'hatchling\neditables\n' | $(LOCK) --extra dev -o requirements-dev.txt

clean: ## remove the virtual environment and everything that can be remade
	rm -rf $(VENV) build dist demo_report.html .pytest_cache .mypy_cache .ruff_cache .hypothesis \
		tracelens/native/*.so tracelens/compiled tracelens/rendering/compiled tracelens/rendering/assets/compiled
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps: the environment is made again only when its inputs change. requirements*.txt list all of it.
$(VENV)/.python:
	@command -v $(PYTHON) >/dev/null || { echo "tracelens needs Python 3.11 or newer; $(PYTHON) is not installed" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "tracelens needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V 2>&1): name another, make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "$(PYTHON) has no venv module: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(VENV)/.core: $(VENV)/.python $(BUILT) requirements.txt
	$(PIP) --no-deps --require-hashes -r requirements.txt
	$(PIP) --no-deps --no-build-isolation -e .
	@$(BIN)/tracelens --version
	@touch $@

$(VENV)/.dev: $(VENV)/.core requirements-dev.txt
	$(PIP) --no-deps --require-hashes -r requirements-dev.txt
	@touch $@

$(VENV)/.torch: $(VENV)/.dev constraints.txt
	$(PIP) torch -c constraints.txt
	@touch $@
