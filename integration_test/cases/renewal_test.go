package cases_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/exclusivetest"
	"github.com/exclusive-go/exclusive/fencing"
	"github.com/exclusive-go/exclusive/integration_test/cases/pool"
	"github.com/exclusive-go/exclusive/integration_test/cases/session"
	"github.com/exclusive-go/exclusive/integration_test/matrix"
	"github.com/exclusive-go/exclusive/integration_test/proxy"
	"github.com/exclusive-go/exclusive/integration_test/strategies"
)

// eachLeased runs a test on the strategies whose claims are bounded by time and
// are stored where the results are: what eachIssuer does not cover.
func eachLeased(t *testing.T, onPGX func(*testing.T, *matrix.Target[pgx.Tx], strategies.Strategy[pgx.Tx]), onSQL func(*testing.T, *matrix.Target[*sql.Tx], strategies.Strategy[*sql.Tx])) {
	t.Helper()
	eachStrategy(t, ifLeased(onPGX), ifLeased(onSQL))
}

func ifLeased[Tx any](test func(*testing.T, *matrix.Target[Tx], strategies.Strategy[Tx])) func(*testing.T, *matrix.Target[Tx], strategies.Strategy[Tx]) {
	return func(t *testing.T, target *matrix.Target[Tx], s strategies.Strategy[Tx]) {
		if s.Name == "uniquetask" || s.Name == "casupdate_leased" {
			test(t, target, s)
		}
	}
}

// claims says where a leased claim is stored, by the name of its strategy, in which
// state its row is, and where its attempts are counted. The
// condition has all of the primary key: MySQL and MariaDB lock every row that they
// look at.
var claims = map[string]struct{ table, is, until, state, attempts string }{
	"uniquetask":       {"exclusive_task", "task = ? AND run = ?", "free_at", "running", "attempt"},
	"casupdate_leased": {"job", "id = ?", "expires_at", "PROCESSING", "token"},
}

// claimArgs are the arguments of a strategy's condition.
func claimArgs(strategy, key string) []any {
	if strategy == "uniquetask" {
		return []any{[]byte("reports"), []byte(key)}
	}
	return []any{key}
}

// claimedUntil is when a claim ends, on the server's clock.
func claimedUntil[Tx any](t testing.TB, target *matrix.Target[Tx], s strategies.Strategy[Tx], key string) time.Duration {
	t.Helper()
	claim := claims[s.Name]
	return time.Duration(target.Int(t, "SELECT "+claim.until+" FROM "+claim.table+" WHERE "+claim.is, claimArgs(s.Name, key)...)) * time.Microsecond
}

// claimLeft is how long a claim lasts yet, on the server's clock.
func claimLeft[Tx any](t testing.TB, target *matrix.Target[Tx], s strategies.Strategy[Tx], key string) time.Duration {
	t.Helper()
	claim := claims[s.Name]
	return time.Duration(target.Int(t, "SELECT "+claim.until+" - "+clocks[target.Dialect]+" FROM "+claim.table+" WHERE "+claim.is, claimArgs(s.Name, key)...)) * time.Microsecond
}

// renewals waits until a lease was renewed n times from now on.
func renewals(t testing.TB, lease *exclusive.Lease, n int) {
	t.Helper()
	for range n {
		before := lease.Grant().Expires
		await(t, "a renewal", func() bool { return lease.Grant().Expires.After(before) || lease.Context().Err() != nil })
		must(t, "the lease", context.Cause(lease.Context()))
	}
}

// Whatever an acquire that was cancelled at once came to, no key is held or
// renewed afterwards.
// Elsewhere renewal was armed after the unlock had cancelled it, and refreshed
// the key of nobody for ever.
func TestB010_RenewalOfNobody(t *testing.T) {
	t.Parallel()
	t.Run("lease", testB010Lease)
	t.Run("claim", func(t *testing.T) { eachLeased(t, testB010, testB010) })
}

func testB010Lease(t *testing.T) {
	eachIssuer(t, func(t *testing.T, i *issuer) {
		const ttl = 3 * time.Second
		var keys []string
		everyPoint(t, i.networked(), func(p *point) {
			cfg := fencing.Config{TTL: ttl}
			var x exclusive.Leaser
			if p.onWire() {
				var wire *proxy.Proxy
				x, wire = i.far(t, cfg)
				free(t, x, newKey()) // connected
				key := newKey()
				p.armWire(wire, key)
				keys = append(keys, key)
			} else {
				var watch *pool.Watch
				x, watch = i.watched(t, cfg)
				p.arm(watch)
				keys = append(keys, newKey())
			}
			lease, err := x.Acquire(p.ctx, keys[len(keys)-1])
			p.returned()
			if err == nil {
				err = lease.Release(t.Context())
			}
			if err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, exclusive.ErrLost) {
				t.Errorf("%v: %v", p, err)
			}
		})
		// What was renewed would rise, and never be seen free. An acquire that comes
		// late, after it was given up, may take a free key once, until it is given
		// back or ends.
		last := make(map[string]time.Duration)
		await(t, "all leases are over", func() bool {
			over := true
			for _, key := range keys {
				left := i.left(t, key)
				if before := last[key]; before > 0 && left > before {
					t.Errorf("the lease of %s, which nobody has, lasts %v after %v", key, left, before)
				}
				last[key] = left
				over = over && left == 0
			}
			return over
		})
		rival := i.open(t, fencing.Config{Wait: patience})
		for _, key := range keys {
			free(t, rival, key)
		}
	})
}

func testB010[Tx any](t *testing.T, target *matrix.Target[Tx], s strategies.Strategy[Tx]) {
	place := s.SetUp(t, target)
	next := place.New(t, target.Another(t, matrix.Options{}), exclusivetest.Config{Wait: patience})
	var keys []string
	everyPoint(t, target.Networked(), func(p *point) {
		key := place.MustKey(t)
		keys = append(keys, key)
		var own *matrix.Target[Tx]
		if p.onWire() {
			var wire *proxy.Proxy
			own, wire = through(t, target, matrix.Options{})
			must(t, "connect", inTx(t.Context(), own, func(ctx context.Context, tx Tx) error { return own.Exec(ctx, tx, "SELECT 1") }))
			p.armWire(wire, key)
		} else {
			var watch *pool.Pool[Tx]
			own, watch = watched(t, target)
			p.arm(&watch.Watch)
		}
		x := place.New(t, own, exclusivetest.Config{TTL: 3 * time.Second})
		err := x.Do(p.ctx, key, func(context.Context, exclusive.Grant) error { return errBusiness })
		p.returned()
		if !errors.Is(err, errBusiness) && !errors.Is(err, context.Canceled) {
			t.Errorf("%v: %v", p, err)
		}
	})
	for _, key := range keys { // what was renewed would never be had
		stores(t, place, next, key, "next")
	}
}

// point is where a call's context ends.
type point struct {
	kind pointKind
	n    int // of the statement; 1 is the first
	ctx  context.Context

	cancel  func()
	reached atomic.Bool
	over    *cue // the call has returned
	gone    *cue // what was held on the wire has gone on
}

type pointKind int

const (
	unsent     pointKind = iota // before a statement is sent
	answered                    // when it has run, before its answer is handed on
	answerLost                  // when what claims the key is on its way to the server, which answers nobody
	late                        // when that is on its way, and arrives when the call has returned
)

func (p *point) String() string {
	return fmt.Sprintf("the context ends %s (%d)", [...]string{"before a statement is sent", "before a statement's answer", "and the answer is lost", "and the statement comes late"}[p.kind], p.n)
}

// everyPoint has call called with each point at which its context can end, until it
// has returned before it got there.
func everyPoint(t *testing.T, networked bool, call func(p *point)) {
	t.Helper()
	for kind := unsent; kind <= late; kind++ {
		if kind >= answerLost && !networked {
			continue
		}
		for n := 1; ; n++ {
			p := &point{kind: kind, n: n, over: newCue(), gone: newCue()}
			p.ctx, p.cancel = context.WithCancel(t.Context())
			call(p)
			p.cancel()
			if p.onWire() {
				ended(t, p.String(), p.gone.Given)
				break
			}
			if !p.reached.Load() {
				if n == 1 {
					t.Fatalf("%v: nothing was sent", p)
				}
				break
			}
		}
	}
}

// onWire reports whether the context ends while something is on its way to the server.
func (p *point) onWire() bool { return p.kind >= answerLost }

// returned says that the call has returned.
func (p *point) returned() { p.over.Give() }

// arm ends the context at the point, unless the call has returned before.
func (p *point) arm(w *pool.Watch) {
	var n atomic.Int64
	there := func() {
		if n.Add(1) != int64(p.n) {
			return
		}
		select {
		case <-p.over.Given:
		default:
			p.reached.Store(true)
			p.cancel()
		}
	}
	if p.kind == unsent {
		w.OnStatement(func(string, []any) error { there(); return nil })
		return
	}
	w.OnAnswer(func(string) { there() })
}

// armWire ends the context when the first that names key is on its way.
func (p *point) armWire(wire *proxy.Proxy, key string) {
	wire.Intercept(func(data []byte) proxy.Verdict {
		if !proxy.Mentions(data, key) || !p.reached.CompareAndSwap(false, true) {
			return proxy.Pass
		}
		defer p.gone.Give()
		p.cancel()
		if p.kind == answerLost {
			return proxy.Mute
		}
		<-p.over.Given
		return proxy.Pass
	})
}

// A holder whose lease is gone from the backend is told at its next renewal;
// nothing makes the lease anew, and Do reports the loss although work returned
// nil.
// Elsewhere the loop took "nothing was renewed" for a success, for ever.
func TestB011_NothingRenewed(t *testing.T) {
	t.Parallel()
	const ttl = 6 * time.Second
	t.Run("lease", func(t *testing.T) {
		eachIssuer(t, func(t *testing.T, i *issuer) {
			key := newKey()
			err := i.open(t, fencing.Config{TTL: ttl}).Do(t.Context(), key, func(ctx context.Context, _ exclusive.Grant) error {
				i.remove(t, key)
				ended(t, "work's context", ctx.Done())
				toldByRenewal(t, ctx)
				return nil
			})
			wantErr(t, "do", err, exclusive.ErrLost)
			if left := i.left(t, key); left > 0 {
				t.Errorf("the lease was made anew, for %v", left)
			}
		})
	})
	t.Run("claim", func(t *testing.T) { eachLeased(t, testB011, testB011) })
}

func testB011[Tx any](t *testing.T, target *matrix.Target[Tx], s strategies.Strategy[Tx]) {
	place := s.SetUp(t, target)
	key := place.MustKey(t)
	claim, args := claims[s.Name], claimArgs(s.Name, key)
	table := claim.table + " WHERE " + claim.is
	err := place.New(t, target, exclusivetest.Config{TTL: 6 * time.Second}).Do(t.Context(), key, func(ctx context.Context, _ exclusive.Grant) error {
		target.MustExec(t, "DELETE FROM "+table, args...)
		ended(t, "work's context", ctx.Done())
		toldByRenewal(t, ctx)
		return nil
	})
	wantErr(t, "do", err, exclusive.ErrLost)
	if n := target.Int(t, "SELECT COUNT(*) FROM "+table, args...); n != 0 {
		t.Error("the row was made anew")
	}
}

// toldByRenewal fails unless a lease ended because a renewal was told that the backend
// has it no longer, and not because its time was over.
func toldByRenewal(t testing.TB, ctx context.Context) {
	t.Helper()
	var e *exclusive.Error
	if cause := context.Cause(ctx); !errors.As(cause, &e) || !strings.Contains(e.Hint, "no longer has it") {
		t.Errorf("told, but not by a renewal: %v", cause)
	}
}

// A holder that is cut off knows that its lease is over before anybody else has
// the key, without an answer from anybody.
// Elsewhere the holder was never told, while another instance worked already.
func TestB013_CutOffHolderKnows(t *testing.T) {
	t.Parallel()
	t.Run("lease", func(t *testing.T) {
		eachIssuer(t, func(t *testing.T, i *issuer) {
			if i.far == nil {
				return // SQLite has no network
			}
			key := newKey()
			x, p := i.far(t, fencing.Config{TTL: 4 * time.Second})
			lease := acquire(t, x, key)
			renewals(t, lease, 1)
			p.Intercept(func([]byte) proxy.Verdict { return proxy.Swallow })
			defer p.Cut() // or closing the pool would wait
			asked := make(chan error, 1)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go func() { asked <- lease.Renew(ctx) }()
			next := acquire(t, i.open(t, fencing.Config{TTL: forever}), key)
			// The twin: a holder that waits to hear of its loss does not, and works on
			// beside the next.
			select {
			case err := <-asked:
				not(t, "the twin, which asks the server", err, exclusive.ErrLost)
				if err == nil {
					t.Error("the server has answered: the case proves nothing")
				}
			default:
			}
			if lease.Context().Err() == nil {
				t.Error("two holders, and the first does not know it")
			}
			wantErr(t, "the holder's context", context.Cause(lease.Context()), exclusive.ErrLost)
			if next.Grant().Token <= lease.Grant().Token {
				t.Errorf("token %d after %d", next.Grant().Token, lease.Grant().Token)
			}
		})
	})
	t.Run("claim", func(t *testing.T) { eachLeased(t, testB013, testB013) })
}

func testB013[Tx any](t *testing.T, target *matrix.Target[Tx], s strategies.Strategy[Tx]) {
	if !target.Networked() {
		return
	}
	place := s.SetUp(t, target)
	key := place.MustKey(t)
	far, p := through(t, target, matrix.Options{})
	x := place.New(t, far, exclusivetest.Config{TTL: 3 * time.Second})
	next := place.New(t, target, exclusivetest.Config{Wait: patience})
	err := x.Do(t.Context(), key, func(ctx context.Context, g exclusive.Grant) error {
		p.Intercept(func([]byte) proxy.Verdict { return proxy.Swallow })
		err := next.Do(soon(t), key, func(nctx context.Context, ng exclusive.Grant) error {
			wantErr(t, "the first holder's context, when there is another", context.Cause(ctx), exclusive.ErrLost)
			return next.Commit(nctx, ng, func(ctx context.Context, tx Tx) error { return place.Write(ctx, tx, key, "next") })
		})
		must(t, "the next holder", err)
		p.Intercept(nil)
		p.Cut()
		err = x.Commit(context.WithoutCancel(ctx), g, func(ctx context.Context, tx Tx) error { return place.Write(ctx, tx, key, "late") })
		wantErr(t, "its commit", err, exclusive.ErrFenced)
		return err
	})
	wantErr(t, "the holder that was cut off", err, exclusive.ErrLost, exclusive.ErrFenced)
	if body, n := place.Stored(t, key); body != "next" || n != 1 {
		t.Errorf("stored %q, %d results", body, n)
	}
	unproven(t, place, key, "late")
}

// unproven is the twin of a write that was refused: the same without the check, by a
// holder that does not know that its key has passed on. The newer result is gone.
func unproven[Tx any](t testing.TB, place *strategies.Place[Tx], key, body string) {
	t.Helper()
	must(t, "a write without the check", place.InTx(t.Context(), func(ctx context.Context, tx Tx) error { return place.Write(ctx, tx, key, body) }))
	if got, n := place.Stored(t, key); got != body || n != 2 {
		t.Errorf("a write without the check does no harm: stored %q, %d results", got, n)
	}
}

// One renewal that fails is repeated while the lease lasts, and is no loss.
// Elsewhere one transient failure of a heartbeat gave the lease up.
func TestB014_OneFailedRenewal(t *testing.T) {
	t.Parallel()
	t.Run("lease", testB014Lease)
	t.Run("claim", func(t *testing.T) { eachLeased(t, testB014, testB014) })
}

func testB014Lease(t *testing.T) {
	eachIssuer(t, func(t *testing.T, i *issuer) {
		if i.far == nil {
			return
		}
		key := newKey()
		x, p := i.far(t, fencing.Config{TTL: 9 * time.Second})
		lease := acquire(t, x, key)
		token := lease.Grant().Token
		cutOnce(t, p) // all that is sent now are renewals
		renewals(t, lease, 2)
		if got := lease.Grant().Token; got != token {
			t.Errorf("the token was %d and is %d", token, got)
		}
		if _, err := i.open(t, fencing.Config{}).TryAcquire(t.Context(), key); !errors.Is(err, exclusive.ErrHeld) {
			t.Errorf("a rival: %v", err)
		}
		must(t, "release", lease.Release(t.Context()))
	})
}

func testB014[Tx any](t *testing.T, target *matrix.Target[Tx], s strategies.Strategy[Tx]) {
	if !target.Networked() {
		return
	}
	place := s.SetUp(t, target)
	key := place.MustKey(t)
	until := func() time.Duration { return claimedUntil(t, target, s, key) }
	far, p := through(t, target, matrix.Options{})
	x := place.New(t, far, exclusivetest.Config{TTL: 9 * time.Second})
	rival := place.New(t, target, exclusivetest.Config{})
	err := x.Do(t.Context(), key, func(ctx context.Context, g exclusive.Grant) error {
		cutOnce(t, p)
		for range 2 {
			before := until()
			await(t, "a renewal", func() bool { return until() > before || ctx.Err() != nil })
		}
		must(t, "work's context", context.Cause(ctx))
		claim := claims[s.Name]
		if n := target.Int(t, "SELECT "+claim.attempts+" FROM "+claim.table+" WHERE "+claim.is, claimArgs(s.Name, key)...); n != int64(g.Attempt) {
			t.Errorf("attempt %d became %d", g.Attempt, n)
		}
		wantErr(t, "a rival", rival.Do(ctx, key, nothing), exclusive.ErrHeld)
		return x.Commit(ctx, g, func(ctx context.Context, tx Tx) error { return place.Write(ctx, tx, key, "held") })
	})
	must(t, "do", err)
	if body, n := place.Stored(t, key); body != "held" || n != 1 {
		t.Errorf("stored %q, %d results", body, n)
	}
}

// cutOnce cuts the connection of what is sent next, and waits for that.
func cutOnce(t testing.TB, p *proxy.Proxy) {
	t.Helper()
	var cut atomic.Bool
	p.Intercept(func([]byte) proxy.Verdict {
		if cut.CompareAndSwap(false, true) {
			return proxy.Cut
		}
		return proxy.Pass
	})
	await(t, "a renewal is cut off", cut.Load)
}

// A lease that was waited for has its full length when it arrives.
// Elsewhere its end was computed before the wait, and it arrived expired.
func TestB016_FullLengthAfterWaiting(t *testing.T) {
	t.Parallel()
	t.Run("lease", testB016Lease)
	t.Run("claim", func(t *testing.T) { eachLeased(t, testB016, testB016) })
}

func testB016Lease(t *testing.T) {
	eachIssuer(t, func(t *testing.T, i *issuer) {
		const ttl = 4 * time.Second
		key := newKey()
		holder := acquire(t, i.open(t, fencing.Config{TTL: forever}), key)
		held := newHeldSignal()
		told := held.next()
		x := i.open(t, fencing.Config{TTL: ttl, Observer: held})
		released := make(chan error, 1)
		go func() {
			select {
			case <-told: // it waits
				time.Sleep(ttl)
			case <-t.Context().Done():
			}
			released <- holder.Release(context.WithoutCancel(t.Context()))
		}()
		lease := acquire(t, x, key)
		must(t, "the holder's release", <-released)
		// The wait was as long as the lease: one that began before it is over.
		if left := time.Until(lease.Grant().Expires); left < ttl/4 {
			t.Errorf("of %v are left %v", ttl, left)
		}
		if left := i.left(t, key); left < ttl/4 {
			t.Errorf("of %v are left %v on the server", ttl, left)
		}
		renewals(t, lease, 1)
		must(t, "release", lease.Release(t.Context()))
	})
}

func testB016[Tx any](t *testing.T, target *matrix.Target[Tx], s strategies.Strategy[Tx]) {
	const ttl = 4 * time.Second
	place := s.SetUp(t, target)
	key := place.MustKey(t)
	holder := place.New(t, target, exclusivetest.Config{TTL: forever})
	near, p := watched(t, target)
	x := place.New(t, near, exclusivetest.Config{TTL: ttl, Wait: patience})
	ctx := soon(t)
	holds, asks, released := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	ask := sync.OnceFunc(func() { close(asks) })
	p.OnStatement(func(string, []any) error { ask(); return nil })
	go func() {
		released <- holder.Do(ctx, key, func(ctx context.Context, _ exclusive.Grant) error {
			close(holds)
			select {
			case <-asks:
				time.Sleep(ttl)
			case <-ctx.Done():
			}
			return errBusiness
		})
	}()
	ended(t, "the holder has it", holds)
	err := x.Do(ctx, key, func(ctx context.Context, g exclusive.Grant) error {
		// The wait was as long as the claim: one that began before it is over.
		if left := time.Until(g.Expires); left < ttl/4 {
			t.Errorf("of %v are left %v", ttl, left)
		}
		if left := claimLeft(t, target, s, key); left < ttl/4 {
			t.Errorf("of %v are left %v on the server", ttl, left)
		}
		before := claimedUntil(t, target, s, key)
		await(t, "a renewal", func() bool { return claimedUntil(t, target, s, key) > before || ctx.Err() != nil })
		return x.Commit(ctx, g, func(ctx context.Context, tx Tx) error { return place.Write(ctx, tx, key, "waited") })
	})
	must(t, "the one that waited", err)
	wantErr(t, "the holder", <-released, errBusiness)
	if body, n := place.Stored(t, key); body != "waited" || n != 1 {
		t.Errorf("stored %q, %d results", body, n)
	}
}

// A holder that hangs keeps its key no longer than it was allowed to (a deadline of
// Do's context, or MaxHold), and what it stores afterwards is refused; a handle of
// Acquire that was dropped keeps nothing once it is garbage (its context bounds the
// wait alone).
// Elsewhere renewal had no upper bound: only the renewer was alive.
func TestB017_HungAndAbandonedHolders(t *testing.T) {
	t.Parallel()
	t.Run("dropped", func(t *testing.T) {
		eachIssuer(t, func(t *testing.T, i *issuer) {
			key := newKey()
			x := i.open(t, fencing.Config{TTL: 3 * time.Second}) // renewed in time also on a busy machine
			ctx, cancel := context.WithCancel(t.Context())
			if _, err := x.Acquire(ctx, key); err != nil { // nobody keeps the lease
				t.Fatal(err)
			}
			cancel() // it bounds the wait and no more: the handle is what counts
			await(t, "the lease runs out", func() bool { runtime.GC(); return i.left(t, key) == 0 })
			free(t, i.open(t, fencing.Config{}), key)
		})
	})
	t.Run("kept", func(t *testing.T) {
		eachIssuer(t, func(t *testing.T, i *issuer) {
			key := newKey()
			const ttl = 4 * time.Second
			lease := acquire(t, i.open(t, fencing.Config{TTL: ttl, MaxHold: time.Second}), key)
			// The twin: renewed without a bound, and with nobody at work.
			o := new(observer)
			twin := acquire(t, i.open(t, fencing.Config{TTL: ttl, Observer: o}), newKey())
			first := twin.Grant().Expires
			next := acquire(t, i.open(t, fencing.Config{TTL: forever}), key)
			await(t, "the twin's first lease would be over", func() bool { return time.Now().After(first) || twin.Context().Err() != nil })
			if left := i.left(t, twin.Grant().Key); left == 0 || o.renewed.Load() == 0 {
				t.Errorf("the twin's lease, which is renewed for ever, lasts %v yet, and was renewed %d times", left, o.renewed.Load())
			}
			must(t, "the twin's release", twin.Release(t.Context()))
			wantErr(t, "the context of the handle that is kept", context.Cause(lease.Context()), exclusive.ErrLost)
			wantErr(t, "its release", lease.Release(t.Context()), exclusive.ErrLost)
			must(t, "the next one's release", next.Release(t.Context()))
		})
	})
	t.Run("hung", func(t *testing.T) { eachStrategy(t, testB017, testB017) })
}

func testB017[Tx any](t *testing.T, target *matrix.Target[Tx], s strategies.Strategy[Tx]) {
	if s.Promises.OneAtATime {
		return // a hung holder keeps the key, which is the promise
	}
	place := s.SetUp(t, target)
	next := place.New(t, target.Another(t, matrix.Options{}), exclusivetest.Config{Wait: patience})
	for name, c := range map[string]struct {
		call, maxHold time.Duration
		want          error
	}{
		"deadline": {4 * time.Second, 0, context.DeadlineExceeded},
		"max hold": {forever, time.Second, exclusive.ErrLost},
	} {
		key := place.MustKey(t)
		x := place.New(t, target, exclusivetest.Config{TTL: 2 * time.Second, MaxHold: c.maxHold, Wait: patience})
		ctx, cancel := context.WithTimeout(t.Context(), c.call)
		ran := false
		err := x.Do(ctx, key, func(ctx context.Context, g exclusive.Grant) error {
			ran = true
			stores(t, place, next, key, "next") // while this one hangs
			wantErr(t, name+": the context of the one that hung", context.Cause(ctx), c.want)
			err := x.Commit(context.WithoutCancel(ctx), g, func(ctx context.Context, tx Tx) error { return place.Write(ctx, tx, key, "late") })
			wantErr(t, name+": its commit", err, exclusive.ErrFenced)
			return err
		})
		cancel()
		if !ran {
			t.Fatalf("%s: work did not run: %v", name, err)
		}
		wantErr(t, name, err, c.want, exclusive.ErrFenced)
		if body, n := place.Stored(t, key); body != "next" || n != 1 {
			t.Errorf("%s: stored %q, %d results", name, body, n)
		}
		unproven(t, place, key, "late")
	}
}

// A claim that has found an expired holder changes nothing if that one finishes
// before the claim goes on: the key is done, with one attempt and one result.
// Elsewhere the reclaim read the row, the holder finished it, and the reclaim
// set it back. Here reading and taking over are one statement, which is stopped
// in between where it can be: on PostgreSQL after it has read the row, on MySQL
// where it waits for the row's lock.
func TestB019_ReclaimMeetsFinish(t *testing.T) {
	t.Parallel()
	eachLeased(t, testB019, testB019)
}

func testB019[Tx any](t *testing.T, target *matrix.Target[Tx], s strategies.Strategy[Tx]) {
	if target.Shared {
		target = target.Fresh(t) // who waits there waits for this test
	}
	place := s.SetUp(t, target)
	claim := claims[s.Name]
	there := target.Another(t, matrix.Options{})
	if target.Dialect == "postgres" {
		there, _ = shift(t, target) // for a clock that can be stopped
	}
	p := pool.New(there.DB)
	there.DB = p
	x := place.New(t, target, exclusivetest.Config{TTL: 2 * time.Second, NoRenew: true, Wait: patience})
	rival := place.New(t, there, exclusivetest.Config{TTL: forever, Wait: patience})
	must(t, "a first claim, which asks for the schema", rival.Do(t.Context(), place.MustKey(t), nothing))
	asked := make(chan struct{}, 1)
	p.OnStatement(func(string, []any) error { // the claim, and what comes after it
		select {
		case asked <- struct{}{}:
		default:
		}
		return nil
	})
	second := func(context.Context, exclusive.Grant) error { t.Error("a second run"); return nil }
	for range 3 { // the transaction may begin too late on a busy machine: then there is no race
		key := place.MustKey(t)
		args := claimArgs(s.Name, key)
		one := func(condition string) bool {
			return target.Int(t, "SELECT COUNT(*) FROM "+claim.table+" WHERE "+claim.is+" AND "+condition, args...) == 1
		}
		goOn, told := func() {}, make(chan error, 1)
		free := false // as who reads without a lock sees it
		err := x.Do(t.Context(), key, func(ctx context.Context, g exclusive.Grant) error {
			return x.Commit(ctx, g, func(ctx context.Context, tx Tx) error {
				time.Sleep(time.Until(g.Expires) + 300*time.Millisecond) // over, on every clock
				if target.Dialect == "postgres" {
					clock := session.Begin(t, target.Plain)
					clock.Exec("LOCK TABLE clock")
					goOn = clock.Rollback
				}
				rctx := soon(t)
				go func() { told <- rival.Do(rctx, key, second) }()
				if target.Dialect == "postgres" || target.Dialect == "mysql" && s.Name == "uniquetask" {
					session.AwaitWaiting(t, target.Plain, target.Dialect, 1, nil)
				} else {
					ended(t, "the claim is sent", asked)
				}
				free = one("state = '" + claim.state + "' AND " + claim.until + " <= " + clocks[target.Dialect])
				return place.Write(ctx, tx, key, "first")
			})
		})
		goOn()
		if !free && (errors.Is(err, exclusive.ErrLost) || errors.Is(err, exclusive.ErrConflict)) {
			continue
		}
		must(t, "the holder", err)
		wantErr(t, "the claim that goes on", <-told, exclusive.ErrDone)
		wantErr(t, "a claim after it", rival.Do(t.Context(), key, second), exclusive.ErrDone)
		if body, n := place.Stored(t, key); body != "first" || n != 1 {
			t.Errorf("stored %q, %d results", body, n)
		}
		if !one(claim.attempts + " = 1") {
			t.Error("the reclaim counts as an attempt")
		}

		// The twin: what was read before the COMMIT is believed, and the row changed by
		// its key alone.
		if !free {
			t.Fatal("the row was not seen as free while its holder finished: the case proves nothing")
		}
		target.MustExec(t, "UPDATE "+claim.table+" SET state = '"+claim.state+"' WHERE "+claim.is, args...)
		must(t, "the second run", place.InTx(t.Context(), func(ctx context.Context, tx Tx) error { return place.Write(ctx, tx, key, "second") }))
		if body, n := place.Stored(t, key); body != "second" || n != 2 || !one("state = '"+claim.state+"'") {
			t.Errorf("a reclaim by the key alone does no harm: stored %q, %d results", body, n)
		}
		return
	}
	t.Error("the holder could never finish")
}

// A lease that is taken right after another was released is renewed.
// Elsewhere the heartbeat was not started again so soon after its last beat.
func TestB020_RenewalAfterReacquire(t *testing.T) {
	t.Parallel()
	t.Run("lease", testB020Lease)
	t.Run("claim", func(t *testing.T) { eachLeased(t, testB020, testB020) })
}

func testB020Lease(t *testing.T) {
	eachIssuer(t, func(t *testing.T, i *issuer) {
		const ttl = 5 * time.Second
		a, b := newKey(), newKey()
		x, rival := i.open(t, fencing.Config{TTL: ttl}), i.open(t, fencing.Config{})
		must(t, "release", acquire(t, x, a).Release(t.Context()))
		held := []*exclusive.Lease{acquire(t, x, b), acquire(t, x, a)}
		over, stop := context.WithCancel(t.Context())
		var poller sync.WaitGroup
		poller.Go(func() {
			for over.Err() == nil {
				for _, key := range []string{a, b} {
					if _, err := rival.TryAcquire(t.Context(), key); !errors.Is(err, exclusive.ErrHeld) {
						t.Errorf("a rival of %s: %v", key, err)
						return
					}
				}
				time.Sleep(50 * time.Millisecond)
			}
		})
		time.Sleep(ttl * time.Duration(size(12, 4)) / 3)
		stop()
		poller.Wait()
		for _, lease := range held {
			must(t, "release", lease.Release(t.Context()))
		}
	})
}

func testB020[Tx any](t *testing.T, target *matrix.Target[Tx], s strategies.Strategy[Tx]) {
	const ttl = 5 * time.Second
	place := s.SetUp(t, target)
	a, b := place.MustKey(t), place.MustKey(t)
	x, rival := place.New(t, target, exclusivetest.Config{TTL: ttl}), place.New(t, target.Another(t, matrix.Options{}), exclusivetest.Config{})
	failing := func(context.Context, exclusive.Grant) error { return errBusiness }
	wantErr(t, "the first", x.Do(t.Context(), a, failing), errBusiness)
	var holders sync.WaitGroup
	for _, key := range []string{b, a} {
		holders.Go(func() {
			err := x.Do(t.Context(), key, func(ctx context.Context, g exclusive.Grant) error {
				for end := time.Now().Add(ttl * time.Duration(size(12, 4)) / 3); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
					if err := rival.Do(t.Context(), key, failing); !errors.Is(err, exclusive.ErrHeld) {
						t.Errorf("a rival of %s: %v", key, err)
						break
					}
				}
				return x.Commit(ctx, g, func(ctx context.Context, tx Tx) error { return place.Write(ctx, tx, key, "held") })
			})
			if err != nil {
				t.Errorf("%s: %v", key, err)
			}
		})
	}
	holders.Wait()
	for _, key := range []string{a, b} {
		if body, n := place.Stored(t, key); body != "held" || n != 1 {
			t.Errorf("%s: stored %q, %d results", key, body, n)
		}
	}
}

// A lease that was lost here stays lost when the network is back, although its
// row may still be there.
// A renewal that gets through late must not undo what work was told.
func TestRenewalOwn_LostStaysLost(t *testing.T) {
	t.Parallel()
	eachIssuer(t, func(t *testing.T, i *issuer) {
		if i.far == nil {
			return
		}
		key := newKey()
		x, p := i.far(t, fencing.Config{TTL: time.Second})
		lease := acquire(t, x, key)
		p.Intercept(func([]byte) proxy.Verdict { return proxy.Swallow })
		ended(t, "the lease's context", lease.Context().Done())
		p.Intercept(nil)
		p.Cut()
		wantErr(t, "renew", lease.Renew(t.Context()), exclusive.ErrLost)
		await(t, "the key is free", func() bool { return i.left(t, key) == 0 })
		wantErr(t, "release", lease.Release(t.Context()), exclusive.ErrLost)
		free(t, i.open(t, fencing.Config{}), key)
	})
}

// A Commit that takes longer than the lease is no loss: its transaction holds
// the key, and nobody gets it before the result is stored.
// Giving up because of a deadline is as wrong here as after one failed renewal.
func TestRenewalOwn_CommitOutlastsLease(t *testing.T) {
	t.Parallel()
	eachStrategy(t, testCommitOutlastsLease, testCommitOutlastsLease)
}

func testCommitOutlastsLease[Tx any](t *testing.T, target *matrix.Target[Tx], s strategies.Strategy[Tx]) {
	if s.Promises.OneAtATime || s.Name != "uniquetask" && s.Name != "casupdate_leased" && s.Name != "fencing" {
		return // a guard's mark is not the lease: with Guarded the issuer may let go
	}
	place := s.SetUp(t, target)
	key := place.MustKey(t)
	x := place.New(t, target, exclusivetest.Config{TTL: 3 * time.Second})
	err := x.Do(t.Context(), key, func(ctx context.Context, g exclusive.Grant) error {
		return x.Commit(ctx, g, func(ctx context.Context, tx Tx) error {
			if err := place.Write(ctx, tx, key, "long"); err != nil {
				return err
			}
			time.Sleep(4 * time.Second)
			return ctx.Err()
		})
	})
	must(t, "do", err)
	if body, n := place.Stored(t, key); body != "long" || n != 1 {
		t.Errorf("stored %q, %d results", body, n)
	}
}

// A renewal by who no longer has the key changes nothing for who has it.
// Elsewhere the condition compared the proposed row with itself, so everybody
// renewed.
func TestTrap_RenewalByFormerHolder(t *testing.T) {
	t.Parallel()
	eachIssuer(t, func(t *testing.T, i *issuer) {
		key := newKey()
		former := acquire(t, i.open(t, fencing.Config{TTL: 2 * time.Second, NoRenew: true}), key)
		holder := acquire(t, i.open(t, fencing.Config{TTL: time.Minute, NoRenew: true}), key)
		before := holder.Grant()
		wantErr(t, "the former holder's renewal", former.Renew(t.Context()), exclusive.ErrLost)
		if left := i.left(t, key); left > time.Until(before.Expires)+time.Second {
			t.Errorf("the holder's lease of %v lasts %v yet", time.Minute, left)
		}
		must(t, "the holder's renewal", holder.Renew(t.Context()))
		if now := holder.Grant(); now.Token != before.Token || now.ID != before.ID {
			t.Errorf("the holder had %v and has %v", before, now)
		}
		must(t, "the holder's release", holder.Release(t.Context()))
	})
}

// observer counts the renewals that succeeded.
type observer struct{ renewed atomic.Int64 }

func (o *observer) Start(ctx context.Context, _ exclusive.Event) context.Context { return ctx }
func (o *observer) End(_ context.Context, e exclusive.Event) {
	if e.Op == exclusive.OpRenew && e.Err == nil {
		o.renewed.Add(1)
	}
}

// A lease is renewed more than once before it would end, so one renewal may
// fail.
// Elsewhere the period of renewal was the length of the lease.
func TestTrap_RenewalPeriod(t *testing.T) {
	t.Parallel()
	eachIssuer(t, func(t *testing.T, i *issuer) {
		o := new(observer)
		lease := acquire(t, i.open(t, fencing.Config{TTL: 6 * time.Second, Observer: o}), newKey())
		first := lease.Grant().Expires
		await(t, "two renewals", func() bool { return o.renewed.Load() >= 2 })
		if now := time.Now(); now.After(first) {
			t.Errorf("the second renewal came %v after the first lease's end", now.Sub(first))
		}
		must(t, "release", lease.Release(t.Context()))
	})
}

// The holder's view of its lease ends no later than the server's, also when the
// answers to acquire and renewal are slow.
// Elsewhere the lease was counted from the answer.
func TestTrap_ValidityFromRequest(t *testing.T) {
	t.Parallel()
	eachIssuer(t, func(t *testing.T, i *issuer) {
		if i.far == nil {
			return
		}
		key := newKey()
		x, p := i.far(t, fencing.Config{TTL: forever, NoRenew: true})
		free(t, x, key) // connected, prepared
		p.Intercept(func([]byte) proxy.Verdict { time.Sleep(300 * time.Millisecond); return proxy.Pass })
		lease := acquire(t, x, key)
		judge := func(what string) {
			t.Helper()
			server := i.left(t, key)
			if here := time.Until(lease.Grant().Expires); here > server+tick {
				t.Errorf("after %s the lease lasts %v here, and %v on the server", what, here, server)
			}
		}
		judge("acquire")
		must(t, "renew", lease.Renew(t.Context()))
		judge("renewal")
		p.Intercept(nil)
		must(t, "release", lease.Release(t.Context()))
	})
}

// Each key of a process has its own lease: releasing or losing one leaves the
// others alone.
// Elsewhere a local cache mixed up the locks of two keys.
func TestTrap_KeysOfOneProcess(t *testing.T) {
	t.Parallel()
	eachIssuer(t, func(t *testing.T, i *issuer) {
		x, rival := i.open(t, fencing.Config{TTL: forever}), i.open(t, fencing.Config{})
		leases := make([]*exclusive.Lease, 10)
		for n := range leases {
			leases[n] = acquire(t, x, newKey())
		}
		for n, lease := range leases {
			key := lease.Grant().Key
			if n%2 == 0 {
				must(t, "release", lease.Release(t.Context()))
				free(t, rival, key)
				continue
			}
			must(t, fmt.Sprint("renewal of ", key), lease.Renew(t.Context()))
			if _, err := rival.TryAcquire(t.Context(), key); !errors.Is(err, exclusive.ErrHeld) {
				t.Errorf("a rival of %s: %v", key, err)
			}
		}
		for n, lease := range leases {
			if n%2 == 1 {
				must(t, "release", lease.Release(t.Context()))
			}
		}
	})
}
