package fencing

import (
	"context"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/internal/strategy"
)

// Check implements exclusive.Transactional. The check is against the lease's
// own row, so a former holder is refused from the moment of the takeover. The
// row stays locked until tx ends: nobody can take the key over meanwhile, and
// renewal waits, so end tx before the lease does.
func (l *Leases[Tx]) Check(ctx context.Context, tx Tx, g exclusive.Grant) error {
	if err := strategy.ValidGrant("check", g); err != nil {
		return err
	}
	h, _ := l.leaser.Keeper.Find(g.ID)
	return l.server.Check(ctx, l.observed, g, h, tx, func(ctx context.Context, d dialect, r db.Runner) error {
		ok, err := d.prove(ctx, r, g)
		if err == nil && !ok {
			err = l.why(ctx, "check", d, r, g)
		}
		return err
	})
}

// why reads the row of a grant that is not current.
func (l *Leases[Tx]) why(ctx context.Context, op string, d dialect, r db.Runner, g exclusive.Grant) error {
	row, found, err := d.reread(ctx, r, g.Key)
	if err != nil {
		return l.server.Fail(ctx, op, g.Key, err)
	}
	return stale(op, g, row, found)
}

// Commit implements exclusive.Transactional. The first statement of its
// transaction gives the lease back, which is the check as well: it locks the
// row, and the key is free at the moment in which the write is durable.
func (l *Leases[Tx]) Commit(ctx context.Context, g exclusive.Grant, apply func(ctx context.Context, tx Tx) error) error {
	if err := strategy.ValidCommit(g, apply); err != nil {
		return err
	}
	h, _ := l.leaser.Keeper.Find(g.ID)
	return l.server.Commit(ctx, l.observed, strategy.Commit[Tx, dialect]{
		Grant: g, Held: h, Apply: apply,
		Finish: func(ctx context.Context, d dialect, r db.Runner) error {
			ok, err := d.finish(ctx, r, g, committed)
			if err == nil && !ok {
				err = l.why(ctx, "commit", d, r, g)
			}
			return err
		},
		Fate: func(ctx context.Context, d dialect) (strategy.Fate, error) {
			row, found, err := d.lease(ctx, l.server.DB, g.Key, true)
			switch {
			case !found || row.id != g.ID:
				return strategy.Unknown, err // the next holder has overwritten the trace
			case row.expires == committed.expires:
				return strategy.Committed, err
			}
			return strategy.NotCommitted, err
		},
	})
}
