package doctor_test

import (
	"database/sql"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	_ "modernc.org/sqlite"
)

func sqliteFile(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "app.db")
	db, err := sql.Open("sqlite", "file:"+file)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	mustExec(t, db, "CREATE TABLE report (day TEXT PRIMARY KEY)")
	return file
}

func TestSQLite(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		params []string
		want   map[string]string
	}{
		{"as it should be", []string{"_pragma", "journal_mode(WAL)", "_pragma", "busy_timeout(5000)"}, map[string]string{
			"connect": "ok", "version": "ok", "writable": "ok", "journal_mode": "ok", "synchronous": "ok", "busy_timeout": "ok", "locking_mode": "ok",
		}},
		{"says nothing", nil, map[string]string{"busy_timeout": "warn", "journal_mode": "warn", "synchronous": "ok", "writable": "ok"}},
		{"unsafe", []string{"_pragma", "synchronous(OFF)", "_pragma", "journal_mode(MEMORY)", "_pragma", "busy_timeout(10)"}, map[string]string{
			"synchronous": "fail", "journal_mode": "fail", "busy_timeout": "warn",
		}},
		{"not quite", []string{"_pragma", "synchronous(NORMAL)", "_pragma", "journal_mode(WAL)"}, map[string]string{"synchronous": "warn", "journal_mode": "ok"}},
		{"selfish", []string{"_pragma", "locking_mode(EXCLUSIVE)"}, map[string]string{"locking_mode": "fail"}},
		{"read-only", []string{"_pragma", "query_only(1)"}, map[string]string{"writable": "fail"}},
		{"opened read-only", []string{"mode", "ro"}, map[string]string{"writable": "fail"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			q := url.Values{}
			for i := 0; i < len(c.params); i += 2 {
				q.Add(c.params[i], c.params[i+1])
			}
			diagnose(t, "sqlite://"+sqliteFile(t)+"?"+q.Encode()).want(t, c.want)
		})
	}
}

// A file that is no database is not made one, and a missing one is not made.
func TestSQLiteFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	text := filepath.Join(dir, "text")
	if err := os.WriteFile(text, []byte("this is a text, and a long one, for a database's header has 100 bytes, and this should be more than that, I think"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{text, dir, filepath.Join(dir, "none")} {
		diagnose(t, "sqlite://"+file).want(t, map[string]string{"connect": "fail"})
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("%v, %v", entries, err)
	}
}
