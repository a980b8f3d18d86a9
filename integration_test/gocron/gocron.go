// Package gocron shows how to give the schedulers of go-co-op/gocron v2 a
// Locker and an Elector. Copy what you need: it is short.
//
// A lock is not "once per tick". It keeps two runs of a job from overlapping; a
// scheduler whose clock is a little late, or whose job is short, gets the lock
// when the first run of the same tick is over, and runs it again. For once per
// tick let the job's task do its work in uniquetask with the tick as run, for
// example uniquetask.Day; then no Locker is needed.
//
// Neither of the two interfaces can tell a job that is running that its lease
// is lost. What such a job stores is guarded by nobody: in a task whose late
// write would do harm use Do and Commit of a strategy that promises
// RefusesStale, in place of a Locker.
package gocron

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/exclusive-go/exclusive"
)

// Locker makes a gocron.Locker: while a job runs on one scheduler, a lease on
// the job's name keeps the others from running it. The names of jobs must be
// keys; see exclusive.ValidateKey. A scheduler that comes second skips the run;
// errors.Is(err, exclusive.ErrHeld) in gocron.AfterLockError tells that from a
// failure.
func Locker(leases exclusive.Leaser) gocron.Locker { return locker{leases} }

type locker struct{ leases exclusive.Leaser }

func (l locker) Lock(ctx context.Context, job string) (gocron.Lock, error) {
	lease, err := l.leases.TryAcquire(ctx, job)
	if err != nil {
		return nil, err
	}
	return lock{lease}, nil
}

type lock struct{ lease *exclusive.Lease }

// releaseWait bounds a release.
const releaseWait = 5 * time.Second

// Unlock also releases when the scheduler shuts down: ctx has ended then.
func (l lock) Unlock(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseWait)
	defer cancel()
	return l.lease.Release(ctx)
}

// Elector is a gocron.Elector: one of the processes that campaign for a key
// leads, and only its scheduler runs jobs.
//
// A job that is running goes on when its scheduler stops to lead.
type Elector struct {
	leading atomic.Pointer[context.Context] // of the term; nil: another one leads
	cancel  context.CancelFunc
	done    chan error
}

// NewElector campaigns for key until Stop.
func NewElector(leases exclusive.Leaser, key string) *Elector {
	ctx, cancel := context.WithCancel(context.Background())
	e := &Elector{cancel: cancel, done: make(chan error, 1)}
	go func() {
		e.done <- exclusive.Campaign(ctx, leases, key, func(term context.Context, _ exclusive.Grant) error {
			e.leading.Store(&term)
			defer e.leading.Store(nil)
			<-term.Done()
			return context.Cause(term)
		})
	}()
	return e
}

var errNotLeader = errors.New("another scheduler leads")

// IsLeader implements gocron.Elector. It asks nobody: the term's context ends
// before another process can lead.
func (e *Elector) IsLeader(context.Context) error {
	term := e.leading.Load()
	if term == nil {
		return errNotLeader
	}
	if (*term).Err() != nil {
		return fmt.Errorf("the term is over: %w", context.Cause(*term))
	}
	return nil
}

// Stop ends the campaign and lets another process lead. It returns what ended
// the campaign before, if something did that no retry mends.
func (e *Elector) Stop() error {
	e.cancel()
	if err := <-e.done; !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}
