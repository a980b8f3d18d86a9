package uniquetask_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/integration_test/matrix"
	"github.com/exclusive-go/exclusive/integration_test/proxy"
	"github.com/exclusive-go/exclusive/uniquetask"
)

// begun is work that goes on until end.
type begun struct {
	exclusive.Grant
	how chan func(context.Context, exclusive.Grant) error
	did chan error
}

// begin begins work on a run.
func begin[Tx any](t *testing.T, x *uniquetask.Tasks[Tx], run string) *begun {
	t.Helper()
	b := &begun{how: make(chan func(context.Context, exclusive.Grant) error, 1), did: make(chan error, 1)}
	began := make(chan exclusive.Grant, 1)
	go func() {
		b.did <- x.Do(context.WithoutCancel(t.Context()), run, func(_ context.Context, g exclusive.Grant) error {
			began <- g
			return (<-b.how)(context.WithoutCancel(t.Context()), g)
		})
	}()
	select {
	case b.Grant = <-began:
	case err := <-b.did:
		t.Fatalf("do: %v", err)
	}
	t.Cleanup(func() { b.how <- nothing }) // a failed test leaves it waiting
	return b
}

// end has work end like this, and returns what Do does.
func (b *begun) end(how func(context.Context, exclusive.Grant) error) error {
	b.how <- how
	return <-b.did
}

// An operator saw a holder, and meanwhile the run has passed on: the successor
// keeps it, and its write is stored.
func TestReleaseSeen(t *testing.T) { matrix.Drivers(t, testReleaseSeen, testReleaseSeen) }

func testReleaseSeen[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	ctx := t.Context()
	a := newTasks(t, target, uniquetask.Config{TTL: time.Hour, Holder: "A"})
	b := newTasks(t, target, uniquetask.Config{TTL: time.Hour, Holder: "B"})
	operator := newTasks(t, target.Another(t, matrix.Options{}), uniquetask.Config{Holder: "operator"})
	fails := errors.New("no paper")
	fail := func(context.Context, exclusive.Grant) error { return fails }
	commit := func(x *uniquetask.Tasks[Tx], body string) func(context.Context, exclusive.Grant) error {
		return func(ctx context.Context, g exclusive.Grant) error { return x.Commit(ctx, g, store(target, body)) }
	}
	see := func() uniquetask.Run {
		r, err := operator.Outcome(ctx, "r")
		must(t, "outcome", err)
		return r
	}

	first := begin(t, a, "r")
	seen := see()
	wantErr(t, "A", first.end(fail), fails)
	wantErr(t, "release of A when nobody has it", operator.ReleaseSeen(ctx, seen), exclusive.ErrLost)
	second := begin(t, b, "r")
	err := wantErr(t, "release of A", operator.ReleaseSeen(ctx, seen), exclusive.ErrHeld)
	if err.Holder == nil || err.Holder.ID != second.ID || err.Holder.Name != "B" {
		t.Errorf("who has it now: %v", err)
	}
	must(t, "B", second.end(commit(b, "B")))
	if body := stored(t, target); body != "B" {
		t.Errorf("stored %q", body)
	}

	// The one that was seen.
	must(t, "forget", operator.Forget(ctx, "r"))
	first = begin(t, a, "r")
	must(t, "release of A", operator.ReleaseSeen(ctx, see()))
	wantErr(t, "A", first.end(commit(a, "A")), exclusive.ErrLost)

	// The twin: what goes by the key alone takes it from B.
	second = begin(t, b, "r")
	must(t, "release", operator.Release(ctx, "r"))
	wantErr(t, "B", second.end(commit(b, "B again")), exclusive.ErrLost)
	if body := stored(t, target); body != "B" {
		t.Errorf("stored %q", body)
	}
	wantErr(t, "nobody was seen", operator.ReleaseSeen(ctx, uniquetask.Run{Run: "r"}), exclusive.ErrInvalid)
}

// Where plain reads go to a replica that has not heard of the run yet, it is not
// told as free, nor as forgotten.
func TestOperateBehind(t *testing.T) { matrix.Drivers(t, testOperateBehind, testOperateBehind) }

func testOperateBehind[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	ctx := t.Context()
	behind := *target
	behind.DB = matrix.Behind[Tx]{DB: target.DB}
	x, operator := newTasks(t, target, uniquetask.Config{Holder: "A"}), newTasks(t, &behind, uniquetask.Config{})
	run := begin(t, x, "r")
	if r, err := operator.Outcome(ctx, "r"); err != nil || r.State != uniquetask.None {
		t.Fatalf("the replica has heard of it: %+v, %v", r, err)
	}
	err := wantErr(t, "release of another", operator.ReleaseSeen(ctx, uniquetask.Run{Run: "r", GrantID: "another"}), exclusive.ErrHeld)
	if err.Holder == nil || err.Holder.Name != "A" {
		t.Errorf("who has it: %v", err)
	}
	wantErr(t, "forget", operator.Forget(ctx, "r"), exclusive.ErrHeld)
	must(t, "release", operator.Release(ctx, "r"))
	wantErr(t, "A", run.end(nothing), exclusive.ErrLost)
}

// An operator saw a run that had failed. Meanwhile it was done: that is not
// forgotten, and so not done twice.
func TestForgetSeen(t *testing.T) { matrix.Drivers(t, testForgetSeen, testForgetSeen) }

func testForgetSeen[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	ctx := t.Context()
	x := newTasks(t, target, uniquetask.Config{TTL: time.Hour, Holder: "X"})
	operator := newTasks(t, target.Another(t, matrix.Options{}), uniquetask.Config{Holder: "operator"})
	fails := errors.New("no paper")
	fail := func(context.Context, exclusive.Grant) error { return fails }
	write := func(ctx context.Context, g exclusive.Grant) error { return x.Commit(ctx, g, store(target, "X")) }
	see := func() uniquetask.Run {
		r, err := operator.Outcome(ctx, "r")
		must(t, "outcome", err)
		return r
	}
	effects := func(want int64) {
		t.Helper()
		if n := target.Int(t, "SELECT n FROM effect"); int64(n) != want {
			t.Errorf("done %d times, not %d", n, want)
		}
	}

	wantErr(t, "do", x.Do(ctx, "r", fail), fails)
	seen := see()
	work := begin(t, x, "r")
	wantErr(t, "forget while somebody works on it", operator.ForgetSeen(ctx, seen), exclusive.ErrHeld)
	must(t, "do", work.end(write))
	err := wantErr(t, "forget of what is done by now", operator.ForgetSeen(ctx, seen), exclusive.ErrConflict)
	if err.Holder == nil || err.Holder.ID != work.ID {
		t.Errorf("who did it: %v", err)
	}
	wantErr(t, "do", x.Do(ctx, "r", write), exclusive.ErrDone)
	effects(1)

	// The same grant, which has ended since.
	work = begin(t, x, "s")
	running, err2 := operator.Outcome(ctx, "s")
	must(t, "outcome", err2)
	must(t, "do", work.end(nothing))
	wantErr(t, "forget of what has ended since", operator.ForgetSeen(ctx, running), exclusive.ErrConflict)

	// As it was seen; and the twin, by the key alone: it is done again.
	must(t, "forget", operator.ForgetSeen(ctx, see()))
	must(t, "forget of what is gone", operator.ForgetSeen(ctx, seen))
	must(t, "do", x.Do(ctx, "r", write))
	effects(2)
	must(t, "forget", operator.Forget(ctx, "r"))
	must(t, "do", x.Do(ctx, "r", write))
	effects(3)
	wantErr(t, "nobody was seen", operator.ForgetSeen(ctx, uniquetask.Run{Run: "r"}), exclusive.ErrInvalid)
}

// The answer to a release is lost, and the run passes on before the operator asks
// again, or does not.
func TestOperatorWithoutAnswer(t *testing.T) {
	matrix.Drivers(t, testOperatorWithoutAnswer, testOperatorWithoutAnswer)
}

func testOperatorWithoutAnswer[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	if !target.Networked() {
		return
	}
	setUp(t, target)
	ctx := t.Context()
	p := proxy.Start(t, target.Addr(t))
	operator := newTasks(t, target.Another(t, matrix.Options{Addr: p.Addr(), MaxConns: 2}), uniquetask.Config{Holder: "operator"})
	x := newTasks(t, target, uniquetask.Config{TTL: time.Hour})
	for run, passesOn := range map[string]bool{"passes on": true, "does not": false} {
		old := begin(t, x, run)
		var next *begun
		lost := false
		var mu sync.Mutex
		p.Intercept(func(data []byte) proxy.Verdict {
			mu.Lock()
			defer mu.Unlock()
			if lost && passesOn && next == nil { // the operator comes again
				next = begin(t, x, run)
			}
			if lost || !proxy.Mentions(data, old.ID) {
				return proxy.Pass
			}
			lost = true
			return proxy.CutAfter
		})
		err := operator.Release(ctx, run)
		if !lost || passesOn && next == nil {
			t.Fatalf("the operator did not ask again: %v", err)
		}
		write := func(ctx context.Context, g exclusive.Grant) error { return x.Commit(ctx, g, store(target, run)) }
		if passesOn {
			wantErr(t, "release", err, exclusive.ErrHeld)
			must(t, "the successor", next.end(write))
		} else {
			must(t, "release", err)
		}
		wantErr(t, "the old holder", old.end(write), exclusive.ErrLost)
	}
	if body := stored(t, target); body != "passes on" {
		t.Errorf("stored %q", body)
	}
}
