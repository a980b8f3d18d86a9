package rowlock

import (
	"context"
	"errors"
	"reflect"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/internal/run"
	"github.com/exclusive-go/exclusive/internal/strategy"
)

// Check implements exclusive.Transactional for one transaction: the one that
// holds the lock, as Run, Next and Commit hand it out. It is proven current by
// being alive. Any other transaction is ErrUnsupported: nothing in it would
// keep the lock until it ends.
func (l *Locks[Tx]) Check(ctx context.Context, tx Tx, g exclusive.Grant) (err error) {
	if err := validGrant("check", g); err != nil {
		return err
	}
	ctx, end := l.observed.Start(ctx, exclusive.Event{Op: exclusive.OpCheck, Key: g.Key, Grant: g})
	defer func() { end(g, err) }()
	r, err := l.server.DB.Within(tx)
	if err != nil {
		return &exclusive.Error{Op: "check", Key: g.Key, Kind: exclusive.ErrInvalid, Err: err}
	}
	h, err := l.current("check", g)
	if err != nil {
		return err
	}
	if !same(tx, h.tx) {
		return &exclusive.Error{Op: "check", Key: g.Key, Kind: exclusive.ErrUnsupported,
			Hint: "this transaction does not hold the lock, and nothing can keep the lock for it; write in Commit or Run"}
	}
	err = r.Query(ctx, probeQ, nil, func(db.Scan) error { return nil })
	if err != nil {
		return l.failed(ctx, "check", g, err)
	}
	return nil
}

// current returns the lock of g, if it is held.
func (l *Locks[Tx]) current(op string, g exclusive.Grant) (*held[Tx], error) {
	h, ok := l.find(g.ID)
	if !ok {
		return nil, &exclusive.Error{Op: op, Key: g.Key, Kind: exclusive.ErrLost, Hint: "the grant is over, or was given to another process: its transaction is not open here"}
	}
	switch s, cause := h.now(); s {
	case done:
		return nil, invalid(op, g.Key, "the grant is finished: its Commit has succeeded")
	case dead:
		return nil, &exclusive.Error{Op: op, Key: g.Key, Kind: exclusive.ErrLost, Hint: "the transaction that held the lock has ended", Err: cause}
	}
	return h, nil
}

// same reports whether two transactions are one.
func same[Tx any](a, b Tx) bool {
	va, vb := reflect.ValueOf(a), reflect.ValueOf(b)
	return va.Comparable() && vb.Comparable() && any(a) == any(b)
}

// Commit implements exclusive.Transactional: apply runs in the transaction that
// holds the lock, which is then committed. After an error of apply's the
// transaction is as it was before, and the lock still held, unless that error
// has ended the transaction.
func (l *Locks[Tx]) Commit(ctx context.Context, g exclusive.Grant, apply func(ctx context.Context, tx Tx) error) error {
	return l.commit(ctx, g, true, apply)
}

// commit is Commit. again is whether the lock must survive an error of apply's.
func (l *Locks[Tx]) commit(ctx context.Context, g exclusive.Grant, again bool, apply func(ctx context.Context, tx Tx) error) error {
	if err := validGrant("commit", g); err != nil {
		return err
	}
	if apply == nil {
		return invalid("commit", g.Key, "apply is nil")
	}
	var h *held[Tx]
	begin := func() (err error) {
		if h, err = l.current("commit", g); err != nil {
			return err
		}
		return h.beginCommit(ctx, g)
	}
	return l.observed.Commit(ctx, g, begin, func(err error) { h.endCommit(err) },
		func(ctx context.Context) error { return h.apply(ctx, g, again, apply) })
}

// beginCommit gets the use of the transaction. Every one that returns nil needs
// an endCommit.
func (h *held[Tx]) beginCommit(ctx context.Context, g exclusive.Grant) error {
	if err := h.commits.Begin(g); err != nil {
		return err
	}
	select {
	case <-h.use: // a probe has it for a moment
	case <-ctx.Done():
		err := db.CtxError(ctx, "commit", g.Key, nil)
		h.commits.End(err)
		return err
	}
	if _, err := h.locks.current("commit", g); err != nil {
		h.endCommit(err)
		return err
	}
	return nil
}

// endCommit gives the use back, and tells what came of the Commit.
func (h *held[Tx]) endCommit(err error) {
	if err == run.ErrUnwound { // nobody but a recover in work can see this
		_ = h.rollBack(h.lost("the transaction was rolled back", err))
	}
	h.use <- struct{}{}
	h.commits.End(err)
}

// apply runs apply and commits.
func (h *held[Tx]) apply(ctx context.Context, g exclusive.Grant, again bool, apply func(ctx context.Context, tx Tx) error) error {
	l := h.locks
	if ctx.Err() != nil {
		return db.CtxError(ctx, "commit", g.Key, nil)
	}
	proves := h.dialect.provesByRelease()
	if again || proves {
		if _, err := h.runner.Exec(ctx, savepoint); err != nil {
			return h.ended(l.failed(ctx, "commit", g, err))
		}
	}
	if err := apply(ctx, h.tx); err != nil {
		err = l.server.ApplyErr("commit", g.Key, err)
		if again {
			// Whatever broke apply, its context included, must not keep the
			// undoing from the server.
			uctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), db.RollbackWait)
			defer cancel()
			if _, uerr := h.runner.Exec(uctx, undo); uerr != nil {
				cause := err
				if ctx.Err() == nil && !errors.Is(err, exclusive.ErrConflict) {
					cause = h.lost("the transaction that held the lock has ended", errors.Join(err, uerr))
				}
				_ = h.rollBack(cause)
			}
		}
		return err
	}
	if proves {
		if _, err := h.runner.Exec(ctx, release); err != nil {
			err = l.failed(ctx, "commit", g, err)
			if errors.Is(err, exclusive.ErrSchema) {
				err = &exclusive.Error{Op: "commit", Key: g.Key, Kind: exclusive.ErrConflict,
					Hint: "the transaction was rolled back by the server, or committed by a statement of apply's", Err: err}
			}
			return h.ended(err)
		}
	}
	if err := h.commits.Send(g); err != nil {
		return h.ended(err)
	}
	err := h.commit(ctx)
	if errors.Is(err, db.ErrCommitUnknown) {
		switch h.fate(ctx) {
		case strategy.Committed:
			err = nil
		case strategy.NotCommitted:
			err = h.lost("asked again: the transaction was rolled back, nothing was written", nil)
		default:
			err = strategy.OutcomeUnknown(g, err)
		}
	}
	if err != nil {
		err = l.failed(ctx, "commit", g, err)
		h.end(dead, err)
		return err
	}
	h.end(done, nil)
	return nil
}

// ended rolls the transaction back because of err, which it returns.
func (h *held[Tx]) ended(err error) error {
	_ = h.rollBack(err)
	return err
}

// failed says what an error of the transaction that holds the lock means: if
// its connection has gone, so has the lock.
func (l *Locks[Tx]) failed(ctx context.Context, op string, g exclusive.Grant, err error) error {
	var ours *exclusive.Error
	if ctx.Err() == nil && !errors.As(err, &ours) {
		if errors.Is(err, db.ErrNotCommitted) || l.server.DB.Classify(err) == db.Disconnected {
			return &exclusive.Error{Op: op, Key: g.Key, Kind: exclusive.ErrLost, Hint: "the transaction that held the lock has ended; nothing was written", Err: err}
		}
	}
	return l.server.Fail(ctx, op, g.Key, err)
}

// validGrant checks a grant that came from a caller.
func validGrant(op string, g exclusive.Grant) error {
	if err := exclusive.ValidateKey(op, g.Key); err != nil {
		return err
	}
	if g.ID == "" {
		return invalid(op, g.Key, "the grant has no id")
	}
	return nil
}
