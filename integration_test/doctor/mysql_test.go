package doctor_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/exclusive-go/exclusive/integration_test/command"
	"github.com/exclusive-go/exclusive/integration_test/servers"
)

// What the DSN makes of a session is found.
func TestMySQLSession(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		kinds  []servers.Kind
		params []string
		want   map[string]string
	}{
		{"as it should be", both, []string{"sql_mode", "'STRICT_TRANS_TABLES'"}, map[string]string{
			"connect": "ok", "version": "ok", "writable": "ok", "clock": "ok", "isolation": "ok", "autocommit": "ok", "sql_mode": "ok",
			"innodb_lock_wait_timeout": "ok", "wait_timeout": "ok", "sysdate_is_now": "ok", "galera": "ok", "replication": "ok",
		}},
		{"much is wrong", both, []string{
			"sql_mode", "''", "tx_isolation_", "'SERIALIZABLE'", "innodb_lock_wait_timeout", "300", "wait_timeout", "20",
			"transaction_read_only_", "1",
		}, map[string]string{
			"sql_mode": "warn", "isolation": "warn", "innodb_lock_wait_timeout": "warn", "wait_timeout": "warn", "writable": "fail",
		}},
		{"not committed", both, []string{"autocommit", "0"}, map[string]string{"autocommit": "fail", "sql_mode": "ok"}},
		{"dirty", both, []string{"tx_isolation_", "'READ-UNCOMMITTED'"}, map[string]string{"isolation": "fail"}},
		{"MariaDB's own", []servers.Kind{servers.MariaDB}, []string{
			"idle_transaction_timeout", "1", "idle_write_transaction_timeout", "1", "max_statement_time", "4",
		}, map[string]string{"idle_transaction_timeout": "warn", "idle_write_transaction_timeout": "warn", "max_statement_time": "warn"}},
	} {
		for _, kind := range c.kinds {
			t.Run(c.name+" on "+string(kind), func(t *testing.T) {
				t.Parallel()
				var params []string
				for _, p := range c.params {
					params = append(params, variable(kind, p))
				}
				diagnose(t, command.DSN(t, servers.Database(t, kind), params...)).want(t, c.want)
			})
		}
	}
}

var both = []servers.Kind{servers.MySQL, servers.MariaDB}

// variable is the name that a server knows.
func variable(kind servers.Kind, name string) string {
	switch {
	case name == "tx_isolation_" && kind == servers.MySQL:
		return "transaction_isolation"
	case name == "tx_isolation_":
		return "tx_isolation"
	case name == "transaction_read_only_" && kind == servers.MySQL:
		return "transaction_read_only"
	case name == "transaction_read_only_":
		return "tx_read_only"
	}
	return name
}

// A server that cannot tell how long a statement has waited is found, as the
// strategies find it that refuse it.
func TestSysdateIsNow(t *testing.T) {
	t.Parallel()
	for _, kind := range both {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			d := diagnose(t, command.DSN(t, servers.Own(t, kind, "--sysdate-is-now")))
			d.want(t, map[string]string{"connect": "ok", "sysdate_is_now": "fail"})
		})
	}
}

// The limit of an account counts, too.
func TestMySQLConnections(t *testing.T) {
	t.Parallel()
	for _, kind := range both {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			dsn := servers.Database(t, kind)
			db := open(t, kind, dsn)
			user := name()
			mustExec(t, db, "CREATE USER "+user+" IDENTIFIED BY '"+password+"' WITH MAX_USER_CONNECTIONS 9", "GRANT ALL ON *.* TO "+user)
			t.Cleanup(func() { mustExec(t, admin(t, kind), "DROP USER "+user) })
			as := mysqlAs(t, dsn, user)
			f := diagnose(t, as, "--pool", "10")
			f.want(t, map[string]string{"connections": "fail"})
			if f["connections"].Found != "1 processes with 10 connections each, and max_user_connections allows 9" {
				t.Errorf("%+v", f["connections"])
			}
			diagnose(t, as, "--pool", "9").want(t, map[string]string{"connections": "ok"})
			diagnose(t, as, "--pool", "1").want(t, map[string]string{"connections": "fail"})
		})
	}
}

// Who may not see the sessions of others cannot know of a replica, and is told so;
// with the mend it can.
func TestMySQLWithoutProcess(t *testing.T) {
	t.Parallel()
	for _, kind := range both {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			dsn := servers.Database(t, kind)
			db := open(t, kind, dsn)
			as := mysqlAs(t, dsn, name())
			user := accountName(t, as)
			mustExec(t, db, "CREATE USER "+user+" IDENTIFIED BY '"+password+"'", "GRANT ALL ON "+strings.Trim(pathOf(t, as), "/")+".* TO "+user)
			t.Cleanup(func() { mustExec(t, admin(t, kind), "DROP USER "+user) })
			f := diagnose(t, as)
			f.want(t, map[string]string{"replication": "warn"})
			if !strings.Contains(f["replication"].Found, "PROCESS") {
				t.Errorf("%+v", f["replication"])
			}
			grant, _, _ := strings.Cut(f["replication"].Mend, ",")
			mustExec(t, db, grant)
			diagnose(t, as).want(t, map[string]string{"replication": "ok"})
		})
	}
}

// What others run does not matter, whatever its bytes.
func TestMySQLForeignBytes(t *testing.T) {
	t.Parallel()
	for _, kind := range both {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			dsn := servers.Database(t, kind)
			db := open(t, kind, dsn)
			other, err := db.Conn(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			var id int64
			if err := other.QueryRowContext(t.Context(), "SELECT CONNECTION_ID()").Scan(&id); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			var running sync.WaitGroup
			running.Go(func() {
				_, err := other.ExecContext(ctx, "DO SLEEP(60) /* \xff\xfe */")
				if ctx.Err() == nil {
					t.Errorf("the other session has ended: %v", err)
				}
				_ = other.Close()
			})
			t.Cleanup(func() { cancel(); running.Wait() })
			for end, sleeps := time.Now().Add(20*time.Second), false; !sleeps; {
				if time.Now().After(end) {
					t.Fatal("the other session does not run its statement")
				}
				err := db.QueryRowContext(t.Context(), "SELECT COUNT(*) > 0 FROM "+servers.Processlist(kind)+" WHERE id = ? AND state = 'User sleep'", id).Scan(&sleeps)
				if err != nil {
					t.Fatal(err)
				}
			}
			diagnose(t, command.DSN(t, dsn)).want(t, map[string]string{"connections": "ok", "replication": "ok"})
		})
	}
}
