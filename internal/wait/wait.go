// Package wait lets the waiters of one process queue for a key locally, so that
// one of them polls the database and none holds a connection while it waits.
package wait

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

// The pauses between two polls: they grow by half from MinPause to MaxPause,
// and each is drawn from the half to the whole of that, so that processes do
// not fall into step.
const (
	MinPause = 10 * time.Millisecond
	MaxPause = 250 * time.Millisecond
)

// Queue holds the lines of the keys that somebody waits for. The zero value is
// ready to use.
type Queue struct {
	mu    sync.Mutex
	lines map[string]*line
}

type line struct {
	turn    chan struct{} // has one element while nobody polls
	wake    chan struct{} // a local holder has just given the key back
	waiting int
}

// Poll calls try in this process's turn for key until try says done, or ctx
// ends. After a try that is not done it pauses: no longer than the time that
// try returns, if that is positive, and not at all after Wake. It returns
// ctx.Err() without another try when ctx ends.
func (q *Queue) Poll(ctx context.Context, key string, try func() (done bool, free time.Duration)) error {
	l := q.enter(key)
	defer q.leave(key, l)
	select {
	case <-l.turn:
		defer func() { l.turn <- struct{}{} }()
	case <-ctx.Done():
		return ctx.Err()
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for pause := MinPause; ; pause = min(pause*3/2, MaxPause) {
		select { // a signal from before this try says nothing new
		case <-l.wake:
		default:
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		done, free := try()
		if done {
			return nil
		}
		nap := pause/2 + rand.N(pause/2)
		if free > 0 {
			nap = min(nap, free)
		}
		timer.Reset(nap)
		select {
		case <-timer.C:
		case <-l.wake:
			pause = MinPause
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Wake ends the pause of this process's poller of key, if there is one: the
// key has just become free here.
func (q *Queue) Wake(key string) {
	q.mu.Lock()
	l := q.lines[key]
	q.mu.Unlock()
	if l == nil {
		return
	}
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (q *Queue) enter(key string) *line {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.lines[key]
	if l == nil {
		l = &line{turn: make(chan struct{}, 1), wake: make(chan struct{}, 1)}
		l.turn <- struct{}{}
		if q.lines == nil {
			q.lines = make(map[string]*line)
		}
		q.lines[key] = l
	}
	l.waiting++
	return l
}

func (q *Queue) leave(key string, l *line) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if l.waiting--; l.waiting == 0 {
		delete(q.lines, key)
	}
}
