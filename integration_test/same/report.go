// Package same is a small application that is written once, against
// exclusive.Transactional, and runs unchanged on every strategy, database and
// adapter: only the constructor that main calls differs.
package same

import (
	"context"
	"errors"
	"fmt"

	"github.com/exclusive-go/exclusive"
)

// Reports renders daily reports, each by one worker at a time.
type Reports[Tx any] struct {
	// Lock is the strategy: casupdate, rowlock, uniquetask, fencing, or a lease
	// from anywhere with fencing.Guarded.
	Lock exclusive.Transactional[Tx]

	// Render is the long work: no transaction is open meanwhile, unless the
	// strategy is rowlock.
	Render func(ctx context.Context, day string) (body string, err error)

	// Save stores a report within a transaction.
	Save func(ctx context.Context, tx Tx, day, body string) error
}

// Answer is what came of a request for a report.
type Answer string

// The answers.
const (
	Rendered Answer = "rendered"
	Busy     Answer = "somebody else is at it"
	Before   Answer = "it was rendered before"
)

// Make renders the report of a day and stores it. A report is stored whole or
// not at all, and never by a worker whose place somebody else has taken.
func (r Reports[Tx]) Make(ctx context.Context, day string) (Answer, error) {
	err := r.Lock.Do(ctx, day, func(ctx context.Context, g exclusive.Grant) error {
		body, err := r.Render(ctx, day)
		if err != nil {
			return err
		}
		// Short; proven in the transaction; atomic with "done".
		return r.Lock.Commit(ctx, g, func(ctx context.Context, tx Tx) error {
			return r.Save(ctx, tx, day, body)
		})
	})
	switch {
	case err == nil:
		return Rendered, nil
	case errors.Is(err, exclusive.ErrHeld):
		return Busy, nil
	case errors.Is(err, exclusive.ErrDone):
		return Before, nil
	}
	return "", fmt.Errorf("report of %s: %w", day, err)
}
