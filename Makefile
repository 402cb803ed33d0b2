# Needs Python >= 3.11 and a C++17 compiler; all else comes from PyPI into a virtual environment.
#
#   PYTHON=python3.13 VENV=.venv-newest    another Python, in an environment of its own
#   TESTS=tests/host/test_plan.py          instead of all Python tests and notebooks
#   TEST_ARGS="-k planner -x"              handed to pytest
#   CXX=clang++                            another compiler
#   WHEEL=build/wheel/fastjax-....whl      installed instead of what is here

PYTHON ?= python3
VENV ?= .venv
TEST_ARGS ?=

ifeq ($(origin CXX),default)
  CXX := c++
endif
export CXX
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# The folder that commands run in, this one, is kept out of sys.path: fastjax/ here has no compiled module.
export PYTHONSAFEPATH := 1

ROOT := $(abspath .)
BIN := $(abspath $(VENV))/bin
# Python compiles what is imported, when it is: that is a small part of it. It has to keep that, whatever was exported: the
# tests start two hundred processes, and JAX would take each of them a second and a half more.
export PYTHONDONTWRITEBYTECODE :=
PIP := $(BIN)/python -m pip install --quiet --no-compile
STAMPS := $(VENV)/.stamps
JOBS := $(shell nproc 2>/dev/null || echo 2)
# Each takes a gigabyte or two; one more than there are processors, since some wait. Files stay whole: some start a job
# of several processes that all their tests share. They keep their order, in which long ones come early, rather than
# that of how many tests they have, which puts notebooks last.
WORKERS := $(shell [ $(JOBS) -lt 7 ] && echo $$(($(JOBS) + 1)) || echo 8)

# The headers of the oldest jaxlib we support, whichever jaxlib runs; see pyproject.toml.
FLOOR := $(shell sed -n 's/.*"jaxlib==\([0-9.]*\)".*/\1/p' pyproject.toml)
XLA_INCLUDE := $(ROOT)/build/jaxlib-$(FLOOR)/include
XLA_STAMP := $(XLA_INCLUDE)/xla/ffi/api/c_api.h

# Folders are listed too: theirs is the time that changes when a file is removed.
SOURCES := $(shell find cmake fastjax ffi -not -name '*.pyc' -not -name __pycache__ 2>/dev/null) \
           CMakeLists.txt LICENSE pyproject.toml $(wildcard README.md)
CPP_FILES := $(shell find ffi tests/cpp benchmarks/cpp -name '*.cc' -o -name '*.h' 2>/dev/null)
CMAKE_FILES := $(shell find CMakeLists.txt cmake ffi tests/cpp benchmarks/cpp -name CMakeLists.txt -o -name '*.cmake' 2>/dev/null)
NOTEBOOKS := $(wildcard notebooks/*.ipynb)
TESTS ?= $(NOTEBOOKS) tests
PYTHON_FOLDERS := $(wildcard cmake docs/site examples fastjax tests benchmarks notebooks)

# Isolated builds are right but start from nothing each time, since their environment is a new folder each time. Ours
# has the build tools in the virtual environment and the headers in build/, so that only what changed is compiled.
INSTALL := $(PIP) --no-build-isolation \
           -C cmake.define.FASTJAX_XLA_INCLUDE_DIR=$(XLA_INCLUDE) -C cmake.define.FASTJAX_WERROR=ON

.NOTPARALLEL:
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

.PHONY: help
help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24

# ---- set-up

$(STAMPS)/venv:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fastjax needs Python 3.11 or newer, not " + sys.version)'
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip
	@mkdir -p $(@D) && touch $@

$(STAMPS)/%-tools: pyproject.toml | $(STAMPS)/venv
	$(PIP) --group $*
	@touch $@

$(XLA_STAMP): | $(STAMPS)/venv
	rm -rf build/floor.tmp
	$(PIP) --no-deps --target build/floor.tmp jaxlib==$(FLOOR)
	rm -rf $(XLA_INCLUDE) && mkdir -p $(dir $(XLA_INCLUDE)) && mv build/floor.tmp/jaxlib/include $(XLA_INCLUDE)
	rm -rf build/floor.tmp && touch $@

$(STAMPS)/installed: $(SOURCES) $(XLA_STAMP) $(STAMPS)/build-tools
ifdef WHEEL
	$(PIP) --force-reinstall --no-deps $(WHEEL)
	$(PIP) 'fastjax[plot] @ file://$(abspath $(WHEEL))'
else
	$(INSTALL) '.[plot]'
endif
	@touch $@

.PHONY: build
build: $(STAMPS)/installed ## Compile what changed and install into $(VENV); a few seconds

.PHONY: stub
stub: $(STAMPS)/installed ## Bring fastjax/_core.pyi up to date; with Python 3.11 or 3.12
	cd build && $(BIN)/python -m nanobind.stubgen -q -m fastjax._core -o ../fastjax/_core.pyi

# Where CMake finds ninja, and the UCX headers by asking Python.
CMAKE_TOOLS := -DCMAKE_MAKE_PROGRAM=$(BIN)/ninja -DPython_EXECUTABLE=$(BIN)/python

# ---- use

.PHONY: demo
demo: $(STAMPS)/installed ## Install the package and run its benchmark on this machine's CPU
	$(BIN)/python -m fastjax bench

.PHONY: bench
bench: $(STAMPS)/installed ## Take times: of the op (results in build/bench.json), then of the C++ planner
	$(BIN)/python -m fastjax bench --json build/bench.json
	$(BIN)/cmake --preset release $(CMAKE_TOOLS) > /dev/null
	$(BIN)/cmake --build --preset release
	@set -e; for program in $$(find build/release/benchmarks/cpp -maxdepth 1 -type f -perm -u+x); do echo "$$program"; "$$program"; done

# ---- checks

.PHONY: test
test: ctest pytest ## The tests: C++, Python but those marked nightly, and the notebooks

# Many of them wait most of their time.
CTEST_JOBS := $(shell echo $$((2 * $(JOBS))))

.PHONY: ctest
ctest: $(STAMPS)/build-tools ## The C++ tests only
	$(BIN)/cmake --preset dev $(CMAKE_TOOLS) > /dev/null
	$(BIN)/cmake --build --preset dev
	$(BIN)/ctest --preset dev -j $(CTEST_JOBS)

.PHONY: ctest-variants
ctest-variants: $(STAMPS)/build-tools ## The C++ test that the sanitizers leave out: of planners compiled in other ways
	$(BIN)/cmake --preset dev $(CMAKE_TOOLS) > /dev/null
	$(BIN)/cmake --build --preset dev --target planner_variants
	$(BIN)/ctest --preset dev -R '^same_plans$$'

.PHONY: pytest
pytest: $(STAMPS)/installed $(STAMPS)/test-tools ## The Python tests and notebooks only
	$(BIN)/pytest --nbmake -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(CHOICE) $(TESTS) $(TEST_ARGS)

# Tests that say nothing of JAX's version, and tests whose operations others have too. Of the others only the first
# parameters are run, since most are options of ours.
OLDEST_JAX_ONLY := $(patsubst %,tests/%, \
  $(addsuffix /%,benchmarks chunking cli faults gpu optimal plot simulation support traffic) \
  examples/test_train_example.py test_measurement.py \
  $(addprefix host/test_,auto.py bound.py make_plan_errors.py nics.py plan.py plan_copies.py prices.py stage_tables.py) \
  $(addprefix moe/test_moe_,errors.py packing.py processes.py rails.py room.py) \
  $(addprefix repository/test_,dist.py gpu_build.py gpu_code.py layers.py release.py several_hosts.py)) \
  $(addprefix notebooks/0,2_benchmark.ipynb 4_skew_and_schedules.ipynb 5_your_cluster.ipynb 6_how_it_works.ipynb)

.PHONY: pytest-jax
pytest-jax: ## The Python tests and notebooks for which JAX's version can matter, with their first parameters
	$(MAKE) pytest CHOICE=--first-parameters \
	  TESTS="$(filter-out $(OLDEST_JAX_ONLY),$(NOTEBOOKS) $(sort $(shell find tests -name 'test_*.py')))"

.PHONY: lint
lint: $(STAMPS)/installed $(STAMPS)/lint-tools $(STAMPS)/test-tools ## Formatting, types and static checks; changes nothing
	$(BIN)/ruff check $(PYTHON_FOLDERS)
	$(BIN)/ruff format --check $(PYTHON_FOLDERS)
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/codespell
	$(BIN)/actionlint
	$(BIN)/gersemi --check $(CMAKE_FILES)
	$(BIN)/clang-format --dry-run -Werror $(CPP_FILES)
	$(BIN)/cmake --preset lint $(CMAKE_TOOLS) \
	  -DFASTJAX_XLA_INCLUDE_DIR=$(XLA_INCLUDE) > /dev/null
	printf '%s\n' $(filter ffi/%.cc,$(CPP_FILES)) | xargs -n 1 -P $(JOBS) $(BIN)/clang-tidy --quiet -p build/lint

.PHONY: format
format: $(STAMPS)/lint-tools ## Format everything and apply ruff's safe fixes
	$(BIN)/ruff check --fix-only $(PYTHON_FOLDERS)
	$(BIN)/ruff format $(PYTHON_FOLDERS)
	$(BIN)/gersemi --in-place $(CMAKE_FILES)
	$(BIN)/clang-format -i $(CPP_FILES)

# ---- documentation: from the sources, so that nothing need be compiled

.PHONY: docs
docs: $(STAMPS)/docs-tools $(STAMPS)/test-tools ## Build the documentation as a site, in build/site, and check it
	env NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict -f docs/site/mkdocs.yml
	FASTJAX_SITE=build/site $(BIN)/pytest --noconftest tests/repository/test_site.py $(TEST_ARGS)

.PHONY: notebooks
notebooks: $(STAMPS)/installed $(STAMPS)/test-tools ## Execute the notebooks and store their outputs; NOTEBOOK=notebooks/NAME.py: of one
	$(BIN)/python docs/site/notebooks.py $(NOTEBOOK)

.PHONY: pictures
pictures: $(STAMPS)/installed ## Draw the pictures of the documentation, docs/pictures
	$(BIN)/python docs/site/pictures.py > /dev/null

# ---- coverage: what of the sources the tests run

# Branches that only an exception takes are left out. Threads count without atomics, which would take four times as long:
# a few counts come out negative, and are taken for none.
GCOVR := $(BIN)/gcovr --root . --filter ffi/ --merge-lines --exclude-throw-branches --exclude-unreachable-branches \
         --gcov-ignore-parse-errors negative_hits.warn_once_per_file

.PHONY: coverage
coverage: $(STAMPS)/build-tools $(STAMPS)/coverage-tools ## Lines and branches of ffi/ that the C++ tests run, by folder; with gcc
	$(BIN)/cmake --preset coverage $(CMAKE_TOOLS) > /dev/null
	$(BIN)/cmake --build --preset coverage
	find build/coverage -name '*.gcda' -delete # counts of earlier runs
	$(BIN)/ctest --preset coverage -j $(CTEST_JOBS)
	$(GCOVR) -j $(JOBS) --json-summary build/coverage/summary.json --txt build/coverage/missing.txt build/coverage
	$(BIN)/python cmake/coverage_table.py build/coverage/summary.json
	@echo "Lines that no test runs: build/coverage/missing.txt"

.PHONY: coverage-python
coverage-python: $(STAMPS)/installed $(STAMPS)/test-tools $(STAMPS)/coverage-tools ## Lines of fastjax/ that the Python tests run in their own processes
	$(MAKE) pytest CHOICE="--cov --cov-report=term"

# ---- sanitizers: the C++ tests, then the Python tests marked `sanitize` with the extension built the same way

# Python itself is not instrumented, so the run-time libraries (by gcc's names for them) have to be loaded before it. The
# C++ library must be loaded with them for exceptions to be intercepted.
runtime = $(shell $(CXX) -print-file-name=$(1))
PRELOAD_asan = $(call runtime,libasan.so):$(call runtime,libubsan.so):$(call runtime,libstdc++.so.6)
PRELOAD_tsan = $(call runtime,libtsan.so):$(call runtime,libstdc++.so.6)
SANITIZE_ENV_asan := ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1
# Thread-local memory of libraries loaded late is left alone (intercept_tls_get_addr): gcc 12 guesses its size from what lies
# before it, and ends the process when that is garbage. The presets' tests set the same.
SANITIZE_ENV_tsan := TSAN_OPTIONS=suppressions=$(ROOT)/tests/cpp/tsan.supp:ignore_noninstrumented_modules=1:halt_on_error=1:intercept_tls_get_addr=0
# The thread sanitizer cannot start where addresses are randomised more widely than it was made for.
FIXED_ADDRESSES := $(shell setarch -R true 2>/dev/null && echo setarch -R)

.PHONY: sanitize
sanitize: sanitize-cpp-asan sanitize-cpp-tsan sanitize-python-asan sanitize-python-tsan ## All tests that the sanitizers can run

# The tests and the extension share one build of all that is below them: compiling it takes longer than the tests.
.PHONY: sanitize-configure-asan sanitize-configure-tsan
sanitize-configure-asan sanitize-configure-tsan: sanitize-configure-%: $(STAMPS)/build-tools $(XLA_STAMP)
	$(BIN)/cmake --preset $* $(CMAKE_TOOLS) \
	  -DFASTJAX_BUILD_PYTHON=ON -DFASTJAX_XLA_INCLUDE_DIR=$(XLA_INCLUDE) > /dev/null

# Without the extension.
SANITIZED_asan := tests/cpp/all benchmarks/cpp/all
SANITIZED_tsan := tests/cpp/all

.PHONY: sanitize-cpp-asan sanitize-cpp-tsan
sanitize-cpp-asan sanitize-cpp-tsan: sanitize-cpp-%: sanitize-configure-%
	$(BIN)/cmake --build --preset $* --target $(SANITIZED_$*)
	$(FIXED_ADDRESSES) $(BIN)/ctest --preset $* -j $(CTEST_JOBS)

.PHONY: sanitize-python-asan sanitize-python-tsan
sanitize-python-asan sanitize-python-tsan: sanitize-python-%: $(STAMPS)/installed $(STAMPS)/test-tools sanitize-configure-%
	@for library in $(subst :, ,$(PRELOAD_$*)); do test -e "$$library" || \
	  { echo "$(CXX) has no $$library: the sanitizers need a gcc with their run-time libraries" >&2; exit 1; }; done
	$(BIN)/cmake --build --preset $* --target _core
	rm -rf build/python-$*
	$(BIN)/cmake --install build/$* --prefix build/python-$* > /dev/null
	cp -R fastjax build/python-$*
	env LD_PRELOAD=$(PRELOAD_$*) PYTHONPATH=$(ROOT)/build/python-$* $(SANITIZE_ENV_$*) \
	  $(FIXED_ADDRESSES) $(BIN)/python -m pytest --capture=sys -p no:cacheprovider -n $(WORKERS) --dist loadfile -m sanitize tests $(TEST_ARGS)

# ---- GPUs: their libraries are compiled everywhere, by compilers from PyPI where the machine has none

GPU_COMPILERS := $(ROOT)/build/gpu-compilers
HIP_SDK := $(GPU_COMPILERS)/hip
CUDA_WHEELS := $(GPU_COMPILERS)/cuda
CUDA_TOOLS := $(GPU_COMPILERS)/cuda-tools
ROCM := $(wildcard $(or $(ROCM_PATH),/opt/rocm))
NVCC := $(shell command -v "$${CUDACXX:-nvcc}")
GPU_FLAGS := $(if $(NVCC),,-DFASTJAX_CUDA=WHEELS) \
             $(if $(ROCM),,-DFASTJAX_HIP_COMPILER=$(HIP_SDK)/bin/clang++ -DFASTJAX_ROCM_PATH=$(HIP_SDK))

# Half a gigabyte of wheels, of which little is kept.
$(HIP_SDK)/complete: pyproject.toml cmake/hip_sdk.py cmake/offload_bundler.py | $(STAMPS)/venv
	rm -rf $(HIP_SDK) $(GPU_COMPILERS)/wheels
	$(BIN)/python -m pip download --quiet --no-deps --only-binary :all: --group hip-compiler --dest $(GPU_COMPILERS)/wheels
	$(BIN)/python cmake/hip_sdk.py $(GPU_COMPILERS)/wheels $(HIP_SDK)
	rm -rf $(GPU_COMPILERS)/wheels && touch $@

$(CUDA_WHEELS)/complete: pyproject.toml | $(STAMPS)/venv
	rm -rf $(CUDA_WHEELS)
	$(PIP) --no-deps --target $(CUDA_WHEELS) --group cuda-compiler
	@touch $@

# By the same tools everywhere: the record is to be the same.
$(CUDA_TOOLS)/complete: pyproject.toml | $(STAMPS)/venv
	rm -rf $(CUDA_TOOLS)
	$(PIP) --no-deps --target $(CUDA_TOOLS) --group cuda-tools
	@touch $@

.PHONY: gpu-compile
gpu-compile: $(STAMPS)/build-tools $(STAMPS)/test-tools $(if $(NVCC),,$(CUDA_WHEELS)/complete) $(if $(ROCM),,$(HIP_SDK)/complete) $(CUDA_TOOLS)/complete ## Compile the GPU libraries for CUDA and ROCm, check them, and record their machine code; needs no GPU
	PYTHONPATH=$(CUDA_WHEELS) $(BIN)/cmake --preset gpu -Wno-unused-cli $(CMAKE_TOOLS) $(GPU_FLAGS) > /dev/null
	$(BIN)/cmake --build --preset gpu
	PATH=$(CUDA_TOOLS)/nvidia/cu13/bin:$$PATH PYTHONPATH=tests/repository:benchmarks $(BIN)/python tests/repository/gpu_code.py --json benchmarks/results/gpu_compile.json \
	  build/gpu/gpu/libfastjax_cuda.so build/gpu/gpu/libfastjax_rocm.so
	FASTJAX_GPU_LIBRARIES=build/gpu/gpu $(BIN)/pytest --noconftest tests/repository/test_gpu_build.py tests/repository/test_gpu_code.py $(TEST_ARGS)

# JAX's plugin for CUDA compiles for GPUs that are not there. Its version is in pyproject.toml; it needs Python 3.12.
PLUGIN_VENV := .venv-cuda-plugin

.PHONY: cuda-plugin
cuda-plugin: ## Compile exchanges and layers for H100s by JAX's plugin (330 MB), and test with its JAX; needs no GPU
	FASTJAX_CUDA=$(if $(NVCC),ON,WHEELS) $(MAKE) VENV=$(PLUGIN_VENV) PYTHON=$(or $(shell .ci/find_python 3.12 3.13),python3.12) \
	  $(addprefix $(PLUGIN_VENV)/.stamps/,$(if $(NVCC),,cuda-compiler-tools) installed test-tools cuda-plugin-tools)
	JAX_PLATFORMS=cpu JAX_SKIP_CUDA_CONSTRAINTS_CHECK=1 $(PLUGIN_VENV)/bin/pytest -n $(WORKERS) tests/gpu/test_compiled_for_gpus.py $(TEST_ARGS)
	JAX_PLATFORMS=cpu $(MAKE) pytest-jax VENV=$(PLUGIN_VENV)

# ---- a GPU: all that needs one, with the Python and the packages that the machine has

RESULTS ?=
GPU_ARGS ?=

.PHONY: gpu
gpu: ## Build for this machine's GPU, test, check and measure: nine minutes, no network
	$(PYTHON) benchmarks/gpu_check $(if $(RESULTS),--out "$(RESULTS)") $(GPU_ARGS)

# ---- frameworks, in environments of their own

.PHONY: integration
integration: ## Install frameworks apart, run docs/how_to/frameworks.md with each, and layers of others, as in FASTJAX_AXLEARN=source tree
	$(MAKE) $(addprefix .venv-integration/.stamps/,installed test-tools integration-tools) VENV=.venv-integration
	FASTJAX_INTEGRATION=1 .venv-integration/bin/pytest --noconftest tests/repository/test_frameworks.py tests/integration $(TEST_ARGS)

# ---- faults: processes of a job are killed, stopped, parted and lied to, at every phase of an exchange

.PHONY: faults
faults: $(STAMPS)/installed $(STAMPS)/test-tools ## Run the fault matrix and record it; a quarter of an hour, more with root
	env PYTHONPATH=$(ROOT)/benchmarks $(BIN)/python benchmarks/fault_matrix.py --json benchmarks/results/faults.json
	env PYTHONPATH=$(ROOT)/benchmarks $(BIN)/python benchmarks/to_markdown.py

# ---- several processes, for long

EXCHANGES ?= 10000
STEPS ?= 10000
STARTS ?= 100

.PHONY: endurance
endurance: $(STAMPS)/installed $(STAMPS)/test-tools ## Check EXCHANGES exchanges between processes, STEPS steps of layers, then start and end STARTS jobs
	env PYTHONPATH=$(ROOT)/benchmarks $(BIN)/python benchmarks/endurance.py --exchanges $(EXCHANGES) --steps $(STEPS) --jobs $(STARTS) --json build/endurance.json

# ---- random plans: the planner, for as long as you like

PLANS ?= 1000000
SEED ?= 1

.PHONY: million-plans
million-plans: $(STAMPS)/build-tools ## Make and check PLANS random plans of SEED under the address sanitizer
	$(BIN)/cmake --preset asan $(CMAKE_TOOLS) > /dev/null
	$(BIN)/cmake --build --preset asan --target random_plans
	build/asan/tests/cpp/planner/schedulers/random_plans $(PLANS) $(SEED) --threads $(JOBS)

# ---- releases: a source distribution, and wheels that need no compiler

# A wheel for Python 3.11 and one for all later versions; pyproject.toml's wheel.py-api says why. The second one finds the
# objects of the first that know no Python.
WHEEL_PYTHONS = $(shell .ci/find_python 3.11) $(shell .ci/find_python 3.12 3.13 3.14)
# The wheels run where glibc is this one or newer. zig's clang links with that, on any machine, and with its own libc++.
GLIBC := 2.28
ARCHITECTURE := $(shell uname -m)
ZIG = $(abspath $(wildcard $(VENV)/lib/python3.*/site-packages/ziglang/zig))
WHEEL_CXX = $(ZIG) c++ -target $(ARCHITECTURE)-linux-gnu.$(GLIBC)
# zig takes CMake's -O3 for -O2, and keeps frame pointers.
WHEEL_CXXFLAGS := -Xclang -O3 -fomit-frame-pointer
# The plugins' libraries are compiled by this machine's compiler, and need a newer one.
PLUGIN_GLIBC := 2.34
AUDITWHEEL = env PATH=$(BIN):$$PATH $(BIN)/python -m auditwheel repair --only-plat

.PHONY: dist
dist: $(STAMPS)/dist-tools $(STAMPS)/test-tools ## Build and check what is released, in dist/: wheels for any Linux, from the source distribution; ten minutes
	@test $(words $(WHEEL_PYTHONS)) = 2 || { echo "wheels need Python 3.11 and a later one; found: $(WHEEL_PYTHONS)" >&2; exit 1; }
	rm -rf dist build/dist
	$(BIN)/python -m build --sdist --outdir dist . > /dev/null
	mkdir -p build/dist/source && tar -xzf dist/fastjax-*.tar.gz -C build/dist/source --strip-components=1
	@set -e; for python in $(WHEEL_PYTHONS); do echo "a wheel by $$python"; \
	  env CXX="$(WHEEL_CXX)" CXXFLAGS="$(WHEEL_CXXFLAGS)" FASTJAX_CUDA=OFF FASTJAX_ROCM=OFF $(BIN)/python -m pip --python $$python wheel \
	  --quiet --no-deps -C build-dir=$(ROOT)/build/dist/objects --wheel-dir build/dist ./build/dist/source; done
	$(AUDITWHEEL) --plat manylinux_$(subst .,_,$(GLIBC))_$(ARCHITECTURE) --wheel-dir dist build/dist/*.whl
	$(BIN)/python -m abi3audit --strict dist/*-abi3-*.whl
	$(BIN)/python -m twine check --strict dist/fastjax-*
	FASTJAX_DIST=dist $(BIN)/python -m pytest --noconftest -k "not install" tests/repository/test_dist.py $(TEST_ARGS)

.PHONY: dist-test
dist-test: $(STAMPS)/test-tools ## Install the wheels of dist/ where there is no compiler, and run programs with them
	FASTJAX_DIST=dist $(BIN)/python -m pytest --noconftest --durations=0 tests/repository/test_dist.py $(TEST_ARGS)

# Packages that have a library for GPUs each, which fastjax finds when they are installed.
PLUGIN_LIBRARIES := cuda13:cuda rocm7:rocm

.PHONY: dist-plugins
dist-plugins: gpu-compile $(STAMPS)/dist-tools $(CUDA_WHEELS)/complete ## Build wheels that have a library for GPUs each, in dist/plugins/, and test them with those of make dist; fails where glibc is much newer than 2.34
	rm -rf build/plugins dist/plugins && cp -R packaging build/plugins
	cp $(CUDA_WHEELS)/nvidia_cuda_runtime-*.dist-info/licenses/License.txt build/plugins/cuda13/CUDA_LICENSE.txt
	@set -e; for pair in $(PLUGIN_LIBRARIES); do plugin=build/plugins/$${pair%:*}; \
	  cp LICENSE $$plugin; sed -n 's/^version = "\(.*\)"$$/\1/p' pyproject.toml > $$plugin/VERSION; \
	  cp build/gpu/gpu/libfastjax_$${pair#*:}.so $$plugin/fastjax_$${pair%:*}_plugin; \
	  $(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir build/plugins ./$$plugin; done
	$(AUDITWHEEL) --plat manylinux_$(subst .,_,$(PLUGIN_GLIBC))_$(ARCHITECTURE) --exclude 'libamdhip64.so.*' --wheel-dir dist/plugins build/plugins/*.whl
	$(BIN)/python -m twine check --strict dist/plugins/*
	@if ls dist/fastjax-*.whl > /dev/null 2>&1; then FASTJAX_DIST=dist $(BIN)/python -m pytest --noconftest -k plugins tests/repository/test_dist.py; \
	  else echo "make dist makes the wheels that plugins are tested with"; fi

.PHONY: exported
exported: $(STAMPS)/installed $(STAMPS)/test-tools ## Write exported programs of this version, which later ones must run: tests/traced/data/exported
	env PYTHONPATH=tests/support JAX_PLATFORMS=cpu $(BIN)/python tests/traced/exported_programs.py

.PHONY: release
release: ## Check, build and test VERSION (as in VERSION=1.2.3), and make its tag; pushes nothing
	.ci/release "$(VERSION)"

# ---- the rest

.PHONY: wheel
wheel: $(STAMPS)/venv ## Build the wheel as users do from source, isolated from this environment, into build/wheel
	rm -rf build/wheel
	$(BIN)/python -m pip wheel --quiet --no-deps -C build-dir=build/isolated --wheel-dir build/wheel .
	@ls build/wheel

.PHONY: clean
clean: ## Remove what was built, but not the virtual environments
	rm -rf build dist .pytest_cache .ruff_cache .hypothesis
	rm -f $(wildcard .venv*/.stamps/installed)

.PHONY: distclean
distclean: clean ## Remove the virtual environments as well
	rm -rf .venv .venv-*
