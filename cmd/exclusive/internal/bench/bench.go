// Package bench measures what the strategies cost on a database, beside the same
// done by hand in plain SQL, in the same run.
package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"github.com/exclusive-go/exclusive/cmd/exclusive/internal/target"
)

// Options say what is measured.
type Options struct {
	// Duration of each measurement.
	Duration time.Duration
	// Workers is how many work at once in the measurement with several.
	Workers int
	// Strategies are those to be measured. None: all that the database can.
	Strategies []string
	// Empty leaves out the write: work does nothing, and is finished by Do.
	Empty bool
	// Schema and Prefix are where the tables are made, and what comes first in
	// their names (Redis: in those of the keys).
	Schema, Prefix string

	// Progress is told how much of all is done, from 0 to 1, and what is being
	// measured. It may be nil.
	Progress func(done float64, what string)
}

// The limits of the options.
const (
	MinDuration = 10 * time.Millisecond
	MaxDuration = time.Hour
	MaxWorkers  = 1000
)

// Result is one line: a strategy, or the same by hand.
type Result struct {
	// Strategy is "" where nothing protects the write.
	Strategy string `json:"strategy,omitempty"`
	// ByHand is true for plain SQL or commands.
	ByHand bool `json:"by_hand"`
	// RoundTrips of one grant, as counted on the connection; nil where there is
	// no network.
	RoundTrips *float64 `json:"round_trips,omitempty"`
	// How long one takes with one worker: the median, and what 99 of 100 do
	// not exceed.
	P50 time.Duration `json:"p50_ns"`
	P99 time.Duration `json:"p99_ns"`
	// Grants per second, with one worker and with several, each on its own key.
	PerSecond1 float64 `json:"per_second_1"`
	PerSecondN float64 `json:"per_second_n"`
	// Held is how many connections are in use while work runs.
	Held int `json:"connections_held"`
	// Ratio is the median time over that by hand. 0 for what is by hand.
	Ratio float64 `json:"ratio,omitempty"`
}

// Report is what was measured.
type Report struct {
	Database string        `json:"database"`
	Duration time.Duration `json:"duration_ns"`
	Workers  int           `json:"workers"`
	Empty    bool          `json:"empty"`
	Results  []Result      `json:"results"`
}

// Run measures. What it makes has names of its own and is removed in the end,
// also when ctx ends before.
func Run(ctx context.Context, t *target.Target, o Options) (report *Report, err error) {
	var trips counter
	pool, err := t.Pool(target.Options{Conns: o.Workers + 1, Wrap: trips.wrap})
	if err != nil {
		return nil, err
	}
	defer func() {
		if cerr := pool.Close(); cerr != nil {
			err = errors.Join(err, cerr)
		}
		if err != nil {
			report, err = nil, t.Hide(err)
		}
	}()
	m := &measurement{Options: o, trips: &trips, networked: t.Kind() != "sqlite"}
	var s *stage
	if err := pool.Ask(ctx); err != nil {
		return nil, err
	}
	if pool.Redis != nil {
		s, err = openRedis(pool.Redis, o)
		o.Empty = true // the results are elsewhere
	} else {
		s, err = openSQL(ctx, pool, o)
	}
	if s != nil {
		defer func() {
			if cerr := s.close(ctx); cerr != nil {
				err = errors.Join(err, fmt.Errorf("remove what was made: %w", cerr))
			}
		}()
	}
	var results []Result
	if err == nil {
		m.held = s.held
		results, err = m.run(ctx, s.pairs)
	}
	if ctx.Err() != nil {
		return nil, errors.New("interrupted") // whatever that made of what was under way
	}
	if err != nil {
		return nil, err
	}
	return &Report{Database: s.name, Duration: o.Duration, Workers: o.Workers, Empty: o.Empty, Results: results}, nil
}

// stage is a database with what the measurements need.
type stage struct {
	name  string
	pairs []pair
	held  func() int                    // connections in use
	undo  []func(context.Context) error // from the last
}

// tidyWait bounds how long removing what was made may take.
const tidyWait = 30 * time.Second

// close removes what was made, also when ctx has ended.
func (s *stage) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tidyWait)
	defer cancel()
	var errs []error
	for _, undo := range slices.Backward(s.undo) {
		errs = append(errs, undo(ctx))
	}
	return errors.Join(errs...)
}

// pair is a strategy and the same by hand. Either may be missing.
type pair struct {
	strategy     string
	ours, byHand operation
}

// operation does one grant for a worker. It calls inside while it holds the key.
type operation func(ctx context.Context, worker int, inside func()) (took time.Duration, err error)

// warm is how many grants are made before it counts.
const warm = 3

// parts is into how many parts a measurement with several workers is cut.
const parts = 4

type measurement struct {
	Options
	trips     *counter
	held      func() int // connections in use
	networked bool
}

// run measures all pairs. Ours and by hand take turns, so that whatever else the
// machine does hits both.
func (m *measurement) run(ctx context.Context, pairs []pair) (results []Result, err error) {
	for i, p := range pairs {
		progress := func(done float64) {
			if m.Progress != nil {
				m.Progress((float64(i)+done)/float64(len(pairs)), cmp.Or(p.strategy, "the write alone"))
			}
		}
		ours, hand := &sample{op: p.ours}, &sample{op: p.byHand, byHand: true}
		both := slices.DeleteFunc([]*sample{ours, hand}, func(s *sample) bool { return s.op == nil })
		err := m.alone(ctx, both, func(done float64) { progress(done / 2) })
		for part := 0; err == nil && part < parts; part++ {
			for _, s := range both {
				if err == nil {
					err = m.together(ctx, s)
				}
			}
			progress(0.5 + float64(part+1)/parts/2)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", cmp.Or(p.strategy, "the write alone"), err)
		}
		for _, s := range both {
			r := s.result(m.networked)
			r.Strategy = p.strategy
			if len(both) > 1 && s == ours {
				r.Ratio = float64(r.P50) / float64(max(hand.result(m.networked).P50, 1))
			}
			results = append(results, r)
		}
	}
	return results, nil
}

// sample is what was measured of one operation.
type sample struct {
	op     operation
	byHand bool

	one   []time.Duration // of one worker
	trips int64           // of those
	held  int             // in those, while work ran

	many int           // grants of several workers
	busy time.Duration // these workers' time, together
	size int           // how many they were
}

// alone has one worker do the operations in turn.
func (m *measurement) alone(ctx context.Context, samples []*sample, progress func(float64)) error {
	for range warm {
		for _, s := range samples {
			if _, err := s.op(ctx, 0, func() {}); err != nil {
				return err
			}
		}
	}
	begin, told := time.Now(), time.Duration(0)
	all := m.Duration * time.Duration(len(samples))
	for now := time.Duration(0); now < all || len(samples[0].one) == 0; now = time.Since(begin) {
		for _, s := range samples {
			before := m.trips.n.Load()
			took, err := s.op(ctx, 0, func() { s.held = max(s.held, m.held()) })
			if err != nil {
				return err
			}
			s.one = append(s.one, took)
			s.trips += m.trips.n.Load() - before
		}
		if now-told > 100*time.Millisecond {
			told = now
			progress(min(1, float64(now)/float64(all)))
		}
	}
	return nil
}

// together has several workers do an operation at once, each on its own key.
func (m *measurement) together(ctx context.Context, s *sample) error {
	if m.Workers == 1 {
		return nil
	}
	type done struct {
		n    int
		busy time.Duration
		err  error
	}
	results := make(chan done)
	end := time.Now().Add(m.Duration / parts)
	for worker := range m.Workers {
		go func() {
			var d done
			for d.err == nil && (d.n == 0 || time.Now().Before(end)) {
				var took time.Duration
				if took, d.err = s.op(ctx, worker, func() {}); d.err == nil {
					d.n++
					d.busy += took
				}
			}
			results <- d
		}()
	}
	var err error
	for range m.Workers {
		d := <-results
		s.many += d.n
		s.busy += d.busy
		if err == nil {
			err = d.err // the others are likely to say the same
		}
	}
	s.size = m.Workers
	return err
}

func (s *sample) result(networked bool) Result {
	slices.Sort(s.one)
	var busy time.Duration
	for _, d := range s.one {
		busy += d
	}
	r := Result{ByHand: s.byHand, P50: percentile(s.one, 50), P99: percentile(s.one, 99), PerSecond1: perSecond(len(s.one), busy, 1), Held: s.held}
	r.PerSecondN = perSecond(s.many, s.busy, s.size)
	if s.size == 0 {
		r.PerSecondN = r.PerSecond1 // --workers 1
	}
	if networked && len(s.one) > 0 {
		trips := math.Round(10*float64(s.trips)/float64(len(s.one))) / 10
		r.RoundTrips = &trips
	}
	return r
}

// percentile of sorted durations: the smallest that is not exceeded by p in 100.
func percentile(sorted []time.Duration, p int) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[(len(sorted)*p+99)/100-1]
}

// perSecond is how much workers do who have spent the time together.
func perSecond(n int, spent time.Duration, workers int) float64 {
	if spent <= 0 {
		return 0
	}
	return float64(n) / spent.Seconds() * float64(workers)
}

// counter counts round trips: how often a client speaks after the server did, or
// first of all.
type counter struct{ n atomic.Int64 }

func (c *counter) wrap(conn net.Conn) net.Conn { return &counted{Conn: conn, c: c} }

// counted is a connection. Reads and writes may be concurrent.
type counted struct {
	net.Conn
	c      *counter
	asking atomic.Bool // the client spoke last
}

func (c *counted) Write(p []byte) (int, error) {
	if !c.asking.Swap(true) {
		c.c.n.Add(1)
	}
	return c.Conn.Write(p)
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.asking.Store(false)
	}
	return n, err
}
