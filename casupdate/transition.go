package casupdate

import (
	"context"
	"crypto/rand"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/internal/db"
)

// Transition moves a row from one state to another in a statement of its own,
// if Config.Transitions allows that. sets are columns to set as well. The two
// states may be the same: then it sets columns while the row is in that state.
// It waits for a transaction that has locked the row. On MySQL and MariaDB, without a
// GrantColumn or a VersionColumn, such a one is a transaction: nothing else tells
// whether a row was there that stays as it is.
//
// If the row is not in state from nothing is changed: ErrNoRow, ErrDone (it is
// in state to already), ErrHeld (it is claimed), or ErrConflict with a
// *StateError.
//
// A transition that leads away from Claimed takes the row from its holder,
// whose Commit and Check are refused from then on if there is a GrantColumn.
//
// If its answer is lost a GrantColumn tells what happened, since each
// transition leaves its own id there, and the call is repeated where needed.
// Without one it is ErrOutcomeUnknown. After an error of ctx it may have
// happened or may happen yet.
func (t *Table[Tx]) Transition(ctx context.Context, key string, from, to any, sets ...Set) error {
	tr, err := t.transition(key, from, to, sets)
	if err != nil {
		return err
	}
	d, err := t.server.OwnSQL(ctx)
	if err != nil {
		return t.server.Fail(ctx, "transition", key, err)
	}
	var ok bool
	err = t.retry(ctx, func(ctx context.Context) error {
		move := func(ctx context.Context, _ Tx, r db.Runner) (err error) {
			ok, err = d.transition(ctx, r, tr.call, tr.Transition, tr.set)
			return err
		}
		if d.stays(tr.Transition) {
			return db.InTx(ctx, t.server.DB, move)
		}
		return move(ctx, *new(Tx), t.server.DB)
	})
	switch {
	case err != nil && ctx.Err() == nil && db.MayHaveRun(t.server.DB, err):
		return &exclusive.Error{Op: "transition", Key: key, Kind: exclusive.ErrOutcomeUnknown, Hint: "State tells", Err: err}
	case err != nil:
		return t.server.Fail(ctx, "transition", key, err)
	case ok:
		t.leaser.Queue.Wake(key)
		return nil
	}
	r, found, err := d.read(ctx, t.server.DB, tr.call, false)
	switch {
	case err != nil:
		return t.server.Fail(ctx, "transition", key, err)
	case found && t.proves() && r.grant == tr.call.grant:
		t.leaser.Queue.Wake(key)
		return nil // this ran before and its answer was lost
	}
	return t.notThere(key, tr.Transition, r, found)
}

// TransitionTx is Transition in the caller's transaction. It is not repeated:
// after ErrConflict without a *StateError, or ErrUnavailable, roll tx back.
func (t *Table[Tx]) TransitionTx(ctx context.Context, tx Tx, key string, from, to any, sets ...Set) error {
	tr, err := t.transition(key, from, to, sets)
	if err != nil {
		return err
	}
	d, r, err := t.server.Within(ctx, "transition", key, tx)
	if err != nil {
		return err
	}
	ok, err := d.transition(ctx, r, tr.call, tr.Transition, tr.set)
	if err != nil {
		return t.server.Fail(ctx, "transition", key, err)
	}
	if ok {
		return nil
	}
	// A locking read: a plain one could show an old snapshot.
	out, found, err := d.read(ctx, r, tr.call, true)
	if err != nil {
		return t.server.Fail(ctx, "transition", key, err)
	}
	return t.notThere(key, tr.Transition, out, found)
}

// transitionCall is a Transition with what it is run with.
type transitionCall struct {
	Transition
	call call
	set  []assignment
}

// transition checks what a Transition is called with.
func (t *Table[Tx]) transition(key string, from, to any, sets []Set) (tr transitionCall, err error) {
	if tr.call, err = t.call("transition", key, rand.Text()); err != nil {
		return tr, err
	}
	if tr.Transition, err = t.cfg.declared(from, to); err == nil {
		tr.set, err = joined(sets, t.taken)
	}
	if err != nil {
		return tr, &exclusive.Error{Op: "transition", Key: key, Kind: exclusive.ErrInvalid, Err: err}
	}
	return tr, nil
}

// joined makes one list of several sets, of which the last counts.
func joined(sets []Set, taken []string) ([]assignment, error) {
	all := make(Set)
	for _, s := range sets {
		for column, value := range s {
			all[column] = value
		}
	}
	return all.assignments("Set", taken)
}

// notThere says why a row could not make a transition.
func (t *Table[Tx]) notThere(key string, tr Transition, r row, found bool) error {
	e := &exclusive.Error{Op: "transition", Key: key, Err: &StateError{r.state}}
	switch {
	case !found:
		e.Kind, e.Err = exclusive.ErrNoRow, nil
	case r.state == stateText(tr.From):
		e.Kind, e.Err, e.Hint = exclusive.ErrConflict, nil, "the row was changed while it was looked at"
	case r.state == stateText(tr.To):
		e.Kind = exclusive.ErrDone
	case r.is == isClaimed:
		e.Kind, e.Holder = exclusive.ErrHeld, r.who()
	default:
		e.Kind = exclusive.ErrConflict
	}
	return e
}

// State reads the state of a row as text. It is one plain read: where the pool
// goes to a replica it is as old as that. Whether a row can be claimed or moved is
// for Do and Transition to say. ErrNoRow if there is no such row.
func (t *Table[Tx]) State(ctx context.Context, key string) (string, error) {
	c, err := t.call("state", key, "")
	if err != nil {
		return "", err
	}
	d, err := t.server.OwnSQL(ctx)
	if err != nil {
		return "", t.server.Fail(ctx, "state", key, err)
	}
	var r row
	var found bool
	err = db.Retry(ctx, t.server.DB, func(ctx context.Context) error {
		var err error
		r, found, err = d.read(ctx, t.server.DB, c, false)
		return err
	})
	switch {
	case err != nil:
		return "", t.server.Fail(ctx, "state", key, err)
	case !found:
		return "", &exclusive.Error{Op: "state", Key: key, Kind: exclusive.ErrNoRow}
	}
	return r.state, nil
}
