package adapters_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	sessions "github.com/exclusive-go/exclusive/integration_test/cases/session"
	"github.com/exclusive-go/exclusive/integration_test/matrix"
	"github.com/exclusive-go/exclusive/integration_test/proxy"
	"github.com/exclusive-go/exclusive/internal/db"
)

// A transaction that ends otherwise than by returning nil leaves nothing, and
// no lock.
func TestInTxEnds(t *testing.T) { matrix.Each(t, testInTxEnds, testInTxEnds) }

func testInTxEnds[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	createTable(t, target)
	failure := errors.New("work failed")
	one := target.Another(t, matrix.Options{MaxConns: 1}) // does not deadlock
	ends := map[string]func() error{
		"error": func() error { return failure },
		"panic": func() error { panic(failure) },
		"goexit": func() error {
			runtime.Goexit()
			return nil
		},
	}
	for name, end := range ends {
		finished := make(chan any)
		go func() {
			var err error
			defer func() {
				if p := recover(); p != nil {
					finished <- p
				} else {
					finished <- err
				}
			}()
			err = db.InTx(t.Context(), one.DB, func(ctx context.Context, tx Tx, r db.Runner) error {
				if err := set(ctx, one, r, 1); err != nil {
					return err
				}
				if err := one.Exec(ctx, tx, "UPDATE t SET n = n + 1 WHERE id = 1"); err != nil {
					return err
				}
				return end()
			})
		}()
		got := <-finished
		if want := any(failure); name != "goexit" && got != want || name == "goexit" && got != nil {
			t.Errorf("%s: got %v", name, got)
		}
		healthy(t, one)
		if err := set(t.Context(), target, target.DB, 0); err != nil {
			t.Errorf("%s: the row is not free: %v", name, err)
		}
	}
	if err := db.InTx(t.Context(), one.DB, addOne(one)); err != nil {
		t.Error(err)
	}
	if got := n(t, target); got != 1 {
		t.Errorf("n is %d", got)
	}
}

// After one end of a transaction there is no other.
func TestEndTwice(t *testing.T) { matrix.Each(t, testEndTwice, testEndTwice) }

func testEndTwice[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	createTable(t, target)
	for _, commit := range []bool{true, false} {
		tx, err := target.DB.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		r, err := target.DB.Within(tx)
		if err != nil {
			t.Fatal(err)
		}
		if commit {
			err = target.DB.Commit(t.Context(), tx)
		} else {
			err = target.DB.Rollback(tx)
		}
		if err != nil {
			t.Fatal(err)
		}
		wantClass(t, target, "a statement after the end", set(t.Context(), target, r, 1), db.Conflict)
		err = target.DB.Commit(t.Context(), tx)
		wantClass(t, target, "a commit after the end", err, db.Conflict)
		if !errors.Is(err, db.ErrCommitUnknown) {
			t.Errorf("a commit after the end: %v", err)
		}
		if err := target.DB.Rollback(tx); err != nil {
			t.Errorf("a rollback after the end: %v", err)
		}
	}
	var none Tx
	if _, err := target.DB.Within(none); err == nil {
		t.Error("statements in no transaction")
	}
	healthy(t, target)
}

// A transaction that the server has ended by itself is never reported as
// committed, even if work saw no error or overlooked it.
func TestServerEndsTransaction(t *testing.T) {
	matrix.Each(t, testServerEndsTransaction, testServerEndsTransaction)
}

func testServerEndsTransaction[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	createTable(t, target)
	target.MustExec(t, "INSERT INTO t VALUES (2, 0)")
	ends := make(map[string]func(context.Context, Tx) error)
	switch target.Dialect {
	case "postgres":
		ends["failed statement"] = func(ctx context.Context, tx Tx) error {
			if err := target.Exec(ctx, tx, "SELECT 1/0"); err == nil {
				t.Error("no error")
			}
			return nil
		}
	case "sqlite":
		ends["conflict clause"] = func(ctx context.Context, tx Tx) error {
			if err := target.Exec(ctx, tx, "INSERT OR ROLLBACK INTO t VALUES (2, 0)"); err == nil {
				t.Error("no error")
			}
			return nil
		}
	default:
		ends["implicit commit"] = func(ctx context.Context, tx Tx) error {
			return target.Exec(ctx, tx, "CREATE TABLE other (id int)")
		}
	}
	if target.Networked() {
		ends["deadlock"] = func(ctx context.Context, tx Tx) error { return deadlock(t, ctx, target, tx) }
	}
	for name, end := range ends {
		target.MustExec(t, "UPDATE t SET n = 0")
		err := db.InTx(t.Context(), target.DB, func(ctx context.Context, tx Tx, r db.Runner) error {
			if err := set(ctx, target, r, 1); err != nil {
				return err
			}
			return end(ctx, tx)
		})
		wantClass(t, target, name, err, db.Conflict)
		// MySQL does not say how it ended the transaction: it may have been by
		// a commit.
		unknown := target.Dialect == "mysql" || target.Dialect == "mariadb"
		if errors.Is(err, db.ErrCommitUnknown) != unknown {
			t.Errorf("%s: whether the outcome is known: %v", name, err)
		}
		if got := n(t, target); got != 0 && name != "implicit commit" {
			t.Errorf("%s: n is %d", name, got)
		}
		healthy(t, target)
	}
}

// deadlock has tx lose a deadlock over the rows 1, which it holds, and 2. It
// returns nil, like work that overlooks errors.
func deadlock[Tx any](t *testing.T, ctx context.Context, target *matrix.Target[Tx], tx Tx) error {
	t.Helper()
	other, err := target.Plain.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = other.Rollback() }() // undoes n = n where there is no deadlock
	// Weigh more than tx: InnoDB rolls the lighter one back. PostgreSQL does it
	// to the one that waited first, which is tx.
	for id := 10; id < 40; id++ {
		if _, err := other.ExecContext(ctx, target.Bind("INSERT INTO t VALUES (?, 0)"), id); err != nil {
			return err
		}
	}
	if _, err := other.ExecContext(ctx, "UPDATE t SET n = n + 1 WHERE id = 2"); err != nil {
		return err
	}
	lost := make(chan error, 1)
	go func() { lost <- target.Exec(ctx, tx, "UPDATE t SET n = n + 1 WHERE id = 2") }()
	sessions.AwaitWaiting(t, target.Plain, target.Dialect, 1, nil)
	if _, err := other.ExecContext(ctx, "UPDATE t SET n = n WHERE id = 1"); err != nil {
		return err
	}
	wantClass(t, target, "the deadlock's victim", <-lost, db.Conflict)
	return nil
}

// session is the number of the session that r runs in.
func session[Tx any](t *testing.T, ctx context.Context, target *matrix.Target[Tx], r db.Runner) (id int64) {
	t.Helper()
	query := "SELECT CONNECTION_ID()"
	if target.Dialect == "postgres" {
		query = "SELECT pg_backend_pid()"
	}
	if err := r.Query(ctx, query, nil, func(scan db.Scan) error { return scan(&id) }); err != nil {
		t.Fatal(err)
	}
	return id
}

// kill ends a session.
func kill[Tx any](t *testing.T, target *matrix.Target[Tx], id int64) {
	t.Helper()
	query := "KILL %d"
	if target.Dialect == "postgres" {
		query = "SELECT pg_terminate_backend(%d)"
	}
	target.MustExec(t, fmt.Sprintf(query, id))
	time.Sleep(100 * time.Millisecond)
}

// A killed connection is a broken one, and the transaction on it is over.
func TestKilledConnection(t *testing.T) {
	matrix.Each(t, testKilledConnection, testKilledConnection, "postgres", "mysql", "mariadb")
}

func testKilledConnection[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	createTable(t, target)
	kills := []struct {
		when string
		work func(ctx context.Context, r db.Runner) error
		want []db.Class
	}{
		{"before a statement", func(ctx context.Context, r db.Runner) error {
			kill(t, target, session(t, ctx, target, r))
			return set(ctx, target, r, 2)
		}, []db.Class{db.Disconnected}},
		{"before commit", func(ctx context.Context, r db.Runner) error {
			kill(t, target, session(t, ctx, target, r))
			return nil
		}, []db.Class{db.Disconnected}},
		// MySQL first answers that the statement was interrupted.
		{"during a statement", func(ctx context.Context, r db.Runner) error {
			id := session(t, ctx, target, r)
			ran := make(chan error, 1)
			go func() { ran <- runSlow(ctx, target, r, false) }()
			time.Sleep(200 * time.Millisecond)
			kill(t, target, id)
			return <-ran
		}, []db.Class{db.Disconnected, db.Timeout}},
	}
	for _, k := range kills {
		err := db.InTx(t.Context(), target.DB, func(ctx context.Context, _ Tx, r db.Runner) error {
			if err := set(ctx, target, r, 1); err != nil {
				return err
			}
			return k.work(ctx, r)
		})
		wantClass(t, target, k.when, err, k.want...)
		eventually(t, "the row is as before", func() bool { return n(t, target) == 0 })
		healthy(t, target)
	}
}

// Idle connections that the server has closed meanwhile do not show.
func TestKilledIdleConnections(t *testing.T) {
	matrix.Each(t, testKilledIdleConnections, testKilledIdleConnections, "postgres", "mysql", "mariadb")
}

func testKilledIdleConnections[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	createTable(t, target)
	through := proxy.Start(t, target.Addr(t))
	another := target.Another(t, matrix.Options{Addr: through.Addr(), MaxConns: 2})
	for range 5 {
		for range 2 {
			if err := set(t.Context(), another, another.DB, 1); err != nil {
				t.Fatal(err)
			}
		}
		through.Cut()
		err := db.Retry(t.Context(), another.DB, func(ctx context.Context) error { return set(ctx, another, another.DB, 2) })
		if err != nil {
			t.Error(err)
		}
	}
	healthy(t, another)
}

// COMMIT goes wrong on its way, in each of the ways in which it can.
func TestCommitLost(t *testing.T) {
	matrix.Drivers(t, testCommitLost, testCommitLost, "postgres", "mysql", "mariadb")
}

func testCommitLost[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	createTable(t, target)
	tests := []struct {
		name    string
		verdict proxy.Verdict
		stored  int64
		waits   bool
	}{
		{"the answer never comes", proxy.Mute, 1, true},
		{"it never arrives", proxy.Swallow, 0, true},
		{"the connection breaks behind it", proxy.CutAfter, 1, false},
		{"the connection breaks in front of it", proxy.Cut, 0, false},
	}
	// At the same time, each on a row of its own: most of this is waiting.
	var all sync.WaitGroup
	for i, test := range tests {
		id := int64(i + 2)
		target.MustExec(t, "INSERT INTO t VALUES (?, 0)", id)
		through := proxy.Start(t, target.Addr(t))
		another := target.Another(t, matrix.Options{Addr: through.Addr()})
		through.Intercept(func(data []byte) proxy.Verdict {
			if bytes.Contains(bytes.ToLower(data), []byte("commit")) {
				return test.verdict
			}
			return proxy.Pass
		})
		all.Go(func() {
			start := time.Now()
			err := db.InTx(t.Context(), another.DB, func(ctx context.Context, _ Tx, r db.Runner) error {
				_, err := r.Exec(ctx, target.Bind("UPDATE t SET n = 1 WHERE id = ?"), id)
				return err
			})
			passed := time.Since(start)
			if !errors.Is(err, db.ErrCommitUnknown) {
				t.Errorf("%s: the error is %v", test.name, err)
			}
			if test.waits && (passed < db.CommitWait || passed > db.CommitWait+20*time.Second) || !test.waits && passed >= db.CommitWait {
				t.Errorf("%s: it took %v", test.name, passed)
			}
			through.Intercept(nil)
			through.Cut() // ends what the driver still waits for
			idle(t, another)
		})
	}
	all.Wait()
	for i, test := range tests {
		// Where COMMIT did not arrive the server has to notice before the row
		// can be changed again.
		free, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		var got int64
		err := db.InTx(free, target.DB, func(ctx context.Context, _ Tx, r db.Runner) error {
			return r.Query(ctx, target.Bind("SELECT n FROM t WHERE id = ? FOR UPDATE"), []any{int64(i + 2)}, func(scan db.Scan) error { return scan(&got) })
		})
		cancel()
		if err != nil || got != test.stored {
			t.Errorf("%s: n is %d, %v; want %d", test.name, got, err, test.stored)
		}
	}
}

// Once COMMIT was sent the context does not matter: the answer does.
func TestCancelDuringCommit(t *testing.T) {
	matrix.Each(t, testCancelDuringCommit, testCancelDuringCommit, "postgres", "mysql", "mariadb")
}

func testCancelDuringCommit[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	createTable(t, target)
	through := proxy.Start(t, target.Addr(t))
	another := target.Another(t, matrix.Options{Addr: through.Addr()})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	through.Intercept(func(data []byte) proxy.Verdict {
		if bytes.Contains(bytes.ToLower(data), []byte("commit")) {
			cancel()
			time.Sleep(300 * time.Millisecond)
		}
		return proxy.Pass
	})
	err := db.InTx(ctx, another.DB, func(ctx context.Context, _ Tx, r db.Runner) error { return set(ctx, another, r, 1) })
	if err != nil {
		t.Error(err)
	}
	if got := n(t, target); got != 1 {
		t.Errorf("n is %d", got)
	}
	healthy(t, another)
}
