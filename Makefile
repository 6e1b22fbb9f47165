.PHONY: build test lint fuzz bench vulncheck ci release release-binaries release-image release-chart release-deb

build: ## a static binary: ./weir
	CGO_ENABLED=0 go build -trimpath -o weir ./cmd/weir

test: ## everything; e2e tests whose peers are not installed are skipped
	go test ./...

lint:
	test -z "$$(gofmt -l .)"
	go vet ./...

# FUZZTIME is the time for each fuzz target; FUZZ is a regular expression that chooses targets.
export FUZZTIME ?= 1m
export FUZZ ?= .

fuzz: ## random fuzzing, which .ci/run does not do
	.ci/fuzz

bench: ## beside HAProxy and nginx (Debian: apt-get install haproxy nginx wrk nghttp2-client)
	go run ./e2e/bench

vulncheck: ## known vulnerabilities in Go and the modules of weir; asks https://vuln.go.dev
	go run golang.org/x/vuln/cmd/govulncheck@v1.9.0 ./...

ci: ## what has to hold before a change goes in
	.ci/run

# A release is built with the version of Go in the Dockerfile, whichever is installed:
# another version makes other bytes.
release_go = go$(shell sed -n 's/^FROM golang:\([0-9.]*\)-.*/\1/p' Dockerfile)
release_tool = GOTOOLCHAIN=$(release_go) GOFLAGS=-mod=readonly GOWORK=off go -C release run .

release: ## everything below, in ./dist; docs/release.md
	rm -rf dist
	$(release_tool) all

release-binaries: ## archives of weir and weir-soak for Linux and macOS on amd64 and arm64, each with an SBOM
	$(release_tool) binaries

release-image: ## an OCI image index for linux/amd64 and linux/arm64, without a daemon
	$(release_tool) image

release-chart: ## the Helm chart, as a file and as an OCI artifact
	$(release_tool) chart

release-deb: ## Debian packages for amd64 and arm64
	$(release_tool) deb
