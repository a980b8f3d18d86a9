package main

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"slices"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // registers "pgx"

	"github.com/exclusive-go/exclusive/integration_test/servers"
)

// parallelVariable tells the command how many tests of a package to run at a time.
const parallelVariable = "EXCLUSIVE_TEST_PARALLEL"

// Tests wait for leases and locks most of the time, so that many fit on few
// processors. How many is a matter of what processes cost on this machine: tests make
// connections all the time, and PostgreSQL makes a process for each. Where that takes
// long, tests that run at the same time are late for their own leases.
const (
	fast         = 10 * time.Millisecond // what a connection takes at most
	onFast, slow = 8, 4                  // tests of a package at a time
)

// chooseParallel tries it out, and says what it found. What is set stays as it is.
func chooseParallel(ctx context.Context, started []*servers.Server) error {
	if os.Getenv(parallelVariable) != "" {
		return nil
	}
	parallel, found := slow, "PostgreSQL is not here to be measured"
	if i := slices.IndexFunc(started, func(s *servers.Server) bool { return s.Kind == servers.Postgres }); i >= 0 {
		took, err := connecting(ctx, started[i].DSN)
		if err != nil {
			return fmt.Errorf("measuring a connection to PostgreSQL: %w", err)
		}
		found = fmt.Sprintf("a connection to PostgreSQL takes %.1f ms", took.Seconds()*1000)
		if took < fast {
			parallel = onFast
		}
	}
	fmt.Fprintf(os.Stderr, "tests of a package at a time: %d (%s; %s changes it)\n", parallel, found, parallelVariable)
	return os.Setenv(parallelVariable, fmt.Sprint(parallel))
}

// connecting is the median of what a connection takes.
func connecting(ctx context.Context, dsn string) (time.Duration, error) {
	pool, err := sql.Open("pgx", dsn)
	if err != nil {
		return 0, err
	}
	defer pool.Close()
	pool.SetMaxIdleConns(-1) // each Ping connects anew
	took := make([]time.Duration, 41)
	for i := range took {
		begin := time.Now()
		if err := pool.PingContext(ctx); err != nil {
			return 0, err
		}
		took[i] = time.Since(begin)
	}
	slices.Sort(took)
	return took[len(took)/2], nil
}
