package lease

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/internal/run"
	"github.com/exclusive-go/exclusive/internal/wait"
)

// Store is a Backend that also hands out leases.
type Store interface {
	Backend
	// Acquire tries once to get key for a new grant with this id. It sets all
	// of the grant but Expires, and says when the request was sent that got
	// it. Waiting means that the key was held before, and that the caller will
	// try again until it is free.
	// ErrHeld if somebody else has it, with the holder where known. After an
	// answer that was lost it calls Leaser.Abandon.
	Acquire(ctx context.Context, key, id string, waiting bool) (g exclusive.Grant, requested time.Time, err error)
}

// Leaser implements exclusive.Leaser on a Store: what happens around an acquire
// is the same wherever leases are stored.
type Leaser struct {
	Keeper *Keeper
	Queue  wait.Queue // a release in this process wakes its next waiter
	store  Store
	wait   time.Duration
}

// NewLeaser makes a Leaser. wait is how long Do waits for a key that is held.
// cfg.Freed is its own.
func NewLeaser(cfg Config, wait time.Duration, store Store) *Leaser {
	l := &Leaser{store: store, wait: wait}
	cfg.Freed = l.Queue.Wake
	l.Keeper = NewKeeper(cfg, store)
	return l
}

// Do implements exclusive.Exclusive.
func (l *Leaser) Do(ctx context.Context, key string, work exclusive.Work) error {
	giveUp, unclaim := l.store.Release, l.store.Release
	if s, ok := l.store.(Counter); ok {
		giveUp, unclaim = s.GiveUp, s.Unclaim
	}
	return run.Do(ctx, l.Keeper.cfg.Observed, key, work, func(ctx context.Context) (*run.Claim, error) {
		h, err := l.Claim(ctx, key)
		if err != nil {
			return nil, err
		}
		return &run.Claim{
			Grant:   h.Grant(),
			Context: h.Context(),
			Commits: &h.Commits,
			Finish:  func(ctx context.Context) error { return h.Finish(ctx, notReleased, l.store.Release) },
			Abandon: func(ctx context.Context, cause error) error {
				if errors.Is(cause, run.ErrNotBegun) {
					return h.ReleaseWith(ctx, unclaim)
				}
				return h.ReleaseWith(ctx, giveUp)
			},
			Ended: h.Forget,
		}, nil
	})
}

// notReleased is a Do whose work is done, but whose key could not be given back.
var notReleased = exclusive.Error{Op: "release", Kind: exclusive.ErrFinished, Hint: "the key stays taken until the lease runs out at the latest"}

// Claim gets a lease for Do, whose context ends with ctx.
func (l *Leaser) Claim(ctx context.Context, key string) (*Held, error) {
	h, err := l.try(ctx, ctx, key, false)
	if l.wait > 0 && errors.Is(err, exclusive.ErrHeld) {
		wctx, cancel := context.WithTimeout(ctx, l.wait)
		defer cancel()
		last := run.Refusal{Err: err, At: time.Now()}
		h, err = l.poll(wctx, ctx, key, &last)
		if err != nil && db.Over(wctx) != nil && db.Over(ctx) == nil {
			h, err = run.EndOfWait(ctx, key, last, func(actx context.Context) (*Held, error) { return l.try(actx, ctx, key, true) })
		}
	}
	if h != nil {
		h.keepCtx = true // nobody else has it yet
	}
	return h, err
}

// TryAcquire implements exclusive.Leaser.
func (l *Leaser) TryAcquire(ctx context.Context, key string) (*exclusive.Lease, error) {
	if err := callable(ctx, key); err != nil {
		return nil, err
	}
	h, err := l.try(ctx, context.WithoutCancel(ctx), key, false)
	return handle(h, err)
}

// Acquire implements exclusive.Leaser. It polls, at most every wait.MaxPause,
// and no later than the holder's lease runs out.
func (l *Leaser) Acquire(ctx context.Context, key string) (*exclusive.Lease, error) {
	if err := callable(ctx, key); err != nil {
		return nil, err
	}
	h, err := l.poll(ctx, context.WithoutCancel(ctx), key, &run.Refusal{})
	return handle(h, err)
}

// callable is what every acquire checks before any I/O.
func callable(ctx context.Context, key string) error {
	if err := exclusive.ValidateKey("acquire", key); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return db.CtxError(ctx, "acquire", key, nil)
	}
	return nil
}

// handle makes the caller's lease. If the caller drops it without Release it
// is no longer renewed.
func handle(h *Held, err error) (*exclusive.Lease, error) {
	if err != nil {
		return nil, err
	}
	out := exclusive.NewLease(h)
	runtime.AddCleanup(out, (*Held).Forget, h)
	return out, nil
}

// poll tries in this process's turn until ctx ends. last is the refusal that the
// caller has met, if any, and then the last one.
func (l *Leaser) poll(ctx, parent context.Context, key string, last *run.Refusal) (h *Held, err error) {
	listening := false
	var failed error
	waker, wakes := l.store.(Waker)
	stop := func() {}
	defer func() { stop() }()
	perr := l.Queue.Poll(ctx, key, func() (bool, time.Duration) {
		var free time.Duration
		h, failed = l.try(ctx, parent, key, last.Err != nil)
		if !errors.Is(failed, exclusive.ErrHeld) {
			return true, 0
		}
		if wakes && !listening { // only once it is known that there is a wait
			listening = true
			stop = waker.Listen(key)
		}
		*last = run.Refusal{Err: failed, At: time.Now()}
		var e *exclusive.Error
		if errors.As(failed, &e) && e.Holder != nil {
			// On the server's clock; if ours is off we only look too early or
			// too late, at most by the longest pause.
			free = time.Until(e.Holder.Expires)
		}
		return false, free
	})
	switch {
	case perr != nil:
		return nil, db.CtxError(ctx, "acquire", key, nil)
	case failed != nil:
		return nil, failed
	}
	return h, nil
}

// try is one attempt to get key. parent is what work's context derives from.
func (l *Leaser) try(ctx, parent context.Context, key string, waiting bool) (_ *Held, err error) {
	defer l.Keeper.Claiming()()
	ctx, end := l.Keeper.cfg.Start(ctx, exclusive.Event{Op: exclusive.OpAcquire, Key: key})
	var g exclusive.Grant
	defer func() { end(g, err) }()

	id, ttl := rand.Text(), l.Keeper.cfg.TTL
	got, requested, err := l.store.Acquire(ctx, key, id, waiting)
	if err != nil {
		return nil, err
	}
	g = got
	if ttl == 0 { // nothing of it can be over
		return l.Keeper.Hold(parent, g, requested), nil
	}
	g.Expires = l.Keeper.cfg.ends(requested)

	// The answer was slow, so part of the lease is over, or all of it: hand it
	// out at full length.
	if time.Since(requested) > ttl/8 {
		if requested, err = l.topUp(ctx, g); err != nil {
			l.Abandon(key, id)
			return nil, err
		}
		g.Expires = l.Keeper.cfg.ends(requested)
	}
	return l.Keeper.Hold(parent, g, requested), nil
}

// topUp extends a new lease to its full length. A rival's attempt may hold the
// row for a moment.
func (l *Leaser) topUp(ctx context.Context, g exclusive.Grant) (requested time.Time, err error) {
	ttl := l.Keeper.cfg.TTL
	for end := time.Now().Add(ttl); ; {
		requested = time.Now()
		gone, waiting, err := l.store.Renew(ctx, []exclusive.Grant{g})
		switch {
		case err != nil:
			return requested, err
		case gone == nil && waiting == nil:
			return requested, nil
		case gone != nil || time.Now().After(end):
			return requested, &exclusive.Error{Op: "acquire", Key: g.Key, Kind: exclusive.ErrUnavailable,
				Hint: fmt.Sprintf("the backend took longer than the lease of %v lasts; use a longer TTL", ttl)}
		}
		select {
		case <-time.After(l.Keeper.cfg.retry()):
		case <-ctx.Done():
			return requested, db.CtxError(ctx, "acquire", g.Key, nil)
		}
	}
}

// Counter is a Store whose keys count the attempts since one ended in good order.
type Counter interface {
	// GiveUp is Release after a failure: the next grant is one more attempt.
	GiveUp(ctx context.Context, g exclusive.Grant) error
	// Unclaim is Release of a grant that nobody has used: it was no attempt, and
	// the ones before it still count.
	Unclaim(ctx context.Context, g exclusive.Grant) error
}

// Waker is a Store that is told when a key was freed by another process.
type Waker interface {
	// Listen wakes this process's waiter, through Leaser.Queue, when key
	// becomes free, until stop is called. It does not wait for the server.
	Listen(key string) (stop func())
}
