// Package target opens the database that a command's user names by a URL, and
// keeps what is secret in that URL out of every message.
package target

import (
	"cmp"
	"context"
	"crypto/tls"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"
	_ "modernc.org/sqlite" // registers "sqlite"

	"github.com/exclusive-go/exclusive/cmd/exclusive/internal/product"
	"github.com/exclusive-go/exclusive/db/mysqldb"
	"github.com/exclusive-go/exclusive/db/sqldb"
	"github.com/exclusive-go/exclusive/internal/db"
)

// Forms says how each kind of database is named, and SQLForms those of SQL.
const (
	SQLForms = `postgres://user:password@host:5432/database
mysql://user:password@host:3306/database
mariadb://user:password@host:3306/database
sqlite:///path/to/file.db`
	Forms = SQLForms + `
redis://user:password@host:6379/0`
)

// AnswerWait is how long a database may take to answer when it is opened: a server
// that hangs, and what stands in front of one, may accept a connection and say nothing.
const AnswerWait = 30 * time.Second

// quiet keeps what go-redis would write to standard error, where it does not
// belong: what goes wrong is returned, too.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

func init() { redis.SetLogger(quiet{}) }

// Target is a database that can be opened. Parsing it has sent nothing.
type Target struct {
	// Create has a file of SQLite made that is not there: otherwise a name with a
	// mistake in it would be a new, empty database.
	Create bool

	// Flags name it and the tables in it, for commands that messages tell to run.
	Flags []string

	// AnswerWait bounds how long Open waits for an answer. 0 stands for the constant.
	AnswerWait time.Duration

	secrets  []string
	postgres *pgx.ConnConfig
	mysql    *mysql.Config
	sqlite   string
	file     string // of sqlite
	redis    *redis.Options

	saysBusyTimeout bool
}

// Parse reads a URL in one of the [Forms]. Its errors do not quote the URL.
func Parse(dsn string) (*Target, error) {
	scheme, rest, ok := strings.Cut(dsn, "://")
	if !ok {
		return nil, errors.New("the DSN names no kind of database; write it as " + oneOf)
	}
	switch scheme {
	case "postgres", "postgresql":
		return ParsePostgres(dsn)
	case "mysql", "mariadb":
		return ParseMySQL(dsn)
	case "sqlite":
		return parseSQLite(rest)
	case "redis", "rediss":
		options, err := redis.ParseURL(dsn)
		if err != nil {
			return nil, invalid("Redis", "redis://user:password@host:6379/0", dsn, err)
		}
		return &Target{redis: options, secrets: secrets(dsn, options.Password)}, nil
	}
	return nil, errors.New("the DSN is of no kind that is known; write it as " + oneOf)
}

// oneOf is Forms in one line, as messages are.
var oneOf = strings.ReplaceAll(Forms, "\n", " or ")

// IsRedis tells a database of Redis from those of SQL, before it is opened.
func (t *Target) IsRedis() bool { return t.redis != nil }

// ParsePostgres reads a DSN of PostgreSQL in each of the forms that libpq takes.
func ParsePostgres(dsn string) (*Target, error) {
	config, err := pgx.ParseConfig(dsn)
	if err != nil || dsn == "" || cutShort(dsn) {
		return nil, invalid("PostgreSQL", "postgres://user:password@host:5432/database", dsn, err)
	}
	return &Target{postgres: config, secrets: secrets(dsn, config.Password)}, nil
}

// ParseMySQL reads a DSN of MySQL or MariaDB, as a URL or in the form of
// go-sql-driver. Parameters are those of that driver.
func ParseMySQL(dsn string) (*Target, error) {
	const form = "mysql://user:password@host:3306/database or user:password@tcp(host:3306)/database"
	native := dsn
	if strings.Contains(strings.SplitN(dsn, "@", 2)[0], "://") {
		u, err := url.Parse(dsn)
		if err != nil || u.Scheme != "mysql" && u.Scheme != "mariadb" || u.Hostname() == "" || cutShort(dsn) {
			return nil, invalid("MySQL", form, dsn, err)
		}
		password, _ := u.User.Password()
		host := mysql.NewConfig()
		host.User, host.Passwd, host.Net = u.User.Username(), password, "tcp"
		host.Addr = net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "3306"))
		host.DBName = strings.TrimPrefix(u.Path, "/")
		native = host.FormatDSN()
		if u.RawQuery != "" {
			native += separator(native) + u.RawQuery
		}
	}
	config, err := mysql.ParseDSN(native)
	if err != nil {
		return nil, invalid("MySQL", form, dsn, err)
	}
	if config.DBName == "" {
		return nil, errors.New("the DSN names no database; it ends in /database")
	}
	for name := range config.Params {
		// The driver makes SET statements of what it does not know. This one sets the
		// account's password, or is refused by a message that quotes it.
		if strings.EqualFold(name, "password") {
			return nil, errors.New("the DSN has a parameter " + name + "; user and password stand before the host: " + form)
		}
	}
	config.Logger = &mysql.NopLogger{} // what goes wrong is returned, too
	return &Target{mysql: config, secrets: secrets(dsn, config.Passwd)}, nil
}

func separator(dsn string) string {
	if strings.Contains(dsn[strings.LastIndexByte(dsn, '/'):], "?") {
		return "&"
	}
	return "?"
}

func parseSQLite(rest string) (*Target, error) {
	escaped, query, _ := strings.Cut(rest, "?")
	path, err := url.PathUnescape(escaped)
	if err != nil || path == "" || strings.HasPrefix(path, ":memory:") {
		return nil, errors.New("the DSN names no file of SQLite; it looks like sqlite:///path/to/file.db")
	}
	t := SQLite(path, query)
	t.Create = false
	return t, nil
}

// SQLite is the database in a file, which is made if need be, with parameters of
// modernc.org/sqlite.
func SQLite(path, params string) *Target {
	file := url.URL{Scheme: "file", Opaque: (&url.URL{Path: filepath.ToSlash(path)}).EscapedPath()}
	// Others write the file, too; without this the second is refused at once.
	file.RawQuery = params
	says := strings.Contains(params, "busy_timeout")
	if !says {
		file.RawQuery = strings.TrimPrefix(params+"&_pragma=busy_timeout(10000)", "&")
	}
	return &Target{Create: true, sqlite: file.String(), file: path, saysBusyTimeout: says}
}

// cutShort reports whether a URL goes on with an @ where none belongs: the password
// has a / in it, or for PostgreSQL, whose first @ counts, an @. What comes after that
// is taken for the host or the database, which messages name.
func cutShort(dsn string) bool {
	scheme, rest, ok := strings.Cut(dsn, "://")
	if !ok || strings.ContainsAny(scheme, "= ") { // keywords and values
		return false
	}
	authority, rest, _ := strings.Cut(rest, "/")
	wrong, parameters, _ := strings.Cut(rest, "?")
	if strings.HasPrefix(scheme, "postgres") {
		_, host, _ := strings.Cut(authority, "@")
		wrong += host
	}
	for parameter := range strings.SplitSeq(parameters, "&") {
		name, _, _ := strings.Cut(parameter, "=")
		wrong += name
	}
	return strings.Contains(wrong, "@")
}

// invalid says what is wrong with a DSN that cannot be read because of err, in words
// of our own: those of drivers may quote it.
func invalid(kind, form, dsn string, err error) error {
	var file *fs.PathError
	if errors.As(err, &file) {
		return fmt.Errorf("the %s DSN names a file that cannot be read: %w", kind, file)
	}
	why := "its port, its database or one of its parameters is none that there is"
	switch _, urlErr := url.Parse(dsn); {
	case !strings.Contains(dsn, "://"):
		why = "it cannot be read"
	case urlErr != nil || cutShort(dsn):
		why = "the port is a number, and in user and password / ? # % @ are written as %2F %3F %23 %25 %40"
	}
	return fmt.Errorf("the %s DSN is not valid: %s; it looks like %s", kind, why, form)
}

// secrets are the forms in which a password might be quoted.
func secrets(dsn, password string) []string {
	all := []string{dsn}
	for _, form := range []string{password, url.QueryEscape(password), url.PathEscape(password)} {
		all = append(all, ":"+form+"@")
		// One that may be a word of any message, as the name of a table, would be
		// given away by what is missing.
		if strings.Trim(form, "abcdefghijklmnopqrstuvwxyz0123456789_") != "" {
			all = append(all, form)
		}
	}
	return all
}

// Open is an open database: either SQL and Adapter are set, or Redis is.
type Open struct {
	// Dialect is the server's own, whether the URL says mysql or mariadb. It is 0
	// for Redis.
	Dialect db.Dialect
	// Name is that of the product with its version.
	Name string

	SQL     *sql.DB
	Adapter db.DB[*sql.Tx]
	Redis   redis.UniversalClient

	answerWait time.Duration
}

// versions asks a server for its own.
var versions = map[db.Dialect]string{
	db.Postgres: "SHOW server_version",
	db.MySQL:    "SELECT VERSION()",
	db.MariaDB:  "SELECT VERSION()",
	db.SQLite:   "SELECT sqlite_version()",
}

// Open connects with a pool of at most conns connections, 0 for the default of the
// driver, and asks the server what it is.
func (t *Target) Open(ctx context.Context, conns int) (_ *Open, err error) {
	o, err := t.Pool(Options{Conns: conns})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = t.Hide(errors.Join(err, o.Close()))
		}
	}()
	if err := o.Ask(ctx); err != nil {
		if ctx.Err() == nil {
			err = fmt.Errorf("%w; %s", OneLine(err), t.AskDoctor())
		}
		return nil, err
	}
	return o, nil
}

// AskDoctor is the next step when a database cannot be used.
func (t *Target) AskDoctor() string { return t.Line("doctor") + " says what to look at" }

// OneLine is an error for mails and logs, with everything said once: a driver tells
// of each address and each way to connect on a line of its own.
func OneLine(err error) error {
	text, sep := "", ""
	for line := range strings.SplitSeq(err.Error(), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.Contains(text, line) {
			continue
		}
		text += sep + line
		if sep = "; "; strings.HasSuffix(line, ":") {
			sep = " "
		}
	}
	if text == err.Error() {
		return err
	}
	return &onLine{text, err}
}

// onLine is an error whose text was made one line.
type onLine struct {
	text string
	error
}

func (e *onLine) Error() string { return e.text }
func (e *onLine) Unwrap() error { return e.error }

// Ask asks the server what it is: Dialect and Name.
func (o *Open) Ask(ctx context.Context) error { return Within(ctx, o.answerWait, o.ask) }

// Within ends a question to the server that has no answer after that long.
func Within(ctx context.Context, wait time.Duration, ask func(context.Context) error) error {
	bounded, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	err := ask(bounded)
	switch {
	case err == nil || ctx.Err() != nil:
	case bounded.Err() != nil:
		return fmt.Errorf("the database has not answered for %v: %w", wait, err)
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		// The driver was less patient. A server without TLS waits for more of what it
		// takes for the beginning of a command.
		return fmt.Errorf("the database has not answered in time, or does not speak TLS as the DSN says: %w", err)
	}
	return err
}

func (o *Open) ask(ctx context.Context) (err error) {
	if o.Redis != nil {
		o.Name = product.Of("redis").Name
		return o.askRedis(ctx)
	}
	if o.Dialect, err = o.Adapter.Dialect(ctx, o.Adapter); err != nil {
		return err
	}
	var version string
	if err := o.SQL.QueryRowContext(ctx, versions[o.Dialect]).Scan(&version); err != nil {
		return err
	}
	o.Name = product.Of(o.Dialect.String()).Name + " " + version
	return nil
}

// askRedis finds out whether the server is a node of a cluster. Then what is at
// other nodes is asked for there.
func (o *Open) askRedis(ctx context.Context) error {
	if err := o.Redis.Ping(ctx).Err(); err != nil {
		return err
	}
	client, ok := o.Redis.(*redis.Client)
	if !ok {
		return nil
	}
	// Every account may say this; what is in between need not know it, and is no node.
	hello, err := client.Do(ctx, "HELLO").Result()
	if err != nil {
		return ctx.Err()
	}
	if !isCluster(hello) {
		return nil
	}
	o.Redis = Cluster(client.Options())
	return errors.Join(client.Close(), o.Redis.Ping(ctx).Err())
}

// isCluster reads the answer to HELLO, which is a map, or a list of names and values
// in the older protocol.
func isCluster(hello any) bool {
	switch hello := hello.(type) {
	case map[any]any:
		return hello["mode"] == "cluster"
	case []any:
		at := slices.Index(hello, any("mode"))
		return at >= 0 && at+1 < len(hello) && hello[at+1] == "cluster"
	}
	return false
}

// Cluster is a client of the cluster of which one node was named.
func Cluster(node *redis.Options) *redis.ClusterClient {
	return redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{node.Addr}, Dialer: node.Dialer, ClientName: node.ClientName, Protocol: node.Protocol,
		Username: node.Username, Password: node.Password, TLSConfig: node.TLSConfig,
		DialTimeout: node.DialTimeout, ReadTimeout: node.ReadTimeout, WriteTimeout: node.WriteTimeout,
		ContextTimeoutEnabled: node.ContextTimeoutEnabled, PoolSize: node.PoolSize,
	})
}

// Options are how a Pool is made.
type Options struct {
	// Conns is the most connections that it has, 0 for the driver's default.
	Conns int
	// Wrap sees the bytes of every connection, encrypted or not. It may be nil.
	Wrap func(net.Conn) net.Conn
	// NoPrepare has statements of PostgreSQL sent without naming them on the
	// server, which is what old poolers need, unless the DSN says otherwise.
	NoPrepare bool
}

// Pool makes a pool and sends nothing. Dialect and Name are not known yet.
func (t *Target) Pool(options Options) (*Open, error) {
	o := &Open{answerWait: cmp.Or(t.AnswerWait, AnswerWait)}
	dial := new(net.Dialer).DialContext
	if options.Wrap != nil {
		dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return options.Wrap(conn), nil
		}
	}
	switch {
	case t.redis != nil:
		config := *t.redis
		config.PoolSize = options.Conns
		config.ContextTimeoutEnabled = true // a deadline counts also while an answer is waited for
		if options.Wrap != nil {
			config.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
				conn, err := dial(ctx, network, addr)
				if err == nil && config.TLSConfig != nil {
					conn = tls.Client(conn, config.TLSConfig)
				}
				return conn, err
			}
		}
		o.Redis = redis.NewClient(&config)
		return o, nil
	case t.postgres != nil:
		config := t.postgres.Copy()
		if options.Wrap != nil {
			config.DialFunc = dial
		}
		if options.NoPrepare && config.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement {
			config.DefaultQueryExecMode = pgx.QueryExecModeExec
		}
		o.SQL = stdlib.OpenDB(*config)
		o.Adapter = sqldb.NewPostgres(o.SQL)
	case t.mysql != nil:
		config := t.mysql.Clone()
		if options.Wrap != nil {
			config.DialFunc = dial
		}
		connector, err := mysql.NewConnector(config)
		if err != nil {
			return nil, t.Hide(err)
		}
		o.SQL = sql.OpenDB(connector)
		o.Adapter = mysqldb.New(o.SQL)
	default:
		if _, err := os.Stat(t.file); !t.Create && errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("there is no file %s; %s makes it, with its tables", t.file, t.Line("init"))
		}
		pool, err := sql.Open("sqlite", t.sqlite)
		if err != nil {
			return nil, t.Hide(err)
		}
		o.SQL = pool
		o.Adapter = sqldb.NewSQLite(o.SQL)
	}
	if options.Conns > 0 {
		o.SQL.SetMaxOpenConns(options.Conns)
		o.SQL.SetMaxIdleConns(options.Conns)
	}
	return o, nil
}

// Kind is the scheme of the URL without its variants: postgres, mysql (MariaDB
// too), sqlite or redis.
func (t *Target) Kind() string {
	switch {
	case t.redis != nil:
		return "redis"
	case t.postgres != nil:
		return "postgres"
	case t.mysql != nil:
		return "mysql"
	}
	return "sqlite"
}

// Product names what Kind is for people, before the server has said what it is.
func (t *Target) Product() string {
	return map[string]string{"redis": "Redis", "postgres": "PostgreSQL", "mysql": "MySQL or MariaDB", "sqlite": "SQLite"}[t.Kind()]
}

// File is the file of a SQLite database, and whether the DSN itself says how
// long to wait for a lock.
func (t *Target) File() (path string, saysBusyTimeout bool) { return t.file, t.saysBusyTimeout }

// Close closes the pool.
func (o *Open) Close() error {
	switch {
	case o.SQL != nil:
		return o.SQL.Close()
	case o.Redis != nil:
		return o.Redis.Close()
	}
	return nil
}

// Hide removes the secrets of the DSN from an error's text. An error that quotes
// one loses what it wraps with it.
func (t *Target) Hide(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	for _, secret := range t.secrets {
		text = strings.ReplaceAll(text, secret, "***")
	}
	if text == err.Error() {
		return err
	}
	return errors.New(text)
}
