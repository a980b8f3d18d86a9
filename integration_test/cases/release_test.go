package cases_test

import (
	"context"
	"database/sql"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/casupdate"
	"github.com/exclusive-go/exclusive/exclusivetest"
	"github.com/exclusive-go/exclusive/fencing"
	"github.com/exclusive-go/exclusive/integration_test/matrix"
	"github.com/exclusive-go/exclusive/integration_test/proxy"
	"github.com/exclusive-go/exclusive/integration_test/strategies"
	"github.com/exclusive-go/exclusive/rowlock"
	"github.com/exclusive-go/exclusive/uniquetask"
)

// eachStrategy runs a test on every strategy, on every server with each driver.
func eachStrategy(t *testing.T, onPGX func(*testing.T, *matrix.Target[pgx.Tx], strategies.Strategy[pgx.Tx]), onSQL func(*testing.T, *matrix.Target[*sql.Tx], strategies.Strategy[*sql.Tx])) {
	t.Helper()
	matrix.Shared(t, strategies.Each(onPGX), strategies.Each(onSQL))
}

// stores fails unless x, which waits long enough, gets key soon and its result
// is what is stored.
func stores[Tx any](t testing.TB, place *strategies.Place[Tx], x exclusive.Transactional[Tx], key, body string) {
	t.Helper()
	err := x.Do(soon(t), key, func(ctx context.Context, g exclusive.Grant) error {
		return x.Commit(ctx, g, func(ctx context.Context, tx Tx) error { return place.Write(ctx, tx, key, body) })
	})
	must(t, body+" works on the key", err)
	if got, n := place.Stored(t, key); got != body || n != 1 {
		t.Errorf("stored are %d results, the last by %q; want one by %q", n, got, body)
	}
}

// A key is free at once when the context of the call that held it has ended,
// and Do says that it was that; and so it is when that context was given to the
// Release of a lease, or ends while that waits for its answer.
// Elsewhere the unlock ran on the cancelled context of the request, failed
// without a word, and the key stayed taken until its time was over.
func TestB001_ReleaseAfterCancellation(t *testing.T) {
	t.Parallel()
	t.Run("lease", testB001Lease)
	t.Run("do", func(t *testing.T) { eachStrategy(t, testB001, testB001) })
}

func testB001Lease(t *testing.T) {
	eachIssuer(t, func(t *testing.T, i *issuer) {
		key, next := newKey(), i.open(t, fencing.Config{})
		x := i.open(t, fencing.Config{TTL: forever})
		lease := acquire(t, x, key)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		wantErr(t, "release with a context that has ended", lease.Release(ctx), context.Canceled)
		free(t, next, key)
		must(t, "one that waits for it", lease.Release(t.Context()))

		// The statement is lost, or it waits for a lock, when the context ends.
		unblock := func() {}
		if i.far != nil {
			far, p := i.far(t, fencing.Config{TTL: forever})
			lease = acquire(t, far, key)
			ctx, cancel = context.WithCancel(t.Context())
			defer cancel()
			var once sync.Once
			p.Intercept(func([]byte) (v proxy.Verdict) {
				once.Do(func() { v = proxy.Swallow; cancel() })
				return v
			})
			wantErr(t, "release whose context ends", lease.Release(ctx), context.Canceled)
		} else {
			lease = acquire(t, x, key)
			unblock = i.hold(t, key)
			ctx, cancel = context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			wantErr(t, "release whose context ends", lease.Release(ctx), context.DeadlineExceeded)
		}
		ended(t, "the lease's context", lease.Context().Done())
		unblock()
		must(t, "one that waits for it", lease.Release(soon(t)))
		free(t, next, key)
	})
}

func testB001[Tx any](t *testing.T, target *matrix.Target[Tx], s strategies.Strategy[Tx]) {
	place := s.SetUp(t, target)
	x := place.New(t, target, exclusivetest.Config{TTL: forever})
	next := place.New(t, target.Another(t, matrix.Options{}), exclusivetest.Config{Wait: patience})
	for name, c := range map[string]struct {
		work func(ctx context.Context, cancel func()) error
		want error
	}{
		"cancelled": {func(ctx context.Context, cancel func()) error { cancel(); return ctx.Err() }, context.Canceled},
		"deadline": {func(ctx context.Context, _ func()) error {
			<-ctx.Done()
			return ctx.Err()
		}, context.DeadlineExceeded},
		"cancelled, and nil returned": {func(_ context.Context, cancel func()) error { cancel(); return nil }, context.Canceled},
	} {
		var key string
		entered := false
		for limit := time.Second; !entered; limit *= 2 { // on a busy machine it may pass before work begins
			key = place.MustKey(t)
			ctx, cancel := context.WithCancel(t.Context())
			if name == "deadline" {
				cancel()
				ctx, cancel = context.WithTimeout(t.Context(), limit)
			}
			err := x.Do(ctx, key, func(ctx context.Context, _ exclusive.Grant) error { entered = true; return c.work(ctx, cancel) })
			cancel()
			wantErr(t, name, err, c.want)
			if !entered && (name != "deadline" || limit > patience) {
				t.Fatal(name, ": work did not run")
			}
		}
		stores(t, place, next, key, name)
	}
	target.Idle(t)
}

// Releasing a lease that has run out says that it was lost, the first time and
// the second.
// Elsewhere unlock after the expiry was no error, so nobody learned that the
// protected section had overlapped with the next one.
func TestB002_ReleaseAfterExpiry(t *testing.T) {
	t.Parallel()
	t.Run("lease", func(t *testing.T) {
		eachIssuer(t, func(t *testing.T, i *issuer) {
			key := newKey()
			x := i.open(t, fencing.Config{TTL: 2 * time.Second, NoRenew: true})
			lease := acquire(t, x, key)
			await(t, "the lease runs out", func() bool { return i.left(t, key) == 0 })
			ended(t, "its context", lease.Context().Done())
			wantErr(t, "the first release", lease.Release(t.Context()), exclusive.ErrLost)
			wantErr(t, "the second release", lease.Release(t.Context()), exclusive.ErrLost)
			lease = acquire(t, i.open(t, fencing.Config{}), key)
			must(t, "a release in time", lease.Release(t.Context()))
		})
	})
	t.Run("do", func(t *testing.T) { eachStrategy(t, testB002, testB002) })
}

func testB002[Tx any](t *testing.T, target *matrix.Target[Tx], s strategies.Strategy[Tx]) {
	if s.Promises.OneAtATime {
		return // not bounded by time
	}
	place := s.SetUp(t, target)
	key := place.MustKey(t)
	err := place.New(t, target, exclusivetest.Config{TTL: 2 * time.Second, NoRenew: true}).Do(t.Context(), key,
		func(ctx context.Context, _ exclusive.Grant) error {
			ended(t, "work's context", ctx.Done())
			return nil // it has not noticed
		})
	wantErr(t, "work that was longer than its lease", err, exclusive.ErrLost)
	stores(t, place, place.New(t, target, exclusivetest.Config{Wait: patience}), key, "the next")
}

// A release that crosses a renewal succeeds, and the key is free after it.
// Elsewhere the renewal raised the version that the release compared: the
// release matched nothing and the row stayed.
func TestB004_RenewalRacesRelease(t *testing.T) {
	t.Parallel()
	t.Run("lease", testB004Lease)
	t.Run("claim", func(t *testing.T) { eachLeased(t, testB004, testB004) })
}

func testB004Lease(t *testing.T) {
	eachIssuer(t, func(t *testing.T, i *issuer) {
		// Its leases are shorter than what is renewed, so that a renewal of one would show.
		rival := i.open(t, fencing.Config{TTL: time.Minute, NoRenew: true})
		x, watch := i.watched(t, fencing.Config{TTL: forever})
		known := acquire(t, x, newKey())
		must(t, "a renewal, which the server knows then", known.Renew(t.Context()))
		must(t, "and a release", known.Release(t.Context()))
		for _, late := range []bool{false, true} {
			key := newKey()
			lease := acquire(t, x, key)
			was := i.until(t, key)
			await(t, "time passes on the server's clock", func() bool { return i.left(t, key) < forever-2*tick })
			renewal, renewed := hold(t, watch, late), make(chan error, 1)
			go func() { renewed <- lease.Renew(context.WithoutCancel(t.Context())) }()
			ended(t, "a renewal", renewal.There)
			if !late { // The twin: a release that compares what a renewal changes.
				if i.freeIf(t, key, was) {
					t.Error("to compare what was read before the renewal does no harm")
				}
				if _, err := rival.TryAcquire(t.Context(), key); !errors.Is(err, exclusive.ErrHeld) {
					t.Errorf("another, after a release that matched nothing: %v", err)
				}
			}
			must(t, "release", lease.Release(t.Context()))
			next, err := rival.TryAcquire(t.Context(), key)
			must(t, "another, right after the release", err)
			was = i.until(t, key)
			renewal.Let()
			wantErr(t, "the renewal", <-renewed, exclusive.ErrLost)
			if now := i.until(t, key); now != was {
				t.Errorf("the renewal of the one before moved the rival's lease by %v", now-was)
			}
			must(t, "the rival's release", next.Release(t.Context()))
		}
	})
	if matrix.Long() {
		t.Run("at random", testB004Random)
	}
}

// testB004Random has renewals as fast as they go, which no interval is, cross releases
// at random.
func testB004Random(t *testing.T) {
	eachIssuer(t, func(t *testing.T, i *issuer) {
		key := newKey()
		x, rival := i.open(t, fencing.Config{TTL: forever}), i.open(t, fencing.Config{TTL: forever})
		for range 1000 {
			lease := acquire(t, x, key)
			stop := make(chan struct{})
			var renewing sync.WaitGroup
			renewing.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
						if err := lease.Renew(t.Context()); err != nil && !errors.Is(err, exclusive.ErrLost) {
							t.Errorf("renew: %v", err)
						}
					}
				}
			})
			time.Sleep(rand.N(5 * time.Millisecond)) // work
			must(t, "release", lease.Release(t.Context()))
			next, err := rival.TryAcquire(t.Context(), key)
			close(stop)
			renewing.Wait()
			must(t, "another, right after the release", err)
			must(t, "release", next.Release(t.Context()))
		}
	})
}

// testB004 has work end while its claim is being renewed, which is the strategy's own
// affair: once the renewal has run at the server and is not answered yet, and once it
// arrives there when the release is over and a rival has the key.
func testB004[Tx any](t *testing.T, target *matrix.Target[Tx], s strategies.Strategy[Tx]) {
	place := s.SetUp(t, target)
	// Its claims are shorter than what is renewed, so that a renewal of one would show.
	rival := place.New(t, target.Another(t, matrix.Options{}), exclusivetest.Config{TTL: 5 * time.Second, NoRenew: true})
	for _, late := range []bool{false, true} {
		key := place.MustKey(t)
		near, p := watched(t, target)
		x := place.New(t, near, exclusivetest.Config{TTL: 9 * time.Second})
		var renewal held
		err := x.Do(t.Context(), key, func(context.Context, exclusive.Grant) error {
			renewal = hold(t, &p.Watch, late) // all that is sent now are renewals
			ended(t, "a renewal", renewal.There)
			return errBusiness
		})
		wantErr(t, "do", err, errBusiness)
		not(t, "do", err, exclusive.ErrLost)
		err = rival.Do(t.Context(), key, func(context.Context, exclusive.Grant) error {
			before := claimedUntil(t, target, s, key)
			renewal.Let()
			ended(t, "the renewal", renewal.Over)
			if after := claimedUntil(t, target, s, key); after != before {
				t.Errorf("the renewal of the one before moved the rival's claim by %v", after-before)
			}
			return errBusiness
		})
		wantErr(t, "another, right after it", err, errBusiness)
	}
}

// A release returns by its own deadline although the lease's row is locked, or
// the server silent, and a renewal is stuck there.
// Elsewhere release and heartbeat shared a mutex, and the release hung behind a
// heartbeat that hung in the database.
func TestB005_ReleaseBehindBlockedRenewal(t *testing.T) {
	t.Parallel()
	t.Run("lease", testB005Lease)
	t.Run("claim", func(t *testing.T) { eachLeased(t, testB005, testB005) })
}

func testB005Lease(t *testing.T) {
	eachIssuer(t, func(t *testing.T, i *issuer) {
		if i.hold != nil {
			t.Run("row locked", func(t *testing.T) {
				t.Parallel()
				key, renews := newKey(), newCue()
				x := i.open(t, fencing.Config{TTL: 3 * time.Second, Observer: renewal(renews.Give)})
				releaseBehindRenewal(t, i, x, key, renews, func() func() { return i.hold(t, key) })
			})
		}
		if i.far != nil {
			t.Run("no answer", func(t *testing.T) {
				t.Parallel()
				key, renews := newKey(), newCue()
				x, p := i.far(t, fencing.Config{TTL: 3 * time.Second})
				releaseBehindRenewal(t, i, x, key, renews, func() func() { return silent(p, renews) })
			})
		}
	})
}

// silent lets a proxy lose all answers to what is sent from now on, which is told to
// sent, and returns what ends that.
func silent(p *proxy.Proxy, sent *cue) (over func()) {
	p.Intercept(func([]byte) proxy.Verdict { sent.Give(); return proxy.Mute })
	return func() { p.Intercept(nil); p.Cut() }
}

// releaseBehindRenewal releases a lease when block has been called and a renewal is
// under way since, which renews tells.
func releaseBehindRenewal(t *testing.T, i *issuer, x exclusive.Leaser, key string, renews *cue, block func() (unblock func())) {
	t.Helper()
	lease := acquire(t, x, key)
	unblock := sync.OnceFunc(block())
	t.Cleanup(unblock)
	renewing := make(chan error, 1)
	go func() { renewing <- lease.Renew(context.WithoutCancel(t.Context())) }() // beside its own
	ended(t, "a renewal", renews.Given)
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	released := make(chan error, 1)
	go func() { released <- lease.Release(ctx) }()
	select {
	case err := <-released:
		if err != nil {
			wantErr(t, "release", err, context.DeadlineExceeded)
		}
	case <-time.After(patience):
		t.Fatal("the release hangs")
	}
	unblock()
	ended(t, "the renewal returns", renewing)
	free(t, i.open(t, fencing.Config{}), key)
}

// renewal is an observer that is called when a renewal begins.
type renewal func()

func (r renewal) Start(ctx context.Context, e exclusive.Event) context.Context {
	if e.Op == exclusive.OpRenew {
		r()
	}
	return ctx
}

func (r renewal) End(context.Context, exclusive.Event) {}

func testB005[Tx any](t *testing.T, target *matrix.Target[Tx], s strategies.Strategy[Tx]) {
	place := s.SetUp(t, target)
	t.Run("row locked", func(t *testing.T) {
		t.Parallel()
		near, p := watched(t, target)
		testB005Claim(t, target, near, place, func(ctx context.Context, key string, renews *cue) (func(), error) {
			tx, err := target.Plain.BeginTx(context.WithoutCancel(ctx), nil)
			if err != nil {
				return nil, err
			}
			claim := claims[s.Name]
			lock := "UPDATE " + claim.table + " SET holder = 'looked at' WHERE " + claim.is
			if _, err := tx.ExecContext(ctx, target.Bind(lock), claimArgs(s.Name, key)...); err != nil {
				return nil, errors.Join(err, tx.Rollback())
			}
			p.OnStatement(func(string, []any) error { renews.Give(); return nil })
			return func() { must(t, "rollback", tx.Rollback()) }, nil
		})
	})
	if !target.Networked() {
		return
	}
	t.Run("no answer", func(t *testing.T) {
		t.Parallel()
		far, p := through(t, target, matrix.Options{})
		testB005Claim(t, target, far, place, func(_ context.Context, _ string, renews *cue) (func(), error) {
			return silent(p, renews), nil
		})
	})
}

// testB005Claim has work end while its claim's renewal is stuck: block makes it so, and
// has renews told of it.
func testB005Claim[Tx any](t *testing.T, target, own *matrix.Target[Tx], place *strategies.Place[Tx], block func(ctx context.Context, key string, renews *cue) (unblock func(), err error)) {
	t.Helper()
	key := place.MustKey(t)
	x := place.New(t, own, exclusivetest.Config{TTL: 3 * time.Second})
	unblock := func() {}
	done := make(chan error, 1)
	go func() {
		done <- x.Do(t.Context(), key, func(ctx context.Context, _ exclusive.Grant) error {
			renews := newCue()
			end, err := block(ctx, key, renews)
			if err != nil {
				return err
			}
			unblock = end
			select {
			case <-renews.Given:
			case <-time.After(patience):
				return errors.New("nothing was renewed")
			}
			return errBusiness
		})
	}()
	select {
	case err := <-done:
		wantErr(t, "do", err, errBusiness)
	case <-time.After(patience):
		t.Error("the release hangs")
	}
	unblock()
	next := place.New(t, target, exclusivetest.Config{Wait: patience})
	stores(t, place, next, key, "next")
}

// A panic and runtime.Goexit in work go on as they are, and the key is free;
// nothing counts as done.
// Elsewhere the unlock was not deferred: whoever recovered went on with a key
// that stayed locked.
func TestB007_PanicAndGoexit(t *testing.T) {
	t.Parallel()
	eachStrategy(t, testB007, testB007)
}

func testB007[Tx any](t *testing.T, target *matrix.Target[Tx], s strategies.Strategy[Tx]) {
	place := s.SetUp(t, target)
	x := place.New(t, target, exclusivetest.Config{TTL: forever})
	next := place.New(t, target.Another(t, matrix.Options{}), exclusivetest.Config{Wait: patience})
	for name, c := range map[string]struct {
		leave func()
		want  any
	}{
		"panic":       {func() { panic("boom") }, "boom"},
		"panic(42)":   {func() { panic(42) }, 42},
		"goexit":      {runtime.Goexit, nil},
		"in a commit": {func() { panic("in apply") }, "in apply"},
	} {
		key := place.MustKey(t)
		left := make(chan any, 1)
		go func() {
			defer func() { left <- recover() }()
			_ = x.Do(t.Context(), key, func(ctx context.Context, g exclusive.Grant) error {
				if name != "in a commit" {
					c.leave()
				}
				return x.Commit(ctx, g, func(ctx context.Context, tx Tx) error {
					if err := place.Write(ctx, tx, key, "half"); err != nil {
						return err
					}
					c.leave()
					return nil
				})
			})
			t.Error("work returned")
		}()
		select {
		case got := <-left:
			if got != c.want {
				t.Errorf("%s: recovered %v", name, got)
			}
		case <-time.After(patience):
			t.Fatal(name, ": Do hangs")
		}
		target.Idle(t)
		stores(t, place, next, key, name)
	}
}

var errBusiness = errors.New("the business said no")

// An error of work is not hidden by a release that fails as well; and a release
// that fails after work succeeded is told, as what it is.
// Elsewhere the caller saw only that the unlock had failed.
func TestB008_ReleaseFails(t *testing.T) {
	t.Parallel()
	t.Run("sql", func(t *testing.T) { matrix.Drivers(t, testB008[pgx.Tx], testB008[*sql.Tx]) })
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		i := redisIssuer(t)
		x, p := i.far(t, fencing.Config{TTL: forever})
		releaseFails(t, x, newKey, func() func() {
			p.Intercept(func([]byte) proxy.Verdict { return proxy.Cut })
			return func() { p.Intercept(nil) }
		}, exclusive.ErrFinished)
	})
}

func testB008[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	target.Migrate(t, "")
	target.MustExec(t, "CREATE TABLE job (id varchar(200) PRIMARY KEY, state varchar(20) NOT NULL)")
	away := func(table string) func() func() {
		return func() func() {
			target.MustExec(t, "ALTER TABLE "+table+" RENAME TO hidden")
			return func() { target.MustExec(t, "ALTER TABLE hidden RENAME TO "+table) }
		}
	}
	leases, err := fencing.New(target.DB, fencing.Config{TTL: forever})
	releaseFails(t, opened(t, leases, err), newKey, away("exclusive_lease"), exclusive.ErrFinished)

	tasks, err := uniquetask.New(target.DB, uniquetask.Config{Task: "t", TTL: forever})
	releaseFails(t, opened(t, tasks, err), newKey, away("exclusive_task"), exclusive.ErrOutcomeUnknown)

	table, err := casupdate.New(target.DB, casupdate.Config{Table: "job", From: "PENDING", Claimed: "PROCESSING", Done: "DONE"})
	job := func() string {
		key := newKey()
		target.MustExec(t, "INSERT INTO job VALUES (?, 'PENDING')", key)
		return key
	}
	releaseFails(t, opened(t, table, err), job, away("job"), exclusive.ErrOutcomeUnknown)

	if !target.Networked() {
		return // nobody can end a transaction of SQLite's but its holder
	}
	far, p := through(t, target, matrix.Options{})
	locks, err := rowlock.New(far.DB, rowlock.Config{NoProbe: true})
	must(t, "open", err)
	// A lost connection is a release too, so nothing is to be told beside the
	// business error.
	releaseFails(t, locks, newKey, func() func() { p.Cut(); return func() {} }, exclusive.ErrLost)
}

// releaseFails makes it so that what x holds cannot be given back, once for
// work that fails, and once for work that does not.
func releaseFails(t *testing.T, x exclusive.Exclusive, key func() string, spoil func() (mend func()), want error) {
	t.Helper()
	for _, business := range []error{errBusiness, nil} {
		var mend func()
		err := x.Do(t.Context(), key(), func(context.Context, exclusive.Grant) error {
			mend = spoil()
			return business
		})
		if mend == nil {
			t.Fatalf("work did not run: %v", err)
		}
		mend()
		if business == nil {
			wantErr(t, "work succeeded and its release failed", err, want)
			continue
		}
		wantErr(t, "work failed and its release too", err, errBusiness)
		var ours *exclusive.Error
		if !errors.As(err, &ours) && !errors.Is(want, exclusive.ErrLost) {
			t.Errorf("nothing is told about the release: %v", err)
		}
	}
}

// A waiter that gave up takes nothing later: the key goes to who still wants it.
// The same cause as an unlock that is not sent: what a cancelled call left
// behind on the server.
func TestReleaseOwn_WaiterGaveUp(t *testing.T) {
	t.Parallel()
	eachStrategy(t, testWaiterGaveUp, testWaiterGaveUp)
}

func testWaiterGaveUp[Tx any](t *testing.T, target *matrix.Target[Tx], s strategies.Strategy[Tx]) {
	place := s.SetUp(t, target)
	key := place.MustKey(t)
	holder := place.New(t, target, exclusivetest.Config{TTL: forever})
	next := place.New(t, target.Another(t, matrix.Options{}), exclusivetest.Config{Wait: patience, TTL: forever})
	err := holder.Do(t.Context(), key, func(context.Context, exclusive.Grant) error {
		var waiters sync.WaitGroup
		for range 4 {
			waiter := place.New(t, target.Another(t, matrix.Options{MaxConns: 2}), exclusivetest.Config{Wait: patience, TTL: forever})
			waiters.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond+rand.N(50*time.Millisecond))
				defer cancel()
				err := waiter.Do(ctx, key, func(context.Context, exclusive.Grant) error {
					t.Error("two at once")
					return nil
				})
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("a waiter whose time is over: %v", err)
				}
			})
		}
		waiters.Wait()
		return errBusiness
	})
	wantErr(t, "the holder", err, errBusiness)
	stores(t, place, next, key, "the next")
}

// The late release of a holder whose lease had run out does not free the key of
// its successor.
// A release by name would.
func TestReleaseOwn_LateReleaseSparesSuccessor(t *testing.T) {
	t.Parallel()
	eachIssuer(t, func(t *testing.T, i *issuer) {
		key := newKey()
		old := acquire(t, i.open(t, fencing.Config{TTL: 2 * time.Second, NoRenew: true}), key)
		next := acquire(t, i.open(t, fencing.Config{TTL: forever}), key)
		wantErr(t, "the late release", old.Release(t.Context()), exclusive.ErrLost)
		if left := i.left(t, key); left < forever/2 {
			t.Errorf("the successor's lease lasts %v yet", left)
		}
		must(t, "the successor's renewal", next.Renew(t.Context()))
		if _, err := i.open(t, fencing.Config{}).TryAcquire(t.Context(), key); !errors.Is(err, exclusive.ErrHeld) {
			t.Errorf("a third one: %v", err)
		}
		must(t, "the successor's release", next.Release(t.Context()))
	})
}

// A context that ends within a Commit leaves nothing stored and the key free,
// or everything stored and done: never half.
// The end of a call may fall anywhere, not only into work.
func TestReleaseOwn_CancelledWithinCommit(t *testing.T) {
	t.Parallel()
	eachStrategy(t, testCancelledWithinCommit, testCancelledWithinCommit)
}

func testCancelledWithinCommit[Tx any](t *testing.T, target *matrix.Target[Tx], s strategies.Strategy[Tx]) {
	place := s.SetUp(t, target)
	x := place.New(t, target, exclusivetest.Config{TTL: forever})
	next := place.New(t, target.Another(t, matrix.Options{}), exclusivetest.Config{Wait: patience})
	for i := range 6 {
		key := place.MustKey(t)
		ctx, cancel := context.WithCancel(t.Context())
		err := x.Do(ctx, key, func(ctx context.Context, g exclusive.Grant) error {
			return x.Commit(ctx, g, func(ctx context.Context, tx Tx) error {
				if err := place.Write(ctx, tx, key, "first"); err != nil {
					return err
				}
				if i == 0 {
					cancel()
					return ctx.Err()
				}
				time.AfterFunc(rand.N(2*time.Millisecond), cancel)
				return nil
			})
		})
		cancel()
		body, n := place.Stored(t, key)
		if err == nil {
			if body != "first" || n != 1 {
				t.Errorf("committed, and %d results are stored, the last by %q", n, body)
			}
			continue
		}
		wantErr(t, "cancelled", err, context.Canceled)
		if n != 0 {
			t.Errorf("not committed (%v), and stored is %q", err, body)
		}
		stores(t, place, next, key, "next")
	}
}
