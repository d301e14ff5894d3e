# Switchyard. `make` alone lists what there is.
.DEFAULT_GOAL := help
TOOL  := go tool -modfile=tools/go.mod
LDV   := -X main.commit=$(shell git rev-parse --short HEAD 2>/dev/null)
FUZZ  ?= 5s
# go-nvml binds functions that NVIDIA's header calls deprecated, which the compiler would tell at length.
export CGO_CFLAGS ?= -O2 -g -Wno-deprecated-declarations

.PHONY: help
help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

.PHONY: build
build: ## the binary, as ./switchyard
	go build -trimpath -ldflags '$(LDV)' -o switchyard ./cmd/switchyard

.PHONY: demo
demo: ## the whole thing with no GPU: three simulated replicas, the gateway, traffic
	@# Compiled to be there soon, not to be fast: unoptimised, and without cgo, which
	@# is there to read real GPUs. That halves what a first build takes.
	CGO_ENABLED=0 go build -gcflags 'all=-N -l' -ldflags '$(LDV)' -o bin/switchyard-demo ./cmd/switchyard
	bin/switchyard-demo demo

.PHONY: test
test: ## all tests
	go test ./...

.PHONY: race
race: ## all tests under the race detector
	go test -race ./...

.PHONY: check
check: ## what CI runs: format, vet, staticcheck, modernisers, race, published numbers, short fuzz, builds with and without cgo
	@out=$$($(TOOL) gofumpt -l $$(git ls-files '*.go')); test -z "$$out" || { echo "gofumpt would change:"; echo "$$out"; exit 1; }
	go vet ./...
	$(TOOL) staticcheck ./...
	@out=$$(go fix -diff ./... 2>&1); test -z "$$out" || { echo "go fix would change:"; echo "$$out"; exit 1; }
	CGO_ENABLED=1 go build -o /dev/null ./cmd/switchyard
	CGO_ENABLED=0 go build -o /dev/null ./cmd/switchyard
	CGO_ENABLED=0 go vet ./replica/gpu ./cmd/switchyard
	CGO_ENABLED=0 go test ./replica/gpu
	go test -race ./...
	go run ./cmd/switchyard bench verify docs/results --published docs/results.md --published docs/results/affinity.md
	go run ./cmd/switchyard bench verify docs/results/live --published docs/results/live.md
	$(MAKE) --no-print-directory fuzz

# Before Go 1.27 go test sometimes takes the end of its own time for a failure, without an input to show (golang/go#75804).
FUZZED = { grep -qx ' *context deadline exceeded' /tmp/switchyard-fuzz.log && ! grep -qE 'Failing input|panic' /tmp/switchyard-fuzz.log; }

.PHONY: fuzz
fuzz: ## every fuzz target for a moment (FUZZ=60s for longer)
	@set -e; for f in $$(grep -rlE '^func Fuzz' --include='*_test.go' . | sort); do \
	  for t in $$(grep -oE '^func Fuzz[A-Za-z0-9_]+' $$f | cut -d' ' -f2); do \
	    echo "fuzz $$(dirname $$f) $$t"; go test -run '^$$' -fuzz "^$$t$$" -fuzztime $(FUZZ) $$(dirname $$f) >/tmp/switchyard-fuzz.log 2>&1 || $(FUZZED) || { cat /tmp/switchyard-fuzz.log; exit 1; }; \
	  done; done

.PHONY: deploy-check
deploy-check: ## Dockerfile, compose file, Prometheus rules, as far as that goes without a container runtime
	scripts/deploy-check.sh

.PHONY: bench
bench: ## the benchmarks of the parts
	go test -run '^$$' -bench . -benchmem ./...

.PHONY: test-browser
test-browser: ## the dashboard in Chromium, and axe-core's view of it; skipped with a word where they are missing
	@command -v npm >/dev/null && npm ci --prefix dashboard/browser --ignore-scripts --no-audit --no-fund --loglevel=error || echo "axe-core could not be fetched: accessibility is not checked"
	cd dashboard/browser && go vet . && go test -v -count=1 -timeout 10m .

.PHONY: test-engines
test-engines: ## tests against a real Ollama; skipped with a word where there is none
	go test -v -count=1 -timeout 30m -run 'RealEngine' ./simserver ./cmd/switchyard
