package strategies_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/exclusivetest"
	"github.com/exclusive-go/exclusive/integration_test/matrix"
	"github.com/exclusive-go/exclusive/integration_test/strategies"
)

// A session that reads what is not committed would be told that a key is done
// by a Commit that is rolled back in the end. It is refused. The twin looks past
// the strategy, and sees it.
func TestReadUncommitted(t *testing.T) {
	matrix.Drivers(t, nil, strategies.Each(testReadUncommitted[*sql.Tx]), "mysql", "mariadb")
}

func testReadUncommitted[Tx any](t *testing.T, target *matrix.Target[Tx], s strategies.Strategy[Tx]) {
	place := s.SetUp(t, target)
	x := place.New(t, target, exclusivetest.Config{})
	level := map[string]string{"mysql": "transaction_isolation", "mariadb": "tx_isolation"}[target.Dialect]
	dirty := target.Another(t, matrix.Options{Params: map[string]string{level: "'READ-UNCOMMITTED'"}})
	rival := place.New(t, dirty, exclusivetest.Config{})
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	work := func(context.Context, exclusive.Grant) error {
		t.Error("the rival's work ran")
		return nil
	}
	held, free := place.MustKey(t), place.MustKey(t)
	errRolledBack := errors.New("rolled back")
	err := x.Do(ctx, held, func(ctx context.Context, g exclusive.Grant) error {
		return x.Commit(ctx, g, func(ctx context.Context, tx Tx) error {
			if err := place.Write(ctx, tx, held, "not committed"); err != nil {
				return err
			}
			if err := rival.Do(ctx, held, work); !errors.Is(err, exclusive.ErrUnsupported) && !errors.Is(err, exclusive.ErrHeld) {
				t.Errorf("the rival was told %v", err)
			}
			if err := rival.Do(ctx, free, work); !errors.Is(err, exclusive.ErrUnsupported) {
				t.Errorf("at READ UNCOMMITTED: %v", err)
			}
			twin(ctx, t, dirty, place, held)
			return errRolledBack
		})
	})
	if !errors.Is(err, errRolledBack) {
		t.Errorf("do: %v", err)
	}
	if body, _ := place.Stored(t, held); body != "" {
		t.Errorf("stored %q", body)
	}
}

// twin reads at READ UNCOMMITTED, past the strategy.
func twin[Tx any](ctx context.Context, t *testing.T, dirty *matrix.Target[Tx], place *strategies.Place[Tx], key string) {
	t.Helper()
	tx, err := dirty.BeginPast(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = dirty.DB.Rollback(tx) }()
	if body, err := place.Read(ctx, tx, key); err != nil || body != "not committed" {
		t.Errorf("the session reads %q, %v: the test proves nothing", body, err)
	}
}
