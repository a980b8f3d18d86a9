package exclusivetest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/exclusive-go/exclusive"
)

// Backend is a strategy on a backend that was set up for one case.
type Backend struct {
	// New opens the strategy as one process would; all processes of a case
	// share the backend. Close what it opens with t.Cleanup. Fields of cfg
	// that the strategy does not have are ignored; if it has no MaxHold, answer
	// ErrUnsupported when cfg has one, and the case about it is skipped.
	New func(cfg Config) (exclusive.Exclusive, error)

	// Key makes a key that nobody has used. nil means random ones; strategies
	// on rows of the application's own need one that inserts the row.
	Key func(ctx context.Context) (string, error)
}

// Run runs the cases for what a strategy promises, each as a subtest on a
// backend of its own. What is not promised is skipped, and said.
//
// Every strategy is played by its Do, and a Leaser by its leases as well.
func Run(t *testing.T, setup func(t *testing.T) Backend) {
	t.Helper()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			verdict(t, patiently(func(ttl time.Duration) error { return runCase(t.Context(), c, setup(t), ttl) }))
		})
	}
}

// testCase proves one thing about a strategy.
type testCase struct {
	name string
	need exclusive.Promises // the case says nothing about a strategy without these
	run  func(ctx context.Context, p *processes) error
}

var cases = []testCase{
	{"OneWinner", exclusive.Promises{OneWinner: true}, oneWinner},
	{"OneAtATime", exclusive.Promises{OneAtATime: true}, oneAtATime},
	{"OncePerKey", exclusive.Promises{OncePerKey: true}, oncePerKey},
	{"HeldWhileRenewed", exclusive.Promises{TimeBound: true}, heldWhileRenewed},
	{"TimeBound", exclusive.Promises{TimeBound: true}, byLeaseAndDo(timeBound, timeBoundByDo)},
	{"LossIsTold", exclusive.Promises{TimeBound: true}, lossIsTold},
	{"TokensRise", exclusive.Promises{TimeBound: true}, byLeaseAndDo(tokensRise, tokensRiseByDo)},
	{"LateRelease", exclusive.Promises{TimeBound: true}, byLeaseAndDo(lateRelease, lateReleaseByDo)},
	{"LateRenew", exclusive.Promises{TimeBound: true}, lateRenew},
	{"MaxHold", exclusive.Promises{TimeBound: true}, byLeaseAndDo(maxHold, maxHoldByDo)},
	{"AcquireWaits", exclusive.Promises{OneWinner: true}, acquireWaits},
	{"ReleaseAfterCancel", exclusive.Promises{OneWinner: true}, releaseAfterCancel},
	{"FailureFrees", exclusive.Promises{}, failureFrees},
	{"CancelFrees", exclusive.Promises{}, cancelFrees},
	{"BadKeys", exclusive.Promises{}, badKeys},
}

// caseLimit bounds one case. It only ever passes when something hangs.
const caseLimit = 30 * time.Second

// untilEnd is longer than a case lasts: such a lease does not run out, however
// slow the machine is.
const untilEnd = 10 * caseLimit

// skipped says why a case says nothing about a strategy.
type skipped string

func (s skipped) Error() string { return string(s) }

const (
	noLeaser  skipped = "not offered: the strategy is no Leaser"
	unbounded skipped = "does not apply: time does not bound the grant"
)

func verdict(t *testing.T, err error) {
	t.Helper()
	var s skipped
	switch {
	case errors.As(err, &s):
		t.Skip(s)
	case err != nil:
		t.Error(err)
	}
}

// patiently plays again, with longer leases, what failed because the backend was
// not available in time. On a busy machine a lease may be over as soon as it is
// there; what could not be played proves nothing. A backend that is unavailable for
// other reasons still is with the longest lease.
func patiently(play func(ttl time.Duration) error) error {
	for ttl := TTL; ; ttl *= 4 {
		if err := play(ttl); !errors.Is(err, exclusive.ErrUnavailable) || ttl > 10*TTL {
			return err
		}
	}
}

func runCase(ctx context.Context, c testCase, b Backend, ttl time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, caseLimit)
	defer cancel()
	p := &processes{backend: b, need: c.need, key: keyOr(""), ttl: ttl}
	if b.Key != nil {
		var err error
		if p.key, err = b.Key(ctx); err != nil {
			return fmt.Errorf("make a key: %w", err)
		}
	}
	return c.run(ctx, p)
}

// processes opens a strategy again and again, as so many processes would.
type processes struct {
	backend Backend
	need    exclusive.Promises
	key     string
	ttl     time.Duration // of leases that run out
}

func (p *processes) open(cfg Config) (exclusive.Exclusive, error) {
	x, err := p.backend.New(cfg)
	if cfg.MaxHold > 0 && errors.Is(err, exclusive.ErrUnsupported) {
		return nil, skipped(fmt.Sprintf("not offered: %v", err))
	}
	if err != nil {
		return nil, fmt.Errorf("open the strategy with %+v: %w", cfg, err)
	}
	return x, notPromised(x, p.need)
}

func notPromised(x exclusive.Exclusive, need exclusive.Promises) error {
	if missing := x.Promises().Missing(need); missing != nil {
		return skipped(fmt.Sprintf("not promised: %v", missing))
	}
	return nil
}

func (p *processes) leaser(cfg Config) (exclusive.Leaser, error) {
	x, err := p.open(cfg)
	if err != nil {
		return nil, err
	}
	l, ok := x.(exclusive.Leaser)
	if !ok {
		return nil, noLeaser
	}
	return l, nil
}

// leasers opens three strategies whose leases are not renewed, as for processes
// that are frozen. Those of the second one are long: it comes after the first
// one's have run out, and has its own until the case's end.
func (p *processes) leasers() (ls [3]exclusive.Leaser, err error) {
	for i, ttl := range []time.Duration{p.ttl, untilEnd, p.ttl} {
		if ls[i], err = p.leaser(Config{TTL: ttl, NoRenew: true}); err != nil {
			return ls, err
		}
	}
	return ls, nil
}

// want returns an error if err does not match the one that should come.
func want(what string, err, target error) error {
	switch {
	case errors.Is(err, target):
		return nil
	case err == nil:
		return fmt.Errorf("%s gives nil; it should be: %w", what, target)
	}
	return fmt.Errorf("%s gives %w; errors.Is should find: %w", what, err, target)
}

// errFree is what free's work returns.
var errFree = errors.New("this work only looks whether the key is free")

// free reports whether the key can be had at once. Its work fails, so that the
// key stays free where finished work does not run again.
func (p *processes) free(ctx context.Context, x exclusive.Exclusive, after string) error {
	err := x.Do(ctx, p.key, func(context.Context, exclusive.Grant) error { return errFree })
	if !errors.Is(err, errFree) {
		return fmt.Errorf("the key is not free after %s: %w", after, errOrNil(err))
	}
	return nil
}

// finished is free after work that has succeeded, unless that is not to run again.
func (p *processes) finished(ctx context.Context, x exclusive.Exclusive, after string) error {
	if !x.Promises().OncePerKey {
		return p.free(ctx, x, after)
	}
	err := x.Do(ctx, p.key, func(context.Context, exclusive.Grant) error { return nil })
	return want("Do after "+after, err, exclusive.ErrDone)
}

// errOrNil makes an error of the nil that should have been one.
func errOrNil(err error) error {
	if err == nil {
		return errors.New("Do returns nil, although work would have failed")
	}
	return err
}

// contenders is how many compete in oneWinner.
const contenders = 8

// oneWinner has many try a free key at the same moment. Work of the winner
// lasts until everybody has an answer or has got in.
func oneWinner(ctx context.Context, p *processes) error {
	type answer struct {
		in  bool // work runs
		err error
	}
	answers := make(chan answer)
	finish := make(chan struct{})
	start := make(chan struct{})
	for range contenders {
		x, err := p.open(Config{})
		if err != nil {
			return err
		}
		go func() {
			<-start
			in := false
			err := x.Do(ctx, p.key, func(context.Context, exclusive.Grant) error {
				in = true
				answers <- answer{in: true}
				<-finish
				return nil
			})
			if !in {
				answers <- answer{err: err}
			} else if err != nil {
				answers <- answer{err: fmt.Errorf("the winner's Do: %w", err)}
			} else {
				answers <- answer{}
			}
		}()
	}
	close(start)
	winners := 0
	var errs []error
	for range contenders {
		switch a := <-answers; {
		case a.in:
			winners++
		case a.err == nil:
			errs = append(errs, errors.New("a loser's Do returns nil, though its work did not run"))
		default:
			errs = append(errs, want("a loser's Do", a.err, exclusive.ErrHeld))
		}
	}
	close(finish)
	for range winners {
		errs = append(errs, (<-answers).err)
	}
	if winners != 1 {
		errs = append(errs, fmt.Errorf("%d of %d got the key at the same time", winners, contenders))
	}
	return errors.Join(errs...)
}

// renewedTTL is longer than [TTL]: these leases must outlive a busy machine.
const renewedTTL = 2 * time.Second

// heldWhileRenewed has one process hold the key for well over a lease's time
// while another one tries to get it.
func heldWhileRenewed(ctx context.Context, p *processes) error {
	return heldFor(ctx, p, Config{TTL: renewedTTL}, renewedTTL*5/2)
}

// oneAtATime is heldWhileRenewed without renewal: time does not bound these.
func oneAtATime(ctx context.Context, p *processes) error {
	return heldFor(ctx, p, Config{TTL: p.ttl, NoRenew: true}, p.ttl*5/2)
}

func heldFor(ctx context.Context, p *processes, cfg Config, hold time.Duration) error {
	a, err := p.open(cfg)
	if err != nil {
		return err
	}
	b, err := p.open(cfg)
	if err != nil {
		return err
	}
	stolen := false
	err = a.Do(ctx, p.key, func(wctx context.Context, _ exclusive.Grant) error {
		for until := time.Now().Add(hold); time.Now().Before(until); {
			err := b.Do(ctx, p.key, func(context.Context, exclusive.Grant) error {
				stolen = true
				return nil
			})
			if stolen {
				return errors.New("another process got the key while its holder was alive")
			}
			if err := want("Do of another process", err, exclusive.ErrHeld); err != nil {
				return err
			}
			select {
			case <-wctx.Done():
				return fmt.Errorf("work's context ends while the key is held: %w", context.Cause(wctx))
			case <-time.After(TTL / 20):
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return p.finished(ctx, b, "its holder has finished")
}

// oncePerKey has work fail, which does not count, and then many who want the
// key at the same moment and wait for it: work succeeds once, and the others
// are told that it is done.
func oncePerKey(ctx context.Context, p *processes) error {
	first, err := p.open(Config{})
	if err != nil {
		return err
	}
	if err := p.free(ctx, first, "nothing"); err != nil {
		return err
	}
	var runs atomic.Int32
	answers := make(chan error, contenders)
	for range contenders {
		x, err := p.open(Config{Wait: caseLimit})
		if err != nil {
			return err
		}
		go func() {
			answers <- x.Do(ctx, p.key, func(context.Context, exclusive.Grant) error { runs.Add(1); return nil })
		}()
	}
	winners := 0
	var errs []error
	for range contenders {
		switch err := <-answers; {
		case err == nil:
			winners++
		case !errors.Is(err, exclusive.ErrHeld): // it may not be able to wait
			errs = append(errs, want("Do of somebody who comes later", err, exclusive.ErrDone))
		}
	}
	if n := runs.Load(); n != 1 || winners != 1 {
		errs = append(errs, fmt.Errorf("work ran %d times, and %d of %d were told that theirs did", n, winners, contenders))
	}
	return errors.Join(append(errs, p.finished(ctx, first, "somebody has finished"))...)
}

// waitOut tries until the key is free, and returns the new lease.
func waitOut(ctx context.Context, l exclusive.Leaser, key string) (*exclusive.Lease, error) {
	for {
		lease, err := l.TryAcquire(ctx, key)
		if err == nil {
			return lease, nil
		}
		if err := want("TryAcquire of a held key", err, exclusive.ErrHeld); err != nil {
			return nil, err
		}
		select {
		case <-time.After(TTL / 20):
		case <-ctx.Done():
			return nil, fmt.Errorf("the key does not become free when its lease has run out: %w", ctx.Err())
		}
	}
}

// timeBound has one process freeze and another one try until it gets in, which
// must not be before the lease has run out.
func timeBound(ctx context.Context, p *processes) error {
	ls, err := p.leasers()
	if err != nil {
		return err
	}
	a, err := ls[0].Acquire(ctx, p.key)
	if err != nil {
		return err
	}
	expires := a.Grant().Expires
	b, err := waitOut(ctx, ls[1], p.key)
	if err != nil {
		return err
	}
	if early := time.Until(expires); early > 0 {
		return fmt.Errorf("another process got the key %v before the lease ran out", early)
	}
	return b.Release(ctx)
}

// bounded says of a grant that does not end with time why it does not.
func bounded(x exclusive.Exclusive, g exclusive.Grant) error {
	switch {
	case !g.Expires.IsZero():
		return nil
	case x.Promises().OneAtATime:
		return unbounded
	}
	return errors.New("the strategy promises TimeBound and not OneAtATime, and Grant.Expires is zero")
}

// lossIsTold has a lease run out: work's context must say so, and Do must not
// return nil.
func lossIsTold(ctx context.Context, p *processes) error {
	x, err := p.open(Config{TTL: p.ttl, NoRenew: true})
	if err != nil {
		return err
	}
	var seen error // what work sees; Do's error has other things to say
	err = x.Do(ctx, p.key, func(wctx context.Context, g exclusive.Grant) error {
		if seen = bounded(x, g); seen != nil {
			return nil
		}
		// Not one timer: after a time when nothing went on it would be due as well.
		for range 5 * p.ttl / (TTL / 20) {
			select {
			case <-wctx.Done():
				seen = want("the cause of work's context", context.Cause(wctx), exclusive.ErrLost)
				return nil
			case <-time.After(TTL / 20):
			}
		}
		seen = errors.New("work's context does not end with the lease")
		return nil
	})
	if seen != nil {
		return seen
	}
	return want("Do after a loss, whose work returned nil,", err, exclusive.ErrLost)
}

// tokensRise looks at grants that follow a release, a renewal and a takeover.
func tokensRise(ctx context.Context, p *processes) error {
	ls, err := p.leasers()
	if err != nil {
		return err
	}
	var list grants
	for i := range 4 {
		l := ls[1]
		if i == 2 { // this one is left to run out
			l = ls[0]
		}
		lease, err := waitOut(ctx, l, p.key)
		if err != nil {
			return err
		}
		g, attempt := lease.Grant(), 1
		if i == 3 {
			attempt = 2 // the one before was not released
		}
		if err := list.add(p.key, g, attempt); err != nil {
			return err
		}
		if i == 2 {
			continue
		}
		if err := lease.Renew(ctx); err != nil {
			return fmt.Errorf("renew: %w", err)
		}
		after := lease.Grant()
		if after.Token != g.Token || after.ID != g.ID {
			return fmt.Errorf("a renewal changes the grant from %+v to %+v", g, after)
		}
		if err := lease.Release(ctx); err != nil {
			return fmt.Errorf("release: %w", err)
		}
	}
	return nil
}

// overtaken returns a lease that ran out, that of its successor, and one more
// process.
func overtaken(ctx context.Context, p *processes) (former, current *exclusive.Lease, other exclusive.Leaser, err error) {
	ls, err := p.leasers()
	if err != nil {
		return nil, nil, nil, err
	}
	if former, err = ls[0].Acquire(ctx, p.key); err != nil {
		return nil, nil, nil, err
	}
	current, err = waitOut(ctx, ls[1], p.key)
	return former, current, ls[2], err
}

// lateRelease has a former holder release: its successor must not notice.
func lateRelease(ctx context.Context, p *processes) error {
	a, b, other, err := overtaken(ctx, p)
	if err != nil {
		return err
	}
	if err := want("the release of a lease that ran out", a.Release(ctx), exclusive.ErrLost); err != nil {
		return err
	}
	if err := stillHeld(ctx, b, other, p.key, "a former holder has released"); err != nil {
		return err
	}
	if err := b.Release(ctx); err != nil {
		return fmt.Errorf("release: %w", err)
	}
	return want("a second release", b.Release(ctx), exclusive.ErrLost)
}

// stillHeld renews lease, so that its time cannot be the reason, and has
// another process try.
func stillHeld(ctx context.Context, lease *exclusive.Lease, other exclusive.Leaser, key, after string) error {
	if err := lease.Renew(ctx); err != nil {
		return fmt.Errorf("the current holder cannot renew after %s: %w", after, err)
	}
	if _, err := other.TryAcquire(ctx, key); !errors.Is(err, exclusive.ErrHeld) {
		return fmt.Errorf("TryAcquire gives %v after %s; the key is held by somebody else", err, after)
	}
	return nil
}

// lateRenew has a former holder renew, while its successor works and after it
// has finished.
func lateRenew(ctx context.Context, p *processes) error {
	a, b, other, err := overtaken(ctx, p)
	if err != nil {
		return err
	}
	if err := want("the renewal of a lease that ran out", a.Renew(ctx), exclusive.ErrLost); err != nil {
		return err
	}
	if err := stillHeld(ctx, b, other, p.key, "a former holder has renewed"); err != nil {
		return err
	}
	if err := b.Release(ctx); err != nil {
		return fmt.Errorf("release: %w", err)
	}
	if err := want("another renewal of a lease that ran out", a.Renew(ctx), exclusive.ErrLost); err != nil {
		return err
	}
	return p.free(ctx, other, "a former holder has renewed")
}

// maxHold has work outlive the longest time for which a lease is renewed.
func maxHold(ctx context.Context, p *processes) error {
	a, err := p.leaser(Config{TTL: p.ttl, MaxHold: 2 * p.ttl})
	if err != nil {
		return err
	}
	b, err := p.leaser(Config{TTL: p.ttl})
	if err != nil {
		return err
	}
	held, err := a.Acquire(ctx, p.key)
	if err != nil {
		return err
	}
	next, err := b.Acquire(ctx, p.key)
	if err != nil {
		return fmt.Errorf("the key does not become free although its holder has reached MaxHold: %w", err)
	}
	if early := time.Until(held.Grant().Expires); early > 0 {
		return fmt.Errorf("the key became free %v before its holder expects it", early)
	}
	select { // a busy machine may be late with what was due before
	case <-held.Context().Done():
	case <-ctx.Done():
		return errors.New("the context of a lease that has reached MaxHold does not end")
	}
	if err := want("the cause of the context of a lease that has reached MaxHold", context.Cause(held.Context()), exclusive.ErrLost); err != nil {
		return err
	}
	return next.Release(ctx)
}

// acquireWaits has Acquire wait for a key: until its context ends, and until
// the key is given back.
func acquireWaits(ctx context.Context, p *processes) error {
	a, err := p.leaser(Config{})
	if err != nil {
		return err
	}
	b, err := p.leaser(Config{})
	if err != nil {
		return err
	}
	held, err := a.Acquire(ctx, p.key)
	if err != nil {
		return err
	}
	short, cancel := context.WithTimeout(ctx, TTL/4)
	defer cancel()
	_, err = b.Acquire(short, p.key)
	if err := want("Acquire whose context ends", err, context.DeadlineExceeded); err != nil {
		return err
	}
	if errors.Is(err, exclusive.ErrHeld) {
		return fmt.Errorf("Acquire whose context ends gives %w, which says ErrHeld", err)
	}
	next := make(chan error, 1)
	var lease *exclusive.Lease
	go func() {
		var err error
		lease, err = b.Acquire(ctx, p.key)
		next <- err
	}()
	if err := held.Release(ctx); err != nil {
		return fmt.Errorf("release: %w", err)
	}
	if err := <-next; err != nil {
		return fmt.Errorf("Acquire after a release: %w", err)
	}
	return lease.Release(ctx)
}

// releaseAfterCancel has a lease given back with a context that has ended. The key
// must be free soon, and not when the lease runs out, which is later than this case
// lasts.
func releaseAfterCancel(ctx context.Context, p *processes) error {
	a, err := p.leaser(Config{TTL: untilEnd})
	if err != nil {
		return err
	}
	b, err := p.leaser(Config{})
	if err != nil {
		return err
	}
	lease, err := a.Acquire(ctx, p.key)
	if err != nil {
		return err
	}
	over, cancel := context.WithCancel(ctx)
	cancel()
	if err := lease.Release(over); err != nil {
		if err := want("a release whose context has ended", err, context.Canceled); err != nil {
			return err
		}
		if errors.Is(err, exclusive.ErrLost) {
			return fmt.Errorf("a release whose context has ended gives %w, which says ErrLost; nobody else has had the key", err)
		}
	}
	next, err := b.Acquire(ctx, p.key)
	if err != nil {
		return fmt.Errorf("the key does not become free after a release whose context has ended: %w", err)
	}
	select {
	case <-lease.Context().Done():
	default:
		return errors.New("another process has the key, and the context of the lease that was released has not ended")
	}
	return next.Release(ctx)
}

// errWork is a failure of the application's own.
var errWork = errors.New("the case's own failure of work")

// failureFrees has work fail in each way there is. The key must be free at
// once, not when the lease runs out.
func failureFrees(ctx context.Context, p *processes) error {
	x, err := p.open(Config{})
	if err != nil {
		return err
	}
	err = x.Do(ctx, p.key, func(context.Context, exclusive.Grant) error { return errWork })
	if err := want("Do whose work fails", err, errWork); err != nil {
		return err
	}
	if err := p.free(ctx, x, "work has failed"); err != nil {
		return err
	}
	if got := panicIn(func() { _ = x.Do(ctx, p.key, func(context.Context, exclusive.Grant) error { panic(errWork) }) }); got != errWork {
		return fmt.Errorf("Do whose work panics passes %v on; it should be the panic's value", got)
	}
	if err := p.free(ctx, x, "work has panicked"); err != nil {
		return err
	}
	var exited sync.WaitGroup
	exited.Go(func() {
		_ = x.Do(ctx, p.key, func(context.Context, exclusive.Grant) error { runtime.Goexit(); return nil })
	})
	exited.Wait()
	return p.free(ctx, x, "work has called runtime.Goexit")
}

// panicIn runs f and returns the value that it panics with, or nil.
func panicIn(f func()) (value any) {
	defer func() { value = recover() }()
	f()
	return nil
}

// cancelFrees has the caller's context end while work runs.
func cancelFrees(ctx context.Context, p *processes) error {
	x, err := p.open(Config{})
	if err != nil {
		return err
	}
	cctx, cancel := context.WithCancel(ctx)
	defer cancel()
	err = x.Do(cctx, p.key, func(wctx context.Context, _ exclusive.Grant) error {
		cancel()
		<-wctx.Done()
		return nil
	})
	if err := want("Do whose caller has cancelled", err, context.Canceled); err != nil {
		return err
	}
	return p.free(ctx, x, "the caller has cancelled")
}

// badKeys asks for keys that cannot be, and checks that work did not run.
func badKeys(ctx context.Context, p *processes) error {
	x, err := p.open(Config{})
	if err != nil {
		return err
	}
	long := strings.Repeat("k", exclusive.MaxKeyBytes+1)
	for _, key := range []string{"", long, "a\x00b", "a\xffb"} {
		ran := false
		err := x.Do(ctx, key, func(context.Context, exclusive.Grant) error { ran = true; return nil })
		if ran {
			return fmt.Errorf("work runs with the key %q", key)
		}
		if err := want(fmt.Sprintf("the key %q", key), err, exclusive.ErrInvalid); err != nil {
			return err
		}
	}
	return nil
}
