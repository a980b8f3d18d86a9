package cases_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/golang-migrate/migrate/v4"
	migratemysql "github.com/golang-migrate/migrate/v4/database/mysql"
	"github.com/golang-migrate/migrate/v4/source/iofs"
	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/casupdate"
	"github.com/exclusive-go/exclusive/exclusivetest"
	"github.com/exclusive-go/exclusive/fencing"
	"github.com/exclusive-go/exclusive/integration_test/cases/session"
	"github.com/exclusive-go/exclusive/integration_test/matrix"
	"github.com/exclusive-go/exclusive/integration_test/rediscluster"
	"github.com/exclusive-go/exclusive/integration_test/servers"
	"github.com/exclusive-go/exclusive/integration_test/strategies"
	"github.com/exclusive-go/exclusive/internal/ident"
	"github.com/exclusive-go/exclusive/internal/schema"
	"github.com/exclusive-go/exclusive/internal/templates"
	"github.com/exclusive-go/exclusive/migrations"
	"github.com/exclusive-go/exclusive/redisbackend"
	"github.com/exclusive-go/exclusive/rowlock"
	"github.com/exclusive-go/exclusive/uniquetask"
)

// migrator runs the module's files with golang-migrate on a MySQL or MariaDB.
func migrator(t *testing.T, target *matrix.Target[*sql.Tx], dsn string) *migrate.Migrate {
	t.Helper()
	source, err := iofs.New(migrations.FS, target.Dialect)
	must(t, "source", err)
	pool, err := sql.Open("mysql", dsn)
	must(t, "open", err)
	driver, err := migratemysql.WithInstance(pool, &migratemysql.Config{MigrationsTable: "versions"})
	must(t, "driver", err)
	m, err := migrate.NewWithInstance("iofs", source, target.Dialect, driver)
	must(t, "migrator", err)
	t.Cleanup(func() {
		sourceErr, databaseErr := m.Close()
		must(t, "close", errors.Join(sourceErr, databaseErr))
	})
	return m
}

// The migrations run under golang-migrate (its library, which its command wraps)
// with and without multiStatements, up and down, and are never left dirty. In the
// field a file with two statements failed with 1064 unless the DSN allowed several.
func TestB100_MultiStatements(t *testing.T) {
	onMySQL(t, func(t *testing.T, target *matrix.Target[*sql.Tx]) {
		for several, dsn := range map[string]string{
			"without": target.Address().DSN,
			"with":    servers.WithParam(target.Address().DSN, "multiStatements", "true"),
		} {
			m := migrator(t, target, dsn)
			must(t, "up", m.Up())
			if version, dirty, err := m.Version(); err != nil || dirty || version == 0 {
				t.Errorf("%s multiStatements: version %d, dirty %v, %v", several, version, dirty, err)
			}
			must(t, "do", leasesOn(t, target, fencing.Config{}).Do(t.Context(), "k", nothing))
			must(t, "down", m.Down())
			if n := target.Int(t, "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name LIKE 'exclusive%'"); n != 0 {
				t.Errorf("%s multiStatements: %d tables are left", several, n)
			}
		}
		// The twin: two statements in one file.
		if _, err := target.Plain.ExecContext(t.Context(), "CREATE TABLE one (a int); CREATE TABLE two (a int)"); err == nil {
			t.Error("two statements at once are taken without multiStatements")
		}
	})
}

// After a migration that failed half way the next run goes on from there, once what
// was in the way is mended: it is named, and no row is lost. In the field people
// dropped the version table. What golang-migrate's own "dirty" needs, and a process that
// is killed between two statements, are tested beside this.
// Also: migrations.TestDirty, migrations.TestKilled.
func TestB101_HalfApplied(t *testing.T) {
	t.Parallel()
	matrix.Drivers(t, nil, func(t *testing.T, target *matrix.Target[*sql.Tx]) {
		ctx := t.Context()
		dialect, err := templates.ParseDialect(target.Dialect)
		must(t, "dialect", err)
		all := templates.Selection{Dialect: dialect}
		target.Migrate(t, "fencing_lease")
		target.Migrate(t, "fencing_token")
		target.MustExec(t, "INSERT INTO exclusive_lease (lease_key, grant_id, holder, token, attempt, acquired_at, expires_at) VALUES (?, 'g', 'h', 41, 0, 0, 0)", []byte("kept"))
		target.MustExec(t, "CREATE TABLE exclusive_mark (other integer)")
		_, err = schema.Init(ctx, target.Plain, all)
		var different *schema.DifferentError
		if !errors.As(err, &different) || !strings.Contains(err.Error(), "exclusive_mark") {
			t.Fatalf("a table of another shape: %v; want it named", err)
		}
		if mend := different.Differences[0].Mend; mend == "" {
			t.Error("it is not said what to do")
		}
		guard, err := fencing.NewGuard(target.DB, fencing.GuardConfig{})
		must(t, "guard", err)
		err = guard.Register(ctx, exclusive.Grant{Key: "k", Token: 1, ID: "id"})
		wantErr(t, "a guard on the wrong table", err, exclusive.ErrSchema)
		target.MustExec(t, "DROP TABLE exclusive_mark")
		for range 2 { // again does no harm
			done, err := schema.Init(ctx, target.Plain, all)
			must(t, "init", err)
			if len(done.Created)+len(done.Present) < 7 {
				t.Errorf("init has made %v and found %v", done.Created, done.Present)
			}
		}
		must(t, "the guard", guard.Register(ctx, exclusive.Grant{Key: "k", Token: 1, ID: "id"}))
		if n := target.Int(t, "SELECT token FROM exclusive_lease WHERE lease_key = ?", []byte("kept")); n != 41 {
			t.Errorf("the row from before has token %d; want 41", n)
		}
	})
}

// applicationTables makes those of the application that strategies work on, without
// rows.
func applicationTables[Tx any](t *testing.T, target *matrix.Target[Tx], schema string) {
	t.Helper()
	target.MustExec(t, "CREATE TABLE "+within(target, schema, "job")+` (id varchar(200) PRIMARY KEY, state varchar(20) NOT NULL, token bigint,
		grant_id varchar(64), version bigint NOT NULL DEFAULT 0, fence_token bigint, fence_grant varchar(64))`)
}

// within is the quoted name of a table.
func within[Tx any](target *matrix.Target[Tx], schema, table string) string {
	quote := "`"
	if target.Dialect == "postgres" {
		quote = `"`
	}
	return ident.Quote(quote, schema, table)
}

// everywhere uses all that has tables, under one schema and prefix.
func everywhere[Tx any](t *testing.T, target *matrix.Target[Tx], schema, prefix string) {
	t.Helper()
	ctx := t.Context()
	for name, x := range named(t, target, schema, prefix) {
		must(t, name, x.Do(ctx, "k", nothing))
	}
	leases := leasesOn(t, target, fencing.Config{Schema: schema, Prefix: prefix})
	guard, err := fencing.NewGuard(target.DB, fencing.GuardConfig{Schema: schema, Prefix: prefix})
	must(t, "guard", err)
	must(t, "guarded", fencing.Guarded(leases, guard).Do(ctx, "g", nothing))
	must(t, "once", inTx(ctx, target, func(ctx context.Context, tx Tx) error {
		_, err := guard.Once(ctx, tx, "op", nil, func(context.Context) ([]byte, error) { return nil, nil })
		return err
	}))
	tokens, err := redisbackend.NewTokens(target.DB, redisbackend.TokensConfig{Schema: schema, Prefix: prefix})
	must(t, "tokens", err)
	must(t, "token", second(tokens.Next(ctx, "k")))
	tasks := tasksOn(t, target, uniquetask.Config{Schema: schema, Prefix: prefix})
	must(t, "forget", tasks.Forget(ctx, "k"))
	must(t, "prune", second(tasks.Prune(ctx, 0)))
	must(t, "advance", leases.Advance(ctx, "k", 1000))

	// The application's own table.
	row := newKey()
	target.MustExec(t, "INSERT INTO "+within(target, schema, "job")+" (id, state) VALUES (?, 'PENDING')", row)
	rows, err := fencing.NewRowGuard(target.DB, fencing.RowConfig{Schema: schema, Table: "job", KeyColumns: []string{"id"}})
	must(t, "row guard", err)
	must(t, "row guard", inTx(ctx, target, func(ctx context.Context, tx Tx) error {
		return rows.Check(ctx, tx, exclusive.Grant{Key: row, Token: 1, ID: "id"}, row)
	}))
	versions, err := casupdate.NewVersioned(target.DB, casupdate.VersionConfig{Schema: schema, Table: "job", Key: casupdate.Text("id")})
	must(t, "versioned", err)
	must(t, "versioned", second(versions.Update(ctx, row, 0, casupdate.Set{"state": "PENDING"})))
	must(t, "rowlock", locksOn(t, target, rowlock.Config{Schema: schema, Table: "job", KeyColumns: []string{"id"}}).Do(ctx, row, nothing))
	cfg := jobConfig()
	cfg.Schema = schema
	must(t, "casupdate", moreJobs(t, target, cfg).Do(ctx, row, nothing))
}

// operated uses every part of the command that has to do with tables. Leases are in
// the schema of the flags.
func operated(t *testing.T, exclusively command, dsn string, leases exclusive.Leaser, flags ...string) {
	t.Helper()
	run := func(want int, args ...string) string {
		t.Helper()
		args = append(args[:1:1], append(flags, args[1:]...)...)
		code, output := exclusively.run(t, dsn, args...)
		if code != want {
			t.Errorf("exclusive %q ended with %d: %s", args, code, output)
		}
		return output
	}
	run(0, "init")
	run(0, "run", "--name", "nightly", "--", "true")
	run(0, "run", "--name", "nightly", "--once", "r1", "--", "true")
	held := acquire(t, leases, "held")
	if output := run(0, "ps", "--json"); !strings.Contains(output, `"held"`) {
		t.Errorf("ps does not see the lease: %s", output)
	}
	run(0, "release", "held")
	wantErr(t, "the holder's renewal", held.Renew(t.Context()), exclusive.ErrLost)
	if output := run(0, "tasks", "--json"); !strings.Contains(output, `"r1"`) {
		t.Errorf("tasks does not see the run: %s", output)
	}
	run(0, "forget", "nightly", "r1")
	run(0, "prune", "--older-than", "1h")
}

// Only the schema that was named is read and written, whatever the search path and
// however it is called, and tables of the same names elsewhere stay empty. In the
// field half of the SQL relied on the search path, and used another tenant's table.
func TestB103_SearchPath(t *testing.T) {
	t.Parallel()
	exclusively := buildCommand(t)
	matrix.Drivers(t,
		func(t *testing.T, target *matrix.Target[pgx.Tx]) { testSearchPath(t, target, exclusively) },
		func(t *testing.T, target *matrix.Target[*sql.Tx]) { testSearchPath(t, target, exclusively) }, "postgres", "mysql", "mariadb")
}

func testSearchPath[Tx any](t *testing.T, target *matrix.Target[Tx], exclusively command) {
	target.Migrate(t, "") // decoys: the connection finds these by itself
	applicationTables(t, target, "")
	tables := []string{"job", "exclusive_lease", "exclusive_mark", "exclusive_op", "exclusive_lock", "exclusive_task", "exclusive_task_floor", "exclusive_counter"}
	if target.Dialect == "mysql" {
		tables = append(tables, "exclusive_token")
	}
	drawn := int64(0) // where the decoy sequence of MariaDB stands
	if target.Dialect == "mariadb" {
		drawn = target.Int(t, "SELECT next_not_cached_value FROM exclusive_token")
	}
	untouched := func(what string) {
		t.Helper()
		if target.Dialect == "mariadb" && target.Int(t, "SELECT next_not_cached_value FROM exclusive_token") != drawn {
			t.Errorf("%s: the decoy sequence was used", what)
		}
		for _, table := range tables {
			if n := target.Int(t, "SELECT COUNT(*) FROM "+table); n != 0 {
				t.Errorf("%s: %d rows are in the decoy %s", what, n, table)
			}
		}
		if target.Dialect == "postgres" && target.Int(t, "SELECT CASE WHEN is_called THEN 1 ELSE 0 END FROM exclusive_token") != 0 {
			t.Errorf("%s: the decoy sequence was used", what)
		}
	}
	for _, name := range []string{"Tenant-1", "order", "locks"} {
		schema := target.Schema(t, name)
		dsn := commandDSN(t, target)
		if code, output := exclusively.run(t, dsn, "init", "--schema", schema); code != 0 {
			t.Fatalf("init: %d, %s", code, output)
		}
		applicationTables(t, target, schema)
		everywhere(t, target, schema, "")
		untouched(name + ", strategies")
		operate := func(dsn, what string) {
			t.Helper()
			if target.Name == "pgx" || target.Name == "lib_pq" {
				return // the command has one driver for each server
			}
			operated(t, exclusively, dsn, leasesOn(t, target, fencing.Config{Schema: schema, TTL: forever, NoRenew: true}), "--schema", schema)
			untouched(name + ", command" + what)
		}
		operate(dsn, "")
		if target.Dialect == "postgres" && (name == "locks" || matrix.Long()) {
			for _, path := range []string{"pg_catalog", `""`} { // the latter as pg_dump has it
				everywhere(t, target.Another(t, matrix.Options{Params: map[string]string{"search_path": path}}), schema, "")
				untouched(name + ", search_path " + path)
				operate(servers.WithParam(dsn, "search_path", path), ", search_path "+path)
			}
		}
	}
	for _, bad := range []string{`a"b`, "a`b", "a;b", `a'b`, " a", "a\x00b", strings.Repeat("x", 64)} {
		_, err := fencing.New(target.DB, fencing.Config{Schema: bad})
		wantErr(t, "fencing", err, exclusive.ErrInvalid)
		_, err = fencing.NewGuard(target.DB, fencing.GuardConfig{Prefix: bad})
		wantErr(t, "guard", err, exclusive.ErrInvalid)
		_, err = uniquetask.New(target.DB, uniquetask.Config{Task: "t", Schema: bad})
		wantErr(t, "uniquetask", err, exclusive.ErrInvalid)
		_, err = rowlock.New(target.DB, rowlock.Config{Prefix: bad})
		wantErr(t, "rowlock", err, exclusive.ErrInvalid)
		_, err = casupdate.New(target.DB, casupdate.Config{Table: bad, From: "a", Claimed: "b", Done: "c"})
		wantErr(t, "casupdate", err, exclusive.ErrInvalid)
	}
}

// command is the built command.
type command string

// buildCommand builds it as users do, from its own module, for the first test that
// asks: several builds side by side would all compile the same, each with its memory.
func buildCommand(t *testing.T) command {
	t.Helper()
	path, err := built()
	if err != nil {
		t.Fatalf("build the command: %v", err)
	}
	return command(path)
}

var built = sync.OnceValues(func() (path string, err error) {
	if buildFolder, err = os.MkdirTemp("", "exclusive-command-"); err != nil {
		return "", err
	}
	path = filepath.Join(buildFolder, "exclusive")
	build := exec.Command("go", "build", "-o", path, "./cmd/exclusive")
	build.Dir = filepath.Join("..", "..")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return path, nil
})

// commandDSN is the target as the command names it.
func commandDSN[Tx any](t *testing.T, target *matrix.Target[Tx]) string {
	t.Helper()
	dsn := target.Address().DSN
	switch target.Dialect {
	case "sqlite":
		return "sqlite://" + strings.TrimPrefix(dsn, "file:")
	case "mysql", "mariadb":
		config, err := mysql.ParseDSN(dsn)
		must(t, "parse", err)
		return target.Dialect + "://" + config.User + ":" + config.Passwd + "@" + config.Addr + "/" + config.DBName
	}
	return dsn
}

// run runs it and returns its exit code and all that it has written.
func (c command) run(t *testing.T, dsn string, args ...string) (code int, output string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*patience) // tables take a while on a busy server
	defer cancel()
	cmd := exec.CommandContext(ctx, string(c), args...)
	cmd.Env = append(os.Environ(), "EXCLUSIVE_DSN="+dsn)
	text, err := cmd.CombinedOutput()
	if err != nil && !errors.As(err, new(*exec.ExitError)) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(text)
}

// The exit code of the command if somebody else holds the key, and without tables.
const exitBusy, exitUnavailable = 75, 69

// Every operation on a name touches the same row or key, of the same name byte for
// byte, and so does the command with the same flags; with other flags it sees
// another place. In the field lock and unlock, or the clean-up, computed two keys.
func TestB104_DifferentKeys(t *testing.T) {
	t.Parallel()
	exclusively := buildCommand(t)
	matrix.Drivers(t, nil, func(t *testing.T, target *matrix.Target[*sql.Tx]) { testDifferentKeys(t, target, exclusively) })
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		client, prefix := servers.Prefix(t)
		for range size(20, 3) {
			name, prefix := randomName(), fmt.Sprint(prefix, rand.IntN(1000), ":")
			x := redisLeases(t, client, redisbackend.Config{Prefix: prefix, TTL: forever, NoRenew: true})
			before := redisKeys(t, client, prefix)
			lease := acquire(t, x, name)
			must(t, "renew", lease.Renew(t.Context()))
			if now := redisKeys(t, client, prefix) - before; now != 2 { // the lease and the counter
				t.Errorf("%q: %d keys", name, now)
			}
			code, output := exclusively.run(t, servers.Shared(t, servers.Redis).DSN, "run", "--name", name, "--prefix", prefix, "--", "true")
			if code != exitBusy {
				t.Errorf("%q: the command ended with %d: %s", name, code, output)
			}
			must(t, "release", lease.Release(t.Context()))
			must(t, "free", x.Do(t.Context(), name, nothing))
			freedBy(t, exclusively, servers.Shared(t, servers.Redis).DSN, x, name, []string{"--prefix", prefix})
			elsewhereFor(t, exclusively, servers.Shared(t, servers.Redis).DSN, x, name, []string{"--prefix", "x" + prefix})
			if now := redisKeys(t, client, prefix) - before; now != 1 {
				t.Errorf("%q: %d keys after the release", name, now)
			}
		}
	})
}

func redisKeys(t *testing.T, client *redis.Client, prefix string) int {
	t.Helper()
	keys, err := client.Keys(t.Context(), prefix+"*").Result()
	must(t, "keys", err)
	return len(keys)
}

// randomName is a name of any characters that have some meaning somewhere.
func randomName() string {
	letters := []rune("abcXYZ019 {}:/%_-.*?[]'\"`$\u00e9\u00df\U0001F512")
	name := []rune{'n'} // a flag does not begin so
	for range 1 + rand.IntN(20) {
		name = append(name, letters[rand.IntN(len(letters))])
	}
	return string(name)
}

// randomIdentifier is one that is nothing without quotes.
func randomIdentifier() string {
	letters := []rune("abcXYZ019-_ $\u00e9")
	name := []rune{'p'}
	for range rand.IntN(12) {
		name = append(name, letters[rand.IntN(len(letters))])
	}
	return string(append(name, 'x')) // no blank at its end
}

// freedBy fails unless the command sees a lease of the library's and frees it, and
// nothing of it elsewhere.
func freedBy(t *testing.T, exclusively command, dsn string, x exclusive.Leaser, name string, flags []string) {
	t.Helper()
	held := acquire(t, x, name)
	sees := func() bool {
		t.Helper()
		code, output := exclusively.run(t, dsn, append([]string{"ps", "--json"}, flags...)...)
		var list []struct{ Name string }
		if err := json.Unmarshal([]byte(output), &list); err != nil || code != 0 {
			t.Fatalf("ps ended with %d: %v: %s", code, err, output)
		}
		return slices.ContainsFunc(list, func(holder struct{ Name string }) bool { return holder.Name == name })
	}
	if !sees() {
		t.Errorf("ps does not show %q, which is held", name)
	}
	if code, output := exclusively.run(t, dsn, append([]string{"release", name}, flags...)...); code != 0 {
		t.Errorf("%q: release ended with %d: %s", name, code, output)
	}
	if sees() {
		t.Errorf("ps shows %q, which was freed", name)
	}
	wantErr(t, "the holder's renewal", held.Renew(t.Context()), exclusive.ErrLost)
	next, err := x.TryAcquire(t.Context(), name)
	must(t, "another, at once", err)
	must(t, "its release", next.Release(t.Context()))
}

// elsewhereFor fails unless the command, with flags of another place, sees nothing of a
// lease of the library's, frees nothing of it, and can have the name for itself.
func elsewhereFor(t *testing.T, exclusively command, dsn string, x exclusive.Leaser, name string, flags []string) {
	t.Helper()
	held := acquire(t, x, name)
	for _, c := range []struct {
		want int
		args []string
	}{
		{0, []string{"ps", "--json"}}, {1, []string{"release", name}}, {0, []string{"run", "--name", name}},
	} {
		args := append(c.args, flags...)
		if c.args[0] == "run" {
			args = append(args, "--", "true")
		}
		code, output := exclusively.run(t, dsn, args...)
		if code != c.want {
			t.Errorf("elsewhere exclusive %q ended with %d: %s", args, code, output)
		}
		if c.args[0] == "ps" && strings.TrimSpace(output) != "[]" {
			t.Errorf("elsewhere ps shows %s", output)
		}
	}
	must(t, "the holder's renewal", held.Renew(t.Context()))
	must(t, "release", held.Release(t.Context()))
}

// sameRuns fails unless the command and the library mean the same run with the same
// task and name: done, under way, freed by force, and forgotten. With the flags of
// another place the command means another run.
func sameRuns(t *testing.T, exclusively command, dsn string, tasks *uniquetask.Tasks[*sql.Tx], task string, flags, others []string) {
	t.Helper()
	ctx := t.Context()
	run := func(want int, flags []string, args ...string) {
		t.Helper()
		command := []string{}
		if args[0] == "run" { // --once RUN, and what is to be run
			command = append(command, "--", args[len(args)-1])
			args = args[:len(args)-1]
		}
		if code, output := exclusively.run(t, dsn, append(append(args, flags...), command...)...); code != want {
			t.Errorf("exclusive %q ended with %d; want %d: %s", args, code, want, output)
		}
	}
	theirs, ours := randomName(), randomName()+"'"
	must(t, "the library's run", tasks.Do(ctx, ours, nothing))
	run(0, flags, "run", "--name", task, "--once", ours, "false") // done: it does not run
	run(0, flags, "run", "--name", task, "--once", theirs, "true")
	wantErr(t, "the command's run", tasks.Do(ctx, theirs, nothing), exclusive.ErrDone)
	run(1, others, "run", "--name", task, "--once", ours, "false") // it runs there, and fails
	run(0, others, "forget", task, ours)
	wantErr(t, "a run that was forgotten elsewhere", tasks.Do(ctx, ours, nothing), exclusive.ErrDone)
	run(0, flags, "forget", task, ours)
	err := tasks.Do(ctx, ours, func(context.Context, exclusive.Grant) error {
		run(exitBusy, flags, "run", "--name", task, "--once", ours, "true")
		run(1, others, "release", task, "--run", ours)
		run(0, flags, "release", task, "--run", ours)
		run(0, flags, "run", "--name", task, "--once", ours, "true")
		return nil
	})
	wantErr(t, "a run that was freed by force", err, exclusive.ErrFenced)
	wantErr(t, "the run of the command after that", tasks.Do(ctx, ours, nothing), exclusive.ErrDone)
}

func testDifferentKeys(t *testing.T, target *matrix.Target[*sql.Tx], exclusively command) {
	ctx := t.Context()
	dsn := commandDSN(t, target)
	others := []string{"--prefix", "elsewhere_"}
	if code, output := exclusively.run(t, dsn, append([]string{"init"}, others...)...); code != 0 {
		t.Fatalf("init: %d, %s", code, output)
	}
	for range size(20, 2) {
		prefix, schema := randomIdentifier()+"_", ""
		flags := []string{"--prefix", prefix}
		if target.Networked() {
			schema = target.Schema(t, randomIdentifier())
			flags = append(flags, "--schema", schema)
		}
		if code, output := exclusively.run(t, dsn, append([]string{"init"}, flags...)...); code != 0 {
			t.Fatalf("init: %d, %s", code, output)
		}
		x := leasesOn(t, target, fencing.Config{Schema: schema, Prefix: prefix, TTL: forever, NoRenew: true})
		count := func(where, name string) int64 {
			return target.Int(t, "SELECT COUNT(*) FROM "+within(target, schema, prefix+"lease")+" WHERE "+where, []byte(name))
		}
		for range 10 {
			name := randomName()
			lease := acquire(t, x, name)
			must(t, "renew", lease.Renew(ctx))
			if n, others := count("lease_key = ?", name), count("attempt > 0 AND expires_at > 1 AND lease_key <> ?", name); n != 1 || others != 0 {
				t.Errorf("%q: %d rows, and %d others are held", name, n, others)
			}
			must(t, "release", lease.Release(ctx))
			if n := count("expires_at > 1 AND attempt > 0 AND lease_key = ?", name); n != 0 {
				t.Errorf("%q is held after its release", name)
			}
		}
		name := randomName()
		freedBy(t, exclusively, dsn, x, name, flags)
		elsewhereFor(t, exclusively, dsn, x, name, others)
		task := randomName()
		sameRuns(t, exclusively, dsn, tasksOn(t, target, uniquetask.Config{Task: task, Schema: schema, Prefix: prefix, TTL: forever, NoRenew: true}), task, flags, others)
		lease := acquire(t, x, name)
		run := append([]string{"run", "--name", name}, flags...)
		if code, output := exclusively.run(t, dsn, append(run, "--", "true")...); code != exitBusy {
			t.Errorf("%q: the command beside a holder ended with %d: %s", name, code, output)
		}
		must(t, "release", lease.Release(ctx))
		if code, output := exclusively.run(t, dsn, append(run, "--", "true")...); code != 0 {
			t.Errorf("%q: the command on a free name ended with %d: %s", name, code, output)
		}
		after := acquire(t, x, name)
		if after.Grant().Token <= lease.Grant().Token+1 && target.Dialect != "sqlite" && target.Dialect != "mysql" || after.Grant().Attempt != 1 {
			t.Errorf("after the command: %+v; it had the key in between", after.Grant())
		}
		must(t, "release", after.Release(ctx))
		code, output := exclusively.run(t, dsn, "run", "--name", name, "--prefix", "other_", "--", "true")
		if code != exitUnavailable || !strings.Contains(output, "other_") && !strings.Contains(output, "migration") {
			t.Errorf("the command with another prefix ended with %d: %s", code, output)
		}
	}
}

// Tables are made while workers are busy and a transaction sits idle on the tables
// that exist: that does not wait for it, and the workers get on. In the field DDL waited
// behind an abandoned transaction, and everybody else behind the DDL.
// Also: migrations.TestInitBesideWork.
func TestB106_BusyTable(t *testing.T) {
	t.Parallel()
	exclusively := buildCommand(t)
	matrix.Drivers(t,
		func(t *testing.T, target *matrix.Target[pgx.Tx]) { testBusyTable(t, target, exclusively) },
		func(t *testing.T, target *matrix.Target[*sql.Tx]) { testBusyTable(t, target, exclusively) }, "postgres", "mysql", "mariadb")
}

func testBusyTable[Tx any](t *testing.T, target *matrix.Target[Tx], exclusively command) {
	target.Migrate(t, "fencing_lease")
	target.Migrate(t, "fencing_token")
	x := leasesOn(t, target, fencing.Config{TTL: forever})
	idle := session.Begin(t, target.Plain)
	idle.Int("SELECT COUNT(*) FROM exclusive_lease")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var done atomic.Int64
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for ctx.Err() == nil { // at full speed
				if err := x.Do(ctx, fmt.Sprint("worker ", i), nothing); err != nil && ctx.Err() == nil {
					t.Errorf("a worker: %v", err)
					return
				}
				done.Add(1)
			}
		})
	}
	goOn := func(what string) {
		t.Helper()
		before := done.Load()
		await(t, what, func() bool { return done.Load() > before+8 })
	}
	initialize := func(want string) {
		t.Helper()
		// Whoever waited for the idle transaction would not end: it is open throughout.
		if code, output := exclusively.run(t, commandDSN(t, target), "init"); code != 0 || !strings.Contains(output, want) {
			t.Errorf("init ended with %d; want %q: %s", code, want, output)
		}
	}
	goOn("workers before")
	initialize("made ")
	goOn("workers after")
	initialize("there already ")
	goOn("workers in the end")
	stop()
	wg.Wait()
	idle.Rollback()
}

// When the key cannot be had because the backend is away, closed, not permitted or
// without its tables, work does not run and the error says so, never "held" and
// never nil. In the field the result of Lock was ignored or turned into nil, and the
// job ran unlocked on every instance.
func TestB107_NoLockNoWork(t *testing.T) {
	t.Parallel()
	matrix.Drivers(t, testNoLockNoWork[pgx.Tx], testNoLockNoWork[*sql.Tx])
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		o := redisOptions(t)
		nowhere := *o
		nowhere.Addr, nowhere.MaxRetries, nowhere.DialerRetries = "127.0.0.1:1", -1, 1
		stranger := *o
		stranger.Username, stranger.Password = "nobody", "wrong"
		closed := redis.NewClient(o)
		must(t, "close", closed.Close())
		server := rediscluster.Start(t)
		must(t, "ACL", server.Client(t).Do(t.Context(), "ACL", "SETUSER", "powerless", "on", ">pw", "~*", "&*", "-@all").Err())
		powerless := redis.NewClient(&redis.Options{Addr: server.Addr, Username: "powerless", Password: "pw"})
		for name, client := range map[string]*redis.Client{"down": redis.NewClient(&nowhere), "bad_password": redis.NewClient(&stranger), "closed": closed, "denied": powerless} {
			t.Cleanup(func() { _ = client.Close() })
			noWork(t, name, redisLeases(t, client, redisbackend.Config{}), exclusive.ErrUnavailable)
		}
	})
}

func testNoLockNoWork[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	check := func(what string, there *matrix.Target[Tx], kind error, codes ...string) {
		t.Helper()
		xs := named(t, there, "", "")
		jobs := moreJobs(t, there, jobConfig())
		leases := leasesOn(t, there, fencing.Config{})
		guard, err := fencing.NewGuard(there.DB, fencing.GuardConfig{})
		must(t, "guard", err)
		xs["casupdate"], xs["guarded"] = jobs, fencing.Guarded(leases, guard)
		xs["rowlock"] = locksOn(t, there, rowlock.Config{})
		xs["rowlock on rows"] = locksOn(t, there, rowlock.Config{Table: "job", KeyColumns: []string{"id"}})
		if target.Dialect == "sqlite" && what == "no tables" {
			delete(xs, "rowlock") // its lock is the file, and needs no table
		}
		judge := func(call string, err error) {
			t.Helper()
			wantErr(t, what+", "+call, err, kind)
			not(t, what+", "+call, err, exclusive.ErrHeld, exclusive.ErrDone, exclusive.ErrNoRow)
			if code := serverCode(err); codes != nil && !slices.Contains(codes, code) {
				t.Errorf("%s, %s: the server's code is %q in %v; want one of %q", what, call, code, err, codes)
			}
		}
		for name, x := range xs {
			judge(name, noWork(t, what+", "+name, x, kind))
		}
		lease, err := leases.TryAcquire(t.Context(), "k")
		judge("TryAcquire", err)
		if lease != nil {
			t.Errorf("%s: a lease without an acquire", what)
		}
		judge("Transition", jobs.Transition(t.Context(), "k", "PENDING", "DONE"))
		judge("Register", guard.Register(t.Context(), exclusive.Grant{Key: "k", Token: 1, ID: "id"}))
		begun := false // which is the application's affair
		err = inTx(t.Context(), there, func(ctx context.Context, tx Tx) error {
			begun = true
			_, err := guard.Once(ctx, tx, "op", nil, nil2(t))
			judge("Once", err)
			return err
		})
		if err == nil || begun != (what == "no tables" || what == "denied") {
			t.Errorf("%s: a transaction has begun: %v, %v", what, begun, err)
		}
	}
	closed := target.Another(t, matrix.Options{})
	closed.ClosePool()
	check("closed pool", closed, exclusive.ErrUnavailable)
	if !target.Networked() {
		check("no tables", target, exclusive.ErrSchema)
		return
	}
	check("no tables", target, exclusive.ErrSchema, "42P01", "1146")
	check("down", target.Another(t, matrix.Options{Addr: "127.0.0.1:1"}), exclusive.ErrUnavailable)
	check("bad password", target.Another(t, matrix.Options{User: "nobody", Password: "wrong"}), exclusive.ErrUnavailable, "28P01", "28000", "1045")
	target.Migrate(t, "")
	jobsOn(t, target, jobConfig(), "")
	check("denied", reader(t, target, "visible"), exclusive.ErrUnavailable, "42501", "1142")
}

// serverCode is the code of the server's error in err, if there is one.
func serverCode(err error) string {
	var server *mysql.MySQLError
	if errors.As(err, &server) {
		return fmt.Sprint(server.Number)
	}
	return sqlState(err)
}

// reader is target as a role that may read one table, or all if there is no name,
// and do nothing else. The table is made.
func reader[Tx any](t *testing.T, target *matrix.Target[Tx], table string) *matrix.Target[Tx] {
	t.Helper()
	user := fmt.Sprintf("reader%d", rand.IntN(1_000_000_000))
	if table != "" {
		target.MustExec(t, "CREATE TABLE "+table+" (a int)")
	}
	drop := "DROP USER " + user
	if target.Dialect == "postgres" {
		target.MustExec(t, "CREATE ROLE "+user+" LOGIN PASSWORD 'secret'")
		drop = "DROP OWNED BY " + user + "; DROP ROLE " + user
		var schema string
		must(t, "schema", target.Plain.QueryRowContext(t.Context(), "SELECT current_schema()").Scan(&schema))
		target.MustExec(t, "GRANT USAGE ON SCHEMA "+schema+" TO "+user)
		if table == "" {
			target.MustExec(t, "GRANT SELECT ON ALL TABLES IN SCHEMA "+schema+" TO "+user)
			target.MustExec(t, "GRANT SELECT ON ALL SEQUENCES IN SCHEMA "+schema+" TO "+user)
		} else {
			target.MustExec(t, "GRANT SELECT ON "+table+" TO "+user)
		}
	} else {
		target.MustExec(t, "CREATE USER "+user+" IDENTIFIED BY 'secret'")
		var name string
		must(t, "database", target.Plain.QueryRowContext(t.Context(), "SELECT DATABASE()").Scan(&name))
		if table == "" {
			table = "*"
		}
		target.MustExec(t, "GRANT SELECT ON "+name+"."+table+" TO "+user)
	}
	t.Cleanup(func() {
		for statement := range strings.SplitSeq(drop, "; ") {
			if _, err := target.Plain.ExecContext(context.Background(), statement); err != nil {
				t.Error(err)
			}
		}
	})
	return target.Another(t, matrix.Options{User: user, Password: "secret"})
}

// noWork fails if work runs, or the error is one that callers take for fine.
func noWork(t *testing.T, what string, x exclusive.Exclusive, kind error) error {
	t.Helper()
	err := x.Do(t.Context(), "k", func(context.Context, exclusive.Grant) error { t.Errorf("%s: work ran", what); return nil })
	wantErr(t, what, err, kind)
	not(t, what, err, exclusive.ErrHeld, exclusive.ErrDone, exclusive.ErrFinished)
	if l, ok := x.(exclusive.Leaser); ok {
		lease, err := l.Acquire(soon(t), "k") // it waits for holders, not for backends
		wantErr(t, what+", Acquire", err, kind)
		if lease != nil {
			t.Errorf("%s: a lease without an acquire", what)
		}
	}
	return err
}

// A role that may read the tables and not write them is told so before work, on
// every strategy. The cause is that of B107: a claim that is refused for a reason
// other than a holder.
func TestMigrationOwn_ReadOnlyRole(t *testing.T) {
	t.Parallel()
	matrix.Drivers(t, testReadOnlyRole[pgx.Tx], testReadOnlyRole[*sql.Tx], "postgres", "mysql", "mariadb")
}

func testReadOnlyRole[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	target.Migrate(t, "")
	jobsOn(t, target, jobConfig(), "")
	addJob(t, target, "k")
	reader := reader(t, target, "")
	xs := named(t, reader, "", "")
	xs["casupdate"] = moreJobs(t, reader, jobConfig())
	for name, x := range xs {
		err := noWork(t, name, x, exclusive.ErrUnavailable)
		if !strings.Contains(err.Error(), "privileges") {
			t.Errorf("%s: %v does not say what is missing", name, err)
		}
	}
}

// A table that is lost while work runs is told by the end of work, on every
// strategy: never nil for what was not recorded. The cause is that of B107: an end
// whose failure nobody reads.
func TestMigrationOwn_TableLostMeanwhile(t *testing.T) {
	t.Parallel()
	matrix.Drivers(t, strategies.EachAlone(testTableLost[pgx.Tx]), strategies.EachAlone(testTableLost[*sql.Tx]), "postgres", "sqlite")
}

func testTableLost[Tx any](t *testing.T, target *matrix.Target[Tx], s strategies.Strategy[Tx]) {
	if s.Name == "rowlock" || strings.HasSuffix(s.Name, "elsewhere") || strings.HasPrefix(s.Name, "redis") {
		return // its table cannot be dropped under the lock, or is elsewhere
	}
	place := s.SetUp(t, target)
	x := place.New(t, target, exclusivetest.Config{})
	key := place.MustKey(t)
	err := x.Do(t.Context(), key, func(ctx context.Context, g exclusive.Grant) error {
		for _, table := range []string{"exclusive_lease", "exclusive_task", "exclusive_mark", "job"} {
			target.MustExec(t, "ALTER TABLE "+table+" RENAME TO lost_"+table)
		}
		err := x.Commit(ctx, g, func(ctx context.Context, tx Tx) error { return place.Write(ctx, tx, key, "unproven") })
		wantErr(t, "commit", err, exclusive.ErrSchema)
		return nil // overlooked
	})
	if err == nil {
		t.Error("do says nil although its end could not be recorded")
	}
	not(t, "do", err, exclusive.ErrHeld, exclusive.ErrDone)
	if _, n := place.Stored(t, key); n != 0 {
		t.Errorf("%d effects were stored without a proof", n)
	}
}
