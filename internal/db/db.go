// Package db is the narrow seam between the strategies and the database
// drivers: what a strategy asks of an adapter, what an adapter's errors mean,
// and the one place that turns them into the errors of package exclusive.
package db

import "context"

// Dialect is the SQL that a server speaks.
type Dialect uint8

// The dialects. MySQL and MariaDB share a driver, not their SQL.
const (
	Postgres Dialect = iota + 1
	MySQL
	MariaDB
	SQLite
)

func (d Dialect) String() string {
	return [...]string{"unknown", "postgres", "mysql", "mariadb", "sqlite"}[d]
}

// Result is what a statement without rows reports.
type Result struct {
	// Rows is the number of rows affected. On MySQL and MariaDB its meaning
	// depends on the DSN (clientFoundRows), so the statements of this module
	// are written such that both readings agree, or use LastID.
	Rows int64
	// LastID is the value of LAST_INSERT_ID(expr) on MySQL and MariaDB, 0 on
	// the others.
	LastID int64
}

// Scan copies the columns of the current row, as database/sql's Rows.Scan. What
// every driver does alike, and so what statements may ask for:
//
//	integers     *int64, *sql.NullInt64
//	text         *string, *sql.NullString, *[]byte
//	binary       *[]byte
//	conditions   *bool, *sql.NullBool
//
// A byte slice belongs to the reader. It is nil for NULL, and for an empty value
// with some drivers too: let the statement say IS NULL. Not alike, and so not to
// be used: binary into *string, which pgx refuses, and times.
type Scan func(dest ...any) error

// Runner runs statements, in a transaction or outside any. Arguments are of
// type int64, string, []byte or nil: these every driver encodes alike. Strings
// are for columns of text and byte slices for binary ones, since PostgreSQL
// and SQLite keep the two apart. A nil slice is NULL, an empty one is not.
// Placeholders are $1 on PostgreSQL and ? elsewhere.
type Runner interface {
	Exec(ctx context.Context, query string, args ...any) (Result, error)
	// Query calls each once per row and stops at its first error.
	Query(ctx context.Context, query string, args []any, each func(Scan) error) error
}

// DB is what an adapter supplies. Tx is the transaction type that the driver's
// users know.
//
// The Runner that DB itself is commits each statement on its own and holds a
// connection for that statement only. It keeps no session state, so it works
// behind poolers in transaction mode. Unless its driver can be relied on to know
// what was not sent it heeds Once.
type DB[Tx any] interface {
	Runner

	// Dialect asks the server, where the driver alone does not tell, and
	// remembers the answer. It asks through via: the only connection of the
	// pool may be in the caller's transaction.
	Dialect(ctx context.Context, via Runner) (Dialect, error)

	// Begin starts a transaction at the database's default isolation. ctx
	// bounds only the start, as in pgx and unlike in database/sql: nothing
	// rolls back behind a statement's back, and a COMMIT that was sent is not
	// abandoned. Give the same ctx to Commit, which refuses when it has ended.
	Begin(ctx context.Context) (Tx, error)

	// Within runs statements in tx, which may be the caller's. A nil tx is an
	// error.
	Within(tx Tx) (Runner, error)

	// Commit commits tx. If ctx has ended already it rolls back and returns
	// the context's error; once COMMIT was sent it waits for the answer, up to
	// CommitWait, whatever happens to ctx. A transaction that the server had
	// rolled back is an error, never nil.
	Commit(ctx context.Context, tx Tx) error

	// Rollback rolls tx back on a context of its own, bounded by
	// RollbackWait. "Already over" is no error.
	Rollback(tx Tx) error

	// Classify says what an error of this driver means.
	Classify(err error) Class

	// MaxConns is the size of the pool, 0 if it is not limited.
	MaxConns() int
}
