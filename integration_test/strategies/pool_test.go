package strategies_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/exclusivetest"
	"github.com/exclusive-go/exclusive/integration_test/matrix"
	"github.com/exclusive-go/exclusive/integration_test/strategies"
	"github.com/exclusive-go/exclusive/rowlock"
)

// Who needs a connection inside work, or apply, that has the pool's only one is
// told so, instead of waiting for itself, whatever the strategies are.
func TestNestedInAPoolOfOne(t *testing.T) {
	matrix.Drivers(t, strategies.Each[pgx.Tx](testNestedInAPoolOfOne), strategies.Each[*sql.Tx](testNestedInAPoolOfOne))
}

func testNestedInAPoolOfOne[Tx any](t *testing.T, target *matrix.Target[Tx], s strategies.Strategy[Tx]) {
	place := s.SetUp(t, target)
	// It would be for ever, and longer than any statement of a busy machine takes.
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	locksOn := func(target *matrix.Target[Tx]) *rowlock.Locks[Tx] {
		x, err := rowlock.New(target.DB, rowlock.Config{Table: "result", KeyColumns: []string{"name"}})
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	key, other := place.MustKey(t), place.MustKey(t)
	mustNotRun := func(context.Context, exclusive.Grant) error {
		t.Error("work ran")
		return nil
	}
	refused := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, exclusive.ErrUnavailable) || ctx.Err() != nil {
			t.Errorf("%s: %v; want ErrUnavailable", what, err)
		}
	}
	store := func(ctx context.Context, tx Tx) error { return place.Write(ctx, tx, other, "stored") }

	one := target.Another(t, matrix.Options{MaxConns: 1})
	outer, inner := locksOn(one), place.New(t, one, exclusivetest.Config{NoRenew: true})
	err := outer.Do(ctx, key, func(ctx context.Context, _ exclusive.Grant) error {
		refused("Do in the work of rowlock", inner.Do(ctx, other, mustNotRun))
		return nil
	})
	if err != nil {
		t.Errorf("rowlock: %v", err)
	}
	refused("rowlock in apply", inner.Do(ctx, other, func(ctx context.Context, g exclusive.Grant) error {
		return inner.Commit(ctx, g, func(ctx context.Context, _ Tx) error { return outer.Do(ctx, key, mustNotRun) })
	}))
	// A Commit gives the connection back.
	err = outer.Do(ctx, key, func(ctx context.Context, g exclusive.Grant) error {
		if err := outer.Commit(ctx, g, store); err != nil {
			return err
		}
		return inner.Do(ctx, other, func(ctx context.Context, g exclusive.Grant) error { return inner.Commit(ctx, g, store) })
	})
	if err != nil {
		t.Errorf("Do after the Commit of rowlock: %v", err)
	}
	one.Idle(t)
	if !target.Networked() {
		return // one transaction stops all others there
	}

	// The twin: there is a second connection.
	two := target.Another(t, matrix.Options{MaxConns: 2})
	key, other = place.MustKey(t), place.MustKey(t)
	outer, inner = locksOn(two), place.New(t, two, exclusivetest.Config{NoRenew: true})
	err = outer.Do(ctx, key, func(ctx context.Context, _ exclusive.Grant) error {
		return inner.Do(ctx, other, func(ctx context.Context, g exclusive.Grant) error { return inner.Commit(ctx, g, store) })
	})
	if err != nil {
		t.Errorf("with a second connection: %v", err)
	}
}
