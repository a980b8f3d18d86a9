package run_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/internal/run"
)

// grant is a strategy of one key that records how it is ended.
type grant struct {
	ctx       context.Context
	lose      context.CancelCauseFunc
	commits   *run.Commits
	finishErr error
	abandon   error
	ended     []string
	endCtxErr error
	endLeft   time.Duration
}

func (g *grant) claim(ctx context.Context) (*run.Claim, error) {
	g.commits = new(run.Commits)
	g.ctx, g.lose = context.WithCancelCause(ctx)
	note := func(ctx context.Context, how string) {
		g.ended = append(g.ended, how)
		g.endCtxErr = ctx.Err()
		if d, ok := ctx.Deadline(); ok {
			g.endLeft = time.Until(d)
		}
	}
	return &run.Claim{
		Grant: exclusive.Grant{Key: "k", ID: "id", Token: 1}, Context: g.ctx,
		Commits: g.commits,
		Finish:  func(ctx context.Context) error { note(ctx, "finish"); return g.finishErr },
		Abandon: func(ctx context.Context, _ error) error { note(ctx, "abandon"); return g.abandon },
	}, nil
}

// commit is a Commit that succeeds.
func (g *grant) commit() {
	_ = g.commits.Begin(exclusive.Grant{Key: "k"})
	g.commits.End(nil)
}

var (
	errBusiness = errors.New("business error")
	errRelease  = errors.New("release failed")
	lost        = &exclusive.Error{Op: "hold", Key: "k", Kind: exclusive.ErrLost}
)

func TestDoOutcomes(t *testing.T) {
	for name, tt := range map[string]struct {
		grant  grant
		work   func(ctx context.Context, g *grant, cancel func()) error
		want   []error
		not    []error
		ended  string
		ctxErr error
	}{
		"success":                       {work: func(context.Context, *grant, func()) error { return nil }, ended: "finish"},
		"work fails":                    {work: func(context.Context, *grant, func()) error { return errBusiness }, want: []error{errBusiness}, ended: "abandon"},
		"work and release fail":         {grant: grant{abandon: errRelease}, work: func(context.Context, *grant, func()) error { return errBusiness }, want: []error{errBusiness, errRelease}, ended: "abandon"},
		"release fails":                 {grant: grant{finishErr: errRelease}, work: func(context.Context, *grant, func()) error { return nil }, want: []error{errRelease}, ended: "finish"},
		"cancelled, work fails":         {work: func(ctx context.Context, _ *grant, cancel func()) error { cancel(); return ctx.Err() }, want: []error{context.Canceled}, not: []error{exclusive.ErrHeld, exclusive.ErrLost}, ended: "abandon"},
		"cancelled, told otherwise":     {work: func(_ context.Context, _ *grant, cancel func()) error { cancel(); return errBusiness }, want: []error{context.Canceled, errBusiness}, ended: "abandon"},
		"cancelled, work returns nil":   {work: func(_ context.Context, _ *grant, cancel func()) error { cancel(); return nil }, want: []error{context.Canceled}, ended: "abandon"},
		"lost, work returns nil":        {grant: grant{abandon: lost}, work: func(_ context.Context, g *grant, _ func()) error { g.lose(lost); return nil }, want: []error{exclusive.ErrLost}, ended: "abandon"},
		"lost, work fails":              {grant: grant{abandon: lost}, work: func(ctx context.Context, g *grant, _ func()) error { g.lose(lost); return errBusiness }, want: []error{exclusive.ErrLost, errBusiness}, ended: "abandon"},
		"committed":                     {work: func(_ context.Context, g *grant, _ func()) error { g.commit(); return nil }},
		"committed, then cancelled":     {work: func(_ context.Context, g *grant, cancel func()) error { g.commit(); cancel(); return nil }},
		"committed, then lost":          {work: func(_ context.Context, g *grant, _ func()) error { g.commit(); g.lose(lost); return nil }},
		"committed, then work fails":    {work: func(_ context.Context, g *grant, _ func()) error { g.commit(); return errBusiness }, want: []error{errBusiness, exclusive.ErrFinished}},
		"lost on release, work returns": {grant: grant{finishErr: lost}, work: func(context.Context, *grant, func()) error { return nil }, want: []error{exclusive.ErrLost}, ended: "finish"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			g := tt.grant
			err := run.Do(ctx, run.Observed{}, "k", func(ctx context.Context, _ exclusive.Grant) error {
				return tt.work(ctx, &g, cancel)
			}, g.claim)
			if len(tt.want) == 0 && err != nil {
				t.Errorf("error %v", err)
			}
			for _, want := range tt.want {
				if !errors.Is(err, want) {
					t.Errorf("%v does not match %q", err, want)
				}
			}
			for _, not := range tt.not {
				if errors.Is(err, not) {
					t.Errorf("%v matches %q", err, not)
				}
			}
			switch {
			case tt.ended == "" && g.ended != nil, tt.ended != "" && (len(g.ended) != 1 || g.ended[0] != tt.ended):
				t.Errorf("the grant was ended by %v; want %q", g.ended, tt.ended)
			case g.endCtxErr != nil:
				t.Errorf("it was ended on a context that is over: %v", g.endCtxErr)
			case tt.ended != "" && (g.endLeft <= 0 || g.endLeft > run.EndWait):
				t.Errorf("it may take %v to end it", g.endLeft)
			}
		})
	}
}

// A Finish that records something is tried for as long as nobody else can have the
// key, on a context of its own each time: the first may be on a connection that
// hangs. The caller's cancellation ends that, but not the first try.
func TestDoFinishesWhileItLasts(t *testing.T) {
	const left = time.Minute
	for name, tt := range map[string]struct {
		until  time.Duration // 0: it records nothing
		back   time.Duration // when the server answers again
		cancel time.Duration
		took   time.Duration
		failed bool
	}{
		"back in time":         {until: left, back: left / 2, took: left / 2},
		"back too late":        {until: left, back: time.Hour, took: left, failed: true},
		"not much is left":     {until: time.Second, back: time.Hour, took: run.EndWait, failed: true},
		"nothing to record":    {back: left / 2, took: run.EndWait, failed: true},
		"cancelled meanwhile":  {until: left, back: left / 2, cancel: run.EndWait + time.Second, took: 2 * run.EndWait, failed: true},
		"cancelled, and there": {until: left, back: time.Second, cancel: time.Millisecond, took: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				began := time.Now()
				if tt.cancel > 0 {
					time.AfterFunc(tt.cancel, cancel)
				}
				g := new(grant)
				err := run.Do(ctx, run.Observed{}, "k", func(context.Context, exclusive.Grant) error { return nil }, func(ctx context.Context) (*run.Claim, error) {
					c, err := g.claim(ctx)
					c.Finish = func(ctx context.Context) error {
						select {
						case <-time.After(time.Until(began.Add(tt.back))):
							return nil
						case <-ctx.Done():
							return errors.Join(errRelease, ctx.Err())
						}
					}
					if tt.until > 0 {
						c.Until = func() time.Time { return began.Add(tt.until) }
					}
					return c, err
				})
				if took := time.Since(began); took != tt.took || errors.Is(err, errRelease) != tt.failed {
					t.Errorf("after %v: %v", took, err)
				}
				if ended := tt.cancel > 0 && tt.failed; errors.Is(err, context.Canceled) != ended {
					t.Errorf("it is told as a cancellation: %v; want %v: %v", !ended, ended, err)
				}
			})
		})
	}
}

func TestDoUnwinds(t *testing.T) {
	for name, unwind := range map[string]func(){
		"panic": func() { panic("boom") },
		"value": func() { panic(42) },
		"exit":  runtime.Goexit,
	} {
		var g grant
		var r recorder
		var recovered any
		var wg sync.WaitGroup
		wg.Go(func() {
			defer func() { recovered = recover() }()
			_ = run.Do(t.Context(), run.Observed{Observer: &r}, "k", func(context.Context, exclusive.Grant) error { unwind(); return nil }, g.claim)
			t.Errorf("%s: Do returned", name)
		})
		wg.Wait()
		if want := map[string]any{"panic": "boom", "value": 42, "exit": nil}[name]; recovered != want {
			t.Errorf("%s: recovered %v, want %v", name, recovered, want)
		}
		if len(g.ended) != 1 || g.ended[0] != "abandon" || g.endCtxErr != nil {
			t.Errorf("%s: the grant was ended by %v on a context with %v", name, g.ended, g.endCtxErr)
		}
		if len(r.events) != 1 || r.events[0].Err == nil {
			t.Errorf("%s: observed %+v; want a failure", name, r.events)
		}
	}
}

func TestDoRefusesBeforeItClaims(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	work := func(context.Context, exclusive.Grant) error { t.Error("work ran"); return nil }
	claim := func(context.Context) (*run.Claim, error) { t.Error("claimed"); return nil, errors.New("claimed") }
	if err := run.Do(t.Context(), run.Observed{}, "", work, claim); !errors.Is(err, exclusive.ErrInvalid) {
		t.Errorf("empty key: %v", err)
	}
	if err := run.Do(t.Context(), run.Observed{}, "k", nil, claim); !errors.Is(err, exclusive.ErrInvalid) {
		t.Errorf("no work: %v", err)
	}
	if err := run.Do(ended, run.Observed{}, "k", work, claim); !errors.Is(err, context.Canceled) {
		t.Errorf("ended context: %v", err)
	}
	held := &exclusive.Error{Kind: exclusive.ErrHeld}
	err := run.Do(t.Context(), run.Observed{}, "k", work, func(context.Context) (*run.Claim, error) { return nil, held })
	if !errors.Is(err, exclusive.ErrHeld) {
		t.Errorf("held: %v", err)
	}
}

// recorder notes what it is told.
type recorder struct {
	mu     sync.Mutex
	events []exclusive.Event
}

type spanKey struct{}

func (r *recorder) Start(ctx context.Context, e exclusive.Event) context.Context {
	return context.WithValue(ctx, spanKey{}, e.Op)
}

func (r *recorder) End(ctx context.Context, e exclusive.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if ctx.Value(spanKey{}) != e.Op {
		e.Err = errors.Join(e.Err, errors.New("the span was lost on the way"))
	}
	r.events = append(r.events, e)
}

func TestDoIsObserved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r recorder
		var g grant
		err := run.Do(t.Context(), run.Observed{Strategy: "s", Observer: &r}, "k", func(ctx context.Context, _ exclusive.Grant) error {
			if ctx.Value(spanKey{}) != exclusive.OpDo {
				t.Error("work is not inside the span")
			}
			time.Sleep(time.Second)
			return errBusiness
		}, g.claim)
		want := exclusive.Event{Op: exclusive.OpDo, Strategy: "s", Key: "k", Grant: exclusive.Grant{Key: "k", ID: "id", Token: 1}, Duration: time.Second, Err: err}
		if len(r.events) != 1 || r.events[0] != want {
			t.Errorf("observed %+v", r.events)
		}
	})
}
