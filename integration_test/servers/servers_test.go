package servers_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/exclusive-go/exclusive/integration_test/servers"
	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "github.com/lib/pq"
	"github.com/redis/go-redis/v9"
)

// Two tests run at the same time, with the same table, on databases of their own.
func TestDatabaseIsolates(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		kind   servers.Kind
		driver string
	}{
		{servers.Postgres, "pgx"},
		{servers.Postgres, "postgres"},
		{servers.MySQL, "mysql"},
		{servers.MariaDB, "mysql"},
	} {
		for run := range 2 {
			t.Run(fmt.Sprintf("%s/%s/%d", test.kind, test.driver, run), func(t *testing.T) {
				t.Parallel()
				db, err := sql.Open(test.driver, servers.Database(t, test.kind))
				if err != nil {
					t.Fatal(err)
				}
				defer db.Close()
				execute(t, db, "CREATE TABLE thing (id INT PRIMARY KEY)")
				execute(t, db, "INSERT INTO thing VALUES (1)")
				var count int
				if err := db.QueryRowContext(t.Context(), "SELECT count(*) FROM thing").Scan(&count); err != nil {
					t.Fatal(err)
				}
				if count != 1 {
					t.Errorf("%d rows in a table of our own with one row", count)
				}
			})
		}
	}
}

// A test that fails may leave connections in a transaction. They must not keep the
// database from being dropped.
func TestDatabaseIsDropped(t *testing.T) {
	t.Parallel()
	for kind, driver := range map[servers.Kind]string{servers.Postgres: "pgx", servers.MySQL: "mysql", servers.MariaDB: "mysql"} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			var dsn string
			t.Run("leaves a transaction open", func(t *testing.T) {
				dsn = servers.Database(t, kind)
				db, err := sql.Open(driver, dsn)
				if err != nil {
					t.Fatal(err)
				}
				execute(t, db, "CREATE TABLE thing (id INT PRIMARY KEY)")
				tx, err := db.BeginTx(context.Background(), nil)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := tx.ExecContext(t.Context(), "INSERT INTO thing VALUES (1)"); err != nil {
					t.Fatal(err)
				}
			})
			db, err := sql.Open(driver, dsn)
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			if _, err := db.ExecContext(t.Context(), "CREATE TABLE thing (id INT PRIMARY KEY)"); err == nil {
				t.Error("the database is still there")
			}
		})
	}
}

func TestPrefixIsEmptied(t *testing.T) {
	t.Parallel()
	var key string
	t.Run("writes", func(t *testing.T) {
		client, prefix := servers.Prefix(t)
		key = prefix + "key"
		if err := client.Set(t.Context(), key, "value", 0).Err(); err != nil {
			t.Fatal(err)
		}
	})
	client, prefix := servers.Prefix(t)
	if strings.HasPrefix(key, prefix) {
		t.Errorf("two tests have the same prefix %s", prefix)
	}
	if err := client.Get(t.Context(), key).Err(); !errors.Is(err, redis.Nil) {
		t.Errorf("the key of a test that has ended: got error %v, want redis.Nil", err)
	}
}

func TestWithParam(t *testing.T) {
	t.Parallel()
	for dsn, want := range map[string]string{
		"u:p/w?@tcp(h:1)/db":           "u:p/w?@tcp(h:1)/db?a=b%2Cc",
		"u:p@tcp(h:1)/db?x=y":          "u:p@tcp(h:1)/db?x=y&a=b%2Cc",
		"postgres://h/db?sslmode=none": "postgres://h/db?sslmode=none&a=b%2Cc",
		"postgres://h/db?a=old&aa=c":   "postgres://h/db?aa=c&a=b%2Cc",
	} {
		if got := servers.WithParam(dsn, "a", "b,c"); got != want {
			t.Errorf("WithParam(%q) = %q, want %q", dsn, got, want)
		}
	}
}

func TestStartSaysWhatIsMissing(t *testing.T) {
	t.Setenv("EXCLUSIVE_TEST_SOURCES", "env,program")
	t.Setenv("EXCLUSIVE_TEST_REDIS", "")
	t.Setenv("PATH", t.TempDir())
	// Redis is the one server that installs nothing in /usr/sbin.
	_, err := servers.Start(t.Context(), servers.Redis)
	if !errors.As(err, new(*servers.MissingError)) {
		t.Fatalf("got error %v, want a MissingError", err)
	}
	for _, want := range []string{"no redis server", "env: EXCLUSIVE_TEST_REDIS is not set", "program: no program redis-server"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q: %v", want, err)
		}
	}
}

func TestStartRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		kind     servers.Kind
		env      map[string]string
		want     string
		unwanted string // in the error
	}{
		"a server that is down": {
			servers.Postgres,
			map[string]string{"EXCLUSIVE_TEST_POSTGRES": "postgres://u:secret@127.0.0.1:1/db"},
			"the server named by EXCLUSIVE_TEST_POSTGRES does not answer", "secret",
		},
		"a DSN that is none": {
			servers.Redis,
			map[string]string{"EXCLUSIVE_TEST_REDIS": "redis://u:secret@host:port"},
			"parsing the DSN", "secret",
		},
		"an unknown source": {
			servers.Redis,
			map[string]string{"EXCLUSIVE_TEST_SOURCES": "docker"},
			`EXCLUSIVE_TEST_SOURCES names "docker"`, "",
		},
		"an unknown kind": {"oracle", nil, `unknown kind of server "oracle"`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("EXCLUSIVE_TEST_SOURCES", "env")
			for name, value := range test.env {
				t.Setenv(name, value)
			}
			_, err := servers.Start(t.Context(), test.kind)
			if err == nil {
				t.Fatal("no error")
			}
			if errors.As(err, new(*servers.MissingError)) {
				t.Errorf("a mistake is taken for a missing server: %v", err)
			}
			if !strings.Contains(err.Error(), test.want) {
				t.Errorf("the error does not say %q: %v", test.want, err)
			}
			if test.unwanted != "" && strings.Contains(err.Error(), test.unwanted) {
				t.Errorf("the error tells the password: %v", err)
			}
		})
	}
}

// A MariaDB that starts leaves the temporary tables of others alone. Without a folder
// of its own it removed all that were in /tmp, and a server that had just made one
// there, as for each query of information_schema, crashed (SIGSEGV in
// ha_maria::drop_table).
func TestStartSparesOthers(t *testing.T) {
	t.Parallel()
	table, err := os.CreateTemp("/tmp", "#sql-temptable-of-*.MAI") // where it is without a setting
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(table.Name()) })
	if err := table.Close(); err != nil {
		t.Fatal(err)
	}
	if as, err := user.Lookup("mysql"); err == nil && os.Getuid() == 0 { // as whom it runs then
		uid, _ := strconv.Atoi(as.Uid)
		if err := os.Chown(table.Name(), uid, -1); err != nil {
			t.Fatal(err)
		}
	}
	servers.Own(t, servers.MariaDB)
	if _, err := os.Stat(table.Name()); err != nil {
		t.Errorf("a temporary table of another server: %v", err)
	}
}

// MariaDB must not stand in for MySQL, nor the other way round.
func TestStartRefusesTheOtherMySQL(t *testing.T) {
	mysql, mariadb := servers.Shared(t, servers.MySQL).DSN, servers.Shared(t, servers.MariaDB).DSN
	t.Setenv("EXCLUSIVE_TEST_SOURCES", "env")
	t.Setenv("EXCLUSIVE_TEST_MYSQL", mariadb)
	t.Setenv("EXCLUSIVE_TEST_MARIADB", mysql)
	for _, kind := range []servers.Kind{servers.MySQL, servers.MariaDB} {
		if s, err := servers.Start(t.Context(), kind); err == nil {
			t.Errorf("took %s for %s", s.Version, kind)
		}
	}
}

func TestRequire(t *testing.T) {
	t.Parallel()
	const reason = "env: EXCLUSIVE_TEST_REDIS is not set"
	for require, want := range map[string][]string{
		"":            {"--- SKIP", reason},
		"mysql":       {"--- SKIP", reason},
		"all":         {"--- FAIL", reason},
		"redis":       {"--- FAIL", reason},
		"mysql,redis": {"--- FAIL", reason},
		"rediss":      {"--- FAIL", `EXCLUSIVE_TEST_REQUIRE names "rediss"`},
	} {
		child := exec.Command(os.Args[0], "-test.run=^TestPrefixIsEmptied$", "-test.v")
		child.Env = append(os.Environ(), "EXCLUSIVE_TEST_SOURCES=env", "EXCLUSIVE_TEST_REDIS=", "EXCLUSIVE_TEST_REQUIRE="+require)
		out, err := child.CombinedOutput()
		if failed := err != nil; failed != (want[0] == "--- FAIL") {
			t.Errorf("EXCLUSIVE_TEST_REQUIRE=%q: got error %v, want %s", require, err, want[0])
		}
		for _, want := range want {
			if !strings.Contains(string(out), want) {
				t.Errorf("EXCLUSIVE_TEST_REQUIRE=%q: no %q in:\n%s", require, want, out)
			}
		}
	}
}

// Nothing is left of a server when the process that started it is killed.
func TestKilledProcessLeavesNothing(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		kind    servers.Kind
		sources string
	}{
		{servers.Postgres, "program,debian"},
		{servers.MySQL, "program,debian"},
		{servers.MariaDB, "program,debian"},
		{servers.Redis, "program,debian"},
		{servers.Redis, "container"},
	} {
		t.Run(string(test.kind)+" from "+test.sources, func(t *testing.T) {
			t.Parallel()
			temp := tempDir(t)
			child := exec.Command(os.Args[0])
			child.Env = append(os.Environ(), childVariable+"="+string(test.kind), "EXCLUSIVE_TEST_SOURCES="+test.sources, "TMPDIR="+temp)
			var stderr bytes.Buffer
			child.Stderr = &stderr
			stdout, err := child.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := child.Start(); err != nil {
				t.Fatal(err)
			}
			var dsn string
			_, scanErr := fmt.Fscanln(stdout, &dsn)
			if err := child.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			if err := child.Wait(); !errors.As(err, new(*exec.ExitError)) {
				t.Fatalf("the child was to be killed: %v", err)
			}
			if errors.Is(scanErr, io.EOF) && strings.Contains(stderr.String(), "no "+string(test.kind)+" server") {
				t.Skip(stderr.String())
			}
			if scanErr != nil {
				t.Fatalf("starting a server in a child: %v\n%s", scanErr, stderr.String())
			}

			address := regexp.MustCompile(`127\.0\.0\.1:[0-9]+`).FindString(dsn)
			eventually(t, "nothing listens on "+address, func() bool {
				conn, err := net.Dial("tcp", address)
				return err != nil || conn.Close() != nil
			})
			eventually(t, "its data is gone", func() bool {
				left, err := filepath.Glob(temp + "/*")
				return err == nil && len(left) == 0
			})
		})
	}
}

// tempDir is not t.TempDir, whose long names leave no room for those of sockets.
func tempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "x")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o711); err != nil { // servers run as other users
		t.Fatal(err)
	}
	return dir
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if is() {
			return
		}
	}
	t.Errorf("still not so: %s", what)
}

func execute(t *testing.T, db *sql.DB, query string) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), query); err != nil {
		t.Fatal(err)
	}
}

const childVariable = "EXCLUSIVE_TEST_CHILD"

// TestMain lets this program be a child of its tests that starts a server and waits
// to be killed.
func TestMain(m *testing.M) {
	kind := os.Getenv(childVariable)
	if kind == "" {
		os.Exit(m.Run())
	}
	s, err := servers.Start(context.Background(), servers.Kind(kind))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(s.DSN)
	time.Sleep(time.Hour)
}
