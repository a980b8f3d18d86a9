// Package strategy is what the SQL strategies share: which SQL a server takes,
// how statements and transactions are run on it, and how their failures are
// told to callers.
package strategy

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/internal/db"
)

// Server is a database and the SQL that a strategy runs on it: S is the
// strategy's own set of statements for one dialect.
type Server[Tx, S any] struct {
	DB db.DB[Tx]

	// Mend says what to do about ErrSchema.
	Mend string

	// Columns are checked before the first statement.
	Columns Columns

	texts func(db.Dialect) S
	ready func(context.Context, db.Runner, S) error

	mu      sync.Mutex
	dialect db.Dialect
	sql     *S // nil until the server has told its dialect
	checked bool
}

// NewServer makes a Server. texts makes the statements for a dialect; ready
// fails if the schema is not as they need it, and is nil where the first statement
// tells. strategy names the migrations; for the application's own tables set Mend.
func NewServer[Tx, S any](d db.DB[Tx], strategy string, texts func(db.Dialect) S, ready func(context.Context, db.Runner, S) error) *Server[Tx, S] {
	return &Server[Tx, S]{DB: d, Mend: "apply the " + strategy + " files of package migrations (exclusive migrations check says what differs)", texts: texts, ready: ready}
}

// SQL returns the statements for this server. The first time it asks, through
// via, which dialect it speaks.
func (s *Server[Tx, S]) SQL(ctx context.Context, via db.Runner) (S, error) {
	s.mu.Lock()
	sql := s.sql
	s.mu.Unlock()
	if sql != nil {
		return *sql, nil
	}
	if _, own := via.(db.DB[Tx]); own {
		if err := db.Room(ctx, s.DB); err != nil {
			return *new(S), err
		}
	}
	dialect, err := s.DB.Dialect(ctx, via)
	if err == nil {
		err = s.checkColumns(ctx, via, dialect)
	}
	if err != nil {
		return *new(S), err
	}
	texts := s.texts(dialect)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sql == nil { // the first counts: ready may have completed it by now
		s.dialect, s.sql = dialect, &texts
	}
	return *s.sql, nil
}

// aside is how long the caller's transaction waits for another connection of the pool.
const aside = time.Second

// checkColumns checks the columns through via, except in a transaction on MySQL: its
// first plain read, which this would be, fixes what all that follow see, and the lock
// of a row is still to be waited for. Then another connection does it, if one can be
// had; the pool may have no other, or each may be waiting for one more.
func (s *Server[Tx, S]) checkColumns(ctx context.Context, via db.Runner, dialect db.Dialect) error {
	if _, own := via.(db.DB[Tx]); !own && dialect == db.MySQL && s.DB.MaxConns() != 1 && db.Room(ctx, s.DB) == nil {
		ctx, cancel := context.WithTimeout(ctx, aside)
		defer cancel()
		if err := s.Columns.check(ctx, s.DB, dialect); err == nil || errors.Is(err, exclusive.ErrSchema) {
			return err
		}
	}
	return s.Columns.check(ctx, via, dialect)
}

// OwnSQL is SQL before statements that take a connection of the pool: it fails if
// there can be none.
func (s *Server[Tx, S]) OwnSQL(ctx context.Context) (S, error) {
	if err := db.Room(ctx, s.DB); err != nil {
		return *new(S), err
	}
	return s.SQL(ctx, s.DB)
}

// Checked is OwnSQL after the schema was found to be as it must be, once.
func (s *Server[Tx, S]) Checked(ctx context.Context) (S, error) {
	sql, err := s.OwnSQL(ctx)
	if err != nil {
		return sql, err
	}
	s.mu.Lock()
	checked := s.checked
	s.mu.Unlock()
	if checked {
		return sql, nil
	}
	if s.ready != nil {
		if err := s.ready(ctx, s.DB, sql); err != nil {
			return sql, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.checked = true
	return sql, nil
}

// Ask runs statements, each on its own, again where that may help.
func (s *Server[Tx, S]) Ask(ctx context.Context, op, key string, f func(ctx context.Context, sql S) error) error {
	if ctx.Err() != nil {
		return db.CtxError(ctx, op, key, nil)
	}
	sql, err := s.Checked(ctx)
	if err == nil {
		err = db.Retry(ctx, s.DB, func(ctx context.Context) error { return f(ctx, sql) })
	}
	return s.Fail(ctx, op, key, err)
}

// PruneBatch is how many rows one statement of Prune removes.
const PruneBatch = 500

// Prune is what every Prune does around batch, which removes up to PruneBatch rows
// behind after, and returns which it looked at, in the order of their keys.
func (s *Server[Tx, S]) Prune(ctx context.Context, progress []func(removed int64), batch func(ctx context.Context, sql S, after string) (keys [][]byte, removed int64, err error)) (removed int64, err error) {
	for after := ""; ; {
		var keys [][]byte
		err := s.Ask(ctx, "prune", "", func(ctx context.Context, sql S) (err error) {
			var n int64
			keys, n, err = batch(ctx, sql, after)
			removed += n
			return err
		})
		for _, tell := range progress {
			tell(removed)
		}
		if err != nil || len(keys) < PruneBatch {
			return removed, err
		}
		after = string(keys[len(keys)-1])
	}
}

// Renew is what every Renew of a lease.Backend does around renew, which sends it. A
// conflict, which a default isolation may bring, is nothing that the caller is told:
// the lease is there, and to renew twice does no harm.
func (s *Server[Tx, S]) Renew(ctx context.Context, renew func(ctx context.Context, sql S) (lost, waiting []string, err error)) (lost, waiting []string, err error) {
	err = db.Retry(ctx, s.DB, func(ctx context.Context) error {
		sql, err := s.OwnSQL(ctx)
		if err != nil {
			return err
		}
		lost, waiting, err = renew(ctx, sql)
		return err
	})
	return lost, waiting, s.Fail(ctx, "renew", "", err)
}

// Within prepares to run statements in the caller's transaction.
func (s *Server[Tx, S]) Within(ctx context.Context, op, key string, tx Tx) (sql S, r db.Runner, err error) {
	r, err = s.DB.Within(tx)
	if err != nil {
		return sql, nil, &exclusive.Error{Op: op, Key: key, Kind: exclusive.ErrInvalid, Err: err}
	}
	sql, err = s.SQL(ctx, r)
	if err != nil {
		return sql, nil, s.Fail(ctx, op, key, err)
	}
	return sql, r, nil
}

// RowLocked reports whether err says that a transaction has locked the row of a
// claim, which only a holder's or a rival's does. (On PostgreSQL claims skip
// locked rows: there it is a table lock. SQLite locks the whole database.)
func (s *Server[Tx, S]) RowLocked(err error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return (s.dialect == db.MySQL || s.dialect == db.MariaDB) && s.DB.Classify(err) == db.Locked
}

// Fail turns a driver's error into the one that callers tell apart.
func (s *Server[Tx, S]) Fail(ctx context.Context, op, key string, err error) error {
	return db.Fail(ctx, s.DB, op, key, s.Mend, err)
}
