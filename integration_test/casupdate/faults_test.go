package casupdate_test

import (
	"bytes"
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/casupdate"
	"github.com/exclusive-go/exclusive/integration_test/matrix"
	"github.com/exclusive-go/exclusive/integration_test/proxy"
	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/internal/run"
)

// through puts a proxy between a new pool of target and its server.
func through[Tx any](t *testing.T, target *matrix.Target[Tx]) (*matrix.Target[Tx], *proxy.Proxy) {
	t.Helper()
	p := proxy.Start(t, target.Addr(t))
	return target.Another(t, matrix.Options{Addr: p.Addr()}), p
}

// first gives the verdict on the first message that has the text, plain or in
// hexadecimal, or is a COMMIT if text is empty. The function tells whether it
// was met.
func first(p *proxy.Proxy, text string, verdict proxy.Verdict) (met func() bool) {
	var once atomic.Bool
	p.Intercept(func(data []byte) proxy.Verdict {
		found := proxy.Mentions(data, text)
		if text == "" {
			found = bytes.Contains(bytes.ToUpper(data), []byte("COMMIT"))
		}
		if found && once.CompareAndSwap(false, true) {
			return verdict
		}
		return proxy.Pass
	})
	return once.Load
}

// eventually waits for a state that something in the background brings about.
func eventually[Tx any](t *testing.T, target *matrix.Target[Tx], key, state string) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if text(t, target, "SELECT state FROM job WHERE id = ?", key) == state {
			return
		}
	}
	wantState(t, target, key, state)
}

// The row is given back although the caller's context is over, work has
// panicked, or its goroutine has ended.
func TestGivenBack(t *testing.T) { matrix.Drivers(t, testGivenBack, testGivenBack) }

func testGivenBack[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target, "k")
	for _, cfg := range []casupdate.Config{bare(), leased(time.Minute)} {
		x := newTable(t, target, cfg)
		ctx, cancel := context.WithCancel(t.Context())
		wantErr(t, "canceled in work", x.Do(ctx, "k", func(ctx context.Context, _ exclusive.Grant) error {
			cancel()
			return ctx.Err()
		}), context.Canceled)
		wantState(t, target, "k", "PENDING")

		ctx, cancel = context.WithTimeout(t.Context(), 3*time.Second)
		wantErr(t, "deadline in work", x.Do(ctx, "k", func(ctx context.Context, _ exclusive.Grant) error {
			<-ctx.Done()
			return ctx.Err()
		}), context.DeadlineExceeded)
		cancel()
		wantState(t, target, "k", "PENDING")

		ctx, cancel = context.WithCancel(t.Context())
		wantErr(t, "canceled before work returns nil", x.Do(ctx, "k", func(context.Context, exclusive.Grant) error {
			cancel()
			return nil
		}), context.Canceled)
		wantState(t, target, "k", "PENDING")

		for name, unwind := range map[string]func(){"boom": func() { panic("boom") }, "exit": runtime.Goexit} {
			for where, work := range map[string]exclusive.Work{
				"work": func(context.Context, exclusive.Grant) error { unwind(); return nil },
				"apply": func(ctx context.Context, g exclusive.Grant) error {
					return x.Commit(ctx, g, func(ctx context.Context, tx Tx) error {
						must(t, "write", store(target, "k", "half")(ctx, tx))
						unwind()
						return nil
					})
				},
			} {
				var recovered any
				var wg sync.WaitGroup
				wg.Go(func() {
					defer func() { recovered = recover() }()
					_ = x.Do(t.Context(), "k", work)
				})
				wg.Wait()
				if name == "boom" && recovered != "boom" {
					t.Errorf("%s in %s: recovered %v", name, where, recovered)
				}
				wantState(t, target, "k", "PENDING")
				wantStored(t, target, "k", "nothing")
			}
		}
		target.Idle(t)
	}
}

// The server cannot be reached when work has returned nil, for longer than a row
// takes to be given back. It becomes done all the same: the claim lasts longer.
func TestFinishedAfterFailover(t *testing.T) {
	matrix.Drivers(t, testFinishedAfterFailover, testFinishedAfterFailover, "postgres", "mysql", "mariadb")
}

func testFinishedAfterFailover[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target, "k")
	behind, p := through(t, target)
	x := newTable(t, behind, leased(time.Hour))
	must(t, "do", x.Do(t.Context(), "k", func(context.Context, exclusive.Grant) error {
		p.Intercept(func([]byte) proxy.Verdict { return proxy.Swallow })
		time.AfterFunc(run.EndWait+time.Second, func() { p.Intercept(nil) }) // the old connections hang
		return nil
	}))
	wantState(t, target, "k", "DONE")
}

// What work returned is not hidden by a finish that fails, nor the reverse.
func TestEndFails(t *testing.T) { matrix.Drivers(t, testEndFails, testEndFails) }

func testEndFails[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target, "k")
	x := newTable(t, target, proving())
	for _, want := range []error{errBiz, nil} {
		err := x.Do(t.Context(), "k", func(context.Context, exclusive.Grant) error {
			target.MustExec(t, "ALTER TABLE job RENAME TO elsewhere")
			return want
		})
		target.MustExec(t, "ALTER TABLE elsewhere RENAME TO job")
		target.MustExec(t, "UPDATE job SET state = 'PENDING'")
		if want != nil {
			wantErr(t, "work and give back fail", err, errBiz, exclusive.ErrSchema)
		} else {
			wantErr(t, "finish fails", err, exclusive.ErrOutcomeUnknown)
			if errors.Is(err, exclusive.ErrUnavailable) || errors.Is(err, exclusive.ErrSchema) {
				t.Errorf("it says that nothing ran: %v", err)
			}
		}
	}
}

// A COMMIT whose answer is lost is looked up. One that never arrived has not
// happened.
func TestCommitWithoutAnswer(t *testing.T) {
	matrix.Drivers(t, testCommitWithoutAnswer, testCommitWithoutAnswer)
}

func testCommitWithoutAnswer[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	if !target.Networked() {
		return
	}
	setUp(t, target)
	for mode, cfg := range map[string]casupdate.Config{"bare": bare(), "proving": proving()} {
		for name, verdict := range map[string]proxy.Verdict{"answer lost": proxy.CutAfter, "never arrived": proxy.Cut} {
			key := mode + " " + name
			insert(t, target, key)
			far, p := through(t, target)
			x := newTable(t, far, cfg)
			met := func() bool { return false }
			err := x.Do(t.Context(), key, func(ctx context.Context, g exclusive.Grant) error {
				return x.Commit(ctx, g, func(ctx context.Context, tx Tx) error {
					met = first(p, "", verdict)
					return store(target, key, "written")(ctx, tx)
				})
			})
			if !met() {
				t.Errorf("%s: nothing was lost", key)
			}
			if verdict == proxy.CutAfter {
				must(t, key, err)
				wantStored(t, target, key, "written")
				wantState(t, target, key, "DONE")
			} else {
				wantErr(t, key, err, exclusive.ErrConflict)
				wantStored(t, target, key, "nothing")
				wantState(t, target, key, "PENDING")
			}
		}
	}
}

// A statement whose answer is lost has one effect. With a GrantColumn the call
// recognizes its own; without one it says that it does not know, and changes
// nothing that may be somebody else's.
func TestStatementWithoutAnswer(t *testing.T) {
	matrix.Drivers(t, testStatementWithoutAnswer, testStatementWithoutAnswer)
}

func testStatementWithoutAnswer[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	if !target.Networked() {
		return
	}
	setUp(t, target)
	ctx := t.Context()
	for mode, cfg := range map[string]casupdate.Config{"bare": bare(), "proving": proving()} {
		cfg.Transitions = []casupdate.Transition{{From: "PENDING", To: "CANCELED"}}
		far, p := through(t, target)
		x := newTable(t, far, cfg)
		insert(t, target, mode+"/warm")
		must(t, "warm up", x.Do(ctx, mode+"/warm", nothing))

		key := mode + "/claim"
		insert(t, target, key)
		met := first(p, key, proxy.CutAfter)
		ran := 0
		err := x.Do(ctx, key, func(_ context.Context, g exclusive.Grant) error {
			ran++
			if token := target.Int(t, "SELECT token FROM job WHERE id = ?", key); token != g.Token {
				t.Errorf("stored token %d, granted %d", token, g.Token)
			}
			return nil
		})
		if !met() {
			t.Errorf("%s: nothing was lost", key)
		}
		if mode == "proving" {
			must(t, key, err)
			wantState(t, target, key, "DONE")
		} else {
			// It is not sent again, and stays claimed until somebody sets it back.
			if !errors.Is(err, exclusive.ErrUnavailable) || errors.Is(err, exclusive.ErrHeld) {
				t.Errorf("%s: %v", key, err)
			}
			wantState(t, target, key, "PROCESSING")
		}
		if want := map[string]int{"proving": 1}[mode]; ran != want {
			t.Errorf("%s: work ran %d times, want %d", key, ran, want)
		}

		for what, work := range map[string]exclusive.Work{"finish": nothing, "give back": failing} {
			key := mode + "/" + what
			insert(t, target, key)
			met := func() bool { return false }
			err := x.Do(ctx, key, func(ctx context.Context, g exclusive.Grant) error {
				met = first(p, key, proxy.CutAfter)
				return work(ctx, g)
			})
			if !met() {
				t.Errorf("%s: nothing was lost", key)
			}
			wantState(t, target, key, map[string]string{"finish": "DONE", "give back": "PENDING"}[what])
			switch {
			case what == "give back":
				wantErr(t, key, err, errBiz)
			case mode == "proving":
				must(t, key, err)
			case !errors.Is(err, exclusive.ErrOutcomeUnknown) && !errors.Is(err, exclusive.ErrLost): // the latter if it was sent again
				t.Errorf("%s: %v", key, err)
			}
		}

		key = mode + "/transition"
		insert(t, target, key)
		met = first(p, key, proxy.CutAfter)
		err = x.Transition(ctx, key, "PENDING", "CANCELED")
		if !met() {
			t.Errorf("%s: nothing was lost", key)
		}
		wantState(t, target, key, "CANCELED")
		if mode == "proving" {
			must(t, key, err)
		} else if !errors.Is(err, exclusive.ErrOutcomeUnknown) && !errors.Is(err, exclusive.ErrDone) { // the latter if it was sent again
			t.Errorf("%s: %v", key, err)
		}
		p.Intercept(nil)
	}

	// The answer comes too late for the caller: what it has got is given back.
	far, p := through(t, target)
	x := newTable(t, far, proving())
	for _, key := range []string{"late/warm", "late"} {
		insert(t, target, key)
	}
	must(t, "warm up", x.Do(ctx, "late/warm", nothing))
	met := first(p, "late", proxy.Mute)
	short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	wantErr(t, "claim without an answer", x.Do(short, "late", nothing), context.DeadlineExceeded)
	if !met() {
		t.Error("nothing was lost")
	}
	p.Intercept(nil)
	p.Cut()
	eventually(t, target, "late", "PENDING")
	must(t, "Do", x.Do(ctx, "late", nothing))
}

// A paused holder's give-back, sent again after its answer was lost, must not
// free the row under the next holder. The twin without a GrantColumn is why a
// statement is then not repeated.
func TestGiveBackOfFormerHolder(t *testing.T) {
	matrix.Drivers(t, testGiveBackOfFormerHolder, testGiveBackOfFormerHolder)
}

func testGiveBackOfFormerHolder[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	ctx := t.Context()
	for mode, cfg := range map[string]casupdate.Config{"bare": bare(), "proving": proving()} {
		insert(t, target, mode)
		a, b := newTable(t, target, cfg), newTable(t, target, cfg)
		claimed, release := make(chan struct{}), make(chan struct{})
		var old, next error
		var wg sync.WaitGroup
		wg.Go(func() {
			old = a.Do(ctx, mode, func(context.Context, exclusive.Grant) error {
				// An operator sets the row back, and B claims it.
				target.MustExec(t, "UPDATE job SET state = 'PENDING' WHERE id = ?", mode)
				wg.Go(func() {
					next = b.Do(ctx, mode, func(ctx context.Context, g exclusive.Grant) error {
						close(claimed)
						<-release
						return b.Commit(ctx, g, store(target, mode, "B"))
					})
				})
				<-claimed
				return errBiz
			})
			close(release)
		})
		wg.Wait()
		wantErr(t, "A", old, errBiz)
		if mode == "proving" {
			must(t, "B", next)
			wantState(t, target, mode, "DONE")
			wantStored(t, target, mode, "B")
		} else { // as documented: the row was freed under B
			wantErr(t, "B", next, exclusive.ErrLost)
			wantState(t, target, mode, "PENDING")
		}
	}
}

// A takeover that has looked at a claim which then ends must not undo that.
func TestTakeoverRacesFinish(t *testing.T) {
	matrix.Drivers(t, testTakeoverRacesFinish, testTakeoverRacesFinish)
}

func testTakeoverRacesFinish[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	ctx := t.Context()
	cfg := leased(time.Minute)
	a, b := newTable(t, target, cfg), newTable(t, target.Another(t, matrix.Options{}), cfg)
	for round := range 30 {
		key := fmt.Sprint("k", round)
		insert(t, target, key)
		var committed, took error
		err := a.Do(ctx, key, func(wctx context.Context, g exclusive.Grant) error {
			// It has run out on the database's clock; the holder does not know.
			target.MustExec(t, "UPDATE job SET expires_at = 1 WHERE id = ?", key)
			var wg sync.WaitGroup
			wg.Go(func() { committed = a.Commit(ctx, g, store(target, key, "A")) })
			wg.Go(func() {
				took = b.Do(ctx, key, func(ctx context.Context, g exclusive.Grant) error {
					return b.Commit(ctx, g, store(target, key, "B"))
				})
			})
			wg.Wait()
			return committed
		})
		wantState(t, target, key, "DONE")
		switch {
		case committed == nil: // done, once
			wantStored(t, target, key, "A")
			if err != nil || !errors.Is(took, exclusive.ErrDone) && !errors.Is(took, exclusive.ErrHeld) {
				t.Errorf("A has committed: %v; B: %v", err, took)
			}
		case errors.Is(committed, exclusive.ErrFenced):
			wantStored(t, target, key, "B")
			must(t, "B", took)
		default:
			t.Errorf("Commit: %v", committed)
		}
	}
}

// The database's clock decides alone: a claim's end is what the row says.
func TestDatabaseClock(t *testing.T) { matrix.Drivers(t, testDatabaseClock, testDatabaseClock) }

func testDatabaseClock[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target, "k")
	x := newTable(t, target, leased(3*time.Second))
	rival := newTable(t, target.Another(t, matrix.Options{}), leased(time.Hour))
	target.MustExec(t, "UPDATE job SET state = 'PROCESSING', grant_id = 'gone', token = 5, expires_at = NULL")
	wantErr(t, "a claim without an end", rival.Do(t.Context(), "k", nothing), exclusive.ErrHeld)
	target.MustExec(t, "UPDATE job SET state = 'PENDING'")
	err := x.Do(t.Context(), "k", func(_ context.Context, g exclusive.Grant) error {
		left := time.Until(time.UnixMicro(target.Int(t, "SELECT expires_at FROM job")))
		if left > 3100*time.Millisecond || left < -time.Minute {
			t.Errorf("the row's claim ends in %v", left)
		}
		wantErr(t, "while it is renewed", rival.Do(t.Context(), "k", nothing), exclusive.ErrHeld)
		if g.Token != 6 {
			t.Errorf("token %d after 5", g.Token)
		}
		return nil
	})
	must(t, "Do", err)
}

// A row that another transaction has locked is held; nobody waits for it with a
// connection in hand.
func TestLockedRow(t *testing.T) { matrix.Drivers(t, testLockedRow, testLockedRow) }

func testLockedRow[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	if !target.Networked() {
		return // SQLite locks the database, not rows
	}
	setUp(t, target, "k", "other")
	ctx := t.Context()
	cfg := leased(4 * time.Second)
	x := newTable(t, target, cfg)
	tx, err := target.BeginPast(ctx)
	must(t, "begin", err)
	must(t, "lock", target.Exec(ctx, tx, "UPDATE job SET note = 'locked' WHERE id = 'k'"))
	start := time.Now()
	wantErr(t, "Do of a locked row", x.Do(ctx, "k", nothing), exclusive.ErrHeld)
	if took := time.Since(start); took > 10*time.Second { // the servers' lock time-outs are longer
		t.Errorf("it took %v to say so", took)
	}
	must(t, "rollback", target.DB.Rollback(tx))

	// One locked row does not keep others from being renewed. Its own claim is
	// lost, as the transaction is longer, but nobody can take it over before.
	wantErr(t, "Do", x.Do(ctx, "k", func(_ context.Context, g exclusive.Grant) error {
		return x.Do(ctx, "other", func(octx context.Context, _ exclusive.Grant) error {
			return inTx(t, target, func(tx Tx) error {
				must(t, "Check", x.Check(ctx, tx, g))
				select {
				case <-octx.Done():
					t.Errorf("the other row: %v", context.Cause(octx))
				case <-time.After(2 * cfg.TTL):
				}
				rival := newTable(t, target.Another(t, matrix.Options{}), cfg)
				wantErr(t, "takeover of a row that is checked", rival.Do(ctx, "k", nothing), exclusive.ErrHeld)
				return nil
			})
		})
	}), exclusive.ErrLost)
	wantState(t, target, "other", "DONE")
}

// Work that failed, for whatever reason, can be done again; work that is done
// cannot.
func TestCancelAnywhere(t *testing.T) { matrix.Drivers(t, testCancelAnywhere, testCancelAnywhere) }

func testCancelAnywhere[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	x := newTable(t, target, proving())
	for round := range 60 {
		key := fmt.Sprint("k", round)
		insert(t, target, key)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			time.Sleep(rand.N(6 * time.Millisecond))
			cancel()
		})
		err := x.Do(ctx, key, func(ctx context.Context, g exclusive.Grant) error {
			return x.Commit(ctx, g, store(target, key, "done"))
		})
		wg.Wait()
		if err == nil {
			wantState(t, target, key, "DONE")
			wantStored(t, target, key, "done")
			continue
		}
		wantErr(t, "canceled", err, context.Canceled)
		eventually(t, target, key, "PENDING")
		wantStored(t, target, key, "nothing")
	}
	must(t, "Close", x.Close())
	target.Idle(t)
}

func TestWait(t *testing.T) { matrix.Drivers(t, testWait, testWait) }

func testWait[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target, "k")
	cfg := proving()
	cfg.Wait = 200 * time.Millisecond
	x := newTable(t, target, cfg)
	cfg.Wait = time.Hour
	patient := newTable(t, target.Another(t, matrix.Options{}), cfg)
	wantErr(t, "Do", x.Do(t.Context(), "k", func(context.Context, exclusive.Grant) error {
		start := time.Now()
		err := x.Do(t.Context(), "k", nothing)
		wantErr(t, "a wait that is over", err, exclusive.ErrHeld)
		if took := time.Since(start); took < 200*time.Millisecond || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("after %v: %v", took, err)
		}
		for range 5 {
			ctx, cancel := context.WithCancel(t.Context())
			at := make(chan time.Time, 1)
			time.AfterFunc(rand.N(50*time.Millisecond), func() { at <- time.Now(); cancel() })
			err := patient.Do(ctx, "k", nothing)
			wantErr(t, "a wait that is canceled", err, context.Canceled)
			if late := time.Since(<-at); late > 5*time.Second || errors.Is(err, exclusive.ErrHeld) {
				t.Errorf("%v after the cancellation: %v", late, err)
			}
		}
		return errBiz
	}), errBiz)
	must(t, "Do", patient.Do(t.Context(), "k", nothing))
}

// Isolation levels that PostgreSQL and MySQL databases may have as default: no
// serialization failure reaches a caller, and each row is done once.
func TestIsolation(t *testing.T) { matrix.Drivers(t, testIsolation, testIsolation) }

func testIsolation[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	if !target.Networked() {
		return // SQLite is always serializable
	}
	setUp(t, target)
	for _, level := range []string{"read committed", "repeatable read", "serializable"} {
		hammer(t, target.Isolated(t, level), proving(), level, 8, 10, 250*time.Millisecond)
	}
}

// hammer has workers add 1 to a number, read before and written after, under
// rows that are put back when they are done.
func hammer[Tx any](t *testing.T, target *matrix.Target[Tx], cfg casupdate.Config, name string, workers, keys int, long time.Duration) {
	t.Helper()
	cfg.Transitions = []casupdate.Transition{{From: "DONE", To: "PENDING"}}
	x := newTable(t, target, cfg)
	serializable := name == "serializable"
	holders := make([]atomic.Int64, keys)
	added := make([]atomic.Int64, keys)
	for k := range keys {
		key := fmt.Sprint(name, k)
		insert(t, target, key)
		target.MustExec(t, "UPDATE result SET body = '0' WHERE id = ?", key)
	}
	var wg sync.WaitGroup
	end := time.Now().Add(long)
	for w := range workers {
		wg.Go(func() {
			for i := w; time.Now().Before(end); i++ {
				k := i % keys
				key := fmt.Sprint(name, k)
				err := x.Do(t.Context(), key, func(ctx context.Context, g exclusive.Grant) error {
					if n := holders[k].Add(1); n != 1 {
						t.Errorf("%d holders of %s", n, key)
					}
					// The row can be put back and claimed as soon as the Commit is
					// durable, before it returns.
					leave := sync.OnceFunc(func() { holders[k].Add(-1) })
					defer leave()
					var n int
					if err := target.Plain.QueryRowContext(ctx, target.Bind("SELECT body FROM result WHERE id = ?"), key).Scan(&n); err != nil {
						return err
					}
					err := x.Commit(ctx, g, func(ctx context.Context, tx Tx) error {
						defer leave()
						return store(target, key, fmt.Sprint(n+1))(ctx, tx)
					})
					if err != nil {
						return err
					}
					added[k].Add(1)
					return nil
				})
				switch {
				case err == nil, errors.Is(err, exclusive.ErrDone):
					err = x.Transition(t.Context(), key, "DONE", "PENDING")
					if err != nil && !errors.Is(err, exclusive.ErrDone) && !errors.Is(err, exclusive.ErrHeld) && !errors.Is(err, exclusive.ErrConflict) {
						t.Errorf("Transition: %v", err)
					}
				case errors.Is(err, exclusive.ErrHeld):
				case serializable && errors.Is(err, exclusive.ErrConflict): // work's own transaction
				default:
					t.Errorf("Do: %v", err)
				}
			}
		})
	}
	wg.Wait()
	total := int64(0)
	for k := range keys {
		n := target.Int(t, "SELECT body FROM result WHERE id = ?", fmt.Sprint(name, k))
		if n != added[k].Load() {
			t.Errorf("%s%d: %d additions, %d stored", name, k, added[k].Load(), n)
		}
		total += n
	}
	if total == 0 {
		t.Errorf("%s: nobody got anything done", name)
	}
}

// Nothing runs when the claim cannot be made.
func TestUnavailable(t *testing.T) { matrix.Drivers(t, testUnavailable, testUnavailable) }

func testUnavailable[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target, "k")
	cfg := leased(time.Minute)
	cfg.Transitions = []casupdate.Transition{{From: "PENDING", To: "PENDING"}}
	refuse := func(what string, target *matrix.Target[Tx], cfg casupdate.Config, kind error) {
		t.Helper()
		x := newTable(t, target, cfg)
		err := x.Do(t.Context(), "k", func(context.Context, exclusive.Grant) error {
			t.Errorf("%s: work ran", what)
			return nil
		})
		wantErr(t, what, err, kind)
		var e *exclusive.Error
		if !errors.As(err, &e) || e.Err == nil {
			t.Errorf("%s: the driver's error is not reachable: %v", what, err)
		}
		if kind == exclusive.ErrSchema && (strings.Contains(err.Error(), "migration") || !strings.Contains(err.Error(), "Config must name")) {
			t.Errorf("%s: the table is the application's own, and it is told %v", what, err)
		}
		wantErr(t, what+", transition", x.Transition(t.Context(), "k", "PENDING", "PENDING"), kind)
	}
	missing := cfg
	missing.Table = "nowhere"
	refuse("missing table", target, missing, exclusive.ErrSchema)
	missing = cfg
	missing.GrantColumn = "nowhere"
	refuse("missing column", target, missing, exclusive.ErrSchema)
	missing = cfg
	missing.Key = casupdate.Text("k") // the key is "k" too
	if target.Dialect == "postgres" || target.Dialect == "sqlite" {
		refuse("missing key column", target, missing, exclusive.ErrSchema)
	} else { // no index has it, and that is what is said
		wantErr(t, "missing key column", newTable(t, target, missing).Do(t.Context(), "k", nothing), exclusive.ErrSchema)
	}
	if target.Networked() {
		refuse("nobody listens", target.Another(t, matrix.Options{Addr: "127.0.0.1:1"}), cfg, exclusive.ErrUnavailable)
		refuse("wrong password", target.Another(t, matrix.Options{User: "nobody", Password: "wrong"}), cfg, exclusive.ErrUnavailable)
	}
	if target.Dialect == "postgres" {
		refuse("read-only", target.Another(t, matrix.Options{Params: map[string]string{"default_transaction_read_only": "on"}}), cfg, exclusive.ErrUnavailable)
	}
	closed := target.Another(t, matrix.Options{})
	closed.ClosePool()
	refuse("closed pool", closed, cfg, exclusive.ErrUnavailable)
	wantState(t, target, "k", "PENDING")
	must(t, "Do", newTable(t, target, cfg).Do(t.Context(), "k", nothing))
}

// vanishing is an adapter whose server is gone after it has run a statement that
// speaks of a holder with this name: that answer is lost, and what comes next is
// refused, so often.
type vanishing[Tx any] struct {
	db.DB[Tx]
	holder  string
	refusal error
	refuse  atomic.Int64
}

func (v *vanishing[Tx]) refused(args []any, run func() error) error {
	if v.refuse.Load() > 0 {
		v.refuse.Add(-1)
		return v.refusal
	}
	err := run()
	if err == nil && v.refuse.Load() == 0 && slices.Contains(args, any(v.holder)) {
		v.refuse.Store(3)
		return driver.ErrBadConn
	}
	return err
}

func (v *vanishing[Tx]) Exec(ctx context.Context, query string, args ...any) (res db.Result, err error) {
	err = v.refused(args, func() error { res, err = v.DB.Exec(ctx, query, args...); return err })
	return res, err
}

func (v *vanishing[Tx]) Query(ctx context.Context, query string, args []any, each func(db.Scan) error) error {
	return v.refused(args, func() error { return v.DB.Query(ctx, query, args, each) })
}

// A claim whose answer was lost is given back although its repetition failed in
// a way that says of itself that nothing ran: the row has no TTL that would.
func TestClaimWithoutAnswerThenRefused(t *testing.T) {
	matrix.Drivers(t, testClaimWithoutAnswerThenRefused, testClaimWithoutAnswerThenRefused)
}

func testClaimWithoutAnswerThenRefused[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	insert(t, target, "k")
	const holder = "hears nothing"
	cfg := proving()
	cfg.Holder, cfg.TTL = holder, 0
	adapter := &vanishing[Tx]{DB: target.DB, holder: holder, refusal: &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}}
	x, err := casupdate.New[Tx](adapter, cfg)
	must(t, "New", err)
	t.Cleanup(func() { must(t, "close", x.Close()) })
	err = x.Do(t.Context(), "k", nothing)
	wantErr(t, "a claim without an answer", err, exclusive.ErrUnavailable)
	if !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("the repetition was not refused: %v", err)
	}
	eventually(t, target, "k", "PENDING")
}

// Without a GrantColumn nobody can tell whose row it is that is given back, or done. So
// what got no answer is not sent again: somebody else may have the row by now.
func TestNotEndedTwice(t *testing.T) {
	matrix.Drivers(t, testNotEndedTwice, testNotEndedTwice, "postgres", "mysql", "mariadb")
}

func testNotEndedTwice[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	const mark = "by the first holder"
	for what, work := range map[string]exclusive.Work{"finish": nothing, "give back": failing} {
		insert(t, target, what)
		cfg := bare()
		cfg.OnRevert, cfg.OnDone = casupdate.Set{"note": mark}, casupdate.Set{"note": mark}
		far, p := through(t, target)
		x := newTable(t, far, cfg)
		var sent atomic.Int64
		begun, taken := make(chan struct{}), make(chan struct{})
		take := sync.OnceFunc(func() { close(taken) })
		t.Cleanup(take) // or the proxy, and with it the test, would wait for ever
		p.Intercept(func(data []byte) proxy.Verdict {
			switch {
			case !proxy.Mentions(data, mark):
				return proxy.Pass
			case sent.Add(1) == 1:
				close(begun)
				return proxy.Mute
			}
			<-taken // one too many arrives when it does harm
			return proxy.Pass
		})
		ended := make(chan error, 1)
		go func() { ended <- x.Do(t.Context(), what, work) }()
		select {
		case <-begun:
		case err := <-ended:
			t.Fatalf("%s: %v, and nothing was lost", what, err)
		}
		eventually(t, target, what, map[string]string{"finish": "DONE", "give back": "PENDING"}[what])
		target.MustExec(t, "UPDATE job SET state = 'PENDING', note = NULL WHERE id = ?", what) // an operator wants it again
		y := newTable(t, target, bare())
		must(t, what+": the next", y.Do(t.Context(), what, func(ctx context.Context, g exclusive.Grant) error {
			take()
			wantErr(t, what, <-ended, map[string]error{"finish": exclusive.ErrOutcomeUnknown, "give back": errBiz}[what])
			if err := x.Close(); err != nil { // waits for what is being given back
				return err
			}
			return y.Commit(ctx, g, store(target, what, "next"))
		}))
		take()
		wantState(t, target, what, "DONE")
		wantStored(t, target, what, "next")
		if n := sent.Load(); n != 1 {
			t.Errorf("%s: it was sent %d times", what, n)
		}
	}
}

// A row that was set back while the server was silent was lost: Do does not return nil
// for what the next one does again.
func TestSetBackDuringASilence(t *testing.T) {
	matrix.Drivers(t, testSetBackDuringASilence, testSetBackDuringASilence, "postgres", "mysql", "mariadb")
}

func testSetBackDuringASilence[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target, "k")
	far, p := through(t, target)
	x := newTable(t, far, leased(time.Hour))
	var met atomic.Bool
	wantErr(t, "do", x.Do(t.Context(), "k", func(context.Context, exclusive.Grant) error {
		p.Intercept(func([]byte) proxy.Verdict {
			if met.CompareAndSwap(false, true) {
				return proxy.Swallow
			}
			return proxy.Pass
		})
		target.MustExec(t, "UPDATE job SET state = 'PENDING' WHERE id = 'k'")
		return nil
	}), exclusive.ErrLost)
	if !met.Load() {
		t.Error("nothing was lost")
	}
	must(t, "the next one", newTable(t, target, leased(time.Hour)).Do(t.Context(), "k", nothing))
}

// A claim that is given up after Close, without its answer, is given back: nothing
// else would end it.
func TestClaimGivenUpAfterClose(t *testing.T) {
	matrix.Drivers(t, testClaimGivenUpAfterClose, testClaimGivenUpAfterClose, "postgres", "mysql", "mariadb")
}

func testClaimGivenUpAfterClose[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target, "k")
	const holder = "hears nothing"
	cfg := proving()
	cfg.Holder = holder
	far, p := through(t, target)
	x := newTable(t, far, cfg)
	met := first(p, holder, proxy.Mute)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- x.Do(ctx, "k", nothing) }()
	eventually(t, target, "k", "PROCESSING")
	must(t, "close", x.Close())
	cancel()
	wantErr(t, "a claim that is given up", <-ended, context.Canceled)
	if !met() {
		t.Error("nothing was lost")
	}
	wantState(t, target, "k", "PENDING")
}
