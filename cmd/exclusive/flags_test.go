package main

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/exclusive-go/exclusive/cmd/exclusive/internal/target"
)

// A variable that is not set must not make a command work on the database of
// EXCLUSIVE_DSN.
func TestEmptyDSN(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"init"}, {"doctor"}, {"ps"}, {"tasks"}, {"release", "n"}, {"forget", "n", "r"}, {"prune", "--older-than", "90d"}, {"bench"},
	} {
		for _, flag := range []string{"--dsn", "--dsn-file"} {
			var out, errs bytes.Buffer
			env := environment{stdin: strings.NewReader(""), stdout: &out, stderr: &errs, getenv: func(string) string { return "sqlite:///nowhere/at/all.db" }}
			code := dispatch(t.Context(), env, append(args, flag, ""))
			if code != exitUsage || !strings.Contains(errs.String(), flag+" is empty") {
				t.Errorf("%v %s: exit code %d, errors %q", args, flag, code, errs.String())
			}
		}
	}
}

// --watch takes its value only with "=": what follows is no name.
func TestWatchValueApart(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"ps", "--watch", "5s"}, {"tasks", "--watch", "5s"}, {"tasks", "report", "--watch", "5s"}} {
		var out, errs bytes.Buffer
		env := environment{stdin: strings.NewReader(""), stdout: &out, stderr: &errs, getenv: func(string) string { return "sqlite:///nowhere/at/all.db" }}
		if code := dispatch(t.Context(), env, args); code != exitUsage || !strings.Contains(errs.String(), "write --watch=5s") {
			t.Errorf("%v: exit code %d, errors %q", args, code, errs.String())
		}
	}
}

// What run has to say is one line, also if the driver's error has several.
func TestErrorIsOneLine(t *testing.T) {
	t.Parallel()
	err := (&runner{}).exit(&target.Target{}, errors.Join(errors.New("one"), errors.New("two")))
	if got := err.Error(); got != "one; two" {
		t.Errorf("%q", got)
	}
}
