package lease_test

import (
	"context"
	"errors"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/internal/lease"
)

// waitStore is a store whose key is held until free, and which is silent from
// silent on, for as long as that lasts; both count from the first question.
type waitStore struct {
	store
	free, silent, back time.Duration

	mu      sync.Mutex
	first   time.Time
	acquire int
}

const never = time.Duration(math.MaxInt64)

func (s *waitStore) Acquire(ctx context.Context, key, id string, _ bool) (exclusive.Grant, time.Time, error) {
	s.mu.Lock()
	s.acquire++
	if s.first.IsZero() {
		s.first = time.Now()
	}
	first := s.first
	s.mu.Unlock()
	asked := time.Now()
	if since := asked.Sub(first); since >= s.silent && since < s.back {
		timer := time.NewTimer(s.back - since)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return exclusive.Grant{}, asked, &exclusive.Error{Op: "acquire", Key: key, Err: ctx.Err()}
		}
	}
	if asked.Sub(first) < s.free {
		return exclusive.Grant{}, asked, &exclusive.Error{Op: "acquire", Key: key, Kind: exclusive.ErrHeld}
	}
	return exclusive.Grant{Key: key, ID: id, Token: 1, Attempt: 1}, asked, nil
}

// What is told at the end of a wait: held if somebody has said so a moment ago, and
// nothing that nobody knows.
func TestEndOfWait(t *testing.T) {
	const wait = 10 * time.Second
	for name, c := range map[string]struct {
		store   *waitStore
		waiters int // they queue for the one turn
		cancel  time.Duration
		want    error // nil: all get the key
	}{
		"held":                      {&waitStore{free: never, silent: never}, 1, 0, exclusive.ErrHeld},
		"held, no turn":             {&waitStore{free: never, silent: never}, 3, 0, exclusive.ErrHeld},
		"cut off":                   {&waitStore{free: never, silent: wait - time.Second, back: never}, 1, 0, exclusive.ErrHeld},
		"silent":                    {&waitStore{free: never, silent: time.Second, back: never}, 1, 0, exclusive.ErrUnavailable},
		"silent, no turn":           {&waitStore{free: never, silent: time.Second, back: never}, 3, 0, exclusive.ErrUnavailable},
		"silent for a while":        {&waitStore{free: never, silent: time.Second, back: wait + time.Second}, 1, 0, exclusive.ErrHeld},
		"free when it speaks again": {&waitStore{free: 2 * time.Second, silent: time.Second, back: wait + time.Second}, 1, 0, nil},
		"silent, and cancelled":     {&waitStore{free: never, silent: time.Second, back: never}, 1, wait + time.Second, context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := lease.NewLeaser(lease.Config{}, wait, c.store)
				defer l.Keeper.Close()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if c.cancel > 0 {
					time.AfterFunc(c.cancel, cancel)
				}
				var wg sync.WaitGroup
				for range c.waiters {
					wg.Go(func() {
						began := time.Now()
						err := l.Do(ctx, "k", func(context.Context, exclusive.Grant) error { return nil })
						if !errors.Is(err, c.want) {
							t.Errorf("%v; want %v", err, c.want)
						}
						for _, other := range []error{exclusive.ErrHeld, exclusive.ErrUnavailable, context.Canceled} {
							if other != c.want && errors.Is(err, other) {
								t.Errorf("%v matches %q too", err, other)
							}
						}
						if took := time.Since(began); took < wait && c.want != nil || took > 2*wait {
							t.Errorf("told after %v", took)
						}
					})
				}
				wg.Wait()
			})
		})
	}
}

// Who has been refused a moment ago does not ask again.
func TestEndOfWaitAsksNoMoreThanItMust(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &waitStore{free: never, silent: time.Nanosecond, back: never}
		l := lease.NewLeaser(lease.Config{}, time.Second, s)
		defer l.Keeper.Close()
		err := l.Do(t.Context(), "k", func(context.Context, exclusive.Grant) error { return nil })
		if !errors.Is(err, exclusive.ErrHeld) || s.acquire > 3 {
			t.Errorf("%v after %d questions", err, s.acquire)
		}
	})
}

// The longest wait is one.
func TestWaitForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := lease.NewLeaser(lease.Config{}, never, &waitStore{free: time.Hour, silent: never})
		defer l.Keeper.Close()
		if err := l.Do(t.Context(), "k", func(context.Context, exclusive.Grant) error { return nil }); err != nil {
			t.Error(err)
		}
	})
}
