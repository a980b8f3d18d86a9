package uniquetask_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/integration_test/matrix"
	"github.com/exclusive-go/exclusive/uniquetask"
)

func TestPromises(t *testing.T) { matrix.Drivers(t, testPromises, testPromises) }

func testPromises[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	if p := newTasks(t, target, uniquetask.Config{}).Promises(); p != exclusive.PromisesOf("uniquetask") {
		t.Errorf("%v", p)
	}
}

// New says all that is wrong at once.
func TestInvalidConfig(t *testing.T) { matrix.Drivers(t, testInvalidConfig, testInvalidConfig) }

func testInvalidConfig[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	cfg := uniquetask.Config{
		Schema: `a"b`, Prefix: "x;", Task: strings.Repeat("x", 201), TTL: time.Millisecond, Wait: -1, MaxHold: -1,
		MaxAttempts: -1, Backoff: 2 * time.Hour, MaxBackoff: time.Hour, Holder: "\xff",
	}
	_, err := uniquetask.New(target.Another(t, matrix.Options{MaxConns: 1}).DB, cfg)
	wantErr(t, "New", err, exclusive.ErrInvalid)
	for _, word := range []string{"Schema", "Prefix", "201 bytes", "TTL", "Wait", "MaxHold", "MaxAttempts", "MaxBackoff", "Holder", "one connection"} {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%q is not complained about in %v", word, err)
		}
	}
	_, err = uniquetask.New(target.DB, uniquetask.Config{})
	wantErr(t, "New without a task", err, exclusive.ErrInvalid)
}

// One connection is enough where no heartbeat is sent.
func TestPoolOfOne(t *testing.T) { matrix.Drivers(t, testPoolOfOne, testPoolOfOne) }

func testPoolOfOne[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	one := target.Another(t, matrix.Options{MaxConns: 1})
	x := newTasks(t, one, uniquetask.Config{NoRenew: true})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	must(t, "do", x.Do(ctx, "r", func(ctx context.Context, g exclusive.Grant) error {
		tx, err := one.BeginPast(ctx)
		must(t, "begin", err)
		must(t, "check", x.Check(ctx, tx, g))
		must(t, "commit", one.DB.Commit(ctx, tx))
		return x.Commit(ctx, g, store(one, "one"))
	}))
	if body := stored(t, target); body != "one" {
		t.Errorf("stored %q", body)
	}
}
