package bench

import (
	"context"
	"database/sql"
	"errors"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/exclusive-go/exclusive/cmd/exclusive/internal/target"
)

func TestPercentile(t *testing.T) {
	t.Parallel()
	var hundred []time.Duration
	for i := range 100 {
		hundred = append(hundred, time.Duration(i+1))
	}
	for _, c := range []struct {
		of   []time.Duration
		p    int
		want time.Duration
	}{
		{nil, 50, 0}, {[]time.Duration{7}, 50, 7}, {[]time.Duration{7}, 99, 7},
		{[]time.Duration{1, 2}, 50, 1}, {[]time.Duration{1, 2, 3}, 50, 2},
		{hundred, 50, 50}, {hundred, 99, 99}, {hundred[:99], 99, 99},
	} {
		if got := percentile(c.of, c.p); got != c.want {
			t.Errorf("%d%% of %d values: %d, not %d", c.p, len(c.of), got, c.want)
		}
	}
	if got := perSecond(30, 6*time.Second, 4); got != 20 {
		t.Errorf("30 in 6 s of 4 workers: %v per second", got)
	}
}

// A round trip begins when the client speaks after the server did.
func TestCounter(t *testing.T) {
	t.Parallel()
	var c counter
	a, b := net.Pipe()
	client := c.wrap(a)
	defer client.Close()
	go func() {
		buf := make([]byte, 10)
		for range 3 {
			_, _ = b.Read(buf) // two writes
			_, _ = b.Read(buf)
			_, _ = b.Write([]byte("x")) // one answer, in two parts
			_, _ = b.Write([]byte("y"))
		}
	}()
	buf := make([]byte, 1)
	for range 3 {
		for range 2 {
			if _, err := client.Write([]byte("q")); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 {
			if _, err := client.Read(buf); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := c.n.Load(); n != 3 {
		t.Errorf("%d round trips, not 3", n)
	}
}

// file is a new SQLite database, and a pool to look at it.
func file(t *testing.T) (*target.Target, *sql.DB) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "app.db")
	looking, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(10000)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = looking.Close() })
	return target.SQLite(path, "_pragma=journal_mode(WAL)&_pragma=synchronous(OFF)"), looking
}

func tables(t *testing.T, db *sql.DB) (n int) {
	t.Helper()
	if err := db.QueryRowContext(context.WithoutCancel(t.Context()), "SELECT count(*) FROM sqlite_schema").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// Every grant that is counted has written, by hand and not; each is there.
func TestGrantsWrite(t *testing.T) {
	t.Parallel()
	aim, looking := file(t)
	pool, err := aim.Open(t.Context(), 3)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	o := Options{Duration: 40 * time.Millisecond, Workers: 2}
	s, err := openSQL(t.Context(), pool, o)
	if err != nil {
		t.Fatal(err)
	}
	var stage string
	if err := looking.QueryRowContext(t.Context(), "SELECT name FROM sqlite_schema WHERE name LIKE '%result'").Scan(&stage); err != nil {
		t.Fatal(err)
	}
	m := &measurement{Options: o, trips: new(counter), held: s.held}
	want := 0
	for _, p := range s.pairs {
		for _, op := range []operation{p.ours, p.byHand} {
			if op == nil {
				continue
			}
			a := &sample{op: op}
			if err := errors.Join(m.alone(t.Context(), []*sample{a}, func(float64) {}), m.together(t.Context(), a)); err != nil {
				t.Fatalf("%s: %v", p.strategy, err)
			}
			want += warm + len(a.one) + a.many
			var stored int
			if err := looking.QueryRowContext(t.Context(), "SELECT sum(n) FROM "+stage).Scan(&stored); err != nil || stored != want {
				t.Errorf("%s: %d writes are stored, and %d were counted (%v)", p.strategy, stored, want, err)
			}
			if len(a.one) == 0 || a.many < 2 {
				t.Errorf("%s: %d and %d grants", p.strategy, len(a.one), a.many)
			}
		}
	}
	if err := s.close(t.Context()); err != nil {
		t.Error(err)
	}
	if n := tables(t, looking); n > 0 {
		t.Errorf("%d tables are left", n)
	}
}

func TestRun(t *testing.T) {
	t.Parallel()
	aim, looking := file(t)
	last := -1.0
	r, err := Run(t.Context(), aim, Options{Duration: 20 * time.Millisecond, Workers: 2, Strategies: []string{"fencing", "rowlock"},
		Progress: func(done float64, what string) {
			if done < last || done > 1 || what == "" {
				t.Errorf("progress from %v to %v, %q", last, done, what)
			}
			last = done
		}})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, line := range r.Results {
		name := line.Strategy
		if line.ByHand {
			name += " by hand"
		}
		names = append(names, name)
		if line.P50 <= 0 || line.P99 < line.P50 || line.PerSecond1 <= 0 || line.PerSecondN <= 0 || line.RoundTrips != nil {
			t.Errorf("%+v", line)
		}
		if (line.Ratio > 0) == line.ByHand {
			t.Errorf("ratio %v: %+v", line.Ratio, line)
		}
		if holds := line.Strategy == "rowlock"; holds != (line.Held == 1) {
			t.Errorf("%s holds %d connections", name, line.Held)
		}
	}
	if want := []string{" by hand", "rowlock", "rowlock by hand", "fencing", "fencing by hand"}; !slices.Equal(names, want) {
		t.Errorf("measured %q, not %q", names, want)
	}
	if n := tables(t, looking); n > 0 || last != 1 {
		t.Errorf("%d tables are left; progress ended at %v", n, last)
	}
}

// Whatever ends it, it leaves nothing.
func TestRunEnds(t *testing.T) {
	t.Parallel()
	aim, looking := file(t)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := Run(ctx, aim, Options{Duration: time.Minute, Workers: 2, Progress: func(float64, string) { cancel() }})
	if err == nil || err.Error() != "interrupted" {
		t.Errorf("%v", err)
	}
	if n := tables(t, looking); n > 0 {
		t.Errorf("%d tables are left after an interrupt", n)
	}
	// The second table cannot be made: the schema does not exist.
	if _, err := Run(t.Context(), aim, Options{Duration: time.Minute, Workers: 2, Schema: "nowhere"}); err == nil || !strings.Contains(err.Error(), "nowhere") {
		t.Errorf("%v", err)
	}
	if n := tables(t, looking); n > 0 {
		t.Errorf("%d tables are left after a failure", n)
	}
}
