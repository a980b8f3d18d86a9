package schema

import (
	"database/sql"
	"path/filepath"
	"slices"
	"testing"

	_ "modernc.org/sqlite"

	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/internal/templates"
)

// Wider columns will do, others not, and the width of a number means nothing.
func TestMySQLFits(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		want, got string
		fits      bool
	}{
		{"varbinary(200)", "varbinary(200)", true},
		{"varbinary(200)", "varbinary(201)", true},
		{"varbinary(200)", "varbinary(199)", false},
		{"varbinary(200)", "varchar(200)", false},
		{"varbinary(200)", "binary(200)", false},
		{"varbinary(200)", "blob", false},
		{"binary(32)", "binary(32)", true},
		{"binary(32)", "binary(64)", false}, // it would be padded
		{"bigint", "bigint", true},
		{"bigint", "bigint(20)", true},
		{"bigint", "bigint(20) unsigned", false},
		{"bigint", "bigint unsigned", false},
		{"bigint", "int", false},
		{"bigint", "int(11)", false},
		{"tinyint", "tinyint(4)", true},
		{"blob", "blob", true},
		{"blob", "longblob", true},
		{"blob", "tinyblob", false},
		{"blob", "text", false},
		{"longblob", "longblob", true},
		{"longblob", "blob", false},
		{"bigint", "enum('a','b')", false},
	} {
		if got := (mysql{}).fits(c.want, c.got); got != c.fits {
			t.Errorf("%s for %s: %v", c.got, c.want, got)
		}
	}
}

// Strategies of which nothing is there are left out, but only where others are.
func TestCheckLeavesOut(t *testing.T) {
	t.Parallel()
	pool, err := sql.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "test.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := pool.Close(); err != nil {
			t.Error(err)
		}
	})
	missing := func(want ...string) (list []string) {
		t.Helper()
		found, present, err := Check(t.Context(), pool, templates.Selection{Dialect: db.SQLite})
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(present, want) {
			t.Errorf("there are %q; want %q", present, want)
		}
		for _, d := range found {
			list = append(list, d.Template)
		}
		return list
	}
	if got := missing(); len(got) != 8 {
		t.Errorf("of an empty database: %q", got)
	}
	if _, err := Init(t.Context(), pool, templates.Selection{Dialect: db.SQLite, Strategies: []string{"rowlock", "uniquetask"}}); err != nil {
		t.Fatal(err)
	}
	if got := missing("rowlock", "uniquetask"); len(got) != 0 {
		t.Errorf("of one with all of two strategies: %q", got)
	}
	if _, err := pool.ExecContext(t.Context(), "DROP TABLE exclusive_task"); err != nil {
		t.Fatal(err)
	}
	if got := missing("rowlock", "uniquetask"); !slices.Equal(got, []string{"uniquetask_task"}) {
		t.Errorf("of one where a table is missing: %q", got)
	}
}
