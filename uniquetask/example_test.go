package uniquetask_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"os"
	"path/filepath"
	"time"

	_ "modernc.org/sqlite"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/db/sqldb"
	"github.com/exclusive-go/exclusive/migrations"
	"github.com/exclusive-go/exclusive/uniquetask"
)

// open makes a database with the tables of this package and one of ours.
func open() (pool *sql.DB, remove func()) {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	pool, err = sql.Open("sqlite", "file:"+filepath.Join(dir, "example.db")+"?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)")
	if err != nil {
		log.Fatal(err)
	}
	statements := []string{`CREATE TABLE report (day TEXT PRIMARY KEY, body TEXT NOT NULL)`}
	files, err := fs.Glob(migrations.FS, "sqlite/*_uniquetask_*.up.sql")
	if err != nil {
		log.Fatal(err)
	}
	for _, name := range files {
		text, err := fs.ReadFile(migrations.FS, name)
		if err != nil {
			log.Fatal(err)
		}
		statements = append(statements, string(text))
	}
	for _, s := range statements {
		if _, err := pool.Exec(s); err != nil {
			log.Fatal(err)
		}
	}
	return pool, func() { _ = errors.Join(pool.Close(), os.RemoveAll(dir)) }
}

// Three machines are woken at about the same time, or hours late. One makes the
// report of the day, and the others get its result.
func Example() {
	pool, remove := open()
	defer remove()
	x, err := uniquetask.New(sqldb.NewSQLite(pool), uniquetask.Config{Task: "nightly-report", TTL: time.Minute})
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()

	// What it was scheduled for, and where, not the present.
	day := uniquetask.RunDay(time.Date(2026, 11, 29, 3, 0, 0, 0, time.UTC), time.UTC)
	for machine := 1; machine <= 3; machine++ {
		err := x.Do(context.Background(), day, func(ctx context.Context, g exclusive.Grant) error {
			report := "all is well" // long work
			if err := x.SetResult(g, []byte("1 page")); err != nil {
				return err
			}
			return x.Commit(ctx, g, func(ctx context.Context, tx *sql.Tx) error {
				_, err := tx.ExecContext(ctx, `INSERT INTO report (day, body) VALUES (?, ?)`, day, report)
				return err
			})
		})
		var e *exclusive.Error
		switch {
		case err == nil:
			fmt.Println(machine, "made it")
		case errors.Is(err, exclusive.ErrDone) && errors.As(err, &e):
			fmt.Printf("%d found it done: %s\n", machine, e.Result)
		case errors.Is(err, exclusive.ErrHeld):
			fmt.Println(machine, "found somebody at it")
		default:
			log.Fatal(err)
		}
	}
	// Output:
	// 1 made it
	// 2 found it done: 1 page
	// 3 found it done: 1 page
}

// A run that fails is tried again, but not for ever, and says what went wrong.
func ExampleTasks_Outcome() {
	pool, remove := open()
	defer remove()
	x, err := uniquetask.New(sqldb.NewSQLite(pool), uniquetask.Config{Task: "import", MaxAttempts: 2, Holder: "worker-7"})
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()

	ctx := context.Background()
	for {
		err := x.Do(ctx, "orders.csv", func(_ context.Context, g exclusive.Grant) error {
			return fmt.Errorf("line %d is cut off", g.Attempt)
		})
		if errors.Is(err, uniquetask.ErrFailed) {
			break
		}
	}
	run, err := x.Outcome(ctx, "orders.csv")
	if err != nil {
		log.Fatal(err)
	}
	for _, a := range run.Earlier {
		fmt.Println("attempt", a.Attempt, a.State, a.Err)
	}
	fmt.Println("attempt", run.Attempt, run.State, run.Err)
	// Output:
	// attempt 1 failed line 1 is cut off
	// attempt 2 failed line 2 is cut off
}
