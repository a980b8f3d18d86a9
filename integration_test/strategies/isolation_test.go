package strategies_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/casupdate"
	"github.com/exclusive-go/exclusive/exclusivetest"
	"github.com/exclusive-go/exclusive/fencing"
	"github.com/exclusive-go/exclusive/integration_test/cases/session"
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

// The first Check of a process looks at the columns' types. What the caller reads after
// it is what the former holder has committed, for which the Check waited.
func TestFirstCheckTakesNoSnapshot(t *testing.T) {
	matrix.Drivers(t, nil, testFirstCheckTakesNoSnapshot, "mysql", "mariadb")
}

func testFirstCheckTakesNoSnapshot(t *testing.T, target *matrix.Target[*sql.Tx]) {
	strategies.Tables(t, target)
	target.MustExec(t, "CREATE TABLE guarded (id varchar(20) PRIMARY KEY, fence_token bigint, fence_grant varchar(64))")
	target.MustExec(t, "INSERT INTO guarded (id) VALUES ('k')")
	target.MustExec(t, "INSERT INTO job (id, state) VALUES ('k', 'PENDING'), ('moved', 'PENDING')")
	target.MustExec(t, "CREATE TABLE side (v bigint NOT NULL)")
	target.MustExec(t, "INSERT INTO side VALUES (1)")
	leases := func() *fencing.Leases[*sql.Tx] {
		l, err := fencing.New(target.DB, fencing.Config{TTL: 10 * time.Minute, NoRenew: true})
		return closed(t, l, err)
	}
	jobs := func() *casupdate.Table[*sql.Tx] {
		x, err := casupdate.New(target.DB, casupdate.Config{
			Table: "job", From: "PENDING", Claimed: "PROCESSING", Done: "DONE", TokenColumn: "token", GrantColumn: "grant_id",
			Transitions: []casupdate.Transition{{From: "PENDING", To: "DONE"}}})
		return closed(t, x, err)
	}
	guard, err := fencing.NewGuard(target.DB, fencing.GuardConfig{})
	if err != nil {
		t.Fatal(err)
	}
	newer := exclusive.Grant{Key: "k", ID: "newer", Token: 6}
	if err := guard.Register(t.Context(), exclusive.Grant{Key: "k", ID: "former", Token: 5}); err != nil {
		t.Fatal(err)
	}
	lease, err := leases().Acquire(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	var claimed exclusive.Grant
	held := jobs()
	err = held.Do(t.Context(), "k", func(ctx context.Context, g exclusive.Grant) error {
		claimed = g
		for _, c := range []struct {
			name, lock string
			check      func(tx *sql.Tx) error
		}{
			{"RowGuard.Check", "SELECT 1 FROM guarded WHERE id = 'k' FOR UPDATE", func(tx *sql.Tx) error {
				rows, err := fencing.NewRowGuard(target.DB, fencing.RowConfig{Table: "guarded", KeyColumns: []string{"id"}})
				if err != nil {
					return err
				}
				return rows.Check(ctx, tx, newer, "k")
			}},
			{"Guard.Check", "SELECT 1 FROM exclusive_mark WHERE mark_key = 'k' FOR UPDATE", func(tx *sql.Tx) error {
				fresh, err := fencing.NewGuard(target.DB, fencing.GuardConfig{})
				if err != nil {
					return err
				}
				return fresh.Check(ctx, tx, newer)
			}},
			{"Leases.Check", "SELECT 1 FROM exclusive_lease WHERE lease_key = 'k' FOR UPDATE", func(tx *sql.Tx) error {
				return leases().Check(ctx, tx, lease.Grant())
			}},
			{"Table.Check", "SELECT 1 FROM job WHERE id = 'k' FOR UPDATE", func(tx *sql.Tx) error { return jobs().Check(ctx, tx, claimed) }},
			{"TransitionTx", "SELECT 1 FROM job WHERE id = 'moved' FOR UPDATE", func(tx *sql.Tx) error {
				return jobs().TransitionTx(ctx, tx, "moved", "PENDING", "DONE")
			}},
		} {
			t.Run(c.name, func(t *testing.T) { readAfter(t, target, c.lock, c.check) })
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// readAfter wants what is read after check, which waits for a lock, to be what was
// committed with the lock's end.
func readAfter(t *testing.T, target *matrix.Target[*sql.Tx], lock string, check func(*sql.Tx) error) {
	target.MustExec(t, "UPDATE side SET v = 1")
	former := session.Begin(t, target.Plain)
	former.Int(lock)
	former.Exec("UPDATE side SET v = 2")
	type outcome struct {
		v   int64
		err error
	}
	got := make(chan outcome, 1)
	go func() {
		var o outcome
		tx, err := target.Plain.BeginTx(t.Context(), nil)
		if o.err = err; err == nil {
			defer func() { _ = tx.Rollback() }()
			if o.err = check(tx); o.err == nil {
				o.err = tx.QueryRowContext(t.Context(), "SELECT v FROM side").Scan(&o.v)
			}
		}
		got <- o
	}()
	session.AwaitWaiting(t, target.Plain, target.Dialect, 1, func() bool { return len(got) > 0 })
	former.Commit()
	if o := <-got; o.v != 2 || o.err != nil {
		t.Errorf("after the wait it reads %d, %v; want what was committed, 2", o.v, o.err)
	}
}

// closed closes x when the test ends.
func closed[X interface{ Close() error }](t *testing.T, x X, err error) X {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = x.Close() })
	return x
}

// The first Check needs no other connection if the pool has none left.
func TestFirstCheckInABusyPool(t *testing.T) {
	matrix.Drivers(t, nil, testFirstCheckInABusyPool, "mysql", "mariadb")
}

func testFirstCheckInABusyPool(t *testing.T, target *matrix.Target[*sql.Tx]) {
	strategies.Tables(t, target)
	busy := target.Another(t, matrix.Options{MaxConns: 2})
	var tx *sql.Tx
	for range 2 {
		var err error
		if tx, err = busy.DB.Begin(t.Context()); err != nil {
			t.Fatal(err)
		}
		open := tx
		defer func() { _ = busy.DB.Rollback(open) }()
	}
	guard, err := fencing.NewGuard(busy.DB, fencing.GuardConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if err := guard.Check(t.Context(), tx, exclusive.Grant{Key: "k", ID: "id", Token: 1}); err != nil {
		t.Error(err)
	}
}
