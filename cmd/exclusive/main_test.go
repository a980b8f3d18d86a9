package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestCommandLine(t *testing.T) {
	t.Parallel()
	const secret = "topsecret"
	dsnFile := filepath.Join(t.TempDir(), "dsn")
	if err := os.WriteFile(dsnFile, []byte("mysql://u:"+secret+"@127.0.0.1:1/d\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		args   []string
		env    map[string]string
		code   int
		stdout string
		stderr string
	}{
		{"nothing", []string{}, nil, exitUsage, "", "Usage:"},
		{"help", []string{"help"}, nil, exitOK, "demo", ""},
		{"unknown command", []string{secret}, nil, exitUsage, "", "no such command"},
		{"help of demo", []string{"demo", "-h"}, nil, exitOK, "--postgres", ""},
		{"unknown flag", []string{"demo", "--postgre=" + secret}, nil, exitUsage, "", "no flag --postgre"},
		{"one dash", []string{"demo", "-postgres=" + secret}, nil, exitUsage, "", "no flag -p"},
		{"no value", []string{"demo", "--postgres"}, nil, exitUsage, "", "--postgres lacks its value"},
		{"wrong value", []string{"demo", "--json=" + secret}, nil, exitUsage, "", "the value of --json is no bool"},
		{"DSN without a flag", []string{"demo", "postgres://u:" + secret + "@h/d"}, nil, exitUsage, "", "too many"},
		{"bad DSN", []string{"demo", "--postgres", "postgres://u:" + secret + "@[h/d"}, nil, exitUsage, "", "not valid"},
		{"empty DSN", []string{"demo", "--postgres", ""}, nil, exitUsage, "", "not valid"},
		{"no database", []string{"demo", "--mysql", "u:" + secret + "@tcp(h)/"}, nil, exitUsage, "", "names no database"},
		{"DSN in the environment", []string{"demo"}, map[string]string{"EXCLUSIVE_DEMO_MYSQL": secret}, exitUsage, "", "not valid"},
		{"nobody there", []string{"demo", "--mysql", "u:" + secret + "@tcp(127.0.0.1:1)/d"}, nil, exitFailed, "", "refused"},
		{"DSN", []string{"demo", "--dsn", "postgres://u:" + secret + "@127.0.0.1:1/d"}, nil, exitFailed, "", "on PostgreSQL"},
		{"DSN in a file", []string{"demo", "--dsn-file", dsnFile}, nil, exitFailed, "", "on MySQL or MariaDB"},
		{"two DSNs", []string{"demo", "--dsn", secret, "--dsn-file", dsnFile}, nil, exitUsage, "", "exclude each other"},
		{"no DSN", []string{"demo", "--dsn", ""}, nil, exitUsage, "", "--dsn is empty"},
		{"Redis", []string{"demo", "--dsn", "redis://u:" + secret + "@h"}, nil, exitUsage, "", "needs a database of SQL"},
		{"picture nowhere", []string{"demo", "--html", t.TempDir() + "/no/such/folder.html"}, nil, exitUsage, "", "cannot write the picture"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var out, errs bytes.Buffer
			env := environment{stdout: &out, stderr: &errs, getenv: func(name string) string { return c.env[name] }}
			code := dispatch(t.Context(), env, c.args)
			if slices.Contains(c.args, "demo") {
				documented(t, "demo", code)
			}
			if code != c.code {
				t.Errorf("exit code %d, not %d", code, c.code)
			}
			if !strings.Contains(out.String(), c.stdout) || !strings.Contains(errs.String(), c.stderr) {
				t.Errorf("output %q, errors %q", out.String(), errs.String())
			}
			if strings.Contains(out.String()+errs.String(), secret) {
				t.Error("the secret was printed")
			}
		})
	}
}
