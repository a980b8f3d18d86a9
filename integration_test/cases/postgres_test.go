package cases_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/casupdate"
	"github.com/exclusive-go/exclusive/db/mysqldb"
	"github.com/exclusive-go/exclusive/db/pgxdb"
	"github.com/exclusive-go/exclusive/db/sqldb"
	"github.com/exclusive-go/exclusive/exclusivetest"
	"github.com/exclusive-go/exclusive/fencing"
	"github.com/exclusive-go/exclusive/integration_test/cases/session"
	"github.com/exclusive-go/exclusive/integration_test/matrix"
	"github.com/exclusive-go/exclusive/integration_test/strategies"
	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/rowlock"
	"github.com/exclusive-go/exclusive/uniquetask"
)

// sqlState is the code of the server's error in err, if there is one.
func sqlState(err error) string {
	var server interface{ SQLState() string }
	if errors.As(err, &server) {
		return server.SQLState()
	}
	return ""
}

// Whoever asks for an operation while another transaction applies it gets that
// one's result, never an empty one, and does not apply it again. In the field
// INSERT … ON CONFLICT DO NOTHING RETURNING gave no row, and callers took that for
// "not found".
func TestB059_NoRowReturned(t *testing.T) {
	t.Parallel()
	matrix.Drivers(t, testNoRowReturned[pgx.Tx], testNoRowReturned[*sql.Tx], "postgres", "mysql", "mariadb")
}

func testNoRowReturned[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	ctx := t.Context()
	target.Migrate(t, "")
	callers := size(20, 8)
	many := target.Another(t, matrix.Options{MaxConns: callers + 2})
	leases := leasesOn(t, many, fencing.Config{})
	tasks := tasksOn(t, many, uniquetask.Config{})
	hasty := tasksOn(t, many, uniquetask.Config{})
	again := func(context.Context) ([]byte, error) { t.Error("it was applied again"); return nil, nil }
	op := strings.Repeat("o", exclusive.MaxKeyBytes) // nothing depends on its length
	once := func(ctx context.Context, apply func(context.Context) ([]byte, error)) (result []byte, err error) {
		err = inTx(ctx, many, func(ctx context.Context, tx Tx) error {
			result, err = leases.Once(ctx, tx, op, []byte("payload"), apply)
			return err
		})
		return result, err
	}
	var wg sync.WaitGroup
	must(t, "the first transaction", inTx(ctx, target, func(ctx context.Context, tx Tx) error {
		if _, err := leases.Once(ctx, tx, op, []byte("payload"), func(context.Context) ([]byte, error) { return []byte("r"), nil }); err != nil {
			return err
		}
		for range callers {
			wg.Go(func() {
				if result, err := once(soon(t), again); err != nil || string(result) != "r" {
					t.Errorf("a later caller got %q, %v", result, err)
				}
			})
		}
		session.AwaitWaiting(t, target.Plain, target.Dialect, callers, nil)
		return nil
	}))
	wg.Wait()

	must(t, "the first run", tasks.Do(ctx, "run-1", func(ctx context.Context, g exclusive.Grant) error {
		must(t, "result", tasks.SetResult(g, []byte("r")))
		return tasks.Commit(ctx, g, func(ctx context.Context, _ Tx) error {
			var told []<-chan struct{}
			for range 3 { // as many processes: of one, one at a time asks
				held := newHeldSignal()
				told = append(told, held.next())
				later, ctx := tasksOn(t, many, uniquetask.Config{Wait: patience, Observer: held}), soon(t)
				wg.Go(func() {
					err := later.Do(ctx, "run-1", func(context.Context, exclusive.Grant) error { t.Error("a second run"); return nil })
					var e *exclusive.Error
					if !errors.Is(err, exclusive.ErrDone) || !errors.As(err, &e) || string(e.Result) != "r" {
						t.Errorf("a later run: %v; want it done, with its result", err)
					}
				})
			}
			for _, refused := range told {
				ended(t, "a later run waits", refused)
			}
			if err := hasty.Do(ctx, "run-1", nothing); !errors.Is(err, exclusive.ErrHeld) {
				t.Errorf("a run that does not wait: %v", err)
			}
			return nil
		})
	}))
	wg.Wait()

	if target.Dialect != "postgres" {
		return
	}
	// The twin: both statements in one see the same snapshot.
	target.MustExec(t, "CREATE TABLE naive (id text PRIMARY KEY, result text)")
	first := session.Begin(t, target.Plain)
	first.Exec("INSERT INTO naive VALUES ('op', 'r')")
	rows := make(chan int, 1)
	wg.Go(func() {
		n := 0
		r, err := target.Plain.QueryContext(ctx, `WITH i AS (INSERT INTO naive VALUES ('op', 'r') ON CONFLICT DO NOTHING RETURNING result)
			SELECT result FROM i UNION ALL SELECT result FROM naive WHERE id = 'op'`)
		if err == nil {
			for r.Next() {
				n++
			}
			err = errors.Join(r.Err(), r.Close())
		}
		if err != nil {
			t.Errorf("the twin: %v", err)
		}
		rows <- n
	})
	session.AwaitWaiting(t, target.Plain, target.Dialect, 1, nil)
	first.Commit()
	if n := <-rows; n != 0 {
		t.Errorf("insert-or-select in one statement gave %d rows", n)
	}
	wg.Wait()
}

// A refusal leaves the caller's transaction usable, also that of a column which is too
// short: what was written in it can be committed. In the field a unique violation inside it aborted the transaction, and
// every later statement failed with 25P02.
func TestB061_RefusalSparesTransaction(t *testing.T) {
	t.Parallel()
	matrix.Drivers(t, testRefusalSparesTransaction[pgx.Tx], testRefusalSparesTransaction[*sql.Tx])
}

func testRefusalSparesTransaction[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	ctx := t.Context()
	target.Migrate(t, "")
	target.MustExec(t, "CREATE TABLE business (name varchar(40) PRIMARY KEY)")
	leases := leasesOn(t, target, fencing.Config{TTL: forever, NoRenew: true})
	tasks := tasksOn(t, target, uniquetask.Config{TTL: forever, NoRenew: true})
	guard, err := fencing.NewGuard(target.DB, fencing.GuardConfig{})
	must(t, "guard", err)
	jobs := jobsOn(t, target, jobConfig(), "")
	// Columns that are too short for what would be written.
	target.MustExec(t, "CREATE TABLE shorter (id varchar(20) PRIMARY KEY, state varchar(9) NOT NULL, token bigint, grant_id varchar(20), fence_token integer, fence_grant varchar(20))")
	target.MustExec(t, "INSERT INTO shorter (id, state) VALUES ('k', 'PENDING')")
	cfg := jobConfig()
	cfg.Table = "shorter"
	shorter := moreJobs(t, target, cfg)
	rows, err := fencing.NewRowGuard(target.DB, fencing.RowConfig{Table: "shorter", KeyColumns: []string{"id"}})
	must(t, "row guard", err)
	wrong := exclusive.ErrSchema
	if target.Dialect == "sqlite" { // its types have no lengths
		wrong = nil
	} else {
		wantErr(t, "claim of a row with short columns", shorter.Do(ctx, "k", nothing), wrong)
	}
	versions, err := casupdate.NewVersioned(target.DB, casupdate.VersionConfig{Table: "job", Key: casupdate.Text("id")})
	must(t, "versioned", err)
	addJob(t, target, "k")
	must(t, "transition", jobs.Transition(ctx, "k", "PENDING", "DONE"))

	former := acquire(t, leases, "k").Grant()
	target.MustExec(t, "UPDATE exclusive_lease SET expires_at = 0 WHERE lease_key = ?", []byte("k"))
	newer := acquire(t, leases, "k").Grant()
	must(t, "register", guard.Register(ctx, newer))
	must(t, "operation", inTx(ctx, target, func(ctx context.Context, tx Tx) error {
		_, err := leases.Once(ctx, tx, "op", nil, func(context.Context) ([]byte, error) { return []byte("r"), nil })
		return err
	}))
	var run exclusive.Grant
	must(t, "run", tasks.Do(ctx, "run", func(_ context.Context, g exclusive.Grant) error { run = g; return nil }))

	errApply := errors.New("apply failed")
	for name, c := range map[string]struct {
		call func(ctx context.Context, tx Tx) error
		want error
	}{
		"operation that was applied": {func(ctx context.Context, tx Tx) error {
			result, err := leases.Once(ctx, tx, "op", nil, nil2(t))
			if string(result) != "r" {
				t.Errorf("result %q", result)
			}
			return err
		}, nil},
		"operation with another payload": {func(ctx context.Context, tx Tx) error {
			_, err := leases.Once(ctx, tx, "op", []byte("other"), nil2(t))
			return err
		}, exclusive.ErrMismatch},
		"operation that fails": {func(ctx context.Context, tx Tx) error {
			_, err := leases.Once(ctx, tx, "failing", nil, func(ctx context.Context) ([]byte, error) {
				return nil, errors.Join(target.Exec(ctx, tx, "INSERT INTO business VALUES ('of the failed operation')"), errApply)
			})
			return err
		}, errApply},
		"operation with a failing statement": {func(ctx context.Context, tx Tx) error {
			_, err := leases.Once(ctx, tx, "duplicate", nil, func(ctx context.Context) ([]byte, error) {
				return nil, target.Exec(ctx, tx, target.Bind("INSERT INTO job (id, state) VALUES (?, '')"), "k")
			})
			if err == nil {
				t.Error("a duplicate key is no error")
			}
			return errors.Join(errApply, err)
		}, errApply},
		"check of a former holder": {func(ctx context.Context, tx Tx) error { return leases.Check(ctx, tx, former) }, exclusive.ErrFenced},
		"mark of a former holder":  {func(ctx context.Context, tx Tx) error { return guard.Check(ctx, tx, former) }, exclusive.ErrFenced},
		"check of a finished run":  {func(ctx context.Context, tx Tx) error { return tasks.Check(ctx, tx, run) }, exclusive.ErrLost},
		"transition that is done":  {func(ctx context.Context, tx Tx) error { return jobs.TransitionTx(ctx, tx, "k", "PENDING", "DONE") }, exclusive.ErrDone},
		"transition of no row":     {func(ctx context.Context, tx Tx) error { return jobs.TransitionTx(ctx, tx, "-", "PENDING", "DONE") }, exclusive.ErrNoRow},
		"update of another version": {func(ctx context.Context, tx Tx) error {
			return second(versions.UpdateTx(ctx, tx, "k", 7, casupdate.Set{"state": ""}))
		}, exclusive.ErrConflict},
		"grant without a token": {func(ctx context.Context, tx Tx) error {
			return guard.Check(ctx, tx, exclusive.Grant{Key: "k", ID: "id"})
		}, exclusive.ErrInvalid},
		"operation without a name":   {func(ctx context.Context, tx Tx) error { return second(leases.Once(ctx, tx, "", nil, nil2(t))) }, exclusive.ErrInvalid},
		"undeclared transition":      {func(ctx context.Context, tx Tx) error { return jobs.TransitionTx(ctx, tx, "k", "DONE", "x") }, exclusive.ErrInvalid},
		"check of the actual holder": {func(ctx context.Context, tx Tx) error { return leases.Check(ctx, tx, newer) }, nil},
		"transition in short columns": {func(ctx context.Context, tx Tx) error {
			return shorter.TransitionTx(ctx, tx, "k", "PENDING", "DONE")
		}, wrong},
		"mark in short columns": {func(ctx context.Context, tx Tx) error { return rows.Check(ctx, tx, newer, "k") }, wrong},
	} {
		err := inTx(ctx, target, func(ctx context.Context, tx Tx) error {
			if err := target.Exec(ctx, tx, target.Bind("INSERT INTO business VALUES (?)"), name); err != nil {
				return err
			}
			switch err := c.call(ctx, tx); {
			case c.want == nil:
				must(t, name, err)
			default:
				wantErr(t, name, err, c.want)
			}
			// It still takes statements.
			return target.Exec(ctx, tx, target.Bind("UPDATE business SET name = ? WHERE name = ?"), "kept: "+name, name)
		})
		must(t, name+", and COMMIT", err)
		if target.Int(t, "SELECT COUNT(*) FROM business WHERE name = ?", "kept: "+name) != 1 {
			t.Errorf("%s: the business row is not there", name)
		}
	}
	if target.Int(t, "SELECT COUNT(*) FROM business WHERE name = 'of the failed operation'") != 0 {
		t.Error("a failed operation has left what it wrote")
	}
	if target.Dialect != "postgres" {
		return
	}
	// The twin.
	err = inTx(ctx, target, func(ctx context.Context, tx Tx) error {
		if err := target.Exec(ctx, tx, "INSERT INTO job (id, state) VALUES ('k', '')"); sqlState(err) != "23505" {
			t.Errorf("a duplicate: %v", err)
		}
		return target.Exec(ctx, tx, "SELECT 1")
	})
	if sqlState(err) != "25P02" {
		t.Errorf("after a unique violation: %v", err)
	}
}

// nil2 must not be applied.
func nil2(t *testing.T) func(context.Context) ([]byte, error) {
	return func(context.Context) ([]byte, error) { t.Error("it was applied"); return nil, nil }
}

func second[T any](_ T, err error) error { return err }

// At every default isolation contended claims, renewals and finishes are granted or
// refused, and a conflict in the caller's own transaction is ErrConflict with the
// server's code. In the field 40001 came out of lock operations as an unknown error.
func TestB062_SerializationFailures(t *testing.T) {
	t.Parallel()
	matrix.Drivers(t, strategies.EachAlone(testSerializationFailures[pgx.Tx]), strategies.EachAlone(testSerializationFailures[*sql.Tx]), "postgres", "mysql", "mariadb")
}

func testSerializationFailures[Tx any](t *testing.T, target *matrix.Target[Tx], s strategies.Strategy[Tx]) {
	place := s.SetUp(t, target)
	for _, level := range []string{"repeatable read", "serializable"} {
		t.Run(strings.ReplaceAll(level, " ", "_"), func(t *testing.T) {
			strict := target.Isolated(t, level)
			testContended(t, target, strict, target.Isolated(t, level), place, s)
			err := testOwnConflict(t, target, strict, place, s)
			if _, ok := leaseEnds[s.Name]; ok {
				testRenewedInConflict(t, target, strict, place, s, err)
			}
		})
	}
}

func testContended[Tx any](t *testing.T, target, strict, another *matrix.Target[Tx], place *strategies.Place[Tx], s strategies.Strategy[Tx]) {
	const workers = 8
	x, other := place.New(t, strict, exclusivetest.Config{}), place.New(t, another, exclusivetest.Config{})
	allowed := func(err error, more ...error) bool {
		for _, kind := range append(more, exclusive.ErrHeld, exclusive.ErrDone) {
			if errors.Is(err, kind) {
				return true
			}
		}
		return err == nil
	}
	for range size(50, 2) { // keys, with four operations of each worker
		plain, committed := place.MustKey(t), place.MustKey(t)
		var ran, wrote atomic.Int64
		run := func(context.Context, exclusive.Grant) error { ran.Add(1); return nil }
		commit := func(x exclusive.Transactional[Tx]) error {
			return x.Do(t.Context(), committed, func(ctx context.Context, g exclusive.Grant) error {
				err := x.Commit(ctx, g, func(ctx context.Context, tx Tx) error { return place.Write(ctx, tx, committed, "written") })
				if err == nil {
					wrote.Add(1)
				}
				return err
			})
		}
		var wg sync.WaitGroup
		for i := range workers {
			x := x
			if i%2 == 1 {
				x = other
			}
			wg.Go(func() {
				for range 2 {
					if err := x.Do(t.Context(), plain, run); !allowed(err) {
						t.Errorf("do: %v", err)
					}
					// What apply did may conflict with others.
					if err := commit(x); !allowed(err, exclusive.ErrConflict) {
						t.Errorf("do with commit: %v", err)
					} else if errors.Is(err, exclusive.ErrConflict) && serverCode(err) == "" {
						t.Errorf("the server's code cannot be reached in %v", err)
					}
				}
			})
		}
		wg.Wait()
		// Whoever was in conflict calls again.
		for err := commit(x); err != nil && !errors.Is(err, exclusive.ErrDone); err = commit(x) {
			wantErr(t, "do with commit, alone", err, exclusive.ErrConflict)
		}
		_, stored := place.Stored(t, committed)
		if stored != wrote.Load() || stored == 0 {
			t.Errorf("%d effects are stored of %d commits", stored, wrote.Load())
		}
		if s.Promises.OncePerKey && (ran.Load() != 1 || stored != 1) || ran.Load() == 0 {
			t.Errorf("%d runs, %d effects", ran.Load(), stored)
		}
	}
}

// proves is the row that proves a grant of a strategy in the caller's transaction.
var proves = map[string]struct{ table, key, set string }{
	"casupdate":                 {"job", "id", "holder"},
	"casupdate_leased":          {"job", "id", "holder"},
	"uniquetask":                {"exclusive_task", "run", "holder"},
	"fencing":                   {"exclusive_lease", "lease_key", "holder"},
	"fencing_guarded_here":      {"exclusive_mark", "mark_key", "token"},
	"fencing_guarded_elsewhere": {"exclusive_mark", "mark_key", "token"},
	"redisbackend_guarded":      {"exclusive_mark", "mark_key", "token"},
}

// testOwnConflict brings a conflict about in transactions of the caller's, and returns
// it as the driver tells it.
func testOwnConflict[Tx any](t *testing.T, target, strict *matrix.Target[Tx], place *strategies.Place[Tx], s strategies.Strategy[Tx]) (conflict error) {
	ctx := t.Context()
	want := map[string]string{"postgres": "40001", "mysql": "1213", "mariadb": "1213"}[target.Dialect]
	is := func(what string, err error) {
		t.Helper()
		wantErr(t, what, err, exclusive.ErrConflict)
		not(t, what, err, exclusive.ErrLost, exclusive.ErrFenced, exclusive.ErrUnavailable)
		if code := serverCode(err); code != want {
			t.Errorf("%s: the server's code is %q in %v; want %s", what, code, err, want)
		}
	}
	x := place.New(t, strict, exclusivetest.Config{TTL: forever, NoRenew: true})
	key, mine := place.MustKey(t), place.MustKey(t)
	arg := func(table string) any {
		if strings.HasPrefix(table, "exclusive_") {
			return []byte(key)
		}
		return key
	}
	// inConflict has do need a row that another session has changed since this
	// transaction began, or has locked and waits for this one.
	inConflict := func(ctx context.Context, tx Tx, table, column, set string, do func() error) (err error) {
		if target.Dialect == "postgres" {
			if _, err := place.Read(ctx, tx, key); err != nil { // the snapshot
				return err
			}
			target.MustExec(t, "UPDATE "+table+" SET "+set+" = "+set+" WHERE "+column+" = ?", arg(table))
			return do()
		}
		other := session.Begin(t, target.Plain)
		other.Exec("UPDATE heavy SET n = n + 1") // the server gives up the lighter one
		other.Int("SELECT COUNT(*) FROM (SELECT "+set+" FROM "+table+" WHERE "+column+" = ? FOR UPDATE) l", arg(table))
		if err := place.Write(ctx, tx, mine, "lost"); err != nil {
			return err
		}
		waits := make(chan struct{})
		go func() {
			defer close(waits)
			other.Try("SELECT n FROM result WHERE name = ? FOR UPDATE", mine)
		}()
		session.AwaitWaiting(t, target.Plain, target.Dialect, 1, nil)
		err = do()
		<-waits
		other.Rollback()
		return err
	}
	if target.Dialect != "postgres" {
		target.MustExec(t, "CREATE TABLE IF NOT EXISTS heavy (n int)")
		target.MustExec(t, "INSERT INTO heavy VALUES (1)"+strings.Repeat(", (1)", 200))
	}

	applied := 0
	err := x.Do(ctx, key, func(ctx context.Context, g exclusive.Grant) error {
		if row, ok := proves[s.Name]; ok { // rowlock checks no transaction but its own
			is("check", inTx(ctx, strict, func(ctx context.Context, tx Tx) error {
				return inConflict(ctx, tx, row.table, row.key, row.set, func() error { return x.Check(ctx, tx, g) })
			}))
		}
		err := x.Commit(ctx, g, func(ctx context.Context, tx Tx) error {
			applied++
			return inConflict(ctx, tx, "result", "name", "n", func() error {
				conflict = place.Write(ctx, tx, key, "written")
				return conflict
			})
		})
		if s.Name == "rowlock" && target.Dialect == "postgres" {
			must(t, "commit", err) // it reads the world from after its lock
			return nil
		}
		is("commit", err)
		return err
	})
	if s.Name == "rowlock" && target.Dialect == "postgres" {
		must(t, "do", err)
		return nil
	}
	is("do", err)
	if _, n := place.Stored(t, key); n != 0 || applied != 1 {
		t.Errorf("%d effects, applied %d times", n, applied)
	}
	if body, _ := place.Stored(t, mine); body != "" {
		t.Errorf("%q is stored of a transaction in conflict", body)
	}
	return conflict
}

// leaseEnds is when the lease of a key ends, of strategies whose leases are on this
// server and are renewed.
var leaseEnds = map[string]string{
	"casupdate_leased":     "SELECT expires_at FROM job WHERE id = ?",
	"uniquetask":           "SELECT free_at FROM exclusive_task WHERE run = ?",
	"fencing":              "SELECT expires_at FROM exclusive_lease WHERE lease_key = ?",
	"fencing_guarded_here": "SELECT expires_at FROM exclusive_lease WHERE lease_key = ?",
}

// testRenewedInConflict has the renewal of a lease meet conflict, while others want its
// key.
func testRenewedInConflict[Tx any](t *testing.T, target, strict *matrix.Target[Tx], place *strategies.Place[Tx], s strategies.Strategy[Tx], conflict error) {
	server := &refuser[Tx]{DB: strict.DB, err: conflict}
	node := *strict
	node.DB = server
	x := place.New(t, &node, exclusivetest.Config{TTL: 3 * time.Second})
	other := place.New(t, strict, exclusivetest.Config{})
	key := place.MustKey(t)
	ends := func() int64 {
		var arg any = []byte(key)
		if s.Table == "casupdate" {
			arg = key
		}
		return target.Int(t, leaseEnds[s.Name], arg)
	}
	over := make(chan struct{})
	var others sync.WaitGroup
	must(t, "do", x.Do(t.Context(), key, func(ctx context.Context, _ exclusive.Grant) error {
		for range 3 {
			others.Go(func() {
				for {
					select {
					case <-over:
						return
					default:
					}
					if err := other.Do(t.Context(), key, nothing); !errors.Is(err, exclusive.ErrHeld) {
						t.Errorf("another worker: %v", err)
						return
					}
				}
			})
		}
		defer others.Wait()
		defer close(over)
		before := ends()
		server.statements.Store(2)
		await(t, "a renewal after conflicts", func() bool { return server.statements.Load() <= 0 && ends() > before })
		return context.Cause(ctx)
	}))

	if l, ok := any(x).(exclusive.Leaser); ok {
		lease := acquire(t, l, place.MustKey(t))
		server.statements.Store(2)
		must(t, "renew in conflict", lease.Renew(t.Context()))
		if server.statements.Swap(0) > 0 {
			t.Error("renew has met no conflict")
		}
		server.statements.Store(2)
		must(t, "release in conflict", lease.Release(t.Context()))
	}
}

// A lock that the server has ended for idling is lost: Do says so, and nothing that
// was written under it stays. In the field the work went on without its lock, and a
// second worker began.
func TestB064_IdleInTransaction(t *testing.T) {
	t.Parallel()
	matrix.Drivers(t, testIdleInTransaction[pgx.Tx], testIdleInTransaction[*sql.Tx], "postgres")
}

func testIdleInTransaction[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	target.Migrate(t, "rowlock")
	target.MustExec(t, "CREATE TABLE effect (name text)")
	idle := target.Another(t, matrix.Options{Params: map[string]string{"idle_in_transaction_session_timeout": "300"}})
	other := locksOn(t, target, rowlock.Config{Wait: patience})
	write := func(name string) func(context.Context, Tx) error {
		return func(ctx context.Context, tx Tx) error {
			return idle.Exec(ctx, tx, "INSERT INTO effect VALUES ($1)", name)
		}
	}
	for name, cfg := range map[string]rowlock.Config{"no_probe": {NoProbe: true}, "rare_probe": {Probe: time.Hour}} {
		t.Run(name, func(t *testing.T) {
			x := locksOn(t, idle, cfg)
			err := x.Do(t.Context(), name, func(ctx context.Context, g exclusive.Grant) error {
				// Work elsewhere, until another has the lock.
				must(t, "another worker", other.Do(t.Context(), name, nothing))
				err := x.Commit(ctx, g, write(name))
				wantErr(t, "commit", err, exclusive.ErrLost)
				// The reason is the last thing that the server says on the
				// connection; lib/pq does not read it.
				if state := sqlState(err); state != "25P03" && target.Name != "lib_pq" {
					t.Errorf("the server's reason cannot be reached: %q in %v", state, err)
				}
				return nil
			})
			wantErr(t, "do", err, exclusive.ErrLost)
			err = x.Do(t.Context(), name+"/without commit", func(context.Context, exclusive.Grant) error {
				must(t, "another worker", other.Do(t.Context(), name+"/without commit", nothing))
				return nil
			})
			wantErr(t, "do without commit", err, exclusive.ErrLost)
		})
	}
	t.Run("probe", func(t *testing.T) {
		slower := target.Another(t, matrix.Options{Params: map[string]string{"idle_in_transaction_session_timeout": "2000"}})
		x := locksOn(t, slower, rowlock.Config{Probe: 50 * time.Millisecond})
		hasty := locksOn(t, target, rowlock.Config{})
		must(t, "do", x.Do(t.Context(), "probed", func(ctx context.Context, g exclusive.Grant) error {
			for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
				wantErr(t, "another worker", hasty.Do(t.Context(), "probed", nothing), exclusive.ErrHeld)
			}
			return x.Commit(ctx, g, write("probed"))
		}))
	})
	t.Run("probe_tells", func(t *testing.T) {
		x := locksOn(t, target, rowlock.Config{Probe: 20 * time.Millisecond})
		err := x.Do(t.Context(), "killed", func(ctx context.Context, _ exclusive.Grant) error {
			must(t, "kill", session.Kill(t.Context(), target.Plain, "postgres"))
			ended(t, "work's context to end", ctx.Done())
			return nil
		})
		wantErr(t, "do", err, exclusive.ErrLost)
	})
	if n := target.Int(t, "SELECT COUNT(*) FROM effect WHERE name <> 'probed'"); n != 0 {
		t.Errorf("%d effects of lost locks are stored", n)
	}
	if n := target.Int(t, "SELECT COUNT(*) FROM effect"); n != 1 {
		t.Errorf("%d effects are stored; want the one of the lock that was kept", n)
	}
}

// Each time-out is told as what it is (held, too slow, the caller's own), never as a
// loss, and leaves every connection usable. In the field three of them looked alike,
// and the next user of the connection got 25P02.
func TestB065_ThreeTimeouts(t *testing.T) {
	t.Parallel()
	matrix.Drivers(t, testThreeTimeouts[pgx.Tx], testThreeTimeouts[*sql.Tx], "postgres")
}

func testThreeTimeouts[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	target.Migrate(t, "")
	// A session has the rows of all strategies.
	for _, insert := range []string{
		"INSERT INTO exclusive_lock VALUES ('k')",
		"INSERT INTO exclusive_mark VALUES ('k', 1, 'one', 0)",
	} {
		target.MustExec(t, insert)
	}
	holder := session.Begin(t, target.Plain)
	holder.Exec("SELECT 1 FROM exclusive_lock, exclusive_mark FOR UPDATE")
	for _, c := range []struct {
		name, param, value string
		wait               time.Duration
		deadline           bool
		lock, mark         error
		code, says         string // of the server, and in the message
	}{
		{name: "no_wait", lock: exclusive.ErrHeld, code: "55P03"},
		{name: "wait", wait: 200 * time.Millisecond, lock: exclusive.ErrHeld, code: "55P03"},
		{name: "lock_timeout", param: "lock_timeout", value: "200", wait: 500 * time.Millisecond, lock: exclusive.ErrHeld, mark: exclusive.ErrConflict, code: "55P03"},
		// It governs the statements that need not wait as well.
		{name: "statement_timeout", param: "statement_timeout", value: "2000", wait: patience, lock: exclusive.ErrUnavailable, mark: exclusive.ErrUnavailable, code: "57014", says: "statement time-out"},
		{name: "context", wait: patience, deadline: true, lock: context.DeadlineExceeded, mark: context.DeadlineExceeded},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := matrix.Options{MaxConns: 2}
			if c.param != "" {
				o.Params = map[string]string{c.param: c.value}
			}
			there := target.Another(t, o)
			guard, err := fencing.NewGuard(there.DB, fencing.GuardConfig{})
			must(t, "guard", err)
			x := locksOn(t, there, rowlock.Config{Wait: c.wait})
			must(t, "warm up", locksOn(t, there, rowlock.Config{Wait: patience}).Do(t.Context(), "free "+c.name, nothing))
			check := func(what string, want error, op func(ctx context.Context) error) {
				t.Helper()
				ctx := soon(t)
				if c.deadline {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, 5*time.Second)
					defer cancel()
				}
				answer := make(chan error, 1)
				go func() { answer <- op(ctx) }()
				if c.deadline {
					// It ends the wait for the row, not a statement before.
					session.AwaitWaiting(t, target.Plain, "postgres", 1, nil)
				}
				err := <-answer
				wantErr(t, what, err, want)
				not(t, what, err, exclusive.ErrLost, exclusive.ErrFenced)
				if got := sqlState(err); c.code != "" && got != c.code || !strings.Contains(err.Error(), c.says) {
					t.Errorf("%s: the server's code is %q, and the message %v; want %s, %q", what, got, err, c.code, c.says)
				}
			}
			check("lock", c.lock, func(ctx context.Context) error {
				return x.Do(ctx, "k", func(context.Context, exclusive.Grant) error { t.Error("work ran"); return nil })
			})
			if c.mark != nil {
				check("mark", c.mark, func(ctx context.Context) error {
					return inTx(ctx, there, func(ctx context.Context, tx Tx) error {
						return guard.Check(ctx, tx, exclusive.Grant{Key: "k", Token: 2, ID: "two"})
					})
				})
			}
			for range 20 {
				must(t, "a plain query afterwards", there.DB.Query(t.Context(), "SELECT 1", nil, func(db.Scan) error { return nil }))
			}
			await(t, "connections to be free", func() bool { return there.InUse() == 0 })
		})
	}
	holder.Rollback()
	if n := target.Int(t, "SELECT token FROM exclusive_mark WHERE mark_key = 'k'"); n != 1 {
		t.Errorf("the mark is at %d; all were refused", n)
	}
}

// A lock is held for as long as it is wanted, however often the pool renews its
// connections, and afterwards nothing stays open on any of them. In the field locks
// went with the hourly recycling of a pool, or stayed on a connection that "Close"
// had only given back.
func TestB067_PoolRecycles(t *testing.T) {
	t.Parallel()
	matrix.Drivers(t, func(t *testing.T, target *matrix.Target[pgx.Tx]) {
		config, err := pgxpool.ParseConfig(target.Address().DSN)
		must(t, "parse", err)
		config.MaxConnLifetime, config.MaxConnIdleTime, config.HealthCheckPeriod = 100*time.Millisecond, 50*time.Millisecond, 20*time.Millisecond
		pool, err := pgxpool.NewWithConfig(t.Context(), config)
		must(t, "open", err)
		t.Cleanup(pool.Close)
		recycling := *target
		recycling.DB = pgxdb.New(pool)
		testPoolRecycles(t, target, &recycling)
	}, func(t *testing.T, target *matrix.Target[*sql.Tx]) {
		driver := map[string]string{"pgx_stdlib": "pgx", "lib_pq": "postgres", "mysql": "mysql", "mariadb": "mysql"}[target.Name]
		pool, err := sql.Open(driver, target.Address().DSN)
		opened(t, pool, err)
		pool.SetConnMaxLifetime(100 * time.Millisecond)
		pool.SetConnMaxIdleTime(50 * time.Millisecond)
		recycling := *target
		if target.Dialect == "postgres" {
			recycling.DB = sqldb.NewPostgres(pool)
		} else {
			recycling.DB = mysqldb.New(pool)
		}
		testPoolRecycles(t, target, &recycling)
	}, "postgres", "mysql", "mariadb")
}

func testPoolRecycles[Tx any](t *testing.T, target, recycling *matrix.Target[Tx]) {
	target.Migrate(t, "")
	const hold = time.Second // ten lifetimes of a connection
	others := func(x exclusive.Exclusive, renew func() error) {
		t.Helper()
		for end := time.Now().Add(hold); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			if err := x.Do(t.Context(), "k", nothing); !errors.Is(err, exclusive.ErrHeld) {
				t.Errorf("another worker: %v", err)
			}
			must(t, "renew", renew())
		}
	}
	locks, otherLocks := locksOn(t, recycling, rowlock.Config{Probe: 50 * time.Millisecond}), locksOn(t, target, rowlock.Config{})
	must(t, "rowlock", locks.Do(t.Context(), "k", func(ctx context.Context, _ exclusive.Grant) error {
		others(otherLocks, func() error { return context.Cause(ctx) })
		return nil
	}))
	must(t, "rowlock, free at once", otherLocks.Do(t.Context(), "k", nothing))

	leases, otherLeases := leasesOn(t, recycling, fencing.Config{TTL: forever}), leasesOn(t, target, fencing.Config{})
	lease := acquire(t, leases, "k")
	others(otherLeases, func() error { return lease.Renew(t.Context()) })
	must(t, "release", lease.Release(t.Context()))
	must(t, "fencing, free at once", otherLeases.Do(t.Context(), "k", nothing))
	// Whatever is left open would have a lock or a snapshot: a change of the table
	// would wait for it.
	await(t, "no open transactions", func() bool { return session.Open(t, target.Plain, target.Dialect) == 0 })
}

// An apply that overlooks the failure of a statement cannot make Commit succeed with
// nothing stored. The cause is that of B061: PostgreSQL answers COMMIT in an aborted
// transaction with ROLLBACK, which is no error.
func TestPostgresOwn_CommitOfAnAbortedTransaction(t *testing.T) {
	t.Parallel()
	matrix.Drivers(t, strategies.Each(testAbortedTransaction[pgx.Tx]), strategies.Each(testAbortedTransaction[*sql.Tx]), "postgres")
}

func testAbortedTransaction[Tx any](t *testing.T, target *matrix.Target[Tx], s strategies.Strategy[Tx]) {
	place := s.SetUp(t, target)
	x := place.New(t, target, exclusivetest.Config{})
	key := place.MustKey(t)
	err := x.Do(t.Context(), key, func(ctx context.Context, g exclusive.Grant) error {
		err := x.Commit(ctx, g, func(ctx context.Context, tx Tx) error {
			if err := place.Write(ctx, tx, key, "lost"); err != nil {
				return err
			}
			if err := target.Exec(ctx, tx, "SELECT 1/0"); err == nil {
				t.Error("a division by zero is no error")
			}
			return nil // overlooked
		})
		if err == nil {
			t.Error("commit says that it is stored")
		}
		return err
	})
	if err == nil {
		t.Error("do says that it is done")
	}
	not(t, "do", err, exclusive.ErrFinished, exclusive.ErrDone)
	if _, n := place.Stored(t, key); n != 0 {
		t.Errorf("%d effects are stored", n)
	}
	must(t, "again", x.Do(t.Context(), key, func(ctx context.Context, g exclusive.Grant) error {
		return x.Commit(ctx, g, func(ctx context.Context, tx Tx) error { return place.Write(ctx, tx, key, "kept") })
	}))
	if body, n := place.Stored(t, key); body != "kept" || n != 1 {
		t.Errorf("%q is stored, %d effects", body, n)
	}
}

// A session that may only read is unavailable for claims, on every strategy, and
// work does not run. The cause is that of B062: a default of the
// database or the role that changes what a statement does.
func TestPostgresOwn_ReadOnlyByDefault(t *testing.T) {
	t.Parallel()
	matrix.Drivers(t, strategies.Each(testReadOnlyByDefault[pgx.Tx]), strategies.Each(testReadOnlyByDefault[*sql.Tx]), "postgres")
}

func testReadOnlyByDefault[Tx any](t *testing.T, target *matrix.Target[Tx], s strategies.Strategy[Tx]) {
	place := s.SetUp(t, target)
	readOnly := target.Another(t, matrix.Options{Params: map[string]string{"default_transaction_read_only": "on"}})
	x, writer := place.New(t, readOnly, exclusivetest.Config{}), place.New(t, target, exclusivetest.Config{})
	key := place.MustKey(t)
	ran := func(context.Context, exclusive.Grant) error { t.Error("work ran"); return nil }
	refused := func(what string) {
		err := x.Do(t.Context(), key, ran)
		// With its leases on another server the guard is what cannot write.
		wantErr(t, what, err, exclusive.ErrUnavailable)
		not(t, what, err, exclusive.ErrHeld, exclusive.ErrDone)
	}
	refused("a free key")
	must(t, "a holder", writer.Do(t.Context(), key, func(context.Context, exclusive.Grant) error {
		switch {
		case s.Name == "rowlock", strings.HasSuffix(s.Name, "elsewhere"), strings.HasPrefix(s.Name, "redis"):
			// It may see that the key is held indeed: the row is locked, or
			// the lease is on another server.
		default:
			refused("a key that is held")
		}
		return nil
	}))
}

// A wait that ends in the moment in which the key becomes free leaves nothing taken,
// whichever of the two came first.
func TestTrap_GrantedAtTheTimeout(t *testing.T) {
	t.Parallel()
	matrix.Shared(t, strategies.Each(testGrantedAtTheTimeout[pgx.Tx]), strategies.Each(testGrantedAtTheTimeout[*sql.Tx]))
}

func testGrantedAtTheTimeout[Tx any](t *testing.T, target *matrix.Target[Tx], s strategies.Strategy[Tx]) {
	const wait = 30 * time.Millisecond
	place := s.SetUp(t, target)
	holder := place.New(t, target, exclusivetest.Config{})
	// What it takes and does not want is given back, and does not run out.
	waiter := place.New(t, target.Another(t, matrix.Options{}), exclusivetest.Config{Wait: wait, TTL: forever})
	patient := place.New(t, target, exclusivetest.Config{Wait: patience})
	for i := range 8 {
		key := place.MustKey(t)
		waited := make(chan error, 1)
		var ran atomic.Bool
		err := holder.Do(t.Context(), key, func(context.Context, exclusive.Grant) error {
			go func() {
				waited <- waiter.Do(t.Context(), key, func(context.Context, exclusive.Grant) error { ran.Store(true); return nil })
			}()
			time.Sleep(wait + time.Duration(i-4)*3*time.Millisecond) // around the end of the wait
			return nil
		})
		must(t, "the holder", err)
		err = <-waited
		switch {
		case err == nil && ran.Load():
		case (errors.Is(err, exclusive.ErrHeld) || errors.Is(err, exclusive.ErrDone)) && !ran.Load():
		default:
			t.Errorf("the waiter: %v, ran %v", err, ran.Load())
		}
		if place.Reopen != nil {
			must(t, "reopen", place.Reopen(t.Context(), key))
		}
		must(t, "free afterwards", patient.Do(t.Context(), key, nothing))
	}
}

// Whoever waits holds no connection and no snapshot: a pool of one goes on serving
// others. (On PostgreSQL rowlock waits in the server, with one connection for each
// key, as documented.)
func TestTrap_WaitersHoldNoConnection(t *testing.T) {
	t.Parallel()
	matrix.Drivers(t, strategies.EachAlone(testWaitersHoldNoConnection[pgx.Tx]), strategies.EachAlone(testWaitersHoldNoConnection[*sql.Tx]), "postgres", "mysql", "mariadb")
}

func testWaitersHoldNoConnection[Tx any](t *testing.T, target *matrix.Target[Tx], s strategies.Strategy[Tx]) {
	if s.Name == "rowlock" && target.Dialect == "postgres" {
		return
	}
	place := s.SetUp(t, target)
	holder := place.New(t, target, exclusivetest.Config{})
	one := target.Another(t, matrix.Options{MaxConns: 1})
	waiters := place.New(t, one, exclusivetest.Config{Wait: patience, NoRenew: true})
	key := place.MustKey(t)
	var wg sync.WaitGroup
	must(t, "the holder", holder.Do(t.Context(), key, func(context.Context, exclusive.Grant) error {
		for range 5 {
			wg.Go(func() {
				if err := waiters.Do(t.Context(), key, nothing); err != nil && !errors.Is(err, exclusive.ErrDone) {
					t.Errorf("a waiter: %v", err)
				}
			})
		}
		others := 0
		for end := time.Now().Add(300 * time.Millisecond); time.Now().Before(end) || others == 0; {
			must(t, "another user of the pool", one.DB.Query(soon(t), "SELECT 1", nil, func(db.Scan) error { return nil }))
			others++
		}
		await(t, "a moment without any open transaction", func() bool {
			open := session.Open(t, target.Plain, target.Dialect)
			return open == 0 || s.Name == "rowlock" && open == 1 // the holder's own
		})
		return nil
	}))
	wg.Wait()
}
