package db

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// The limits of Retry.
const (
	conflictTries   = 20
	disconnectTries = 3
	lockedWait      = 5 * time.Second
	backoffMin      = time.Millisecond
	backoffMax      = 50 * time.Millisecond
)

// Retry runs fn again where that may help: after a conflict, while a lock is
// in the way, and after a broken connection. fn must be harmless to repeat
// after it had an effect, and must not be part of a caller's transaction: of a
// transaction that failed every statement has to run again, not the last one.
// A COMMIT of unknown outcome is never retried: look what became of it.
//
// With a Patient context broken connections and a server that is away, or
// read-only, are retried until ctx ends.
//
// Until a statement has failed of which the effect is not known, fn's context asks
// for statements that are Once: fn must know that it is repeated.
//
// Retry ends as soon as ctx does. Its error then matches the context's and the
// last one of the driver.
func Retry(ctx context.Context, c Classifier, fn func(ctx context.Context) error) error {
	var conflicts, disconnects int
	var lockedSince time.Time
	spread := backoffMin
	fnCtx := context.WithValue(ctx, onceKey{}, true)
	for {
		err := fn(fnCtx)
		if err == nil || Over(ctx) != nil || errors.Is(err, ErrCommitUnknown) {
			return Ended(ctx, err)
		}
		again, class := false, c.Classify(err)
		if class.MayHaveRun() {
			fnCtx = ctx
		}
		switch class {
		case Conflict:
			conflicts++
			again = conflicts < conflictTries
		case Locked:
			if lockedSince.IsZero() {
				lockedSince = time.Now()
			}
			again = time.Since(lockedSince) < lockedWait
		case Disconnected:
			disconnects++
			again = disconnects < disconnectTries || patient(ctx)
		case Unreachable, ReadOnly: // a standby that is about to be promoted
			again = patient(ctx)
		}
		if !again {
			return err
		}
		// Jitter over the whole interval: competitors that have collided would
		// otherwise meet again at its end.
		pause := time.NewTimer(backoffMin + rand.N(spread))
		select {
		case <-ctx.Done():
			pause.Stop()
			return Ended(ctx, err)
		case <-pause.C:
		}
		spread = min(2*spread, backoffMax-backoffMin)
	}
}

type onceKey struct{}

// Once reports whether a statement outside a transaction must not be sent again
// behind the back of its caller, as database/sql does when a driver says that the
// connection is bad. Not all drivers keep to the rule that nothing was sent then.
func Once(ctx context.Context) bool { return ctx.Value(onceKey{}) != nil }

type patientKey struct{}

// Patient makes Retry outlast a short absence of the server, for what should be
// brought to its end: a finish that is not stored makes work run again. ctx must
// have a deadline.
func Patient(ctx context.Context) context.Context {
	return context.WithValue(ctx, patientKey{}, true)
}

func patient(ctx context.Context) bool { return ctx.Value(patientKey{}) != nil }
