package cases_test

import (
	"context"
	crand "crypto/rand"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"modernc.org/sqlite"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/casupdate"
	"github.com/exclusive-go/exclusive/db/mysqldb"
	"github.com/exclusive-go/exclusive/db/sqldb"
	"github.com/exclusive-go/exclusive/exclusivetest"
	"github.com/exclusive-go/exclusive/fencing"
	"github.com/exclusive-go/exclusive/integration_test/cases/pool"
	"github.com/exclusive-go/exclusive/integration_test/cases/session"
	"github.com/exclusive-go/exclusive/integration_test/matrix"
	"github.com/exclusive-go/exclusive/integration_test/proxy"
	"github.com/exclusive-go/exclusive/integration_test/servers"
	"github.com/exclusive-go/exclusive/integration_test/strategies"
	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/rowlock"
	"github.com/exclusive-go/exclusive/uniquetask"
)

// A commit whose answer is lost is told as unknown, or looked up; the call that
// repeats it replays what was stored, or runs what was not.
// Elsewhere a commit that timed out was repeated although the server had
// committed: the counter was 2. Once is in the caller's own transaction, whose COMMIT is
// the caller's affair; what Commit and Do tell of theirs is tested beside this.
// Also: fencing.TestCommitWithoutAnswer.
func TestB073_CommitUnknown(t *testing.T) {
	t.Parallel()
	matrix.Shared(t, testB073[pgx.Tx], testB073[*sql.Tx])
}

func testB073[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	if !target.Networked() {
		return
	}
	place := strategies.All[Tx]()[0].SetUp(t, target)
	open := func(target *matrix.Target[Tx]) *fencing.Leases[Tx] {
		leases, err := fencing.New(target.DB, fencing.Config{TTL: forever})
		return opened(t, leases, err)
	}
	once := func(ctx context.Context, target *matrix.Target[Tx], leases *fencing.Leases[Tx], key, own string) (result string, ran bool, err error) {
		err = inTx(ctx, target, func(ctx context.Context, tx Tx) error {
			stored, err := leases.Once(ctx, tx, key, nil, func(ctx context.Context) ([]byte, error) {
				ran = true
				return []byte(own), place.Write(ctx, tx, key, own)
			})
			result = string(stored)
			return err
		})
		return result, ran, err
	}
	near := open(target)
	for name, c := range map[string]struct {
		verdict proxy.Verdict
		effects int64 // of the first call
	}{"answer lost": {proxy.CutAfter, 1}, "never arrived": {proxy.Cut, 0}, "slow": {proxy.Pass, 1}} {
		key := place.MustKey(t)
		far, p := through(t, target, matrix.Options{})
		leases := open(far)
		ctx, cancel := context.WithCancel(t.Context())
		var met atomic.Bool
		p.Intercept(func(data []byte) proxy.Verdict {
			if !proxy.IsCommit(data) || !met.CompareAndSwap(false, true) {
				return proxy.Pass
			}
			if name == "slow" { // its context ends while COMMIT is on its way
				cancel()
				time.Sleep(time.Second)
			}
			return c.verdict
		})
		_, _, err := once(ctx, far, leases, key, "first")
		cancel()
		if !met.Load() {
			t.Fatalf("%s: no COMMIT was seen: %v", name, err)
		}
		if name == "slow" { // the answer is waited for
			must(t, name, err)
		} else {
			wantErr(t, name, err, db.ErrCommitUnknown)
		}
		if _, n := place.Stored(t, key); n != c.effects {
			t.Errorf("%s: %d effects before the repetition; want %d", name, n, c.effects)
		}
		want := map[int64]string{0: "second", 1: "first"}[c.effects]
		result, ran, err := once(t.Context(), target, near, key, "second")
		if err != nil || result != want || ran != (c.effects == 0) {
			t.Errorf("%s: the repetition: %q, %v, and its apply ran: %v; want %q", name, result, err, ran, want)
		}
		if body, n := place.Stored(t, key); body != want || n != 1 {
			t.Errorf("%s: after the repetition %d effects, the last %q; want one of %q", name, n, body, want)
		}
	}

	// An acquire whose caller could not wait for the answer does not stand in
	// the way of its own repetition.
	far, p := through(t, target, matrix.Options{})
	leases := open(far)
	free(t, leases, newKey()) // connected, prepared
	key := newKey()
	p.Intercept(func([]byte) proxy.Verdict { return proxy.Mute })
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := leases.TryAcquire(ctx, key)
	wantErr(t, "acquire", err, context.DeadlineExceeded)
	p.Intercept(nil)
	p.Cut()
	free(t, leases, key)
}

// badConn opens a target of database/sql anew whose driver says, once after each
// arm, that the connection is bad, although the server has run the statement.
func badConn(t testing.TB, target *matrix.Target[*sql.Tx]) (d db.DB[*sql.Tx], arm func(words ...string), then func(func()), met func() bool) {
	t.Helper()
	lie := new(pool.Lie)
	p := opened(t, sql.OpenDB(lie.Connector(t, target.Dialect, target.Address().DSN)), nil)
	switch target.Dialect {
	case "postgres":
		d = sqldb.NewPostgres(p)
	case "sqlite":
		d = sqldb.NewSQLite(p)
	default:
		d = mysqldb.New(p)
	}
	return d, lie.Arm, lie.Then, lie.Told
}

// unasked leaves it to database/sql to send statements again.
type unasked struct{ db.DB[*sql.Tx] }

func (u unasked) Exec(_ context.Context, query string, args ...any) (db.Result, error) {
	return u.DB.Exec(context.Background(), query, args...)
}

// A statement that database/sql sends again after it was run has one effect, and
// its caller is told so.
// Elsewhere drivers said "bad connection" when the server had run the statement:
// updates ran up to three times, and an own claim was taken for a rival's.
func TestB074_SentTwice(t *testing.T) {
	t.Parallel()
	matrix.Shared(t, nil, testB074)
}

func testB074(t *testing.T, target *matrix.Target[*sql.Tx]) {
	if target.Name == "lib_pq" {
		return // the lie is database/sql's affair, and told with one driver of each server
	}
	strategies.Tables(t, target)
	d, arm, then, told := badConn(t, target)
	lied := func(what string) {
		t.Helper()
		if !told() {
			t.Errorf("%s: no statement was sent twice", what)
		}
	}
	key := newKey()
	target.MustExec(t, "INSERT INTO job (id, state) VALUES (?, 'PENDING')", key)

	leases, err := fencing.New(d, fencing.Config{TTL: forever})
	opened(t, leases, err)
	free(t, leases, newKey()) // the schema is checked
	arm("INSERT INTO", "exclusive_lease")
	lease := acquire(t, leases, key)
	lied("acquire")
	if stored := target.Int(t, "SELECT token FROM exclusive_lease WHERE lease_key = ?", []byte(key)); stored != lease.Grant().Token || lease.Grant().Attempt != 1 {
		t.Errorf("token %d is stored, and told is %+v", stored, lease.Grant())
	}
	arm("exclusive_lease")
	if err := lease.Renew(t.Context()); err != nil { // it is the caller's to repeat
		wantErr(t, "renew", err, exclusive.ErrUnavailable)
		must(t, "renew again", lease.Renew(t.Context()))
	}
	lied("renew")
	arm("UPDATE", "exclusive_lease")
	must(t, "release", lease.Release(t.Context()))
	lied("release")

	tasks, err := uniquetask.New(d, uniquetask.Config{Task: newKey(), TTL: forever})
	opened(t, tasks, err)
	must(t, "the schema is checked", tasks.Do(t.Context(), "first", nothing))
	runs := 0
	arm("INSERT INTO", "exclusive_task")
	must(t, "do", tasks.Do(t.Context(), key, func(_ context.Context, g exclusive.Grant) error {
		lied("claim")
		if g.Attempt != 1 {
			t.Errorf("attempt %d", g.Attempt)
		}
		runs++
		arm("UPDATE", "exclusive_task", "done")
		return tasks.SetResult(g, []byte("r"))
	}))
	lied("finish")
	if got := doneWith(t, tasks.Do(t.Context(), key, nothing)); got != "r" || runs != 1 {
		t.Errorf("%d runs, the result is %q", runs, got)
	}

	table, err := casupdate.New(d, casupdate.Config{
		Table: "job", From: "PENDING", Claimed: "PROCESSING", Done: "DONE", TokenColumn: "token", GrantColumn: "grant_id",
		Transitions: []casupdate.Transition{{From: "DONE", To: "ARCHIVED"}},
	})
	opened(t, table, err)
	arm("UPDATE", "job")
	must(t, "do", table.Do(t.Context(), key, func(context.Context, exclusive.Grant) error {
		lied("claim of a row")
		arm("UPDATE", "job")
		runs++
		return nil
	}))
	lied("finish of a row")
	arm("UPDATE", "job")
	must(t, "transition", table.Transition(t.Context(), key, "DONE", "ARCHIVED"))
	lied("transition")
	if state, err := table.State(t.Context(), key); err != nil || state != "ARCHIVED" || runs != 2 {
		t.Errorf("%d runs, the state is %q, %v", runs, state, err)
	}

	// What an operator ends.
	lease = acquire(t, leases, key)
	arm("UPDATE", "exclusive_lease")
	must(t, "release by an operator", leases.ReleaseSeen(t.Context(), exclusive.Status{Key: key, Last: exclusive.Holder{ID: lease.Grant().ID}}))
	lied("release by an operator")
	if target.Dialect == "mysql" || target.Dialect == "mariadb" {
		return // their driver does not say it of a statement that was sent
	}
	run := newKey()
	_ = tasks.Do(t.Context(), run, func(_ context.Context, g exclusive.Grant) error {
		arm("UPDATE", "exclusive_task")
		must(t, "release of a run", tasks.ReleaseSeen(t.Context(), uniquetask.Run{Run: run, GrantID: g.ID}))
		lied("release of a run")
		return nil
	})

	// A rival gets in between: the holder has given its key back all the same.
	rival, err := fencing.New(target.DB, fencing.Config{TTL: forever})
	opened(t, rival, err)
	key = newKey()
	lease = acquire(t, leases, key)
	arm("UPDATE", "exclusive_lease")
	then(func() { acquire(t, rival, key) })
	must(t, "release before a rival's acquire", lease.Release(t.Context()))
	lied("release before a rival's acquire")

	// Nobody can tell whose effect it is, so it is not sent again, and not told as
	// somebody else's.
	row := newKey()
	target.MustExec(t, "INSERT INTO job (id, state) VALUES (?, 'PENDING')", row)
	target.MustExec(t, "CREATE TABLE versioned (id varchar(64) PRIMARY KEY, n bigint NOT NULL, version bigint NOT NULL)")
	target.MustExec(t, "INSERT INTO versioned (id, n, version) VALUES (?, 0, 1)", row)
	versioned, err := casupdate.NewVersioned(d, casupdate.VersionConfig{Table: "versioned"})
	must(t, "new", err)
	arm("UPDATE", "versioned")
	_, err = versioned.Update(t.Context(), row, 1, casupdate.Set{"n": 1})
	wantErr(t, "update of a version", err, exclusive.ErrOutcomeUnknown)
	lied("update of a version")
	if n := target.Int(t, "SELECT version FROM versioned WHERE id = ?", row); n != 2 {
		t.Errorf("version %d", n)
	}
	// The twin: sent again behind our back, the same update is told as a rival's.
	blind, err := casupdate.NewVersioned[*sql.Tx](unasked{d}, casupdate.VersionConfig{Table: "versioned"})
	must(t, "new", err)
	arm("UPDATE", "versioned")
	_, err = blind.Update(t.Context(), row, 2, casupdate.Set{"n": 2})
	wantErr(t, "update without the guard", err, exclusive.ErrConflict)
	bare, err := casupdate.New(d, casupdate.Config{Table: "job", Transitions: []casupdate.Transition{{From: "PENDING", To: "ARCHIVED"}}})
	opened(t, bare, err)
	arm("UPDATE", "job")
	wantErr(t, "bare transition", bare.Transition(t.Context(), row, "PENDING", "ARCHIVED"), exclusive.ErrOutcomeUnknown)
	lied("bare transition")
	if state, err := bare.State(t.Context(), row); err != nil || state != "ARCHIVED" {
		t.Errorf("the state is %q, %v", state, err)
	}
}

// Whoever cancels is told that he did, wherever the call was at that moment, and
// soon; never that the key is held.
// Elsewhere it was ErrTxDone one time and "failed to acquire" the next, and the
// pause between two tries did not end.
func TestB076_CancelAnywhere(t *testing.T) {
	t.Parallel()
	eachStrategy(t, testB076, testB076)
}

func testB076[Tx any](t *testing.T, target *matrix.Target[Tx], s strategies.Strategy[Tx]) {
	place := s.SetUp(t, target)
	other := target.Another(t, matrix.Options{})
	holder := place.New(t, other, exclusivetest.Config{TTL: forever})
	x := place.New(t, target, exclusivetest.Config{TTL: forever, Wait: forever})
	judge := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, context.Canceled) || errors.Is(err, exclusive.ErrHeld) || errors.Is(err, exclusive.ErrUnavailable) {
			t.Errorf("%s: %v", what, err)
		}
	}
	key := place.MustKey(t)
	err := holder.Do(t.Context(), key, func(hctx context.Context, _ exclusive.Grant) error {
		for range size(100, 8) {
			ctx, cancel := context.WithCancel(hctx)
			told := make(chan error, 1)
			go func() { told <- x.Do(ctx, key, nothing) }()
			time.Sleep(rand.N(60 * time.Millisecond))
			cancel()
			select {
			case err := <-told:
				judge("while it waits", err)
			case <-time.After(patience):
				t.Error("a cancelled wait does not end")
			}
		}
		return errBusiness
	})
	wantErr(t, "the holder", err, errBusiness)

	for n := range size(100, 4) {
		key := place.MustKey(t)
		ctx, cancel := context.WithCancel(t.Context())
		committed := false
		err := x.Do(ctx, key, func(ctx context.Context, g exclusive.Grant) error {
			if n%2 == 0 { // in work
				cancel()
				return ctx.Err()
			}
			err := x.Commit(ctx, g, func(ctx context.Context, tx Tx) error {
				if err := place.Write(ctx, tx, key, "cancelled"); err != nil {
					return err
				}
				cancel()
				return place.Write(ctx, tx, key, "cancelled")
			})
			committed = err == nil
			return err
		})
		cancel()
		if committed {
			t.Error("committed after its context had ended")
		}
		judge("in work", err)
		if _, n := place.Stored(t, key); n != 0 {
			t.Errorf("%d results of a cancelled call", n)
		}
	}
}

// slow is a statement that lasts long enough to be cancelled: longer than anybody is
// patient where a server hears of that, and is over soon where it does not. It says
// whose it is.
func slow(dialect, key string) string {
	switch dialect {
	case "postgres":
		return "SELECT pg_sleep(600) /* " + key + " */"
	case "sqlite":
		return "WITH RECURSIVE n (i) AS (SELECT begins('" + key + "') UNION ALL SELECT i + 1 FROM n WHERE i < 100000000000) SELECT COUNT(*) FROM n"
	}
	return "SELECT SLEEP(3) /* " + key + " */"
}

// begun has the keys of the slow statements that SQLite has begun.
var begun sync.Map

func init() {
	sqlite.MustRegisterScalarFunction("begins", 1, func(_ *sqlite.FunctionContext, args []driver.Value) (driver.Value, error) {
		begun.Store(args[0], true)
		return int64(1), nil
	})
}

// runsSlow reports whether the database runs the slow statement of key.
func runsSlow[Tx any](t testing.TB, target *matrix.Target[Tx], key string) bool {
	t.Helper()
	switch target.Dialect {
	case "postgres":
		return target.Int(t, "SELECT COUNT(*) FROM pg_stat_activity WHERE state = 'active' AND query = ?", slow(target.Dialect, key)) > 0
	case "sqlite":
		_, ok := begun.Load(key)
		return ok
	}
	return target.Int(t, "SELECT COUNT(*) FROM "+servers.Processlist(servers.Kind(target.Dialect))+" WHERE db = DATABASE() AND info = ?", slow(target.Dialect, key)) > 0
}

// A statement that is cancelled within a Commit is told as the cancellation,
// whatever becomes of the rollback, and nothing is logged; the pool is whole, and the
// key free at once: on MySQL and MariaDB as soon as the server notices that the
// connection is closed, which is when the statement ends at the latest.
// Elsewhere the rollback on the closed connection failed, and its error took the
// place of the real one. (Of the drivers of the tests only that of MySQL has a log.)
func TestB077_RollbackAfterCancel(t *testing.T) {
	t.Parallel()
	eachStrategy(t, testB077, testB077)
}

func testB077[Tx any](t *testing.T, target *matrix.Target[Tx], s strategies.Strategy[Tx]) {
	if s.Name != "rowlock" && s.Name != "fencing" {
		return // the others commit as fencing does
	}
	place := s.SetUp(t, target)
	key := place.MustKey(t)
	const conns = 4
	var logged atomic.Int64
	own := target.Another(t, matrix.Options{MaxConns: conns, Log: func(v ...any) {
		logged.Add(1)
		t.Log(append([]any{"the driver says: "}, v...)...)
	}})
	x := place.New(t, own, exclusivetest.Config{TTL: forever})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var cut error // of the statement that is cancelled
	err := x.Do(ctx, key, func(ctx context.Context, g exclusive.Grant) error {
		return x.Commit(ctx, g, func(ctx context.Context, tx Tx) error {
			if err := place.Write(ctx, tx, key, "cancelled"); err != nil {
				return err
			}
			ran := make(chan error, 1)
			go func() { ran <- own.Exec(ctx, tx, slow(target.Dialect, key)) }()
			await(t, "the statement runs", func() bool { return len(ran) > 0 || runsSlow(t, target, key) })
			cancel()
			if err := <-ran; err != nil {
				cut = fmt.Errorf("the slow statement: %w", err)
			}
			return cut
		})
	})
	if cut == nil {
		t.Fatalf("no statement was cancelled: %v", err)
	}
	wantErr(t, "do", err, context.Canceled, cut)
	if text := err.Error(); !strings.Contains(text, "cancel") {
		t.Errorf("the message does not say it: %v", err)
	}
	stores(t, place, place.New(t, target.Another(t, matrix.Options{}), exclusivetest.Config{Wait: patience}), key, "next")
	await(t, "all connections are back", func() bool { return own.InUse() == 0 })
	// As many transactions at once as the pool may have connections.
	var open, ended sync.WaitGroup
	open.Add(conns)
	for range conns {
		ended.Go(func() {
			opened := sync.OnceFunc(open.Done)
			defer opened()
			err := inTx(soon(t), own, func(ctx context.Context, tx Tx) error {
				if err := own.Exec(ctx, tx, "SELECT 1"); err != nil {
					return err
				}
				opened()
				open.Wait()
				return own.Exec(ctx, tx, "SELECT 1")
			})
			if err != nil {
				t.Errorf("a transaction beside others on the pool: %v", err)
			}
		})
	}
	ended.Wait()
	if n := logged.Load(); n != 0 {
		t.Errorf("the driver has logged %d times", n)
	}
	if target.Dialect != "mysql" && target.Dialect != "mariadb" {
		return
	}
	_ = inTx(t.Context(), own, func(ctx context.Context, tx Tx) error {
		_ = own.Exec(ctx, tx, "KILL CONNECTION_ID()")
		return own.Exec(ctx, tx, "SELECT 1")
	})
	if logged.Load() == 0 {
		t.Error("the driver does not log a broken connection either: the case proves nothing")
	}
}

// A server that has become read-only is unavailable: nothing runs, no token is
// given out, and when it can write again all goes on with the same pool.
// Elsewhere every write failed until the process was started again, or the key
// counted as held. MySQL and MariaDB are servers of the test's own that become
// read-only. On PostgreSQL it is a role that does, and whose sessions are ended as in
// a failover; SQLite has no server, and there the pool is swapped.
func TestB079_ReadOnlyAfterFailover(t *testing.T) {
	t.Parallel()
	matrix.Drivers(t, testB079[pgx.Tx], testB079[*sql.Tx], "postgres", "sqlite") // of their own: they grant
	for _, kind := range []servers.Kind{servers.MySQL, servers.MariaDB} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			testB079Server(t, matrix.OnSQL(t, matrix.Address{Name: string(kind), DSN: servers.Own(t, kind)}))
		})
	}
}

func testB079[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	strategies.Tables(t, target)
	if !target.Networked() {
		p := pool.New(target.DB)
		demoted := target.Another(t, matrix.Options{Params: map[string]string{"_pragma": "query_only(1)"}})
		playReadOnly[Tx](t, target, p, func() { p.Swap(demoted.DB) }, func() { p.Swap(target.DB) })
		return
	}
	role := strings.ToLower("role_" + crand.Text()[:12])
	target.MustExec(t, "CREATE ROLE "+role+" LOGIN PASSWORD 'secret'")
	t.Cleanup(func() {
		for _, statement := range []string{"DROP OWNED BY " + role, "DROP ROLE " + role} {
			_, err := target.Plain.ExecContext(context.Background(), statement)
			must(t, statement, err)
		}
	})
	for _, objects := range []string{"TABLES", "SEQUENCES"} {
		var schema string
		must(t, "the schema's name", target.Plain.QueryRowContext(t.Context(), "SELECT current_schema()").Scan(&schema))
		target.MustExec(t, "GRANT ALL ON ALL "+objects+" IN SCHEMA "+schema+" TO "+role)
	}
	own := target.Another(t, matrix.Options{User: role, Password: "secret"})
	become := func(readOnly string) func() {
		return func() {
			target.MustExec(t, "ALTER ROLE "+role+" SET default_transaction_read_only = "+readOnly)
			target.MustExec(t, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = ?", role)
		}
	}
	playReadOnly(t, target, own.DB, become("on"), become("off"))
}

// testB079Server has the target's server for itself.
func testB079Server(t *testing.T, target *matrix.Target[*sql.Tx]) {
	strategies.Tables(t, target)
	var database string
	must(t, "the database's name", target.Plain.QueryRowContext(t.Context(), "SELECT DATABASE()").Scan(&database))
	target.MustExec(t, "CREATE USER app IDENTIFIED BY 'secret'")
	target.MustExec(t, "GRANT SELECT, INSERT, UPDATE, DELETE ON "+database+".* TO app")
	become := func(readOnly string) func() {
		return func() { target.MustExec(t, "SET GLOBAL read_only = "+readOnly) }
	}
	ordinary := target.Another(t, matrix.Options{User: "app", Password: "secret"})
	playReadOnly(t, target, ordinary.DB, become("1"), become("0"))

	// The account of the tests may write all the same: the server refuses it nothing.
	key := newKey()
	target.MustExec(t, "INSERT INTO job (id, state) VALUES (?, 'PENDING')", key)
	for account, of := range map[string]*matrix.Target[*sql.Tx]{"ordinary": ordinary, "privileged": target} {
		names := locksOn(t, of, rowlock.Config{})
		rows := locksOn(t, of, rowlock.Config{Table: "job", KeyColumns: []string{"id"}})
		must(t, "the row of a name", names.Do(t.Context(), key, nothing))
		ran := func(context.Context, exclusive.Grant) error { t.Errorf("%s: work ran", account); return nil }
		next := func(fail bool) (int, error) {
			return rows.Next(t.Context(), 1, func(context.Context, *sql.Tx, [][]string) error {
				if fail {
					t.Errorf("%s: work of Next ran", account)
				}
				return nil
			})
		}
		become("1")()
		_, nextErr := next(true)
		for what, err := range map[string]error{
			"a name": names.Do(t.Context(), key, ran), "a row": rows.Do(t.Context(), key, ran), "next": nextErr,
		} {
			if !errors.Is(err, exclusive.ErrUnavailable) || errors.Is(err, exclusive.ErrHeld) || errors.Is(err, exclusive.ErrLost) {
				t.Errorf("%s: lock of %s: %v", account, what, err)
			}
		}
		if account == "privileged" { // the twin: the lock alone, which nobody refuses
			must(t, account+": the twin", inTx(t.Context(), of, func(ctx context.Context, tx *sql.Tx) error {
				return of.Exec(ctx, tx, "SELECT 1 FROM exclusive_lock WHERE lock_key = ? FOR UPDATE NOWAIT", []byte(key))
			}))
		}
		become("0")()
		must(t, account+": a name", names.Do(t.Context(), key, nothing))
		must(t, account+": a row", rows.Do(t.Context(), key, nothing))
		if n, err := next(false); n != 1 || err != nil {
			t.Errorf("%s: next: %d, %v", account, n, err)
		}
	}
}

// playReadOnly uses p while what it leads to is demoted, and afterwards.
func playReadOnly[Tx any](t *testing.T, target *matrix.Target[Tx], p db.DB[Tx], demote, promote func()) {
	t.Helper()
	leases, err := fencing.New(p, fencing.Config{TTL: forever})
	opened(t, leases, err)
	tasks, err := uniquetask.New(p, uniquetask.Config{Task: newKey()})
	opened(t, tasks, err)
	table, err := casupdate.New(p, casupdate.Config{Table: "job", From: "PENDING", Claimed: "PROCESSING", Done: "DONE"})
	opened(t, table, err)
	locks, err := rowlock.New(p, rowlock.Config{})
	must(t, "open", err)

	key := newKey()
	target.MustExec(t, "INSERT INTO job (id, state) VALUES (?, 'PENDING')", key)
	held := acquire(t, leases, newKey())
	ran := func(context.Context, exclusive.Grant) error { t.Error("work ran"); return nil }
	once := func(fail bool) error {
		return db.InTx(t.Context(), p, func(ctx context.Context, tx Tx, _ db.Runner) error {
			_, err := leases.Once(ctx, tx, key, nil, func(context.Context) ([]byte, error) {
				if fail {
					t.Error("apply ran")
				}
				return nil, nil
			})
			return err
		})
	}
	past := newKey()
	must(t, "past", tasks.Do(t.Context(), past, nothing))
	must(t, "the lock of past", locks.Do(t.Context(), past, nothing))
	demote()
	_, tryErr := leases.TryAcquire(t.Context(), key)
	for what, err := range map[string]error{
		"acquire": tryErr,
		"do":      leases.Do(t.Context(), key, ran),
		"task":    tasks.Do(t.Context(), key, ran),
		"row":     table.Do(t.Context(), key, ran),
		"lock":    locks.Do(t.Context(), key, ran),
		"renew":   held.Renew(t.Context()),
		"release": held.Release(t.Context()),
		// What a replica has not heard of is not free.
		"operator's release":                  leases.Release(t.Context(), key),
		"operator's release of a held key":    leases.Release(t.Context(), held.Grant().Key),
		"operator's release of a run":         tasks.Release(t.Context(), key),
		"operator's release of a run of past": tasks.Release(t.Context(), past),
		"forget":                              tasks.Forget(t.Context(), key),
		"forget a run of past":                tasks.Forget(t.Context(), past),
	} {
		if !errors.Is(err, exclusive.ErrUnavailable) || errors.Is(err, exclusive.ErrHeld) || errors.Is(err, exclusive.ErrLost) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if target.Name != "lib_pq" { // it begins every transaction with READ WRITE, which a demoted server refuses and these sessions do not
		wantErr(t, "once", once(true), exclusive.ErrUnavailable)
		wantErr(t, "the lock of past", locks.Do(t.Context(), past, ran), exclusive.ErrUnavailable)
	}
	promote()
	// Connections that the failover has ended are found one by one.
	again := func(what string, do func() error) {
		t.Helper()
		var err error
		await(t, what, func() bool { err = do(); return !errors.Is(err, exclusive.ErrUnavailable) })
		must(t, what, err)
	}
	again("release", func() error { return held.Release(t.Context()) })
	again("acquire", func() error {
		lease, err := leases.TryAcquire(t.Context(), key)
		if err != nil {
			return err
		}
		return lease.Release(t.Context())
	})
	for what, x := range map[string]exclusive.Exclusive{"task": tasks, "row": table, "lock": locks} {
		again(what, func() error { return x.Do(t.Context(), key, nothing) })
	}
	again("once", func() error { return once(false) })
}

// A check takes nothing but a transaction that is open, so no lock can end with
// its statement; counters that are read and written under it lose nothing.
// Elsewhere FOR UPDATE was sent outside a transaction, or on another connection.
// What is no transaction, a pool or a single connection, is refused by the
// compiler: the type of the transaction comes from the adapter.
func TestB080_CheckNeedsTransaction(t *testing.T) {
	t.Parallel()
	t.Run("transaction", func(t *testing.T) { eachStrategy(t, testB080, testB080) })
	t.Run("together", func(t *testing.T) { matrix.Drivers(t, testTwoChecks[pgx.Tx], testTwoChecks[*sql.Tx]) })
}

// testTwoChecks has two transactions with the same current grant count at once, so
// that no lease stands between them: only what Check locks does. The twin, without
// Check, loses a count. (A grant of rowlock is that of one transaction.)
func testTwoChecks[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	for _, s := range strategies.All[Tx]() {
		if s.Name != "fencing" && s.Name != "fencing_guarded_here" {
			continue // the others' Check locks the row of its claim as fencing's does, or is that of a Guard
		}
		place := s.SetUp(t, target)
		x := place.New(t, target, exclusivetest.Config{TTL: forever, NoRenew: true})
		for _, name := range []string{"checked", "twin"} {
			check, there, want := x.Check, target, "2"
			if name == "twin" {
				if !target.Networked() {
					continue // it has one writer, and refuses who has read before another wrote
				}
				check, want = func(context.Context, Tx, exclusive.Grant) error { return nil }, "1"
				// MariaDB refuses that too at REPEATABLE READ, with innodb_snapshot_isolation.
				there = target.Isolated(t, "read committed")
			}
			key := place.MustKey(t)
			must(t, s.Name, x.Do(t.Context(), key, func(ctx context.Context, g exclusive.Grant) error {
				countTogether(ctx, t, there, place, key, func(ctx context.Context, tx Tx) error { return check(ctx, tx, g) })
				return nil
			}))
			if body, _ := place.Stored(t, key); body != want {
				t.Errorf("%s, %s: counted %s of 2; want %s", s.Name, name, body, want)
			}
		}
	}
}

// countTogether counts key up in two transactions. The first one writes when the
// second has read, or waits in its check.
func countTogether[Tx any](ctx context.Context, t *testing.T, target *matrix.Target[Tx], place *strategies.Place[Tx], key string, check func(ctx context.Context, tx Tx) error) {
	t.Helper()
	count := func(between func()) error {
		return inTx(ctx, target, func(ctx context.Context, tx Tx) error {
			if err := check(ctx, tx); err != nil {
				return err
			}
			body, err := place.Read(ctx, tx, key)
			if err != nil {
				return err
			}
			between()
			n := 0
			if body != "" {
				if _, err := fmt.Sscan(body, &n); err != nil {
					return err
				}
			}
			return place.Write(ctx, tx, key, fmt.Sprint(n+1))
		})
	}
	var wg sync.WaitGroup
	var read atomic.Bool // by the second, or it has ended
	err := count(func() {
		wg.Go(func() {
			defer read.Store(true)
			if err := count(func() { read.Store(true) }); err != nil {
				t.Errorf("the second transaction: %v", err)
			}
		})
		if target.Networked() {
			session.AwaitWaiting(t, target.Plain, target.Dialect, 1, read.Load)
		} else {
			await(t, "the second transaction to begin", func() bool { return read.Load() || target.InUse() >= 2 })
		}
	})
	wg.Wait()
	must(t, "the first transaction", err)
}

func testB080[Tx any](t *testing.T, target *matrix.Target[Tx], s strategies.Strategy[Tx]) {
	place := s.SetUp(t, target)
	x := place.New(t, target, exclusivetest.Config{TTL: forever})
	key := place.MustKey(t)
	over, err := target.BeginPast(t.Context())
	must(t, "begin", err)
	must(t, "rollback", target.DB.Rollback(over))
	err = x.Do(t.Context(), key, func(ctx context.Context, g exclusive.Grant) error {
		if err := x.Check(ctx, *new(Tx), g); !errors.Is(err, exclusive.ErrInvalid) && !errors.Is(err, exclusive.ErrUnsupported) {
			t.Errorf("no transaction: %v", err)
		}
		if err := x.Check(ctx, over, g); err == nil {
			t.Error("a transaction that is over was accepted")
		}
		return errBusiness
	})
	wantErr(t, "do", err, errBusiness)

	if s.Name != "rowlock" && s.Name != "fencing" && s.Name != "fencing_guarded_here" {
		return // once-only strategies have nothing to count, and other issuers' grants are checked as here
	}
	rounds := size(200, 25)
	counter := place.MustKey(t)
	var workers sync.WaitGroup
	for range 2 {
		y := place.New(t, target.Another(t, matrix.Options{}), exclusivetest.Config{TTL: forever, Wait: forever})
		workers.Go(func() {
			for range rounds {
				err := y.Do(t.Context(), counter, func(ctx context.Context, g exclusive.Grant) error {
					return y.Commit(ctx, g, func(ctx context.Context, tx Tx) error {
						body, err := place.Read(ctx, tx, counter)
						if err != nil {
							return err
						}
						n := 0
						if body != "" {
							if _, err := fmt.Sscan(body, &n); err != nil {
								return err
							}
						}
						return place.Write(ctx, tx, counter, fmt.Sprint(n+1))
					})
				})
				if err != nil {
					t.Errorf("count: %v", err)
				}
			}
		})
	}
	workers.Wait()
	if body, _ := place.Stored(t, counter); body != fmt.Sprint(2*rounds) {
		t.Errorf("counted %s of %d", body, 2*rounds)
	}
}

// When the pool leads to a copy of the database without the lease, the holder
// is told, and what it then commits is stored in neither.
// A failover is more than a server that cannot write: the new one may have
// forgotten the newest grants.
func TestDriverOwn_FailoverWithoutLease(t *testing.T) {
	t.Parallel()
	matrix.Drivers(t, testFailoverWithoutLease[pgx.Tx], testFailoverWithoutLease[*sql.Tx])
}

func testFailoverWithoutLease[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	key := newKey()
	promoted := target.Fresh(t)
	for _, place := range []*matrix.Target[Tx]{target, promoted} {
		strategies.Tables(t, place)
		place.MustExec(t, "INSERT INTO result VALUES (?, '', 0)", key)
	}
	p := pool.New(target.DB)
	leases, err := fencing.New[Tx](p, fencing.Config{TTL: 6 * time.Second})
	opened(t, leases, err)
	err = leases.Do(t.Context(), key, func(ctx context.Context, g exclusive.Grant) error {
		p.Swap(promoted.DB)
		err := leases.Commit(ctx, g, func(ctx context.Context, tx Tx) error {
			return target.Exec(ctx, tx, target.Bind("UPDATE result SET n = n + 1 WHERE name = ?"), key)
		})
		wantErr(t, "commit on the copy", err, exclusive.ErrLost)
		ended(t, "work's context", ctx.Done())
		return nil
	})
	wantErr(t, "do", err, exclusive.ErrLost)
	for _, place := range []*matrix.Target[Tx]{target, promoted} {
		if n := place.Int(t, "SELECT n FROM result WHERE name = ?", key); n != 0 {
			t.Errorf("%d results", n)
		}
	}
}

// A COMMIT that the server refuses is a conflict: apply ran once, nothing is
// stored, and the key can be had again.
// Serialization failures and deadlocks of a cluster come only there; repeated
// blindly, work would have run twice.
func TestDriverOwn_CommitRefused(t *testing.T) {
	t.Parallel()
	matrix.Shared(t, testCommitRefused[pgx.Tx], testCommitRefused[*sql.Tx])
}

func testCommitRefused[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	place := strategies.All[Tx]()[0].SetUp(t, target)
	p := pool.New(target.DB)
	leases, err := fencing.New[Tx](p, fencing.Config{TTL: forever})
	opened(t, leases, err)
	tasks, err := uniquetask.New[Tx](p, uniquetask.Config{Task: newKey(), TTL: forever})
	opened(t, tasks, err)
	locks, err := rowlock.New[Tx](p, rowlock.Config{})
	must(t, "open", err)
	for name, x := range map[string]exclusive.Transactional[Tx]{"fencing": leases, "uniquetask": tasks, "rowlock": locks} {
		key := place.MustKey(t)
		store := func() (applied int, err error) {
			err = x.Do(t.Context(), key, func(ctx context.Context, g exclusive.Grant) error {
				return x.Commit(ctx, g, func(ctx context.Context, tx Tx) error { applied++; return place.Write(ctx, tx, key, name) })
			})
			return applied, err
		}
		p.OnCommit(func(func() error) error { return db.NotCommitted(errors.New("deadlock found when committing")) })
		applied, err := store()
		p.OnCommit(nil)
		if !errors.Is(err, exclusive.ErrConflict) && !(name == "rowlock" && errors.Is(err, exclusive.ErrLost)) { // whose lock is gone with it
			t.Errorf("%s: %v", name, err)
		}
		if _, n := place.Stored(t, key); applied != 1 || n != 0 {
			t.Errorf("%s: apply ran %d times, %d results", name, applied, n)
		}
		if applied, err = store(); err != nil || applied != 1 {
			t.Errorf("%s: again: %d, %v", name, applied, err)
		}
		if _, n := place.Stored(t, key); n != 1 {
			t.Errorf("%s: %d results", name, n)
		}
	}
}

// With a pool of one connection every strategy works and commits: no holder
// needs a second one from the same pool.
// Elsewhere the holder's own work waited for a connection that the lock held.
func TestTrap_PoolOfOne(t *testing.T) {
	t.Parallel()
	eachStrategy(t, testPoolOfOne, testPoolOfOne)
}

func testPoolOfOne[Tx any](t *testing.T, target *matrix.Target[Tx], s strategies.Strategy[Tx]) {
	place := s.SetUp(t, target)
	x := place.New(t, target.Another(t, matrix.Options{MaxConns: 1}), exclusivetest.Config{TTL: forever, NoRenew: true, Wait: patience})
	var workers sync.WaitGroup
	for range 4 {
		key := place.MustKey(t)
		workers.Go(func() { stores(t, place, x, key, "mine") })
	}
	workers.Wait()
}
