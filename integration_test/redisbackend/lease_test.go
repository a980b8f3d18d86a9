package redisbackend_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/exclusivetest"
	"github.com/exclusive-go/exclusive/integration_test/servers"
	"github.com/exclusive-go/exclusive/redisbackend"
)

// The suite that others run on their backends.
func TestSuite(t *testing.T) {
	exclusivetest.Run(t, func(t *testing.T) exclusivetest.Backend {
		_, prefix := servers.Prefix(t)
		return exclusivetest.Backend{New: func(cfg exclusivetest.Config) (exclusive.Exclusive, error) {
			client := open(t, options(t))
			return newLeases(t, client, config(prefix, cfg)), nil
		}}
	})
}

func config(prefix string, c exclusivetest.Config) redisbackend.Config {
	return redisbackend.Config{Prefix: prefix, TTL: c.TTL, Wait: c.Wait, NoRenew: c.NoRenew, MaxHold: c.MaxHold, Holder: c.Holder}
}

func TestLifecycle(t *testing.T) {
	ctx := t.Context()
	client, prefix := servers.Prefix(t)
	a := newLeases(t, client, redisbackend.Config{Prefix: prefix, Holder: "A: with spaces"})
	b := newLeases(t, client, redisbackend.Config{Prefix: prefix, Holder: "B"})

	lease, err := a.TryAcquire(ctx, "k")
	must(t, "first acquire", err)
	g := lease.Grant()
	if g.Key != "k" || g.Token != 1 || g.Attempt != 1 || g.ID == "" || time.Until(g.Expires) < 25*time.Second {
		t.Errorf("grant %+v", g)
	}
	_, err = b.TryAcquire(ctx, "k")
	wantErr(t, "acquire of a held key", err, exclusive.ErrHeld)
	var e *exclusive.Error
	if !errors.As(err, &e) || e.Holder == nil || e.Holder.Name != "A: with spaces" || e.Holder.Token != g.Token || e.Holder.ID != g.ID ||
		time.Until(e.Holder.Expires) < 20*time.Second || time.Since(e.Holder.Since) > 20*time.Second {
		t.Errorf("who holds it is not told: %v", err)
	}
	must(t, "acquire of another key", b.Do(ctx, "K", nothing))
	must(t, "renew", lease.Renew(ctx))
	if after := lease.Grant(); after.Token != g.Token || !after.Expires.After(g.Expires) {
		t.Errorf("after renewal %+v", after)
	}
	must(t, "release", lease.Release(ctx))
	wantErr(t, "second release", lease.Release(ctx), exclusive.ErrLost)
	wantErr(t, "renewal after release", lease.Renew(ctx), exclusive.ErrLost)
	second, err := b.TryAcquire(ctx, "k")
	must(t, "acquire after release", err)
	if g2 := second.Grant(); g2.Token != 2 || g2.Attempt != 1 {
		t.Errorf("after token %d came %+v", g.Token, g2)
	}
	must(t, "release", second.Release(ctx))
}

func TestTakeover(t *testing.T) {
	ctx := t.Context()
	client, prefix := servers.Prefix(t)
	a := newLeases(t, client, redisbackend.Config{Prefix: prefix, TTL: 3 * time.Second, NoRenew: true})
	b := newLeases(t, client, redisbackend.Config{Prefix: prefix, Holder: "B"})
	old := acquire(t, a, "k")
	next := acquire(t, b, "k")
	if g := next.Grant(); g.Token != 2 || g.Attempt != 2 {
		t.Errorf("takeover of %+v got %+v", old.Grant(), g)
	}
	<-old.Context().Done()
	wantErr(t, "what ended the old lease", context.Cause(old.Context()), exclusive.ErrLost)
	wantErr(t, "release of the old lease", old.Release(ctx), exclusive.ErrLost)
	_, err := a.TryAcquire(ctx, "k")
	wantErr(t, "acquire after a late release", err, exclusive.ErrHeld)
	must(t, "release", next.Release(ctx))
	third := acquire(t, a, "k")
	if g := third.Grant(); g.Token != 3 || g.Attempt != 1 {
		t.Errorf("after a release came %+v", g)
	}
}

func TestInvalid(t *testing.T) {
	// A client of a server that is not there: bad input must not get that far.
	client := open(t, &redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1})
	for name, cfg := range map[string]redisbackend.Config{
		"braces":      {Prefix: "a{b}:"},
		"TTL":         {TTL: -1},
		"short TTL":   {TTL: 500 * time.Microsecond},
		"30 years":    {TTL: 30 * 365 * 24 * time.Hour},
		"longest TTL": {TTL: 1<<63 - 1},
		"Wait":        {Wait: -1},
		"MaxHold":     {MaxHold: -1},
		"Holder":      {Holder: strings.Repeat("x", 201)},
	} {
		_, err := redisbackend.New(client, cfg)
		wantErr(t, name, err, exclusive.ErrInvalid)
	}
	_, err := redisbackend.New(nil, redisbackend.Config{TTL: -1, Wait: -1})
	wantErr(t, "nil client", err, exclusive.ErrInvalid)
	for _, part := range []string{"client", "TTL", "Wait"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%v does not complain about %s", err, part)
		}
	}
	l := newLeases(t, client, redisbackend.Config{})
	for _, key := range []string{"", "a\x00b", "\xff", strings.Repeat("x", 201)} {
		_, err := l.TryAcquire(t.Context(), key)
		wantErr(t, "key", err, exclusive.ErrInvalid)
	}
	for _, n := range []int64{0, -1, 1<<63 - 1} {
		wantErr(t, "advance", l.Advance(t.Context(), "k", n), exclusive.ErrInvalid)
	}
	started := 0
	err = l.Do(t.Context(), "k", func(context.Context, exclusive.Grant) error { started++; return nil })
	wantErr(t, "server down", err, exclusive.ErrUnavailable)
	if started != 0 {
		t.Error("work ran without a lease")
	}
}

// oddKeys are different keys that a careless name, hash, collation or hash tag
// would take for the same, or put on different nodes of a cluster.
func oddKeys() []string {
	keys := []string{
		"a", "user:42", "x{y}z", "{", "}", "{}", "}{", "a{}b{c}", "%7B", "%", "{a}", "a:lease", "a}:lease", "{a}:counter", " ", "a ", "A",
		"report", "Report", "report ", "r\u00e9port", "re\u0301port", "STRASSE", "stra\u00dfe",
		"plumless", "buckeroo", "costarring", "liquid", "Aa", "BB", "0", "641", "a\nb", "a b",
		strings.Repeat("x", 200), strings.Repeat("x", 199) + "y", strings.Repeat("\U0001F512", 50),
	}
	for i := range 500 {
		keys = append(keys, fmt.Sprint("random/", i))
	}
	return keys
}

func TestKeysAreIndependent(t *testing.T) {
	client, prefix := servers.Prefix(t)
	l := newLeases(t, client, redisbackend.Config{Prefix: prefix})
	holdAll(t, l)
}

func holdAll(t *testing.T, l *redisbackend.Leases) {
	t.Helper()
	var held []*exclusive.Lease
	for _, key := range oddKeys() {
		lease, err := l.TryAcquire(t.Context(), key)
		must(t, fmt.Sprintf("acquire %q", key), err)
		if token := lease.Grant().Token; token != 1 {
			t.Errorf("the first token of %q is %d", key, token)
		}
		held = append(held, lease)
	}
	for _, lease := range held {
		must(t, "release", lease.Release(t.Context()))
	}
}

func TestRenewal(t *testing.T) {
	ctx := t.Context()
	client, prefix := servers.Prefix(t)
	const ttl = 4 * time.Second
	x := newLeases(t, client, redisbackend.Config{Prefix: prefix, TTL: ttl})
	rival := newLeases(t, client, redisbackend.Config{Prefix: prefix})
	must(t, "an earlier lease", x.Do(ctx, "other", nothing))
	var held []*exclusive.Lease
	for i := range 20 {
		held = append(held, acquire(t, x, fmt.Sprint("k", i)))
	}
	// The server forgets the scripts, as after a restart: renewal notices.
	must(t, "flush", client.ScriptFlush(ctx).Err())
	for end := time.Now().Add(2 * ttl); time.Now().Before(end); {
		for i := range held {
			_, err := rival.TryAcquire(ctx, fmt.Sprint("k", i))
			wantErr(t, "acquire of a renewed key", err, exclusive.ErrHeld)
		}
	}
	for _, lease := range held {
		must(t, "renewed for long", context.Cause(lease.Context()))
		must(t, "release", lease.Release(ctx))
	}
	// With renewal off the rival gets it.
	off := newLeases(t, client, redisbackend.Config{Prefix: prefix, TTL: time.Hour, NoRenew: true})
	lost := acquire(t, off, "k0")
	runOut(t, client, prefix+"{k0}:lease")
	must(t, "release", acquire(t, rival, "k0").Release(ctx))
	wantErr(t, "not renewed", lost.Release(ctx), exclusive.ErrLost)
}

// A key that an operator or an eviction removed is lost, and stays removed.
func TestRemovedLeaseIsLost(t *testing.T) {
	ctx := t.Context()
	client, prefix := servers.Prefix(t)
	x := newLeases(t, client, redisbackend.Config{Prefix: prefix, TTL: 6 * time.Second})
	err := x.Do(ctx, "k", func(ctx context.Context, g exclusive.Grant) error {
		must(t, "remove", client.Del(t.Context(), prefix+"{k}:lease").Err())
		<-ctx.Done()
		return nil
	})
	wantErr(t, "do", err, exclusive.ErrLost)
	if !strings.Contains(err.Error(), "no longer has it") { // what a renewal says, not the lease's end
		t.Errorf("not told by the next renewal: %v", err)
	}
	if n := client.Exists(ctx, prefix+"{k}:lease").Val(); n != 0 {
		t.Error("renewal made the lease again")
	}
}

// The counter has no expiry, and tokens rise whatever time passes.
func TestCounterStays(t *testing.T) {
	ctx := t.Context()
	client, prefix := servers.Prefix(t)
	x := newLeases(t, client, redisbackend.Config{Prefix: prefix, TTL: time.Minute, NoRenew: true})
	for i := range 50 {
		must(t, "do", x.Do(ctx, fmt.Sprint("k", i), nothing))
	}
	keys, err := client.Keys(ctx, prefix+"*").Result()
	must(t, "keys", err)
	if len(keys) != 50 {
		t.Errorf("%d Redis keys are left of 50 keys; want one each", len(keys))
	}
	for _, key := range keys {
		if ttl := client.TTL(ctx, key).Val(); ttl != -1 {
			t.Errorf("%s expires in %v", key, ttl)
		}
	}
}

// A counter that cannot count leaves no lease behind.
func TestNoOrphan(t *testing.T) {
	ctx := t.Context()
	client, prefix := servers.Prefix(t)
	x := newLeases(t, client, redisbackend.Config{Prefix: prefix})
	lease, counter := prefix+"{k}:lease", prefix+"{k}:counter"
	breakages := map[string]func() error{
		"list":         func() error { return client.RPush(ctx, counter, 1).Err() },
		"string":       func() error { return client.Set(ctx, counter, 1<<62, 0).Err() },
		"no integer":   func() error { return client.HSet(ctx, counter, "token", "1.5").Err() },
		"bad attempt":  func() error { return client.HSet(ctx, counter, "attempt", "many").Err() },
		"largest":      func() error { return client.HSet(ctx, counter, "token", "9223372036854775807").Err() },
		"beyond 2^47":  func() error { return client.HSet(ctx, counter, "token", int64(1)<<47).Err() },
		"foreign lock": func() error { return client.SAdd(ctx, lease, 1).Err() },
		"foreign text": func() error { return client.Set(ctx, lease, "locked", 0).Err() },
	}
	for name, damage := range breakages {
		must(t, name, damage())
		_, err := x.TryAcquire(ctx, "k")
		wantErr(t, name, err, exclusive.ErrUnavailable)
		if !strings.HasPrefix(name, "foreign") && client.Exists(ctx, lease).Val() != 0 {
			t.Errorf("%s: a lease is left that nobody holds", name)
		}
		must(t, "repair", client.Del(ctx, lease, counter).Err())
		must(t, name+", repaired", x.Do(ctx, "k", nothing))
		must(t, "clean up", client.Del(ctx, lease, counter).Err())
	}
}

// The twin of TestNoOrphan: SET before INCR leaves the lock.
func TestNoOrphanTwin(t *testing.T) {
	ctx := t.Context()
	client, prefix := servers.Prefix(t)
	must(t, "damage", client.RPush(ctx, prefix+"counter", 1).Err())
	err := client.Eval(ctx, `redis.call('SET', KEYS[1], 'x', 'NX', 'PX', 60000) return redis.call('INCR', KEYS[2])`,
		[]string{prefix + "lock", prefix + "counter"}).Err()
	if err == nil || client.Exists(ctx, prefix+"lock").Val() != 1 {
		t.Errorf("without the order of writes nothing breaks: %v", err)
	}
}

func TestAdvance(t *testing.T) {
	ctx := t.Context()
	client, prefix := servers.Prefix(t)
	x := newLeases(t, client, redisbackend.Config{Prefix: prefix})
	for _, key := range []string{"new", "known"} {
		if key == "known" {
			must(t, "do", x.Do(ctx, key, nothing))
		}
		must(t, "advance", x.Advance(ctx, key, 5000))
		must(t, "advance to less", x.Advance(ctx, key, 17))
		if token := acquire(t, x, key).Grant().Token; token != 5001 {
			t.Errorf("%s: token %d after Advance to 5000", key, token)
		}
	}
}

// runOut has the server remove a lease, as when its time is over.
func runOut(t *testing.T, client *redis.Client, lease string) {
	t.Helper()
	ok, err := client.PExpire(t.Context(), lease, time.Millisecond).Result()
	must(t, "let it run out", err)
	if !ok {
		t.Fatalf("%s is not there", lease)
	}
	for client.Exists(t.Context(), lease).Val() > 0 {
		time.Sleep(time.Millisecond)
	}
}

// A release in another process wakes a waiter long before it would poll.
func TestWakeUp(t *testing.T) {
	ctx := t.Context()
	client, prefix := servers.Prefix(t)
	a := newLeases(t, client, redisbackend.Config{Prefix: prefix})
	b := newLeases(t, open(t, options(t)), redisbackend.Config{Prefix: prefix})
	published := func() int {
		return int(client.PubSubNumSub(ctx, prefix+"{k}:free").Val()[prefix+"{k}:free"])
	}
	var slow int
	for range 10 {
		held := acquire(t, a, "k")
		got := make(chan time.Time, 1)
		go func() {
			lease, err := b.Acquire(ctx, "k")
			if err != nil {
				t.Errorf("acquire: %v", err)
				got <- time.Now()
				return
			}
			got <- time.Now()
			_ = lease.Release(ctx)
		}()
		for published() == 0 { // it waits and listens
			time.Sleep(time.Millisecond)
		}
		time.Sleep(300 * time.Millisecond) // and polls rarely by now
		released := time.Now()
		must(t, "release", held.Release(ctx))
		if (<-got).Sub(released) > 60*time.Millisecond {
			slow++
		}
	}
	if slow > 5 {
		t.Errorf("%d of 10 waiters were not woken", slow)
	}
	must(t, "close", b.Close())
	// The server notices a closed connection when it gets round to it.
	for deadline := time.Now().Add(20 * time.Second); published() != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d subscriptions are left", published())
		}
	}
}

func TestHammer(t *testing.T) {
	for _, load := range []struct{ workers, keys int }{{8, 1}, {64, 1}, {8, 100}, {64, 100}} {
		t.Run(fmt.Sprintf("%d_workers_%d_keys", load.workers, load.keys), func(t *testing.T) {
			_, prefix := servers.Prefix(t)
			hammer(t, func() redis.UniversalClient { return open(t, options(t)) }, prefix, load.workers, load.keys)
		})
	}
}

// hammer lets workers of two processes count under leases, and compares the
// counts with the tokens.
func hammer(t *testing.T, client func() redis.UniversalClient, prefix string, workers, keys int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var processes []*redisbackend.Leases
	for range 2 {
		processes = append(processes, newLeases(t, client(), redisbackend.Config{Prefix: prefix, Wait: 20 * time.Second}))
	}
	type counted struct {
		inside atomic.Int32
		count  int64 // guarded by nothing but the lease
		last   int64
	}
	totals := make([]counted, keys)
	end := time.Now().Add(300 * time.Millisecond)
	var wg sync.WaitGroup
	var done atomic.Int64
	for w := range workers {
		wg.Go(func() {
			for i := w; time.Now().Before(end); i++ {
				c := &totals[i%keys]
				err := processes[w%2].Do(ctx, fmt.Sprint("k", i%keys), func(ctx context.Context, g exclusive.Grant) error {
					if c.inside.Add(1) != 1 {
						t.Error("two holders at once")
					}
					c.count++
					if g.Token <= c.last {
						t.Errorf("token %d after %d", g.Token, c.last)
					}
					c.last = g.Token
					c.inside.Add(-1)
					return nil
				})
				if err != nil {
					t.Errorf("do: %v", err)
				}
				done.Add(1)
			}
		})
	}
	wg.Wait()
	var sum int64
	for i := range totals {
		sum += totals[i].count
		if totals[i].count != totals[i].last {
			t.Errorf("%d grants, but token %d", totals[i].count, totals[i].last)
		}
	}
	if sum != done.Load() {
		t.Errorf("%d of %d writes are lost", done.Load()-sum, done.Load())
	}
	t.Logf("%d grants", sum)
}
