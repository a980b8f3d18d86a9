package main

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/db/sqldb"
	"github.com/exclusive-go/exclusive/fencing"
	"github.com/exclusive-go/exclusive/uniquetask"
)

// ran runs the command in this process, with a DSN in its environment.
func ran(t *testing.T, dsn string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	env := environment{stdout: &out, stderr: &errs, getenv: func(string) string { return dsn }}
	code = dispatch(t.Context(), env, args)
	return code, out.String(), errs.String()
}

// want compares what a command did. stdout and stderr are parts, and "" nothing
// at all.
func want(t *testing.T, dsn, args string, code int, stdout, stderr string) string {
	t.Helper()
	gotCode, out, errs := ran(t, dsn, strings.Fields(args)...)
	same := func(got, want string) bool {
		return want == "" && got == "" || want != "" && strings.Contains(got, want)
	}
	if gotCode != code || !same(out, stdout) || !same(errs, stderr) {
		t.Errorf("%s: exit code %d, output %q, errors %q", args, gotCode, out, errs)
	}
	documented(t, args, gotCode)
	return out
}

// documented fails unless the command's help has the exit code.
func documented(t *testing.T, args string, code int) {
	t.Helper()
	cmd, _, err := newRoot().Find(strings.Fields(args))
	if err != nil {
		t.Errorf("%s: %v", args, err)
		return
	}
	_, codes, _ := strings.Cut(strings.ToLower(cmd.Long), "exit code")
	if !regexp.MustCompile(fmt.Sprintf(`\b%d\b(  | [a-z]|,)`, code)).MatchString(codes) {
		t.Errorf("%s: the help does not have exit code %d", args, code)
	}
}

// operated has a lease, and runs in each state, of holder "X".
type operated struct {
	dsn    string
	plain  *sql.DB
	leases *fencing.Leases[*sql.Tx]
	tasks  *uniquetask.Tasks[*sql.Tx]
	held   *exclusive.Lease
}

func newOperated(t *testing.T) *operated {
	t.Helper()
	o := &operated{}
	o.dsn, o.plain = sqliteFile(t)
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var err error
	o.leases, err = fencing.New(sqldb.NewSQLite(o.plain), fencing.Config{TTL: time.Hour, Holder: "X"})
	must(err)
	t.Cleanup(func() { _ = o.leases.Close() })
	o.held, err = o.leases.TryAcquire(ctx, "backup")
	must(err)
	_, err = o.leases.TryAcquire(ctx, "\x1b[31m red")
	must(err)
	must(o.leases.Do(ctx, "free", func(context.Context, exclusive.Grant) error { return nil }))

	o.tasks, err = uniquetask.New(sqldb.NewSQLite(o.plain), uniquetask.Config{Task: "report", TTL: time.Hour, Holder: "X"})
	must(err)
	t.Cleanup(func() { _ = o.tasks.Close() })
	for i := range 3 {
		must(o.tasks.Do(ctx, fmt.Sprintf("done%d", i), func(context.Context, exclusive.Grant) error { return nil }))
	}
	for range 2 {
		_ = o.tasks.Do(ctx, "failed", func(context.Context, exclusive.Grant) error { return errors.New("no paper") })
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	for _, run := range []string{"lost", "running"} {
		began := make(chan struct{})
		go func() {
			_ = o.tasks.Do(ctx, run, func(ctx context.Context, _ exclusive.Grant) error {
				close(began)
				<-ctx.Done()
				return ctx.Err()
			})
			ended <- struct{}{}
		}()
		<-began
	}
	t.Cleanup(func() { cancel(); <-ended; <-ended })
	if _, err := o.plain.ExecContext(ctx, "UPDATE exclusive_task SET free_at = 5 WHERE run = ?", []byte("lost")); err != nil {
		t.Fatal(err)
	}
	return o
}

func TestPS(t *testing.T) {
	t.Parallel()
	o := newOperated(t)
	all := want(t, o.dsn, "ps", exitOK, "backup", "")
	lines := strings.Split(strings.TrimSpace(all), "\n")
	if len(lines) != 4 || !strings.HasPrefix(lines[0], "STRATEGY") || strings.ContainsRune(all, '\x1b') || !strings.Contains(all, `"\x1b[31m red"`) {
		t.Errorf("the list is\n%s", all)
	}
	if out := want(t, o.dsn, "ps --strategy uniquetask", exitOK, "running", ""); strings.Contains(out, "backup") || strings.Contains(out, "lost") {
		t.Errorf("the list of runs is\n%s", out)
	}
	if out := want(t, o.dsn, "ps --name acku", exitOK, "backup", ""); strings.Contains(out, "report") {
		t.Errorf("the list of one name is\n%s", out)
	}
	if out := want(t, o.dsn, "ps --holder Y --json", exitOK, "[]\n", ""); out != "[]\n" {
		t.Errorf("an empty list is %q", out)
	}
	var list []grantJSON
	if err := json.Unmarshal([]byte(want(t, o.dsn, "ps --json --name backup", exitOK, "{", "")), &list); err != nil || len(list) != 1 {
		t.Fatalf("%v, %v", list, err)
	}
	g := o.held.Grant()
	if l := list[0]; l.Name != "backup" || l.Token != g.Token || l.Grant != g.ID || l.Holder != "X" || l.Attempt != 1 ||
		l.Until.Sub(l.Since).Round(time.Minute) != time.Hour || l.Since.Location() != time.UTC {
		t.Errorf("%+v", l)
	}
	want(t, o.dsn, "ps --strategy rowlock", exitUsage, "", "must be one of")
	want(t, o.dsn, "ps --prefix a'b", exitUsage, "", "Prefix")
	want(t, o.dsn, "ps --prefix other_", exitFailed, "", "exclusive init --prefix other_ makes the tables")

	// One of the two kinds of tables will do.
	if _, err := o.plain.ExecContext(t.Context(), "DROP TABLE exclusive_task"); err != nil {
		t.Fatal(err)
	}
	want(t, o.dsn, "ps", exitOK, "backup", "")
	want(t, o.dsn, "tasks", exitFailed, "", "exclusive init makes the tables")
}

// With --watch the list is shown until somebody has seen enough.
func TestWatch(t *testing.T) {
	t.Parallel()
	o := newOperated(t)
	ctx, enough := context.WithCancel(t.Context())
	seen := &times{text: "backup", n: 3, then: enough}
	var errs bytes.Buffer
	env := environment{stdout: seen, stderr: &errs, getenv: func(string) string { return o.dsn }}
	if code := dispatch(ctx, env, []string{"ps", "--watch=1ms"}); code != exitOK || errs.Len() > 0 || seen.n > 0 {
		t.Errorf("exit code %d, errors %q, %d are missing", code, errs.String(), seen.n)
	}
}

// times calls then when text was written n times.
type times struct {
	text string
	n    int
	then func()
}

func (w *times) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte(w.text)) {
		if w.n--; w.n == 0 {
			w.then()
		}
	}
	return len(p), nil
}

func TestTasks(t *testing.T) {
	t.Parallel()
	o := newOperated(t)
	for args, runs := range map[string]string{
		"tasks":                        "done0 done1 done2 failed lost running",
		"tasks report":                 "done0 done1 done2 failed lost running",
		"tasks other":                  "",
		"tasks other report":           "done0 done1 done2 failed lost running",
		"tasks --state done":           "done0 done1 done2",
		"tasks --state failed":         "failed",
		"tasks --state lost":           "lost",
		"tasks --state running":        "running",
		"tasks --last 2":               "lost running",
		"tasks --state done --last 1":  "done2",
		"tasks report --state done -h": "",
	} {
		if strings.HasSuffix(args, "-h") {
			want(t, o.dsn, args, exitOK, "--last", "")
			continue
		}
		var list []runJSON
		if err := json.Unmarshal([]byte(want(t, o.dsn, args+" --json", exitOK, "[", "")), &list); err != nil {
			t.Errorf("%s: %v", args, err)
		}
		var got []string
		for _, r := range list {
			got = append(got, r.Run)
			if r.Task != "report" || r.Holder != "X" || r.Grant == "" || r.Started.IsZero() {
				t.Errorf("%+v", r)
			}
			if r.Run == "failed" && (r.Attempt != 2 || r.Error != "no paper" || len(r.Earlier) != 1 || r.Earlier[0].Error != "no paper") {
				t.Errorf("%+v", r)
			}
		}
		if strings.Join(got, " ") != runs {
			t.Errorf("%s: %v, not %s", args, got, runs)
		}
	}
	want(t, o.dsn, "tasks", exitOK, "no paper", "")
	want(t, o.dsn, "tasks --state odd", exitUsage, "", "must be one of running, lost, failed, done")
	want(t, o.dsn, "tasks --last -1", exitUsage, "", "negative")
	want(t, "redis://127.0.0.1:1/0", "tasks", exitFailed, "", "refused")
}

// The last runs are those that began last, whatever their keys. People are shown
// some, and told so; programs all.
func TestTasksLast(t *testing.T) {
	t.Parallel()
	dsn, plain := sqliteFile(t)
	for _, task := range []string{"few", "many"} {
		tasks, err := uniquetask.New(sqldb.NewSQLite(plain), uniquetask.Config{Task: task})
		if err != nil {
			t.Fatal(err)
		}
		for i := range map[string]int{"few": tasksLast, "many": tasksLast + 2}[task] {
			if err := tasks.Do(t.Context(), fmt.Sprint(i), func(context.Context, exclusive.Grant) error { return nil }); err != nil {
				t.Fatal(err)
			}
		}
		if err := tasks.Close(); err != nil {
			t.Fatal(err)
		}
	}
	runs := func(out string) (list []string) {
		for _, line := range strings.Split(out, "\n") {
			if fields := strings.Fields(line); len(fields) > 2 && fields[0] == "many" {
				list = append(list, fields[1])
			}
		}
		return list
	}
	const note = "There are more runs of many: "
	out := want(t, dsn, "tasks", exitOK, note, "")
	if got := runs(out); len(got) != tasksLast || got[0] != "2" || got[tasksLast-1] != fmt.Sprint(tasksLast+1) {
		t.Errorf("shown are %v", got)
	}
	out = want(t, dsn, "tasks --last 3", exitOK, "many", "")
	if got := fmt.Sprint(runs(out)); got != fmt.Sprint([]int{tasksLast - 1, tasksLast, tasksLast + 1}) || strings.Contains(out, note) {
		t.Errorf("the last are %v", got)
	}
	if got := runs(want(t, dsn, "tasks --last 0", exitOK, "many", "")); len(got) != tasksLast+2 {
		t.Errorf("all are %v", got)
	}
	if out := want(t, dsn, "tasks few", exitOK, "few", ""); strings.Contains(out, "more runs") {
		t.Errorf("of few it says\n%s", out)
	}
	var list []runJSON
	if err := json.Unmarshal([]byte(want(t, dsn, "tasks many --json", exitOK, "[", "")), &list); err != nil || len(list) != tasksLast+2 {
		t.Errorf("%d runs, %v", len(list), err)
	}
}

func TestReleaseAndForget(t *testing.T) {
	t.Parallel()
	o := newOperated(t)
	g := o.held.Grant()
	check := func() error {
		tx, err := o.plain.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback() }()
		return o.leases.Check(t.Context(), tx, g)
	}
	if err := check(); err != nil {
		t.Fatal(err)
	}
	want(t, o.dsn, "release backup --token 4711", exitNo, "", fmt.Sprintf("X has it with token %d since", g.Token))
	want(t, o.dsn, "release backup --token 4711 --json", exitNo, "\"from\": null,\n  \"now\": {\n    \"strategy\": \"fencing\"", "")
	want(t, o.dsn, "release backup --token 0", exitUsage, "", "--token must be greater than 0")
	if err := check(); err != nil {
		t.Errorf("a guarded write of a holder that was left alone: %v", err)
	}
	want(t, o.dsn, fmt.Sprint("release backup --token ", g.Token), exitOK, fmt.Sprintf("X had it with token %d", g.Token), "")
	if err := check(); !errors.Is(err, exclusive.ErrLost) {
		t.Errorf("a guarded write of the old holder: %v", err)
	}
	want(t, o.dsn, "release backup", exitNo, "", "nobody holds it")
	want(t, o.dsn, "release backup --json", exitNo, `"from": null`, "")
	want(t, o.dsn, "release unknown", exitNo, "", "nobody holds it; exclusive ps shows what is held\n")
	want(t, o.dsn, "release", exitUsage, "", "needs the name of the key")
	want(t, o.dsn, "release backup --run=", exitUsage, "", "--run is empty")
	want(t, o.dsn, "release "+strings.Repeat("k", 201), exitUsage, "", "201 bytes")

	want(t, o.dsn, "forget report running", exitNo, "", `exclusive forget: forget "report/running": the key is held by somebody else`)
	want(t, o.dsn, "release report", exitNo, "", "nobody holds it, but runs of the task of that name are held; name one with --run: running\n")
	want(t, o.dsn, "release report --json", exitNo, "\"runs\": [\n    \"running\"\n  ]", "")
	want(t, o.dsn, "release report --run running --json", exitOK, `"run": "running"`, "")
	want(t, o.dsn, "release report --run done0", exitNo, "", "nobody holds it; exclusive ps shows what is held\n")
	want(t, o.dsn, "release report", exitNo, "", "nobody holds it; exclusive ps shows what is held\n")
	want(t, o.dsn, "forget report running", exitOK, "it was lost", "")
	want(t, o.dsn, "forget report running", exitNo, "", "nobody knows this run; exclusive tasks shows which are known\n")
	want(t, o.dsn, "forget report running --json", exitNo, `"forgotten": null`, "")
	// A server that only reads may not have heard of the holder.
	for _, args := range []string{"release unknown", "release report --run unknown", "forget report unknown"} {
		want(t, o.dsn+"?_pragma=query_only(1)", args, exitFailed, "", "the server is read-only")
	}
	want(t, o.dsn, "forget report done0 --json", exitOK, `"state": "done"`, "")
	want(t, o.dsn, "forget report failed --release", exitOK, "it was failed, attempt 2 by X", "")
	want(t, o.dsn, "forget report", exitUsage, "", "needs the name of the task and the run")
	want(t, o.dsn, "tasks --state done", exitOK, "done1", "")
	if n := count(t, o.plain, "SELECT COUNT(*) FROM exclusive_task"); n != 3 {
		t.Errorf("%d runs are left", n)
	}
}

// Between the look and the release the key passes on, or is given back.
func TestReleasePassedOn(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	for name, passes := range map[string]bool{"passed on": true, "given back": false} {
		o := newOperated(t)
		var next *exclusive.Lease
		done := released{Name: "backup"}
		d := database{dsn: o.dsn}
		err := d.operate(ctx, environment{}, func(k *keys) error {
			looks := 0
			return done.take(ctx, 0, func(ctx context.Context) (*seen, error) {
				s, err := k.seeKey(ctx, "backup")
				if looks++; looks > 1 || err != nil {
					return s, err
				}
				if err := o.held.Release(ctx); err != nil || !passes {
					return s, err
				}
				next, err = o.leases.TryAcquire(ctx, "backup")
				return s, err
			})
		})
		if err != nil || done.From != nil || !done.passed {
			t.Fatalf("%s: %+v, %v", name, done, err)
		}
		if !passes {
			if done.Now != nil || !strings.Contains(done.why(0), "was given back") {
				t.Errorf("%+v: %s", done, done.why(0))
			}
			continue
		}
		if done.Now == nil || done.Now.Grant != next.Grant().ID || !strings.Contains(done.why(0), "has passed on") {
			t.Errorf("%+v: %s", done, done.why(0))
		}
		if err := next.Release(ctx); err != nil {
			t.Errorf("the successor has lost it: %v", err)
		}
	}
}

func TestPrune(t *testing.T) {
	t.Parallel()
	o := newOperated(t)
	want(t, o.dsn, "prune", exitUsage, "", "--older-than is missing")
	want(t, o.dsn, "prune --older-than soon", exitUsage, "", "is no age")
	want(t, o.dsn, "prune --older-than 99999999d", exitUsage, "", "is no age")
	want(t, o.dsn, "prune --older-than 1s", exitUsage, "", "1h0m0s or more")
	// All that ended, and all that looks so, 40 days ago.
	const ago = "40 * 24 * 3600 * 1000000"
	for _, change := range []string{
		"UPDATE exclusive_lease SET acquired_at = acquired_at - " + ago,
		"UPDATE exclusive_task SET free_at = free_at - " + ago + " WHERE state <> 'running'",
	} {
		if _, err := o.plain.ExecContext(t.Context(), change); err != nil {
			t.Fatal(err)
		}
	}
	want(t, o.dsn, "prune --older-than 41d", exitOK, "keys: 0 removed\nruns of report: 1 removed", "") // "lost" is from 1970
	want(t, o.dsn, "prune --older-than 30d --task other --json", exitOK, `"other": 0`, "")
	want(t, o.dsn, "prune --older-than 720h --json", exitOK, "\"leases\": 1,\n  \"runs\": {\n    \"report\": 4\n", "")
	if n := count(t, o.plain, "SELECT COUNT(*) FROM exclusive_lease"); n != 2 {
		t.Errorf("%d leases are left", n)
	}
	want(t, o.dsn, "ps", exitOK, "running", "")
}

func TestVersion(t *testing.T) {
	t.Parallel()
	want(t, "", "version", exitOK, "\n  fencing_lease version ", "")
	want(t, "", "version --json", exitOK, `"fencing_lease": `, "")
	v, err := versionOf(&debug.BuildInfo{
		GoVersion: "go1.26", Main: debug.Module{Version: "v1.2.3"},
		Settings: []debug.BuildSetting{{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.time", Value: "2026-11-29"}, {Key: "vcs.modified", Value: "true"}, {Key: "GOOS", Value: "linux"}, {Key: "GOARCH", Value: "arm64"}},
	})
	if text := v.String(); err != nil || !strings.HasPrefix(text, "exclusive v1.2.3\nrevision  abc 2026-11-29, modified\nbuilt by  go1.26 linux/arm64\nmigrations\n") {
		t.Errorf("%v\n%s", err, text)
	}
	if v, err := versionOf(nil); err != nil || v.Version != "unknown" || len(v.Templates) == 0 {
		t.Errorf("%+v, %v", v, err)
	}
}

func TestPrintable(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]string{
		"": "-", "-": `"-"`, "a b": "a b", "é": "é", " a": `" a"`, "a\n": `"a\n"`, "\x1b[2J": `"\x1b[2J"`, "\u202e": `"\u202e"`, "a\tb": `"a\tb"`,
	} {
		if got := printable(s); got != want {
			t.Errorf("%q is printed as %s, not %s", s, got, want)
		}
	}
}
