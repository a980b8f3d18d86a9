package choose

import (
	"embed"
	"fmt"
	"go/format"
	"io/fs"
	"path"
	"regexp"
	"strings"
	"text/template"

	"github.com/exclusive-go/exclusive/migrations"
)

// Migration is what the database needs before the snippet runs.
type Migration struct {
	// Templates are files of package migrations, and Command copies them.
	Templates []string `json:"templates,omitempty"`
	Command   string   `json:"command,omitempty"`
	// SQL is about tables of the application's own.
	SQL string `json:"sql,omitempty"`
}

// snippetFS holds the body of a program for each snippet, and under the same
// name the SQL of the application's own tables where that is part of the answer.
//
//go:embed snippets
var snippetFS embed.FS

var snippets = template.Must(template.ParseFS(snippetFS, "snippets/*"))

// place is how a Go program uses a database.
type place struct {
	Open, Adapter, Tx, Exec, QueryRow string
	Begin, End                        string // of a transaction; End is the argument of Commit and Rollback

	driver string // what is imported for its side effect
	bind   func(n int) string
}

// Bind writes the placeholder of the n-th argument.
func (p place) Bind(n int) string { return p.bind(n) }

func placeOf(dialect string) place {
	question := func(int) string { return "?" }
	database := place{Tx: "*sql.Tx", Exec: "ExecContext", QueryRow: "QueryRowContext", Begin: "pool.BeginTx(ctx, nil)", bind: question}
	switch dialect {
	case "postgres":
		return place{
			Open: `pgxpool.New(ctx, os.Getenv("DATABASE_URL"))`, Adapter: "pgxdb.New(pool)",
			Tx: "pgx.Tx", Exec: "Exec", QueryRow: "QueryRow", Begin: "pool.Begin(ctx)", End: "ctx",
			bind: func(n int) string { return fmt.Sprintf("$%d", n) },
		}
	case "sqlite":
		database.driver = "modernc.org/sqlite"
		database.Open = `sql.Open("sqlite", os.Getenv("DATABASE_URL")) // such as file:app.db?_pragma=busy_timeout(5000)`
		database.Adapter = "sqldb.NewSQLite(pool)"
	default:
		database.driver = "github.com/go-sql-driver/mysql"
		database.Open = `sql.Open("mysql", os.Getenv("DATABASE_URL")) // user:password@tcp(host)/database`
		database.Adapter = "mysqldb.New(pool)"
	}
	return database
}

// packages are those that snippets use, by the name that they are used by.
var packages = []struct{ name, path string }{
	{"context", "context"}, {"sql", "database/sql"}, {"errors", "errors"}, {"fmt", "fmt"}, {"log", "log"}, {"os", "os"}, {"signal", "os/signal"}, {"syscall", "syscall"}, {"time", "time"},
	{"pgx", "github.com/jackc/pgx/v5"}, {"pgxpool", "github.com/jackc/pgx/v5/pgxpool"}, {"redis", "github.com/redis/go-redis/v9"},
	{"exclusive", ours}, {"casupdate", ours + "/casupdate"},
	{"mysqldb", ours + "/db/mysqldb"}, {"pgxdb", ours + "/db/pgxdb"}, {"sqldb", ours + "/db/sqldb"},
	{"fencing", ours + "/fencing"}, {"redisbackend", ours + "/redisbackend"}, {"rowlock", ours + "/rowlock"}, {"uniquetask", ours + "/uniquetask"},
}

const ours = "github.com/exclusive-go/exclusive"

// complete adds the snippet and what the database needs for it.
func (r *Result) complete(snippet, dialect string, strategies []string) error {
	p := placeOf(dialect)
	var body strings.Builder
	if err := snippets.ExecuteTemplate(&body, snippet+".go.tmpl", p); err != nil {
		return err
	}
	formatted, err := format.Source([]byte(program(body.String(), p.driver)))
	if err != nil {
		return fmt.Errorf("snippet %s: %w", snippet, err)
	}
	r.Snippet = string(formatted)

	var m Migration
	if snippets.Lookup(snippet+".sql") != nil {
		sql, err := fs.ReadFile(snippetFS, path.Join("snippets", snippet+".sql"))
		if err != nil {
			return err
		}
		m.SQL = string(sql)
	}
	for _, strategy := range strategies {
		files, err := fs.Glob(migrations.FS, dialect+"/*_"+strategy+"_*.up.sql")
		if err != nil {
			return err
		}
		m.Templates = append(m.Templates, files...)
		m.Command = "exclusive migrations copy --dialect " + dialect + " --strategy " + strategy + " --dir migrations"
	}
	if m.SQL != "" || m.Command != "" {
		r.Migration = &m
	}
	return nil
}

// program puts the imports that body uses in front of it.
func program(body, driver string) string {
	var std, others, own strings.Builder
	for _, p := range packages {
		if !regexp.MustCompile(`(^|[^\w."/])` + p.name + `\.`).MatchString(body) {
			continue
		}
		group := &others
		switch {
		case strings.HasPrefix(p.path, ours):
			group = &own
		case !strings.Contains(p.path, "."):
			group = &std
		}
		fmt.Fprintf(group, "\t%q\n", p.path)
	}
	if driver != "" {
		fmt.Fprintf(&others, "\t_ %q\n", driver)
	}
	var groups []string
	for _, g := range []string{std.String(), others.String(), own.String()} {
		if g != "" {
			groups = append(groups, g)
		}
	}
	return "package main\n\nimport (\n" + strings.Join(groups, "\n") + ")\n\n" + body
}
