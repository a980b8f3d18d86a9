package cases_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/exclusivetest"
	"github.com/exclusive-go/exclusive/fencing"
	"github.com/exclusive-go/exclusive/integration_test/cases/child"
	"github.com/exclusive-go/exclusive/integration_test/matrix"
	"github.com/exclusive-go/exclusive/integration_test/strategies"
	"github.com/exclusive-go/exclusive/uniquetask"
)

func newTasks[Tx any](t testing.TB, target *matrix.Target[Tx], cfg uniquetask.Config) *uniquetask.Tasks[Tx] {
	t.Helper()
	if cfg.Task == "" {
		cfg.Task = newKey()
	}
	tasks, err := uniquetask.New(target.DB, cfg)
	return opened(t, tasks, err)
}

// doneWith is the stored result that comes with ErrDone.
func doneWith(t testing.TB, err error) string {
	t.Helper()
	wantErr(t, "a run that is done", err, exclusive.ErrDone)
	var e *exclusive.Error
	if !errors.As(err, &e) {
		t.Fatal("no details")
	}
	return string(e.Result)
}

// runOnce does a run whose result is given, and reports whether its work ran in this
// call, which succeeds then. A run that is done is told with the stored result: nil is
// the answer to who did the work, and to nobody else.
func runOnce[Tx any](t testing.TB, tasks *uniquetask.Tasks[Tx], run, result string) (ran bool) {
	t.Helper()
	err := tasks.Do(t.Context(), run, func(_ context.Context, g exclusive.Grant) error {
		ran = true
		return tasks.SetResult(g, []byte(result))
	})
	if ran {
		must(t, run, err)
	} else if got := doneWith(t, err); got != result {
		t.Errorf("%s is done with %q; want %q", run, got, result)
	}
	return ran
}

// TestHoldChild is a process that holds a key.
func TestHoldChild(t *testing.T) {
	var o holdOrder
	if !child.Order(t, &o) {
		return // nothing to test by itself
	}
	matrix.Join(t, o.Ticket.Target, holdChild[pgx.Tx](o), holdChild[*sql.Tx](o))
}

func holdChild[Tx any](o holdOrder) func(*testing.T, *matrix.Target[Tx]) {
	return func(t *testing.T, target *matrix.Target[Tx]) {
		place := strategies.Enter(t, target, o.Ticket)
		x := place.New(t, target, exclusivetest.Config{TTL: o.TTL, Holder: "child"})
		ctx, stop := signal.NotifyContext(t.Context(), syscall.SIGTERM)
		defer stop()
		if o.InOnce {
			leases := leasesOn(t, target, fencing.Config{})
			_ = inTx(ctx, target, func(ctx context.Context, tx Tx) error {
				_, err := leases.Once(ctx, tx, o.Key, nil, func(ctx context.Context) ([]byte, error) {
					if err := place.Write(ctx, tx, o.Key, "half"); err != nil {
						return nil, err
					}
					child.Say("holds")
					select {}
				})
				return err
			})
			return
		}
		err := x.Do(ctx, o.Key, func(ctx context.Context, g exclusive.Grant) error {
			if o.InCommit {
				return x.Commit(ctx, g, func(ctx context.Context, tx Tx) error {
					if err := place.Write(ctx, tx, o.Key, "half"); err != nil {
						return err
					}
					child.Say("holds")
					select {}
				})
			}
			child.Say("holds")
			<-ctx.Done()
			return ctx.Err()
		})
		child.Say(fmt.Sprint("ended: ", errors.Is(err, context.Canceled)))
	}
}

// What failed, panicked or was killed runs again, after its lease where it was
// killed; what succeeded does not, and is answered with its result.
// Elsewhere a crash left the key "in progress" for ever, or a failure was kept
// as if it were the result.
func TestB082_FailureIsNoResult(t *testing.T) {
	t.Parallel()
	t.Run("task", func(t *testing.T) { matrix.Shared(t, testB082Task[pgx.Tx], testB082Task[*sql.Tx]) })
	t.Run("once", func(t *testing.T) { matrix.Shared(t, testB082Once[pgx.Tx], testB082Once[*sql.Tx]) })
}

func testB082Task[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	strategies.Tables(t, target)
	tasks := newTasks(t, target, uniquetask.Config{TTL: forever})
	succeed := func(key string) {
		t.Helper()
		err := tasks.Do(t.Context(), key, func(_ context.Context, g exclusive.Grant) error {
			return tasks.SetResult(g, []byte("good"))
		})
		must(t, key, err)
		if got := doneWith(t, tasks.Do(t.Context(), key, func(context.Context, exclusive.Grant) error { t.Error("a second run"); return nil })); got != "good" {
			t.Errorf("%s: replayed %q", key, got)
		}
	}
	err := tasks.Do(t.Context(), "fails", func(_ context.Context, g exclusive.Grant) error {
		must(t, "result", tasks.SetResult(g, []byte("bad")))
		return errBusiness
	})
	wantErr(t, "work that fails", err, errBusiness)
	succeed("fails")
	func() {
		defer func() { _ = recover() }()
		_ = tasks.Do(t.Context(), "panics", func(_ context.Context, g exclusive.Grant) error {
			must(t, "result", tasks.SetResult(g, []byte("bad")))
			panic("boom")
		})
	}()
	succeed("panics")

	for _, s := range strategies.All[Tx]() {
		if s.Name != "uniquetask" {
			continue
		}
		killedOwner(t, target, s)
	}
}

// killedOwner kills a process that holds a key by a lease. Until then the key is
// refused with its name; the next holder has it when that lease is over, and not before
// or much later. Only the server's clock is asked.
func killedOwner[Tx any](t *testing.T, target *matrix.Target[Tx], s strategies.Strategy[Tx]) {
	t.Helper()
	// Long enough to be renewed in time by a process that is kept waiting.
	const ttl = 10 * time.Second
	place := s.SetUp(t, target)
	key := place.MustKey(t)
	expires, since, row := "SELECT expires_at", "SELECT acquired_at", " FROM exclusive_lease WHERE lease_key = ?"
	args := []any{[]byte(key)}
	if s.Name == "uniquetask" {
		expires, since, row = "SELECT free_at", "SELECT started_at", " FROM exclusive_task WHERE run = ? AND task = ?"
		args = append(args, []byte("reports"))
	}
	other := child.Start(t, "TestHoldChild", holdOrder{Ticket: place.Ticket(), Key: key, TTL: ttl})
	other.Await(t, "holds")
	refusedByChild(t, place.New(t, target, exclusivetest.Config{}), key)
	other.Kill(t)
	free := target.Int(t, expires+row, args...) // renewed by nobody any more
	x := place.New(t, target, exclusivetest.Config{TTL: forever, Wait: 3 * ttl})
	err := x.Do(t.Context(), key, func(ctx context.Context, g exclusive.Grant) error {
		taken := target.Int(t, since+row, args...)
		if after := time.Duration(taken-free) * time.Microsecond; after < 0 || after > ttl {
			t.Errorf("the next holder has the key %v after the end of the killed one's lease; want 0 to %v", after, ttl)
		}
		return x.Commit(ctx, g, func(ctx context.Context, tx Tx) error { return place.Write(ctx, tx, key, "next") })
	})
	must(t, "the next holder", err)
	if body, n := place.Stored(t, key); body != "next" || n != 1 {
		t.Errorf("stored %q, %d results", body, n)
	}
}

// refusedByChild fails unless key is refused with the name of TestHoldChild.
func refusedByChild(t *testing.T, x exclusive.Exclusive, key string) {
	t.Helper()
	err := x.Do(t.Context(), key, nothing)
	var e *exclusive.Error
	if !errors.Is(err, exclusive.ErrHeld) || !errors.As(err, &e) || e.Holder == nil || e.Holder.Name != "child" || e.Holder.Expires.IsZero() || e.Holder.Since.IsZero() {
		t.Errorf("while it lives: %v", err)
	}
}

func testB082Once[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	place := strategies.All[Tx]()[0].SetUp(t, target)
	leases := leasesOn(t, target, fencing.Config{})
	once := func(key string, end func() ([]byte, error)) (result []byte, err error) {
		err = inTx(t.Context(), target, func(ctx context.Context, tx Tx) error {
			result, err = leases.Once(ctx, tx, key, nil, func(ctx context.Context) ([]byte, error) {
				if err := place.Write(ctx, tx, key, "written"); err != nil {
					return nil, err
				}
				return end()
			})
			return err
		})
		return result, err
	}
	for name, fail := range map[string]func() ([]byte, error){
		"fails":  func() ([]byte, error) { return []byte("bad"), errBusiness },
		"panics": func() ([]byte, error) { panic("boom") },
	} {
		key := place.MustKey(t)
		func() {
			defer func() { _ = recover() }()
			_, err := once(key, fail)
			wantErr(t, name, err, errBusiness)
		}()
		for range 2 { // the first runs, the second is a replay
			result, err := once(key, func() ([]byte, error) { return []byte("good"), nil })
			if err != nil || string(result) != "good" {
				t.Errorf("after one that %s: %q, %v", name, result, err)
			}
		}
		if body, n := place.Stored(t, key); body != "written" || n != 1 {
			t.Errorf("after one that %s: %d effects", name, n)
		}
	}

	// Killed: nobody has to wait for a lease, since the operation was a transaction.
	key := place.MustKey(t)
	other := child.Start(t, "TestHoldChild", holdOrder{Ticket: place.Ticket(), Key: key, InOnce: true})
	other.Await(t, "holds")
	other.Kill(t)
	runs := 0
	for range 2 {
		result, err := once(key, func() ([]byte, error) { runs++; return []byte("good"), nil })
		if err != nil || string(result) != "good" {
			t.Errorf("after one that was killed: %q, %v", result, err)
		}
	}
	if body, n := place.Stored(t, key); body != "written" || n != 1 || runs != 1 {
		t.Errorf("after one that was killed: %d runs, %d effects, %q", runs, n, body)
	}
}

// Pruning removes what ended long enough ago and nothing else, and never makes a
// run go twice within that time.
// Elsewhere retention removed records that were still asked for: retries found
// nothing, or ran again.
func TestB083_PruneKeepsWhatIsNeeded(t *testing.T) {
	t.Parallel()
	matrix.Shared(t, testB083[pgx.Tx], testB083[*sql.Tx])
}

func testB083[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	strategies.Tables(t, target)
	task := newKey()
	tasks := newTasks(t, target, uniquetask.Config{Task: task, TTL: forever})
	ago := func(run string, d time.Duration) { // the keys are this test's own
		target.MustExec(t, "UPDATE exclusive_task SET started_at = started_at - ? WHERE run = ?", d.Microseconds(), []byte(run))
		target.MustExec(t, "UPDATE exclusive_task SET ended_at = ended_at - ?, free_at = free_at - ? WHERE run = ? AND state <> 'running'", d.Microseconds(), d.Microseconds(), []byte(run))
	}
	a, b, c := newKey(), newKey(), newKey()
	must(t, "b", tasks.Do(t.Context(), b, nothing))
	must(t, "c", tasks.Do(t.Context(), c, nothing))
	ago(b, 59*time.Minute)
	ago(c, 61*time.Minute)
	err := tasks.Do(t.Context(), a, func(ctx context.Context, g exclusive.Grant) error {
		ago(a, 2*time.Hour)
		removed, err := tasks.Prune(ctx, time.Hour)
		if err != nil || removed != 1 {
			t.Errorf("removed %d, %v", removed, err)
		}
		wantErr(t, "in progress for two hours", tasks.Do(ctx, a, nothing), exclusive.ErrHeld)
		wantErr(t, "done 59 minutes ago", tasks.Do(ctx, b, nothing), exclusive.ErrDone)
		ran := false
		must(t, "done 61 minutes ago", tasks.Do(ctx, c, func(context.Context, exclusive.Grant) error { ran = true; return nil }))
		if !ran {
			t.Error("a run that was removed does not go again")
		}
		return nil
	})
	must(t, "the one in progress", err)

	// A run that failed long ago goes again after prune has seen it, and before prune
	// removes it.
	near, p := watched(t, target)
	pruner := newTasks(t, near, uniquetask.Config{Task: task})
	for _, late := range []bool{false, true} { // it is done before, or works on
		run := newKey()
		wantErr(t, "long ago", tasks.Do(t.Context(), run, func(context.Context, exclusive.Grant) error { return errBusiness }), errBusiness)
		ago(run, 2*time.Hour)
		works, pruned, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		goOn := sync.OnceFunc(func() { close(pruned) })
		t.Cleanup(goOn)
		again := func() {
			done <- tasks.Do(t.Context(), run, func(_ context.Context, g exclusive.Grant) error {
				close(works)
				if late {
					<-pruned
				}
				return tasks.SetResult(g, []byte("again"))
			})
		}
		met := false
		p.OnStatement(func(query string, _ []any) error {
			if strings.HasPrefix(query, "DELETE") {
				p.OnStatement(nil)
				met = true
				go again()
				select {
				case <-works:
				case <-time.After(patience):
				}
				if !late {
					err := <-done
					done <- err
				}
			}
			return nil
		})
		removed, err := pruner.Prune(t.Context(), time.Hour)
		for end := time.Now().Add(patience); !met && err == nil && time.Now().Before(end); { // it passes over what others have locked
			removed, err = pruner.Prune(t.Context(), time.Hour)
		}
		if !met || removed != 0 || err != nil {
			t.Fatalf("of a run that goes again removed %d, %v; prune had seen it: %v", removed, err, met)
		}
		if late {
			wantErr(t, "beside it", tasks.Do(t.Context(), run, nothing), exclusive.ErrHeld)
			goOn()
		}
		must(t, "the run", <-done)
		if got := doneWith(t, tasks.Do(t.Context(), run, nothing)); got != "again" {
			t.Errorf("replayed %q", got)
		}

		// The twin: what was seen is removed by its key alone.
		target.MustExec(t, "DELETE FROM exclusive_task WHERE task = ? AND run = ?", []byte(task), []byte(run))
		if !runOnce(t, tasks, run, "a second run") {
			t.Error("to remove a run by its key alone does no harm")
		}
	}

	key := newKey()
	var runs atomic.Int64
	var workers sync.WaitGroup
	for n := range 3 {
		workers.Go(func() {
			for range size(100, 20) {
				if n == 0 {
					if _, err := tasks.Prune(t.Context(), time.Hour); err != nil {
						t.Errorf("prune: %v", err)
					}
					continue
				}
				ran := false
				err := tasks.Do(t.Context(), key, func(_ context.Context, g exclusive.Grant) error {
					runs.Add(1)
					ran = true
					return tasks.SetResult(g, []byte("the only"))
				})
				var e *exclusive.Error
				switch {
				case ran && err == nil, !ran && errors.Is(err, exclusive.ErrHeld):
				case !ran && errors.Is(err, exclusive.ErrDone) && errors.As(err, &e) && string(e.Result) == "the only":
				default:
					t.Errorf("do beside prune: %v; its work ran: %v", err, ran)
				}
			}
		})
	}
	workers.Wait()
	if n := runs.Load(); n != 1 {
		t.Errorf("%d runs beside prune", n)
	}
}

// Three instances that tick one after the other each get a free key in turn; a
// run of a task goes once, and the others are given its result.
// Elsewhere a lock was taken for "once": a short job ran on every instance.
func TestB085_LockIsNotOnce(t *testing.T) {
	t.Parallel()
	matrix.Shared(t, testB085[pgx.Tx], testB085[*sql.Tx])
}

func testB085[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	strategies.Tables(t, target)
	task, key := newKey(), newKey()
	locked, once := 0, 0
	for range 3 {
		instance := target.Another(t, matrix.Options{MaxConns: 2})
		leases, err := fencing.New(instance.DB, fencing.Config{})
		opened(t, leases, err)
		must(t, "the lease", leases.Do(t.Context(), key, func(context.Context, exclusive.Grant) error { locked++; return nil }))

		if runOnce(t, newTasks(t, instance, uniquetask.Config{Task: task}), "2026-11-29", "report 7") {
			once++
		}
	}
	if locked != 3 {
		t.Errorf("%d of 3 instances got the free key", locked)
	}
	if once != 1 {
		t.Errorf("the run went %d times", once)
	}
}

func zone(t testing.TB, name string) *time.Location {
	t.Helper()
	z, err := time.LoadLocation(name)
	must(t, name, err)
	return z
}

// Two instances whose clocks disagree get the same key for the same scheduled
// instant, in every zone, and the run goes once.
// Elsewhere keys were made of the instance's own time, or cut at hours of UTC. (The
// command's --daily and --hourly do that unless --scheduled is given, as its help says.)
func TestB086_KeysFromScheduledTime(t *testing.T) {
	t.Parallel()
	scheduled := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	for name, want := range map[string][2]string{
		"UTC":             {"2026-11-29", "2026-11-29T12Z"},
		"Asia/Kolkata":    {"2026-11-29", "2026-11-29T17+05:30"},
		"Asia/Kathmandu":  {"2026-11-29", "2026-11-29T17+05:45"},
		"Pacific/Chatham": {"2026-11-30", "2026-11-30T01+13:45"},
	} {
		z := zone(t, name)
		// Each instance has the instant in a zone of its own.
		for _, at := range []time.Time{scheduled, scheduled.In(z), scheduled.In(zone(t, "America/New_York"))} {
			if day, hour := uniquetask.RunDay(at, z), uniquetask.RunHour(at, z); day != want[0] || hour != want[1] {
				t.Errorf("%s: %q and %q, want %q", name, day, hour, want)
			}
		}
		// The hour begins where the zone's does: half past or a quarter to, in UTC.
		local := scheduled.In(z)
		begin := time.Date(local.Year(), local.Month(), local.Day(), local.Hour(), 0, 0, 0, z)
		if uniquetask.RunHour(begin, z) != want[1] || uniquetask.RunHour(begin.Add(-time.Nanosecond), z) == want[1] || uniquetask.RunHour(begin.Add(time.Hour), z) == want[1] {
			t.Errorf("%s: the hour %q does not begin at %v", name, want[1], begin)
		}
	}
	exclusively := buildCommand(t)
	matrix.Shared(t,
		func(t *testing.T, target *matrix.Target[pgx.Tx]) { testB086(t, target, exclusively) },
		func(t *testing.T, target *matrix.Target[*sql.Tx]) { testB086(t, target, exclusively) })
}

func testB086[Tx any](t *testing.T, target *matrix.Target[Tx], exclusively command) {
	strategies.Tables(t, target)
	tasks := newTasks(t, target, uniquetask.Config{})
	scheduled := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	runs := 0
	for range 2 {
		if runOnce(t, tasks, uniquetask.RunHour(scheduled, time.UTC), "noon") {
			runs++
		}
	}
	if runs != 1 {
		t.Errorf("%d runs", runs)
	}
	if target.Name == "pgx" || target.Name == "lib_pq" {
		return // the command has one driver for each server
	}
	// The command, on two machines that start it at other times than it was scheduled for.
	zone := zone(t, "Asia/Kolkata")
	for run, period := range map[string][]string{
		uniquetask.RunHour(scheduled, time.UTC): {"--hourly"},
		uniquetask.RunDay(scheduled, zone):      {"--daily", zone.String()},
	} {
		task, done := newKey(), filepath.Join(t.TempDir(), "done")
		for range 2 {
			args := append([]string{"run", "--name", task, "--scheduled", scheduled.Format(time.RFC3339)}, period...)
			if code, output := exclusively.run(t, commandDSN(t, target), append(args, "--", "sh", "-c", `echo once >> "$0"`, done)...); code != 0 {
				t.Errorf("%s: the command ended with %d: %s", run, code, output)
			}
		}
		if text, err := os.ReadFile(done); err != nil || string(text) != "once\n" {
			t.Errorf("%s: the command has done %q, %v", run, text, err)
		}
		wantErr(t, run+", in the library", newTasks(t, target, uniquetask.Config{Task: task}).Do(t.Context(), run, nothing), exclusive.ErrDone)
	}
}

// A calendar day has one key, whether its clock shows an hour twice, or leaves
// out one, or midnight; each day's work goes once.
// Elsewhere the hour that comes twice ran the daily job twice, and the one that
// is left out skipped the day.
func TestB088_DaylightSaving(t *testing.T) {
	t.Parallel()
	type instant struct {
		at   time.Time
		zone string
		want string
	}
	utc := func(month time.Month, day, hour, minute int) time.Time {
		return time.Date(2026, month, day, hour, minute, 0, 0, time.UTC)
	}
	instants := []instant{
		{utc(11, 1, 5, 30), "America/New_York", "2026-11-01"}, // 01:30 EDT
		{utc(11, 1, 6, 30), "America/New_York", "2026-11-01"}, // 01:30 EST
		{time.Date(2026, 3, 29, 2, 30, 0, 0, zone(t, "Europe/Berlin")), "Europe/Berlin", "2026-03-29"},
		{uniquetask.DayStart(2026, 9, 6, zone(t, "America/Santiago")), "America/Santiago", "2026-09-06"},
		{uniquetask.DayStart(2026, 4, 24, zone(t, "Africa/Cairo")), "Africa/Cairo", "2026-04-24"},
		{utc(11, 30, 3, 30), "America/New_York", "2026-11-29"},
		{utc(11, 30, 3, 30).In(zone(t, "Asia/Tokyo")), "America/New_York", "2026-11-29"}, // a pod in another zone
	}
	if wrong := time.Date(2026, 9, 6, 0, 0, 0, 0, zone(t, "America/Santiago")); wrong.Day() != 5 {
		t.Error("midnight exists there: the case proves nothing")
	}
	for _, i := range instants {
		if got := uniquetask.RunDay(i.at, zone(t, i.zone)); got != i.want {
			t.Errorf("%v in %s is %q, want %q", i.at, i.zone, got, i.want)
		}
	}
	// Every half hour of a year is in one day, and days follow each other.
	for _, name := range []string{"America/New_York", "Europe/Berlin", "America/Santiago", "Africa/Cairo", "Australia/Lord_Howe"} {
		z, days := zone(t, name), make(map[string]bool)
		last := ""
		for at := utc(1, 1, 12, 0); at.Before(utc(12, 31, 12, 0)); at = at.Add(30 * time.Minute) {
			if day := uniquetask.RunDay(at, z); day != last {
				if days[day] {
					t.Errorf("%s comes twice in %s", day, name)
				}
				if date, err := time.Parse(time.DateOnly, day); last != "" && (err != nil || !at.Equal(uniquetask.DayStart(date.Year(), date.Month(), date.Day(), z))) {
					t.Errorf("%s begins at %v in %s", day, at.In(z), name)
				}
				days[day], last = true, day
			}
		}
		if len(days) != 365 {
			t.Errorf("%d days in %s", len(days), name)
		}
	}
	onSQLite(t, func(t *testing.T, target *matrix.Target[*sql.Tx]) {
		strategies.Tables(t, target)
		for name := range map[string]bool{"America/New_York": true, "Europe/Berlin": true, "America/Santiago": true, "Africa/Cairo": true} {
			tasks := newTasks(t, target, uniquetask.Config{})
			runs, days := 0, make(map[string]bool)
			for _, i := range instants {
				if i.zone != name {
					continue
				}
				days[i.want] = true
				if runOnce(t, tasks, uniquetask.RunDay(i.at, zone(t, name)), i.want) {
					runs++
				}
			}
			if runs != len(days) {
				t.Errorf("%s: %d runs on %d days", name, runs, len(days))
			}
		}
	})
}

// The key of a process that was killed is free when its lease is over, of one
// that was told to end at once; until then it is refused with the holder's name.
// Freeing it by force makes the live owner's commit fail, and the next token is
// higher.
// Elsewhere it blocked new jobs, which were dropped without a word, until
// somebody deleted the lock by hand. Operators see and free it with the command.
// Also: command.TestOperate.
func TestB089_KilledOwner(t *testing.T) {
	t.Parallel()
	eachStrategy(t, testB089, testB089)
}

func testB089[Tx any](t *testing.T, target *matrix.Target[Tx], s strategies.Strategy[Tx]) {
	place := s.SetUp(t, target)
	x := place.New(t, target, exclusivetest.Config{TTL: forever})
	if s.Name == "uniquetask" || s.Name == "fencing" {
		killedOwner(t, target, s)

		key := place.MustKey(t) // of one that is told to end
		other := child.Start(t, "TestHoldChild", holdOrder{Ticket: place.Ticket(), Key: key, TTL: forever})
		other.Await(t, "holds")
		refusedByChild(t, x, key)
		other.Signal(t, syscall.SIGTERM)
		other.Await(t, "ended: true")
		stores(t, place, place.New(t, target, exclusivetest.Config{Wait: patience}), key, "next")
	}

	if place.TakeAway == nil || s.Name == "rowlock" {
		return // rowlock's is the session, and kills all that the database has here
	}
	next := place.New(t, target.Another(t, matrix.Options{}), exclusivetest.Config{TTL: forever, Wait: patience})
	for _, ending := range []string{"Commit", "return nil"} {
		key := place.MustKey(t)
		err := x.Do(t.Context(), key, func(ctx context.Context, g exclusive.Grant) error {
			must(t, "free it by force", place.TakeAway(ctx, key))
			err := next.Do(soon(t), key, func(nctx context.Context, ng exclusive.Grant) error {
				if ng.Token <= g.Token {
					t.Errorf("token %d after %d", ng.Token, g.Token)
				}
				return next.Commit(nctx, ng, func(ctx context.Context, tx Tx) error { return place.Write(ctx, tx, key, "next") })
			})
			must(t, "the next", err)
			if ending == "return nil" {
				return nil
			}
			return x.Commit(context.WithoutCancel(ctx), g, func(ctx context.Context, tx Tx) error { return place.Write(ctx, tx, key, "forced out") })
		})
		if !errors.Is(err, exclusive.ErrFenced) && !errors.Is(err, exclusive.ErrLost) {
			t.Errorf("the owner that was forced out ends with %s: %v", ending, err)
		}
		if body, n := place.Stored(t, key); body != "next" || n != 1 {
			t.Errorf("%s: stored %q, %d results", ending, body, n)
		}
	}
}

// An operation id with another payload is refused, and neither runs nor replays.
// A key that is used for two things would give one of them the other's result.
func TestOnceOwn_OtherPayload(t *testing.T) {
	t.Parallel()
	matrix.Shared(t, testOtherPayload[pgx.Tx], testOtherPayload[*sql.Tx])
}

func testOtherPayload[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	strategies.Tables(t, target)
	leases, err := fencing.New(target.DB, fencing.Config{})
	opened(t, leases, err)
	op := newKey()
	once := func(payload string) (result []byte, err error) {
		err = inTx(t.Context(), target, func(ctx context.Context, tx Tx) error {
			result, err = leases.Once(ctx, tx, op, []byte(payload), func(context.Context) ([]byte, error) { return []byte("for " + payload), nil })
			return err
		})
		return result, err
	}
	for _, payload := range []string{"10 EUR", "20 EUR", "10 EUR"} {
		result, err := once(payload)
		if payload == "20 EUR" {
			wantErr(t, payload, err, exclusive.ErrMismatch)
			continue
		}
		if err != nil || string(result) != "for 10 EUR" {
			t.Errorf("%s: %q, %v", payload, result, err)
		}
	}
}

// A run that is under way cannot be forgotten, and the attempts of one that
// failed are kept until it is.
// Cleaning up by hand is a retention job too: it must not make a second run.
func TestOnceOwn_ForgetWhileRunning(t *testing.T) {
	t.Parallel()
	matrix.Shared(t, testForgetWhileRunning[pgx.Tx], testForgetWhileRunning[*sql.Tx])
}

func testForgetWhileRunning[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	strategies.Tables(t, target)
	tasks := newTasks(t, target, uniquetask.Config{TTL: forever})
	key := newKey()
	wantErr(t, "first", tasks.Do(t.Context(), key, func(context.Context, exclusive.Grant) error { return errBusiness }), errBusiness)
	var token int64
	must(t, "second", tasks.Do(t.Context(), key, func(ctx context.Context, g exclusive.Grant) error {
		token = g.Token
		wantErr(t, "forget", tasks.Forget(ctx, key), exclusive.ErrHeld)
		wantErr(t, "a rival after that", tasks.Do(ctx, key, nothing), exclusive.ErrHeld)
		run, err := tasks.Outcome(ctx, key)
		if err != nil || !run.Live || run.Attempt != 2 || len(run.Earlier) != 1 || run.Earlier[0].Err != errBusiness.Error() {
			t.Errorf("the run is %+v, %v", run, err)
		}
		return nil
	}))
	must(t, "forget", tasks.Forget(t.Context(), key))
	must(t, "anew", tasks.Do(t.Context(), key, func(_ context.Context, g exclusive.Grant) error {
		if g.Token <= token {
			t.Errorf("token %d after %d", g.Token, token)
		}
		return nil
	}))
}
