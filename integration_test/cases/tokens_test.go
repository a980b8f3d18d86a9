package cases_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/fencing"
	"github.com/exclusive-go/exclusive/integration_test/cases/session"
	"github.com/exclusive-go/exclusive/integration_test/matrix"
	"github.com/exclusive-go/exclusive/integration_test/servers"
	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/internal/strategy"
	"github.com/exclusive-go/exclusive/redisbackend"
	"github.com/exclusive-go/exclusive/uniquetask"
)

// allocate acquires and releases key n times and returns the last grant.
func allocate(t testing.TB, l exclusive.Leaser, key string, n int) (g exclusive.Grant) {
	t.Helper()
	for range n {
		lease := acquire(t, l, key)
		if token := lease.Grant().Token; token <= g.Token {
			t.Fatalf("token %d after %d", token, g.Token)
		}
		g = lease.Grant()
		must(t, "release", lease.Release(t.Context()))
	}
	return g
}

// A token is never accepted twice, whatever becomes of the rows behind it: the next
// one is higher, or it is refused where results are stored and a guarded Do draws
// until it is (no server is restarted for this). In the field tokens came from
// AUTO_INCREMENT, which began again when its rows were deleted and the server
// restarted. (No table here has one. The shared server is not restarted: what
// survives is rows, and on MariaDB a sequence without a cache.)
func TestB094_CountersBeginAgain(t *testing.T) {
	t.Parallel()
	matrix.Drivers(t, testCountersBeginAgain[pgx.Tx], testCountersBeginAgain[*sql.Tx])
}

func testCountersBeginAgain[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	ctx := t.Context()
	guard, write := guardOn(t, target)
	x := leasesOn(t, target, fencing.Config{TTL: forever, NoRenew: true})
	both := fencing.Guarded(x, guard)
	sequence := target.Dialect == "postgres" || target.Dialect == "mariadb"
	remove := map[string]string{"delete": "DELETE FROM exclusive_lease", "truncate": "TRUNCATE TABLE exclusive_lease"}
	switch target.Dialect {
	case "mysql", "mariadb":
		if n := target.Int(t, "SELECT COUNT(*) FROM information_schema.columns WHERE table_schema = DATABASE() AND extra LIKE '%auto_increment%'"); n != 0 {
			t.Errorf("%d columns count by AUTO_INCREMENT", n)
		}
		remove["rebuild"] = "ALTER TABLE exclusive_lease AUTO_INCREMENT = 1, FORCE"
	case "sqlite":
		delete(remove, "truncate") // it has no such statement
	}
	for how, statement := range remove {
		last := allocate(t, x, how, 3)
		must(t, "write", write(last, how))
		target.MustExec(t, statement)
		lease := acquire(t, x, how)
		next := lease.Grant()
		switch {
		case sequence || how == "rebuild":
			if next.Token <= last.Token {
				t.Errorf("%s: token %d after %d", how, next.Token, last.Token)
			}
			must(t, "write", write(next, how+" next"))
		case next.Token > last.Token:
			must(t, "write", write(next, how+" next"))
		default:
			err := write(next, "too low")
			wantErr(t, how+": a token that was seen", err, exclusive.ErrFenced)
			if !strings.Contains(err.Error(), "Advance") {
				t.Errorf("%s: %v does not name the repair", how, err)
			}
		}
		must(t, "release", lease.Release(ctx))
		must(t, how+": guarded do", both.Do(ctx, how, func(ctx context.Context, g exclusive.Grant) error {
			if g.Token <= last.Token {
				t.Errorf("%s: a guarded grant has token %d after %d", how, g.Token, last.Token)
			}
			return both.Commit(ctx, g, func(ctx context.Context, tx Tx) error {
				return target.Exec(ctx, tx, "UPDATE result SET body = 'guarded' WHERE name = 'r'")
			})
		}))
		wantErr(t, how+": the first holder", write(last, "late"), exclusive.ErrFenced)
		if got := body(t, target); got != "guarded" {
			t.Errorf("%s: %q is stored", how, got)
		}
	}
}

// A sequence that went back takes no token back: the key's next token is higher
// than its last, and a holder is overtaken by nobody with a lower one. In the field
// sequences stayed behind a logical switch-over or a restore, and nextval began at 1.
// For keys without a row exclusive doctor tells that, and prints the mend.
func TestB095_SequenceBehind(t *testing.T) {
	t.Parallel()
	exclusively := buildCommand(t)
	matrix.Drivers(t,
		func(t *testing.T, target *matrix.Target[pgx.Tx]) { testSequenceBehind(t, target, exclusively) },
		func(t *testing.T, target *matrix.Target[*sql.Tx]) { testSequenceBehind(t, target, exclusively) })
}

// doctorCheck is what one check of exclusive doctor says. Its exit code depends on
// other checks.
func doctorCheck(t *testing.T, exclusively command, dsn, strategy, check string) (status, mend string) {
	t.Helper()
	_, output := exclusively.run(t, dsn, "doctor", "--json", "--strategy", strategy)
	var report struct {
		Checks []struct{ Check, Status, Mend string }
	}
	must(t, "doctor: "+output, json.Unmarshal([]byte(output), &report))
	for _, c := range report.Checks {
		if c.Check == check {
			return c.Status, c.Mend
		}
	}
	return "", ""
}

func testSequenceBehind[Tx any](t *testing.T, target *matrix.Target[Tx], exclusively command) {
	ctx := t.Context()
	_, write := guardOn(t, target)
	target.Migrate(t, "redisbackend")
	x := leasesOn(t, target, fencing.Config{TTL: forever, NoRenew: true})
	must(t, "tokens up to 499", x.Advance(ctx, "k", 499))
	must(t, "tokens up to 499", x.Advance(ctx, "live", 499))
	first := allocate(t, x, "k", 1)
	live := acquire(t, x, "live")
	if first.Token < 500 || live.Grant().Token < 500 {
		t.Fatalf("tokens %d and %d; want 500 and more", first.Token, live.Grant().Token)
	}
	must(t, "write", write(first, "first"))
	back := map[string]string{
		"postgres": "SELECT setval('exclusive_token', 1, false)", "mariadb": "ALTER SEQUENCE exclusive_token RESTART WITH 1",
		"mysql": "DELETE FROM exclusive_token", "sqlite": "DELETE FROM exclusive_token", // where new keys begin
	}
	target.MustExec(t, back[target.Dialect])

	lease := acquire(t, x, "k")
	second := lease.Grant()
	if second.Token <= first.Token {
		t.Errorf("token %d after %d", second.Token, first.Token)
	}
	must(t, "write", write(second, "second"))
	wantErr(t, "the first holder", write(first, "late"), exclusive.ErrFenced)
	_, err := x.TryAcquire(ctx, "live")
	wantErr(t, "a live holder's key", err, exclusive.ErrHeld)
	must(t, "a live holder", live.Renew(ctx))

	// A key without a row knows no better than the sequence.
	if (target.Dialect == "postgres" || target.Dialect == "mariadb") && target.Name != "pgx" && target.Name != "lib_pq" {
		target.MustExec(t, back[target.Dialect])
		if token := allocate(t, x, "new", 1).Token; token >= second.Token {
			t.Errorf("token %d: the sequence is not behind %d, and the case proves nothing", token, second.Token)
		}
		status, mend := doctorCheck(t, exclusively, commandDSN(t, target), "fencing", "tokens")
		if status != "warn" {
			t.Errorf("doctor says %q of a sequence that is behind", status)
		}
		target.MustExec(t, mend)
		if token := allocate(t, x, "newer", 1).Token; token <= second.Token {
			t.Errorf("token %d of a new key after %q; want more than %d", token, mend, second.Token)
		}
		if status, _ := doctorCheck(t, exclusively, commandDSN(t, target), "fencing", "tokens"); status != "ok" {
			t.Errorf("after the mend doctor says %q", status)
		}
	}

	// The rows are gone too, as with a restore of an older copy: Advance repairs.
	target.MustExec(t, "DELETE FROM exclusive_lease")
	target.MustExec(t, back[target.Dialect])
	third := acquire(t, x, "k")
	wantErr(t, "a token that went back", write(third.Grant(), "third"), exclusive.ErrFenced)
	must(t, "release", third.Release(ctx))
	must(t, "repair", x.Advance(ctx, "k", second.Token))
	must(t, "after the repair", write(acquire(t, x, "k").Grant(), "repaired"))
	if got := body(t, target); got != "repaired" {
		t.Errorf("%q is stored", got)
	}

	// Leases in Redis whose tokens come from this database: what Redis remembers
	// of the key shows that the source went back.
	tokens, err := redisbackend.NewTokens(target.DB, redisbackend.TokensConfig{})
	must(t, "tokens", err)
	client, prefix := servers.Prefix(t)
	drawing := redisLeases(t, client, redisbackend.Config{Prefix: prefix, Tokens: tokens, TTL: forever, NoRenew: true})
	must(t, "advance", drawing.Advance(ctx, "k", 500))
	drawn := allocate(t, drawing, "k", 1)
	target.MustExec(t, "UPDATE exclusive_counter SET token = 1")
	_, err = drawing.TryAcquire(ctx, "k")
	wantErr(t, "a source that went back", err, exclusive.ErrUnavailable)
	if !strings.Contains(err.Error(), "Advance") {
		t.Errorf("%v does not name the repair", err)
	}
	must(t, "repair", drawing.Advance(ctx, "k", drawn.Token))
	if next := allocate(t, drawing, "k", 1); next.Token <= drawn.Token {
		t.Errorf("token %d after %d", next.Token, drawn.Token)
	}
}

// A token stays the same through renewals, rises with every new grant, and is
// accepted as often as its holder writes; older ones are refused and impossible ones
// are invalid, and poison nothing. In the field callers had to compare tokens
// themselves, and tokens changed on renewal.
func TestB097_TokenSemantics(t *testing.T) {
	t.Parallel()
	matrix.Drivers(t, testTokenSemantics[pgx.Tx], testTokenSemantics[*sql.Tx])
}

func testTokenSemantics[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	ctx := t.Context()
	guard, write := guardOn(t, target)
	target.MustExec(t, "CREATE TABLE own (name varchar(20) PRIMARY KEY, body varchar(200) NOT NULL, fence_token bigint, fence_grant varchar(64))")
	target.MustExec(t, "INSERT INTO own (name, body) VALUES ('fencing', ''), ('redis', '')")
	rows, err := fencing.NewRowGuard(target.DB, fencing.RowConfig{Table: "own", KeyColumns: []string{"name"}})
	must(t, "row guard", err)
	redis := redisIssuer(t)
	for name, l := range map[string]exclusive.Leaser{
		"fencing": leasesOn(t, target, fencing.Config{TTL: forever, NoRenew: true}),
		"redis":   redis.open(t, fencing.Config{TTL: forever, NoRenew: true}),
	} {
		lease := acquire(t, l, name)
		t1 := lease.Grant()
		for range 3 {
			must(t, "renew", lease.Renew(ctx))
		}
		if g := lease.Grant(); g.Token != t1.Token || g.ID != t1.ID {
			t.Errorf("%s: token %d became %d by renewal", name, t1.Token, g.Token)
		}
		must(t, "release", lease.Release(ctx))
		t2 := acquire(t, l, name).Grant()
		if name == "redis" {
			redis.remove(t, name)
		} else {
			target.MustExec(t, "UPDATE exclusive_lease SET expires_at = 1 WHERE lease_key = ?", []byte(name))
		}
		t3 := acquire(t, l, name).Grant()
		if t1.Token >= t2.Token || t2.Token >= t3.Token {
			t.Errorf("%s: tokens %d, %d, %d", name, t1.Token, t2.Token, t3.Token)
		}
		writes := map[string]func(g exclusive.Grant, body string) error{ // at each kind of mark
			"guard": write,
			"row guard": func(g exclusive.Grant, body string) error {
				return inTx(ctx, target, func(ctx context.Context, tx Tx) error {
					if err := rows.Check(ctx, tx, g, name); err != nil {
						return err
					}
					return target.Exec(ctx, tx, target.Bind("UPDATE own SET body = ? WHERE name = ?"), body, name)
				})
			},
		}
		stands := func(after string) { // t3's write and mark, and nothing of anybody else
			t.Helper()
			if got := body(t, target); got != "three" {
				t.Errorf("%s: after %s %q is stored", name, after, got)
			}
			if n := target.Int(t, "SELECT COUNT(*) FROM exclusive_mark WHERE mark_key = ? AND token = ? AND grant_id = ?", []byte(name), t3.Token, t3.ID); n != 1 {
				t.Errorf("%s: after %s the mark is wrong", name, after)
			}
			if n := target.Int(t, "SELECT COUNT(*) FROM own WHERE name = ? AND body = 'three' AND fence_token = ? AND fence_grant = ?", name, t3.Token, t3.ID); n != 1 {
				t.Errorf("%s: after %s the row, or its own mark, is wrong", name, after)
			}
		}
		for range 3 {
			for at, write := range writes {
				must(t, name+": the holder, "+at, write(t3, "three"))
			}
		}
		stands("the holder's writes")
		for at, write := range writes {
			for _, former := range []exclusive.Grant{t2, t1} {
				what := fmt.Sprintf("token %d after %d, %s", former.Token, t3.Token, at)
				wantErr(t, name+": "+what, write(former, "late"), exclusive.ErrFenced)
				stands(what)
			}
			for _, impossible := range []int64{0, -1, math.MinInt64, math.MaxInt64, strategy.MaxToken + 1} {
				typo := t3
				typo.Token = impossible
				what := fmt.Sprintf("token %d, %s", impossible, at)
				err := write(typo, "typo")
				wantErr(t, name+": "+what, err, exclusive.ErrInvalid)
				not(t, name+": "+what, err, exclusive.ErrFenced)
				wantErr(t, name+": register", guard.Register(ctx, typo), exclusive.ErrInvalid)
				stands(what)
			}
			must(t, name+": the holder, after all, "+at, write(t3, "three"))
		}
		stands("all that")
	}
}

// A check and the write after it are one: a newer holder's write waits for it, or
// the older one's is refused, and the newer value stands. In the field the token was
// compared first and the write done later, with nothing locked in between.
func TestB098_GapBetweenCheckAndWrite(t *testing.T) {
	t.Parallel()
	matrix.Drivers(t, testGap[pgx.Tx], testGap[*sql.Tx])
}

func testGap[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	target.Migrate(t, "fencing")
	target.MustExec(t, "CREATE TABLE result (name varchar(40) PRIMARY KEY, x bigint NOT NULL, fence_token bigint, fence_grant varchar(64))")
	type isolation struct {
		level    string
		settings map[string]string
	}
	var isolations []isolation
	for _, level := range []string{"read committed", "repeatable read", "serializable"} {
		switch {
		case target.Dialect == "mariadb":
			// Whether a write to a row that has changed since the snapshot is refused.
			for _, on := range []string{"OFF", "ON"} {
				isolations = append(isolations, isolation{level, map[string]string{"innodb_snapshot_isolation": on}})
			}
		case target.Networked(), level == "serializable": // SQLite's only one
			isolations = append(isolations, isolation{level, nil})
		}
	}
	for _, i := range isolations {
		level, snapshots := i.level, i.settings["innodb_snapshot_isolation"]
		there := target
		if target.Networked() {
			there = target.Isolated(t, level, i.settings)
		}
		guard, err := fencing.NewGuard(there.DB, fencing.GuardConfig{})
		must(t, "guard", err)
		rows, err := fencing.NewRowGuard(there.DB, fencing.RowConfig{Table: "result", KeyColumns: []string{"name"}})
		must(t, "row guard", err)
		for name, check := range map[string]func(ctx context.Context, tx Tx, key string, g exclusive.Grant) error{
			"guard": func(ctx context.Context, tx Tx, _ string, g exclusive.Grant) error { return guard.Check(ctx, tx, g) },
			"row_guard": func(ctx context.Context, tx Tx, key string, g exclusive.Grant) error {
				return rows.Check(ctx, tx, g, key)
			},
			"twin": nil, // a plain read of the mark, which locks nothing
		} {
			refuses := target.Dialect == "postgres" || snapshots == "ON" // a write to a row that has changed since the snapshot
			if name == "twin" && (!target.Networked() || level == "serializable" || level == "repeatable read" && refuses) {
				continue // there a server keeps even that in order, or refuses it
			}
			key := strings.Join(strings.Fields(level+" "+snapshots+" "+name), "_")
			t.Run(key, func(t *testing.T) { playGap(t, there, key, check) })
		}
	}
}

func playGap[Tx any](t *testing.T, target *matrix.Target[Tx], key string, check func(ctx context.Context, tx Tx, key string, g exclusive.Grant) error) {
	target.MustExec(t, "INSERT INTO result (name, x) VALUES (?, 0)", key)
	grant := func(token int64) exclusive.Grant {
		return exclusive.Grant{Key: key, Token: token, ID: fmt.Sprint("of ", token)}
	}
	store := func(ctx context.Context, tx Tx, token int64) error {
		return target.Exec(ctx, tx, target.Bind("UPDATE result SET x = ? WHERE name = ?"), token, key)
	}
	prove := func(ctx context.Context, tx Tx, token int64) error {
		if check != nil {
			return check(ctx, tx, key, grant(token))
		}
		r, err := target.DB.Within(tx)
		if err != nil {
			return err
		}
		return r.Query(ctx, target.Bind("SELECT x FROM result WHERE name = ? AND x < ?"), []any{key, token}, func(db.Scan) error { return nil })
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	newer := make(chan struct{})
	older := inTx(t.Context(), target, func(ctx context.Context, tx Tx) error {
		if err := prove(ctx, tx, 5); err != nil {
			return err
		}
		wg.Go(func() {
			defer close(newer)
			// ErrConflict says that the whole of it is to be done again.
			for err := exclusive.ErrConflict; errors.Is(err, exclusive.ErrConflict); {
				err = inTx(soon(t), target, func(ctx context.Context, tx Tx) error {
					if err := prove(ctx, tx, 6); err != nil {
						return err
					}
					return store(ctx, tx, 6)
				})
				if err != nil && !errors.Is(err, exclusive.ErrConflict) {
					t.Errorf("the newer holder: %v", err)
				}
			}
		})
		// The newer one waits for this transaction, or is done with its own.
		done := func() bool {
			select {
			case <-newer:
				return true
			default:
				return false
			}
		}
		if target.Networked() {
			session.AwaitWaiting(t, target.Plain, target.Dialect, 1, done)
		} else {
			await(t, "the newer holder to ask", func() bool { return done() || target.InUse() >= 2 })
		}
		return store(ctx, tx, 5)
	})
	wg.Wait()
	if older != nil && check != nil {
		if !errors.Is(older, exclusive.ErrFenced) && !errors.Is(older, exclusive.ErrConflict) {
			// A conflict in the write itself is the driver's own.
			if target.DB.Classify(older) != db.Conflict {
				t.Errorf("the older holder: %v", older)
			}
		}
	}
	x := target.Int(t, "SELECT x FROM result WHERE name = ?", key)
	switch {
	case check != nil && x != 6:
		t.Errorf("%d is stored; the newer holder wrote 6", x)
	case check == nil && (older != nil || x != 5):
		t.Errorf("%d is stored, and the older holder was told %v: without the guard nothing goes wrong", x, older)
	}
}

// The tokens of a run rise although its row was forgotten or pruned, and an older
// attempt is refused at any destination. The cause is that of B094: what counts is
// removed with what it counts for.
func TestTokenOwn_ForgottenRuns(t *testing.T) {
	t.Parallel()
	matrix.Drivers(t, testForgottenRuns[pgx.Tx], testForgottenRuns[*sql.Tx])
}

func testForgottenRuns[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	ctx := t.Context()
	_, write := guardOn(t, target)
	target.Migrate(t, "uniquetask")
	tasks := tasksOn(t, target, uniquetask.Config{})
	var last exclusive.Grant
	for i, remove := range []func() error{
		func() error { return tasks.Forget(ctx, "run") },
		func() error { return second(tasks.Prune(ctx, 0)) },
		func() error { return tasks.Forget(ctx, "run") },
		func() error { return nil },
	} {
		former := last
		must(t, "do", tasks.Do(ctx, "run", func(_ context.Context, g exclusive.Grant) error {
			if g.Token <= last.Token {
				t.Errorf("token %d after %d", g.Token, last.Token)
			}
			last = g
			return write(g, fmt.Sprint("run ", i))
		}))
		if former.Token > 0 {
			wantErr(t, "a former grant", write(former, "late"), exclusive.ErrFenced)
		}
		must(t, "remove", remove())
	}
	if got := body(t, target); got != "run 3" {
		t.Errorf("%q is stored", got)
	}
}

// Of two issuers that hand out the same numbers for one key only one grant of each
// number is accepted. The cause is that of B095: numbers that were given out twice,
// here by configuration.
func TestTokenOwn_TwoIssuers(t *testing.T) {
	t.Parallel()
	matrix.Drivers(t, testTwoIssuers[pgx.Tx], testTwoIssuers[*sql.Tx])
}

func testTwoIssuers[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	_, write := guardOn(t, target)
	one, two := redisIssuer(t), redisIssuer(t)
	cfg := fencing.Config{TTL: forever, NoRenew: true}
	a, b := acquire(t, one.open(t, cfg), "k").Grant(), acquire(t, two.open(t, cfg), "k").Grant()
	if a.Token != b.Token {
		t.Fatalf("tokens %d and %d", a.Token, b.Token)
	}
	must(t, "the first", write(a, "a"))
	wantErr(t, "the second", write(b, "b"), exclusive.ErrFenced)
	must(t, "the first again", write(a, "a again"))
	if got := body(t, target); got != "a again" {
		t.Errorf("%q is stored", got)
	}
}

// Sequences that could give a later grant a smaller token are refused before any
// grant: with a cache, and with a cycle.
func TestTrap_CyclingSequence(t *testing.T) {
	t.Parallel()
	matrix.Drivers(t, testCyclingSequence[pgx.Tx], testCyclingSequence[*sql.Tx], "postgres", "mariadb")
}

func testCyclingSequence[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	target.Migrate(t, "fencing")
	good := map[string]string{"postgres": "CACHE 1 NO CYCLE", "mariadb": "NOCACHE NOCYCLE"}[target.Dialect]
	for _, bad := range []string{"CACHE 20", "CYCLE"} {
		target.MustExec(t, "ALTER SEQUENCE exclusive_token "+bad)
		x := leasesOn(t, target, fencing.Config{})
		err := x.Do(t.Context(), "k", func(context.Context, exclusive.Grant) error { t.Error("work ran"); return nil })
		wantErr(t, bad, err, exclusive.ErrSchema)
		target.MustExec(t, "ALTER SEQUENCE exclusive_token "+good)
		must(t, good, x.Do(t.Context(), "k", nothing))
	}
}
