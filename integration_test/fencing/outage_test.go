package fencing_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/exclusive-go/exclusive/fencing"
	"github.com/exclusive-go/exclusive/integration_test/matrix"
	"github.com/exclusive-go/exclusive/integration_test/proxy"
)

// Many claims begin while the server is away or says nothing, for longer than a claim
// may be late, and are given up. When it is back nobody has their keys, and no connection
// is in use.
func TestClaimsInAnOutage(t *testing.T) {
	matrix.Drivers(t, testClaimsInAnOutage, testClaimsInAnOutage, "postgres", "mysql", "mariadb")
}

func testClaimsInAnOutage[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	rival := newLeases(t, target, fencing.Config{})
	const claims = 200
	for _, away := range []string{"silent", "refuses"} {
		t.Run(away, func(t *testing.T) {
			behind, p := through(t, target)
			// Long: a key that is left to nobody would show.
			x := newLeases(t, behind, fencing.Config{TTL: 10 * time.Minute})
			must(t, "warm up", x.Do(t.Context(), "warm up", nothing))
			back := make(chan struct{})
			again := func() error { return nil }
			switch away {
			case "silent": // and gets all of it later, as one that was paused does
				p.Intercept(func([]byte) proxy.Verdict { <-back; return proxy.Pass })
			case "refuses":
				again = p.Refuse()
				p.Cut()
			}
			key := func(i int) string { return fmt.Sprint(away, "/", i) }
			var all sync.WaitGroup
			for i := range claims {
				all.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					defer cancel()
					if lease, err := x.TryAcquire(ctx, key(i)); err == nil {
						t.Error("a key was had from a server that is away")
						_ = lease.Release(t.Context())
					}
				})
			}
			all.Wait()
			time.Sleep(2 * time.Second) // that much later it is back
			must(t, "back", again())
			close(back)
			p.Intercept(nil)
			must(t, "work again", x.Do(t.Context(), "warm up", nothing))
			must(t, "close", x.Close())
			behind.Idle(t)
			for i := range claims {
				if err := rival.Do(t.Context(), key(i), nothing); err != nil {
					t.Errorf("%s: %v", key(i), err)
				}
			}
		})
	}
}
