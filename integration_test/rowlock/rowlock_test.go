// Package rowlock_test proves package rowlock on every driver and server.
package rowlock_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/integration_test/matrix"
	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/rowlock"
)

func newLocks[Tx any](t testing.TB, target *matrix.Target[Tx], cfg rowlock.Config) *rowlock.Locks[Tx] {
	t.Helper()
	l, err := rowlock.New(target.DB, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// setUp makes our table, and one to store results in.
func setUp[Tx any](t testing.TB, target *matrix.Target[Tx]) {
	t.Helper()
	target.Migrate(t, "rowlock")
	target.MustExec(t, "CREATE TABLE result (id bigint PRIMARY KEY, n bigint NOT NULL)")
	target.MustExec(t, "INSERT INTO result VALUES (1, 0)")
}

// store writes n in tx.
func store[Tx any](target *matrix.Target[Tx], n int) func(context.Context, Tx) error {
	return func(ctx context.Context, tx Tx) error {
		return target.Exec(ctx, tx, target.Bind("UPDATE result SET n = ? WHERE id = 1"), n)
	}
}

func wantStored[Tx any](t testing.TB, target *matrix.Target[Tx], want int64) {
	t.Helper()
	if n := target.Int(t, "SELECT n FROM result WHERE id = 1"); n != want {
		t.Errorf("%d is stored, want %d", n, want)
	}
}

// wantErr wants err to match each of kinds.
func wantErr(t testing.TB, what string, err error, kinds ...error) {
	t.Helper()
	for _, kind := range kinds {
		if !errors.Is(err, kind) {
			t.Errorf("%s: %v; want an error that matches %q", what, err, kind)
		}
	}
}

func must(t testing.TB, what string, err error) {
	t.Helper()
	if err != nil {
		t.Errorf("%s: %v", what, err)
	}
}

func nothing(context.Context, exclusive.Grant) error { return nil }

func mustNotRun(t testing.TB) exclusive.Work {
	return func(context.Context, exclusive.Grant) error {
		t.Error("work ran")
		return nil
	}
}

// free wants the key to be free at once, and no connection to be in use.
func free[Tx any](t testing.TB, target *matrix.Target[Tx], l *rowlock.Locks[Tx], key string) {
	t.Helper()
	must(t, "do with a free key", l.Do(t.Context(), key, nothing))
	target.Idle(t)
}

func TestDo(t *testing.T) { matrix.Each(t, testDo, testDo) }

func testDo[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	ctx := t.Context()
	a := newLocks(t, target, rowlock.Config{})
	b := newLocks(t, target.Another(t, matrix.Options{}), rowlock.Config{})
	seen := make(map[string]bool)
	for range 3 {
		must(t, "do", a.Do(ctx, "k", func(ctx context.Context, g exclusive.Grant) error {
			if g.Key != "k" || g.ID == "" || seen[g.ID] || g.Token != 0 || g.Attempt != 1 || !g.Expires.IsZero() {
				t.Errorf("grant %+v", g)
			}
			seen[g.ID] = true
			started := time.Now()
			wantErr(t, "a rival", b.Do(ctx, "k", mustNotRun(t)), exclusive.ErrHeld)
			if passed := time.Since(started); passed > 10*time.Second {
				t.Errorf("the rival was refused after %v", passed)
			}
			err := a.Do(ctx, "k", mustNotRun(t))
			wantErr(t, "the holder itself", err, exclusive.ErrHeld)
			var e *exclusive.Error
			if !errors.As(err, &e) || e.Holder == nil || e.Holder.ID != g.ID || e.Holder.Since.IsZero() {
				t.Errorf("the holder is not told: %v", err)
			}
			if target.Networked() {
				must(t, "another key", b.Do(ctx, "K", nothing))
			} else {
				wantErr(t, "another key", b.Do(ctx, "K", mustNotRun(t)), exclusive.ErrHeld)
			}
			return nil
		}))
		must(t, "do by the rival", b.Do(ctx, "k", nothing))
	}
	broken := errors.New("work failed")
	wantErr(t, "failing work", a.Do(ctx, "k", func(context.Context, exclusive.Grant) error { return broken }), broken)
	free(t, target, a, "k")
}

func TestCommit(t *testing.T) { matrix.Each(t, testCommit, testCommit) }

func testCommit[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	ctx := t.Context()
	x := newLocks(t, target, rowlock.Config{})
	rival := newLocks(t, target.Another(t, matrix.Options{}), rowlock.Config{})
	business := errors.New("business error")
	var old exclusive.Grant
	must(t, "do", x.Do(ctx, "k", func(wctx context.Context, g exclusive.Grant) error {
		old = g
		err := x.Commit(wctx, g, func(ctx context.Context, tx Tx) error {
			must(t, "write", store(target, 1)(ctx, tx))
			return business
		})
		wantErr(t, "commit whose apply fails", err, business)
		wantErr(t, "a rival after a failed apply", rival.Do(ctx, "k", mustNotRun(t)), exclusive.ErrHeld)
		must(t, "work's context after a failed apply", wctx.Err())
		wantStored(t, target, 0)
		err = x.Commit(wctx, g, func(ctx context.Context, tx Tx) error {
			must(t, "check", x.Check(ctx, tx, g))
			wantErr(t, "commit inside a commit", x.Commit(ctx, g, store(target, 9)), exclusive.ErrInvalid)
			return store(target, 2)(ctx, tx)
		})
		must(t, "commit", err)
		wantStored(t, target, 2)
		must(t, "work's context after the commit", wctx.Err())
		must(t, "a rival after the commit", rival.Do(ctx, "k", nothing))
		wantErr(t, "second commit", x.Commit(ctx, g, store(target, 3)), exclusive.ErrInvalid)
		return nil
	}))
	wantStored(t, target, 2)
	wantErr(t, "commit after do", x.Commit(ctx, old, store(target, 4)), exclusive.ErrLost)
	wantErr(t, "error after commit", x.Do(ctx, "k", func(ctx context.Context, g exclusive.Grant) error {
		must(t, "commit", x.Commit(ctx, g, store(target, 5)))
		return business
	}), business, exclusive.ErrFinished)
	wantStored(t, target, 5)
	free(t, target, x, "k")
}

func TestCheckOfAnotherTransaction(t *testing.T) {
	matrix.Drivers(t, testCheckOfAnotherTransaction, testCheckOfAnotherTransaction)
}

func testCheckOfAnotherTransaction[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	x := newLocks(t, target, rowlock.Config{})
	var old exclusive.Grant
	check := func(ctx context.Context, g exclusive.Grant) error {
		tx, err := target.BeginPast(ctx)
		if err != nil {
			return err
		}
		return errors.Join(x.Check(ctx, tx, g), target.DB.Rollback(tx))
	}
	must(t, "do", x.Do(t.Context(), "k", func(ctx context.Context, g exclusive.Grant) error {
		old = g
		wantErr(t, "check of a transaction without the lock", check(ctx, g), exclusive.ErrUnsupported)
		return nil
	}))
	wantErr(t, "check of a former grant", check(t.Context(), old), exclusive.ErrLost)
	wantErr(t, "check of a grant without an id", check(t.Context(), exclusive.Grant{Key: "k"}), exclusive.ErrInvalid)
	var none Tx
	wantErr(t, "check of no transaction", x.Check(t.Context(), none, old), exclusive.ErrInvalid)
}

func TestRun(t *testing.T) { matrix.Each(t, testRun, testRun) }

// testRun reads, lets others run, and writes: what is lost without a lock.
func testRun[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	const workers, rounds = 8, 10
	increment := func(ctx context.Context, tx Tx) error {
		r, err := target.DB.Within(tx)
		if err != nil {
			return err
		}
		var n int64
		err = r.Query(ctx, "SELECT n FROM result WHERE id = 1", nil, func(scan db.Scan) error { return scan(&n) })
		if err != nil {
			return err
		}
		runtime.Gosched()
		return store(target, int(n)+1)(ctx, tx)
	}
	pools := []*rowlock.Locks[Tx]{
		newLocks(t, target, rowlock.Config{Wait: time.Minute}),
		newLocks(t, target.Another(t, matrix.Options{}), rowlock.Config{Wait: time.Minute}),
	}
	var wg sync.WaitGroup
	for i := range workers {
		wg.Go(func() {
			for range rounds {
				must(t, "run", pools[i%2].Run(t.Context(), "k", func(ctx context.Context, tx Tx, _ exclusive.Grant) error {
					return increment(ctx, tx)
				}))
			}
		})
	}
	wg.Wait()
	wantStored(t, target, workers*rounds)
	if !target.Networked() {
		return // SQLite runs transactions that write one after the other anyway
	}
	// The twin: all have read before one writes.
	target.MustExec(t, "UPDATE result SET n = 0 WHERE id = 1")
	var read sync.WaitGroup
	read.Add(workers)
	for range workers {
		wg.Go(func() {
			n := target.Int(t, "SELECT n FROM result WHERE id = 1")
			read.Done()
			read.Wait()
			target.MustExec(t, "UPDATE result SET n = ? WHERE id = 1", n+1)
		})
	}
	wg.Wait()
	if n := target.Int(t, "SELECT n FROM result WHERE id = 1"); n == workers {
		t.Error("without the lock nothing was lost: the test proves nothing")
	}
}

func TestWait(t *testing.T) { matrix.Drivers(t, testWait, testWait) }

func testWait[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	ctx := t.Context()
	a := newLocks(t, target, rowlock.Config{})
	far := target.Another(t, matrix.Options{})
	short := newLocks(t, far, rowlock.Config{Wait: 150 * time.Millisecond})
	long := newLocks(t, far, rowlock.Config{Wait: time.Minute})
	next := make(chan error, 1)
	must(t, "do", a.Do(ctx, "k", func(ctx context.Context, _ exclusive.Grant) error {
		started := time.Now()
		wantErr(t, "a wait that is too short", short.Do(ctx, "k", mustNotRun(t)), exclusive.ErrHeld)
		if passed := time.Since(started); passed < 150*time.Millisecond {
			t.Errorf("waited %v", passed)
		}
		cctx, cancel := context.WithCancel(ctx)
		done := make(chan error)
		go func() { done <- long.Do(cctx, "k", mustNotRun(t)) }()
		time.Sleep(50 * time.Millisecond) // it waits by now, or will find the context ended
		cancel()
		cancelled := time.Now()
		err := <-done
		wantErr(t, "a wait that is cancelled", err, context.Canceled)
		if errors.Is(err, exclusive.ErrHeld) || time.Since(cancelled) > 5*time.Second { // lib/pq connects anew to cancel
			t.Errorf("%v after the cancellation: %v", time.Since(cancelled), err)
		}
		dctx, dcancel := context.WithTimeout(ctx, 50*time.Millisecond)
		defer dcancel()
		err = long.Do(dctx, "k", mustNotRun(t))
		wantErr(t, "a wait whose deadline passes", err, context.DeadlineExceeded)
		if errors.Is(err, exclusive.ErrHeld) {
			t.Errorf("a deadline is told as %v", err)
		}
		go func() { next <- long.Do(t.Context(), "k", nothing) }()
		return nil
	}))
	must(t, "a wait that is long enough", <-next)
	// Nobody who has given up may take the row later.
	for range 5 {
		must(t, "do", a.Do(ctx, "k", nothing))
	}
}

func TestDoAll(t *testing.T) { matrix.Drivers(t, testDoAll, testDoAll) }

func testDoAll[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	ctx := t.Context()
	x := newLocks(t, target, rowlock.Config{})
	rival := newLocks(t, target.Another(t, matrix.Options{}), rowlock.Config{})
	must(t, "do all", x.DoAll(ctx, []string{"b", "a", "c"}, func(ctx context.Context, grants []exclusive.Grant) error {
		if len(grants) != 3 || grants[0].Key != "b" || grants[1].Key != "a" || grants[2].Key != "c" {
			t.Errorf("grants %+v", grants)
		}
		for _, key := range []string{"a", "b", "c"} {
			wantErr(t, "a rival", rival.Do(ctx, key, mustNotRun(t)), exclusive.ErrHeld)
		}
		return x.Commit(ctx, grants[1], store(target, 1))
	}))
	wantStored(t, target, 1)
	must(t, "the rival", rival.Do(ctx, "a", func(ctx context.Context, _ exclusive.Grant) error {
		wantErr(t, "one key of two is held", x.DoAll(ctx, []string{"b", "a"}, func(context.Context, []exclusive.Grant) error {
			t.Error("work ran")
			return nil
		}), exclusive.ErrHeld)
		if target.Networked() {
			must(t, "a key that was locked before the refusal", x.Do(ctx, "b", nothing))
		}
		return nil
	}))
	// Opposite orders do not deadlock.
	patient := []*rowlock.Locks[Tx]{
		newLocks(t, target, rowlock.Config{Wait: time.Minute}),
		newLocks(t, target.Another(t, matrix.Options{}), rowlock.Config{Wait: time.Minute}),
	}
	var inside, runs atomic.Int64
	var wg sync.WaitGroup
	for i := range 4 {
		keys := [][]string{{"m", "n"}, {"n", "m"}}[i%2]
		wg.Go(func() {
			for range 10 {
				must(t, "do all", patient[i/2].DoAll(ctx, keys, func(context.Context, []exclusive.Grant) error {
					if inside.Add(1) != 1 {
						t.Error("overlap")
					}
					runs.Add(1)
					inside.Add(-1)
					return nil
				}))
			}
		})
	}
	wg.Wait()
	if n := runs.Load(); n != 40 {
		t.Errorf("work ran %d times", n)
	}
	for _, keys := range [][]string{nil, {"a", ""}, {"a", "a"}} {
		wantErr(t, fmt.Sprintf("keys %q", keys), x.DoAll(ctx, keys, func(context.Context, []exclusive.Grant) error { return nil }), exclusive.ErrInvalid)
	}
	free(t, target, x, "a")
}

func TestPanicAndGoexit(t *testing.T) { matrix.Drivers(t, testPanicAndGoexit, testPanicAndGoexit) }

func testPanicAndGoexit[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	x := newLocks(t, target, rowlock.Config{})
	half := func(end func()) map[string]func() error {
		in := func(ctx context.Context, tx Tx) error {
			must(t, "write", store(target, 7)(ctx, tx))
			end()
			return nil
		}
		return map[string]func() error{
			"do": func() error {
				return x.Do(t.Context(), "k", func(context.Context, exclusive.Grant) error { end(); return nil })
			},
			"run": func() error {
				return x.Run(t.Context(), "k", func(ctx context.Context, tx Tx, _ exclusive.Grant) error { return in(ctx, tx) })
			},
			"commit": func() error {
				return x.Do(t.Context(), "k", func(ctx context.Context, g exclusive.Grant) error { return x.Commit(ctx, g, in) })
			},
		}
	}
	for what, do := range half(func() { panic(42) }) {
		func() {
			defer func() {
				if got := recover(); got != 42 {
					t.Errorf("%s: the panic became %v", what, got)
				}
			}()
			_ = do()
		}()
		free(t, target, x, "k")
	}
	for _, do := range half(runtime.Goexit) {
		var exited sync.WaitGroup
		exited.Go(func() { _ = do() })
		exited.Wait()
		free(t, target, x, "k")
	}
	// Work that recovers from apply's panic has no lock any more.
	err := x.Do(t.Context(), "k", func(ctx context.Context, g exclusive.Grant) error {
		defer func() { _ = recover() }()
		return x.Commit(ctx, g, func(ctx context.Context, tx Tx) error {
			must(t, "write", store(target, 8)(ctx, tx))
			panic(42)
		})
	})
	wantErr(t, "do whose work hides apply's panic", err, exclusive.ErrLost)
	wantStored(t, target, 0)
	free(t, target, x, "k")
}
