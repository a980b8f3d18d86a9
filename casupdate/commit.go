package casupdate

import (
	"context"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/internal/lease"
	"github.com/exclusive-go/exclusive/internal/strategy"
)

// Check implements exclusive.Transactional. The row stays locked until tx ends:
// nobody can take it over meanwhile, and renewal waits.
//
// Without a GrantColumn it proves less: that this process has the grant and
// that the row is claimed, not by whom.
func (t *Table[Tx]) Check(ctx context.Context, tx Tx, g exclusive.Grant) error {
	c, h, err := t.holding("check", g)
	if err != nil {
		return err
	}
	return t.server.Check(ctx, t.observed, g, h, tx, func(ctx context.Context, d *dialect, r db.Runner) error {
		ok, err := d.prove(ctx, r, c)
		if err == nil && !ok {
			err = t.why(ctx, "check", d, r, c, g)
		}
		return err
	})
}

// holding checks a grant that came from a caller, and finds it if this process
// has it. Without a GrantColumn the row cannot tell, so it must.
func (t *Table[Tx]) holding(op string, g exclusive.Grant) (call, *lease.Held, error) {
	c, err := t.call(op, g.Key, g.ID)
	if err != nil {
		return c, nil, err
	}
	e := &exclusive.Error{Op: op, Key: g.Key, Kind: exclusive.ErrInvalid}
	if g.ID == "" || len(g.ID) > 64 {
		e.Hint = "the grant's id must have 1 to 64 bytes"
		return c, nil, e
	}
	if t.proves() && g.Token <= 0 {
		e.Hint = "the grant has no token, so it is not from this table"
		return c, nil, e
	}
	c.token = g.Token
	if !t.cfg.claims() {
		e.Kind, e.Hint = exclusive.ErrUnsupported, "Config has no From, Claimed and Done"
		return c, nil, e
	}
	h, ours := t.leaser.Keeper.Find(g.ID)
	if ours && h.Grant().Key != g.Key {
		e.Hint = "the grant is for another key"
		return c, nil, e
	}
	if !ours && !t.proves() {
		e.Kind, e.Hint = exclusive.ErrLost, "the grant is over, or not one of this Table's (without a GrantColumn only the Table that gave it knows it)"
		return c, nil, e
	}
	return c, h, nil
}

// why reads the row of a grant that is not current.
func (t *Table[Tx]) why(ctx context.Context, op string, d *dialect, r db.Runner, c call, g exclusive.Grant) error {
	// A locking read: a plain one could show an old snapshot.
	out, found, err := d.read(ctx, r, c, true)
	if err != nil {
		return t.server.Fail(ctx, op, g.Key, err)
	}
	return t.stale(op, g, out, found)
}

// Commit implements exclusive.Transactional. The first statement of its
// transaction moves the row to Done, which is the check as well: it locks the
// row, and "done" becomes visible together with what apply wrote.
func (t *Table[Tx]) Commit(ctx context.Context, g exclusive.Grant, apply func(ctx context.Context, tx Tx) error) error {
	c, h, err := t.holding("commit", g)
	if err != nil {
		return err
	}
	if apply == nil {
		return &exclusive.Error{Op: "commit", Key: g.Key, Kind: exclusive.ErrInvalid, Hint: "apply is nil"}
	}
	return t.server.Commit(ctx, t.observed, strategy.Commit[Tx, *dialect]{
		Grant: g, Held: h, Apply: apply,
		Finish: func(ctx context.Context, d *dialect, r db.Runner) error {
			ok, err := d.change(ctx, r, &d.finishS, c)
			if err == nil && !ok {
				err = t.why(ctx, "commit", d, r, c, g)
			}
			return err
		},
		Fate: func(ctx context.Context, d *dialect) (strategy.Fate, error) {
			r, found, err := d.read(ctx, t.server.DB, c, true)
			// Without a GrantColumn nobody but the holder is expected to finish a
			// row.
			ours := found && (!t.proves() || r.grant == g.ID)
			switch {
			case ours && r.is == isDone:
				return strategy.Committed, err
			case ours && r.is == isClaimed:
				return strategy.NotCommitted, err
			}
			return strategy.Unknown, err // somebody has changed the row since
		},
	})
}
