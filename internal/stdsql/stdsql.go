// Package stdsql has what the adapters for *sql.DB share: the plumbing that
// makes database/sql keep the contract of internal/db, whatever the driver.
package stdsql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/exclusive-go/exclusive/internal/db"
)

// Querier is what *sql.DB and *sql.Tx share.
type Querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// Once makes statements on the pool that are not sent again when the driver says
// that the connection is bad: that is for who knows whether it matters. database/sql
// does not repeat what runs on a connection that it was asked for.
func Once(pool *sql.DB) Querier { return once{pool} }

type once struct{ *sql.DB }

// ExecContext implements Querier.
func (o once) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	conn, err := o.Conn(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return conn.ExecContext(ctx, query, args...)
}

// ErrNilTx is the answer to a nil transaction.
var ErrNilTx = errors.New("the transaction is nil")

// Exec runs a statement without rows.
func Exec(ctx context.Context, q Querier, query string, args ...any) (sql.Result, error) {
	res, err := q.ExecContext(ctx, query, args...)
	if err != nil {
		return nil, db.Ended(ctx, err)
	}
	return res, nil
}

// Query runs a statement and calls each once per row. An error that arrives
// behind the last row, or while the rows are closed, is returned too.
func Query(ctx context.Context, q Querier, each func(db.Scan) error, query string, args ...any) error {
	if a, ok := q.(abandoning); ok {
		return queryAbandoning(ctx, a.Querier, each, query, args...)
	}
	if o, ok := q.(once); ok {
		conn, err := o.Conn(ctx)
		if err != nil {
			return db.Ended(ctx, err)
		}
		defer conn.Close() // after the rows
		q = conn
	}
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return db.Ended(ctx, err)
	}
	defer rows.Close() // for a panic in each, and its errors; closing twice is harmless
	scan := rows.Scan
	for rows.Next() {
		if err := each(scan); err != nil {
			return err
		}
	}
	if err := rows.Err(); err != nil {
		return db.Ended(ctx, err)
	}
	return db.Ended(ctx, rows.Close())
}

// Begin starts a transaction that ctx bounds only while it starts. Given to
// BeginTx, ctx would bound the transaction's end as well: database/sql rolls
// back behind the caller's back, so that the next statement fails with
// sql.ErrTxDone, and drivers abandon a COMMIT that is on its way (pgx, lib/pq
// and modern SQLite drivers use that context for it), which leaves its outcome
// unknown.
func Begin(ctx context.Context, pool *sql.DB) (*sql.Tx, error) {
	detached, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	var tx *sql.Tx
	// Should BEGIN be abandoned, database/sql ends what comes of it: detached
	// has ended by then.
	err := abandon(ctx, func() error {
		var err error
		tx, err = pool.BeginTx(detached, nil)
		return err
	})
	if err != nil {
		cancel()
		return nil, db.Ended(ctx, err)
	}
	if !stop() {
		// ctx has ended, and with it the transaction's own context.
		_ = bounded(db.RollbackWait, tx.Rollback)
		return nil, ctx.Err()
	}
	return tx, nil
}

// Commit commits tx, as db.DB's Commit.
func Commit(ctx context.Context, c db.Classifier, tx *sql.Tx) error {
	if tx == nil {
		return ErrNilTx
	}
	if err := ctx.Err(); err != nil {
		_ = Rollback(c, tx) // the server ends it too when the connection goes
		return err
	}
	err := bounded(db.CommitWait, tx.Commit)
	if errors.Is(err, sql.ErrTxDone) {
		return db.Ended(ctx, db.EndedEarly(err))
	}
	return db.CommitError(c, err)
}

// Rollback rolls tx back, as db.DB's Rollback.
func Rollback(c db.Classifier, tx *sql.Tx) error {
	if tx == nil {
		return ErrNilTx
	}
	err := bounded(db.RollbackWait, tx.Rollback)
	if err == nil || errors.Is(err, errHung) {
		return err
	}
	// No context of ours reaches Rollback: this is what broke the connection
	// before.
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	switch c.Classify(err) {
	case db.Conflict, db.Disconnected:
		return nil // the transaction, or its connection, is gone
	}
	return err
}

// errHung is a network error to db.Network.
var errHung = fmt.Errorf("the server does not answer: %w", os.ErrDeadlineExceeded)

// bounded waits for end, which takes no context, for at most wait. Beyond that
// the connection stays in use until the driver gives up: only the network's own
// time-outs can free it.
func bounded(wait time.Duration, end func() error) error {
	done := make(chan error, 1)
	go func() { done <- end() }()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		return errHung
	}
}
