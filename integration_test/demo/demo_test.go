// Package demo_test runs the command's demo on real servers, as a process of
// its own.
package demo_test

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/exclusive-go/exclusive/integration_test/command"
	"github.com/exclusive-go/exclusive/integration_test/servers"
)

func TestMain(m *testing.M) { os.Exit(command.Main(m)) }

var places = []struct {
	kind     servers.Kind
	driver   string
	variable string // that names the DSN to the command
	leftover string // counts what the demo has left behind
}{
	{servers.Postgres, "pgx", "EXCLUSIVE_DEMO_POSTGRES", "SELECT count(*) FROM pg_class WHERE relkind IN ('r', 'S') AND relnamespace = current_schema()::regnamespace"},
	{servers.MySQL, "mysql", "EXCLUSIVE_DEMO_MYSQL", "SELECT count(*) FROM information_schema.tables WHERE table_schema = DATABASE()"},
	{servers.MariaDB, "mysql", "EXCLUSIVE_DEMO_MYSQL", "SELECT count(*) FROM information_schema.tables WHERE table_schema = DATABASE()"},
}

func TestDemo(t *testing.T) {
	for _, p := range places {
		t.Run(string(p.kind), func(t *testing.T) {
			t.Parallel()
			dsn := servers.Database(t, p.kind)
			cmd := demo(t.Context(), p.variable+"="+dsn)
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			out, err := cmd.Output()
			if err != nil {
				t.Errorf("%v\n%s%s", err, out, stderr.Bytes())
			}
			if !bytes.Contains(out, []byte("Every promise was held")) {
				t.Errorf("no verdict:\n%s", out)
			}
			if strings.Contains(string(out)+stderr.String(), dsn) {
				t.Error("the DSN was printed")
			}
			nothingLeft(t, p.driver, dsn, p.leftover)
		})
	}
}

// The DSN can come from a file, as that of other commands.
func TestDemoFromFile(t *testing.T) {
	dsn := servers.Database(t, servers.MariaDB)
	file := filepath.Join(t.TempDir(), "dsn")
	if err := os.WriteFile(file, []byte(command.DSN(t, dsn)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	// What jobs use is not a place for a demo.
	cmd := demo(t.Context(), "EXCLUSIVE_DSN=redis://nobody.invalid", "--dsn-file", file)
	if out, err := cmd.CombinedOutput(); err != nil || !bytes.Contains(out, []byte("=== MariaDB")) || !bytes.Contains(out, []byte("Every promise was held")) {
		t.Errorf("%v\n%s", err, out)
	}
	nothingLeft(t, "mysql", dsn, places[2].leftover)
}

// Ctrl-C in the middle must not leave tables behind.
func TestInterrupt(t *testing.T) {
	for _, p := range places {
		t.Run(string(p.kind), func(t *testing.T) {
			t.Parallel()
			dsn := servers.Database(t, p.kind)
			cmd := demo(t.Context(), p.variable+"="+dsn)
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			stdout, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			lines := bufio.NewScanner(stdout)
			interrupted := false
			for lines.Scan() {
				// The name of the database comes when the tables are made.
				if strings.HasPrefix(lines.Text(), "===") && !interrupted {
					interrupted = true
					if err := cmd.Process.Signal(os.Interrupt); err != nil {
						t.Error(err)
					}
				}
			}
			err = cmd.Wait()
			if !interrupted || cmd.ProcessState.ExitCode() != 3 || !strings.Contains(stderr.String(), "interrupted") {
				t.Errorf("exit code %d, %v\n%s", cmd.ProcessState.ExitCode(), err, stderr.Bytes())
			}
			nothingLeft(t, p.driver, dsn, p.leftover)
		})
	}
}

// demo is the command, with a server named in its environment or by flags.
func demo(ctx context.Context, variable string, flags ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, command.Path, append([]string{"demo"}, flags...)...)
	cmd.Env = append(os.Environ(), variable)
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

func nothingLeft(t *testing.T, driver, dsn, query string) {
	t.Helper()
	db, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}()
	var n int
	if err := db.QueryRowContext(t.Context(), query).Scan(&n); err != nil {
		t.Fatal(err)
	}
	if n > 0 {
		t.Errorf("the demo has left %d tables behind", n)
	}
}
