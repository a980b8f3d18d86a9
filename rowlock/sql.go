package rowlock

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/internal/ident"
	"github.com/exclusive-go/exclusive/internal/strategy"
)

// dialect is the SQL of this package on one kind of server.
type dialect interface {
	// lock locks the row whose key columns are values, in the transaction of
	// r, and waits for up to wait if the server can be told how long. found is
	// false if there is no such row. A row that is locked is an error of class
	// Locked.
	lock(ctx context.Context, r db.Runner, values []any, wait time.Duration) (t trace, found bool, err error)
	// next locks up to n rows that nobody has locked and returns their key
	// columns as text.
	next(ctx context.Context, r db.Runner, n int64) (t trace, rows [][]string, err error)
	// create makes the row of a key in our own table, in a statement of its
	// own, unless it exists.
	create(ctx context.Context, r db.Runner, key []byte) error
	// fate says what became of a transaction whose COMMIT got no answer.
	fate(ctx context.Context, r db.Runner, t trace) (strategy.Fate, error)

	// wholeDatabase: a lock excludes every other key as well.
	wholeDatabase() bool
	// provesByRelease: COMMIT says yes also to a transaction that is over, but
	// releasing a savepoint does not.
	provesByRelease() bool
}

// trace is what a locking statement tells about its transaction and server.
type trace struct {
	refused     bool  // the server cannot give an exclusive lock: it is read-only
	oldSnapshot bool  // the transaction reads the world from before its lock
	xid, server int64 // PostgreSQL: the transaction, and when its server started
}

// Savepoints of a Commit, the same on all dialects.
const (
	savepoint  = "SAVEPOINT exclusive_commit"
	undo       = "ROLLBACK TO SAVEPOINT exclusive_commit"
	release    = "RELEASE SAVEPOINT exclusive_commit"
	probeQ     = "SELECT 1"
	readLatest = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED"
)

func newDialect(d db.Dialect, cfg Config) dialect {
	t := newTexts(d, cfg)
	switch d {
	case db.Postgres:
		return newPostgres(t)
	case db.SQLite:
		return newSQLite(t, cfg.Table == "")
	default:
		return newMySQL(t)
	}
}

// texts fills a configuration's names into statements.
type texts struct {
	fill    func(string) string
	columns int
	args    func(values []any) []any // of {row}
}

func newTexts(d db.Dialect, cfg Config) texts {
	columns, text, where, order := cfg.KeyColumns, "CHAR", cfg.Where, cfg.OrderBy
	if cfg.Table == "" {
		columns = []string{"lock_key"}
	}
	if d != db.MySQL && d != db.MariaDB {
		text = "text"
	}
	if where == "" {
		where = "1 = 1"
	}
	names, keys, by := make([]string, len(columns)), make([]string, len(columns)), make([]string, len(order))
	for i, c := range columns {
		names[i] = ident.Quote(strategy.Quote(d), "", c)
		keys[i] = fmt.Sprintf("CAST(%s AS %s) AS key_%d", names[i], text, i)
	}
	// Our own column is one of bytes, where equal is the same.
	row, last, args := names[0]+" = ?", 2, func(values []any) []any { return values }
	if cfg.Table != "" {
		row, last = strategy.RowCondition(d, names), 2*len(names)+1
		args = func(values []any) []any { return strategy.RowArgs(d, values) }
	}
	for i, c := range order {
		by[i] = ident.Quote(strategy.Quote(d), "", c)
	}
	return texts{columns: len(columns), args: args, fill: strings.NewReplacer(
		"{table}", cfg.table(d),
		"{row}", d.Bind(row),
		"{column}", names[0],
		"{keys}", strings.Join(keys, ", "),
		"{where}", where,
		"{order}", strings.Join(by, ", "),
		"{last}", fmt.Sprintf("$%d", last),
	).Replace}
}

// rows reads what next selects: three columns of trace, then the keys.
func (x texts) rows(ctx context.Context, r db.Runner, query string, n int64, into func(dest ...any) []any) (rows [][]string, err error) {
	err = r.Query(ctx, query, []any{n}, func(scan db.Scan) error {
		keys, dest := make([]sql.NullString, x.columns), make([]any, x.columns)
		for i := range keys {
			dest[i] = &keys[i]
		}
		if err := scan(into(dest...)...); err != nil {
			return err
		}
		row := make([]string, x.columns)
		for i, k := range keys {
			row[i] = k.String
		}
		rows = append(rows, row)
		return nil
	})
	return rows, err
}

type postgres struct {
	texts
	lockQ, waitQ, nextQ, createQ, fateQ string
}

func newPostgres(t texts) dialect {
	// - The columns are computed above the locking: the transaction gets its
	//   number only when the row is locked.
	// - A snapshot that is kept for the whole transaction is older than the
	//   lock: a holder may have committed between the two.
	// - Number and start of the server find the transaction again when COMMIT
	//   gets no answer. Another server, after a failover, may have given the
	//   same number to another transaction.
	const told = `txid_current(), (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint,
			CASE WHEN current_setting('transaction_isolation') IN ('read committed', 'read uncommitted') THEN 0 ELSE 1 END`
	f := t.fill
	return &postgres{
		texts: t,
		// NO KEY UPDATE excludes every other holder and writer, as UPDATE does,
		// but not the check of a foreign key: rows that refer to the locked one
		// can be inserted meanwhile, also by work itself on another connection.
		lockQ: f(`SELECT ` + told + ` FROM (SELECT FROM {table} WHERE {row} FOR NO KEY UPDATE NOWAIT) l`),
		// The limit of this wait holds for this statement only: it is set before
		// the row is locked, which needs the row that sets it, and what it was
		// before is set again when the row has been locked.
		waitQ: f(`WITH before AS MATERIALIZED (SELECT current_setting('lock_timeout') AS exclusive_before),
			during AS MATERIALIZED (SELECT exclusive_before, set_config('lock_timeout', {last}, true) AS exclusive_during FROM before)
			SELECT ` + told + `, set_config('lock_timeout', l.exclusive_before, true)
			FROM (SELECT during.exclusive_before FROM during CROSS JOIN {table} AS t WHERE {row} FOR NO KEY UPDATE OF t) l`),
		nextQ: f(`SELECT ` + told + `, l.* FROM (SELECT {keys} FROM {table} WHERE {where}
			ORDER BY {order} LIMIT $1 FOR NO KEY UPDATE SKIP LOCKED) l`),
		// It does not wait for a holder of the row, if there is one by now.
		createQ: f(`INSERT INTO {table} (lock_key) VALUES ($1) ON CONFLICT (lock_key) DO NOTHING`),
		fateQ: `SELECT COALESCE(txid_status($1), '') WHERE
			(extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint = $2`,
	}
}

func (p *postgres) lock(ctx context.Context, r db.Runner, values []any, wait time.Duration) (t trace, found bool, err error) {
	var old int64
	if wait <= 0 {
		found, err = strategy.One(ctx, r, p.lockQ, p.args(values), func(scan db.Scan) error { return scan(&t.xid, &t.server, &old) })
	} else {
		args := append(slices.Clone(p.args(values)), fmt.Sprintf("%dms", max(wait.Milliseconds(), 1)))
		found, err = strategy.One(ctx, r, p.waitQ, args, func(scan db.Scan) error {
			var set string
			return scan(&t.xid, &t.server, &old, &set)
		})
	}
	t.oldSnapshot = old == 1
	return t, found, err
}

func (p *postgres) next(ctx context.Context, r db.Runner, n int64) (t trace, rows [][]string, err error) {
	var old int64
	rows, err = p.rows(ctx, r, p.nextQ, n, func(dest ...any) []any { return append([]any{&t.xid, &t.server, &old}, dest...) })
	t.oldSnapshot = old == 1
	return t, rows, err
}

func (p *postgres) create(ctx context.Context, r db.Runner, key []byte) error {
	_, err := r.Exec(ctx, p.createQ, key)
	return err
}

func (p *postgres) fate(ctx context.Context, r db.Runner, t trace) (strategy.Fate, error) {
	for {
		var status string
		_, err := strategy.One(ctx, r, p.fateQ, []any{t.xid, t.server}, func(scan db.Scan) error { return scan(&status) })
		switch {
		case err != nil:
			return strategy.Unknown, err
		case status == "committed":
			return strategy.Committed, nil
		case status == "aborted":
			return strategy.NotCommitted, nil
		case status != "in progress":
			return strategy.Unknown, nil
		}
		// The server has not noticed yet that the connection is gone, or is
		// about to commit.
		select {
		case <-time.After(fatePause):
		case <-ctx.Done():
			return strategy.Unknown, ctx.Err()
		}
	}
}

func (p *postgres) wholeDatabase() bool   { return false }
func (p *postgres) provesByRelease() bool { return false }

// fatePause is the pause between two questions for a transaction's fate.
const fatePause = 20 * time.Millisecond

type mysql struct {
	texts
	lockQ, nextQ, createQ string
	makers                chan struct{} // one for each that makes a row at this moment
}

// makersWidth is how many rows a process makes at the same time: each maker keeps the
// gap between rows from the others for a moment, and a hundred get nowhere.
const makersWidth = 8

func newMySQL(t texts) dialect {
	// A row lock on a read-only server excludes nobody on the primary.
	const writable = `CAST(@@GLOBAL.read_only AS CHAR) IN ('0', 'OFF')`
	f := t.fill
	return &mysql{
		texts: t, makers: make(chan struct{}, makersWidth),
		// Always NOWAIT: a waiter whose caller has gone could not be told, and
		// would take the row later. The statement is the first that reads, so
		// the snapshot of what follows is younger than the lock.
		lockQ: f(`SELECT ` + writable + ` FROM {table} WHERE {row} FOR UPDATE NOWAIT`),
		nextQ: f(`SELECT ` + writable + `, {keys} FROM {table} WHERE {where}
			ORDER BY {order} LIMIT ? FOR UPDATE SKIP LOCKED`),
		// A plain INSERT would wait for whoever holds the row, if it exists by
		// now; this one fails. Outside of the locking transaction, so that no
		// lock on the gap around a missing key outlives the statement: it would
		// keep other new keys out.
		createQ: f(`INSERT INTO {table} (lock_key) SELECT ? FROM DUAL
			WHERE NOT EXISTS (SELECT 1 FROM {table} WHERE lock_key = ? FOR UPDATE NOWAIT)`),
	}
}

func (m *mysql) lock(ctx context.Context, r db.Runner, values []any, _ time.Duration) (t trace, found bool, err error) {
	var writable bool
	found, err = strategy.One(ctx, r, m.lockQ, m.args(values), func(scan db.Scan) error { return scan(&writable) })
	t.refused = found && !writable
	return t, found, err
}

func (m *mysql) next(ctx context.Context, r db.Runner, n int64) (t trace, rows [][]string, err error) {
	var writable bool
	rows, err = m.rows(ctx, r, m.nextQ, n, func(dest ...any) []any { return append([]any{&writable}, dest...) })
	t.refused = len(rows) > 0 && !writable
	return t, rows, err
}

func (m *mysql) create(ctx context.Context, r db.Runner, key []byte) error {
	select {
	case m.makers <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-m.makers }()
	_, err := r.Exec(ctx, m.createQ, key, key)
	return err
}

// fate: a transaction that has ended leaves no trace that can be asked for.
func (m *mysql) fate(context.Context, db.Runner, trace) (strategy.Fate, error) {
	return strategy.Unknown, nil
}

func (m *mysql) wholeDatabase() bool   { return false }
func (m *mysql) provesByRelease() bool { return true }

// sqlite has no row locks: a transaction that has written holds the database,
// and with it every key.
type sqlite struct {
	texts
	ownTable            bool
	takeQ, findQ, nextQ string
}

func newSQLite(t texts, ownTable bool) dialect {
	f := t.fill
	return &sqlite{
		texts: t, ownTable: ownTable,
		// A write that changes nothing, and runs no trigger, is a write: it gets
		// the database's only write lock when it starts. It comes first, since a
		// transaction that has read before it writes fails if somebody else
		// wrote meanwhile, whatever the busy time-out (manual, "Isolation In
		// SQLite").
		takeQ: f(`UPDATE {table} SET {column} = {column} WHERE false`),
		findQ: f(`SELECT 1 FROM {table} WHERE {row}`),
		nextQ: f(`SELECT 1, {keys} FROM {table} WHERE {where} ORDER BY {order} LIMIT ?`),
	}
}

// take gets the write lock or fails at once. The busy time-out is the
// connection's, so it is put back.
func (s *sqlite) take(ctx context.Context, r db.Runner) (err error) {
	var old int64
	if _, err := strategy.One(ctx, r, `PRAGMA busy_timeout`, nil, func(scan db.Scan) error { return scan(&old) }); err != nil {
		return err
	}
	set := func(ctx context.Context, ms int64) error {
		return r.Query(ctx, fmt.Sprintf(`PRAGMA busy_timeout = %d`, ms), nil, func(db.Scan) error { return nil })
	}
	if old > 0 {
		if err := set(ctx, 0); err != nil {
			return err
		}
		defer func() {
			if serr := set(context.WithoutCancel(ctx), old); err == nil {
				err = serr
			}
		}()
	}
	_, err = r.Exec(ctx, s.takeQ)
	return err
}

func (s *sqlite) lock(ctx context.Context, r db.Runner, values []any, _ time.Duration) (t trace, found bool, err error) {
	if err := s.take(ctx, r); err != nil || s.ownTable {
		return t, true, err
	}
	found, err = strategy.Exists(ctx, r, s.findQ, s.args(values)...)
	return t, found, err
}

func (s *sqlite) next(ctx context.Context, r db.Runner, n int64) (t trace, rows [][]string, err error) {
	if err := s.take(ctx, r); err != nil {
		return t, nil, err
	}
	var one int64
	rows, err = s.rows(ctx, r, s.nextQ, n, func(dest ...any) []any { return append([]any{&one}, dest...) })
	return t, rows, err
}

// create: every key exists.
func (s *sqlite) create(context.Context, db.Runner, []byte) error { return nil }

// fate: COMMIT is a call into this process, and always gets an answer.
func (s *sqlite) fate(context.Context, db.Runner, trace) (strategy.Fate, error) {
	return strategy.Unknown, nil
}

func (s *sqlite) wholeDatabase() bool   { return true }
func (s *sqlite) provesByRelease() bool { return false }
