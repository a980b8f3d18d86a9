package exclusivetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/fencing"
	"github.com/exclusive-go/exclusive/internal/run"
)

// memoryBackend is the reference on a database of its own.
func memoryBackend() TxBackend[*MemoryTx] {
	d := NewMemoryDB()
	return TxBackend[*MemoryTx]{
		New: func(cfg Config) (exclusive.Transactional[*MemoryTx], error) { return NewMemory(d, cfg) },
		InTx: func(ctx context.Context, fn func(ctx context.Context, tx *MemoryTx) error) error {
			return d.InTx(ctx, fn)
		},
		Write:             func(ctx context.Context, tx *MemoryTx, key, value string) error { return tx.Put(ctx, key, value) },
		Read:              func(_ context.Context, tx *MemoryTx, key string) (string, error) { return tx.Get(key), nil },
		BackUpIssuer:      d.BackUpLeases,
		BackUpDestination: d.BackUpData,
	}
}

func TestMemory(t *testing.T) {
	RunTransactional(t, func(t *testing.T) TxBackend[*MemoryTx] { return memoryBackend() })
}

// inBubble runs a test on a reference with a fake clock.
func inBubble(t *testing.T, cfg Config, test func(t *testing.T, d *MemoryDB, m *Memory)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		d := NewMemoryDB()
		m, err := NewMemory(d, cfg)
		if err != nil {
			t.Fatal(err)
		}
		test(t, d, m)
	})
}

func wantErr(t *testing.T, what string, err, target error) {
	t.Helper()
	if err := want(what, err, target); err != nil {
		t.Error(err)
	}
}

func TestMemoryConfig(t *testing.T) {
	_, err := NewMemory(NewMemoryDB(), Config{TTL: -1, Wait: -1, MaxHold: -1})
	wantErr(t, "a bad configuration", err, exclusive.ErrInvalid)
	for _, ttl := range []time.Duration{fencing.MinTTL - 1, fencing.MaxTTL + 1} {
		_, err = NewMemory(NewMemoryDB(), Config{TTL: ttl})
		wantErr(t, fmt.Sprintf("a TTL of %v, as fencing has it,", ttl), err, exclusive.ErrInvalid)
	}
	for _, ttl := range []time.Duration{fencing.MinTTL, fencing.MaxTTL} {
		if _, err = NewMemory(NewMemoryDB(), Config{TTL: ttl}); err != nil {
			t.Errorf("a TTL of %v: %v", ttl, err)
		}
	}
	if defaultTTL != fencing.DefaultTTL {
		t.Errorf("the default TTL is %v, and fencing's is %v", defaultTTL, fencing.DefaultTTL)
	}
	_, err = NewMemory(NewMemoryDB(), Config{Holder: "a\x00b"})
	wantErr(t, "a holder that no database takes", err, exclusive.ErrInvalid)
	_, err = NewMemory(nil, Config{})
	wantErr(t, "no database", err, exclusive.ErrInvalid)
}

func TestMemoryWait(t *testing.T) {
	inBubble(t, Config{Wait: time.Minute}, func(t *testing.T, _ *MemoryDB, m *Memory) {
		held, err := m.Acquire(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		nothingToDo := func(context.Context, exclusive.Grant) error { return nil }
		began := time.Now()
		wantErr(t, "Do of a held key", m.Do(t.Context(), "k", nothingToDo), exclusive.ErrHeld)
		if waited := time.Since(began); waited != time.Minute {
			t.Errorf("Do waited %v", waited)
		}
		time.AfterFunc(time.Second, func() {
			if err := held.Release(context.Background()); err != nil {
				t.Error(err)
			}
		})
		if err := m.Do(t.Context(), "k", nothingToDo); err != nil {
			t.Error(err)
		}
		if waited := time.Since(began); waited != time.Minute+time.Second {
			t.Errorf("Do got the key after %v", waited)
		}
	})
}

func TestMemoryAttempts(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, _ *MemoryDB, m *Memory) {
		for i, want := range []int{1, 2, 3, 1} {
			err := m.Do(t.Context(), "k", func(_ context.Context, g exclusive.Grant) error {
				if g.Attempt != want {
					t.Errorf("attempt %d, not %d", g.Attempt, want)
				}
				if i < 2 {
					return errWork
				}
				return nil
			})
			if i < 2 {
				wantErr(t, "Do", err, errWork)
			} else if err != nil {
				t.Error(err)
			}
		}
	})
}

func TestMemoryRevoke(t *testing.T) {
	inBubble(t, Config{TTL: time.Minute}, func(t *testing.T, d *MemoryDB, m *Memory) {
		err := m.Do(t.Context(), "k", func(ctx context.Context, g exclusive.Grant) error {
			if err := m.Revoke(t.Context(), "k"); err != nil {
				return err
			}
			write := func(ctx context.Context, tx *MemoryTx) error { return tx.Put(ctx, "k", "v") }
			// Nobody has had the key since: decision 0012.
			wantErr(t, "Commit after Revoke", m.Commit(t.Context(), g, write), exclusive.ErrLost)
			err := d.InTx(t.Context(), func(ctx context.Context, tx *MemoryTx) error { return m.Check(ctx, tx, g) })
			wantErr(t, "Check after Revoke", err, exclusive.ErrLost)
			<-ctx.Done() // with the next renewal
			wantErr(t, "the cause", context.Cause(ctx), exclusive.ErrLost)
			return nil
		})
		wantErr(t, "Do", err, exclusive.ErrLost)
		if got := d.Get("k"); got != "" {
			t.Errorf("%q is stored", got)
		}
	})
}

// A revoked key has its attempts and tokens, and a newer holder is named.
func TestMemoryRevokeKeepsTheRow(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, d *MemoryDB, m *Memory) {
		ctx := t.Context()
		former, err := m.TryAcquire(ctx, "k")
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Revoke(ctx, "k"); err != nil {
			t.Fatal(err)
		}
		next, err := m.TryAcquire(ctx, "k")
		if err != nil {
			t.Fatal(err)
		}
		g, old := next.Grant(), former.Grant()
		if g.Token <= old.Token || g.Attempt != 2 {
			t.Errorf("token %d, attempt %d after token %d", g.Token, g.Attempt, old.Token)
		}
		err = m.Commit(ctx, old, func(context.Context, *MemoryTx) error { return nil })
		wantErr(t, "Commit of the former holder", err, exclusive.ErrFenced)
		var e *exclusive.Error
		if !errors.As(err, &e) || e.Holder == nil || e.Holder.ID != g.ID {
			t.Errorf("the newer holder is not told: %v", err)
		}
		wantErr(t, "its Release", former.Release(ctx), exclusive.ErrLost)
		if err := next.Release(ctx); err != nil {
			t.Errorf("Release of the next holder: %v", err)
		}
	})
}

// While a Commit has the row nobody can take the key over, so its time does not
// run out, as on the strategies.
func TestMemoryCommitSuspendsTheDeadline(t *testing.T) {
	inBubble(t, Config{TTL: time.Second}, func(t *testing.T, d *MemoryDB, m *Memory) {
		slow := func(fails error) func(context.Context, *MemoryTx) error {
			return func(ctx context.Context, tx *MemoryTx) error {
				time.Sleep(time.Minute)
				if err := ctx.Err(); err != nil {
					return err
				}
				return errors.Join(tx.Put(ctx, "k", "v"), fails)
			}
		}
		err := m.Do(t.Context(), "k", func(ctx context.Context, g exclusive.Grant) error { return m.Commit(ctx, g, slow(nil)) })
		if err != nil || d.Get("k") != "v" {
			t.Errorf("Do: %v; %q is stored", err, d.Get("k"))
		}
		lease, err := m.TryAcquire(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Commit(lease.Context(), lease.Grant(), slow(nil)); err != nil {
			t.Errorf("Commit of a lease: %v", err)
		}
		// A Commit that fails then leaves nothing to hold the key.
		err = m.Do(t.Context(), "k", func(ctx context.Context, g exclusive.Grant) error {
			err := m.Commit(ctx, g, slow(errWork))
			wantErr(t, "a slow Commit that fails", err, errWork)
			<-ctx.Done()
			wantErr(t, "the cause", context.Cause(ctx), exclusive.ErrLost)
			return err
		})
		wantErr(t, "its Do", err, errWork)
		wantErr(t, "its Do", err, exclusive.ErrLost)
		// The twin: without a Commit the time runs out.
		m.cfg.NoRenew = true
		err = m.Do(t.Context(), "k", func(ctx context.Context, _ exclusive.Grant) error {
			time.Sleep(time.Minute)
			return ctx.Err()
		})
		wantErr(t, "Do without a Commit", err, exclusive.ErrLost)
	})
}

// While a transaction has the row Release waits for as long as its context lasts, and
// then goes on in the background. Another one waits for that, and tells what came of it.
func TestMemoryReleaseGoesOn(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, d *MemoryDB, m *Memory) {
		ctx := t.Context()
		l, err := m.TryAcquire(ctx, "k")
		if err != nil {
			t.Fatal(err)
		}
		tx := d.Begin(ctx)
		if err := m.Check(ctx, tx, l.Grant()); err != nil {
			t.Fatal(err)
		}
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		wantErr(t, "release during a transaction", l.Release(short), context.DeadlineExceeded)
		_, err = m.TryAcquire(ctx, "k")
		wantErr(t, "acquire during that", err, exclusive.ErrHeld)
		var others sync.WaitGroup
		for range 3 {
			others.Go(func() {
				if err := l.Release(ctx); err != nil {
					t.Errorf("another release meanwhile: %v", err)
				}
			})
		}
		synctest.Wait()
		tx.Rollback()
		others.Wait()
		wantErr(t, "a release after it", l.Release(ctx), exclusive.ErrLost)
		if l.Context().Err() == nil {
			t.Error("the lease's context has not ended")
		}
		if _, err = m.TryAcquire(ctx, "k"); err != nil {
			t.Errorf("acquire after it: %v", err)
		}
	})
}

func TestMemoryTx(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, d *MemoryDB, _ *Memory) {
		ctx := t.Context()
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		tx := d.Begin(ctx)
		must(tx.Put(ctx, "a", "1"))
		if own, others := tx.Get("a"), d.Get("a"); own != "1" || others != "" {
			t.Errorf("before the commit the transaction reads %q, others %q", own, others)
		}
		tx.Rollback()
		if got := d.Get("a"); got != "" {
			t.Errorf("after the rollback there is %q", got)
		}
		wantErr(t, "a write after the end", tx.Put(ctx, "a", "2"), exclusive.ErrConflict)
		wantErr(t, "a commit after the end", tx.Commit(), exclusive.ErrConflict)

		// A reader for update waits for the writer, and sees what it wrote.
		writer, reader := d.Begin(ctx), d.Begin(ctx)
		must(writer.Put(ctx, "a", "3"))
		read := make(chan string)
		go func() {
			value, err := reader.GetForUpdate(ctx, "a")
			if err != nil {
				t.Error(err)
			}
			read <- value
		}()
		synctest.Wait() // the reader is waiting now
		must(writer.Commit())
		if got := <-read; got != "3" {
			t.Errorf("read %q", got)
		}

		// A transaction whose context has ended cannot commit.
		short, cancel := context.WithCancel(ctx)
		ended := d.Begin(short)
		must(ended.Put(ctx, "b", "4"))
		cancel()
		wantErr(t, "a commit on an ended context", ended.Commit(), context.Canceled)

		wctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		wantErr(t, "a wait that ends", d.Begin(ctx).Put(wctx, "a", "5"), context.DeadlineExceeded)
		reader.Rollback()
	})
}

func TestMemoryDeadlock(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, d *MemoryDB, _ *Memory) {
		ctx := t.Context()
		keys := []string{"a", "b", "c"}
		errs := make(chan error)
		var first sync.WaitGroup // all have their first row
		first.Add(len(keys))
		for i := range keys {
			go func() {
				errs <- d.InTx(ctx, func(ctx context.Context, tx *MemoryTx) error {
					if err := tx.Put(ctx, keys[i], "x"); err != nil {
						return err
					}
					first.Done()
					first.Wait()
					return tx.Put(ctx, keys[(i+1)%3], "y")
				})
			}()
		}
		conflicts := 0
		for range keys {
			if err := <-errs; errors.Is(err, exclusive.ErrConflict) {
				conflicts++
			} else if err != nil {
				t.Error(err)
			}
		}
		if conflicts != 1 {
			t.Errorf("%d transactions were ended; one is enough to solve a deadlock", conflicts)
		}
	})
}

func TestMemoryRestoreEndsTransactions(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, d *MemoryDB, _ *Memory) {
		ctx := t.Context()
		restore, err := d.BackUpData(ctx)
		if err != nil {
			t.Fatal(err)
		}
		tx := d.Begin(ctx)
		if err := tx.Put(ctx, "a", "1"); err != nil {
			t.Fatal(err)
		}
		if err := restore(ctx); err != nil {
			t.Fatal(err)
		}
		wantErr(t, "a commit after the restore", tx.Commit(), exclusive.ErrConflict)
	})
}

func TestMemoryRefusesWhatIsNotIts(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, d *MemoryDB, m *Memory) {
		ctx := t.Context()
		other := NewMemoryDB().Begin(ctx)
		g := exclusive.Grant{Key: "k", ID: "id", Token: 1}
		wantErr(t, "Check in another database", m.Check(ctx, other, g), exclusive.ErrInvalid)
		wantErr(t, "Check without a transaction", m.Check(ctx, nil, g), exclusive.ErrInvalid)
		wantErr(t, "Check of a grant that never was", m.Check(ctx, d.Begin(ctx), g), exclusive.ErrLost)
		g.Token = -1
		wantErr(t, "Check of no token", m.Check(ctx, d.Begin(ctx), g), exclusive.ErrInvalid)
		_, err := m.Once(ctx, nil, "op", nil, nil)
		wantErr(t, "Once without a transaction", err, exclusive.ErrInvalid)
		_, err = m.Once(ctx, d.Begin(ctx), "", nil, nil)
		wantErr(t, "Once without an id", err, exclusive.ErrInvalid)
		_, err = m.Once(ctx, d.Begin(ctx), "op", nil, nil)
		wantErr(t, "Once without apply", err, exclusive.ErrInvalid)
		wantErr(t, "Revoke without a key", m.Revoke(ctx, ""), exclusive.ErrInvalid)
	})
}

// Work returns while its Commit takes too long: the key is free when that has ended,
// not only when the lease has.
func TestMemoryCommitLeftBehind(t *testing.T) {
	inBubble(t, Config{TTL: time.Hour}, func(t *testing.T, _ *MemoryDB, m *Memory) {
		ctx := t.Context()
		left := make(chan error, 1)
		began := time.Now()
		err := m.Do(ctx, "k", func(_ context.Context, g exclusive.Grant) error {
			go func() {
				left <- m.Commit(ctx, g, func(context.Context, *MemoryTx) error {
					time.Sleep(run.EndWait + time.Minute)
					return nil
				})
			}()
			synctest.Wait()
			return nil
		})
		wantErr(t, "its Do", err, exclusive.ErrLost)
		if took := time.Since(began); took != run.EndWait {
			t.Errorf("Do took %v", took)
		}
		wantErr(t, "the Commit", <-left, exclusive.ErrLost)
		if err := m.Do(ctx, "k", func(context.Context, exclusive.Grant) error { return nil }); err != nil {
			t.Errorf("the next Do: %v", err)
		}
	})
}
