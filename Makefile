# Every target installs what it needs and may be run twice. See README.md.
SHELL := /bin/bash
GO ?= go
export CGO_ENABLED ?= 0

.PHONY: help build demo test test-vm test-upstream lint generate bench soak fuzz clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 18

build: ## build bin/cleat (static, no cgo)
	@scripts/need go
	$(GO) build -trimpath -ldflags '-s -w' -o bin/cleat ./cmd/cleat

demo: ## install what is missing, build, and walk volumes and DPU devices through their life on this machine
	@scripts/need go root filesystems
	@$(MAKE) --no-print-directory build
	$(GO) build -trimpath -ldflags '-s -w' -o bin/cleat-snap-double ./spdk/spdktest/double
	bin/cleat demo $(DEMO_FLAGS)

test: ## install what is missing and run every test of this machine
	@scripts/need go root filesystems race fence
	scripts/test

test-vm: ## install what is missing and run the tests that boot guests of their own (QEMU, no KVM needed)
	@scripts/need go vm
	scripts/test vm

test-upstream: ## meet the kubelet's own code, which is downloaded and built: minutes the first time
	@scripts/need go root filesystems
	scripts/test upstream

lint: ## gofmt, go vet, staticcheck, the import graph, generated code
	@scripts/need go protoc
	scripts/lint

generate: ## make the Go code of the contracts in api/ anew
	@scripts/need go protoc
	scripts/generate

bench: ## print figures: latencies, data path, memory, the kubelet's plugin manager beside ours
	@scripts/need go root filesystems fio fence
	scripts/bench

soak: ## the crash test with thousands of kills (SOAK_KILLS=5000), plugins by the ten thousand
	@scripts/need go root filesystems race
	SOAK_KILLS=$${SOAK_KILLS:-5000} scripts/soak

fuzz: ## run every fuzz target for a while (FUZZ_TIME=30s each)
	@scripts/need go
	scripts/fuzz $${FUZZ_TIME:-30s}

clean: ## remove what was built
	rm -rf bin .cache
