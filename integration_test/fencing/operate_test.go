package fencing_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/fencing"
	"github.com/exclusive-go/exclusive/integration_test/matrix"
	"github.com/exclusive-go/exclusive/integration_test/proxy"
)

// An operator takes a key away. Until then its holder may write, from then on
// it may not: neither before nor after somebody else has the key.
func TestReleaseByOperator(t *testing.T) {
	matrix.Drivers(t, testReleaseByOperator, testReleaseByOperator)
}

func testReleaseByOperator[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	ctx := t.Context()
	const ttl = 3 * time.Second
	x := newLeases(t, target, fencing.Config{TTL: ttl, Holder: "X"})
	operator := newLeases(t, target.Another(t, matrix.Options{}), fencing.Config{Holder: "operator"})
	// Not renewed, so that nothing but the destination tells it.
	old := newLeases(t, target, fencing.Config{TTL: time.Hour, NoRenew: true, Holder: "old"})

	must(t, "release of a key that nobody has had", operator.Release(ctx, "k"))
	lease := acquire(t, old, "k")
	g := lease.Grant()
	check := func() error {
		return inTx(t, target, func(tx Tx) error { return old.Check(ctx, tx, g) })
	}
	must(t, "check before", check())
	must(t, "release", operator.Release(ctx, "k"))
	wantErr(t, "check after", check(), exclusive.ErrLost)
	wantErr(t, "commit after", old.Commit(ctx, g, store(target, "old")), exclusive.ErrLost)

	next := acquire(t, operator, "k")
	if n := next.Grant(); n.Token <= g.Token || n.Attempt != 2 {
		t.Errorf("after %+v came %+v", g, n)
	}
	wantErr(t, "commit after the next grant", old.Commit(ctx, g, store(target, "old")), exclusive.ErrFenced)
	wantErr(t, "release by the old holder", lease.Release(ctx), exclusive.ErrLost)
	must(t, "commit by the next holder", operator.Commit(ctx, next.Grant(), store(target, "next")))
	if body := stored(t, target); body != "next" {
		t.Errorf("stored %q", body)
	}

	// A holder that renews learns it, and its Do is no success.
	err := x.Do(ctx, "k2", func(ctx context.Context, _ exclusive.Grant) error {
		must(t, "release", operator.Release(t.Context(), "k2"))
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Second):
			t.Error("the holder never heard of it")
		}
		wantErr(t, "what work sees", context.Cause(ctx), exclusive.ErrLost)
		return nil
	})
	wantErr(t, "do", err, exclusive.ErrLost)
	// Also one that ends before its next renewal.
	err = old.Do(ctx, "k3", func(context.Context, exclusive.Grant) error {
		must(t, "release", operator.Release(t.Context(), "k3"))
		return nil
	})
	wantErr(t, "do", err, exclusive.ErrLost)
	wantErr(t, "no key", operator.Release(ctx, ""), exclusive.ErrInvalid)
}

// An operator saw a holder, and meanwhile the key has passed on: the successor
// keeps it, and its write is stored.
func TestReleaseSeen(t *testing.T) { matrix.Drivers(t, testReleaseSeen, testReleaseSeen) }

func testReleaseSeen[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	ctx := t.Context()
	a := newLeases(t, target, fencing.Config{TTL: time.Hour, NoRenew: true, Holder: "A"})
	b := newLeases(t, target, fencing.Config{TTL: time.Hour, NoRenew: true, Holder: "B"})
	operator := newLeases(t, target.Another(t, matrix.Options{}), fencing.Config{Holder: "operator"})
	see := func() exclusive.Status {
		s, err := operator.Status(ctx, "k")
		must(t, "status", err)
		return s
	}

	lease := acquire(t, a, "k")
	seen := see()
	must(t, "release by A", lease.Release(ctx))
	next := acquire(t, b, "k").Grant()
	err := operator.ReleaseSeen(ctx, seen)
	wantErr(t, "release of A", err, exclusive.ErrHeld)
	if e := new(exclusive.Error); !errors.As(err, &e) || e.Holder == nil || e.Holder.ID != next.ID || e.Holder.Name != "B" {
		t.Errorf("who has it now: %v", err)
	}
	must(t, "commit by B", b.Commit(ctx, next, store(target, "B")))
	if body := stored(t, target); body != "B" {
		t.Errorf("stored %q", body)
	}
	wantErr(t, "release of A when nobody has it", operator.ReleaseSeen(ctx, seen), exclusive.ErrLost)

	// The one that was seen, once or again.
	old := acquire(t, a, "k").Grant()
	seen = see()
	must(t, "release of A", operator.ReleaseSeen(ctx, seen))
	must(t, "release of A again", operator.ReleaseSeen(ctx, seen))
	wantErr(t, "commit by A", a.Commit(ctx, old, store(target, "A")), exclusive.ErrLost)

	// The twin: what goes by the key alone takes it from B.
	next = acquire(t, b, "k").Grant()
	must(t, "release", operator.Release(ctx, "k"))
	wantErr(t, "commit by B", b.Commit(ctx, next, store(target, "B again")), exclusive.ErrLost)
	if body := stored(t, target); body != "B" {
		t.Errorf("stored %q", body)
	}
	wantErr(t, "nobody was seen", operator.ReleaseSeen(ctx, exclusive.Status{Key: "k"}), exclusive.ErrInvalid)
}

// Where plain reads go to a replica that has not heard of the holder yet, the key
// is not told as free.
func TestReleaseBehind(t *testing.T) { matrix.Drivers(t, testReleaseBehind, testReleaseBehind) }

func testReleaseBehind[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	ctx := t.Context()
	behind := *target
	behind.DB = matrix.Behind[Tx]{DB: target.DB}
	x, operator := newLeases(t, target, fencing.Config{Holder: "A"}), newLeases(t, &behind, fencing.Config{})
	lease := acquire(t, x, "k")
	if s, err := operator.Status(ctx, "k"); err != nil || s.Held {
		t.Fatalf("the replica has heard of it: %+v, %v", s, err)
	}
	err := operator.ReleaseSeen(ctx, exclusive.Status{Key: "k", Last: exclusive.Holder{ID: "another"}})
	wantErr(t, "release of another", err, exclusive.ErrHeld)
	if e := new(exclusive.Error); !errors.As(err, &e) || e.Holder == nil || e.Holder.Name != "A" {
		t.Errorf("who has it: %v", err)
	}
	must(t, "release", operator.Release(ctx, "k"))
	wantErr(t, "commit by A", x.Commit(ctx, lease.Grant(), store(target, "A")), exclusive.ErrLost)
}

// The answer to a release is lost, and the key passes on before the operator asks
// again: the successor keeps it.
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
	operator := newLeases(t, target.Another(t, matrix.Options{Addr: p.Addr(), MaxConns: 2}), fencing.Config{Holder: "operator"})
	a := newLeases(t, target, fencing.Config{TTL: time.Hour, NoRenew: true, Holder: "A"})
	b := newLeases(t, target, fencing.Config{TTL: time.Hour, NoRenew: true, Holder: "B"})
	old := acquire(t, a, "k").Grant()
	var next exclusive.Grant
	lost := false
	var mu sync.Mutex
	p.Intercept(func(data []byte) proxy.Verdict {
		mu.Lock()
		defer mu.Unlock()
		if lost && next.ID == "" { // the operator comes again
			next = acquire(t, b, "k").Grant()
		}
		if lost || !proxy.Mentions(data, old.ID) {
			return proxy.Pass
		}
		lost = true
		return proxy.CutAfter
	})
	err := operator.Release(ctx, "k")
	if next.ID == "" {
		t.Fatalf("the operator did not ask again: %v", err)
	}
	wantErr(t, "release", err, exclusive.ErrHeld)
	must(t, "commit by B", b.Commit(ctx, next, store(target, "B")))
	if body := stored(t, target); body != "B" {
		t.Errorf("stored %q", body)
	}
}

// runOut makes the lease of key two hours older than it is, which its holder does not
// know.
func runOut[Tx any](t *testing.T, target *matrix.Target[Tx], key string) {
	t.Helper()
	target.MustExec(t, "UPDATE exclusive_lease SET expires_at = expires_at - 7200000000, acquired_at = acquired_at - 7200000000 WHERE lease_key = ?", []byte(key))
}

func TestList(t *testing.T) { matrix.Drivers(t, testList, testList) }

func testList[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	ctx := t.Context()
	x := newLeases(t, target, fencing.Config{TTL: time.Hour, Holder: "X"})

	keys := []string{"A", "a", "a ", "b%_'", "é"} // in the order of their bytes
	held := make(map[string]exclusive.Grant)
	for _, key := range keys {
		held[key] = acquire(t, x, key).Grant()
	}
	must(t, "release", x.Do(ctx, "done", nothing))
	acquire(t, x, "expired")
	runOut(t, target, "expired")
	must(t, "release", x.Release(ctx, "b%_'"))

	all, err := x.List(ctx, fencing.Filter{})
	must(t, "list", err)
	states := make(map[string]exclusive.Status)
	var order []string
	for _, s := range all {
		order = append(order, s.Key)
		states[s.Key] = s
	}
	want := append([]string{"done", "expired"}, keys...)
	slices.Sort(want)
	if !slices.Equal(order, want) {
		t.Errorf("listed %q, not %q", order, want)
	}
	for key, g := range held {
		s := states[key]
		if s.Held != (key != "b%_'") || s.Last.ID != g.ID || s.Last.Token != g.Token || s.Last.Name != "X" || s.Attempt != 1 {
			t.Errorf("%q: %+v", key, s)
		}
		if s.Held && s.Last.Expires.Sub(s.Last.Since).Round(time.Minute) != time.Hour {
			t.Errorf("%q lasts from %v to %v", key, s.Last.Since, s.Last.Expires)
		}
		one, err := x.Status(ctx, key)
		must(t, "status", err)
		if fmt.Sprint(one) != fmt.Sprint(s) {
			t.Errorf("%q: %+v by itself, %+v in the list", key, one, s)
		}
	}
	if s := states["done"]; s.Held || s.Attempt != 0 || !s.Last.Expires.IsZero() {
		t.Errorf("done: %+v", s)
	}
	if s := states["expired"]; s.Held || s.Attempt != 1 || s.Last.Expires.IsZero() {
		t.Errorf("expired: %+v", s)
	}
	if s, err := x.Status(ctx, "unknown"); err != nil || s != (exclusive.Status{Key: "unknown"}) {
		t.Errorf("unknown: %+v, %v", s, err)
	}

	// Page by page, those that are held.
	var pages []string
	for after := ""; ; {
		page, err := x.List(ctx, fencing.Filter{Held: true, After: after, Limit: 2})
		must(t, "list a page", err)
		if len(page) == 0 {
			break
		}
		for _, s := range page {
			pages = append(pages, s.Key)
		}
		after = pages[len(pages)-1]
	}
	if want := []string{"A", "a", "a ", "é"}; !slices.Equal(pages, want) {
		t.Errorf("held: %q, not %q", pages, want)
	}
	_, err = x.List(ctx, fencing.Filter{Limit: 1001})
	wantErr(t, "list with a limit that is too high", err, exclusive.ErrInvalid)
}
