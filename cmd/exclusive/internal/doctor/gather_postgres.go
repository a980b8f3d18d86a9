package doctor

import (
	"context"
	"database/sql"
	"net"
	"strings"

	"github.com/jackc/pgx/v5/stdlib"

	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/internal/ident"
	"github.com/exclusive-go/exclusive/internal/strategy"
)

// postgresSettings are those that checks look at, as pg_settings names them.
var postgresSettings = []string{
	"fsync", "full_page_writes", "synchronous_commit", "synchronous_standby_names",
	"default_transaction_isolation", "default_transaction_read_only",
	"idle_in_transaction_session_timeout", "transaction_timeout", "idle_session_timeout", "statement_timeout", "lock_timeout",
	"max_connections", "superuser_reserved_connections", "reserved_connections",
}

func (g *gatherer) postgres(ctx context.Context) {
	if !g.connect(ctx, "SELECT current_user, current_database(), version(), pg_is_in_recovery()::text, current_setting('transaction_read_only')",
		"@account", "@database", "@version", "@recovery", "@readonly") {
		return
	}
	// "PostgreSQL 15.18 (Debian …) on …"; others name themselves.
	name, rest, _ := strings.Cut(g.get("@version"), " ")
	version, _, _ := strings.Cut(rest, " ")
	g.set("version", strings.TrimRight(version, ","))
	if name != "PostgreSQL" {
		g.set("product", name)
	}
	g.set("readonly_by", "default_transaction_read_only")

	g.postgresSettings(ctx)
	g.sqlClock(ctx, strategy.PostgresNow)
	g.postgresConnections(ctx)
	g.query(ctx, "SELECT count(*) FROM pg_catalog.pg_stat_replication", []string{"@replicas"})
	g.set("waits", g.get("synchronous_standby_names") != "" && !g.is("synchronous_commit", "off", "local"))
	g.pooler(ctx)
	g.tables(ctx, db.Postgres)
}

// postgresSettings reads the settings as sessions of this account have them, and
// where each comes from.
func (g *gatherer) postgresSettings(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, g.answerWait)
	defer cancel()
	err := func() error {
		rows, err := g.pool.QueryContext(ctx, "SELECT name, setting, source, context FROM pg_catalog.pg_settings WHERE name = ANY(string_to_array($1, ','))",
			strings.Join(postgresSettings, ","))
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var name, value, source, level string
			if err := rows.Scan(&name, &value, &source, &level); err != nil {
				return err
			}
			g.Values[name] = value
			g.set("alter:"+name, g.alter(source))
		}
		return rows.Err()
	}()
	if err != nil {
		g.failAll(err, postgresSettings...)
		g.failAll(err, "@isolation_level")
		return
	}
	g.set("isolation_level", g.get("default_transaction_isolation"))
}

// alter begins the statement that changes a setting where it comes from.
func (g *gatherer) alter(source string) string {
	role, database := ident.Quote(`"`, "", g.get("@account")), ident.Quote(`"`, "", g.get("@database"))
	switch source {
	case "database":
		return "ALTER DATABASE " + database
	case "database user":
		return "ALTER ROLE " + role + " IN DATABASE " + database
	case "client", "session":
		return "take it out of the DSN, or: ALTER ROLE " + role
	}
	return "ALTER ROLE " + role
}

// postgresConnections finds the narrowest of the limits. Of which kind the sessions
// of others are is shown with pg_read_all_stats only; that they have a database is
// shown to everybody.
func (g *gatherer) postgresConnections(ctx context.Context) {
	names := []string{"@server_used", "@role_limit", "@role_used", "@database_limit", "@database_used"}
	if !g.query(ctx, `SELECT
		(SELECT count(*) FROM pg_catalog.pg_stat_activity WHERE datname IS NOT NULL AND COALESCE(backend_type, 'client backend') = 'client backend'),
		(SELECT rolconnlimit FROM pg_catalog.pg_roles WHERE rolname = current_user),
		(SELECT count(*) FROM pg_catalog.pg_stat_activity WHERE usename = current_user),
		(SELECT datconnlimit FROM pg_catalog.pg_database WHERE datname = current_database()),
		(SELECT count(*) FROM pg_catalog.pg_stat_activity WHERE datname = current_database())`, names) {
		g.Unread["@limit_size"] = g.Unread[names[0]]
		return
	}
	type limit struct {
		name       string
		size, used int
	}
	server := atoi(g.get("max_connections")) - atoi(g.get("superuser_reserved_connections")) - atoi(g.get("reserved_connections"))
	narrowest := limit{"max_connections, less those reserved for superusers", server, atoi(g.get("@server_used"))}
	for _, l := range []limit{
		{"the CONNECTION LIMIT of the role", atoi(g.get("@role_limit")), atoi(g.get("@role_used"))},
		{"the CONNECTION LIMIT of the database", atoi(g.get("@database_limit")), atoi(g.get("@database_used"))},
	} {
		if l.size >= 0 && l.size-l.used < narrowest.size-narrowest.used {
			narrowest = l
		}
	}
	g.set("limit", narrowest.name)
	g.set("limit_size", narrowest.size)
	g.set("used", narrowest.used)
}

// pooler finds out what is between this process and the server. A pooler tells
// each client a made-up process id when it connects. In transaction mode, when
// one client has a session in a transaction, another client's next statement
// runs in a session other than its last one.
func (g *gatherer) pooler(ctx context.Context) {
	mode, err := func() (string, error) {
		ctx, cancel := context.WithTimeout(ctx, g.answerWait)
		defer cancel()
		a, err := g.pool.Conn(ctx)
		if err != nil {
			return "", err
		}
		defer a.Close()
		var told uint32
		var local net.Addr
		if err := a.Raw(func(conn any) error {
			pg := conn.(*stdlib.Conn).Conn().PgConn()
			told, local = pg.PID(), pg.Conn().LocalAddr()
			return nil
		}); err != nil {
			return "", err
		}
		var first uint32
		var port sql.NullInt64
		if err := a.QueryRowContext(ctx, "SELECT pg_backend_pid(), inet_client_port()").Scan(&first, &port); err != nil {
			return "", err
		}
		if told == first {
			if tcp, ok := local.(*net.TCPAddr); ok && port.Valid && int64(tcp.Port) != port.Int64 {
				return "proxy", nil
			}
			return "direct", nil
		}
		return sessionMode(ctx, g.pool, a, first)
	}()
	if err != nil {
		g.fail("@pooler", err)
		return
	}
	g.set("pooler", mode)
}

// sessionMode tells the modes of a pooler apart. a had the session first.
func sessionMode(ctx context.Context, pool *sql.DB, a *sql.Conn, first uint32) (string, error) {
	b, err := pool.BeginTx(ctx, nil)
	if err != nil {
		return statementMode(err)
	}
	defer func() { _ = b.Rollback() }()
	var other, second uint32
	if err := b.QueryRowContext(ctx, "SELECT pg_backend_pid()").Scan(&other); err != nil {
		return statementMode(err)
	}
	if err := a.QueryRowContext(ctx, "SELECT pg_backend_pid()").Scan(&second); err != nil {
		return "", err
	}
	if other == first || second != first {
		return "transaction", nil
	}
	return "session", nil
}

// statementMode recognizes that a transaction was refused.
func statementMode(err error) (string, error) {
	if strings.Contains(err.Error(), "statement pooling") {
		return "statement", nil
	}
	return "", err
}
