# Every target installs what it needs and can be repeated. See README.md.
SHELL := /bin/bash
GO ?= go
export CGO_ENABLED ?= 0
# With -trimpath other clones of the same source share Go's build cache.
export GOFLAGS += -trimpath

.PHONY: help build build-ceph image image-ceph demo test test-ceph test-spdk test-vm test-upstream test-kubernetes e2e-full scoreboard lint generate site diagrams bench soak fuzz release clean

help: ## list the targets
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /  make \1\t/' | expand -t 18

build: ## build bin/cleat (static, no cgo)
	@scripts/need go
	$(GO) build -trimpath -ldflags '-s -w' -o bin/cleat ./cmd/cleat

build-ceph: ## build bin/cleat-ceph, for the controller of Ceph volumes: linked with librados, librbd and libcephfs (docs/ceph.md)
	@scripts/need go librados
	CGO_ENABLED=1 $(GO) build -trimpath -ldflags '-s -w' -tags ceph,pacific -o bin/cleat-ceph ./cmd/cleat

image: ## build the container image bin/cleat-image.tar, without a registry (IMAGE_FLAGS='-reference HOST/NAME:TAG')
	@scripts/need go image
	@$(MAKE) --no-print-directory build
	$(GO) run ./deploy/image/cleat-image $(IMAGE_FLAGS)

image-ceph: ## build the container image bin/cleat-ceph-image.tar of build-ceph (IMAGE_FLAGS as for image)
	@scripts/need go image
	@$(MAKE) --no-print-directory build-ceph
	$(GO) run ./deploy/image/cleat-image -variant ceph $(IMAGE_FLAGS)

demo: ## install missing packages, build, and show volumes, fencing, DPU devices and SR-IOV functions on this machine (DEMO_FLAGS)
	@scripts/need go root filesystems demo
	@$(MAKE) --no-print-directory build
	$(GO) build -trimpath -ldflags '-s -w' -o bin/cleat-demo ./demo
	$(GO) build -trimpath -ldflags '-s -w' -o bin/cleat-snap-double ./spdk/spdktest/double
	$(GO) build -trimpath -ldflags '-s -w' -o bin/cleat-node-double ./sriov/plugin/plugintest/double
	bin/cleat-demo $(DEMO_FLAGS)

test: ## install missing packages and run every test that needs only this machine (PARTS='unit csi': some)
	@scripts/need go root filesystems race fence ovs image site
	scripts/test $(PARTS)

test-ceph: ## install missing packages and test Ceph volumes, and takeovers of their nodes, in clusters that the tests start
	@scripts/need go root race ceph image kubernetes
	scripts/test ceph

test-spdk: ## test SPDK volumes against the SPDK process behind CLEAT_SPDK_SOCKET, or that CLEAT_SPDK_PROGRAM starts
	@scripts/need go
	scripts/test spdk

test-vm: ## install missing packages and run the tests in guests (QEMU, no KVM needed)
	@scripts/need go root vm ceph
	scripts/test vm

test-upstream: ## test against the kubelet's own code, which is downloaded and built: minutes the first time
	@scripts/need go root filesystems
	scripts/test upstream

test-kubernetes: ## install missing packages, build Kubernetes and its sidecars (minutes the first time), test the chart in it
	@scripts/need go root filesystems fence kubernetes image ceph vm
	scripts/test kubernetes

e2e-full: ## run every spec of Kubernetes' storage suite for the chart's drivers, about an hour: results in bin/e2e (docs/e2e.md)
	@scripts/need go root filesystems kubernetes image ceph
	CLEAT_E2E=full CLEAT_E2E_OUTPUT=$(CURDIR)/bin/e2e $(GO) test -count=1 -v -timeout 3h -run '^TestExternalStorage$$' ./test/kubernetes

scoreboard: ## run csi-sanity and write docs/scoreboard.md: results of the conformance suites of other projects
	@scripts/need go root filesystems
	$(GO) run ./test/scoreboard

lint: ## gofmt, go vet, staticcheck, dead code, imports, words, generated code; print the size of the tree
	@scripts/need go race protoc librados
	scripts/lint

generate: ## regenerate the Go code of the contracts in api/, the manifests of the chart and the page of flags
	@scripts/need go protoc
	scripts/generate

site: ## render the documentation as a site with search into bin/site
	@scripts/need go
	cd tools/site && $(GO) run . -from ../.. -into ../../bin/site

diagrams: ## draw docs/diagrams/*.svg from the texts beside them
	@scripts/need diagrams
	scripts/diagrams

bench: ## print figures: latencies, data path, memory, comparison with the kubelet's plugin manager
	@scripts/need go root filesystems fio fence
	scripts/bench

soak: ## all variants of the tests; CI runs a selection. PART=power runs one part (CONTRIBUTING.md lists them)
	@scripts/need go root filesystems race fence ovs image site vm ceph kubernetes
	scripts/soak $(PART)

fuzz: ## run every fuzz target for a while (FUZZ_TIME=30s each)
	@scripts/need go
	scripts/fuzz $${FUZZ_TIME:-30s}

release: ## build what a release publishes into bin/release: programs, bills of materials, chart, source, checksums (HEAD has its tag)
	@scripts/need go
	scripts/release bin/release

clean: ## remove build results
	rm -rf bin .cache
