package doctor

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/exclusive-go/exclusive/cmd/exclusive/internal/product"
)

const pageFront = `# exclusive doctor

` + "`exclusive doctor --dsn …`" + ` looks at a database and says what of it weakens the
promises of the strategies, why, and what mends it. This page lists every check.
It is made from the checks themselves: ` + "`go test ./cmd/exclusive/internal/doctor -update`" + `.

` + "```sh" + `
exclusive doctor --dsn postgres://me@localhost/app
exclusive doctor --dsn-file /run/secrets/dsn --strategy fencing --pool 10 --processes 6
EXCLUSIVE_DSN=redis://localhost:6379/0 exclusive doctor --json
exclusive doctor --ignore replication,isolation
` + "```" + `

Run it with the DSN of the application: settings come from the DSN, the account, the
database and the server, and doctor sees them as the application's sessions do. It
changes nothing. On Redis it acquires, renews and releases one lease under the
strategy's prefix, on a key of its own that it removes; on SQLite it begins a write
and rolls it back.

| result | means |
|---|---|
| ok | as it should be, or it does not matter |
| warn | it works; know it, or make it better. Also what could not be read |
| fail | a promise is not kept, or nothing works |

| exit code | |
|---|---|
| 0 | no check failed, apart from those named by ` + "`--ignore`" + ` |
| 1 | one failed |
| 2 | wrong flags |
| 3 | it could not run to its end |

In the statements below *ALTER …* is ` + "`ALTER ROLE`" + `, ` + "`ALTER DATABASE`" + ` or ` + "`ALTER ROLE … IN DATABASE`" + `:
doctor prints the one that the setting comes from. Settings of MySQL and MariaDB that are
changed with ` + "`SET GLOBAL`" + ` belong into the configuration file as well (MySQL: ` + "`SET PERSIST`" + `);
pooled connections have them after they were opened anew.
`

var holes = regexp.MustCompile(`\{alter:[^}]*\}|\{[a-z_ ]+\}`)

// written shows a mend without the facts of one server.
func written(mend string) string {
	return holes.ReplaceAllStringFunc(mend, func(hole string) string {
		if strings.HasPrefix(hole, "{alter:") {
			return "ALTER …"
		}
		return "*" + strings.Trim(hole, "{}") + "*"
	})
}

// mends lists what mends an outcome, for each kind of server where that differs.
func (o Outcome) mends(kinds []string) string {
	if o.MendOn == nil {
		return written(o.Mend)
	}
	var parts []string
	for _, kind := range kinds {
		if m, ok := o.MendOn[kind]; ok {
			parts = append(parts, product.Of(kind).Name+": "+written(m))
		}
	}
	return strings.Join(parts, "<br>")
}

// Page is docs/doctor.md.
func Page() string {
	var b strings.Builder
	b.WriteString(pageFront)
	for _, c := range Checks() {
		var on []string
		for _, kind := range c.On {
			on = append(on, product.Of(kind).Name)
		}
		where := strings.Join(on, ", ")
		if slices.Equal(c.On, everywhere) {
			where = "everywhere"
		}
		fmt.Fprintf(&b, "\n## %s\n\n%s (%s).\n%s\n\n| result | when | mend |\n|---|---|---|\n", c.ID, c.Title, where, c.Why)
		for _, o := range c.Outcomes {
			fmt.Fprintf(&b, "| %s | %s | %s |\n", o.Status, o.When, o.mends(c.On))
		}
	}
	return b.String()
}
