package wait_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/exclusive-go/exclusive/internal/wait"
)

// A hundred waiters of one key cost one poller; each gets its turn in order.
func TestOnePollerPerKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q wait.Queue
		var polling, tries int
		var served []int
		free := time.Now().Add(time.Second)
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				err := q.Poll(t.Context(), "k", func() (bool, time.Duration) {
					if polling++; polling > 1 {
						t.Error("two pollers at once")
					}
					tries++
					time.Sleep(time.Millisecond) // a round trip
					polling--
					if time.Now().Before(free) {
						return false, 0
					}
					served = append(served, i)
					return true, 0
				})
				if err != nil {
					t.Error(err)
				}
			})
			synctest.Wait() // queue up in order
		}
		wg.Wait()
		for i, who := range served {
			if i != who {
				t.Fatalf("served out of order: %v", served)
			}
		}
		if most := 100 + 40; len(served) != 100 || tries > most {
			t.Errorf("%d tries for %d waiters", tries, len(served))
		}
	})
}

func TestWakeEndsThePause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q wait.Queue
		q.Wake("nobody waits")
		free := false
		done := make(chan time.Time)
		go func() {
			_ = q.Poll(t.Context(), "k", func() (bool, time.Duration) { return free, 0 })
			done <- time.Now()
		}()
		time.Sleep(10 * time.Second) // its pauses are long now
		synctest.Wait()
		free = true
		start := time.Now()
		q.Wake("k")
		if woke := (<-done).Sub(start); woke != 0 {
			t.Errorf("woke after %v", woke)
		}
	})
}

func TestPauseEndsWhenTheKeyIsFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q wait.Queue
		start := time.Now()
		free := start.Add(1003 * time.Millisecond)
		_ = q.Poll(t.Context(), "k", func() (bool, time.Duration) { return !time.Now().Before(free), time.Until(free) })
		if took := time.Since(start); took != 1003*time.Millisecond {
			t.Errorf("took %v", took)
		}
	})
}

func TestContextEndsTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q wait.Queue
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var wg sync.WaitGroup
		for range 2 { // one polls, one queues
			wg.Go(func() {
				if err := q.Poll(ctx, "k", func() (bool, time.Duration) { return false, 0 }); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("ended with %v", err)
				}
			})
		}
		start := time.Now()
		wg.Wait()
		if took := time.Since(start); took != time.Second {
			t.Errorf("took %v", took)
		}
		if err := q.Poll(ctx, "k", func() (bool, time.Duration) { t.Error("tried"); return true, 0 }); err == nil {
			t.Error("an ended context is let through")
		}
	})
}
