// Package comparison plays the same faults with every strategy on every
// database and writes down what was stored: docs/comparison.md. Its test plays
// them again and fails if the page says something else.
package comparison

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/exclusivetest"
	"github.com/exclusive-go/exclusive/integration_test/matrix"
	"github.com/exclusive-go/exclusive/integration_test/proxy"
	"github.com/exclusive-go/exclusive/integration_test/strategies"
)

const (
	// ttl is how long A's leases last where they are not renewed.
	ttl = exclusivetest.TTL
	// patience bounds what waits for something that comes.
	patience = 20 * time.Second
)

// result is what came of a fault, in words.
type result struct {
	Seen string // on this database
	Held string // the promise that kept the result right
	Twin string // what is stored when the check is left out
}

// none is where a fault cannot be.
var none = result{"—", "—", "—"}

// fault is a section of the page.
type fault[Tx any] struct {
	title, story string
	play         func(r *rig[Tx]) result
}

func faults[Tx any]() []fault[Tx] {
	return []fault[Tx]{
		{
			"Holder paused past its lease",
			"A gets the key and freezes for longer than its lease; nobody renews it. B tries meanwhile. A wakes up and commits its result. " +
				"*Without the check:* A writes past the strategy. Where B is kept out by a lock, both write without asking it.",
			paused[Tx],
		},
		{
			"Holder killed",
			"A is a process of its own. It is killed (SIGKILL) in its transaction, after its write. B tries until it gets the key, or for well over a lease. " +
				"*Without the check:* A's write is not in the transaction that finishes the grant: it is stored, and done a second time.",
			killed[Tx],
		},
		{
			"Connection killed",
			"All of A's connections to the destination are cut in its transaction, after its write; A itself lives. Then B tries. " +
				"*Without the check:* A's write is not in the transaction that finishes the grant: it is stored, and done a second time.",
			cut[Tx],
		},
		{
			"Pause between check and write",
			"A freezes in its transaction for longer than its lease: after the check, before the write. B wants the key meanwhile. " +
				"*Without the check:* A checks in one transaction and writes in another one. Where B is kept out by a lock, both write without asking it.",
			betweenCheckAndWrite[Tx],
		},
		{
			"Lost answer to COMMIT",
			"The server commits A's transaction, and the connection breaks before A hears of it. If A is told anything but success it looks at the key again. " +
				"*Without the check:* a plain transaction in the same place; its caller sees an error and repeats it.",
			lostAnswer[Tx],
		},
		{
			"Key taken away by an operator",
			"While A works an operator gives its key free: puts the row's state back (casupdate), ends the session (rowlock), releases the run (uniquetask), " +
				"ends the lease (fencing, redisbackend). B gets the key, writes and finishes. Then A commits. *Without the check:* A writes past the strategy.",
			takenAway[Tx],
		},
		{
			"Destination read-only",
			"A's connections to the destination can only read, as on a replica or after a failover. B's can write.",
			readOnly[Tx],
		},
	}
}

// rig is a strategy at its place, with two workers.
type rig[Tx any] struct {
	*testing.T
	ctx      context.Context
	target   *matrix.Target[Tx]
	other    *matrix.Target[Tx] // B's pool
	place    *strategies.Place[Tx]
	promises exclusive.Promises
}

func (r *rig[Tx]) open(target *matrix.Target[Tx], cfg exclusivetest.Config) exclusive.Transactional[Tx] {
	r.Helper()
	return r.place.New(r.T, target, cfg)
}

// well is well over a lease.
func well(lease time.Duration) time.Duration { return lease * 5 / 2 }

// untilRan has a worker that does not renew do its work, again and with a longer
// lease until it says that it came to its point: on a slow machine a short lease
// may be over before that.
func (r *rig[Tx]) untilRan(key string, work func(a exclusive.Transactional[Tx], g exclusive.Grant, lease time.Duration) (ran bool, err error)) {
	r.Helper()
	for lease := ttl; lease < patience; lease *= 2 {
		a := r.open(r.target, exclusivetest.Config{TTL: lease, NoRenew: true, Wait: patience, Holder: "A"})
		ran := false
		err := a.Do(r.ctx, key, func(_ context.Context, g exclusive.Grant) (err error) {
			ran, err = work(a, g, lease)
			return err
		})
		if ran {
			return
		}
		r.Logf("A did not get far with a lease of %v: %v", lease, err)
	}
	r.Fatal("A does not get far")
}

func (r *rig[Tx]) healthy(wait time.Duration) exclusive.Transactional[Tx] {
	return r.open(r.other, exclusivetest.Config{TTL: 10 * time.Second, Wait: wait, Holder: "B"})
}

// commit stores who's result as the holder of g.
func (r *rig[Tx]) commit(x exclusive.Transactional[Tx], g exclusive.Grant, who string) error {
	return x.Commit(r.ctx, g, func(ctx context.Context, tx Tx) error { return r.place.Write(ctx, tx, g.Key, who) })
}

// past stores who's result past the strategy.
func (r *rig[Tx]) past(key, who string) {
	r.Helper()
	r.must("a write past the strategy", r.place.InTx(r.ctx, func(ctx context.Context, tx Tx) error { return r.place.Write(ctx, tx, key, who) }))
}

func (r *rig[Tx]) must(what string, err error) {
	r.Helper()
	if err != nil {
		r.Fatalf("%s: %v", what, err)
	}
}

// report has x do its whole work for key.
func (r *rig[Tx]) report(x exclusive.Transactional[Tx], key, who string) error {
	return x.Do(r.ctx, key, func(_ context.Context, g exclusive.Grant) error { return r.commit(x, g, who) })
}

// try has x do its work as soon as the key is free, if that is within d.
func (r *rig[Tx]) try(x exclusive.Transactional[Tx], key, who string, d time.Duration) error {
	for until := time.Now().Add(d); ; {
		err := r.report(x, key, who)
		if !errors.Is(err, exclusive.ErrHeld) || time.Now().After(until) {
			return err
		}
		time.Sleep(ttl / 20)
	}
}

// stored says in words what the destination holds.
func (r *rig[Tx]) stored(key string) string {
	r.Helper()
	switch body, n := r.place.Stored(r.T, key); {
	case n == 0:
		return "nothing"
	case n == 1:
		return body + "'s"
	default:
		return fmt.Sprintf("%s's, the last of %d writes", body, n)
	}
}

// kinds are the names of the errors that may come of a fault.
var kinds = []struct {
	err  error
	name string
}{
	{exclusive.ErrHeld, "ErrHeld"},
	{exclusive.ErrDone, "ErrDone"},
	{exclusive.ErrFenced, "ErrFenced"},
	{exclusive.ErrLost, "ErrLost"},
	{exclusive.ErrConflict, "ErrConflict"},
	{exclusive.ErrOutcomeUnknown, "ErrOutcomeUnknown"},
	{exclusive.ErrUnavailable, "ErrUnavailable"},
}

// told is an answer in words.
func (r *rig[Tx]) told(err error) string {
	r.Helper()
	if err == nil {
		return "succeeds"
	}
	for _, k := range kinds {
		if errors.Is(err, k.err) {
			return "`" + k.name + "`"
		}
	}
	r.Errorf("not one of the toolkit's errors: %v", err)
	return "another error"
}

// says puts a result together.
func (r *rig[Tx]) says(key, a, b string) string {
	r.Helper()
	return fmt.Sprintf("**%s**<br>A %s<br>B %s", r.stored(key), a, b)
}

// outcome is what the destination should hold: whose write is the last one of how
// many.
type outcome struct {
	last   string
	writes int64
}

// toldOf is the outcome of which A and then B were told: each write whose author was
// told that it failed is not there.
func toldOf(a, b error) outcome {
	o := outcome{}
	if a == nil {
		o = outcome{"A", 1}
	}
	if b == nil {
		o = outcome{"B", o.writes + 1}
	}
	return o
}

// differs says how what is stored is not what it should be.
func (o outcome) differs(body string, n int64) error {
	if body != o.last || n != o.writes {
		return fmt.Errorf("%q is stored after %d writes; it should be %q after %d", body, n, o.last, o.writes)
	}
	return nil
}

// kept names the promise that kept the result right, which it must be.
func (r *rig[Tx]) kept(promise, key string, want outcome) string {
	r.Helper()
	if err := want.differs(r.place.Stored(r.T, key)); err != nil {
		r.Errorf("%s was not kept: %v", promise, err)
	}
	return promise
}

// overwritten says how a twin ended that should have lost B's result.
func (r *rig[Tx]) overwritten(key string) string {
	r.Helper()
	if err := (outcome{"A", 2}).differs(r.place.Stored(r.T, key)); err != nil {
		r.Errorf("without the check it proves nothing: %v", err)
	}
	return "B's result is overwritten by A's late one"
}

// twice says how a twin ended that should have done the work of last again.
func (r *rig[Tx]) twice(key, last string) string {
	r.Helper()
	if err := (outcome{last, 2}).differs(r.place.Stored(r.T, key)); err != nil {
		r.Errorf("without the check it proves nothing: %v", err)
	}
	return "it is done twice"
}

// unlocked is the twin of what a lock prevents: nobody asks.
func (r *rig[Tx]) unlocked() string {
	r.Helper()
	key := r.place.MustKey(r.T)
	r.past(key, "B") // A is at work, and has not written yet
	r.past(key, "A")
	return r.overwritten(key)
}

// late is A's write, after B has had its chance to take over.
type late[Tx any] func(x exclusive.Transactional[Tx], g exclusive.Grant) error

func (r *rig[Tx]) late(x exclusive.Transactional[Tx], g exclusive.Grant) error {
	return r.commit(x, g, "A")
}

func (r *rig[Tx]) lateUnchecked(_ exclusive.Transactional[Tx], g exclusive.Grant) error {
	r.past(g.Key, "A")
	return nil
}

func paused[Tx any](r *rig[Tx]) result {
	seen, held := r.paused(r.late)
	if !r.promises.OneAtATime {
		key := ""
		r.pausedOn(r.lateUnchecked, &key)
		return result{seen, held, r.overwritten(key)}
	}
	return result{seen, held, r.unlocked()}
}

func (r *rig[Tx]) paused(write late[Tx]) (seen, held string) {
	var key string
	told, got := r.pausedOn(write, &key)
	if errors.Is(got, exclusive.ErrHeld) {
		after := r.report(r.healthy(0), key, "B")
		return r.says(key, r.told(told), "`ErrHeld`, after A "+r.told(after)), r.kept("OneAtATime", key, toldOf(told, after))
	}
	r.must("B", got)
	if told == nil {
		r.Error("A's late write is not refused")
	}
	return r.says(key, r.told(told), "takes over"), r.kept("RefusesStale", key, outcome{"B", 1})
}

func (r *rig[Tx]) pausedOn(write late[Tx], key *string) (told, got error) {
	r.Helper()
	*key = r.place.MustKey(r.T)
	b := r.healthy(0)
	r.untilRan(*key, func(a exclusive.Transactional[Tx], g exclusive.Grant, lease time.Duration) (bool, error) {
		d := patience
		if g.Expires.IsZero() {
			d = well(lease)
		}
		got = r.try(b, *key, "B", d)
		told = write(a, g)
		return true, told
	})
	return told, got
}

func takenAway[Tx any](r *rig[Tx]) result {
	if r.place.TakeAway == nil {
		return none
	}
	key, told := r.takenAway(r.late)
	seen := r.says(key, r.told(told), "gets the key")
	if told == nil {
		r.Error("A's late write is not refused")
	}
	held := r.kept("RefusesStale", key, outcome{"B", 1})
	key, _ = r.takenAway(r.lateUnchecked)
	return result{seen, held, r.overwritten(key)}
}

func (r *rig[Tx]) takenAway(write late[Tx]) (key string, told error) {
	r.Helper()
	key = r.place.MustKey(r.T)
	a := r.open(r.target, exclusivetest.Config{Holder: "A"})
	b := r.healthy(0)
	_ = a.Do(r.ctx, key, func(_ context.Context, g exclusive.Grant) error {
		r.must("take the key away", r.place.TakeAway(r.ctx, key))
		r.must("B", r.try(b, key, "B", patience))
		told = write(a, g)
		return told
	})
	return key, told
}

func betweenCheckAndWrite[Tx any](r *rig[Tx]) result {
	key := r.place.MustKey(r.T)
	b := r.healthy(patience)
	var got, told error
	var wg sync.WaitGroup
	r.untilRan(key, func(a exclusive.Transactional[Tx], g exclusive.Grant, lease time.Duration) (checked bool, err error) {
		told = a.Commit(r.ctx, g, func(ctx context.Context, tx Tx) error {
			checked = true
			done := make(chan struct{})
			wg.Go(func() {
				defer close(done)
				got = r.report(b, key, "B")
			})
			select { // no signal tells that B waits
			case <-done:
				r.Errorf("B has finished between A's check and its write: %v", got)
			case <-time.After(well(lease)):
			}
			return r.place.Write(ctx, tx, key, "A")
		})
		return checked, told
	})
	wg.Wait()
	seen := r.says(key, r.told(told), "waits, then "+r.told(got))
	want := toldOf(told, got)
	if r.promises.OneAtATime {
		return result{seen, r.kept("OneAtATime, InTx", key, want), r.unlocked()}
	}
	held := r.kept("InTx, RefusesStale", key, want)
	apart := ""
	r.pausedApart(&apart)
	return result{seen, held, r.overwritten(apart)}
}

// pausedApart is the twin: the check is in a transaction of its own.
func (r *rig[Tx]) pausedApart(key *string) {
	r.Helper()
	*key = r.place.MustKey(r.T)
	b := r.healthy(0)
	r.untilRan(*key, func(a exclusive.Transactional[Tx], g exclusive.Grant, _ time.Duration) (bool, error) {
		err := r.place.InTx(r.ctx, func(ctx context.Context, tx Tx) error { return a.Check(ctx, tx, g) })
		if err != nil {
			return false, err
		}
		r.must("B", r.try(b, *key, "B", patience))
		r.past(*key, "A")
		return true, nil
	})
}

// through opens the destination through a proxy.
func (r *rig[Tx]) through() (*matrix.Target[Tx], *proxy.Proxy) {
	r.Helper()
	p := proxy.Start(r.T, r.target.Addr(r.T))
	return r.target.Another(r.T, matrix.Options{Addr: p.Addr()}), p
}

func cut[Tx any](r *rig[Tx]) result {
	if !r.target.Networked() {
		return none
	}
	far, p := r.through()
	a, b := r.open(far, exclusivetest.Config{Holder: "A"}), r.healthy(patience)
	key := r.place.MustKey(r.T)
	told := a.Do(r.ctx, key, func(_ context.Context, g exclusive.Grant) error {
		return a.Commit(r.ctx, g, func(ctx context.Context, tx Tx) error {
			err := r.place.Write(ctx, tx, key, "A")
			p.Cut()
			return err
		})
	})
	got := r.report(b, key, "B")
	seen := r.says(key, r.told(told), r.told(got))
	held := r.kept("InTx", key, outcome{"B", 1})

	twin := r.place.MustKey(r.T)
	broken := errors.New("the connection broke")
	_ = a.Do(r.ctx, twin, func(context.Context, exclusive.Grant) error {
		r.past(twin, "A")
		p.Cut()
		return broken
	})
	r.must("B", r.report(b, twin, "B"))
	return result{seen, held, r.twice(twin, "B")}
}

func lostAnswer[Tx any](r *rig[Tx]) result {
	if !r.target.Networked() {
		return none
	}
	far, p := r.through()
	lose := func() (lost *atomic.Bool) {
		lost = new(atomic.Bool)
		p.Intercept(func(data []byte) proxy.Verdict {
			if proxy.IsCommit(data) && lost.CompareAndSwap(false, true) {
				return proxy.CutAfter
			}
			return proxy.Pass
		})
		return lost
	}
	a := r.open(far, exclusivetest.Config{Holder: "A"})
	key := r.place.MustKey(r.T)
	var lost *atomic.Bool
	told := a.Do(r.ctx, key, func(_ context.Context, g exclusive.Grant) error {
		return a.Commit(r.ctx, g, func(ctx context.Context, tx Tx) error {
			err := r.place.Write(ctx, tx, key, "A")
			lost = lose()
			return err
		})
	})
	p.Intercept(nil)
	if lost == nil || !lost.Load() {
		r.Fatal("no COMMIT was seen")
	}
	looks := errors.New("the key is free")
	after := r.healthy(patience).Do(r.ctx, key, func(context.Context, exclusive.Grant) error { return looks })
	next := "finds the key free"
	if !errors.Is(after, looks) {
		next = r.told(after)
	}
	seen := r.says(key, r.told(told), next)
	held := r.kept("InTx", key, outcome{"A", 1})

	twin := r.place.MustKey(r.T)
	plain := func(commit func()) error {
		tx, err := far.BeginPast(r.ctx)
		if err != nil {
			return err
		}
		if err := r.place.Write(r.ctx, tx, twin, "A"); err != nil {
			return errors.Join(err, far.DB.Rollback(tx))
		}
		commit()
		return far.DB.Commit(r.ctx, tx)
	}
	if err := plain(func() { lost = lose() }); err == nil || !lost.Load() {
		r.Errorf("the answer was lost, and the caller is told %v", err)
	}
	p.Intercept(nil)
	r.must("the repeated transaction", plain(func() {}))
	return result{seen, held, r.twice(twin, "A")}
}

func readOnly[Tx any](r *rig[Tx]) result {
	params := map[string]map[string]string{
		"postgres": {"default_transaction_read_only": "on"},
		"mysql":    {"transaction_read_only": "1"},
		"mariadb":  {"tx_read_only": "1"},
		"sqlite":   {"_pragma": "query_only(1)"},
	}[r.target.Dialect]
	a := r.open(r.target.Another(r.T, matrix.Options{Params: params}), exclusivetest.Config{Holder: "A"})
	key := r.place.MustKey(r.T)
	told := a.Do(r.ctx, key, func(context.Context, exclusive.Grant) error {
		r.Error("work runs on a destination that cannot be written")
		return nil
	})
	got := r.report(r.healthy(patience), key, "B")
	return result{r.says(key, r.told(told)+", work does not run", r.told(got)), "—", "—"}
}
