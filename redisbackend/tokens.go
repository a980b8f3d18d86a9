package redisbackend

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/internal/strategy"
)

// TokenSource gives tokens for leases in Redis, from a place that loses less
// than Redis may: see [NewTokens]. It must be safe for concurrent use.
//
// A source may also have Advance(ctx, key, atLeast) error, which makes the next
// token of key greater than atLeast.
type TokenSource interface {
	// Next returns a token from 1 to 2^47-1 that is greater than any that it
	// has returned for key. It must end when ctx does.
	Next(ctx context.Context, key string) (int64, error)
}

// draw gets a token for a grant that has its key, and stores it with the lease.
// Tokens rise with grants because the grant still has the key afterwards. It
// ends with the lease at full length; requested is when that was asked for.
func (s store) draw(ctx context.Context, key, id string) (token int64, requested time.Time, err error) {
	token, err = s.cfg.Tokens.Next(ctx, key)
	if err != nil {
		var ours *exclusive.Error
		switch {
		case errors.As(err, &ours):
			return 0, requested, err
		case ctx.Err() != nil:
			return 0, requested, db.CtxError(ctx, "acquire", key, err)
		}
		return 0, requested, &exclusive.Error{Op: "acquire", Key: key, Kind: exclusive.ErrUnavailable, Hint: "the source of tokens failed", Err: err}
	}
	if token <= 0 || token > strategy.MaxToken {
		return 0, requested, &exclusive.Error{Op: "acquire", Key: key, Kind: exclusive.ErrUnavailable,
			Hint: fmt.Sprintf("the source gave token %d; tokens are from 1 to %d", token, int64(strategy.MaxToken))}
	}
	n := s.names(key)
	var answer any
	err = db.Retry(ctx, classifier{}, func(ctx context.Context) error {
		requested = time.Now()
		answer, err = s.once(ctx, tokenScript, nil, []string{n.lease, n.counter}, id, s.ttl(), token)
		return err
	})
	switch {
	case err != nil:
		return 0, requested, fail(ctx, "acquire", key, err)
	case answer == int64(refused):
		return 0, requested, &exclusive.Error{Op: "acquire", Key: key, Kind: exclusive.ErrUnavailable,
			Hint: fmt.Sprintf("the source of tokens took longer than the lease of %v lasts; use a longer TTL", s.cfg.TTL)}
	case answer == int64(exhausted):
		return 0, requested, &exclusive.Error{Op: "acquire", Key: key, Kind: exclusive.ErrUnavailable,
			Hint: fmt.Sprintf("the source gave token %d after a greater one: it went back; raise it (Advance)", token)}
	}
	return token, requested, nil
}

// advanceSource raises the tokens of a source that can.
func (l *Leases) advanceSource(ctx context.Context, key string, atLeast int64) error {
	source, can := l.cfg.Tokens.(interface {
		Advance(ctx context.Context, key string, atLeast int64) error
	})
	if !can {
		return &exclusive.Error{Op: "advance", Key: key, Kind: exclusive.ErrUnsupported, Hint: "the source of tokens has no method Advance"}
	}
	return source.Advance(ctx, key, atLeast)
}
