// Package choose_test runs the programs that the command's choose answers with,
// on real servers, after the migrations that it names.
package choose_test

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/exclusive-go/exclusive/integration_test/command"
	"github.com/exclusive-go/exclusive/integration_test/rediscluster"
	"github.com/exclusive-go/exclusive/integration_test/servers"
	"github.com/exclusive-go/exclusive/migrations"
)

// answers lead to every program; %s is the dialect.
var answers = []struct {
	name, flags string
	// stored is what a query finds after two runs.
	query, stored string
}{
	{"casupdate", "--invariant work --dialect %s --again no --row yes --late never", shipped, "SHIPPED 1"},
	{"casupdate_ttl", "--invariant work --dialect %s --again no --row yes --late refused", shipped, "SHIPPED 1"},
	{"rowlock", "--invariant work --dialect %s --again yes --length transaction", reported, "the report 2"},
	{"uniquetask", "--invariant work --dialect %s --again no --row no --late refused", reported, "the report 1"},
	{"fencing", "--invariant work --dialect %s --again yes --length long --late refused", reported, "the report 2"},
	{"redisbackend", "--invariant work --dialect redis --again yes --late refused --results %s", reported, "the report 2"},
	{"numbers", "--invariant numbers --dialect %s", "SELECT sum(number), max(next) FROM invoice, counter", "3 3"},
	{"request", "--invariant request --dialect %s", "SELECT 'paid', count(*) FROM payment", "paid 1"},
	{"edit", "--invariant edit --dialect %s", "SELECT body, version FROM page", "what the user wrote 2"},
}

const (
	shipped  = "SELECT max(status), count(*) FROM parcel, orders WHERE order_id = id"
	reported = "SELECT body, version FROM report"
)

// application is the tables that the programs take for their own.
var application = []string{
	"CREATE TABLE orders (id bigint PRIMARY KEY, status varchar(20) NOT NULL)", "INSERT INTO orders VALUES (17, 'PAID')",
	"CREATE TABLE parcel (order_id bigint NOT NULL, label varchar(20) NOT NULL)",
	"CREATE TABLE report (day varchar(20) PRIMARY KEY, body varchar(20) NOT NULL, version bigint NOT NULL)",
	"CREATE TABLE invoice (number bigint NOT NULL)",
	"CREATE TABLE payment (account bigint NOT NULL, amount bigint NOT NULL)",
	"CREATE TABLE page (id bigint PRIMARY KEY, body varchar(20) NOT NULL)", "INSERT INTO page VALUES (4, '')",
}

// answer is the part of the command's JSON that is looked at.
type answer struct {
	Snippet   string
	Migration struct {
		Templates []string
		SQL       string
	}
}

func TestMain(m *testing.M) { os.Exit(command.Main(m)) }

// programs asks for every program, and builds one that runs the one that it is
// told to.
func programs(t *testing.T, dialect string) (all map[string]answer, binary string) {
	t.Helper()
	dir := t.TempDir()
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	all = make(map[string]answer)
	replace := make(map[string]string)
	add := func(name, text string) {
		file := filepath.Join(dir, name+".go")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		replace[filepath.Join(root, "testprograms", name, "main.go")] = file // as if it was in the module
	}
	var imports, cases strings.Builder
	for _, a := range answers {
		args := append([]string{"choose", "--json"}, strings.Fields(fmt.Sprintf(a.flags, dialect))...)
		out, err := exec.CommandContext(t.Context(), command.Path, args...).Output()
		if err != nil {
			t.Fatalf("%s: %v", a.name, err)
		}
		var r answer
		if err := json.Unmarshal(out, &r); err != nil {
			t.Fatal(err)
		}
		all[a.name] = r
		text := strings.Replace(r.Snippet, "package main", "package "+a.name, 1)
		add(a.name, strings.Replace(text, "func main()", "func Main()", 1))
		fmt.Fprintf(&imports, "\t%q\n", "github.com/exclusive-go/exclusive/testprograms/"+a.name)
		fmt.Fprintf(&cases, "\tcase %q:\n\t\t%s.Main()\n", a.name, a.name)
	}
	add("all", fmt.Sprintf("package main\n\nimport (\n\t\"os\"\n%s)\n\nfunc main() {\n\tswitch os.Args[1] {\n%s\t}\n}\n", &imports, &cases))
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(file, overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	binary = filepath.Join(dir, "all")
	build := exec.CommandContext(t.Context(), "go", "build", "-overlay="+file, "-o", binary, "./testprograms/all")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return all, binary
}

// After its migration each program runs twice, and what is stored is right.
func TestPrograms(t *testing.T) {
	t.Parallel()
	for _, kind := range []servers.Kind{servers.Postgres, servers.MySQL, servers.MariaDB} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			dsn := servers.Database(t, kind)
			all, binary := programs(t, string(kind))
			driver := "mysql"
			if kind == servers.Postgres {
				driver = "pgx"
			}
			db, err := sql.Open(driver, dsn)
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			exec := func(statements ...string) {
				t.Helper()
				for _, s := range statements {
					if _, err := db.ExecContext(t.Context(), s); err != nil {
						t.Fatalf("%s: %v", s, err)
					}
				}
			}
			exec(application...)
			redis := rediscluster.Start(t)
			done := make(map[string]bool) // templates and SQL of several programs
			for _, a := range answers {
				exec("DELETE FROM report", "INSERT INTO report VALUES ('2026-11-29', '', 0)", "DELETE FROM parcel", "UPDATE orders SET status = 'PAID'")
				statements := strings.Split(strings.TrimSpace(all[a.name].Migration.SQL), ";\n")
				for _, file := range all[a.name].Migration.Templates {
					text, err := fs.ReadFile(migrations.FS, file)
					if err != nil {
						t.Fatal(err)
					}
					statements = append(statements, string(text))
				}
				for _, s := range slices.DeleteFunc(statements, func(s string) bool { return s == "" || done[s] }) {
					exec(s)
					done[s] = true
				}
				for range 2 {
					run(t, binary, a.name, "DATABASE_URL="+dsn, "REDIS_URL=redis://"+redis.Addr+"/0", "SCHEDULED_AT=2026-11-29T03:00:00Z")
				}
				var what string
				var n int
				if err := db.QueryRowContext(t.Context(), a.query).Scan(&what, &n); err != nil || fmt.Sprint(what, " ", n) != a.stored {
					t.Errorf("%s: stored %q, %d (%v); want %s", a.name, what, n, err, a.stored)
				}
			}
		})
	}
}

func run(t *testing.T, binary, name string, env ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), binary, name)
	cmd.Env = append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", name, err, out)
	}
}
