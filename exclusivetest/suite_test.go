package exclusivetest

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/internal/story"
)

// The stories as users call them, on the reference.
func TestStories(t *testing.T) {
	t.Run("IssuerRestored", func(t *testing.T) { IssuerRestored(t, func(t *testing.T) Rig { return memoryRig(t, true) }) })
	t.Run("DestinationRestored", func(t *testing.T) {
		DestinationRestored(t, func(t *testing.T) Rig { return memoryRig(t, false) })
	})
	t.Run("LostAnswer", func(t *testing.T) { LostAnswer(t, memoryOnceRig) })
}

func memoryRig(t *testing.T, issuer bool) Rig {
	t.Helper()
	d := NewMemoryDB()
	holder := func(cfg Config) Holder {
		m, err := NewMemory(d, cfg)
		if err != nil {
			t.Fatal(err)
		}
		return Holder{m, func(ctx context.Context, g exclusive.Grant, value string, between func()) error {
			return d.InTx(ctx, func(ctx context.Context, tx *MemoryTx) error {
				if err := m.Check(ctx, tx, g); err != nil {
					return err
				}
				between()
				return tx.Put(ctx, g.Key, value)
			})
		}}
	}
	r := Rig{
		A: holder(Config{TTL: TTL, NoRenew: true}), B: holder(Config{}),
		Unguarded: func(ctx context.Context, key, value string) error {
			return d.InTx(ctx, func(ctx context.Context, tx *MemoryTx) error { return tx.Put(ctx, key, value) })
		},
		Read:   func(_ context.Context, key string) (string, error) { return d.Get(key), nil },
		BackUp: d.BackUpData,
	}
	if issuer {
		r.BackUp = d.BackUpLeases
	}
	return r
}

func memoryOnceRig(t *testing.T) OnceRig {
	t.Helper()
	d := NewMemoryDB()
	m, err := NewMemory(d, Config{})
	if err != nil {
		t.Fatal(err)
	}
	effects := func(key string) int {
		n, _ := strconv.Atoi(d.Get(key)) // "" is 0
		return n
	}
	return OnceRig{
		Once: func(ctx context.Context, key, opID string, payload []byte, after func() error) (result []byte, err error) {
			err = d.InTx(ctx, func(ctx context.Context, tx *MemoryTx) error {
				result, err = m.Once(ctx, tx, opID, payload, func(ctx context.Context) ([]byte, error) {
					if err := tx.Put(ctx, key, strconv.Itoa(effects(key)+1)); err != nil {
						return nil, err
					}
					return []byte("receipt"), after()
				})
				return err
			})
			return result, err
		},
		Plain: func(ctx context.Context, key string) error {
			return d.InTx(ctx, func(ctx context.Context, tx *MemoryTx) error {
				return tx.Put(ctx, key, strconv.Itoa(effects(key)+1))
			})
		},
		Effects: func(_ context.Context, key string) (int, error) { return effects(key), nil },
	}
}

// Tokens that went back must be refused until they have caught up. That is
// right, and the story says so.
func TestIssuerCatchesUp(t *testing.T) {
	for name, fake := range map[string]func(*Memory) fake{
		"by itself":  func(m *Memory) fake { return goesBack{m} },
		"by Advance": func(m *Memory) fake { return advances{goesBack{m}} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if err := runNamed(t.Context(), t, "IssuerRestored/check", brokenBackend(fake)); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// goesBack is an issuer beside a guard of its own that compares ids as well.
type goesBack struct{ *Memory }

func (f goesBack) Check(ctx context.Context, tx *MemoryTx, g exclusive.Grant) error {
	r := row{values, g.Key + "/mark"}
	if err := tx.lock(ctx, r); err != nil {
		return err
	}
	mark := txGet[markRow](tx, r)
	if g.Token < mark.token || g.Token == mark.token && g.ID != mark.id {
		return &exclusive.Error{Op: "check", Key: g.Key, Kind: exclusive.ErrFenced}
	}
	return tx.put(ctx, r, markRow{token: g.Token, id: g.ID})
}

type advances struct{ goesBack }

func (f advances) Advance(ctx context.Context, key string, atLeast int64) error {
	r := row{leases, key}
	return f.db.update(ctx, "advance", r, func() error {
		now := get[leaseRow](f.db.rows, r)
		now.token = max(now.token, atLeast)
		f.db.rows[r] = now
		return nil
	})
}

// What is not promised or not offered is skipped, with a reason, and what is
// promised is not.
func TestBlanksAreSkipped(t *testing.T) {
	held := map[string]bool{}
	var mu sync.Mutex
	b := memoryBackend()
	b.New = func(Config) (fake, error) { return mutex{held: held, mu: &mu}, nil }
	b.BackUpIssuer, b.BackUpDestination = nil, nil
	ran := map[string]bool{
		"OneWinner": true, "OneAtATime": true, "HeldWhileRenewed": true,
		"FailureFrees": true, "CancelFrees": true, "BadKeys": true,
	}
	for _, name := range allNames() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				err := runNamed(t.Context(), t, name, b)
				switch skips := errors.As(err, new(skipped)); {
				case ran[name] && err != nil:
					t.Error(err)
				case !ran[name] && !skips && !errors.Is(err, story.ErrNotTimeBound):
					t.Errorf("not skipped: %v", err)
				}
			})
		})
	}
}

// The cases are for strategies too that do not run finished work again.
func TestOnceOnly(t *testing.T) {
	for _, name := range []string{"OneWinner", "OneAtATime", "OncePerKey", "HeldWhileRenewed", "FailureFrees", "CancelFrees"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				held := map[string]bool{}
				var mu sync.Mutex
				b := memoryBackend()
				b.New = func(Config) (fake, error) {
					return onceOnly{mutex{held: held, mu: &mu}}, nil
				}
				if err := runNamed(t.Context(), t, name, b); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// onceOnly is a mutex that nobody gets once work has succeeded.
type onceOnly struct{ mutex }

func (x onceOnly) Promises() exclusive.Promises {
	return exclusive.Promises{OneWinner: true, OneAtATime: true, OncePerKey: true}
}

func (x onceOnly) Do(ctx context.Context, key string, work exclusive.Work) error {
	done := "done: " + key
	return x.mutex.Do(ctx, key, func(ctx context.Context, g exclusive.Grant) error {
		x.mu.Lock()
		was := x.held[done]
		x.mu.Unlock()
		if was {
			return &exclusive.Error{Op: "do", Key: key, Kind: exclusive.ErrDone}
		}
		if err := work(ctx, g); err != nil || ctx.Err() != nil {
			return err
		}
		x.mu.Lock()
		defer x.mu.Unlock()
		x.held[done] = true
		return nil
	})
}

// mutex is a strategy whose grants no time bounds, and that proves nothing in
// transactions.
type mutex struct {
	held map[string]bool
	mu   *sync.Mutex
}

func (x mutex) Promises() exclusive.Promises {
	return exclusive.Promises{OneWinner: true, OneAtATime: true}
}

func (x mutex) Do(ctx context.Context, key string, work exclusive.Work) error {
	if err := exclusive.ValidateKey("do", key); err != nil {
		return err
	}
	x.mu.Lock()
	was := x.held[key]
	x.held[key] = true
	x.mu.Unlock()
	if was {
		return &exclusive.Error{Op: "do", Key: key, Kind: exclusive.ErrHeld}
	}
	defer func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		delete(x.held, key)
	}()
	return errors.Join(work(ctx, exclusive.Grant{Key: key, ID: "id", Attempt: 1}), ctx.Err())
}

func (mutex) Check(context.Context, *MemoryTx, exclusive.Grant) error {
	return &exclusive.Error{Op: "check", Kind: exclusive.ErrUnsupported}
}

func (mutex) Commit(context.Context, exclusive.Grant, func(context.Context, *MemoryTx) error) error {
	return &exclusive.Error{Op: "commit", Kind: exclusive.ErrUnsupported}
}
