package migrations_test

import (
	"database/sql"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/pressly/goose/v3"

	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/internal/templates"
)

func dialectOf(t testing.TB, g *target) db.Dialect {
	t.Helper()
	d, err := templates.ParseDialect(g.Dialect)
	must(t, "ParseDialect", err)
	return d
}

// elsewhere makes a schema with a name that must be quoted, dropped with its
// tables when the test ends.
func elsewhere(t testing.TB, g *target) string {
	t.Helper()
	if g.Dialect == "sqlite" {
		return "main" // an attached one is there for one connection only
	}
	return g.Schema(t, "test_Tenant")
}

// decoys makes tables with the same names where the connection looks by itself.
// The function that it returns fails the test if one has been written to.
func decoys(t testing.TB, g *target, prefix string) (untouched func()) {
	t.Helper()
	list, err := templates.Of(dialectOf(t, g), nil)
	must(t, "Of", err)
	n := templates.Names{Prefix: prefix}
	for _, x := range list {
		g.MustExec(t, x.Up(n))
	}
	return func() {
		t.Helper()
		for _, x := range list {
			if x.Object.Kind == templates.Table && g.Int(t, "SELECT COUNT(*) FROM "+x.Quoted(n)) != 0 {
				t.Errorf("%s has rows, although the strategies were told of a schema", x.Quoted(n))
			}
		}
	}
}

// inFolder makes a folder with a migration of the application's own, and copies
// the templates into it.
func inFolder(t testing.TB, g *target, format templates.Format, n templates.Names) (dir string) {
	t.Helper()
	dir = t.TempDir()
	first := map[string]string{"0007_result.up.sql": "CREATE TABLE result (name varchar(200));", "0007_result.down.sql": "DROP TABLE result;"}
	if format == templates.Goose {
		first = map[string]string{"0007_result.sql": "-- +goose Up\nCREATE TABLE result (name varchar(200));\n-- +goose Down\nDROP TABLE result;\n"}
	}
	for name, text := range first {
		must(t, "WriteFile", os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	done, err := templates.Copy(t.Context(), templates.CopyOptions{
		Selection: templates.Selection{Dialect: dialectOf(t, g), Names: n}, Dir: dir, Now: time.Now(),
	})
	must(t, "Copy", err)
	if done.Format != format || filepath.Base(done.Written[0].Path)[:5] != "0008_" {
		t.Fatalf("copied %+v", done)
	}
	return dir
}

// What is copied with other names runs in the application's own migrations, and
// the strategies work on it with the same names in their configurations, not on
// tables of the same names that are found first.
func TestCopied(t *testing.T) {
	eachDialect(t, func(t *testing.T, g *target) {
		schema := elsewhere(t, g)
		before := objects(t, g)
		untouched := func() {}
		for _, n := range []templates.Names{{Prefix: "app_"}, {Schema: schema, Prefix: "order "}, {Schema: schema}} {
			if n.Schema != "" && g.Dialect != "sqlite" {
				untouched = decoys(t, g, n.Prefix)
				before = objects(t, g)
			}
			ours := names{n.Schema, n.Prefix}

			w := ways[g.Dialect][0]
			dir := inFolder(t, g, templates.GolangMigrate, n)
			m := w.migrator(t, g, os.DirFS(dir), ".", "versions")
			withVersions := objects(t, g)
			must(t, "golang-migrate: up", m.Up())
			work(t, g, ours)
			untouched()
			must(t, "golang-migrate: down", m.Down())
			wantObjects(t, g, "after golang-migrate's down", withVersions)
			g.MustExec(t, "DROP TABLE versions")

			dir = inFolder(t, g, templates.Goose, n)
			p, closePool := gooseProvider(t, g, dir)
			if _, err := p.Up(t.Context()); err != nil {
				t.Fatalf("goose: up: %v", err)
			}
			work(t, g, ours)
			untouched()
			if _, err := p.DownTo(t.Context(), 0); err != nil {
				t.Fatalf("goose: down: %v", err)
			}
			if _, err := p.Up(t.Context()); err != nil {
				t.Fatalf("goose: up after down: %v", err)
			}
			work(t, g, ours)
			if _, err := p.DownTo(t.Context(), 0); err != nil {
				t.Fatalf("goose: down: %v", err)
			}
			closePool()
			g.MustExec(t, "DROP TABLE goose_db_version")
			wantObjects(t, g, "after goose's down", before)
			if n.Schema != "" && g.Dialect != "sqlite" {
				if left := g.Int(t, "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = ?", n.Schema); left != 0 {
					t.Errorf("%d tables are left in %s", left, n.Schema)
				}
			}
		}
	})
}

func gooseProvider(t testing.TB, g *target, dir string) (p *goose.Provider, closePool func()) {
	t.Helper()
	driver, dialect := "mysql", goose.DialectMySQL
	dsn := g.Address().DSN
	switch g.Dialect {
	case "postgres":
		driver, dialect = "pgx", goose.DialectPostgres
	case "sqlite":
		driver, dialect = "sqlite", goose.DialectSQLite3
		dsn += "?_pragma=busy_timeout(20000)"
	}
	pool, err := sql.Open(driver, dsn)
	must(t, "Open", err)
	p, err = goose.NewProvider(dialect, pool, os.DirFS(dir))
	must(t, "NewProvider", err)
	return p, func() { must(t, "Close", p.Close()) }
}
