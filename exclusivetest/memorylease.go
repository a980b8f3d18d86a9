package exclusivetest

import (
	"context"
	"errors"
	"time"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/internal/run"
)

// memoryLease is a lease in its holder's process.
type memoryLease struct {
	m      *Memory
	ctx    context.Context
	cancel context.CancelCauseFunc
	last   time.Time // renewals reach no further; zero = no limit

	commits run.Commits
	keepCtx bool // a Commit does not end the context: Do does

	// Guarded by the database's mutex.
	grant           exclusive.Grant
	expiry, renewal *time.Timer
	locked          bool          // a Commit's transaction has the row
	over            bool          // released, finished or lost
	finished        bool          // by a Commit
	dropped         bool          // its Do has returned, or it was released
	later           chan struct{} // closed when what releases in the background has ended
	laterErr        error         // of that
}

var _ exclusive.Holding = (*memoryLease)(nil)

func (l *memoryLease) row() row { return row{leases, l.grant.Key} }

// extend stores now, the lease's row, with its full length from this moment.
// The caller holds the mutex.
func (l *memoryLease) extend(now leaseRow) {
	now.expires = time.Now().Add(l.m.cfg.TTL)
	if !l.last.IsZero() && now.expires.After(l.last) {
		now.expires = l.last
	}
	l.grant.Expires = now.expires
	l.m.db.rows[l.row()] = now
}

// startTimers starts what ends and what renews the lease. The caller holds the
// mutex.
func (l *memoryLease) startTimers() {
	l.expiry = time.AfterFunc(time.Until(l.grant.Expires), l.expire)
	l.renewal = time.AfterFunc(l.m.cfg.TTL/3, l.renewLater)
	if l.m.cfg.NoRenew {
		l.renewal.Stop()
	}
}

// expire ends the lease, unless it was renewed meanwhile.
func (l *memoryLease) expire() {
	l.m.db.mu.Lock()
	defer l.m.db.mu.Unlock()
	if !l.locked {
		l.waitOrLose()
	}
}

// lock suspends the deadline: the Commit's transaction has the row now, so nobody
// can take the key over.
func (l *memoryLease) lock() {
	l.m.db.mu.Lock()
	defer l.m.db.mu.Unlock()
	l.locked = true
}

// unlock is called when that transaction has ended.
func (l *memoryLease) unlock() {
	l.m.db.mu.Lock()
	defer l.m.db.mu.Unlock()
	l.locked = false
	l.waitOrLose()
}

// waitOrLose waits for the deadline, or ends the lease if it has passed. The caller
// holds the mutex.
func (l *memoryLease) waitOrLose() {
	if l.over {
		return
	}
	if left := time.Until(l.grant.Expires); left > 0 {
		l.expiry.Reset(left)
		return
	}
	l.lose("it ran out")
}

// renewLater renews in the background, until the lease or its context is over.
func (l *memoryLease) renewLater() {
	if l.Renew(l.ctx) != nil {
		return
	}
	l.m.db.mu.Lock()
	defer l.m.db.mu.Unlock()
	if !l.over {
		l.renewal.Reset(l.m.cfg.TTL / 3)
	}
}

// Grant implements exclusive.Holding.
func (l *memoryLease) Grant() exclusive.Grant {
	l.m.db.mu.Lock()
	defer l.m.db.mu.Unlock()
	return l.grant
}

// Context implements exclusive.Holding.
func (l *memoryLease) Context() context.Context { return l.ctx }

// Renew implements exclusive.Holding.
func (l *memoryLease) Renew(ctx context.Context) error {
	return l.update(ctx, "renew", func(now leaseRow) error {
		if l.over || !l.has(now) {
			l.lose("it was taken over, revoked or restored from an older copy")
			return l.gone("renew")
		}
		l.extend(now)
		return nil
	})
}

// Release implements exclusive.Holding. Only a transaction that has the row can make
// it go on in the background, until that has ended. Another Release waits for the one
// in the background, and tells what came of it.
func (l *memoryLease) Release(ctx context.Context) error {
	l.m.db.mu.Lock()
	locked, later := l.m.db.locks[l.row()] != nil, l.later
	l.m.db.mu.Unlock()
	if later != nil {
		return l.await(ctx, later)
	}
	if !locked { // it takes no time
		ctx = context.WithoutCancel(ctx)
	}
	err := l.release(ctx, true)
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		l.goOn()
	}
	return err
}

// goOn releases in the background, unless that is under way.
func (l *memoryLease) goOn() {
	l.m.db.mu.Lock()
	defer l.m.db.mu.Unlock()
	if l.later != nil {
		return
	}
	later := make(chan struct{})
	l.later = later
	go func() {
		l.laterErr = l.release(context.Background(), true)
		close(later)
	}()
}

func (l *memoryLease) await(ctx context.Context, later chan struct{}) error {
	select {
	case <-later:
	case <-ctx.Done():
		return db.CtxError(ctx, "release", l.grant.Key, nil)
	}
	l.m.db.mu.Lock()
	defer l.m.db.mu.Unlock()
	l.later = nil
	return l.laterErr
}

// release gives the key back. clean says that the work was done.
func (l *memoryLease) release(ctx context.Context, clean bool) error {
	return l.update(ctx, "release", func(now leaseRow) error {
		l.dropped = true
		if l.finished {
			return nil // the Commit has given it back
		}
		lost := l.over || !l.has(now)
		if now.held && now.id == l.grant.ID {
			now.held = false
			if clean && !lost {
				now.attempt = 0
			}
			l.m.db.rows[l.row()] = now
			l.m.db.wake()
		}
		if lost {
			l.lose("it had ended before its release")
			return l.gone("release")
		}
		l.end(context.Canceled)
		return nil
	})
}

// update runs fn on the lease's row when no transaction has it locked.
func (l *memoryLease) update(ctx context.Context, op string, fn func(now leaseRow) error) error {
	return l.m.db.update(ctx, op, l.row(), func() error {
		return fn(get[leaseRow](l.m.db.rows, l.row()))
	})
}

// has reports whether the row says that the lease goes on.
func (l *memoryLease) has(now leaseRow) bool {
	return now.held && now.id == l.grant.ID && time.Now().Before(now.expires)
}

func (l *memoryLease) gone(op string) error {
	return &exclusive.Error{Op: op, Key: l.grant.Key, Kind: exclusive.ErrLost, Hint: "the lease is over"}
}

// lose ends the lease as lost, unless it is over. The caller holds the mutex.
func (l *memoryLease) lose(hint string) {
	l.end(&exclusive.Error{Op: "hold", Key: l.grant.Key, Kind: exclusive.ErrLost, Hint: hint})
}

// finish ends the lease after its Commit. The caller holds the mutex.
func (l *memoryLease) finish() {
	l.finished = true
	if l.stop() && !l.keepCtx {
		l.cancel(context.Canceled)
	}
}

// drop notes that Do has returned.
func (l *memoryLease) drop() {
	l.m.db.mu.Lock()
	defer l.m.db.mu.Unlock()
	l.dropped = true
}

func (l *memoryLease) end(cause error) {
	if l.stop() {
		l.cancel(cause)
	}
}

// stop reports whether it has ended the lease: it may have been over.
func (l *memoryLease) stop() bool {
	if l.over {
		return false
	}
	l.over = true
	l.expiry.Stop()
	l.renewal.Stop()
	return true
}
