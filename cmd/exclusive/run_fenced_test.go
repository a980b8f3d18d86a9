//go:build linux

package main

import (
	"os"
	"strings"
	"testing"
)

// A run that was taken over before its command succeeded is lost, and not a run
// whose command was never started. The twin is not taken over.
func TestRunTakenOverBeforeItsEnd(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		thief  bool
		code   int
		stderr string
	}{
		{"taken over", true, exitLost, "the run was taken over"},
		{"twin", false, exitOK, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dsn, plain := sqliteFile(t)
			dir := t.TempDir()
			// The next heartbeat is far off.
			cmd := self(t, dsn, "run", "--name", "n", "--once", "r", "--ttl", "1h", "sh", "-c", "echo >$dir/began; until test -e $dir/end; do sleep 0.01; done")
			cmd.Env = append(cmd.Env, "dir="+dir)
			var stderr strings.Builder
			cmd.Stderr = &stderr
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			await(t, "the command runs", func() bool { return exists(dir + "/began") })
			if c.thief {
				if _, err := plain.ExecContext(t.Context(), "UPDATE exclusive_task SET grant_id = 'thief'"); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.WriteFile(dir+"/end", nil, 0o644); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			if code := cmd.ProcessState.ExitCode(); code != c.code || !strings.Contains(stderr.String(), c.stderr) {
				t.Errorf("exit code %d, errors %q", code, stderr.String())
			}
		})
	}
}
