package db

import (
	"context"
	"errors"

	"github.com/exclusive-go/exclusive"
)

// Classifier is the part of DB that Fail needs.
type Classifier interface{ Classify(err error) Class }

// Fail turns an error of a driver into the one that callers tell apart. It
// keeps errors that are ours already. mend says what to do about ErrSchema.
func Fail(ctx context.Context, c Classifier, op, key, mend string, err error) error {
	if err == nil {
		return nil
	}
	var ours *exclusive.Error
	if errors.As(err, &ours) {
		return err
	}
	e := &exclusive.Error{Op: op, Key: key, Err: err}
	if Over(ctx) != nil && !patient(ctx) { // that deadline is ours
		return CtxError(ctx, op, key, err)
	}
	switch c.Classify(err) {
	case Conflict, Locked:
		e.Kind = exclusive.ErrConflict
	case Timeout:
		e.Kind, e.Hint = exclusive.ErrUnavailable, "the server's statement time-out struck; raise it or find what was slow"
	case Disconnected:
		e.Kind, e.Hint = exclusive.ErrUnavailable, "the connection broke; try again"
	case Unreachable:
		e.Kind, e.Hint = exclusive.ErrUnavailable, "the server cannot be reached; check that it runs and accepts connections"
	case ReadOnly:
		e.Kind, e.Hint = exclusive.ErrUnavailable, "the server is read-only; connect to the primary"
	case Denied:
		e.Kind, e.Hint = exclusive.ErrUnavailable, "the server does not permit it; check the password and the privileges of this role"
	case Schema:
		e.Kind, e.Hint = exclusive.ErrSchema, mend
	case Data:
		e.Kind, e.Hint = exclusive.ErrInvalid, "a value does not fit its column; check the key and the column's type"
	case Syntax:
		e.Kind, e.Hint = exclusive.ErrInvalid, "the server does not understand the statement; check that the adapter is the one for this server, and that its version is supported"
	case Duplicate, Other:
		e.Kind, e.Hint = exclusive.ErrUnavailable, "the server refused the statement"
		if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
			e.Hint = "the server did not answer in time"
		}
	}
	return e
}

// CtxError reports that ctx has ended. It matches the context's error, its
// cause, and cause, the driver's view of it, if that is not nil.
func CtxError(ctx context.Context, op, key string, cause error) error {
	errs := []error{ctx.Err()}
	c := context.Cause(ctx)
	switch {
	case errors.Is(c, exclusive.ErrLost):
		// The caller has not cancelled anything: the loss has.
		return &exclusive.Error{Op: op, Key: key, Kind: exclusive.ErrLost, Err: c}
	case c != nil && !errors.Is(c, ctx.Err()):
		errs = append(errs, c)
	}
	if cause != nil && !errors.Is(cause, ctx.Err()) {
		errs = append(errs, cause)
	}
	return &exclusive.Error{Op: op, Key: key, Err: errors.Join(errs...)}
}
