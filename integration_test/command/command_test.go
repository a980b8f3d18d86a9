//go:build linux

// Package command_test runs the built command on real servers, as operators do.
package command_test

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"
	_ "modernc.org/sqlite"

	"github.com/exclusive-go/exclusive/integration_test/proxy"
	"github.com/exclusive-go/exclusive/integration_test/rediscluster"
	"github.com/exclusive-go/exclusive/integration_test/servers"
)

// bin is the directory of the built command.
var bin string

func TestMain(m *testing.M) {
	if report := os.Getenv(envReport); report != "" {
		os.Exit(storeReport(report))
	}
	os.Exit(buildAndRun(m))
}

func buildAndRun(m *testing.M) int {
	dir, err := os.MkdirTemp("", "exclusive-command-")
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	bin = dir
	// From its own module, as users build it.
	build := exec.Command("go", "build", "-o", filepath.Join(bin, "exclusive"), "./cmd/exclusive")
	build.Dir = filepath.Join("..", "..")
	if out, err := build.CombinedOutput(); err != nil {
		panic(string(out))
	}
	return m.Run()
}

// patience is for what comes soon, except on a machine that is very busy.
const patience = 20 * time.Second

// place is a database with our tables, or a prefix in Redis.
type place struct {
	name   string
	dsn    string   // as the command takes it
	flags  []string // that every command takes
	driver string   // of database/sql; empty: Redis
	native string   // DSN of the driver
}

const sqlite servers.Kind = "sqlite"

// each runs a test on every kind of database.
func each(t *testing.T, test func(*testing.T, *place), kinds ...servers.Kind) {
	t.Helper()
	for _, kind := range kinds {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			test(t, newPlace(t, kind))
		})
	}
}

func newPlace(t *testing.T, kind servers.Kind) *place {
	t.Helper()
	p := &place{name: string(kind)}
	switch kind {
	case servers.Redis:
		_, prefix := servers.Prefix(t)
		p.dsn, p.flags = servers.Shared(t, kind).DSN, []string{"--prefix", prefix}
		return p
	case servers.Postgres:
		p.dsn = servers.Database(t, kind)
		p.driver, p.native = "pgx", p.dsn
	case sqlite:
		file := filepath.Join(t.TempDir(), "test.db")
		p.dsn = "sqlite://" + file + "?_pragma=journal_mode(WAL)&_pragma=synchronous(OFF)"
		p.driver, p.native = "sqlite", "file:"+file+"?_pragma=busy_timeout(10000)"
	default:
		p.driver, p.native = "mysql", servers.Database(t, kind)
		config, err := mysql.ParseDSN(p.native)
		if err != nil {
			t.Fatal("the DSN of the tests is malformed")
		}
		u := url.URL{Scheme: string(kind), User: url.UserPassword(config.User, config.Passwd), Host: config.Addr, Path: "/" + config.DBName}
		p.dsn = u.String()
	}
	if code, _, errs := p.output(t, "init"); code != 0 {
		t.Fatalf("init: %d, %s", code, errs)
	}
	return p
}

// through is the place behind a proxy.
func (p *place) through(t *testing.T) (*place, *proxy.Proxy) {
	t.Helper()
	u, err := url.Parse(p.dsn)
	if err != nil {
		t.Fatal("the DSN of the tests is malformed")
	}
	x := proxy.Start(t, u.Host)
	u.Host = x.Addr()
	behind := *p
	behind.dsn = u.String()
	return &behind, x
}

// command is the command as a process. What comes after the first argument is
// preceded by the flags of the place.
func (p *place) command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*patience)
	t.Cleanup(cancel)
	all := append(append([]string{args[0]}, p.flags...), args[1:]...)
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "exclusive"), all...)
	cmd.Env = append(os.Environ(), "EXCLUSIVE_DSN="+p.dsn)
	return cmd
}

// output runs the command to its end.
func (p *place) output(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	cmd := p.command(t, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// want compares what the command did; stdout and stderr are parts.
func (p *place) want(t *testing.T, code int, stdout, stderr string, args ...string) {
	t.Helper()
	got, out, errs := p.output(t, args...)
	if got != code || !strings.Contains(out, stdout) || !strings.Contains(errs, stderr) {
		t.Errorf("%q: exit code %d, output %q, errors %q", args, got, out, errs)
	}
	if u, err := url.Parse(p.dsn); err == nil && u.User != nil && strings.Contains(out+errs, u.User.String()) {
		t.Errorf("%q: the password was printed", args)
	}
}

// start starts the command with a file for its errors, which no orphan keeps
// open for Wait.
func (p *place) start(t *testing.T, args ...string) (cmd *exec.Cmd, errs func() string) {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	cmd = p.command(t, args...)
	cmd.Stdout, cmd.Stderr = file, file
	if err := errors.Join(cmd.Start(), file.Close()); err != nil {
		t.Fatal(err)
	}
	return cmd, func() string { return content(file.Name()) }
}

func content(path string) string {
	text, _ := os.ReadFile(path)
	return string(text)
}

func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not so after %v: %s", patience, what)
		}
	}
}

var all = []servers.Kind{servers.Postgres, servers.MySQL, servers.MariaDB, servers.Redis, sqlite}

var withRuns = []servers.Kind{servers.Postgres, servers.MySQL, servers.MariaDB, sqlite}

var networked = []servers.Kind{servers.Postgres, servers.MySQL, servers.MariaDB, servers.Redis}

// What the command says, to a shell, of each way in which a run can go.
func TestExitCodes(t *testing.T) { each(t, testExitCodes, all...) }

func testExitCodes(t *testing.T, p *place) {
	p.want(t, 0, "ran\n", "", "run", "--name", "n", "--", "echo", "ran")
	p.want(t, 3, "", "", "run", "--name", "n", "sh", "-c", "exit 3")
	p.want(t, 128+9, "", "", "run", "--name", "n", "sh", "-c", "kill -9 $$")
	p.want(t, 2, "", "--name is missing", "run", "true")
	p.want(t, 127, "", "not found", "run", "--name", "n", "exclusive-no-such-command")
	p.want(t, 126, "", "permission denied", "run", "--name", "n", "/dev/null")
	p.want(t, 2, "", "200 are allowed", "run", "--name", strings.Repeat("n", 201), "true")

	busy := p.hold(t, "busy")
	p.want(t, 75, "", "held by somebody else", "run", "--name", "busy", "echo", "ran")
	p.want(t, 0, "", "", "run", "--name", "busy", "--busy-code", "0", "echo", "ran")
	busy.end(t, 0)

	if p.driver == "" {
		p.want(t, 2, "", "Redis does not keep", "run", "--name", "n", "--once", "r", "true")
	} else {
		p.want(t, 5, "", "", "run", "--name", "t", "--once", "r", "--max-attempts", "1", "sh", "-c", "exit 5")
		p.want(t, 70, "", "attempt 1 of 1", "run", "--name", "t", "--once", "r", "--max-attempts", "1", "echo", "ran")
		p.want(t, 0, "", "", "run", "--name", "t", "--once", "s", "true")
		p.want(t, 0, "", "already done", "run", "--name", "t", "--once", "s", "false")
		p.want(t, 9, "", "", "run", "--name", "t", "--once", "s", "--done-code", "9", "--quiet", "false")
		p.want(t, 69, "", "exclusive init --prefix none_ makes the tables", "run", "--prefix", "none_", "--name", "n", "echo", "ran")
	}
	if p.name != string(sqlite) {
		nobody := *p
		u, _ := url.Parse(p.dsn)
		u.Host = "127.0.0.1:1"
		nobody.dsn = u.String()
		nobody.want(t, 69, "", "refused", "run", "--name", "n", "echo", "ran")
	}
}

// held is a command that runs under a key.
type held struct {
	*exec.Cmd
	errs func() string
	dir  string
}

// hold has a command run under a key until end.
func (p *place) hold(t *testing.T, name string, flags ...string) *held {
	t.Helper()
	h := &held{dir: t.TempDir()}
	args := append(append([]string{"run", "--name", name}, flags...), "sh", "-c", "echo $EXCLUSIVE_TOKEN >"+h.dir+"/began; until test -e "+h.dir+"/end; do sleep 0.02; done; exit $(cat "+h.dir+"/end)")
	h.Cmd, h.errs = p.start(t, args...)
	await(t, "the command runs", func() bool { return content(h.dir+"/began") != "" })
	return h
}

func (h *held) end(t *testing.T, code int) {
	t.Helper()
	part := h.dir + "/part"
	if err := errors.Join(os.WriteFile(part, []byte(fmt.Sprint(code)), 0o644), os.Rename(part, h.dir+"/end")); err != nil {
		t.Fatal(err)
	}
	h.wait(t, code)
}

func (h *held) wait(t *testing.T, code int) {
	t.Helper()
	_ = h.Wait()
	if got := h.ProcessState.ExitCode(); got != code {
		t.Errorf("the holder's exit code is %d, not %d: %s", got, code, h.errs())
	}
}

// The server cannot be reached when the command has ended, as during a failover,
// for longer than Do is patient otherwise. The run is done all the same, once.
func TestDoneAfterFailover(t *testing.T) {
	each(t, testDoneAfterFailover, servers.Postgres, servers.MySQL, servers.MariaDB)
}

func testDoneAfterFailover(t *testing.T, p *place) {
	for name, away := range map[string]func(t *testing.T, x *proxy.Proxy) (back func()){
		"it refuses": func(t *testing.T, x *proxy.Proxy) func() {
			again := x.Refuse()
			x.Cut()
			return func() {
				if err := again(); err != nil {
					t.Error(err)
				}
			}
		},
		"it is silent": func(_ *testing.T, x *proxy.Proxy) func() {
			x.Intercept(func([]byte) proxy.Verdict { return proxy.Swallow })
			return func() { x.Intercept(nil) } // of new connections: the old ones hang
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			behind, x := p.through(t)
			h := behind.hold(t, "report", "--once", name, "--ttl", "5m")
			back := away(t, x)
			time.AfterFunc(endWait+2*time.Second, back)
			h.end(t, 0)
			if text := h.errs(); text != "" {
				t.Errorf("errors %q", text)
			}
			p.want(t, 0, "", "already done", "run", "--name", "report", "--once", name, "echo", "ran")
		})
	}
}

// endWait is how long the end of a run may take if nothing is to be recorded.
const endWait = 5 * time.Second

// Who is told to end while it tries to record that a run is done does not try for
// as long as the lease lasts.
func TestInterruptedAtItsEnd(t *testing.T) { each(t, testInterruptedAtItsEnd, servers.Postgres) }

func testInterruptedAtItsEnd(t *testing.T, p *place) {
	behind, x := p.through(t)
	h := behind.hold(t, "report", "--once", "r", "--ttl", "1h")
	x.Refuse()
	x.Cut()
	began := h.dir + "/began"
	if err := os.WriteFile(h.dir+"/end", []byte("0"), 0o644); err != nil {
		t.Fatal(err)
	}
	await(t, "the command has ended", func() bool {
		lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		return !slices.ContainsFunc(lines, func(line string) bool {
			text := content(line)
			return strings.Contains(text, began) && !strings.Contains(text, "--name")
		})
	})
	if err := h.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	h.wait(t, 74)
}

// What operators see and do. Releasing a key ends the command of its holder.
// What servers say of a DSN that they refuse is told without what is secret in it,
// with the next step and the documented exit code.
func TestRefusedDSN(t *testing.T) { each(t, testRefusedDSN, all...) }

func testRefusedDSN(t *testing.T, p *place) {
	const secret = "Top!s3cret"
	wrong := make(map[string]string) // DSNs, and part of what is said
	if p.name == string(sqlite) {
		file := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(file, []byte(strings.Repeat("no database\n", 100)), 0o600); err != nil {
			t.Fatal(err)
		}
		wrong["sqlite://"+file+"?_pragma=key('"+secret+"')"] = "not a database"
	} else {
		u, err := url.Parse(p.dsn)
		if err != nil {
			t.Fatal("the DSN of the tests is malformed")
		}
		with := func(change func(u *url.URL)) string {
			other := *u
			other.User = url.UserPassword("nobody", secret)
			change(&other)
			return other.String()
		}
		said := map[string]string{
			"login":     map[string]string{"postgres": "authentication failed", "redis": "WRONGPASS"}[p.name],
			"parameter": map[string]string{"postgres": "pwd", "redis": "parameters"}[p.name],
			"tls":       map[string]string{"postgres": "refused TLS"}[p.name],
		}
		wrong[with(func(*url.URL) {})] = cmp.Or(said["login"], "Access denied")
		wrong[with(func(o *url.URL) { o.User, o.RawQuery = u.User, cmp.Or(u.RawQuery, "x=1")+"&pwd="+secret })] = cmp.Or(said["parameter"], "variable")
		if p.name != string(servers.Redis) { // it waits for the end of what it takes for a command
			wrong[with(func(o *url.URL) {
				o.RawQuery = cmp.Or(map[string]string{"postgres": "sslmode=require"}[p.name], "tls=true")
			})] = cmp.Or(said["tls"], "tls")
		}
	}
	for dsn, want := range wrong {
		refused := *p
		refused.dsn = dsn
		for args, code := range map[string]int{"ps": 3, "release backup": 3, "doctor": 1, "doctor --json": 1, "run --name backup -- true": 69} {
			got, out, errs := refused.output(t, strings.Fields(args)...)
			if got == 2 && p.name == "redis" && strings.Contains(errs, "parameters") {
				got = code // it is told before anything is sent
			}
			next := strings.Contains(out+errs, "exclusive doctor") || strings.Contains(out, "mend") || strings.Contains(errs, "it looks like")
			if got != code || !strings.Contains(strings.ToLower(out+errs), strings.ToLower(want)) || !next || strings.Count(errs, "\n") > 1 {
				t.Errorf("%s: exit code %d; want %d, %q and the next step\n%s%s", args, got, code, want, out, errs)
			}
			if strings.Contains(out+errs, secret) || strings.Contains(out+errs, dsn) {
				t.Errorf("%s: it is told\n%s%s", args, out, errs)
			}
		}
	}
}

func TestOperate(t *testing.T) { each(t, testOperate, all...) }

func testOperate(t *testing.T, p *place) {
	h := p.hold(t, "backup", "--ttl", "15s", "--kill-after", "500ms", "--holder", "here")
	token := strings.TrimSpace(content(h.dir + "/began"))
	p.want(t, 0, "here", "", "ps")
	p.want(t, 0, `"token": `+token+",", "", "ps", "--name", "back", "--json")
	p.want(t, 0, "[]", "", "ps", "--holder", "elsewhere", "--json")
	p.want(t, 0, "here had it with token "+token, "", "release", "backup")
	p.want(t, 1, "", "nobody holds it", "release", "backup")
	h.wait(t, 124)
	p.want(t, 0, "[]", "", "ps", "--json")
	p.want(t, 0, "2\n", "", "run", "--name", "backup", "sh", "-c", "echo $EXCLUSIVE_ATTEMPT; test $EXCLUSIVE_TOKEN -gt "+token)

	if p.driver == "" {
		p.want(t, 2, "", "Redis keeps no runs", "tasks")
		p.want(t, 2, "", "Redis keeps no runs", "forget", "report", "r")
		p.want(t, 2, "", "nothing to prune", "prune", "--older-than", "1d")
		return
	}
	p.want(t, 0, "ran\n", "", "run", "--name", "report", "--once", "r", "echo", "ran")
	p.want(t, 0, "", "already done", "run", "--name", "report", "--once", "r", "echo", "ran")
	p.want(t, 0, `"state": "done"`, "", "tasks", "report", "--json")
	p.want(t, 0, "it was done", "", "forget", "report", "r")
	p.want(t, 1, "", "nobody knows this run", "forget", "report", "r")
	p.want(t, 0, "ran\n", "", "run", "--name", "report", "--once", "r", "echo", "ran")
	p.want(t, 0, "keys: 0 removed\nruns of report: 0 removed\n", "", "prune", "--older-than", "1d")

	h = p.hold(t, "report", "--once", "s", "--ttl", "15s", "--kill-after", "500ms", "--holder", "here")
	p.want(t, 1, "", "held by somebody else", "forget", "report", "s")
	p.want(t, 0, "here had it", "", "release", "report", "--run", "s")
	h.wait(t, 124)
	p.want(t, 0, "lost", "", "tasks", "--state", "lost")
}

// The DSN names one node of a cluster. Keys of all nodes are held, seen and released
// through each of them.
func TestRedisCluster(t *testing.T) {
	t.Parallel()
	var nodes []*place
	for _, node := range rediscluster.StartCluster(t) {
		nodes = append(nodes, &place{name: "cluster", dsn: "redis://" + node.Addr + "/0"})
	}
	names := []string{"a", "b", "c", "d", "e", "f"} // some on each node
	var holders []*held
	for i, name := range names {
		holders = append(holders, nodes[i%3].hold(t, name))
	}
	for i, p := range nodes {
		_, out, errs := p.output(t, "ps", "--json")
		var list []struct{ Name string }
		if err := json.Unmarshal([]byte(out), &list); err != nil || len(list) != len(names) {
			t.Errorf("node %d knows of %v, %v, %s", i, list, err, errs)
		}
		p.want(t, 75, "", "held by somebody else", "run", "--name", names[i+1], "echo", "ran")
	}
	for i, h := range holders {
		h.end(t, 0)
		nodes[(i+1)%3].want(t, 0, "2\n", "", "run", "--name", names[i], "sh", "-c", "echo $EXCLUSIVE_TOKEN")
	}
	nodes[1].want(t, 0, "redisbackend", "", "bench", "--duration", "50ms", "--workers", "6")
	left := 0
	for _, p := range nodes {
		options, err := redis.ParseURL(p.dsn)
		if err != nil {
			t.Fatal(err)
		}
		client := redis.NewClient(options)
		left += len(client.Keys(t.Context(), "*bench*").Val())
		p.want(t, 0, "[]", "", "ps", "--json")
		_ = client.Close()
	}
	if left != 0 {
		t.Errorf("%d keys of the measurement are left", left)
	}
}

// The key passes on while an operator's release is under way: it is told, and the
// successor's command comes to its end.
func TestReleasePassesOn(t *testing.T) { each(t, testReleasePassesOn, networked...) }

func testReleasePassesOn(t *testing.T, p *place) {
	far, x := p.through(t)
	cases := [][2][]string{{nil, {"backup"}}}
	if p.driver != "" {
		cases = append(cases, [2][]string{{"--once", "r"}, {"backup", "--run", "r"}})
	}
	for _, c := range cases {
		a := p.hold(t, "backup", append(c[0], "--holder", "A")...)
		_, out, _ := p.output(t, "ps", "--json")
		var list []struct{ Grant string }
		if err := json.Unmarshal([]byte(out), &list); err != nil || len(list) != 1 {
			t.Fatalf("%v, %s", err, out)
		}
		reached, goOn := make(chan struct{}), make(chan struct{})
		reach := sync.OnceFunc(func() { close(reached) })
		x.Intercept(func(data []byte) proxy.Verdict {
			if proxy.Mentions(data, list[0].Grant) {
				reach()
				<-goOn
			}
			return proxy.Pass
		})
		let := sync.OnceFunc(func() { close(goOn) })
		t.Cleanup(let)
		release, errs := far.start(t, append([]string{"release"}, c[1]...)...)
		select {
		case <-reached:
		case <-time.After(patience):
			t.Fatalf("nothing is released: %s", errs())
		}
		a.end(t, 4)
		b := p.hold(t, "backup", append(c[0], "--holder", "B")...)
		let()
		_ = release.Wait()
		token := strings.TrimSpace(content(b.dir + "/began"))
		if code := release.ProcessState.ExitCode(); code != 1 || !strings.Contains(errs(), "passed on meanwhile: B has it with token "+token) {
			t.Errorf("release: exit code %d, %s", code, errs())
		}
		p.want(t, 1, "", "B has it with token "+token, append([]string{"release", "--token", "4711"}, c[1]...)...)
		b.end(t, 0) // it would be 124 if it had lost the key
	}
}

// beats is a file to which commands write who they are, again and again: the
// order of its lines is that in which they were stored.
func beats(t *testing.T) string { return filepath.Join(t.TempDir(), "beats") }

// beat is a command that writes who it is, and that does not heed SIGTERM, nor
// does its child that does the same.
func beat(file, who string) []string {
	loop := "while :; do echo " + who + " >>" + file + "; sleep 0.01; done"
	return []string{"sh", "-c", "trap '' TERM; sh -c '" + loop + "' & " + loop}
}

// overlap counts the lines of A behind the first one of B.
func overlap(t *testing.T, file string) (n int) {
	t.Helper()
	a, rest, _ := strings.Cut(content(file), "B\n")
	if a == "" {
		t.Fatal("A never was there")
	}
	return strings.Count(rest, "A\n")
}

// The server can no longer be reached from the first machine. Its command, with
// all that it has started, has ended when the second machine's begins.
func TestCutOff(t *testing.T) { each(t, testCutOff, networked...) }

// ttl is long enough for a busy machine to renew in time, and to stop commands in
// the second before its end.
const ttl = 10 * time.Second

func testCutOff(t *testing.T, p *place) {
	file := beats(t)
	behind, x := p.through(t)
	run := []string{"run", "--name", "n", "--ttl", ttl.String(), "--kill-after", "200ms"}
	a, errs := behind.start(t, append(run, beat(file, "A")...)...)
	await(t, "A runs", func() bool { return content(file) != "" })
	b, _ := p.start(t, append(run, append([]string{"--wait", "1h"}, beat(file, "B")...)...)...)
	for range 2 { // it is renewed, and B waits
		before := until(t, p)
		await(t, "a renewal", func() bool { return until(t, p).Sub(before) > ttl/6 })
	}
	if strings.Contains(content(file), "B") {
		t.Error("B did not wait")
	}
	x.Intercept(func([]byte) proxy.Verdict { return proxy.Swallow })
	_ = a.Wait()
	if code := a.ProcessState.ExitCode(); code != 124 {
		t.Errorf("exit code %d: %s", code, errs())
	}
	await(t, "B runs", func() bool { return strings.Contains(content(file), "B") })
	time.Sleep(100 * time.Millisecond)
	if n := overlap(t, file); n != 0 {
		t.Errorf("A wrote %d lines after B had begun", n)
	}
	stop(t, b)
}

// until is when the only key that is held is free unless it is renewed, as ps says.
func until(t *testing.T, p *place) time.Time {
	t.Helper()
	_, out, errs := p.output(t, "ps", "--json")
	var list []struct{ Until time.Time }
	if err := json.Unmarshal([]byte(out), &list); err != nil || len(list) != 1 {
		t.Fatalf("one key is held, and ps says %s, %s", out, errs)
	}
	return list[0].Until
}

// stop ends a command that does not heed SIGTERM.
func stop(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	file := cmd.Args[len(cmd.Args)-1] // the script, which nobody else runs
	await(t, "all have ended", func() bool {
		lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		return !slices.ContainsFunc(lines, func(line string) bool { return strings.Contains(content(line), file) })
	})
}

// The first machine's wrapper is killed or frozen, and does nothing any more.
func TestGone(t *testing.T) { each(t, testGone, servers.Postgres, servers.MySQL, servers.Redis) }

func testGone(t *testing.T, p *place) {
	for name, s := range map[string]syscall.Signal{"killed": syscall.SIGKILL, "frozen": syscall.SIGSTOP} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := beats(t)
			run := []string{"run", "--name", name, "--ttl", ttl.String(), "--kill-after", "200ms"}
			a, _ := p.start(t, append(run, beat(file, "A")...)...)
			await(t, "A runs", func() bool { return content(file) != "" })
			if err := a.Process.Signal(s); err != nil {
				t.Fatal(err)
			}
			b, _ := p.start(t, append(run, append([]string{"--wait", "1h"}, beat(file, "B")...)...)...)
			await(t, "B runs", func() bool { return strings.Contains(content(file), "B") })
			time.Sleep(100 * time.Millisecond)
			if n := overlap(t, file); n != 0 {
				t.Errorf("A wrote %d lines after B had begun", n)
			}
			stop(t, b)
			if s == syscall.SIGSTOP {
				_ = a.Process.Signal(syscall.SIGCONT)
			}
			_ = a.Wait()
			if code := a.ProcessState.ExitCode(); s == syscall.SIGSTOP && code != 124 {
				t.Errorf("when it went on: exit code %d", code)
			}
		})
	}
}

// The twin: a wrapper that holds the same lease, and does not stop what it runs.
// Then both are at work.
func TestTwinWithoutStopping(t *testing.T) {
	t.Parallel()
	p := newPlace(t, servers.Postgres)
	file := beats(t)
	db := p.sql(t)
	// What exclusive run would have stored, by somebody who then forgets it.
	if _, err := db.ExecContext(t.Context(), `INSERT INTO exclusive_lease VALUES ('n', 'twin', 'A', 1, 1, 0,
		(extract(epoch FROM clock_timestamp()) * 1000000)::bigint + 1000000)`); err != nil {
		t.Fatal(err)
	}
	argv := beat(file, "A")
	a := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
	a.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := a.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(-a.Process.Pid, syscall.SIGKILL); _ = a.Wait() })
	await(t, "A runs", func() bool { return content(file) != "" })
	b, _ := p.start(t, append([]string{"run", "--name", "n", "--wait", "1h"}, beat(file, "B")...)...)
	await(t, "both write", func() bool { return strings.Contains(content(file), "B") && overlap(t, file) > 0 })
	stop(t, b)
}

// sql opens the place's database.
func (p *place) sql(t *testing.T) *sql.DB {
	t.Helper()
	db, err := sql.Open(p.driver, p.native)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// envReport names a directory: then this program is the nightly job, which
// stores a report in the database of envStore.
const (
	envReport = "EXCLUSIVE_TEST_REPORT"
	envStore  = "EXCLUSIVE_TEST_STORE"
)

// storeReport stores the night's report. Half way it waits for as long as the
// directory has a file that says so.
func storeReport(dir string) int {
	driver, dsn, _ := strings.Cut(os.Getenv(envStore), " ")
	db, err := sql.Open(driver, dsn)
	if err != nil {
		return 1
	}
	night := os.Getenv("EXCLUSIVE_RUN")
	insert := func(table string) error {
		_, err := db.Exec("INSERT INTO " + table + " (night) VALUES ('" + night + "')")
		return err
	}
	if err := insert("begun"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "wait")); err != nil {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	if err := insert("report"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// cron is the crontab of two machines that start the same nightly job.
type cron struct {
	p   *place
	dir string
	db  *sql.DB
}

func newCron(t *testing.T, p *place) *cron {
	t.Helper()
	c := &cron{p: p, dir: t.TempDir(), db: p.sql(t)}
	for _, table := range []string{"begun", "report"} {
		if _, err := c.db.ExecContext(t.Context(), "CREATE TABLE "+table+" (night varchar(100) NOT NULL)"); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// fire starts a machine's job.
func (c *cron) fire(t *testing.T, machine string, flags ...string) (cmd *exec.Cmd, errs func() string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	cmd = c.p.command(t, append(append([]string{"run", "--name", "nightly", "--holder", machine, "--quiet", "--wait", "1h"}, flags...), self)...)
	cmd.Env = append(cmd.Env, envReport+"="+c.dir, envStore+"="+c.p.driver+" "+c.p.native)
	cmd.Stderr = file
	if err := errors.Join(cmd.Start(), file.Close()); err != nil {
		t.Fatal(err)
	}
	return cmd, func() string { return content(file.Name()) }
}

// rows counts.
func (c *cron) rows(t *testing.T, table string) (n int) {
	t.Helper()
	if err := c.db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM "+table).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

const nights = 30

// Two machines start the same job each night. Each night's report is stored
// once, whoever comes first; also that of the night in which the one that does it
// is killed half way, with nobody there but the other machine.
func TestThirtyNights(t *testing.T) { each(t, testThirtyNights, withRuns...) }

func testThirtyNights(t *testing.T, p *place) {
	c := newCron(t, p)
	first := time.Date(2026, 10, 10, 1, 30, 0, 0, time.UTC) // daylight saving ends in between
	const accident = 15
	for night := range nights {
		at := first.AddDate(0, 0, night).Format(time.RFC3339)
		flags := []string{"--daily", "Europe/Berlin", "--scheduled", at}
		wait := filepath.Join(c.dir, "wait")
		if night == accident {
			flags = append(flags, "--ttl", "10s", "--kill-after", "1s") // long enough for a busy machine
			if err := os.WriteFile(wait, nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		a, aErrs := c.fire(t, "A", flags...)
		if night == accident {
			await(t, "A has begun", func() bool { return c.rows(t, "begun") == accident+1 })
		}
		b, bErrs := c.fire(t, "B", flags...)
		if night == accident {
			if err := a.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			await(t, "B has taken over", func() bool { return c.rows(t, "begun") == accident+2 })
			if err := os.Remove(wait); err != nil {
				t.Fatal(err)
			}
		}
		_, _ = a.Process.Wait()
		if err := b.Wait(); err != nil {
			t.Errorf("B on night %d: %v, %s", night, err, bErrs())
		}
		if text := aErrs() + bErrs(); text != "" {
			t.Errorf("cron would send a mail: %s", text)
		}
		if n := c.rows(t, "report"); n != night+1 {
			t.Fatalf("%d reports after night %d", n, night)
		}
	}
	var distinct int
	if err := c.db.QueryRowContext(t.Context(), "SELECT COUNT(DISTINCT night) FROM report").Scan(&distinct); err != nil || distinct != nights {
		t.Errorf("reports of %d nights, %v", distinct, err)
	}
	if n := c.rows(t, "begun"); n != nights+1 {
		t.Errorf("begun %d times", n)
	}
	_, out, _ := p.output(t, "tasks", "nightly", "--state", "done", "--json")
	if n := strings.Count(out, `"run":`); n != nights {
		t.Errorf("%d runs are done", n)
	}
	if n := strings.Count(out, `"state": "lost"`); n != 1 {
		t.Errorf("%d attempts were lost", n)
	}
}

// The twin: with the lease alone the second machine waits for the first, and
// does it again.
func TestTwinWithoutRuns(t *testing.T) { each(t, testTwinWithoutRuns, sqlite) }

func testTwinWithoutRuns(t *testing.T, p *place) {
	c := newCron(t, p)
	for range 2 {
		a, _ := c.fire(t, "A")
		b, _ := c.fire(t, "B")
		if err := errors.Join(a.Wait(), b.Wait()); err != nil {
			t.Fatal(err)
		}
	}
	if n := c.rows(t, "report"); n != 4 {
		t.Errorf("%d reports of 2 nights", n)
	}
}
