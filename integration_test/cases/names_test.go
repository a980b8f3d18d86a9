package cases_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/fencing"
	"github.com/exclusive-go/exclusive/integration_test/cases/session"
	"github.com/exclusive-go/exclusive/integration_test/matrix"
	"github.com/exclusive-go/exclusive/integration_test/servers"
	"github.com/exclusive-go/exclusive/internal/templates"
	"github.com/exclusive-go/exclusive/redisbackend"
	"github.com/exclusive-go/exclusive/rowlock"
	"github.com/exclusive-go/exclusive/uniquetask"
)

// named are the strategies whose keys are names, without rows of the application's.
func named[Tx any](t testing.TB, target *matrix.Target[Tx], schema, prefix string) map[string]exclusive.Exclusive {
	t.Helper()
	xs := map[string]exclusive.Exclusive{
		"fencing":    leasesOn(t, target, fencing.Config{Schema: schema, Prefix: prefix, TTL: forever, NoRenew: true}),
		"uniquetask": tasksOn(t, target, uniquetask.Config{Schema: schema, Prefix: prefix, TTL: forever, NoRenew: true}),
	}
	if target.Networked() { // SQLite has one lock for all keys, as documented
		xs["rowlock"] = locksOn(t, target, rowlock.Config{Schema: schema, Prefix: prefix})
	}
	return xs
}

// Names that a hash takes for the same are independent, on one pool and on two, and so
// are any number of names at once. In the field names were cut to a weak hash
// or to a number of local buckets, and unrelated ones blocked each other.
// (A lock of rowlock holds its connection, so its many names are those of one call.
// SQLite has one such lock. A Guard has no names of its own. Another process is another
// pool here, with strategies of its own: they share nothing.)
func TestB091_HashCollisions(t *testing.T) {
	t.Parallel()
	matrix.Drivers(t, testHashCollisions[pgx.Tx], testHashCollisions[*sql.Tx])
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		client, prefix := servers.Prefix(t)
		cfg := redisbackend.Config{Prefix: prefix, TTL: forever, NoRenew: true}
		x := redisLeases(t, client, cfg)
		other := redisLeases(t, client, cfg)
		collide(t, x, other)
		holdMany(t, x, other, size(5000, 1000), manyWorkers)
	})
}

func testHashCollisions[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	target.Migrate(t, "")
	another := target.Another(t, matrix.Options{})
	xs, others := named(t, target, "", ""), named(t, another, "", "")
	xs["casupdate"], others["casupdate"] = jobsOn(t, target, jobConfig(), ""), moreJobs(t, another, jobConfig())
	for _, names := range colliding {
		addJob(t, target, names[0])
		addJob(t, target, names[1])
	}
	for name, x := range xs {
		collide(t, x, others[name])
	}

	many := make([]string, size(5000, 200))
	rows, random := session.Begin(t, target.Plain), rand.Uint64()
	for i := range many {
		many[i] = fmt.Sprintf("%x/%x", random, i)
		rows.Exec(target.Bind("INSERT INTO job (id, state) VALUES (?, 'PENDING')"), many[i])
	}
	rows.Commit()
	workers := manyWorkers
	if !target.Networked() {
		workers = 1 // it has one writer, and no queue for others
	}
	holdMany(t, xs["fencing"].(exclusive.Leaser), others["fencing"].(exclusive.Leaser), len(many), workers)
	holdTogether(t, xs["uniquetask"], many, workers)
	holdTogether(t, xs["casupdate"], many, workers)
	if locks, ok := xs["rowlock"].(*rowlock.Locks[Tx]); ok {
		held := 0
		must(t, "lock many", locks.DoAll(t.Context(), many, func(_ context.Context, grants []exclusive.Grant) error {
			held = len(grants)
			wantErr(t, "one of them", others["rowlock"].Do(t.Context(), many[0], nothing), exclusive.ErrHeld)
			return nil
		}))
		if held != len(many) {
			t.Errorf("%d of %d names were locked", held, len(many))
		}
	}
}

// colliding are pairs that hashes take for the same: CRC-32, FNV-1a, Java's, and 64
// buckets.
var colliding = [][2]string{{"plumless", "buckeroo"}, {"costarring", "liquid"}, {"Aa", "BB"}, {"0", "641"}, {"declinate", "macallums"}}

// collide takes both names of colliding pairs at once.
func collide(t *testing.T, x, other exclusive.Exclusive) {
	t.Helper()
	for _, names := range colliding {
		ran := false
		must(t, "hold "+names[0], x.Do(t.Context(), names[0], func(ctx context.Context, _ exclusive.Grant) error {
			if err := other.Do(t.Context(), names[0], nothing); !errors.Is(err, exclusive.ErrHeld) {
				t.Errorf("the name itself, on another pool: %v", err)
			}
			failing := func(context.Context, exclusive.Grant) error { return errBusiness }
			wantErr(t, names[1]+", on another pool", other.Do(t.Context(), names[1], failing), errBusiness)
			must(t, names[1]+", on the same pool", x.Do(ctx, names[1], func(context.Context, exclusive.Grant) error { ran = true; return nil }))
			return nil
		}))
		if !ran {
			t.Errorf("%s did not run beside %s", names[1], names[0])
		}
	}
}

// manyWorkers take many names, all together: fewer than a pool has connections.
const manyWorkers = 8

// holdMany holds many names at once. other gets none of them then.
func holdMany(t *testing.T, l, other exclusive.Leaser, n, workers int) {
	t.Helper()
	random := rand.Uint64()
	each := func(do func(i int, name string)) {
		var wg sync.WaitGroup
		for worker := range workers {
			wg.Go(func() {
				for i := worker; i < n; i += workers {
					do(i, fmt.Sprintf("%x/%x", random, i))
				}
			})
		}
		wg.Wait()
	}
	leases := make([]*exclusive.Lease, n)
	each(func(i int, name string) {
		var err error
		if leases[i], err = l.TryAcquire(t.Context(), name); err != nil {
			t.Errorf("name %d: %v", i, err)
		}
	})
	each(func(i int, name string) {
		if _, err := other.TryAcquire(t.Context(), name); !errors.Is(err, exclusive.ErrHeld) {
			t.Errorf("name %d, which is held with all others: %v", i, err)
		}
		if leases[i] == nil {
			return
		}
		if err := leases[i].Renew(t.Context()); err != nil {
			t.Errorf("name %d is not held with all others: %v", i, err)
		}
	})
}

// holdTogether has as much work as there are names wait for the last of them.
func holdTogether(t *testing.T, x exclusive.Exclusive, names []string, workers int) {
	t.Helper()
	var all, ended sync.WaitGroup
	all.Add(len(names))
	turns := make(chan struct{}, workers) // to begin, and to end
	for _, name := range names {
		turns <- struct{}{}
		ended.Go(func() {
			defer func() { <-turns }()
			enter := sync.OnceFunc(all.Done)
			defer enter()
			err := x.Do(t.Context(), name, func(ctx context.Context, _ exclusive.Grant) error {
				enter()
				<-turns
				all.Wait()
				turns <- struct{}{}
				return context.Cause(ctx)
			})
			if err != nil {
				t.Errorf("%s, with all others: %v", name, err)
			}
		})
	}
	ended.Wait()
}

// Names have one limit, 200 bytes, on every backend, also with the longest names of
// tables and schema; longer ones are refused before any I/O, and names that differ
// at their very end stay apart. In the field the limit was the server's, and a
// prefix pushed names over it on one of them.
func TestB092_LengthLimits(t *testing.T) {
	t.Parallel()
	matrix.Drivers(t, testLengthLimits[pgx.Tx], testLengthLimits[*sql.Tx])
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		client, prefix := servers.Prefix(t)
		cfg := redisbackend.Config{Prefix: prefix + strings.Repeat("p", 100-len(prefix))}
		fitting(t, redisLeases(t, client, cfg))
		nobody := opened(t, redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1, DialerRetries: 1}), nil)
		tooLong(t, "redis", redisLeases(t, nobody, cfg))
	})
}

func testLengthLimits[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	const maxIdentifier = 63
	prefix := strings.Repeat("p", maxIdentifier-len("task_floor"))
	schema := ""
	if target.Networked() {
		schema = target.Schema(t, strings.Repeat("s", maxIdentifier-9)) // it adds 9 of its own
	}
	migrateAs(t, target, schema, prefix)
	for _, x := range named(t, target, schema, prefix) {
		fitting(t, x)
	}
	for name, x := range named(t, nowhere(t, target), schema, prefix) {
		tooLong(t, name, x)
	}
	_, err := uniquetask.New(target.DB, uniquetask.Config{Task: "task", Prefix: prefix + "p"})
	wantErr(t, "a prefix that is too long", err, exclusive.ErrInvalid)
}

// migrateAs applies the migrations under other names.
func migrateAs[Tx any](t testing.TB, target *matrix.Target[Tx], schema, prefix string) {
	t.Helper()
	dialect, err := templates.ParseDialect(target.Dialect)
	must(t, "dialect", err)
	all, err := templates.Of(dialect, nil)
	must(t, "templates", err)
	for _, template := range all {
		target.MustExec(t, template.Up(templates.Names{Schema: schema, Prefix: prefix}))
	}
}

// nowhere is a pool of nobody: an answer means that nobody was asked.
func nowhere[Tx any](t testing.TB, target *matrix.Target[Tx]) *matrix.Target[Tx] {
	t.Helper()
	if target.Networked() {
		return target.Another(t, matrix.Options{Addr: "127.0.0.1:1"})
	}
	closed := target.Another(t, matrix.Options{})
	closed.ClosePool()
	return closed
}

const wide = "\U0001F512" // four bytes

// fitting holds names of all lengths that may be.
func fitting(t *testing.T, x exclusive.Exclusive) {
	t.Helper()
	var fit []string
	for _, n := range []int{1, 63, 64, 65, 191, 192, 199, 200} {
		fit = append(fit, strings.Repeat("x", n))
	}
	for _, n := range []int{1, 15, 16, 17, 47, 48, 49, 50} {
		fit = append(fit, strings.Repeat(wide, n))
	}
	fit = append(fit, strings.Repeat("x", 199)+"y", strings.Repeat(wide, 49)+"\U0001F513")
	for names := range slices.Chunk(fit, 8) { // rowlock has a connection for each
		holdAll(t, x, names)
	}
}

// tooLong gives longer names to a strategy that nobody answers.
func tooLong(t *testing.T, strategy string, x exclusive.Exclusive) {
	t.Helper()
	for _, n := range []int{201, 255, 256, 1000, 100_000} {
		for _, long := range []string{strings.Repeat("x", n), strings.Repeat(wide, (n+3)/4), strings.Repeat("x", n-1) + "y"} {
			err := x.Do(t.Context(), long, func(context.Context, exclusive.Grant) error { t.Error("work ran"); return nil })
			wantErr(t, fmt.Sprintf("%s: %d bytes", strategy, len(long)), err, exclusive.ErrInvalid)
			if len(err.Error()) > 1000 {
				t.Errorf("the message has %d bytes", len(err.Error()))
			}
		}
	}
}

// What could not be stored alike everywhere is refused everywhere, before any I/O:
// names without a byte, with NUL, or of bytes that are no text. The cause is that of
// B092: what a name may be was left to each server.
func TestNameOwn_NoText(t *testing.T) {
	t.Parallel()
	test := func(t *testing.T, xs map[string]exclusive.Exclusive) {
		for _, strategy := range slices.Sorted(maps.Keys(xs)) {
			for _, name := range []string{"", "\x00", "a\x00b", "a\x00", "\xff", "a\xc3", "\xed\xa0\x80", "\xc0\x80"} {
				err := xs[strategy].Do(t.Context(), name, func(context.Context, exclusive.Grant) error { t.Error("work ran"); return nil })
				wantErr(t, fmt.Sprintf("%s: %q", strategy, name), err, exclusive.ErrInvalid)
			}
		}
	}
	matrix.Shared(t, noText[pgx.Tx](test), noText[*sql.Tx](test))
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		client, prefix := servers.Prefix(t)
		test(t, map[string]exclusive.Exclusive{"redis": redisLeases(t, client, redisbackend.Config{Prefix: prefix})})
	})
}

func noText[Tx any](test func(*testing.T, map[string]exclusive.Exclusive)) func(*testing.T, *matrix.Target[Tx]) {
	return func(t *testing.T, target *matrix.Target[Tx]) {
		nowhere := nowhere(t, target)
		test(t, named(t, nowhere, "", ""))
		jobs := moreJobs(t, nowhere, jobConfig())
		test(t, map[string]exclusive.Exclusive{"casupdate": jobs})
		guard, err := fencing.NewGuard(nowhere.DB, fencing.GuardConfig{})
		must(t, "guard", err)
		wantErr(t, "guard", guard.Register(t.Context(), exclusive.Grant{Key: "a\x00b", Token: 1, ID: "id"}), exclusive.ErrInvalid)
	}
}

// Names that look like the syntax of a pattern, a list, a quote or a key's own
// suffix are names like any other: all held at once, and each freed by itself. The
// cause is that of B091: a name that is more than a name somewhere on its way.
func TestNameOwn_NamesThatMeanSomething(t *testing.T) {
	t.Parallel()
	matrix.Drivers(t, testMeaningful[pgx.Tx], testMeaningful[*sql.Tx])
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		client, prefix := servers.Prefix(t)
		holdAndFree(t, redisLeases(t, client, redisbackend.Config{Prefix: prefix}))
	})
}

var meaningful = []string{
	"%", "_", "a%", "a_", "*", "a*", "?", "[a]", `\`, `\\`, `'`, `''`, `"`, "`", "--", "/*", ";", "a;b", "a,b", "a", "b", "a, b",
	"{", "}", "{a}", "a:lease", "a:counter", "$1", ":1", "@a", "\t", "\n", "\r\n", " ", "NULL", "null", "0", "0x61", "a\u200b", "\ufeffa",
}

func testMeaningful[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	target.Migrate(t, "")
	for _, x := range named(t, target, "", "") {
		if l, ok := x.(exclusive.Leaser); ok {
			holdAndFree(t, l)
		} else {
			for names := range slices.Chunk(meaningful, 8) {
				holdAll(t, x, names)
			}
		}
	}
}

func holdAndFree(t *testing.T, l exclusive.Leaser) {
	t.Helper()
	held := make(map[string]*exclusive.Lease)
	for _, name := range meaningful {
		held[name] = acquire(t, l, name)
		must(t, "renew", held[name].Renew(t.Context()))
	}
	for i, name := range meaningful {
		must(t, "release", held[name].Release(t.Context()))
		for _, other := range meaningful[i+1:] {
			must(t, "the others", context.Cause(held[other].Context()))
		}
		if i+1 < len(meaningful) {
			_, err := l.TryAcquire(t.Context(), meaningful[i+1])
			wantErr(t, "the next name", err, exclusive.ErrHeld)
		}
	}
}
