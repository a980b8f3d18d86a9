package doctor_test

import (
	"testing"

	"github.com/exclusive-go/exclusive/integration_test/command"
	"github.com/exclusive-go/exclusive/integration_test/servers"
	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/internal/schema"
	"github.com/exclusive-go/exclusive/internal/templates"
)

// A sequence that is behind the leases is told, under any names, and the statement that
// is printed mends it.
func TestTokens(t *testing.T) {
	t.Parallel()
	for kind, c := range map[servers.Kind]struct {
		dialect db.Dialect
		quote   string
	}{servers.Postgres: {db.Postgres, `"`}, servers.MariaDB: {db.MariaDB, "`"}} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			dsn := servers.Database(t, kind)
			owner := open(t, kind, dsn)
			selection := templates.Selection{Dialect: c.dialect, Strategies: []string{"fencing"}, Names: templates.Names{Prefix: "Odd name-"}}
			if _, err := schema.Init(t.Context(), owner, selection); err != nil {
				t.Fatal(err)
			}
			look := func(status string) finding {
				t.Helper()
				f := diagnose(t, command.DSN(t, dsn), "--strategy", "fencing", "--prefix", "Odd name-")
				f.want(t, map[string]string{"tokens": status})
				return f["tokens"]
			}
			look("ok") // nothing was drawn, and nobody has one
			lease := c.quote + "Odd name-lease" + c.quote
			mustExec(t, owner, "INSERT INTO "+lease+" (lease_key, grant_id, holder, token, attempt, acquired_at, expires_at) VALUES ('k', 'g', 'h', 9007199254740993, 0, 0, 0)")
			mustExec(t, owner, look("warn").Mend)
			look("ok")
		})
	}
}
