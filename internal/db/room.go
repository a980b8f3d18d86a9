package db

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/exclusive-go/exclusive"
)

// Pooler is implemented by adapters of a pool that others may adapt as well. Those
// that do not are a pool of their own.
type Pooler interface {
	// Pool identifies the pool.
	Pool() any
}

// poolOf identifies the pool of d.
func poolOf[Tx any](d DB[Tx]) any {
	if p, ok := d.(Pooler); ok {
		return p.Pool()
	}
	return d
}

// taken counts the connections of each pool that works have.
var taken = struct {
	sync.Mutex
	conns map[any]int
}{conns: make(map[any]int)}

// taking marks a context in which such a function runs.
type taking struct {
	outer *taking // of the same pool
	over  atomic.Bool
}

type takingKey struct{ pool any }

// Take notes that a function of the caller's runs, with the context that it returns,
// while a connection of d is in use for it, until over is called, which may be more
// than once. work says that this may take long.
func Take[Tx any](ctx context.Context, d DB[Tx], work bool) (_ context.Context, over func()) {
	pool := poolOf(d)
	t := &taking{}
	t.outer, _ = ctx.Value(takingKey{pool}).(*taking)
	count := func(by int) {
		if !work {
			return
		}
		taken.Lock()
		defer taken.Unlock()
		if taken.conns[pool] += by; taken.conns[pool] == 0 {
			delete(taken.conns, pool)
		}
	}
	count(1)
	return context.WithValue(ctx, takingKey{pool}, t), func() {
		if !t.over.Swap(true) {
			count(-1)
		}
	}
}

// Room fails with ErrUnavailable if the functions that ctx comes from have every
// connection of d's pool: another one would be waited for in vain.
func Room[Tx any](ctx context.Context, d DB[Tx]) error {
	if n, limit := outer(ctx, d), d.MaxConns(); limit > 0 && n >= limit {
		return noRoom("the work around this call has every connection of the pool, so it would wait for itself; allow more connections (for several keys of rowlock: or use its DoAll)")
	}
	return nil
}

// RoomForAll is Room that also fails if ctx comes from one such function, and works
// have every connection: they may be waiting for each other.
func RoomForAll[Tx any](ctx context.Context, d DB[Tx]) error {
	if err := Room(ctx, d); err != nil {
		return err
	}
	limit := d.MaxConns()
	if limit <= 0 || outer(ctx, d) == 0 {
		return nil
	}
	taken.Lock()
	defer taken.Unlock()
	if taken.conns[poolOf(d)] >= limit {
		return noRoom("every connection of the pool holds a lock, and this call comes from inside one's work: works would wait for each other; allow more connections, or use rowlock's DoAll")
	}
	return nil
}

// outer is how many connections the functions have that ctx comes from.
func outer[Tx any](ctx context.Context, d DB[Tx]) (n int) {
	t, _ := ctx.Value(takingKey{poolOf(d)}).(*taking)
	for ; t != nil; t = t.outer {
		if !t.over.Load() {
			n++
		}
	}
	return n
}

func noRoom(hint string) error {
	return &exclusive.Error{Op: "connect", Kind: exclusive.ErrUnavailable, Hint: hint}
}
