// Package pgxdb adapts a *pgxpool.Pool to the strategies. Their transactions
// are then pgx.Tx.
//
// It works in every query execution mode of pgx. Behind a pooler in transaction
// mode pgx itself needs one that leaves nothing prepared on the server's
// session: QueryExecModeExec, QueryExecModeCacheDescribe or
// QueryExecModeSimpleProtocol.
package pgxdb

import (
	"cmp"
	"context"
	"errors"
	"reflect"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/exclusive-go/exclusive/internal/db"
)

// DB is the adapter. It is safe for concurrent use.
type DB struct {
	runner
	pool *pgxpool.Pool
}

var (
	_ db.DB[pgx.Tx]     = (*DB)(nil)
	_ db.Opener[pgx.Tx] = (*DB)(nil)
)

// New adapts pool, which stays the caller's: nothing here closes it.
func New(pool *pgxpool.Pool) *DB {
	if pool == nil {
		panic("pgxdb: the pool is nil")
	}
	return &DB{runner{pool}, pool}
}

// Dialect returns db.Postgres.
func (d *DB) Dialect(context.Context, db.Runner) (db.Dialect, error) { return db.Postgres, nil }

// MaxConns returns the size of the pool.
func (d *DB) MaxConns() int { return int(d.pool.Stat().MaxConns()) }

// Pool returns the pool, a *pgxpool.Pool.
func (d *DB) Pool() any { return d.pool }

// Begin starts a transaction.
func (d *DB) Begin(ctx context.Context) (pgx.Tx, error) {
	tx, err := d.pool.Begin(ctx)
	if err != nil {
		return nil, db.Ended(ctx, err)
	}
	return tx, nil
}

// Open begins a transaction with the statements of first. BEGIN travels with the
// first of them.
func (d *DB) Open(ctx context.Context, first func(ctx context.Context, r db.Runner) error) (pgx.Tx, error) {
	o := &opening{pool: d.pool}
	open := false
	defer func() {
		if !open && o.tx != nil {
			_ = d.Rollback(o.tx)
		}
	}()
	if err := first(ctx, o); err != nil {
		return nil, err
	}
	open = true
	return o.tx, nil
}

// opening is the runner of a transaction that its first statement begins.
type opening struct {
	pool *pgxpool.Pool
	tx   pgx.Tx // nil until then
}

// Exec runs a statement without rows.
func (o *opening) Exec(ctx context.Context, query string, args ...any) (res db.Result, err error) {
	if o.tx != nil {
		return runner{o.tx}.Exec(ctx, query, args...)
	}
	err = o.begin(ctx, query, args, func(br pgx.BatchResults) error {
		tag, err := br.Exec()
		res.Rows = tag.RowsAffected()
		return err
	})
	return res, err
}

// Query calls each once per row.
func (o *opening) Query(ctx context.Context, query string, args []any, each func(db.Scan) error) error {
	if o.tx != nil {
		return runner{o.tx}.Query(ctx, query, args, each)
	}
	return o.begin(ctx, query, args, func(br pgx.BatchResults) error {
		rows, err := br.Query()
		if err != nil {
			return err
		}
		return scanAll(rows, each)
	})
}

// begin sends BEGIN and query, and reads the answer to query.
func (o *opening) begin(ctx context.Context, query string, args []any, answer func(pgx.BatchResults) error) error {
	var b pgx.Batch
	b.BeginTx(pgx.TxOptions{})
	b.Queue(query, args...)
	br := o.pool.SendBatch(ctx, &b)
	o.tx = br.Tx()
	defer br.Close() // also for a panic in each; closing twice is harmless
	_, err := br.Exec()
	if err == nil {
		err = answer(br)
	}
	return db.Ended(ctx, cmp.Or(err, br.Close()))
}

// Within runs statements in tx.
func (d *DB) Within(tx pgx.Tx) (db.Runner, error) {
	if isNil(tx) {
		return nil, errNilTx
	}
	return runner{tx}, nil
}

// Commit commits tx.
func (d *DB) Commit(ctx context.Context, tx pgx.Tx) error {
	if isNil(tx) {
		return errNilTx
	}
	if err := ctx.Err(); err != nil {
		_ = d.Rollback(tx) // the server ends it too when the connection goes
		return err
	}
	if tx.Conn() != nil && tx.Conn().PgConn().TxStatus() == 'I' {
		// A statement has ended it past pgx. COMMIT would be a warning only.
		_ = d.Rollback(tx)
		return db.EndedEarly(errNoTransaction)
	}
	wait, cancel := context.WithTimeout(context.WithoutCancel(ctx), db.CommitWait)
	defer cancel()
	err := tx.Commit(wait)
	switch {
	case errors.Is(err, pgx.ErrTxClosed):
		return db.EndedEarly(err)
	case errors.Is(err, pgx.ErrTxCommitRollback):
		return db.NotCommitted(err)
	}
	return db.CommitError(d, err)
}

// Rollback rolls tx back.
func (d *DB) Rollback(tx pgx.Tx) error {
	if isNil(tx) {
		return errNilTx
	}
	ctx, cancel := context.WithTimeout(context.Background(), db.RollbackWait)
	defer cancel()
	err := tx.Rollback(ctx)
	// pgx closes the connection when a statement is cancelled, and the server
	// rolls back when the connection closes.
	if errors.Is(err, pgx.ErrTxClosed) || errors.Is(err, pgconn.ErrConnClosed) {
		return nil
	}
	return err
}

// Classify says what an error of pgx means.
func (d *DB) Classify(err error) db.Class {
	var connect *pgconn.ConnectError
	var pg *pgconn.PgError
	switch {
	case err == nil:
		return db.Other
	case errors.Is(err, db.ErrNotCommitted), errors.Is(err, db.ErrEndedEarly), errors.Is(err, pgx.ErrTxClosed), errors.Is(err, pgx.ErrTxCommitRollback):
		return db.Conflict
	case errors.As(err, &connect):
		// pgx's own connect time-out is a context error too, so this comes
		// before the look at those.
		if errors.As(err, &pg) {
			if c := db.SQLState(pg.Code); c != db.Disconnected && c != db.Other {
				return c
			}
		}
		return db.Unreachable
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return db.Other
	case errors.As(err, &pg):
		return db.SQLState(pg.Code)
	case err.Error() == "closed pool": // of puddle, which pgx does not export
		return db.Unreachable
	// pgx 5.12 also says so of a connection that broke while it waited for the
	// answer to a statement without arguments, such as COMMIT: the statement
	// may have run.
	case pgconn.SafeToRetry(err):
		return db.Disconnected
	}
	return db.Network(err)
}

var (
	errNilTx         = errors.New("the transaction is nil")
	errNoTransaction = errors.New("the connection is not in a transaction")
)

// isNil sees through an interface that holds a nil pointer.
func isNil(tx pgx.Tx) bool {
	if tx == nil {
		return true
	}
	v := reflect.ValueOf(tx)
	return v.Kind() == reflect.Pointer && v.IsNil()
}

// runner is a pool or a transaction.
type runner struct {
	q interface {
		Exec(ctx context.Context, query string, args ...any) (pgconn.CommandTag, error)
		Query(ctx context.Context, query string, args ...any) (pgx.Rows, error)
	}
}

// Exec runs a statement without rows.
func (r runner) Exec(ctx context.Context, query string, args ...any) (db.Result, error) {
	tag, err := r.q.Exec(ctx, query, args...)
	if err != nil {
		return db.Result{}, db.Ended(ctx, err)
	}
	return db.Result{Rows: tag.RowsAffected()}, nil
}

// Query calls each once per row.
func (r runner) Query(ctx context.Context, query string, args []any, each func(db.Scan) error) error {
	rows, err := r.q.Query(ctx, query, args...)
	if err != nil {
		return db.Ended(ctx, err)
	}
	return db.Ended(ctx, scanAll(rows, each))
}

// scanAll calls each once per row, and closes rows.
func scanAll(rows pgx.Rows, each func(db.Scan) error) error {
	defer rows.Close() // also for a panic in each
	scan := rows.Scan
	for rows.Next() {
		if err := each(scan); err != nil {
			return err
		}
	}
	return rows.Err()
}
