package choose

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	_ "modernc.org/sqlite"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/casupdate"
	"github.com/exclusive-go/exclusive/db/sqldb"
	"github.com/exclusive-go/exclusive/fencing"
	"github.com/exclusive-go/exclusive/migrations"
	"github.com/exclusive-go/exclusive/redisbackend"
)

// every returns the complete answers of every path.
func every(t *testing.T) (all []Answers) {
	t.Helper()
	var follow func(Answers, int)
	follow = func(a Answers, asked int) {
		q, open, err := Next(a)
		if err != nil {
			if a.Dialect == redis && a.Invariant != work {
				return // not offered
			}
			t.Fatalf("%+v: %v", a, err)
		}
		if !open {
			if asked > Most {
				t.Errorf("%+v took %d questions", a, asked)
			}
			all = append(all, a)
			return
		}
		for _, o := range q.Options {
			next := a
			*next.To(q) = o.Value
			follow(next, asked+1)
		}
	}
	follow(Answers{}, 0)
	return all
}

// Whatever is answered, what is chosen keeps what was asked for, and each that
// comes before it does not, or cannot be had.
func TestDecideEveryPath(t *testing.T) {
	t.Parallel()
	paths := every(t)
	if len(paths) < 50 {
		t.Fatalf("only %d paths", len(paths))
	}
	chosen := make(map[string]bool)
	for _, a := range paths {
		r, err := Decide(a)
		if err != nil {
			t.Fatalf("%+v: %v", a, err)
		}
		if !r.LockNeeded {
			if a.Invariant == work || r.Instead == "" || r.Strategy != "" {
				t.Errorf("%+v: %+v", a, r)
			}
			chosen[a.Invariant] = true
			continue
		}
		if a.Invariant != work {
			t.Errorf("%+v: a lock for that?", a)
		}
		for _, w := range r.Weaker {
			if w.Why == "" {
				t.Errorf("%+v: no reason against %s", a, w.Strategy)
			}
		}
		if r.Strategy == "" {
			if len(r.Notes) == 0 || len(r.Weaker) != len(candidates()) || r.Snippet != "" {
				t.Errorf("%+v: nothing suffices, and that is all that is said: %+v", a, r)
			}
			continue
		}
		name := strings.TrimSpace(r.Strategy + " " + r.Variant)
		chosen[name] = true
		c := candidates()[len(r.Weaker)]
		if c.name() != name {
			t.Errorf("%+v: %s was chosen, and reasons are given against %d others", a, name, len(r.Weaker))
		}
		if missing := c.promises.Missing(need(a)); len(missing) > 0 {
			t.Errorf("%+v: %s does not promise %v", a, name, missing)
		}
		if r.Variant == "" && !slices.ContainsFunc(exclusive.Choose(need(a)), func(s exclusive.Strategy) bool { return s.Name == r.Strategy }) {
			t.Errorf("%+v: %s, and exclusive.Choose does not list it", a, name)
		}
	}
	for _, c := range candidates() {
		if !chosen[c.name()] {
			t.Errorf("no answers lead to %s", c.name())
		}
	}
}

// The answers of docs/choosing.md.
func TestDecide(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a    Answers
		want string // "" if nothing suffices
	}{
		{Answers{Invariant: work, Dialect: "mysql", Again: no, Row: yes, Late: never}, "casupdate"},
		{Answers{Invariant: work, Dialect: "postgres", Again: no, Row: yes, Late: refused}, "casupdate " + withTTL},
		{Answers{Invariant: work, Dialect: "postgres", Again: no, Row: no, Late: refused}, "uniquetask"},
		{Answers{Invariant: work, Dialect: "postgres", Again: no, Row: no, Late: never}, ""},
		{Answers{Invariant: work, Dialect: "mariadb", Again: yes, Length: transaction}, "rowlock"},
		{Answers{Invariant: work, Dialect: "sqlite", Again: yes, Length: long, Late: refused}, "fencing"},
		{Answers{Invariant: work, Dialect: "sqlite", Again: yes, Length: long, Late: stored}, "fencing"},
		{Answers{Invariant: work, Dialect: "sqlite", Again: yes, Length: long, Late: never}, "rowlock"},
		{Answers{Invariant: work, Dialect: redis, Again: yes, Late: stored}, "redisbackend"},
		{Answers{Invariant: work, Dialect: redis, Again: yes, Late: refused, Results: "mysql"}, "redisbackend " + withGuarded},
		{Answers{Invariant: work, Dialect: redis, Again: yes, Late: refused, Results: "other"}, ""},
		{Answers{Invariant: work, Dialect: redis, Again: yes, Late: never}, ""},
		{Answers{Invariant: work, Dialect: redis, Again: no, Late: stored}, ""},
	} {
		r, err := Decide(c.a)
		if err != nil {
			t.Errorf("%+v: %v", c.a, err)
			continue
		}
		if got := strings.TrimSpace(r.Strategy + " " + r.Variant); got != c.want {
			t.Errorf("%+v: %q, not %q", c.a, got, c.want)
		}
	}
	for _, a := range []Answers{
		{}, {Invariant: "peace"}, {Invariant: work}, {Invariant: "row", Dialect: "mysql"},
		{Invariant: "request", Dialect: redis},
		{Invariant: work, Dialect: "mysql", Again: yes, Row: yes, Length: long, Late: refused},
	} {
		if r, err := Decide(a); err == nil {
			t.Errorf("%+v: %+v", a, r)
		}
	}
}

// Configured as the snippets do, the strategies promise what the table of
// variants says.
func TestVariantPromises(t *testing.T) {
	t.Parallel()
	pool, err := sql.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "a.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	adapter := sqldb.NewSQLite(pool)
	ttl, err1 := casupdate.New(adapter, casupdate.Config{
		Table: "orders", From: "PAID", Claimed: "SHIPPING", Done: "SHIPPED",
		TokenColumn: "claim_token", GrantColumn: "claim_grant", ExpiresColumn: "claim_expires", TTL: time.Minute,
	})
	client := goredis.NewClient(&goredis.Options{Addr: "127.0.0.1:1"})
	defer client.Close()
	leases, err2 := redisbackend.New(client, redisbackend.Config{})
	guard, err3 := fencing.NewGuard(adapter, fencing.GuardConfig{})
	for _, err := range []error{err1, err2, err3} {
		if err != nil {
			t.Fatal(err)
		}
	}
	configured := map[string]exclusive.Exclusive{
		"casupdate " + withTTL:        ttl,
		"redisbackend " + withGuarded: fencing.Guarded(leases, guard),
	}
	var listed []string
	for _, c := range candidates() {
		listed = append(listed, c.strategy.Name)
		if c.variant == "" {
			continue
		}
		x, ok := configured[c.name()]
		if !ok {
			t.Errorf("%s is not in this test", c.name())
		} else if x.Promises() != c.promises {
			t.Errorf("%s promises %v, and the table says %v", c.name(), x.Promises(), c.promises)
		}
	}
	var table []string
	for _, s := range exclusive.Strategies() {
		table = append(table, s.Name)
	}
	if got := slices.Compact(listed); !slices.Equal(got, table) {
		t.Errorf("candidates %v, and strategies %v", got, table)
	}
}

// docs/choosing.md and this package say the same.
func TestPage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../../docs/choosing.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(page), "## Do you need a lock at all?\n")
	if !ok {
		t.Fatal("the section is gone")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	var rows, want []string
	for line := range strings.SplitSeq(section, "\n") {
		if strings.HasPrefix(line, "| ") && line != "| what must hold | what is enough |" {
			rows = append(rows, line)
		}
	}
	for _, l := range withoutLock {
		want = append(want, "| "+l.holds+" | "+l.enough+" |")
	}
	if !slices.Equal(rows, want) {
		t.Errorf("the page:\n%s\nthis package:\n%s", strings.Join(rows, "\n"), strings.Join(want, "\n"))
	}
}

// distinct returns an answer for every snippet in every dialect.
func distinct(t *testing.T) map[string]*Result {
	t.Helper()
	all := make(map[string]*Result)
	for _, a := range every(t) {
		r, err := Decide(a)
		if err != nil {
			t.Fatal(err)
		}
		if r.Snippet == "" {
			continue
		}
		name := r.Strategy + strings.ReplaceAll(r.Variant, " ", "")
		if !r.LockNeeded {
			name = a.Invariant
		}
		all[strings.ReplaceAll(name, ".", "")+"_"+destination(a)] = r
	}
	return all
}

// build compiles every snippet, and one program that runs the one that it is told
// to. To link one program for each would take long.
func build(t *testing.T, all map[string]*Result, program string) {
	t.Helper()
	if len(all) < 30 {
		t.Errorf("only %d snippets", len(all))
	}
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	replace := make(map[string]string)
	args := []string{"build", "-o=" + program}
	add := func(name, text string) {
		real := filepath.Join(dir, name+".go")
		if err := os.WriteFile(real, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		// As if it was in this module.
		replace[filepath.Join(here, "testprograms", name, "main.go")] = real
		args = append(args, "./testprograms/"+name)
	}
	var imports, cases strings.Builder
	for name, r := range all {
		text := strings.Replace(r.Snippet, "package main", "package "+name, 1)
		add(name, strings.Replace(text, "func main()", "func Main()", 1))
		if strings.HasSuffix(name, "_sqlite") {
			fmt.Fprintf(&imports, "\t%q\n", ours+"/cmd/exclusive/internal/choose/testprograms/"+name)
			fmt.Fprintf(&cases, "\tcase %q:\n\t\t%s.Main()\n", name, name)
		}
	}
	add("snippets", fmt.Sprintf("package main\n\nimport (\n\t\"os\"\n%s)\n\nfunc main() {\n\tswitch os.Args[1] {\n%s\t}\n}\n", &imports, &cases))
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(file, overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "go", slices.Insert(args, 1, "-overlay="+file)...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// Every snippet compiles. On SQLite every snippet runs after its migration. It runs twice, and what is
// stored in the end is right.
func TestSnippets(t *testing.T) {
	t.Parallel()
	own := []string{
		"CREATE TABLE orders (id bigint PRIMARY KEY, status varchar(20) NOT NULL)", "INSERT INTO orders VALUES (17, 'PAID')",
		"CREATE TABLE parcel (order_id bigint NOT NULL, label varchar(20) NOT NULL)",
		"CREATE TABLE report (day varchar(20) PRIMARY KEY, body varchar(20) NOT NULL, version bigint NOT NULL)",
		"INSERT INTO report VALUES ('2026-11-29', '', 0)",
		"CREATE TABLE invoice (number bigint NOT NULL)",
		"CREATE TABLE payment (account bigint NOT NULL, amount bigint NOT NULL)",
		"CREATE TABLE page (id bigint PRIMARY KEY, body varchar(20) NOT NULL)", "INSERT INTO page VALUES (4, '')",
	}
	const shipped = "SELECT status || count(*) FROM parcel, orders WHERE order_id = id GROUP BY status"
	stored := map[string]struct{ query, want string }{
		"casupdate":                        {shipped, "SHIPPED1"},
		"casupdatewithtokencolumnsandaTTL": {shipped, "SHIPPED1"},
		"rowlock":                          {"SELECT body || version FROM report", "the report2"},
		"uniquetask":                       {"SELECT body || version FROM report", "the report1"},
		"fencing":                          {"SELECT body || version FROM report", "the report2"},
		"numbers":                          {"SELECT group_concat(number) || ',' || next FROM invoice, counter", "1,2,3"},
		"request":                          {"SELECT count(*) || '' FROM payment", "1"},
		"edit":                             {"SELECT body || version FROM page", "what the user wrote2"},
	}
	all := distinct(t)
	for name, r := range all {
		if !strings.Contains(r.Snippet, "signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)") {
			t.Errorf("%s does not stop when it is told to", name)
		}
		for _, m := range regexp.MustCompile(`(\w+), err := \w+\.New\((client|\w+\.New\w*\(pool\)),`).FindAllStringSubmatch(r.Snippet, -1) {
			if !strings.Contains(r.Snippet, "\tdefer "+m[1]+".Close()\n") {
				t.Errorf("%s does not close %s", name, m[1])
			}
		}
	}
	bin := t.TempDir() + "/"
	build(t, all, bin)
	for full, r := range all {
		name, ok := strings.CutSuffix(full, "_sqlite")
		if !ok || strings.HasPrefix(name, "redisbackend") {
			continue
		}
		t.Run(name, func(t *testing.T) {
			want, ok := stored[name]
			if !ok {
				t.Fatal("what should be stored?")
			}
			dsn := "file:" + filepath.Join(t.TempDir(), "app.db") + "?_pragma=busy_timeout(5000)"
			pool, err := sql.Open("sqlite", dsn)
			if err != nil {
				t.Fatal(err)
			}
			defer pool.Close()
			statements := own
			if r.Migration != nil {
				statements = slices.Concat(own, []string{r.Migration.SQL}, texts(t, r.Migration.Templates))
			}
			for _, s := range statements {
				if _, err := pool.ExecContext(t.Context(), s); err != nil {
					t.Fatalf("%s: %v", s, err)
				}
			}
			for range 2 {
				cmd := exec.CommandContext(t.Context(), bin+"snippets", full)
				cmd.Env = append(os.Environ(), "DATABASE_URL="+dsn, "SCHEDULED_AT=2026-11-29T03:00:00Z")
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Fatalf("%v\n%s", err, out)
				}
			}
			if got := one(t, pool, want.query); got != want.want {
				t.Errorf("stored %q, not %q", got, want.want)
			}
		})
	}
}

func one(t *testing.T, pool *sql.DB, query string) (value string) {
	t.Helper()
	if err := pool.QueryRowContext(context.Background(), query).Scan(&value); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return value
}

func texts(t *testing.T, files []string) (list []string) {
	t.Helper()
	for _, file := range files {
		text, err := fs.ReadFile(migrations.FS, file)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, string(text))
	}
	return list
}

// Every field of Answers has a question, and every question a field of its own.
func TestQuestions(t *testing.T) {
	t.Parallel()
	var a Answers
	for i, q := range Questions() {
		*a.To(q) = fmt.Sprint(i)
		if q.Text == "" || len(q.Options) < 2 {
			t.Errorf("%+v", q)
		}
	}
	v := reflect.ValueOf(a)
	for i := range v.NumField() {
		if v.Field(i).String() != fmt.Sprint(i) {
			t.Errorf("%s has %q", v.Type().Field(i).Name, v.Field(i))
		}
	}
}
