package cases_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/casupdate"
	"github.com/exclusive-go/exclusive/exclusivetest"
	"github.com/exclusive-go/exclusive/fencing"
	"github.com/exclusive-go/exclusive/integration_test/cases/child"
	"github.com/exclusive-go/exclusive/integration_test/matrix"
	"github.com/exclusive-go/exclusive/integration_test/strategies"
	"github.com/exclusive-go/exclusive/rowlock"
	"github.com/exclusive-go/exclusive/uniquetask"
)

func onSQLite(t *testing.T, test func(*testing.T, *matrix.Target[*sql.Tx])) {
	t.Helper()
	matrix.Drivers(t, nil, test, "sqlite")
}

// contest is what several workers, in two processes, compete for: in each round
// rows, a run, a key, an operation, and the right to count.
type contest struct {
	At     matrix.Address
	Rounds int
	// BusyTimeout is how long a statement waits for the file's lock, which goes to
	// anybody of those who wait. Zero: not at all.
	BusyTimeout time.Duration
}

// another is a worker's own pool.
func (c contest) another(t testing.TB, target *matrix.Target[*sql.Tx]) *matrix.Target[*sql.Tx] {
	t.Helper()
	pragma := fmt.Sprintf("busy_timeout(%d)", c.BusyTimeout.Milliseconds())
	return target.Another(t, matrix.Options{Params: map[string]string{"_pragma": pragma}, MaxConns: 2})
}

// play has one worker compete in all rounds. Each win is stored.
func (c contest) play(t testing.TB, target *matrix.Target[*sql.Tx], who string) {
	table, err := casupdate.New(target.DB, casupdate.Config{
		Table: "contest", From: "NEW", Claimed: "CLAIMED", Done: "DONE", TokenColumn: "token", GrantColumn: "grant_id",
		Transitions: []casupdate.Transition{{From: "NEW", To: "RUNNING"}},
	})
	if err != nil {
		t.Error(err)
		return
	}
	defer table.Close()
	tasks, err := uniquetask.New(target.DB, uniquetask.Config{Task: "contest"})
	if err != nil {
		t.Error(err)
		return
	}
	defer tasks.Close()
	leases, err := fencing.New(target.DB, fencing.Config{TTL: forever})
	if err != nil {
		t.Error(err)
		return
	}
	defer leases.Close()
	locks, err := rowlock.New(target.DB, rowlock.Config{})
	if err != nil {
		t.Error(err)
		return
	}
	ctx := context.WithoutCancel(t.Context())
	count := func(what string) func(ctx context.Context, tx *sql.Tx) error {
		return func(ctx context.Context, tx *sql.Tx) error {
			var n int // read, then write
			if err := tx.QueryRowContext(ctx, "SELECT n FROM counted WHERE what = ?", what).Scan(&n); err != nil {
				return err
			}
			_, err := tx.ExecContext(ctx, "UPDATE counted SET n = ? WHERE what = ?", n+1, what)
			return err
		}
	}
	committing := func(x exclusive.Transactional[*sql.Tx], what, key string) error {
		return x.Do(ctx, key, func(ctx context.Context, g exclusive.Grant) error { return x.Commit(ctx, g, count(what)) })
	}
	for round := range c.Rounds {
		key := fmt.Sprint(round)
		applied := false
		errs := map[string]error{
			"row":      table.Transition(ctx, key, "NEW", "RUNNING"),
			"claim":    committing(table, "claim", key+"/claim"),
			"run":      tasks.Do(ctx, key, nothing),
			"finish":   committing(tasks, "finish", key+"/finish"),
			"lock":     committing(locks, "lock", key),
			"exchange": committing(leases, "exchange", key+"/exchange"),
		}
		once := func(ctx context.Context, tx *sql.Tx) error {
			_, err := leases.Once(ctx, tx, key, nil, func(ctx context.Context) ([]byte, error) {
				applied = true
				return []byte("r"), count("once")(ctx, tx)
			})
			return err
		}
		for again := true; again; {
			applied = false
			errs["once"] = inTx(ctx, target, once)
			// Without a busy time-out a transaction of the caller's own is his to
			// repeat.
			again = c.BusyTimeout == 0 && errors.Is(errs["once"], exclusive.ErrConflict)
		}
		_, errs["key"] = leases.TryAcquire(ctx, key)
		for what, err := range errs {
			var state *casupdate.StateError
			switch {
			case what == "once" && err == nil && !applied: // replayed
			case err == nil:
				c.won(t, target, what, key, who)
			case what != "once" && (errors.Is(err, exclusive.ErrHeld) || errors.Is(err, exclusive.ErrDone)), errors.As(err, &state):
			default:
				t.Errorf("%s of %s: %v", what, key, err)
			}
			// A lock is the database's own: that it is locked is why it is held.
			if err != nil && strings.Contains(err.Error(), "database is locked") && what != "lock" {
				t.Errorf("%s of %s: %v", what, key, err)
			}
		}
	}
}

// won stores a win, however long the queue for the file is.
func (c contest) won(t testing.TB, target *matrix.Target[*sql.Tx], what, key, who string) {
	for {
		_, err := target.Plain.ExecContext(context.WithoutCancel(t.Context()), "INSERT INTO win VALUES (?, ?, ?)", what, key, who)
		if err == nil {
			return
		}
		if !strings.Contains(err.Error(), "database is locked") {
			t.Error(err)
			return
		}
	}
}

// held starts a contest and judges it.
func (c contest) held(t *testing.T, target *matrix.Target[*sql.Tx], workers int) {
	target.Migrate(t, "")
	target.MustExec(t, "CREATE TABLE contest (id varchar(20) PRIMARY KEY, state varchar(20) NOT NULL, token bigint, grant_id varchar(64))")
	target.MustExec(t, "CREATE TABLE counted (what varchar(20) PRIMARY KEY, n bigint NOT NULL)")
	target.MustExec(t, "INSERT INTO counted VALUES ('claim', 0), ('finish', 0), ('lock', 0), ('exchange', 0), ('once', 0)")
	target.MustExec(t, "CREATE TABLE win (what varchar(20), id varchar(20), who varchar(20))")
	for round := range c.Rounds {
		target.MustExec(t, "INSERT INTO contest (id, state) VALUES (?, 'NEW'), (?, 'NEW')", fmt.Sprint(round), fmt.Sprint(round, "/claim"))
	}
	c.At = target.Address()
	other := child.Start(t, "TestContestChild", c)
	other.Await(t, "ready")
	var playing sync.WaitGroup
	for n := range workers {
		playing.Go(func() { c.play(t, c.another(t, target), fmt.Sprint(n)) })
	}
	playing.Wait()
	if state := other.Wait(t); !state.Success() {
		t.Errorf("the other process: %v", state)
	}
	for _, what := range []string{"row", "claim", "run", "finish", "key", "once"} {
		won := target.Int(t, "SELECT COUNT(*) FROM win WHERE what = ?", what)
		rounds := target.Int(t, "SELECT COUNT(DISTINCT id) FROM win WHERE what = ?", what)
		if won != int64(c.Rounds) || rounds != won {
			t.Errorf("%s: %d winners in %d of %d rounds", what, won, rounds, c.Rounds)
		}
	}
	for _, what := range []string{"claim", "finish", "lock", "exchange", "once"} {
		won := target.Int(t, "SELECT COUNT(*) FROM win WHERE what = ?", what)
		if n := target.Int(t, "SELECT n FROM counted WHERE what = ?", what); n != won || n == 0 {
			t.Errorf("%s: %d were told so, and %d have counted", what, won, n)
		}
	}
}

// TestContestChild is the other process of a contest.
func TestContestChild(t *testing.T) {
	var c contest
	if !child.Order(t, &c) {
		return // nothing to test by itself
	}
	matrix.Join(t, c.At, nil, func(t *testing.T, target *matrix.Target[*sql.Tx]) {
		child.Say("ready")
		var playing sync.WaitGroup
		for n := range 2 {
			playing.Go(func() {
				c.play(t, c.another(t, target), fmt.Sprint("child", n))
			})
		}
		playing.Wait()
	})
}

// Of all who claim a row, a run or a key of a SQLite file at once, or apply an
// operation, in two processes, one wins; what is counted under a lock or a lease is
// counted; and nobody is told that the database is locked.
// Elsewhere transactions read first and then wrote: that fails at once when
// somebody else has written meanwhile, whatever the busy time-out.
func TestB068_ReadThenWrite(t *testing.T) {
	t.Parallel()
	onSQLite(t, func(t *testing.T, target *matrix.Target[*sql.Tx]) {
		contest{Rounds: size(200, 30), BusyTimeout: forever}.held(t, target, 8)

		// The twin: such a transaction does fail at once.
		tx, err := target.Plain.BeginTx(t.Context(), nil)
		must(t, "begin", err)
		defer func() { _ = tx.Rollback() }()
		var n int
		_, err = tx.ExecContext(t.Context(), fmt.Sprint("PRAGMA busy_timeout = ", forever.Milliseconds()))
		must(t, "busy time-out", err)
		must(t, "read", tx.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM win").Scan(&n))
		target.MustExec(t, "DELETE FROM win WHERE id = '0'")
		if _, err := tx.ExecContext(soon(t), "DELETE FROM win"); err == nil || !strings.Contains(err.Error(), "(517)") {
			t.Errorf("read, then write: %v", err)
		}
	})
}

// Tokens of a SQLite file rise across release, pruning of leases and runs, and a copy
// of the tables into a new file; where rows of leases were deleted all the same, the
// destination refuses the token that went back.
// Elsewhere ids were row ids, which SQLite gives out again.
func TestB070_TokensAfterRestore(t *testing.T) {
	t.Parallel()
	onSQLite(t, func(t *testing.T, target *matrix.Target[*sql.Tx]) {
		target.Migrate(t, "")
		if n := target.Int(t, "SELECT COUNT(*) FROM sqlite_master WHERE name = 'sqlite_sequence'"); n != 0 {
			t.Error("a table counts with AUTOINCREMENT, whose state a dump may leave out")
		}
		var last, lastRun int64
		round := func(what string, target *matrix.Target[*sql.Tx]) {
			t.Helper()
			leases, err := fencing.New(target.DB, fencing.Config{})
			tasks, terr := uniquetask.New(target.DB, uniquetask.Config{Task: "t"})
			opened(t, leases, err)
			opened(t, tasks, terr)
			for range 3 {
				lease := acquire(t, leases, "k")
				if token := lease.Grant().Token; token <= last {
					t.Errorf("%s: lease token %d after %d", what, token, last)
				}
				last = lease.Grant().Token
				must(t, "release", lease.Release(t.Context()))

				must(t, "run", tasks.Do(t.Context(), "r", func(_ context.Context, g exclusive.Grant) error {
					if g.Token <= lastRun {
						t.Errorf("%s: run token %d after %d", what, g.Token, lastRun)
					}
					lastRun = g.Token
					return nil
				}))
				if removed, err := tasks.Prune(t.Context(), 0); err != nil || removed != 1 {
					t.Errorf("prune: %d, %v", removed, err)
				}

				// Long after.
				target.MustExec(t, "UPDATE exclusive_lease SET acquired_at = 1, expires_at = MIN(expires_at, 1)")
				if removed, err := leases.Prune(t.Context(), fencing.MinPrune); err != nil || removed != 1 {
					t.Errorf("prune of leases: %d, %v", removed, err)
				}
				if n := target.Int(t, "SELECT (SELECT COUNT(*) FROM exclusive_lease) + (SELECT COUNT(*) FROM exclusive_task)"); n != 0 {
					t.Errorf("%d rows are left", n)
				}
			}
		}
		round("at first", target)

		restored := target.Fresh(t)
		restored.Migrate(t, "")
		copyTables(t, target, restored)
		round("in the copy", restored)

		guard, err := fencing.NewGuard(restored.DB, fencing.GuardConfig{})
		must(t, "guard", err)
		leases, err := fencing.New(restored.DB, fencing.Config{})
		opened(t, leases, err)
		store := func() error {
			lease := acquire(t, leases, "k")
			defer func() { must(t, "release", lease.Release(t.Context())) }()
			return inTx(t.Context(), restored, func(ctx context.Context, tx *sql.Tx) error { return guard.Check(ctx, tx, lease.Grant()) })
		}
		must(t, "store", store())
		restored.MustExec(t, "DELETE FROM exclusive_lease")
		wantErr(t, "with a token that went back", store(), exclusive.ErrFenced)
		must(t, "advance", leases.Advance(t.Context(), "k", 1000))
		must(t, "store after Advance", store())
	})
}

// copyTables copies rows as a dump of the toolkit's tables does.
func copyTables(t *testing.T, from, to *matrix.Target[*sql.Tx]) {
	t.Helper()
	names, err := from.Plain.QueryContext(t.Context(), "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'exclusive%'")
	must(t, "tables", err)
	var tables []string
	for names.Next() {
		var name string
		must(t, "scan", names.Scan(&name))
		tables = append(tables, name)
	}
	must(t, "tables", errors.Join(names.Err(), names.Close()))
	for _, table := range tables {
		to.MustExec(t, "DELETE FROM "+table)
		rows, err := from.Plain.QueryContext(t.Context(), "SELECT * FROM "+table)
		must(t, "read", err)
		columns, err := rows.Columns()
		must(t, "columns", err)
		for rows.Next() {
			values, places := make([]any, len(columns)), make([]any, len(columns))
			for i := range values {
				places[i] = &values[i]
			}
			must(t, "scan", rows.Scan(places...))
			to.MustExec(t, "INSERT INTO "+table+" VALUES (?"+strings.Repeat(", ?", len(columns)-1)+")", values...)
		}
		must(t, "read", errors.Join(rows.Err(), rows.Close()))
	}
	if len(tables) < 5 {
		t.Fatalf("only %v were copied", tables)
	}
}

// A lock of SQLite excludes really, in each mode; leases have fractions of
// seconds; and every time is stored as one kind of number.
// Elsewhere FOR UPDATE was left out without a word, clocks had whole seconds,
// and times were compared as text in two formats.
func TestB071_DialectGaps(t *testing.T) {
	t.Parallel()
	onSQLite(t, func(t *testing.T, target *matrix.Target[*sql.Tx]) {
		target.Migrate(t, "")
		target.MustExec(t, "CREATE TABLE job (id varchar(20) PRIMARY KEY, done int)")
		target.MustExec(t, "INSERT INTO job VALUES ('a', 0), ('b', 0)")
		jobs := rowlock.Config{Table: "job", KeyColumns: []string{"id"}, Where: "done = 0"}
		other := target.Another(t, matrix.Options{})
		open := func(target *matrix.Target[*sql.Tx], cfg rowlock.Config) *rowlock.Locks[*sql.Tx] {
			l, err := rowlock.New(target.DB, cfg)
			must(t, "open", err)
			return l
		}
		waiting, held := make(chan error, 1), newHeldSignal()
		err := open(target, jobs).Run(t.Context(), "a", func(ctx context.Context, tx *sql.Tx, _ exclusive.Grant) error {
			// NOWAIT
			wantErr(t, "the same row", open(other, jobs).Do(ctx, "a", nothing), exclusive.ErrHeld)
			// SKIP LOCKED
			n, err := open(other, jobs).Next(ctx, 1, func(context.Context, *sql.Tx, [][]string) error {
				t.Error("the next row, beside a lock")
				return nil
			})
			if n != 0 || !errors.Is(err, exclusive.ErrHeld) {
				t.Errorf("next: %d, %v", n, err)
			}
			// Block
			patient := jobs
			patient.Wait, patient.Observer = patience, held
			told := held.next()
			go func() {
				waiting <- open(other, patient).Run(context.WithoutCancel(ctx), "a", func(ctx context.Context, tx *sql.Tx, _ exclusive.Grant) error {
					var done int
					err := tx.QueryRowContext(ctx, "SELECT done FROM job WHERE id = 'a'").Scan(&done)
					if done != 1 {
						t.Error("the one that waited works beside the first, or on the world from before it")
					}
					return err
				})
			}()
			ended(t, "the one that waits to be refused", told)
			_, err = tx.ExecContext(ctx, "UPDATE job SET done = 1 WHERE id = 'a'")
			return err
		})
		must(t, "run", err)
		must(t, "the one that waited", <-waiting)
		if n := target.Int(t, "SELECT done FROM job WHERE id = 'a'"); n != 1 {
			t.Error("what the first wrote is not stored")
		}

		leases, err := fencing.New(target.DB, fencing.Config{TTL: 900 * time.Millisecond, NoRenew: true})
		opened(t, leases, err)
		begin := time.Now()
		lease := acquire(t, leases, "k")
		ends := target.Int(t, "SELECT expires_at - acquired_at FROM exclusive_lease WHERE lease_key = ?", []byte("k"))
		if ends < 899_000 || ends >= 2_000_000 { // longer, if the file was slow to answer
			t.Errorf("a lease of 900 ms is stored as %d µs", ends)
		}
		must(t, "release", acquire(t, leases, "k").Release(t.Context()))
		if took := time.Since(begin); took < 900*time.Millisecond {
			t.Errorf("taken over after %v", took)
		}
		wantErr(t, "late release", lease.Release(t.Context()), exclusive.ErrLost)

		before := time.Now()
		tasks, err := uniquetask.New(target.DB, uniquetask.Config{Task: "t"})
		must(t, "run", opened(t, tasks, err).Do(t.Context(), "r", nothing))
		clock := acquire(t, leases, "clock")
		after := time.Now()
		for _, c := range []struct {
			column string
			later  time.Duration // than it was written
		}{
			{"acquired_at FROM exclusive_lease WHERE lease_key = CAST('clock' AS BLOB)", 0},
			{"expires_at FROM exclusive_lease WHERE lease_key = CAST('clock' AS BLOB)", 900 * time.Millisecond},
			{"started_at FROM exclusive_task", 0},
			{"ended_at FROM exclusive_task", 0},
			{"free_at FROM exclusive_task", 0},
		} {
			var kind string
			var micros int64
			name, table, _ := strings.Cut(c.column, " ")
			must(t, c.column, target.Plain.QueryRowContext(t.Context(), "SELECT typeof("+name+"), "+name+" "+table).Scan(&kind, &micros))
			if kind != "integer" {
				t.Errorf("%s is stored as %s", c.column, kind)
			}
			// SQLite's clock is this machine's, in whole milliseconds.
			wrote := time.UnixMicro(micros).Add(-c.later)
			if wrote.Before(before.Add(-2*time.Millisecond)) || wrote.After(after.Add(2*time.Millisecond)) {
				t.Errorf("%s is %v; it was written between %v and %v", c.column, wrote, before, after)
			}
		}
		must(t, "release", clock.Release(t.Context()))
	})
}

// holdOrder is what a process is to hold until it is killed.
type holdOrder struct {
	Ticket strategies.Ticket
	Key    string
	TTL    time.Duration
	// InCommit: hang in the transaction of a Commit.
	InCommit bool
	// InOnce: hang in the apply of a Once whose operation is the key.
	InOnce bool
}

// The key of a process that was killed is free at once where it was held by a
// transaction, and its half-written result is gone.
// The file's write lock belongs to the process, as ids belong to the file:
// what SQLite leaves to the operating system must be put in order by itself.
func TestSQLiteOwn_KilledWriter(t *testing.T) {
	t.Parallel()
	onSQLite(t, func(t *testing.T, target *matrix.Target[*sql.Tx]) {
		for _, s := range strategies.All[*sql.Tx]() {
			if s.Name != "rowlock" && s.Name != "fencing" {
				continue
			}
			own := target.Fresh(t)
			place := s.SetUp(t, own)
			key := place.MustKey(t)
			other := child.Start(t, "TestHoldChild", holdOrder{Ticket: place.Ticket(), Key: key, TTL: 4 * time.Second, InCommit: true})
			other.Await(t, "holds")
			other.Kill(t)
			stores(t, place, place.New(t, own, exclusivetest.Config{Wait: patience}), key, "next")
		}
	})
}

// One wins and nobody is told of a locked database also where connections have
// no busy time-out, but in a transaction of his own, which is ErrConflict.
// Then every collision is an error at once, and only repeating helps.
func TestSQLiteOwn_NoBusyTimeout(t *testing.T) {
	t.Parallel()
	onSQLite(t, func(t *testing.T, target *matrix.Target[*sql.Tx]) {
		contest{Rounds: 10}.held(t, target, 2)
	})
}
