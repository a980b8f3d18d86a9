package rowlock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strconv"

	_ "modernc.org/sqlite"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/db/sqldb"
	"github.com/exclusive-go/exclusive/rowlock"
)

// open makes a SQLite database with the given tables.
func open(statements ...string) (pool *sql.DB, remove func()) {
	dir, err := os.MkdirTemp("", "rowlock")
	if err != nil {
		log.Fatal(err)
	}
	pool, err = sql.Open("sqlite", "file:"+filepath.Join(dir, "example.db")+"?_pragma=journal_mode(WAL)")
	if err != nil {
		log.Fatal(err)
	}
	for _, s := range statements {
		if _, err := pool.Exec(s); err != nil {
			log.Fatal(err)
		}
	}
	return pool, func() { _, _ = pool.Close(), os.RemoveAll(dir) }
}

// Money moves between two rows that stay locked until the transaction ends.
func Example() {
	pool, remove := open(
		`CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL)`,
		`INSERT INTO account VALUES (1, 100), (2, 0)`,
	)
	defer remove()

	accounts, err := rowlock.New(sqldb.NewSQLite(pool), rowlock.Config{
		Table:      "account",
		KeyColumns: []string{"id"},
		KeyValues: func(key string) ([]any, error) {
			id, err := strconv.ParseInt(key, 10, 64)
			return []any{id}, err
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	err = accounts.DoAll(ctx, []string{"1", "2"}, func(ctx context.Context, grants []exclusive.Grant) error {
		return accounts.Commit(ctx, grants[0], func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, `UPDATE account SET balance = balance + CASE id WHEN 1 THEN -30 ELSE 30 END`)
			return err
		})
	})
	fmt.Println("moved:", err)

	err = accounts.Do(ctx, "3", func(context.Context, exclusive.Grant) error { return nil })
	fmt.Println("no account 3:", errors.Is(err, exclusive.ErrNoRow))
	// Output:
	// moved: <nil>
	// no account 3: true
}

// A queue in a table: each claimer gets rows that no other one has.
func ExampleLocks_Next() {
	pool, remove := open(
		`CREATE TABLE job (id INTEGER PRIMARY KEY, done_at TEXT)`,
		`INSERT INTO job (id) VALUES (1), (2), (3)`,
	)
	defer remove()

	jobs, err := rowlock.New(sqldb.NewSQLite(pool), rowlock.Config{
		Table: "job", KeyColumns: []string{"id"}, Where: "done_at IS NULL",
	})
	if err != nil {
		log.Fatal(err)
	}
	for {
		n, err := jobs.Next(context.Background(), 2, func(ctx context.Context, tx *sql.Tx, rows [][]string) error {
			for _, row := range rows {
				fmt.Println("job", row[0])
				if _, err := tx.ExecContext(ctx, `UPDATE job SET done_at = datetime() WHERE id = ?`, row[0]); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			log.Fatal(err)
		}
		if n == 0 {
			break
		}
	}
	// Output:
	// job 1
	// job 2
	// job 3
}
