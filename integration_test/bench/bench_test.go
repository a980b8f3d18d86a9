// Package bench_test runs the command's bench on real servers, as a process of
// its own.
package bench_test

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/integration_test/command"
	"github.com/exclusive-go/exclusive/integration_test/rediscluster"
	"github.com/exclusive-go/exclusive/integration_test/servers"
)

func TestMain(m *testing.M) { os.Exit(command.Main(m)) }

// start makes the command, with a database named in its environment.
func start(t *testing.T, dsn string, args ...string) (cmd *exec.Cmd, stdout, stderr *bytes.Buffer) {
	t.Helper()
	cmd = exec.CommandContext(t.Context(), command.Path, append([]string{"bench"}, args...)...)
	cmd.Env = append(os.Environ(), "EXCLUSIVE_DSN="+dsn)
	stdout, stderr = new(bytes.Buffer), new(bytes.Buffer)
	cmd.Stdout, cmd.Stderr = stdout, stderr
	return cmd, stdout, stderr
}

type result struct {
	Strategy    string
	ByHand      bool     `json:"by_hand"`
	RoundTrips  *float64 `json:"round_trips"`
	P50         int64    `json:"p50_ns"`
	P99         int64    `json:"p99_ns"`
	PerSecond1  float64  `json:"per_second_1"`
	PerSecondN  float64  `json:"per_second_n"`
	Connections int      `json:"connections_held"`
	Ratio       float64
}

// measure runs bench and returns its results: of the strategies, and by hand.
func measure(t *testing.T, dsn string, args ...string) (ours, byHand map[string]result) {
	t.Helper()
	cmd, stdout, stderr := start(t, dsn, append([]string{"--json", "--duration", "50ms", "--workers", "3"}, args...)...)
	if err := cmd.Run(); err != nil || stderr.Len() > 0 {
		t.Fatalf("%v\n%s", err, stderr)
	}
	var report struct{ Results []result }
	if err := json.Unmarshal(stdout.Bytes(), &report); err != nil {
		t.Fatal(err)
	}
	ours, byHand = make(map[string]result), make(map[string]result)
	for _, r := range report.Results {
		if r.P50 <= 0 || r.P99 < r.P50 || r.PerSecond1 <= 0 || r.PerSecondN <= 0 || r.RoundTrips == nil {
			t.Errorf("%+v", r)
			continue
		}
		if r.ByHand {
			byHand[r.Strategy] = r
		} else {
			ours[r.Strategy] = r
		}
	}
	return ours, byHand
}

// place is a server with a way to name it to the command.
type place struct {
	kind servers.Kind
	// left counts the tables and sequences in the DSN's database.
	left string
}

var places = []place{
	{servers.Postgres, "SELECT count(*) FROM pg_class WHERE relkind IN ('r', 'S') AND relnamespace = current_schema()::regnamespace"},
	{servers.MySQL, "SELECT count(*) FROM information_schema.tables WHERE table_schema = DATABASE()"},
	{servers.MariaDB, "SELECT count(*) FROM information_schema.tables WHERE table_schema = DATABASE()"},
}

// database makes one, its DSN for the command, and a pool to look at it.
func (p place) database(t *testing.T) (dsn string, db *sql.DB) {
	t.Helper()
	native := servers.Database(t, p.kind)
	driver := "pgx"
	if p.kind != servers.Postgres {
		driver = "mysql"
	}
	db, err := sql.Open(driver, native)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return command.DSN(t, native), db
}

func (p place) count(ctx context.Context, db *sql.DB) (n int, err error) {
	err = db.QueryRowContext(ctx, p.left).Scan(&n)
	return n, err
}

func (p place) wantNone(t *testing.T, db *sql.DB) {
	t.Helper()
	if n, err := p.count(t.Context(), db); err != nil || n > 0 {
		t.Errorf("%d tables are left (%v)", n, err)
	}
}

// trips is how many round trips a grant takes that writes a row: with the claim,
// BEGIN, the proof, the write, and COMMIT. On MySQL and MariaDB there are two more
// that tell whether the server has ended the transaction, and the write of this
// driver is two.
var trips = map[servers.Kind]map[string]float64{
	servers.Postgres: {"casupdate": 5, "rowlock": 4, "uniquetask": 5, "fencing": 5},
	servers.MySQL:    {"casupdate": 8, "rowlock": 7, "uniquetask": 8, "fencing": 8},
	servers.MariaDB:  {"casupdate": 8, "rowlock": 7, "uniquetask": 8, "fencing": 8},
}

func TestSQL(t *testing.T) {
	t.Parallel()
	for _, p := range places {
		t.Run(string(p.kind), func(t *testing.T) {
			t.Parallel()
			dsn, db := p.database(t)
			ours, byHand := measure(t, dsn)
			for name, want := range trips[p.kind] {
				r := ours[name]
				if r.RoundTrips == nil || *r.RoundTrips != want || r.Ratio <= 0 {
					t.Errorf("%s: %+v; want %v round trips", name, r, want)
				}
				if holds := name == "rowlock"; holds != (r.Connections == 1) {
					t.Errorf("%s holds %d connections", name, r.Connections)
				}
				if byHand[name].P50 == 0 {
					t.Errorf("%s was not measured by hand", name)
				}
			}
			if byHand[""].P50 == 0 {
				t.Error("the write alone was not measured")
			}
			p.wantNone(t, db)
		})
	}
}

// The costs that the table of strategies states are those that are counted.
func TestStatedCosts(t *testing.T) {
	t.Parallel()
	dsn, db := places[0].database(t)
	ours, _ := measure(t, dsn, "--empty")
	redis := rediscluster.Start(t)
	inRedis, _ := measure(t, "redis://"+redis.Addr+"/0")
	for _, s := range exclusive.Strategies() {
		r, ok := ours[s.Name]
		if !ok {
			r = inRedis[s.Name]
		}
		if r.RoundTrips == nil {
			t.Errorf("%s was not measured", s.Name)
			continue
		}
		held := "no connection held"
		if r.Connections == 1 {
			held = "1 connection held"
		}
		if trips := fmt.Sprintf("%v round trips", *r.RoundTrips); !strings.HasPrefix(s.Cost, trips) || ok && !strings.HasSuffix(s.Cost, held) {
			t.Errorf("%s costs %q, as is said; counted: %s, %s", s.Name, s.Cost, trips, held)
		}
	}
	places[0].wantNone(t, db)
	if keys := redis.Client(t).Keys(t.Context(), "*").Val(); len(keys) > 0 {
		t.Errorf("%q are left", keys)
	}
}

// Ctrl-C in the middle leaves nothing behind.
func TestInterrupt(t *testing.T) {
	t.Parallel()
	for _, p := range places {
		t.Run(string(p.kind), func(t *testing.T) {
			t.Parallel()
			dsn, db := p.database(t)
			interrupt(t, dsn, func(ctx context.Context) error {
				n, err := p.count(ctx, db)
				if err == nil && n < 5 {
					err = fmt.Errorf("%d tables", n)
				}
				return err
			})
			p.wantNone(t, db)
		})
	}
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		s := rediscluster.Start(t)
		client := s.Client(t)
		interrupt(t, "redis://"+s.Addr+"/0", func(ctx context.Context) error {
			if n := client.DBSize(ctx).Val(); n == 0 {
				return errors.New("no key")
			}
			return nil
		})
		if keys := client.Keys(t.Context(), "*").Val(); len(keys) > 0 {
			t.Errorf("%q are left", keys)
		}
	})
}

// interrupt starts bench, and interrupts it when it has begun.
func interrupt(t *testing.T, dsn string, begun func(context.Context) error) {
	t.Helper()
	cmd, stdout, stderr := start(t, dsn, "--duration", "1h")
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	rediscluster.Await(t, "bench to begin", begun)
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 3 || !strings.Contains(stderr.String(), "interrupted") || stdout.Len() > 0 {
		t.Errorf("exit code %d, %v\n%s%s", cmd.ProcessState.ExitCode(), err, stdout, stderr)
	}
}

// What cannot be done is told in one line, without the DSN.
func TestFailures(t *testing.T) {
	t.Parallel()
	const password = "topsecret"
	for name, dsn := range map[string]string{
		"nobody":            "postgres://me:" + password + "@127.0.0.1:1/d",
		"nobody at redis":   "redis://me:" + password + "@127.0.0.1:1/0",
		"nobody at mysql":   "mysql://me:" + password + "@127.0.0.1:1/d",
		"no such directory": "sqlite:///no/such/" + "directory/app.db",
	} {
		cmd, stdout, stderr := start(t, dsn)
		_ = cmd.Run()
		if cmd.ProcessState.ExitCode() != 3 || stdout.Len() > 0 || stderr.Len() == 0 || strings.Contains(stderr.String(), password) {
			t.Errorf("%s: exit code %d\n%s%s", name, cmd.ProcessState.ExitCode(), stdout, stderr)
		}
	}
}
