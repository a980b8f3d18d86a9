package exclusivetest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/internal/story"
)

// fake shortens what the fakes are.
type fake = exclusive.Transactional[*MemoryTx]

// TestBrokenFakesAreCaught runs the suite on strategies that have one flaw each
// and expects the named case to fail. It runs in bubbles, so it takes no time.
func TestBrokenFakesAreCaught(t *testing.T) {
	for _, f := range []struct {
		flaw   string
		caught string // by this case
		fake   func(m *Memory) fake
	}{
		{"no lock", "OneWinner", func(m *Memory) fake { return noLock(m) }},
		{"busy reported as nil", "OneWinner", func(m *Memory) fake { return busyIsNil{m} }},
		{"double grant: a clock that is half a lease fast", "TimeBound", func(m *Memory) fake {
			return meddler{m, func(r leaseRow) leaseRow { r.held = r.held && time.Until(r.expires) > m.cfg.TTL/2; return r }}
		}},
		{"a lease that calls itself a lock", "OneAtATime", func(m *Memory) fake {
			return boaster{m, exclusive.Promises{OneAtATime: true}}
		}},
		{"done work runs again", "OncePerKey", func(m *Memory) fake {
			return boaster{m, exclusive.Promises{OncePerKey: true}}
		}},
		{"forgotten renewal", "HeldWhileRenewed", func(m *Memory) fake { m.cfg.NoRenew = true; return m }},
		{"renewal without end", "MaxHold", func(m *Memory) fake { m.cfg.MaxHold = 0; return m }},
		{"loss not told", "LossIsTold", func(m *Memory) fake { return silentLoss{m} }},
		{"loss told late", "LossIsTold", func(m *Memory) fake { return lateLoss{m} }},
		{"reused token", "TokensRise", func(m *Memory) fake {
			return meddler{m, func(r leaseRow) leaseRow { r.token = max(r.token-1, 0); return r }}
		}},
		{"release by name", "LateRelease", func(m *Memory) fake { return byName{m} }},
		{"renewal that re-creates a lost lease", "LateRenew", func(m *Memory) fake { return recreates{m} }},
		{"a wait that ends reported as busy", "AcquireWaits", func(m *Memory) fake { return waitIsBusy{m} }},
		{"release on the caller's context, of leases", "ReleaseAfterCancel", func(m *Memory) fake { return sendsOnCallers{m} }},
		{"release on the caller's context called a loss", "ReleaseAfterCancel", func(m *Memory) fake { return callsItLost{m} }},
		{"failure keeps the key", "FailureFrees", func(m *Memory) fake { return keepsOnFailure{m} }},
		{"release on the caller's context", "CancelFrees", func(m *Memory) fake { return releasesOnCallers{m} }},
		{"keys made to fit", "BadKeys", func(m *Memory) fake { return trimsKeys{m} }},

		{"double grant by Do: a clock that is half a lease fast", "TimeBound", func(m *Memory) fake {
			return noLeases{meddler{m, func(r leaseRow) leaseRow { r.held = r.held && time.Until(r.expires) > m.cfg.TTL/2; return r }}}
		}},
		{"Expires is half a lease late", "TimeBound", func(m *Memory) fake {
			return noLeases{regrants{m, func(g exclusive.Grant) exclusive.Grant { g.Expires = g.Expires.Add(m.cfg.TTL / 2); return g }}}
		}},
		{"Expires is half a lease late, by Do alone", "TimeBound", func(m *Memory) fake {
			return regrants{m, func(g exclusive.Grant) exclusive.Grant { g.Expires = g.Expires.Add(m.cfg.TTL / 2); return g }}
		}},
		{"Expires is not told", "TimeBound", func(m *Memory) fake {
			return noLeases{regrants{m, func(g exclusive.Grant) exclusive.Grant { g.Expires = time.Time{}; return g }}}
		}},
		{"Expires is not told", "LossIsTold", func(m *Memory) fake {
			return noLeases{regrants{m, func(g exclusive.Grant) exclusive.Grant { g.Expires = time.Time{}; return g }}}
		}},
		{"a grant without end", "TimeBound", func(m *Memory) fake {
			return noLeases{meddler{m, func(r leaseRow) leaseRow { r.expires = r.expires.Add(time.Hour); return r }}}
		}},
		{"a grant that is over before anybody can try", "TimeBound", func(m *Memory) fake {
			return noLeases{regrants{noLock(m), func(g exclusive.Grant) exclusive.Grant { g.Expires = time.Now(); return g }}}
		}},
		{"reused token by Do", "TokensRise", func(m *Memory) fake {
			return noLeases{meddler{m, func(r leaseRow) leaseRow { r.token = max(r.token-1, 0); return r }}}
		}},
		{"token of the process's own, so that it falls with a takeover", "TokensRise", func(m *Memory) fake {
			own := int64(0)
			return noLeases{regrants{m, func(g exclusive.Grant) exclusive.Grant { own++; g.Token = own; return g }}}
		}},
		{"attempts not counted", "TokensRise", func(m *Memory) fake {
			return noLeases{regrants{m, func(g exclusive.Grant) exclusive.Grant { g.Attempt = 1; return g }}}
		}},
		{"renewal without end by Do", "MaxHold", func(m *Memory) fake { m.cfg.MaxHold = 0; return noLeases{m} }},
		{"MaxHold not told to work", "MaxHold", func(m *Memory) fake { return noLeases{silentLoss{m}} }},
		{"release by name by Do", "LateRelease", func(m *Memory) fake { return noLeases{doesByName{m}} }},
		{"a former holder's Do returns nil", "LateRelease", func(m *Memory) fake { return noLeases{hidesLoss{m}} }},

		{"no check", "Zombie/acquire/commit", func(m *Memory) fake { return noCheck{m} }},
		{"no check", "Zombie/do/check", func(m *Memory) fake { return noCheck{m} }},
		{"check apart from write", "CheckThenWrite/commit", func(m *Memory) fake { return checksApart{m} }},
		{"check apart from write", "CheckThenWrite/check", func(m *Memory) fake { return checksApart{m} }},
		{"equal token of another grant accepted", "EqualTokenOfAnother", func(m *Memory) fake { return tokenOnly{m} }},
		{"equal token of another grant accepted", "IssuerRestored/check", func(m *Memory) fake { return tokenOnly{m} }},
		{"mark never raised", "DestinationRestored/check", func(m *Memory) fake { return markOnce{m} }},
		{"lost rollback", "CommitFailureLeavesNothing", func(m *Memory) fake { return losesRollback{m} }},
		{"done without write", "InTx", func(m *Memory) fake { return forgetsWrite{m} }},
		{"commit that ends work's context", "InTx", func(m *Memory) fake { return cancelsWork{m} }},
		{"commit that keeps the grant", "InTx", func(m *Memory) fake { return keepsGrant{m} }},
		{"second commit reported as a loss", "InTx", func(m *Memory) fake { return renames{m, exclusive.ErrInvalid, exclusive.ErrLost} }},
		{"work's Commit not waited for", "CommitLeftBehind", func(m *Memory) fake { return leavesCommit{m} }},
		{"failure of work's Commit overlooked", "CommitLeftBehind", func(m *Memory) fake { return looksAway{m} }},
		{"apply not looked at", "NilApply", func(m *Memory) fake { return callsApply{m} }},
		{"nothing committed when apply is nil", "NilApply", func(m *Memory) fake { return forgivesNil{m} }},
		{"former grant reported as a mistake", "AfterDo", func(m *Memory) fake { return renames{m, exclusive.ErrLost, exclusive.ErrInvalid} }},
		{"former grant reported as a mistake", "AfterRelease", func(m *Memory) fake { return renames{m, exclusive.ErrLost, exclusive.ErrInvalid} }},
		{"former grant good until the next", "AfterDo", func(m *Memory) fake { return markKeeper{goesBack{m}} }},
		{"former grant good until the next", "AfterRelease", func(m *Memory) fake { return markKeeper{goesBack{m}} }},
		{"check that finishes the grant", "CheckTwice", func(m *Memory) fake { return checkFinishes{m} }},
		{"refused from the next write only", "RefusesStale", func(m *Memory) fake { return tokenOnly{m} }},
		{"operation id ignored", "LostAnswer/guarded", func(m *Memory) fake { return appliesAgain{m} }},
		{"payload not compared", "LostAnswer/guarded", func(m *Memory) fake { return anyPayload{m} }},
		{"operation id recorded before it is applied", "LostAnswer/guarded", func(m *Memory) fake { return recordsFirst{m} }},
	} {
		t.Run(f.flaw+"/"+f.caught, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				err := runNamed(t.Context(), t, f.caught, brokenBackend(f.fake))
				if err == nil || errors.As(err, new(skipped)) {
					t.Fatalf("not caught: %v", err)
				}
				t.Logf("caught: %v", err)
			})
		})
	}
}

// TestReferenceIsNotCaught runs the same cases the same way on the reference.
func TestReferenceIsNotCaught(t *testing.T) {
	for _, name := range allNames() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				err := runNamed(t.Context(), t, name, memoryBackend())
				if blank := name == "OneAtATime" || name == "OncePerKey"; blank != errors.As(err, new(skipped)) || !blank && err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestReferenceByDo runs them on the reference without Acquire. What is about
// leases alone is skipped, and nothing else.
func TestReferenceByDo(t *testing.T) {
	leasesAlone := []string{"LateRenew", "AcquireWaits", "ReleaseAfterCancel", "AfterRelease"}
	for _, name := range allNames() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				err := runNamed(t.Context(), t, name, brokenBackend(func(m *Memory) fake { return noLeases{m} }))
				skips := name == "OneAtATime" || name == "OncePerKey" || slices.Contains(leasesAlone, name) ||
					strings.HasPrefix(name, "Zombie/acquire/") || strings.HasPrefix(name, "LostAnswer/")
				if skips != errors.As(err, new(skipped)) || !skips && err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A strategy that has no MaxHold says so, and is not blamed for it.
func TestNoMaxHold(t *testing.T) {
	b := memoryBackend()
	intact := b.New
	b.New = func(cfg Config) (fake, error) {
		if cfg.MaxHold > 0 {
			return nil, &exclusive.Error{Op: "new", Kind: exclusive.ErrUnsupported}
		}
		return intact(cfg)
	}
	if err := runNamed(t.Context(), t, "MaxHold", b); !errors.As(err, new(skipped)) {
		t.Errorf("not skipped: %v", err)
	}
}

// TestTwinNeedsDamage plays the twins with an unguarded write that does check
// after all: a rig that cannot go wrong must fail.
func TestTwinNeedsDamage(t *testing.T) {
	for _, name := range allNames() {
		if !strings.HasSuffix(name, "/unguarded") {
			continue
		}
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := memoryBackend()
				write := b.Write
				b.Write = func(ctx context.Context, tx *MemoryTx, key, value string) error {
					if tx.Get(key) == "report by B" || tx.Get(key) == "1" || tx.Get(key) == "report by C" {
						return nil // keeps the good value by magic
					}
					return write(ctx, tx, key, value)
				}
				if err := runNamed(t.Context(), t, name, b); err == nil {
					t.Error("a rig that shows no damage passes")
				}
			})
		})
	}
}

func brokenBackend(broken func(*Memory) fake) TxBackend[*MemoryTx] {
	b := memoryBackend()
	intact := b.New
	b.New = func(cfg Config) (fake, error) {
		x, err := intact(cfg)
		if err != nil {
			return nil, err
		}
		return broken(x.(*Memory)), nil
	}
	return b
}

func allNames() (names []string) {
	for _, c := range cases {
		names = append(names, c.name)
	}
	for _, c := range txCases[*MemoryTx]() {
		names = append(names, c.name)
	}
	for _, s := range scenes {
		names = append(names, s.name)
	}
	return append(names, "LostAnswer/guarded", "LostAnswer/unguarded")
}

// runNamed runs one case of RunTransactional and returns its verdict.
func runNamed(ctx context.Context, t *testing.T, name string, b TxBackend[*MemoryTx]) error {
	t.Helper()
	for _, c := range cases {
		if c.name == name {
			return runCase(ctx, c, Backend{New: func(cfg Config) (exclusive.Exclusive, error) { return b.New(cfg) }}, TTL)
		}
	}
	for _, c := range txCases[*MemoryTx]() {
		if c.name == name {
			return runTxCase(ctx, c, b)
		}
	}
	var r *story.Report
	var err error
	for _, s := range scenes {
		if s.name == name {
			r, err = playScene(ctx, s, b, TTL)
		}
	}
	for _, guard := range bothWays {
		if name == "LostAnswer/"+guard.name {
			r, err = playLostAnswer(ctx, guard.on, b)
		}
	}
	if err != nil {
		return err
	}
	if r == nil {
		t.Fatalf("no case is named %q", name)
	}
	return r.Failure()
}

// meddler changes the key's row before every request.
type meddler struct {
	*Memory
	change func(leaseRow) leaseRow
}

func (f meddler) meddle(key string) {
	f.db.mu.Lock()
	defer f.db.mu.Unlock()
	r := row{leases, key}
	f.db.rows[r] = f.change(get[leaseRow](f.db.rows, r))
}

func (f meddler) TryAcquire(ctx context.Context, key string) (*exclusive.Lease, error) {
	f.meddle(key)
	return f.Memory.TryAcquire(ctx, key)
}

func (f meddler) Do(ctx context.Context, key string, work exclusive.Work) error {
	f.meddle(key)
	return f.Memory.Do(ctx, key, work)
}

func noLock(m *Memory) fake {
	return meddler{m, func(r leaseRow) leaseRow { r.held = false; return r }}
}

// noLeases hides Acquire: all that is left is Do.
type noLeases struct{ fake }

// regrants tells work another grant than it has.
type regrants struct {
	fake
	change func(exclusive.Grant) exclusive.Grant
}

func (f regrants) Do(ctx context.Context, key string, work exclusive.Work) error {
	return f.fake.Do(ctx, key, func(ctx context.Context, g exclusive.Grant) error { return work(ctx, f.change(g)) })
}

// doesByName gives back a key that it has lost.
type doesByName struct{ *Memory }

func (f doesByName) Do(ctx context.Context, key string, work exclusive.Work) error {
	return f.Memory.Do(ctx, key, func(ctx context.Context, g exclusive.Grant) error {
		err := work(ctx, g)
		if ctx.Err() != nil {
			f.meddle(key)
		}
		return err
	})
}

func (f doesByName) meddle(key string) {
	meddler{f.Memory, func(r leaseRow) leaseRow { r.held = false; return r }}.meddle(key)
}

type hidesLoss struct{ *Memory }

func (f hidesLoss) Do(ctx context.Context, key string, work exclusive.Work) error {
	err := f.Memory.Do(ctx, key, work)
	if errors.Is(err, exclusive.ErrLost) {
		return nil
	}
	return err
}

// boaster promises what it does not keep.
type boaster struct {
	*Memory
	promises exclusive.Promises
}

func (f boaster) Promises() exclusive.Promises { return f.promises }

type busyIsNil struct{ *Memory }

func (f busyIsNil) Do(ctx context.Context, key string, work exclusive.Work) error {
	err := f.Memory.Do(ctx, key, work)
	if errors.Is(err, exclusive.ErrHeld) {
		return nil
	}
	return err
}

type silentLoss struct{ *Memory }

func (f silentLoss) Do(ctx context.Context, key string, work exclusive.Work) error {
	return f.Memory.Do(ctx, key, func(_ context.Context, g exclusive.Grant) error { return work(ctx, g) })
}

// lateLoss tells a loss much later than it came.
type lateLoss struct{ *Memory }

func (f lateLoss) Do(ctx context.Context, key string, work exclusive.Work) error {
	return f.Memory.Do(ctx, key, func(wctx context.Context, g exclusive.Grant) error {
		late, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		defer context.AfterFunc(wctx, func() {
			time.AfterFunc(10*f.cfg.TTL, func() { cancel(context.Cause(wctx)) })
		})()
		return work(late, g)
	})
}

// flawedHolding is a lease with one method replaced.
type flawedHolding struct {
	exclusive.Holding
	renew, release func(ctx context.Context) error
}

func (h flawedHolding) Renew(ctx context.Context) error {
	if h.renew == nil {
		return h.Holding.Renew(ctx)
	}
	return h.renew(ctx)
}

func (h flawedHolding) Release(ctx context.Context) error {
	if h.release == nil {
		return h.Holding.Release(ctx)
	}
	return h.release(ctx)
}

// flawed replaces Acquire and TryAcquire.
func flawed(m *Memory, key string, flaw func(*memoryLease) exclusive.Holding) (*exclusive.Lease, error) {
	l, err := m.try(context.Background(), key)
	if err != nil {
		return nil, err
	}
	return exclusive.NewLease(flaw(l)), nil
}

type byName struct{ *Memory }

func (f byName) Acquire(ctx context.Context, key string) (*exclusive.Lease, error) {
	return f.TryAcquire(ctx, key)
}

func (f byName) TryAcquire(_ context.Context, key string) (*exclusive.Lease, error) {
	return flawed(f.Memory, key, func(l *memoryLease) exclusive.Holding {
		return flawedHolding{Holding: l, release: func(ctx context.Context) error {
			err := l.Release(ctx)
			return errors.Join(err, l.update(ctx, "release", func(now leaseRow) error {
				now.held = false
				l.m.db.rows[l.row()] = now
				return nil
			}))
		}}
	})
}

// sendsOnCallers sends nothing when the caller's context has ended.
type sendsOnCallers struct{ *Memory }

func (f sendsOnCallers) Acquire(ctx context.Context, key string) (*exclusive.Lease, error) {
	return f.TryAcquire(ctx, key)
}

func (f sendsOnCallers) TryAcquire(_ context.Context, key string) (*exclusive.Lease, error) {
	return flawed(f.Memory, key, func(l *memoryLease) exclusive.Holding {
		return flawedHolding{Holding: l, release: func(ctx context.Context) error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return l.Release(ctx)
		}}
	})
}

// callsItLost gives the key back, and says that it was lost.
type callsItLost struct{ *Memory }

func (f callsItLost) Acquire(ctx context.Context, key string) (*exclusive.Lease, error) {
	return f.TryAcquire(ctx, key)
}

func (f callsItLost) TryAcquire(_ context.Context, key string) (*exclusive.Lease, error) {
	return flawed(f.Memory, key, func(l *memoryLease) exclusive.Holding {
		return flawedHolding{Holding: l, release: func(ctx context.Context) error {
			err := errors.Join(l.Release(ctx), ctx.Err())
			if err != nil {
				err = errors.Join(err, exclusive.ErrLost)
			}
			return err
		}}
	})
}

type recreates struct{ *Memory }

func (f recreates) Acquire(ctx context.Context, key string) (*exclusive.Lease, error) {
	return f.TryAcquire(ctx, key)
}

func (f recreates) TryAcquire(_ context.Context, key string) (*exclusive.Lease, error) {
	return flawed(f.Memory, key, func(l *memoryLease) exclusive.Holding {
		return flawedHolding{Holding: l, renew: func(ctx context.Context) error {
			return errors.Join(l.Renew(ctx), l.update(ctx, "renew", func(now leaseRow) error {
				if !now.held {
					now.held, now.id = true, l.grant.ID
					l.extend(now)
				}
				return nil
			}))
		}}
	})
}

type waitIsBusy struct{ *Memory }

func (f waitIsBusy) Acquire(ctx context.Context, key string) (*exclusive.Lease, error) {
	l, err := f.Memory.Acquire(ctx, key)
	if err != nil {
		return nil, &exclusive.Error{Op: "acquire", Key: key, Kind: exclusive.ErrHeld}
	}
	return l, nil
}

type keepsOnFailure struct{ *Memory }

func (f keepsOnFailure) Do(ctx context.Context, key string, work exclusive.Work) error {
	l, err := f.TryAcquire(ctx, key)
	if err != nil {
		return err
	}
	if err := work(l.Context(), l.Grant()); err != nil {
		return err
	}
	return l.Release(ctx)
}

type releasesOnCallers struct{ *Memory }

func (f releasesOnCallers) Do(ctx context.Context, key string, work exclusive.Work) error {
	l, err := f.TryAcquire(ctx, key)
	if err != nil {
		return err
	}
	err = work(ctx, l.Grant())
	return errors.Join(err, l.Release(ctx))
}

type trimsKeys struct{ *Memory }

func (f trimsKeys) Do(ctx context.Context, key string, work exclusive.Work) error {
	key = strings.ToValidUTF8(key, "?")
	if len(key) > exclusive.MaxKeyBytes {
		key = key[:exclusive.MaxKeyBytes]
	}
	return f.Memory.Do(ctx, key, work)
}

type noCheck struct{ *Memory }

func (f noCheck) Check(context.Context, *MemoryTx, exclusive.Grant) error { return nil }

func (f noCheck) Commit(ctx context.Context, _ exclusive.Grant, apply func(context.Context, *MemoryTx) error) error {
	return f.db.InTx(ctx, apply)
}

type checksApart struct{ *Memory }

func (f checksApart) Check(ctx context.Context, _ *MemoryTx, g exclusive.Grant) error {
	return f.db.InTx(ctx, func(ctx context.Context, tx *MemoryTx) error { return f.Memory.Check(ctx, tx, g) })
}

func (f checksApart) Commit(ctx context.Context, g exclusive.Grant, apply func(context.Context, *MemoryTx) error) error {
	if err := f.Check(ctx, nil, g); err != nil {
		return err
	}
	return f.db.InTx(ctx, apply)
}

// ownMark is a guard that compares a mark of its own, in the rows of values,
// and never looks at the lease.
func ownMark(ctx context.Context, tx *MemoryTx, g exclusive.Grant, raise bool) error {
	r := row{values, g.Key + "/mark"}
	if err := tx.lock(ctx, r); err != nil {
		return err
	}
	mark := txGet[int64](tx, r)
	if g.Token < mark {
		return &exclusive.Error{Op: "check", Key: g.Key, Kind: exclusive.ErrFenced}
	}
	if mark != 0 && !raise {
		return nil
	}
	return tx.put(ctx, r, g.Token)
}

type tokenOnly struct{ *Memory }

func (f tokenOnly) Check(ctx context.Context, tx *MemoryTx, g exclusive.Grant) error {
	return ownMark(ctx, tx, g, true)
}

type markOnce struct{ *Memory }

func (f markOnce) Check(ctx context.Context, tx *MemoryTx, g exclusive.Grant) error {
	return ownMark(ctx, tx, g, false)
}

type losesRollback struct{ *Memory }

func (f losesRollback) Commit(ctx context.Context, g exclusive.Grant, apply func(context.Context, *MemoryTx) error) error {
	tx := f.db.Begin(ctx)
	err := f.Check(ctx, tx, g)
	if err == nil {
		err = apply(ctx, tx)
	}
	return errors.Join(err, tx.Commit())
}

type forgetsWrite struct{ *Memory }

func (f forgetsWrite) Commit(ctx context.Context, g exclusive.Grant, apply func(context.Context, *MemoryTx) error) error {
	return f.Memory.Commit(ctx, g, func(ctx context.Context, _ *MemoryTx) error {
		tx := f.db.Begin(ctx)
		defer tx.Rollback()
		return apply(ctx, tx)
	})
}

type cancelsWork struct{ *Memory }

type cancelKey struct{}

func (f cancelsWork) Do(ctx context.Context, key string, work exclusive.Work) error {
	return f.Memory.Do(ctx, key, func(ctx context.Context, g exclusive.Grant) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		return work(context.WithValue(ctx, cancelKey{}, cancel), g)
	})
}

func (f cancelsWork) Commit(ctx context.Context, g exclusive.Grant, apply func(context.Context, *MemoryTx) error) error {
	err := f.Memory.Commit(ctx, g, apply)
	if cancel, ok := ctx.Value(cancelKey{}).(context.CancelFunc); ok && err == nil {
		cancel()
	}
	return err
}

type keepsGrant struct{ *Memory }

func (f keepsGrant) Commit(ctx context.Context, g exclusive.Grant, apply func(context.Context, *MemoryTx) error) error {
	return f.db.InTx(ctx, func(ctx context.Context, tx *MemoryTx) error {
		if err := f.Check(ctx, tx, g); err != nil {
			return err
		}
		return apply(ctx, tx)
	})
}

// leavesCommit gives the key back without waiting for anything.
type leavesCommit struct{ *Memory }

func (f leavesCommit) Do(ctx context.Context, key string, work exclusive.Work) error {
	l, err := f.TryAcquire(ctx, key)
	if err != nil {
		return err
	}
	err = work(ctx, l.Grant())
	go func() { _ = l.Release(ctx) }()
	return err
}

// looksAway waits for the Commit, as it has the row, and does not ask how it went.
type looksAway struct{ *Memory }

func (f looksAway) Commit(ctx context.Context, g exclusive.Grant, apply func(context.Context, *MemoryTx) error) error {
	return f.commit(ctx, g, apply)
}

type callsApply struct{ *Memory }

func (f callsApply) Commit(ctx context.Context, g exclusive.Grant, apply func(context.Context, *MemoryTx) error) error {
	return f.Memory.Commit(ctx, g, func(ctx context.Context, tx *MemoryTx) error { return apply(ctx, tx) })
}

// forgivesNil finishes the grant and writes nothing.
type forgivesNil struct{ *Memory }

func (f forgivesNil) Commit(ctx context.Context, g exclusive.Grant, apply func(context.Context, *MemoryTx) error) error {
	if apply == nil {
		apply = func(context.Context, *MemoryTx) error { return nil }
	}
	return f.Memory.Commit(ctx, g, apply)
}

// renames tells one refusal as another.
type renames struct {
	*Memory
	from, to error
}

func (f renames) Commit(ctx context.Context, g exclusive.Grant, apply func(context.Context, *MemoryTx) error) error {
	err := f.Memory.Commit(ctx, g, apply)
	if errors.Is(err, f.from) {
		return &exclusive.Error{Op: "commit", Key: g.Key, Kind: f.to}
	}
	return err
}

// markKeeper commits by its mark, which does not learn that a lease has ended.
// What it has committed it finishes, so that a second Commit is refused.
type markKeeper struct{ goesBack }

func (f markKeeper) Commit(ctx context.Context, g exclusive.Grant, apply func(context.Context, *MemoryTx) error) error {
	err := f.Memory.Commit(ctx, g, apply)
	if !errors.Is(err, exclusive.ErrLost) {
		return err
	}
	return f.db.InTx(ctx, func(ctx context.Context, tx *MemoryTx) error {
		if err := f.Check(ctx, tx, g); err != nil {
			return err
		}
		return apply(ctx, tx)
	})
}

type checkFinishes struct{ *Memory }

func (f checkFinishes) Check(ctx context.Context, tx *MemoryTx, g exclusive.Grant) error {
	err := f.Memory.Check(ctx, tx, g)
	now := txGet[leaseRow](tx, row{leases, g.Key})
	now.held = false
	return errors.Join(err, tx.put(ctx, row{leases, g.Key}, now))
}

type appliesAgain struct{ *Memory }

func (f appliesAgain) Once(ctx context.Context, _ *MemoryTx, _ string, _ []byte, apply func(context.Context) ([]byte, error)) ([]byte, error) {
	return apply(ctx)
}

type anyPayload struct{ *Memory }

func (f anyPayload) Once(ctx context.Context, tx *MemoryTx, opID string, _ []byte, apply func(context.Context) ([]byte, error)) ([]byte, error) {
	return f.Memory.Once(ctx, tx, opID, nil, apply)
}

type recordsFirst struct{ *Memory }

// Once commits its record in a transaction of its own, whatever apply returns.
func (f recordsFirst) Once(ctx context.Context, _ *MemoryTx, opID string, payload []byte, apply func(context.Context) ([]byte, error)) (result []byte, err error) {
	var applyErr error
	err = f.db.InTx(ctx, func(ctx context.Context, tx *MemoryTx) error {
		result, err = f.Memory.Once(ctx, tx, opID, payload, func(ctx context.Context) (r []byte, _ error) {
			r, applyErr = apply(ctx)
			return r, nil
		})
		return err
	})
	return result, errors.Join(applyErr, err)
}

// A backend that is never available is found out, and only that is tried again.
func TestPatiently(t *testing.T) {
	for _, c := range []struct {
		err   error
		plays int
	}{{exclusive.ErrUnavailable, 3}, {exclusive.ErrHeld, 1}, {nil, 1}} {
		plays := 0
		if err := patiently(func(time.Duration) error { plays++; return c.err }); err != c.err || plays != c.plays {
			t.Errorf("%v: %d plays, %v; want %d", c.err, plays, err, c.plays)
		}
	}
}
