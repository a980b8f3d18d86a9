package pgxdb

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/exclusive-go/exclusive/internal/db"
)

func TestClassify(t *testing.T) {
	tests := []struct {
		err  error
		want db.Class
	}{
		{nil, db.Other},
		{errors.New("x"), db.Other},
		{context.Canceled, db.Other},
		{context.DeadlineExceeded, db.Other},
		{fmt.Errorf("x: %w", &pgconn.PgError{Code: "40001"}), db.Conflict},
		{&pgconn.PgError{Code: "57P01"}, db.Disconnected},
		{pgx.ErrTxClosed, db.Conflict},
		{pgx.ErrTxCommitRollback, db.Conflict},
		{db.NotCommitted(pgconn.ErrConnClosed), db.Conflict},
		{io.ErrUnexpectedEOF, db.Disconnected},
		{&net.OpError{Op: "read", Err: errors.New("reset")}, db.Disconnected},
	}
	for _, test := range tests {
		if got := new(DB).Classify(test.err); got != test.want {
			t.Errorf("%v is class %d, want %d", test.err, got, test.want)
		}
	}
}

// Nobody listens, and the pool is closed after: nothing was sent in either.
func TestUnreachable(t *testing.T) {
	pool, err := pgxpool.New(t.Context(), "postgres://user:secret@127.0.0.1:1/db?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	d := New(pool)
	_, err = d.Exec(t.Context(), "SELECT 1")
	if c := d.Classify(err); c != db.Unreachable {
		t.Errorf("refused is class %d: %v", c, err)
	}
	if strings.Contains(fmt.Sprint(err), "secret") {
		t.Errorf("the password is in the error: %v", err)
	}
	pool.Close()
	_, err = d.Exec(t.Context(), "SELECT 1")
	if c := d.Classify(err); c != db.Unreachable {
		t.Errorf("a closed pool is class %d: %v", c, err)
	}
	if _, err := d.Begin(t.Context()); d.Classify(err) != db.Unreachable {
		t.Errorf("a closed pool is class %d: %v", d.Classify(err), err)
	}
}

func TestNilTransaction(t *testing.T) {
	d := new(DB)
	for name, tx := range map[string]pgx.Tx{"nil": nil, "typed nil": (*pgxpool.Tx)(nil)} {
		if _, err := d.Within(tx); err == nil {
			t.Errorf("%s: within", name)
		}
		if err := d.Commit(t.Context(), tx); err == nil {
			t.Errorf("%s: committed", name)
		}
		if err := d.Rollback(tx); err == nil {
			t.Errorf("%s: rolled back", name)
		}
	}
}

func TestNilPool(t *testing.T) {
	defer func() {
		if got, _ := recover().(string); !strings.Contains(got, "nil") {
			t.Errorf("recovered %q", got)
		}
	}()
	New(nil)
}
