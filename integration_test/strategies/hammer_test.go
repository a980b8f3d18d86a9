package strategies_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/exclusivetest"
	"github.com/exclusive-go/exclusive/integration_test/matrix"
	"github.com/exclusive-go/exclusive/integration_test/strategies"
	"github.com/exclusive-go/exclusive/internal/db"
)

// hammering is how long each case of TestHammer lasts.
func hammering() time.Duration {
	if matrix.Long() {
		return 10 * time.Second
	}
	return 250 * time.Millisecond
}

// Many workers in two processes count in the destination, each by reading and
// writing what it has read plus one. Nobody overlaps, no count is lost, and all
// errors are the toolkit's.
func TestHammer(t *testing.T) {
	matrix.Drivers(t, strategies.Each(testHammer[pgx.Tx]), strategies.Each(testHammer[*sql.Tx]))
}

func testHammer[Tx any](t *testing.T, target *matrix.Target[Tx], s strategies.Strategy[Tx]) {
	place := s.SetUp(t, target)
	other := target.Another(t, matrix.Options{})
	for _, workers := range []int{8, 64} {
		for _, keys := range []int{1, 100} {
			t.Run(fmt.Sprintf("%d_workers_%d_keys", workers, keys), func(t *testing.T) {
				h := &hammer[Tx]{T: t, target: target, place: place, keys: make([]*hammered, keys)}
				for i := range h.keys {
					h.keys[i] = &hammered{key: place.MustKey(t)}
				}
				cfg := exclusivetest.Config{Wait: 10 * time.Second}
				processes := []exclusive.Transactional[Tx]{place.New(t, target, cfg), place.New(t, other, cfg)}
				until := time.Now().Add(hammering())
				var wg sync.WaitGroup
				for i := range workers {
					wg.Go(func() {
						for n := 0; n == 0 || time.Now().Before(until); n++ {
							h.strike(processes[i%2], h.keys[rand.N(keys)])
						}
					})
				}
				wg.Wait()
				h.judge()
			})
		}
	}
}

type hammer[Tx any] struct {
	*testing.T
	target *matrix.Target[Tx]
	place  *strategies.Place[Tx]
	keys   []*hammered
}

type hammered struct {
	key       string
	inside    atomic.Int32
	committed atomic.Int64
	token     atomic.Int64 // of the last holder, where there are tokens
}

func (h *hammer[Tx]) strike(x exclusive.Transactional[Tx], k *hammered) {
	ctx := h.Context()
	err := x.Do(ctx, k.key, func(ctx context.Context, g exclusive.Grant) error {
		if n := k.inside.Add(1); n != 1 {
			h.Errorf("%d holders of %s at once", n, k.key)
		}
		if was := k.token.Swap(g.Token); was >= g.Token && g.Token != 0 {
			h.Errorf("token %d of %s after %d", g.Token, k.key, was)
		}
		left := false
		leave := func() {
			if !left {
				left = true
				k.inside.Add(-1)
			}
		}
		defer leave()
		err := x.Commit(ctx, g, func(ctx context.Context, tx Tx) error {
			defer leave() // the key is free before Commit returns
			return h.count(ctx, tx, k.key)
		})
		if err == nil {
			k.committed.Add(1)
		}
		return err
	})
	switch {
	case errors.Is(err, exclusive.ErrDone):
		err = h.place.Reopen(ctx, k.key)
		if errors.Is(err, exclusive.ErrConflict) || errors.Is(err, exclusive.ErrHeld) {
			err = nil // somebody else has reopened it
		}
	case errors.Is(err, exclusive.ErrHeld), errors.Is(err, exclusive.ErrConflict):
		err = nil // busy, or nothing was written
	}
	if err != nil {
		h.Errorf("%s: %v", k.key, err)
	}
}

// count reads and writes, so that a second worker in between is told by a count
// that is lost.
func (h *hammer[Tx]) count(ctx context.Context, tx Tx, key string) error {
	r, err := h.target.DB.Within(tx)
	if err != nil {
		return err
	}
	var n int64
	err = r.Query(ctx, h.target.Bind("SELECT n FROM result WHERE name = ?"), []any{key}, func(scan db.Scan) error { return scan(&n) })
	if err != nil {
		return err
	}
	return h.target.Exec(ctx, tx, h.target.Bind("UPDATE result SET n = ? WHERE name = ?"), n+1, key)
}

func (h *hammer[Tx]) judge() {
	h.Helper()
	total := int64(0)
	for _, k := range h.keys {
		_, n := h.place.Stored(h.T, k.key)
		if want := k.committed.Load(); n != want {
			h.Errorf("%s: %d commits, and the count is %d", k.key, want, n)
		}
		total += n
	}
	if total == 0 {
		h.Error("nobody got anywhere")
	}
}

// The twin: the same counting without a strategy loses counts.
func TestHammerUnguarded(t *testing.T) {
	matrix.Drivers(t, testHammerUnguarded[pgx.Tx], testHammerUnguarded[*sql.Tx])
}

func testHammerUnguarded[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	place := strategies.All[Tx]()[0].SetUp(t, target)
	key := place.MustKey(t)
	const workers = 8
	var read, written sync.WaitGroup
	read.Add(workers)
	for range workers {
		written.Go(func() {
			_, n := place.Stored(t, key)
			read.Done()
			read.Wait() // at the same time
			target.MustExec(t, "UPDATE result SET n = ? WHERE name = ?", n+1, key)
		})
	}
	written.Wait()
	if _, n := place.Stored(t, key); n == workers {
		t.Error("without a strategy nothing was lost: the test proves nothing")
	}
}
