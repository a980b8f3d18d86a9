package doctor_test

import (
	"fmt"
	"net"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/exclusive-go/exclusive/integration_test/proxy"
	"github.com/exclusive-go/exclusive/integration_test/servers"
)

// role makes an account on the shared server, and its DSN.
func role(t *testing.T, dsn string, settings ...string) (name_, as string) {
	t.Helper()
	db := admin(t, servers.Postgres)
	r := name()
	mustExec(t, db, "CREATE ROLE "+r+" LOGIN PASSWORD '"+password+"'")
	t.Cleanup(func() { mustExec(t, db, "DROP OWNED BY "+r, "DROP ROLE "+r) })
	for _, s := range settings {
		mustExec(t, db, "ALTER ROLE "+r+" "+s)
	}
	return r, with(t, dsn, func(u *url.URL) { u.User = url.UserPassword(r, password) })
}

// What is wrong is told, the mends are the statements that mend it, and then all
// is well.
func TestPostgresRole(t *testing.T) {
	t.Parallel()
	_, dsn := role(t, servers.Database(t, servers.Postgres),
		"SET statement_timeout = '4900ms'", "SET lock_timeout = '900ms'", "SET idle_in_transaction_session_timeout = '1900ms'",
		"SET idle_session_timeout = '50s'", "SET synchronous_commit = off",
		"SET default_transaction_isolation = serializable", "SET default_transaction_read_only = on", "CONNECTION LIMIT 50")
	f := diagnose(t, dsn, "--pool", "20", "--processes", "3")
	wrong := map[string]string{
		"statement_timeout": "warn", "lock_timeout": "warn", "idle_in_transaction_session_timeout": "warn", "idle_session_timeout": "warn",
		"synchronous_commit": "fail", "isolation": "warn", "writable": "fail",
	}
	f.want(t, wrong)
	f.want(t, map[string]string{"connections": "fail", "connect": "ok", "version": "ok", "pooler": "ok"})
	if !strings.Contains(f["connections"].Found, "CONNECTION LIMIT of the role allows 50") {
		t.Errorf("%+v", f["connections"])
	}
	db := admin(t, servers.Postgres)
	for check := range wrong {
		mustExec(t, db, statement(f[check].Mend))
	}
	if f := diagnose(t, dsn, "--ignore", "fsync"); len(f.bad("schema")) > 0 {
		t.Errorf("after the mends: %v, %+v", f.bad("schema"), f)
	}
}

// statement is the part of a mend that is SQL.
func statement(mend string) string {
	if i := strings.Index(mend, "ALTER "); i >= 0 {
		return mend[i:]
	}
	return mend
}

// Settings of a database, and of a role in it, are mended where they come from.
func TestPostgresDatabase(t *testing.T) {
	t.Parallel()
	db := admin(t, servers.Postgres)
	d := name()
	mustExec(t, db, "CREATE DATABASE "+d)
	t.Cleanup(func() { mustExec(t, db, "DROP DATABASE "+d+" WITH (FORCE)") })
	r, dsn := role(t, with(t, servers.Shared(t, servers.Postgres).DSN, func(u *url.URL) { u.Path = "/" + d }))
	mustExec(t, db, "ALTER DATABASE "+d+" SET synchronous_commit = off", "ALTER ROLE "+r+" IN DATABASE "+d+" SET lock_timeout = '1ms'",
		"ALTER DATABASE "+d+" CONNECTION LIMIT 1")
	f := diagnose(t, dsn)
	f.want(t, map[string]string{"synchronous_commit": "fail", "lock_timeout": "warn", "connections": "warn"})
	if m := f["synchronous_commit"].Mend; !strings.HasPrefix(m, "ALTER DATABASE ") {
		t.Errorf("the mend is %q", m)
	}
	if m := f["lock_timeout"].Mend; !strings.HasPrefix(m, "ALTER ROLE ") || !strings.Contains(m, " IN DATABASE ") {
		t.Errorf("the mend is %q", m)
	}
	mustExec(t, db, "ALTER DATABASE "+d+" CONNECTION LIMIT -1", f["synchronous_commit"].Mend, f["lock_timeout"].Mend)
	if f := diagnose(t, dsn, "--ignore", "fsync"); len(f.bad("schema")) > 0 {
		t.Errorf("after the mends: %v, %+v", f.bad("schema"), f)
	}
}

// An account without any privilege sees how many connections others have, and that
// there is a replica. It is not parallel: other tests want none.
func TestPostgresOthers(t *testing.T) {
	dsn := servers.Database(t, servers.Postgres)
	_, as := role(t, dsn)
	const others = 5
	db := open(t, servers.Postgres, dsn)
	for range others {
		conn, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	f := diagnose(t, as)
	f.want(t, map[string]string{"connections": "ok", "replication": "ok"})
	var used int
	if _, err := fmt.Sscanf(f["connections"].Found, "%d of", &used); err != nil || used <= others {
		t.Errorf("%+v", f["connections"])
	}
	replica, err := pgconn.Connect(t.Context(), servers.WithParam(dsn, "replication", "database"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = replica.Close(t.Context()) }()
	diagnose(t, as).want(t, map[string]string{"replication": "warn"})
}

// A setting of the DSN is found too, and said to be one.
func TestPostgresDSN(t *testing.T) {
	t.Parallel()
	dsn := servers.WithParam(servers.Shared(t, servers.Postgres).DSN, "statement_timeout", "3000")
	f := diagnose(t, dsn)
	f.want(t, map[string]string{"statement_timeout": "warn"})
	if !strings.Contains(f["statement_timeout"].Mend, "DSN") {
		t.Errorf("%+v", f["statement_timeout"])
	}
}

// Something in between is seen, and does no harm.
func TestPostgresProxy(t *testing.T) {
	t.Parallel()
	dsn := servers.Shared(t, servers.Postgres).DSN
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal("the DSN of the tests is not a URL")
	}
	address := u.Host
	if u.Port() == "" {
		address = net.JoinHostPort(u.Hostname(), "5432")
	}
	p := proxy.Start(t, address)
	f := diagnose(t, with(t, dsn, func(u *url.URL) { u.Host = p.Addr() }))
	f.want(t, map[string]string{"pooler": "ok"})
	if !strings.Contains(f["pooler"].Found, "proxy") {
		t.Errorf("%+v", f["pooler"])
	}
	// A container's port is one of the machine's, so there is something in between.
	want, inside := "direct", ""
	if err := admin(t, servers.Postgres).QueryRowContext(t.Context(), "SELECT inet_server_port()::text").Scan(&inside); err != nil {
		t.Fatal(err)
	}
	if _, port, _ := net.SplitHostPort(address); port != inside {
		want = "address translation"
	}
	if f := diagnose(t, dsn); !strings.Contains(f["pooler"].Found, want) {
		t.Errorf("without the proxy: %+v, not %s", f["pooler"], want)
	}
}
