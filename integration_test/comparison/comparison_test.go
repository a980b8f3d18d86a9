package comparison

import (
	"database/sql"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/integration_test/matrix"
	"github.com/exclusive-go/exclusive/integration_test/strategies"
)

const page = "../../docs/comparison.md"

var update = flag.Bool("update", false, "write docs/comparison.md instead of comparing with it")

func TestMain(m *testing.M) { strategies.Main(m) }

// TestChild is A where that is a process of its own.
func TestChild(t *testing.T) {
	text := os.Getenv(childEnv)
	if text == "" {
		return // this is not the child
	}
	var o order
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		t.Fatal(err)
	}
	matrix.Join(t, o.Ticket.Target,
		func(t *testing.T, target *matrix.Target[pgx.Tx]) { child(t, target, o) },
		func(t *testing.T, target *matrix.Target[*sql.Tx]) { child(t, target, o) })
}

// book collects the results.
type book struct {
	mu      sync.Mutex
	results map[entry]result
}

type entry struct {
	fault    int
	strategy string
	database string
}

// add wants the drivers of a database to agree.
func (b *book) add(t *testing.T, e entry, r result) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if before, ok := b.results[e]; ok && before != r {
		t.Errorf("another driver of %s says\n%+v, this one\n%+v", e.database, before, r)
	}
	b.results[e] = r
}

// The page says what happens.
func TestComparison(t *testing.T) {
	b := &book{results: make(map[entry]result)}
	played := t.Run("play", func(t *testing.T) {
		matrix.Drivers(t, strategies.EachAlone(play[pgx.Tx](b)), strategies.EachAlone(play[*sql.Tx](b)))
	})
	if !played {
		return
	}
	text := b.render(t)
	if t.Failed() {
		return
	}
	if *update {
		if err := os.WriteFile(page, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	old, err := os.ReadFile(page)
	if err != nil {
		t.Fatalf("%v; run make comparison", err)
	}
	if got, want := strings.Split(text, "\n"), strings.Split(string(old), "\n"); !slices.Equal(got, want) {
		for i := range max(len(got), len(want)) {
			if i >= len(got) || i >= len(want) || got[i] != want[i] {
				t.Fatalf("docs/comparison.md does not say what happens (line %d); run make comparison, and look at what changed:\n%s",
					i+1, strings.Join(got[min(i, len(got)):min(i+1, len(got))], "\n"))
			}
		}
	}
}

// A promise is not named for what a twin leaves behind, nor for a result that is
// missing, somebody else's or not what the two were told.
func TestOutcome(t *testing.T) {
	failed := exclusive.ErrFenced
	for _, c := range []struct {
		want outcome
		body string
		n    int64
		kept bool
	}{
		{outcome{"B", 1}, "B", 1, true},
		{outcome{"B", 1}, "B", 2, false}, // done twice
		{outcome{"B", 1}, "A", 2, false}, // overwritten
		{outcome{"B", 1}, "A", 1, false},
		{outcome{"B", 1}, "", 0, false},
		{outcome{"A", 1}, "A", 2, false}, // repeated
		{toldOf(nil, nil), "B", 2, true},
		{toldOf(nil, nil), "A", 2, false},
		{toldOf(nil, failed), "A", 1, true},
		{toldOf(nil, failed), "B", 2, false},
		{toldOf(failed, nil), "B", 1, true},
		{toldOf(failed, nil), "B", 2, false}, // A was told that it failed
		{toldOf(failed, failed), "", 0, true},
	} {
		if err := c.want.differs(c.body, c.n); (err == nil) != c.kept {
			t.Errorf("%+v and %q after %d writes: %v", c.want, c.body, c.n, err)
		}
	}
}

func play[Tx any](b *book) func(*testing.T, *matrix.Target[Tx], strategies.Strategy[Tx]) {
	return func(t *testing.T, target *matrix.Target[Tx], s strategies.Strategy[Tx]) {
		place := s.SetUp(t, target)
		other := target.Another(t, matrix.Options{})
		for i, f := range faults[Tx]() {
			t.Run(strings.ReplaceAll(f.title, " ", "_"), func(t *testing.T) {
				r := &rig[Tx]{T: t, ctx: t.Context(), target: target, other: other, place: place, promises: s.Promises}
				b.add(t, entry{i, s.Name, target.Dialect}, f.play(r))
			})
		}
	}
}

var databases = []struct{ dialect, name string }{
	{"postgres", "PostgreSQL"}, {"mysql", "MySQL"}, {"mariadb", "MariaDB"}, {"sqlite", "SQLite"},
}

const front = `# What happens when things go wrong

This page is generated: ` + "`make comparison`" + ` plays each fault with every strategy on every
database (PostgreSQL through three drivers, which must agree) and writes down
what the destination holds in the end. A test in ` + "`make test`" + ` fails when the page
is out of date.

Two workers, **A** and **B**, want to store a result for the same key. The fault
hits A. A cell says

- in **bold** whose result the destination holds in the end, and how many writes
  were committed if there was more than one;
- what A was told, by the call in which it stored its result, and what B
  saw: *succeeds* is nil, and the errors are those of package exclusive;
- — where the fault cannot be.

*Promise that held* names the promise that kept the result right. *Without the
check* is the twin: the same fault with the strategy's check left out, played on
the same databases.

The rows:

| row | strategy |
|---|---|
| casupdate | casupdate with token and grant columns, no TTL: a claim does not end with time |
| casupdate_leased | the same with a TTL: a claim can be taken over |
| rowlock | rowlock on ` + "`exclusive_lock`" + ` |
| uniquetask | uniquetask |
| fencing | fencing, leases and results in the same database |
| fencing_guarded_here | fencing.Guarded, leases in the destination's database |
| fencing_guarded_elsewhere | fencing.Guarded, leases on another server |
| redisbackend_guarded | fencing.Guarded, leases in Redis |
`

func (b *book) render(t *testing.T) string {
	t.Helper()
	var out strings.Builder
	out.WriteString(front)
	for i, f := range faults[*sql.Tx]() {
		fmt.Fprintf(&out, "\n## %s\n\n%s\n\n| strategy |", f.title, f.story)
		for _, d := range databases {
			out.WriteString(" " + d.name + " |")
		}
		out.WriteString(" promise that held | without the check |\n|" + strings.Repeat("---|", len(databases)+3) + "\n")
		for _, s := range strategies.All[*sql.Tx]() {
			out.WriteString("| " + s.Name + " |")
			var held, twin []string
			for _, d := range databases {
				r, ok := b.results[entry{i, s.Name, d.dialect}]
				if !ok {
					t.Errorf("%s, %s was not played on %s", f.title, s.Name, d.name)
				}
				out.WriteString(" " + r.Seen + " |")
				held, twin = appendNew(held, r.Held), appendNew(twin, r.Twin)
			}
			fmt.Fprintf(&out, " %s | %s |\n", strings.Join(held, "; "), strings.Join(twin, "; "))
		}
	}
	return out.String()
}

// appendNew appends what is not there yet; a dash only if nothing else comes.
func appendNew(list []string, s string) []string {
	if slices.Contains(list, s) || s == "—" && len(list) > 0 {
		return list
	}
	if len(list) == 1 && list[0] == "—" {
		return []string{s}
	}
	return append(list, s)
}
