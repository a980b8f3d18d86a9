package migrations_test

import (
	"fmt"
	"io/fs"
	"regexp"
	"strings"
	"testing"

	"github.com/exclusive-go/exclusive/integration_test/matrix"
	"github.com/exclusive-go/exclusive/migrations"
)

// grantLine is what a file says about the application's role.
var grantLine = regexp.MustCompile(`(?m)^-- GRANT (.+) ON (.+) TO app$`)

// The privileges that the files name are enough for every strategy, and each
// of them is needed.
func TestGrants(t *testing.T) {
	eachWithRoles(t, func(t *testing.T, g *target) {
		g.Migrate(t, "")
		user, password := newUser(t, g)

		type privilege struct{ name, on string }
		var all []privilege
		paths, err := fs.Glob(migrations.FS, g.Dialect+"/*.up.sql")
		must(t, "Glob", err)
		for _, path := range paths {
			text, err := fs.ReadFile(migrations.FS, path)
			must(t, path, err)
			lines := grantLine.FindAllSubmatch(text, -1)
			if len(lines) != 1 {
				t.Fatalf("%s has %d lines with GRANT; want 1", path, len(lines))
			}
			for name := range strings.SplitSeq(string(lines[0][1]), ", ") {
				all = append(all, privilege{name, string(lines[0][2])})
			}
			g.MustExec(t, fmt.Sprintf("GRANT %s ON %s TO %s", lines[0][1], lines[0][2], user))
		}

		app := g.Another(t, matrix.Options{User: user, Password: password})
		work(t, app, names{})
		for _, p := range all {
			g.MustExec(t, fmt.Sprintf("REVOKE %s ON %s FROM %s", p.name, p.on, user))
			works := true
			for _, err := range tryWork(t, app, names{}) {
				works = works && err == nil
			}
			if works {
				t.Errorf("everything works without %s ON %s: the file grants more than is needed", p.name, p.on)
			}
			g.MustExec(t, fmt.Sprintf("GRANT %s ON %s TO %s", p.name, p.on, user))
		}
		work(t, app, names{})
	})
}
