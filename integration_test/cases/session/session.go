// Package session plays another session of the database, which holds locks until
// the test lets it go, and sees who waits for them.
package session

import (
	"context"
	"database/sql"
	"regexp"
	"strings"
	"testing"
	"time"
)

// Session is a session with an open transaction.
type Session struct {
	t  testing.TB
	tx *sql.Tx
}

// Begin begins a transaction on a connection of its own. It is rolled back when
// the test ends, if it is still open.
func Begin(t testing.TB, pool *sql.DB) *Session {
	t.Helper()
	tx, err := pool.BeginTx(context.WithoutCancel(t.Context()), nil)
	if err != nil {
		t.Fatalf("begin: %v", err)
	}
	t.Cleanup(func() { _ = tx.Rollback() })
	return &Session{t, tx}
}

// Exec runs a statement with the dialect's own placeholders.
func (s *Session) Exec(query string, args ...any) {
	s.t.Helper()
	if _, err := s.tx.ExecContext(s.t.Context(), query, args...); err != nil {
		s.t.Fatalf("%s: %v", query, err)
	}
}

// Int is the only value of a query.
func (s *Session) Int(query string, args ...any) (n int64) {
	s.t.Helper()
	if err := s.tx.QueryRowContext(s.t.Context(), query, args...).Scan(&n); err != nil {
		s.t.Fatalf("%s: %v", query, err)
	}
	return n
}

// Commit ends the transaction and lets its locks go.
func (s *Session) Commit() {
	s.t.Helper()
	if err := s.tx.Commit(); err != nil {
		s.t.Fatalf("commit: %v", err)
	}
}

// Rollback is Commit without an effect.
func (s *Session) Rollback() {
	s.t.Helper()
	if err := s.tx.Rollback(); err != nil {
		s.t.Fatalf("roll back: %v", err)
	}
}

// waiting is how many sessions of the test's database wait for a lock.
func waiting(ctx context.Context, pool *sql.DB, dialect string) (n int, err error) {
	if dialect == "postgres" {
		err = pool.QueryRowContext(ctx, `SELECT count(*) FROM pg_stat_activity
			WHERE application_name = current_setting('application_name') AND wait_event_type = 'Lock'`).Scan(&n)
		return n, err
	}
	return transactions(ctx, pool, "\nLOCK WAIT ")
}

// transactions is how many transactions of InnoDB in the test's database have a mark
// in the server's report. (information_schema.innodb_trx is made anew only when
// nobody on the whole server has looked at it for 0.1 s.)
func transactions(ctx context.Context, pool *sql.DB, mark string) (n int, err error) {
	var kind, name, status string
	if err := pool.QueryRowContext(ctx, "SHOW ENGINE INNODB STATUS").Scan(&kind, &name, &status); err != nil {
		return 0, err
	}
	_, status, _ = strings.Cut(status, "\nTRANSACTIONS\n")
	for trx := range strings.SplitSeq(status, "---TRANSACTION ") {
		id := thread.FindStringSubmatch(trx)
		if id == nil || !strings.Contains(trx, mark) {
			continue
		}
		var ours bool
		err := pool.QueryRowContext(ctx, "SELECT COUNT(*) > 0 FROM information_schema.processlist WHERE id = "+id[1]+" AND db = DATABASE()").Scan(&ours)
		if err != nil {
			return 0, err
		}
		if ours {
			n++
		}
	}
	return n, nil
}

var thread = regexp.MustCompile(`thread id (\d+)`)

// AwaitWaiting waits until n sessions of the test's database wait for a lock, or
// enough, if it is not nil, reports that no more will.
func AwaitWaiting(t testing.TB, pool *sql.DB, dialect string, n int, enough func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		now, err := waiting(t.Context(), pool, dialect)
		if err != nil {
			t.Fatalf("ask who waits: %v", err)
		}
		if now >= n || enough != nil && enough() {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d sessions wait for a lock; want %d", now, n)
		}
	}
}

// Open is how many transactions are open in the test's database, beside that of
// the question.
func Open(t testing.TB, pool *sql.DB, dialect string) (n int) {
	t.Helper()
	query := `SELECT COUNT(*) FROM pg_stat_activity
		WHERE application_name = current_setting('application_name') AND pid <> pg_backend_pid() AND xact_start IS NOT NULL`
	if dialect != "postgres" {
		var err error
		if n, err = transactions(t.Context(), pool, ", ACTIVE "); err != nil {
			t.Fatalf("ask for open transactions: %v", err)
		}
		return n
	}
	if err := pool.QueryRowContext(t.Context(), query).Scan(&n); err != nil {
		t.Fatalf("ask for open transactions: %v", err)
	}
	return n
}
