// Package session plays another session of the database, which holds locks until
// the test lets it go, and sees who waits for them.
package session

import (
	"context"
	"database/sql"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/exclusive-go/exclusive/integration_test/servers"
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

// Try runs a query that may fail, or end with the transaction.
func (s *Session) Try(query string, args ...any) {
	if rows, err := s.tx.QueryContext(s.t.Context(), query, args...); err == nil {
		_ = rows.Close()
	}
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

// waiting is how many sessions of the test's database wait for a lock: of rows and
// tables, or of the application's own making.
func waiting(ctx context.Context, pool *sql.DB, dialect string) (n int, err error) {
	if dialect == "postgres" {
		err = pool.QueryRowContext(ctx, `SELECT count(*) FROM pg_stat_activity
			WHERE application_name = current_setting('application_name') AND wait_event_type = 'Lock'`).Scan(&n)
		return n, err
	}
	err = pool.QueryRowContext(ctx, "SELECT COUNT(*) FROM "+servers.Processlist(servers.Kind(dialect))+" WHERE db = DATABASE() AND state = 'User lock'").Scan(&n)
	if err != nil {
		return 0, err
	}
	threads, err := transactions(ctx, pool, dialect, "\nLOCK WAIT ")
	return n + len(threads), err
}

// transactions finds the threads of the test's database whose transaction has a mark
// in InnoDB's report. (information_schema.innodb_trx is made anew only when nobody on
// the whole server has looked at it for 0.1 s: who looks more often never sees
// anything, nor does anybody else.)
func transactions(ctx context.Context, pool *sql.DB, dialect, mark string) (threads []string, err error) {
	var kind, name, status string
	if err := pool.QueryRowContext(ctx, "SHOW ENGINE INNODB STATUS").Scan(&kind, &name, &status); err != nil {
		return nil, err
	}
	_, status, _ = strings.Cut(status, "\nTRANSACTIONS\n")
	for trx := range strings.SplitSeq(status, "---TRANSACTION ") {
		id := thread.FindStringSubmatch(trx)
		if id == nil || !strings.Contains(trx, mark) {
			continue
		}
		var ours bool
		err := pool.QueryRowContext(ctx, "SELECT COUNT(*) > 0 FROM "+servers.Processlist(servers.Kind(dialect))+" WHERE id = "+id[1]+" AND db = DATABASE()").Scan(&ours)
		if err != nil {
			return nil, err
		}
		if ours {
			threads = append(threads, id[1])
		}
	}
	return threads, nil
}

var thread = regexp.MustCompile(`thread id (\d+)`)

// Kill ends the sessions of the test's database that have a transaction open, as an
// operator would: at least one.
func Kill(ctx context.Context, pool *sql.DB, dialect string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		n, err := kill(ctx, pool, dialect)
		if n > 0 || err != nil {
			return err
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("no session has a transaction open: %w", ctx.Err())
		}
	}
}

func kill(ctx context.Context, pool *sql.DB, dialect string) (n int64, err error) {
	if dialect == "postgres" {
		err := pool.QueryRowContext(ctx, `SELECT COUNT(pg_terminate_backend(pid)) FROM pg_stat_activity
			WHERE application_name = current_setting('application_name') AND state LIKE 'idle in transaction%' AND pid <> pg_backend_pid()`).Scan(&n)
		return n, err
	}
	threads, err := transactions(ctx, pool, dialect, ", ACTIVE ")
	for _, id := range threads {
		if _, err := pool.ExecContext(ctx, "KILL "+id); err != nil {
			return n, err
		}
		n++
	}
	return n, err
}

// patience is how long is waited for what must happen.
const patience = 20 * time.Second

// AwaitWaiting waits until n sessions of the test's database wait for a lock, or
// enough, if it is not nil, reports that no more will.
func AwaitWaiting(t testing.TB, pool *sql.DB, dialect string, n int, enough func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
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
		threads, err := transactions(t.Context(), pool, dialect, ", ACTIVE ")
		if err != nil {
			t.Fatalf("ask for open transactions: %v", err)
		}
		return len(threads)
	}
	if err := pool.QueryRowContext(t.Context(), query).Scan(&n); err != nil {
		t.Fatalf("ask for open transactions: %v", err)
	}
	return n
}
