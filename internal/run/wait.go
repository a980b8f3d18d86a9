package run

import (
	"context"
	"time"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/internal/db"
)

const (
	// stale is how old a refusal may be that still says who has the key: longer
	// than any claim takes that is only told to wait (strategy.ClaimWait).
	stale = 2 * time.Second
	// answerWait bounds the question that takes the place of a stale one.
	answerWait = 3 * time.Second
)

// Refusal is what a waiter was told last: that the key is held.
type Refusal struct {
	Err error // nil: nothing yet
	At  time.Time
}

// EndOfWait is what a wait for key comes to whose time has passed. ctx is the
// caller's, and does not end with that time. Who has been refused a moment ago is
// told so. Who has not does not know: the server may have fallen silent, the pool
// may have no connection to ask it, or this process's turn has not come. So they
// ask once more, and no answer is no "held".
func EndOfWait[H any](ctx context.Context, key string, last Refusal, ask func(ctx context.Context) (H, error)) (H, error) {
	var none H
	if last.Err != nil && time.Since(last.At) < stale {
		return none, last.Err
	}
	actx, cancel := context.WithTimeout(ctx, answerWait)
	defer cancel()
	h, err := ask(actx)
	switch {
	case err == nil:
		return h, nil
	case db.Over(actx) != nil && db.Over(ctx) == nil:
		err = &exclusive.Error{Op: "acquire", Key: key, Kind: exclusive.ErrUnavailable, Err: Cause(err),
			Hint: "the time to wait has passed without an answer, or without a connection to ask for one; whether the key is held is not known"}
	}
	return none, err
}
