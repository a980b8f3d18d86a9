package migrations_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/exclusive-go/exclusive/fencing"
	"github.com/exclusive-go/exclusive/integration_test/matrix"
	"github.com/exclusive-go/exclusive/internal/schema"
	"github.com/exclusive-go/exclusive/internal/templates"
)

func selection(t testing.TB, g *target, n templates.Names, strategies ...string) templates.Selection {
	t.Helper()
	return templates.Selection{Dialect: dialectOf(t, g), Names: n, Strategies: strategies}
}

// differences checks a database and says for each difference, in a line, the
// template and the problem.
func differences(t testing.TB, q schema.Querier, s templates.Selection) (lines []string, all []schema.Difference) {
	t.Helper()
	all, _, err := schema.Check(t.Context(), q, s)
	must(t, "Check", err)
	for _, d := range all {
		if d.Text == "" || d.Mend == "" || d.Object == "" {
			t.Errorf("it says too little: %+v", d)
		}
		lines = append(lines, d.Template+" "+string(d.Problem))
	}
	return lines, all
}

func wantDifferences(t testing.TB, q schema.Querier, s templates.Selection, what string, want ...string) []schema.Difference {
	t.Helper()
	got, all := differences(t, q, s)
	if !slices.Equal(got, want) {
		t.Errorf("%s: %q; want %q\n%+v", what, got, want, all)
	}
	return all
}

// What init makes is what the strategies need, whatever the names; it is made
// once, by however many, and only what is asked for and missing.
func TestInit(t *testing.T) {
	eachDialect(t, func(t *testing.T, g *target) {
		other := elsewhere(t, g)
		for _, n := range []templates.Names{{}, {Schema: other, Prefix: "order "}} {
			all := selection(t, g, n)
			wantDifferences(t, g.Plain, all, "before", "fencing_lease missing", "fencing_token missing", "fencing_mark missing", "fencing_op missing",
				"rowlock_lock missing", "uniquetask_task missing", "uniquetask_floor missing", "redisbackend_counter missing")
			some := selection(t, g, n, "rowlock", "uniquetask")
			done, err := schema.Init(t.Context(), g.Plain, some)
			if err != nil || len(done.Created) != 3 || len(done.Present) != 0 {
				t.Fatalf("some: %+v, %v", done, err)
			}
			wantDifferences(t, g.Plain, some, "after some")
			wantDifferences(t, g.Plain, all, "after some, all that is there")
			wantDifferences(t, g.Plain, selection(t, g, n, templates.Strategies()...), "after some, all that is named",
				"fencing_lease missing", "fencing_token missing", "fencing_mark missing", "fencing_op missing", "redisbackend_counter missing")

			var wg sync.WaitGroup
			var mu sync.Mutex
			created := 0
			for range 4 {
				wg.Go(func() {
					done, err := schema.Init(t.Context(), g.Plain, all)
					mu.Lock()
					defer mu.Unlock()
					if created += len(done.Created); err != nil || len(done.Created)+len(done.Present) != 8 {
						t.Errorf("%+v, %v", done, err)
					}
				})
			}
			wg.Wait()
			if created != 5 {
				t.Errorf("%d objects were made; want 5", created)
			}
			wantDifferences(t, g.Plain, all, "after all")
			work(t, g, names{n.Schema, n.Prefix})
		}
	})
}

// Where something else has a name nothing is made.
func TestInitRefuses(t *testing.T) {
	eachDialect(t, func(t *testing.T, g *target) {
		all := selection(t, g, templates.Names{})
		g.MustExec(t, "CREATE TABLE exclusive_mark (other integer)")
		before := objects(t, g)
		done, err := schema.Init(t.Context(), g.Plain, all)
		different := new(schema.DifferentError)
		if !errors.As(err, &different) || !strings.Contains(err.Error(), "exclusive_mark") || len(done.Created) != 0 {
			t.Errorf("beside a table with the name: %+v, %v", done, err)
		}
		wantObjects(t, g, "after it was refused", before)
		g.MustExec(t, "DROP TABLE exclusive_mark")

		missing := selection(t, g, templates.Names{Schema: "no_such_schema"})
		if _, err := schema.Init(t.Context(), g.Plain, missing); err == nil || !strings.Contains(err.Error(), "no_such_schema") {
			t.Errorf("in a schema that does not exist: %v", err)
		}
		for _, s := range []templates.Selection{selection(t, g, templates.Names{Prefix: "a;"}), selection(t, g, templates.Names{}, "fence")} {
			if _, err := schema.Init(t.Context(), g.Plain, s); err == nil {
				t.Errorf("%+v is valid", s)
			}
			if _, _, err := schema.Check(t.Context(), g.Plain, s); err == nil {
				t.Errorf("%+v is valid", s)
			}
		}

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if done, err := schema.Init(ctx, g.Plain, all); !errors.Is(err, context.Canceled) || len(done.Created) != 0 {
			t.Errorf("cancelled: %+v, %v", done, err)
		}
		if done, err := schema.Init(t.Context(), g.Plain, all); err != nil || len(done.Created) != 8 {
			t.Errorf("at last: %+v, %v", done, err)
		}
	})
}

// Tables are added while workers use those that are there, and while a session
// has read them and not ended its transaction: nobody waits for anybody.
func TestInitBesideWork(t *testing.T) {
	eachDialect(t, func(t *testing.T, g *target) {
		_, err := schema.Init(t.Context(), g.Plain, selection(t, g, templates.Names{}, "fencing"))
		must(t, "Init", err)
		idle, err := g.Plain.BeginTx(t.Context(), nil)
		must(t, "BeginTx", err)
		defer func() { must(t, "Rollback", idle.Rollback()) }()
		var n int
		must(t, "read", idle.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM exclusive_lease").Scan(&n))

		leases, err := fencing.New(g.DB, fencing.Config{TTL: 30 * time.Second})
		must(t, "fencing.New", err)
		defer func() { must(t, "Close", leases.Close()) }()
		stop, during := make(chan struct{}), make(chan struct{}, 1)
		var wg sync.WaitGroup
		for worker := range 2 {
			wg.Go(func() {
				for i := 0; ; i++ {
					err := twice(t.Context(), leases, fmt.Sprintf("busy/%d/%d", worker, i), nil)
					if err != nil {
						t.Errorf("worker: %v", err)
						return
					}
					select {
					case <-stop:
						return
					case during <- struct{}{}:
					default:
					}
				}
			})
		}
		worked := func(when string) {
			t.Helper()
			for range 2 { // the first may be from before
				select {
				case <-during:
				case <-time.After(time.Minute):
					t.Errorf("no worker came to an end %s", when)
				}
			}
		}
		worked("before")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if done, err := schema.Init(ctx, g.Plain, selection(t, g, templates.Names{})); err != nil || len(done.Created) != 4 {
			t.Errorf("%+v, %v", done, err)
		}
		worked("after")
		close(stop)
		wg.Wait()
	})
}

// A statement fails after others went well: all is taken back where the server
// can do that, and what cannot be is told. Another call goes on from there.
func TestInitFails(t *testing.T) {
	eachDialect(t, func(t *testing.T, g *target) {
		all := selection(t, g, templates.Names{})
		pool, mend := g.Plain, "DROP TYPE exclusive_op"
		var user, password string
		switch g.Dialect {
		case "postgres":
			g.MustExec(t, "CREATE TYPE exclusive_op AS ENUM ('a')") // a table is a type, too
		case "sqlite":
			g.MustExec(t, "CREATE TABLE other (a integer)")
			g.MustExec(t, "CREATE INDEX exclusive_op ON other (a)")
			mend = "DROP INDEX exclusive_op"
		default:
			user, password = newUser(t, g)
			for _, table := range []string{"exclusive_lease", "exclusive_token", "exclusive_mark"} {
				g.MustExec(t, "GRANT CREATE, SELECT, INSERT ON "+table+" TO "+user)
			}
			pool, mend = openAs(t, g, user, password), "GRANT CREATE ON * TO "+user
		}
		before := objects(t, g)
		done, err := schema.Init(t.Context(), pool, all)
		if err == nil || !strings.Contains(err.Error(), "exclusive_op") {
			t.Fatalf("%+v, %v; want an error with the name", done, err)
		}
		if g.Dialect == "postgres" || g.Dialect == "sqlite" {
			wantObjects(t, g, "after a failure", before)
			if len(done.Created) != 0 {
				t.Errorf("it says that it made %q", done.Created)
			}
		} else {
			wantObjects(t, g, "after a failure", []string{"exclusive_lease", "exclusive_mark", "exclusive_token"})
			if len(done.Created) != 3 {
				t.Errorf("it says that it made %q", done.Created)
			}
		}
		g.MustExec(t, mend)
		if pool != g.Plain { // a connection keeps its privileges for a database
			pool = openAs(t, g, user, password)
		}
		if done, err = schema.Init(t.Context(), pool, all); err != nil || len(done.Created)+len(done.Present) != 8 {
			t.Errorf("again: %+v, %v", done, err)
		}
		wantDifferences(t, g.Plain, all, "in the end")
		work(t, g, names{})
	})
}

// Each difference that can come about is found, for what it is, and no other.
func TestCheckFinds(t *testing.T) {
	eachDialect(t, func(t *testing.T, g *target) {
		const (
			postgres  = "postgres"
			mysqlLike = "mysql mariadb"
			each      = "postgres mysql mariadb sqlite"
		)
		all := selection(t, g, templates.Names{}, templates.Strategies()...)
		_, err := schema.Init(t.Context(), g.Plain, all)
		must(t, "Init", err)
		counter := map[string]string{"postgres": "counter_key bytea", "mysql": "counter_key varbinary(200)", "mariadb": "counter_key varbinary(200)", "sqlite": "counter_key blob"}[g.Dialect]
		// The counter's table is made anew in other ways.
		table := func(columns string) string {
			return "DROP TABLE exclusive_counter; CREATE TABLE exclusive_counter (" + columns + ")"
		}
		integer := map[bool]string{true: "integer", false: "bigint"}[g.Dialect == "sqlite"]
		for _, c := range []struct {
			on, what string
			change   string // statements
			want     string
		}{
			{each, "as it is", "", ""},
			{each, "no table", "DROP TABLE exclusive_counter", "missing"},
			{each, "another table", table("a integer"), "column column key"},
			{each, "a column is missing", table(counter + " NOT NULL PRIMARY KEY"), "column"},
			{each, "no primary key", table(counter + " NOT NULL, token " + integer + " NOT NULL"), "key"},
			{each, "another primary key", table(counter + " NOT NULL, token " + integer + " NOT NULL, PRIMARY KEY (counter_key, token)"), "key"},
			{each, "NULL", table(counter + " NOT NULL PRIMARY KEY, token " + integer), "column"},
			{each, "a number that is too small", table(counter + " NOT NULL PRIMARY KEY, token smallint NOT NULL"), "column"},
			{each, "text for the key", table("counter_key varchar(200) NOT NULL PRIMARY KEY, token " + integer + " NOT NULL"), "column"},
			{each, "one more column", table(counter + " NOT NULL PRIMARY KEY, token " + integer + " NOT NULL, note integer"), ""},
			{each, "one more with a default", table(counter + " NOT NULL PRIMARY KEY, token " + integer + " NOT NULL, note integer NOT NULL DEFAULT 1"), ""},
			{each, "one more that must be given", table(counter + " NOT NULL PRIMARY KEY, token " + integer + " NOT NULL, note integer NOT NULL"), "column"},
			{each, "a view", "DROP TABLE exclusive_counter; CREATE VIEW exclusive_counter AS SELECT 1 AS token", "kind"},
			{postgres, "unlogged", "ALTER TABLE exclusive_counter SET UNLOGGED", "setting"},
			{postgres, "a deferrable key", table(counter + " NOT NULL PRIMARY KEY DEFERRABLE, token bigint NOT NULL"), "key"},
			{postgres, "a sequence", "DROP TABLE exclusive_counter; CREATE SEQUENCE exclusive_counter", "kind"},
			{mysqlLike, "a key that is too short", table("counter_key varbinary(100) NOT NULL PRIMARY KEY, token bigint NOT NULL"), "column"},
			{mysqlLike, "a longer key", table("counter_key varbinary(300) NOT NULL PRIMARY KEY, token bigint NOT NULL"), ""},
			{mysqlLike, "a key of beginnings", table("counter_key varbinary(200) NOT NULL, token bigint NOT NULL, PRIMARY KEY (counter_key(10))"), "key"},
			{mysqlLike, "unsigned", table("counter_key varbinary(200) NOT NULL PRIMARY KEY, token bigint unsigned NOT NULL"), "column"},
			{mysqlLike, "another engine", "ALTER TABLE exclusive_counter ENGINE = MyISAM", "setting"},
			{mysqlLike, "text without case", table("counter_key varchar(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci NOT NULL PRIMARY KEY, token bigint NOT NULL"), "column"},
		} {
			if !strings.Contains(c.on, g.Dialect) {
				continue
			}
			for statement := range strings.SplitSeq(c.change, "; ") {
				if statement != "" {
					g.MustExec(t, statement)
				}
			}
			var want []string
			for problem := range strings.FieldsSeq(c.want) {
				want = append(want, "redisbackend_counter "+problem)
			}
			wantDifferences(t, g.Plain, all, c.what, want...)
			for _, kind := range []string{"TABLE", "VIEW", "SEQUENCE"} { // that it is, whatever it is
				_, _ = g.Plain.ExecContext(t.Context(), "DROP "+kind+" exclusive_counter")
			}
			_, err := schema.Init(t.Context(), g.Plain, all)
			must(t, "Init", err)
		}

		if g.Dialect != "postgres" && g.Dialect != "mariadb" {
			return
		}
		for _, c := range []struct {
			what, change string
			want         []string
		}{
			{"cache", "CACHE 10", []string{"fencing_token setting"}},
			{"cycle", "CYCLE", []string{"fencing_token setting"}},
			{"both", "CACHE 10 CYCLE", []string{"fencing_token setting", "fencing_token setting"}},
			{"backwards", "INCREMENT BY -1 MINVALUE 1 MAXVALUE 9000000000000000000 START 9 RESTART 9", []string{"fencing_token setting"}},
		} {
			g.MustExec(t, "ALTER SEQUENCE exclusive_token "+c.change)
			// What it says mends it.
			for _, d := range wantDifferences(t, g.Plain, all, c.what, c.want...) {
				g.MustExec(t, d.Mend)
			}
			wantDifferences(t, g.Plain, all, c.what+", mended")
		}
		g.MustExec(t, "DROP SEQUENCE exclusive_token")
		g.MustExec(t, "CREATE TABLE exclusive_token (a integer)")
		wantDifferences(t, g.Plain, all, "a table in place of the sequence", "fencing_token kind")
	})
}

// Every privilege that is missing is found, and what it says to do is enough.
func TestCheckFindsPrivileges(t *testing.T) {
	eachWithRoles(t, func(t *testing.T, g *target) {
		n := templates.Names{Schema: elsewhere(t, g), Prefix: "order "}
		all := selection(t, g, n)
		_, err := schema.Init(t.Context(), g.Plain, all)
		must(t, "Init", err)
		user, password := newUser(t, g)
		app := g.Another(t, matrix.Options{User: user, Password: password})
		pool := openAs(t, g, user, password)

		if g.Dialect == "postgres" {
			found := wantDifferences(t, pool, all, "without USAGE", " privilege")
			if len(found) == 1 && !strings.Contains(found[0].Object, n.Schema) {
				t.Errorf("%+v", found)
			}
			g.MustExec(t, `GRANT USAGE ON SCHEMA "`+n.Schema+`" TO `+user)
		} else { // which shows nothing to those who may do nothing
			g.MustExec(t, "CREATE TABLE mine (a integer)")
			g.MustExec(t, "GRANT SELECT ON mine TO "+user) // lets it connect
			wantDifferences(t, pool, all, "without any privilege", " missing")
			list, err := templates.Of(all.Dialect, nil)
			must(t, "Of", err)
			for _, x := range list {
				g.MustExec(t, x.GrantOf("REFERENCES", n, user)) // is of no use
			}
		}
		var want []string
		list, err := templates.Of(all.Dialect, nil)
		must(t, "Of", err)
		for _, x := range list {
			for range x.Object.Privileges {
				want = append(want, x.Name+" privilege")
			}
		}
		found := wantDifferences(t, pool, all, "without privileges", want...)
		for i := range found {
			g.MustExec(t, found[i].Mend)
			wantDifferences(t, pool, all, "granted", want[i+1:]...)
		}
		work(t, app, names{n.Schema, n.Prefix})
	})
}

// openAs opens a pool of one connection to the same database as another user.
func openAs(t testing.TB, g *target, user, password string) *sql.DB {
	t.Helper()
	var driver, dsn string
	if g.Dialect == "postgres" {
		u, err := url.Parse(g.Address().DSN)
		must(t, "Parse", err)
		u.User = url.UserPassword(user, password)
		driver, dsn = "pgx", u.String()
	} else {
		config, err := mysql.ParseDSN(g.Address().DSN)
		must(t, "ParseDSN", err)
		config.User, config.Passwd = user, password
		driver, dsn = "mysql", config.FormatDSN()
	}
	pool, err := sql.Open(driver, dsn)
	must(t, "Open", err)
	pool.SetMaxOpenConns(1)
	t.Cleanup(func() { must(t, "Close", pool.Close()) })
	return pool
}

// newUser makes an account, dropped when the test ends.
func newUser(t testing.TB, g *target) (name, password string) {
	t.Helper()
	name, password = "app_"+strings.ToLower(rand.Text()[:16]), rand.Text()
	create, drop := "CREATE USER '%s'@'%%' IDENTIFIED BY '%s'", "DROP USER '%s'@'%%'"
	if g.Dialect == "postgres" {
		create, drop = `CREATE USER %s PASSWORD '%s'`, `DROP OWNED BY %[1]s; DROP USER %[1]s`
	}
	g.MustExec(t, fmt.Sprintf(create, name, password))
	t.Cleanup(func() {
		for statement := range strings.SplitSeq(fmt.Sprintf(drop, name), "; ") {
			if _, err := g.Plain.Exec(statement); err != nil {
				t.Error(err)
			}
		}
	})
	return name, password
}
