package fencing

import (
	"context"
	"errors"
	"sync"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/internal/run"
	"github.com/exclusive-go/exclusive/internal/strategy"
)

// Guard is a destination's check of tokens from any issuer. For each key it
// keeps the mark: the highest token that the destination has accepted, with its
// grant's id. It accepts a greater token, or an equal one of the same grant.
//
// A bare Guard refuses a former holder from the first Check, Commit or Register
// of the newer one. Guarded registers each grant before its work begins, so
// that a former holder is refused from then on. It is safe for concurrent use.
type Guard[Tx any] struct {
	ops[Tx]
	observed run.Observed
}

// NewGuard makes a Guard on the database where results are stored.
func NewGuard[Tx any](d db.DB[Tx], cfg GuardConfig) (*Guard[Tx], error) {
	if err := strategy.ValidAdapter("fencing", d); err != nil {
		return nil, err
	}
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	return &Guard[Tx]{
		ops:      ops[Tx]{newServer(d, cfg.Schema, cfg.Prefix)},
		observed: run.Observed{Strategy: "fencing", Observer: cfg.Observer},
	}, nil
}

// Check accepts or refuses g in the caller's transaction, and keeps the mark
// locked until that ends: a newer holder's Check waits. After ErrFenced or
// ErrConflict roll tx back.
func (m *Guard[Tx]) Check(ctx context.Context, tx Tx, g exclusive.Grant) error {
	return m.check(ctx, tx, g, true)
}

// check is Check. works is whether the work of g may still run.
func (m *Guard[Tx]) check(ctx context.Context, tx Tx, g exclusive.Grant, works bool) error {
	if err := strategy.ValidGrant("check", g); err != nil {
		return err
	}
	return m.server.Check(ctx, m.observed, g, nil, tx, func(ctx context.Context, d dialect, r db.Runner) error {
		return m.accept(ctx, "check", d, r, g, inUse, works)
	})
}

// Register accepts or refuses g in a statement of its own. From then on every
// older grant is refused. Call it before work begins.
func (m *Guard[Tx]) Register(ctx context.Context, g exclusive.Grant) (err error) {
	if err := strategy.ValidGrant("register", g); err != nil {
		return err
	}
	ctx, end := m.observed.Start(ctx, exclusive.Event{Op: exclusive.OpCheck, Key: g.Key, Grant: g})
	defer func() { end(g, err) }()
	d, err := m.server.OwnSQL(ctx)
	if err == nil {
		err = db.Retry(ctx, m.server.DB, func(ctx context.Context) error {
			return m.accept(ctx, "register", d, m.server.DB, g, inUse, true)
		})
	}
	return m.server.Fail(ctx, "register", g.Key, err)
}

// Commit runs apply in a transaction in which g was accepted, and finishes g
// here: nil means that the write is durable and that g is refused from now on,
// as ErrInvalid until a newer grant is accepted. It does not touch the issuer's
// lease.
func (m *Guard[Tx]) Commit(ctx context.Context, g exclusive.Grant, apply func(ctx context.Context, tx Tx) error) error {
	return m.commit(ctx, g, nil, true, apply)
}

// commit is Commit. commits are those of a grant that works under Guarded; works is
// whether the work of g may still run.
func (m *Guard[Tx]) commit(ctx context.Context, g exclusive.Grant, commits *run.Commits, works bool, apply func(ctx context.Context, tx Tx) error) error {
	if err := strategy.ValidCommit(g, apply); err != nil {
		return err
	}
	return m.server.Commit(ctx, m.observed, strategy.Commit[Tx, dialect]{
		Grant: g, Commits: commits, Apply: apply,
		Finish: func(ctx context.Context, d dialect, r db.Runner) error {
			return m.accept(ctx, "commit", d, r, g, useEnded, works)
		},
		Fate: func(ctx context.Context, d dialect) (strategy.Fate, error) {
			mark, found, err := d.readMark(ctx, m.server.DB, g.Key, true)
			switch {
			case found && mark.id == g.ID && mark.finished == useEnded:
				return strategy.Committed, err
			case found && (mark.token < g.Token || mark.id == g.ID):
				return strategy.NotCommitted, err
			}
			// A newer holder has overwritten the trace, or the row is new and its
			// transaction is still open, which no read can see.
			return strategy.Unknown, err
		},
	})
}

// stop has g refused from now on, whose Do ends without a Commit. If it does not
// get through g is refused from the registration of the next grant, as one that
// was lost.
func (m *Guard[Tx]) stop(ctx context.Context, g exclusive.Grant) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), run.EndWait)
	defer cancel()
	_ = db.Retry(ctx, m.server.DB, func(ctx context.Context) error {
		d, err := m.server.OwnSQL(ctx)
		if err == nil {
			_, err = d.mark(ctx, m.server.DB, g, useStopped)
		}
		return err
	})
}

// accept moves the mark to g, or says why not.
func (m *Guard[Tx]) accept(ctx context.Context, op string, d dialect, r db.Runner, g exclusive.Grant, how use, works bool) error {
	ok, err := d.mark(ctx, r, g, how)
	if err != nil {
		return m.server.Fail(ctx, op, g.Key, err)
	}
	if ok {
		return nil
	}
	mark, found, err := d.readMark(ctx, r, g.Key, false)
	if err != nil {
		return m.server.Fail(ctx, op, g.Key, err)
	}
	e := &exclusive.Error{Op: op, Key: g.Key, Kind: exclusive.ErrFenced}
	switch {
	case !found:
		e.Hint = "the mark was removed while it was looked at"
	case mark.id == g.ID && mark.finished == useEnded:
		e.Kind, e.Hint = exclusive.ErrLost, "the grant is over: its Commit has succeeded"
		if works {
			e.Kind = exclusive.ErrInvalid
		}
	case mark.id == g.ID && mark.finished == useStopped:
		e.Kind, e.Hint = exclusive.ErrLost, "the grant is over: its Do has returned"
	default:
		e.Holder = &exclusive.Holder{ID: mark.id, Token: mark.token}
		if mark.token >= g.Token {
			e.Hint = "if this holder is the newest, its issuer's tokens went back: raise them (Advance)"
		}
	}
	return e
}

// advancer is an issuer whose tokens can be raised.
type advancer interface {
	Advance(ctx context.Context, key string, atLeast int64) error
}

// Guarded makes a Transactional of an issuer and a guard that need not be on
// the same database: a lease in Redis with a destination in PostgreSQL, or in
// one database with the results in another.
//
// Each grant is registered at the guard before work begins. If the guard has
// seen a greater token although the grant is new, the issuer has lost its
// count (it was restored from an older copy, failed over or was flushed): its
// tokens are raised, if it has an Advance method, and a new grant is drawn. For
// the issuer a grant that was refused there has failed, so it counts as an attempt:
// Grant.Attempt can be above 1 although no work has run.
//
// A Commit ends the grant at the destination; the lease is given back after
// it, in a step of its own. If that fails the key stays taken until the lease
// runs out, and Do still returns nil. A Do without a Commit ends the grant at
// the destination before it gives the lease back, which is one statement more.
//
// It has nothing of its own to close: close the issuer.
func Guarded[Tx any](issuer exclusive.Leaser, guard *Guard[Tx]) exclusive.Transactional[Tx] {
	return &guarded[Tx]{issuer: issuer, guard: guard}
}

type guarded[Tx any] struct {
	issuer exclusive.Leaser
	guard  *Guard[Tx]

	mu    sync.Mutex
	works map[string]*run.Commits // by the id of each grant that works here
}

// Promises adds what the guard gives to what the issuer promises.
func (c *guarded[Tx]) Promises() exclusive.Promises {
	p := c.issuer.Promises()
	p.RefusesStale, p.InTx = true, true
	return p
}

// Check implements exclusive.Transactional.
func (c *guarded[Tx]) Check(ctx context.Context, tx Tx, g exclusive.Grant) error {
	return c.guard.check(ctx, tx, g, c.find(g) != nil)
}

// Commit implements exclusive.Transactional.
func (c *guarded[Tx]) Commit(ctx context.Context, g exclusive.Grant, apply func(ctx context.Context, tx Tx) error) error {
	commits := c.find(g)
	return c.guard.commit(ctx, g, commits, commits != nil, apply)
}

// maxRaises bounds how often Do raises the issuer's tokens: once is enough
// unless the destination moves on meanwhile.
const maxRaises = 3

// Do implements exclusive.Exclusive.
func (c *guarded[Tx]) Do(ctx context.Context, key string, work exclusive.Work) error {
	if work == nil {
		return c.issuer.Do(ctx, key, nil) // it says what is wrong
	}
	for raises := 0; ; raises++ {
		commits := new(run.Commits)
		var ahead *exclusive.Holder // whom the guard has seen, if that is why it refused
		var committed, blocked bool
		var workErr error
		err := c.issuer.Do(ctx, key, func(ctx context.Context, g exclusive.Grant) (err error) {
			ctx, cancel := context.WithCancelCause(ctx)
			defer cancel(nil)
			if err := c.guard.Register(ctx, g); err != nil {
				blocked = errors.Is(context.Cause(ctx), exclusive.ErrLost)
				var e *exclusive.Error
				if errors.Is(err, exclusive.ErrFenced) && errors.As(err, &e) {
					ahead = e.Holder
				}
				return err
			}
			c.begin(g, commits)
			defer func() {
				left := commits.Await(g)
				c.end(g)
				if committed = commits.Committed(); committed {
					return
				}
				err = run.Join(err, left)
				if commits.Running() { // it has the mark locked, or will
					cancel(left)
					commits.After(func() { c.guard.stop(ctx, g) })
					return
				}
				c.guard.stop(ctx, g)
			}()
			workErr = work(ctx, g)
			return workErr
		})
		if committed {
			if workErr == nil {
				return nil
			}
			return &exclusive.Error{Op: "do", Key: key, Kind: exclusive.ErrFinished, Err: workErr}
		}
		if blocked {
			// Not ErrHeld, which callers read as somebody else being at work.
			return &exclusive.Error{Op: "do", Key: key, Kind: exclusive.ErrUnavailable,
				Hint: "the destination did not accept the grant before the lease ended: it is slow, or a former holder's transaction has the key's mark; use a longer TTL"}
		}
		issuer, can := c.issuer.(advancer)
		if ahead == nil || !can || raises == maxRaises {
			return err
		}
		// Either the issuer went back, or this grant was overtaken before it
		// began. Raising does no harm then, and the next try tells.
		if aerr := issuer.Advance(ctx, key, ahead.Token); aerr != nil {
			return errors.Join(err, aerr)
		}
	}
}

func (c *guarded[Tx]) begin(g exclusive.Grant, commits *run.Commits) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.works == nil {
		c.works = make(map[string]*run.Commits)
	}
	c.works[g.ID] = commits
}

// find is nil if the work of g does not run here.
func (c *guarded[Tx]) find(g exclusive.Grant) *run.Commits {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.works[g.ID]
}

func (c *guarded[Tx]) end(g exclusive.Grant) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.works, g.ID)
}
