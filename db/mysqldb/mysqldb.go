// Package mysqldb adapts a *sql.DB of github.com/go-sql-driver/mysql to the
// strategies, for MySQL and MariaDB. Their transactions are then *sql.Tx.
//
// It needs no option in the DSN. Sessions without autocommit and those at READ
// UNCOMMITTED are refused with exclusive.ErrUnsupported. Every statement takes
// one round trip, with interpolateParams or without, and means the same with
// clientFoundRows or without.
//
// After an error in a transaction roll it back, whatever the error was. A
// deadlock (1213) has ended the whole transaction, and the statements that
// follow take effect one by one. A lock wait time-out (1205) has undone only
// its statement, so that COMMIT would keep half of the work, unless the server
// has innodb_rollback_on_timeout.
//
// When the context of a statement ends the driver closes the connection and
// does not tell the server, which notices when it next looks (every 5 s while a
// statement sleeps) or when the statement is over. Until then locks are kept,
// and a statement that waited for one may still take effect.
package mysqldb

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/go-sql-driver/mysql"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/internal/stdsql"
)

// DB is the adapter. It is safe for concurrent use.
type DB struct {
	runner
	pool    *sql.DB
	dialect atomic.Uint32 // a db.Dialect; 0 until the server has told
	galera  atomic.Bool   // the server is a node of a Galera cluster
}

var _ db.DB[*sql.Tx] = (*DB)(nil)

// New adapts pool, which stays the caller's: nothing here closes it.
func New(pool *sql.DB) *DB {
	if pool == nil {
		panic("mysqldb: the pool is nil")
	}
	return &DB{runner: runner{pool}, pool: pool}
}

// Dialect asks the server once, through via, whether it is MySQL or MariaDB, in
// two statements. A session without autocommit is refused: what it is told would
// never be stored. So is one at READ UNCOMMITTED: it would tell of a Commit that
// is rolled back in the end.
func (d *DB) Dialect(ctx context.Context, via db.Runner) (db.Dialect, error) {
	if known := d.dialect.Load(); known != 0 {
		return db.Dialect(known), nil
	}
	var version string
	var autocommit int64
	err := via.Query(ctx, "SELECT VERSION(), @@autocommit", nil, func(scan db.Scan) error { return scan(&version, &autocommit) })
	if err != nil {
		return 0, fmt.Errorf("ask the server what it is: %w", err)
	}
	if autocommit == 0 {
		return 0, &exclusive.Error{Op: "connect", Kind: exclusive.ErrUnsupported, Hint: "the session has autocommit = 0; remove that from the DSN or the server's init_connect"}
	}
	if version == "" {
		return 0, errors.New("the server does not say what it is")
	}
	// MariaDB before 11.1 has another name for the isolation level.
	level, galera := "", false
	err = via.Query(ctx, "SHOW SESSION VARIABLES WHERE Variable_name IN ('transaction_isolation', 'tx_isolation', 'wsrep_on')", nil, func(scan db.Scan) error {
		var name, value string
		err := scan(&name, &value)
		if name == "wsrep_on" {
			galera = value == "ON"
		} else {
			level = value
		}
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("ask the server for its isolation level: %w", err)
	}
	if level == "READ-UNCOMMITTED" {
		return 0, &exclusive.Error{Op: "connect", Kind: exclusive.ErrUnsupported,
			Hint: "the session reads what others have not committed; set transaction_isolation (tx_isolation on MariaDB before 11.1) to 'READ-COMMITTED' or higher in the DSN, or on the server"}
	}
	dialect := db.MySQL
	if strings.Contains(strings.ToLower(version), "mariadb") {
		dialect = db.MariaDB
	}
	d.galera.Store(galera)
	d.dialect.Store(uint32(dialect))
	return dialect, nil
}

// Query calls each once per row. On Galera a statement that stores rows and returns
// them runs in a transaction of its own: when such a statement commits by itself and
// another node comes first, the server runs it again, sends the rows of both times,
// and then no end of them, for which the driver waits for ever (seen with MariaDB
// 10.11.19). COMMIT fails like any other statement then.
func (d *DB) Query(ctx context.Context, query string, args []any, each func(db.Scan) error) error {
	if !d.galera.Load() || !strings.Contains(query, "RETURNING ") {
		return d.runner.Query(ctx, query, args, each)
	}
	tx, err := d.Begin(ctx)
	if err != nil {
		return err
	}
	if err := (runner{tx}).Query(ctx, query, args, each); err != nil {
		_ = d.Rollback(tx)
		return err
	}
	if err := d.Commit(ctx, tx); err != nil {
		return unanswered{err}
	}
	return nil
}

// unanswered is the error of a COMMIT that is a part of one statement: for its caller
// a statement may have run, and there is no transaction whose outcome is unknown.
type unanswered struct{ error }

func (e unanswered) Is(target error) bool {
	return target != db.ErrCommitUnknown && errors.Is(e.error, target)
}

func (e unanswered) As(target any) bool { return errors.As(e.error, target) }

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
	return runner{tx}, nil
}

// Commit commits tx.
func (d *DB) Commit(ctx context.Context, tx *sql.Tx) error { return stdsql.Commit(ctx, d, tx) }

// Rollback rolls tx back.
func (d *DB) Rollback(tx *sql.Tx) error { return stdsql.Rollback(d, tx) }

// A savepoint lives as long as its transaction. No other trace of a rollback is
// left that every server, proxy and account can see.
const (
	pin   = "SAVEPOINT exclusive_pin"
	unpin = "RELEASE SAVEPOINT exclusive_pin"
)

var _ db.Pinner[*sql.Tx] = (*DB)(nil)

// Pin sets a savepoint.
func (d *DB) Pin(ctx context.Context, tx *sql.Tx) error {
	_, err := stdsql.Exec(ctx, tx, pin)
	return err
}

// Unpin fails if the savepoint is gone: the server has rolled the transaction
// back (deadlock), or a statement has committed it (DDL).
func (d *DB) Unpin(ctx context.Context, tx *sql.Tx) error {
	_, err := stdsql.Exec(ctx, tx, unpin)
	var server *mysql.MySQLError
	if errors.Is(err, sql.ErrTxDone) || errors.As(err, &server) && server.Number == errNoSuchSavepoint {
		return db.EndedEarly(err)
	}
	return err
}

// runner is a pool or a transaction. It need not heed db.Once: the driver says that
// a connection is bad only if nothing was sent, or the server has refused to run it.
type runner struct{ q stdsql.Querier }

// Exec runs a statement without rows.
func (r runner) Exec(ctx context.Context, query string, args ...any) (db.Result, error) {
	text, err := render(query, args)
	if err != nil {
		return db.Result{}, err
	}
	res, err := stdsql.Exec(ctx, r.q, text)
	if err != nil {
		return db.Result{}, err
	}
	rows, err := res.RowsAffected()
	if err != nil {
		return db.Result{}, err
	}
	id, err := res.LastInsertId()
	return db.Result{Rows: rows, LastID: id}, err
}

// Query calls each once per row.
func (r runner) Query(ctx context.Context, query string, args []any, each func(db.Scan) error) error {
	text, err := render(query, args)
	if err != nil {
		return err
	}
	return stdsql.Query(ctx, r.q, each, text)
}
