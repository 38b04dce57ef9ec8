# The targets that people and CI call. `make help` lists them.
GO ?= go
STATICCHECK = $(GO) run honnef.co/go/tools/cmd/staticcheck@v0.8.2

.PHONY: help build test race lint e2e bench contract weights test-models test-py crash model

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

build: ## static binaries in bin/
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/ ./cmd/...

test: ## all tests that need only Go
	$(GO) test ./...

race: ## the same under the race detector
	$(GO) test -race ./...

lint: ## gofmt, go mod tidy, vet, staticcheck
	@test -z "$$(gofmt -l .)" || { echo 'not gofmt-ed:'; gofmt -l .; exit 1; }
	$(GO) mod tidy -diff
	$(GO) vet ./...
	$(GO) vet -tags e2e,crash ./e2e/...
	$(STATICCHECK) ./...
	$(STATICCHECK) -tags e2e,crash ./e2e/...

e2e: ## the built binaries as processes, from outside
	$(GO) test -tags e2e -count=1 -timeout 5m ./e2e

model: ## the ledger's protocol as a model: 20 million random events
	$(GO) test -count=1 -v -timeout 5m ./pkg/bus/model -args -events 20000000

crash: ## kill at every crash point of the ledger, in every way
	$(GO) test -tags 'e2e crash' -count=1 -timeout 9m -parallel 5 -run TestCrash ./e2e

test-models: ## pkg/chat against real tokenizers and jinja2 (Python, npm)
	scripts/test-models.sh

test-py: ## sessions against the real openai SDK (Python)
	sh scripts/test-py.sh

bench: ## benchmarks, each beside its budget
	$(GO) run ./scripts/bench

contract: ## our requests and replies against the models of SGLang's own wheels (Python)
	sh scripts/contract/contract.sh

weights: ## make the tiny model's weights anew
	$(GO) run ./scripts/tinyweights

include e2e/chaos/chaos.mk
