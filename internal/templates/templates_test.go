package templates

import (
	"io/fs"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/internal/strategy"
	"github.com/exclusive-go/exclusive/migrations"
)

// The rules that the files keep, and that the code here relies on.
func TestFiles(t *testing.T) {
	t.Parallel()
	lists, err := loaded()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range Dialects() {
		paths, err := fs.Glob(migrations.FS, d.String()+"/*.sql")
		if err != nil {
			t.Fatal(err)
		}
		if len(lists[d]) == 0 || len(paths) != 2*len(lists[d]) {
			t.Errorf("%s has %d files and %d templates", d, len(paths), len(lists[d]))
		}
		for i, p := range paths {
			text, err := fs.ReadFile(migrations.FS, p)
			if err != nil {
				t.Fatal(err)
			}
			checkText(t, p, string(text))
			if number := path.Base(p)[:4]; number != []string{"0001", "0002", "0003", "0004", "0005", "0006", "0007", "0008", "0009"}[i/2] {
				t.Errorf("%s has the number %s", p, number)
			}
		}
		for i, x := range lists[d] {
			object := lists[db.Postgres][i]
			if x.Name != object.Name || x.Object.Name != object.Object.Name {
				t.Errorf("%s: template %d is %s, which makes %q; on PostgreSQL it is %s, which makes %q",
					d, i, x.Name, x.Object.Name, object.Name, object.Object.Name)
			}
			if roles := d != db.SQLite; roles != (len(x.Object.Privileges) > 0) {
				t.Errorf("%s: %s needs the privileges %q", d, x.Name, x.Object.Privileges)
			}
			if x.About == "" || len(x.About) > 160 {
				t.Errorf("%s: %s is about %q", d, x.Name, x.About)
			}
			for _, c := range x.Object.PrimaryKey {
				checkKey(t, x, c)
			}
		}
	}
	if got := Strategies(); !slices.Equal(got, []string{"fencing", "rowlock", "uniquetask", "redisbackend"}) {
		t.Errorf("strategies: %q", got)
	}
}

func checkText(t *testing.T, p, text string) {
	t.Helper()
	statement := ""
	for _, tok := range lex(text) {
		switch {
		case tok.kind == comment && strings.Contains(tok.text, "+goose"):
			t.Errorf("%s has an annotation of goose", p)
		case tok.kind == comment && strings.Contains(tok.text, strategy.DefaultPrefix) && !strings.HasPrefix(tok.text, "-- GRANT "):
			t.Errorf("%s names an object in prose, where no other name takes its place: %s", p, tok.text)
		case tok.kind == quoted && strings.Contains(tok.text, strategy.DefaultPrefix):
			t.Errorf("%s names an object in quotes, where no other name takes its place: %s", p, tok.text)
		case tok.kind != comment:
			statement += tok.text
		}
	}
	if strings.Count(text, ";") != 1 || !strings.HasSuffix(text, ";\n") {
		t.Errorf("%s has a semicolon that is not at its end, or none", p)
	}
	if strings.Contains(text, "/*") || strings.Contains(statement, "#") {
		t.Errorf("%s has a comment that is not known here", p)
	}
}

// checkKey: keys are bytes, so that no collation can merge two of them.
func checkKey(t *testing.T, x Template, name string) {
	t.Helper()
	i := slices.IndexFunc(x.Object.Columns, func(c Column) bool { return c.Name == name })
	if i < 0 {
		t.Fatalf("%s: %s has a key of %q, which it does not have", x.Dialect, x.Name, name)
	}
	binary := map[db.Dialect]string{db.Postgres: "bytea", db.MySQL: "varbinary(200)", db.MariaDB: "varbinary(200)", db.SQLite: "blob"}[x.Dialect]
	if c := x.Object.Columns[i]; c.Null || c.Type != binary && name != "id" {
		t.Errorf("%s: the key %s of %s is %+v", x.Dialect, name, x.Name, c)
	}
}

func TestOf(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		strategies []string
		want       string // names, or part of the error
	}{
		{nil, "fencing_lease fencing_token fencing_mark fencing_op rowlock_lock uniquetask_task uniquetask_floor redisbackend_counter"},
		{[]string{"uniquetask", "rowlock"}, "rowlock_lock uniquetask_task uniquetask_floor"},
		{[]string{"casupdate"}, "table of the application's own"},
		{[]string{"fencing", "nothing"}, `no strategy "nothing"`},
	} {
		list, err := Of(db.MySQL, c.strategies)
		var names []string
		for _, x := range list {
			names = append(names, x.Name)
		}
		if err == nil && strings.Join(names, " ") != c.want || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %q, %v", c.strategies, names, err)
		}
	}
	if _, err := Of(0, nil); err == nil {
		t.Error("there are templates of no dialect")
	}
	for _, d := range Dialects() {
		if got, err := ParseDialect(d.String()); err != nil || got != d {
			t.Errorf("%s: %v, %v", d, got, err)
		}
	}
	if _, err := ParseDialect("oracle"); err == nil || !strings.Contains(err.Error(), "postgres, mysql, mariadb, sqlite") {
		t.Errorf("another dialect: %v", err)
	}
}

// Other names take the place of the default ones where those are names, and
// nowhere else.
func TestNamed(t *testing.T) {
	t.Parallel()
	x := &Template{Dialect: db.MySQL, Object: Object{Kind: Table, Name: "task"}}
	const sql = "-- exclusive_task is prose, and so is a GRANT ON exclusive_task\n" +
		"-- GRANT SELECT ON exclusive_task TO app\n" +
		"CREATE TABLE exclusive_task ( -- exclusive_task\n" +
		"  a INT COMMENT 'exclusive_task''s', exclusive_task_floor INT, my_exclusive_task INT, `exclusive_task` INT, task INT\n" +
		") COMMENT \"exclusive_task\";\n"
	want := "-- exclusive_task is prose, and so is a GRANT ON exclusive_task\n" +
		"-- GRANT SELECT ON `shop`.`x--task` TO app\n" +
		"CREATE TABLE `shop`.`x--task` ( -- exclusive_task\n" +
		"  a INT COMMENT 'exclusive_task''s', exclusive_task_floor INT, my_exclusive_task INT, `exclusive_task` INT, task INT\n" +
		") COMMENT \"exclusive_task\";\n"
	if got := x.named(sql, Names{"shop", "x--"}); got != want {
		t.Errorf("got\n%s", got)
	}
	for _, same := range []Names{{}, {"", strategy.DefaultPrefix}} {
		if got := x.named(sql, same); got != sql {
			t.Errorf("with the default names:\n%s", got)
		}
	}
	lists, err := loaded()
	if err != nil {
		t.Fatal(err)
	}
	for d, list := range lists {
		for _, x := range list {
			n := Names{"order", `Tenant-1.`}
			name := strategy.Quote(d) + n.Prefix + x.Object.Name + strategy.Quote(d)
			for _, sql := range []string{x.Up(n), x.Down(n)} {
				if c := code(sql); !slices.Contains(c, name) || slices.Contains(c, strategy.DefaultPrefix+x.Object.Name) {
					t.Errorf("%s, %s: %q", d, x.Name, c)
				}
			}
			if d != db.SQLite && (!strings.Contains(x.Grant(n), x.Quoted(n)) || !strings.Contains(x.Up(n), "-- "+x.Grant(n)+"\n")) {
				t.Errorf("%s, %s: %q", d, x.Name, x.Grant(n))
			}
		}
	}
}

func TestNamesValidate(t *testing.T) {
	t.Parallel()
	for _, n := range []Names{{}, {"Tenant-1", "order "}, {"order", ""}, {"", "ж_"}} {
		if err := n.Validate(); err != nil {
			t.Errorf("%+v: %v", n, err)
		}
	}
	for _, n := range []Names{{`a"`, ""}, {"", "a;"}, {"", "a`"}, {"", "a\n"}, {"", strings.Repeat("a", 60)}, {strings.Repeat("a", 64), ""}, {"a\\", "'"}} {
		if err := n.Validate(); err == nil {
			t.Errorf("%+v is valid", n)
		}
	}
}

func TestHeader(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		h    header
		line string
	}{
		{header{"fencing_lease", "postgres", 1, Names{}}, `-- exclusive: fencing_lease for postgres, version 1`},
		{header{"a_b", "mysql", 12, Names{"", "x, schema "}}, `-- exclusive: a_b for mysql, version 12, prefix "x, schema "`},
		{header{"a_b", "mysql", 12, Names{"Tenant-1", "ж\u2028"}}, `-- exclusive: a_b for mysql, version 12, prefix "ж\u2028", schema "Tenant-1"`},
		{header{"a_b", "mysql", 12, Names{"s", ""}}, `-- exclusive: a_b for mysql, version 12, schema "s"`},
	} {
		if got := c.h.String(); got != c.line {
			t.Errorf("%+v: %s", c.h, got)
		}
		if got, ok := parseHeader(c.line + "\r"); !ok || got != c.h {
			t.Errorf("%s: %+v, %v", c.line, got, ok)
		}
	}
	for _, line := range []string{"", "-- exclusive: a for b", "-- exclusive: a for b, version x", "-- exclusive: a for b, version 99999999999999999999",
		`-- exclusive: a for b, version 1, prefix "\z"`, `-- exclusive: a for b, version 1, and so on`, "- exclusive: a for b, version 1"} {
		if got, ok := parseHeader(line); ok {
			t.Errorf("%q is a header: %+v", line, got)
		}
	}
}

// What cannot be read is told, and not skipped.
func TestParseObjectRefuses(t *testing.T) {
	t.Parallel()
	for _, sql := range []string{
		"", "DROP TABLE exclusive_a;", "CREATE INDEX a ON exclusive_a (b);", "CREATE TABLE exclusive_a (\n    a\n);",
		"CREATE TABLE exclusive_a (\n);", "CREATE TABLE exclusive_a (\n    a bigint NOT NULL\n);",
	} {
		if o, err := parseObject(sql); err == nil {
			t.Errorf("%q: %+v", sql, o)
		}
	}
}
