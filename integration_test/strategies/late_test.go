package strategies_test

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/exclusivetest"
	"github.com/exclusive-go/exclusive/integration_test/matrix"
	"github.com/exclusive-go/exclusive/integration_test/strategies"
	"github.com/exclusive-go/exclusive/internal/db"
)

// copier is an adapter that can send the first statement with an argument once more,
// as a network does that has kept a copy of it back.
type copier[Tx any] struct {
	db.DB[Tx]
	mu    sync.Mutex
	first map[string]func(context.Context) error
}

func (c *copier[Tx]) note(args []any, again func(context.Context) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range args {
		if id, ok := a.(string); ok && c.first[id] == nil {
			c.first[id] = again
		}
	}
}

func (c *copier[Tx]) Exec(ctx context.Context, query string, args ...any) (db.Result, error) {
	c.note(args, func(ctx context.Context) error { _, err := c.DB.Exec(ctx, query, args...); return err })
	return c.DB.Exec(ctx, query, args...)
}

func (c *copier[Tx]) Query(ctx context.Context, query string, args []any, each func(db.Scan) error) error {
	c.note(args, func(ctx context.Context) error {
		return c.DB.Query(ctx, query, args, func(db.Scan) error { return nil })
	})
	return c.DB.Query(ctx, query, args, each)
}

func (c *copier[Tx]) again(t *testing.T, id string) {
	t.Helper()
	c.mu.Lock()
	again := c.first[id]
	c.mu.Unlock()
	if again == nil {
		t.Fatal("no statement had the grant's id")
	}
	if err := again(t.Context()); err != nil {
		t.Fatalf("the copy: %v", err)
	}
}

// A copy of a claim that arrives while its grant is current takes nothing away, and
// one that arrives after an operator has taken the key from its holder does not give
// it back: the holder hears of the loss, and what it writes is refused.
func TestLateCopyOfClaim(t *testing.T) {
	matrix.Drivers(t, testLateCopyOfClaim[pgx.Tx], testLateCopyOfClaim[*sql.Tx])
}

func testLateCopyOfClaim[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	renewed := map[string]bool{"casupdate": false, "casupdate_leased": true, "uniquetask": true, "fencing": true}
	for _, s := range strategies.All[Tx]() {
		renewed, play := renewed[s.Name]
		if !play {
			continue
		}
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			target := target
			if !target.Networked() {
				target = target.Fresh(t)
			}
			lateCopyOfClaim(t, target, s, renewed)
		})
	}
}

func lateCopyOfClaim[Tx any](t *testing.T, target *matrix.Target[Tx], s strategies.Strategy[Tx], renewed bool) {
	ctx := t.Context()
	place := s.SetUp(t, target)
	adapter := &copier[Tx]{DB: target.DB, first: make(map[string]func(context.Context) error)}
	behind := *target
	behind.DB = adapter
	cfg := exclusivetest.Config{}
	if renewed {
		cfg.TTL = 6 * time.Second
	}
	x, other := place.New(t, &behind, cfg), place.New(t, target, cfg)
	key := place.MustKey(t)
	check := func(g exclusive.Grant) error {
		return place.InTx(ctx, func(ctx context.Context, tx Tx) error { return other.Check(ctx, tx, g) })
	}
	lost := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, exclusive.ErrLost) && !errors.Is(err, exclusive.ErrFenced) {
			t.Errorf("%s: %v; want it refused", what, err)
		}
	}
	err := x.Do(ctx, key, func(wctx context.Context, g exclusive.Grant) error {
		adapter.again(t, g.ID)
		if err := check(g); err != nil {
			t.Errorf("a copy that arrives at once: %v", err)
		}
		if err := place.TakeAway(ctx, key); err != nil {
			t.Fatalf("take the key away: %v", err)
		}
		adapter.again(t, g.ID)
		lost("check", check(g))
		lost("commit", other.Commit(ctx, g, func(ctx context.Context, tx Tx) error { return place.Write(ctx, tx, key, "late") }))
		if renewed {
			select {
			case <-wctx.Done():
			case <-time.After(20 * time.Second):
				t.Error("the holder does not hear of the loss")
			}
		}
		return nil
	})
	lost("do", err)
	if body, n := place.Stored(t, key); n != 0 {
		t.Errorf("%q is stored", body)
	}
}
