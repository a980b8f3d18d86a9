// Package linearizability checks histories of grants, writes and reads that were
// recorded while connections broke, holders froze and answers of COMMIT got
// lost: there must be an order of all of them, in which each takes place between
// its call and its return, that a fenced register could have gone through.
package linearizability

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/jackc/pgx/v5"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/exclusivetest"
	"github.com/exclusive-go/exclusive/integration_test/matrix"
	"github.com/exclusive-go/exclusive/integration_test/proxy"
	"github.com/exclusive-go/exclusive/integration_test/strategies"
	"github.com/exclusive-go/exclusive/internal/db"
)

func TestMain(m *testing.M) { strategies.Main(m) }

// A history ends when it has enough grants and writes, or after limit at least
// some: slow machines get no further.
const (
	clients = 5
	enough  = 60
	some    = 10
	limit   = 4 * time.Second
	hangs   = time.Minute
	ttl     = exclusivetest.TTL
)

// input is an operation on one key.
type input struct {
	op    op
	key   string
	token int64
	value string // what is written
}

type op int

const (
	grant op = iota
	write
	read
)

// output is what came of it.
type output struct {
	value   string // what was read
	unknown bool   // a write: it may have taken place, or may yet
}

// register is the state of a key.
type register struct {
	token int64 // of the last grant
	value string
}

// model says what a fenced register may do: tokens rise with each grant, a write
// takes place only with the last token, and a read returns the last write.
// Refused writes change nothing and are not in the history.
var model = (&porcupine.NondeterministicModel{
	Init: func() []any { return []any{register{}} },
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byKey := make(map[string][]porcupine.Operation)
		for _, o := range history {
			key := o.Input.(input).key
			byKey[key] = append(byKey[key], o)
		}
		var parts [][]porcupine.Operation
		for _, part := range byKey {
			parts = append(parts, part)
		}
		return parts
	},
	Step: func(state, in, out any) []any {
		s, i, o := state.(register), in.(input), out.(output)
		switch i.op {
		case grant:
			if i.token > s.token {
				return []any{register{i.token, s.value}}
			}
		case write:
			var next []any
			if i.token == s.token {
				next = append(next, register{s.token, i.value})
			}
			if o.unknown {
				next = append(next, s)
			}
			return next
		case read:
			if o.value == s.value {
				return []any{s}
			}
		}
		return nil
	},
}).ToModel()

// history is recorded by many.
type history struct {
	start time.Time
	full  func() // called when there is enough; nil: nobody waits for that

	mu     sync.Mutex
	ops    []porcupine.Operation
	counts [read + 1]int
}

func (h *history) now() int64 { return time.Since(h.start).Nanoseconds() }

func (h *history) add(client int, in input, out output, call int64) {
	o := porcupine.Operation{ClientId: client, Input: in, Output: out, Call: call, Return: h.now()}
	if out.unknown {
		o.Return = math.MaxInt64
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, o)
	h.counts[in.op]++
	goal := enough
	if time.Since(h.start) > limit {
		goal = some
	}
	if h.counts[grant] >= goal && h.counts[write] >= goal && h.full != nil {
		h.full()
	}
}

func (h *history) check(t *testing.T) porcupine.CheckResult {
	t.Helper()
	return porcupine.CheckOperationsTimeout(model, h.ops, time.Minute)
}

// rig is what a history is recorded on.
type rig[Tx any] struct {
	*testing.T
	history
	place *strategies.Place[Tx]
	keys  []string
	n     atomic.Int64
}

func newRig[Tx any](t *testing.T, target *matrix.Target[Tx], keys int) *rig[Tx] {
	t.Helper()
	all := strategies.All[Tx]()
	i := slices.IndexFunc(all, func(s strategies.Strategy[Tx]) bool { return s.Name == "fencing" })
	r := &rig[Tx]{T: t, place: all[i].SetUp(t, target), history: history{start: time.Now()}}
	for range keys {
		r.keys = append(r.keys, r.place.MustKey(t))
	}
	return r
}

type leaser[Tx any] interface {
	exclusive.Transactional[Tx]
	exclusive.Leaser
}

func (r *rig[Tx]) open(target *matrix.Target[Tx], ttl time.Duration) leaser[Tx] {
	r.Helper()
	return r.place.New(r.T, target, exclusivetest.Config{TTL: ttl, NoRenew: true}).(leaser[Tx])
}

// acquire records a grant.
func (r *rig[Tx]) acquire(ctx context.Context, client int, x leaser[Tx], key string) (*exclusive.Lease, error) {
	call := r.now()
	lease, err := x.Acquire(ctx, key)
	if err == nil {
		r.add(client, input{op: grant, key: key, token: lease.Grant().Token}, output{}, call)
	}
	return lease, err
}

// write records a write in a transaction of the caller's own, unless it was
// refused.
func (r *rig[Tx]) write(ctx context.Context, client int, target *matrix.Target[Tx], x leaser[Tx], g exclusive.Grant, check bool) error {
	in := input{op: write, key: g.Key, token: g.Token, value: fmt.Sprint("v", r.n.Add(1))}
	call := r.now()
	err := db.InTx(ctx, target.DB, func(ctx context.Context, tx Tx, _ db.Runner) error {
		if check {
			if err := x.Check(ctx, tx, g); err != nil {
				return err
			}
		}
		if rand.N(4) == 0 {
			time.Sleep(rand.N(ttl)) // between check and write
		}
		return r.place.Write(ctx, tx, g.Key, in.value)
	})
	if unknown := errors.Is(err, db.ErrCommitUnknown); err == nil || unknown {
		r.add(client, in, output{unknown: unknown}, call)
	}
	return err
}

// read records what the destination holds.
func (r *rig[Tx]) read(client int, key string) {
	call := r.now()
	value, _ := r.place.Stored(r.T, key)
	r.add(client, input{op: read, key: key}, output{value: value}, call)
}

func TestFencing(t *testing.T) { matrix.Drivers(t, testFencing[pgx.Tx], testFencing[*sql.Tx]) }

func testFencing[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	r := newRig(t, target, 3)
	pools := make([]*matrix.Target[Tx], clients)
	var p *proxy.Proxy
	if target.Networked() {
		p = proxy.Start(t, target.Addr(t))
	}
	for i := range pools {
		o := matrix.Options{}
		if p != nil {
			o.Addr = p.Addr()
		}
		pools[i] = target.Another(t, o)
	}
	ctx, cancel := context.WithTimeout(t.Context(), hangs)
	defer cancel()
	r.full = cancel
	if p != nil {
		p.Intercept(havoc)
	}
	var wg sync.WaitGroup
	for i, pool := range pools {
		x := r.open(pool, ttl)
		wg.Go(func() { r.client(ctx, i, pool, x) })
	}
	wg.Go(func() {
		for ctx.Err() == nil {
			r.read(clients, r.keys[rand.N(len(r.keys))])
			time.Sleep(rand.N(ttl / 5))
		}
	})
	wg.Wait()
	if p != nil {
		p.Intercept(nil)
	}
	for _, key := range r.keys {
		r.read(clients, key)
	}
	if result := r.check(t); result != porcupine.Ok {
		t.Errorf("the history of %d operations is not that of a fenced register: %s", len(r.ops), result)
	}
	t.Logf("%d grants, %d writes, %d reads", r.counts[grant], r.counts[write], r.counts[read])
	if r.counts[grant] < some || r.counts[write] < some {
		t.Error("too little happened to prove anything")
	}
}

// client gets keys and writes, and freezes now and then until its lease is over.
func (r *rig[Tx]) client(ctx context.Context, i int, pool *matrix.Target[Tx], x leaser[Tx]) {
	for ctx.Err() == nil {
		lease, err := r.acquire(ctx, i, x, r.keys[rand.N(len(r.keys))])
		if err != nil {
			continue // the chaos, or the end
		}
		for range 1 + rand.N(3) {
			if rand.N(3) == 0 {
				time.Sleep(rand.N(2 * ttl))
			}
			// Not on ctx: each write ends as it would without the test's end.
			_ = r.write(r.Context(), i, pool, x, lease.Grant(), true)
		}
		if rand.N(2) == 0 {
			_ = lease.Release(r.Context())
		}
	}
}

// havoc loses requests and answers, and their connections with them.
func havoc([]byte) proxy.Verdict {
	switch rand.N(80) {
	case 0:
		return proxy.Cut
	case 1:
		return proxy.CutAfter
	}
	return proxy.Pass
}

// The twin: one late write without the check, and there is no such order.
func TestFencingUnchecked(t *testing.T) {
	matrix.Drivers(t, testFencingUnchecked[pgx.Tx], testFencingUnchecked[*sql.Tx])
}

func testFencingUnchecked[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	for _, check := range []bool{true, false} {
		r := newRig(t, target, 1)
		x := r.open(target, time.Hour)
		var grants []exclusive.Grant
		for i := range 2 {
			lease, err := r.acquire(t.Context(), i, x, r.keys[0])
			if err != nil {
				t.Fatal(err)
			}
			grants = append(grants, lease.Grant())
			target.MustExec(t, "UPDATE exclusive_lease SET expires_at = 1 WHERE lease_key = ?", []byte(r.keys[0])) // it runs out
		}
		if err := r.write(t.Context(), 0, target, x, grants[0], check); check != errors.Is(err, exclusive.ErrFenced) {
			t.Errorf("a late write, checked %v: %v", check, err)
		}
		r.read(1, r.keys[0])
		if legal := r.check(t) == porcupine.Ok; legal != check {
			t.Errorf("a late write, checked %v: the history is legal: %v", check, legal)
		}
	}
}
