// Package run is the one skeleton of Do: what happens around work is the same
// on every strategy.
package run

import (
	"context"
	"errors"
	"time"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/internal/db"
)

// EndWait bounds how long Do waits for a grant to be given back; see Claim.Until
// for what takes longer. It runs on a context that the caller's cancellation does not
// reach: otherwise a cancelled request would leave its key held until the lease ends.
const EndWait = 5 * time.Second

// Claim is a grant as a strategy hands it to the skeleton.
type Claim struct {
	Grant   exclusive.Grant
	Context context.Context // work's; its cause matches ErrLost when the grant is lost

	// Commits are those of the grant.
	Commits *Commits
	// Finish ends the grant after work returned nil without Commit.
	Finish func(ctx context.Context) error
	// Until is for a Finish that records that work is done, and may be repeated:
	// when somebody else can do the work again. It is tried until then, if that is
	// longer than EndWait. It may be nil.
	Until func() time.Time
	// Abandon ends it after anything else. cause is nil after a panic or
	// runtime.Goexit.
	Abandon func(ctx context.Context, cause error) error
	// Ended is called last, whatever happened: the grant is over for good. It
	// may be nil.
	Ended func()
}

// Do validates, claims, runs work and ends the grant, in this order; see
// exclusive.Exclusive for what it promises.
func Do(ctx context.Context, o Observed, key string, work exclusive.Work, claim func(context.Context) (*Claim, error)) (err error) {
	if err := exclusive.ValidateKey("do", key); err != nil {
		return err
	}
	if work == nil {
		return &exclusive.Error{Op: "do", Key: key, Kind: exclusive.ErrInvalid, Hint: "work is nil"}
	}
	if ctx.Err() != nil {
		return db.CtxError(ctx, "do", key, nil)
	}
	ctx, end := o.Start(ctx, exclusive.Event{Op: exclusive.OpDo, Key: key})
	// What was derived for work ends with it, at the latest.
	cctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	c, err := claim(cctx)
	if err != nil {
		end(exclusive.Grant{}, err)
		return err
	}
	returned := false
	defer func() {
		if !returned {
			// Work panicked or called runtime.Goexit. Not recovering keeps the
			// panic's value and stack; nobody is left to tell but the observer.
			err = Join(errUnwound, await(c, cancel), abandon(ctx, c, nil))
		}
		end(c.Grant, err)
		if c.Ended != nil {
			c.Ended()
		}
	}()
	workErr := work(c.Context, c.Grant)
	returned = true
	return settle(ctx, key, c, workErr, await(c, cancel))
}

var errUnwound = errors.New("work panicked or called runtime.Goexit")

// await waits for the Commit that work has left behind. If it still runs then,
// work's context ends: nobody waits any longer.
func await(c *Claim, cancel context.CancelCauseFunc) error {
	left := c.Commits.Await(c.Grant)
	if c.Commits.Running() {
		cancel(left)
	}
	return left
}

// settle ends the grant after work has returned, and says what came of it. left is
// of the Commit that work has left behind.
func settle(ctx context.Context, key string, c *Claim, workErr, left error) error {
	if c.Commits.Committed() {
		if workErr != nil {
			return &exclusive.Error{Op: "do", Key: key, Kind: exclusive.ErrFinished, Err: workErr}
		}
		return nil
	}
	if left != nil { // as if work had waited for it
		workErr = Join(workErr, left)
	}
	if workErr == nil {
		if lost := lostCause(c.Context); lost != nil {
			_ = abandon(ctx, c, lost) // it is lost already
			return lost
		}
		if ctx.Err() != nil {
			// Work may have been cut short without noticing: not finished.
			workErr = db.CtxError(ctx, "do", key, nil)
			return Join(workErr, abandon(ctx, c, workErr))
		}
		return finish(ctx, c)
	}
	// Drivers tell a cancellation in many ways, and work hands them on.
	workErr = db.Ended(ctx, workErr)
	lost := lostCause(c.Context)
	if lost != nil && errors.Is(workErr, exclusive.ErrLost) {
		lost = nil // said already
	}
	return Join(workErr, lost, abandon(ctx, c, workErr))
}

// finish ends the grant after work has returned nil.
func finish(ctx context.Context, c *Claim) error {
	var until time.Time
	if c.Until != nil {
		until = c.Until()
	}
	return Insist(ctx, until, c.Finish)
}

// ErrNotBegun is for work of ours that could not begin: with an error that matches it
// the grant was no attempt.
var ErrNotBegun = errors.New("work has not begun")

// Insist tries for EndWait, which the end of ctx does not reach, and then again until
// a moment or the end of ctx, which the error matches then. Each try has a context of
// its own: a connection may hang whose server has gone away.
func Insist(ctx context.Context, until time.Time, f func(ctx context.Context) error) error {
	try := func() (err error, unanswered bool) {
		fctx, cancel := Detach(ctx)
		defer cancel()
		err = f(fctx)
		return err, err != nil && fctx.Err() != nil
	}
	for {
		err, unanswered := try()
		switch {
		case !unanswered || !time.Now().Before(until):
			return err
		case ctx.Err() != nil: // which is why it ends
			return db.Ended(ctx, err)
		}
	}
}

func abandon(ctx context.Context, c *Claim, cause error) error {
	if c.Commits.Running() {
		// It has the row, or waits for a connection as this would. Whoever left it
		// behind was told.
		c.Commits.After(func() { _ = abandon(ctx, c, cause) })
		return nil
	}
	actx, cancel := Detach(ctx)
	defer cancel()
	err := c.Abandon(actx, cause)
	if errors.Is(err, exclusive.ErrLost) && cause != nil && errors.Is(context.Cause(c.Context), exclusive.ErrLost) {
		return nil // lostCause has said it
	}
	var e *exclusive.Error
	if errors.As(err, &e) && errors.Is(e.Kind, exclusive.ErrUnavailable) {
		// That sentinel says that work did not run, and it has.
		plain := *e
		plain.Kind, plain.Hint = nil, "the key was not given back: "+e.Hint
		return &plain
	}
	return err
}

// lostCause returns why the grant was lost, or nil.
func lostCause(ctx context.Context) error {
	if cause := context.Cause(ctx); errors.Is(cause, exclusive.ErrLost) {
		return cause
	}
	return nil
}

// Join is errors.Join that leaves a single error as it is.
func Join(errs ...error) error {
	var first error
	n := 0
	for _, err := range errs {
		if err != nil {
			if n++; n == 1 {
				first = err
			}
		}
	}
	if n <= 1 {
		return first
	}
	return errors.Join(errs...)
}

// Cause is the driver's error in err, for those who say themselves what it
// means: ErrUnavailable would say that nothing ran.
func Cause(err error) error {
	var e *exclusive.Error
	if errors.As(err, &e) && e.Err != nil {
		return e.Err
	}
	return err
}

// Detach makes the context of what must come to its end although ctx has ended.
func Detach(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(db.Patient(context.WithoutCancel(ctx)), EndWait)
}

// Observed names a strategy to its observer, which may be nil.
type Observed struct {
	Strategy string
	Observer exclusive.Observer
}

// Start reports the beginning of an operation. The function that it returns
// reports the end.
func (o Observed) Start(ctx context.Context, e exclusive.Event) (context.Context, func(exclusive.Grant, error)) {
	if o.Observer == nil {
		return ctx, func(exclusive.Grant, error) {}
	}
	e.Strategy = o.Strategy
	started := time.Now()
	octx := o.Observer.Start(ctx, e)
	return octx, func(g exclusive.Grant, err error) {
		if g.ID != "" {
			e.Grant = g
		}
		e.Duration, e.Err = time.Since(started), err
		o.Observer.End(octx, e)
	}
}

// Lose reports the end of a grant before its release.
func (o Observed) Lose(ctx context.Context, g exclusive.Grant, err error) {
	if o.Observer != nil {
		o.Observer.End(ctx, exclusive.Event{Op: exclusive.OpLose, Strategy: o.Strategy, Key: g.Key, Grant: g, Err: err})
	}
}
