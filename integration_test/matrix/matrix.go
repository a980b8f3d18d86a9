// Package matrix runs a test on every driver and server that the strategies
// support, each time on a fresh database.
//
// Tests are generic functions, since an adapter's transaction type is part of
// its type, and are named twice, once for each transaction type:
//
//	func TestAcquire(t *testing.T) { matrix.Each(t, testAcquire, testAcquire) }
//
//	func testAcquire[Tx any](t *testing.T, target *matrix.Target[Tx]) { … }
package matrix

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/exclusive-go/exclusive/integration_test/servers"
	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/migrations"
)

// Target is an adapter on a database that the test has for itself.
type Target[Tx any] struct {
	// Name is unique and made for the names of subtests.
	Name string

	// Dialect is what the server speaks: the folder in migrations.FS.
	Dialect string

	// DB is the adapter under test.
	DB db.DB[Tx]

	// Shared says that other tests have the same database: see Shared.
	Shared bool

	// Plain is another pool of connections to the same database, to look at
	// tables and to play other sessions.
	Plain *sql.DB

	// InUse is the number of connections of DB that are in use.
	InUse func() int

	// Exec runs a statement in a transaction as an application does, past the
	// adapter. Its placeholders are the dialect's.
	Exec func(ctx context.Context, tx Tx, query string, args ...any) error

	// BeginPast begins a transaction as an application does, past the adapter.
	BeginPast func(ctx context.Context) (Tx, error)

	// ClosePool closes the pool of DB. It is closed at the test's end anyway.
	ClosePool func()

	variant variant[Tx]
	dsn     string
}

// Long reports whether tests are to be as large as what they stand for, and may take
// long: if EXCLUSIVE_TEST_LONG is set.
func Long() bool { return os.Getenv("EXCLUSIVE_TEST_LONG") != "" }

// Options change how a pool of a target is opened.
type Options struct {
	// Addr is a host and port in place of the server's: a proxy, or nobody.
	Addr string
	// User and Password replace those of the tests, if User is not empty.
	User, Password string
	// Params are added to the DSN: settings of the session or of the driver.
	Params map[string]string
	// MaxConns is the size of the pool; 0 = 10.
	MaxConns int
	// NoPing: no driver asks a connection that was idle for a second whether it
	// lives, which pgx does. For tests that count round trips.
	NoPing bool
	// Log is given what the driver of MySQL and MariaDB logs. nil: nobody is.
	Log func(v ...any)
}

// Each runs a test on every target: all drivers, in all their modes, on all
// servers, or on those that speak one of the dialects if any are named. The
// subtests are parallel. A test that is nil is left out.
func Each(t *testing.T, onPGX func(*testing.T, *Target[pgx.Tx]), onSQL func(*testing.T, *Target[*sql.Tx]), dialects ...string) {
	t.Helper()
	run(t, pgxVariants, onPGX, false, newTarget, dialects)
	run(t, sqlVariants, onSQL, false, newTarget, dialects)
}

// Drivers is Each with the default mode of each driver on each server only.
func Drivers(t *testing.T, onPGX func(*testing.T, *Target[pgx.Tx]), onSQL func(*testing.T, *Target[*sql.Tx]), dialects ...string) {
	t.Helper()
	run(t, pgxVariants, onPGX, true, newTarget, dialects)
	run(t, sqlVariants, onSQL, true, newTarget, dialects)
}

// Shared is Drivers with one database on each server for all such tests of the
// process, except on SQLite: for tests that keep to keys of their own and leave
// the tables as they are. Call DropShared after the last one.
func Shared(t *testing.T, onPGX func(*testing.T, *Target[pgx.Tx]), onSQL func(*testing.T, *Target[*sql.Tx]), dialects ...string) {
	t.Helper()
	run(t, pgxVariants, onPGX, true, sharedTarget, dialects)
	run(t, sqlVariants, onSQL, true, sharedTarget, dialects)
}

func run[Tx any](t *testing.T, variants []variant[Tx], test func(*testing.T, *Target[Tx]), defaults bool, target func(testing.TB, variant[Tx]) *Target[Tx], dialects []string) {
	t.Helper()
	for _, v := range variants {
		if test == nil || defaults && !v.isDefault || len(dialects) > 0 && !slices.Contains(dialects, string(v.kind)) {
			continue
		}
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			test(t, target(t, v))
		})
	}
}

// On makes one target of database/sql by itself: the default driver on a fresh
// database of the dialect, for what a test needs beside its own target.
func On(t testing.TB, dialect string) *Target[*sql.Tx] {
	t.Helper()
	return on(t, dialect, newTarget)
}

// SharedOn is On with the database of Shared.
func SharedOn(t testing.TB, dialect string) *Target[*sql.Tx] {
	t.Helper()
	return on(t, dialect, sharedTarget)
}

func on(t testing.TB, dialect string, target func(testing.TB, variant[*sql.Tx]) *Target[*sql.Tx]) *Target[*sql.Tx] {
	t.Helper()
	i := slices.IndexFunc(sqlVariants, func(v variant[*sql.Tx]) bool { return string(v.kind) == dialect && v.isDefault })
	if i < 0 {
		t.Fatalf("no driver for %q", dialect)
	}
	return target(t, sqlVariants[i])
}

func newTarget[Tx any](t testing.TB, v variant[Tx]) *Target[Tx] {
	t.Helper()
	dsn := ""
	if v.kind == sqlite {
		dsn = "file:" + path.Join(t.TempDir(), "test.db")
	} else {
		dsn = servers.Database(t, v.kind)
	}
	return openTarget(t, v, dsn)
}

// shared are the databases of Shared.
var shared = struct {
	sync.Mutex
	dsns  map[servers.Kind]string
	drops []func() error
}{dsns: make(map[servers.Kind]string)}

func sharedTarget[Tx any](t testing.TB, v variant[Tx]) *Target[Tx] {
	t.Helper()
	if v.kind == sqlite {
		return newTarget(t, v)
	}
	shared.Lock()
	defer shared.Unlock()
	dsn, ok := shared.dsns[v.kind]
	if !ok {
		var drop func() error
		dsn, drop = servers.Lasting(t, v.kind)
		shared.dsns[v.kind] = dsn
		shared.drops = append(shared.drops, drop)
	}
	target := openTarget(t, v, dsn)
	target.Shared = true
	return target
}

// DropShared drops the databases of Shared.
func DropShared() error {
	shared.Lock()
	defer shared.Unlock()
	var errs []error
	for _, drop := range shared.drops {
		errs = append(errs, drop())
	}
	clear(shared.dsns)
	shared.drops = nil
	return errors.Join(errs...)
}

func openTarget[Tx any](t testing.TB, v variant[Tx], dsn string) *Target[Tx] {
	t.Helper()
	target := &Target[Tx]{variant: v, dsn: dsn}
	target.Plain = openPlain(t, v.kind, dsn)
	target.open(t, Options{})
	return target
}

// Fresh makes a target of the same driver, in the same mode, with a database of
// its own.
func (g *Target[Tx]) Fresh(t testing.TB) *Target[Tx] {
	t.Helper()
	return newTarget(t, g.variant)
}

// Address is what another process needs to Join a target.
type Address struct{ Name, DSN string }

// Address of the target.
func (g *Target[Tx]) Address() Address { return Address{g.Name, g.dsn} }

// Join runs a test on a target that another process has made.
func Join(t *testing.T, at Address, onPGX func(*testing.T, *Target[pgx.Tx]), onSQL func(*testing.T, *Target[*sql.Tx])) {
	t.Helper()
	if !join(t, pgxVariants, at, onPGX) && !join(t, sqlVariants, at, onSQL) {
		t.Fatalf("no driver %q", at.Name)
	}
}

func join[Tx any](t *testing.T, variants []variant[Tx], at Address, test func(*testing.T, *Target[Tx])) bool {
	t.Helper()
	i := slices.IndexFunc(variants, func(v variant[Tx]) bool { return v.name == at.Name })
	if i < 0 {
		return false
	}
	test(t, openTarget(t, variants[i], at.DSN))
	return true
}

// OnSQL opens a target of On that another process has made.
func OnSQL(t testing.TB, at Address) *Target[*sql.Tx] {
	t.Helper()
	i := slices.IndexFunc(sqlVariants, func(v variant[*sql.Tx]) bool { return v.name == at.Name })
	if i < 0 {
		t.Fatalf("no driver %q", at.Name)
	}
	return openTarget(t, sqlVariants[i], at.DSN)
}

// Another opens one more pool on the same database, with the same driver in
// the same mode: another process, or the same server seen through a proxy.
// Nothing is sent before the pool is used.
func (g *Target[Tx]) Another(t testing.TB, o Options) *Target[Tx] {
	t.Helper()
	another := &Target[Tx]{variant: g.variant, dsn: g.dsn, Plain: g.Plain, Shared: g.Shared}
	another.open(t, o)
	return another
}

func (g *Target[Tx]) open(t testing.TB, o Options) {
	t.Helper()
	if o.MaxConns == 0 {
		o.MaxConns = 10
	}
	pool := g.variant.open(t, g.dsn, o)
	g.Name, g.Dialect = g.variant.name, string(g.variant.kind)
	g.DB, g.InUse, g.Exec, g.BeginPast, g.ClosePool = pool.db, pool.inUse, pool.exec, pool.begin, pool.close
	t.Cleanup(g.ClosePool)
}

// Networked reports whether there is a server on the other end of a
// connection, and none of SQLite's files.
func (g *Target[Tx]) Networked() bool { return g.variant.kind != sqlite }

// Addr is the server's host and port.
func (g *Target[Tx]) Addr(t testing.TB) string {
	t.Helper()
	return addr(t, g.variant.kind, g.dsn)
}

// Migrate applies the migrations whose file names have the given part, all if
// it is empty.
func (g *Target[Tx]) Migrate(t testing.TB, part string) {
	t.Helper()
	names, err := fs.Glob(migrations.FS, g.Dialect+"/*.up.sql")
	if err != nil || len(names) == 0 {
		t.Fatalf("no migrations for %s: %v", g.Dialect, err)
	}
	for _, name := range names {
		if !strings.Contains(name, part) {
			continue
		}
		statement, err := fs.ReadFile(migrations.FS, name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := g.Plain.ExecContext(t.Context(), string(statement)); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
}

// Schema makes a schema beside the test's own, on MySQL and MariaDB a database, and
// returns its name: the given one, odd as it may be, and what makes it unique.
func (g *Target[Tx]) Schema(t testing.TB, name string) string {
	t.Helper()
	name += "-" + strings.ToLower(rand.Text()[:8])
	quoted, cascade := `"`+name+`"`, " CASCADE"
	if g.variant.kind != servers.Postgres {
		quoted, cascade = "`"+name+"`", ""
	}
	g.MustExec(t, "CREATE SCHEMA "+quoted)
	t.Cleanup(func() {
		if _, err := g.Plain.ExecContext(context.Background(), "DROP SCHEMA "+quoted+cascade); err != nil {
			t.Error(err)
		}
	})
	return name
}

// Isolated is Another whose sessions have an isolation level by default, named as
// SQL does: "read committed", and settings of their own beside it.
func (g *Target[Tx]) Isolated(t testing.TB, level string, settings ...map[string]string) *Target[Tx] {
	t.Helper()
	params := make(map[string]string)
	switch g.variant.kind {
	case servers.Postgres:
		params["default_transaction_isolation"] = level
	case servers.MySQL:
		params["transaction_isolation"] = quoted(level)
	case servers.MariaDB:
		params["tx_isolation"] = quoted(level)
	default:
		t.Fatalf("the isolation level of %s is not a setting", g.Dialect)
	}
	for _, s := range settings {
		maps.Copy(params, s)
	}
	return g.Another(t, Options{Params: params})
}

// quoted is an isolation level as the setting of MySQL and MariaDB takes it.
func quoted(level string) string {
	return "'" + strings.ToUpper(strings.ReplaceAll(level, " ", "-")) + "'"
}

// Idle waits until no connection of DB is in use: drivers close broken ones in the
// background.
func (g *Target[Tx]) Idle(t testing.TB) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); g.InUse() != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d connections are still in use", g.InUse())
		}
	}
}

// Bind writes question marks as the dialect's placeholders.
func (g *Target[Tx]) Bind(query string) string {
	if g.variant.kind == servers.Postgres {
		return db.Postgres.Bind(query)
	}
	return query
}

// MustExec runs a statement with Plain. Its placeholders are question marks.
func (g *Target[Tx]) MustExec(t testing.TB, query string, args ...any) {
	t.Helper()
	if _, err := g.Plain.ExecContext(t.Context(), g.Bind(query), args...); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

// Int is the only value of a query with Plain. Its placeholders are question
// marks.
func (g *Target[Tx]) Int(t testing.TB, query string, args ...any) int64 {
	t.Helper()
	var n int64
	if err := g.Plain.QueryRowContext(t.Context(), g.Bind(query), args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}
