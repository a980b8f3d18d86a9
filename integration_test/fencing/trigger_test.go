package fencing_test

import (
	"context"
	"testing"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/fencing"
	"github.com/exclusive-go/exclusive/integration_test/matrix"
)

// A trigger on the tables of a guard, as tools for online schema changes make them,
// changes no answer.
func TestGuardWithTriggers(t *testing.T) {
	matrix.Each(t, nil, testGuardWithTriggers, "mysql", "mariadb")
}

func testGuardWithTriggers[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	target.MustExec(t, "CREATE TABLE audit (id bigint AUTO_INCREMENT PRIMARY KEY, what varchar(20) NOT NULL)")
	for _, table := range []string{"mark", "op"} {
		for _, event := range []string{"INSERT", "UPDATE"} {
			target.MustExec(t, "CREATE TRIGGER audit_"+table+event+" AFTER "+event+" ON exclusive_"+table+
				" FOR EACH ROW INSERT INTO audit (what) VALUES ('"+table+"')")
		}
	}
	ctx := t.Context()
	guard, err := fencing.NewGuard(target.DB, fencing.GuardConfig{})
	must(t, "new guard", err)
	grant := func(key, id string, token int64) exclusive.Grant {
		return exclusive.Grant{Key: key, ID: id, Token: token}
	}
	check := func(g exclusive.Grant) error {
		return inTx(t, target, func(tx Tx) error { return guard.Check(ctx, tx, g) })
	}

	a, b := grant("k", "a", 1), grant("k", "b", 2)
	must(t, "register", guard.Register(ctx, a))
	must(t, "register again", guard.Register(ctx, a))
	must(t, "check", check(a))
	must(t, "register the next", guard.Register(ctx, b))
	wantErr(t, "register the former one", guard.Register(ctx, a), exclusive.ErrFenced)
	wantErr(t, "check of the former one", check(a), exclusive.ErrFenced)
	wantErr(t, "commit of the former one", guard.Commit(ctx, a, store(target, "A")), exclusive.ErrFenced)
	must(t, "check of the next", check(b))
	must(t, "commit", guard.Commit(ctx, b, store(target, "B")))
	if body := stored(t, target); body != "B" {
		t.Errorf("stored %q", body)
	}
	wantErr(t, "second commit", guard.Commit(ctx, b, store(target, "again")), exclusive.ErrInvalid)
	wantErr(t, "register a finished grant", guard.Register(ctx, b), exclusive.ErrInvalid)
	wantErr(t, "check of a finished grant", check(b), exclusive.ErrInvalid)

	// Without a registration the first statement inserts the row.
	c := grant("new/commit", "c", 1)
	must(t, "commit of a new key", guard.Commit(ctx, c, store(target, "C")))
	if body := stored(t, target); body != "C" {
		t.Errorf("stored %q", body)
	}
	wantErr(t, "second commit of a new key", guard.Commit(ctx, c, store(target, "again")), exclusive.ErrInvalid)
	must(t, "check of a new key", check(grant("new/check", "d", 1)))

	applied := 0
	once := func(payload string) (result []byte, err error) {
		err = inTx(t, target, func(tx Tx) error {
			result, err = guard.Once(ctx, tx, "op", []byte(payload), func(context.Context) ([]byte, error) {
				applied++
				return []byte("result"), nil
			})
			return err
		})
		return result, err
	}
	for range 2 {
		result, err := once("p")
		must(t, "once", err)
		if string(result) != "result" || applied != 1 {
			t.Errorf("applied %d times, result %q", applied, result)
		}
	}
	_, err = once("q")
	wantErr(t, "another payload", err, exclusive.ErrMismatch)
	if err := inTx(t, target, func(tx Tx) error {
		_, err := guard.Once(ctx, tx, "nested", nil, func(ctx context.Context) ([]byte, error) {
			return guard.Once(ctx, tx, "nested", nil, func(context.Context) ([]byte, error) { return nil, nil })
		})
		return err
	}); err == nil {
		t.Error("once within itself")
	} else {
		wantErr(t, "once within itself", err, exclusive.ErrInvalid)
	}
	for _, table := range []string{"mark", "op"} {
		if target.Int(t, "SELECT COUNT(*) FROM audit WHERE what = ?", table) == 0 {
			t.Errorf("no trigger of exclusive_%s ran: the test proves nothing", table)
		}
	}

	// The same through a lease in another database's stead.
	issuer := newLeases(t, target, fencing.Config{})
	x := fencing.Guarded[Tx](issuer, guard)
	must(t, "guarded", x.Do(ctx, "guarded", func(ctx context.Context, g exclusive.Grant) error {
		return x.Commit(ctx, g, store(target, "guarded"))
	}))
	if body := stored(t, target); body != "guarded" {
		t.Errorf("stored %q", body)
	}
}
