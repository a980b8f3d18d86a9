package uniquetask_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/integration_test/matrix"
	"github.com/exclusive-go/exclusive/integration_test/proxy"
	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/uniquetask"
)

// through puts a proxy between a new pool of target and its server.
func through[Tx any](t *testing.T, target *matrix.Target[Tx]) (*matrix.Target[Tx], *proxy.Proxy) {
	t.Helper()
	p := proxy.Start(t, target.Addr(t))
	return target.Another(t, matrix.Options{Addr: p.Addr(), MaxConns: 2}), p
}

// once makes a judge that gives its verdict on the first piece of data that has
// one of the words.
func once(verdict proxy.Verdict, words ...string) (judge func([]byte) proxy.Verdict, met *atomic.Bool) {
	met = new(atomic.Bool)
	return func(data []byte) proxy.Verdict {
		for _, word := range words {
			if bytes.Contains(bytes.ToUpper(data), []byte(word)) && met.CompareAndSwap(false, true) {
				return verdict
			}
		}
		return proxy.Pass
	}, met
}

// Round trips are counted on the wire. Drivers that prepare statements on each
// connection do so before the count.
func TestRoundTrips(t *testing.T) { matrix.Drivers(t, testRoundTrips, testRoundTrips) }

func testRoundTrips[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	if !target.Networked() {
		return
	}
	setUp(t, target)
	p := proxy.Start(t, target.Addr(t))
	far := target.Another(t, matrix.Options{Addr: p.Addr(), MaxConns: 2, NoPing: true})
	x := newTasks(t, far, uniquetask.Config{TTL: time.Minute})
	ctx := t.Context()
	each := int64(1)
	if target.Name == "lib_pq" { // sends a statement with arguments in two steps, always
		each = 2
	}
	// BEGIN, finish, the write, COMMIT; and a savepoint that proves on MySQL
	// and MariaDB that the server has not ended the transaction.
	commit := each + 3
	if target.Name == "pgx" {
		commit-- // BEGIN travels with the finish
	}
	if target.Dialect == "mysql" || target.Dialect == "mariadb" {
		commit += 2
	}
	// MySQL tells nothing about a row that refuses: a second statement reads it.
	refused := each
	if target.Dialect == "mysql" {
		refused = 2
	}
	failing := func(run string, work exclusive.Work, kind error) func() {
		return func() { wantErr(t, run, x.Do(ctx, run, work), kind) }
	}
	for i := range 4 {
		run := fmt.Sprint("r", i)
		for _, step := range []struct {
			what string
			do   func()
			want int64
		}{
			{"claim and fail", failing(run, fails, errBusiness), 2 * each},
			{"claim again and finish", func() { must(t, "do", x.Do(ctx, run, nothing)) }, 2 * each},
			{"done", failing(run, nothing, exclusive.ErrDone), refused},
			{"claim and commit", func() {
				must(t, "do", x.Do(ctx, "commit"+run, func(ctx context.Context, g exclusive.Grant) error {
					return x.Commit(ctx, g, func(ctx context.Context, tx Tx) error {
						return far.Exec(ctx, tx, "UPDATE effect SET n = n + 1")
					})
				}))
			}, each + commit},
			{"held", func() {
				var before, after int64
				must(t, "do", x.Do(ctx, "held"+run, func(ctx context.Context, _ exclusive.Grant) error {
					before = p.RoundTrips()
					err := x.Do(ctx, "held"+run, nothing)
					after = p.RoundTrips()
					wantErr(t, "held", err, exclusive.ErrHeld)
					return nil
				}))
				if n := after - before; i > 1 && n != refused {
					t.Errorf("refused: %d round trips, want %d", n, refused)
				}
			}, 2*each + refused},
		} {
			before := p.RoundTrips()
			step.do()
			if n := p.RoundTrips() - before; i > 1 && n != step.want {
				t.Errorf("%s: %d round trips, want %d", step.what, n, step.want)
			}
		}
	}
}

// A COMMIT whose answer is lost is looked up. A COMMIT that never arrived has
// not happened.
func TestCommitWithoutAnswer(t *testing.T) {
	matrix.Drivers(t, testCommitWithoutAnswer, testCommitWithoutAnswer)
}

func testCommitWithoutAnswer[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	if !target.Networked() {
		return
	}
	setUp(t, target)
	far, p := through(t, target)
	x := newTasks(t, far, uniquetask.Config{})
	other := newTasks(t, target, uniquetask.Config{})
	for run, verdict := range map[string]proxy.Verdict{"answer lost": proxy.CutAfter, "never arrived": proxy.Cut} {
		before := target.Int(t, "SELECT n FROM effect")
		judge, met := once(verdict, "COMMIT")
		work := func(ctx context.Context, g exclusive.Grant) error {
			must(t, "set result", x.SetResult(g, []byte(run)))
			return x.Commit(ctx, g, func(ctx context.Context, tx Tx) error {
				defer p.Intercept(judge)
				return store(far, run)(ctx, tx)
			})
		}
		err := x.Do(t.Context(), run, work)
		if !met.Load() {
			t.Error("the proxy met no COMMIT")
		}
		p.Intercept(nil)
		effects := target.Int(t, "SELECT n FROM effect") - before
		if verdict == proxy.CutAfter {
			must(t, run, err)
			if effects != 1 {
				t.Errorf("%s: reported as committed with %d effects", run, effects)
			}
		} else {
			wantErr(t, run, err, exclusive.ErrConflict)
			if effects != 0 {
				t.Errorf("%s: reported as not committed with %d effects", run, effects)
			}
			must(t, "the whole call again", x.Do(t.Context(), run, work))
		}
		if e := wantErr(t, run, other.Do(t.Context(), run, fails), exclusive.ErrDone); string(e.Result) != run {
			t.Errorf("replayed %q", e.Result)
		}
		if n := target.Int(t, "SELECT n FROM effect") - before; n != 1 {
			t.Errorf("%s: %d effects in the end", run, n)
		}
	}
}

// A claim or a finish whose answer is lost has one effect.
func TestStatementsWithoutAnswer(t *testing.T) {
	matrix.Drivers(t, testStatementsWithoutAnswer, testStatementsWithoutAnswer)
}

func testStatementsWithoutAnswer[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	if !target.Networked() {
		return
	}
	setUp(t, target)
	ctx := t.Context()
	other := newTasks(t, target, uniquetask.Config{MaxAttempts: 1, Wait: 5 * time.Second})
	for _, statement := range []string{"claim", "finish"} {
		// One connection that is known, so that every statement goes there: a
		// prepared one does not show its text again.
		far, p := through(t, target)
		x := newTasks(t, far, uniquetask.Config{MaxAttempts: 1, Wait: 5 * time.Second})
		var worked int
		judge, met := once(proxy.CutAfter, map[string]string{"claim": "INSERT INTO", "finish": "SET RESULT"}[statement])
		must(t, "the schema is checked", x.Do(ctx, "warm "+statement, nothing))
		p.Cut() // what was prepared is forgotten
		p.Intercept(judge)
		err := x.Do(ctx, statement, func(_ context.Context, g exclusive.Grant) error {
			worked++
			if g.Token != 1 || g.Attempt != 1 {
				t.Errorf("grant %+v", g)
			}
			return nil
		})
		p.Intercept(nil)
		if !met.Load() {
			t.Errorf("the proxy met no %s", statement)
		}
		// The retry knew its own, or nothing had run.
		if err != nil {
			wantErr(t, statement, err, exclusive.ErrUnavailable)
			if worked != 0 {
				t.Errorf("%s: work ran and Do says %v", statement, err)
			}
			must(t, "do", other.Do(ctx, statement, nothing))
			continue
		}
		wantErr(t, "do of the other", other.Do(ctx, statement, fails), exclusive.ErrDone)
		if worked != 1 {
			t.Errorf("%s: work ran %d times", statement, worked)
		}
	}
}

// A failure that was recorded without an answer is known as one, also when somebody has
// begun another attempt by the time that it is sent again: nothing was lost.
func TestFailureWithoutAnswer(t *testing.T) {
	matrix.Drivers(t, testFailureWithoutAnswer, testFailureWithoutAnswer, "postgres", "mysql", "mariadb")
}

func testFailureWithoutAnswer[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	far, p := through(t, target)
	x, other := newTasks(t, far, uniquetask.Config{}), newTasks(t, target, uniquetask.Config{})
	recorded := errBusiness.Error() // and not what prepares the statement
	if target.Dialect != "postgres" {
		recorded = "SET error" // texts are written there in another way
	}
	var sent atomic.Int64
	err := x.Do(t.Context(), "r", func(context.Context, exclusive.Grant) error {
		p.Intercept(func(data []byte) proxy.Verdict {
			if !bytes.Contains(data, []byte(recorded)) {
				return proxy.Pass
			}
			if sent.Add(1) == 1 {
				return proxy.CutAfter
			}
			if err := other.Do(t.Context(), "r", nothing); err != nil && !errors.Is(err, exclusive.ErrDone) {
				t.Errorf("the other: %v", err)
			}
			return proxy.Pass
		})
		return errBusiness
	})
	p.Intercept(nil)
	wantErr(t, "do", err, errBusiness)
	if sent.Load() < 2 || errors.Is(err, exclusive.ErrLost) {
		t.Errorf("sent %d times: %v; nothing was lost", sent.Load(), err)
	}
	r, err := other.Outcome(t.Context(), "r")
	must(t, "outcome", err)
	if r.State != uniquetask.Done || len(r.Earlier) != 1 || r.Earlier[0].State != uniquetask.Failed {
		t.Errorf("stored: %+v", r)
	}
}

// The claim's answer comes too late for the caller: the run is given back, and
// what never began is no attempt.
func TestClaimGivenUp(t *testing.T) { matrix.Drivers(t, testClaimGivenUp, testClaimGivenUp) }

func testClaimGivenUp[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	if !target.Networked() {
		return
	}
	setUp(t, target)
	far, p := through(t, target)
	x := newTasks(t, far, uniquetask.Config{MaxAttempts: 1})
	other := newTasks(t, target, uniquetask.Config{MaxAttempts: 1, Wait: 10 * time.Second})
	must(t, "the schema is checked", x.Do(t.Context(), "warm", nothing))
	p.Intercept(func([]byte) proxy.Verdict { return proxy.Mute })
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	start := time.Now()
	err := x.Do(ctx, "r", fails)
	wantErr(t, "do", err, context.DeadlineExceeded)
	if errors.Is(err, errBusiness) || time.Since(start) > 5*time.Second {
		t.Errorf("%v after %v", err, time.Since(start))
	}
	p.Intercept(nil)
	p.Cut()
	must(t, "do of the other", other.Do(t.Context(), "r", nothing))
	if waited := time.Since(start); waited > 9*time.Second {
		t.Errorf("the run was free after %v", waited)
	}
}

// The holder cannot reach the server any more: it knows the end by itself,
// before anybody else can have the run.
func TestLossIsKnownBeforeTakeover(t *testing.T) {
	matrix.Drivers(t, testLossIsKnownBeforeTakeover, testLossIsKnownBeforeTakeover)
}

func testLossIsKnownBeforeTakeover[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	if !target.Networked() {
		return
	}
	setUp(t, target)
	const long = 4 * time.Second
	far, p := through(t, target)
	x := newTasks(t, far, uniquetask.Config{TTL: long})
	rival := newTasks(t, target, uniquetask.Config{Wait: 20 * time.Second})
	must(t, "the schema is checked", rival.Do(t.Context(), "warm", nothing))
	var lost atomic.Bool
	taken := make(chan error, 1)
	err := x.Do(t.Context(), "r", func(ctx context.Context, g exclusive.Grant) error {
		p.Intercept(func([]byte) proxy.Verdict { return proxy.Swallow })
		go func() {
			taken <- rival.Do(t.Context(), "r", func(context.Context, exclusive.Grant) error {
				if !lost.Load() {
					return errors.New("taken over before the holder knew")
				}
				return nil
			})
		}()
		<-ctx.Done()
		lost.Store(true)
		return context.Cause(ctx)
	})
	wantErr(t, "do", err, exclusive.ErrLost)
	must(t, "takeover", <-taken)
	p.Cut()
}

// One broken connection is no loss, and neither is a killed one in a Commit.
func TestBrokenConnection(t *testing.T) {
	matrix.Drivers(t, testBrokenConnection, testBrokenConnection)
}

func testBrokenConnection[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	if !target.Networked() {
		return
	}
	setUp(t, target)
	const long = 6 * time.Second
	far, p := through(t, target)
	x := newTasks(t, far, uniquetask.Config{TTL: long})
	err := x.Do(t.Context(), "r", func(ctx context.Context, g exclusive.Grant) error {
		for range 2 {
			p.Cut()
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-time.After(long):
			}
		}
		err := x.Commit(ctx, g, func(ctx context.Context, tx Tx) error {
			p.Cut()
			return store(far, "broken")(ctx, tx)
		})
		if err == nil || stored(t, target) != "nothing" {
			t.Errorf("commit on a broken connection: %v, stored %q", err, stored(t, target))
		}
		return x.Commit(ctx, g, store(far, "written"))
	})
	must(t, "do", err)
	if body := stored(t, target); body != "written" {
		t.Errorf("stored %q", body)
	}
}

// Work never runs without a claim, and no failure looks like somebody else's
// work.
func TestUnavailable(t *testing.T) { matrix.Drivers(t, testUnavailable, testUnavailable) }

func testUnavailable[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	ctx := t.Context()
	work := func(context.Context, exclusive.Grant) error {
		t.Error("work ran")
		return nil
	}
	check := func(what string, x *uniquetask.Tasks[Tx], kind error) {
		t.Helper()
		_, outcome := x.Outcome(ctx, "r")
		_, runs := x.Runs(ctx, uniquetask.Filter{})
		_, prune := x.Prune(ctx, time.Hour)
		for _, err := range []error{x.Do(ctx, "r", work), outcome, runs, prune, x.Forget(ctx, "r"), x.Release(ctx, "r")} {
			e := wantErr(t, what, err, kind)
			if errors.Is(err, exclusive.ErrHeld) || errors.Is(err, exclusive.ErrDone) || e.Err == nil {
				t.Errorf("%s: %v", what, err)
			}
		}
	}
	check("no table", newTasks(t, target, uniquetask.Config{}), exclusive.ErrSchema)
	setUp(t, target)
	x := newTasks(t, target, uniquetask.Config{})
	must(t, "do", x.Do(ctx, "before", nothing))

	// The table vanishes while work runs: both errors can be seen.
	for _, workErr := range []error{errBusiness, nil} {
		err := x.Do(ctx, fmt.Sprint("r", workErr), func(context.Context, exclusive.Grant) error {
			target.MustExec(t, "ALTER TABLE exclusive_task RENAME TO hidden")
			return workErr
		})
		if workErr != nil {
			wantErr(t, "do", err, errBusiness, exclusive.ErrSchema)
		} else {
			wantErr(t, "do", err, exclusive.ErrOutcomeUnknown)
		}
		target.MustExec(t, "ALTER TABLE hidden RENAME TO exclusive_task")
	}
	gone := target.Another(t, matrix.Options{})
	y := newTasks(t, gone, uniquetask.Config{})
	gone.ClosePool()
	check("closed pool", y, exclusive.ErrUnavailable)
	if target.Networked() {
		check("nobody there", newTasks(t, target.Another(t, matrix.Options{Addr: "127.0.0.1:1"}), uniquetask.Config{}), exclusive.ErrUnavailable)
	}
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	wantErr(t, "do after the end", x.Do(cancelled, "r", work), context.Canceled)
	wantErr(t, "nil work", x.Do(ctx, "r", nil), exclusive.ErrInvalid)
	wantErr(t, "nil apply", x.Commit(ctx, exclusive.Grant{Key: "r", ID: "x", Token: 1}, nil), exclusive.ErrInvalid)
	var nilTx Tx
	wantErr(t, "nil transaction", x.Check(ctx, nilTx, exclusive.Grant{Key: "r", ID: "x", Token: 1}), exclusive.ErrInvalid)
	wantErr(t, "no token", x.Check(ctx, nilTx, exclusive.Grant{Key: "r", ID: "x"}), exclusive.ErrInvalid)
}

// A Commit that is under way is waited for, or told as held, and never
// overtaken; while a row is locked the heartbeat of the others goes on.
func TestClaimDuringCommit(t *testing.T) {
	matrix.Drivers(t, testClaimDuringCommit, testClaimDuringCommit)
}

func testClaimDuringCommit[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	if !target.Networked() {
		return // one writer at a time: the second could not begin
	}
	setUp(t, target)
	x := newTasks(t, target, uniquetask.Config{TTL: ttl, NoRenew: true})
	rival := newTasks(t, target.Another(t, matrix.Options{}), uniquetask.Config{})
	must(t, "do", x.Do(t.Context(), "r", func(ctx context.Context, g exclusive.Grant) error {
		return x.Commit(t.Context(), g, func(ctx context.Context, tx Tx) error {
			must(t, "write", store(target, "slow")(ctx, tx))
			asked := make(chan error, 1)
			// Not the test's context: that ends before the clean-up looks.
			go func() { asked <- rival.Do(context.WithoutCancel(t.Context()), "r", fails) }()
			// Past the lease: the lock is what protects now.
			timer := time.NewTimer(2 * ttl)
			defer timer.Stop()
			select {
			case err := <-asked:
				wantErr(t, "do during the commit", err, exclusive.ErrHeld)
			case <-timer.C:
				t.Cleanup(func() {
					if err := <-asked; !errors.Is(err, exclusive.ErrDone) && !errors.Is(err, exclusive.ErrHeld) {
						t.Errorf("do that waited for the commit: %v", err)
					}
				})
			}
			return nil
		})
	}))
	wantErr(t, "do", rival.Do(t.Context(), "r", nothing), exclusive.ErrDone)
	if body := stored(t, target); body != "slow" {
		t.Errorf("stored %q", body)
	}
}

// Two who insert behind a third that rolls back collide inside InnoDB (1213).
func TestInsertRace(t *testing.T) { matrix.Drivers(t, testInsertRace, testInsertRace) }

func testInsertRace[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	if !target.Networked() {
		return
	}
	setUp(t, target)
	x := newTasks(t, target, uniquetask.Config{})
	for _, end := range []string{"rollback", "commit"} {
		tx, err := target.BeginPast(t.Context())
		must(t, "begin", err)
		must(t, "insert", target.Exec(t.Context(), tx, `INSERT INTO exclusive_task
			(task, run, state, grant_id, holder, token, attempt, started_at, ended_at, free_at, result, error, history)
			VALUES (`+target.Bind("?, ?, 'done', 'g', 'h', 1, 1, 1, 1, 1, ?, '', '')"), []byte("report"), []byte(end), []byte("theirs")))
		var worked atomic.Int64
		var wg sync.WaitGroup
		var began sync.WaitGroup
		began.Add(2)
		for range 2 {
			wg.Go(func() {
				began.Done()
				err := x.Do(t.Context(), end, func(context.Context, exclusive.Grant) error { worked.Add(1); return nil })
				var e *exclusive.Error
				if err != nil && !errors.Is(err, exclusive.ErrDone) && !errors.Is(err, exclusive.ErrHeld) {
					t.Errorf("%s: %v", end, err)
				}
				if errors.As(err, &e) && errors.Is(err, exclusive.ErrDone) && end == "commit" && string(e.Result) != "theirs" {
					t.Errorf("replayed %q", e.Result)
				}
			})
		}
		began.Wait()
		time.Sleep(200 * time.Millisecond) // no signal says that a statement waits inside the server
		if end == "commit" {
			must(t, end, target.DB.Commit(t.Context(), tx))
		} else {
			must(t, end, target.DB.Rollback(tx))
		}
		wg.Wait()
		if o := outcome(t, x, end); end == "commit" && (worked.Load() != 0 || string(o.Result) != "theirs") ||
			end == "rollback" && worked.Load() == 1 != (o.State == uniquetask.Done) || worked.Load() > 1 {
			t.Errorf("%s: work ran %d times, %+v", end, worked.Load(), o)
		}
	}
}

// Claims that fail over serialization are repeated, and the caller's own
// transaction is told that it conflicted.
func TestIsolation(t *testing.T) {
	matrix.Drivers(t, testIsolation, testIsolation, "postgres")
}

func testIsolation[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	for _, level := range []string{"repeatable read", "serializable"} {
		hammer(t, target.Isolated(t, level), 8, 10, 4, strings.Fields(level)[0])
	}
}

func TestHammer(t *testing.T) { matrix.Drivers(t, testHammer, testHammer) }

func testHammer[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	hammer(t, target, 8, 1, 8, "one")
	hammer(t, target, 8, 20, 3, "many")
	hammer(t, target, 64, 4, 1, "crowd")
}

// hammer lets workers fight for runs whose attempts fail, panic, are cancelled
// and commit. Each run must have one effect, of the attempt
// that it shows, and no two attempts may overlap.
func hammer[Tx any](t *testing.T, target *matrix.Target[Tx], workers, runs, rounds int, name string) {
	t.Helper()
	target.MustExec(t, "UPDATE effect SET n = 0")
	x := newTasks(t, target, uniquetask.Config{})
	y := newTasks(t, target.Another(t, matrix.Options{}), uniquetask.Config{})
	inside := make([]atomic.Int64, runs)
	done := make([]atomic.Int64, runs)
	attempt := func(x *uniquetask.Tasks[Tx], i int) (err error) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		what := rand.N(5)
		defer func() {
			if p := recover(); p != nil {
				err = errBusiness
			}
		}()
		if what == 4 {
			time.AfterFunc(rand.N(20*time.Millisecond), cancel)
		}
		return x.Do(ctx, fmt.Sprint(name, i), func(ctx context.Context, g exclusive.Grant) error {
			if inside[i].Add(1) != 1 {
				t.Errorf("run %d has two holders", i)
			}
			defer inside[i].Add(-1)
			switch what {
			case 0:
				return errBusiness
			case 1:
				panic("boom")
			}
			return x.Commit(ctx, g, func(ctx context.Context, tx Tx) error {
				return target.Exec(ctx, tx, "UPDATE effect SET n = n + 1 WHERE id = 1")
			})
		})
	}
	var wg sync.WaitGroup
	var succeeded atomic.Bool
	end := time.Now().Add(20 * time.Second)
	for w := range workers {
		wg.Go(func() {
			tasks := []*uniquetask.Tasks[Tx]{x, y}[w%2]
			// Most attempts find the run held, and those that have it may all fail.
			for round := 0; round < rounds || !succeeded.Load() && time.Now().Before(end); round++ {
				for _, i := range rand.Perm(runs) {
					switch err := attempt(tasks, i); {
					case err == nil:
						done[i].Add(1)
						succeeded.Store(true)
					case errors.Is(err, exclusive.ErrHeld), errors.Is(err, exclusive.ErrDone), errors.Is(err, errBusiness),
						errors.Is(err, context.Canceled), errors.Is(err, exclusive.ErrConflict):
					default:
						t.Errorf("a worker got %v", err)
					}
				}
			}
		})
	}
	wg.Wait()
	finished := target.Int(t, "SELECT COUNT(*) FROM exclusive_task WHERE state = 'done' AND "+likeRun(target.Dialect, name))
	if n := target.Int(t, "SELECT n FROM effect"); n != finished {
		t.Errorf("%s: %d effects of %d runs that are done", name, n, finished)
	}
	var told int64
	for i := range done {
		if n := done[i].Load(); n > 1 {
			t.Errorf("%s: run %d was done %d times", name, i, n)
		} else {
			told += n
		}
	}
	if told > finished || told == 0 {
		t.Errorf("%s: %d times nil, %d runs done", name, told, finished)
	}
}

// likeRun is the condition that a key begins with prefix.
func likeRun(dialect, prefix string) string {
	switch dialect {
	case "postgres":
		return "run LIKE '" + prefix + "%'::bytea"
	case "sqlite":
		return "CAST(run AS TEXT) LIKE '" + prefix + "%'"
	}
	return "run LIKE '" + prefix + "%'"
}

// The twin of the hammer: with a read and then an insert, as without this
// package, work runs twice.
func TestHammerWithoutGuard(t *testing.T) {
	matrix.Drivers(t, testHammerWithoutGuard, testHammerWithoutGuard)
}

func testHammerWithoutGuard[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	target.MustExec(t, "CREATE TABLE ran (run varchar(20) NOT NULL)")
	var looked, wg sync.WaitGroup
	looked.Add(2)
	for range 2 {
		wg.Go(func() {
			n := target.Int(t, "SELECT COUNT(*) FROM ran WHERE run = 'r'")
			looked.Done()
			looked.Wait()
			if n == 0 {
				target.MustExec(t, "INSERT INTO ran VALUES ('r')")
				target.MustExec(t, "UPDATE effect SET n = n + 1")
			}
		})
	}
	wg.Wait()
	if n := target.Int(t, "SELECT n FROM effect"); n != 2 {
		t.Errorf("%d effects without the guard: this test cannot tell", n)
	}
}

// Names of schemas and prefixes are used everywhere, and quoted.
func TestSchema(t *testing.T) { matrix.Drivers(t, testSchema, testSchema, "postgres") }

func testSchema[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target) // decoys, first in the search path
	ctx := t.Context()
	for _, schema := range []string{"locks", "Tenant", "order by"} {
		schema = target.Schema(t, schema)
		for table, name := range map[string]string{"exclusive_task": "my_task", "exclusive_task_floor": "my_task_floor"} {
			target.MustExec(t, `CREATE TABLE "`+schema+`".`+name+` (LIKE `+table+` INCLUDING ALL)`)
		}
		x := newTasks(t, target, uniquetask.Config{Schema: schema, Prefix: "my_"})
		wantErr(t, "do", x.Do(ctx, "r", fails), errBusiness)
		must(t, "do", x.Do(ctx, "r", func(ctx context.Context, g exclusive.Grant) error { return x.Commit(ctx, g, store(target, schema)) }))
		if o := outcome(t, x, "r"); o.Token != 2 {
			t.Errorf("%+v", o)
		}
		must(t, "forget", x.Forget(ctx, "r"))
		must(t, "do", x.Do(ctx, "r", nothing))
		_, err := x.Prune(ctx, 0)
		must(t, "prune", err)
		_, err = x.Runs(ctx, uniquetask.Filter{})
		must(t, "list", err)
		must(t, "release", x.Release(ctx, "r"))
	}
	if n := target.Int(t, "SELECT (SELECT COUNT(*) FROM exclusive_task) + (SELECT COUNT(*) FROM exclusive_task_floor)"); n != 0 {
		t.Errorf("%d rows in the decoys", n)
	}
}

// A finish that races a heartbeat is neither lost nor undone.
func TestRenewalRacesFinish(t *testing.T) {
	matrix.Drivers(t, testRenewalRacesFinish, testRenewalRacesFinish)
}

func testRenewalRacesFinish[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	// The heartbeats are due after two seconds; work ends around then.
	const runs = 12
	x := newTasks(t, target, uniquetask.Config{TTL: 6 * time.Second})
	var wg sync.WaitGroup
	for i := range runs {
		wg.Go(func() {
			err := x.Do(t.Context(), fmt.Sprint("r", i), func(ctx context.Context, g exclusive.Grant) error {
				timer := time.NewTimer(1900*time.Millisecond + rand.N(200*time.Millisecond))
				defer timer.Stop()
				select {
				case <-timer.C:
				case <-ctx.Done():
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := target.Int(t, "SELECT COUNT(*) FROM exclusive_task WHERE state = 'done'"); n != runs {
		t.Errorf("%d runs are done", n)
	}
}

// twice is an adapter that can send the last claim of this holder once more.
type twice[Tx any] struct {
	db.DB[Tx]
	holder string
	change func(query string) string // for the copy; nil: none
	again  func(context.Context) error
}

func (d *twice[Tx]) Exec(ctx context.Context, query string, args ...any) (db.Result, error) {
	if slices.Contains(args, any(d.holder)) {
		d.again = func(ctx context.Context) error {
			_, err := d.DB.Exec(ctx, d.copied(query), args...)
			return err
		}
	}
	return d.DB.Exec(ctx, query, args...)
}

func (d *twice[Tx]) Query(ctx context.Context, query string, args []any, each func(db.Scan) error) error {
	if slices.Contains(args, any(d.holder)) {
		d.again = func(ctx context.Context) error {
			return d.DB.Query(ctx, d.copied(query), args, func(db.Scan) error { return nil })
		}
	}
	return d.DB.Query(ctx, query, args, each)
}

func (d *twice[Tx]) copied(query string) string {
	if d.change != nil {
		return d.change(query)
	}
	return query
}

// A copy of a claim that arrives after its attempt has ended leaves the run as it
// is: done stays done, and a failure keeps its error and its rest. It has a run
// that could begin again, for a TTL at the most, as one more attempt.
func TestLateClaim(t *testing.T) { matrix.Drivers(t, testLateClaim, testLateClaim) }

func testLateClaim[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	const late = "arrives twice"
	ctx := t.Context()
	adapter := &twice[Tx]{DB: target.DB, holder: late}
	open := func(cfg uniquetask.Config) *uniquetask.Tasks[Tx] {
		cfg.Task, cfg.Holder = "report", late
		x, err := uniquetask.New[Tx](adapter, cfg)
		must(t, "new", err)
		t.Cleanup(func() { must(t, "close", x.Close()) })
		return x
	}
	x, other := open(uniquetask.Config{}), newTasks(t, target, uniquetask.Config{})
	rests, never := open(uniquetask.Config{Backoff: time.Hour}), open(uniquetask.Config{MaxAttempts: 1})
	ends := map[string]func(run string) error{
		"done": func(run string) error {
			return x.Do(ctx, run, func(_ context.Context, g exclusive.Grant) error { return x.SetResult(g, []byte("r")) })
		},
		"committed": func(run string) error {
			return x.Do(ctx, run, func(ctx context.Context, g exclusive.Grant) error {
				return x.Commit(ctx, g, store(target, run))
			})
		},
		"rests":       func(run string) error { return rests.Do(ctx, run, fails) },
		"for good":    func(run string) error { return never.Do(ctx, run, fails) },
		"failed":      func(run string) error { return x.Do(ctx, run, fails) },
		"taken over":  func(run string) error { return takenOver(ctx, t, x, other, run, nothing) },
		"begun again": func(run string) error { return takenOver(ctx, t, x, other, run, fails) },
	}
	for run, end := range ends {
		if err := end(run); err != nil {
			wantErr(t, run, err, errBusiness)
		}
		before := outcome(t, other, run)
		must(t, "late claim", adapter.again(ctx))
		after := outcome(t, other, run)
		switch run {
		case "failed", "begun again":
			if !after.Live || after.Token != before.Token+1 || after.Attempt != before.Attempt+1 || len(after.Earlier) != len(before.Earlier)+1 {
				t.Errorf("%s: after the late claim %+v, before it %+v", run, after, before)
			}
			must(t, "release by an operator", other.Release(ctx, run))
			must(t, "do", other.Do(ctx, run, nothing))
		default:
			if !reflect.DeepEqual(after, before) {
				t.Errorf("%s: after the late claim %+v, before it %+v", run, after, before)
			}
		}
	}

	// One that has been under way for long is no reason to end a heartbeat's time.
	adapter.change = func(query string) string {
		return strings.ReplaceAll(query, "UTC_TIMESTAMP(6)", "(UTC_TIMESTAMP(6) - INTERVAL 10 SECOND)")
	}
	must(t, "do", x.Do(ctx, "running", func(ctx context.Context, g exclusive.Grant) error {
		before := outcome(t, other, g.Key)
		must(t, "late claim", adapter.again(ctx))
		after := outcome(t, other, g.Key)
		if after.State != uniquetask.Running || after.GrantID != g.ID || after.Token != g.Token || after.Free.Before(before.Free) {
			t.Errorf("after the late claim %+v, before it %+v", after, before)
		}
		return nil
	}))

	// The twin: without its guard the same copy makes work of a run that is done.
	if target.Dialect == "mysql" || target.Dialect == "mariadb" {
		adapter.change = func(query string) string { return strings.ReplaceAll(query, " AND ended_at = 0", "") }
		must(t, "do", x.Do(ctx, "unguarded", nothing))
		must(t, "late claim", adapter.again(ctx))
		if r := outcome(t, other, "unguarded"); r.State != uniquetask.Running {
			t.Errorf("without the guard %+v", r)
		}
	}
}

// A copy of a claim that arrives after its grant was taken away does not give that
// back: the former holder hears of the loss, and what it writes is refused, also if
// another holder has come and gone since.
func TestLateClaimIsNoReturn(t *testing.T) {
	matrix.Drivers(t, testLateClaimIsNoReturn, testLateClaimIsNoReturn)
}

func testLateClaimIsNoReturn[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	const late = "arrives twice"
	ctx := t.Context()
	other := newTasks(t, target, uniquetask.Config{})
	_, cluster := any(target.DB).(*asGalera) // there it may have token 0, which no grant has
	for run, c := range map[string]struct {
		attempts int
		between  func(run string) error
		revived  bool // as an attempt of its own
	}{
		"released":             {0, func(string) error { return nil }, true},
		"released, no attempt": {1, func(string) error { return nil }, false},
		"begun again":          {0, func(run string) error { return other.Do(ctx, run, fails) }, true},
		"forgotten":            {0, func(run string) error { return other.Forget(ctx, run) }, true},
	} {
		adapter := &twice[Tx]{DB: target.DB, holder: late}
		x, err := uniquetask.New[Tx](adapter, uniquetask.Config{Task: "report", Holder: late, TTL: 6 * time.Second, MaxAttempts: c.attempts})
		must(t, "new", err)
		err = x.Do(ctx, run, func(wctx context.Context, g exclusive.Grant) error {
			must(t, "release by an operator", other.Release(ctx, run))
			if err := c.between(run); err != nil {
				wantErr(t, run, err, errBusiness)
			}
			must(t, "late claim", adapter.again(ctx))
			if r := outcome(t, other, run); r.Live != c.revived || r.Live && (r.GrantID != g.ID || r.Token <= g.Token && !(cluster && r.Token == 0)) {
				t.Errorf("%s: after the late claim %+v of %+v", run, r, g)
			}
			wantErr(t, run+", check", inTx(t, target, func(tx Tx) error { return other.Check(ctx, tx, g) }), exclusive.ErrLost)
			wantErr(t, run+", commit", other.Commit(ctx, g, store(target, run)), exclusive.ErrLost)
			select {
			case <-wctx.Done():
			case <-time.After(20 * time.Second):
				t.Errorf("%s: the former holder does not hear of its loss", run)
			}
			return nil
		})
		wantErr(t, run, err, exclusive.ErrLost)
		must(t, "close", x.Close())
	}
	if body := stored(t, target); body != "nothing" {
		t.Errorf("what the former holder of %q has written is stored", body)
	}
}

// takenOver has an operator release a run of x in work, and other do work then.
func takenOver[Tx any](ctx context.Context, t *testing.T, x, other *uniquetask.Tasks[Tx], run string, work exclusive.Work) error {
	t.Helper()
	var err error
	_ = x.Do(ctx, run, func(context.Context, exclusive.Grant) error {
		must(t, "release by an operator", other.Release(ctx, run))
		err = other.Do(ctx, run, work)
		return nil
	})
	return err
}

// The server is away when work has returned, for longer than Do waits: the run is
// marked as done when it is back, with its result.
func TestDoneWhenTheServerIsBack(t *testing.T) {
	matrix.Drivers(t, testDoneWhenTheServerIsBack, testDoneWhenTheServerIsBack, "postgres", "mysql", "mariadb")
}

// onRelease calls itself when a grant is about to be given back.
type onRelease func()

func (f onRelease) Start(ctx context.Context, e exclusive.Event) context.Context {
	if e.Op == exclusive.OpRelease {
		f()
	}
	return ctx
}

func (onRelease) End(context.Context, exclusive.Event) {}

func testDoneWhenTheServerIsBack[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	far, p := through(t, target)
	// Otherwise Do would try for as long as the lease lasts.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	x := newTasks(t, far, uniquetask.Config{TTL: time.Hour, Observer: onRelease(cancel)})
	other := newTasks(t, target, uniquetask.Config{Wait: 30 * time.Second})
	var again func() error
	err := x.Do(ctx, "r", func(_ context.Context, g exclusive.Grant) error {
		again = p.Refuse()
		p.Cut()
		return x.SetResult(g, []byte("made meanwhile"))
	})
	wantErr(t, "do", err, exclusive.ErrOutcomeUnknown)
	if o := outcome(t, other, "r"); o.State != uniquetask.Running {
		t.Errorf("while the server is away: %+v", o)
	}
	must(t, "listen again", again())
	err = other.Do(t.Context(), "r", fails)
	wantErr(t, "once more", err, exclusive.ErrDone)
	if o := outcome(t, other, "r"); string(o.Result) != "made meanwhile" {
		t.Errorf("the result is %q", o.Result)
	}
}

// A run that an operator has released while the server was silent was lost: Do does
// not return nil for what the next one does again.
func TestReleasedDuringASilence(t *testing.T) {
	matrix.Drivers(t, testReleasedDuringASilence, testReleasedDuringASilence, "postgres", "mysql", "mariadb")
}

func testReleasedDuringASilence[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	far, p := through(t, target)
	x := newTasks(t, far, uniquetask.Config{TTL: time.Hour})
	other := newTasks(t, target, uniquetask.Config{})
	var met atomic.Bool
	err := x.Do(t.Context(), "r", func(context.Context, exclusive.Grant) error {
		p.Intercept(func([]byte) proxy.Verdict {
			if met.CompareAndSwap(false, true) {
				return proxy.Swallow
			}
			return proxy.Pass
		})
		return other.Release(t.Context(), "r")
	})
	wantErr(t, "do", err, exclusive.ErrLost)
	if !met.Load() {
		t.Error("nothing was lost")
	}
	must(t, "the next one", other.Do(t.Context(), "r", nothing))
}
