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
	done     bool          // one of them has finished the grant
	returned bool          // work has returned
	gaveUp   bool          // Do did not wait for apply any longer
	after    func()        // what Do could not do during the Commit; nil if there is nothing
}

// ErrLeftBehind is why Do did not wait any longer for a Commit that work has left
// behind. The context of work ends with a cause that matches it.
var ErrLeftBehind = errors.New("work has returned without waiting for its Commit")

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

// Commit is what every Commit of g does around commit. begin may refuse it. end comes
// after it, with ErrUnwound if it panics or calls runtime.Goexit.
func (o Observed) Commit(ctx context.Context, g exclusive.Grant, begin func() error, end func(error), commit func(context.Context) error) (err error) {
	ctx, tell := o.Start(ctx, exclusive.Event{Op: exclusive.OpCommit, Key: g.Key, Grant: g})
	defer func() { tell(g, err) }()
	if err := begin(); err != nil {
		return err
	}
	err = ErrUnwound // unless commit returns
	defer func() { end(err) }()
	return commit(ctx)
}

// Committed reports whether a Commit has finished the grant.
func (c *Commits) Committed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.done
}

// Running reports whether a Commit is under way.
func (c *Commits) Running() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.over != nil
}

// GaveUp fails if Do has said that nothing will be committed. A Commit asks before
// it runs apply, which it may have reached late.
func (c *Commits) GaveUp(g exclusive.Grant) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.refusal(g)
}

// refusal is GaveUp. The caller holds mu.
func (c *Commits) refusal(g exclusive.Grant) error {
	if !c.gaveUp {
		return nil
	}
	return leftBehind("commit", g, "it took too long, and is not committed")
}

// Send says that COMMIT comes next. It fails as GaveUp does.
func (c *Commits) Send(g exclusive.Grant) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent = !c.gaveUp
	return c.refusal(g)
}

// Sending is apply between a GaveUp and a Send.
func Sending[Tx any](c *Commits, g exclusive.Grant, apply func(context.Context, Tx) error) func(context.Context, Tx) error {
	return func(ctx context.Context, tx Tx) error {
		if err := c.GaveUp(g); err != nil {
			return err
		}
		if err := apply(ctx, tx); err != nil {
			return err
		}
		return c.Send(g)
	}
}

// End marks the end of a Commit: nil if the grant is finished by it, which those
// must know by now whom Await would tell. Otherwise it does what After was given.
func (c *Commits) End(err error) {
	c.mu.Lock()
	after := c.after
	c.err, c.after = err, nil
	c.done = c.done || err == nil
	close(c.over)
	c.over = nil
	c.mu.Unlock()
	if err != nil && after != nil {
		after()
	}
}

// After runs f when the Commit that is under way has failed, in its goroutine, or
// at once if it has by now.
func (c *Commits) After(f func()) {
	c.mu.Lock()
	if c.over != nil {
		c.after = f
		c.mu.Unlock()
		return
	}
	failed := c.err != nil
	c.mu.Unlock()
	if failed {
		f()
	}
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
			return leftBehind("do", g, "its apply took too long; it is not committed, and the key is given back when apply has ended")
		}
		if !within(db.CommitWait+EndWait, over) { // the second is to ask what became of it
			return &exclusive.Error{Op: "do", Key: g.Key, Kind: exclusive.ErrOutcomeUnknown, Err: ErrLeftBehind,
				Hint: "that still runs; if it fails the key is given back then"}
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

func leftBehind(op string, g exclusive.Grant, hint string) error {
	return &exclusive.Error{Op: op, Key: g.Key, Kind: exclusive.ErrLost, Hint: hint, Err: ErrLeftBehind}
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
