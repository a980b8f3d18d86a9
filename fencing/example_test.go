package fencing_test

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
	"github.com/exclusive-go/exclusive/fencing"
	"github.com/exclusive-go/exclusive/migrations"
)

// open makes a database with the tables of this package and some of ours.
func open() (pool *sql.DB, remove func()) {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	pool, err = sql.Open("sqlite", "file:"+filepath.Join(dir, "example.db")+"?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)")
	if err != nil {
		log.Fatal(err)
	}
	files, err := fs.Glob(migrations.FS, "sqlite/*_fencing_*.up.sql")
	if err != nil {
		log.Fatal(err)
	}
	statements := []string{
		`CREATE TABLE report (day TEXT PRIMARY KEY, body TEXT NOT NULL)`,
		`CREATE TABLE pointer (name TEXT PRIMARY KEY, file TEXT NOT NULL)`,
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

// Long work under a lease, and a short transaction that stores its result. The
// write, the proof that this holder is the newest, and the release are one.
func Example() {
	pool, remove := open()
	defer remove()
	x, err := fencing.New(sqldb.NewSQLite(pool), fencing.Config{TTL: 30 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()

	ctx, day := context.Background(), "2026-11-29"
	err = x.Do(ctx, "report/"+day, func(ctx context.Context, g exclusive.Grant) error {
		report := fmt.Sprintf("made under token %d", g.Token) // long work
		return x.Commit(ctx, g, func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, `INSERT INTO report (day, body) VALUES (?, ?)`, day, report)
			return err
		})
	})
	switch {
	case errors.Is(err, exclusive.ErrHeld):
		fmt.Println("somebody else does it")
	case err != nil:
		log.Fatal(err)
	}

	var body string
	if err := pool.QueryRow(`SELECT body FROM report WHERE day = ?`, day).Scan(&body); err != nil {
		log.Fatal(err)
	}
	fmt.Println(body)
	// Output: made under token 1
}

// A request that is sent twice has one effect, and one answer.
func ExampleLeases_Once() {
	pool, remove := open()
	defer remove()
	x, err := fencing.New(sqldb.NewSQLite(pool), fencing.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()

	handle := func(ctx context.Context, requestID, payload string) (string, error) {
		tx, err := pool.BeginTx(ctx, nil)
		if err != nil {
			return "", err
		}
		defer tx.Rollback() // after Commit it does nothing
		answer, err := x.Once(ctx, tx, requestID, []byte(payload), func(ctx context.Context) ([]byte, error) {
			fmt.Println("charging", payload)
			return []byte("receipt 17"), nil
		})
		if err != nil {
			return "", err
		}
		return string(answer), tx.Commit()
	}
	ctx := context.Background()
	for range 2 {
		answer, err := handle(ctx, "request-1", "10 EUR")
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(answer)
	}
	_, err = handle(ctx, "request-1", "99 EUR")
	fmt.Println("other payload:", errors.Is(err, exclusive.ErrMismatch))
	// Output:
	// charging 10 EUR
	// receipt 17
	// receipt 17
	// other payload: true
}

// Files and objects have no transaction. Write them aside, and switch a pointer
// under the guard: a stale holder's file is never pointed to.
func ExampleLeases_Commit_pointer() {
	pool, remove := open()
	defer remove()
	x, err := fencing.New(sqldb.NewSQLite(pool), fencing.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()

	dir, err := os.MkdirTemp("", "objects")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	err = x.Do(context.Background(), "index", func(ctx context.Context, g exclusive.Grant) error {
		name := fmt.Sprintf("index.%d", g.Token) // no two holders share a name
		if err := os.WriteFile(filepath.Join(dir, name), []byte("data"), 0o600); err != nil {
			return err
		}
		return x.Commit(ctx, g, func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, `INSERT INTO pointer (name, file) VALUES ('index', ?)
				ON CONFLICT (name) DO UPDATE SET file = excluded.file`, name)
			return err
		})
	})
	if err != nil {
		log.Fatal(err)
	}
	var file string
	if err := pool.QueryRow(`SELECT file FROM pointer WHERE name = 'index'`).Scan(&file); err != nil {
		log.Fatal(err)
	}
	fmt.Println(file)
	// Output: index.1
}
