# The commands of a working day. `make help` lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help

.PHONY: help
help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 12

.PHONY: setup
setup:  ## install system packages and .venv; costs nothing when done before
	@scripts/setup.sh

.PHONY: build
build: setup  ## build everything; binaries land in build/bin
	scripts/build.sh release

.PHONY: test
test: build  ## run all tests
	ctest --preset release --parallel 3

.PHONY: demo
demo: setup  ## train a model of 26M parameters on two ranks, from nothing
	examples/demo/demo.sh

.PHONY: bench
bench: build  ## speed and memory against TRL and FSDP2; fills docs/benchmarks.md and docs/memory.md
	scripts/setup-bench.sh
	.venv/bin/python benchmarks/training/bench.py --peers .venv-bench/bin/python
	.venv/bin/python benchmarks/training/step_profile.py
	.venv/bin/python benchmarks/generation/bench.py --peers .venv-bench/bin/python
	.venv/bin/python benchmarks/memory/bench.py --peers .venv-bench/bin/python

.PHONY: asan
asan: setup  ## run the tests under AddressSanitizer and UBSan
	scripts/build.sh asan
	ctest --preset asan --parallel 2

.PHONY: tsan
tsan: setup  ## run the tests of the core under ThreadSanitizer
	scripts/build.sh tsan
	ctest --preset tsan --parallel 2

.PHONY: fuzz
fuzz: setup  ## fuzz every parser of what others write, two minutes each, with clang's sanitizers
	scripts/setup-fuzz.sh
	scripts/build.sh fuzz fuzz-all

.PHONY: cuda
cuda: setup  ## compile and link the CUDA and NCCL backends; see docs/gpu-checklist.md
	scripts/setup-cuda.sh
	scripts/build.sh cuda

.PHONY: gpu-bundle
gpu-bundle: setup  ## pack the trainer with CUDA and its checklist for a machine with a GPU
	scripts/gpu-bundle.sh

.PHONY: format
format:  ## format C++ and Python in place
	scripts/lint.sh format

.PHONY: lint
lint:  ## formatting, clang-tidy, buf, shellcheck, ruff; changes nothing
	scripts/lint.sh check

.PHONY: docs
docs: setup  ## write docs/job-file.md from the protos
	.venv/bin/python scripts/gen_job_docs.py --write

.PHONY: clean
clean:  ## delete build/ and demo/
	rm -rf build demo
