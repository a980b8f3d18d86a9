// Package doctor_test runs the command's doctor on real servers that were set up
// wrongly on purpose, and has its mends mend them.
package doctor_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/json"
	"errors"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/exclusive-go/exclusive/integration_test/command"
	"github.com/exclusive-go/exclusive/integration_test/servers"
)

func TestMain(m *testing.M) { os.Exit(command.Main(m)) }

// password is that of every account that these tests make.
const password = "topsecret"

// run runs the command.
func run(t *testing.T, dsn string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), command.Path, args...)
	cmd.Env = append(os.Environ(), "EXCLUSIVE_DSN="+dsn)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil && !errors.As(err, new(*exec.ExitError)) {
		t.Fatal(err)
	}
	if strings.Contains(out.String()+errs.String(), password) {
		t.Errorf("the password was printed:\n%s%s", out.String(), errs.String())
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

type finding struct {
	Check, Status, Found, Why, Mend string
	Ignored                         bool
}

// findings are what doctor says, by the names of the checks.
type findings map[string]finding

// diagnose runs doctor and holds its exit code against what it says.
func diagnose(t *testing.T, dsn string, args ...string) findings {
	t.Helper()
	out, errs, code := run(t, dsn, append([]string{"doctor", "--json"}, args...)...)
	var report struct {
		OK     bool
		Checks []finding
	}
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		t.Fatalf("exit code %d, %v\n%s%s", code, err, out, errs)
	}
	all := make(findings)
	good := true
	for _, f := range report.Checks {
		all[f.Check] = f
		good = good && (f.Status != "fail" || f.Ignored)
	}
	if report.OK != good || (code == 0) != good || code > 1 {
		t.Errorf("exit code %d, ok %v, with %+v", code, report.OK, all)
	}
	return all
}

// want compares statuses.
func (f findings) want(t *testing.T, want map[string]string) {
	t.Helper()
	for check, status := range want {
		if f[check].Status != status {
			t.Errorf("%s is %q, and should be %q: %+v", check, f[check].Status, status, f[check])
		}
	}
}

// bad lists the checks that are not ok, apart from those that depend on how the
// tests' servers were started, and on what else runs on them.
func (f findings) bad(apart ...string) (names []string) {
	apart = append(apart, "fsync", "innodb_flush_log_at_trx_commit", "sync_binlog", "connections", "persistence", "clock")
	for name, finding := range f {
		if finding.Status != "ok" && !slices.Contains(apart, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// admin opens a pool on the shared server that may do everything.
func admin(t *testing.T, kind servers.Kind) *sql.DB {
	t.Helper()
	return open(t, kind, servers.Shared(t, kind).DSN)
}

func open(t *testing.T, kind servers.Kind, dsn string) *sql.DB {
	t.Helper()
	driver := "mysql"
	if kind == servers.Postgres {
		driver = "pgx"
	}
	db, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

func mustExec(t *testing.T, db *sql.DB, statements ...string) {
	t.Helper()
	for _, s := range statements {
		if _, err := db.ExecContext(context.WithoutCancel(t.Context()), s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

// with changes a URL.
func with(t *testing.T, dsn string, change func(*url.URL)) string {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal("the DSN of the tests is not a URL")
	}
	change(u)
	return u.String()
}

func name() string { return "doctor_" + strings.ToLower(rand.Text()[:12]) }

// An unreachable server, and a wrong password, are told as such.
func TestConnect(t *testing.T) {
	t.Parallel()
	postgres := servers.Shared(t, servers.Postgres).DSN
	for _, c := range []struct{ name, dsn string }{
		{"nobody at postgres", "postgres://me:" + password + "@127.0.0.1:1/d"},
		{"nobody at mysql", "mysql://me:" + password + "@127.0.0.1:1/d"},
		{"nobody at redis", "redis://me:" + password + "@127.0.0.1:1/0"},
		{"wrong password", with(t, postgres, func(u *url.URL) { u.User = url.UserPassword("test", password) })},
		{"no such file", "sqlite://" + t.TempDir() + "/none.db"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := diagnose(t, c.dsn)
			f.want(t, map[string]string{"connect": "fail"})
			if len(f) != 1 {
				t.Errorf("nobody answers, and much is said: %+v", slices.Collect(maps.Keys(f)))
			}
		})
	}
	for _, args := range [][]string{{"doctor", "--ignore", "nonsense"}, {"doctor", "--pool", "-1"}, {"doctor", "--dsn-file", "/nowhere"}} {
		if _, errs, code := run(t, postgres, args...); code != 2 || errs == "" {
			t.Errorf("%q: exit code %d, %s", args, code, errs)
		}
	}
}

// mysqlAs is the database of a DSN under another account.
func mysqlAs(t *testing.T, dsn, user string) string {
	t.Helper()
	return with(t, command.DSN(t, dsn), func(u *url.URL) { u.User = url.UserPassword(user, password) })
}
