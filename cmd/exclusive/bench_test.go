package main

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/exclusive-go/exclusive/cmd/exclusive/internal/bench"
)

func TestBenchFlags(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"":                                      "no database is named",
		"--dsn sqlite:///a.db --duration 1ms":   "--duration must be from 10ms",
		"--dsn sqlite:///a.db --workers 0":      "--workers must be from 1",
		"--dsn sqlite:///a.db --strategy a":     "there are casupdate, rowlock",
		"--dsn redis://h --strategy fencing":    "there are redisbackend",
		"--dsn sqlite:///a.db --duration never": "the value of --duration is no duration",
	} {
		var out, errs bytes.Buffer
		env := environment{stdout: &out, stderr: &errs, getenv: func(string) string { return "" }}
		if code := dispatch(t.Context(), env, append([]string{"bench"}, strings.Fields(args)...)); code != exitUsage || !strings.Contains(errs.String(), want) {
			t.Errorf("%s: exit code %d, %s", args, code, errs.String())
		}
	}
}

// The table and the JSON have all lines; without a terminal nothing is drawn.
func TestBenchOutput(t *testing.T) {
	t.Parallel()
	dsn := "sqlite://" + filepath.Join(t.TempDir(), "app.db") + "?_pragma=synchronous(OFF)"
	for _, form := range []string{"", "--json"} {
		var out, errs bytes.Buffer
		env := environment{stdout: &out, stderr: &errs, getenv: func(string) string { return "" }}
		args := strings.Fields("bench --duration 10ms --workers 2 --dsn " + dsn + " " + form)
		if code := dispatch(t.Context(), env, args); code != exitOK || errs.Len() > 0 {
			t.Fatalf("exit code %d, %s", code, errs.String())
		}
		if form == "" {
			for _, want := range []string{"SQLite 3.", "10ms each, one write per grant", "the write alone", "casupdate", "rowlock", "uniquetask", "fencing", "2 workers"} {
				if !strings.Contains(out.String(), want) {
					t.Errorf("%q is not in\n%s", want, out.String())
				}
			}
			if n := strings.Count(out.String(), "  by hand"); n < 4 {
				t.Errorf("%d lines by hand in\n%s", n, out.String())
			}
			continue
		}
		var r bench.Report
		if err := json.Unmarshal(out.Bytes(), &r); err != nil || len(r.Results) != 9 {
			t.Errorf("%v, %+v", err, r)
		}
	}
}
