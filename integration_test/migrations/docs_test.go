package migrations_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/casupdate"
	"github.com/exclusive-go/exclusive/integration_test/matrix"
	"github.com/exclusive-go/exclusive/internal/templates"
	"github.com/exclusive-go/exclusive/migrations"
)

// Every command of docs/migrations.md is run, in order and in one folder, on a
// real server and with the real golang-migrate, and prints what the page says;
// its program runs too.
func TestDocs(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/migrations.md")
	must(t, "ReadFile", err)
	bin, work := t.TempDir(), t.TempDir()
	build(t, "../..", filepath.Join(bin, "exclusive"), "./cmd/exclusive")
	build(t, ".", filepath.Join(bin, "migrate"), "-tags=postgres", "github.com/golang-migrate/migrate/v4/cmd/migrate")
	folder := filepath.Join(work, "db", "migrations")
	must(t, "MkdirAll", os.MkdirAll(folder, 0o755))
	must(t, "WriteFile", os.WriteFile(filepath.Join(folder, "000041_users.up.sql"), []byte("CREATE TABLE users (id bigint);\n"), 0o644))

	url := matrix.On(t, "postgres").Address().DSN
	if !strings.Contains(url, "?") {
		t.Fatal("the page needs a URL with parameters")
	}
	run := func(url, name string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir = work
		cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "DATABASE_URL="+url)
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v\n%s%s", args, err, out, stderr.String())
		}
		return string(out)
	}
	printed, commands, texts, programs := "", 0, 0, 0
	for _, block := range regexp.MustCompile("(?s)```(\\w+)\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		switch block[1] {
		case "sh":
			printed = run(url, "sh", "-euc", block[2])
			commands++
		case "text":
			if printed != block[2] {
				t.Errorf("it printed\n%s\nand the page says\n%s", printed, block[2])
			}
			texts++
		case "go":
			source, program := filepath.Join(work, "main.go"), filepath.Join(bin, "program")
			must(t, "WriteFile", os.WriteFile(source, []byte(block[2]), 0o644))
			build(t, ".", program, source)
			fresh := matrix.On(t, "postgres")
			for range 2 {
				run(fresh.Address().DSN, program)
			}
			wantDifferences(t, fresh.Plain, selection(t, fresh, templates.Names{}, templates.Strategies()...), "after the program")
			programs++
		default:
			t.Errorf("nobody runs a block of %s", block[1])
		}
	}
	if commands != 9 || texts != 5 || programs != 1 {
		t.Errorf("the page has %d blocks of commands, %d of output, %d programs", commands, texts, programs)
	}
}

func build(t testing.TB, dir, to string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"build", "-o", to}, args...)...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build %q: %v\n%s", args, err, out)
	}
}

// The example of columns for casupdate gives it all that it can promise.
func TestCasupdateExample(t *testing.T) {
	eachDialect(t, func(t *testing.T, g *target) {
		text, err := migrations.FS.ReadFile(g.Dialect + "/casupdate_columns.sql.example")
		must(t, "ReadFile", err)
		g.MustExec(t, "CREATE TABLE job (id varchar(100) PRIMARY KEY, state varchar(20) NOT NULL)")
		g.MustExec(t, "INSERT INTO job VALUES ('1', 'NEW')")
		g.MustExec(t, string(text))
		x, err := casupdate.New(g.DB, casupdate.Config{
			Table: "job", From: "NEW", Claimed: "BUSY", Done: "DONE", TTL: casupdate.MaxTTL,
			TokenColumn: "claim_token", GrantColumn: "claim_grant", ExpiresColumn: "claim_expires",
			ClaimedAtColumn: "claimed_at", HolderColumn: "claim_holder", Holder: "worker 1",
		})
		must(t, "New", err)
		defer func() { must(t, "Close", x.Close()) }()
		must(t, "Do", x.Do(t.Context(), "1", func(ctx context.Context, grant exclusive.Grant) error {
			if n := g.Int(t, "SELECT COUNT(*) FROM job WHERE claim_token = 1 AND claim_expires > claimed_at AND claim_holder = 'worker 1'"); n != 1 || grant.Token != 1 {
				t.Errorf("%d rows are claimed as the configuration says, with token %d", n, grant.Token)
			}
			return nil
		}))
		if n := g.Int(t, "SELECT COUNT(*) FROM job WHERE state = 'DONE'"); n != 1 {
			t.Errorf("%d rows are done", n)
		}
	})
}
