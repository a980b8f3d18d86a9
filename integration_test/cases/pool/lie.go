package pool

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib" // registers "pgx"
	_ "modernc.org/sqlite"             // registers "sqlite"
)

// Lie is a driver of database/sql that runs a statement, and then says that the
// connection is bad: drivers must say that only of a statement that did not run,
// since database/sql sends it again.
type Lie struct {
	mu    sync.Mutex
	words []string // of the statement to lie about; nil = none
	then  func()   // what comes after it
	told  bool
}

// Arm makes it lie about the next statement that has all words.
func (l *Lie) Arm(words ...string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.words, l.then, l.told = words, nil, false
}

// Then has f called between that statement and the lie.
func (l *Lie) Then(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.then = f
}

// Told reports whether it has lied since Arm.
func (l *Lie) Told() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.told
}

func (l *Lie) about(query string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, word := range l.words {
		if !strings.Contains(query, word) {
			return false
		}
	}
	if l.words == nil {
		return false
	}
	l.words, l.told = nil, true
	if l.then != nil {
		l.then()
	}
	return true
}

// Connector connects to a database of the dialect.
func (l *Lie) Connector(t testing.TB, dialect, dsn string) driver.Connector {
	t.Helper()
	name := map[string]string{"postgres": "pgx", "sqlite": "sqlite", "mysql": "mysql", "mariadb": "mysql"}[dialect]
	if name == "sqlite" {
		dsn += "?_pragma=busy_timeout(5000)"
	}
	if name == "mysql" {
		config, err := mysql.ParseDSN(dsn)
		if err != nil {
			t.Fatal("the DSN of the tests is not one of go-sql-driver/mysql")
		}
		config.Logger = &mysql.NopLogger{}
		connector, err := mysql.NewConnector(config)
		if err != nil {
			t.Fatal(err)
		}
		return lyingConnector{connector.Driver(), connector.Connect, l}
	}
	p, err := sql.Open(name, dsn)
	if err != nil {
		t.Fatal(err)
	}
	d := p.Driver()
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	return lyingConnector{d, func(context.Context) (driver.Conn, error) { return d.Open(dsn) }, l}
}

type lyingConnector struct {
	driver  driver.Driver
	connect func(context.Context) (driver.Conn, error)
	lie     *Lie
}

func (c lyingConnector) Driver() driver.Driver { return c.driver }

func (c lyingConnector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.connect(ctx)
	if err != nil {
		return nil, err
	}
	full, ok := conn.(fullConn)
	if !ok {
		return nil, errors.Join(errors.New("the driver lacks methods that this wrapper needs"), conn.Close())
	}
	return lyingConn{full, c.lie}, nil
}

// fullConn is what the drivers of the tests implement.
type fullConn interface {
	driver.Conn
	driver.ExecerContext
	driver.QueryerContext
	driver.ConnBeginTx
	driver.ConnPrepareContext
}

type lyingConn struct {
	fullConn
	lie *Lie
}

// ExecContext implements driver.ExecerContext.
func (c lyingConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	res, err := c.fullConn.ExecContext(ctx, query, args)
	if err == nil && c.lie.about(query) {
		return nil, driver.ErrBadConn
	}
	return res, err
}

// QueryContext implements driver.QueryerContext.
func (c lyingConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	rows, err := c.fullConn.QueryContext(ctx, query, args)
	if err != nil || !c.lie.about(query) {
		return rows, err
	}
	row := make([]driver.Value, len(rows.Columns()))
	for err == nil { // run it to its end
		err = rows.Next(row)
	}
	if closeErr := rows.Close(); !errors.Is(err, io.EOF) || closeErr != nil {
		return nil, errors.Join(err, closeErr)
	}
	return nil, driver.ErrBadConn
}
