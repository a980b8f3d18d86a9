package redisbackend

import (
	"context"
	"sync"

	"github.com/redis/go-redis/v9"
)

// wakeups listens for releases of the keys that this process waits for, on one
// connection that is opened when the first waiter has to wait. Everything is
// right without it: waiters poll as well.
type wakeups struct {
	client redis.UniversalClient
	wake   func(key string)

	mu      sync.Mutex
	wanted  map[string]*channel // by name
	started bool
	poke    chan struct{}
	ctx     context.Context // ended by close
	stop    context.CancelFunc
	work    sync.WaitGroup
}

// channel is one that somebody listens to.
type channel struct {
	key     string
	waiters int
}

func newWakeups(client redis.UniversalClient, wake func(string)) *wakeups {
	w := &wakeups{client: client, wake: wake, wanted: make(map[string]*channel), poke: make(chan struct{}, 1)}
	w.ctx, w.stop = context.WithCancel(context.Background())
	return w
}

// listen subscribes to a channel until stop is called. It does not wait for the
// server.
func (w *wakeups) listen(name, key string) (stop func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ctx.Err() != nil {
		return func() {}
	}
	c := w.wanted[name]
	if c == nil {
		c = &channel{key: key}
		w.wanted[name] = c
		w.change()
	}
	c.waiters++
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if c.waiters--; c.waiters == 0 {
			delete(w.wanted, name)
			w.change()
		}
	}
}

// change makes the subscriptions follow wanted. The caller holds mu.
func (w *wakeups) change() {
	if !w.started {
		w.started = true
		w.work.Go(w.follow)
	}
	select {
	case w.poke <- struct{}{}:
	default:
	}
}

// follow keeps the subscriptions as wanted until close.
func (w *wakeups) follow() {
	pubsub := w.client.Subscribe(w.ctx)
	w.work.Go(func() {
		for m := range pubsub.Channel() {
			w.mu.Lock()
			c := w.wanted[m.Channel]
			w.mu.Unlock()
			if c != nil {
				w.wake(c.key)
			}
		}
	})
	subscribed := make(map[string]bool)
	for {
		select {
		case <-w.poke:
		case <-w.ctx.Done():
			_ = pubsub.Close() // ends the goroutine above
			return
		}
		var add, remove []string
		w.mu.Lock()
		for name := range w.wanted {
			if !subscribed[name] {
				add = append(add, name)
			}
		}
		for name := range subscribed {
			if w.wanted[name] == nil {
				remove = append(remove, name)
			}
		}
		w.mu.Unlock()
		// go-redis remembers the channels, and subscribes again after a broken
		// connection. Until then waiters poll.
		if add != nil {
			_ = pubsub.Subscribe(w.ctx, add...)
		}
		if remove != nil {
			_ = pubsub.Unsubscribe(w.ctx, remove...)
		}
		for _, name := range add {
			subscribed[name] = true
		}
		for _, name := range remove {
			delete(subscribed, name)
		}
	}
}

func (w *wakeups) close() error {
	w.mu.Lock()
	w.stop()
	w.mu.Unlock()
	w.work.Wait()
	return nil
}
