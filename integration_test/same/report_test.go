package same_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/exclusivetest"
	"github.com/exclusive-go/exclusive/integration_test/matrix"
	"github.com/exclusive-go/exclusive/integration_test/same"
	"github.com/exclusive-go/exclusive/integration_test/strategies"
)

func TestMain(m *testing.M) { strategies.Main(m) }

// The same program on every strategy, database and adapter, with two workers
// that want the same report.
func TestReports(t *testing.T) {
	matrix.Each(t, strategies.Each(testReports[pgx.Tx]), strategies.Each(testReports[*sql.Tx]))
}

func testReports[Tx any](t *testing.T, target *matrix.Target[Tx], s strategies.Strategy[Tx]) {
	ctx := t.Context()
	place := s.SetUp(t, target)
	day := place.MustKey(t)
	worker := func(target *matrix.Target[Tx], render func() (string, error)) same.Reports[Tx] {
		return same.Reports[Tx]{
			Lock:   place.New(t, target, exclusivetest.Config{}),
			Render: func(context.Context, string) (string, error) { return render() },
			Save:   place.Write,
		}
	}
	request := func(who string, r same.Reports[Tx], want same.Answer) {
		t.Helper()
		if answer, err := r.Make(ctx, day); answer != want || err != nil {
			t.Errorf("%s: %q, %v; want %q", who, answer, err, want)
		}
	}
	stored := func(wantBody string, wantEffects int64) {
		t.Helper()
		if body, n := place.Stored(t, day); body != wantBody || n != wantEffects {
			t.Errorf("%q is stored after %d effects; want %q after %d", body, n, wantBody, wantEffects)
		}
	}

	second := worker(target.Another(t, matrix.Options{}), func() (string, error) { return "second report", nil })
	outOfPaper := errors.New("out of paper")
	failing := worker(target, func() (string, error) { return "", outOfPaper })
	if _, err := failing.Make(ctx, day); !errors.Is(err, outOfPaper) {
		t.Errorf("a worker that fails: %v", err)
	}
	stored("", 0)
	first := worker(target, func() (string, error) {
		request("a second worker", second, same.Busy)
		return "first report", nil
	})
	request("the first worker", first, same.Rendered)
	stored("first report", 1)
	if s.Promises.OncePerKey {
		request("who comes later", second, same.Before)
		stored("first report", 1)
	} else {
		request("who comes later", second, same.Rendered)
		stored("second report", 2)
	}
	if err := exclusive.Require(second.Lock, exclusive.Promises{RefusesStale: true, InTx: true}); err != nil {
		t.Error(err)
	}
}
