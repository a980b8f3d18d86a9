package servers

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
	"github.com/redis/go-redis/v9"
)

// shared holds the one server of each kind that this process uses.
var shared = func() map[Kind]func() (*Server, error) {
	m := make(map[Kind]func() (*Server, error))
	for _, kind := range Kinds() {
		m[kind] = sync.OnceValues(func() (*Server, error) {
			// Not bounded by the test that happens to be the first.
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
			defer cancel()
			return Start(ctx, kind)
		})
	}
	return m
}()

// Shared returns the server of this kind that all tests of the process share. A
// test must not stop it, flush it or change its settings. Without a server the
// test is skipped, or fails where EXCLUSIVE_TEST_REQUIRE asks for one.
func Shared(t testing.TB, kind Kind) *Server {
	t.Helper()
	start, ok := shared[kind]
	if !ok {
		t.Fatalf("unknown kind of server %q: use one of %v", kind, Kinds())
	}
	s, err := start()
	if err != nil {
		skipOrFail(t, kind, err)
	}
	return s
}

func skipOrFail(t testing.TB, kind Kind, err error) {
	t.Helper()
	required, requireErr := Required(kind)
	switch {
	case requireErr != nil:
		t.Fatal(requireErr)
	case required || !errors.As(err, new(*MissingError)):
		t.Fatal(err)
	default:
		t.Skip(err)
	}
}

// Database returns a DSN of a fresh database on the shared server that this test
// has for itself, dropped when it ends. So tests can run in parallel. On PostgreSQL
// it is a schema, which costs a tenth of a database there: the DSN's search path
// names it, and so does its application name, which tells the test's sessions from
// those of others.
//
// The DSN is a URL for [Postgres] (as pgx and lib/pq take it) and in the format of
// go-sql-driver for [MySQL] and [MariaDB]; see [WithParam]. Redis has no databases
// to make: use [Prefix].
func Database(t testing.TB, kind Kind) string {
	t.Helper()
	if kind == Redis {
		t.Fatal("Redis has no databases to make: use servers.Prefix")
	}
	dsn, drop := Lasting(t, kind)
	t.Cleanup(func() {
		if err := drop(); err != nil {
			t.Errorf("dropping the database of this test on %s: %v", kind, err)
		}
	})
	return dsn
}

// Own is Database on a server that the test has for itself, that was started with the
// options beside the usual ones, and whose settings it may change. It is never one of the environment: where there is no other source the test
// is skipped, or fails as with [Shared].
func Own(t testing.TB, kind Kind, options ...string) (dsn string) {
	t.Helper()
	sources, err := sourcesFromEnv()
	if err != nil {
		t.Fatal(err)
	}
	sources = slices.DeleteFunc(sources, func(s Source) bool { return s == Env })
	if len(sources) == 0 {
		t.Skip("EXCLUSIVE_TEST_SOURCES allows no server but those of the environment")
	}
	// The first one may have to be downloaded.
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	server, err := startFrom(ctx, kind, sources, options...)
	if err != nil {
		skipOrFail(t, kind, err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Errorf("ending the %s of this test: %v", kind, err)
		}
	})
	name := newName()
	if err := administer(server, createDatabase, name); err != nil {
		t.Fatalf("creating a database on %s: %v", kind, err)
	}
	if dsn, err = withDatabase(server, name); err != nil {
		t.Fatal(err)
	}
	return dsn
}

// newName is the name of a database that nobody has used.
func newName() string { return "test_" + strings.ToLower(rand.Text()[:16]) }

// Lasting is Database for several tests: whoever knows the last one calls drop.
func Lasting(t testing.TB, kind Kind) (dsn string, drop func() error) {
	t.Helper()
	server := Shared(t, kind)
	name := newName()
	if err := administer(server, createDatabase, name); err != nil {
		t.Fatalf("creating a database on %s: %v", kind, err)
	}
	dsn, err := withDatabase(server, name)
	if err != nil {
		t.Fatal(err)
	}
	return dsn, func() error { return administer(server, dropDatabase, name) }
}

// administer uses a connection of its own, so that none is left for a leak check
// of the test to find.
func administer(server *Server, do func(context.Context, *sql.DB, Kind, string) error, name string) (err error) {
	driver := "mysql"
	if server.Kind == Postgres {
		driver = "pgx"
	}
	db, err := sql.Open(driver, server.DSN)
	if err != nil {
		return redact(err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return do(ctx, db, server.Kind, name)
}

func createDatabase(ctx context.Context, db *sql.DB, kind Kind, name string) error {
	if kind != Postgres {
		_, err := db.ExecContext(ctx, "CREATE DATABASE "+name)
		return err
	}
	_, err := db.ExecContext(ctx, "CREATE SCHEMA "+name)
	if err == nil { // as every role may use the schema public of a database
		_, err = db.ExecContext(ctx, "GRANT USAGE ON SCHEMA "+name+" TO PUBLIC")
	}
	return err
}

// dropDatabase also ends the connections that a test has left: the drop would wait
// for their transactions.
func dropDatabase(ctx context.Context, db *sql.DB, kind Kind, name string) error {
	if kind == Postgres {
		_, err := db.ExecContext(ctx, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1", name)
		if err == nil {
			_, err = db.ExecContext(ctx, "DROP SCHEMA "+name+" CASCADE")
		}
		return err
	}
	if err := killConnections(ctx, db, kind, name); err != nil {
		return err
	}
	_, err := db.ExecContext(ctx, "DROP DATABASE "+name)
	return err
}

// Processlist is the table of a MySQL's or MariaDB's sessions. That of
// information_schema fails on MySQL (error 3854) while anybody runs a statement with
// bytes that are no UTF-8 of three bytes at most.
func Processlist(kind Kind) string {
	if kind == MySQL {
		return "performance_schema.processlist"
	}
	return "information_schema.processlist"
}

func killConnections(ctx context.Context, db *sql.DB, kind Kind, database string) error {
	rows, err := db.QueryContext(ctx, "SELECT id FROM "+Processlist(kind)+" WHERE db = ?", database)
	if err != nil {
		return err
	}
	defer rows.Close()
	var ids []int64
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			return err
		}
		ids = append(ids, id)
	}
	if err := rows.Err(); err != nil {
		return err
	}
	for _, id := range ids {
		const noSuchThread = 1094 // it has ended by itself
		_, err := db.ExecContext(ctx, fmt.Sprintf("KILL %d", id))
		if mysqlErr := new(mysql.MySQLError); err != nil && !(errors.As(err, &mysqlErr) && mysqlErr.Number == noSuchThread) {
			return err
		}
	}
	return nil
}

func withDatabase(server *Server, name string) (string, error) {
	if server.Kind == Postgres {
		return WithParam(WithParam(server.DSN, "search_path", name), "application_name", name), nil
	}
	config, err := mysql.ParseDSN(server.DSN)
	if err != nil {
		return "", err
	}
	config.DBName = name
	return config.FormatDSN(), nil
}

// WithParam sets a parameter of a DSN of any kind.
func WithParam(dsn, name, value string) string {
	base, query, _ := strings.Cut(dsn[strings.LastIndex(dsn, "/")+1:], "?")
	params := slices.DeleteFunc(strings.Split(query, "&"), func(param string) bool {
		return param == "" || strings.HasPrefix(param, name+"=")
	})
	params = append(params, name+"="+strings.ReplaceAll(url.QueryEscape(value), "+", "%20"))
	return dsn[:strings.LastIndex(dsn, "/")+1] + base + "?" + strings.Join(params, "&")
}

// Prefix returns a client of the shared Redis and a prefix that this test has for
// its keys, which are deleted when it ends.
func Prefix(t testing.TB) (*redis.Client, string) {
	t.Helper()
	options, err := redis.ParseURL(Shared(t, Redis).DSN)
	if err != nil {
		t.Fatal(redact(err))
	}
	client := redis.NewClient(options)
	prefix := "test:" + strings.ToLower(rand.Text()[:16]) + ":"
	t.Cleanup(func() {
		if err := errors.Join(deleteKeys(client, prefix), client.Close()); err != nil {
			t.Errorf("deleting the keys of this test: %v", err)
		}
	})
	return client, prefix
}

func deleteKeys(client *redis.Client, prefix string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for cursor := uint64(0); ; {
		keys, next, err := client.Scan(ctx, cursor, prefix+"*", 1000).Result()
		if err == nil && len(keys) > 0 {
			err = client.Unlink(ctx, keys...).Err()
		}
		if err != nil || next == 0 {
			return err
		}
		cursor = next
	}
}
