package strategy

import (
	"context"
	"errors"
	"time"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/internal/lease"
	"github.com/exclusive-go/exclusive/internal/run"
)

// Check is what every Check does around prove, which locks the row of g in the
// transaction of r and says why g is not current if it is not. held is as in
// Commit.
func (s *Server[Tx, S]) Check(ctx context.Context, o run.Observed, g exclusive.Grant, held *lease.Held, tx Tx, prove func(ctx context.Context, sql S, r db.Runner) error) (err error) {
	ctx, end := o.Start(ctx, exclusive.Event{Op: exclusive.OpCheck, Key: g.Key, Grant: g})
	defer func() { end(g, err) }()
	sql, r, err := s.Within(ctx, "check", g.Key, tx)
	if err != nil {
		return err
	}
	if held != nil {
		if err := held.Usable("check"); err != nil {
			return err
		}
	}
	return s.Fail(ctx, "check", g.Key, prove(ctx, sql, r))
}

// Commit is how a grant is committed that a row proves.
type Commit[Tx, S any] struct {
	Grant exclusive.Grant
	// Held is the lease of the grant in this process, nil if it has none.
	Held *lease.Held
	// Commits are those of a grant that works here and whose lease is not this
	// strategy's; nil otherwise.
	Commits *run.Commits
	// Finish ends the grant in the row, which it locks, and says why g is not
	// current if it is not: ErrFenced if somebody else has had the key since,
	// ErrLost otherwise. It is the first statement of the transaction.
	Finish func(ctx context.Context, sql S, r db.Runner) error
	// Apply is the caller's. It comes after Finish.
	Apply func(ctx context.Context, tx Tx) error
	// Fate looks for what became of the transaction when its COMMIT got no
	// answer. It reads the row with a lock, and so waits for the transaction,
	// should the server still have it open.
	Fate func(ctx context.Context, sql S) (Fate, error)
}

// Fate is what became of a transaction.
type Fate int

// The fates.
const (
	Unknown Fate = iota // nothing tells, or somebody has overwritten the trace
	Committed
	NotCommitted
)

// Commit does what every Commit of a strategy does.
func (s *Server[Tx, S]) Commit(ctx context.Context, o run.Observed, c Commit[Tx, S]) error {
	begin, locked, end := func() error { return nil }, func() {}, func(error) {}
	switch {
	case c.Held != nil:
		begin, locked, end = c.Held.Begin, c.Held.Lock, c.Held.End
		c.Apply = run.Sending(&c.Held.Commits, c.Grant, c.Apply)
	case c.Commits != nil:
		begin, end = func() error { return c.Commits.Begin(c.Grant) }, c.Commits.End
		c.Apply = run.Sending(c.Commits, c.Grant, c.Apply)
	}
	return o.Commit(ctx, c.Grant, begin, end, func(ctx context.Context) error { return s.commit(ctx, c, locked) })
}

// commit commits. locked is called when the row is locked.
func (s *Server[Tx, S]) commit(ctx context.Context, c Commit[Tx, S], locked func()) error {
	g := c.Grant
	sql, err := s.OwnSQL(ctx)
	if err != nil {
		return s.Fail(ctx, "commit", g.Key, err)
	}
	err = s.transact(ctx, g.Key, c.Apply, func(ctx context.Context, r db.Runner) error {
		if err := c.Finish(ctx, sql, r); err != nil {
			return err
		}
		locked()
		return nil
	})
	if errors.Is(err, db.ErrCommitUnknown) {
		expires := g.Expires
		if c.Held != nil {
			expires = c.Held.Expires() // as it was renewed
		}
		err = s.lookUp(ctx, g, expires, err, func(ctx context.Context) (Fate, error) { return c.Fate(ctx, sql) })
	}
	return err
}

// transact runs apply in a transaction that begins with prove. A conflict before
// apply has run is retried; apply runs at most once. An error of apply's own
// comes back as it is, except that one which has doomed the transaction matches
// ErrConflict. An error that matches db.ErrCommitUnknown is left to the caller.
func (s *Server[Tx, S]) transact(ctx context.Context, key string, apply func(context.Context, Tx) error, prove func(context.Context, db.Runner) error) error {
	var applied bool
	var applyErr error
	err := db.Retry(ctx, untilApplied{s.DB, &applied}, func(ctx context.Context) error {
		return db.InTxAfter(ctx, s.DB, prove, func(ctx context.Context, tx Tx) error {
			applied = true
			applyErr = apply(ctx, tx)
			return applyErr
		})
	})
	switch {
	case applyErr != nil:
		return s.ApplyErr("commit", key, db.Ended(ctx, applyErr))
	case err == nil, errors.Is(err, db.ErrCommitUnknown):
		return err
	}
	return s.Fail(ctx, "commit", key, err)
}

// AskFate asks what became of a transaction, whether ctx has ended or not. A server
// that fails over, which may be why the answer was lost, is away for longer than
// run.EndWait. So it asks on until the end of the grant, when somebody else can leave
// his trace in place of ours, or that of ctx's time, whichever is later; a cancelled
// ctx ends it too, but for the first run.EndWait.
func (s *Server[Tx, S]) AskFate(ctx context.Context, expires time.Time, ask func(ctx context.Context) (Fate, error)) (fate Fate, err error) {
	if deadline, ok := ctx.Deadline(); ok && deadline.After(expires) {
		expires = deadline
	}
	err = run.Insist(ctx, expires, func(ctx context.Context) error {
		return db.Retry(ctx, s.DB, func(ctx context.Context) (err error) {
			fate, err = ask(ctx)
			return err
		})
	})
	return fate, err
}

// lookUp says what the fate of a Commit's transaction means.
func (s *Server[Tx, S]) lookUp(ctx context.Context, g exclusive.Grant, expires time.Time, unknown error, ask func(ctx context.Context) (Fate, error)) error {
	fate, err := s.AskFate(ctx, expires, ask)
	switch {
	case err != nil:
		return OutcomeUnknown(g, errors.Join(unknown, err))
	case fate == Committed:
		return nil
	case fate == NotCommitted:
		// The driver's error is told but does not match: its "unknown" is over.
		return &exclusive.Error{Op: "commit", Key: g.Key, Kind: exclusive.ErrConflict,
			Hint: "asked again: the server never got the COMMIT (" + unknown.Error() + ")"}
	}
	return OutcomeUnknown(g, unknown)
}

// ApplyErr keeps an error of the caller's own function, except that one which
// has doomed the transaction matches ErrConflict.
func (s *Server[Tx, S]) ApplyErr(op, key string, err error) error {
	var ours *exclusive.Error
	if errors.As(err, &ours) {
		return err
	}
	switch s.DB.Classify(err) {
	case db.Conflict, db.Locked:
		return &exclusive.Error{Op: op, Key: key, Kind: exclusive.ErrConflict, Err: err}
	}
	return err
}

// untilApplied makes every error final once apply has run.
type untilApplied struct {
	db      db.Classifier
	applied *bool
}

func (u untilApplied) Classify(err error) db.Class {
	if *u.applied {
		return db.Other
	}
	return u.db.Classify(err)
}

// OutcomeUnknown says that nobody can tell whether a commit took place.
func OutcomeUnknown(g exclusive.Grant, err error) error {
	return &exclusive.Error{Op: "commit", Key: g.Key, Kind: exclusive.ErrOutcomeUnknown, Err: err}
}
