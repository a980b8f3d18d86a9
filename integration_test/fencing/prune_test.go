package fencing_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/fencing"
	"github.com/exclusive-go/exclusive/integration_test/cases/session"
	"github.com/exclusive-go/exclusive/integration_test/matrix"
	"github.com/exclusive-go/exclusive/internal/db"
)

// age makes free rows, and those that have run out, two hours older.
func age[Tx any](t *testing.T, target *matrix.Target[Tx], where string, args ...any) {
	t.Helper()
	const hours = 2 * 3600_000_000
	_, err := target.Plain.ExecContext(t.Context(), target.Bind("UPDATE exclusive_lease SET acquired_at = acquired_at - ? WHERE expires_at <= 1 AND "+where),
		append([]any{int64(hours)}, args...)...)
	if err != nil && !target.Networked() && target.DB.Classify(err) == db.Locked {
		return // SQLite: somebody writes
	}
	must(t, "age", err)
}

// Prune removes what nobody has had for long, and no token comes back.
func TestPrune(t *testing.T) { matrix.Each(t, testPrune, testPrune) }

func testPrune[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	ctx := t.Context()
	x := newLeases(t, target, fencing.Config{})
	guard, err := fencing.NewGuard(target.DB, fencing.GuardConfig{})
	must(t, "new guard", err)
	tokens := make(map[string]int64)
	for _, key := range []string{"old", "old", "old", "recent", "live", "ran out"} {
		lease := acquire(t, x, key)
		tokens[key] = lease.Grant().Token
		must(t, "register", guard.Register(ctx, lease.Grant()))
		if key != "live" && key != "ran out" {
			must(t, "release", lease.Release(ctx))
		}
	}
	must(t, "advance", x.Advance(ctx, "advanced", 1000))
	age(t, target, "lease_key <> ?", []byte("recent"))
	runOut(t, target, "ran out")
	target.MustExec(t, "UPDATE exclusive_lease SET acquired_at = acquired_at - 7200000000 WHERE lease_key = ?", []byte("live"))

	_, err = x.Prune(ctx, time.Minute)
	wantErr(t, "too young", err, exclusive.ErrInvalid)
	var told int64
	n, err := x.Prune(ctx, time.Hour, func(removed int64) { told = removed })
	must(t, "prune", err)
	if told != n {
		t.Errorf("told of %d, removed %d", told, n)
	}
	want := int64(2) // old and ran out; advanced is past the sequence
	if target.Dialect == "mysql" || target.Dialect == "sqlite" {
		want = 3
	}
	if left := target.Int(t, "SELECT COUNT(*) FROM exclusive_lease"); n != want || left != 5-want {
		t.Errorf("%d rows were removed, %d are left", n, left)
	}
	if n := target.Int(t, "SELECT COUNT(*) FROM exclusive_lease WHERE lease_key = ? OR lease_key = ?", []byte("recent"), []byte("live")); n != 2 {
		t.Error("a row that is in use or was lately is gone")
	}
	tokens["advanced"] = 1000
	for _, key := range []string{"old", "ran out", "advanced", "new"} {
		lease := acquire(t, x, key)
		if g := lease.Grant(); g.Token <= tokens[key] {
			t.Errorf("%s: token %d came after %d", key, g.Token, tokens[key])
		}
		must(t, "register with the mark of before", guard.Register(ctx, lease.Grant()))
		must(t, "release", lease.Release(ctx))
	}

	// The twin: a row deleted by hand takes its count with it, where rows count.
	if target.Dialect == "mysql" || target.Dialect == "sqlite" {
		must(t, "advance", x.Advance(ctx, "by hand", 5000))
		target.MustExec(t, "DELETE FROM exclusive_lease WHERE lease_key = ?", []byte("by hand"))
		if lease := acquire(t, x, "by hand"); lease.Grant().Token > 5000 {
			t.Error("deleting by hand does no harm: the test proves nothing")
		}
	}
}

// Keys are had and given back while their rows are pruned as soon as they are
// free: no lease is lost, and the tokens of each key rise.
func TestPruneHammer(t *testing.T) { matrix.Drivers(t, testPruneHammer, testPruneHammer) }

func testPruneHammer[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	ctx := t.Context()
	x := newLeases(t, target, fencing.Config{TTL: time.Minute, Wait: 20 * time.Second})
	done := make(chan struct{})
	var workers sync.WaitGroup
	for w := range 4 {
		workers.Go(func() {
			key, last := fmt.Sprint("k", w), int64(0)
			for range 25 {
				err := x.Do(ctx, key, func(ctx context.Context, g exclusive.Grant) error {
					if g.Token <= last {
						t.Errorf("%s: token %d came after %d", key, g.Token, last)
					}
					last = g.Token
					if w%2 == 0 {
						return nil
					}
					return x.Commit(ctx, g, func(context.Context, Tx) error { return nil })
				})
				if err != nil && !errors.Is(err, exclusive.ErrConflict) {
					t.Errorf("%s: %v", key, err)
				}
			}
		})
	}
	go func() {
		defer close(done)
		workers.Wait()
	}()
	removed := int64(0)
	for working := true; working; {
		select {
		case <-done:
			working = false
		default:
		}
		age(t, target, "1 = 1")
		n, err := x.Prune(ctx, time.Hour)
		must(t, "prune", err)
		removed += n
	}
	if removed == 0 {
		t.Error("nothing was pruned: the test proves nothing")
	}
}

// Once leaves no savepoint behind, whether it succeeds, replays or fails.
func TestOnceReleases(t *testing.T) { matrix.Drivers(t, nil, testOnceReleases, "sqlite") }

func testOnceReleases[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	x := newLeases(t, target, fencing.Config{})
	ctx := t.Context()
	failed := errors.New("failed")
	must(t, "transaction", inTx(t, target, func(tx Tx) error {
		for _, want := range []error{failed, nil, nil} {
			_, err := x.Once(ctx, tx, "op", nil, func(context.Context) ([]byte, error) { return []byte("r"), want })
			if !errors.Is(err, want) {
				t.Errorf("once: %v; want %v", err, want)
			}
		}
		for n := range 3000 { // they are numbered for the whole process
			if err := target.Exec(ctx, tx, fmt.Sprintf("RELEASE SAVEPOINT exclusive_once_%d", n)); err == nil {
				t.Errorf("savepoint %d is left", n)
			}
		}
		return nil
	}))
}

// Who waits for a key draws no number each time that it looks: each is a write of the
// sequence.
func TestWaitingDrawsNoNumbers(t *testing.T) {
	matrix.Drivers(t, testWaitingDrawsNoNumbers, testWaitingDrawsNoNumbers, "postgres", "mariadb")
}

func testWaitingDrawsNoNumbers[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	next := map[string]string{
		"postgres": "SELECT last_value FROM exclusive_token",
		"mariadb":  "SELECT next_not_cached_value FROM exclusive_token",
	}[target.Dialect]
	x := newLeases(t, target, fencing.Config{})
	rival := newLeases(t, target.Another(t, matrix.Options{}), fencing.Config{})
	held := acquire(t, x, "k")
	before := target.Int(t, next)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	_, err := rival.Acquire(ctx, "k")
	wantErr(t, "acquire of a held key", err, context.DeadlineExceeded)
	drawn, most := target.Int(t, next)-before, int64(0)
	if target.Dialect == "mariadb" {
		most = 1 // by the first try, which does not look
	}
	if drawn > most {
		t.Errorf("%d numbers were drawn while the key was held", drawn)
	}
	must(t, "release", held.Release(t.Context()))
}

// A claim that stalls between the floor and its row brings no token back, also where
// reads lock nothing by themselves: Prune waits for it.
func TestPruneWaitsForStalledClaim(t *testing.T) {
	matrix.Drivers(t, nil, testPruneWaitsForStalledClaim, "mysql")
}

func testPruneWaitsForStalledClaim[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	target = target.Isolated(t, "read committed")
	ctx := t.Context()
	patient := *target
	patient.DB = matrix.Patient[Tx]{DB: target.DB} // or it would give up before it is met
	stalled := newLeases(t, &patient, fencing.Config{Holder: "stalled"})
	x := newLeases(t, target, fencing.Config{})
	must(t, "acquire", acquire(t, stalled, "other").Release(ctx)) // it is connected
	// The first Prune makes the row of the floor, which claims hold on to.
	age(t, target, "1 = 1")
	_, err := x.Prune(ctx, time.Hour)
	must(t, "prune", err)
	last := int64(0)
	for range 5 {
		lease := acquire(t, x, "k")
		last = lease.Grant().Token
		must(t, "release", lease.Release(ctx))
	}
	age(t, target, "1 = 1")

	// The claim waits in a trigger, with the floor that it has read.
	conn, err := target.Plain.Conn(ctx)
	must(t, "connect", err)
	defer conn.Close()
	name := "stall " + stalledName()
	target.MustExec(t, "CREATE TRIGGER stall BEFORE INSERT ON exclusive_lease FOR EACH ROW BEGIN IF NEW.holder = 'stalled' THEN DO GET_LOCK('"+name+"', 60); DO RELEASE_LOCK('"+name+"'); END IF; END")
	_, err = conn.ExecContext(ctx, "SELECT GET_LOCK('"+name+"', 20)")
	must(t, "lock", err)
	token := make(chan int64, 1)
	go func() {
		lease, err := stalled.TryAcquire(ctx, "k")
		if err != nil { // the key was there, and it has waited for too long
			token <- 0
			return
		}
		token <- lease.Grant().Token
		if err := lease.Release(ctx); err != nil {
			t.Errorf("release: %v", err)
		}
	}()
	session.AwaitWaiting(t, target.Plain, target.Dialect, 1, nil)
	pruned := make(chan error, 1)
	go func() {
		_, err := x.Prune(ctx, time.Hour)
		pruned <- err
	}()
	session.AwaitWaiting(t, target.Plain, target.Dialect, 2, func() bool { return len(pruned) > 0 })
	_, err = conn.ExecContext(ctx, "SELECT RELEASE_LOCK('"+name+"')")
	must(t, "unlock", err)
	must(t, "prune", <-pruned)
	if got := <-token; got != 0 && got <= last {
		t.Errorf("token %d came after %d", got, last)
	}
	if got := acquire(t, x, "k").Grant().Token; got <= last {
		t.Errorf("then token %d came after %d", got, last)
	}
}

func stalledName() string { return fmt.Sprint(time.Now().UnixNano()) }
