// Package migrations_test runs the files of package migrations as applications
// do, with golang-migrate and with goose, on every server, and has all
// strategies work on what comes out.
package migrations_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/fencing"
	"github.com/exclusive-go/exclusive/integration_test/matrix"
	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/redisbackend"
	"github.com/exclusive-go/exclusive/rowlock"
	"github.com/exclusive-go/exclusive/uniquetask"
)

type target = matrix.Target[*sql.Tx]

// dialects is every dialect, each on one driver: what differs between drivers
// of one server is not in the files.
var dialects = []string{"postgres", "mysql", "mariadb", "sqlite"}

// eachDialect runs a test on a fresh database of each dialect, in parallel.
func eachDialect(t *testing.T, test func(*testing.T, *target)) {
	t.Helper()
	each(t, dialects, test)
}

// eachWithRoles is eachDialect without SQLite, which has no roles.
func eachWithRoles(t *testing.T, test func(*testing.T, *target)) {
	t.Helper()
	each(t, []string{"postgres", "mysql", "mariadb"}, test)
}

func each(t *testing.T, dialects []string, test func(*testing.T, *target)) {
	t.Helper()
	for _, dialect := range dialects {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			test(t, matrix.On(t, dialect))
		})
	}
}

// names are the names of the tables, as in a strategy's configuration.
type names struct{ schema, prefix string }

var runs atomic.Int64 // makes the keys of each call of work different

// work has every strategy that has tables of its own do what it is for, and
// fails if one cannot. Each table is written to.
func work(t testing.TB, g *target, n names) {
	t.Helper()
	for what, err := range tryWork(t, g, n) {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if t.Failed() {
		t.FailNow()
	}
}

// tryWork says for each thing that strategies do whether it went well.
func tryWork(t testing.TB, g *target, n names) map[string]error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	const ttl = 30 * time.Second
	key := fmt.Sprintf("report/%d", runs.Add(1))

	leases, err := fencing.New(g.DB, fencing.Config{Schema: n.schema, Prefix: n.prefix, TTL: ttl})
	must(t, "fencing.New", err)
	defer func() { must(t, "Close", leases.Close()) }()
	guard, err := fencing.NewGuard(g.DB, fencing.GuardConfig{Schema: n.schema, Prefix: n.prefix})
	must(t, "fencing.NewGuard", err)
	locks, err := rowlock.New(g.DB, rowlock.Config{Schema: n.schema, Prefix: n.prefix})
	must(t, "rowlock.New", err)
	tasks, err := uniquetask.New(g.DB, uniquetask.Config{Schema: n.schema, Prefix: n.prefix, Task: "reports", TTL: ttl})
	must(t, "uniquetask.New", err)
	defer func() { must(t, "Close", tasks.Close()) }()
	tokens, err := redisbackend.NewTokens(g.DB, redisbackend.TokensConfig{Schema: n.schema, Prefix: n.prefix})
	must(t, "redisbackend.NewTokens", err)

	return map[string]error{
		"fencing":              twice(ctx, leases, key, nil),
		"fencing, advance":     leases.Advance(ctx, key, 1000),
		"fencing, guard":       twice(ctx, fencing.Guarded(leases, guard), key+"/guarded", nil),
		"fencing, once":        once(ctx, g, guard, key),
		"rowlock":              twice(ctx, locks, key, nil),
		"uniquetask":           twice(ctx, tasks, key, exclusive.ErrDone),
		"uniquetask, forget":   forget(ctx, tasks, key),
		"redisbackend, tokens": rises(ctx, tokens, key),
	}
}

// twice does a key two times. The second time it is refused with again, or gets
// a greater token if that is nil.
func twice(ctx context.Context, x exclusive.Transactional[*sql.Tx], key string, again error) error {
	var first, second exclusive.Grant
	do := func(into *exclusive.Grant) error {
		return x.Do(ctx, key, func(ctx context.Context, grant exclusive.Grant) error {
			*into = grant
			return x.Commit(ctx, grant, func(context.Context, *sql.Tx) error { return nil })
		})
	}
	if err := do(&first); err != nil {
		return err
	}
	if err := do(&second); !errors.Is(err, again) {
		return fmt.Errorf("the second time: %w", err)
	}
	if again == nil && (second.ID == first.ID || first.Token > 0 && second.Token <= first.Token) {
		return fmt.Errorf("got %+v after %+v", second, first)
	}
	return nil
}

// once applies an operation, and again.
func once(ctx context.Context, g *target, guard *fencing.Guard[*sql.Tx], id string) error {
	applied := 0
	for range 2 {
		err := db.InTx(ctx, g.DB, func(ctx context.Context, tx *sql.Tx, _ db.Runner) error {
			result, err := guard.Once(ctx, tx, id, []byte("payload"), func(context.Context) ([]byte, error) {
				applied++
				return []byte("result"), nil
			})
			if err == nil && string(result) != "result" {
				err = fmt.Errorf("it replayed %q", result)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	if applied != 1 {
		return fmt.Errorf("applied %d times", applied)
	}
	return nil
}

// forget removes a run and does it again: its token goes on from the floor.
func forget(ctx context.Context, tasks *uniquetask.Tasks[*sql.Tx], key string) error {
	before, err := tasks.Outcome(ctx, key)
	if err != nil {
		return err
	}
	if err := tasks.Forget(ctx, key); err != nil {
		return err
	}
	return tasks.Do(ctx, key, func(_ context.Context, grant exclusive.Grant) error {
		if grant.Token <= before.Token {
			return fmt.Errorf("token %d after %d", grant.Token, before.Token)
		}
		return nil
	})
}

func rises(ctx context.Context, tokens *redisbackend.Tokens[*sql.Tx], key string) error {
	if err := tokens.Advance(ctx, key, 5); err != nil {
		return err
	}
	for want := int64(6); want < 8; want++ {
		if got, err := tokens.Next(ctx, key); err != nil || got != want {
			return errors.Join(err, fmt.Errorf("token %d; want %d", got, want))
		}
	}
	return nil
}

// objects lists the tables and sequences of a database, of all its schemas.
func objects(t testing.TB, g *target) []string {
	t.Helper()
	query := map[string]string{
		"postgres": `SELECT n.nspname || '.' || c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
			WHERE c.relkind IN ('r', 'S', 'v') AND n.nspname = CURRENT_SCHEMA ORDER BY 1`,
		"mysql":   `SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE() ORDER BY 1`,
		"mariadb": `SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE() ORDER BY 1`,
		"sqlite":  `SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY 1`,
	}[g.Dialect]
	rows, err := g.Plain.QueryContext(t.Context(), query)
	must(t, query, err)
	defer rows.Close()
	var list []string
	for rows.Next() {
		var name string
		must(t, "Scan", rows.Scan(&name))
		list = append(list, name)
	}
	must(t, query, rows.Err())
	return list
}

func wantObjects(t testing.TB, g *target, when string, want []string) {
	t.Helper()
	if got := objects(t, g); !slices.Equal(got, want) {
		t.Fatalf("%s there are %q; want %q", when, got, want)
	}
}

func must(t testing.TB, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}
