package lease_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/internal/lease"
	"github.com/exclusive-go/exclusive/internal/run"
)

// store is a backend whose answers the test decides.
type store struct {
	mu       sync.Mutex
	renewals [][]string // grant ids, by statement
	lost     map[string]bool
	waiting  map[string]bool
	err      error
	delay    time.Duration
	released []string
	relErr   error
}

func (s *store) Renew(ctx context.Context, grants []exclusive.Grant) (lost, waiting []string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ids []string
	for _, g := range grants {
		ids = append(ids, g.ID)
		switch {
		case s.lost[g.ID]:
			lost = append(lost, g.ID)
		case s.waiting[g.ID]:
			waiting = append(waiting, g.ID)
		}
	}
	s.renewals = append(s.renewals, ids)
	if s.delay > 0 {
		select {
		case <-time.After(s.delay):
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
	}
	return lost, waiting, s.err
}

func (s *store) Release(_ context.Context, g exclusive.Grant) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.released = append(s.released, g.ID)
	return s.relErr
}

// statements is the number of renewals so far.
func (s *store) statements() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.renewals)
}

func (s *store) set(f func(*store)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s)
}

const ttl = 3 * time.Second

func newKeeper(t *testing.T, s *store, change func(*lease.Config)) *lease.Keeper {
	cfg := lease.Config{TTL: ttl}
	if change != nil {
		change(&cfg)
	}
	k := lease.NewKeeper(cfg, s)
	t.Cleanup(k.Close)
	return k
}

func hold(t *testing.T, k *lease.Keeper, id string) *lease.Held {
	return k.Hold(t.Context(), exclusive.Grant{Key: "key-" + id, ID: id, Token: 1}, time.Now())
}

// lostAfter waits for the loss and returns how long it took.
func lostAfter(t *testing.T, h *lease.Held, start time.Time) time.Duration {
	t.Helper()
	<-h.Context().Done()
	if err := context.Cause(h.Context()); !errors.Is(err, exclusive.ErrLost) {
		t.Errorf("the lease ended with %v", err)
	}
	return time.Since(start)
}

func TestLeaseIsRenewedUntilReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		k := newKeeper(t, s, nil)
		h := hold(t, k, "a")
		time.Sleep(100 * time.Second)
		if err := h.Context().Err(); err != nil {
			t.Fatalf("ended while it was renewed: %v", err)
		}
		if n := s.statements(); n < 99 || n > 101 {
			t.Errorf("%d renewals in 100 s of a lease of 3 s", n)
		}
		if left := time.Until(h.Grant().Expires); left < ttl/2 {
			t.Errorf("the grant says that %v are left", left)
		}
		// Work that has only its context sees the renewals too.
		ctx, cancel := context.WithCancel(h.Context())
		defer cancel()
		if g, ok := exclusive.CurrentGrant(ctx); !ok || g != h.Grant() {
			t.Errorf("work's context stands for %+v, %v", g, ok)
		}
		if g, ok := exclusive.CurrentGrant(t.Context()); ok {
			t.Errorf("a context without a lease stands for %+v", g)
		}
		if err := h.Release(t.Context()); err != nil {
			t.Error(err)
		}
		n := s.statements()
		time.Sleep(100 * time.Second)
		if s.statements() != n {
			t.Error("renewed after its release")
		}
	})
}

// The holder is told before anybody else can have the key, without an answer.
func TestLossIsLocalWhenTheBackendHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{delay: time.Hour}
		h := hold(t, newKeeper(t, s, nil), "a")
		if took := lostAfter(t, h, time.Now()); took >= ttl || took < ttl/2 {
			t.Errorf("told after %v of a lease of %v", took, ttl)
		}
	})
}

// Validity counts from the request: a slow answer does not stretch it.
func TestValidityCountsFromTheRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{delay: 900 * time.Millisecond}
		h := hold(t, newKeeper(t, s, nil), "a")
		start := time.Now()
		time.Sleep(1950 * time.Millisecond) // the first renewal, of 1 s, was answered at 1.9 s
		if left := h.Grant().Expires.Sub(start).Round(10 * time.Millisecond); left != 4*time.Second {
			t.Errorf("ends %v after the start; want the request's 1 s + 3 s", left)
		}
	})
}

// A backend whose clock is cut to milliseconds lets the next holder in up to a
// millisecond early: Expires must not be later.
func TestExpiresOnACoarseClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(999_999 * time.Nanosecond)
		h := hold(t, newKeeper(t, &store{}, nil), "a")
		for _, after := range []string{"the request", "a renewal"} {
			cut := time.Now().Truncate(time.Millisecond).Add(ttl)
			if e := h.Grant().Expires; e.After(cut) || e.Before(cut.Add(-2*time.Millisecond)) {
				t.Errorf("after %s it expires %v after the backend's own end", after, e.Sub(cut))
			}
			time.Sleep(100 * time.Millisecond)
			if err := h.Renew(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestBlipIsNoLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{err: errors.New("connection reset")}
		h := hold(t, newKeeper(t, s, nil), "a")
		time.Sleep(2500 * time.Millisecond)
		s.set(func(s *store) { s.err = nil })
		time.Sleep(20 * time.Second)
		if err := context.Cause(h.Context()); err != nil {
			t.Errorf("lost although renewal got through in time: %v", err)
		}
		s.set(func(s *store) { s.err = errors.New("connection reset") })
		start := time.Now()
		if took := lostAfter(t, h, start); took >= ttl {
			t.Errorf("told after %v", took)
		}
		if err := context.Cause(h.Context()); !errors.Is(err, s.err) {
			t.Errorf("the loss does not say what kept it from being renewed: %v", err)
		}
	})
}

func TestNothingRenewedIsALoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{lost: map[string]bool{"a": true}}
		k := newKeeper(t, s, nil)
		a, b := hold(t, k, "a"), hold(t, k, "b")
		if took := lostAfter(t, a, time.Now()); took > ttl/3+time.Millisecond {
			t.Errorf("told after %v", took)
		}
		time.Sleep(10 * time.Second)
		if err := b.Context().Err(); err != nil {
			t.Errorf("the other lease of the batch ended: %v", err)
		}
		s.set(func(s *store) {
			for _, ids := range s.renewals[1:] {
				if slices.Contains(ids, "a") {
					t.Error("a lost lease is renewed")
				}
			}
		})
		if err := a.Release(t.Context()); !errors.Is(err, exclusive.ErrLost) {
			t.Errorf("release of a lost lease: %v", err)
		}
	})
}

// A row that is locked for the moment is neither renewed nor lost.
func TestLockedRowIsTriedAgainSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{waiting: map[string]bool{"a": true}}
		k := newKeeper(t, s, nil)
		a := hold(t, k, "a")
		time.Sleep(2 * time.Second)
		s.set(func(s *store) { s.waiting = nil })
		time.Sleep(10 * time.Second)
		if err := a.Context().Err(); err != nil {
			t.Errorf("lost: %v", err)
		}
	})
}

// A renewal that got through for some says why it did not for the others, to the
// observer at once and with the loss later.
func TestPartlyFailedRenewalSaysWhy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failed := errors.New("one node is away")
		s := &store{waiting: map[string]bool{"a": true}, err: failed}
		o := &renewals{}
		k := newKeeper(t, s, func(c *lease.Config) { c.Observer = o })
		a, b := hold(t, k, "a"), hold(t, k, "b")
		if took := lostAfter(t, a, time.Now()); took >= ttl {
			t.Errorf("told after %v", took)
		}
		if err := context.Cause(a.Context()); !errors.Is(err, failed) {
			t.Errorf("the loss does not say what kept it from being renewed: %v", err)
		}
		if err := b.Context().Err(); err != nil {
			t.Errorf("the lease that was renewed ended: %v", err)
		}
		if n := o.ok.Load(); n != 0 {
			t.Errorf("%d partly failed renewals were observed as successes", n)
		}
		if o.failed.Load() == 0 {
			t.Error("no failed renewal was observed")
		}
	})
}

// renewals counts what an observer hears of renewals.
type renewals struct{ ok, failed atomic.Int64 }

func (r *renewals) Start(ctx context.Context, _ exclusive.Event) context.Context { return ctx }
func (r *renewals) End(_ context.Context, e exclusive.Event) {
	switch {
	case e.Op != exclusive.OpRenew:
	case e.Err == nil:
		r.ok.Add(1)
	default:
		r.failed.Add(1)
	}
}

// A Commit that was refused because the grant is over has it renewed at once, which
// tells. (The lease's end is far.) Other errors have not.
func TestRefusedCommitIsLookedInto(t *testing.T) {
	for _, kind := range []error{exclusive.ErrLost, exclusive.ErrFenced, exclusive.ErrConflict} {
		synctest.Test(t, func(t *testing.T) {
			s := &store{lost: map[string]bool{"a": true}}
			a := hold(t, newKeeper(t, s, nil), "a")
			time.Sleep(ttl / 10)
			if err := a.Begin(); err != nil {
				t.Fatal(err)
			}
			a.End(&exclusive.Error{Op: "commit", Kind: kind})
			synctest.Wait()
			if told := errors.Is(context.Cause(a.Context()), exclusive.ErrLost); told != (kind != exclusive.ErrConflict) {
				t.Errorf("after %v: told %v", kind, told)
			}
		})
	}
}

// goroutines counts them with the world stopped. runtime.NumGoroutine does not
// stop it, and counts ended ones while the garbage collector frees their stacks.
func goroutines() int {
	buf := make([]byte, 1<<20)
	return bytes.Count(buf[:runtime.Stack(buf, true)], []byte("\ngoroutine ")) + 1
}

func TestBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		k := newKeeper(t, s, nil)
		const n = 4_000
		var held []*lease.Held
		for i := range n {
			held = append(held, hold(t, k, fmt.Sprint(i)))
			if i%100 == 0 {
				time.Sleep(time.Millisecond) // not all at one moment
			}
		}
		synctest.Wait()
		before := goroutines()
		time.Sleep(30 * time.Second)
		synctest.Wait() // the timers that fire at this moment have a goroutine each, briefly
		if grown := goroutines() - before; grown > 2 {
			t.Errorf("%d leases need %d goroutines", n, grown)
		}
		perTick := (n + lease.Batch - 1) / lease.Batch
		if got, most := s.statements(), 40*perTick; got > most {
			t.Errorf("%d statements for %d leases in 30 s; at most %d", got, n, most)
		}
		for _, h := range held {
			if err := h.Context().Err(); err != nil {
				t.Fatalf("ended: %v", err)
			}
		}
	})
}

// It ends between two renewals: what is due at the same moment may come first.
func TestMaxHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		h := hold(t, newKeeper(t, s, func(c *lease.Config) { c.MaxHold = 10500 * time.Millisecond }), "a")
		if took := lostAfter(t, h, time.Now()); took != 10500*time.Millisecond {
			t.Errorf("held for %v", took)
		}
		n := s.statements()
		time.Sleep(10 * time.Second)
		if s.statements() != n {
			t.Error("renewed past MaxHold")
		}
	})
}

// Without a TTL the grant says that time does not bound it, and MaxHold still
// does.
func TestUnbounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		h := hold(t, newKeeper(t, s, func(c *lease.Config) { c.TTL = 0 }), "a")
		capped := hold(t, newKeeper(t, s, func(c *lease.Config) { c.TTL, c.MaxHold = 0, 10*time.Second }), "b")
		if took := lostAfter(t, capped, time.Now()); took != 10*time.Second {
			t.Errorf("held for %v", took)
		}
		if err := h.Begin(); err != nil {
			t.Fatal(err)
		}
		h.Lock()
		h.End(errors.New("apply failed"))
		time.Sleep(200 * 365 * 24 * time.Hour)
		if err := h.Context().Err(); err != nil {
			t.Errorf("ended: %v", err)
		}
		if g, ok := exclusive.CurrentGrant(h.Context()); !ok || g.ID != "a" || !g.Expires.IsZero() {
			t.Errorf("the context stands for %+v, %v", g, ok)
		}
		if n := s.statements(); n > 0 {
			t.Errorf("%d renewals", n)
		}
		if err := h.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestRenewalEndsWithTheCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		k := newKeeper(t, s, nil)
		ctx, cancel := context.WithCancel(t.Context())
		h := k.Hold(ctx, exclusive.Grant{Key: "k", ID: "a", Token: 1}, time.Now())
		time.Sleep(9500 * time.Millisecond) // between two renewals
		cancel()
		n := s.statements()
		time.Sleep(10 * time.Second)
		if s.statements() > n {
			t.Error("renewed after the caller's context ended")
		}
		if err := h.Renew(t.Context()); !errors.Is(err, exclusive.ErrLost) {
			t.Errorf("renewal after its end: %v", err)
		}
	})
}

func TestForgottenLeaseRunsOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		k := newKeeper(t, s, nil)
		h := hold(t, k, "a")
		h.Forget()
		lostAfter(t, h, time.Now())
		if _, ok := k.Find("a"); ok {
			t.Error("the keeper still has it")
		}
		if s.statements() > 0 {
			t.Error("renewed")
		}
	})
}

// While a Commit holds the row nobody can take the key over, so the deadline
// waits; when it fails the deadline counts again.
func TestCommitSuspendsTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{waiting: map[string]bool{"a": true, "b": true}}
		k := newKeeper(t, s, nil)
		a, b := hold(t, k, "a"), hold(t, k, "b")
		for _, h := range []*lease.Held{a, b} {
			if err := h.Begin(); err != nil {
				t.Fatal(err)
			}
			if err := h.Begin(); !errors.Is(err, exclusive.ErrInvalid) {
				t.Errorf("second Commit at the same time: %v", err)
			}
			h.Lock()
		}
		time.Sleep(10 * ttl)
		if err := a.Context().Err(); err != nil {
			t.Fatalf("ended while the row was locked: %v", err)
		}
		if err := a.Release(t.Context()); !errors.Is(err, exclusive.ErrInvalid) {
			t.Errorf("release during a Commit: %v", err)
		}
		a.End(nil)
		if !a.Finished() || !errors.Is(context.Cause(a.Context()), context.Canceled) {
			t.Errorf("finished: %v, %v", a.Finished(), context.Cause(a.Context()))
		}
		b.End(errors.New("apply failed"))
		lostAfter(t, b, time.Now())
		if s.statements() > 0 {
			t.Error("a row in a Commit was renewed")
		}
		if err := a.Begin(); !errors.Is(err, exclusive.ErrInvalid) {
			t.Errorf("Commit after Commit: %v", err)
		}
	})
}

// What Do cannot give back during a Commit is given back after it, whether that has
// the row or still waits for a connection, and after Close too.
func TestGivenBackAfterACommit(t *testing.T) {
	for name, tt := range map[string]struct{ locked, closed bool }{
		"has the row": {locked: true},
		"waits":       {},
		"closed":      {locked: true, closed: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &doStore{}
				l := lease.NewLeaser(lease.Config{}, 0, s)
				defer l.Keeper.Close()
				applied := make(chan struct{})
				began := time.Now()
				var h *lease.Held
				err := l.Do(t.Context(), "k", func(_ context.Context, g exclusive.Grant) error {
					h, _ = l.Keeper.Find(g.ID)
					if err := h.Begin(); err != nil {
						return err
					}
					if tt.locked {
						h.Lock()
					}
					go func() {
						<-applied
						h.End(h.Commits.Send(g))
					}()
					return nil
				})
				if !errors.Is(err, exclusive.ErrLost) || errors.Is(err, exclusive.ErrInvalid) || s.released != nil {
					t.Errorf("Do gives %v, and has given back %v", err, s.released)
				}
				if took := time.Since(began); took != run.EndWait {
					t.Errorf("Do took %v", took)
				}
				if h.Context().Err() == nil || h.Stopped() {
					t.Errorf("work's context: %v; work was told to stop: %v", h.Context().Err(), h.Stopped())
				}
				if tt.closed {
					l.Keeper.Close()
				}
				close(applied)
				synctest.Wait()
				if len(s.released) != 1 {
					t.Errorf("given back: %v", s.released)
				}
			})
		})
	}
}

// doStore is a store that gives everybody a grant.
type doStore struct{ store }

func (s *doStore) Acquire(_ context.Context, key, id string, _ bool) (exclusive.Grant, time.Time, error) {
	return exclusive.Grant{Key: key, ID: id, Token: 1, Attempt: 1}, time.Now(), nil
}

// What the backend says about a finish counts, whatever is known here.
func TestFinish(t *testing.T) {
	fenced, gone := &exclusive.Error{Kind: exclusive.ErrFenced}, &exclusive.Error{Kind: exclusive.ErrLost}
	failed := exclusive.Error{Kind: exclusive.ErrOutcomeUnknown}
	broken := &exclusive.Error{Kind: exclusive.ErrUnavailable, Err: errors.New("connection reset")}
	for _, c := range []struct {
		lost         bool // here, before
		answer, want error
	}{
		{false, nil, nil},
		{true, nil, nil},
		{false, fenced, exclusive.ErrFenced},
		{true, fenced, exclusive.ErrFenced},
		{false, gone, exclusive.ErrLost},
		{true, gone, exclusive.ErrLost},
		{false, broken, exclusive.ErrOutcomeUnknown},
		{true, broken, exclusive.ErrOutcomeUnknown},
	} {
		synctest.Test(t, func(t *testing.T) {
			h := hold(t, newKeeper(t, &store{}, func(c *lease.Config) { c.NoRenew = true }), "a")
			if c.lost {
				lostAfter(t, h, time.Now())
			}
			err := h.Finish(t.Context(), failed, func(context.Context, exclusive.Grant) error { return c.answer })
			if !errors.Is(err, c.want) || errors.Is(err, exclusive.ErrUnavailable) {
				t.Errorf("lost here: %v, the backend says %v: Finish gives %v; want %v", c.lost, c.answer, err, c.want)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		h := hold(t, newKeeper(t, &store{}, nil), "a")
		if err := h.Begin(); err != nil {
			t.Fatal(err)
		}
		h.Lock()
		err := h.Finish(t.Context(), failed, func(context.Context, exclusive.Grant) error { t.Error("the backend was asked"); return nil })
		if !errors.Is(err, exclusive.ErrOutcomeUnknown) {
			t.Errorf("during a Commit: %v", err)
		}
		h.End(errors.New("apply failed"))
	})
}

// A second Commit is a mistake as long as somebody has the lease that the first
// one has ended; then nothing is kept of it.
func TestCommittedLeaseIsKnownUntilItIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeeper(t, &store{}, nil)
		for name, giveUp := range map[string]func(*lease.Held){
			"released":  func(h *lease.Held) { _ = h.Release(t.Context()) },
			"forgotten": (*lease.Held).Forget,
		} {
			h := hold(t, k, name)
			if err := h.Usable("check"); err != nil {
				t.Errorf("while it is held: %v", err)
			}
			if err := h.Begin(); err != nil {
				t.Fatal(err)
			}
			h.End(nil)
			if found, ok := k.Find(name); !ok || !errors.Is(found.Usable("check"), exclusive.ErrInvalid) {
				t.Errorf("%s: after its Commit it is not known as committed", name)
			}
			giveUp(h)
			if _, ok := k.Find(name); ok {
				t.Errorf("%s: still known", name)
			}
		}
		h := hold(t, k, "without")
		if err := h.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := h.Begin(); !errors.Is(err, exclusive.ErrLost) {
			t.Errorf("Commit after Release: %v", err)
		}
	})
}

func TestReleaseMayBeRepeatedWhenItFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{relErr: errors.New("connection reset")}
		h := hold(t, newKeeper(t, s, nil), "a")
		if err := h.Release(t.Context()); !errors.Is(err, s.relErr) {
			t.Errorf("release: %v", err)
		}
		if err := h.Context().Err(); err == nil {
			t.Error("work may go on although the lease may be gone")
		}
		s.set(func(s *store) { s.relErr = nil })
		if err := h.Release(t.Context()); err != nil {
			t.Errorf("repeated release: %v", err)
		}
		if err := h.Release(t.Context()); !errors.Is(err, exclusive.ErrLost) {
			t.Errorf("release after release: %v", err)
		}
	})
}

func TestCloseStopsRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{delay: time.Hour}
		k := newKeeper(t, s, nil)
		h := hold(t, k, "a")
		time.Sleep(ttl / 2) // a renewal hangs
		start := time.Now()
		k.Close()
		if took := time.Since(start); took != 0 {
			t.Errorf("Close took %v", took)
		}
		lostAfter(t, h, start)
		late := hold(t, k, "late")
		lostAfter(t, late, time.Now())
	})
}

type losses struct {
	mu  sync.Mutex
	ops []exclusive.Op
}

func (l *losses) Start(ctx context.Context, _ exclusive.Event) context.Context { return ctx }
func (l *losses) End(_ context.Context, e exclusive.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ops = append(l.ops, e.Op)
}

func TestLossIsObserved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen losses
		k := newKeeper(t, &store{}, func(c *lease.Config) { c.NoRenew, c.Observer = true, &seen })
		lostAfter(t, hold(t, k, "a"), time.Now())
		synctest.Wait()
		if !slices.Equal(seen.ops, []exclusive.Op{exclusive.OpLose}) {
			t.Errorf("observed %v", seen.ops)
		}
	})
}
