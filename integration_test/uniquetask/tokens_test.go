package uniquetask_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/integration_test/cases/session"
	"github.com/exclusive-go/exclusive/integration_test/matrix"
	"github.com/exclusive-go/exclusive/uniquetask"
)

// A claim that stalls between choosing its token and inserting its row must not
// bring back a number of a run that was worked on and forgotten meanwhile.
func TestTokensRiseOverStalledClaim(t *testing.T) {
	matrix.Drivers(t, testTokensRiseOverStalledClaim, testTokensRiseOverStalledClaim, "postgres", "mysql", "mariadb")
}

func testTokensRiseOverStalledClaim[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	// READ COMMITTED: each statement reads a snapshot of its own, and locks
	// nothing by reading. It is what PostgreSQL has anyway.
	o := matrix.Options{}
	if level := map[string]string{"mysql": "transaction_isolation", "mariadb": "tx_isolation"}[target.Dialect]; level != "" {
		o.Params = map[string]string{level: "'READ-COMMITTED'"}
	}
	target = target.Another(t, o)
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	patient := *target
	patient.DB = matrix.Patient[Tx]{DB: target.DB} // on MySQL it would give up before it is met
	stalled := newTasks(t, &patient, uniquetask.Config{Holder: "stalled"})
	other := newTasks(t, target, uniquetask.Config{Holder: "other"})
	must(t, "do of another run", stalled.Do(ctx, "before", nothing)) // its connection and statement are ready

	release := stallInserts(t, target, "stalled")
	var mu sync.Mutex
	var tokens []string
	highest := int64(0)
	note := func(_ context.Context, g exclusive.Grant) error {
		mu.Lock()
		defer mu.Unlock()
		tokens = append(tokens, fmt.Sprint(g.Token))
		if g.Token <= highest {
			t.Errorf("the tokens of the run are %s", strings.Join(tokens, ", "))
		}
		highest = g.Token
		return nil
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		err := stalled.Do(ctx, "r", note)
		// Somebody else may have been faster.
		if err != nil && !errors.Is(err, exclusive.ErrHeld) && !errors.Is(err, exclusive.ErrDone) {
			t.Errorf("the stalled claim: %v", err)
		}
	})
	session.AwaitWaiting(t, target.Plain, target.Dialect, 1, nil) // for our lock, in the trigger
	rounds := make(chan struct{})
	wg.Go(func() {
		defer close(rounds)
		for range 3 {
			if err := other.Do(ctx, "r", note); err != nil && !errors.Is(err, exclusive.ErrHeld) && !errors.Is(err, exclusive.ErrDone) { // by the stalled one
				t.Errorf("do: %v", err)
			}
			if err := other.Forget(ctx, "r"); err != nil && !errors.Is(err, exclusive.ErrHeld) && !errors.Is(err, exclusive.ErrConflict) {
				t.Errorf("forget: %v", err)
			}
		}
	})
	// Either all of it goes by, or it waits for the stalled claim.
	session.AwaitWaiting(t, target.Plain, target.Dialect, 2, func() bool {
		select {
		case <-rounds:
			return true
		default:
			return false
		}
	})
	release()
	wg.Wait()
	must(t, "forget", other.Forget(ctx, "r"))
	must(t, "do", other.Do(ctx, "r", note))
}

// stallInserts makes inserts of a holder's rows wait until release is called.
func stallInserts[Tx any](t *testing.T, target *matrix.Target[Tx], holder string) (release func()) {
	t.Helper()
	conn, err := target.Plain.Conn(t.Context())
	must(t, "connect", err)
	name := fmt.Sprintf("stall %d", rand.Int64())
	lock, unlock := "SELECT GET_LOCK('"+name+"', 20)", "SELECT RELEASE_LOCK('"+name+"')"
	if target.Dialect == "postgres" {
		lock, unlock = "SELECT pg_advisory_lock(4711)", "SELECT pg_advisory_unlock(4711)" // of this database
		target.MustExec(t, `CREATE FUNCTION stall() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			IF NEW.holder = '`+holder+`' THEN PERFORM pg_advisory_xact_lock_shared(4711); END IF; RETURN NEW; END $$`)
		target.MustExec(t, `CREATE TRIGGER stall BEFORE INSERT ON exclusive_task FOR EACH ROW EXECUTE FUNCTION stall()`)
	} else {
		target.MustExec(t, `CREATE TRIGGER stall BEFORE INSERT ON exclusive_task FOR EACH ROW
			BEGIN IF NEW.holder = '`+holder+`' THEN DO GET_LOCK('`+name+`', 60); DO RELEASE_LOCK('`+name+`'); END IF; END`)
	}
	_, err = conn.ExecContext(t.Context(), lock)
	must(t, "lock", err)
	release = sync.OnceFunc(func() {
		_, err := conn.ExecContext(context.Background(), unlock)
		if err = errors.Join(err, conn.Close()); err != nil {
			t.Errorf("unlock: %v", err)
		}
	})
	t.Cleanup(release)
	return release
}

// Runs are claimed, committed, forgotten and pruned by many at once. The tokens
// of each run, in the order in which the destination saw them, rise.
func TestTokensHammer(t *testing.T) { matrix.Drivers(t, testTokensHammer, testTokensHammer) }

func testTokensHammer[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	const runs, workers, rounds = 3, 6, 25
	target.MustExec(t, "CREATE TABLE seen (run bigint NOT NULL, n bigint NOT NULL, token bigint NOT NULL, PRIMARY KEY (run, n))")
	target.MustExec(t, "CREATE TABLE last (run bigint PRIMARY KEY, n bigint NOT NULL)")
	for run := range runs {
		target.MustExec(t, "INSERT INTO last VALUES (?, 0)", run)
	}
	ctx := t.Context()
	processes := []*uniquetask.Tasks[Tx]{
		newTasks(t, target, uniquetask.Config{}),
		newTasks(t, target.Another(t, matrix.Options{}), uniquetask.Config{}),
	}
	// The n of a run's entries is in the order of their commits: the run's row
	// in last is locked until then.
	see := func(ctx context.Context, tx Tx, run int, token int64) error {
		return errors.Join(
			target.Exec(ctx, tx, target.Bind("UPDATE last SET n = n + 1 WHERE run = ?"), run),
			target.Exec(ctx, tx, target.Bind("INSERT INTO seen SELECT run, n, "+fmt.Sprint(token)+" FROM last WHERE run = ?"), run))
	}
	var commits atomic.Int64
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			x := processes[w%2]
			for range rounds {
				run := rand.N(runs)
				key := fmt.Sprint("r", run)
				var err error
				switch rand.N(5) {
				case 0:
					err = x.Forget(ctx, key)
				case 1:
					_, err = x.Prune(ctx, 0)
				case 2:
					err = x.Do(ctx, key, fails)
				default:
					err = x.Do(ctx, key, func(ctx context.Context, g exclusive.Grant) error {
						return x.Commit(ctx, g, func(ctx context.Context, tx Tx) error { return see(ctx, tx, run, g.Token) })
					})
					if err == nil {
						commits.Add(1)
					}
				}
				switch {
				case err == nil, errors.Is(err, errBusiness), errors.Is(err, exclusive.ErrHeld), errors.Is(err, exclusive.ErrDone), errors.Is(err, exclusive.ErrConflict):
				default:
					t.Errorf("%s: %v", key, err)
				}
			}
		})
	}
	wg.Wait()
	if n := commits.Load(); n == 0 || target.Int(t, "SELECT COUNT(*) FROM seen") != n {
		t.Errorf("%d commits, and the destination has seen %d", n, target.Int(t, "SELECT COUNT(*) FROM seen"))
	}
	judgeTokens(t, target.Plain)
}

func judgeTokens(t *testing.T, pool *sql.DB) {
	t.Helper()
	rows, err := pool.QueryContext(t.Context(), "SELECT run, token FROM seen ORDER BY run, n")
	must(t, "read", err)
	defer rows.Close()
	last := make(map[int64]int64)
	for rows.Next() {
		var run, token int64
		must(t, "scan", rows.Scan(&run, &token))
		if token <= last[run] {
			t.Errorf("run %d: token %d came after %d", run, token, last[run])
		}
		last[run] = token
	}
	must(t, "read", rows.Err())
}

// The twin: a row that is removed past Forget and Prune takes its token with
// it, and the next grant gets the same again.
func TestTokensRiseUnguarded(t *testing.T) {
	matrix.Drivers(t, testTokensRiseUnguarded, testTokensRiseUnguarded)
}

func testTokensRiseUnguarded[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	x := newTasks(t, target, uniquetask.Config{})
	var tokens [2]int64
	for i := range tokens {
		must(t, "do", x.Do(t.Context(), "r", func(_ context.Context, g exclusive.Grant) error { tokens[i] = g.Token; return nil }))
		target.MustExec(t, "DELETE FROM exclusive_task")
	}
	if tokens[0] < tokens[1] {
		t.Errorf("the tokens are %d: the tests of rising tokens prove nothing", tokens)
	}
}
