package doctor_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/exclusive-go/exclusive/integration_test/command"
	"github.com/exclusive-go/exclusive/integration_test/servers"
	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/internal/schema"
	"github.com/exclusive-go/exclusive/internal/templates"
)

// Tables that are missing, out of reach or badly stored are told, and the mends
// mend them.
func TestTables(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		kind    servers.Kind
		dialect db.Dialect
		break_  []string // whose mends are statements
	}{
		{servers.Postgres, db.Postgres, []string{"ALTER SEQUENCE exclusive_token CACHE 20 CYCLE", "ALTER TABLE exclusive_lease SET UNLOGGED"}},
		{servers.MySQL, db.MySQL, []string{"ALTER TABLE exclusive_lease ENGINE = MyISAM"}},
		{servers.MariaDB, db.MariaDB, []string{"ALTER SEQUENCE exclusive_token CACHE 20 CYCLE", "ALTER TABLE exclusive_lease ENGINE = MyISAM"}},
	} {
		t.Run(string(c.kind), func(t *testing.T) {
			t.Parallel()
			dsn := servers.Database(t, c.kind)
			owner := open(t, c.kind, dsn)
			as := account(t, c.kind, dsn)
			diagnose(t, as).want(t, map[string]string{"schema": "warn", "connect": "ok"})
			f := diagnose(t, as, "--strategy", "fencing")
			f.want(t, map[string]string{"schema": "fail"})
			if !strings.Contains(f["schema"].Mend, "fencing_lease") {
				t.Errorf("%+v", f["schema"])
			}

			selection := templates.Selection{Dialect: c.dialect, Strategies: []string{"fencing"}}
			if _, err := schema.Init(t.Context(), owner, selection); err != nil {
				t.Fatal(err)
			}
			f = diagnose(t, command.DSN(t, dsn), "--strategy", "fencing")
			f.want(t, map[string]string{"schema": "ok", "privileges": "ok", "storage": "ok"})
			diagnose(t, command.DSN(t, dsn), "--strategy", "fencing,rowlock").want(t, map[string]string{"schema": "fail"})

			mustExec(t, owner, c.break_...)
			f = diagnose(t, command.DSN(t, dsn))
			f.want(t, map[string]string{"schema": "ok", "storage": "fail"})
			mustExec(t, owner, strings.Split(f["storage"].Mend, "\n")...)

			f = diagnose(t, as, "--strategy", "fencing")
			if c.kind == servers.Postgres { // the others do not show a table that may not be used
				f.want(t, map[string]string{"privileges": "fail"})
				mustExec(t, owner, strings.Split(f["privileges"].Mend, "\n")...)
			} else {
				f.want(t, map[string]string{"schema": "fail"})
				for _, table := range []string{"lease", "token", "mark", "op"} {
					mustExec(t, owner, "GRANT SELECT ON exclusive_"+table+" TO "+accountName(t, as))
				}
				f = diagnose(t, as, "--strategy", "fencing")
				f.want(t, map[string]string{"privileges": "fail", "schema": "ok"})
				mustExec(t, owner, strings.Split(f["privileges"].Mend, "\n")...)
			}
			f = diagnose(t, as, "--strategy", "fencing", "--ignore", "fsync")
			f.want(t, map[string]string{"privileges": "ok", "schema": "ok", "storage": "ok"})
			if bad := f.bad("replication"); len(bad) > 0 { // the account may not see that
				t.Errorf("after all mends: %v, %+v", bad, f)
			}
		})
	}
}

// account makes one that may connect, and no more, and returns its DSN.
func account(t *testing.T, kind servers.Kind, dsn string) string {
	t.Helper()
	if kind == servers.Postgres {
		_, as := role(t, dsn)
		return as
	}
	db := admin(t, kind)
	user := name()
	mustExec(t, db, "CREATE USER "+user+" IDENTIFIED BY '"+password+"'")
	t.Cleanup(func() { mustExec(t, db, "DROP USER "+user) })
	// The right that lets it name the database at all.
	as := mysqlAs(t, dsn, user)
	mustExec(t, db, "GRANT CREATE TEMPORARY TABLES ON "+strings.Trim(pathOf(t, as), "/")+".* TO "+user)
	return as
}

func pathOf(t *testing.T, dsn string) string {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal("not a URL")
	}
	return u.Path
}

func accountName(t *testing.T, dsn string) string {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal("not a URL")
	}
	return u.User.Username()
}
