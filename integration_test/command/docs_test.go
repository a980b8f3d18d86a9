//go:build linux

package command_test

import (
	"database/sql"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/exclusive-go/exclusive/integration_test/servers"
)

// blocks are the parts of the page in a language.
func blocks(t *testing.T, language string) (lines []string) {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "command.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range regexp.MustCompile("(?s)```"+language+"\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		lines = append(lines, strings.Split(strings.TrimSpace(b[1]), "\n")...)
	}
	if len(lines) == 0 {
		t.Fatalf("the page has no %s", language)
	}
	return lines
}

// Every command of the page does what the page says, in the page's order.
func TestDocs(t *testing.T) { each(t, testDocs, servers.Postgres, servers.MySQL, servers.MariaDB) }

func testDocs(t *testing.T, p *place) {
	dir := t.TempDir()
	// What the page takes for the operator's own.
	done := make(map[string]int)
	for _, name := range []string{"backup", "report", "rates", "import", "invoices", "queue"} {
		script := "#!/bin/sh\necho " + name + " $* >>done\n"
		if err := os.WriteFile(filepath.Join(dir, name+".sh"), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	dsn := filepath.Join(dir, "dsn")
	if err := os.WriteFile(dsn, []byte(p.dsn+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	shell := func(line string, dsnToo bool) (code int, out string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "sh", "-c", line)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "CREDENTIALS_DIRECTORY="+dir)
		if dsnToo {
			cmd.Env = append(cmd.Env, "EXCLUSIVE_DSN="+p.dsn)
		}
		text, err := cmd.CombinedOutput()
		if err != nil && !errors.As(err, new(*exec.ExitError)) {
			t.Fatal(err)
		}
		return cmd.ProcessState.ExitCode(), string(text)
	}
	today := time.Now().UTC().Format(time.DateOnly)
	for _, line := range blocks(t, "sh") {
		if strings.HasPrefix(line, "export ") {
			continue
		}
		line = strings.ReplaceAll(line, "2026-11-29", today)
		want := []int{0}
		switch {
		case strings.HasPrefix(line, "exclusive doctor"):
			want = []int{0, 1} // what it thinks of the tests' server
		case strings.HasPrefix(line, "exclusive release"):
			want = []int{1} // nobody holds it
		case strings.HasPrefix(line, "exclusive forget"):
			want = []int{0, 1} // the day in Berlin may be another one
		}
		if code, out := shell(line, true); !slices.Contains(want, code) {
			t.Errorf("%s: exit code %d\n%s", line, code, out)
		}
	}
	var lines []string
	for _, line := range blocks(t, "crontab") {
		if fields := strings.SplitN(line, " ", 6); len(fields) == 6 && fields[0] != "#" {
			lines = append(lines, fields[5])
		}
	}
	for _, line := range blocks(t, "ini") {
		if command, ok := strings.CutPrefix(line, "ExecStart="); ok {
			lines = append(lines, command)
		}
	}
	if len(lines) != 3 {
		t.Errorf("the page's jobs are %q", lines)
	}
	for _, line := range lines {
		line = strings.NewReplacer("/etc/exclusive/dsn", dsn, "/usr/local/bin/exclusive", "exclusive", "/usr/local/bin/", "./").Replace(line)
		if code, out := shell(line, false); code != 0 || out != "" {
			t.Errorf("%s: exit code %d\n%s", line, code, out)
		}
	}
	for line := range strings.Lines(content(filepath.Join(dir, "done"))) {
		done[strings.TrimSpace(line)]++
	}
	// The report: twice, since the first one was forgotten, or one more day was
	// between the two.
	for line, n := range map[string]int{"backup --full": 2, "import orders-4711.csv": 1, "invoices": 1, "queue": 1} {
		if done[line] != n {
			t.Errorf("%s was done %d times, not %d", line, done[line], n)
		}
	}
	if n := done["report"]; n < 1 || n > 3 {
		t.Errorf("the report was done %d times", n)
	}
	// For the present hour and one of this day, which may be the same.
	if n := done["rates"]; n < 1 || n > 2 {
		t.Errorf("the rates were done %d times", n)
	}
}

// The page's statements let a transaction store something while the key is held by
// the grant that they name, and hold its row until the transaction has ended.
func TestDocsGuard(t *testing.T) { each(t, testDocsGuard, withRuns...) }

func testDocsGuard(t *testing.T, p *place) {
	lines := blocks(t, "sql")
	product := map[string]string{"postgres": "PostgreSQL", "sqlite": "SQLite"}[p.name]
	if product == "" {
		product = "MySQL and MariaDB"
	}
	db := p.sql(t)
	if _, err := db.ExecContext(t.Context(), "CREATE TABLE result (what varchar(100) NOT NULL)"); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what, run, table, end string
	}{
		{"a key", "", "exclusive_lease", "expires_at"},
		{"a run", "it is", "exclusive_task", "free_at"},
	} {
		at := slices.IndexFunc(lines, func(line string) bool { return strings.HasPrefix(line, "-- "+product+", "+c.what) })
		if at < 0 {
			t.Fatalf("the page has nothing for %s of %s", c.what, product)
		}
		guard := lines[at+1]
		var flags []string
		if c.run != "" {
			flags = []string{"--once", c.run}
		}
		h := p.hold(t, "job", flags...)
		_, out, errs := p.output(t, "ps", "--json")
		var list []struct{ Grant string }
		if err := json.Unmarshal([]byte(out), &list); err != nil || len(list) != 1 {
			t.Fatalf("%v, %s, %s", err, out, errs)
		}
		// store has a transaction store something, as the page says.
		store := func(what, run, grant string) {
			t.Helper()
			ctx := t.Context()
			tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
			if p.name == string(sqlite) {
				tx, err = db.BeginTx(ctx, nil)
			}
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = tx.Rollback() }()
			if _, err := tx.ExecContext(ctx, "INSERT INTO result (what) VALUES ('"+what+"')"); err != nil {
				t.Fatal(err)
			}
			env := map[string]string{"EXCLUSIVE_NAME": "job", "EXCLUSIVE_RUN": run, "EXCLUSIVE_GRANT": grant}
			var one int
			err = tx.QueryRowContext(ctx, os.Expand(guard, func(name string) string { return env[name] })).Scan(&one)
			if errors.Is(err, sql.ErrNoRows) {
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if p.name != string(sqlite) { // there one transaction writes at a time
				err := db.QueryRowContext(ctx, "SELECT 1 FROM "+c.table+" FOR UPDATE SKIP LOCKED").Scan(&one)
				if !errors.Is(err, sql.ErrNoRows) {
					t.Errorf("%s: somebody else gets the row: %v", c.what, err)
				}
			}
			if err := tx.Commit(); err != nil {
				t.Fatal(err)
			}
		}
		store("by a stranger", c.run, "stranger")
		if c.run != "" {
			store("of another run", "another", list[0].Grant)
		}
		store(c.what, c.run, list[0].Grant)
		if _, err := db.ExecContext(t.Context(), "UPDATE "+c.table+" SET "+c.end+" = "+c.end+" - 3600000000"); err != nil {
			t.Fatal(err)
		}
		store("too late", c.run, list[0].Grant)
		h.end(t, 124)
		var stored string
		if err := db.QueryRowContext(t.Context(), "SELECT what FROM result").Scan(&stored); err != nil || stored != c.what {
			t.Errorf("%s: stored %q, %v", c.what, stored, err)
		}
		var n int
		if err := db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM result").Scan(&n); err != nil || n != 1 {
			t.Errorf("%s: stored %d times, %v", c.what, n, err)
		}
		if _, err := db.ExecContext(t.Context(), "DELETE FROM result"); err != nil {
			t.Fatal(err)
		}
	}
}

// The page's tables say what the help says.
func TestDocsAndHelp(t *testing.T) {
	t.Parallel()
	var help, all string
	for _, name := range []string{"ps", "tasks", "release", "forget", "prune", "run"} {
		text, err := exec.CommandContext(t.Context(), filepath.Join(bin, "exclusive"), name, "--help").Output()
		if err != nil {
			t.Fatal(err)
		}
		help = string(text) // of run in the end
		all += help
	}
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "command.md"))
	if err != nil {
		t.Fatal(err)
	}
	both := func(pattern, inHelp, inPage string) {
		t.Helper()
		var lists [2][]string
		for i, text := range []string{help, string(page)} {
			for _, m := range regexp.MustCompile([]string{inHelp, inPage}[i]).FindAllStringSubmatch(text, -1) {
				lists[i] = append(lists[i], m[1])
			}
		}
		if len(lists[0]) == 0 || !slices.Equal(lists[0], lists[1]) {
			t.Errorf("%s: the help has %q, and the page %q", pattern, lists[0], lists[1])
		}
	}
	both("exit codes", `(?m)^ +(\d+)  [a-z]`, "(?m)^\\| ([1-9]\\d*) \\|")
	both("variables", `(?m)^  (EXCLUSIVE_[A-Z]+) `, "(?m)^\\| `(EXCLUSIVE_[A-Z]+)` \\|")
	for _, m := range regexp.MustCompile("`(--[a-z-]+)").FindAllStringSubmatch(string(page), -1) {
		if flag := m[1]; !strings.Contains(all, flag) {
			t.Errorf("the page has a flag %s", flag)
		}
	}
}

// The page lists what init makes.
func TestDocsAndInit(t *testing.T) {
	t.Parallel()
	init := exec.CommandContext(t.Context(), filepath.Join(bin, "exclusive"), "init", "--dsn", "sqlite://"+filepath.Join(t.TempDir(), "new.db"))
	made, err := init.Output()
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "command.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile(`(?m)^\| (?:fencing|uniquetask|rowlock|redisbackend) \|.*$`).FindAllString(string(page), -1)
	var lists [2][]string
	for i, text := range []string{string(made), strings.Join(rows, "\n")} {
		lists[i] = regexp.MustCompile(`exclusive_[a-z_]+`).FindAllString(text, -1)
		slices.Sort(lists[i])
	}
	if len(lists[0]) != 8 || !slices.Equal(lists[0], lists[1]) {
		t.Errorf("init makes %q, and the page lists %q", lists[0], lists[1])
	}
}
