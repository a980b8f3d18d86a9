package servers

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"

	"github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"
)

// spec is all that is known about one kind of server.
type spec struct {
	// dsn is the address of the server as its drivers want it.
	dsn func(addr string) string

	// probe asks the server for its version, and refuses a server of another kind.
	probe func(ctx context.Context, dsn string) (version string, err error)

	// How to run it in a container: image is the official image, to whose entry
	// point env, initSQL and command are addressed.
	image   string
	port    int
	env     map[string]string
	initSQL string
	command []string

	// How to run its programs, which are found in PATH or in one of the folders (glob
	// patterns) and accepted by check. Root runs those that refuse to run as root as
	// the given user.
	user    string
	folders []string
	check   func(path string) error
	plan    func(dir string, port int) plan

	// root is the Debian root that has those programs.
	root debianRoot
}

// plan says how to run a server in dir: write the files, run setup, then serve.
type plan struct {
	files map[string]string // by name in dir
	setup []string          // optional
	serve []string

	// stop ends the server at once. Its data is thrown away, so the only thing that
	// matters is that nothing stays behind.
	stop syscall.Signal
}

// unblocked keeps a server from refusing all that come from the address of the tests
// (error 1129) after the hundredth connection that they have broken off.
const unblocked = "--max-connect-errors=1000000"

// The settings trade away what only a crash of the whole machine could show: data
// is handed to the kernel at each commit, yet the disk is not waited for. A killed
// server still loses nothing that it has confirmed, and isolation, locks and
// MySQL's binary log are as users have them. With EXCLUSIVE_TEST_DURABLE=1 servers
// wait for the disk too, for measurements.
var (
	postgresSettings = settings([]string{"-c", "max_connections=1000"}, "-c", "fsync=off", "-c", "full_page_writes=off")
	mysqlSettings    = settings([]string{"--max-connections=1000", unblocked}, "--innodb-flush-log-at-trx-commit=2", "--sync-binlog=0",
		"--innodb-flush-method=nosync")
	mariadbSettings = settings([]string{"--max-connections=1000", unblocked}, "--innodb-flush-log-at-trx-commit=2", "--innodb-flush-method=nosync")
)

func settings(always []string, unlessDurable ...string) []string {
	if os.Getenv("EXCLUSIVE_TEST_DURABLE") != "" {
		return always
	}
	return append(always, unlessDurable...)
}

// One Debian root for what the stable release has; MySQL and Valkey 9 are in
// unstable alone, and MySQL's packages exclude those of MariaDB.
var (
	stableRoot   = debianRoot{suite: "trixie", packages: "mariadb-server,postgresql,redis-server"}
	unstableRoot = debianRoot{suite: "sid", packages: "mysql-server-core,valkey-server", addUser: "mysql"}
)

// Each statement on a line of its own, as --init-file wants it.
const mysqlInit = `CREATE USER IF NOT EXISTS 'test'@'%' IDENTIFIED BY 'test';
GRANT ALL PRIVILEGES ON *.* TO 'test'@'%' WITH GRANT OPTION;
`

var specs = map[Kind]spec{
	Postgres: {
		dsn:     func(addr string) string { return "postgres://test:test@" + addr + "/postgres?sslmode=disable" },
		probe:   probePostgres,
		image:   "postgres:18",
		port:    5432,
		env:     map[string]string{"POSTGRES_USER": "test", "POSTGRES_PASSWORD": "test", "POSTGRES_DB": "postgres"},
		command: append([]string{"postgres"}, postgresSettings...),
		user:    "postgres",
		folders: []string{"/usr/lib/postgresql/*/bin"},
		plan:    planPostgres,
		root:    stableRoot,
	},
	MySQL: {
		dsn:     mysqlDSN,
		probe:   probeMySQL,
		image:   "mysql:9",
		port:    3306,
		env:     map[string]string{"MYSQL_ALLOW_EMPTY_PASSWORD": "yes"},
		initSQL: mysqlInit,
		command: append([]string{"mysqld"}, mysqlSettings...),
		user:    "mysql",
		check:   refuseMariaDBProgram,
		plan:    planMySQL,
		root:    unstableRoot,
	},
	MariaDB: {
		dsn:     mysqlDSN,
		probe:   probeMariaDB,
		image:   "mariadb:11",
		port:    3306,
		env:     map[string]string{"MARIADB_ALLOW_EMPTY_ROOT_PASSWORD": "yes"},
		initSQL: mysqlInit,
		command: append([]string{"mariadbd"}, mariadbSettings...),
		user:    "mysql",
		plan:    planMariaDB,
		root:    stableRoot,
	},
	Redis: {
		dsn:     redisDSN,
		probe:   probeRedis("redis_version"),
		image:   "redis:8",
		port:    6379,
		command: []string{"redis-server", "--save", "", "--protected-mode", "no"},
		plan:    planRedis("redis-server"),
		root:    stableRoot,
	},
	Valkey: {
		dsn:     redisDSN,
		probe:   probeRedis("valkey_version"),
		image:   "valkey/valkey:9",
		port:    6379,
		command: []string{"valkey-server", "--save", "", "--protected-mode", "no"},
		plan:    planRedis("valkey-server"),
		root:    unstableRoot,
	},
}

func planPostgres(dir string, port int) plan {
	return plan{
		files: map[string]string{"password": "test"},
		setup: []string{"initdb", "--pgdata=" + dir + "/data", "--username=test", "--pwfile=" + dir + "/password",
			"--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync"},
		serve: append([]string{"postgres", "-D", dir + "/data", "-c", "listen_addresses=127.0.0.1",
			"-c", "port=" + strconv.Itoa(port), "-c", "unix_socket_directories=" + dir}, postgresSettings...),
		stop: syscall.SIGQUIT, // unlike SIGKILL it ends the children and frees the shared memory
	}
}

func planMySQL(dir string, port int) plan {
	return plan{
		files: map[string]string{"init.sql": mysqlInit},
		setup: []string{"mysqld", "--no-defaults", "--initialize-insecure", "--datadir=" + dir + "/data"},
		serve: append([]string{"mysqld", "--no-defaults", "--datadir=" + dir + "/data", "--bind-address=127.0.0.1",
			"--port=" + strconv.Itoa(port), "--socket=" + dir + "/socket", "--pid-file=" + dir + "/pid",
			"--mysqlx=OFF", "--secure-file-priv=NULL", "--init-file=" + dir + "/init.sql"}, mysqlSettings...),
		stop: syscall.SIGKILL,
	}
}

func planMariaDB(dir string, port int) plan {
	return plan{
		files: map[string]string{"init.sql": mysqlInit},
		setup: []string{"mariadb-install-db", "--no-defaults", "--datadir=" + dir + "/data", "--skip-test-db",
			"--auth-root-authentication-method=normal"},
		serve: append([]string{"mariadbd", "--no-defaults", "--datadir=" + dir + "/data", "--bind-address=127.0.0.1",
			"--port=" + strconv.Itoa(port), "--socket=" + dir + "/socket", "--pid-file=" + dir + "/pid",
			"--init-file=" + dir + "/init.sql"}, mariadbSettings...),
		stop: syscall.SIGKILL,
	}
}

func planRedis(program string) func(dir string, port int) plan {
	return func(dir string, port int) plan {
		return plan{
			serve: []string{program, "--bind", "127.0.0.1", "--port", strconv.Itoa(port), "--save", "", "--dir", dir},
			stop:  syscall.SIGKILL,
		}
	}
}

// refuseMariaDBProgram tells a real MySQL from the mysqld that is MariaDB under
// another name, as on Debian.
func refuseMariaDBProgram(path string) error {
	out, err := exec.Command(path, "--version").Output()
	if err != nil {
		return fmt.Errorf("%s --version: %w", path, err)
	}
	if strings.Contains(string(out), "MariaDB") {
		return fmt.Errorf("%s is MariaDB, not MySQL", path)
	}
	return nil
}

func mysqlDSN(addr string) string { return "test:test@tcp(" + addr + ")/" }

func redisDSN(addr string) string { return "redis://" + addr + "/0" }

func probePostgres(ctx context.Context, dsn string) (string, error) {
	db, err := sql.Open("pgx", dsn)
	if err != nil {
		return "", redact(err)
	}
	return queryVersion(ctx, db, "SHOW server_version")
}

func probeMySQL(ctx context.Context, dsn string) (string, error) {
	version, err := mysqlVersion(ctx, dsn)
	if err == nil && strings.Contains(version, "MariaDB") {
		return "", fmt.Errorf("it is MariaDB %s, not MySQL", version)
	}
	return version, err
}

func probeMariaDB(ctx context.Context, dsn string) (string, error) {
	version, err := mysqlVersion(ctx, dsn)
	if err == nil && !strings.Contains(version, "MariaDB") {
		return "", fmt.Errorf("it is MySQL %s, not MariaDB", version)
	}
	return version, err
}

func mysqlVersion(ctx context.Context, dsn string) (string, error) {
	config, err := mysql.ParseDSN(dsn)
	if err != nil {
		return "", err
	}
	config.Logger = &mysql.NopLogger{} // no answer yet is no news while a server starts
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return "", err
	}
	return queryVersion(ctx, sql.OpenDB(connector), "SELECT VERSION()")
}

func queryVersion(ctx context.Context, db *sql.DB, query string) (version string, err error) {
	defer func() { err = errors.Join(err, db.Close()) }()
	if err := db.QueryRowContext(ctx, query).Scan(&version); err != nil {
		return "", err
	}
	version, _, _ = strings.Cut(version, " ") // "15.18 (Debian 15.18-0+deb12u1)"
	return version, nil
}

// probeRedis takes the version from a field that the server has. Valkey also has a
// redis_version, that of the Redis with which it is compatible.
func probeRedis(field string) func(ctx context.Context, dsn string) (string, error) {
	return func(ctx context.Context, dsn string) (version string, err error) {
		options, err := redis.ParseURL(dsn)
		if err != nil {
			return "", redact(err)
		}
		client := redis.NewClient(options)
		defer func() { err = errors.Join(err, client.Close()) }()
		info, err := client.InfoMap(ctx, "server").Result()
		if err != nil {
			return "", err
		}
		version, ok := info["Server"][field]
		if !ok {
			return "", fmt.Errorf("it is another server: it has no %s", field)
		}
		return version, nil
	}
}

// redact takes the DSN, which may hold a password, out of a parser's error.
func redact(err error) error {
	if parseErr := new(url.Error); errors.As(err, &parseErr) {
		return fmt.Errorf("parsing the DSN: %w", parseErr.Err)
	}
	return err
}
