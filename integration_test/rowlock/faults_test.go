package rowlock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/db/mysqldb"
	"github.com/exclusive-go/exclusive/db/sqldb"
	"github.com/exclusive-go/exclusive/integration_test/matrix"
	"github.com/exclusive-go/exclusive/integration_test/proxy"
	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/rowlock"
)

// taken waits until the key of a holder that is gone is free, and stores n.
func taken[Tx any](t *testing.T, target *matrix.Target[Tx], n int) {
	t.Helper()
	rival := newLocks(t, target.Another(t, matrix.Options{}), rowlock.Config{Wait: 20 * time.Second})
	must(t, "the next holder", rival.Run(t.Context(), "k", func(ctx context.Context, tx Tx, _ exclusive.Grant) error {
		return store(target, n)(ctx, tx)
	}))
}

func TestLostConnection(t *testing.T) { matrix.Drivers(t, testLostConnection, testLostConnection) }

func testLostConnection[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	if !target.Networked() {
		return
	}
	setUp(t, target)
	p := proxy.Start(t, target.Addr(t))
	far := target.Another(t, matrix.Options{Addr: p.Addr()})
	probed := newLocks(t, far, rowlock.Config{Probe: 20 * time.Millisecond})
	blind := newLocks(t, far, rowlock.Config{NoProbe: true})

	err := probed.Do(t.Context(), "k", func(ctx context.Context, _ exclusive.Grant) error {
		p.Cut()
		<-ctx.Done()
		wantErr(t, "the cause of work's context", context.Cause(ctx), exclusive.ErrLost)
		taken(t, target, 1)
		return nil
	})
	wantErr(t, "do with probes", err, exclusive.ErrLost)

	err = blind.Do(t.Context(), "k", func(context.Context, exclusive.Grant) error {
		p.Cut()
		taken(t, target, 2)
		return nil
	})
	wantErr(t, "do without probes", err, exclusive.ErrLost)

	err = blind.Do(t.Context(), "k", func(ctx context.Context, g exclusive.Grant) error {
		p.Cut()
		taken(t, target, 3)
		err := blind.Commit(ctx, g, store(target, 99))
		wantErr(t, "commit of a former holder", err, exclusive.ErrLost)
		wantErr(t, "another commit", blind.Commit(ctx, g, store(target, 99)), exclusive.ErrLost)
		return err
	})
	wantErr(t, "do whose commit is refused", err, exclusive.ErrLost)
	wantStored(t, target, 3)

	err = blind.Run(t.Context(), "k", func(ctx context.Context, tx Tx, _ exclusive.Grant) error {
		must(t, "write", store(target, 98)(ctx, tx))
		p.Cut()
		taken(t, target, 4)
		return nil
	})
	if !errors.Is(err, exclusive.ErrLost) && !errors.Is(err, exclusive.ErrOutcomeUnknown) {
		t.Errorf("run of a former holder: %v", err)
	}
	wantStored(t, target, 4)

	// The twin: the former holder writes outside of the transaction.
	err = blind.Do(t.Context(), "k", func(context.Context, exclusive.Grant) error {
		p.Cut()
		taken(t, target, 5)
		target.MustExec(t, "UPDATE result SET n = 97 WHERE id = 1")
		return nil
	})
	wantErr(t, "do without a guard", err, exclusive.ErrLost)
	wantStored(t, target, 97)
	free(t, far, blind, "k")
}

// An idle time-out of the server ends the lock, unless probes keep it away.
func TestIdleTimeout(t *testing.T) { matrix.Drivers(t, testIdleTimeout, testIdleTimeout) }

func testIdleTimeout[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	if !target.Networked() {
		return
	}
	setUp(t, target)
	const limit = time.Second
	name, value := "wait_timeout", "1"
	if target.Dialect == "postgres" {
		name, value = "idle_in_transaction_session_timeout", "1000"
	}
	far := target.Another(t, matrix.Options{Params: map[string]string{name: value}})
	for _, c := range []struct {
		what string
		cfg  rowlock.Config
		kept bool
	}{
		{"probes", rowlock.Config{Probe: limit / 6}, true},
		{"no probes", rowlock.Config{NoProbe: true}, false},
		{"probes that are too rare", rowlock.Config{Probe: 2 * limit}, false},
	} {
		x := newLocks(t, far, c.cfg)
		err := x.Do(t.Context(), "k", func(ctx context.Context, g exclusive.Grant) error {
			select {
			case <-ctx.Done():
			case <-time.After(5 * limit / 2):
			}
			if c.kept {
				return x.Commit(ctx, g, store(target, 1))
			}
			wantErr(t, c.what+": commit", x.Commit(context.WithoutCancel(ctx), g, store(target, 99)), exclusive.ErrLost)
			return nil
		})
		if c.kept {
			must(t, c.what, err)
		} else {
			wantErr(t, c.what, err, exclusive.ErrLost)
		}
	}
	wantStored(t, target, 1)
}

// A COMMIT that gets no answer, with and without having arrived.
func TestCommitWithoutAnswer(t *testing.T) {
	matrix.Drivers(t, testCommitWithoutAnswer, testCommitWithoutAnswer)
}

func testCommitWithoutAnswer[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	if !target.Networked() {
		return
	}
	setUp(t, target)
	p := proxy.Start(t, target.Addr(t))
	far := target.Another(t, matrix.Options{Addr: p.Addr()})
	x := newLocks(t, far, rowlock.Config{})
	must(t, "do", x.Do(t.Context(), "k", nothing)) // the key's row exists
	n := 0
	for _, verdict := range []proxy.Verdict{proxy.CutAfter, proxy.Cut} {
		for _, writes := range []bool{true, false} {
			n++
			var once atomic.Bool
			p.Intercept(func(data []byte) proxy.Verdict {
				if proxy.IsCommit(data) && once.CompareAndSwap(false, true) {
					return verdict
				}
				return proxy.Pass
			})
			var err error
			if writes {
				err = x.Run(t.Context(), "k", func(ctx context.Context, tx Tx, _ exclusive.Grant) error { return store(target, n)(ctx, tx) })
			} else {
				err = x.Do(t.Context(), "k", nothing)
			}
			p.Intercept(nil)
			if !once.Load() {
				t.Fatal("no COMMIT was seen")
			}
			what := fmt.Sprintf("arrived %v, writes %v", verdict == proxy.CutAfter, writes)
			switch {
			case target.Dialect == "postgres" && verdict == proxy.CutAfter:
				must(t, what, err)
			case target.Dialect == "postgres" || !writes:
				wantErr(t, what, err, exclusive.ErrLost)
			default:
				wantErr(t, what, err, exclusive.ErrOutcomeUnknown)
			}
			taken := newLocks(t, target, rowlock.Config{Wait: 20 * time.Second})
			must(t, "afterwards", taken.Do(t.Context(), "k", nothing)) // the first transaction is over
			if writes {
				want := int64(n)
				if verdict == proxy.Cut {
					want = 1 // what was stored before
				}
				wantStored(t, target, want)
			}
		}
	}
	free(t, far, x, "k")
}

// Work, apply and waits are cancelled at any moment: the caller is told, and the
// key is free.
func TestCancel(t *testing.T) { matrix.Drivers(t, testCancel, testCancel) }

func testCancel[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	x := newLocks(t, target, rowlock.Config{Wait: time.Minute})
	must(t, "do", x.Do(t.Context(), "k", nothing))
	for i := range 60 {
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			time.Sleep(rand.N(3 * time.Millisecond))
			cancel()
		}()
		committed := false
		err := x.Run(ctx, "k", func(ctx context.Context, tx Tx, _ exclusive.Grant) error {
			committed = true
			return store(target, i+1)(ctx, tx)
		})
		if err != nil {
			wantErr(t, "cancelled", err, context.Canceled)
			if errors.Is(err, exclusive.ErrHeld) {
				t.Errorf("cancellation is told as %v", err)
			}
		} else if !committed {
			t.Error("nil, but work did not run")
		}
		if n := target.Int(t, "SELECT n FROM result WHERE id = 1"); err == nil && n != int64(i+1) || err != nil && n == int64(i+1) {
			t.Errorf("round %d: %v, and %d is stored", i, err, n)
		}
		cancel()
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	wantErr(t, "a context that has ended", x.Do(ended, "k", mustNotRun(t)), context.Canceled)
	wantErr(t, "a context that ends in work", x.Do(t.Context(), "k", func(context.Context, exclusive.Grant) error { return context.Canceled }), context.Canceled)
	must(t, "afterwards", x.Do(t.Context(), "k", nothing))
	target.Idle(t)
}

// At an isolation that keeps one snapshot for the transaction, a holder must
// still see what the holder before it has written, and no serialization failure
// may come out.
func TestIsolation(t *testing.T) { matrix.Drivers(t, testIsolation, testIsolation) }

func testIsolation[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	if !target.Networked() {
		return
	}
	setUp(t, target)
	levels := []string{"read committed", "serializable"}
	if target.Dialect == "postgres" {
		levels = []string{"repeatable read", "serializable"}
	}
	const workers, rounds = 4, 10
	for _, level := range levels {
		target.MustExec(t, "UPDATE result SET n = 0")
		far := target.Isolated(t, level)
		x := newLocks(t, far, rowlock.Config{Wait: time.Minute})
		var wg sync.WaitGroup
		for range workers {
			wg.Go(func() {
				for range rounds {
					must(t, level, x.Run(t.Context(), "k", func(ctx context.Context, tx Tx, _ exclusive.Grant) error {
						return target.Exec(ctx, tx, "UPDATE result SET n = n + 1 WHERE id = 1")
					}))
				}
			})
		}
		wg.Wait()
		wantStored(t, target, workers*rounds)
	}
}

// No failure to lock is told as ErrHeld or nil, and work does not run.
func TestUnavailable(t *testing.T) { matrix.Drivers(t, testUnavailable, testUnavailable) }

func testUnavailable[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	x := newLocks(t, target, rowlock.Config{})
	patient := newLocks(t, target, rowlock.Config{Wait: time.Minute})
	for what, l := range map[string]*rowlock.Locks[Tx]{"do": x, "do with a wait": patient} {
		err := l.Do(t.Context(), "k", mustNotRun(t))
		wantErr(t, what+" without the table", err, exclusive.ErrSchema)
		if err != nil && !strings.Contains(err.Error(), "rowlock") {
			t.Errorf("the migration is not named: %v", err)
		}
	}
	// The application's own table is not ours to make.
	err := newLocks(t, target, rowlock.Config{Table: "nosuch", KeyColumns: []string{"id"}}).Do(t.Context(), "k", mustNotRun(t))
	wantErr(t, "do without the application's table", err, exclusive.ErrSchema)
	var e *exclusive.Error
	if errors.As(err, &e); !strings.Contains(e.Hint, "nosuch") || strings.Contains(e.Hint, "migrations") {
		t.Errorf("the hint does not help: %v", err)
	}
	setUp(t, target)
	if target.Networked() {
		if target.Dialect == "postgres" {
			far := target.Another(t, matrix.Options{Params: map[string]string{"default_transaction_read_only": "on"}})
			wantErr(t, "read-only", newLocks(t, far, rowlock.Config{}).Do(t.Context(), "k", mustNotRun(t)), exclusive.ErrUnavailable)
		}
		nobody := target.Another(t, matrix.Options{Addr: "127.0.0.1:1"})
		wantErr(t, "no server", newLocks(t, nobody, rowlock.Config{}).Do(t.Context(), "k", mustNotRun(t)), exclusive.ErrUnavailable)
	}
	must(t, "do", x.Do(t.Context(), "k", nothing))
	target.ClosePool()
	wantErr(t, "closed pool", x.Do(t.Context(), "k", mustNotRun(t)), exclusive.ErrUnavailable)
	wantErr(t, "closed pool, with a wait", patient.Do(t.Context(), "k", mustNotRun(t)), exclusive.ErrUnavailable)
}

// Three time limits look alike on PostgreSQL, and none may be told as another.
func TestTimeouts(t *testing.T) { matrix.Drivers(t, testTimeouts, testTimeouts) }

func testTimeouts[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	if target.Dialect != "postgres" {
		return
	}
	setUp(t, target)
	x := newLocks(t, target, rowlock.Config{})
	must(t, "do", x.Do(t.Context(), "k", func(ctx context.Context, _ exclusive.Grant) error {
		limited := target.Another(t, matrix.Options{Params: map[string]string{"statement_timeout": "2000"}})
		l := newLocks(t, limited, rowlock.Config{Wait: time.Minute})
		err := l.Do(ctx, "k", mustNotRun(t))
		wantErr(t, "statement_timeout", err, exclusive.ErrUnavailable)
		for range 20 {
			must(t, "the pool afterwards", l.Do(ctx, "other", nothing))
		}
		return nil
	}))
	// The limit of the wait is not the limit of work's own statements.
	far := target.Another(t, matrix.Options{Params: map[string]string{"lock_timeout": "1234"}})
	must(t, "run", newLocks(t, far, rowlock.Config{Wait: time.Minute}).Run(t.Context(), "k", func(ctx context.Context, tx Tx, _ exclusive.Grant) error {
		return far.Exec(ctx, tx, "UPDATE result SET n = (SELECT setting::bigint FROM pg_settings WHERE name = 'lock_timeout')")
	}))
	wantStored(t, target, 1234)
}

func TestPoolOfOne(t *testing.T) { matrix.Drivers(t, testPoolOfOne, testPoolOfOne) }

func testPoolOfOne[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	one := target.Another(t, matrix.Options{MaxConns: 1})
	x := newLocks(t, one, rowlock.Config{})
	patient := newLocks(t, one, rowlock.Config{Wait: time.Minute})
	must(t, "run", x.Run(t.Context(), "k", func(ctx context.Context, tx Tx, _ exclusive.Grant) error { return store(target, 1)(ctx, tx) }))
	must(t, "do", x.Do(t.Context(), "new", func(ctx context.Context, g exclusive.Grant) error { return x.Commit(ctx, g, store(target, 2)) }))
	wantStored(t, target, 2)
	must(t, "do", x.Do(t.Context(), "k", func(ctx context.Context, _ exclusive.Grant) error {
		wantErr(t, "the same key inside", x.Do(ctx, "k", mustNotRun(t)), exclusive.ErrHeld)
		err := x.Do(ctx, "other", mustNotRun(t))
		if target.Networked() {
			wantErr(t, "another key inside", err, exclusive.ErrUnavailable)
		} else {
			wantErr(t, "another key inside", err, exclusive.ErrHeld)
		}
		return nil
	}))
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			must(t, "waiting for the connection", patient.Do(t.Context(), fmt.Sprint("k", i%2), nothing))
		})
	}
	wg.Wait()
	free(t, one, x, "k")
}

// A pool that has no connection is no holder of the key.
func TestPoolExhausted(t *testing.T) { matrix.Drivers(t, testPoolExhausted, testPoolExhausted) }

func testPoolExhausted[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	one := target.Another(t, matrix.Options{MaxConns: 1})
	x := newLocks(t, one, rowlock.Config{Wait: 100 * time.Millisecond})
	must(t, "do", x.Do(t.Context(), "k", nothing))
	tx, err := one.BeginPast(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	err = x.Do(t.Context(), "k", mustNotRun(t))
	wantErr(t, "do without a connection", err, exclusive.ErrUnavailable)
	if errors.Is(err, exclusive.ErrHeld) {
		t.Errorf("nobody holds the key: %v", err)
	}
	must(t, "roll back", one.DB.Rollback(tx))
	free(t, one, x, "k")
	// The twin: somebody does.
	must(t, "do", newLocks(t, target, rowlock.Config{}).Do(t.Context(), "k", func(ctx context.Context, _ exclusive.Grant) error {
		wantErr(t, "do of a held key", x.Do(ctx, "k", mustNotRun(t)), exclusive.ErrHeld)
		return nil
	}))
}

// Round trips are counted on the wire.
func TestRoundTrips(t *testing.T) { matrix.Drivers(t, testRoundTrips, testRoundTrips) }

func testRoundTrips[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	if !target.Networked() {
		return
	}
	setUp(t, target)
	p := proxy.Start(t, target.Addr(t))
	far := target.Another(t, matrix.Options{Addr: p.Addr(), MaxConns: 1, NoPing: true})
	x := newLocks(t, far, rowlock.Config{NoProbe: true})
	ctx := t.Context()
	write := store(target, 1)
	// Statements with arguments take two steps with lib/pq, always.
	args := int64(0)
	if target.Name == "lib_pq" {
		args = 1
	}
	begin := int64(1)
	if target.Name == "pgx" {
		begin = 0 // travels with the SELECT
	}
	proof := int64(0)
	if target.Dialect != "postgres" {
		proof = 2
	}
	writeArgs := args
	if target.Dialect != "postgres" {
		writeArgs = 1 // the test's own statement, which the driver prepares
	}
	// The first ones also connect, prepare, and make the key's row.
	fewest := func(f func()) int64 {
		least := int64(1 << 30)
		for range 5 {
			before := p.RoundTrips()
			f()
			least = min(least, p.RoundTrips()-before)
		}
		return least
	}
	for _, c := range []struct {
		what string
		want int64
		do   func() error
	}{
		{"do", begin + 2 + args, func() error { return x.Do(ctx, "k", nothing) }},
		{"run", begin + 3 + args + proof + writeArgs, func() error {
			return x.Run(ctx, "k", func(ctx context.Context, tx Tx, _ exclusive.Grant) error { return write(ctx, tx) })
		}},
		{"commit", begin + 3 + args + max(proof, 1) + writeArgs, func() error {
			return x.Do(ctx, "k", func(ctx context.Context, g exclusive.Grant) error { return x.Commit(ctx, g, write) })
		}},
	} {
		if n := fewest(func() { must(t, c.what, c.do()) }); n != c.want {
			t.Errorf("%s: %d round trips, want %d", c.what, n, c.want)
		}
	}
	rival := newLocks(t, target, rowlock.Config{})
	must(t, "do", rival.Do(ctx, "k", func(ctx context.Context, _ exclusive.Grant) error {
		n := fewest(func() { wantErr(t, "refused", x.Do(ctx, "k", mustNotRun(t)), exclusive.ErrHeld) })
		if n != begin+2+args {
			t.Errorf("refused: %d round trips", n)
		}
		return nil
	}))
}

// Many workers in two processes on few and many keys, with an overlap detector
// and a counter in the database for each key.
func TestHammer(t *testing.T) { matrix.Drivers(t, testHammer, testHammer) }

func testHammer[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	target.Migrate(t, "rowlock")
	target.MustExec(t, "CREATE TABLE result (id bigint PRIMARY KEY, n bigint NOT NULL)")
	const keys = 100
	for k := range keys {
		target.MustExec(t, "INSERT INTO result VALUES (?, 0)", k)
	}
	pools := []*rowlock.Locks[Tx]{
		newLocks(t, target, rowlock.Config{Wait: time.Minute}),
		newLocks(t, target.Another(t, matrix.Options{}), rowlock.Config{Wait: time.Minute}),
		newLocks(t, target.Another(t, matrix.Options{}), rowlock.Config{}),
	}
	var done [keys]atomic.Int64
	for _, c := range []struct{ workers, keys int }{{8, 1}, {64, 1}, {8, keys}, {64, keys}} {
		var inside [keys]atomic.Int64
		var grants atomic.Int64
		end := time.Now().Add(250 * time.Millisecond)
		var wg sync.WaitGroup
		for i := range c.workers {
			wg.Go(func() {
				l := pools[i%len(pools)]
				for time.Now().Before(end) {
					k := rand.N(c.keys)
					err := l.Run(t.Context(), fmt.Sprint(k), func(ctx context.Context, tx Tx, _ exclusive.Grant) error {
						if inside[k].Add(1) != 1 {
							t.Error("overlap")
						}
						defer inside[k].Add(-1)
						grants.Add(1)
						return target.Exec(ctx, tx, target.Bind("UPDATE result SET n = n + 1 WHERE id = ?"), k)
					})
					switch {
					case err == nil:
						done[k].Add(1)
					case errors.Is(err, exclusive.ErrHeld) && i%len(pools) == 2:
						time.Sleep(time.Millisecond)
					default:
						t.Errorf("%d workers on %d keys: %v", c.workers, c.keys, err)
						return
					}
				}
			})
		}
		wg.Wait()
		t.Logf("%d workers on %d keys: %d grants", c.workers, c.keys, grants.Load())
	}
	for k := range keys {
		if n := target.Int(t, "SELECT n FROM result WHERE id = ?", k); n != done[k].Load() {
			t.Errorf("key %d: %d writes of %d are stored", k, n, done[k].Load())
		}
	}
	target.Idle(t)
}

// What MySQL and MariaDB do to a transaction on their own must not become half
// a commit: a lock time-out undoes one statement, and a deadlock all of them,
// and COMMIT succeeds after both.
func TestServerUndoes(t *testing.T) { matrix.Drivers(t, testServerUndoes, testServerUndoes) }

func testServerUndoes[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	if target.Dialect != "mysql" && target.Dialect != "mariadb" {
		return
	}
	setUp(t, target)
	target.MustExec(t, "INSERT INTO result VALUES (2, 0)")
	far := target.Another(t, matrix.Options{Params: map[string]string{"innodb_lock_wait_timeout": "1"}})
	x, rival := newLocks(t, far, rowlock.Config{}), newLocks(t, target, rowlock.Config{})
	other, err := target.Plain.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Rollback() }() // again, if all went well
	if _, err := other.Exec("UPDATE result SET n = 0 WHERE id = 2"); err != nil {
		t.Fatal(err)
	}
	if _, err := other.Exec("SELECT n FROM result WHERE id = 2 FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	both := func(ctx context.Context, tx Tx) error {
		must(t, "write", store(target, 99)(ctx, tx))
		return far.Exec(ctx, tx, "UPDATE result SET n = 99 WHERE id = 2")
	}
	must(t, "do", x.Do(t.Context(), "k", func(ctx context.Context, g exclusive.Grant) error {
		wantErr(t, "commit after a lock time-out", x.Commit(ctx, g, both), exclusive.ErrConflict)
		wantErr(t, "a rival", rival.Do(ctx, "k", mustNotRun(t)), exclusive.ErrHeld)
		return nil
	}))
	wantStored(t, target, 0)
	wantErr(t, "run with a lock time-out", x.Run(t.Context(), "k", func(ctx context.Context, tx Tx, _ exclusive.Grant) error { return both(ctx, tx) }), exclusive.ErrConflict)
	wantStored(t, target, 0)
	// A deadlock as work sees it that overlooks the error.
	ended := func(ctx context.Context, tx Tx) error {
		must(t, "write", store(target, 98)(ctx, tx))
		return far.Exec(ctx, tx, "ROLLBACK")
	}
	err = x.Do(t.Context(), "k", func(ctx context.Context, g exclusive.Grant) error { return x.Commit(ctx, g, ended) })
	wantErr(t, "commit after the server's rollback", err, exclusive.ErrConflict)
	err = x.Run(t.Context(), "k", func(ctx context.Context, tx Tx, _ exclusive.Grant) error { return ended(ctx, tx) })
	wantErr(t, "run after the server's rollback", err, exclusive.ErrConflict)
	wantStored(t, target, 0)
	free(t, far, x, "k")
}

// A pool that recycles its connections does not recycle the one that holds the
// lock, and no lock stays on one that went back.
func TestRecyclingPool(t *testing.T) { matrix.Drivers(t, testRecyclingPool, testRecyclingPool) }

func testRecyclingPool[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	if !target.Networked() {
		return
	}
	setUp(t, target)
	pool := target.Plain
	pool.SetConnMaxLifetime(50 * time.Millisecond)
	pool.SetConnMaxIdleTime(20 * time.Millisecond)
	var adapter db.DB[*sql.Tx] = mysqldb.New(pool)
	if target.Dialect == "postgres" {
		adapter = sqldb.NewPostgres(pool)
	}
	x, err := rowlock.New(adapter, rowlock.Config{})
	if err != nil {
		t.Fatal(err)
	}
	rival := newLocks(t, target, rowlock.Config{})
	must(t, "do", x.Do(t.Context(), "k", func(ctx context.Context, g exclusive.Grant) error {
		for end := time.Now().Add(500 * time.Millisecond); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			wantErr(t, "a rival", rival.Do(ctx, "k", mustNotRun(t)), exclusive.ErrHeld)
			wantStored(t, target, 0) // another connection of the same pool
		}
		return x.Commit(ctx, g, func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "UPDATE result SET n = 1 WHERE id = 1")
			return err
		})
	}))
	wantStored(t, target, 1)
	free(t, target, rival, "k")
	if n := pool.Stats().InUse; n != 0 {
		t.Errorf("%d connections are in use", n)
	}
}
