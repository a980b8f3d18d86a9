package templates

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/exclusive-go/exclusive/internal/db"
)

// Each difference that can come about is told, and no other.
func TestCheckFolder(t *testing.T) {
	t.Parallel()
	edit := func(name, from, to string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			t.Helper()
			paths, err := filepath.Glob(filepath.Join(dir, name))
			if err != nil || len(paths) != 1 {
				t.Fatalf("%s: %q, %v", name, paths, err)
			}
			text, err := os.ReadFile(paths[0])
			if err != nil || !strings.Contains(string(text), from) {
				t.Fatalf("%s: no %q, %v", name, from, err)
			}
			if err := os.WriteFile(paths[0], []byte(strings.ReplaceAll(string(text), from, to)), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	remove := func(names ...string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			t.Helper()
			for _, name := range names {
				paths, err := filepath.Glob(filepath.Join(dir, name))
				if err != nil || len(paths) != 1 {
					t.Fatalf("%s: %q, %v", name, paths, err)
				}
				if err := os.Remove(paths[0]); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	nothing := func(*testing.T, string) {}
	pg := Selection{Dialect: db.Postgres}
	for name, c := range map[string]struct {
		format Format
		copied Selection
		change func(t *testing.T, dir string)
		check  Selection
		want   string // template: problem, …
	}{
		"as copied":           {"", pg, nothing, pg, ""},
		"as copied, goose":    {Goose, Selection{db.MySQL, nil, Names{"s", "p_"}}, nothing, Selection{Dialect: db.MySQL}, ""},
		"some strategies":     {"", Selection{Dialect: db.Postgres, Strategies: []string{"rowlock"}}, nothing, pg, ""},
		"a strategy more":     {"", Selection{Dialect: db.Postgres, Strategies: []string{"rowlock"}}, nothing, Selection{Dialect: db.Postgres, Strategies: []string{"rowlock", "redisbackend"}}, "redisbackend_counter: missing"},
		"comments changed":    {"", pg, edit("*lease.up.sql", "-- Leases", "-- We use leases"), pg, ""},
		"lines of Windows":    {"", pg, edit("*lease.up.sql", "\n", "\r\n"), pg, ""},
		"key words":           {"", pg, edit("*lease.up.sql", "CREATE TABLE", "create  table"), pg, ""},
		"a column changed":    {"", pg, edit("*lease.up.sql", "token       bigint", "token integer"), pg, "fencing_lease: changed"},
		"cache changed":       {"", pg, edit("*token.up.sql", "CACHE 1;", "CACHE 10;"), pg, "fencing_token: changed"},
		"name changed":        {"", pg, edit("*lock.up.sql", "TABLE exclusive_lock", "TABLE other_lock"), pg, "rowlock_lock: changed"},
		"down changed":        {"", pg, edit("*lease.down.sql", "DROP TABLE", "TRUNCATE"), pg, "fencing_lease: changed"},
		"goose, up changed":   {Goose, pg, edit("*lease.sql", "token       bigint", "token integer"), pg, "fencing_lease: changed"},
		"goose, down":         {Goose, pg, edit("*lease.sql", "DROP TABLE", "TRUNCATE"), pg, "fencing_lease: changed"},
		"no down":             {"", pg, remove("*lease.down.sql"), pg, "fencing_lease: missing"},
		"no up":               {"", pg, remove("*lease.up.sql"), pg, "fencing_lease: missing"},
		"neither":             {"", pg, remove("*lease.up.sql", "*lease.down.sql"), pg, "fencing_lease: missing"},
		"goose, missing":      {Goose, pg, remove("*_op.sql"), pg, "fencing_op: missing"},
		"no header":           {Goose, pg, edit("*_op.sql", "-- exclusive: ", "-- "), pg, "fencing_op: missing"},
		"older":               {"", pg, edit("*lease.up.sql", "version 1", "version 0"), pg, "fencing_lease: older"},
		"newer":               {"", pg, edit("*lease.up.sql", "version 1", "version 2"), pg, "fencing_lease: newer"},
		"unknown":             {Goose, pg, edit("*_op.sql", "fencing_op for", "fencing_opera for"), pg, "fencing_opera: foreign, fencing_op: missing"},
		"another dialect":     {Goose, Selection{Dialect: db.Postgres, Strategies: []string{"rowlock"}}, nothing, Selection{Dialect: db.MySQL, Strategies: []string{"rowlock"}}, "rowlock_lock: foreign, rowlock_lock: missing"},
		"other names":         {"", Selection{db.Postgres, []string{"rowlock"}, Names{"", "a_"}}, nothing, Selection{db.Postgres, []string{"rowlock"}, Names{"", "b_"}}, "rowlock_lock: missing"},
		"these names":         {"", Selection{db.Postgres, []string{"rowlock"}, Names{"", "a_"}}, nothing, Selection{db.Postgres, nil, Names{"", "a_"}}, ""},
		"names, not in MySQL": {"", Selection{Dialect: db.MySQL, Strategies: []string{"rowlock"}}, edit("*lock.up.sql", "exclusive_lock", "Exclusive_Lock"), Selection{Dialect: db.MySQL, Strategies: []string{"rowlock"}}, "rowlock_lock: changed"},
		"copied by hand":      {"", Selection{Dialect: db.Postgres, Strategies: []string{"rowlock"}}, again("*lock.up.sql", "000050_again.up.sql"), Selection{Dialect: db.Postgres, Strategies: []string{"rowlock"}}, "rowlock_lock: repeated"},
		"nothing was copied":  {"", pg, remove("*_lock.up.sql", "*_lock.down.sql"), Selection{db.Postgres, []string{"rowlock"}, Names{}}, "rowlock_lock: missing"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			mustCopy(t, CopyOptions{Selection: c.copied, Dir: dir, Format: c.format, Now: noon})
			c.change(t, dir)
			found, err := CheckFolder(c.check, dir, "")
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, d := range found {
				got = append(got, fmt.Sprintf("%s: %s", d.Template, d.Problem))
				if _, err := os.Stat(d.Path); d.Path != "" && err != nil || d.Text == "" {
					t.Errorf("%+v: %v", d, err)
				}
			}
			if strings.Join(got, ", ") != c.want {
				t.Errorf("found %q; want %q", got, c.want)
			}
		})
	}
}

// again copies a file of a folder.
func again(pattern, name string) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		t.Helper()
		found, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil || len(found) != 1 {
			t.Fatalf("%v, %v", found, err)
		}
		text, err := os.ReadFile(found[0])
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// Sets with other names in one folder are looked at each for itself.
func TestCheckFolderSets(t *testing.T) {
	t.Parallel()
	o := options(t.TempDir())
	o.Strategies = []string{"rowlock"}
	mustCopy(t, o)
	o.Strategies, o.Names.Prefix = []string{"uniquetask"}, "b_"
	mustCopy(t, o)
	if found, err := CheckFolder(Selection{Dialect: db.Postgres}, o.Dir, ""); err != nil || len(found) != 0 {
		t.Errorf("%+v, %v", found, err)
	}
	found, err := CheckFolder(Selection{Dialect: db.Postgres, Strategies: []string{"rowlock"}}, o.Dir, "")
	if err != nil || len(found) != 1 || !strings.Contains(found[0].Text, `"b_lock"`) {
		t.Errorf("%+v, %v", found, err)
	}
}

func TestCheckFolderEmpty(t *testing.T) {
	t.Parallel()
	found, err := CheckFolder(Selection{Dialect: db.SQLite}, t.TempDir(), "")
	if err != nil || len(found) != 8 || slices.ContainsFunc(found, func(d Difference) bool { return d.Problem != Missing }) {
		t.Errorf("%+v, %v", found, err)
	}
	for want, dir := range map[string]string{"the folder is not given": "", "does not exist": filepath.Join(t.TempDir(), "typo")} {
		if found, err := CheckFolder(Selection{Dialect: db.SQLite}, dir, ""); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v, %v", found, err)
		}
	}
}
