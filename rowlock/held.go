package rowlock

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/internal/run"
	"github.com/exclusive-go/exclusive/internal/strategy"
)

// state is how far a lock has come. A lock that is not open has no transaction.
type state uint8

const (
	open state = iota
	// done: a Commit has committed the transaction.
	done
	// dead: the transaction has ended in any other way.
	dead
)

// held is a lock in this process: a transaction, and who may use it.
type held[Tx any] struct {
	locks   *Locks[Tx]
	dialect dialect
	grants  []exclusive.Grant
	lines   []string
	since   time.Time

	tx     Tx
	runner db.Runner
	trace  trace

	ctx    context.Context // work's
	cancel context.CancelCauseFunc
	// givenBack is called when tx has ended, and its connection is free.
	givenBack func()

	// use has an element while nobody uses tx: drivers do not allow two at
	// once. What follows is guarded by mu.
	use   chan struct{}
	over  bool // tx was committed or rolled back; guarded by use
	mu    sync.Mutex
	state state
	cause error       // why it is dead
	timer *time.Timer // of the next probe; nil if there is none

	commits run.Commits
}

// start begins to look after the lock. parent is what work's context derives
// from.
func (h *held[Tx]) start(parent context.Context) {
	taken, over := db.Take(parent, h.locks.server.DB, true)
	h.ctx, h.cancel = context.WithCancelCause(taken)
	h.givenBack = over
	h.use <- struct{}{}
	if cfg := h.locks.cfg; !cfg.NoProbe && !h.dialect.wholeDatabase() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.timer = time.AfterFunc(cfg.Probe, h.probe)
	}
}

// claim is the lock as the skeleton of Do takes it.
func (h *held[Tx]) claim() *run.Claim {
	return &run.Claim{
		Grant:   h.grants[0],
		Context: h.ctx,
		Commits: &h.commits,
		Finish:  h.finish,
		Abandon: func(ctx context.Context, _ error) error { return h.abandon(ctx) },
		Ended:   func() { h.locks.forget(h) },
	}
}

func (h *held[Tx]) now() (state, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.state, h.cause
}

// probe asks whether the connection lives, unless somebody uses it: they find
// out by themselves.
func (h *held[Tx]) probe() {
	select {
	case <-h.use:
	default:
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.state == open {
			h.timer.Reset(h.locks.cfg.Probe)
		}
		return
	}
	defer func() { h.use <- struct{}{} }()
	if s, _ := h.now(); s != open {
		return
	}
	// Bounded by the end of work too, which has to wait for it.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(h.ctx), run.EndWait)
	defer cancel()
	err := h.runner.Query(ctx, probeQ, nil, func(db.Scan) error { return nil })
	if err != nil {
		h.rollBack(h.lost("the connection that held the lock has ended", err))
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.timer.Reset(h.locks.cfg.Probe)
}

// lost is the error of a lock whose transaction has ended under it.
func (h *held[Tx]) lost(hint string, err error) error {
	return &exclusive.Error{Op: "hold", Key: h.grants[0].Key, Kind: exclusive.ErrLost, Hint: hint, Err: err}
}

// end notes that nothing is held any more.
func (h *held[Tx]) end(s state, cause error) {
	h.mu.Lock()
	if h.state != open {
		h.mu.Unlock()
		return
	}
	h.state, h.cause = s, cause
	if h.timer != nil {
		h.timer.Stop()
	}
	h.mu.Unlock()
	h.locks.freed(h)
	if errors.Is(cause, exclusive.ErrLost) {
		h.locks.observed.Lose(context.WithoutCancel(h.ctx), h.grants[0], cause)
	}
	if s == done {
		return // work goes on; its context ends with Do
	}
	if cause == nil {
		cause = context.Canceled
	}
	h.cancel(cause)
}

// rollBack ends the transaction because of cause. The caller has use.
func (h *held[Tx]) rollBack(cause error) error {
	if h.over {
		return nil
	}
	h.over = true
	err := h.locks.server.DB.Rollback(h.tx)
	h.givenBack()
	h.end(dead, cause)
	return err
}

// commit commits the transaction. The caller has use.
func (h *held[Tx]) commit(ctx context.Context) error {
	h.over = true
	defer h.givenBack()
	return h.locks.server.DB.Commit(ctx, h.tx)
}

// take waits until nobody uses the transaction, as long as ctx allows.
func (h *held[Tx]) take(ctx context.Context) error {
	select {
	case <-h.use:
		return nil
	case <-ctx.Done():
		return &exclusive.Error{Op: "release", Key: h.grants[0].Key, Kind: exclusive.ErrLost,
			Hint: "work has returned, and something still uses the transaction", Err: ctx.Err()}
	}
}

// finish commits the transaction after work has returned nil without Commit.
func (h *held[Tx]) finish(ctx context.Context) error {
	if err := h.take(ctx); err != nil {
		h.end(dead, err)
		return err
	}
	defer func() { h.use <- struct{}{} }()
	if s, cause := h.now(); s != open {
		return cause
	}
	ctx, end := h.releases(ctx)
	err := h.commit(ctx)
	switch {
	case err == nil:
	case errors.Is(err, db.ErrCommitUnknown) && h.fate(ctx) == strategy.Committed:
		err = nil // the lock was held until then
	case !errors.Is(err, db.ErrNotCommitted) && h.locks.server.DB.Classify(err) == db.Conflict:
		// A cluster has found a conflict with another node.
		err = h.locks.server.Fail(ctx, "release", h.grants[0].Key, err)
	default:
		err = h.lost("the transaction that held the lock ended before work did, or nobody can tell", err)
	}
	h.end(dead, err)
	end(h.grants[0], err)
	return err
}

// releases tells the observer that the lock is given back.
func (h *held[Tx]) releases(ctx context.Context) (context.Context, func(exclusive.Grant, error)) {
	g := h.grants[0]
	return h.locks.observed.Start(ctx, exclusive.Event{Op: exclusive.OpRelease, Key: g.Key, Grant: g})
}

// abandon rolls the transaction back after anything else.
func (h *held[Tx]) abandon(ctx context.Context) error {
	if err := h.take(ctx); err != nil {
		h.end(dead, err)
		return err
	}
	defer func() { h.use <- struct{}{} }()
	if h.over {
		return nil
	}
	ctx, end := h.releases(ctx)
	err := h.locks.server.Fail(ctx, "release", h.grants[0].Key, h.rollBack(nil))
	end(h.grants[0], err)
	return err
}

// fate is what became of a COMMIT that got no answer.
func (h *held[Tx]) fate(ctx context.Context) strategy.Fate {
	fate, err := h.locks.server.AskFate(ctx, time.Time{}, func(ctx context.Context) (strategy.Fate, error) {
		return h.dialect.fate(ctx, h.locks.server.DB, h.trace)
	})
	if err != nil {
		return strategy.Unknown
	}
	return fate
}
