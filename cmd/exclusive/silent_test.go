package main

import (
	"bytes"
	"net"
	"strings"
	"testing"
	"time"
)

// reaching are the commands that reach for a database of the jobs, and their exit
// codes if there is none.
var reaching = map[string]int{
	"ps":                            exitFailed,
	"ps --watch":                    exitFailed,
	"tasks":                         exitFailed,
	"release backup":                exitFailed,
	"release backup --run r":        exitFailed,
	"forget report r":               exitFailed,
	"prune --older-than 90d":        exitFailed,
	"init":                          exitFailed,
	"migrations check":              exitFailed,
	"bench --duration 100ms":        exitFailed,
	"doctor":                        exitNo,
	"doctor --json":                 exitNo,
	"run --name backup":             exitUnavailable,
	"run --name backup --daily UTC": exitUnavailable,
}

// reach is a command line with flags, and of run with the command to run.
func reach(args string, flags ...string) []string {
	argv := append(strings.Fields(args), flags...)
	if argv[0] == "run" {
		argv = append(argv, "--", "true")
	}
	return argv
}

// A server that accepts connections and says nothing, as one that hangs does:
// every command gives up, and says so.
func TestSilentServer(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0") // the kernel accepts
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	at := listener.Addr().String()
	for args, code := range reaching {
		for _, dsn := range []string{"postgres://me:top-secret@" + at + "/test", "mysql://me:top-secret@" + at + "/test", "redis://me:top-secret@" + at + "/0"} {
			t.Run(strings.Fields(args)[0]+" "+dsn[:5], func(t *testing.T) {
				t.Parallel()
				var out, errs bytes.Buffer
				env := environment{stdout: &out, stderr: &errs, getenv: func(string) string { return dsn }, answerWait: 200 * time.Millisecond}
				got := dispatch(t.Context(), env, reach(args))
				if got == exitUsage && strings.Contains(errs.String(), "Redis") {
					return // it is not for Redis
				}
				documented(t, args, got)
				said := out.String() + errs.String()
				if got != code || !strings.Contains(said, "the database has not answered for 200ms") {
					t.Errorf("%s: exit code %d, output %q, errors %q", args, got, out.String(), errs.String())
				}
				if strings.Contains(said, "secret") {
					t.Error("the password was printed")
				}
			})
		}
	}
}
