package exclusivetest_test

import (
	"context"
	"database/sql"
	"path/filepath"
	"testing"

	_ "modernc.org/sqlite"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/db/sqldb"
	"github.com/exclusive-go/exclusive/exclusivetest"
	"github.com/exclusive-go/exclusive/fencing"
	"github.com/exclusive-go/exclusive/migrations"
)

// How to prove that your own table is safe from a worker that wakes up late:
// tell Zombie how your code writes a report as the holder of a grant, how the
// same write looks without the guard, and how to read what is stored.
func ExampleZombie() {
	var t *testing.T // your test's

	exclusivetest.Zombie(t, func(t *testing.T) exclusivetest.Rig {
		return reportsRig(t, openDatabase(t))
	})
}

// TestReports is the example, run.
func TestReports(t *testing.T) {
	rig := func(t *testing.T) exclusivetest.Rig { return reportsRig(t, openDatabase(t)) }
	t.Run("Zombie", func(t *testing.T) { exclusivetest.Zombie(t, rig) })
	t.Run("CheckThenWrite", func(t *testing.T) { exclusivetest.CheckThenWrite(t, rig) })
}

func reportsRig(t *testing.T, db *sql.DB) exclusivetest.Rig {
	const day = "2026-11-29"
	if _, err := db.ExecContext(t.Context(), `INSERT INTO report (day, body) VALUES (?, '')`, day); err != nil {
		t.Fatal(err)
	}
	// A worker, as each of your processes has it.
	worker := func(cfg fencing.Config) exclusivetest.Holder {
		leases, err := fencing.New(sqldb.NewSQLite(db), cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := leases.Close(); err != nil {
				t.Error(err)
			}
		})
		return exclusivetest.Holder{
			Exclusive: leases,
			Write: func(ctx context.Context, g exclusive.Grant, value string, between func()) error {
				return leases.Commit(ctx, g, func(ctx context.Context, tx *sql.Tx) error {
					between()
					_, err := tx.ExecContext(ctx, `UPDATE report SET body = ? WHERE day = ?`, value, day)
					return err
				})
			},
		}
	}
	return exclusivetest.Rig{
		Key: "report/" + day,
		A:   worker(fencing.Config{TTL: 5 * exclusivetest.TTL, NoRenew: true}), // will freeze
		B:   worker(fencing.Config{}),
		Unguarded: func(ctx context.Context, _, value string) error {
			_, err := db.ExecContext(ctx, `UPDATE report SET body = ? WHERE day = ?`, value, day)
			return err
		},
		Read: func(ctx context.Context, _ string) (body string, err error) {
			err = db.QueryRowContext(ctx, `SELECT body FROM report WHERE day = ?`, day).Scan(&body)
			return body, err
		},
	}
}

// openDatabase makes an empty database with the tables of the application and
// of package fencing.
func openDatabase(t *testing.T) *sql.DB {
	t.Helper()
	file := filepath.ToSlash(filepath.Join(t.TempDir(), "test.db"))
	db, err := sql.Open("sqlite", "file:"+file+"?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	if _, err := db.ExecContext(t.Context(), `CREATE TABLE report (day TEXT PRIMARY KEY, body TEXT NOT NULL)`); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"0001_fencing_lease", "0002_fencing_token", "0003_fencing_mark", "0004_fencing_op"} {
		up, err := migrations.FS.ReadFile("sqlite/" + file + ".up.sql")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := db.ExecContext(t.Context(), string(up)); err != nil {
			t.Fatal(err)
		}
	}
	return db
}
