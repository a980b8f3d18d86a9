package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/exclusive-go/exclusive/cmd/exclusive/internal/target"
)

func TestDatabaseFlags(t *testing.T) {
	t.Parallel()
	const secret = "topsecret"
	file := func(content string) string {
		path := filepath.Join(t.TempDir(), "dsn")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const fromFlag, fromEnv = "postgres://u:" + secret + "@h/d", "redis://u:" + secret + "@h/0"
	for _, c := range []struct {
		name  string
		args  []string
		env   string
		want  string // part of the error
		redis bool
	}{
		{"flag", []string{"--dsn", fromFlag}, "", "", false},
		{"environment", nil, fromEnv, "", true},
		{"flag before environment", []string{"--dsn", fromFlag}, fromEnv, "", false},
		{"file", []string{"--dsn-file", file(fromFlag + "\r\nnot read\n")}, "", "", false},
		{"file before environment", []string{"--dsn-file", file(fromFlag)}, fromEnv, "", false},
		{"both flags", []string{"--dsn", fromFlag, "--dsn-file", file(fromFlag)}, "", "exclude each other", false},
		{"none", nil, "", "no database is named", false},
		{"no file", []string{"--dsn-file", filepath.Join(t.TempDir(), "none")}, fromEnv, "--dsn-file", false},
		{"empty file", []string{"--dsn-file", file("\n" + fromFlag)}, fromEnv, "first line is empty", false},
		{"no DSN in the file", []string{"--dsn-file", file(secret)}, "", "--dsn-file: the DSN names no kind", false},
		{"no DSN in the environment", nil, secret, "EXCLUSIVE_DSN: the DSN names no kind", false},
		{"no DSN in the flag", []string{"--dsn", secret}, "", "--dsn: the DSN names no kind", false},
		{"no prefix", []string{"--dsn", fromFlag, "--prefix", "a\x00b"}, "", "--prefix", false},
		{"prefix of keys", []string{"--prefix", "a:"}, fromEnv, "", true},
		{"schema in Redis", []string{"--schema", "app"}, fromEnv, "--schema", false},
	} {
		var d database
		flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
		d.databaseFlags(flags)
		if err := flags.Parse(c.args); err != nil {
			t.Fatal(err)
		}
		got, err := d.target(environment{getenv: func(name string) string {
			return map[string]string{envDSN: c.env}[name]
		}})
		if c.want == "" {
			if err != nil || got.IsRedis() != c.redis {
				t.Errorf("%s: %v, %v", c.name, got, err)
			}
			continue
		}
		var exit *exitError
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), secret) || !errors.As(err, &exit) || exit.code != exitUsage {
			t.Errorf("%s: %v, which lacks %q or tells too much", c.name, err, c.want)
		}
	}
}

// The help names all forms of a DSN.
func TestDatabaseHelp(t *testing.T) {
	t.Parallel()
	for form := range strings.Lines(target.Forms) {
		if !strings.Contains(databaseHelp, "\n  "+strings.TrimSpace(form)) {
			t.Errorf("the help lacks %s", form)
		}
	}
}
