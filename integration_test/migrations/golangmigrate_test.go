package migrations_test

import (
	"bytes"
	"database/sql"
	"errors"
	"io/fs"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/database"
	migratemysql "github.com/golang-migrate/migrate/v4/database/mysql"
	migratepgx "github.com/golang-migrate/migrate/v4/database/pgx/v5"
	migratepq "github.com/golang-migrate/migrate/v4/database/postgres"
	migratesqlite "github.com/golang-migrate/migrate/v4/database/sqlite"
	"github.com/golang-migrate/migrate/v4/source/iofs"

	"github.com/exclusive-go/exclusive/migrations"
)

// ourVersions is a version table beside the application's own.
const ourVersions = "exclusive_migrations"

// way is a way to run golang-migrate, which has settings that change how much
// of a file it sends at once.
type way struct {
	name string
	open func(dsn, versions string) (database.Driver, error)
}

// ways has more than one statement at once first, where there is the choice.
var ways = map[string][]way{
	"postgres": {
		{"pgx, cut at semicolons", func(dsn, versions string) (database.Driver, error) {
			return openPool("pgx", dsn, func(pool *sql.DB) (database.Driver, error) {
				return migratepgx.WithInstance(pool, &migratepgx.Config{MigrationsTable: versions, MultiStatementEnabled: true})
			})
		}},
		{"pgx, by URL", func(dsn, versions string) (database.Driver, error) {
			return new(migratepgx.Postgres).Open(strings.Replace(dsn, "postgres:", "pgx5:", 1) + "&x-migrations-table=" + versions)
		}},
		{"lib/pq, cut at semicolons", func(dsn, versions string) (database.Driver, error) {
			return openPool("postgres", dsn, func(pool *sql.DB) (database.Driver, error) {
				return migratepq.WithInstance(pool, &migratepq.Config{MigrationsTable: versions, MultiStatementEnabled: true})
			})
		}},
		{"lib/pq", func(dsn, versions string) (database.Driver, error) {
			return openPool("postgres", dsn, func(pool *sql.DB) (database.Driver, error) {
				return migratepq.WithInstance(pool, &migratepq.Config{MigrationsTable: versions})
			})
		}},
	},
	"mysql":   mysqlWays,
	"mariadb": mysqlWays,
	"sqlite": {
		{"without a transaction", sqliteWay(true)},
		{"in a transaction", sqliteWay(false)},
	},
}

var mysqlWays = []way{
	// golang-migrate adds multiStatements=true to the URL.
	{"by URL", func(dsn, versions string) (database.Driver, error) {
		separator := "?"
		if strings.Contains(dsn, "?") {
			separator = "&"
		}
		return new(migratemysql.Mysql).Open("mysql://" + dsn + separator + "x-migrations-table=" + versions)
	}},
	{"without multiStatements", func(dsn, versions string) (database.Driver, error) {
		return openPool("mysql", dsn, func(pool *sql.DB) (database.Driver, error) {
			return migratemysql.WithInstance(pool, &migratemysql.Config{MigrationsTable: versions})
		})
	}},
}

func sqliteWay(noTx bool) func(dsn, versions string) (database.Driver, error) {
	return func(dsn, versions string) (database.Driver, error) {
		dsn += "?_pragma=" + url.QueryEscape("busy_timeout(20000)")
		return openPool("sqlite", dsn, func(pool *sql.DB) (database.Driver, error) {
			return migratesqlite.WithInstance(pool, &migratesqlite.Config{MigrationsTable: versions, NoTxWrap: noTx})
		})
	}
}

// openPool opens a pool, which the migration's driver closes.
func openPool(driver, dsn string, with func(*sql.DB) (database.Driver, error)) (database.Driver, error) {
	pool, err := sql.Open(driver, dsn)
	if err != nil {
		return nil, err
	}
	d, err := with(pool)
	if err != nil {
		return nil, errors.Join(err, pool.Close())
	}
	return d, nil
}

// migrator runs the files of a folder.
func (w way) migrator(t testing.TB, g *target, files fs.FS, dir, versions string) *migrate.Migrate {
	t.Helper()
	source, err := iofs.New(files, dir)
	must(t, "iofs.New", err)
	driver, err := w.open(g.Address().DSN, versions)
	must(t, "open "+w.name, err)
	m, err := migrate.NewWithInstance("iofs", source, g.Dialect, driver)
	must(t, "migrate.NewWithInstance", err)
	t.Cleanup(func() {
		sourceErr, databaseErr := m.Close()
		must(t, "Close", errors.Join(sourceErr, databaseErr))
	})
	return m
}

// application is the one that the files are added to, with its own versions.
var application = fstest.MapFS{
	"7_result.up.sql":   {Data: []byte("CREATE TABLE result (name varchar(200) PRIMARY KEY)")},
	"7_result.down.sql": {Data: []byte("DROP TABLE result")},
}

// Straight from the module, up and down and up again, beside the application's
// own migrations, with each way to run golang-migrate.
func TestGolangMigrate(t *testing.T) {
	eachDialect(t, func(t *testing.T, g *target) {
		own := ways[g.Dialect][0].migrator(t, g, application, ".", "")
		must(t, "the application's up", own.Up())
		for _, w := range ways[g.Dialect] {
			t.Run(w.name, func(t *testing.T) {
				m := w.migrator(t, g, migrations.FS, g.Dialect, ourVersions)
				before := objects(t, g)
				must(t, "up", m.Up())
				if version, dirty, err := m.Version(); err != nil || dirty || version != 8 {
					t.Errorf("after up: version %d, dirty %v, %v; want 8", version, dirty, err)
				}
				if err := m.Up(); !errors.Is(err, migrate.ErrNoChange) {
					t.Errorf("up again: %v", err)
				}
				work(t, g, names{})
				must(t, "down", m.Down())
				wantObjects(t, g, "after down", before)
				must(t, "up after down", m.Up())
				work(t, g, names{})
				must(t, "down by steps", m.Steps(-8))
				wantObjects(t, g, "after down by steps", before)
			})
		}
		if version, dirty, err := own.Version(); err != nil || dirty || version != 7 {
			t.Errorf("the application's own version is %d, dirty %v, %v; want 7", version, dirty, err)
		}
		must(t, "the application's down", own.Down())
	})
}

// A file fails, as one does that somebody has edited, or because something else
// has the name. What is documented mends it, and loses nothing.
func TestDirty(t *testing.T) {
	eachDialect(t, func(t *testing.T, g *target) {
		w := ways[g.Dialect][len(ways[g.Dialect])-1]
		wrong := copyOf(t, g.Dialect)
		third := wrong["0003_fencing_mark.up.sql"]
		third.Data = bytes.Replace(third.Data, []byte("NOT NULL"), []byte("NOTNULL ("), 1)

		m := w.migrator(t, g, wrong, ".", ourVersions)
		if err := m.Up(); err == nil {
			t.Fatal("a file with a mistake went through")
		}
		wantDirty(t, m, 3)
		if err := m.Up(); !errors.As(err, new(migrate.ErrDirty)) {
			t.Fatalf("up while dirty: %v", err)
		}
		// Nothing of the file that failed is there, and what was before it stays.
		g.MustExec(t, "INSERT INTO exclusive_lease (lease_key, grant_id, holder, token, attempt, acquired_at, expires_at) VALUES (?, 'g', 'h', 41, 0, 0, 0)", []byte("kept"))
		if slices.ContainsFunc(objects(t, g), func(name string) bool { return strings.HasSuffix(name, "exclusive_mark") }) {
			t.Error("the file that failed has left a table")
		}

		// The file is mended, and now something else has the name.
		m = w.migrator(t, g, migrations.FS, g.Dialect, ourVersions)
		g.MustExec(t, "CREATE TABLE exclusive_mark (other integer)")
		must(t, "force", m.Force(2))
		if err := m.Up(); err == nil || !strings.Contains(err.Error(), "exclusive_mark") {
			t.Fatalf("up where another table has the name: %v; want an error with the name", err)
		}
		wantDirty(t, m, 3)
		g.MustExec(t, "DROP TABLE exclusive_mark")
		must(t, "force", m.Force(2))
		must(t, "up", m.Up())
		work(t, g, names{})
		if n := g.Int(t, "SELECT token FROM exclusive_lease WHERE lease_key = ?", []byte("kept")); n != 41 {
			t.Errorf("the row from before has token %d; want 41", n)
		}
	})
}

// The process ends after a table was made and before its version was recorded.
func TestKilled(t *testing.T) {
	eachDialect(t, func(t *testing.T, g *target) {
		w := ways[g.Dialect][len(ways[g.Dialect])-1]
		m := w.migrator(t, g, migrations.FS, g.Dialect, ourVersions)
		must(t, "up to 3", m.Migrate(3))
		g.MustExec(t, "UPDATE "+ourVersions+" SET dirty = (1 = 1)")
		wantDirty(t, m, 3)
		must(t, "force", m.Force(3)) // the table is there
		must(t, "up", m.Up())
		work(t, g, names{})
	})
}

func wantDirty(t testing.TB, m *migrate.Migrate, want uint) {
	t.Helper()
	if version, dirty, err := m.Version(); err != nil || !dirty || version != want {
		t.Fatalf("version %d, dirty %v, %v; want a dirty %d", version, dirty, err, want)
	}
}

// copyOf is a folder with the files of a dialect.
func copyOf(t testing.TB, dialect string) fstest.MapFS {
	t.Helper()
	folder := fstest.MapFS{}
	paths, err := fs.Glob(migrations.FS, dialect+"/*")
	must(t, "Glob", err)
	for _, path := range paths {
		data, err := fs.ReadFile(migrations.FS, path)
		must(t, path, err)
		folder[strings.TrimPrefix(path, dialect+"/")] = &fstest.MapFile{Data: data}
	}
	return folder
}
