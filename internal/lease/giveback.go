package lease

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/internal/run"
)

// What is given back in the background: grants whose acquire got no answer, and
// those whose release did not come to its end. Without it a key would stay taken by
// nobody for as long as a lease lasts, or for ever.

const (
	// givingWidth is how many of a keeper's do so at the same time. After an outage
	// there may be many.
	givingWidth = 4
	// The pauses while the server does not answer: they double from the first to the
	// second, and each is drawn from the half to the whole of that.
	givingMinPause = 20 * time.Millisecond
	givingMaxPause = time.Second
)

// lateAcquire is after when an acquire that was sent no longer takes the key:
// see strategy.MaxWaited.
const lateAcquire = 1500 * time.Millisecond

// answered reports whether err is what the backend says of a release.
func answered(err error) bool {
	return err == nil || errors.Is(err, exclusive.ErrLost) || errors.Is(err, exclusive.ErrFenced)
}

// patience is the context of what gives back: it lasts for as long as a lease that
// the backend is being asked for now, which is over by itself then. If time ends
// none, it lasts for as long as the keeper. What ends ctx does not end it. After
// Close there is run.EndWait left.
func (k *Keeper) patience(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx = context.WithoutCancel(ctx)
	var cancel context.CancelFunc
	if k.cfg.TTL > 0 {
		ctx, cancel = context.WithTimeout(ctx, k.cfg.TTL+lateAcquire)
	} else {
		ctx, cancel = context.WithCancel(ctx)
	}
	stop := context.AfterFunc(k.last, cancel)
	return ctx, func() { stop(); cancel() }
}

// insist calls giveBack while the server is away or silent, or until ctx ends.
func (k *Keeper) insist(ctx context.Context, giveBack func(context.Context) error) error {
	for pause := givingMinPause; ; pause = min(2*pause, givingMaxPause) {
		err, again := k.inTurn(ctx, giveBack)
		if !again {
			return err
		}
		nap := time.NewTimer(pause/2 + rand.N(pause/2))
		select {
		case <-nap.C:
		case <-ctx.Done():
			nap.Stop()
			return err
		}
	}
}

// inTurn calls giveBack when it is this one's turn. It reports whether another call
// may help.
func (k *Keeper) inTurn(ctx context.Context, giveBack func(context.Context) error) (err error, again bool) {
	select {
	case k.giving <- struct{}{}:
		defer func() { <-k.giving }()
	case <-ctx.Done():
		return db.CtxError(ctx, "release", "", nil), true
	}
	ctx, cancel := context.WithTimeout(db.Patient(ctx), run.EndWait)
	defer cancel()
	err = giveBack(ctx)
	return err, !answered(err) && (db.Over(ctx) != nil || k.passes(err))
}

// passes reports whether err comes of something that passes by itself, and not of a
// mistake that somebody must mend.
func (k *Keeper) passes(err error) bool {
	classify := k.cfg.Classify
	if classify == nil {
		classify = db.Network
	}
	switch classify(err) {
	case db.Conflict, db.Locked, db.Timeout, db.Disconnected, db.Unreachable, db.ReadOnly:
		return true
	}
	return false
}

// Abandon gives back, in the background, what an acquire may have got whose
// answer was lost: otherwise the key would be held by nobody until the lease
// runs out. It does so twice: the acquire may reach the server late.
//
// An answer is often lost because the server goes away, so it is patient. After
// Close there is no background, so the caller waits, up to run.EndWait.
func (l *Leaser) Abandon(key, id string) {
	k, giveBack := l.Keeper, l.store.Release
	if s, ok := l.store.(Counter); ok {
		giveBack = s.Unclaim
	}
	once := func(ctx context.Context) error { return giveBack(ctx, exclusive.Grant{Key: key, ID: id}) }
	twice := func(ctx context.Context) {
		if k.insist(ctx, once) != nil && ctx.Err() != nil {
			return
		}
		late := time.NewTimer(lateAcquire)
		defer late.Stop()
		select {
		case <-late.C:
		case <-k.ctx.Done():
		}
		_ = k.insist(ctx, once)
	}
	if !k.background(func() {
		ctx, cancel := k.patience(context.Background())
		defer cancel()
		twice(ctx)
	}) {
		ctx, cancel := run.Detach(context.Background())
		defer cancel()
		twice(ctx)
	}
}
