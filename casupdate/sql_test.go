package casupdate

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/exclusive-go/exclusive/internal/db"
)

// fakeRunner answers every query with one row of text, and every statement with a
// row that was matched.
type fakeRunner struct {
	asked chan struct{} // is told of queries; nil: none
	hangs bool          // until the context ends
}

func (r fakeRunner) Exec(context.Context, string, ...any) (db.Result, error) {
	return db.Result{Rows: 1, LastID: 1}, nil
}

func (r fakeRunner) Query(ctx context.Context, _ string, _ []any, each func(db.Scan) error) error {
	if r.asked != nil {
		r.asked <- struct{}{}
	}
	if r.hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	return each(func(dest ...any) error {
		*dest[0].(*string) = "PRIMARY"
		return nil
	})
}

func newTestDialect(t *testing.T) *dialect {
	t.Helper()
	cfg, err := Config{Table: "job", From: "A", Claimed: "B", Done: "C", GrantColumn: "g", TokenColumn: "t", ExpiresColumn: "e", TTL: MaxTTL}.complete(0)
	if err != nil {
		t.Fatal(err)
	}
	return newDialect(db.MySQL, cfg)
}

// Calls of all kinds may be the first ones, at the same time.
func TestFirstCallsTogether(t *testing.T) {
	q, c := newTestDialect(t), call{key: []any{"k"}, grant: "g"}
	var calls sync.WaitGroup
	for range 8 {
		calls.Go(func() {
			if err := ready(t.Context(), fakeRunner{}, q); err != nil {
				t.Error(err)
			}
			if _, _, won, err := q.claim(t.Context(), fakeRunner{}, c); !won || err != nil {
				t.Errorf("claim: %v, %v", won, err)
			}
			if text, _ := q.renewal([]call{c}); !strings.Contains(text, "FORCE INDEX (`PRIMARY`)") {
				t.Error(text)
			}
		})
		calls.Go(func() {
			if ok, err := q.transition(t.Context(), fakeRunner{}, c, Transition{From: "C", To: "A"}, nil); !ok || err != nil {
				t.Errorf("transition: %v, %v", ok, err)
			}
		})
	}
	calls.Wait()
}

// A first call that hangs holds up none of the others.
func TestFirstCallHangs(t *testing.T) {
	q, asked := newTestDialect(t), make(chan struct{}, 1)
	ctx, cancel := context.WithCancel(t.Context())
	hung := make(chan error, 1)
	go func() { hung <- ready(ctx, fakeRunner{asked, true}, q) }()
	<-asked
	if err := ready(t.Context(), fakeRunner{}, q); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-hung; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
