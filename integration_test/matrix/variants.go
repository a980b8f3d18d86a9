package matrix

import (
	"context"
	"database/sql"
	"net"
	"net/url"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	_ "github.com/lib/pq"  // registers "postgres"
	_ "modernc.org/sqlite" // registers "sqlite"

	"github.com/exclusive-go/exclusive/db/mysqldb"
	"github.com/exclusive-go/exclusive/db/pgxdb"
	"github.com/exclusive-go/exclusive/db/sqldb"
	"github.com/exclusive-go/exclusive/integration_test/servers"
	"github.com/exclusive-go/exclusive/internal/db"
)

// sqlite is the kind of a target without a server.
const sqlite servers.Kind = "sqlite"

// variant is a driver in one of its modes on a kind of server.
type variant[Tx any] struct {
	name      string
	kind      servers.Kind
	isDefault bool // the one that stands for its driver and server
	open      func(t testing.TB, dsn string, o Options) pool[Tx]
}

// pool is what a variant opens.
type pool[Tx any] struct {
	db    db.DB[Tx]
	inUse func() int
	exec  func(ctx context.Context, tx Tx, query string, args ...any) error
	begin func(ctx context.Context) (Tx, error)
	close func()
}

var pgxVariants = []variant[pgx.Tx]{
	{"pgx", servers.Postgres, true, openPGX(pgx.QueryExecModeCacheStatement)},
	{"pgx_cache_describe", servers.Postgres, false, openPGX(pgx.QueryExecModeCacheDescribe)},
	{"pgx_describe_exec", servers.Postgres, false, openPGX(pgx.QueryExecModeDescribeExec)},
	{"pgx_exec", servers.Postgres, false, openPGX(pgx.QueryExecModeExec)},
	{"pgx_simple_protocol", servers.Postgres, false, openPGX(pgx.QueryExecModeSimpleProtocol)},
}

// mysqlOptions are those of go-sql-driver that could change what a statement
// of ours does or returns, all at once and away from their defaults.
var mysqlOptions = map[string]string{
	"clientFoundRows":   "true",
	"interpolateParams": "true",
	"parseTime":         "true",
	"loc":               "Asia/Tokyo",
}

var sqlVariants = []variant[*sql.Tx]{
	{"pgx_stdlib", servers.Postgres, true, openSQL("pgx", nil)},
	{"lib_pq", servers.Postgres, true, openSQL("postgres", nil)},
	{"mysql", servers.MySQL, true, openSQL("mysql", nil)},
	{"mysql_options", servers.MySQL, false, openSQL("mysql", mysqlOptions)},
	{"mariadb", servers.MariaDB, true, openSQL("mysql", nil)},
	{"mariadb_options", servers.MariaDB, false, openSQL("mysql", mysqlOptions)},
	{"sqlite", sqlite, true, openSQL("sqlite", nil)},
}

func openPGX(mode pgx.QueryExecMode) func(testing.TB, string, Options) pool[pgx.Tx] {
	return func(t testing.TB, dsn string, o Options) pool[pgx.Tx] {
		t.Helper()
		config, err := pgxpool.ParseConfig(withOptions(t, servers.Postgres, dsn, o))
		if err != nil {
			t.Fatal(err)
		}
		config.ConnConfig.DefaultQueryExecMode = mode
		config.MaxConns = int32(o.MaxConns)
		if o.NoPing {
			config.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
		}
		p, err := pgxpool.NewWithConfig(context.Background(), config)
		if err != nil {
			t.Fatal(err)
		}
		return pool[pgx.Tx]{
			db:    pgxdb.New(p),
			inUse: func() int { return int(p.Stat().AcquiredConns()) },
			exec: func(ctx context.Context, tx pgx.Tx, query string, args ...any) error {
				_, err := tx.Exec(ctx, query, args...)
				return err
			},
			begin: p.Begin,
			close: p.Close,
		}
	}
}

func openSQL(driver string, params map[string]string) func(testing.TB, string, Options) pool[*sql.Tx] {
	kinds := map[string]servers.Kind{"pgx": servers.Postgres, "postgres": servers.Postgres, "mysql": servers.MySQL, "sqlite": sqlite}
	adapters := map[servers.Kind]func(*sql.DB) db.DB[*sql.Tx]{
		servers.Postgres: func(p *sql.DB) db.DB[*sql.Tx] { return sqldb.NewPostgres(p) },
		servers.MySQL:    func(p *sql.DB) db.DB[*sql.Tx] { return mysqldb.New(p) },
		sqlite:           func(p *sql.DB) db.DB[*sql.Tx] { return sqldb.NewSQLite(p) },
	}
	kind := kinds[driver]
	return func(t testing.TB, dsn string, o Options) pool[*sql.Tx] {
		t.Helper()
		for name, value := range params {
			dsn = servers.WithParam(dsn, name, value)
		}
		p := openPool(t, driver, withOptions(t, kind, dsn, o), o)
		p.SetMaxOpenConns(o.MaxConns)
		p.SetMaxIdleConns(o.MaxConns)
		return pool[*sql.Tx]{
			db:    adapters[kind](p),
			inUse: func() int { return p.Stats().InUse },
			exec: func(ctx context.Context, tx *sql.Tx, query string, args ...any) error {
				_, err := tx.ExecContext(ctx, query, args...)
				return err
			},
			begin: func(ctx context.Context) (*sql.Tx, error) { return p.BeginTx(ctx, nil) },
			close: func() {
				if err := p.Close(); err != nil {
					t.Error(err)
				}
			},
		}
	}
}

// logger is a log of the driver.
type logger func(v ...any)

// Print implements mysql.Logger.
func (l logger) Print(v ...any) { l(v...) }

func openPool(t testing.TB, driver, dsn string, o Options) *sql.DB {
	t.Helper()
	switch driver {
	case "pgx":
		config, err := pgx.ParseConfig(dsn)
		if err != nil {
			t.Fatal("the DSN of the tests is not one of pgx")
		}
		var options []stdlib.OptionOpenDB
		if o.NoPing {
			options = append(options, stdlib.OptionShouldPing(func(context.Context, stdlib.ShouldPingParams) bool { return false }))
		}
		return stdlib.OpenDB(*config, options...)
	case "mysql":
		config, err := mysql.ParseDSN(dsn)
		if err != nil {
			t.Fatal("the DSN of the tests is not one of go-sql-driver/mysql")
		}
		config.Logger = &mysql.NopLogger{} // the tests break connections all the time
		if o.Log != nil {
			config.Logger = logger(o.Log)
		}
		connector, err := mysql.NewConnector(config)
		if err != nil {
			t.Fatal(err)
		}
		return sql.OpenDB(connector)
	}
	p, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// openPlain opens the pool that tests look at the database with.
func openPlain(t testing.TB, kind servers.Kind, dsn string) *sql.DB {
	t.Helper()
	driver := map[servers.Kind]string{servers.Postgres: "pgx", servers.MySQL: "mysql", servers.MariaDB: "mysql", sqlite: "sqlite"}[kind]
	p := openPool(t, driver, withOptions(t, kind, dsn, Options{}), Options{})
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// withOptions is the DSN that the options make out of dsn.
func withOptions(t testing.TB, kind servers.Kind, dsn string, o Options) string {
	t.Helper()
	switch kind {
	case sqlite:
		dsn += "?_pragma=journal_mode(WAL)&_pragma=busy_timeout(5000)"
	case servers.Postgres:
		u, err := url.Parse(dsn)
		if err != nil {
			t.Fatal("the DSN of the tests is not a URL")
		}
		if o.Addr != "" {
			u.Host = o.Addr
		}
		if o.User != "" {
			u.User = url.UserPassword(o.User, o.Password)
		}
		dsn = u.String()
	default:
		config, err := mysql.ParseDSN(dsn)
		if err != nil {
			t.Fatal("the DSN of the tests is not one of go-sql-driver/mysql")
		}
		if o.Addr != "" {
			config.Addr = o.Addr
		}
		if o.User != "" {
			config.User, config.Passwd = o.User, o.Password
		}
		dsn = config.FormatDSN()
	}
	for name, value := range o.Params {
		dsn = servers.WithParam(dsn, name, value)
	}
	return dsn
}

func addr(t testing.TB, kind servers.Kind, dsn string) string {
	t.Helper()
	switch kind {
	case servers.Postgres:
		u, err := url.Parse(dsn)
		if err != nil {
			t.Fatal("the DSN of the tests is not a URL")
		}
		if u.Port() == "" {
			return net.JoinHostPort(u.Hostname(), "5432")
		}
		return u.Host
	case servers.MySQL, servers.MariaDB:
		config, err := mysql.ParseDSN(dsn)
		if err != nil {
			t.Fatal("the DSN of the tests is not one of go-sql-driver/mysql")
		}
		return config.Addr
	default:
		t.Fatal("SQLite has no address")
		return ""
	}
}
