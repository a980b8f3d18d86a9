package main

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/exclusive-go/exclusive/cmd/exclusive/internal/choose"
)

// run runs the command without a terminal.
func runChoose(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	env := environment{stdin: strings.NewReader("1\n1\n1\n1\n1\n"), stdout: &out, stderr: &errs, getenv: func(string) string { return "" }}
	code = dispatch(t.Context(), env, append([]string{"choose"}, args...))
	documented(t, "choose", code)
	return out.String(), errs.String(), code
}

func TestChoose(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, args     string
		code           int
		stdout, stderr []string
	}{
		{"strategy", "--invariant work --dialect postgres --again no --row no --late refused", exitOK,
			[]string{"uniquetask\n", "casupdate: it does not promise RefusesStale; there is no row of yours", "rowlock: it does not promise OncePerKey", "pgxdb.New(pool)", "postgres/0006_uniquetask_task.up.sql"}, nil},
		{"own columns", "--invariant work --dialect mariadb --again no --row yes --late refused", exitOK,
			[]string{"casupdate with token columns and a TTL\n", "ADD COLUMN claim_expires", "casupdate: it does not promise RefusesStale; when a worker dies",
				"Call Do for the rows in Claimed (here SHIPPING) as well", "effects outside of the database may happen twice"}, nil},
		{"no lock", "--invariant process", exitOK, []string{"No lock is needed", "flock(1)"}, nil},
		{"no lock, with a program", "--invariant request --dialect sqlite", exitOK, []string{"No lock is needed", ".Once(", "sqlite/0004_fencing_op.up.sql"}, nil},
		{"nothing suffices", "--invariant work --dialect redis --again yes --late never", exitNo,
			[]string{"No strategy", "redisbackend: it does not promise OneAtATime", "With the lock in a SQL database: rowlock"}, nil},
		{"no answers", "", exitUsage, nil, []string{"answer with --invariant and, as the answers require", "--dialect, --again", "process"}},
		{"some answers", "--invariant work --dialect mysql", exitUsage, nil, []string{"answer with --again and, as the answers require (exclusive choose --help), --row, --length, --late\n", "--again is one of yes, no"}},
		{"two are missing", "--invariant work --dialect sqlite --again no", exitUsage, nil, []string{"answer with --row, --late\n", "--late is one of stored"}},
		{"wrong answer", "--invariant work --dialect oracle", exitUsage, nil, []string{"--dialect takes one of postgres"}},
		{"answer too many", "--invariant row --dialect mysql", exitUsage, nil, []string{"--dialect says nothing beside --invariant row; leave it out: it goes with --invariant work, numbers, request or edit\n"}},
		{"two answers too many", "--invariant work --dialect redis --again yes --row no --late stored", exitUsage, nil,
			[]string{"--row says nothing beside --again yes and --dialect redis; leave it out: it goes with --again no, unless --dialect redis\n"}},
		{"an answer to what would follow", "--invariant row --late stored", exitUsage, nil, []string{"--late says nothing beside --invariant row"}},
		{"Redis for a table", "--invariant edit --dialect redis", exitUsage, nil, []string{"--dialect redis goes with"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			out, errs, code := runChoose(t, strings.Fields(c.args)...)
			if code != c.code {
				t.Errorf("exit code %d, not %d\n%s%s", code, c.code, out, errs)
			}
			for _, want := range c.stdout {
				if !strings.Contains(out, want) {
					t.Errorf("%q is not in\n%s", want, out)
				}
			}
			for _, want := range c.stderr {
				if !strings.Contains(errs, want) {
					t.Errorf("%q is not in\n%s", want, errs)
				}
			}
			if code == exitUsage && out != "" {
				t.Errorf("output\n%s", out)
			}
		})
	}
}

func TestChooseJSON(t *testing.T) {
	t.Parallel()
	out, errs, code := runChoose(t, strings.Fields("--json --invariant work --dialect redis --again yes --late refused --results mysql")...)
	var r choose.Result
	if err := json.Unmarshal([]byte(out), &r); err != nil || code != exitOK {
		t.Fatalf("exit code %d, %v\n%s", code, err, errs)
	}
	if r.Strategy != "redisbackend" || r.Variant != "with fencing.Guarded" || !r.LockNeeded || len(r.Weaker) == 0 ||
		!slices.Contains(r.Promises, "RefusesStale") || !strings.Contains(r.Snippet, "mysqldb.New(pool)") || r.Migration == nil {
		t.Errorf("%+v", r)
	}
}
