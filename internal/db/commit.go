package db

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// What an error of DB.Commit means, where the driver's own error does not say
// it. The driver's error stays reachable beside them.
var (
	// ErrCommitUnknown: COMMIT was sent, or may have been, and no answer came.
	// The transaction may be committed.
	ErrCommitUnknown = errors.New("COMMIT got no answer; the transaction may be committed")

	// ErrEndedEarly comes with ErrCommitUnknown: there was no transaction to
	// commit. It is class Conflict with every adapter.
	ErrEndedEarly = errors.New("the transaction was no longer open: apply must not commit it, roll it back, or run DDL in it, and must return every error")

	// ErrNotCommitted: COMMIT found that the server had rolled the transaction
	// back. It is class Conflict with every adapter.
	ErrNotCommitted = errors.New("the transaction had ended before COMMIT; nothing was committed")
)

// EndedEarly marks err, from a COMMIT that found no transaction, with
// ErrCommitUnknown: whoever ended it may have committed what it wrote. That is
// the application itself (Commit, Rollback, DDL on MySQL), or the server.
func EndedEarly(err error) error {
	return fmt.Errorf("%w: %w: %w", ErrEndedEarly, ErrCommitUnknown, err)
}

// NotCommitted marks err, met on the way to COMMIT, with ErrNotCommitted.
func NotCommitted(err error) error { return fmt.Errorf("%w: %w", ErrNotCommitted, err) }

// CommitError marks the error of a COMMIT that was sent with ErrCommitUnknown
// where the server may have committed before the answer was lost. A refusal
// stays as it is.
func CommitError(c Classifier, err error) error {
	if err == nil || errors.Is(err, ErrCommitUnknown) || errors.Is(err, ErrNotCommitted) {
		return err
	}
	switch c.Classify(err) {
	case Disconnected, Timeout:
	default:
		// COMMIT runs on a context of the adapter's own: it ends only when
		// CommitWait has passed.
		if !isContext(err) {
			return err
		}
	}
	return fmt.Errorf("%w: %w", ErrCommitUnknown, err)
}

// Over is ctx.Err(), and waits for it when the deadline has passed: the network
// keeps that deadline too, and can be a moment faster than the context.
func Over(ctx context.Context) error {
	if end, ok := ctx.Deadline(); ok && !time.Now().Before(end) {
		<-ctx.Done()
	}
	return ctx.Err()
}

// Ended makes err match the error of a context that has ended. Drivers say it
// in many ways: sql.ErrTxDone, 57014, "interrupted".
func Ended(ctx context.Context, err error) error {
	if err == nil || Over(ctx) == nil || errors.Is(err, ctx.Err()) {
		return err
	}
	return fmt.Errorf("%w: %w", ctx.Err(), err)
}

func isContext(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
