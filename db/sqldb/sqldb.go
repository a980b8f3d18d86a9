// Package sqldb adapts a *sql.DB for PostgreSQL or SQLite to the strategies.
// Their transactions are then *sql.Tx. It imports no driver.
//
// # PostgreSQL
//
// Tested with the stdlib package of pgx (v5.12) and with lib/pq (v1.12); a
// driver needs errors with a method SQLState. Behind a pooler in transaction
// mode the driver must keep nothing on the server's session: with pgx
// default_query_exec_mode=exec, with lib/pq binary_parameters=yes.
//
// lib/pq differs in what it does behind our back:
//   - a cancelled statement asks the server to stop and waits for the answer.
//     Should the server have fallen silent we do not wait; the connection stays
//     in use for as long as TCP waits
//   - it calls a connection bad, which is to say that nothing was sent, although
//     the answer is what is missing, and database/sql sends a statement again
//     then. Where that would matter it is not left to database/sql: a strategy
//     repeats the statement itself, and knows that it did, or says that the
//     outcome is unknown. That can also be a connection which broke while it was
//     idle: lib/pq does not tell the two apart
//   - transactions begin with READ WRITE, which overrides
//     default_transaction_read_only
//
// # SQLite
//
// Tested with modernc.org/sqlite (v1.62), whose errors have a method Code. The
// errors of other drivers, as github.com/mattn/go-sqlite3, are told apart by
// their text. The strategies need SQLite 3.42 or later (unixepoch with
// 'subsec'). Give the DSN a busy time-out, and WAL unless something speaks
// against it.
package sqldb

import (
	"context"
	"database/sql"

	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/internal/stdsql"
)

// DB is the adapter. It is safe for concurrent use.
type DB struct {
	runner
	pool     *sql.DB
	dialect  db.Dialect
	classify func(error) db.Class
	abandon  bool // the driver may outstay a context
}

var _ db.DB[*sql.Tx] = (*DB)(nil)

// NewPostgres adapts a pool of connections to PostgreSQL. The pool stays the
// caller's: nothing here closes it.
func NewPostgres(pool *sql.DB) *DB { return newDB(pool, db.Postgres, classifyPostgres) }

// NewSQLite adapts a SQLite database, version 3.42 or later. The pool stays
// the caller's: nothing here closes it.
func NewSQLite(pool *sql.DB) *DB { return newDB(pool, db.SQLite, classifySQLite) }

func newDB(pool *sql.DB, dialect db.Dialect, classify func(error) db.Class) *DB {
	if pool == nil {
		panic("sqldb: the pool is nil")
	}
	d := &DB{pool: pool, dialect: dialect, classify: classify}
	// SQLite has no network to wait for.
	d.abandon = dialect == db.Postgres && !stdsql.LeavesOnContext(pool.Driver())
	d.runner = d.run(pool)
	d.once = d.run(stdsql.Once(pool)).q
	return d
}

// run makes a runner on the pool or a transaction of it.
func (d *DB) run(q stdsql.Querier) runner {
	if d.abandon {
		q = stdsql.Abandoning(q)
	}
	return runner{q: q}
}

// Dialect returns the dialect that the constructor named.
func (d *DB) Dialect(context.Context, db.Runner) (db.Dialect, error) { return d.dialect, nil }

// MaxConns returns the limit of the pool, 0 if it has none.
func (d *DB) MaxConns() int { return d.pool.Stats().MaxOpenConnections }

// Pool returns the pool, a *sql.DB.
func (d *DB) Pool() any { return d.pool }

// Begin starts a transaction.
func (d *DB) Begin(ctx context.Context) (*sql.Tx, error) { return stdsql.Begin(ctx, d.pool) }

// Within runs statements in tx.
func (d *DB) Within(tx *sql.Tx) (db.Runner, error) {
	if tx == nil {
		return nil, stdsql.ErrNilTx
	}
	return d.run(tx), nil
}

// Commit commits tx.
func (d *DB) Commit(ctx context.Context, tx *sql.Tx) error { return stdsql.Commit(ctx, d, tx) }

// Rollback rolls tx back.
func (d *DB) Rollback(tx *sql.Tx) error { return stdsql.Rollback(d, tx) }

// Classify says what an error of the driver means.
func (d *DB) Classify(err error) db.Class { return d.classify(err) }

// runner is a pool or a transaction.
type runner struct {
	q    stdsql.Querier
	once stdsql.Querier // for what db.Once says; nil in a transaction
}

func (r runner) querier(ctx context.Context) stdsql.Querier {
	if r.once != nil && db.Once(ctx) {
		return r.once
	}
	return r.q
}

// Exec runs a statement without rows.
func (r runner) Exec(ctx context.Context, query string, args ...any) (db.Result, error) {
	res, err := stdsql.Exec(ctx, r.querier(ctx), query, args...)
	if err != nil {
		return db.Result{}, err
	}
	rows, err := res.RowsAffected()
	return db.Result{Rows: rows}, err
}

// Query calls each once per row.
func (r runner) Query(ctx context.Context, query string, args []any, each func(db.Scan) error) error {
	return stdsql.Query(ctx, r.querier(ctx), each, query, args...)
}
