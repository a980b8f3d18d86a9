# make test is the one test command: it brings up the servers that it needs, as
# described in integration_test/servers, and runs everything.

modules := . integration_test
staticcheck := honnef.co/go/tools/cmd/staticcheck@v0.8.2

# Most tests wait for something, so more run at a time than there are processors.
flags := -shuffle=on -timeout 25m

# The packages of integration_test that check runs under the race detector, which
# makes them several times as slow: the suite on every strategy, driver and server,
# and histories under faults. All of them: make race race="./..."
race := ./linearizability ./strategies

.PHONY: test check lint race servers comparison

test: servers
	.bin/testservers run -- sh -c 'failed=; for module in $(modules); do \
			go test -C $$module $(flags) -parallel $$EXCLUSIVE_TEST_PARALLEL ./... || failed="$$failed $$module"; \
		done; \
		test -z "$$failed" || { echo "FAILED in module:$$failed" >&2; exit 1; }'

# What a change has to pass beside the tests.
check: lint race

lint:
	@unformatted=$$(gofmt -l .); test -z "$$unformatted" || \
		{ echo "not formatted, run gofmt -w on:" $$unformatted >&2; exit 1; }
	for module in $(modules); do ( cd $$module && \
		go mod tidy -diff && \
		go vet ./... && \
		go run $(staticcheck) ./... ) || exit 1; \
	done
	go test -count=1 ./internal

race: servers
	go test $(flags) -race ./...
	.bin/testservers run -- go test -C integration_test $(flags) -race -parallel 4 $(race)

# docs/comparison.md, from what happens on this machine's servers.
comparison: servers
	.bin/testservers run -- go test -C integration_test -count=1 ./comparison -update

# The command that starts the servers, for use without make: .bin/testservers -h
servers:
	go build -C integration_test -o ../.bin/testservers ./cmd/testservers
