package lease_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/internal/lease"
	"github.com/exclusive-go/exclusive/internal/run"
)

var errAway = fmt.Errorf("away: %w", syscall.ECONNREFUSED)

// silence is a backend that answers no release before it is back, however long that
// takes, unless it refuses meanwhile.
type silence struct {
	store
	back    time.Time
	refuses bool
	held    map[string]bool // what it has
	asked   int
}

func (s *silence) Release(ctx context.Context, g exclusive.Grant) error {
	s.set(func(*store) { s.asked++ })
	if time.Now().Before(s.back) {
		if s.refuses {
			return errAway
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Until(s.back)):
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.held[g.ID] {
		return &exclusive.Error{Op: "release", Kind: exclusive.ErrLost}
	}
	delete(s.held, g.ID)
	return nil
}

func (s *silence) has(id string) (has bool) {
	s.set(func(*store) { has = s.held[id] })
	return has
}

// times is how often it was asked.
func (s *silence) times() (n int) {
	s.set(func(*store) { n = s.asked })
	return n
}

// A release whose context has ended, or ends before there is an answer, returns at
// once and gives the key back all the same.
func TestReleaseGoesOn(t *testing.T) {
	const away = ttl / 2
	for name, c := range map[string]struct {
		within  time.Duration // for which the caller's context goes on; negative: it has ended
		refuses bool
	}{
		"ended before":             {within: -1},
		"ended before, refused":    {within: -1, refuses: true},
		"ends before the answer":   {within: away / 2},
		"the caller has more time": {within: 2 * away},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &silence{back: time.Now().Add(away), refuses: c.refuses, held: map[string]bool{"a": true}}
				freed := make(chan string, 2)
				k := lease.NewKeeper(lease.Config{TTL: ttl, Freed: func(key string) { freed <- key }}, s)
				defer k.Close()
				h := hold(t, k, "a")
				ctx, cancel := context.WithTimeout(t.Context(), max(c.within, 0))
				defer cancel()
				if c.within < 0 {
					cancel()
				}
				began := time.Now()
				err := h.Release(ctx)
				if took := time.Since(began); took != min(max(c.within, 0), away) {
					t.Errorf("it took %v", took)
				}
				if h.Context().Err() == nil {
					t.Error("the lease's context has not ended")
				}
				if c.within > away {
					if err != nil || s.has("a") {
						t.Errorf("%v; it is held: %v", err, s.has("a"))
					}
					return
				}
				if !errors.Is(err, ctx.Err()) || errors.Is(err, exclusive.ErrLost) {
					t.Errorf("%v; want an error that matches %v", err, ctx.Err())
				}
				if err := h.Release(ctx); !errors.Is(err, ctx.Err()) {
					t.Errorf("another one: %v", err)
				}
				if err := h.Release(t.Context()); err != nil {
					t.Errorf("one that waits for it: %v", err)
				}
				if took := time.Since(began); took < away || took > away+ttl/2 || s.has("a") {
					t.Errorf("after %v it is held: %v", took, s.has("a"))
				}
				if key := <-freed; key != "key-a" {
					t.Errorf("%q is free", key)
				}
				if err := h.Release(t.Context()); !errors.Is(err, exclusive.ErrLost) {
					t.Errorf("one after it: %v", err)
				}
			})
		})
	}
}

// A release whose context has ended says what is known: that the lease was lost.
func TestReleaseOfALostLeaseWithoutTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &silence{held: map[string]bool{"a": true}}
		k := lease.NewKeeper(lease.Config{TTL: ttl, NoRenew: true}, s)
		defer k.Close()
		h := hold(t, k, "a")
		lostAfter(t, h, time.Now())
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := h.Release(ended); !errors.Is(err, exclusive.ErrLost) || !errors.Is(err, context.Canceled) {
			t.Errorf("release: %v", err)
		}
		synctest.Wait()
		if s.has("a") {
			t.Error("it is still held")
		}
	})
}

// A release that is sent again means what the backend says of it: by the time alone
// nobody can tell one that got through from a key that an operator took away.
func TestReleaseSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &silence{back: time.Now().Add(time.Second), held: map[string]bool{"a": true}}
		k := lease.NewKeeper(lease.Config{TTL: ttl}, s)
		defer k.Close()
		h := hold(t, k, "a")
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if err := h.Release(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("release: %v", err)
		}
		s.set(func(*store) { delete(s.held, "a") })
		if err := h.Release(t.Context()); !errors.Is(err, exclusive.ErrLost) {
			t.Errorf("it is told as %v", err)
		}
	})
}

// Where nobody can tell whose key a release gives back it is sent once: not in the
// background, and not by another call.
func TestReleaseSentOnce(t *testing.T) {
	for name, left := range map[string]time.Duration{"ended before": 0, "ends before the answer": time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &silence{back: time.Now().Add(3 * run.EndWait), held: map[string]bool{"a": true}}
				k := lease.NewKeeper(lease.Config{SendOnce: true}, s)
				h := hold(t, k, "a")
				ctx, cancel := context.WithTimeout(t.Context(), left)
				defer cancel()
				err := h.Release(ctx)
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("release: %v", err)
				}
				time.Sleep(4 * run.EndWait)
				if again := h.Release(t.Context()); again != err {
					t.Errorf("another one: %v; want what the first has told: %v", again, err)
				}
				k.Close()
				if n := s.times(); n != 1 || !s.has("a") {
					t.Errorf("it was sent %d times", n)
				}
			})
		})
	}
}

// Two releases at the same time are one in the background, and whoever asks later
// is told what came of it.
func TestReleasesAtTheSameTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &silence{back: time.Now().Add(time.Second), held: map[string]bool{"a": true}}
		k := lease.NewKeeper(lease.Config{TTL: ttl}, s)
		defer k.Close()
		h := hold(t, k, "a")
		var both sync.WaitGroup
		for i := range 2 {
			both.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i+1)*time.Millisecond)
				defer cancel()
				if err := h.Release(ctx); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("release: %v", err)
				}
			})
		}
		both.Wait()
		if err := h.Release(t.Context()); err != nil {
			t.Errorf("one that waits: %v", err)
		}
		if n := s.times(); n != 3 {
			t.Errorf("it was sent %d times; want once by each and once in the background", n)
		}
	})
}

// answers is a backend whose n-th release is answered by a function.
type answers struct {
	store
	sent   atomic.Int64
	answer func(ctx context.Context, n int64) error
}

func (a *answers) Release(ctx context.Context, _ exclusive.Grant) error {
	return a.answer(ctx, a.sent.Add(1))
}

// slow is the context of a caller that looks at nothing before it is ready.
type slow struct {
	context.Context
	ready chan struct{}
}

func (s slow) Done() <-chan struct{} { <-s.ready; return s.Context.Done() }

// Of those who wait for a release in the background, one that learns late of its end
// does not make forgotten the one that has begun since: who comes then waits for it,
// and sends none beside it.
func TestWaiterThatLearnsLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		errDenied := errors.New("permission denied")
		denied, back := make(chan struct{}), make(chan struct{})
		a := &answers{answer: func(ctx context.Context, n int64) error {
			switch n {
			case 2:
				<-denied
				return errDenied
			case 4:
				<-back
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		}}
		k := lease.NewKeeper(lease.Config{TTL: ttl}, a)
		defer k.Close()
		h := hold(t, k, "a")
		brief := func(what string) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			if err := h.Release(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("%s: %v", what, err)
			}
		}
		brief("one that goes on in the background")
		late := slow{t.Context(), make(chan struct{})}
		learned := make(chan error)
		go func() { learned <- h.Release(late) }()
		synctest.Wait() // it has seen the one in the background
		close(denied)
		if err := h.Release(t.Context()); !errors.Is(err, errDenied) {
			t.Fatalf("one that waits: %v", err)
		}
		brief("another that goes on in the background")
		close(late.ready)
		if err := <-learned; !errors.Is(err, errDenied) {
			t.Errorf("one that learns late: %v", err)
		}
		time.AfterFunc(time.Millisecond, func() { close(back) })
		if err := h.Release(t.Context()); err != nil {
			t.Errorf("one that waits for the second: %v", err)
		}
		if n := a.sent.Load(); n != 4 {
			t.Errorf("it was sent %d times; want twice by callers and twice in the background", n)
		}
	})
}

// What somebody must mend is not sent again and again.
func TestFinalErrorsAreNotRepeated(t *testing.T) {
	for class, again := range map[db.Class]bool{
		db.Schema: false, db.Denied: false, db.Data: false, db.Syntax: false, db.Other: false,
		db.Conflict: true, db.Locked: true, db.Timeout: true, db.Disconnected: true, db.Unreachable: true, db.ReadOnly: true,
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &silence{back: time.Now().Add(time.Minute), refuses: true, held: map[string]bool{"a": true}}
			k := lease.NewKeeper(lease.Config{TTL: 2 * time.Minute, NoRenew: true, Classify: func(error) db.Class { return class }}, s)
			defer k.Close()
			h := hold(t, k, "a")
			ended, cancel := context.WithCancel(t.Context())
			cancel()
			_ = h.Release(ended)
			time.Sleep(90 * time.Second)
			if n := s.times(); n > 1 != again || s.has("a") == again {
				t.Errorf("class %d: it was sent %d times; it is held: %v", class, n, s.has("a"))
			}
		})
	}
}

// What a claim may have got that is given up after Close is given back before the
// claim returns.
func TestAbandonAfterClose(t *testing.T) {
	for away, want := range map[time.Duration]time.Duration{time.Second: time.Second, time.Hour: run.EndWait} {
		synctest.Test(t, func(t *testing.T) {
			s := &silentStore{silence{back: time.Now().Add(away), held: map[string]bool{"a": true}}}
			l := lease.NewLeaser(lease.Config{}, 0, s)
			l.Keeper.Close()
			began := time.Now()
			l.Abandon("k", "a")
			if took := time.Since(began); took != want || s.has("a") != (away > want) {
				t.Errorf("after %v it is held: %v", took, s.has("a"))
			}
		})
	}
}

// The lease's own context ends with the release, and does not keep it from its answer.
func TestReleaseWithTheLeasesContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &silence{back: time.Now().Add(time.Second), held: map[string]bool{"a": true}}
		h := hold(t, newKeeper(t, &s.store, nil), "a")
		ctx, cancel := context.WithCancel(h.Context())
		defer cancel()
		if err := h.ReleaseWith(ctx, s.Release); err != nil || s.has("a") {
			t.Errorf("%v; it is held: %v", err, s.has("a"))
		}
	})
}

// Do's end that its 5 s were not enough for goes on in the background too.
func TestDoGivesBackLater(t *testing.T) {
	for _, workErr := range []error{nil, errAway} {
		synctest.Test(t, func(t *testing.T) {
			s := &silentStore{silence: silence{held: make(map[string]bool)}}
			l := lease.NewLeaser(lease.Config{TTL: time.Minute}, 0, s)
			defer l.Keeper.Close()
			var id string
			err := l.Do(t.Context(), "k", func(_ context.Context, g exclusive.Grant) error {
				id, s.back = g.ID, time.Now().Add(3*run.EndWait)
				return workErr
			})
			if err == nil || !s.has(id) {
				t.Errorf("Do gives %v; it is held: %v", err, s.has(id))
			}
			time.Sleep(3 * run.EndWait)
			if s.has(id) {
				t.Error("it is still held")
			}
		})
	}
}

// silentStore gives everybody a grant.
type silentStore struct {
	silence
}

func (s *silentStore) Acquire(_ context.Context, key, id string, _ bool) (exclusive.Grant, time.Time, error) {
	s.set(func(*store) { s.held[id] = true })
	return exclusive.Grant{Key: key, ID: id, Token: 1, Attempt: 1}, time.Now(), nil
}

// What an acquire may have got is given back when the server is back, however long
// that takes, unless it is over by itself by then. Where time ends nothing, that is
// never.
func TestAbandonOutlastsAnAbsence(t *testing.T) {
	for name, c := range map[string]struct {
		ttl, away time.Duration
		want      bool
	}{
		"within the lease":  {ttl: time.Minute, away: 50 * time.Second, want: true},
		"after it":          {ttl: time.Minute, away: 2 * time.Minute},
		"time ends nothing": {away: 24 * time.Hour, want: true},
	} {
		for _, refuses := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := &silentStore{silence{back: time.Now().Add(c.away), refuses: refuses, held: map[string]bool{"a": true}}}
					l := lease.NewLeaser(lease.Config{TTL: c.ttl}, 0, s)
					defer l.Keeper.Close()
					l.Abandon("k", "a")
					time.Sleep(c.away + 2*time.Second)
					if s.has("a") == c.want {
						t.Errorf("it is held: %v", s.has("a"))
					}
					synctest.Wait()
					before := s.times()
					time.Sleep(time.Hour)
					if more := s.times() - before; more > 1 { // the second time, for an acquire that is late
						t.Errorf("it was asked %d times more", more)
					}
				})
			})
		}
	}
}

// An acquire that reaches the server after it was given back is given back too.
func TestAbandonTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &silentStore{silence{held: make(map[string]bool)}}
		l := lease.NewLeaser(lease.Config{TTL: time.Minute}, 0, s)
		defer l.Keeper.Close()
		l.Abandon("k", "a")
		time.Sleep(time.Second)
		s.set(func(*store) { s.held["a"] = true })
		time.Sleep(time.Second)
		if s.has("a") {
			t.Error("it is held")
		}
	})
}

// Close waits for what is being given back, but not for a server that does not come
// back.
func TestCloseWaitsForWhatIsGivenBack(t *testing.T) {
	for away, want := range map[time.Duration]time.Duration{time.Second: time.Second, time.Hour: run.EndWait} {
		synctest.Test(t, func(t *testing.T) {
			s := &silentStore{silence{back: time.Now().Add(away), held: map[string]bool{"abandoned": true, "released": true}}}
			l := lease.NewLeaser(lease.Config{TTL: 2 * time.Hour}, 0, s)
			h := hold(t, l.Keeper, "released")
			ended, cancel := context.WithCancel(t.Context())
			cancel()
			_ = h.Release(ended)
			l.Abandon("k", "abandoned")
			began := time.Now()
			l.Keeper.Close()
			if took := time.Since(began); took < want || took > want+run.EndWait/2 {
				t.Errorf("Close took %v", took)
			}
			if held := s.has("abandoned") || s.has("released"); held != (away > want) {
				t.Errorf("after %v they are held: %v", away, held)
			}
		})
	}
	// A release after Close has nobody to wait for it but its caller.
	synctest.Test(t, func(t *testing.T) {
		s := &silence{back: time.Now().Add(time.Second), held: map[string]bool{"a": true}}
		k := lease.NewKeeper(lease.Config{TTL: ttl}, s)
		h := hold(t, k, "a")
		k.Close()
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := h.Release(ended); err != nil || s.has("a") {
			t.Errorf("%v; it is held: %v", err, s.has("a"))
		}
	})
}

// Close waits for a claim that is under way and for what it gives back, though not for
// one that has no end; so does a second Close at the same time. One that comes later
// has nothing to wait for, and neither has one after claims that began after it.
func TestCloseWaitsForClaims(t *testing.T) {
	for takes, want := range map[time.Duration]time.Duration{time.Second: time.Second, time.Hour: run.EndWait} {
		synctest.Test(t, func(t *testing.T) {
			s := &slowClaims{takes: takes, silentStore: silentStore{silence{back: time.Now().Add(-1), held: make(map[string]bool)}}}
			l := lease.NewLeaser(lease.Config{TTL: 2 * time.Hour}, 0, s)
			s.leaser = l
			claim := func() { _, _ = l.TryAcquire(t.Context(), "k") }
			go claim()
			synctest.Wait()
			began := time.Now()
			closed := make(chan time.Duration, 3)
			for range 2 {
				go func() { l.Keeper.Close(); closed <- time.Since(began) }()
			}
			for range 2 {
				if took := <-closed; took < want || took > want+run.EndWait {
					t.Errorf("Close took %v; want %v", took, want)
				}
			}
			if n := s.times(); takes == want && n != 2 {
				t.Errorf("given back %d times", n)
			}
			go claim()
			synctest.Wait()
			began = time.Now()
			l.Keeper.Close()
			if took := time.Since(began); took != 0 {
				t.Errorf("another Close took %v", took)
			}
			time.Sleep(2 * takes)
		})
	}
}

// slowClaims has the answer of each claim lost after some time.
type slowClaims struct {
	silentStore
	takes  time.Duration
	leaser *lease.Leaser
}

func (s *slowClaims) Acquire(_ context.Context, key, id string, _ bool) (exclusive.Grant, time.Time, error) {
	time.Sleep(s.takes)
	s.leaser.Abandon(key, id)
	return exclusive.Grant{}, time.Time{}, errAway
}

// Many that are given back after an outage do not take every connection at once.
func TestFewGiveBackAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &counting{most: make(chan int, 1000)}
		l := lease.NewLeaser(lease.Config{TTL: time.Minute}, 0, s)
		defer l.Keeper.Close()
		for range 100 {
			l.Abandon("k", "a")
		}
		time.Sleep(time.Minute)
		if n := s.times(); n < 200 {
			t.Errorf("%d were given back", n)
		}
		close(s.most)
		for n := range s.most {
			if n > 4 {
				t.Errorf("%d at the same time", n)
			}
		}
	})
}

// counting takes a moment for each release.
type counting struct {
	silentStore
	now  int
	most chan int
}

func (s *counting) Release(context.Context, exclusive.Grant) error {
	s.set(func(*store) { s.asked++; s.now++; s.most <- s.now })
	time.Sleep(10 * time.Millisecond)
	s.set(func(*store) { s.now-- })
	return nil
}
