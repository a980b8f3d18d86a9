package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// What could not be written is told, whatever the command.
func TestFullOutput(t *testing.T) {
	t.Parallel()
	dsn, _ := sqliteFile(t)
	for _, args := range []string{
		"--help", "run --help", "demo", "demo --json", "choose --invariant process", "init", "migrations list", "migrations check", "doctor", "ps", "ps --json", "ps --watch",
		"tasks", "tasks --json", "prune --older-than 90d", "prune --older-than 90d --json", "version", "completion bash", "bench --duration 100ms --strategy rowlock",
	} {
		t.Run(args, func(t *testing.T) {
			t.Parallel()
			full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer full.Close()
			cmd := self(t, dsn, strings.Fields(args)...)
			var errs bytes.Buffer
			cmd.Stdout, cmd.Stderr = full, &errs
			_ = cmd.Run()
			if code := cmd.ProcessState.ExitCode(); code != exitFailed || !strings.Contains(errs.String(), "no space left") || strings.Count(errs.String(), "\n") != 1 {
				t.Errorf("exit code %d, %q", code, errs.String())
			}
		})
	}
}

// The exit code of run does not depend on anybody reading what it says, nor on having
// a terminal, or any stream at all; and its command has SIGPIPE as always.
func TestRunWithoutStreams(t *testing.T) {
	t.Parallel()
	dsn, _ := sqliteFile(t)
	// No limit of time for as long as it holds: the parallel subtests begin when other
	// tests have ended. It ends with its standard input, and for no renewal that is late.
	ctx, kill := context.WithCancel(context.Background())
	busy := selfUntil(ctx, dsn, "run", "--name", "held", "--ttl", "1h", "--", "sh", "-c", "echo begun; read end")
	end, err := busy.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := busy.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := busy.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = end.Close()
		defer time.AfterFunc(patience, kill).Stop()
		if err := busy.Wait(); err != nil && cmdCode(err) != 1 { // read has met the end
			t.Error(err)
		}
	})
	hangs := time.AfterFunc(patience, kill)
	if _, err := out.Read(make([]byte, 6)); err != nil {
		t.Fatal(err)
	}
	hangs.Stop()
	for _, c := range []struct {
		name, streams, args string
		code                int
	}{
		{"held", "pipe", "run --name held -- true", exitBusy},
		{"held, closed", "closed", "run --name held -- true", exitBusy},
		{"no such command", "pipe", "run --name missing -- exclusive-no-such-command", 127},
		{"wrong flags", "pipe", "run --name free --ttl 0s -- true", exitUsage},
		{"no database", "pipe", "run --name free --dsn sqlite:///nowhere/at.all -- true", exitUnavailable},
		{"fails", "pipe", "run --name fails -- false", 1},
		{"fails, closed", "closed", "run --name fails-closed -- false", 1},
		{"succeeds, closed", "closed", "run --name succeeds-closed -- true", 0},
		{"is ended by SIGPIPE", "pipe", "run --name pipe -- yes", 128 + int(syscall.SIGPIPE)},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			cmd := self(t, dsn, strings.Fields(c.args)...)
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // no terminal
			if c.streams == "closed" {
				own := cmd.Path
				cmd.Path, cmd.Args = "/bin/sh", append([]string{"sh", "-c", `exec "$0" "$@" <&- >&- 2>&-`, own}, cmd.Args[1:]...)
				if resolved, err := os.Readlink(own); err == nil { // of this process, not of the shell
					cmd.Args[3] = resolved
				}
			} else {
				r, w, err := os.Pipe()
				if err != nil {
					t.Fatal(err)
				}
				_ = r.Close()
				defer w.Close()
				cmd.Stdout, cmd.Stderr = w, w
			}
			_ = cmd.Run()
			if code := cmd.ProcessState.ExitCode(); code != c.code {
				t.Errorf("exit code %d (%v); want %d", code, cmd.ProcessState, c.code)
			}
		})
	}
}

func cmdCode(err error) int {
	if exit, ok := err.(*exec.ExitError); ok {
		return exit.ExitCode()
	}
	return -1
}

// A terminal that is closed leaves no tables behind.
func TestHangup(t *testing.T) {
	t.Parallel()
	dsn, plain := sqliteFile(t)
	errs, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer errs.Close()
	cmd := self(t, dsn, "bench", "--duration", "1h", "--strategy", "fencing")
	cmd.Stderr = errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	tables := func() int64 {
		return count(t, plain, "SELECT COUNT(*) FROM sqlite_master WHERE name LIKE 'exclusive\\_bench\\_%' ESCAPE '\\'")
	}
	await(t, "bench has made its tables", func() bool { return tables() > 0 })
	if err := cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	err = cmd.Wait()
	if n := tables(); n > 0 || cmdCode(err) != exitFailed {
		t.Errorf("%d tables are left; %v, %s", n, err, content(errs.Name()))
	}
}
