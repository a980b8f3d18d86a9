package cases_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/casupdate"
	"github.com/exclusive-go/exclusive/exclusivetest"
	"github.com/exclusive-go/exclusive/fencing"
	"github.com/exclusive-go/exclusive/integration_test/cases/dsn"
	"github.com/exclusive-go/exclusive/integration_test/cases/session"
	"github.com/exclusive-go/exclusive/integration_test/matrix"
	"github.com/exclusive-go/exclusive/integration_test/servers"
	"github.com/exclusive-go/exclusive/integration_test/strategies"
	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/migrations"
	"github.com/exclusive-go/exclusive/redisbackend"
	"github.com/exclusive-go/exclusive/rowlock"
	"github.com/exclusive-go/exclusive/uniquetask"
)

func leasesOn[Tx any](t testing.TB, target *matrix.Target[Tx], cfg fencing.Config) *fencing.Leases[Tx] {
	t.Helper()
	x, err := fencing.New(target.DB, cfg)
	return opened(t, x, err)
}

func tasksOn[Tx any](t testing.TB, target *matrix.Target[Tx], cfg uniquetask.Config) *uniquetask.Tasks[Tx] {
	t.Helper()
	if cfg.Task == "" {
		cfg.Task = "task"
	}
	x, err := uniquetask.New(target.DB, cfg)
	return opened(t, x, err)
}

func locksOn[Tx any](t testing.TB, target *matrix.Target[Tx], cfg rowlock.Config) *rowlock.Locks[Tx] {
	t.Helper()
	x, err := rowlock.New(target.DB, cfg)
	must(t, "new locks", err)
	return x
}

// jobConfig is that of a table "job", with all columns that prove a claim.
func jobConfig() casupdate.Config {
	return casupdate.Config{
		Table: "job", From: "PENDING", Claimed: "PROCESSING", Done: "DONE", TokenColumn: "token", GrantColumn: "grant_id",
		Transitions: []casupdate.Transition{{From: "PENDING", To: "PENDING"}, {From: "PENDING", To: "DONE"}, {From: "DONE", To: "PENDING"}},
	}
}

// jobsOn makes the application's table, without rows, and what claims them.
func jobsOn[Tx any](t testing.TB, target *matrix.Target[Tx], cfg casupdate.Config, tail string) *casupdate.Table[Tx] {
	t.Helper()
	target.MustExec(t, `CREATE TABLE job (id varchar(200) PRIMARY KEY, state varchar(20) NOT NULL, token bigint,
		grant_id varchar(64), expires_at bigint, version bigint NOT NULL DEFAULT 0)`+tail)
	return moreJobs(t, target, cfg)
}

func moreJobs[Tx any](t testing.TB, target *matrix.Target[Tx], cfg casupdate.Config) *casupdate.Table[Tx] {
	t.Helper()
	x, err := casupdate.New(target.DB, cfg)
	return opened(t, x, err)
}

func addJob[Tx any](t testing.TB, target *matrix.Target[Tx], id string) {
	t.Helper()
	target.MustExec(t, "INSERT INTO job (id, state) VALUES (?, 'PENDING')", id)
}

// onMySQL runs a test on MySQL and MariaDB.
func onMySQL(t *testing.T, test func(t *testing.T, target *matrix.Target[*sql.Tx])) {
	t.Helper()
	t.Parallel()
	matrix.Drivers(t, nil, test, "mysql", "mariadb")
}

// The same answers come out whether the DSN makes the server count changed rows
// or matched ones (clientFoundRows). In the field "0 rows" was read as "lost",
// and "1 row" as "won", in the mode that means something else.
func TestB044_AffectedRows(t *testing.T) {
	onMySQL(t, func(t *testing.T, target *matrix.Target[*sql.Tx]) {
		target.Migrate(t, "")
		jobsOn(t, target, jobConfig(), "")
		target.MustExec(t, "CREATE TABLE result (name varchar(20) PRIMARY KEY, body varchar(200) NOT NULL, fence_token bigint, fence_grant varchar(64))")
		for _, found := range []string{"false", "true"} {
			t.Run("clientFoundRows_"+found, func(t *testing.T) {
				testAffectedRows(t, target.Another(t, matrix.Options{Params: map[string]string{"clientFoundRows": found}}), found)
			})
		}
	})
}

func testAffectedRows(t *testing.T, target *matrix.Target[*sql.Tx], key string) {
	ctx := t.Context()
	x := leasesOn(t, target, fencing.Config{NoRenew: true, TTL: forever})
	lease := acquire(t, x, key)
	for range 20 { // some within one tick of the clock
		must(t, "renew", lease.Renew(ctx))
	}
	g := lease.Grant()
	guard, err := fencing.NewGuard(target.DB, fencing.GuardConfig{})
	must(t, "guard", err)
	rows, err := fencing.NewRowGuard(target.DB, fencing.RowConfig{Table: "result", KeyColumns: []string{"name"}})
	must(t, "row guard", err)
	target.MustExec(t, "INSERT INTO result (name, body) VALUES (?, 'same')", key)
	for i := range 2 {
		must(t, "register", guard.Register(ctx, g))
		must(t, "advance", x.Advance(ctx, "advanced", 100))
		must(t, "checks", inTx(ctx, target, func(ctx context.Context, tx *sql.Tx) error {
			result, err := x.Once(ctx, tx, "op "+key, nil, func(context.Context) ([]byte, error) { return fmt.Append(nil, "first"), nil })
			if string(result) != "first" {
				t.Errorf("once, call %d: %q", i, result)
			}
			return errors.Join(err, x.Check(ctx, tx, g), guard.Check(ctx, tx, g), guard.Check(ctx, tx, g), rows.Check(ctx, tx, g, key), rows.Check(ctx, tx, g, key))
		}))
	}
	target.MustExec(t, "UPDATE exclusive_lease SET expires_at = 0 WHERE lease_key = ?", []byte(key))
	other := acquire(t, x, key)
	wantErr(t, "renew by a former holder", lease.Renew(ctx), exclusive.ErrLost)
	wantErr(t, "release by a former holder", lease.Release(ctx), exclusive.ErrLost)
	must(t, "renew by the holder", other.Renew(ctx))
	must(t, "release by the holder", other.Release(ctx))
	testRenewalThatChangesNothing(t, target, key)

	jobs := moreJobs(t, target, jobConfig())
	addJob(t, target, key)
	for range 2 {
		must(t, "a transition that changes nothing", jobs.Transition(ctx, key, "PENDING", "PENDING"))
	}
	must(t, "a transition", jobs.Transition(ctx, key, "PENDING", "DONE"))
	wantErr(t, "the transition again", jobs.Transition(ctx, key, "PENDING", "DONE"), exclusive.ErrDone)
	wantErr(t, "a transition of no row", jobs.Transition(ctx, "no row", "PENDING", "DONE"), exclusive.ErrNoRow)
	must(t, "back", jobs.Transition(ctx, key, "DONE", "PENDING"))

	versions, err := casupdate.NewVersioned(target.DB, casupdate.VersionConfig{Table: "job", Key: casupdate.Text("id")})
	must(t, "versioned", err)
	for version := range int64(2) {
		if next, err := versions.Update(ctx, key, version, casupdate.Set{"state": "PENDING"}); err != nil || next != version+1 {
			t.Errorf("an update that sets the same value: version %d, %v", next, err)
		}
	}
	_, err = versions.Update(ctx, key, 0, casupdate.Set{"state": "PENDING"})
	wantErr(t, "an old version", err, exclusive.ErrConflict)

	for name, x := range map[string]exclusive.Transactional[*sql.Tx]{"uniquetask": tasksOn(t, target, uniquetask.Config{}), "casupdate": jobs} {
		complete := func(ctx context.Context, g exclusive.Grant) error {
			return x.Commit(ctx, g, func(context.Context, *sql.Tx) error { return nil })
		}
		must(t, name, x.Do(ctx, key, func(ctx context.Context, g exclusive.Grant) error {
			must(t, "check", inTx(ctx, target, func(ctx context.Context, tx *sql.Tx) error { return x.Check(ctx, tx, g) }))
			must(t, "complete", complete(ctx, g))
			wantErr(t, "complete again", complete(ctx, g), exclusive.ErrInvalid)
			return nil
		}))
		wantErr(t, name+" again", x.Do(ctx, key, nothing), exclusive.ErrDone)
	}

	// The twin: what the server answers to a statement that changes nothing.
	must(t, "no-op", inTx(ctx, target, func(ctx context.Context, tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, "UPDATE result SET body = 'same' WHERE name = ?", key)
		if err != nil {
			return err
		}
		n, err := res.RowsAffected()
		if want := map[string]int64{"false": 0, "true": 1}[key]; n != want {
			t.Errorf("the server counts %d rows; want %d", n, want)
		}
		return err
	}))
}

// testRenewalThatChangesNothing renews where the clock stands still: the lease has its
// new end already.
func testRenewalThatChangesNothing(t *testing.T, target *matrix.Target[*sql.Tx], found string) {
	ctx := t.Context()
	var now string
	must(t, "now", target.Plain.QueryRowContext(ctx, "SELECT CAST(UNIX_TIMESTAMP(NOW(6)) AS CHAR)").Scan(&now))
	still := target.Another(t, matrix.Options{Params: map[string]string{"clientFoundRows": found, "timestamp": now}})
	lease := acquire(t, leasesOn(t, still, fencing.Config{NoRenew: true, TTL: forever}), "still "+found)
	for range 2 {
		must(t, "renew in one tick of the clock", lease.Renew(soon(t)))
	}
	must(t, "release", lease.Release(ctx))

	// Renewed behind the caller, several at once, of which one was taken away.
	const ttl = 3 * time.Second
	leased := jobConfig()
	leased.ExpiresColumn, leased.TTL = "expires_at", ttl
	var done sync.WaitGroup
	for name, c := range map[string]struct {
		x          exclusive.Exclusive
		take, ends string
	}{
		"uniquetask": {tasksOn(t, still, uniquetask.Config{TTL: ttl}), "UPDATE exclusive_task SET grant_id = 'another' WHERE run = ?", "SELECT free_at FROM exclusive_task WHERE run = ?"},
		"casupdate":  {moreJobs(t, still, leased), "UPDATE job SET grant_id = 'another' WHERE id = ?", "SELECT expires_at FROM job WHERE id = ?"},
	} {
		keys := []string{"first " + found, "second " + found, "third " + found}
		if name == "casupdate" {
			for _, key := range keys {
				addJob(t, target, key)
			}
		}
		done.Go(func() {
			err := c.x.Do(ctx, keys[0], func(first context.Context, _ exclusive.Grant) error {
				err := c.x.Do(ctx, keys[1], func(second context.Context, _ exclusive.Grant) error {
					return c.x.Do(ctx, keys[2], func(third context.Context, _ exclusive.Grant) error {
						if _, err := target.Plain.ExecContext(ctx, c.take, []byte(keys[1])); err != nil {
							return err
						}
						ended(t, name+": the loss of the second", second.Done())
						ends := func(i int) int64 { return target.Int(t, c.ends, []byte(keys[i])) }
						before := []int64{ends(0), ends(1), ends(2)}
						// What is renewed changes, though the clock does not.
						await(t, name+": renewals", func() bool { return ends(0) > before[0] && ends(2) > before[2] })
						if ends(1) != before[1] {
							t.Errorf("%s: what was taken away is renewed", name)
						}
						return errors.Join(context.Cause(first), context.Cause(third))
					})
				})
				if !errors.Is(err, exclusive.ErrLost) && !errors.Is(err, exclusive.ErrFenced) {
					t.Errorf("%s, second: %v", name, err)
				}
				return nil
			})
			if err != nil {
				t.Errorf("%s, first and third: %v", name, err)
			}
		})
	}
	done.Wait()
}

// Of two that claim what a third session inserts and takes back, one has it and
// the other is told so, and nobody sees the deadlock. In the field error 1213 was
// taken for fatal, or swallowed: then a lock was reported that no table held.
func TestB046_DeadlockOnClaim(t *testing.T) {
	onMySQL(t, func(t *testing.T, target *matrix.Target[*sql.Tx]) {
		target.Migrate(t, "")
		other := target.Another(t, matrix.Options{})
		t.Run("uniquetask", func(t *testing.T) {
			const insert = `INSERT INTO exclusive_task (task, run, state, grant_id, holder, token, attempt, started_at, ended_at, free_at, error, history)
				VALUES ('task', 'job', 'running', 's1', '', 1, 1, 0, 0, 0, '', '')`
			var runs atomic.Int64
			won := 0
			for _, err := range raceBehind(t, target, insert, func(ctx context.Context, i int, held [2]*heldSignal) error {
				x := tasksOn(t, []*matrix.Target[*sql.Tx]{target, other}[i], uniquetask.Config{Wait: patience, TTL: forever, NoRenew: true, Observer: held[i]})
				return x.Do(ctx, "job", func(ctx context.Context, _ exclusive.Grant) error {
					runs.Add(1)
					return held[1-i].await(ctx)
				})
			}) {
				if err == nil {
					won++
				} else {
					wantErr(t, "the loser", err, exclusive.ErrDone)
				}
			}
			stored := target.Int(t, "SELECT COUNT(*) FROM exclusive_task WHERE task = 'task' AND run = 'job' AND state = 'done' AND grant_id <> 's1'")
			if won != 1 || runs.Load() != 1 || stored != 1 {
				t.Errorf("%d won, %d runs, %d stored; want one", won, runs.Load(), stored)
			}
		})
		t.Run("fencing", func(t *testing.T) {
			const insert = `INSERT INTO exclusive_lease (lease_key, grant_id, holder, token, attempt, acquired_at, expires_at) VALUES ('job', 's1', '', 1, 1, 0, 0)`
			var holders, granted atomic.Int64
			for _, err := range raceBehind(t, target, insert, func(ctx context.Context, i int, held [2]*heldSignal) error {
				x := leasesOn(t, []*matrix.Target[*sql.Tx]{target, other}[i], fencing.Config{NoRenew: true, TTL: forever, Observer: held[i]})
				lease, err := x.Acquire(ctx, "job")
				if err != nil {
					return err
				}
				if n := holders.Add(1); n != 1 {
					t.Errorf("%d holders", n)
				}
				if id := lease.Grant().ID; target.Int(t, "SELECT COUNT(*) FROM exclusive_lease WHERE lease_key = 'job' AND grant_id = ?", id) != 1 {
					t.Errorf("grant %s is not in the table", id)
				}
				if granted.Add(1) == 1 {
					err = held[1-i].await(ctx)
				}
				holders.Add(-1)
				return errors.Join(err, lease.Release(ctx))
			}) {
				must(t, "one after the other", err)
			}
		})
		t.Run("twin", func(t *testing.T) {
			target.MustExec(t, "CREATE TABLE naive (id int PRIMARY KEY)")
			deadlocks := 0
			for _, err := range raceBehind(t, target, "INSERT INTO naive VALUES (1)", func(ctx context.Context, _ int, _ [2]*heldSignal) error {
				_, err := target.Plain.ExecContext(ctx, "INSERT INTO naive VALUES (1)")
				return err
			}) {
				if isDeadlock(err) {
					deadlocks++
				}
			}
			if deadlocks != 1 {
				t.Errorf("plain INSERTs: %d deadlocks; want 1", deadlocks)
			}
		})
	})
}

func isDeadlock(err error) bool {
	var server *mysql.MySQLError
	return errors.As(err, &server) && server.Number == 1213
}

// raceBehind lets a session insert a row, lets two race for it until both wait or have
// been refused, and then takes the row back. held are told of what each is refused.
func raceBehind(t *testing.T, target *matrix.Target[*sql.Tx], insert string, race func(ctx context.Context, i int, held [2]*heldSignal) error) (errs [2]error) {
	t.Helper()
	s1 := session.Begin(t, target.Plain)
	s1.Exec(insert)
	held := [2]*heldSignal{newHeldSignal(), newHeldSignal()}
	told := [2]<-chan struct{}{held[0].next(), held[1].next()}
	ctx := soon(t)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() { errs[i] = race(ctx, i, held) })
	}
	if target.Dialect == "mariadb" && !strings.Contains(insert, "naive") {
		// A claim does not wait for the row there, but is refused, and asks again.
		for _, c := range told {
			ended(t, "a refusal", c)
		}
	} else {
		session.AwaitWaiting(t, target.Plain, target.Dialect, 2, nil)
	}
	s1.Rollback()
	wg.Wait()
	return errs
}

// Many that claim one new key count every time, and no deadlock reaches them; in
// the caller's own transaction a deadlock is ErrConflict and nothing is tried
// again there. In the field an insert-if-absent and an update behind it
// deadlocked, and a retry inside the transaction broke it.
func TestB047_InsertThenUpdate(t *testing.T) {
	onMySQL(t, func(t *testing.T, target *matrix.Target[*sql.Tx]) {
		ctx := t.Context()
		target.Migrate(t, "")
		target.MustExec(t, "CREATE TABLE counter (name varchar(20) PRIMARY KEY, n bigint NOT NULL)")
		t.Run("own_transactions", func(t *testing.T) {
			const workers = 8
			x := leasesOn(t, target, fencing.Config{Wait: patience})
			guard, err := fencing.NewGuard(target.DB, fencing.GuardConfig{})
			must(t, "guard", err)
			tasks := tasksOn(t, target, uniquetask.Config{Wait: patience})
			for i := range size(100, 12) {
				key := fmt.Sprint("sem ", i)
				target.MustExec(t, "INSERT INTO counter VALUES (?, 0)", key)
				count := func(ctx context.Context, tx *sql.Tx) error {
					_, err := tx.ExecContext(ctx, "UPDATE counter SET n = n + 1 WHERE name = ?", key)
					return err
				}
				var wg sync.WaitGroup
				var runs atomic.Int64
				for range workers {
					wg.Go(func() {
						err := tasks.Do(ctx, key, func(context.Context, exclusive.Grant) error { runs.Add(1); return nil })
						if err != nil && !errors.Is(err, exclusive.ErrDone) {
							t.Errorf("run: %v", err)
						}
					})
					wg.Go(func() {
						if err := x.Do(ctx, key, func(ctx context.Context, g exclusive.Grant) error {
							if err := guard.Register(ctx, g); err != nil {
								return err
							}
							return x.Commit(ctx, g, count)
						}); err != nil {
							t.Errorf("do: %v", err)
						}
					})
				}
				wg.Wait()
				if n := target.Int(t, "SELECT n FROM counter WHERE name = ?", key); n != workers {
					t.Fatalf("%d of %d were counted", n, workers)
				}
				if n := runs.Load(); n != 1 {
					t.Fatalf("%s went %d times", key, n)
				}
			}
		})
		t.Run("callers_transaction", func(t *testing.T) {
			guard, err := fencing.NewGuard(target.DB, fencing.GuardConfig{})
			must(t, "guard", err)
			grant := func(key string, token int64) exclusive.Grant {
				return exclusive.Grant{Key: key, Token: token, ID: fmt.Sprint(key, token)}
			}
			for _, key := range []string{"left", "right"} {
				must(t, "register", guard.Register(ctx, grant(key, 1)))
			}
			target.MustExec(t, "INSERT INTO counter VALUES ('tx0', 0), ('tx1', 0)")
			var errs [2]error
			var first, done sync.WaitGroup
			first.Add(2)
			for i, keys := range [][2]string{{"left", "right"}, {"right", "left"}} {
				done.Go(func() {
					met := false
					defer func() {
						if !met {
							first.Done()
						}
					}()
					errs[i] = inTx(ctx, target, func(ctx context.Context, tx *sql.Tx) error {
						if err := target.Exec(ctx, tx, "UPDATE counter SET n = n + 1 WHERE name = ?", fmt.Sprint("tx", i)); err != nil {
							return err
						}
						if err := guard.Check(ctx, tx, grant(keys[0], 2)); err != nil {
							return err
						}
						met = true
						first.Done()
						first.Wait() // both have their first key
						return guard.Check(ctx, tx, grant(keys[1], 2))
					})
				})
			}
			done.Wait()
			lost := 0
			for i, err := range errs {
				n := target.Int(t, "SELECT n FROM counter WHERE name = ?", fmt.Sprint("tx", i))
				switch {
				case err == nil && n == 1:
				case isDeadlock(err) && errors.Is(err, exclusive.ErrConflict) && n == 0:
					lost++
				default:
					t.Errorf("transaction %d: counted %d, error %v", i, n, err)
				}
			}
			if lost != 1 {
				t.Errorf("%d transactions lost; want one", lost)
			}
		})
		t.Run("twin", func(t *testing.T) {
			// INSERT IGNORE leaves a shared lock on the row that exists, which
			// both losers then want to raise.
			target.MustExec(t, "INSERT INTO counter VALUES ('sem', 0)")
			var errs [2]error
			var first, done sync.WaitGroup
			first.Add(2)
			for i := range errs {
				done.Go(func() {
					errs[i] = inTx(ctx, target, func(ctx context.Context, tx *sql.Tx) error {
						err := target.Exec(ctx, tx, "INSERT IGNORE INTO counter VALUES ('sem', 0)")
						first.Done()
						first.Wait()
						return errors.Join(err, target.Exec(ctx, tx, "UPDATE counter SET n = n + 1 WHERE name = 'sem'"))
					})
				})
			}
			done.Wait()
			if !isDeadlock(errs[0]) && !isDeadlock(errs[1]) {
				t.Errorf("INSERT IGNORE and UPDATE do not deadlock: %v", errs)
			}
		})
	})
}

// A claim that was given up never holds its key, even if the server lets it go on
// later: another has the key long before a lease would run out. The cause is that
// of B046: a claim that waits for a row which another session takes back.
func TestMySQLOwn_ClaimThatComesLate(t *testing.T) {
	onMySQL(t, func(t *testing.T, target *matrix.Target[*sql.Tx]) {
		target.Migrate(t, "")
		other := target.Another(t, matrix.Options{})
		for name, c := range map[string]struct {
			insert string
			open   func(target *matrix.Target[*sql.Tx]) exclusive.Exclusive
		}{
			"fencing": {
				"INSERT INTO exclusive_lease (lease_key, grant_id, holder, token, attempt, acquired_at, expires_at) VALUES ('late', 's1', '', 1, 1, 0, 0)",
				func(target *matrix.Target[*sql.Tx]) exclusive.Exclusive {
					return leasesOn(t, target, fencing.Config{TTL: forever, Wait: patience})
				},
			},
			"uniquetask": {
				`INSERT INTO exclusive_task (task, run, state, grant_id, holder, token, attempt, started_at, ended_at, free_at, error, history)
					VALUES ('task', 'late', 'running', 's1', '', 1, 1, 0, 0, 0, '', '')`,
				func(target *matrix.Target[*sql.Tx]) exclusive.Exclusive {
					return tasksOn(t, target, uniquetask.Config{TTL: forever, Wait: patience})
				},
			},
		} {
			t.Run(name, func(t *testing.T) {
				s1 := session.Begin(t, target.Plain)
				s1.Exec(c.insert)
				x := c.open(target)
				ctx, cancel := context.WithCancel(t.Context())
				answer := make(chan error, 1)
				go func() { answer <- x.Do(ctx, "late", nothing) }()
				// It has given its claim up when another statement waits as
				// well: the server, which does not know, still has the first.
				// On MariaDB none waits.
				session.AwaitWaiting(t, target.Plain, target.Dialect, 2, func() bool { return target.Dialect == "mariadb" && target.InUse() > 0 })
				cancel()
				err := <-answer
				wantErr(t, "the caller", err, context.Canceled)
				s1.Rollback()
				must(t, "another", c.open(other).Do(t.Context(), "late", nothing))
			})
		}
	})
}

// Any number of new names can be taken at the same moment: all are held together.
// In the field a lock on a row that does not exist locked the gap around it, and
// two sessions with different new names deadlocked.
func TestB049_GapLocks(t *testing.T) {
	onMySQL(t, func(t *testing.T, target *matrix.Target[*sql.Tx]) {
		target.Migrate(t, "")
		target.MustExec(t, "INSERT INTO exclusive_lock VALUES ('a'), ('z')")
		locks := locksOn(t, target, rowlock.Config{})
		leases := leasesOn(t, target, fencing.Config{TTL: forever, NoRenew: true})
		tasks := tasksOn(t, target, uniquetask.Config{TTL: forever, NoRenew: true})
		guard, err := fencing.NewGuard(target.DB, fencing.GuardConfig{})
		must(t, "guard", err)
		guarded := fencing.Guarded(leasesOn(t, target, fencing.Config{TTL: forever, NoRenew: true, Prefix: ""}), guard)
		const workers = 8
		for name, s := range map[string]struct {
			x      exclusive.Transactional[*sql.Tx]
			rounds int
		}{"rowlock": {locks, size(100, 40)}, "fencing": {leases, size(100, 5)}, "uniquetask": {tasks, size(100, 5)}, "guarded": {guarded, size(100, 5)}} {
			t.Run(name, func(t *testing.T) {
				for round := range s.rounds {
					var here, done sync.WaitGroup
					here.Add(workers)
					for i := range workers {
						done.Go(func() {
							inside := false
							defer func() {
								if !inside {
									here.Done()
								}
							}()
							err := s.x.Do(t.Context(), fmt.Sprintf("m%d/%s/%d", i, name, round), func(ctx context.Context, g exclusive.Grant) error {
								return s.x.Commit(ctx, g, func(context.Context, *sql.Tx) error {
									inside = true
									here.Done()
									here.Wait() // with all others, each in its own transaction
									return nil
								})
							})
							if err != nil {
								t.Errorf("round %d: %v", round, err)
							}
						})
					}
					done.Wait()
				}
			})
		}
		t.Run("floor", func(t *testing.T) {
			// What new runs have in common is locked for a moment when a
			// process begins and when runs are removed: none is "held" for that.
			// More often than a claim is made of a key that only seems to be held.
			const times = 8
			met, refused := make(chan struct{}), &refuser[*sql.Tx]{DB: target.DB}
			var locked atomic.Int64
			refused.see = func(err error) {
				if err != nil && target.DB.Classify(err) == db.Locked && locked.Add(1) == times {
					close(met)
				}
			}
			there := *target
			there.DB = refused
			tasks := tasksOn(t, &there, uniquetask.Config{})
			must(t, "a run before", tasks.Do(t.Context(), "before", nothing))
			s := session.Begin(t, target.Plain)
			s.Int("SELECT token FROM exclusive_task_floor WHERE task = 'task' FOR UPDATE")
			told := make(chan error, 1)
			go func() { told <- tasks.Do(soon(t), "a new run", nothing) }()
			if target.Dialect == "mariadb" {
				select {
				case <-met:
				case err := <-told:
					t.Fatalf("a new run, beside the lock: %v", err)
				}
			} else {
				// It waits in the server there, before it has a transaction that
				// InnoDB's report would show.
				await(t, "the claim to wait for the lock", func() bool {
					return target.Int(t, "SELECT COUNT(*) FROM performance_schema.data_locks WHERE object_schema = DATABASE() AND lock_status = 'WAITING'") > 0
				})
			}
			s.Rollback()
			must(t, "a new run", <-told)
			// Nor is it if the lock stays.
			s = session.Begin(t, target.Plain)
			s.Int("SELECT token FROM exclusive_task_floor WHERE task = 'task' FOR UPDATE")
			err := tasks.Do(soon(t), "one that nobody has", nothing)
			wantErr(t, "a new run, beside a lock that stays", err, exclusive.ErrUnavailable)
			not(t, "a new run, beside a lock that stays", err, exclusive.ErrHeld)
			s.Rollback()
			must(t, "a new run, after it", tasks.Do(soon(t), "one more", nothing))
		})
		t.Run("twin", func(t *testing.T) {
			target.MustExec(t, "CREATE TABLE naive (id varchar(20) PRIMARY KEY)")
			target.MustExec(t, "INSERT INTO naive VALUES ('a'), ('z')")
			var errs [2]error
			var first, done sync.WaitGroup
			first.Add(2)
			for i := range errs {
				done.Go(func() {
					id := fmt.Sprint("m", i)
					errs[i] = inTx(t.Context(), target, func(ctx context.Context, tx *sql.Tx) error {
						r, err := target.DB.Within(tx) // Exec is for statements without rows
						must(t, "within", err)
						err = r.Query(ctx, "SELECT id FROM naive WHERE id = ? FOR UPDATE", []any{id}, func(db.Scan) error { return nil })
						first.Done()
						first.Wait()
						return errors.Join(err, target.Exec(ctx, tx, "INSERT INTO naive VALUES (?)", id))
					})
				})
			}
			done.Wait()
			if !isDeadlock(errs[0]) && !isDeadlock(errs[1]) {
				t.Errorf("SELECT FOR UPDATE of missing rows does not deadlock: %v", errs)
			}
		})
	})
}

// After a lock wait time-out nothing of the transaction is stored and nothing stays
// locked. In the field error 1205 undid one statement, and a later COMMIT made the
// other half permanent.
func TestB050_LockWaitTimeout(t *testing.T) {
	onMySQL(t, func(t *testing.T, target *matrix.Target[*sql.Tx]) {
		ctx := t.Context()
		target.Migrate(t, "")
		target.MustExec(t, "CREATE TABLE account (id int PRIMARY KEY, balance bigint NOT NULL)")
		target.MustExec(t, "INSERT INTO account VALUES (1, 0), (2, 0)")
		hasty := target.Another(t, matrix.Options{Params: map[string]string{"innodb_lock_wait_timeout": "1"}})
		untouched := func(t *testing.T, what string) {
			t.Helper()
			if n := target.Int(t, "SELECT balance FROM account WHERE id = 1"); n != 0 {
				t.Errorf("%s: half of the transaction is stored", what)
			}
			s := session.Begin(t, target.Plain)
			s.Int("SELECT id FROM account WHERE id = 1 FOR UPDATE NOWAIT")
			s.Rollback()
		}
		isTimeout := func(t *testing.T, what string, err error) {
			t.Helper()
			var server *mysql.MySQLError
			wantErr(t, what, err, exclusive.ErrConflict)
			if !errors.As(err, &server) || server.Number != 1205 {
				t.Errorf("%s: error 1205 cannot be reached in %v", what, err)
			}
		}
		half := func(ctx context.Context, tx *sql.Tx) error {
			if err := hasty.Exec(ctx, tx, "UPDATE account SET balance = 1 WHERE id = 1"); err != nil {
				return err
			}
			return hasty.Exec(ctx, tx, "UPDATE account SET balance = 1 WHERE id = 2")
		}
		other := session.Begin(t, target.Plain)
		other.Exec("UPDATE account SET balance = 7 WHERE id = 2")
		addJobs := jobsOn(t, hasty, jobConfig(), "")
		addJob(t, target, "k")
		for name, x := range map[string]exclusive.Transactional[*sql.Tx]{
			"rowlock":    locksOn(t, hasty, rowlock.Config{}),
			"fencing":    leasesOn(t, hasty, fencing.Config{}),
			"uniquetask": tasksOn(t, hasty, uniquetask.Config{}),
			"casupdate":  addJobs,
		} {
			t.Run(name, func(t *testing.T) {
				err := x.Do(ctx, "k", func(ctx context.Context, g exclusive.Grant) error { return x.Commit(ctx, g, half) })
				isTimeout(t, name, err)
				untouched(t, name)
			})
		}
		other.Rollback()

		t.Run("callers_transaction", func(t *testing.T) {
			guard, err := fencing.NewGuard(hasty.DB, fencing.GuardConfig{})
			must(t, "guard", err)
			g := exclusive.Grant{Key: "k", Token: 5, ID: "five"}
			must(t, "register", guard.Register(ctx, exclusive.Grant{Key: "k", Token: 4, ID: "four"}))
			holder := session.Begin(t, target.Plain)
			holder.Exec("UPDATE exclusive_mark SET finished = 1 WHERE mark_key = 'k'")
			err = inTx(ctx, hasty, func(ctx context.Context, tx *sql.Tx) error {
				if err := hasty.Exec(ctx, tx, "UPDATE account SET balance = 1 WHERE id = 1"); err != nil {
					return err
				}
				return guard.Check(ctx, tx, g)
			})
			isTimeout(t, "check", err)
			untouched(t, "check")
		})
		t.Run("whole_transaction_gone", func(t *testing.T) {
			// What innodb_rollback_on_timeout=ON does, which only a start of the
			// server can set; and apply overlooks it.
			x := leasesOn(t, hasty, fencing.Config{})
			err := x.Do(ctx, "gone", func(ctx context.Context, g exclusive.Grant) error {
				return x.Commit(ctx, g, func(ctx context.Context, tx *sql.Tx) error {
					return errors.Join(hasty.Exec(ctx, tx, "UPDATE account SET balance = 1 WHERE id = 1"), hasty.Exec(ctx, tx, "ROLLBACK"))
				})
			})
			if err == nil {
				t.Error("a transaction that is gone was reported as committed")
			}
			untouched(t, "gone")
		})
		t.Run("twin", func(t *testing.T) {
			holder := session.Begin(t, target.Plain)
			holder.Exec("UPDATE account SET balance = 7 WHERE id = 2")
			must(t, "begin", inTx(ctx, hasty, func(ctx context.Context, tx *sql.Tx) error {
				if err := half(ctx, tx); err == nil {
					t.Error("no time-out")
				}
				return nil // and so COMMIT
			}))
			if n := target.Int(t, "SELECT balance FROM account WHERE id = 1"); n != 1 {
				t.Error("COMMIT after 1205 stores nothing")
			}
		})
	})
}

// Two names are never taken for one: a name that its column cannot hold is refused
// before anything runs, in every sql_mode, and so is whatever else a column would cut. In the field INSERT IGNORE, and lax
// modes, cut long names, and the second was told that it was a duplicate.
func TestB052_CutNames(t *testing.T) {
	onMySQL(t, func(t *testing.T, target *matrix.Target[*sql.Tx]) {
		ctx := t.Context()
		target.Migrate(t, "")
		lax := target.Another(t, matrix.Options{Params: map[string]string{"sql_mode": "''"}})
		long := strings.Repeat("x", exclusive.MaxKeyBytes)
		strats := func(t *testing.T, target *matrix.Target[*sql.Tx]) map[string]exclusive.Exclusive {
			return map[string]exclusive.Exclusive{
				"rowlock": locksOn(t, target, rowlock.Config{}), "fencing": leasesOn(t, target, fencing.Config{}), "uniquetask": tasksOn(t, target, uniquetask.Config{}),
			}
		}
		for name, x := range strats(t, lax) {
			must(t, name+", longest names", exclusive.DoAll(ctx, x, []string{long, long[1:] + "A", long[1:] + "B"}, func(context.Context, []exclusive.Grant) error { return nil }))
			wantErr(t, name+", one byte more", x.Do(ctx, long+"A", nothing), exclusive.ErrInvalid)
		}
		// Somebody has made the columns shorter.
		target.MustExec(t, "DELETE FROM exclusive_lease")
		target.MustExec(t, "DELETE FROM exclusive_lock")
		target.MustExec(t, "DELETE FROM exclusive_task")
		target.MustExec(t, "ALTER TABLE exclusive_lease MODIFY lease_key VARBINARY(10) NOT NULL")
		target.MustExec(t, "ALTER TABLE exclusive_lock MODIFY lock_key VARBINARY(10) NOT NULL")
		target.MustExec(t, "ALTER TABLE exclusive_task MODIFY run VARBINARY(10) NOT NULL")
		for mode, target := range map[string]*matrix.Target[*sql.Tx]{"strict": target, "lax": lax} {
			for name, x := range strats(t, target) {
				t.Run(mode+"_"+name, func(t *testing.T) {
					for _, key := range []string{"tenant-42-jobA", "tenant-42-jobB"} {
						ran := false
						err := x.Do(ctx, key, func(context.Context, exclusive.Grant) error { ran = true; return nil })
						wantErr(t, key, err, exclusive.ErrSchema)
						if ran || !strings.Contains(err.Error(), "VARBINARY(200)") {
							t.Errorf("%s: ran %v, error %v", key, ran, err)
						}
					}
				})
			}
		}
		// Or has given them a collation, or has made them too small for what else is
		// stored: a grant that is cut is not found again, and a time that is cut is over.
		t.Run("other_columns", func(t *testing.T) { testSmallColumns(t, lax) })
		// The twin.
		target.MustExec(t, "CREATE TABLE naive (id VARCHAR(10) PRIMARY KEY)")
		target.MustExec(t, "INSERT IGNORE INTO naive VALUES ('tenant-42-jobA')")
		res, err := target.Plain.ExecContext(ctx, "INSERT IGNORE INTO naive VALUES ('tenant-42-jobB')")
		must(t, "INSERT IGNORE", err)
		if n, err := res.RowsAffected(); n != 0 || err != nil {
			t.Errorf("INSERT IGNORE keeps cut names apart: %d rows, %v", n, err)
		}
	})
}

// testSmallColumns wants what uses a column of the wrong type to be refused before
// anything is stored, by an error that names the column and what it must be.
func testSmallColumns(t *testing.T, target *matrix.Target[*sql.Tx]) {
	ctx := t.Context()
	for _, table := range []string{"exclusive_lease", "exclusive_lock", "exclusive_task", "exclusive_task_floor"} {
		target.MustExec(t, "DROP TABLE "+table)
	}
	for _, part := range []string{"fencing_lease", "rowlock_lock", "uniquetask_task", "uniquetask_floor"} {
		target.Migrate(t, part)
	}
	jobs := jobConfig()
	jobs.TTL, jobs.ExpiresColumn = forever, "expires"
	target.MustExec(t, `CREATE TABLE job (id varchar(200) PRIMARY KEY, state varchar(20) NOT NULL, token bigint, grant_id varchar(64),
		expires bigint, fence_token bigint, fence_grant varchar(64))`)
	addJob(t, target, "k")
	do := func(x exclusive.Exclusive) error {
		return x.Do(ctx, "k", func(context.Context, exclusive.Grant) error { t.Error("work has run"); return nil })
	}
	leases := func() error { return do(leasesOn(t, target, fencing.Config{})) }
	tasks := func() error { return do(tasksOn(t, target, uniquetask.Config{})) }
	locks := func() error { return do(locksOn(t, target, rowlock.Config{})) }
	job := func() error { return do(moreJobs(t, target, jobs)) }
	guard := func() error {
		guard, err := fencing.NewGuard(target.DB, fencing.GuardConfig{})
		must(t, "guard", err)
		return guard.Register(ctx, exclusive.Grant{Key: "k", Token: 1, ID: "id"})
	}
	once := func() error {
		x := leasesOn(t, target, fencing.Config{})
		return inTx(ctx, target, func(ctx context.Context, tx *sql.Tx) error { return second(x.Once(ctx, tx, "op", nil, nil2(t))) })
	}
	counter := func() error {
		tokens, err := redisbackend.NewTokens(target.DB, redisbackend.TokensConfig{})
		must(t, "tokens", err)
		return second(tokens.Next(ctx, "k"))
	}
	row := func() error {
		rows, err := fencing.NewRowGuard(target.DB, fencing.RowConfig{Table: "job", KeyColumns: []string{"id"}})
		must(t, "row guard", err)
		return inTx(ctx, target, func(ctx context.Context, tx *sql.Tx) error {
			return rows.Check(ctx, tx, exclusive.Grant{Key: "k", Token: 1, ID: "id"}, "k")
		})
	}
	tested := map[string]bool{
		"exclusive_token.floor": true, "exclusive_token.id": true, // MySQL alone has them, and the first is like the others; the second says nothing
	}
	for _, c := range []struct {
		table, column, small string
		use                  func() error
		must                 string
	}{
		{"exclusive_lease", "grant_id", "VARBINARY(20)", leases, "hold a text of 64 characters"},
		{"exclusive_lease", "lease_key", "VARBINARY(20)", leases, "be VARBINARY(200)"},
		{"exclusive_lease", "holder", "VARBINARY(20)", leases, "hold a text of 200 characters"},
		{"exclusive_lease", "token", "INT", leases, "be BIGINT"},
		{"exclusive_lease", "attempt", "INT", leases, "be BIGINT"},
		{"exclusive_lease", "acquired_at", "INT", leases, "be BIGINT"},
		{"exclusive_lease", "expires_at", "INT", leases, "be BIGINT"},
		{"exclusive_mark", "mark_key", "VARCHAR(200) CHARACTER SET utf8mb4", guard, "be VARBINARY(200)"},
		{"exclusive_mark", "grant_id", "VARBINARY(20)", guard, "hold a text of 64 characters"},
		{"exclusive_mark", "token", "INT", guard, "be BIGINT"},
		{"exclusive_mark", "finished", "BIT(1)", guard, "be a type of integers that has 2"},
		{"exclusive_op", "op_id", "VARCHAR(200) CHARACTER SET utf8mb4", once, "be VARBINARY(200)"},
		{"exclusive_op", "payload", "BINARY(20)", once, "hold a text of 32 characters"},
		{"exclusive_op", "result", "VARBINARY(20)", once, "hold a text of 4294967295 characters"},
		{"exclusive_op", "created_at", "INT", once, "be BIGINT"},
		{"exclusive_lock", "lock_key", "VARBINARY(20)", locks, "be VARBINARY(200)"},
		{"exclusive_task", "task", "VARBINARY(20)", tasks, "be VARBINARY(200)"},
		{"exclusive_task", "state", "VARBINARY(5)", tasks, "hold a text of 7 characters"},
		{"exclusive_task", "grant_id", "VARBINARY(20)", tasks, "hold a text of 64 characters"},
		{"exclusive_task", "run", "VARBINARY(20)", tasks, "be VARBINARY(200)"},
		{"exclusive_task", "holder", "VARBINARY(20)", tasks, "hold a text of 200 characters"},
		{"exclusive_task", "token", "INT", tasks, "be BIGINT"},
		{"exclusive_task", "attempt", "INT", tasks, "be BIGINT"},
		{"exclusive_task", "started_at", "INT", tasks, "be BIGINT"},
		{"exclusive_task", "ended_at", "INT", tasks, "be BIGINT"},
		{"exclusive_task", "free_at", "INT", tasks, "be BIGINT"},
		{"exclusive_task", "error", "VARBINARY(100)", tasks, "hold a text of 1000 characters"},
		{"exclusive_task", "history", "TINYBLOB", tasks, "hold a text of 16384 characters"},
		{"exclusive_task", "result", "VARBINARY(20)", tasks, "hold a text of 4294967295 characters"},
		{"exclusive_task_floor", "task", "VARBINARY(20)", tasks, "be VARBINARY(200)"},
		{"exclusive_task_floor", "token", "INT", tasks, "be BIGINT"},
		{"exclusive_counter", "counter_key", "VARBINARY(20)", counter, "be VARBINARY(200)"},
		{"exclusive_counter", "token", "INT", counter, "be BIGINT"},
		{"job", "grant_id", "varchar(20)", job, "hold a text of 26 characters"},
		{"job", "grant_id", "int", job, "hold a text of 26 characters"},
		{"job", "state", "varchar(9)", job, "hold a text of 10 characters"},
		{"job", "state", "enum('PENDING', 'DONE', 'CANCELLED BY HAND')", job, `have the value "PROCESSING"`},
		{"job", "token", "int", job, "be BIGINT"},
		{"job", "expires", "int", job, "be BIGINT"},
		{"job", "fence_grant", "varchar(20)", row, "hold a text of 26 characters"},
		{"job", "fence_token", "int", row, "be BIGINT"},
	} {
		tested[c.table+"."+c.column] = true
		what := c.table + "." + c.column + " " + c.small
		var before, null string
		must(t, what, target.Plain.QueryRowContext(ctx, `SELECT column_type, IF(is_nullable = 'NO', ' NOT NULL', ' NULL') FROM information_schema.columns
			WHERE table_schema = DATABASE() AND table_name = ? AND column_name = ?`, c.table, c.column).Scan(&before, &null))
		modify := "ALTER TABLE " + c.table + " MODIFY " + c.column + " "
		target.MustExec(t, modify+c.small+null)
		err := c.use()
		wantErr(t, what, err, exclusive.ErrSchema)
		if text := err.Error(); !strings.Contains(text, c.table+"."+c.column+" is ") || !strings.Contains(text, " and must "+c.must) {
			t.Errorf("%s: %v; want what it must be", what, err)
		}
		if n := target.Int(t, "SELECT COUNT(*) FROM "+c.table) - target.Int(t, "SELECT COUNT(*) FROM job WHERE ? = 'job' AND state = 'PENDING' AND grant_id IS NULL AND fence_grant IS NULL", c.table); n != 0 {
			t.Errorf("%s: it has stored something", what)
		}
		target.MustExec(t, modify+before+null)
	}
	ours, err := target.Plain.QueryContext(ctx, `SELECT CONCAT(c.table_name, '.', c.column_name) FROM information_schema.columns c
		JOIN information_schema.tables t ON t.table_schema = c.table_schema AND t.table_name = c.table_name AND t.table_type = 'BASE TABLE'
		WHERE c.table_schema = DATABASE() AND c.table_name LIKE 'exclusive%'`)
	must(t, "columns", err)
	for ours.Next() {
		var column string
		must(t, "column", ours.Scan(&column))
		if !tested[column] {
			t.Errorf("nothing looks at the type of %s", column)
		}
	}
	must(t, "columns", errors.Join(ours.Err(), ours.Close()))
	// As they should be.
	for what, use := range map[string]func() error{"guard": guard, "counter": counter, "row guard": row} {
		must(t, what, use())
	}
	must(t, "do", errors.Join(leasesOn(t, target, fencing.Config{}).Do(ctx, "k", nothing),
		tasksOn(t, target, uniquetask.Config{}).Do(ctx, "k", nothing), moreJobs(t, target, jobs).Do(ctx, "k", nothing)))
}

// alike are names that collations take for the same: by case, accent, form or
// blanks at the end.
var alike = []string{"report", "Report", "report ", "report  ", "r\u00e9port", "re\u0301port", "STRASSE", "stra\u00dfe"}

// Names that differ in any byte are different names on every backend, and can all be
// held at once. In the field a collation that ignores case, accents or blanks at
// the end made one key of them.
func TestB053_Collations(t *testing.T) {
	t.Parallel()
	matrix.Drivers(t, testCollations[pgx.Tx], testCollations[*sql.Tx])
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		client, prefix := servers.Prefix(t)
		holdAll(t, redisLeases(t, client, redisbackend.Config{Prefix: prefix}), alike)
	})
}

func testCollations[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	target.Migrate(t, "")
	x := leasesOn(t, target, fencing.Config{})
	holdAll(t, x, alike)
	holdAll(t, tasksOn(t, target, uniquetask.Config{}), alike)
	for _, task := range alike { // the other half of its key
		holdAll(t, tasksOn(t, target, uniquetask.Config{Task: task}), []string{"a run"})
	}
	if target.Networked() { // SQLite has one lock for all keys, as documented
		holdAll(t, locksOn(t, target.Another(t, matrix.Options{MaxConns: 2 * len(alike)}), rowlock.Config{}), alike)
	}
	guard, err := fencing.NewGuard(target.DB, fencing.GuardConfig{})
	must(t, "guard", err)
	for i, name := range alike {
		// A greater token of one name says nothing about another.
		must(t, "mark", guard.Register(t.Context(), exclusive.Grant{Key: name, Token: int64(100 - i), ID: "id"}))
		must(t, "once", inTx(t.Context(), target, func(ctx context.Context, tx Tx) error {
			result, err := x.Once(ctx, tx, name, nil, func(context.Context) ([]byte, error) { return []byte(name), nil })
			if string(result) != name {
				t.Errorf("operation %q got the result of %q", name, result)
			}
			return err
		}))
	}
	// The application's own table has the collation that it has: a row is that of
	// the name that it has, byte for byte.
	charset := "" // the collation stays the default
	if target.Dialect == "mysql" || target.Dialect == "mariadb" {
		charset = " CHARACTER SET utf8mb4"
	}
	jobs := jobsOn(t, target, jobConfig(), charset)
	addJob(t, target, "report")
	rows := locksOn(t, target, rowlock.Config{Table: "job", KeyColumns: []string{"id"}})
	for _, name := range alike[1:] {
		wantErr(t, "lock of "+name, rows.Do(t.Context(), name, nothing), exclusive.ErrNoRow)
		wantErr(t, "claim of "+name, jobs.Do(t.Context(), name, nothing), exclusive.ErrNoRow)
		wantErr(t, "transition of "+name, jobs.Transition(t.Context(), name, "PENDING", "DONE"), exclusive.ErrNoRow)
	}
	must(t, "lock", rows.Do(t.Context(), "report", nothing))
	must(t, "claim", jobs.Do(t.Context(), "report", nothing))
	// The twin.
	if target.Dialect == "mysql" || target.Dialect == "mariadb" {
		if _, err := target.Plain.ExecContext(t.Context(), "INSERT INTO job (id, state) VALUES ('Report', '')"); err == nil {
			t.Error("the default collation keeps names apart")
		}
	}
}

// holdAll fails unless x grants all names at the same time.
func holdAll(t *testing.T, x exclusive.Exclusive, names []string) {
	t.Helper()
	held := false
	must(t, "hold all", exclusive.DoAll(t.Context(), x, names, func(context.Context, []exclusive.Grant) error { held = true; return nil }))
	if !held {
		t.Error("work did not run")
	}
}

// longest are names of exactly the documented limit, and the same with one byte or
// one character more.
func longest() (fit, tooLong []string) {
	const lock = "\U0001F512" // four bytes
	ascii, wide := strings.Repeat("x", exclusive.MaxKeyBytes), strings.Repeat(lock, exclusive.MaxKeyBytes/len(lock))
	return []string{ascii, ascii[1:] + "y", wide, wide[len(lock):] + "\U0001F513"}, []string{ascii + "x", wide + "x", wide + lock}
}

// The tables fit the smallest index limit of any server, the longest names fit the
// tables, in bytes of any alphabet, and one byte more is refused before any I/O. In
// the field unique keys of 255 characters broke migrations on old row formats.
func TestB055_IndexLimits(t *testing.T) {
	t.Parallel()
	fit, tooLong := longest()
	test := func(t *testing.T, xs map[string]exclusive.Exclusive) {
		for name, x := range xs {
			holdAll(t, x, fit)
			for _, long := range tooLong {
				wantErr(t, name, x.Do(t.Context(), long, nothing), exclusive.ErrInvalid)
			}
		}
	}
	onSQL := func(t *testing.T, target *matrix.Target[*sql.Tx]) {
		compact(t, target)
		xs := map[string]exclusive.Exclusive{"fencing": leasesOn(t, target, fencing.Config{}), "uniquetask": tasksOn(t, target, uniquetask.Config{Task: fit[0]})}
		if target.Networked() {
			xs["rowlock"] = locksOn(t, target, rowlock.Config{})
		}
		test(t, xs)
		guard, err := fencing.NewGuard(target.DB, fencing.GuardConfig{})
		must(t, "guard", err)
		tokens, err := redisbackend.NewTokens(target.DB, redisbackend.TokensConfig{})
		must(t, "tokens", err)
		for _, key := range fit {
			// The longest id that a grant can have is another grant's with its last byte.
			g := exclusive.Grant{Key: key, Token: 1, ID: strings.Repeat("i", 64)}
			must(t, "mark", guard.Register(t.Context(), g))
			must(t, "the same mark", guard.Register(t.Context(), g))
			g.ID = g.ID[1:] + "j"
			wantErr(t, "another's mark", guard.Register(t.Context(), g), exclusive.ErrFenced)
			for range 2 { // the second time it is replayed
				must(t, "once", inTx(t.Context(), target, func(ctx context.Context, tx *sql.Tx) error {
					result, err := guard.Once(ctx, tx, key, []byte(key), func(context.Context) ([]byte, error) { return []byte(key), nil })
					if string(result) != key {
						t.Errorf("operation %q has the result %q", key, result)
					}
					return err
				}))
			}
			if n, err := tokens.Next(t.Context(), key); n != 1 || err != nil {
				t.Errorf("the first token of %q is %d, %v", key, n, err)
			}
		}
		jobs := jobsOn(t, target, jobConfig(), "")
		for _, long := range tooLong { // whatever else is a name
			for what, err := range map[string]error{
				"mark":  guard.Register(t.Context(), exclusive.Grant{Key: long, Token: 1, ID: "id"}),
				"token": second(tokens.Next(t.Context(), long)),
				"once": inTx(t.Context(), target, func(ctx context.Context, tx *sql.Tx) error {
					return second(guard.Once(ctx, tx, long, nil, nil2(t)))
				}),
				"task": second(uniquetask.New(target.DB, uniquetask.Config{Task: long})),
				"row":  jobs.Do(t.Context(), long, nothing),
			} {
				wantErr(t, what, err, exclusive.ErrInvalid)
			}
		}
		for _, task := range fit { // each has a floor of its own
			tasks := tasksOn(t, target, uniquetask.Config{Task: task})
			must(t, "do", tasks.Do(t.Context(), "floor", nothing))
			must(t, "forget", tasks.Forget(t.Context(), "floor"))
		}
		if n := target.Int(t, "SELECT COUNT(*) FROM exclusive_task_floor WHERE token > 0"); n != int64(len(fit)) {
			t.Errorf("%d floors; want one for each of %d tasks", n, len(fit))
		}
	}
	matrix.Drivers(t, nil, onSQL)
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		client, prefix := servers.Prefix(t)
		test(t, map[string]exclusive.Exclusive{"redisbackend": redisLeases(t, client, redisbackend.Config{Prefix: prefix})})
	})
}

// compact applies the migrations, on MySQL and MariaDB in the row format with the
// smallest limit, 767 bytes. The server's own default is not to be changed here.
func compact(t *testing.T, target *matrix.Target[*sql.Tx]) {
	t.Helper()
	if target.Dialect != "mysql" && target.Dialect != "mariadb" {
		target.Migrate(t, "")
		return
	}
	names, err := fs.Glob(migrations.FS, target.Dialect+"/*.up.sql")
	must(t, "migrations", err)
	for _, name := range names {
		statement, err := fs.ReadFile(migrations.FS, name)
		must(t, name, err)
		target.MustExec(t, strings.Replace(string(statement), "DEFAULT CHARACTER SET", "ROW_FORMAT = COMPACT DEFAULT CHARACTER SET", 1))
	}
	if n := target.Int(t, "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE() AND row_format = 'Compact'"); n < 7 {
		t.Errorf("%d tables are compact", n)
	}
	if _, err := target.Plain.ExecContext(t.Context(), "CREATE TABLE naive (id VARCHAR(255) CHARACTER SET utf8mb4 PRIMARY KEY) ROW_FORMAT = COMPACT"); err == nil {
		t.Error("the row format has no limit")
	}
}

// refuser is an adapter to a server that finds conflicts: it rolls back what a number
// of statements, in a transaction or not, and of COMMITs belong to, and answers err.
type refuser[Tx any] struct {
	db.DB[Tx]
	err                 error
	commits, statements atomic.Int64    // how many are refused
	see                 func(err error) // is told the server's answer to each statement; may be nil
}

func refuse(left *atomic.Int64) bool { return left.Add(-1) >= 0 }

// errCertification is how a node of Galera says that another one was first.
var errCertification = &mysql.MySQLError{Number: 1213, Message: "Deadlock found when trying to get lock; try restarting transaction"}

func (r *refuser[Tx]) Commit(ctx context.Context, tx Tx) error {
	if refuse(&r.commits) {
		return errors.Join(r.err, r.DB.Rollback(tx))
	}
	return r.DB.Commit(ctx, tx)
}

func (r *refuser[Tx]) Exec(ctx context.Context, query string, args ...any) (db.Result, error) {
	return refusing[Tx]{r.DB, r}.Exec(ctx, query, args...)
}

func (r *refuser[Tx]) Query(ctx context.Context, query string, args []any, each func(db.Scan) error) error {
	return refusing[Tx]{r.DB, r}.Query(ctx, query, args, each)
}

func (r *refuser[Tx]) Within(tx Tx) (db.Runner, error) {
	runner, err := r.DB.Within(tx)
	return refusing[Tx]{runner, r}, err
}

func (r *refuser[Tx]) Pin(ctx context.Context, tx Tx) error {
	if pinner, ok := r.DB.(db.Pinner[Tx]); ok {
		return pinner.Pin(ctx, tx)
	}
	return nil
}

func (r *refuser[Tx]) Unpin(ctx context.Context, tx Tx) error {
	if pinner, ok := r.DB.(db.Pinner[Tx]); ok {
		return pinner.Unpin(ctx, tx)
	}
	return nil
}

// refusing are the statements of a refuser.
type refusing[Tx any] struct {
	db.Runner
	by *refuser[Tx]
}

func (r refusing[Tx]) Exec(ctx context.Context, query string, args ...any) (db.Result, error) {
	if refuse(&r.by.statements) {
		return db.Result{}, r.by.err
	}
	res, err := r.Runner.Exec(ctx, query, args...)
	if r.by.see != nil {
		r.by.see(err)
	}
	return res, err
}

func (r refusing[Tx]) Query(ctx context.Context, query string, args []any, each func(db.Scan) error) error {
	if refuse(&r.by.statements) {
		return r.by.err
	}
	err := r.Runner.Query(ctx, query, args, each)
	if r.by.see != nil {
		r.by.see(err)
	}
	return err
}

// conflicts fails unless err is the server's conflict and nothing else: neither a
// loss nor a doubt, nor a success that was followed by something.
func conflicts(t *testing.T, what string, err error) {
	t.Helper()
	wantErr(t, what, err, exclusive.ErrConflict)
	not(t, what, err, exclusive.ErrLost, exclusive.ErrFenced, exclusive.ErrOutcomeUnknown, exclusive.ErrFinished, exclusive.ErrUnavailable)
	if !isDeadlock(err) {
		t.Errorf("%s: error 1213 cannot be reached in %v", what, err)
	}
}

// testConflictAtCommit refuses what it is to refuse, in the adapter: no cluster can be
// told when to.
func testConflictAtCommit(t *testing.T) {
	onMySQL(t, strategies.Each(func(t *testing.T, target *matrix.Target[*sql.Tx], s strategies.Strategy[*sql.Tx]) {
		ctx := t.Context()
		place := s.SetUp(t, target)
		server := &refuser[*sql.Tx]{DB: target.DB, err: errCertification}
		node := *target
		node.DB = server
		x := place.New(t, &node, exclusivetest.Config{})

		key := place.MustKey(t)
		runs := 0
		write := func(ctx context.Context, g exclusive.Grant) error {
			runs++
			return x.Commit(ctx, g, func(ctx context.Context, tx *sql.Tx) error { return place.Write(ctx, tx, key, "written") })
		}
		server.commits.Store(2)
		for refused := 1; refused <= 2; refused++ {
			conflicts(t, "a refused COMMIT", x.Do(ctx, key, write))
			if _, n := place.Stored(t, key); n != 0 || runs != refused {
				t.Errorf("%d effects, %d runs after %d refused COMMITs", n, runs, refused)
			}
		}
		must(t, "the same call again", x.Do(ctx, key, write))
		if _, n := place.Stored(t, key); n != 1 || runs != 3 {
			t.Errorf("%d effects, %d runs", n, runs)
		}

		// Without Commit, the end of work is what conflicts.
		key = place.MustKey(t)
		err := x.Do(ctx, key, func(context.Context, exclusive.Grant) error {
			server.commits.Store(2)
			server.statements.Store(2)
			return nil
		})
		met := server.commits.Swap(0) < 2
		met = server.statements.Swap(0) < 2 || met // a guard's mark too, of leases that are elsewhere
		if !met {
			t.Error("the end of work has met no conflict")
		}
		other := place.New(t, target, exclusivetest.Config{}) // waits for nothing
		switch {
		case s.Name == "rowlock":
			conflicts(t, "a lock whose COMMIT is refused", err)
			must(t, "another, of its key", other.Do(ctx, key, nothing))
		case s.Promises.OncePerKey:
			must(t, "a finish that is tried again", err)
			mustNot := func(context.Context, exclusive.Grant) error { t.Error("it ran again"); return nil }
			wantErr(t, "afterwards", other.Do(ctx, key, mustNot), exclusive.ErrDone)
		default:
			must(t, "a release that is tried again", err)
			must(t, "another, of its key", other.Do(ctx, key, nothing))
		}

		// A claim that conflicts is tried again.
		server.statements.Store(2)
		must(t, "a claim after conflicts", x.Do(ctx, place.MustKey(t), nothing))
		if server.statements.Swap(0) > 0 {
			t.Error("the claim has met no conflict")
		}
		if jobs, ok := any(x).(*casupdate.Table[*sql.Tx]); ok {
			server.statements.Store(2)
			must(t, "a transition after conflicts", jobs.Transition(ctx, key, "DONE", "PENDING"))
			if n := target.Int(t, "SELECT COUNT(*) FROM job WHERE id = ? AND state = 'PENDING'", key); n != 1 || server.statements.Swap(0) > 0 {
				t.Errorf("%d rows have changed, or the transition has met no conflict", n)
			}
		}
	}))
}

// What is decided under a lock is decided on the present, also in a transaction
// with an old snapshot. In the field a transaction that had read before it waited
// went on to see the world from before: "free", "not done", the old balance.
func TestB058_OldSnapshot(t *testing.T) {
	t.Parallel()
	matrix.Drivers(t, testOldSnapshot[pgx.Tx], testOldSnapshot[*sql.Tx], "postgres", "mysql", "mariadb")
}

func testOldSnapshot[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	if target.Dialect != "mariadb" {
		testDecideOnThePresent(t, target, nil)
		return
	}
	for _, on := range []string{"OFF", "ON"} { // the server refuses what changed since the snapshot, or not
		t.Run("innodb_snapshot_isolation_"+on, func(t *testing.T) {
			testDecideOnThePresent(t, target.Fresh(t), map[string]string{"innodb_snapshot_isolation": on})
		})
	}
}

func testDecideOnThePresent[Tx any](t *testing.T, target *matrix.Target[Tx], settings map[string]string) {
	ctx := t.Context()
	target.Migrate(t, "")
	target.MustExec(t, "CREATE TABLE account (id int PRIMARY KEY, balance bigint NOT NULL)")
	target.MustExec(t, "INSERT INTO account VALUES (1, 10)")
	old := target.Isolated(t, "repeatable read", settings)
	read := func(ctx context.Context, tx Tx) (n int64) {
		r, err := old.DB.Within(tx)
		must(t, "within", err)
		must(t, "read", r.Query(ctx, "SELECT balance FROM account WHERE id = 1", nil, func(scan db.Scan) error { return scan(&n) }))
		return n
	}

	t.Run("own_transaction", func(t *testing.T) {
		// Of two processes, or the second would wait for its turn in this one.
		held := newHeldSignal()
		told := held.next()
		locks, others := locksOn(t, old, rowlock.Config{Wait: patience}), locksOn(t, old, rowlock.Config{Wait: patience, Observer: held})
		inside, waits := make(chan struct{}), make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := locks.Run(ctx, "account", func(ctx context.Context, tx Tx, _ exclusive.Grant) error {
				close(inside)
				<-waits
				return old.Exec(ctx, tx, "UPDATE account SET balance = 0 WHERE id = 1")
			}); err != nil {
				t.Errorf("first: %v", err)
			}
		})
		<-inside
		wg.Go(func() {
			if err := others.Run(ctx, "account", func(ctx context.Context, tx Tx, _ exclusive.Grant) error {
				if n := read(ctx, tx); n != 0 {
					t.Errorf("under the lock the balance is %d; it is 0", n)
				}
				return nil
			}); err != nil {
				t.Errorf("second: %v", err)
			}
		})
		if target.Dialect == "postgres" { // it waits in the server there
			session.AwaitWaiting(t, target.Plain, target.Dialect, 1, nil)
		} else {
			ended(t, "the second to be told that the lock is held", told)
		}
		close(waits)
		wg.Wait()
	})

	// Each decides in a transaction whose snapshot is older than what it decides on.
	code := "" // of the server, where it does not allow that
	switch {
	case target.Dialect == "postgres":
		code = "40001"
	case settings["innodb_snapshot_isolation"] == "ON":
		code = "1020"
	}
	play := func(name string, want error, meanwhile func(), decide func(ctx context.Context, tx Tx) error) {
		t.Helper()
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			err := inTx(ctx, old, func(ctx context.Context, tx Tx) error {
				before := read(ctx, tx) // the snapshot
				meanwhile()
				target.MustExec(t, "UPDATE account SET balance = balance + 1")
				if n := read(ctx, tx); n != before {
					t.Errorf("no old snapshot: %d after %d", n, before) // the twin
				}
				return decide(ctx, tx)
			})
			switch {
			case code != "":
				wantErr(t, name, err, exclusive.ErrConflict)
				if got := serverCode(err); got != code {
					t.Errorf("%s: the server's code is %q in %v; want %s", name, got, err, code)
				}
			case want == nil:
				must(t, name, err)
			default:
				wantErr(t, name, err, want)
			}
		})
	}

	leases, onOld := leasesOn(t, target, fencing.Config{NoRenew: true, TTL: forever}), leasesOn(t, old, fencing.Config{})
	former := acquire(t, leases, "k").Grant()
	play("check of a former holder", exclusive.ErrFenced, func() {
		target.MustExec(t, "UPDATE exclusive_lease SET expires_at = 0 WHERE lease_key = ?", []byte("k"))
		acquire(t, leases, "k")
	}, func(ctx context.Context, tx Tx) error { return onOld.Check(ctx, tx, former) })

	newer := exclusive.Grant{Key: "k", Token: former.Token + 5, ID: "newer"}
	guard, err := fencing.NewGuard(old.DB, fencing.GuardConfig{})
	must(t, "guard", err)
	must(t, "register", guard.Register(ctx, former))
	play("mark of a former holder", exclusive.ErrFenced, func() { must(t, "register", guard.Register(ctx, newer)) },
		func(ctx context.Context, tx Tx) error { return guard.Check(ctx, tx, former) })

	target.MustExec(t, "CREATE TABLE guarded (id varchar(20) PRIMARY KEY, fence_token bigint, fence_grant varchar(64))")
	target.MustExec(t, "INSERT INTO guarded (id) VALUES ('k')")
	rows, err := fencing.NewRowGuard(old.DB, fencing.RowConfig{Table: "guarded", KeyColumns: []string{"id"}})
	must(t, "row guard", err)
	mark := func(g exclusive.Grant) {
		must(t, "mark", inTx(ctx, target, func(ctx context.Context, tx Tx) error { return rows.Check(ctx, tx, g, "k") }))
	}
	mark(former)
	play("row of a former holder", exclusive.ErrFenced, func() { mark(newer) },
		func(ctx context.Context, tx Tx) error { return rows.Check(ctx, tx, former, "k") })

	play("once", nil, func() {
		must(t, "once", inTx(ctx, target, func(ctx context.Context, tx Tx) error {
			_, err := leases.Once(ctx, tx, "op", nil, func(context.Context) ([]byte, error) { return []byte("first"), nil })
			return err
		}))
	}, func(ctx context.Context, tx Tx) error {
		result, err := onOld.Once(ctx, tx, "op", nil, nil2(t))
		if err == nil && string(result) != "first" {
			t.Errorf("once: %q", result)
		}
		return err
	})

	tasks, tasksOnOld := tasksOn(t, target, uniquetask.Config{NoRenew: true, TTL: forever}), tasksOn(t, old, uniquetask.Config{})
	wantErr(t, "a run that was taken over", tasks.Do(ctx, "run", func(_ context.Context, g exclusive.Grant) error {
		play("check of a former run", exclusive.ErrFenced, func() {
			must(t, "release", tasksOnOld.Release(ctx, "run"))
			must(t, "take over", tasksOnOld.Do(ctx, "run", nothing))
		}, func(ctx context.Context, tx Tx) error { return tasksOnOld.Check(ctx, tx, g) })
		return nil
	}), exclusive.ErrFenced)

	jobs, jobsOnOld := jobsOn(t, target, jobConfig(), ""), moreJobs(t, old, jobConfig())
	for _, id := range []string{"claimed", "moved", "versioned"} {
		addJob(t, target, id)
	}
	wantErr(t, "a claim that was taken over", jobs.Do(ctx, "claimed", func(_ context.Context, g exclusive.Grant) error {
		play("check of a former claim", exclusive.ErrFenced, func() {
			target.MustExec(t, "UPDATE job SET state = 'PENDING' WHERE id = 'claimed'")
			must(t, "take over", jobsOnOld.Do(ctx, "claimed", nothing))
		}, func(ctx context.Context, tx Tx) error { return jobsOnOld.Check(ctx, tx, g) })
		return nil
	}), exclusive.ErrFenced)
	play("transition", exclusive.ErrDone, func() { must(t, "transition", jobs.Transition(ctx, "moved", "PENDING", "DONE")) },
		func(ctx context.Context, tx Tx) error {
			return jobsOnOld.TransitionTx(ctx, tx, "moved", "PENDING", "DONE")
		})

	versions, err := casupdate.NewVersioned(old.DB, casupdate.VersionConfig{Table: "job", Key: casupdate.Text("id")})
	must(t, "versioned", err)
	play("versioned", exclusive.ErrConflict, func() { target.MustExec(t, "UPDATE job SET version = 5 WHERE id = 'versioned'") },
		func(ctx context.Context, tx Tx) error {
			return second(versions.UpdateTx(ctx, tx, "versioned", 0, casupdate.Set{"state": "OVERWRITTEN"}))
		})
	if n := target.Int(t, "SELECT COUNT(*) FROM job WHERE state = 'OVERWRITTEN'"); n != 0 {
		t.Error("an old version has overwritten a newer one")
	}
}

// Every setting of a connection gives the same answers: a key is held, renewed,
// lost, taken over and done. The cause is that of B044: a session that means
// something else by the same statement.
func TestMySQLOwn_SettingsOfTheDSN(t *testing.T) {
	t.Parallel()
	matrix.Drivers(t, testSettings[pgx.Tx], testSettings[*sql.Tx], "postgres", "mysql", "mariadb")
}

func testSettings[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	target.Migrate(t, "")
	jobsOn(t, target, jobConfig(), "")
	plain := leasesOn(t, target, fencing.Config{})
	for _, setting := range dsn.Settings(target.Dialect) {
		t.Run(setting.Name, func(t *testing.T) {
			ctx := t.Context()
			there := target.Another(t, matrix.Options{Params: setting.Params})
			x := leasesOn(t, there, fencing.Config{NoRenew: true, TTL: forever})
			key := setting.Name + ` \ ' " ` // quoting too
			lease := acquire(t, x, key)
			must(t, "renew", lease.Renew(ctx))
			_, err := plain.TryAcquire(ctx, key)
			wantErr(t, "another connection", err, exclusive.ErrHeld)
			var e *exclusive.Error
			if !errors.As(err, &e) || e.Holder == nil || e.Holder.Expires.Sub(e.Holder.Since).Round(time.Minute) != forever {
				t.Errorf("the holder is %+v; its lease has %v", e.Holder, forever)
			}
			target.MustExec(t, "UPDATE exclusive_lease SET expires_at = 1000 WHERE lease_key = ?", []byte(key))
			wantErr(t, "renew of an expired lease", lease.Renew(ctx), exclusive.ErrLost)
			next := acquire(t, x, key)
			if next.Grant().Token <= lease.Grant().Token {
				t.Errorf("token %d after %d", next.Grant().Token, lease.Grant().Token)
			}
			must(t, "release", next.Release(ctx))
			tasks := tasksOn(t, there, uniquetask.Config{})
			must(t, "do", tasks.Do(ctx, key, func(ctx context.Context, g exclusive.Grant) error {
				return errors.Join(tasks.SetResult(g, []byte(key)), tasks.Commit(ctx, g, func(context.Context, Tx) error { return nil }))
			}))
			err = tasks.Do(ctx, key, nothing)
			wantErr(t, "again", err, exclusive.ErrDone)
			if !errors.As(err, &e) || string(e.Result) != key {
				t.Errorf("the result is %q; want %q", e.Result, key)
			}
			addJob(t, target, key)
			jobs := moreJobs(t, there, jobConfig())
			must(t, "job", jobs.Do(ctx, key, nothing))
			wantErr(t, "job again", jobs.Do(ctx, key, nothing), exclusive.ErrDone)
			if err := locksOn(t, there, rowlock.Config{}).Do(ctx, key, nothing); err != nil {
				t.Errorf("rowlock: %v", err)
			}
		})
	}
}

// Only a duplicate key is taken for one: every other refusal of a claim is told as
// what it is, and work does not run.
func TestTrap_OtherErrorsAreNoDuplicates(t *testing.T) {
	onMySQL(t, func(t *testing.T, target *matrix.Target[*sql.Tx]) {
		ctx := t.Context()
		target.Migrate(t, "")
		lax := target.Another(t, matrix.Options{Params: map[string]string{"sql_mode": "''"}})
		for table, column := range map[string]string{"exclusive_task": "task", "exclusive_lease": "lease_key", "exclusive_lock": "lock_key", "exclusive_mark": "mark_key", "exclusive_op": "op_id"} {
			// Whatever the claim is, the server has another reason against it.
			target.MustExec(t, fmt.Sprintf("CREATE TRIGGER no_%s BEFORE INSERT ON %s FOR EACH ROW SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not today'", column, table))
		}
		for mode, there := range map[string]*matrix.Target[*sql.Tx]{"strict": target, "lax": lax} {
			x := leasesOn(t, there, fencing.Config{})
			guard, err := fencing.NewGuard(there.DB, fencing.GuardConfig{})
			must(t, "guard", err)
			ran := func(context.Context, exclusive.Grant) error { t.Error("work ran"); return nil }
			calls := map[string]func() error{
				"fencing":    func() error { return x.Do(ctx, "k", ran) },
				"uniquetask": func() error { return tasksOn(t, there, uniquetask.Config{}).Do(ctx, "k", ran) },
				"rowlock":    func() error { return locksOn(t, there, rowlock.Config{}).Do(ctx, "k", ran) },
				"guard":      func() error { return guard.Register(ctx, exclusive.Grant{Key: "k", Token: 1, ID: "id"}) },
				"once": func() error {
					return inTx(ctx, there, func(ctx context.Context, tx *sql.Tx) error {
						_, err := x.Once(ctx, tx, "op", nil, func(context.Context) ([]byte, error) { t.Error("it was applied"); return nil, nil })
						return err
					})
				},
			}
			for _, name := range slices.Sorted(maps.Keys(calls)) {
				err := calls[name]()
				wantErr(t, mode+" "+name, err, exclusive.ErrUnavailable)
				not(t, mode+" "+name, err, exclusive.ErrHeld, exclusive.ErrDone, exclusive.ErrFenced)
			}
		}
	})
}
