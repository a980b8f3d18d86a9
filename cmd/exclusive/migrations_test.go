package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/exclusive-go/exclusive/cmd/exclusive/internal/target"
	"github.com/exclusive-go/exclusive/internal/schema"
	"github.com/exclusive-go/exclusive/internal/templates"
)

// command runs the command with arguments and variables (NAME=value).
func command(t *testing.T, ctx context.Context, variables map[string]string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	env := environment{stdin: strings.NewReader(""), stdout: &out, stderr: &errs, getenv: func(name string) string { return variables[name] }}
	code = dispatch(ctx, env, args)
	documented(t, strings.Join(args, " "), code)
	return out.String(), errs.String(), code
}

// wantRun runs the command and wants an exit code and pieces of the output, of
// errors where they begin with an exclamation mark.
func wantRun(t *testing.T, args string, code int, want ...string) (stdout string) {
	t.Helper()
	out, errs, got := command(t, t.Context(), nil, strings.Fields(args)...)
	if got != code {
		t.Errorf("%s: exit code %d, not %d\n%s%s", args, got, code, out, errs)
	}
	for _, w := range want {
		in := out
		if rest, ok := strings.CutPrefix(w, "!"); ok {
			in, w = errs, rest
		}
		if !strings.Contains(in, w) {
			t.Errorf("%s: %q is not in\n%s", args, w, in)
		}
	}
	if code == exitOK && errs != "" {
		t.Errorf("%s: errors %q", args, errs)
	}
	return out
}

func TestMigrationsList(t *testing.T) {
	t.Parallel()
	if n := strings.Count(wantRun(t, "migrations list", exitOK, "postgres  fencing_lease", "sqlite    redisbackend_counter"), "\n"); n != 32 {
		t.Errorf("%d lines", n)
	}
	if n := strings.Count(wantRun(t, "migrations list --dialect mariadb --strategy fencing,rowlock", exitOK, "mariadb  fencing_op"), "\n"); n != 5 {
		t.Errorf("%d lines", n)
	}
	var listed []listedTemplate
	out := wantRun(t, "migrations list --dialect postgres --strategy uniquetask --prefix app_ --schema Tenant --json", exitOK)
	if err := json.Unmarshal([]byte(out), &listed); err != nil || len(listed) != 2 {
		t.Fatalf("%v\n%s", err, out)
	}
	want := listedTemplate{
		"postgres", "uniquetask", "uniquetask_task", listed[0].Version, `table "Tenant"."app_task"`, "Tasks: one row per run of a task, with its outcome",
		`GRANT SELECT, INSERT, UPDATE, DELETE ON "Tenant"."app_task" TO app`,
	}
	if listed[0] != want || listed[0].Version < 1 {
		t.Errorf("%+v", listed[0])
	}
}

// From an empty folder to one that is checked.
func TestMigrationsCopyAndCheck(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	flags := " --dialect mysql --dir " + dir
	wantRun(t, "migrations copy --format goose --strategy rowlock"+flags, exitOK, "written        "+dir+"/00001_exclusive_rowlock_lock.sql")
	wantRun(t, "migrations check"+flags, exitOK, "nothing differs")
	wantRun(t, "migrations check --strategy rowlock,redisbackend"+flags, exitNo, "missing    redisbackend_counter: no file makes `exclusive_counter`; copy adds it")

	var copied templates.Copied
	out := wantRun(t, "migrations copy --numbering timestamp --strategy rowlock,redisbackend --json"+flags, exitOK)
	if err := json.Unmarshal([]byte(out), &copied); err != nil || copied.Format != templates.Goose || len(copied.Present) != 1 || len(copied.Written) != 1 {
		t.Fatalf("%v\n%s", err, out)
	}
	if number, _, _ := strings.Cut(filepath.Base(copied.Written[0].Path), "_"); len(number) != len("YYYYMMDDHHMMSS") {
		t.Errorf("the number is no timestamp: %s", number)
	}
	wantRun(t, "migrations copy --strategy rowlock"+flags, exitOK, "there already  "+dir+"/00001_exclusive_rowlock_lock.sql")

	text, err := os.ReadFile(copied.Written[0].Path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(copied.Written[0].Path, bytes.Replace(text, []byte("VARBINARY(200)"), []byte("VARCHAR(200)"), 1), 0o644); err != nil {
		t.Fatal(err)
	}
	wantRun(t, "migrations check"+flags, exitNo, "changed    "+copied.Written[0].Path+": the SQL for up")
	var c checked
	out = wantRun(t, "migrations check --json"+flags, exitNo)
	if err := json.Unmarshal([]byte(out), &c); err != nil || c.OK || len(c.Folder) != 1 || c.Folder[0].Problem != templates.Changed || c.Database == nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// From an empty database to one that is checked, alone and with a folder.
func TestInitAndCheck(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "app.db")
	dsn := " --dsn sqlite://" + file
	wantRun(t, "migrations check"+dsn, exitFailed, "!there is no file", "!exclusive init --dsn DSN makes it")
	wantRun(t, "migrations check"+dsn, exitFailed, "!there is no file") // and is none
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	wantRun(t, "migrations check"+dsn, exitNo, `missing    table "exclusive_lease": it does not exist`, "exclusive init --dsn DSN\n")
	wantRun(t, "init --strategy rowlock"+dsn, exitOK, `made           table "exclusive_lock"`)
	wantRun(t, "migrations check"+dsn, exitOK, "nothing differs")
	wantRun(t, "init --strategy rowlock"+dsn, exitOK, `there already  table "exclusive_lock"`)

	var done schema.Done
	out := wantRun(t, "init --json"+dsn, exitOK)
	if err := json.Unmarshal([]byte(out), &done); err != nil || len(done.Created) != 7 || len(done.Present) != 1 {
		t.Errorf("%v\n%s", err, out)
	}
	// With both the dialect is the database's.
	dir := t.TempDir()
	wantRun(t, "migrations check --dir "+dir+dsn, exitNo, "missing    fencing_lease: no file")
	wantRun(t, "migrations copy --dialect sqlite --dir "+dir, exitOK)
	wantRun(t, "migrations check --dir "+dir+dsn, exitOK, "nothing differs")
	wantRun(t, "migrations check --prefix other_ --dir "+dir+dsn, exitNo, `table "other_lease"`, "fencing_lease: no file makes \"other_lease\"")
	wantRun(t, "migrations check --dialect mysql"+dsn, exitUsage, "!--dialect is mysql, and the database speaks sqlite")
}

// A table that is there, but not as it must be, is a no and not a failure.
func TestInitDifferent(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "app.db")
	o, err := target.SQLite(file, "").Open(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := o.Close(); err != nil {
			t.Error(err)
		}
	})
	if _, err := o.SQL.ExecContext(t.Context(), "CREATE TABLE exclusive_lock (other INTEGER)"); err != nil {
		t.Fatal(err)
	}
	if out := wantRun(t, "init --json --dsn sqlite://"+file, exitNo, "!nothing was made", "!the column lock_key is missing"); out != "" {
		t.Errorf("output\n%s", out)
	}
	var tables int
	if err := o.SQL.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM sqlite_master WHERE type = 'table'").Scan(&tables); err != nil || tables != 1 {
		t.Errorf("%d tables, %v", tables, err)
	}
}

func TestMigrationsRefuse(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, c := range []struct {
		args, stderr string
		code         int
	}{
		{"migrations", "Available Commands", exitUsage},
		{"migrations topsecret", "no such command", exitUsage},
		{"migrations list --dialect oracle", `no dialect "oracle"; it is one of postgres, mysql, mariadb, sqlite`, exitUsage},
		{"migrations list --strategy fence", `no strategy "fence"`, exitUsage},
		{"migrations list --strategy casupdate", "a table of the application's own", exitUsage},
		{"migrations list topsecret", "too many", exitUsage},
		{"migrations copy --dir " + dir, "--dialect is missing", exitUsage},
		{"migrations copy --dialect mysql", "the folder is not given", exitUsage},
		{"migrations copy --dialect mysql --dir " + dir + " --format flyway", `no format "flyway"`, exitUsage},
		{"migrations copy --dialect mysql --dir " + dir + " --numbering none", `no numbering "none"`, exitUsage},
		{"migrations copy --dialect mysql --dir " + dir + " --prefix a;", "a semicolon", exitUsage},
		{"migrations copy --dialect mysql --dir " + dir + "/typo", "does not exist", exitFailed},
		{"migrations check --dialect mysql --dir " + dir + "/typo", "does not exist", exitFailed},
		{"migrations check --dir " + dir, "--dialect is missing", exitUsage},
		{"migrations check --dialect mysql --dir " + dir + " --format flyway", `no format "flyway"`, exitUsage},
		{"migrations check", "no database is named", exitUsage},
		{"migrations check --dsn redis://u:topsecret@127.0.0.1:1", "Redis has no tables", exitUsage},
		{"migrations check --dsn postgres://u:topsecret@127.0.0.1:1/d", "refused", exitFailed},
		{"init", "no database is named", exitUsage},
		{"init --strategy fence", `no strategy "fence"`, exitUsage},
		{"init --prefix a;", "a semicolon", exitUsage},
		{"init --dsn redis://u:topsecret@127.0.0.1:1", "Redis has no tables", exitUsage},
		{"init --dsn mysql://u:topsecret@127.0.0.1:1/d", "refused", exitFailed},
		{"init --dsn sqlite://" + dir + "/no/such/folder.db", "unable to open", exitFailed},
		{"init --dsn sqlite://" + dir + "/a.db --schema nowhere", "no database of this name", exitNo},
	} {
		if out := wantRun(t, c.args, c.code, "!"+c.stderr); out != "" {
			t.Errorf("%s: output\n%s", c.args, out)
		}
		if out, errs, _ := command(t, t.Context(), nil, strings.Fields(c.args)...); strings.Contains(out+errs, "topsecret") {
			t.Errorf("%s: the secret was printed: %s", c.args, errs)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 1 { // a.db
		t.Errorf("the folder has %v, %v", entries, err)
	}
}

// The variable that names a database is not asked when a folder is named alone.
func TestMigrationsVariable(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "app.db")
	variables := map[string]string{envDSN: "sqlite://" + file}
	if out, errs, code := command(t, t.Context(), variables, "migrations", "check", "--dialect", "mysql", "--dir", t.TempDir()); code != exitNo || strings.Contains(out, "table") {
		t.Errorf("exit code %d\n%s%s", code, out, errs)
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("the database was opened")
	}
	if out, errs, code := command(t, t.Context(), variables, "init"); code != exitOK {
		t.Errorf("exit code %d\n%s%s", code, out, errs)
	}
}

// An interrupt leaves the folder as it was.
func TestMigrationsInterrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	dir := t.TempDir()
	if out, errs, code := command(t, ctx, nil, "migrations", "copy", "--dialect", "mysql", "--dir", dir); code != exitFailed || !strings.Contains(errs, "nothing was copied") || out != "" {
		t.Errorf("exit code %d\n%s%s", code, out, errs)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("the folder has %v, %v", entries, err)
	}
}
