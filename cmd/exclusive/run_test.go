//go:build linux

package main

import (
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestRunFlags(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	text := filepath.Join(dir, "text")
	if err := os.WriteFile(text, []byte("#!/bin/sh\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, first := range map[string]string{
		"no-interpreter": "#!/no/such/sh -e", "of-dos": "#! /bin/sh\r", "no-program": "#!/dev/null",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(first+"\necho ran\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o755); err != nil {
		t.Fatal(err)
	}
	const ok, redis = "sqlite:///nowhere/at/all.db", "redis://127.0.0.1:1/0"
	for _, c := range []struct {
		name, dsn string
		args      string // separated by spaces
		code      int
		stderr    string
	}{
		{"no name", ok, "-- true", exitUsage, "--name is missing"},
		{"empty name", ok, "--name= -- true", exitUsage, "--name is empty"},
		{"empty run", ok, "--name n --once= -- true", exitUsage, "--once is empty"},
		{"empty day", ok, "--name n --daily= -- true", exitUsage, "--daily is empty"},
		{"empty time", ok, "--name n --hourly --scheduled= -- true", exitUsage, "--scheduled is empty"},
		{"empty DSN", ok, "--name n --dsn= -- true", exitUsage, "--dsn is empty"},
		{"empty DSN file", ok, "--name n --dsn-file= -- true", exitUsage, "--dsn-file is empty"},
		{"no command", ok, "--name n --", exitUsage, "command to run is missing"},
		{"two periods", ok, "--name n --daily UTC --hourly -- true", exitUsage, "--daily and --hourly exclude"},
		{"no zone", ok, "--name n --daily Europe/Nowhere -- true", exitUsage, `--daily is "Europe/Nowhere", which is no time zone`},
		{"local zone", ok, "--name n --daily Local -- true", exitUsage, "no time zone"},
		{"no time", ok, "--name n --hourly --scheduled yesterday -- true", exitUsage, `--scheduled is "yesterday", which is no time`},
		{"time for nothing", ok, "--name n --scheduled 2026-11-29T02:30:00Z -- true", exitUsage, "--scheduled is for"},
		{"attempts of nothing", ok, "--name n --max-attempts 3 -- true", exitUsage, "runs that are remembered"},
		{"no exit code", ok, "--name n --busy-code 256 -- true", exitUsage, "from 0 to 255"},
		{"no time to stop in", ok, "--name n --ttl 10s --kill-after 5s -- true", exitUsage, "from 0 to 4s"},
		{"no time to stop in at all", ok, "--name n --ttl 2ms --kill-after 1ms -- true", exitUsage, "from 0 to 0s"},
		{"negative time to stop in", ok, "--name n --kill-after -1s -- true", exitUsage, "from 0 to 29s"},
		{"remembered in Redis", redis, "--name n --hourly -- true", exitUsage, "need a database of SQL"},
		{"no database named", "", "--name n -- true", exitUsage, "no database is named"},
		{"no such command", ok, "--name n -- exclusive-no-such-command", 127, "not found"},
		{"a line of shell", ok, "--name n -- exclusive-no-such-command|wc", 127, "$PATH; a line of shell is run by sh -c"},
		{"a wait without a unit", ok, "--name n --wait 10 -- true", exitUsage, "is no duration; write it as 90s, 10m or 1h30m"},
		{"no such file", ok, "--name n -- ./no/such/file", 127, "no such file"},
		{"not executable", ok, "--name n -- " + text, 126, "permission denied"},
		{"no interpreter", ok, "--name n -- ./no-interpreter", 127, "its interpreter: "},
		{"interpreter of DOS", ok, "--name n -- ./of-dos", 127, `/bin/sh\r`},
		{"interpreter that is none", ok, "--name n -- ./no-program", 126, "permission denied"},
		{"not executable in PATH", ok, "--name n -- text", 126, "permission denied"},
		{"a pipe", ok, "--name n -- ./fifo", 126, "not a regular file"},
		{"a directory", ok, "--name n -- " + dir, 126, "directory"},
		{"no database there", ok, "--name n -- true", exitUnavailable, "exclusive init makes it"},
		{"no server there", redis, "--name n -- true", exitUnavailable, "refused"},
		{"no server there", "postgres://u:topsecret@127.0.0.1:1/d", "--name n -- true", exitUnavailable, "refused"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			cmd := self(t, c.dsn, append([]string{"run"}, strings.Fields(c.args)...)...)
			cmd.Env = append(cmd.Env, "PATH="+os.Getenv("PATH")+":"+dir)
			cmd.Dir = dir
			code, stdout, stderr := output(t, cmd)
			if code != c.code || stdout != "" || !strings.Contains(stderr, c.stderr) {
				t.Errorf("exit code %d, output %q, errors %q", code, stdout, stderr)
			}
			if c.stderr == "refused" && (strings.Count(stderr, "refused") != 1 || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, "exclusive doctor")) {
				t.Errorf("not once, on one line and with the next step: %q", stderr)
			}
			if strings.Contains(stderr, "topsecret") {
				t.Error("the secret was printed")
			}
		})
	}
}

func TestRunWithoutTables(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "empty.db")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	dsn := "sqlite://" + file
	for _, args := range [][]string{{"--name", "n"}, {"--name", "n", "--hourly"}} {
		code, stdout, stderr := output(t, self(t, dsn, append(append([]string{"run"}, args...), "echo", "ran")...))
		if code != exitUnavailable || stdout != "" || !strings.Contains(stderr, "exclusive init makes the tables") || strings.Contains(stderr, "package migrations") {
			t.Errorf("exit code %d, output %q, errors %q", code, stdout, stderr)
		}
	}
}

// What the command does with its exit code and its files arrives as it is.
func TestRunPassesOn(t *testing.T) {
	t.Parallel()
	dsn, _ := sqliteFile(t)
	for _, c := range []struct {
		script string
		code   int
		period []string
	}{
		{"exit 0", 0, nil}, {"exit 0", 0, []string{"--once", "r"}}, {"exit 75", 75, nil}, {"exit 255", 255, []string{"--hourly"}},
		{"kill -TERM $$", 128 + 15, []string{"--daily", "Asia/Tokyo"}}, {"kill -KILL $$", 128 + 9, nil},
	} {
		t.Run(fmt.Sprint(c.script, c.period), func(t *testing.T) {
			t.Parallel()
			args := append([]string{"run", "--name", c.script}, c.period...)
			cmd := self(t, dsn, append(args, "--", "sh", "-c", `cat; printf 'to stderr\0' >&2; cat <&9; `+c.script)...)
			cmd.Stdin = strings.NewReader("in\n\xff\x00out")
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			// A file that the wrapper's caller has left open, such as a lock's.
			for range 7 {
				cmd.ExtraFiles = append(cmd.ExtraFiles, r)
			}
			if _, err := w.WriteString("ninth"); err != nil {
				t.Fatal(err)
			}
			_ = w.Close()
			code, stdout, stderr := output(t, cmd)
			_ = r.Close()
			if code != c.code || stdout != "in\n\xff\x00outninth" || stderr != "to stderr\x00" {
				t.Errorf("exit code %d, output %q, errors %q", code, stdout, stderr)
			}
		})
	}
}

// A script without #! is one of sh, as in a crontab without exclusive. What is no
// script is left to the kernel.
func TestRunScriptWithoutInterpreter(t *testing.T) {
	t.Parallel()
	dsn, plain := sqliteFile(t)
	dir := t.TempDir()
	for _, c := range []struct {
		name, text string
		code       int
		stdout     string
	}{
		{"script", "echo $0 $*; exit 3", 3, "%s a b\n"},
		{"empty", "", 0, ""},
		{"no-name", "#!\necho $0 $*; exit 4", 4, "%s a b\n"},
		{"no-name-but-blanks", "#! \t \necho $0 $*; exit 4", 4, "%s a b\n"},
		{"program", "\x7fELF\x00 of another machine", 126, ""},
	} {
		path := filepath.Join(dir, c.name)
		if err := os.WriteFile(path, []byte(c.text), 0o755); err != nil {
			t.Fatal(err)
		}
		for _, command := range []string{path, c.name} { // the second one in PATH
			cmd := self(t, dsn, "run", "--name", c.name, "--", command, "a", "b")
			cmd.Env = append(cmd.Env, "PATH="+dir+":"+os.Getenv("PATH"))
			want := strings.ReplaceAll(c.stdout, "%s", path)
			if code, stdout, stderr := output(t, cmd); code != c.code || stdout != want {
				t.Errorf("%s: exit code %d, output %q, errors %q", command, code, stdout, stderr)
			}
		}
	}
	// What cannot be run is known before anything is taken.
	if err := os.WriteFile(filepath.Join(dir, "broken"), []byte("#!/no/such/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if code, _, stderr := output(t, self(t, dsn, "run", "--name", "broken", "--hourly", "--", filepath.Join(dir, "broken"))); code != 127 {
		t.Errorf("exit code %d, errors %q", code, stderr)
	}
	if n := count(t, plain, "SELECT COUNT(*) FROM exclusive_task"); n != 0 {
		t.Errorf("%d runs were begun", n)
	}
}

// What the kernel alone knows not to go is told when it is to start. The key is given
// back as if nobody had taken it: whoever can run the command is the first to try.
func TestRunGivesBackWhatCannotStart(t *testing.T) {
	t.Parallel()
	dsn, plain := sqliteFile(t)
	program := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(program, []byte("\x7fELF\x00 of another machine"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, flags := range [][]string{{"--name", "k"}, {"--name", "n", "--once", "r", "--max-attempts", "1", "--backoff", "1h"}} {
		for range 2 {
			if code, _, stderr := output(t, self(t, dsn, slices.Concat([]string{"run"}, flags, []string{program})...)); code != 126 || !strings.Contains(stderr, "exec format error") {
				t.Errorf("%q: exit code %d, %s", flags, code, stderr)
			}
		}
		if flags[1] == "n" {
			if n := count(t, plain, "SELECT COUNT(*) FROM exclusive_task WHERE state = 'failed' AND error LIKE '%exec format error' AND attempt = 0"); n != 1 {
				t.Errorf("%d runs are given back, with the reason", n)
			}
		}
		if code, stdout, stderr := output(t, self(t, dsn, slices.Concat([]string{"run"}, flags, []string{"sh", "-c", "echo $EXCLUSIVE_ATTEMPT"})...)); code != 0 || stdout != "1\n" {
			t.Errorf("%q, a command that can run: exit code %d, attempt %q, %s", flags, code, stdout, stderr)
		}
	}
}

func TestRunEnvironment(t *testing.T) {
	t.Parallel()
	dsn, plain := sqliteFile(t)
	environ := func(args ...string) map[string]string {
		t.Helper()
		cmd := self(t, dsn, append(append([]string{"run"}, args...), "--", "env", "-0")...)
		cmd.Env = append(cmd.Env, "EXCLUSIVE_TOKEN=7", "EXCLUSIVE_RUN=of another", "OTHER=kept\nas it is")
		code, stdout, stderr := output(t, cmd)
		if code != 0 {
			t.Fatalf("exit code %d: %s", code, stderr)
		}
		env := make(map[string]string)
		for variable := range strings.SplitSeq(strings.TrimRight(stdout, "\x00"), "\x00") {
			name, value, _ := strings.Cut(variable, "=")
			if _, twice := env[name]; twice {
				t.Errorf("%s is there twice", name)
			}
			env[name] = value
		}
		if env["OTHER"] != "kept\nas it is" {
			t.Errorf("OTHER is %q", env["OTHER"])
		}
		return env
	}
	var grant string
	var token int64
	env := environ("--name", "n", "--ttl", "1h")
	if err := plain.QueryRowContext(t.Context(), "SELECT grant_id, token FROM exclusive_lease WHERE lease_key = ?", []byte("n")).Scan(&grant, &token); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"EXCLUSIVE_NAME": "n", "EXCLUSIVE_KEY": "n", "EXCLUSIVE_ATTEMPT": "1",
		"EXCLUSIVE_TOKEN": strconv.FormatInt(token, 10), "EXCLUSIVE_GRANT": grant,
		"EXCLUSIVE_DSN": "", "EXCLUSIVE_RUN": "",
	} {
		if env[name] != want {
			t.Errorf("%s is %q, not %q", name, env[name], want)
		}
	}
	expires, err := time.Parse(time.RFC3339, env["EXCLUSIVE_EXPIRES"])
	if left := time.Until(expires); err != nil || left < time.Hour-patience || left > time.Hour {
		t.Errorf("EXCLUSIVE_EXPIRES is %q: in %v, %v", env["EXCLUSIVE_EXPIRES"], left, err)
	}
	if _, there := env["EXCLUSIVE_DSN"]; there {
		t.Error("the DSN is in the environment")
	}
	env = environ("--name", "n", "--once", "r", "--keep-dsn")
	if env["EXCLUSIVE_KEY"] != "n/r" || env["EXCLUSIVE_RUN"] != "r" || env["EXCLUSIVE_DSN"] != dsn {
		t.Errorf("with a run: %q, %q, %q", env["EXCLUSIVE_KEY"], env["EXCLUSIVE_RUN"], env["EXCLUSIVE_DSN"])
	}
	for want, args := range map[string][]string{
		"x/a%2Fb": {"--name", "x", "--once", "a/b"}, "x%2Fa/b": {"--name", "x/a", "--once", "b"}, "x%2Fa%2Fb": {"--name", "x/a/b"},
	} {
		if got := environ(args...)["EXCLUSIVE_KEY"]; got != want {
			t.Errorf("%q: EXCLUSIVE_KEY is %q, not %q", args, got, want)
		}
	}
}

func TestRunBusyAndDone(t *testing.T) {
	t.Parallel()
	dsn, _ := sqliteFile(t)
	for _, period := range []string{"", "--once=r"} {
		run := func(args ...string) (int, string, string) {
			t.Helper()
			all := append([]string{"run", "--name", "n" + period}, args...)
			if period != "" {
				all = append([]string{"run", period}, all[1:]...)
			}
			return output(t, self(t, dsn, all...))
		}
		dir := t.TempDir()
		pid := filepath.Join(dir, "pid")
		holder := self(t, dsn, "run", "--name", "n"+period, "sh", "-c", "echo $$ >"+pid+"; read line")
		if period != "" {
			holder.Args = append([]string{"exclusive", "run", period}, holder.Args[2:]...)
		}
		in, err := holder.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := holder.Start(); err != nil {
			t.Fatal(err)
		}
		await(t, "the command runs", func() bool { return content(pid) != "" })

		if code, stdout, stderr := run("echo", "ran"); code != exitBusy || stdout != "" || !strings.Contains(stderr, "held by somebody else") {
			t.Errorf("busy: exit code %d, output %q, errors %q", code, stdout, stderr)
		}
		if code, stdout, stderr := run("--quiet", "--busy-code", "0", "echo", "ran"); code != 0 || stdout+stderr != "" {
			t.Errorf("busy, and no matter: exit code %d, output %q, errors %q", code, stdout, stderr)
		}
		if code, _, _ := run("--wait", "50ms", "echo", "ran"); code != exitBusy {
			t.Errorf("busy after a wait: exit code %d", code)
		}
		waiting := self(t, dsn, "run", "--name", "n"+period, "--wait", "1h", "echo", "ran")
		if period != "" {
			waiting.Args = append([]string{"exclusive", "run", period}, waiting.Args[2:]...)
		}
		var out strings.Builder
		waiting.Stdout = &out
		if err := waiting.Start(); err != nil {
			t.Fatal(err)
		}
		_ = in.Close()
		_ = holder.Wait() // read has failed, and so the command
		if code := holder.ProcessState.ExitCode(); code != 1 {
			t.Errorf("the holder's exit code is %d", code)
		}
		if err := waiting.Wait(); err != nil || out.String() != "ran\n" {
			t.Errorf("who has waited: %v, output %q", err, out.String())
		}
		wantOut, wantErr := "ran\n", ""
		if period != "" {
			wantOut, wantErr = "", "already done"
		}
		if code, stdout, stderr := run("echo", "ran"); code != 0 || stdout != wantOut || !strings.Contains(stderr, wantErr) {
			t.Errorf("after that: exit code %d, output %q, errors %q", code, stdout, stderr)
		}
		if period != "" {
			if code, stdout, stderr := run("--quiet", "--done-code", "9", "echo", "ran"); code != 9 || stdout+stderr != "" {
				t.Errorf("done, and told so: exit code %d, output %q, errors %q", code, stdout, stderr)
			}
		}
	}
}

func TestRunAgainAfterFailure(t *testing.T) {
	t.Parallel()
	dsn, plain := sqliteFile(t)
	fail := []string{"run", "--name", "n", "--once", "r", "--max-attempts", "2", "sh", "-c", "exit $((EXCLUSIVE_ATTEMPT+40))"}
	for i, want := range []int{41, 42, exitNoMore} {
		code, _, stderr := output(t, self(t, dsn, fail...))
		if code != want {
			t.Errorf("attempt %d: exit code %d, %s", i+1, code, stderr)
		}
		if code == exitNoMore && (!strings.HasPrefix(stderr, `exclusive run: claim "n/r": `) || !strings.HasSuffix(stderr, "then exclusive forget n r\n")) {
			t.Errorf("it says %q", stderr)
		}
	}
	rest := []string{"run", "--name", "n", "--once", "s", "--backoff", "1h", "sh", "-c", "exit 1"}
	for i, want := range []int{1, exitNoMore} {
		if code, _, stderr := output(t, self(t, dsn, rest...)); code != want {
			t.Errorf("attempt %d: exit code %d, %s", i+1, code, stderr)
		}
	}
	// Nor does anybody wait for the rest to be over.
	if code, _, stderr := output(t, self(t, dsn, append(rest[:1:1], append([]string{"--wait", "1h"}, rest[1:]...)...)...)); code != exitNoMore || !strings.Contains(stderr, "when its rest is over") {
		t.Errorf("with --wait: exit code %d, %s", code, stderr)
	}
	var text string
	if err := plain.QueryRowContext(t.Context(), "SELECT error FROM exclusive_task WHERE run = ?", []byte("s")).Scan(&text); err != nil || text != "the command failed with exit code 1" {
		t.Errorf("stored: %q, %v", text, err)
	}
	// A command that was interrupted did not fail by itself, and takes no rest.
	dir := t.TempDir()
	cmd := self(t, dsn, "run", "--name", "n", "--once", "t", "--backoff", "1h", "sh", "-c", "echo >"+dir+"/began; sleep 1h")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	await(t, "the command runs", func() bool { return exists(dir + "/began") })
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 128+15 {
		t.Errorf("interrupted: exit code %d", code)
	}
	if code, stdout, stderr := output(t, self(t, dsn, "run", "--name", "n", "--once", "t", "echo", "ran")); code != 0 || stdout != "ran\n" {
		t.Errorf("after an interruption: exit code %d, %s", code, stderr)
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// alive reports whether a process runs, and was not only not waited for.
func alive(pid string) bool {
	text := content("/proc/" + pid + "/stat")
	return text != "" && !regexp.MustCompile(`\) [ZX] `).MatchString(text)
}

// tree is a script that starts a child, a grandchild, one in a session of its
// own whose parent ends, and writes down their pids. Each of them ignores
// the signals in $ignore.
const tree = `trap '' $ignore
echo $$ >$dir/child
sh -c 'echo $$ >$dir/grandchild; while :; do sleep 1; done' &
setsid sh -c 'echo $$ >$dir/session; while :; do sleep 1; done' &
( setsid sh -c 'echo $$ >$dir/orphan; while :; do sleep 1; done' & )
while test ! -s $dir/grandchild || test ! -s $dir/session || test ! -s $dir/orphan; do sleep 0.01; done
echo >$dir/ready
`

var family = []string{"child", "grandchild", "session", "orphan"}

// startTree runs the script with what comes after it.
func startTree(t *testing.T, dsn, ignore, after string, flags ...string) *procs {
	t.Helper()
	dir := t.TempDir()
	args := append(append([]string{"run", "--name", "n"}, flags...), "sh", "-c", tree+after)
	p := &procs{dir: dir}
	p.cmd = self(t, dsn, args...)
	p.cmd.Env = append(p.cmd.Env, "dir="+dir, "ignore="+ignore)
	p.start(t)
	return p
}

// start starts it, and waits until all of the family run.
func (p *procs) start(t *testing.T) {
	t.Helper()
	// A file, and no pipe: Wait must not wait for those that have it open.
	stderr, err := os.Create(filepath.Join(p.dir, "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	p.cmd.Stderr = stderr
	if err := errors.Join(p.cmd.Start(), stderr.Close()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		for _, name := range p.living() {
			pid, _ := strconv.Atoi(content(filepath.Join(p.dir, name)))
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	await(t, "the command and its children run", func() bool { return exists(p.dir + "/ready") })
}

// living are those of the family that have not ended.
func (p *procs) living() (names []string) {
	for _, name := range family {
		if alive(content(filepath.Join(p.dir, name))) {
			names = append(names, name)
		}
	}
	return names
}

const forever = "while :; do sleep 1; done"

// slowTTL is a lease that outlives the start of the script on a busy machine, and is
// over before patience is.
const slowTTL = "9s"

// --kill-after 0 is no default: what is stopped gets no SIGTERM.
func TestRunKillsAtOnce(t *testing.T) {
	t.Parallel()
	const leave = `sh -c 'trap "echo >$dir/term; exit" TERM; echo >$dir/ready; while :; do sleep 0.01; done' &
		until test -e $dir/ready; do sleep 0.01; done`
	for killAfter, heard := range map[string]bool{"0": false, "20s": true} {
		dsn, _ := sqliteFile(t)
		dir := t.TempDir()
		cmd := self(t, dsn, "run", "--name", "n", "--kill-after", killAfter, "sh", "-c", leave)
		cmd.Env = append(cmd.Env, "dir="+dir)
		if err := cmd.Run(); err != nil {
			t.Fatal(err)
		}
		if exists(dir+"/term") != heard {
			t.Errorf("--kill-after %s: SIGTERM came: %v", killAfter, !heard)
		}
	}
}

// What reads from the command may read to the end, and do its work, as tee does.
func TestRunLetsReadersEnd(t *testing.T) {
	t.Parallel()
	dsn, _ := sqliteFile(t)
	dir := t.TempDir()
	const script = `mkfifo $dir/pipe
		{ cat; sleep 0.1; echo end; } <$dir/pipe >$dir/log &
		exec >$dir/pipe
		echo last words`
	cmd := self(t, dsn, "run", "--name", "n", "sh", "-c", script)
	cmd.Env = append(cmd.Env, "dir="+dir)
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	if log := content(dir + "/log"); log != "last words\nend" {
		t.Errorf("the log is %q", log)
	}
}

// Nothing is left of the command when the key can pass on, however that comes.
func TestRunLeavesNothing(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		ignore string // by the command and what it starts
		after  string // what the command does
		flags  []string
		do     func(t *testing.T, p *procs, plain *sql.DB)
		code   int
		stderr string // an expression: a keeper that is late is killed
	}{
		{"it ends", "HUP", "exit 3", nil, nil, 3, ""},
		{"it ends and the rest ignores SIGTERM", "TERM", "exit 3", []string{"--kill-after", "100ms"}, nil, 3, ""},
		{"it is killed", "HUP", "kill -9 $$", nil, nil, 128 + 9, ""},
		{"SIGTERM", "HUP", forever, nil, send(syscall.SIGTERM), 128 + 15, ""},
		{"SIGINT", "HUP", forever, nil, send(syscall.SIGINT), 128 + 2, ""},
		{"the lease is stolen", "HUP", forever, []string{"--ttl", slowTTL, "--kill-after", "1s"}, steal, exitLost, "stopped because the lease was lost|the keeper of the command was killed"},
		{"the lease is stolen and all ignore SIGTERM", "TERM", forever, []string{"--ttl", slowTTL, "--kill-after", "100ms"}, steal, exitLost, "stopped because the lease was lost|the keeper of the command was killed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dsn, plain := sqliteFile(t)
			p := startTree(t, dsn, c.ignore, c.after, c.flags...)
			if c.do != nil {
				if living := p.living(); len(living) != len(family) {
					t.Errorf("only %v live", living)
				}
				c.do(t, p, plain)
			}
			_ = p.cmd.Wait()
			if living := p.living(); living != nil {
				t.Errorf("left: %v", living)
			}
			if code := p.cmd.ProcessState.ExitCode(); code != c.code || !regexp.MustCompile(c.stderr).MatchString(p.stderr()) {
				t.Errorf("exit code %d, errors %q", code, p.stderr())
			}
		})
	}
}

func send(s syscall.Signal) func(*testing.T, *procs, *sql.DB) {
	return func(t *testing.T, p *procs, _ *sql.DB) {
		if err := p.cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
	}
}

func steal(t *testing.T, _ *procs, plain *sql.DB) {
	res, err := plain.ExecContext(t.Context(), "UPDATE exclusive_lease SET grant_id = 'thief', token = token + 1")
	if err != nil {
		t.Fatal(err)
	}
	if n, _ := res.RowsAffected(); n != 1 {
		t.Fatalf("%d leases", n)
	}
}

// Whoever of the two processes is killed or frozen, the other one ends all that
// the command has started. integration_test/command looks whether that is in time.
func TestRunIsKilledOrFrozen(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		victim func(p *procs, t *testing.T) int
		signal syscall.Signal
	}{
		{"wrapper killed", (*procs).wrapper, syscall.SIGKILL},
		{"keeper killed", (*procs).keeper, syscall.SIGKILL},
		{"wrapper frozen", (*procs).wrapper, syscall.SIGSTOP},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dsn, _ := sqliteFile(t)
			p := startTree(t, dsn, "TERM", forever, "--ttl", slowTTL, "--kill-after", "100ms")
			victim := c.victim(p, t)
			if err := syscall.Kill(victim, c.signal); err != nil {
				t.Fatal(err)
			}
			await(t, "all have ended", func() bool { return p.living() == nil })
			if c.signal == syscall.SIGSTOP {
				_ = syscall.Kill(victim, syscall.SIGCONT)
			}
			_ = p.cmd.Wait()
			if code := p.cmd.ProcessState.ExitCode(); code == 0 {
				t.Error("success")
			}
			if strings.HasPrefix(c.name, "keeper") && !strings.Contains(p.stderr(), "keeper") {
				t.Errorf("errors %q", p.stderr())
			}
		})
	}
}

// The twin: a wrapper that is killed and has no keeper leaves all of them
// behind. So what the tests above find is the keeper's doing.
func TestRunTwinWithoutKeeper(t *testing.T) {
	t.Parallel()
	p := &procs{dir: t.TempDir()}
	p.cmd = exec.CommandContext(t.Context(), "sh", "-c", `sh -c "$tree"; true`)
	p.cmd.Env = append(os.Environ(), "dir="+p.dir, "ignore=HUP", "tree="+tree+forever)
	p.start(t)
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = p.cmd.Wait()
	if living := p.living(); len(living) != len(family) {
		t.Errorf("only %v are left", living)
	}
}

// The keeper is frozen when the lease is lost: the wrapper ends all by itself.
func TestRunWithFrozenKeeper(t *testing.T) {
	t.Parallel()
	dsn, plain := sqliteFile(t)
	p := startTree(t, dsn, "TERM", forever, "--ttl", slowTTL, "--kill-after", "100ms")
	if err := syscall.Kill(p.keeper(t), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	steal(t, p, plain)
	_ = p.cmd.Wait()
	if living := p.living(); living != nil {
		t.Errorf("left: %v", living)
	}
	if code := p.cmd.ProcessState.ExitCode(); code != exitLost {
		t.Errorf("exit code %d, errors %q", code, p.stderr())
	}
}

// A command that kills its keeper at once may have run, and is told and recorded so,
// whether the keeper has said by then that it was started or not.
func TestRunKillsItsKeeper(t *testing.T) {
	t.Parallel()
	dsn, plain := sqliteFile(t)
	const text = "the keeper of the command was killed, and the command with it: it may have run"
	for _, period := range [][]string{nil, {"--once", "r"}} {
		args := append([]string{"run", "--name", "n"}, period...)
		code, stdout, stderr := output(t, self(t, dsn, append(args, "sh", "-c", "kill -9 $PPID; sleep 60; echo alive")...))
		if code != 128+9 || stdout != "" || !strings.Contains(stderr, text) {
			t.Errorf("exit code %d, output %q, errors %q", code, stdout, stderr)
		}
	}
	var state, stored string
	if err := plain.QueryRowContext(t.Context(), "SELECT state, error FROM exclusive_task WHERE run = ?", []byte("r")).Scan(&state, &stored); err != nil || state != "failed" || stored != text {
		t.Errorf("stored: %q, %q, %v", state, stored, err)
	}
}

// procs is a command that runs the script, and its directory.
type procs struct {
	cmd *exec.Cmd
	dir string
}

func (p *procs) stderr() string { return content(filepath.Join(p.dir, "stderr")) }

func (p *procs) wrapper(*testing.T) int { return p.cmd.Process.Pid }

// keeper is the parent of the command.
func (p *procs) keeper(t *testing.T) int {
	t.Helper()
	stat := content(fmt.Sprintf("/proc/%s/stat", content(filepath.Join(p.dir, "child"))))
	fields := strings.Fields(stat)
	if len(fields) < 4 {
		t.Fatalf("the command has ended before its keeper was looked for: %s", p.stderr())
	}
	pid, err := strconv.Atoi(fields[3])
	if err != nil || pid < 2 {
		t.Fatalf("the command has no keeper: %q, %v", stat, err)
	}
	return pid
}

// Signals end the wait for a key, and nothing has run.
func TestRunInterruptedWhileWaiting(t *testing.T) {
	t.Parallel()
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			dsn, plain := sqliteFile(t)
			p := startTree(t, dsn, "HUP", forever)
			waiting := self(t, dsn, "run", "--name", "n", "--wait", "1h", "echo", "ran")
			var out strings.Builder
			waiting.Stdout = &out
			if err := waiting.Start(); err != nil {
				t.Fatal(err)
			}
			// It has the database open when it waits.
			await(t, "it waits", func() bool {
				files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", waiting.Process.Pid))
				for _, file := range files {
					if path, _ := os.Readlink(file); strings.HasSuffix(path, "test.db") {
						return true
					}
				}
				return false
			})
			if err := waiting.Process.Signal(s); err != nil {
				t.Fatal(err)
			}
			_ = waiting.Wait()
			if code := waiting.ProcessState.ExitCode(); code != 128+int(s) || out.String() != "" {
				t.Errorf("exit code %d, output %q", code, out.String())
			}
			if n := count(t, plain, "SELECT token FROM exclusive_lease"); n != 1 {
				t.Errorf("token %d", n)
			}
			send(syscall.SIGTERM)(t, p, plain)
			_ = p.cmd.Wait()
		})
	}
}

// A command that is stopped, as one is that reads from a terminal, still ends.
func TestRunEndsStoppedCommand(t *testing.T) {
	t.Parallel()
	dsn, _ := sqliteFile(t)
	p := startTree(t, dsn, "HUP", forever)
	pid, _ := strconv.Atoi(content(filepath.Join(p.dir, "child")))
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	send(syscall.SIGINT)(t, p, nil)
	_ = p.cmd.Wait()
	if code := p.cmd.ProcessState.ExitCode(); code != 128+2 {
		t.Errorf("exit code %d", code)
	}
}

// The command may do what it likes with a signal.
func TestRunForwardsSignals(t *testing.T) {
	t.Parallel()
	dsn, _ := sqliteFile(t)
	dir := t.TempDir()
	script := `for s in HUP INT QUIT TERM USR1 USR2; do trap "echo $s >>$dir/got" $s; done
		echo >$dir/ready
		until test -e $dir/end; do sleep 0.01; done`
	cmd := self(t, dsn, "run", "--name", "n", "sh", "-c", script)
	cmd.Env = append(cmd.Env, "dir="+dir)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	await(t, "the command runs", func() bool { return exists(dir + "/ready") })
	want := ""
	for name, s := range map[string]syscall.Signal{
		"HUP": syscall.SIGHUP, "INT": syscall.SIGINT, "QUIT": syscall.SIGQUIT, "TERM": syscall.SIGTERM,
		"USR1": syscall.SIGUSR1, "USR2": syscall.SIGUSR2,
	} {
		if err := cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
		want = strings.TrimSpace(want + "\n" + name)
		await(t, "the command gets "+name, func() bool { return content(dir+"/got") == want })
	}
	if err := os.WriteFile(dir+"/end", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// What a message tells to run does what it says when it is pasted into a shell
// elsewhere, on the database and the tables that the message was about.
func TestHintsArePasted(t *testing.T) {
	t.Parallel()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	bin, dir := t.TempDir(), filepath.Join(t.TempDir(), "it's here")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string]string{
		filepath.Join(bin, "exclusive"): "#!/bin/sh\n" + envSelf + "=1 exec '" + program + "' \"$@\"\n",
		filepath.Join(dir, "dsn"):       "sqlite://" + dir + "/jobs.db\n",
		filepath.Join(dir, "closed"):    "postgres://u:topsecret@127.0.0.1:1/d\n",
	} {
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	const elsewhere = "sqlite:///nowhere/at/all.db" // in the environment
	says := func(code int, line *regexp.Regexp, args ...string) string {
		t.Helper()
		cmd := self(t, elsewhere, args...)
		cmd.Dir = dir
		got, stdout, stderr := output(t, cmd)
		if got != code {
			t.Errorf("%q: exit code %d; want %d: %s%s", args, got, code, stdout, stderr)
		}
		found := line.FindStringSubmatch(stdout + stderr)
		if found == nil {
			t.Fatalf("%q: no hint in %s%s", args, stdout, stderr)
		}
		return found[1]
	}
	paste := func(code int, line string) (stdout, stderr string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "sh", "-c", line)
		cmd.Dir = bin
		cmd.Env = append(os.Environ(), envDSN+"="+elsewhere, "PATH="+bin+":"+os.Getenv("PATH"))
		got, stdout, stderr := output(t, cmd)
		if got != code {
			t.Errorf("%s: exit code %d; want %d: %s%s", line, got, code, stdout, stderr)
		}
		return stdout, stderr
	}
	here := []string{"--dsn-file", "dsn", "--prefix", "cron_"}
	job := slices.Concat([]string{"run"}, here, []string{"--name=-n", "--once", "it's 1", "--max-attempts", "1", "sh", "-c", "echo $EXCLUSIVE_ATTEMPT; exit 3"})

	lines := []string{says(exitUnavailable, regexp.MustCompile(`; (exclusive init .*) makes it`), job...)}
	if err := os.WriteFile(filepath.Join(dir, "jobs.db"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	lines = append(lines,
		says(exitUnavailable, regexp.MustCompile(`: (exclusive init .*) makes the tables`), job...),
		says(exitFailed, regexp.MustCompile(`: (exclusive init .*) makes the tables`), append([]string{"ps"}, here...)...),
		says(exitNo, regexp.MustCompile(`tables made: (exclusive init .*)\n`), append([]string{"migrations", "check"}, here...)...),
		says(exitOK, regexp.MustCompile(`tables made: (exclusive init .*);`), append([]string{"doctor"}, here...)...),
		says(exitNo, regexp.MustCompile(`tables made: (exclusive init .*)\n`), append([]string{"doctor", "--strategy", "uniquetask"}, here...)...))
	for _, line := range lines {
		if line != lines[0] {
			t.Errorf("%s\nis not\n%s", line, lines[0])
		}
	}
	paste(exitOK, lines[0])

	ran := regexp.MustCompile(`(?m)^(1)$`)
	says(3, ran, job...)
	paste(exitOK, says(exitNoMore, regexp.MustCompile(`then (exclusive forget .*)\n`), job...))
	says(3, ran, job...)

	doctor := regexp.MustCompile(`; (exclusive doctor.*) says what`)
	closed := []string{"ps", "--dsn-file", "closed"}
	if stdout, _ := paste(exitNo, says(exitFailed, doctor, closed...)); !strings.Contains(stdout, "refused") {
		t.Errorf("doctor says %s", stdout)
	}
	// A DSN is not echoed, and another is not used in its place.
	if _, stderr := paste(exitUsage, says(exitFailed, doctor, "ps", "--dsn", "postgres://u:topsecret@127.0.0.1:1/d")); !strings.Contains(stderr, "--dsn: ") {
		t.Errorf("without the DSN it says %s", stderr)
	}
}
