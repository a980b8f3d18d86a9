package main

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Every command that takes a DSN says what is wrong with one, in one line and with its
// documented exit code, and quotes neither that DSN nor its password.
func TestWrongDSN(t *testing.T) {
	t.Parallel()
	const secret = "Top!s3cret"
	wrong := map[string]string{ // and part of what is said
		"postgres://u:" + secret + "@h:99999/d":                             "postgres://user:password@",
		"postgres://u:%zz" + secret + "@h/d":                                "%25",
		"postgres://u:/" + secret + "@h/d":                                  "%2F",
		"postgres://u:x@" + secret + "@h/d":                                 "%40",
		"postgres://u:" + secret + "@h/d?sslmode=" + secret:                 "parameters",
		"postgres://u:" + secret + "@h/d?sslrootcert=/none&sslmode=require": "/none",
		"host=127.0.0.1 user=u password=" + secret:                          "postgres://user:password@",
		"u:" + secret + "@tcp(127.0.0.1:1)/d":                               "mysql://user:password@",
		"mysql://u:" + secret + "@h/":                                       "/database",
		"mysql://u:/" + secret + "@h/d":                                     "%2F",
		"mysql://u@h/d?password=" + secret:                                  "before the host",
		"mariadb://u:" + secret + "@h/d?tls=" + secret:                      "parameters",
		"redis://u:" + secret + "@h/x":                                      "redis://user:password@",
		"redis://u:" + secret + "@h:x/0":                                    "redis://user:password@",
		"oracle://u:" + secret + "@h/d":                                     "of no kind",
		secret:                                                              "no kind",
	}
	refused := []string{ // by the port
		"postgres://u:" + secret + "@127.0.0.1:1/d?sslmode=disable", "mysql://u:" + secret + "@127.0.0.1:1/d", "redis://u:" + secret + "@127.0.0.1:1/0",
	}
	commands := maps.Clone(reaching)
	commands["demo"] = exitFailed
	for args, failed := range commands {
		t.Run(args, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "dsn")
			try := func(dsn, way string, code int, want string) {
				t.Helper()
				if err := os.WriteFile(file, []byte(dsn+"\n"), 0o600); err != nil {
					t.Fatal(err)
				}
				flags := map[string][]string{"flag": {"--dsn", dsn}, "file": {"--dsn-file", file}, "in place of the file": {"--dsn-file", dsn}}
				var out, errs bytes.Buffer
				got := dispatch(t.Context(), environment{stdout: &out, stderr: &errs, getenv: func(name string) string {
					return map[bool]string{true: dsn}[way == "environment" && name == envDSN]
				}}, reach(args, flags[way]...))
				said := out.String() + errs.String()
				if got == exitUsage && strings.Contains(said, "Redis") && code != exitUsage {
					return // it is not for Redis
				}
				documented(t, args, got)
				if got != code || !strings.Contains(said, want) || strings.Count(errs.String(), "\n") > 1 {
					t.Errorf("%s, in the %s: exit code %d; want %d and %q in one line\n%s", dsn, way, got, code, want, said)
				}
				if strings.Contains(said, secret) || strings.Contains(said, dsn) {
					t.Errorf("%s, in the %s: it is told\n%s", dsn, way, said)
				}
			}
			for dsn, want := range wrong {
				ways := []string{"flag", "file", "environment"}
				if args == "demo" {
					ways = ways[:2]
				}
				for _, way := range ways {
					try(dsn, way, exitUsage, want)
				}
			}
			for _, dsn := range slices.Concat(refused, []string{"host=127.0.0.1 user=u password=" + secret, "u:" + secret + "@tcp(127.0.0.1:1)/d"}) {
				try(dsn, "in place of the file", exitUsage, "--dsn-file")
			}
			for _, dsn := range refused {
				if args != "demo" || !strings.HasPrefix(dsn, "redis") {
					try(dsn, "flag", failed, "refused")
				}
			}
		})
	}
}

// A DSN that stands where something else belongs is not quoted either.
func TestMisplacedDSN(t *testing.T) {
	t.Parallel()
	for _, dsn := range []string{"postgres://u:top-secret@h/d", "u:top-secret@tcp(h)/d", "host=h password=top-secret"} {
		for _, argv := range [][]string{
			{dsn},
			{"ps", dsn},
			{"doctor", dsn},
			{"migrations", dsn},
			{"migrations", "copy", dsn},
			{"demo", "--html", dsn},
			{"run", "--name", "backup", dsn, "true"},
			{"release", "a", dsn},
			{"forget", dsn},
			{"ps", "--dns", dsn},
			{"ps", "--watch=" + dsn},
			{"prune", "--older-than", dsn},
		} {
			var out, errs bytes.Buffer
			code := dispatch(t.Context(), environment{stdout: &out, stderr: &errs, getenv: func(string) string { return "" }}, argv)
			if said := out.String() + errs.String(); code != exitUsage || strings.Contains(said, "secret") {
				t.Errorf("%s: exit code %d\n%s", fmt.Sprint(argv), code, said)
			}
		}
	}
}
