package redisbackend_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/fencing"
	"github.com/exclusive-go/exclusive/integration_test/matrix"
	"github.com/exclusive-go/exclusive/integration_test/servers"
	"github.com/exclusive-go/exclusive/redisbackend"
)

func setUp[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	t.Helper()
	target.Migrate(t, "fencing")
	target.Migrate(t, "redisbackend")
	target.MustExec(t, "CREATE TABLE result (name varchar(100) PRIMARY KEY, body varchar(200) NOT NULL)")
}

// inTx runs f in a transaction of the application's own.
func inTx[Tx any](ctx context.Context, target *matrix.Target[Tx], f func(Tx) error) error {
	tx, err := target.BeginPast(ctx)
	if err != nil {
		return err
	}
	if err := f(tx); err != nil {
		return errors.Join(err, target.DB.Rollback(tx))
	}
	return target.DB.Commit(ctx, tx)
}

// Redis loses leases and counters: by eviction, a flush, or a failover that
// brings an older state back. The guard refuses whoever has a token that was
// seen, and Do gets through with a new one.
func TestLostCounters(t *testing.T) { matrix.Drivers(t, testLostCounters, testLostCounters) }

func testLostCounters[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	ctx := t.Context()
	client, prefix := servers.Prefix(t)
	x := newLeases(t, client, redisbackend.Config{Prefix: prefix})
	guard, err := fencing.NewGuard(target.DB, fencing.GuardConfig{})
	must(t, "new guard", err)
	check := func(g exclusive.Grant) error {
		return inTx(ctx, target, func(tx Tx) error { return guard.Check(ctx, tx, g) })
	}
	must(t, "advance", x.Advance(ctx, "k", 4))

	// The lease is evicted: the next holder's token is greater.
	a := acquire(t, x, "k").Grant()
	must(t, "A", check(a))
	must(t, "evict", client.Del(ctx, prefix+"{k}:lease").Err())
	b := acquire(t, x, "k").Grant()
	must(t, "B", check(b))
	wantErr(t, "A after B", check(a), exclusive.ErrFenced)

	// A failover lost the lease and the last count: an equal token.
	must(t, "go back", client.HSet(ctx, prefix+"{k}:counter", "token", b.Token-1).Err())
	must(t, "go back", client.Del(ctx, prefix+"{k}:lease").Err())
	twin := acquire(t, x, "k").Grant()
	if twin.Token != b.Token {
		t.Fatalf("the twin of token %d got %d", b.Token, twin.Token)
	}
	wantErr(t, "equal token", check(twin), exclusive.ErrFenced)
	must(t, "B with the same token", check(b))

	// Everything is lost. A bare check refuses; Do heals.
	must(t, "flush", client.Del(ctx, prefix+"{k}:counter", prefix+"{k}:lease").Err())
	lease := acquire(t, x, "k")
	if g := lease.Grant(); g.Token != 1 {
		t.Fatalf("after a flush: %+v", g)
	}
	wantErr(t, "after a flush", check(lease.Grant()), exclusive.ErrFenced)
	must(t, "release", lease.Release(ctx))
	both := fencing.Guarded(x, guard)
	must(t, "do", both.Do(ctx, "k", func(ctx context.Context, g exclusive.Grant) error {
		if g.Token <= b.Token {
			t.Errorf("healed token %d after %d", g.Token, b.Token)
		}
		return both.Commit(ctx, g, func(ctx context.Context, tx Tx) error {
			return target.Exec(ctx, tx, target.Bind("INSERT INTO result VALUES ('k', ?)"), "healed")
		})
	}))
	if n := target.Int(t, "SELECT COUNT(*) FROM result WHERE body = 'healed'"); n != 1 {
		t.Errorf("%d results are stored", n)
	}
	wantErr(t, "B after all", check(b), exclusive.ErrFenced)
}

// A destination that does not take the grant while the lease lasts, here since a
// former holder's transaction hangs, is not available: nobody is at work, as "held"
// would say.
func TestDestinationTooSlow(t *testing.T) {
	matrix.Drivers(t, testDestinationTooSlow, testDestinationTooSlow)
}

func testDestinationTooSlow[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	ctx := t.Context()
	client, prefix := servers.Prefix(t)
	guard, err := fencing.NewGuard(target.DB, fencing.GuardConfig{})
	must(t, "new guard", err)
	both := fencing.Guarded(newLeases(t, client, redisbackend.Config{Prefix: prefix, TTL: 300 * time.Millisecond, NoRenew: true}), guard)
	patient := newLeases(t, client, redisbackend.Config{Prefix: prefix, Wait: time.Minute})
	former := acquire(t, newLeases(t, client, redisbackend.Config{Prefix: prefix, TTL: 10 * time.Second, NoRenew: true}), "k")
	must(t, "a hanging transaction", inTx(ctx, target, func(tx Tx) error {
		must(t, "check of the former holder", guard.Check(ctx, tx, former.Grant()))
		must(t, "release", former.Release(ctx))
		err := both.Do(ctx, "k", func(context.Context, exclusive.Grant) error {
			t.Error("work ran")
			return nil
		})
		wantErr(t, "do", err, exclusive.ErrUnavailable)
		if errors.Is(err, exclusive.ErrHeld) || errors.Is(err, exclusive.ErrLost) {
			t.Errorf("do: %v", err)
		}
		return nil
	}))
	must(t, "afterwards", fencing.Guarded(patient, guard).Do(ctx, "k", func(context.Context, exclusive.Grant) error { return nil }))
}

func newTokens[Tx any](t *testing.T, target *matrix.Target[Tx]) *redisbackend.Tokens[Tx] {
	t.Helper()
	tokens, err := redisbackend.NewTokens(target.DB, redisbackend.TokensConfig{})
	must(t, "new tokens", err)
	return tokens
}

func TestTokens(t *testing.T) { matrix.Each(t, testTokens, testTokens) }

func testTokens[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	ctx := t.Context()
	tokens := newTokens(t, target)
	_, err := tokens.Next(ctx, "k")
	wantErr(t, "before the migration", err, exclusive.ErrSchema)
	target.Migrate(t, "redisbackend")
	for want := range int64(3) {
		token, err := tokens.Next(ctx, "k")
		must(t, "next", err)
		if token != want+1 {
			t.Errorf("token %d, want %d", token, want+1)
		}
	}
	for _, key := range []string{"new", "k"} {
		must(t, "advance", tokens.Advance(ctx, key, 5000))
		must(t, "advance to less", tokens.Advance(ctx, key, 17))
		if token, err := tokens.Next(ctx, key); token != 5001 || err != nil {
			t.Errorf("%s: %d, %v", key, token, err)
		}
	}
	_, err = tokens.Next(ctx, "")
	wantErr(t, "empty key", err, exclusive.ErrInvalid)
	wantErr(t, "advance to 0", tokens.Advance(ctx, "k", 0), exclusive.ErrInvalid)
	_, err = redisbackend.NewTokens(target.DB, redisbackend.TokensConfig{Prefix: `a"`, Schema: "b;"})
	wantErr(t, "bad names", err, exclusive.ErrInvalid)
	_, err = redisbackend.NewTokens[Tx](nil, redisbackend.TokensConfig{})
	wantErr(t, "no adapter", err, exclusive.ErrInvalid)

	// Drawn at once by many, none comes twice.
	var mu sync.Mutex
	var drawn []int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 10 {
				token, err := tokens.Next(ctx, "race")
				if err != nil {
					t.Errorf("next: %v", err)
				}
				mu.Lock()
				drawn = append(drawn, token)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	slices.Sort(drawn)
	if n := len(slices.Compact(drawn)); n != 80 || drawn[0] != 1 {
		t.Errorf("80 draws gave %d tokens, from %d", n, drawn[0])
	}
}

func TestTokensFromDatabase(t *testing.T) {
	matrix.Drivers(t, testTokensFromDatabase, testTokensFromDatabase)
}

func testTokensFromDatabase[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	ctx := t.Context()
	client, prefix := servers.Prefix(t)
	x := newLeases(t, client, redisbackend.Config{Prefix: prefix, Wait: 10 * time.Second, Tokens: newTokens(t, target)})
	var last int64
	do := func(attempt int) {
		t.Helper()
		must(t, "do", x.Do(ctx, "k", func(_ context.Context, g exclusive.Grant) error {
			stored := client.Get(ctx, prefix+"{k}:lease").Val()
			if want := fmt.Sprintf("%s %d %d ", g.ID, g.Token, attempt); len(stored) < len(want) || stored[:len(want)] != want {
				t.Errorf("stored %q, want %q", stored, want)
			}
			if g.Token <= last {
				t.Errorf("token %d after %d", g.Token, last)
			}
			last = g.Token
			return nil
		}))
	}
	do(1)
	do(1)
	// Redis loses everything: tokens rise all the same.
	must(t, "flush", client.Del(ctx, prefix+"{k}:counter").Err())
	do(1)
	if last != 3 {
		t.Errorf("the third token is %d", last)
	}
	if ttl := client.PTTL(ctx, prefix+"{k}:counter").Val(); ttl <= 0 || ttl > 10*time.Minute {
		t.Errorf("the counter of a free key goes in %v", ttl)
	}
	must(t, "advance", x.Advance(ctx, "k", 100))
	do(1)
	if last != 101 {
		t.Errorf("token %d after Advance to 100", last)
	}
	// The source went back: nobody gets a token for the second time.
	target.MustExec(t, "UPDATE exclusive_counter SET token = 50")
	err := x.Do(ctx, "k", nothing)
	wantErr(t, "the source went back", err, exclusive.ErrUnavailable)
	must(t, "advance", x.Advance(ctx, "k", last))
	do(1)
	// Without the source nobody works, and nothing is left.
	target.MustExec(t, "DROP TABLE exclusive_counter")
	wantErr(t, "no table", x.Do(ctx, "k", nothing), exclusive.ErrSchema)
	target.Migrate(t, "redisbackend")
	must(t, "advance", x.Advance(ctx, "k", last))
	wctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	lease, err := x.Acquire(wctx, "k")
	must(t, "acquire after a failed draw", err)
	must(t, "release", lease.Release(ctx))
}

// source is a TokenSource of a test's own.
type source func(ctx context.Context, key string) (int64, error)

func (s source) Next(ctx context.Context, key string) (int64, error) { return s(ctx, key) }

func TestTokenSource(t *testing.T) {
	ctx := t.Context()
	client, prefix := servers.Prefix(t)
	broken := errors.New("broken")
	n := int64(0)
	for name, c := range map[string]struct {
		source source
		kind   error
	}{
		"zero":     {func(context.Context, string) (int64, error) { return 0, nil }, exclusive.ErrUnavailable},
		"too much": {func(context.Context, string) (int64, error) { return 1 << 50, nil }, exclusive.ErrUnavailable},
		"error":    {func(context.Context, string) (int64, error) { return 0, broken }, broken},
		"slow": {func(context.Context, string) (int64, error) {
			n++
			time.Sleep(150 * time.Millisecond) // longer than the lease
			return n, nil
		}, exclusive.ErrUnavailable},
	} {
		x := newLeases(t, client, redisbackend.Config{Prefix: prefix, TTL: 50 * time.Millisecond, NoRenew: true, Tokens: c.source})
		runs := 0
		err := x.Do(ctx, name, func(context.Context, exclusive.Grant) error { runs++; return nil })
		wantErr(t, name, err, c.kind)
		wantErr(t, name, x.Advance(ctx, name, 5), exclusive.ErrUnsupported)
		if runs != 0 {
			t.Errorf("%s: work ran", name)
		}
	}
}
