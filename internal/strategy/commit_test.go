package strategy

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/internal/run"
)

// unreachable takes every error for that of a server that is away.
type unreachable struct{ db.DB[int] }

func (unreachable) Classify(error) db.Class { return db.Unreachable }

// The fate of a Commit is asked for while the server is away: until the lease ends, or
// the caller's time, and for 5 s at least.
func TestFateIsAskedFor(t *testing.T) {
	const failover = 40 * time.Second
	for name, tt := range map[string]struct {
		expires, deadline, cancel time.Duration // 0: none
		took                      time.Duration
		told                      bool
	}{
		"lease":                  {expires: time.Minute, took: failover, told: true},
		"time":                   {deadline: time.Minute, took: failover, told: true},
		"time beyond the lease":  {expires: time.Second, deadline: time.Minute, took: failover, told: true},
		"lease beyond the time":  {expires: time.Minute, deadline: 7 * time.Second, took: 2 * run.EndWait},
		"neither":                {took: run.EndWait},
		"not much is left":       {expires: time.Second, took: run.EndWait},
		"not enough is left":     {expires: 12 * time.Second, took: 3 * run.EndWait},
		"cancelled before":       {expires: time.Minute, cancel: time.Millisecond, took: run.EndWait},
		"cancelled when it asks": {expires: time.Minute, cancel: run.EndWait + time.Second, took: 2 * run.EndWait},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if tt.deadline > 0 {
					ctx, cancel = context.WithDeadline(ctx, began.Add(tt.deadline))
					defer cancel()
				}
				if tt.cancel > 0 {
					time.AfterFunc(tt.cancel, cancel)
				}
				var expires time.Time
				if tt.expires > 0 {
					expires = began.Add(tt.expires)
				}
				s := NewServer(unreachable{}, "none", func(db.Dialect) int { return 0 }, nil)
				fate, err := s.AskFate(ctx, expires, func(ctx context.Context) (Fate, error) {
					select {
					case <-time.After(time.Until(began.Add(failover))):
						return Committed, nil
					case <-ctx.Done():
						return Unknown, errors.Join(errors.New("no route to host"), ctx.Err())
					}
				})
				if took := time.Since(began); took != tt.took || (fate == Committed) != tt.told || (err == nil) != tt.told {
					t.Errorf("after %v: %v, %v; want an answer (%v) after %v", took, fate, err, tt.told, tt.took)
				}
			})
		})
	}
}
