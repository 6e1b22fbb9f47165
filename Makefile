.PHONY: build test lint bench ci

build: ## a static binary: ./weir
	CGO_ENABLED=0 go build -trimpath -o weir ./cmd/weir

test: ## everything; e2e tests whose peers are not installed are skipped
	go test ./...

lint:
	test -z "$$(gofmt -l .)"
	go vet ./...

bench: ## beside HAProxy and nginx (Debian: apt-get install haproxy nginx wrk nghttp2-client)
	go run ./e2e/bench

ci: ## what has to hold before a change goes in
	.ci/run
