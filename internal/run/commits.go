package run

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/internal/db"
)

// Commits is what a Do and the Commits of its grant know of each other. There is
// one Commit at a time, and none begins when work has returned. The zero value is
// ready to use.
type Commits struct {
	mu       sync.Mutex
	over     chan struct{} // closed when the Commit that is under way has ended; nil if there is none
	sent     bool          // its COMMIT was sent, or is about to be
	err      error         // of the one that ended last
	returned bool          // work has returned
	gaveUp   bool          // Do did not wait for apply any longer
}

// ErrUnwound is the end of a Commit whose apply has panicked or called
// runtime.Goexit.
var ErrUnwound = errors.New("apply panicked or called runtime.Goexit; nothing was written")

// Begin marks the start of a Commit. Every Begin that returns nil needs an End.
func (c *Commits) Begin(g exclusive.Grant) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.returned:
		return &exclusive.Error{Op: "commit", Key: g.Key, Kind: exclusive.ErrLost, Hint: "work has returned"}
	case c.over != nil:
		return &exclusive.Error{Op: "commit", Key: g.Key, Kind: exclusive.ErrInvalid, Hint: "another Commit of this grant is under way"}
	}
	c.over, c.sent = make(chan struct{}), false
	return nil
}

// Running reports whether a Commit is under way.
func (c *Commits) Running() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.over != nil
}

// Send says that COMMIT comes next. It fails if Do has said that it would not.
func (c *Commits) Send(g exclusive.Grant) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gaveUp {
		return leftBehind("commit", g)
	}
	c.sent = true
	return nil
}

// Sending is apply with a Send at its end.
func Sending[Tx any](c *Commits, g exclusive.Grant, apply func(context.Context, Tx) error) func(context.Context, Tx) error {
	if apply == nil {
		return nil
	}
	return func(ctx context.Context, tx Tx) error {
		if err := apply(ctx, tx); err != nil {
			return err
		}
		return c.Send(g)
	}
}

// End marks the end of a Commit: nil if the grant is finished by it, which those
// must know by now whom Await would tell.
func (c *Commits) End(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = err
	close(c.over)
	c.over = nil
}

// Await is called when work has returned. A Commit that is still under way, in a
// goroutine that work has left behind, is waited for, and its error is returned:
// nobody may have looked at it. apply has EndWait; if it takes longer the COMMIT
// will not be sent. One that was sent is waited for until it has an answer.
func (c *Commits) Await(g exclusive.Grant) error {
	c.mu.Lock()
	c.returned = true
	over := c.over
	c.mu.Unlock()
	if over == nil {
		return nil
	}
	if !within(EndWait, over) {
		if c.giveUp() {
			return leftBehind("do", g)
		}
		if !within(db.CommitWait+EndWait, over) { // the second is to ask what became of it
			return &exclusive.Error{Op: "do", Key: g.Key, Kind: exclusive.ErrOutcomeUnknown, Hint: "work has returned without waiting for its Commit, which still runs"}
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// giveUp keeps the Commit that is under way from sending COMMIT, unless it has.
func (c *Commits) giveUp() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gaveUp = c.over != nil && !c.sent
	return c.gaveUp
}

func leftBehind(op string, g exclusive.Grant) error {
	return &exclusive.Error{Op: op, Key: g.Key, Kind: exclusive.ErrLost, Hint: "work has returned without waiting for its Commit, whose apply took too long; it is not committed"}
}

func within(d time.Duration, done <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}
