// Package adapters_test proves that all adapters keep the contract of the seam
// alike, whatever the driver and the server.
package adapters_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/exclusive-go/exclusive/integration_test/matrix"
	"github.com/exclusive-go/exclusive/internal/db"
)

// createTable makes the table that most tests use.
func createTable[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	t.Helper()
	target.MustExec(t, "CREATE TABLE t (id bigint NOT NULL PRIMARY KEY, n bigint NOT NULL)")
	target.MustExec(t, "INSERT INTO t VALUES (1, 0)")
}

// n is the number in the only row of the table.
func n[Tx any](t *testing.T, target *matrix.Target[Tx]) int64 {
	t.Helper()
	return target.Int(t, "SELECT n FROM t WHERE id = 1")
}

// set writes the number through a runner.
func set[Tx any](ctx context.Context, target *matrix.Target[Tx], r db.Runner, n int64) error {
	_, err := r.Exec(ctx, target.Bind("UPDATE t SET n = ? WHERE id = 1"), n)
	return err
}

// healthy fails the test unless all connections come back to the pool and work.
func healthy[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	t.Helper()
	idle(t, target)
	for range 20 {
		var one int64
		err := target.DB.Query(t.Context(), "SELECT 1", nil, func(scan db.Scan) error { return scan(&one) })
		if err != nil || one != 1 {
			t.Fatalf("the pool is not healthy: %d, %v", one, err)
		}
	}
	idle(t, target)
}

// idle waits a short time for all connections to be back in the pool: some
// drivers close a broken one in the background.
func idle[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	t.Helper()
	target.Idle(t)
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for range 2000 {
		if ok() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("after 20 s it is not so that %s", what)
}

// wantClass checks the class of an error, and that it shows no password.
func wantClass[Tx any](t *testing.T, target *matrix.Target[Tx], what string, err error, want ...db.Class) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: no error", what)
		return
	}
	got := target.DB.Classify(err)
	ok := false
	for _, w := range want {
		ok = ok || got == w
	}
	if !ok {
		t.Errorf("%s: class %d, want %d: %v", what, got, want, err)
	}
	wantNoPassword(t, what, err)
}

// secret is a password that must be in no error.
const secret = "pa55-w0rd"

func wantNoPassword(t *testing.T, what string, err error) {
	t.Helper()
	for e := err; e != nil; e = errors.Unwrap(e) {
		if text := fmt.Sprintf("%v %+v", e, e); strings.Contains(text, secret) || strings.Contains(text, "test:test") {
			t.Errorf("%s: the password is in the error", what)
		}
	}
}
