package matrix_test

import (
	"context"
	"testing"

	"github.com/exclusive-go/exclusive/integration_test/matrix"
	"github.com/exclusive-go/exclusive/internal/db"
)

// Every target is what it says, and its two pools see the same database.
func TestEach(t *testing.T) { matrix.Each(t, testTarget, testTarget) }

func testTarget[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	ctx := t.Context()
	dialect, err := target.DB.Dialect(ctx, target.DB)
	if err != nil || dialect.String() != target.Dialect {
		t.Fatalf("the dialect is %v, %v; want %s", dialect, err, target.Dialect)
	}
	target.Migrate(t, "fencing")
	target.MustExec(t, "CREATE TABLE t (id bigint PRIMARY KEY)")
	another := target.Another(t, matrix.Options{})
	err = db.InTx(ctx, another.DB, func(ctx context.Context, tx Tx, _ db.Runner) error {
		return another.Exec(ctx, tx, target.Bind("INSERT INTO t VALUES (?)"), int64(7))
	})
	if err != nil {
		t.Fatal(err)
	}
	if id := target.Int(t, "SELECT id FROM t WHERE id = ?", 7); id != 7 {
		t.Errorf("read back %d", id)
	}
	if n := another.InUse(); n != 0 {
		t.Errorf("%d connections are in use", n)
	}
}
