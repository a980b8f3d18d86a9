// Package uniquetask_test proves package uniquetask on every driver and server.
package uniquetask_test

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/integration_test/matrix"
	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/uniquetask"
)

// ttl is short enough to wait for, and long enough for a few statements on a
// busy machine.
const ttl = 3 * time.Second

// newTasks makes Tasks that are closed at the test's end.
func newTasks[Tx any](t *testing.T, target *matrix.Target[Tx], cfg uniquetask.Config) *uniquetask.Tasks[Tx] {
	t.Helper()
	if cfg.Task == "" {
		cfg.Task = "report"
	}
	x, err := uniquetask.New(target.DB, cfg)
	must(t, "new", err)
	t.Cleanup(func() { must(t, "close", x.Close()) })
	return x
}

// setUp makes the tables of package uniquetask and one to store results in.
func setUp[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	t.Helper()
	target.Migrate(t, "uniquetask")
	target.MustExec(t, "CREATE TABLE effect (id bigint PRIMARY KEY, body varchar(200) NOT NULL, n bigint NOT NULL)")
	target.MustExec(t, "INSERT INTO effect VALUES (1, 'nothing', 0)")
}

// store writes body in tx, and counts.
func store[Tx any](target *matrix.Target[Tx], body string) func(context.Context, Tx) error {
	return func(ctx context.Context, tx Tx) error {
		return target.Exec(ctx, tx, target.Bind("UPDATE effect SET body = ?, n = n + 1 WHERE id = 1"), body)
	}
}

// stored is what the destination holds.
func stored[Tx any](t *testing.T, target *matrix.Target[Tx]) string {
	t.Helper()
	var body string
	must(t, "read", target.Plain.QueryRowContext(t.Context(), "SELECT body FROM effect WHERE id = 1").Scan(&body))
	return body
}

func wantErr(t *testing.T, what string, err error, kinds ...error) *exclusive.Error {
	t.Helper()
	for _, kind := range kinds {
		if !errors.Is(err, kind) {
			t.Fatalf("%s: %v; want an error that matches %q", what, err, kind)
		}
	}
	var e *exclusive.Error
	errors.As(err, &e)
	return e
}

func must(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func nothing(context.Context, exclusive.Grant) error { return nil }

var errBusiness = errors.New("business error")

func fails(context.Context, exclusive.Grant) error { return errBusiness }

func outcome[Tx any](t *testing.T, x *uniquetask.Tasks[Tx], run string) uniquetask.Run {
	t.Helper()
	o, err := x.Outcome(t.Context(), run)
	must(t, "outcome", err)
	return o
}

func TestLifecycle(t *testing.T) { matrix.Each(t, testLifecycle, testLifecycle) }

func testLifecycle[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	ctx := t.Context()
	a := newTasks(t, target, uniquetask.Config{Holder: "A"})
	b := newTasks(t, target.Another(t, matrix.Options{}), uniquetask.Config{Holder: "B"})
	if o := outcome(t, a, "r"); o.State != uniquetask.None {
		t.Errorf("before: %+v", o)
	}
	// Two attempts fail, the third commits.
	for i := 1; i <= 2; i++ {
		err := a.Do(ctx, "r", func(ctx context.Context, g exclusive.Grant) error {
			if g.Key != "r" || g.Token != int64(i) || g.Attempt != i || g.ID == "" || time.Until(g.Expires) < 25*time.Second {
				t.Errorf("grant %+v", g)
			}
			must(t, "set a result that is not kept", a.SetResult(g, []byte("bad")))
			e := wantErr(t, "do of a held run", b.Do(ctx, "r", nothing), exclusive.ErrHeld)
			if h := e.Holder; h == nil || h.Name != "A" || h.Token != g.Token || h.ID != g.ID ||
				time.Until(h.Expires) < 20*time.Second || time.Since(h.Since) > 20*time.Second {
				t.Errorf("who holds it is not told: %+v", e)
			}
			return fmt.Errorf("attempt %d:\tno\nluck: %w", i, errBusiness)
		})
		wantErr(t, "do", err, errBusiness)
	}
	must(t, "do", b.Do(ctx, "r", func(ctx context.Context, g exclusive.Grant) error {
		must(t, "set result", b.SetResult(g, []byte("first")))
		must(t, "set result again", b.SetResult(g, []byte{0, 0xff, 'r'}))
		wantErr(t, "set the result of another process's grant", a.SetResult(g, nil), exclusive.ErrInvalid)
		return b.Commit(ctx, g, store(target, "done"))
	}))
	for _, x := range []*uniquetask.Tasks[Tx]{a, b} {
		e := wantErr(t, "do of a done run", x.Do(ctx, "r", fails), exclusive.ErrDone)
		if string(e.Result) != "\x00\xffr" {
			t.Errorf("replayed result %q", e.Result)
		}
	}
	o := outcome(t, a, "r")
	if o.Run != "r" || o.State != uniquetask.Done || o.Live || o.Token != 3 || o.Attempt != 3 || o.Holder != "B" ||
		o.GrantID == "" || string(o.Result) != "\x00\xffr" || o.Err != "" || o.Ended.Before(o.Started) || time.Since(o.Ended) > 20*time.Second {
		t.Errorf("outcome %+v", o)
	}
	if len(o.Earlier) != 2 {
		t.Fatalf("history %+v", o.Earlier)
	}
	for i, at := range o.Earlier {
		if at.Token != int64(i+1) || at.Attempt != i+1 || at.State != uniquetask.Failed || at.Holder != "A" ||
			at.Err != fmt.Sprintf("attempt %d: no luck: business error", i+1) ||
			at.Ended.Before(at.Started) || time.Since(at.Started) > 20*time.Second {
			t.Errorf("attempt %d: %+v", i+1, at)
		}
	}
	if n := target.Int(t, "SELECT n FROM effect"); n != 1 || stored(t, target) != "done" {
		t.Errorf("%d effects, stored %q", n, stored(t, target))
	}
	// Without a result, with an empty one, and another task's run.
	must(t, "do", a.Do(ctx, "none", nothing))
	must(t, "do", a.Do(ctx, "empty", func(_ context.Context, g exclusive.Grant) error { return a.SetResult(g, nil) }))
	if r := outcome(t, b, "none").Result; r != nil {
		t.Errorf("result %q of none", r)
	}
	if r := outcome(t, b, "empty").Result; r == nil || len(r) != 0 {
		t.Errorf("empty result became %v", r)
	}
	must(t, "run of another task", newTasks(t, target, uniquetask.Config{Task: "Report"}).Do(ctx, "r", nothing))
	if n := target.Int(t, "SELECT COUNT(*) FROM exclusive_task"); n != 4 {
		t.Errorf("%d rows", n)
	}
}

// vanish claims the run and stops its heartbeat, as a process that is killed.
func vanish[Tx any](t *testing.T, target *matrix.Target[Tx], cfg uniquetask.Config, run string) exclusive.Grant {
	t.Helper()
	cfg.NoRenew, cfg.TTL = true, ttl
	x := newTasks(t, target, cfg)
	claimed, release := make(chan exclusive.Grant, 1), make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		ended <- x.Do(context.Background(), run, func(_ context.Context, g exclusive.Grant) error {
			claimed <- g
			<-release
			return nil
		})
	}()
	t.Cleanup(func() {
		close(release)
		wantErr(t, "the holder that came back", <-ended, exclusive.ErrLost)
	})
	select {
	case g := <-claimed:
		return g
	case err := <-ended:
		ended <- err
		t.Fatalf("the holder that is to vanish: %v", err)
		return exclusive.Grant{}
	}
}

func TestTakeover(t *testing.T) { matrix.Each(t, testTakeover, testTakeover) }

func testTakeover[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	ctx := t.Context()
	old := vanish(t, target, uniquetask.Config{Holder: "A"}, "r")
	b := newTasks(t, target.Another(t, matrix.Options{}), uniquetask.Config{Holder: "B", Wait: 30 * time.Second})
	started := time.Now()
	must(t, "do", b.Do(ctx, "r", func(ctx context.Context, g exclusive.Grant) error {
		if g.Token != 2 || g.Attempt != 2 || time.Now().Before(old.Expires) {
			t.Errorf("took %+v over with %+v", old, g)
		}
		wantErr(t, "commit of the old holder", b.Commit(ctx, old, store(target, "A")), exclusive.ErrFenced)
		wantErr(t, "check of the old holder", inTx(t, target, func(tx Tx) error { return b.Check(ctx, tx, old) }), exclusive.ErrFenced)
		forged := g
		forged.ID = old.ID
		wantErr(t, "the new token with the old id", b.Commit(ctx, forged, store(target, "A")), exclusive.ErrFenced)
		must(t, "check", inTx(t, target, func(tx Tx) error { return b.Check(ctx, tx, g) }))
		return b.Commit(ctx, g, store(target, "B"))
	}))
	if waited := time.Since(started); waited > 20*time.Second {
		t.Errorf("took over after %v", waited)
	}
	wantErr(t, "commit after all", b.Commit(ctx, old, store(target, "A")), exclusive.ErrFenced)
	if body := stored(t, target); body != "B" {
		t.Errorf("stored %q", body)
	}
	o := outcome(t, b, "r")
	if len(o.Earlier) != 1 || o.Earlier[0].State != uniquetask.Lost || o.Earlier[0].Holder != "A" || o.Earlier[0].Token != 1 {
		t.Errorf("history %+v", o.Earlier)
	}
	// The twin: a write that nobody checks does the damage.
	must(t, "unguarded write", inTx(t, target, func(tx Tx) error { return store(target, "A")(ctx, tx) }))
	if body := stored(t, target); body != "A" {
		t.Errorf("stored %q without the guard: this test cannot tell", body)
	}
}

// inTx runs f in a transaction of the application's own.
func inTx[Tx any](t *testing.T, target *matrix.Target[Tx], f func(Tx) error) error {
	t.Helper()
	tx, err := target.BeginPast(t.Context())
	if err != nil {
		return err
	}
	if err := f(tx); err != nil {
		return errors.Join(err, target.DB.Rollback(tx))
	}
	return target.DB.Commit(t.Context(), tx)
}

func TestWorkEnds(t *testing.T) { matrix.Drivers(t, testWorkEnds, testWorkEnds) }

// Whatever way work ends, the run is free at once or done for good.
func testWorkEnds[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	x := newTasks(t, target, uniquetask.Config{})
	other := newTasks(t, target.Another(t, matrix.Options{}), uniquetask.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	ends := map[string]func() error{
		"error": func() error { return x.Do(t.Context(), "error", fails) },
		"panic": func() (err error) {
			defer func() { err = fmt.Errorf("%v", recover()) }()
			return x.Do(t.Context(), "panic", func(context.Context, exclusive.Grant) error { panic(42) })
		},
		"goexit": func() error {
			var wg sync.WaitGroup
			wg.Go(func() {
				_ = x.Do(t.Context(), "goexit", func(context.Context, exclusive.Grant) error { runtime.Goexit(); return nil })
			})
			wg.Wait()
			return errors.New("goexit")
		},
		"cancel": func() error {
			err := x.Do(ctx, "cancel", func(context.Context, exclusive.Grant) error { cancel(); return nil })
			wantErr(t, "cancelled do", err, context.Canceled)
			return err
		},
		"apply": func() error {
			return x.Do(t.Context(), "apply", func(ctx context.Context, g exclusive.Grant) error {
				return x.Commit(ctx, g, func(ctx context.Context, tx Tx) error {
					must(t, "write", store(target, "half")(ctx, tx))
					return errBusiness
				})
			})
		},
		"apply panics": func() (err error) {
			defer func() { err = fmt.Errorf("%v", recover()) }()
			return x.Do(t.Context(), "apply panics", func(ctx context.Context, g exclusive.Grant) error {
				return x.Commit(ctx, g, func(ctx context.Context, tx Tx) error {
					must(t, "write", store(target, "half")(ctx, tx))
					panic(42)
				})
			})
		},
	}
	for run, end := range ends {
		err := end()
		if err == nil {
			t.Errorf("%s: no error", run)
		}
		if strings.Contains(run, "panic") && err.Error() != "42" {
			t.Errorf("%s: recovered %v", run, err)
		}
		if o := outcome(t, other, run); o.State != uniquetask.Failed || o.Err == "" {
			t.Errorf("%s: %+v", run, o)
		}
		must(t, "second attempt after "+run, other.Do(t.Context(), run, nothing))
	}
	if body := stored(t, target); body != "nothing" {
		t.Errorf("stored %q", body)
	}
	// Committed, and an error or a panic after it.
	err := x.Do(t.Context(), "kept", func(ctx context.Context, g exclusive.Grant) error {
		must(t, "commit", x.Commit(ctx, g, store(target, "kept")))
		wantErr(t, "second commit", x.Commit(t.Context(), g, store(target, "again")), exclusive.ErrInvalid)
		wantErr(t, "check after commit", inTx(t, target, func(tx Tx) error { return x.Check(t.Context(), tx, g) }), exclusive.ErrInvalid)
		return errBusiness
	})
	wantErr(t, "error after commit", err, errBusiness, exclusive.ErrFinished)
	wantErr(t, "do after that", other.Do(t.Context(), "kept", fails), exclusive.ErrDone)
	if body := stored(t, target); body != "kept" {
		t.Errorf("stored %q", body)
	}
	target.Idle(t)
}

func TestRetryPolicy(t *testing.T) { matrix.Drivers(t, testRetryPolicy, testRetryPolicy) }

func testRetryPolicy[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	ctx := t.Context()
	never := newTasks(t, target, uniquetask.Config{MaxAttempts: 1})
	wantErr(t, "do", never.Do(ctx, "never", fails), errBusiness)
	e := wantErr(t, "do after the only attempt", never.Do(ctx, "never", nothing), uniquetask.ErrFailed)
	if e.Holder != nil || !strings.Contains(e.Hint, "business error") || errors.Is(e, exclusive.ErrHeld) || errors.Is(e, exclusive.ErrDone) {
		t.Errorf("%v", e)
	}
	// Another claimant may have another limit.
	must(t, "do with a higher limit", newTasks(t, target, uniquetask.Config{MaxAttempts: 2}).Do(ctx, "never", nothing))

	// A holder that vanished has had its attempt too.
	vanish(t, target, uniquetask.Config{}, "vanished")
	for {
		err := never.Do(ctx, "vanished", nothing)
		if errors.Is(err, exclusive.ErrHeld) {
			continue // a statement takes longer than spinning does harm
		}
		wantErr(t, "do of a vanished one", err, uniquetask.ErrFailed)
		break
	}

	const rest, long = 400 * time.Millisecond, time.Hour // long: of which a test sees no end
	rests := newTasks(t, target, uniquetask.Config{MaxAttempts: 2, Backoff: rest})
	restsLong := newTasks(t, target, uniquetask.Config{MaxAttempts: 2, Backoff: long})
	wantErr(t, "do", restsLong.Do(ctx, "rests for long", fails), errBusiness)
	e = wantErr(t, "do too early", restsLong.Do(ctx, "rests for long", nothing), uniquetask.ErrFailed)
	if e.Holder == nil || e.Holder.Expires.Sub(e.Holder.Since) < long {
		t.Errorf("when it may begin again is not told: %v", e)
	}
	began := time.Now()
	wantErr(t, "do", rests.Do(ctx, "rests", fails), errBusiness)
	for {
		err := rests.Do(ctx, "rests", fails)
		if errors.Is(err, errBusiness) {
			break
		}
		wantErr(t, "do", err, uniquetask.ErrFailed)
	}
	if passed := time.Since(began); passed < rest {
		t.Errorf("began again after %v", passed)
	}
	e = wantErr(t, "do after two attempts", rests.Do(ctx, "rests", nothing), uniquetask.ErrFailed)
	if e.Holder != nil {
		t.Errorf("%v", e)
	}
	must(t, "forget", rests.Forget(ctx, "rests"))
	must(t, "do after forget", rests.Do(ctx, "rests", func(_ context.Context, g exclusive.Grant) error {
		if g.Attempt != 1 || g.Token != 3 {
			t.Errorf("grant %+v", g)
		}
		return nil
	}))
	// Stopped is not failed: no rest, whatever work returns.
	cctx, cancel := context.WithCancel(ctx)
	wantErr(t, "do", restsLong.Do(cctx, "stopped", func(context.Context, exclusive.Grant) error {
		cancel()
		return errBusiness
	}), context.Canceled)
	must(t, "do at once", restsLong.Do(ctx, "stopped", nothing))
	dctx, cancel := context.WithTimeout(ctx, 5*time.Second) // enough for a claim on a busy machine
	defer cancel()
	wantErr(t, "do", restsLong.Do(dctx, "late", func(ctx context.Context, _ exclusive.Grant) error {
		<-ctx.Done()
		return ctx.Err()
	}), context.DeadlineExceeded)
	must(t, "do at once", restsLong.Do(ctx, "late", nothing))
	// But work that has cancelled something of its own has failed.
	for run, own := range map[string]error{"cancelled within": context.Canceled, "late within": context.DeadlineExceeded} {
		wantErr(t, "do", restsLong.Do(ctx, run, func(context.Context, exclusive.Grant) error { return own }), own)
		e = wantErr(t, "do too early", restsLong.Do(ctx, run, nothing), uniquetask.ErrFailed)
		if e.Holder == nil {
			t.Errorf("%s: when it may begin again is not told: %v", run, e)
		}
	}
}

func TestHeartbeat(t *testing.T) { matrix.Drivers(t, testHeartbeat, testHeartbeat) }

func testHeartbeat[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	ctx := t.Context()
	const long = 4 * time.Second // more than a busy machine keeps a heartbeat waiting
	x := newTasks(t, target, uniquetask.Config{TTL: long})
	rival := newTasks(t, target.Another(t, matrix.Options{}), uniquetask.Config{})
	must(t, "do just before", x.Do(ctx, "before", nothing))
	const holders = 5
	claimed := make(chan struct{}, holders)
	release := make(chan struct{})
	var wg sync.WaitGroup
	for i := range holders {
		wg.Go(func() {
			err := x.Do(ctx, fmt.Sprint("r", i), func(ctx context.Context, g exclusive.Grant) error {
				claimed <- struct{}{}
				<-release
				return context.Cause(ctx)
			})
			if err != nil {
				t.Errorf("held for long: %v", err)
				claimed <- struct{}{}
			}
		})
	}
	for range holders {
		<-claimed
	}
	tick := time.NewTicker(long / 10)
	defer tick.Stop()
	for end := time.Now().Add(2 * long); time.Now().Before(end); <-tick.C {
		for i := range holders {
			if err := rival.Do(ctx, fmt.Sprint("r", i), nothing); !errors.Is(err, exclusive.ErrHeld) {
				t.Errorf("a run whose heartbeat is sent: %v", err)
			}
		}
	}
	close(release)
	wg.Wait()
}

func TestReleaseByOperator(t *testing.T) {
	matrix.Drivers(t, testReleaseByOperator, testReleaseByOperator)
}

func testReleaseByOperator[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	ctx := t.Context()
	x := newTasks(t, target, uniquetask.Config{TTL: 2 * time.Second, Holder: "X"})
	operator := newTasks(t, target.Another(t, matrix.Options{}), uniquetask.Config{Holder: "operator"})
	for _, how := range []string{"release", "delete"} {
		err := x.Do(ctx, how, func(ctx context.Context, g exclusive.Grant) error {
			wantErr(t, "forget of a held run", operator.Forget(t.Context(), how), exclusive.ErrHeld)
			if how == "release" {
				must(t, "release", operator.Release(t.Context(), how))
			} else {
				target.MustExec(t, "DELETE FROM exclusive_task WHERE run = ?", []byte(how))
			}
			select {
			case <-ctx.Done():
			case <-time.After(10 * time.Second):
				t.Fatal("the holder never heard of it")
			}
			wantErr(t, "why work was cancelled", context.Cause(ctx), exclusive.ErrLost)
			wantErr(t, "commit after that", x.Commit(t.Context(), g, store(target, "X")), exclusive.ErrLost)
			return nil
		})
		wantErr(t, "do", err, exclusive.ErrLost)
		if n := target.Int(t, "SELECT COUNT(*) FROM exclusive_task WHERE run = ?", []byte(how)); how == "delete" && n != 0 {
			t.Error("the heartbeat brought a deleted row back")
		}
		must(t, "do of the next", operator.Do(ctx, how, func(_ context.Context, g exclusive.Grant) error {
			if how == "release" && g.Token != 2 {
				t.Errorf("grant %+v", g)
			}
			return nil
		}))
		must(t, "release of a done run", operator.Release(ctx, how))
		wantErr(t, "do", x.Do(ctx, how, nothing), exclusive.ErrDone)
	}
	must(t, "release of an unknown run", operator.Release(ctx, "unknown"))
	must(t, "forget of an unknown run", operator.Forget(ctx, "unknown"))
	if body := stored(t, target); body != "nothing" {
		t.Errorf("stored %q", body)
	}
}

func TestTokensRise(t *testing.T) { matrix.Drivers(t, testTokensRise, testTokensRise) }

// However rows are removed, a later grant has a higher token than any before.
func testTokensRise[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	ctx := t.Context()
	x := newTasks(t, target, uniquetask.Config{})
	var highest int64
	next := func(_ context.Context, g exclusive.Grant) error {
		if g.Token <= highest || g.Attempt != 1 {
			t.Errorf("after token %d came %+v", highest, g)
		}
		highest = g.Token
		return nil
	}
	for range 3 {
		must(t, "do", x.Do(ctx, "r", next))
		must(t, "forget", x.Forget(ctx, "r"))
		must(t, "do", x.Do(ctx, "r", next))
		n, err := x.Prune(ctx, 0)
		must(t, "prune", err)
		if n != 1 {
			t.Errorf("%d rows pruned", n)
		}
	}
	must(t, "do of another run", x.Do(ctx, "new", next))
}

func TestPrune(t *testing.T) { matrix.Each(t, testPrune, testPrune) }

func testPrune[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	ctx := t.Context()
	x := newTasks(t, target, uniquetask.Config{})
	other := newTasks(t, target, uniquetask.Config{Task: "other"})
	must(t, "do", other.Do(ctx, "r", nothing))
	must(t, "do", x.Do(ctx, "59min", nothing))
	must(t, "do", x.Do(ctx, "61min", nothing))
	wantErr(t, "do", x.Do(ctx, "failed 61min", fails), errBusiness)
	wantErr(t, "do", x.Do(ctx, "failed now", fails), errBusiness)
	const minute = 60_000_000
	shift := func(task, run string, us int64) {
		target.MustExec(t, "UPDATE exclusive_task SET started_at = started_at - ?, ended_at = ended_at - ?, free_at = free_at - ? WHERE task = ? AND run = ?",
			us, us, us, []byte(task), []byte(run))
	}
	shift("report", "59min", 59*minute)
	shift("report", "61min", 61*minute)
	shift("report", "failed 61min", 61*minute)
	shift("other", "r", 61*minute)
	// More than one batch.
	for i := range 3 {
		target.MustExec(t, `INSERT INTO exclusive_task (task, run, state, grant_id, holder, token, attempt, started_at, ended_at, free_at, error, history)
			SELECT task, `+manyRuns(target.Dialect, i)+`, state, grant_id, holder, token + 7, attempt, started_at, ended_at, free_at, error, history
			FROM exclusive_task a WHERE run = ?`, []byte("61min"))
	}
	must(t, "do", x.Do(ctx, "live 2h", func(ctx context.Context, g exclusive.Grant) error {
		target.MustExec(t, "UPDATE exclusive_task SET started_at = started_at - ? WHERE run = ?", 120*minute, []byte("live 2h"))
		n, err := x.Prune(ctx, time.Hour)
		must(t, "prune", err)
		if n != 5 {
			t.Errorf("%d rows pruned", n)
		}
		return x.Commit(ctx, g, store(target, "live"))
	}))
	for run, state := range map[string]uniquetask.State{"59min": uniquetask.Done, "61min": uniquetask.None,
		"failed 61min": uniquetask.None, "failed now": uniquetask.Failed, "live 2h": uniquetask.Done} {
		if o := outcome(t, x, run); o.State != state {
			t.Errorf("%s: %+v", run, o)
		}
	}
	if o := outcome(t, other, "r"); o.State != uniquetask.Done {
		t.Errorf("the other task's run: %+v", o)
	}
	must(t, "a pruned run is new", x.Do(ctx, "61min", func(_ context.Context, g exclusive.Grant) error {
		if g.Token != 9 {
			t.Errorf("grant %+v", g)
		}
		return nil
	}))
	_, err := x.Prune(ctx, -1)
	wantErr(t, "prune of the future", err, exclusive.ErrInvalid)
}

// manyRuns is an expression for a key.
func manyRuns(dialect string, i int) string {
	if dialect == "postgres" {
		return fmt.Sprintf("convert_to('many%d', 'UTF8')", i)
	}
	return fmt.Sprintf("CAST('many%d' AS %s)", i, map[string]string{"sqlite": "BLOB"}[dialect]+map[string]string{"mysql": "BINARY", "mariadb": "BINARY"}[dialect])
}

func TestPruneBatches(t *testing.T) { matrix.Drivers(t, testPruneBatches, testPruneBatches) }

// Pruning while the same runs are asked for: no run within the retention time
// goes again, and what is gone is gone once.
func testPruneBatches[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	ctx := t.Context()
	x := newTasks(t, target, uniquetask.Config{})
	const runs = 60
	for i := range runs {
		must(t, "do", x.Do(ctx, fmt.Sprintf("r%03d", i), nothing))
	}
	var wg sync.WaitGroup
	asked := make(chan struct{})
	wg.Go(func() {
		defer close(asked)
		for i := range runs {
			if err := x.Do(ctx, fmt.Sprintf("r%03d", i), fails); !errors.Is(err, exclusive.ErrDone) {
				t.Errorf("a run within the retention time: %v", err)
			}
		}
	})
	for pruning := true; pruning; {
		n, err := x.Prune(ctx, time.Hour)
		if n != 0 || err != nil {
			t.Errorf("pruned %d, %v", n, err)
		}
		select {
		case <-asked:
			pruning = false
		default:
		}
	}
	wg.Wait()
	var told []int64
	n, err := x.Prune(ctx, 0, func(removed int64) { told = append(told, removed) })
	if !slices.Equal(told, []int64{runs}) {
		t.Errorf("told of %v", told)
	}
	if n != runs || err != nil || target.Int(t, "SELECT COUNT(*) FROM exclusive_task") != 0 {
		t.Errorf("pruned %d, %v", n, err)
	}
}

func TestRuns(t *testing.T) { matrix.Each(t, testRuns, testRuns) }

func testRuns[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	ctx := t.Context()
	x := newTasks(t, target, uniquetask.Config{})
	for _, run := range []string{"c", "a", "B", "d"} {
		work := exclusive.Work(nothing)
		if run == "d" {
			work = fails
		}
		_ = x.Do(ctx, run, func(ctx context.Context, g exclusive.Grant) error {
			must(t, "set result", x.SetResult(g, []byte("large")))
			return work(ctx, g)
		})
	}
	list := func(f uniquetask.Filter) string {
		runs, err := x.Runs(ctx, f)
		must(t, "list", err)
		var keys []string
		for _, r := range runs {
			if r.Result != nil {
				t.Errorf("the list has a result: %+v", r)
			}
			keys = append(keys, r.Run+":"+string(r.State))
		}
		return strings.Join(keys, " ")
	}
	for want, f := range map[string]uniquetask.Filter{
		"B:done a:done c:done d:failed": {},
		"B:done a:done":                 {Limit: 2},
		"c:done d:failed":               {After: "a"},
		"d:failed":                      {State: uniquetask.Failed},
		"":                              {State: uniquetask.Running},
	} {
		if got := list(f); got != want {
			t.Errorf("%+v lists %q", f, got)
		}
	}
	for _, f := range []uniquetask.Filter{{Limit: -1}, {Limit: 1001}, {State: "x"}, {State: uniquetask.Lost}} {
		_, err := x.Runs(ctx, f)
		wantErr(t, fmt.Sprint(f), err, exclusive.ErrInvalid)
	}
}

func TestNames(t *testing.T) { matrix.Each(t, testNames, testNames) }

// Keys are compared byte for byte, and too long ones are refused, not cut.
func testNames[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	ctx := t.Context()
	x := newTasks(t, target, uniquetask.Config{})
	keys := []string{"report", "Report", "report ", "r\u00e9port", "re\u0301port", "STRASSE", "stra\u00dfe", "日本", "'; DROP", `a\`, strings.Repeat("x", 199) + "A", strings.Repeat("x", 199) + "B"}
	for _, key := range keys {
		must(t, key, x.Do(ctx, key, nothing))
	}
	for _, key := range keys {
		wantErr(t, key, x.Do(ctx, key, nothing), exclusive.ErrDone)
	}
	for _, key := range []string{"", "a\x00b", "\xff", strings.Repeat("x", 201)} {
		wantErr(t, "bad key", x.Do(ctx, key, nothing), exclusive.ErrInvalid)
		wantErr(t, "bad key", x.Forget(ctx, key), exclusive.ErrInvalid)
		wantErr(t, "bad key", x.Release(ctx, key), exclusive.ErrInvalid)
		_, err := x.Outcome(ctx, key)
		wantErr(t, "bad key", err, exclusive.ErrInvalid)
	}
	if n := target.Int(t, "SELECT COUNT(*) FROM exclusive_task"); int(n) != len(keys) {
		t.Errorf("%d rows for %d keys", n, len(keys))
	}
}

func TestOneWinner(t *testing.T) { matrix.Drivers(t, testOneWinner, testOneWinner) }

// Many at once: one works, and all others are told that it is held or done.
func testOneWinner[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	ctx := t.Context()
	x := newTasks(t, target, uniquetask.Config{})
	y := newTasks(t, target.Another(t, matrix.Options{}), uniquetask.Config{Wait: 10 * time.Second})
	const rounds = 10
	for round := range rounds {
		run := fmt.Sprint("r", round)
		var worked atomic.Int64
		work := func(x *uniquetask.Tasks[Tx]) exclusive.Work {
			return func(ctx context.Context, g exclusive.Grant) error {
				worked.Add(1)
				must(t, "set result", x.SetResult(g, []byte("result")))
				return x.Commit(ctx, g, store(target, run))
			}
		}
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				tasks, waits := x, false
				if i%2 == 1 {
					tasks, waits = y, true
				}
				err := tasks.Do(ctx, run, work(tasks))
				var e *exclusive.Error
				switch {
				case err == nil, errors.Is(err, exclusive.ErrHeld) && !waits:
				case errors.Is(err, exclusive.ErrDone):
					if errors.As(err, &e); string(e.Result) != "result" {
						t.Errorf("replayed %q", e.Result)
					}
				default:
					t.Errorf("a competitor got %v", err)
				}
			})
		}
		wg.Wait()
		if n := worked.Load(); n != 1 {
			t.Errorf("work ran %d times", n)
		}
	}
	if n := target.Int(t, "SELECT n FROM effect"); n != rounds {
		t.Errorf("%d effects", n)
	}
}

func TestTaskNames(t *testing.T) { matrix.Drivers(t, testTaskNames, testTaskNames) }

func testTaskNames[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	_, err := uniquetask.Names(t.Context(), target.DB, uniquetask.Tables{})
	wantErr(t, "names without tables", err, exclusive.ErrSchema)
	_, err = uniquetask.Names(t.Context(), target.DB, uniquetask.Tables{Prefix: "a;"})
	wantErr(t, "names behind a bad prefix", err, exclusive.ErrInvalid)
	setUp(t, target)
	var want []string
	for _, task := range []string{"A", "a", "a ", "b", "é"} {
		names, err := uniquetask.Names(t.Context(), target.DB, uniquetask.Tables{})
		must(t, "names", err)
		if !slices.Equal(names, want) {
			t.Errorf("named %q, not %q", names, want)
		}
		x := newTasks(t, target, uniquetask.Config{Task: task})
		for _, run := range []string{"1", "2"} {
			must(t, "do", x.Do(t.Context(), run, nothing))
		}
		want = append(want, task)
	}
	names, err := uniquetask.Names(t.Context(), &stumbling[Tx]{DB: target.DB}, uniquetask.Tables{})
	must(t, "names, with an answer lost", err)
	if !slices.Equal(names, want) {
		t.Errorf("named %q after a lost answer, not %q", names, want)
	}
}

// stumbling is an adapter that loses the answer to what comes behind task "a".
type stumbling[Tx any] struct {
	db.DB[Tx]
	lost bool
}

func (s *stumbling[Tx]) Query(ctx context.Context, query string, args []any, each func(db.Scan) error) error {
	if len(args) == 1 && !s.lost {
		after, _ := args[0].([]byte)
		if s.lost = string(after) == "a"; s.lost {
			return driver.ErrBadConn
		}
	}
	return s.DB.Query(ctx, query, args, each)
}
