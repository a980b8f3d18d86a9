package run_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/internal/run"
)

// Work returns while a Commit of its grant is under way: Do answers by what becomes
// of it, and knows that in the end.
func TestCommitLeftBehind(t *testing.T) {
	const moment = time.Second
	for name, tt := range map[string]struct {
		apply, answer time.Duration // how long each takes
		err           error         // of the Commit
		workErr       error
		want          []error // none: nil
		took          time.Duration
		sent          bool
		ended         string
		after         bool // only when the Commit has ended
	}{
		"succeeds":                    {apply: moment, took: moment, sent: true},
		"fails":                       {apply: moment, err: errBusiness, want: []error{errBusiness}, took: moment, sent: true, ended: "abandon"},
		"nobody can tell":             {apply: moment, err: exclusive.ErrOutcomeUnknown, want: []error{exclusive.ErrOutcomeUnknown}, took: moment, sent: true, ended: "abandon"},
		"work fails, Commit succeeds": {apply: moment, workErr: errBusiness, want: []error{errBusiness, exclusive.ErrFinished}, took: moment, sent: true},
		"work fails, Commit fails":    {apply: moment, err: errRelease, workErr: errBusiness, want: []error{errBusiness, errRelease}, took: moment, sent: true, ended: "abandon"},
		"late answer":                 {apply: moment, answer: db.CommitWait + run.EndWait - moment, took: db.CommitWait + run.EndWait, sent: true},
		"no answer":                   {apply: moment, answer: time.Hour, err: errRelease, want: []error{exclusive.ErrOutcomeUnknown}, took: db.CommitWait + 2*run.EndWait, sent: true, ended: "abandon", after: true},
		"apply takes too long":        {apply: run.EndWait + moment, want: []error{exclusive.ErrLost}, took: run.EndWait, ended: "abandon", after: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var g grant
				sent := false
				began := time.Now()
				err := run.Do(t.Context(), run.Observed{}, "k", func(_ context.Context, granted exclusive.Grant) error {
					if err := g.commits.Begin(granted); err != nil {
						return err
					}
					if err := g.commits.Begin(granted); !errors.Is(err, exclusive.ErrInvalid) {
						t.Errorf("a second Commit at the same time: %v", err)
					}
					go func() {
						time.Sleep(tt.apply)
						err := g.commits.Send(granted)
						if sent = err == nil; sent {
							time.Sleep(tt.answer)
							err = tt.err
						}
						g.commits.End(err)
					}()
					return tt.workErr
				}, g.claim)
				if len(tt.want) == 0 && err != nil {
					t.Errorf("Do returns %v", err)
				}
				for _, want := range tt.want {
					if !errors.Is(err, want) {
						t.Errorf("%v does not match %q", err, want)
					}
				}
				if took := time.Since(began); took != tt.took {
					t.Errorf("Do took %v more; want %v", took, tt.took)
				}
				if tt.after && (g.ended != nil || !errors.Is(context.Cause(g.ctx), run.ErrLeftBehind)) {
					t.Errorf("the grant was ended by %v during its Commit; work's context ended with %v", g.ended, context.Cause(g.ctx))
				}
				if err := g.commits.Begin(exclusive.Grant{Key: "k"}); !errors.Is(err, exclusive.ErrLost) {
					t.Errorf("a Commit that begins afterwards: %v", err)
				}
				time.Sleep(2 * time.Hour)
				synctest.Wait()
				if len(g.ended) > 1 || tt.ended == "" && g.ended != nil || tt.ended != "" && (g.ended == nil || g.ended[0] != tt.ended) {
					t.Errorf("the grant was ended by %v; want %q", g.ended, tt.ended)
				}
				if tt.ended != "" && (g.endCtxErr != nil || g.endLeft != run.EndWait) {
					t.Errorf("it was ended on a context with %v, for %v", g.endCtxErr, g.endLeft)
				}
				if sent != tt.sent {
					t.Errorf("COMMIT sent: %v; want %v", sent, tt.sent)
				}
			})
		})
	}
}

// Also when work does not return: only then can the grant be ended.
func TestCommitLeftBehindByPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g grant
		defer func() {
			_ = recover()
			if len(g.ended) != 1 || g.commits.Running() {
				t.Errorf("the grant was ended by %v while its Commit was under way: %v", g.ended, g.commits.Running())
			}
		}()
		_ = run.Do(t.Context(), run.Observed{}, "k", func(_ context.Context, granted exclusive.Grant) error {
			if err := g.commits.Begin(granted); err != nil {
				return err
			}
			time.AfterFunc(time.Second, func() { g.commits.End(errBusiness) })
			panic("boom")
		}, g.claim)
	})
}

// A Commit that comes to its apply when Do has given up on it does not run it.
func TestNotAppliedWhenGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c run.Commits
		g := exclusive.Grant{Key: "k"}
		if err := c.Begin(g); err != nil {
			t.Fatal(err)
		}
		apply := run.Sending(&c, g, func(context.Context, int) error { t.Error("apply runs"); return nil })
		if err := c.Await(g); !errors.Is(err, exclusive.ErrLost) {
			t.Errorf("given up with %v", err)
		}
		if err := apply(t.Context(), 0); !errors.Is(err, exclusive.ErrLost) {
			t.Errorf("its apply gives %v", err)
		}
	})
}

// The end of a Commit comes whatever happens in it, and is observed; one that was
// refused has none.
func TestCommitEnds(t *testing.T) {
	for name, tt := range map[string]struct {
		refusal     error
		commit      func() error
		ended, told error
	}{
		"succeeds":   {commit: func() error { return nil }},
		"fails":      {commit: func() error { return errBusiness }, ended: errBusiness, told: errBusiness},
		"panics":     {commit: func() error { panic("boom") }, ended: run.ErrUnwound, told: run.ErrUnwound},
		"is refused": {refusal: lost, commit: func() error { t.Error("committed"); return nil }, told: lost},
	} {
		var r recorder
		ends := 0
		end := func(err error) {
			if ends++; err != tt.ended {
				t.Errorf("%s: it ends with %v", name, err)
			}
		}
		func() {
			defer func() { _ = recover() }()
			_ = run.Observed{Observer: &r}.Commit(t.Context(), exclusive.Grant{ID: "id"}, func() error { return tt.refusal }, end, func(context.Context) error { return tt.commit() })
		}()
		if refused := tt.refusal != nil; ends > 1 || (ends == 0) != refused {
			t.Errorf("%s: it ends %d times", name, ends)
		}
		if len(r.events) != 1 || r.events[0].Op != exclusive.OpCommit || !errors.Is(r.events[0].Err, tt.told) {
			t.Errorf("%s: observed %+v", name, r.events)
		}
	}
}

// What is to be done after a Commit is done if that fails, also when it has just
// failed, and not at all if it succeeds.
func TestAfterACommit(t *testing.T) {
	for _, err := range []error{nil, errBusiness} {
		for _, ended := range []bool{false, true} {
			var c run.Commits
			if err := c.Begin(exclusive.Grant{Key: "k"}); err != nil {
				t.Fatal(err)
			}
			if ended {
				c.End(err)
			}
			done := false
			c.After(func() { done = true })
			if !ended {
				if done {
					t.Error("done while the Commit was under way")
				}
				c.End(err)
			}
			if done != (err != nil) {
				t.Errorf("after a Commit that gave %v: %v", err, done)
			}
		}
	}
}
