package sqldb

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/exclusive-go/exclusive/internal/db"
)

// stateError is a PostgreSQL driver's error.
type stateError string

func (e stateError) Error() string    { return "pq: something (" + string(e) + ")" }
func (e stateError) SQLState() string { return string(e) }

// closedError is what pgx says of a closed connection.
type closedError struct{}

func (closedError) Error() string     { return "conn closed" }
func (closedError) SafeToRetry() bool { return true }

func TestClassifyPostgres(t *testing.T) {
	tests := []struct {
		err  error
		want db.Class
	}{
		{nil, db.Other},
		{errors.New("x"), db.Other},
		{context.Canceled, db.Other},
		{fmt.Errorf("x: %w", stateError("40001")), db.Conflict},
		{stateError("42P01"), db.Schema},
		{fmt.Errorf("cannot set transaction read-write mode during recovery: %w", stateError("0A000")), db.ReadOnly},
		{stateError("0A000"), db.Other},
		// lib/pq says 57014 when the caller's context has cancelled the query.
		{fmt.Errorf("%w: %w", context.Canceled, stateError("57014")), db.Other},
		{stateError("57014"), db.Timeout},
		{errors.New("commit unexpectedly resulted in rollback"), db.Conflict},
		{errors.New("pq: could not complete operation in a failed transaction"), db.Conflict},
		{errors.New("unexpected command tag ROLLBACK"), db.Conflict},
		{db.NotCommitted(driver.ErrBadConn), db.Conflict},
		{driver.ErrBadConn, db.Disconnected},
		{closedError{}, db.Disconnected},
		{sql.ErrTxDone, db.Conflict},
	}
	for _, test := range tests {
		if got := classifyPostgres(test.err); got != test.want {
			t.Errorf("%v is class %d, want %d", test.err, got, test.want)
		}
	}
}

// codeError is an error of modernc.org/sqlite.
type codeError struct {
	code int
	text string
}

func (e codeError) Error() string { return fmt.Sprintf("%s (%d)", e.text, e.code) }
func (e codeError) Code() int     { return e.code }

// sqliteClasses has what SQLite prints for each code, in the words of
// sqlite3_errmsg, or of sqlite3_errstr where it has nothing to add.
var sqliteClasses = []struct {
	code int
	text string
	want db.Class
}{
	{1, "no such table: exclusive_lease", db.Schema},
	{1, "no such column: token", db.Schema},
	{1, "table exclusive_lease has no column named token", db.Schema},
	{1, "unknown column \"token\" in foreign key definition", db.Other},
	{1, "no such function: unixepoch", db.Schema},
	{1, "near \"SELEC\": syntax error", db.Syntax},
	{1, "cannot commit - no transaction is active", db.Conflict},
	{1, "cannot rollback - no transaction is active", db.Conflict},
	{3, "access permission denied", db.Denied},
	{5, "database is locked", db.Locked},
	{5 | 1<<8, "database is locked", db.Locked}, // recovery
	{5 | 3<<8, "database is locked", db.Locked}, // time-out
	{6, "database table is locked", db.Locked},
	{6 | 1<<8, "database table is locked: t", db.Locked}, // shared cache
	{8, "attempt to write a readonly database", db.ReadOnly},
	{8 | 4<<8, "attempt to write a readonly database", db.ReadOnly}, // moved
	{10, "disk I/O error", db.Unreachable},
	{10 | 4<<8, "disk I/O error", db.Unreachable}, // fsync
	{11, "database disk image is malformed", db.Unreachable},
	{13, "database or disk is full", db.Unreachable},
	{14, "unable to open database file", db.Unreachable},
	{14 | 2<<8, "unable to open database file", db.Unreachable},
	{15, "locking protocol", db.Locked},
	{18, "string or blob too big", db.Data},
	{19 | 5<<8, "NOT NULL constraint failed: t.a", db.Data},
	{19 | 6<<8, "UNIQUE constraint failed: t.id", db.Duplicate}, // primary key
	{19 | 8<<8, "UNIQUE constraint failed: t.a", db.Duplicate},
	{20, "datatype mismatch", db.Data},
	{23, "not authorized", db.Denied},
	{26, "file is not a database", db.Unreachable},
}

func TestClassifySQLite(t *testing.T) {
	for _, test := range sqliteClasses {
		if got := classifySQLite(fmt.Errorf("x: %w", codeError{test.code, test.text})); got != test.want {
			t.Errorf("%d (%s) is class %d, want %d", test.code, test.text, got, test.want)
		}
		// A driver without codes prints the same text.
		if got := classifySQLite(errors.New(test.text)); got != test.want {
			t.Errorf("%q alone is class %d, want %d", test.text, got, test.want)
		}
	}
	// What the text alone does not tell.
	tests := []struct {
		err  error
		want db.Class
	}{
		{nil, db.Other},
		{codeError{sqliteBusySnapshot, "database is locked"}, db.Conflict},
		{codeError{17, "database schema has changed"}, db.Conflict},
		{fmt.Errorf("%w: %w", context.Canceled, codeError{9, "interrupted"}), db.Other},
		{sql.ErrTxDone, db.Conflict},
		{errors.New("sql: database is closed"), db.Unreachable},
	}
	for _, test := range tests {
		if got := classifySQLite(test.err); got != test.want {
			t.Errorf("%v is class %d, want %d", test.err, got, test.want)
		}
	}
}

func FuzzClassify(f *testing.F) {
	f.Add("40001", 5, "database is locked")
	f.Fuzz(func(t *testing.T, state string, code int, text string) {
		for _, class := range []db.Class{
			classifyPostgres(stateError(state)),
			classifyPostgres(errors.New(text)),
			classifySQLite(codeError{code, text}),
			classifySQLite(errors.New(text)),
		} {
			if class > db.Data {
				t.Errorf("there is no class %d", class)
			}
		}
	})
}

func TestNilPool(t *testing.T) {
	for name, adapt := range map[string]func(*sql.DB) *DB{"postgres": NewPostgres, "sqlite": NewSQLite} {
		func() {
			defer func() {
				if got, _ := recover().(string); !strings.Contains(got, "nil") {
					t.Errorf("%s: recovered %q", name, got)
				}
			}()
			adapt(nil)
		}()
	}
}
