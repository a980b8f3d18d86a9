package strategies_test

import (
	"context"
	"database/sql"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/exclusivetest"
	"github.com/exclusive-go/exclusive/integration_test/matrix"
	"github.com/exclusive-go/exclusive/integration_test/proxy"
	"github.com/exclusive-go/exclusive/integration_test/strategies"
	"github.com/exclusive-go/exclusive/internal/run"
)

// Work returns while its Commit waits for the server's answer to COMMIT, which
// takes longer than a key takes to be given back.
func TestCommitHeldBack(t *testing.T) {
	matrix.Drivers(t, strategies.Each(testCommitHeldBack[pgx.Tx]), strategies.Each(testCommitHeldBack[*sql.Tx]), "postgres", "mysql", "mariadb")
}

func testCommitHeldBack[Tx any](t *testing.T, target *matrix.Target[Tx], s strategies.Strategy[Tx]) {
	ctx := t.Context()
	place := s.SetUp(t, target)
	p := proxy.Start(t, target.Addr(t))
	x := place.New(t, target.Another(t, matrix.Options{Addr: p.Addr()}), exclusivetest.Config{})
	key := place.MustKey(t)
	sent, left := make(chan struct{}), make(chan error, 1)
	var seen atomic.Bool
	err := x.Do(ctx, key, func(_ context.Context, g exclusive.Grant) error {
		go func() {
			left <- x.Commit(ctx, g, func(ctx context.Context, tx Tx) error {
				p.Intercept(func(data []byte) proxy.Verdict {
					if proxy.IsCommit(data) && seen.CompareAndSwap(false, true) {
						close(sent)
						<-time.After(run.EndWait + time.Second)
					}
					return proxy.Pass
				})
				return place.Write(ctx, tx, key, "late")
			})
		}()
		select {
		case <-sent:
			return nil
		case err := <-left:
			return errors.Join(errors.New("no COMMIT was seen"), err)
		}
	})
	if err != nil {
		t.Errorf("Do: %v", err)
	}
	if err := <-left; err != nil {
		t.Errorf("Commit: %v", err)
	}
	if body, n := place.Stored(t, key); body != "late" || n != 1 {
		t.Errorf("stored %q, %d results", body, n)
	}
}

// Work returns while its Commit is in its apply, and that takes too long: Do does
// not wait longer than it says, nothing is committed, and the key is free as soon as
// that Commit has ended.
func TestCommitGivenUp(t *testing.T) {
	matrix.Drivers(t, strategies.Each(testCommitGivenUp[pgx.Tx]), strategies.Each(testCommitGivenUp[*sql.Tx]))
}

func testCommitGivenUp[Tx any](t *testing.T, target *matrix.Target[Tx], s strategies.Strategy[Tx]) {
	ctx := t.Context()
	place := s.SetUp(t, target)
	x := place.New(t, target, exclusivetest.Config{TTL: time.Hour})
	key := place.MustKey(t)
	returned, left := make(chan struct{}), make(chan error, 1)
	var since time.Time
	err := x.Do(ctx, key, func(_ context.Context, g exclusive.Grant) error {
		applies := make(chan struct{})
		go func() {
			left <- x.Commit(ctx, g, func(ctx context.Context, tx Tx) error {
				close(applies)
				<-returned
				return place.Write(ctx, tx, key, "late")
			})
		}()
		select {
		case <-applies:
		case err := <-left:
			return errors.Join(errors.New("apply does not run"), err)
		}
		since = time.Now()
		return nil
	})
	// There the issuer's lease is another row, but of a database with one writer.
	blocked := s.Name == "fencing_guarded_here" && target.Dialect == "sqlite"
	if took := time.Since(since); took >= 2*run.EndWait && !blocked {
		t.Errorf("Do took %v", took)
	}
	close(returned)
	if !errors.Is(err, exclusive.ErrLost) {
		t.Errorf("Do: %v", err)
	}
	if err := <-left; !errors.Is(err, exclusive.ErrLost) {
		t.Errorf("Commit: %v", err)
	}
	if body, n := place.Stored(t, key); n != 0 {
		t.Errorf("stored %q, %d results", body, n)
	}
	if err := x.Do(ctx, key, func(context.Context, exclusive.Grant) error { return nil }); err != nil && !blocked {
		t.Errorf("once more: %v", err)
	}
}

// The key is taken away, and somebody else has it, when work returns nil without a
// Commit. "Done" is refused as a Commit is; giving a key back refuses no write.
func TestLateFinish(t *testing.T) {
	matrix.Drivers(t, strategies.Each(testLateFinish[pgx.Tx]), strategies.Each(testLateFinish[*sql.Tx]))
}

func testLateFinish[Tx any](t *testing.T, target *matrix.Target[Tx], s strategies.Strategy[Tx]) {
	ctx := t.Context()
	place := s.SetUp(t, target)
	if place.TakeAway == nil || s.Name == "rowlock" {
		t.Skip("nobody can take the key away, or only with all sessions of the database (rowlock)")
	}
	// Without renewal A does not find out before.
	cfg := exclusivetest.Config{NoRenew: true, Wait: time.Minute}
	a, b := place.New(t, target, cfg), place.New(t, target, cfg)
	errWork := errors.New("business error")
	for _, c := range []struct{ work, want, not error }{
		{nil, exclusive.ErrLost, exclusive.ErrFenced},
		{errWork, errWork, exclusive.ErrFenced},
	} {
		if c.work == nil && s.Promises.OncePerKey {
			c.want, c.not = c.not, c.want
		}
		key := place.MustKey(t)
		works, over, next := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		err := a.Do(ctx, key, func(context.Context, exclusive.Grant) error {
			if err := place.TakeAway(ctx, key); err != nil {
				return err
			}
			go func() {
				next <- b.Do(ctx, key, func(context.Context, exclusive.Grant) error {
					close(works)
					<-over
					return nil
				})
			}()
			select {
			case <-works:
				return c.work
			case err := <-next:
				return errors.Join(errors.New("the next holder does not get the key"), err)
			}
		})
		close(over)
		if !errors.Is(err, c.want) || errors.Is(err, c.not) {
			t.Errorf("work that returns %v: Do gives %v; want %q", c.work, err, c.want)
		}
		if c.work != nil && !errors.Is(err, exclusive.ErrLost) {
			t.Errorf("work that fails: Do gives %v, and does not say that the grant was lost", err)
		}
		if err := <-next; err != nil {
			t.Errorf("the next holder: %v", err)
		}
	}
}
