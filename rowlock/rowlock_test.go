package rowlock

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/internal/run"
)

// fake is a server of MySQL's dialect that does what the test says. A
// transaction is its number.
type fake struct {
	readOnly bool
	commit   error
	undo     error
	begin    func(ctx context.Context) error // nil: at once
	lock     func(ctx context.Context) error // nil: at once
	pool     int                             // 0: without a limit

	mu    sync.Mutex // probes and waiters come from other goroutines
	probe error

	begun, rolledBack int
	statements        []string
}

func (f *fake) Dialect(context.Context, db.Runner) (db.Dialect, error) { return db.MySQL, nil }
func (f *fake) MaxConns() int                                          { return f.pool }
func (f *fake) Within(int) (db.Runner, error)                          { return f, nil }
func (f *fake) Commit(context.Context, int) error                      { return f.commit }
func (f *fake) Rollback(int) error                                     { f.mu.Lock(); defer f.mu.Unlock(); f.rolledBack++; return nil }

func (f *fake) Begin(ctx context.Context) (int, error) {
	if f.begin != nil {
		if err := f.begin(ctx); err != nil {
			return 0, err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.begun++
	return f.begun, nil
}

var errDeadlock, errGone, errLocked = errors.New("deadlock"), errors.New("connection broke"), errors.New("locked")

func (f *fake) Classify(err error) db.Class {
	switch {
	case errors.Is(err, errDeadlock):
		return db.Conflict
	case errors.Is(err, errGone):
		return db.Disconnected
	case errors.Is(err, errLocked):
		return db.Locked
	}
	return db.Network(err)
}

func (f *fake) Exec(_ context.Context, query string, _ ...any) (db.Result, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.statements = append(f.statements, query)
	if query == undo {
		return db.Result{}, f.undo
	}
	return db.Result{}, nil
}

func (f *fake) Query(ctx context.Context, query string, _ []any, each func(db.Scan) error) error {
	if strings.Contains(query, "information_schema") {
		return nil // the key's column is as it must be
	}
	if f.lock != nil && query != probeQ {
		if err := f.lock(ctx); err != nil {
			return err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.statements = append(f.statements, query)
	if query == probeQ {
		return f.probe
	}
	return each(func(dest ...any) error { *dest[0].(*bool) = !f.readOnly; return nil })
}

func locks(t *testing.T, f *fake, cfg Config) *Locks[int] {
	t.Helper()
	l, err := New(f, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func nothing(context.Context, exclusive.Grant) error { return nil }

// wantErr wants err to match each of kinds.
func wantErr(t *testing.T, err error, kinds ...error) {
	t.Helper()
	for _, kind := range kinds {
		if !errors.Is(err, kind) {
			t.Errorf("%v; want an error that matches %q", err, kind)
		}
	}
}

// A replica that takes no writes still locks rows, which excludes nobody.
func TestReadOnlyServer(t *testing.T) {
	f := &fake{readOnly: true}
	l := locks(t, f, Config{})
	work := func(context.Context, exclusive.Grant) error { t.Error("work ran"); return nil }
	wantErr(t, l.Do(t.Context(), "k", work), exclusive.ErrUnavailable, errReadOnly)
	f.readOnly = false // it was promoted
	if err := l.Do(t.Context(), "k", nothing); err != nil {
		t.Error(err)
	}
	if f.begun != 2 || f.rolledBack != 1 {
		t.Errorf("%d transactions, %d rolled back", f.begun, f.rolledBack)
	}
}

// A COMMIT that fails is never told as success.
func TestCommitFails(t *testing.T) {
	for _, c := range []struct {
		commit            error
		do, doWithoutWork error
	}{
		{errDeadlock, exclusive.ErrConflict, exclusive.ErrConflict}, // as a cluster says it
		{db.NotCommitted(errGone), exclusive.ErrLost, exclusive.ErrLost},
		{db.CommitError(&fake{}, errGone), exclusive.ErrOutcomeUnknown, exclusive.ErrLost},
	} {
		l := locks(t, &fake{commit: c.commit}, Config{})
		err := l.Run(t.Context(), "k", func(context.Context, int, exclusive.Grant) error { return nil })
		wantErr(t, err, c.do, c.commit)
		wantErr(t, l.Do(t.Context(), "k", nothing), c.doWithoutWork, c.commit)
		err = l.Do(t.Context(), "k", func(ctx context.Context, g exclusive.Grant) error {
			_ = l.Commit(ctx, g, func(context.Context, int) error { return nil })
			if ctx.Err() == nil {
				t.Error("work goes on without a lock")
			}
			return nil // work that overlooks the error
		})
		wantErr(t, err, c.do)
	}
}

func TestProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		l := locks(t, f, Config{Probe: 100 * time.Millisecond})
		started := time.Now()
		err := l.Do(t.Context(), "k", func(ctx context.Context, g exclusive.Grant) error {
			time.Sleep(350 * time.Millisecond)
			f.mu.Lock()
			if n := len(f.statements); n != 4 { // the lock, and three probes
				t.Errorf("%d statements", n)
			}
			f.probe = errGone
			f.mu.Unlock()
			<-ctx.Done()
			wantErr(t, context.Cause(ctx), exclusive.ErrLost, errGone)
			if passed := time.Since(started); passed != 400*time.Millisecond {
				t.Errorf("told after %v", passed)
			}
			wantErr(t, l.Commit(context.WithoutCancel(ctx), g, func(context.Context, int) error { t.Error("apply ran"); return nil }), exclusive.ErrLost)
			return nil
		})
		wantErr(t, err, exclusive.ErrLost)
		if f.rolledBack != 1 {
			t.Errorf("rolled back %d times", f.rolledBack)
		}
	})
}

// What ends the transaction in apply ends the grant, and is told as what it is.
func TestApplyEndsTheTransaction(t *testing.T) {
	business := errors.New("business error")
	for _, c := range []struct{ apply, want, not error }{
		{errDeadlock, exclusive.ErrConflict, exclusive.ErrLost},
		{business, exclusive.ErrLost, exclusive.ErrConflict},
		{context.Canceled, context.Canceled, exclusive.ErrLost},
	} {
		f := &fake{undo: errGone}
		l := locks(t, f, Config{})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		err := l.Do(ctx, "k", func(ctx context.Context, g exclusive.Grant) error {
			err := l.Commit(ctx, g, func(context.Context, int) error {
				if c.apply == context.Canceled {
					cancel()
				}
				return c.apply
			})
			wantErr(t, err, c.apply)
			wantErr(t, l.Commit(context.WithoutCancel(ctx), g, func(context.Context, int) error { t.Error("apply ran"); return nil }), exclusive.ErrLost)
			return err
		})
		wantErr(t, err, c.apply, c.want)
		if errors.Is(err, c.not) {
			t.Errorf("%v matches %q", err, c.not)
		}
		if f.rolledBack != 1 {
			t.Errorf("rolled back %d times", f.rolledBack)
		}
	}
}

// While apply uses the transaction nobody probes it: drivers do not allow two at
// once.
func TestNoProbeDuringApply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		l := locks(t, f, Config{Probe: 10 * time.Millisecond})
		err := l.Run(t.Context(), "k", func(context.Context, int, exclusive.Grant) error {
			time.Sleep(time.Second)
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		for _, s := range f.statements {
			if s == probeQ {
				t.Error("probed")
			}
		}
	})
}

// Work returns while its Commit still runs in a goroutine that it has left
// behind: nothing is committed.
func TestCommitLeftBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{commit: errors.New("committed")}
		l := locks(t, f, Config{})
		late := make(chan error, 1)
		began := time.Now()
		err := l.Do(t.Context(), "k", func(ctx context.Context, g exclusive.Grant) error {
			go func() {
				late <- l.Commit(context.WithoutCancel(ctx), g, func(context.Context, int) error {
					time.Sleep(time.Minute)
					return nil
				})
			}()
			synctest.Wait()
			return nil
		})
		wantErr(t, err, exclusive.ErrLost)
		if took := time.Since(began); took != run.EndWait {
			t.Errorf("Do took %v", took)
		}
		wantErr(t, <-late, exclusive.ErrLost)
		if f.rolledBack != 1 {
			t.Errorf("rolled back %d times", f.rolledBack)
		}
	})
}

// Work goes on after its Commit, as on the other strategies.
func TestCommitKeepsContext(t *testing.T) {
	l := locks(t, &fake{}, Config{})
	var after context.Context
	err := l.Do(t.Context(), "k", func(ctx context.Context, g exclusive.Grant) error {
		after = ctx
		if err := l.Commit(ctx, g, func(context.Context, int) error { return nil }); err != nil {
			return err
		}
		return ctx.Err()
	})
	if err != nil {
		t.Error(err)
	}
	if after.Err() == nil {
		t.Error("work's context outlives Do")
	}
}

// recorder notes what was observed.
type recorder struct{ events []string }

func (r *recorder) Start(ctx context.Context, _ exclusive.Event) context.Context { return ctx }
func (r *recorder) End(_ context.Context, e exclusive.Event) {
	what := string(e.Op)
	if e.Err != nil {
		what += " fails"
	}
	if e.Key != "k" || e.Grant.ID == "" {
		what += " without its grant"
	}
	r.events = append(r.events, what)
}

// The observer is told how a lock ends: by a release, or by a Commit.
func TestObserved(t *testing.T) {
	business := errors.New("business error")
	store := func(context.Context, int) error { return nil }
	var l *Locks[int]
	for _, c := range []struct {
		work   exclusive.Work
		commit error
		want   string
	}{
		{nothing, nil, "acquire, release, do"},
		{nothing, errDeadlock, "acquire, release fails, do fails"},
		{func(context.Context, exclusive.Grant) error { return business }, nil, "acquire, release, do fails"},
		{func(ctx context.Context, g exclusive.Grant) error { return l.Commit(ctx, g, store) }, nil, "acquire, commit, do"},
		{func(ctx context.Context, g exclusive.Grant) error { return l.Commit(ctx, g, store) }, errDeadlock, "acquire, commit fails, do fails"},
		{func(ctx context.Context, g exclusive.Grant) error {
			return l.Commit(ctx, g, func(context.Context, int) error {
				wantErr(t, l.Commit(ctx, g, store), exclusive.ErrInvalid)
				return nil
			})
		}, nil, "acquire, commit fails, commit, do"},
	} {
		var r recorder
		l = locks(t, &fake{commit: c.commit}, Config{Observer: &r})
		_ = l.Do(t.Context(), "k", c.work)
		if got := strings.Join(r.events, ", "); got != c.want {
			t.Errorf("observed: %s; want: %s", got, c.want)
		}
	}
}

func TestNothingIsKept(t *testing.T) {
	f := &fake{}
	l := locks(t, f, Config{})
	end := map[string]exclusive.Work{
		"done": nothing,
		"commit": func(ctx context.Context, g exclusive.Grant) error {
			return l.Commit(ctx, g, func(context.Context, int) error { return nil })
		},
		"failed": func(context.Context, exclusive.Grant) error { return errGone },
	}
	for what, work := range end {
		_ = l.Do(t.Context(), "k", work)
		if len(l.byID) != 0 || len(l.lines) != 0 {
			t.Errorf("%s: %d grants, %d lines are left", what, len(l.byID), len(l.lines))
		}
	}
}

// Works whose Locks share a pool do not wait for each other's connections.
func TestSharedPool(t *testing.T) {
	f := &fake{pool: 2}
	a, b := locks(t, f, Config{}), locks(t, f, Config{Prefix: "other_"})
	inBoth := func(work exclusive.Work) error {
		return a.Do(t.Context(), "k", func(ctx context.Context, _ exclusive.Grant) error {
			// Not derived from work's: another goroutine's.
			return b.Do(t.Context(), "k", func(bctx context.Context, g exclusive.Grant) error {
				wantErr(t, a.Do(bctx, "l", nothing), exclusive.ErrUnavailable)
				return work(ctx, g)
			})
		})
	}
	err := inBoth(func(ctx context.Context, _ exclusive.Grant) error { return b.Do(ctx, "l", nothing) })
	wantErr(t, err, exclusive.ErrUnavailable)
	f.pool = 3
	for _, x := range []*Locks[int]{a, b} {
		if err := x.Do(t.Context(), "m", func(ctx context.Context, _ exclusive.Grant) error { return b.Do(ctx, "l", nothing) }); err != nil {
			t.Errorf("with room: %v", err)
		}
	}
	// A failed COMMIT gives the connection back too.
	f.pool, f.commit = 1, errDeadlock
	wantErr(t, a.Do(t.Context(), "k", nothing), exclusive.ErrConflict)
	err = a.Do(t.Context(), "k", func(ctx context.Context, g exclusive.Grant) error {
		wantErr(t, a.Commit(ctx, g, func(context.Context, int) error { return nil }), exclusive.ErrConflict)
		f.commit = nil
		return b.Do(context.WithoutCancel(ctx), "l", nothing)
	})
	if errors.Is(err, exclusive.ErrUnavailable) {
		t.Errorf("after a failed COMMIT: %v", err)
	}
}

func TestBadCalls(t *testing.T) {
	f := &fake{}
	l := locks(t, f, Config{})
	ctx, g := t.Context(), exclusive.Grant{Key: "k", ID: "id"}
	apply := func(context.Context, int) error { return nil }
	for what, err := range map[string]error{
		"empty key":         l.Do(ctx, "", nothing),
		"long key":          l.Do(ctx, strings.Repeat("k", exclusive.MaxKeyBytes+1), nothing),
		"no work":           l.Do(ctx, "k", nil),
		"run without work":  l.Run(ctx, "k", nil),
		"all without work":  l.DoAll(ctx, []string{"k"}, nil),
		"no apply":          l.Commit(ctx, g, nil),
		"commit, empty key": l.Commit(ctx, exclusive.Grant{ID: "id"}, apply),
		"commit, no id":     l.Commit(ctx, exclusive.Grant{Key: "k"}, apply),
	} {
		if !errors.Is(err, exclusive.ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
	wantErr(t, l.Commit(ctx, g, apply), exclusive.ErrLost) // not of this process
	if f.begun != 0 || f.statements != nil {
		t.Error("the server was asked")
	}
}

func TestConfig(t *testing.T) {
	own := Config{Table: "t", KeyColumns: []string{"id"}}
	with := func(change func(*Config)) Config { c := own; change(&c); return c }
	for what, cfg := range map[string]Config{
		"zero": {},
		"own":  own,
		"several": with(func(c *Config) {
			c.KeyColumns = []string{"a", "b"}
			c.KeyValues = func(string) ([]any, error) { return nil, nil }
		}),
		"where":          with(func(c *Config) { c.Where, c.OrderBy = "done_at IS NULL AND kind = 'x'", []string{"due"} }),
		"wait and probe": {Wait: time.Hour, Probe: time.Second},
	} {
		if _, err := New(&fake{}, cfg); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	for what, c := range map[string]struct {
		cfg  Config
		want []string
	}{
		"all at once":     {Config{Wait: -1, Prefix: "a;", Schema: `"`, KeyColumns: []string{"id"}, Probe: 1}, []string{"Wait", "Prefix", "Schema", "need a Table", "Probe"}},
		"no columns":      {Config{Table: "t"}, []string{"KeyColumns is empty"}},
		"several":         {with(func(c *Config) { c.KeyColumns = []string{"a", "b"} }), []string{"need KeyValues"}},
		"bad names":       {with(func(c *Config) { c.Table, c.KeyColumns, c.OrderBy = "a`", []string{""}, []string{"x\n"} }), []string{"Table", "KeyColumns", "OrderBy"}},
		"prefix":          {with(func(c *Config) { c.Prefix = "p" }), []string{"Prefix"}},
		"two statements":  {with(func(c *Config) { c.Where = "1 = 1; DROP TABLE t" }), []string{"Where"}},
		"placeholder":     {with(func(c *Config) { c.Where = "id = ?" }), []string{"Where"}},
		"comment":         {with(func(c *Config) { c.Where = "true --" }), []string{"Where"}},
		"probe and not":   {Config{Probe: time.Second, NoProbe: true}, []string{"NoProbe"}},
		"probe too often": {Config{Probe: time.Microsecond}, []string{"Probe"}},
	} {
		_, err := New(&fake{}, c.cfg)
		wantErr(t, err, exclusive.ErrInvalid)
		for _, want := range c.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v does not say %q", what, err, want)
			}
		}
	}
}

func TestPromises(t *testing.T) {
	var x exclusive.Transactional[int] = locks(t, &fake{}, Config{})
	need := exclusive.Promises{OneWinner: true, OneAtATime: true, RefusesStale: true, InTx: true}
	if err := exclusive.Require(x, need); err != nil {
		t.Error(err)
	}
	if p := x.Promises(); p.OncePerKey {
		t.Error("promises that work runs once")
	}
}

// until answers with err until it is time to, and is silent for some of that time.
func until(err error, silent, back, over time.Duration) func(context.Context) error {
	began := time.Now()
	return func(ctx context.Context) error {
		if since := time.Since(began); since >= silent && since < back {
			select {
			case <-time.After(back - since):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if time.Since(began) < over {
			return err
		}
		return nil
	}
}

// What is told at the end of a wait: held if the server has said so a moment ago,
// and nothing that nobody knows.
func TestEndOfWait(t *testing.T) {
	const wait, never = 10 * time.Second, time.Duration(math.MaxInt64)
	for name, c := range map[string]struct {
		begin, lock func() func(context.Context) error
		waiters     int
		cancel      time.Duration
		want        error // nil: all get the key
	}{
		"held":             {lock: func() func(context.Context) error { return until(errLocked, never, never, never) }, waiters: 1, want: exclusive.ErrHeld},
		"held, no turn":    {lock: func() func(context.Context) error { return until(errLocked, never, never, never) }, waiters: 3, want: exclusive.ErrHeld},
		"cut off":          {lock: func() func(context.Context) error { return until(errLocked, wait-time.Second, never, never) }, waiters: 1, want: exclusive.ErrHeld},
		"no connection":    {begin: func() func(context.Context) error { return until(nil, 0, never, 0) }, waiters: 1, want: exclusive.ErrUnavailable},
		"no answer":        {lock: func() func(context.Context) error { return until(nil, 0, never, 0) }, waiters: 1, want: exclusive.ErrUnavailable},
		"silent, no turn":  {lock: func() func(context.Context) error { return until(nil, 0, never, 0) }, waiters: 3, want: exclusive.ErrUnavailable},
		"held, then gone":  {lock: func() func(context.Context) error { return until(errLocked, time.Second, never, never) }, waiters: 1, want: exclusive.ErrUnavailable},
		"held after all":   {lock: func() func(context.Context) error { return until(errLocked, 0, wait+time.Second, never) }, waiters: 1, want: exclusive.ErrHeld},
		"free after all":   {lock: func() func(context.Context) error { return until(errLocked, 0, wait+time.Second, time.Second) }, waiters: 1},
		"gone, and cancel": {lock: func() func(context.Context) error { return until(nil, 0, never, 0) }, waiters: 1, cancel: wait + time.Second, want: context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fake{}
				if c.begin != nil {
					f.begin = c.begin()
				}
				if c.lock != nil {
					f.lock = c.lock()
				}
				l := locks(t, f, Config{Wait: wait})
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if c.cancel > 0 {
					time.AfterFunc(c.cancel, cancel)
				}
				var wg sync.WaitGroup
				for range c.waiters {
					wg.Go(func() {
						began := time.Now()
						err := l.Do(ctx, "k", nothing)
						if !errors.Is(err, c.want) {
							t.Errorf("%v; want %v", err, c.want)
						}
						for _, other := range []error{exclusive.ErrHeld, exclusive.ErrUnavailable, context.Canceled} {
							if other != c.want && errors.Is(err, other) {
								t.Errorf("%v matches %q too", err, other)
							}
						}
						if took := time.Since(began); took < wait && c.want != nil || took > 2*wait {
							t.Errorf("told after %v", took)
						}
					})
				}
				wg.Wait()
			})
		})
	}
}

// The longest wait is one.
func TestWaitForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		l := locks(t, f, Config{Wait: math.MaxInt64})
		if err := l.Do(t.Context(), "k", nothing); err != nil {
			t.Errorf("a free key: %v", err)
		}
		f.lock = until(errLocked, math.MaxInt64, math.MaxInt64, time.Hour)
		if err := l.Do(t.Context(), "k", nothing); err != nil {
			t.Errorf("a key that becomes free: %v", err)
		}
	})
}
