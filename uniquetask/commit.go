package uniquetask

import (
	"context"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/internal/strategy"
)

// Check implements exclusive.Transactional. The run's row stays locked until tx
// ends: nobody can take the run over meanwhile, and the heartbeat waits, so end
// tx before Config.TTL has passed.
func (t *Tasks[Tx]) Check(ctx context.Context, tx Tx, g exclusive.Grant) error {
	if err := strategy.ValidGrant("check", g); err != nil {
		return err
	}
	h, _ := t.leaser.Keeper.Find(g.ID)
	return t.server.Check(ctx, t.observed, g, h, tx, func(ctx context.Context, d dialect, r db.Runner) error {
		ok, err := d.prove(ctx, r, g)
		if err == nil && !ok {
			err = t.why(ctx, "check", d, r, g)
		}
		return err
	})
}

// why reads the row of a grant that is not current.
func (t *Tasks[Tx]) why(ctx context.Context, op string, d dialect, r db.Runner, g exclusive.Grant) error {
	// A locking read: a plain one could show an old snapshot.
	row, found, err := d.read(ctx, r, g.Key, true)
	if err != nil {
		return err
	}
	return stale(op, g, row, found)
}

// Commit implements exclusive.Transactional. The first statement of its
// transaction marks the run as done, which is the check as well: it locks the
// row, and the run is done at the moment in which the write is durable.
func (t *Tasks[Tx]) Commit(ctx context.Context, g exclusive.Grant, apply func(ctx context.Context, tx Tx) error) error {
	if err := strategy.ValidCommit(g, apply); err != nil {
		return err
	}
	h, _ := t.leaser.Keeper.Find(g.ID)
	result := t.result(g)
	return t.server.Commit(ctx, t.observed, strategy.Commit[Tx, dialect]{
		Grant: g, Held: h, Apply: apply,
		Finish: func(ctx context.Context, d dialect, r db.Runner) error {
			ok, err := d.finish(ctx, r, g, result)
			if err == nil && !ok {
				err = t.why(ctx, "commit", d, r, g)
			}
			return err
		},
		Fate: func(ctx context.Context, d dialect) (strategy.Fate, error) {
			r, found, err := d.read(ctx, t.server.DB, g.Key, true)
			switch {
			case found && r.id == g.ID && r.state == string(Done):
				return strategy.Committed, err
			case found && r.id == g.ID,
				// Taken over, and not forgotten in between, for then the attempts
				// would have begun anew: a run that is done is not taken over.
				found && r.token > g.Token && r.token-r.attempt == g.Token-int64(g.Attempt):
				return strategy.NotCommitted, err
			}
			return strategy.Unknown, err
		},
	})
}
