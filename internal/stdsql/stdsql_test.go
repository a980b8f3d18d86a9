package stdsql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/exclusive-go/exclusive/internal/db"
)

// fake is a driver of one connection that does what the test says.
type fake struct {
	begin    func(ctx context.Context) error
	commit   func() error
	rollback func() error
	exec     func(ctx context.Context) error
	rows     func() error // what follows the only row
	closed   func() error // of the rows

	beginContext context.Context
	rolledBack   int
}

func (f *fake) Connect(context.Context) (driver.Conn, error) { return f, nil }
func (f *fake) Driver() driver.Driver                        { return nil }
func (f *fake) Prepare(string) (driver.Stmt, error)          { return nil, errors.New("not prepared") }
func (f *fake) Close() error                                 { return nil }
func (f *fake) Begin() (driver.Tx, error)                    { return nil, errors.New("without a context") }
func (f *fake) Columns() []string                            { return []string{"n"} }

func (f *fake) BeginTx(ctx context.Context, _ driver.TxOptions) (driver.Tx, error) {
	f.beginContext = ctx
	return fakeTx{f}, call(f.begin, ctx)
}

func (f *fake) ExecContext(ctx context.Context, _ string, _ []driver.NamedValue) (driver.Result, error) {
	return driver.RowsAffected(1), call(f.exec, ctx)
}

func (f *fake) QueryContext(context.Context, string, []driver.NamedValue) (driver.Rows, error) {
	return &fakeRows{fake: f}, nil
}

func call[T any](do func(T) error, with T) error {
	if do == nil {
		return nil
	}
	return do(with)
}

type fakeTx struct{ *fake }

func (tx fakeTx) Commit() error {
	if tx.commit == nil {
		return nil
	}
	return tx.commit()
}

func (tx fakeTx) Rollback() error {
	tx.rolledBack++
	if tx.rollback == nil {
		return nil
	}
	return tx.rollback()
}

type fakeRows struct {
	*fake
	read bool
}

func (r *fakeRows) Close() error {
	if r.closed == nil {
		return nil
	}
	return r.closed()
}

func (r *fakeRows) Next(dest []driver.Value) error {
	if !r.read {
		r.read = true
		dest[0] = int64(7)
		return nil
	}
	if r.rows != nil {
		return r.rows()
	}
	return io.EOF
}

type network struct{}

func (network) Classify(err error) db.Class { return db.Network(err) }

func open(t *testing.T, f *fake) *sql.DB {
	t.Helper()
	pool := sql.OpenDB(f)
	t.Cleanup(func() {
		if n := pool.Stats().InUse; n != 0 {
			t.Errorf("%d connections are in use", n)
		}
		if err := pool.Close(); err != nil {
			t.Error(err)
		}
	})
	return pool
}

func begin(t *testing.T, ctx context.Context, f *fake) *sql.Tx {
	t.Helper()
	tx, err := Begin(ctx, open(t, f))
	if err != nil {
		t.Fatal(err)
	}
	return tx
}

func TestQueryReportsLateErrors(t *testing.T) {
	late := errors.New("late")
	fails := func() error { return late }
	for name, f := range map[string]*fake{"behind the last row": {rows: fails}, "at close": {closed: fails}} {
		n := 0
		err := Query(t.Context(), open(t, f), func(scan db.Scan) error { return scan(&n) }, "SELECT n")
		if !errors.Is(err, late) || n != 7 {
			t.Errorf("%s: scanned %d, %v", name, n, err)
		}
	}
}

func TestQueryStopsAtTheFirstError(t *testing.T) {
	stop := errors.New("stop")
	err := Query(t.Context(), open(t, &fake{}), func(db.Scan) error { return stop }, "SELECT n")
	if err != stop {
		t.Errorf("the error is %v", err)
	}
}

func TestQueryClosesAfterPanic(t *testing.T) {
	pool := open(t, &fake{}) // whose clean-up counts connections
	defer func() {
		if recover() == nil {
			t.Error("the panic was swallowed")
		}
	}()
	_ = Query(t.Context(), pool, func(db.Scan) error { panic("boom") }, "SELECT n")
}

func TestErrorsMatchTheEndedContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	refused := errors.New("canceling statement due to user request")
	f := &fake{exec: func(context.Context) error { cancel(); return refused }}
	_, err := Exec(ctx, open(t, f), "UPDATE")
	if !errors.Is(err, context.Canceled) || !errors.Is(err, refused) {
		t.Errorf("%v does not match both", err)
	}
}

// A transaction that a caller began with a context ends with it, behind
// everybody's back.
func TestErrTxDoneMatchesTheEndedContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	f := &fake{exec: func(context.Context) error { cancel(); return sql.ErrTxDone }}
	_, err := Exec(ctx, open(t, f), "UPDATE")
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v does not match", err)
	}
}

func TestBeginIsCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	f := &fake{begin: func(ctx context.Context) error {
		cancel()
		<-ctx.Done()
		return ctx.Err()
	}}
	if tx, err := Begin(ctx, open(t, f)); tx != nil || !errors.Is(err, context.Canceled) {
		t.Errorf("%v, %v", tx, err)
	}
}

// The driver had begun, and only then saw the context.
func TestBeginTooLate(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	f := &fake{begin: func(context.Context) error { cancel(); return nil }}
	if tx, err := Begin(ctx, open(t, f)); tx != nil || !errors.Is(err, context.Canceled) {
		t.Errorf("%v, %v", tx, err)
	}
}

func TestBeginDetachesTheTransaction(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	f := &fake{}
	tx := begin(t, ctx, f)
	cancel()
	if f.beginContext.Err() != nil {
		t.Error("the driver's context ended with the caller's")
	}
	if _, err := tx.ExecContext(t.Context(), "UPDATE"); err != nil {
		t.Errorf("the transaction ended with the caller's context: %v", err)
	}
	if err := Commit(ctx, network{}, tx); err != context.Canceled {
		t.Errorf("commit said %v", err)
	}
	if f.rolledBack != 1 {
		t.Errorf("rolled back %d times", f.rolledBack)
	}
}

// Once COMMIT was sent, the answer counts and not the context.
func TestCommitIsNotCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	f := &fake{}
	f.commit = func() error {
		cancel()
		return f.beginContext.Err() // which drivers use for COMMIT
	}
	if err := Commit(ctx, network{}, begin(t, ctx, f)); err != nil {
		t.Error(err)
	}
}

func TestCommitErrors(t *testing.T) {
	refused := errors.New("refused")
	tests := []struct {
		err, match error
	}{
		{refused, refused},
		{driver.ErrBadConn, db.ErrCommitUnknown},
		{io.ErrUnexpectedEOF, db.ErrCommitUnknown},
	}
	for _, test := range tests {
		err := Commit(t.Context(), network{}, begin(t, t.Context(), &fake{commit: func() error { return test.err }}))
		if !errors.Is(err, test.match) || !errors.Is(err, test.err) {
			t.Errorf("%v became %v, which does not match %v", test.err, err, test.match)
		}
		if known := !errors.Is(test.match, db.ErrCommitUnknown); known && errors.Is(err, db.ErrCommitUnknown) {
			t.Errorf("%v became unknown: %v", test.err, err)
		}
	}
}

func TestCommitOfAnEndedTransaction(t *testing.T) {
	tx := begin(t, t.Context(), &fake{})
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	if err := Commit(t.Context(), network{}, tx); !errors.Is(err, db.ErrCommitUnknown) || !errors.Is(err, sql.ErrTxDone) {
		t.Errorf("the error is %v", err)
	}
	if err := Rollback(network{}, tx); err != nil {
		t.Errorf("a second rollback said %v", err)
	}
}

func TestCommitWithoutAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan struct{})
		tx := begin(t, t.Context(), &fake{commit: func() error { <-answer; return nil }})
		start := time.Now()
		err := Commit(t.Context(), network{}, tx)
		if !errors.Is(err, db.ErrCommitUnknown) {
			t.Errorf("the error is %v", err)
		}
		if c := db.Network(err); c != db.Disconnected {
			t.Errorf("its class is %d", c)
		}
		if passed := time.Since(start); passed != db.CommitWait {
			t.Errorf("waited %v", passed)
		}
		close(answer) // the driver gave up: the connection comes back
		synctest.Wait()
	})
}

func TestRollbackWithoutAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan struct{})
		tx := begin(t, t.Context(), &fake{rollback: func() error { <-answer; return nil }})
		start := time.Now()
		if err := Rollback(network{}, tx); err == nil {
			t.Error("a rollback without an answer is no error")
		}
		if passed := time.Since(start); passed != db.RollbackWait {
			t.Errorf("waited %v", passed)
		}
		close(answer)
		synctest.Wait()
	})
}

func TestRollbackErrors(t *testing.T) {
	refused := errors.New("refused")
	tests := []struct{ err, want error }{
		{nil, nil},
		{driver.ErrBadConn, nil},
		{io.ErrUnexpectedEOF, nil},
		{context.Canceled, nil}, // go-sql-driver, of a connection that a cancelled statement broke
		{refused, refused},
	}
	for _, test := range tests {
		tx := begin(t, t.Context(), &fake{rollback: func() error { return test.err }})
		if err := Rollback(network{}, tx); err != test.want {
			t.Errorf("%v became %v", test.err, err)
		}
	}
}

// lib/pq waits on while a server is silent, whatever the context says.
func TestAbandon(t *testing.T) {
	answer := make(chan struct{})
	wait := func() error { <-answer; return nil }
	f := &fake{
		begin: func(context.Context) error { return wait() },
		exec:  func(context.Context) error { return wait() },
		rows:  func() error { <-answer; return io.EOF },
	}
	pool := open(t, f)
	q := Abandoning(pool)
	rows := 0
	steps := map[string]func(context.Context) error{
		"begin": func(ctx context.Context) error { _, err := Begin(ctx, pool); return err },
		"exec":  func(ctx context.Context) error { _, err := Exec(ctx, q, "UPDATE"); return err },
		"query": func(ctx context.Context) error {
			return Query(ctx, q, func(db.Scan) error { rows++; return nil }, "SELECT n")
		},
	}
	for name, step := range steps {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		if err := step(ctx); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, errHung) {
			t.Errorf("%s: the error is %v", name, err)
		}
		cancel()
	}
	if rows != 1 {
		t.Errorf("%d rows were seen", rows)
	}
	close(answer)
	for pool.Stats().InUse > 0 { // or the test times out
		time.Sleep(time.Millisecond)
	}
	if f.rolledBack != 1 {
		t.Errorf("the transaction that began late was rolled back %d times", f.rolledBack)
	}
}

func TestLeavesOnContext(t *testing.T) {
	if LeavesOnContext(nil) {
		t.Error("no driver leaves")
	}
}

func TestNilTransaction(t *testing.T) {
	if err := Commit(t.Context(), network{}, nil); err == nil {
		t.Error("committed nil")
	}
	if err := Rollback(network{}, nil); err == nil {
		t.Error("rolled nil back")
	}
}
