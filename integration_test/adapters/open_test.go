package adapters_test

import (
	"context"
	"errors"
	"runtime"
	"testing"

	"github.com/exclusive-go/exclusive/integration_test/matrix"
	"github.com/exclusive-go/exclusive/internal/db"
)

// Whatever becomes of the first statements, there is one transaction with all of
// them or none, and no connection stays in use.
func TestOpen(t *testing.T) { matrix.Each(t, testOpen, testOpen) }

func testOpen[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	target.MustExec(t, "CREATE TABLE opened (n bigint PRIMARY KEY)")
	insert := func(ctx context.Context, r db.Runner, n int64) error {
		_, err := r.Exec(ctx, target.Bind("INSERT INTO opened VALUES (?)"), n)
		return err
	}
	var n int64
	read := func(ctx context.Context, r db.Runner) error {
		return r.Query(ctx, target.Bind("SELECT COUNT(*) + ? FROM opened"), []any{int64(0)}, func(scan db.Scan) error { return scan(&n) })
	}
	idle := func(after string, rows int64) {
		t.Helper()
		if used := target.InUse(); used != 0 {
			t.Errorf("%d connections in use after %s", used, after)
		}
		if stored := target.Int(t, "SELECT COUNT(*) FROM opened"); stored != rows {
			t.Errorf("%d rows after %s; want %d", stored, after, rows)
		}
	}
	ctx := t.Context()
	refused := errors.New("refused")

	// The first statement fails, or a later one, or what looks at a row.
	_, err := db.Open(ctx, target.DB, func(ctx context.Context, r db.Runner) error {
		return r.Query(ctx, "SELECT n FROM nowhere", nil, func(db.Scan) error { return nil })
	})
	if c := target.DB.Classify(err); c != db.Schema {
		t.Errorf("a table that is missing: %v", err)
	}
	idle("a table that is missing", 0)
	_, err = db.Open(ctx, target.DB, func(ctx context.Context, r db.Runner) error {
		return errors.Join(insert(ctx, r, 1), refused)
	})
	if !errors.Is(err, refused) {
		t.Errorf("refused: %v", err)
	}
	idle("a refusal", 0)
	_, err = db.Open(ctx, target.DB, func(ctx context.Context, r db.Runner) error {
		return r.Query(ctx, "SELECT 1 UNION SELECT 2", nil, func(db.Scan) error { return refused })
	})
	if !errors.Is(err, refused) {
		t.Errorf("refused by a row: %v", err)
	}
	idle("a row that is refused", 0)

	// Nothing of it stays after a panic, Goexit, or the end of the context.
	for _, how := range []func(){func() { panic("on purpose") }, runtime.Goexit} {
		done := make(chan struct{})
		go func() {
			defer close(done)
			defer func() { _ = recover() }()
			_, _ = db.Open(ctx, target.DB, func(ctx context.Context, r db.Runner) error {
				if err := insert(ctx, r, 1); err != nil {
					t.Errorf("insert: %v", err)
				}
				how()
				return nil
			})
		}()
		<-done
	}
	idle("a panic", 0)
	over, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := db.Open(over, target.DB, read); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled before: %v", err)
	}
	idle("a context that had ended", 0)

	tx, err := db.Open(ctx, target.DB, func(ctx context.Context, r db.Runner) error {
		return errors.Join(insert(ctx, r, 1), read(ctx, r))
	})
	if err != nil || n != 1 {
		t.Fatalf("open: %v, %d rows", err, n)
	}
	if err := target.Exec(ctx, tx, target.Bind("INSERT INTO opened VALUES (?)"), 2); err != nil {
		t.Errorf("insert: %v", err)
	}
	if err := target.DB.Commit(ctx, tx); err != nil {
		t.Errorf("commit: %v", err)
	}
	idle("a commit", 2)
}
