// Package casupdate_test proves package casupdate on every driver and server.
package casupdate_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/casupdate"
	"github.com/exclusive-go/exclusive/integration_test/matrix"
)

// The configurations that the tests are about: without and with the columns
// that prove a claim, and with takeover.
func bare() casupdate.Config {
	return casupdate.Config{Table: "job", From: "PENDING", Claimed: "PROCESSING", Done: "DONE"}
}

func proving() casupdate.Config {
	c := bare()
	c.TokenColumn, c.GrantColumn = "token", "grant_id"
	c.ClaimedAtColumn, c.HolderColumn = "claimed_at", "holder"
	return c
}

func leased(ttl time.Duration) casupdate.Config {
	c := proving()
	c.ExpiresColumn, c.TTL = "expires_at", ttl
	return c
}

// setUp makes the table, with rows in state PENDING, and one for results.
func setUp[Tx any](t testing.TB, target *matrix.Target[Tx], keys ...string) {
	t.Helper()
	// MariaDB's own default is latin1, which cannot hold every key.
	charset := map[string]string{"mysql": " CHARACTER SET utf8mb4", "mariadb": " CHARACTER SET utf8mb4"}[target.Dialect]
	target.MustExec(t, `CREATE TABLE job (id varchar(100) PRIMARY KEY, state varchar(20) NOT NULL, token bigint, grant_id varchar(64),
		holder varchar(200), claimed_at bigint, expires_at bigint, version bigint NOT NULL DEFAULT 0, note varchar(100))`+charset)
	target.MustExec(t, "CREATE TABLE result (id varchar(100) PRIMARY KEY, body varchar(200) NOT NULL)"+charset)
	for _, key := range keys {
		insert(t, target, key)
	}
}

func insert[Tx any](t testing.TB, target *matrix.Target[Tx], key string) {
	t.Helper()
	target.MustExec(t, "INSERT INTO job (id, state) VALUES (?, 'PENDING')", key)
	target.MustExec(t, "INSERT INTO result VALUES (?, 'nothing')", key)
}

func newTable[Tx any](t testing.TB, target *matrix.Target[Tx], cfg casupdate.Config) *casupdate.Table[Tx] {
	t.Helper()
	x, err := casupdate.New(target.DB, cfg)
	must(t, "New", err)
	t.Cleanup(func() { must(t, "Close", x.Close()) })
	return x
}

// store writes the result in tx.
func store[Tx any](target *matrix.Target[Tx], key, body string) func(context.Context, Tx) error {
	return func(ctx context.Context, tx Tx) error {
		return target.Exec(ctx, tx, target.Bind("UPDATE result SET body = ? WHERE id = ?"), body, key)
	}
}

func text[Tx any](t testing.TB, target *matrix.Target[Tx], query string, args ...any) string {
	t.Helper()
	var s string
	must(t, query, target.Plain.QueryRowContext(t.Context(), target.Bind(query), args...).Scan(&s))
	return s
}

func wantState[Tx any](t testing.TB, target *matrix.Target[Tx], key, state string) {
	t.Helper()
	if s := text(t, target, "SELECT state FROM job WHERE id = ?", key); s != state {
		t.Errorf("row %q is in state %s; want %s", key, s, state)
	}
}

func wantStored[Tx any](t testing.TB, target *matrix.Target[Tx], key, body string) {
	t.Helper()
	if s := text(t, target, "SELECT body FROM result WHERE id = ?", key); s != body {
		t.Errorf("stored for %q: %q; want %q", key, s, body)
	}
}

func wantErr(t testing.TB, what string, err error, kinds ...error) {
	t.Helper()
	for _, kind := range kinds {
		if !errors.Is(err, kind) {
			t.Fatalf("%s: %v; want an error that matches %q", what, err, kind)
		}
	}
}

func must(t testing.TB, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func nothing(context.Context, exclusive.Grant) error { return nil }

var errBiz = errors.New("business error")

func failing(context.Context, exclusive.Grant) error { return errBiz }

// inTx runs f in a transaction of the application's own.
func inTx[Tx any](t testing.TB, target *matrix.Target[Tx], f func(Tx) error) error {
	t.Helper()
	tx, err := target.BeginPast(t.Context())
	if err != nil {
		return err
	}
	if err := f(tx); err != nil {
		return errors.Join(err, target.DB.Rollback(tx))
	}
	return target.DB.Commit(t.Context(), tx)
}

func TestLifecycle(t *testing.T) { matrix.Each(t, testLifecycle, testLifecycle) }

func testLifecycle[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	for _, c := range []struct {
		name string
		cfg  casupdate.Config
	}{{"bare", bare()}, {"proving", proving()}, {"leased", leased(time.Minute)}} {
		ctx := t.Context()
		key := c.name
		insert(t, target, key)
		c.cfg.Holder = "A"
		a, b := newTable(t, target, c.cfg), newTable(t, target.Another(t, matrix.Options{}), c.cfg)
		proves := c.cfg.TokenColumn != ""

		// Failure gives the row back, success finishes it, once.
		wantErr(t, c.name+": failing work", a.Do(ctx, key, failing), errBiz)
		wantState(t, target, key, "PENDING")
		must(t, c.name+": Do", b.Do(ctx, key, func(ctx context.Context, g exclusive.Grant) error {
			wantState(t, target, key, "PROCESSING")
			if g.Key != key || g.ID == "" || g.Expires.IsZero() != (c.cfg.TTL == 0) {
				t.Errorf("%s: %+v", c.name, g)
			}
			if proves && (g.Token != 2 || g.Attempt != 2) || !proves && (g.Token != 0 || g.Attempt != 1) {
				t.Errorf("%s: %+v", c.name, g)
			}
			err := a.Do(ctx, key, nothing)
			wantErr(t, c.name+": Do of a claimed row", err, exclusive.ErrHeld)
			var e *exclusive.Error
			if !errors.As(err, &e) || e.Holder == nil || proves && (e.Holder.Name != "A" || e.Holder.Token != 2 || e.Holder.ID != g.ID || time.Since(e.Holder.Since).Abs() > time.Minute) {
				t.Errorf("%s: who holds it is not told: %+v", c.name, err)
			}
			must(t, c.name+": Check", inTx(t, target, func(tx Tx) error { return b.Check(ctx, tx, g) }))
			return nil
		}))
		wantState(t, target, key, "DONE")
		wantErr(t, c.name+": Do of a done row", a.Do(ctx, key, nothing), exclusive.ErrDone)
		wantErr(t, c.name+": Do of no row", a.Do(ctx, "nowhere", nothing), exclusive.ErrNoRow)
		target.MustExec(t, "UPDATE job SET state = 'STRANGE' WHERE id = ?", key)
		err := a.Do(ctx, key, nothing)
		wantErr(t, c.name+": Do of a row in another state", err, exclusive.ErrConflict)
		var s *casupdate.StateError
		if !errors.As(err, &s) || s.State != "STRANGE" {
			t.Errorf("%s: the state is not told: %v", c.name, err)
		}

		// Commit: durable, done, once.
		key = c.name + "/commit"
		insert(t, target, key)
		err = a.Do(ctx, key, func(wctx context.Context, g exclusive.Grant) error {
			wantErr(t, c.name+": Commit whose apply fails", a.Commit(wctx, g, func(ctx context.Context, tx Tx) error {
				must(t, "write", store(target, key, "half")(ctx, tx))
				return errBiz
			}), errBiz)
			wantStored(t, target, key, "nothing")
			wantState(t, target, key, "PROCESSING")
			must(t, c.name+": Commit", a.Commit(wctx, g, store(target, key, "kept")))
			wantErr(t, c.name+": second Commit", a.Commit(ctx, g, store(target, key, "again")), exclusive.ErrInvalid)
			return errBiz
		})
		wantErr(t, c.name+": error after Commit", err, errBiz, exclusive.ErrFinished)
		wantState(t, target, key, "DONE")
		wantStored(t, target, key, "kept")
	}
}

func TestTakeover(t *testing.T) { matrix.Each(t, testTakeover, testTakeover) }

func testTakeover[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target, "k")
	ctx := t.Context()
	cfg := leased(3 * time.Second)
	cfg.NoRenew = true
	a := newTable(t, target, cfg)
	cfg = leased(time.Minute)
	cfg.Wait = time.Minute
	b := newTable(t, target.Another(t, matrix.Options{}), cfg)
	err := a.Do(ctx, "k", func(wctx context.Context, old exclusive.Grant) error {
		must(t, "takeover", b.Do(ctx, "k", func(ctx context.Context, next exclusive.Grant) error {
			if next.Token <= old.Token || next.Attempt != 2 || time.Now().Before(old.Expires) {
				t.Errorf("%+v was taken over by %+v at %v", old, next, time.Now())
			}
			<-wctx.Done()
			wantErr(t, "what ended the old claim", context.Cause(wctx), exclusive.ErrLost)
			// t.Context(): work's has ended.
			wantErr(t, "Commit of the old holder", a.Commit(t.Context(), old, store(target, "k", "A")), exclusive.ErrFenced)
			wantErr(t, "Check of the old holder", inTx(t, target, func(tx Tx) error { return a.Check(t.Context(), tx, old) }), exclusive.ErrFenced)
			return b.Commit(ctx, next, store(target, "k", "B"))
		}))
		wantErr(t, "late Commit", a.Commit(ctx, old, store(target, "k", "A")), exclusive.ErrFenced)
		return nil
	})
	wantErr(t, "Do of the old holder", err, exclusive.ErrLost)
	wantStored(t, target, "k", "B")
	wantState(t, target, "k", "DONE")
}

func TestTransition(t *testing.T) { matrix.Each(t, testTransition, testTransition) }

func testTransition[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	for _, cfg := range []casupdate.Config{bare(), proving()} {
		ctx := t.Context()
		key := fmt.Sprint("k", cfg.TokenColumn)
		insert(t, target, key)
		cfg.VersionColumn = "version"
		cfg.Transitions = []casupdate.Transition{{From: "DONE", To: "PENDING"}, {From: "PENDING", To: "PENDING"}, {From: "PENDING", To: "CANCELED"}, {From: "PROCESSING", To: "PENDING"}}
		x := newTable(t, target, cfg)
		for range 2 {
			must(t, "X to X", x.Transition(ctx, key, "PENDING", "PENDING"))
			must(t, "X to X, setting the same", x.Transition(ctx, key, "PENDING", "PENDING", casupdate.Set{"note": "n"}))
		}
		if v := target.Int(t, "SELECT version FROM job WHERE id = ?", key); v != 4 {
			t.Errorf("version %d after 4 transitions", v)
		}
		wantErr(t, "undeclared", x.Transition(ctx, key, "PENDING", "DONE"), exclusive.ErrInvalid)
		wantErr(t, "no row", x.Transition(ctx, "nowhere", "PENDING", "CANCELED"), exclusive.ErrNoRow)
		err := x.Transition(ctx, key, "DONE", "PENDING")
		wantErr(t, "already there", err, exclusive.ErrDone)
		wantErr(t, "other state", x.Transition(ctx, key, "PROCESSING", "PENDING"), exclusive.ErrDone)

		err = x.Do(ctx, key, func(wctx context.Context, g exclusive.Grant) error {
			wantErr(t, "of a claimed row", x.Transition(ctx, key, "PENDING", "CANCELED"), exclusive.ErrHeld)
			must(t, "an operator's reset", x.Transition(ctx, key, "PROCESSING", "PENDING"))
			wantErr(t, "Commit after it", x.Commit(wctx, g, store(target, key, "late")), exclusive.ErrLost)
			return nil
		})
		wantErr(t, "Do", err, exclusive.ErrLost)
		wantStored(t, target, key, "nothing")

		wantErr(t, "rolled back", inTx(t, target, func(tx Tx) error {
			must(t, "TransitionTx", x.TransitionTx(ctx, tx, key, "PENDING", "CANCELED"))
			return errBiz
		}), errBiz)
		wantState(t, target, key, "PENDING")
		must(t, "committed", inTx(t, target, func(tx Tx) error {
			wantErr(t, "refused in a transaction", x.TransitionTx(ctx, tx, key, "DONE", "PENDING"), exclusive.ErrDone)
			wantErr(t, "no row in a transaction", x.TransitionTx(ctx, tx, "nowhere", "DONE", "PENDING"), exclusive.ErrNoRow)
			return x.TransitionTx(ctx, tx, key, "PENDING", "CANCELED", casupdate.Set{"note": "canceled"})
		}))
		state, err := x.State(ctx, key)
		if err != nil || state != "CANCELED" || text(t, target, "SELECT note FROM job WHERE id = ?", key) != "canceled" {
			t.Errorf("state %q, %v", state, err)
		}
	}
}

func TestVersioned(t *testing.T) { matrix.Each(t, testVersioned, testVersioned) }

func testVersioned[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target, "k")
	ctx := t.Context()
	x, err := casupdate.NewVersioned(target.DB, casupdate.VersionConfig{Table: "job"})
	must(t, "NewVersioned", err)
	v, err := x.Update(ctx, "k", 0, casupdate.Set{"note": "a"})
	if err != nil || v != 1 {
		t.Fatalf("first update: %d, %v", v, err)
	}
	_, err = x.Update(ctx, "k", 0, casupdate.Set{"note": "b"})
	wantErr(t, "stale update", err, exclusive.ErrConflict)
	var e *casupdate.VersionError
	if !errors.As(err, &e) || e.Version != 1 {
		t.Errorf("the version is not told: %v", err)
	}
	_, err = x.Update(ctx, "nowhere", 0, nil)
	wantErr(t, "no row", err, exclusive.ErrNoRow)
	_, err = x.Update(ctx, "k", -1, nil)
	wantErr(t, "negative version", err, exclusive.ErrInvalid)
	_, err = x.Update(ctx, "k", 1, casupdate.Set{"version": 9})
	wantErr(t, "setting the version", err, exclusive.ErrInvalid)
	must(t, "in a transaction", inTx(t, target, func(tx Tx) error {
		_, err := x.UpdateTx(ctx, tx, "k", 7, nil)
		wantErr(t, "stale in a transaction", err, exclusive.ErrConflict)
		v, err := x.UpdateTx(ctx, tx, "k", 1, casupdate.Set{"note": "c"})
		if v != 2 {
			t.Errorf("version %d", v)
		}
		return err
	}))

	// Eight workers add 1 to a number, each until its update gets through. The
	// twin without the version check loses some.
	target.MustExec(t, "UPDATE job SET note = '0', version = 0")
	read := func() (n int, version int64) {
		must(t, "read", target.Plain.QueryRowContext(ctx, "SELECT note, version FROM job").Scan(&n, &version))
		return n, version
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for added := 0; added < 5; {
				n, version := read()
				_, err := x.Update(ctx, "k", version, casupdate.Set{"note": fmt.Sprint(n + 1)})
				if err == nil {
					added++
				} else if !errors.Is(err, exclusive.ErrConflict) {
					t.Errorf("update: %v", err)
					return
				}
			}
		})
	}
	wg.Wait()
	if n, version := read(); n != 40 || version != 40 {
		t.Errorf("%d, version %d, after 40 additions", n, version)
	}
	n, _ := read()
	for range 2 { // both have read before either writes
		target.MustExec(t, "UPDATE job SET note = ?", fmt.Sprint(n+1))
	}
	if n, _ := read(); n != 41 {
		t.Errorf("without the version check %d; one of two additions should be lost", n)
	}
}

func TestKeys(t *testing.T) { matrix.Each(t, testKeys, testKeys) }

func testKeys[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	const id = "123e4567-e89b-12d3-a456-426614174000"
	uuid, binary := map[string]string{"postgres": "uuid", "mysql": "char(36)", "mariadb": "uuid", "sqlite": "text"}[target.Dialect],
		map[string]string{"postgres": "bytea", "mysql": "binary(16)", "mariadb": "binary(16)", "sqlite": "blob"}[target.Dialect]
	const ttl = 6 * time.Second
	var wg sync.WaitGroup
	for i, c := range []struct {
		columns string
		values  string
		key     casupdate.Key
		good    string
		bad     []string
		unique  string
	}{
		{"id bigint NOT NULL", "17", casupdate.Bigint("id"), "17", []string{"017", "+17", "17x", "17.0", "9223372036854775808"}, "id"},
		{"id " + uuid + " NOT NULL", "'" + id + "'", casupdate.UUID("id"), id, []string{"123E4567-e89b-12d3-a456-426614174000", "123e4567e89b12d3a456426614174000", id + "0"}, "id"},
		{"id " + binary + " NOT NULL", map[bool]string{true: `'\x123e4567e89b12d3a456426614174000'`, false: "x'123e4567e89b12d3a456426614174000'"}[target.Dialect == "postgres"], casupdate.UUIDBytes("id"), id, []string{"x"}, "id"},
		{"region varchar(20) NOT NULL, id bigint NOT NULL", "'eu', 17", casupdate.Composite("/", casupdate.Text("region"), casupdate.Bigint("id")), "eu/17", []string{"eu", "eu/17/1", "eu/x"}, "region, id"},
		{"id varchar(20) NOT NULL", "'007'", casupdate.Text("id"), "007", nil, "id"},
	} {
		table := fmt.Sprint("t", i)
		target.MustExec(t, "CREATE TABLE "+table+" ("+c.columns+", state smallint NOT NULL, token bigint, grant_id varchar(64), expires_at bigint, UNIQUE ("+c.unique+"))")
		target.MustExec(t, "INSERT INTO "+table+" VALUES ("+c.values+", 0, NULL, NULL, NULL)")
		cfg := casupdate.Config{Table: table, Key: c.key, From: 0, Claimed: 1, Done: 2,
			TokenColumn: "token", GrantColumn: "grant_id", ExpiresColumn: "expires_at", TTL: ttl}
		x := newTable(t, target, cfg)
		for _, key := range c.bad {
			wantErr(t, "key "+key, x.Do(t.Context(), key, nothing), exclusive.ErrInvalid)
		}
		wg.Go(func() {
			err := x.Do(t.Context(), c.good, func(ctx context.Context, g exclusive.Grant) error {
				select { // held, by renewal, for twice the lease
				case <-ctx.Done():
					return context.Cause(ctx)
				case <-time.After(2 * ttl):
				}
				return inTx(t, target, func(tx Tx) error { return x.Check(ctx, tx, g) })
			})
			if n := target.Int(t, "SELECT state FROM "+table); n != 2 || err != nil {
				t.Errorf("%s: state %d, %v", c.good, n, err)
			}
		})
	}
	wg.Wait()
}

// Names that a collation takes for the same are rows of their own.
func TestExactKeys(t *testing.T) { matrix.Drivers(t, testExactKeys, testExactKeys) }

func testExactKeys[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target, "report")
	x := newTable(t, target, bare())
	for _, key := range []string{"Report", "report ", "r\u00e9port", "re\u0301port"} {
		wantErr(t, key, x.Do(t.Context(), key, nothing), exclusive.ErrNoRow)
	}
	wantState(t, target, "report", "PENDING")
	must(t, "Do", x.Do(t.Context(), "report", nothing))
}

func TestFailed(t *testing.T) { matrix.Drivers(t, testFailed, testFailed) }

func testFailed[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target, "k", "panics", "canceled")
	ctx := t.Context()
	cfg := proving()
	cfg.Failed, cfg.OnFailed = "FAILED", casupdate.Set{"note": "it failed"}
	cfg.Transitions = []casupdate.Transition{{From: "FAILED", To: "PENDING"}}
	x := newTable(t, target, cfg)
	wantErr(t, "failing work", x.Do(ctx, "k", failing), errBiz)
	wantState(t, target, "k", "FAILED")
	wantErr(t, "Do of a failed row", x.Do(ctx, "k", nothing), exclusive.ErrConflict)
	must(t, "retry", x.Transition(ctx, "k", "FAILED", "PENDING"))
	must(t, "Do", x.Do(ctx, "k", nothing))
	wantState(t, target, "k", "DONE")

	func() {
		defer func() {
			if v := recover(); v != 42 {
				t.Errorf("the panic's value is %v", v)
			}
		}()
		_ = x.Do(ctx, "panics", func(context.Context, exclusive.Grant) error { panic(42) })
	}()
	wantState(t, target, "panics", "FAILED")

	cctx, cancel := context.WithCancel(ctx)
	wantErr(t, "canceled work", x.Do(cctx, "canceled", func(ctx context.Context, _ exclusive.Grant) error {
		cancel()
		return ctx.Err()
	}), context.Canceled)
	wantState(t, target, "canceled", "PENDING")
}

// Of many who try at once one gets the row. The twin reads first and writes
// then, and several do.
func TestOneWinner(t *testing.T) { matrix.Drivers(t, testOneWinner, testOneWinner) }

func testOneWinner[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	x := newTable(t, target, bare())
	for round := range 20 {
		key := fmt.Sprint("k", round)
		insert(t, target, key)
		var runs, others atomic.Int64
		var wg sync.WaitGroup
		start := make(chan struct{})
		for range 8 {
			wg.Go(func() {
				<-start
				err := x.Do(t.Context(), key, func(context.Context, exclusive.Grant) error {
					runs.Add(1)
					return nil
				})
				switch {
				case err == nil:
				case errors.Is(err, exclusive.ErrHeld), errors.Is(err, exclusive.ErrDone):
					others.Add(1)
				default:
					t.Errorf("Do: %v", err)
				}
			})
		}
		close(start)
		wg.Wait()
		if runs.Load() != 1 || others.Load() != 7 {
			t.Fatalf("%d ran, %d were refused", runs.Load(), others.Load())
		}
	}
	insert(t, target, "twin")
	ran := 0
	a, b := text(t, target, "SELECT state FROM job WHERE id = 'twin'"), text(t, target, "SELECT state FROM job WHERE id = 'twin'")
	for _, seen := range []string{a, b} {
		if seen == "PENDING" {
			target.MustExec(t, "UPDATE job SET state = 'PROCESSING' WHERE id = 'twin'")
			ran++
		}
	}
	if ran != 2 {
		t.Errorf("read, then write: %d ran; both should", ran)
	}
}
