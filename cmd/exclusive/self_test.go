package main

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/exclusive-go/exclusive/cmd/exclusive/internal/supervise"
	"github.com/exclusive-go/exclusive/migrations"
)

// envSelf makes the test's program the command.
const envSelf = "EXCLUSIVE_TEST_SELF"

func TestMain(m *testing.M) {
	supervise.Keep()
	if os.Getenv(envSelf) != "" {
		_ = os.Unsetenv(envSelf)
		main()
	}
	os.Exit(m.Run())
}

// patience is for what comes soon, except on a machine that is very busy.
const patience = 20 * time.Second

// self is the command as a process of its own, with a DSN in its environment.
func self(t *testing.T, dsn string, args ...string) *exec.Cmd {
	t.Helper()
	// Not the test's context: that ends before the clean-up. And longer than all that a
	// test awaits of one process.
	ctx, cancel := context.WithTimeout(context.Background(), 10*patience)
	t.Cleanup(cancel)
	return selfUntil(ctx, dsn, args...)
}

// selfUntil is self, with a limit of the caller's.
func selfUntil(ctx context.Context, dsn string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), envSelf+"=1", envDSN+"="+dsn)
	return cmd
}

// output runs a command to its end.
func output(t *testing.T, cmd *exec.Cmd) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// sqliteFile is a database with our tables in a file.
func sqliteFile(t *testing.T) (dsn string, plain *sql.DB) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "test.db")
	plain, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(OFF)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = plain.Close() })
	files, err := fs.Glob(migrations.FS, "sqlite/*.up.sql")
	if err != nil || len(files) == 0 {
		t.Fatalf("no migrations: %v", err)
	}
	for _, file := range files {
		text, err := fs.ReadFile(migrations.FS, file)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := plain.ExecContext(t.Context(), string(text)); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
	}
	return "sqlite://" + path, plain
}

// await waits until what is said holds.
func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not so after %v: %s", patience, what)
		}
	}
}

// content is that of a file that may not exist yet.
func content(path string) string {
	text, _ := os.ReadFile(path)
	return strings.TrimSpace(string(text))
}

// count is the only value of a query.
func count(t *testing.T, plain *sql.DB, query string, args ...any) (n int64) {
	t.Helper()
	if err := plain.QueryRowContext(t.Context(), query, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}
