// Package fencing_test proves package fencing on every driver and server.
package fencing_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/fencing"
	"github.com/exclusive-go/exclusive/integration_test/matrix"
)

// newLeases makes Leases that are closed at the test's end.
func newLeases[Tx any](t *testing.T, target *matrix.Target[Tx], cfg fencing.Config) *fencing.Leases[Tx] {
	t.Helper()
	l, err := fencing.New(target.DB, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// setUp makes the tables of package fencing and one to store results in.
func setUp[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	t.Helper()
	target.Migrate(t, "fencing")
	target.MustExec(t, "CREATE TABLE result (id bigint PRIMARY KEY, body varchar(200) NOT NULL)")
	target.MustExec(t, "INSERT INTO result VALUES (1, 'nothing')")
}

// store writes the result in tx.
func store[Tx any](target *matrix.Target[Tx], body string) func(context.Context, Tx) error {
	return func(ctx context.Context, tx Tx) error {
		return target.Exec(ctx, tx, target.Bind("UPDATE result SET body = ? WHERE id = 1"), body)
	}
}

// stored is what the destination holds.
func stored[Tx any](t *testing.T, target *matrix.Target[Tx]) string {
	t.Helper()
	var body string
	if err := target.Plain.QueryRowContext(t.Context(), "SELECT body FROM result WHERE id = 1").Scan(&body); err != nil {
		t.Fatal(err)
	}
	return body
}

func wantErr(t *testing.T, what string, err error, kinds ...error) {
	t.Helper()
	for _, kind := range kinds {
		if !errors.Is(err, kind) {
			t.Fatalf("%s: %v; want an error that matches %q", what, err, kind)
		}
	}
}

func must(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func acquire(t *testing.T, l exclusive.Leaser, key string) *exclusive.Lease {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	lease, err := l.Acquire(ctx, key)
	must(t, "acquire", err)
	return lease
}

func TestLeaseLifecycle(t *testing.T) { matrix.Each(t, testLeaseLifecycle, testLeaseLifecycle) }

func testLeaseLifecycle[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	ctx := t.Context()
	a := newLeases(t, target, fencing.Config{Holder: "A"})
	b := newLeases(t, target.Another(t, matrix.Options{}), fencing.Config{Holder: "B"})

	lease, err := a.TryAcquire(ctx, "k")
	must(t, "first acquire", err)
	g := lease.Grant()
	if g.Key != "k" || g.Token <= 0 || g.Attempt != 1 || g.ID == "" || time.Until(g.Expires) < 25*time.Second {
		t.Errorf("grant %+v", g)
	}
	_, err = b.TryAcquire(ctx, "k")
	wantErr(t, "acquire of a held key", err, exclusive.ErrHeld)
	var e *exclusive.Error
	if !errors.As(err, &e) || e.Holder == nil || e.Holder.Name != "A" || e.Holder.Token != g.Token || e.Holder.ID != g.ID ||
		time.Until(e.Holder.Expires) < 20*time.Second || time.Since(e.Holder.Since) > 20*time.Second {
		t.Errorf("who holds it is not told: %+v", e)
	}
	must(t, "acquire of another key", b.Do(ctx, "K", func(context.Context, exclusive.Grant) error { return nil }))
	must(t, "renew", lease.Renew(ctx))
	must(t, "renew again within a tick", lease.Renew(ctx))
	if after := lease.Grant(); after.Token != g.Token || !after.Expires.After(g.Expires) {
		t.Errorf("after renewal %+v", after)
	}
	must(t, "release", lease.Release(ctx))
	wantErr(t, "second release", lease.Release(ctx), exclusive.ErrLost)
	wantErr(t, "renewal after release", lease.Renew(ctx), exclusive.ErrLost)
	if err := context.Cause(lease.Context()); !errors.Is(err, context.Canceled) {
		t.Errorf("the lease's context ended with %v", err)
	}
	second, err := b.TryAcquire(ctx, "k")
	must(t, "acquire after release", err)
	if g2 := second.Grant(); g2.Token <= g.Token || g2.Attempt != 1 {
		t.Errorf("after token %d came %+v", g.Token, g2)
	}
	must(t, "release", second.Release(ctx))
}

func TestTakeover(t *testing.T) { matrix.Each(t, testTakeover, testTakeover) }

func testTakeover[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	ctx := t.Context()
	a := newLeases(t, target, fencing.Config{TTL: 3 * time.Second, NoRenew: true})
	b := newLeases(t, target.Another(t, matrix.Options{}), fencing.Config{})
	old := acquire(t, a, "k")
	next := acquire(t, b, "k")
	if g := next.Grant(); g.Token <= old.Grant().Token || g.Attempt != 2 {
		t.Errorf("takeover of %+v got %+v", old.Grant(), g)
	}
	<-old.Context().Done()
	wantErr(t, "what ended the old lease", context.Cause(old.Context()), exclusive.ErrLost)
	wantErr(t, "commit of the old holder", a.Commit(ctx, old.Grant(), store(target, "A")), exclusive.ErrFenced)
	must(t, "commit of the new one", b.Commit(ctx, next.Grant(), store(target, "B")))
	wantErr(t, "second commit", b.Commit(ctx, next.Grant(), store(target, "again")), exclusive.ErrInvalid)
	wantErr(t, "another process's second commit", a.Commit(ctx, next.Grant(), store(target, "again")), exclusive.ErrLost)
	must(t, "release after commit", next.Release(ctx))
	if body := stored(t, target); body != "B" {
		t.Errorf("stored %q", body)
	}
	wantErr(t, "release of the old lease", old.Release(ctx), exclusive.ErrLost)
	third, err := a.TryAcquire(ctx, "k")
	must(t, "acquire after commit", err)
	if g := third.Grant(); g.Token <= next.Grant().Token || g.Attempt != 1 {
		t.Errorf("after a commit came %+v", g)
	}
}

func TestDoCommits(t *testing.T) { matrix.Each(t, testDoCommits, testDoCommits) }

func testDoCommits[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	ctx := t.Context()
	x := newLeases(t, target, fencing.Config{})
	must(t, "do", x.Do(ctx, "k", func(ctx context.Context, g exclusive.Grant) error {
		must(t, "check", inTx(t, target, func(tx Tx) error { return x.Check(ctx, tx, g) }))
		return x.Commit(ctx, g, store(target, "done"))
	}))
	if body := stored(t, target); body != "done" {
		t.Errorf("stored %q", body)
	}
	business := errors.New("business error")
	err := x.Do(ctx, "k", func(ctx context.Context, g exclusive.Grant) error {
		err := x.Commit(ctx, g, func(ctx context.Context, tx Tx) error {
			must(t, "write", store(target, "half")(ctx, tx))
			return business
		})
		wantErr(t, "commit whose apply fails", err, business)
		return err
	})
	wantErr(t, "do", err, business)
	if body := stored(t, target); body != "done" {
		t.Errorf("a failed apply stored %q", body)
	}
	err = x.Do(ctx, "k", func(ctx context.Context, g exclusive.Grant) error {
		if g.Attempt != 2 {
			t.Errorf("attempt %d after one that failed", g.Attempt)
		}
		must(t, "commit", x.Commit(ctx, g, store(target, "kept")))
		must(t, "the context after the commit", ctx.Err())
		wantErr(t, "second commit", x.Commit(ctx, g, store(target, "again")), exclusive.ErrInvalid)
		return business
	})
	wantErr(t, "error after commit", err, business, exclusive.ErrFinished)
	if body := stored(t, target); body != "kept" {
		t.Errorf("stored %q", body)
	}
}

// inTx runs f in a transaction of the application's own.
func inTx[Tx any](t *testing.T, target *matrix.Target[Tx], f func(Tx) error) error {
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

func TestRenewal(t *testing.T) { matrix.Drivers(t, testRenewal, testRenewal) }

func testRenewal[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	ctx := t.Context()
	x := newLeases(t, target, fencing.Config{TTL: 2500 * time.Millisecond})
	rival := newLeases(t, target.Another(t, matrix.Options{}), fencing.Config{})
	var held []*exclusive.Lease
	for i := range 20 {
		held = append(held, acquire(t, x, fmt.Sprint("k", i)))
	}
	end := time.Now().Add(5300 * time.Millisecond)
	for time.Now().Before(end) {
		for i := range held {
			_, err := rival.TryAcquire(ctx, fmt.Sprint("k", i))
			wantErr(t, "acquire of a renewed key", err, exclusive.ErrHeld)
		}
		time.Sleep(150 * time.Millisecond)
	}
	for _, lease := range held {
		must(t, "renewed for long", context.Cause(lease.Context()))
		must(t, "release", lease.Release(ctx))
	}
}

func TestGuard(t *testing.T) { matrix.Each(t, testGuard, testGuard) }

func testGuard[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	guard, err := fencing.NewGuard(target.DB, fencing.GuardConfig{})
	must(t, "new guard", err)
	check := func(token int64, id string) error {
		return inTx(t, target, func(tx Tx) error {
			return guard.Check(t.Context(), tx, exclusive.Grant{Key: "k", ID: id, Token: token})
		})
	}
	must(t, "first", check(5, "a"))
	must(t, "same grant again", check(5, "a"))
	wantErr(t, "equal token of another grant", check(5, "b"), exclusive.ErrFenced)
	wantErr(t, "lower token", check(4, "a"), exclusive.ErrFenced)
	must(t, "greater token", check(6, "b"))
	wantErr(t, "former holder", check(5, "a"), exclusive.ErrFenced)
	for _, token := range []int64{0, -1, 1<<63 - 1} {
		wantErr(t, fmt.Sprint("token ", token), check(token, "c"), exclusive.ErrInvalid)
	}
	must(t, "commit", guard.Commit(t.Context(), exclusive.Grant{Key: "k", ID: "b", Token: 6}, store(target, "b")))
	wantErr(t, "second commit", guard.Commit(t.Context(), exclusive.Grant{Key: "k", ID: "b", Token: 6}, store(target, "again")), exclusive.ErrInvalid)
	wantErr(t, "check after commit", check(6, "b"), exclusive.ErrInvalid)
	must(t, "next holder", check(7, "c"))
	if body := stored(t, target); body != "b" {
		t.Errorf("stored %q", body)
	}
}

func TestRowGuard(t *testing.T) { matrix.Each(t, testRowGuard, testRowGuard) }

func testRowGuard[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	target.MustExec(t, "CREATE TABLE account (region varchar(20) NOT NULL, id bigint NOT NULL, fence_token bigint, fence_grant varchar(64), PRIMARY KEY (region, id))")
	target.MustExec(t, "INSERT INTO account (region, id) VALUES ('eu', 7)")
	guard, err := fencing.NewRowGuard(target.DB, fencing.RowConfig{Table: "account", KeyColumns: []string{"region", "id"}})
	must(t, "new guard", err)
	check := func(token int64, grant string, id ...any) error {
		return inTx(t, target, func(tx Tx) error {
			return guard.Check(t.Context(), tx, exclusive.Grant{Key: "k", ID: grant, Token: token}, id...)
		})
	}
	must(t, "first", check(5, "a", "eu", 7))
	must(t, "same grant again", check(5, "a", "eu", 7))
	wantErr(t, "equal token of another grant", check(5, "b", "eu", 7), exclusive.ErrFenced)
	must(t, "greater token", check(6, "b", "eu", int64(7)))
	wantErr(t, "former holder", check(5, "a", "eu", 7), exclusive.ErrFenced)
	wantErr(t, "no such row", check(7, "c", "us", 7), exclusive.ErrNoRow)
	wantErr(t, "one value short", check(7, "c", "eu"), exclusive.ErrInvalid)
	wantErr(t, "a float", check(7, "c", "eu", 7.0), exclusive.ErrInvalid)
	if token := target.Int(t, "SELECT fence_token FROM account"); token != 6 {
		t.Errorf("stored token %d", token)
	}
	// A trigger hides an answer through LAST_INSERT_ID.
	if target.Dialect == "mysql" || target.Dialect == "mariadb" {
		target.MustExec(t, "CREATE TRIGGER audit BEFORE UPDATE ON account FOR EACH ROW SET @audit = NEW.id")
		must(t, "greater token on a table with a trigger", check(7, "c", "eu", 7))
		must(t, "same grant again on a table with a trigger", check(7, "c", "eu", 7))
		wantErr(t, "former holder on a table with a trigger", check(6, "b", "eu", 7), exclusive.ErrFenced)
	}
}

func TestOnce(t *testing.T) { matrix.Each(t, testOnce, testOnce) }

func testOnce[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	ctx := t.Context()
	guard, err := fencing.NewGuard(target.DB, fencing.GuardConfig{})
	must(t, "new guard", err)
	runs := 0
	once := func(opID, payload, result string, fail error) (string, error) {
		var out []byte
		err := inTx(t, target, func(tx Tx) error {
			var err error
			out, err = guard.Once(ctx, tx, opID, []byte(payload), func(ctx context.Context) ([]byte, error) {
				runs++
				if err := store(target, result)(ctx, tx); err != nil {
					return nil, err
				}
				return []byte(result), fail
			})
			if fail != nil && errors.Is(err, fail) {
				return nil // the caller commits although apply failed
			}
			return err
		})
		return string(out), err
	}
	_, err = once("op", "p", "bad", errors.New("failed"))
	must(t, "commit after a failed apply", err)
	if body := stored(t, target); body != "nothing" {
		t.Errorf("a failed apply left %q", body)
	}
	out, err := once("op", "p", "good", nil)
	must(t, "first success", err)
	again, err := once("op", "p", "other", nil)
	must(t, "replay", err)
	if out != "good" || again != "good" || runs != 2 || stored(t, target) != "good" {
		t.Errorf("%q, %q after %d runs, stored %q", out, again, runs, stored(t, target))
	}
	_, err = once("op", "q", "other", nil)
	wantErr(t, "other payload", err, exclusive.ErrMismatch)
	if out, err := once("empty", "", "", nil); out != "" || err != nil {
		t.Errorf("empty result %q, %v", out, err)
	}
	if out, err := once("empty", "", "x", nil); out != "" || err != nil {
		t.Errorf("empty result replayed as %q, %v", out, err)
	}
	// Twenty callers at once: one applies, all get its result.
	runs = 0
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			for {
				var out []byte
				err := inTx(t, target, func(tx Tx) error {
					var err error
					out, err = guard.Once(ctx, tx, "race", nil, func(context.Context) ([]byte, error) {
						mu.Lock()
						defer mu.Unlock()
						runs++
						return []byte("r"), nil
					})
					return err
				})
				if errors.Is(err, exclusive.ErrConflict) {
					continue // as documented
				}
				if err != nil || string(out) != "r" {
					t.Errorf("racing Once: %q, %v", out, err)
				}
				return
			}
		})
	}
	wg.Wait()
	if n := target.Int(t, "SELECT COUNT(*) FROM exclusive_op"); n != 3 {
		t.Errorf("%d operations are stored", n)
	}
}

func TestAdvance(t *testing.T) { matrix.Drivers(t, testAdvance, testAdvance) }

func testAdvance[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	ctx := t.Context()
	x := newLeases(t, target, fencing.Config{})
	for _, key := range []string{"new", "known"} {
		if key == "known" {
			must(t, "do", x.Do(ctx, key, func(context.Context, exclusive.Grant) error { return nil }))
		}
		must(t, "advance", x.Advance(ctx, key, 5000))
		must(t, "advance to less", x.Advance(ctx, key, 17))
		lease := acquire(t, x, key)
		if token := lease.Grant().Token; token != 5001 {
			t.Errorf("%s: token %d after Advance to 5000", key, token)
		}
		must(t, "release", lease.Release(ctx))
	}
	for _, n := range []int64{0, -1, 1<<63 - 1} {
		wantErr(t, "advance", x.Advance(ctx, "new", n), exclusive.ErrInvalid)
	}
}
