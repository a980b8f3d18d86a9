package gocron_test

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/fencing"
	wrap "github.com/exclusive-go/exclusive/integration_test/gocron"
	"github.com/exclusive-go/exclusive/integration_test/matrix"
	"github.com/exclusive-go/exclusive/uniquetask"
)

var _ gocron.Elector = (*wrap.Elector)(nil)

// limit only ever passes when something hangs.
const limit = 30 * time.Second

func must(t testing.TB, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func newLeases[Tx any](t *testing.T, target *matrix.Target[Tx]) *fencing.Leases[Tx] {
	t.Helper()
	l, err := fencing.New(target.DB, fencing.Config{TTL: 10 * time.Second})
	must(t, "new", err)
	t.Cleanup(func() { must(t, "close", l.Close()) })
	return l
}

// start starts a scheduler with one job that runs all the time.
func start(t *testing.T, task func(), o gocron.SchedulerOption, jo ...gocron.JobOption) gocron.Scheduler {
	t.Helper()
	s, err := gocron.NewScheduler(o)
	must(t, "new scheduler", err)
	_, err = s.NewJob(gocron.DurationJob(5*time.Millisecond), gocron.NewTask(task),
		append(jo, gocron.WithName("report"), gocron.WithSingletonMode(gocron.LimitModeReschedule))...)
	must(t, "new job", err)
	s.Start()
	t.Cleanup(func() { must(t, "shut down", s.Shutdown()) })
	return s
}

// overlap counts runs, and those that overlap.
type overlap struct{ inside, runs, overlaps atomic.Int32 }

func (o *overlap) run() {
	if o.inside.Add(1) > 1 {
		o.overlaps.Add(1)
	}
	time.Sleep(5 * time.Millisecond) // the job's work
	o.runs.Add(1)
	o.inside.Add(-1)
}

func (o *overlap) waitFor(t *testing.T, runs int32) {
	t.Helper()
	for until := time.Now().Add(limit); o.runs.Load() < runs; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("%d of %d runs", o.runs.Load(), runs)
		}
	}
}

// Runs of a job on two schedulers do not overlap, and without a Locker they do.
func TestLocker(t *testing.T) { matrix.Drivers(t, testLocker[pgx.Tx], testLocker[*sql.Tx]) }

func testLocker[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	target.Migrate(t, "fencing")
	var with, without overlap
	var failed atomic.Pointer[error]
	listen := gocron.WithEventListeners(gocron.AfterLockError(func(_ uuid.UUID, _ string, err error) {
		if !errors.Is(err, exclusive.ErrHeld) && !errors.Is(err, context.Canceled) {
			failed.Store(&err)
		}
	}))
	t.Run("with", func(t *testing.T) {
		for range 2 {
			start(t, with.run, gocron.WithDistributedLocker(wrap.Locker(newLeases(t, target.Another(t, matrix.Options{})))), listen)
		}
		with.waitFor(t, 20)
	})
	if n := with.overlaps.Load(); n != 0 {
		t.Errorf("%d runs overlapped", n)
	}
	if err := failed.Load(); err != nil {
		t.Errorf("lock: %v", *err)
	}
	t.Run("without", func(t *testing.T) {
		for range 2 {
			start(t, without.run, gocron.WithLimitConcurrentJobs(1, gocron.LimitModeReschedule))
		}
		for until := time.Now().Add(limit); without.overlaps.Load() == 0; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(until) {
				t.Fatal("without a Locker nothing overlapped: the test proves nothing")
			}
		}
	})
}

// A lock does not make a job run once per tick: uniquetask does.
func TestOncePerTick(t *testing.T) {
	matrix.Drivers(t, testOncePerTick[pgx.Tx], testOncePerTick[*sql.Tx])
}

func testOncePerTick[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	target.Migrate(t, "fencing")
	target.Migrate(t, "uniquetask")
	const tick = "2026-11-29T03:00"
	var locked, once atomic.Int32
	for range 2 { // the second scheduler comes when the first one's run is over
		tasks, err := uniquetask.New(target.DB, uniquetask.Config{Task: "report"})
		must(t, "new", err)
		t.Cleanup(func() { must(t, "close", tasks.Close()) })
		s, err := gocron.NewScheduler(gocron.WithDistributedLocker(wrap.Locker(newLeases(t, target))))
		must(t, "new scheduler", err)
		done := make(chan error, 1)
		_, err = s.NewJob(gocron.OneTimeJob(gocron.OneTimeJobStartImmediately()), gocron.NewTask(func(ctx context.Context) {
			locked.Add(1)
			done <- tasks.Do(ctx, tick, func(context.Context, exclusive.Grant) error {
				once.Add(1)
				return nil
			})
		}), gocron.WithName("report"))
		must(t, "new job", err)
		s.Start()
		if err := <-done; err != nil && !errors.Is(err, exclusive.ErrDone) {
			t.Errorf("do: %v", err)
		}
		must(t, "shut down", s.Shutdown())
	}
	if locked.Load() != 2 || once.Load() != 1 {
		t.Errorf("the lock let %d run in a tick (want 2), uniquetask %d (want 1)", locked.Load(), once.Load())
	}
}

// One of two schedulers leads; when it goes the other one takes over.
func TestElector(t *testing.T) { matrix.Drivers(t, testElector[pgx.Tx], testElector[*sql.Tx]) }

func testElector[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	target.Migrate(t, "fencing")
	var runs overlap
	var ran [2]overlap
	var electors [2]*wrap.Elector
	var stop [2]func() error
	for i := range electors {
		e := wrap.NewElector(newLeases(t, target.Another(t, matrix.Options{})), "leader")
		electors[i], stop[i] = e, sync.OnceValue(e.Stop)
		t.Cleanup(func() { must(t, "stop", stop[i]()) })
		start(t, func() { runs.run(); ran[i].runs.Add(1) }, gocron.WithDistributedElector(e))
	}
	runs.waitFor(t, 5)
	first := 0
	if ran[1].runs.Load() > 0 {
		first = 1
	}
	if n := ran[1-first].runs.Load(); n != 0 {
		t.Errorf("both schedulers ran: %d and %d", ran[first].runs.Load(), n)
	}
	if electors[first].IsLeader(t.Context()) != nil || electors[1-first].IsLeader(t.Context()) == nil {
		t.Error("the one that runs does not lead, or both do")
	}
	must(t, "stop", stop[first]())
	if electors[first].IsLeader(t.Context()) == nil {
		t.Error("it leads after Stop")
	}
	ran[1-first].waitFor(t, 3)
}
