package adapters_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/exclusive-go/exclusive/integration_test/matrix"
	"github.com/exclusive-go/exclusive/integration_test/proxy"
	"github.com/exclusive-go/exclusive/internal/db"
)

// slow are queries that run for a long time.
var slow = map[string]string{
	"postgres": "SELECT 1 FROM pg_sleep(30)",
	"mysql":    "SELECT SLEEP(30)",
	"mariadb":  "SELECT SLEEP(30)",
	"sqlite":   "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c",
}

// runSlow runs the slow query with one of the two methods.
func runSlow[Tx any](ctx context.Context, target *matrix.Target[Tx], r db.Runner, query bool) error {
	if query {
		return r.Query(ctx, slow[target.Dialect], nil, func(db.Scan) error { return nil })
	}
	_, err := r.Exec(ctx, slow[target.Dialect])
	return err
}

// A statement ends with its context. The error is the context's, and the pool
// is as before.
func TestCancelStatement(t *testing.T) { matrix.Each(t, testCancelStatement, testCancelStatement) }

func testCancelStatement[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	for _, query := range []bool{true, false} {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(100*time.Millisecond, cancel)
		wantEnded(t, "cancelled", context.Canceled, func() error { return runSlow(ctx, target, target.DB, query) })
		cancel()

		ctx, cancel = context.WithTimeout(t.Context(), 100*time.Millisecond)
		wantEnded(t, "too late", context.DeadlineExceeded, func() error { return runSlow(ctx, target, target.DB, query) })
		cancel()

		wantEnded(t, "ended before", context.DeadlineExceeded, func() error { return runSlow(ctx, target, target.DB, query) })
		healthy(t, target)
	}
}

// wantEnded runs a function that ends soon with a context's error.
func wantEnded(t *testing.T, what string, want error, run func() error) {
	t.Helper()
	start := time.Now()
	err := run()
	if !errors.Is(err, want) {
		t.Errorf("%s: the error is %v, want %v", what, err, want)
	}
	if passed := time.Since(start); passed > 10*time.Second {
		t.Errorf("%s: it took %v", what, passed)
	}
}

// The same in a transaction, which is then over, with all its locks.
func TestCancelInTransaction(t *testing.T) {
	matrix.Each(t, testCancelInTransaction, testCancelInTransaction)
}

func testCancelInTransaction[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	createTable(t, target)
	for _, query := range []bool{true, false} {
		ctx, cancel := context.WithCancel(t.Context())
		wantEnded(t, "cancelled", context.Canceled, func() error {
			return db.InTx(ctx, target.DB, func(ctx context.Context, _ Tx, r db.Runner) error {
				if err := set(ctx, target, r, 1); err != nil {
					return err
				}
				time.AfterFunc(100*time.Millisecond, cancel)
				return runSlow(ctx, target, r, query)
			})
		})
		if got := n(t, target); got != 0 {
			t.Errorf("n is %d", got)
		}
		// The row is free: MySQL looks every 5 s whether the client is
		// still there.
		free, cancelFree := context.WithTimeout(t.Context(), 15*time.Second)
		if err := set(free, target, target.DB, 0); err != nil {
			t.Errorf("the row is not free: %v", err)
		}
		cancelFree()
		healthy(t, target)
	}
}

// A context that ends between statements ends the transaction at its next
// step, which says why; rolling back is no error.
func TestCancelBetweenStatements(t *testing.T) {
	matrix.Each(t, testCancelBetweenStatements, testCancelBetweenStatements)
}

func testCancelBetweenStatements[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	createTable(t, target)
	begins := map[string]func(context.Context) (Tx, error){"the adapter's": target.DB.Begin, "the caller's": target.BeginPast}
	for whose, begin := range begins {
		for _, step := range []string{"statement", "commit"} {
			ctx, cancel := context.WithCancel(t.Context())
			tx, err := begin(ctx)
			if err != nil {
				t.Fatal(err)
			}
			r, err := target.DB.Within(tx)
			if err != nil {
				t.Fatal(err)
			}
			if err := set(ctx, target, r, 1); err != nil {
				t.Fatal(err)
			}
			cancel()
			if step == "statement" {
				err = set(ctx, target, r, 2)
			} else {
				err = target.DB.Commit(ctx, tx)
			}
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%s transaction, %s: the error is %v", whose, step, err)
			}
			if err := target.DB.Rollback(tx); err != nil {
				t.Errorf("%s transaction, %s: rollback: %v", whose, step, err)
			}
			idle(t, target)
			if got := n(t, target); got != 0 {
				t.Errorf("%s transaction, %s: n is %d", whose, step, got)
			}
		}
	}
	healthy(t, target)
}

// Begin waits for a connection no longer than its context.
func TestCancelBegin(t *testing.T) { matrix.Each(t, testCancelBegin, testCancelBegin) }

func testCancelBegin[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	one := target.Another(t, matrix.Options{MaxConns: 1})
	tx, err := one.DB.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got := one.DB.MaxConns(); got != 1 {
		t.Errorf("MaxConns is %d", got)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	wantEnded(t, "begin", context.DeadlineExceeded, func() error { _, err := one.DB.Begin(ctx); return err })
	wantEnded(t, "begin, ended before", context.DeadlineExceeded, func() error { _, err := one.DB.Begin(ctx); return err })
	if err := one.DB.Rollback(tx); err != nil {
		t.Error(err)
	}
	healthy(t, one)
}

// Whatever moment the cancellation hits, the error is the context's or there is
// none, and what is stored agrees with it.
func TestCancelAtRandomMoments(t *testing.T) {
	matrix.Drivers(t, testCancelAtRandomMoments, testCancelAtRandomMoments)
}

func testCancelAtRandomMoments[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	createTable(t, target)
	// How long one transaction takes as a rule, to hit it everywhere.
	took := make([]time.Duration, 11)
	for i := range took {
		start := time.Now()
		if err := db.InTx(t.Context(), target.DB, addOne(target)); err != nil {
			t.Fatal(err)
		}
		took[i] = time.Since(start)
	}
	slices.Sort(took)
	whole := took[len(took)/2]
	done, ended := int64(len(took)), 0
	for range 200 {
		ctx, cancel := context.WithCancel(t.Context())
		timer := time.AfterFunc(rand.N(2*whole), cancel)
		err := db.InTx(ctx, target.DB, addOne(target))
		switch {
		case err == nil:
			done++
		case errors.Is(err, context.Canceled):
			ended++
		default:
			t.Errorf("the error is %v", err)
		}
		if errors.Is(err, db.ErrCommitUnknown) {
			t.Errorf("the outcome is unknown: %v", err)
		}
		timer.Stop()
		cancel()
	}
	idle(t, target)
	if got := n(t, target); got != done {
		t.Errorf("n is %d, want %d", got, done)
	}
	if ended == 0 {
		t.Error("no round was cancelled")
	}
	healthy(t, target)
}

func addOne[Tx any](target *matrix.Target[Tx]) func(context.Context, Tx, db.Runner) error {
	return func(ctx context.Context, _ Tx, r db.Runner) error {
		_, err := r.Exec(ctx, "UPDATE t SET n = n + 1 WHERE id = 1")
		return err
	}
}

// A server that has stopped answering, while the connection stands, holds
// nobody up beyond the context.
func TestSilentServer(t *testing.T) {
	matrix.Each(t, testSilentServer, testSilentServer, "postgres", "mysql", "mariadb")
}

func testSilentServer[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	through := proxy.Start(t, target.Addr(t))
	another := target.Another(t, matrix.Options{Addr: through.Addr()})
	healthy(t, another) // with a connection that stays in the pool
	through.Intercept(func([]byte) proxy.Verdict { return proxy.Swallow })
	steps := map[string]func(context.Context) error{
		"exec": func(ctx context.Context) error {
			_, err := another.DB.Exec(ctx, another.Bind("SELECT ?"), int64(1))
			return err
		},
		"query": func(ctx context.Context) error {
			return another.DB.Query(ctx, another.Bind("SELECT ?"), []any{int64(1)}, func(db.Scan) error { return nil })
		},
		"transaction": func(ctx context.Context) error {
			return db.InTx(ctx, another.DB, func(context.Context, Tx, db.Runner) error { return nil })
		},
	}
	for name, step := range steps {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		wantEnded(t, name, context.DeadlineExceeded, func() error { return step(ctx) })
		cancel()
	}
	through.Intercept(nil)
	through.Cut()
	healthy(t, another)
}
