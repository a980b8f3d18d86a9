package fencing_test

import (
	"bytes"
	"cmp"
	"context"
	"database/sql/driver"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/fencing"
	"github.com/exclusive-go/exclusive/integration_test/matrix"
	"github.com/exclusive-go/exclusive/integration_test/proxy"
	"github.com/exclusive-go/exclusive/internal/db"
)

// through puts a proxy between a new pool of target and its server.
func through[Tx any](t *testing.T, target *matrix.Target[Tx]) (*matrix.Target[Tx], *proxy.Proxy) {
	t.Helper()
	p := proxy.Start(t, target.Addr(t))
	return target.Another(t, matrix.Options{Addr: p.Addr()}), p
}

// freeWithin fails unless l gets key before d has passed.
func freeWithin(t *testing.T, l exclusive.Leaser, key string, d time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	lease, err := l.Acquire(ctx, key)
	if err != nil {
		t.Fatalf("%q is not free within %v: %v", key, d, err)
	}
	must(t, "release", lease.Release(t.Context()))
}

func nothing(context.Context, exclusive.Grant) error { return nil }

// A release reaches the server although the caller's context is over.
func TestReleaseAfterCancellation(t *testing.T) {
	matrix.Drivers(t, testReleaseAfterCancellation, testReleaseAfterCancellation)
}

func testReleaseAfterCancellation[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	x := newLeases(t, target, fencing.Config{TTL: 10 * time.Minute})
	rival := newLeases(t, target.Another(t, matrix.Options{}), fencing.Config{})

	ctx, cancel := context.WithCancel(t.Context())
	err := x.Do(ctx, "k", func(ctx context.Context, _ exclusive.Grant) error { cancel(); return ctx.Err() })
	wantErr(t, "cancelled in work", err, context.Canceled)
	freeWithin(t, rival, "k", 20*time.Second)

	// Where a deadline strikes before work begins, what of the acquire comes late
	// is given back a little later.
	ran := false
	for d := 50 * time.Millisecond; !ran; d *= 4 {
		ctx, cancel := context.WithTimeout(t.Context(), d)
		err = x.Do(ctx, "k", func(ctx context.Context, _ exclusive.Grant) error { ran = true; <-ctx.Done(); return ctx.Err() })
		cancel()
		freeWithin(t, rival, "k", 20*time.Second)
	}
	wantErr(t, "deadline in work", err, context.DeadlineExceeded)

	ctx, cancel = context.WithCancel(t.Context())
	err = x.Do(ctx, "k", func(context.Context, exclusive.Grant) error { cancel(); return nil })
	wantErr(t, "cancelled before work returns nil", err, context.Canceled)
	freeWithin(t, rival, "k", 20*time.Second)

	for name, unwind := range map[string]func(){"panic": func() { panic("boom") }, "exit": runtime.Goexit} {
		var recovered any
		var wg sync.WaitGroup
		wg.Go(func() {
			defer func() { recovered = recover() }()
			_ = x.Do(t.Context(), "k", func(context.Context, exclusive.Grant) error { unwind(); return nil })
		})
		wg.Wait()
		if name == "panic" && recovered != "boom" {
			t.Errorf("recovered %v", recovered)
		}
		freeWithin(t, rival, "k", 20*time.Second)
	}
	// The same inside the transaction of a Commit.
	func() {
		defer func() {
			if r := recover(); r != "boom" {
				t.Errorf("recovered %v", r)
			}
		}()
		_ = x.Do(t.Context(), "k", func(ctx context.Context, g exclusive.Grant) error {
			return x.Commit(ctx, g, func(ctx context.Context, tx Tx) error {
				must(t, "write", store(target, "half")(ctx, tx))
				panic("boom")
			})
		})
	}()
	freeWithin(t, rival, "k", 20*time.Second)
	if body := stored(t, target); body != "nothing" {
		t.Errorf("a panic stored %q", body)
	}
	target.Idle(t)
}

// Renewal and release may cross: the release is what counts.
func TestRenewalRacesRelease(t *testing.T) {
	matrix.Drivers(t, testRenewalRacesRelease, testRenewalRacesRelease)
}

func testRenewalRacesRelease[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	ctx := t.Context()
	x := newLeases(t, target, fencing.Config{})
	for range 100 {
		lease := acquire(t, x, "k")
		stop := make(chan struct{})
		var renewing sync.WaitGroup
		renewing.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					if err := lease.Renew(ctx); err != nil && !errors.Is(err, exclusive.ErrLost) {
						t.Errorf("renew: %v", err)
					}
				}
			}
		})
		time.Sleep(rand.N(3 * time.Millisecond)) // work
		must(t, "release", lease.Release(ctx))
		next, err := x.TryAcquire(ctx, "k")
		must(t, "acquire right after release", err)
		close(stop)
		renewing.Wait()
		must(t, "release", next.Release(ctx))
	}
}

// A release waits for a renewal that is under way, which would have the row locked
// after it. One that takes too long is overtaken, and does no harm.
func TestReleaseWaitsForItsRenewal(t *testing.T) {
	matrix.Drivers(t, testReleaseWaitsForItsRenewal, testReleaseWaitsForItsRenewal, "postgres", "mysql", "mariadb")
}

func testReleaseWaitsForItsRenewal[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	ctx := t.Context()
	far, p := through(t, target)
	x := newLeases(t, far, fencing.Config{NoRenew: true})
	rival := newLeases(t, target, fencing.Config{})
	must(t, "acquire", acquire(t, rival, "other").Release(ctx)) // it is connected, and knows the server
	for name, late := range map[string]bool{"in time": false, "late": true} {
		t.Run(name, func(t *testing.T) {
			lease := acquire(t, x, "k")
			id := []byte(lease.Grant().ID)
			digits := []byte(hex.EncodeToString(id))
			var sent atomic.Int64
			asked, arrive := make(chan struct{}), make(chan struct{})
			arrives := sync.OnceFunc(func() { close(arrive) })
			t.Cleanup(arrives) // or the proxy, and with it the test, would wait for ever
			p.Intercept(func(data []byte) proxy.Verdict {
				if bytes.Contains(data, id) || bytes.Contains(bytes.ToLower(data), digits) {
					if sent.Add(1) == 1 {
						close(asked)
						<-arrive // the renewal, which was sent first
					}
				}
				return proxy.Pass
			})
			defer p.Intercept(nil)
			renewed, released := make(chan error, 1), make(chan error, 1)
			go func() { renewed <- lease.Renew(ctx) }()
			<-asked
			began := time.Now()
			go func() { released <- lease.Release(ctx) }()
			<-lease.Context().Done() // Release has begun
			if late {
				must(t, "release", <-released)
			} else if n := sent.Load(); n != 1 && time.Since(began) < 200*time.Millisecond { // for which Release waits
				t.Errorf("%d statements were sent before the renewal was answered", n)
			}
			arrives()
			if !late {
				must(t, "release", <-released)
			}
			next, err := rival.TryAcquire(ctx, "k")
			must(t, "acquire right after release", err)
			wantErr(t, "the renewal", <-renewed, exclusive.ErrLost)
			must(t, "release", next.Release(ctx))
		})
	}
}

// The holder's context ends before anybody else has the key, also when its
// network is gone without a word.
func TestLossIsKnownBeforeTakeover(t *testing.T) {
	matrix.Drivers(t, testLossIsKnownBeforeTakeover, testLossIsKnownBeforeTakeover)
}

func testLossIsKnownBeforeTakeover[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	if !target.Networked() {
		return
	}
	setUp(t, target)
	far, p := through(t, target)
	const ttl = 4 * time.Second
	x := newLeases(t, far, fencing.Config{TTL: ttl})
	rival := newLeases(t, target, fencing.Config{})
	lease := acquire(t, x, "k")
	ended := make(chan time.Time, 1)
	context.AfterFunc(lease.Context(), func() { ended <- time.Now() })
	time.Sleep(ttl + ttl/10) // it is renewed meanwhile
	must(t, "renewed", lease.Context().Err())
	p.Intercept(func([]byte) proxy.Verdict { return proxy.Swallow })
	next := acquire(t, rival, "k")
	taken := time.Now()
	select {
	case at := <-ended:
		if at.After(taken) {
			t.Errorf("told %v after the takeover", at.Sub(taken))
		}
	default:
		t.Error("the holder does not know that the key was taken over")
	}
	wantErr(t, "the holder's context", context.Cause(lease.Context()), exclusive.ErrLost)
	if next.Grant().Token <= lease.Grant().Token {
		t.Errorf("token %d after %d", next.Grant().Token, lease.Grant().Token)
	}
}

// One broken connection is no loss.
func TestBrokenConnectionIsNoLoss(t *testing.T) {
	matrix.Drivers(t, testBrokenConnectionIsNoLoss, testBrokenConnectionIsNoLoss)
}

func testBrokenConnectionIsNoLoss[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	if !target.Networked() {
		return
	}
	setUp(t, target)
	far, p := through(t, target)
	var seen renewals
	// A third of it passes until a renewal; the rest is for a new connection, which
	// takes its time on a busy machine.
	x := newLeases(t, far, fencing.Config{TTL: 9 * time.Second, Observer: &seen})
	lease := acquire(t, x, "k")
	token := lease.Grant().Token
	for range 4 { // longer than the lease
		p.Cut()
		before, _ := seen.count()
		for renewed := before; renewed == before; renewed, _ = seen.count() {
			must(t, "the lease", context.Cause(lease.Context()))
			time.Sleep(10 * time.Millisecond)
		}
	}
	p.Cut()
	must(t, "release", lease.Release(t.Context()))
	if lease.Grant().Token != token {
		t.Error("renewal changed the token")
	}
}

// What an operator or a takeover does to the row is noticed at the next renewal.
func TestRowTakenAway(t *testing.T) { matrix.Drivers(t, testRowTakenAway, testRowTakenAway) }

func testRowTakenAway[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	for name, statement := range map[string]string{
		"deleted":  "DELETE FROM exclusive_lease WHERE grant_id = ?",
		"released": "UPDATE exclusive_lease SET attempt = 0, expires_at = 0 WHERE grant_id = ?",
		"taken":    "UPDATE exclusive_lease SET grant_id = 'other' WHERE grant_id = ?",
	} {
		t.Run(name, func(t *testing.T) {
			x := newLeases(t, target, fencing.Config{TTL: 3 * time.Second})
			var seen error
			err := x.Do(t.Context(), name, func(ctx context.Context, g exclusive.Grant) error {
				target.MustExec(t, statement, g.ID)
				<-ctx.Done()
				seen = context.Cause(ctx)
				return nil
			})
			wantErr(t, "what work sees", seen, exclusive.ErrLost)
			wantErr(t, "Do, although work returned nil", err, exclusive.ErrLost)
			if name == "deleted" && target.Int(t, "SELECT COUNT(*) FROM exclusive_lease WHERE lease_key = 'deleted'") != 0 {
				t.Error("renewal or release made the row again")
			}
		})
	}
}

// A COMMIT loses its answer as the server goes away for a moment: the Commit asks
// what became of it when the server is back.
func TestCommitUnansweredInARestart(t *testing.T) {
	matrix.Drivers(t, testCommitUnansweredInARestart, testCommitUnansweredInARestart, "postgres", "mysql", "mariadb")
}

func testCommitUnansweredInARestart[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	ctx := t.Context()
	far, p := through(t, target)
	x := newLeases(t, far, fencing.Config{NoRenew: true})
	for verdict, want := range map[proxy.Verdict]error{proxy.CutAfter: nil, proxy.Cut: exclusive.ErrConflict} {
		lease := acquire(t, x, "k")
		var away, over atomic.Bool
		back := make(chan error, 1)
		p.Intercept(func(data []byte) proxy.Verdict {
			switch {
			case away.Load():
				return proxy.Cut // connections from before
			case !proxy.IsCommit(data):
				return proxy.Pass
			}
			away.Store(true)
			again := p.Refuse()
			time.AfterFunc(time.Second, func() {
				over.Store(true)
				p.Intercept(nil)
				back <- again()
			})
			return verdict
		})
		body := fmt.Sprint("verdict ", verdict)
		err := x.Commit(ctx, lease.Grant(), store(target, body))
		if !away.Load() {
			t.Fatal("no COMMIT was seen")
		}
		if !over.Load() {
			t.Errorf("arrived %v: the Commit did not wait for the server", want == nil)
		}
		must(t, "listen again", <-back)
		if !errors.Is(err, want) {
			t.Errorf("arrived %v: %v; want %v", want == nil, err, want)
		}
		if now := stored(t, target); (now == body) != (want == nil) {
			t.Errorf("arrived %v: stored %q", want == nil, now)
		}
		if want != nil {
			must(t, "release", lease.Release(ctx))
		}
	}
}

// One row locked by somebody must not keep the others from being renewed.
func TestLockedRowDoesNotStopOthers(t *testing.T) {
	matrix.Drivers(t, testLockedRowDoesNotStopOthers, testLockedRowDoesNotStopOthers)
}

func testLockedRowDoesNotStopOthers[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	if !target.Networked() {
		return // SQLite locks the database, not rows
	}
	setUp(t, target)
	ctx := t.Context()
	x := newLeases(t, target, fencing.Config{TTL: 5 * time.Second})
	var others []*exclusive.Lease
	locked := acquire(t, x, "locked")
	for i := range 10 {
		others = append(others, acquire(t, x, fmt.Sprint("k", i)))
	}
	tx, err := target.BeginPast(ctx)
	must(t, "begin", err)
	must(t, "check", x.Check(ctx, tx, locked.Grant()))
	<-locked.Context().Done() // the transaction was longer than the lease
	time.Sleep(time.Second)   // and than it lasts on the server
	// Nobody can have the key as long as the transaction lives.
	rival := newLeases(t, target.Another(t, matrix.Options{}), fencing.Config{})
	short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	if _, err := rival.Acquire(short, "locked"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a key whose holder's check still holds: %v", err)
	}
	must(t, "write in the checked transaction", store(target, "checked")(ctx, tx))
	must(t, "its commit", target.DB.Commit(ctx, tx))
	for _, lease := range others {
		must(t, "another lease", context.Cause(lease.Context()))
	}
	freeWithin(t, rival, "locked", 20*time.Second)
	if body := stored(t, target); body != "checked" {
		t.Errorf("stored %q", body)
	}
}

// A COMMIT whose answer is lost is looked up. A COMMIT that never arrived has
// not happened.
func TestCommitWithoutAnswer(t *testing.T) {
	matrix.Drivers(t, testCommitWithoutAnswer, testCommitWithoutAnswer)
}

func testCommitWithoutAnswer[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	if !target.Networked() {
		return
	}
	setUp(t, target)
	rival := newLeases(t, target, fencing.Config{})
	for name, verdict := range map[string]proxy.Verdict{"answer lost": proxy.CutAfter, "never arrived": proxy.Cut} {
		t.Run(name, func(t *testing.T) {
			target.MustExec(t, "UPDATE result SET body = 'nothing'")
			far, p := through(t, target)
			x := newLeases(t, far, fencing.Config{})
			err := x.Do(t.Context(), "k", func(ctx context.Context, g exclusive.Grant) error {
				return x.Commit(ctx, g, func(ctx context.Context, tx Tx) error {
					must(t, "write", store(target, "written")(ctx, tx))
					var once atomic.Bool
					p.Intercept(func(data []byte) proxy.Verdict {
						if bytes.Contains(bytes.ToUpper(data), []byte("COMMIT")) && once.CompareAndSwap(false, true) {
							return verdict
						}
						return proxy.Pass
					})
					return nil
				})
			})
			body := stored(t, target)
			switch name {
			case "answer lost":
				must(t, "do", err)
				if body != "written" {
					t.Errorf("reported as committed, stored %q", body)
				}
			default:
				wantErr(t, "do", err, exclusive.ErrConflict)
				if body != "nothing" {
					t.Errorf("reported as not committed, stored %q", body)
				}
			}
			freeWithin(t, rival, "k", 20*time.Second)
		})
	}
}

// An apply that ends its transaction by itself is told what became of it, and
// the work is not done again when it was stored.
func TestApplyEndsTheTransaction(t *testing.T) {
	matrix.Drivers(t, testApplyEndsTheTransaction, testApplyEndsTheTransaction)
}

func testApplyEndsTheTransaction[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	x := newLeases(t, target, fencing.Config{})
	for name, end := range map[string]func(context.Context, Tx) error{
		"commit":   target.DB.Commit,
		"rollback": func(_ context.Context, tx Tx) error { return target.DB.Rollback(tx) },
		// Past the driver. database/sql does not show what pgx does here.
		"statement": func(ctx context.Context, tx Tx) error { return target.Exec(ctx, tx, "ROLLBACK") },
	} {
		if name == "statement" && target.Name != "pgx" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			target.MustExec(t, "UPDATE result SET body = 'nothing'")
			err := x.Do(t.Context(), name, func(ctx context.Context, g exclusive.Grant) error {
				return x.Commit(ctx, g, func(ctx context.Context, tx Tx) error {
					must(t, "write", store(target, "written")(ctx, tx))
					return end(ctx, tx)
				})
			})
			body := stored(t, target)
			switch name {
			case "commit":
				must(t, "do", err) // it is durable, and the lease is given back
				if body != "written" {
					t.Errorf("stored %q", body)
				}
			default:
				wantErr(t, "do", err, exclusive.ErrConflict)
				if body != "nothing" {
					t.Errorf("stored %q", body)
				}
			}
			freeWithin(t, x, name, 20*time.Second)
		})
	}
}

// An acquire whose answer is lost leaves no key that nobody holds.
func TestAcquireWithoutAnswer(t *testing.T) {
	matrix.Drivers(t, testAcquireWithoutAnswer, testAcquireWithoutAnswer)
}

func testAcquireWithoutAnswer[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	if !target.Networked() {
		return
	}
	setUp(t, target)
	rival := newLeases(t, target, fencing.Config{})
	far, p := through(t, target)
	x := newLeases(t, far, fencing.Config{})
	must(t, "do", x.Do(t.Context(), "k", nothing)) // the schema is checked
	var cuts atomic.Int64
	p.Intercept(func(data []byte) proxy.Verdict {
		if bytes.Contains(data, []byte("ON CONFLICT")) || bytes.Contains(data, []byte("ON DUPLICATE")) || cuts.Load() == 0 {
			if cuts.Add(1) == 1 {
				return proxy.CutAfter
			}
		}
		return proxy.Pass
	})
	lease, err := x.TryAcquire(t.Context(), "k")
	if err == nil {
		// The retry knew its own: what is stored is what was returned.
		if token := target.Int(t, "SELECT token FROM exclusive_lease"); token != lease.Grant().Token {
			t.Errorf("stored token %d, returned %d", token, lease.Grant().Token)
		}
		if lease.Grant().Attempt != 1 {
			t.Errorf("attempt %d", lease.Grant().Attempt)
		}
		must(t, "release", lease.Release(t.Context()))
	} else {
		wantErr(t, "acquire", err, exclusive.ErrUnavailable)
	}
	if cuts.Load() == 0 {
		t.Error("the proxy cut nothing")
	}
	freeWithin(t, rival, "k", 20*time.Second)

	// The server's answer comes too late for the caller.
	p.Intercept(func([]byte) proxy.Verdict { return proxy.Mute })
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	start := time.Now()
	_, err = x.TryAcquire(ctx, "k")
	wantErr(t, "acquire", err, context.DeadlineExceeded)
	if took := time.Since(start); took > 3*time.Second {
		t.Errorf("returned %v after its deadline", took)
	}
	p.Intercept(nil)
	p.Cut()
	freeWithin(t, rival, "k", 20*time.Second)
}

// deaf is an adapter that hears no answer to a statement which speaks of a holder
// with this name.
type deaf[Tx any] struct {
	db.DB[Tx]
	holder string
	hears  bool                        // it does hear them
	after  func()                      // what happens before the loss of an answer is known; nil: nothing
	again  func(context.Context) error // sends the last such statement once more
}

func (d *deaf[Tx]) Exec(ctx context.Context, query string, args ...any) (db.Result, error) {
	if !slices.Contains(args, any(d.holder)) {
		return d.DB.Exec(ctx, query, args...)
	}
	d.again = func(ctx context.Context) error {
		_, err := d.DB.Exec(ctx, query, args...)
		return err
	}
	if d.hears {
		return d.DB.Exec(ctx, query, args...)
	}
	return db.Result{}, d.lose(d.again(ctx))
}

// lose is what a statement ends with.
func (d *deaf[Tx]) lose(err error) error {
	if d.after != nil {
		d.after()
	}
	return cmp.Or(err, driver.ErrBadConn)
}

func (d *deaf[Tx]) Query(ctx context.Context, query string, args []any, each func(db.Scan) error) error {
	if !slices.Contains(args, any(d.holder)) {
		return d.DB.Query(ctx, query, args, each)
	}
	d.again = func(ctx context.Context) error {
		return d.DB.Query(ctx, query, args, func(db.Scan) error { return nil })
	}
	if d.hears {
		return d.DB.Query(ctx, query, args, each)
	}
	return d.lose(d.again(ctx))
}

// An acquire whose answer is lost for good was no attempt: the next holder is told
// of the one that vanished before it, and of nobody if there was none.
func TestAbandonedAcquireIsNoAttempt(t *testing.T) {
	matrix.Drivers(t, testAbandonedAcquireIsNoAttempt, testAbandonedAcquireIsNoAttempt)
}

func testAbandonedAcquireIsNoAttempt[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	const lost = "hears nothing"
	adapter := &deaf[Tx]{DB: target.DB, holder: lost}
	x, err := fencing.New[Tx](adapter, fencing.Config{Holder: lost})
	must(t, "New", err)
	t.Cleanup(func() { must(t, "close", x.Close()) })
	next := newLeases(t, target, fencing.Config{})
	for key, attempt := range map[string]int{"fresh": 1, "fresh, late": 1, "in good order": 1, "vanished": 2, "vanished, late": 2, "failed": 2} {
		switch key {
		case "in good order":
			must(t, "do", next.Do(t.Context(), key, nothing))
		case "failed":
			_ = next.Do(t.Context(), key, func(context.Context, exclusive.Grant) error { return context.Canceled })
		case "vanished", "vanished, late":
			gone := newLeases(t, target, fencing.Config{TTL: time.Hour, NoRenew: true})
			_, err := gone.TryAcquire(t.Context(), key)
			must(t, "acquire", err)
			runOut(t, target, key)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		_, err := x.TryAcquire(ctx, key)
		wantErr(t, "acquire without an answer", err, exclusive.ErrUnavailable, driver.ErrBadConn)
		if strings.HasSuffix(key, "late") {
			// The statement arrives once more after the key was given back.
			for target.Int(t, "SELECT expires_at FROM exclusive_lease WHERE lease_key = ?", []byte(key)) > 0 {
				runtime.Gosched()
			}
			const token = "SELECT token FROM exclusive_lease WHERE lease_key = ?"
			before := target.Int(t, token, []byte(key))
			must(t, "late acquire", adapter.again(ctx))
			if target.Int(t, token, []byte(key)) != before {
				t.Errorf("%s: the late acquire has taken the key", key)
			}
		}
		lease, err := next.Acquire(ctx, key)
		must(t, "acquire after it", err)
		if g := lease.Grant(); g.Attempt != attempt {
			t.Errorf("%s: %+v, want attempt %d", key, g, attempt)
		}
		must(t, "release", lease.Release(ctx))
		cancel()
	}
}

// forsaking is an adapter whose connection is gone while the server runs the first
// acquire of this holder, which goes on there.
type forsaking[Tx any] struct {
	db.DB[Tx]
	holder string
	once   sync.Once
	gone   chan struct{}
	ended  chan struct{} // what goes on
}

func (d *forsaking[Tx]) Query(ctx context.Context, query string, args []any, each func(db.Scan) error) (err error) {
	if slices.Contains(args, any(d.holder)) {
		d.once.Do(func() {
			go func() {
				defer close(d.ended)
				_ = d.DB.Query(context.WithoutCancel(ctx), query, args, func(db.Scan) error { return nil }) // nobody hears it
			}()
			<-d.gone
			err = driver.ErrBadConn
		})
	}
	if err != nil {
		return err
	}
	return d.DB.Query(ctx, query, args, each)
}

// The repetition of an acquire is refused by its own first copy, which still runs on
// the server although its connection is gone: nobody gets the key then, and when the
// first copy has taken it after all it is given back.
func TestRefusedByItsOwnFirstCopy(t *testing.T) {
	matrix.Drivers(t, testRefusedByItsOwnFirstCopy, testRefusedByItsOwnFirstCopy, "postgres")
}

func testRefusedByItsOwnFirstCopy[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	ctx := t.Context()
	rival := newLeases(t, target, fencing.Config{})
	must(t, "the row is there", acquire(t, rival, "k").Release(ctx))
	// It has the row when it waits: only a trigger can keep it there.
	const lock = "hashtext(current_schema())"
	for _, statement := range []string{
		"CREATE TABLE took (token bigint NOT NULL)",
		`CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS
			'BEGIN PERFORM pg_advisory_xact_lock(` + lock + `); INSERT INTO took VALUES (NEW.token); RETURN NEW; END'`,
		`CREATE TRIGGER wait BEFORE UPDATE ON exclusive_lease FOR EACH ROW
			WHEN (NEW.holder = 'slow' AND OLD.grant_id <> NEW.grant_id) EXECUTE FUNCTION wait()`,
	} {
		target.MustExec(t, statement)
	}
	session, err := target.Plain.Conn(ctx)
	must(t, "connect", err)
	unlock := sync.OnceFunc(func() { // or the first copy, and with it the clean-up, would wait for ever
		_, err := session.ExecContext(context.WithoutCancel(ctx), "SELECT pg_advisory_unlock("+lock+")")
		must(t, "unlock", errors.Join(err, session.Close()))
	})
	defer unlock()
	_, err = session.ExecContext(ctx, "SELECT pg_advisory_lock("+lock+")")
	must(t, "lock", err)

	adapter := &forsaking[Tx]{DB: target.DB, holder: "slow", gone: make(chan struct{}), ended: make(chan struct{})}
	x, err := fencing.New[Tx](adapter, fencing.Config{TTL: 10 * time.Minute, Holder: "slow"})
	must(t, "New", err)
	t.Cleanup(func() { must(t, "close", x.Close()) })
	answer := make(chan error, 1)
	go func() {
		_, err := x.TryAcquire(ctx, "k")
		answer <- err
	}()
	for end := time.Now().Add(30 * time.Second); target.Int(t, `SELECT COUNT(*) FROM pg_locks
		WHERE locktype = 'advisory' AND NOT granted AND objid = (`+lock+`::bigint & 4294967295)::oid`) == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the first copy does not wait")
		}
	}
	close(adapter.gone)
	wantErr(t, "the repetition", <-answer, exclusive.ErrHeld)
	unlock()
	<-adapter.ended
	freeWithin(t, rival, "k", 30*time.Second)
	if n := target.Int(t, "SELECT COUNT(*) FROM took"); n != 1 {
		t.Errorf("the key was taken %d times by the acquire that was refused", n)
	}
}

// A copy of an acquire that arrives after its grant has ended leaves the key free.
func TestLateAcquire(t *testing.T) { matrix.Drivers(t, testLateAcquire, testLateAcquire) }

func testLateAcquire[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	const late = "arrives twice"
	adapter := &deaf[Tx]{DB: target.DB, holder: late, hears: true}
	x, err := fencing.New[Tx](adapter, fencing.Config{Holder: late})
	must(t, "New", err)
	t.Cleanup(func() { must(t, "close", x.Close()) })
	next := newLeases(t, target, fencing.Config{})
	for how, end := range map[string]func(context.Context, *exclusive.Lease) error{
		"released": func(ctx context.Context, l *exclusive.Lease) error { return l.Release(ctx) },
		"committed": func(ctx context.Context, l *exclusive.Lease) error {
			return x.Commit(ctx, l.Grant(), store(target, "x"))
		},
		"freed": func(ctx context.Context, l *exclusive.Lease) error { return next.Release(ctx, l.Grant().Key) },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		lease := acquire(t, x, how)
		again := adapter.again
		must(t, how, end(ctx, lease))
		must(t, "late acquire", again(ctx))
		s, err := next.Status(ctx, how)
		must(t, "status", err)
		if s.Held || s.Last.ID != lease.Grant().ID || s.Last.Token != lease.Grant().Token {
			t.Errorf("%s: after the late acquire %+v", how, s)
		}
		attempt := map[string]int{"freed": 2}[how] // the others were in good order
		lease, err = next.TryAcquire(ctx, how)
		must(t, how+": acquire", err)
		if g := lease.Grant(); g.Attempt != max(attempt, 1) {
			t.Errorf("%s: %+v; want attempt %d", how, g, max(attempt, 1))
		}
		must(t, "release", lease.Release(ctx))
		cancel()
	}
}

// A key that was had, and was over when that could be heard of, is not told as held by
// somebody else.
func TestAnswerAfterTheEnd(t *testing.T) {
	matrix.Drivers(t, testAnswerAfterTheEnd, testAnswerAfterTheEnd)
}

func testAnswerAfterTheEnd[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	const lost = "hears it late"
	next := newLeases(t, target, fencing.Config{})
	adapter := &deaf[Tx]{DB: target.DB, holder: lost}
	adapter.after = func() {
		must(t, "release by an operator", next.Release(t.Context(), "k"))
		adapter.hears = true
	}
	x, err := fencing.New[Tx](adapter, fencing.Config{Holder: lost})
	must(t, "New", err)
	t.Cleanup(func() { must(t, "close", x.Close()) })
	err = x.Do(t.Context(), "k", func(context.Context, exclusive.Grant) error { t.Error("work has run"); return nil })
	wantErr(t, "do", err, exclusive.ErrUnavailable)
	must(t, "do again", x.Do(t.Context(), "k", nothing))
}

// A claim that was refused while a Commit was under way counts no attempt, no
// matter for how long it has waited for that.
func TestLongCommitIsNoAttempt(t *testing.T) {
	matrix.Drivers(t, testLongCommitIsNoAttempt, testLongCommitIsNoAttempt)
}

func testLongCommitIsNoAttempt[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	holder, rival := newLeases(t, target, fencing.Config{}), newLeases(t, target, fencing.Config{})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	attempt := 0
	work := func(_ context.Context, g exclusive.Grant) error {
		attempt = g.Attempt
		return nil
	}
	answer := make(chan error, 1)
	must(t, "do", holder.Do(ctx, "k", func(wctx context.Context, g exclusive.Grant) error {
		return holder.Commit(wctx, g, func(tctx context.Context, tx Tx) error {
			go func() { answer <- rival.Do(ctx, "k", work) }()
			// Past the time for which MySQL lets the rival wait and still take the
			// key, and not yet at the one at which the rival gives up.
			time.Sleep(1250 * time.Millisecond)
			return store(target, "x")(tctx, tx)
		})
	}))
	if err := <-answer; err != nil {
		wantErr(t, "do beside a Commit", err, exclusive.ErrHeld)
		must(t, "do after it", rival.Do(ctx, "k", work))
	}
	if attempt != 1 {
		t.Errorf("attempt %d after a Commit in good order, want 1", attempt)
	}
}

// A release whose answer is lost does not take the key from a rival who has it by
// the time it is sent again, and is no loss: the rival has got it since.
func TestReleaseWithoutAnswer(t *testing.T) {
	matrix.Drivers(t, testReleaseWithoutAnswer, testReleaseWithoutAnswer)
}

func testReleaseWithoutAnswer[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	if !target.Networked() {
		return
	}
	setUp(t, target)
	rival := newLeases(t, target, fencing.Config{})
	far, p := through(t, target)
	x := newLeases(t, far, fencing.Config{})
	must(t, "do", x.Do(t.Context(), "k", nothing)) // drivers have prepared their statements
	lease := acquire(t, x, "k")
	var mu sync.Mutex // one proxy, several connections
	var taken *exclusive.Lease
	var pause sync.Once
	cut := false
	p.Intercept(func([]byte) proxy.Verdict {
		mu.Lock()
		defer mu.Unlock()
		if !cut {
			cut = true
			return proxy.CutAfter
		}
		if taken == nil { // before the release is sent again
			// Longer than a question takes: that is how a release tells whether the
			// key was taken after it.
			pause.Do(func() { time.Sleep(2 * time.Second) })
			if l, err := rival.TryAcquire(t.Context(), "k"); err == nil {
				taken = l
			}
		}
		return proxy.Pass
	})
	err := lease.Release(t.Context())
	p.Intercept(nil)
	mu.Lock()
	defer mu.Unlock()
	if taken == nil {
		// The driver needs more than one message to send a statement, so the
		// first one was cut before it ran.
		must(t, "release", err)
		freeWithin(t, rival, "k", 20*time.Second)
		return
	}
	must(t, "release", err)
	must(t, "the rival's lease", taken.Renew(t.Context()))
	must(t, "the rival's release", taken.Release(t.Context()))
}

func TestCancelledWait(t *testing.T) { matrix.Drivers(t, testCancelledWait, testCancelledWait) }

func testCancelledWait[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	holder := newLeases(t, target, fencing.Config{})
	x := newLeases(t, target.Another(t, matrix.Options{}), fencing.Config{Wait: time.Hour})
	lease := acquire(t, holder, "k")
	for range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		var cancelled atomic.Int64
		go func() {
			time.Sleep(rand.N(40 * time.Millisecond))
			cancelled.Store(time.Now().UnixNano())
			cancel()
		}()
		err := x.Do(ctx, "k", func(context.Context, exclusive.Grant) error { t.Error("work ran"); return nil })
		if late := time.Since(time.Unix(0, cancelled.Load())); late > 5*time.Second {
			t.Errorf("returned %v after the cancellation", late)
		}
		wantErr(t, "cancelled wait", err, context.Canceled)
		if errors.Is(err, exclusive.ErrHeld) {
			t.Errorf("cancellation looks like a held key: %v", err)
		}
	}
	if n := x.Do(t.Context(), "other", nothing); n != nil {
		t.Errorf("the pool is not healthy: %v", n)
	}
	must(t, "release", lease.Release(t.Context()))

	// Waiting long enough is a held key, and no failure.
	lease = acquire(t, holder, "k")
	short := newLeases(t, target.Another(t, matrix.Options{}), fencing.Config{Wait: 100 * time.Millisecond})
	start := time.Now()
	err := short.Do(t.Context(), "k", nothing)
	wantErr(t, "wait that is over", err, exclusive.ErrHeld)
	if took := time.Since(start); took < 100*time.Millisecond || took > 10*time.Second {
		t.Errorf("waited %v", took)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the caller's context did not end: %v", err)
	}
	must(t, "release", lease.Release(t.Context()))
}

// A key that an operator has taken away while the server was silent was lost, though
// its lease had not run out and an earlier try of its release got no answer.
func TestFreedDuringASilence(t *testing.T) {
	matrix.Drivers(t, testFreedDuringASilence, testFreedDuringASilence, "postgres", "mysql", "mariadb")
}

func testFreedDuringASilence[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	operator := newLeases(t, target, fencing.Config{TTL: time.Hour})
	for name, verdict := range map[string]proxy.Verdict{"hangs": proxy.Swallow, "breaks": proxy.Cut} {
		for _, taken := range []bool{false, true} {
			key := fmt.Sprint(name, taken)
			far, p := through(t, target)
			x := newLeases(t, far, fencing.Config{TTL: time.Hour, NoRenew: true})
			lease := acquire(t, x, key)
			var met atomic.Bool
			p.Intercept(func([]byte) proxy.Verdict {
				if met.CompareAndSwap(false, true) {
					return verdict
				}
				return proxy.Pass
			})
			must(t, "an operator's release", operator.Release(t.Context(), key))
			if taken {
				acquire(t, operator, key)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			err := lease.Release(ctx)
			cancel()
			if errors.Is(err, context.DeadlineExceeded) { // it goes on
				err = lease.Release(t.Context())
			}
			wantErr(t, key, err, exclusive.ErrLost)
			if !met.Load() {
				t.Errorf("%s: nothing was lost", key)
			}
		}
	}
}
