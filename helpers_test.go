package exclusive_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/exclusivetest"
)

func newMemory(t *testing.T, d *exclusivetest.MemoryDB, cfg exclusivetest.Config) *exclusivetest.Memory {
	t.Helper()
	m, err := exclusivetest.NewMemory(d, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// Callers that name the same keys in different orders do not block each other,
// as they would if each took them in its own.
func TestDoAllTakesKeysInOneOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newMemory(t, exclusivetest.NewMemoryDB(), exclusivetest.Config{TTL: time.Minute, Wait: time.Hour})
		var inside, done atomic.Int32
		finished := make(chan error)
		for i := range 20 {
			keys := []string{"a", "b", "c"}
			if i%2 == 0 {
				slices.Reverse(keys)
			}
			go func() {
				finished <- exclusive.DoAll(t.Context(), x, keys, func(ctx context.Context, grants []exclusive.Grant) error {
					if inside.Add(1) > 1 {
						t.Error("two at once")
					}
					for i, g := range grants {
						if g.Key != keys[i] || g.Token == 0 {
							t.Errorf("grant %+v for %q", g, keys[i])
						}
					}
					time.Sleep(time.Second)
					inside.Add(-1)
					done.Add(1)
					return nil
				})
			}()
		}
		for range 20 {
			if err := <-finished; err != nil {
				t.Error(err)
			}
		}
		if done.Load() != 20 {
			t.Errorf("%d of 20 have worked", done.Load())
		}
	})
}

func TestDoAllIsAllOrNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newMemory(t, exclusivetest.NewMemoryDB(), exclusivetest.Config{TTL: time.Minute})
		other, err := x.TryAcquire(t.Context(), "b")
		if err != nil {
			t.Fatal(err)
		}
		work := func(context.Context, []exclusive.Grant) error { t.Error("work ran"); return nil }
		if err := exclusive.DoAll(t.Context(), x, []string{"c", "b", "a"}, work); !errors.Is(err, exclusive.ErrHeld) || !strings.Contains(err.Error(), `"b"`) {
			t.Errorf("one key is held: %v", err)
		}
		for _, key := range []string{"a", "c"} {
			lease, err := x.TryAcquire(t.Context(), key)
			if err != nil {
				t.Fatalf("%s was not given back: %v", key, err)
			}
			if err := lease.Release(t.Context()); err != nil {
				t.Error(err)
			}
		}
		for _, keys := range [][]string{nil, {"a", "a"}, {"a", ""}, {"c", "b", "c"}} {
			if err := exclusive.DoAll(t.Context(), x, keys, work); !errors.Is(err, exclusive.ErrInvalid) {
				t.Errorf("%q: %v; want ErrInvalid", keys, err)
			}
		}
		if err := exclusive.DoAll(t.Context(), x, []string{"a"}, nil); !errors.Is(err, exclusive.ErrInvalid) {
			t.Errorf("no work: %v", err)
		}
		if err := other.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// The service runs on one instance, moves on when that loses the key, and comes
// back.
func TestCampaign(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := exclusivetest.NewMemoryDB()
		ctx, cancel := context.WithCancel(t.Context())
		var serving, terms atomic.Int32
		ended := make(chan error, 3)
		for range 3 {
			x := newMemory(t, d, exclusivetest.Config{TTL: 3 * time.Second})
			go func() {
				ended <- exclusive.Campaign(ctx, x, "leader", func(ctx context.Context, g exclusive.Grant) error {
					serving.Add(1)
					terms.Add(1)
					<-ctx.Done()
					serving.Add(-1)
					return ctx.Err()
				})
			}()
		}
		operator := newMemory(t, d, exclusivetest.Config{TTL: time.Second})
		for term := range int32(5) {
			time.Sleep(10 * time.Second)
			if serving.Load() != 1 || terms.Load() != term+1 {
				t.Fatalf("%d serve in term %d of %d", serving.Load(), terms.Load(), term+1)
			}
			if err := operator.Revoke(t.Context(), "leader"); err != nil {
				t.Fatal(err)
			}
		}
		cancel()
		for range 3 {
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Errorf("ended with %v", err)
			}
		}
		lease, err := operator.TryAcquire(t.Context(), "leader")
		if err != nil {
			t.Fatalf("the key was not given back: %v", err)
		}
		_ = lease.Release(t.Context())
	})
}

// A service that hears of the loss before the lease does, from its Check or Commit,
// campaigns again, as one does that is told by its context. Its own refusal, by
// something that is not this lease, ends the Campaign.
func TestCampaignServiceHearsOfTheLossFirst(t *testing.T) {
	for name, kind := range map[string]error{"lost": exclusive.ErrLost, "fenced": exclusive.ErrFenced} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := exclusivetest.NewMemoryDB()
				x := newMemory(t, d, exclusivetest.Config{TTL: time.Minute})
				operator := newMemory(t, d, exclusivetest.Config{TTL: time.Minute})
				business := errors.New("business error")
				terms := 0
				err := exclusive.Campaign(t.Context(), x, "leader", func(ctx context.Context, g exclusive.Grant) error {
					if terms++; terms == 3 {
						return business
					}
					if err := operator.Revoke(t.Context(), "leader"); err != nil {
						t.Error(err)
					}
					if ctx.Err() != nil {
						t.Error("the lease has noticed: the test proves nothing")
					}
					if kind == exclusive.ErrLost { // as backends say while nobody else has it
						return &exclusive.Error{Op: "check", Key: g.Key, Kind: kind}
					}
					return x.Commit(ctx, g, func(context.Context, *exclusivetest.MemoryTx) error { return nil })
				})
				if !errors.Is(err, business) || terms != 3 { // not the refusals
					t.Errorf("ended in term %d of 3 with %v", terms, err)
				}
				unrelated := &exclusive.Error{Op: "commit", Key: "other", Kind: kind}
				terms = 0
				if err := exclusive.Campaign(t.Context(), x, "leader", func(context.Context, exclusive.Grant) error {
					terms++
					return unrelated
				}); !errors.Is(err, kind) || terms != 1 {
					t.Errorf("a refusal of another grant: ended in term %d of 1 with %v", terms, err)
				}
			})
		})
	}
}

// flaky is a Leaser whose backend is away at first.
type flaky struct {
	*exclusivetest.Memory
	err   error
	until time.Time
	tries int
}

func (f *flaky) Acquire(ctx context.Context, key string) (*exclusive.Lease, error) {
	if f.tries++; time.Now().Before(f.until) {
		return nil, &exclusive.Error{Op: "acquire", Key: key, Kind: f.err}
	}
	return f.Memory.Acquire(ctx, key)
}

func TestCampaignOutlivesTheBackend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := &flaky{
			Memory: newMemory(t, exclusivetest.NewMemoryDB(), exclusivetest.Config{TTL: time.Minute}),
			err:    exclusive.ErrUnavailable, until: time.Now().Add(time.Hour),
		}
		business := errors.New("business error")
		err := exclusive.Campaign(t.Context(), x, "k", func(context.Context, exclusive.Grant) error { return business })
		if !errors.Is(err, business) {
			t.Errorf("ended with %v", err)
		}
		if x.tries < 300 || x.tries > 1000 {
			t.Errorf("%d tries in an hour", x.tries)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		x.until = time.Now().Add(time.Hour)
		if err := exclusive.Campaign(ctx, x, "k", func(context.Context, exclusive.Grant) error { return nil }); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("its context ended while the backend was away: %v", err)
		}
		for _, permanent := range []error{exclusive.ErrInvalid, exclusive.ErrSchema, exclusive.ErrUnsupported} {
			x.err, x.tries = permanent, 0
			if err := exclusive.Campaign(t.Context(), x, "k", func(context.Context, exclusive.Grant) error { return nil }); !errors.Is(err, permanent) || x.tries != 1 {
				t.Errorf("%v after %d tries", err, x.tries)
			}
		}
		if err := exclusive.Campaign(t.Context(), x, "k", nil); !errors.Is(err, exclusive.ErrInvalid) {
			t.Errorf("no service: %v", err)
		}
	})
}

// silent gives no answer to the first Acquire.
type silent struct {
	*exclusivetest.Memory
	asked bool
}

func (s *silent) Acquire(ctx context.Context, key string) (*exclusive.Lease, error) {
	if !s.asked {
		s.asked = true
		<-ctx.Done()
		return nil, &exclusive.Error{Op: "acquire", Key: key, Err: ctx.Err()}
	}
	return s.Memory.Acquire(ctx, key)
}

// A connection that gives no answer does not end a Campaign, nor hold it up for good;
// a key that is held for long does neither.
func TestCampaignWithoutAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := exclusivetest.NewMemoryDB()
		x := &silent{Memory: newMemory(t, db, exclusivetest.Config{TTL: time.Minute})}
		began := time.Now()
		err := exclusive.Campaign(t.Context(), x, "k", func(context.Context, exclusive.Grant) error { return nil })
		if took := time.Since(began); err != nil || took > time.Minute {
			t.Errorf("%v after %v", err, took)
		}
		holder, err := newMemory(t, db, exclusivetest.Config{TTL: time.Minute}).TryAcquire(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(time.Hour, func() { _ = holder.Release(context.Background()) })
		began = time.Now()
		err = exclusive.Campaign(t.Context(), x, "k", func(context.Context, exclusive.Grant) error { return nil })
		if took := time.Since(began); err != nil || took < time.Hour || took > time.Hour+time.Second {
			t.Errorf("a key that was held for an hour: %v after %v", err, took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		x.asked = false
		if err := exclusive.Campaign(ctx, x, "k", func(context.Context, exclusive.Grant) error { return nil }); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("its context ended during the silence: %v", err)
		}
	})
}

// The service's context stands for the lease's grant, not for that of a Do around
// the Campaign.
func TestCampaignCurrentGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newMemory(t, exclusivetest.NewMemoryDB(), exclusivetest.Config{TTL: time.Minute})
		campaign := func(ctx context.Context) error {
			return exclusive.Campaign(ctx, x, "inner", func(ctx context.Context, g exclusive.Grant) error {
				time.Sleep(time.Hour)
				if now, ok := exclusive.CurrentGrant(ctx); !ok || now.ID != g.ID || !now.Expires.After(time.Now()) {
					t.Errorf("the context stands for %+v, %v; the grant is %+v", now, ok, g)
				}
				return nil
			})
		}
		if err := campaign(t.Context()); err != nil {
			t.Error(err)
		}
		if err := x.Do(t.Context(), "outer", func(ctx context.Context, _ exclusive.Grant) error { return campaign(ctx) }); err != nil {
			t.Error(err)
		}
	})
}

// A Commit of the service ends its term: its context ends, another instance can lead,
// and Campaign returns what the service does.
func TestCampaignEndsWithACommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := exclusivetest.NewMemoryDB()
		x, other := newMemory(t, d, exclusivetest.Config{TTL: time.Minute}), newMemory(t, d, exclusivetest.Config{TTL: time.Minute})
		business := errors.New("business error")
		err := exclusive.Campaign(t.Context(), x, "leader", func(ctx context.Context, g exclusive.Grant) error {
			if err := x.Commit(ctx, g, func(context.Context, *exclusivetest.MemoryTx) error { return nil }); err != nil {
				t.Error(err)
			}
			<-ctx.Done()
			lease, err := other.TryAcquire(t.Context(), "leader")
			if err != nil {
				t.Errorf("nobody else can lead: %v", err)
				return business
			}
			if err := lease.Release(t.Context()); err != nil {
				t.Error(err)
			}
			return business
		})
		if !errors.Is(err, business) {
			t.Errorf("ended with %v", err)
		}

		// One that does not know, and hands on its context's error, leads again.
		terms := 0
		err = exclusive.Campaign(t.Context(), x, "leader", func(ctx context.Context, g exclusive.Grant) error {
			if terms++; terms == 2 {
				return business
			}
			if err := x.Commit(ctx, g, func(context.Context, *exclusivetest.MemoryTx) error { return nil }); err != nil {
				t.Error(err)
			}
			<-ctx.Done()
			return ctx.Err()
		})
		if !errors.Is(err, business) || terms != 2 {
			t.Errorf("ended with %v after %d terms", err, terms)
		}
	})
}

func TestCampaignPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newMemory(t, exclusivetest.NewMemoryDB(), exclusivetest.Config{TTL: time.Minute})
		func() {
			defer func() {
				if r := recover(); r != "boom" {
					t.Errorf("recovered %v", r)
				}
			}()
			_ = exclusive.Campaign(t.Context(), x, "k", func(context.Context, exclusive.Grant) error { panic("boom") })
		}()
		lease, err := x.TryAcquire(t.Context(), "k")
		if err != nil {
			t.Fatalf("the key was not given back: %v", err)
		}
		_ = lease.Release(t.Context())
	})
}
