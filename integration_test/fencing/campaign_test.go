package fencing_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/fencing"
	"github.com/exclusive-go/exclusive/integration_test/matrix"
	"github.com/exclusive-go/exclusive/integration_test/proxy"
)

// Three campaigns for one key, two of them of one object, while connections are cut,
// the network falls silent and services fail in all their ways: what they write with a
// Check never goes back to an older term, each hears of its loss, and all end with their
// context, whatever state they are in then.
func TestCampaigns(t *testing.T) { matrix.Drivers(t, testCampaigns, testCampaigns) }

func testCampaigns[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	target.MustExec(t, "CREATE TABLE term (id bigint PRIMARY KEY, token bigint NOT NULL, back bigint NOT NULL, writes bigint NOT NULL)")
	target.MustExec(t, "INSERT INTO term VALUES (1, 0, 0, 0)")
	behind, interfere := target, func(int) {}
	if target.Networked() {
		var p *proxy.Proxy
		behind, p = through(t, target)
		interfere = func(i int) {
			switch i % 3 {
			case 0:
				p.Cut()
			case 1:
				p.Intercept(func([]byte) proxy.Verdict { return proxy.Swallow })
			case 2:
				p.Intercept(nil)
				p.Cut() // what was swallowed would be waited for
			}
		}
	}
	cfg := fencing.Config{TTL: 600 * time.Millisecond}
	here, there := newLeases(t, behind, cfg), newLeases(t, target, cfg)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	terms := make(chan int64, 1000)
	mishap := errors.New("mishap")
	serve := func(x *fencing.Leases[Tx], on *matrix.Target[Tx]) exclusive.Work {
		n := 0
		return func(sctx context.Context, g exclusive.Grant) error {
			n++
			terms <- g.Token
			write := func(ctx context.Context) error {
				tx, err := on.DB.Begin(ctx)
				if err != nil {
					return err
				}
				defer func() { _ = on.DB.Rollback(tx) }()
				if err := x.Check(ctx, tx, g); err != nil {
					return err
				}
				if err := on.Exec(ctx, tx, on.Bind("UPDATE term SET back = back + CASE WHEN token > ? THEN 1 ELSE 0 END, token = ?, writes = writes + 1 WHERE id = 1"), g.Token, g.Token); err != nil {
					return err
				}
				return on.DB.Commit(ctx, tx)
			}
			for range 20 {
				if sctx.Err() != nil {
					break
				}
				_ = write(sctx)
			}
			switch n % 4 {
			case 1:
				return mishap
			case 2:
				panic(mishap)
			case 3: // it does not look at its context, and writes when it is over
				<-sctx.Done()
				octx, cancel := context.WithTimeout(context.WithoutCancel(sctx), time.Second)
				defer cancel()
				_ = write(octx)
				return nil
			}
			<-sctx.Done()
			return context.Cause(sctx)
		}
	}
	var all sync.WaitGroup
	for _, c := range []struct {
		x  *fencing.Leases[Tx]
		on *matrix.Target[Tx]
	}{{here, behind}, {here, behind}, {there, target}} {
		service := serve(c.x, c.on)
		all.Go(func() {
			for ctx.Err() == nil {
				err := func() (err error) {
					defer func() {
						if r := recover(); r != nil {
							err, _ = r.(error)
						}
					}()
					return exclusive.Campaign(ctx, c.x, "leader", service)
				}()
				if ctx.Err() != nil {
					if !errors.Is(err, context.Canceled) && !errors.Is(err, mishap) {
						t.Errorf("its context has ended: %v", err)
					}
				} else if err != nil && !errors.Is(err, mishap) {
					t.Errorf("it ended with %v", err)
				}
			}
		})
	}
	for i := range 12 {
		interfere(i)
		select { // a lease's length later at the latest
		case <-terms:
		case <-time.After(cfg.TTL):
		}
	}
	interfere(2)
	for end := time.Now().Add(30 * time.Second); target.Int(t, "SELECT writes FROM term WHERE id = 1") == 0 && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond) // a term may be over before it writes
	}
	// One of an object that is closed ends with its context, too.
	must(t, "close", there.Close())
	cancel()
	all.Wait()
	if back := target.Int(t, "SELECT back FROM term WHERE id = 1"); back != 0 {
		t.Errorf("%d writes of an older term came after those of a newer one", back)
	}
	if writes := target.Int(t, "SELECT writes FROM term WHERE id = 1"); writes == 0 {
		t.Error("nothing was written")
	}
	must(t, "close", here.Close())
	behind.Idle(t)
	freeWithin(t, newLeases(t, target, fencing.Config{}), "leader", 10*time.Second)
}
