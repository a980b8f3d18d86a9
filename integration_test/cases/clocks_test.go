package cases_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/casupdate"
	"github.com/exclusive-go/exclusive/exclusivetest"
	"github.com/exclusive-go/exclusive/fencing"
	"github.com/exclusive-go/exclusive/integration_test/cases/pool"
	"github.com/exclusive-go/exclusive/integration_test/matrix"
	"github.com/exclusive-go/exclusive/integration_test/servers"
	"github.com/exclusive-go/exclusive/integration_test/strategies"
	"github.com/exclusive-go/exclusive/redisbackend"
	"github.com/exclusive-go/exclusive/uniquetask"
)

// numbers are those in a statement or an argument that could be a time.
var numbers = regexp.MustCompile(`\d{10,19}|20\d\d-\d\d-\d\d`)

// clockTime finds the time of this machine, in any unit, in what is sent.
func clockTime(sent ...any) string {
	now := time.Now()
	for _, v := range sent {
		if b, ok := v.([]byte); ok {
			v = string(b)
		}
		for _, s := range numbers.FindAllString(fmt.Sprint(v), -1) {
			n, err := strconv.ParseInt(s, 10, 64)
			if err != nil {
				return s // a date
			}
			for _, is := range []int64{now.Unix(), now.UnixMilli(), now.UnixMicro(), now.UnixNano()} {
				if f := float64(n) / float64(is); f > 0.99 && f < 1.01 { // half a year around
					return s
				}
			}
		}
	}
	return ""
}

// shift opens a PostgreSQL target anew with a clock that differs from everybody
// else's. set moves it.
func shift[Tx any](t *testing.T, target *matrix.Target[Tx]) (shifted *matrix.Target[Tx], set func(by string)) {
	t.Helper()
	target.MustExec(t, "CREATE TABLE clock (off interval NOT NULL)")
	target.MustExec(t, "INSERT INTO clock VALUES ('0')")
	for _, name := range []string{"clock_timestamp", "statement_timestamp"} {
		// Not SQL, which the planner would look into.
		target.MustExec(t, "CREATE FUNCTION "+name+`() RETURNS timestamptz LANGUAGE plpgsql VOLATILE
			AS 'BEGIN RETURN pg_catalog.`+name+`() + off FROM clock; END'`)
	}
	var schema string
	must(t, "the schema's name", target.Plain.QueryRowContext(t.Context(), "SELECT current_schema()").Scan(&schema))
	path := schema + ", pg_catalog" // which comes first unless it is named
	shifted = target.Another(t, matrix.Options{Params: map[string]string{"search_path": path}})
	plain, err := sql.Open("pgx", servers.WithParam(target.Address().DSN, "search_path", path))
	shifted.Plain = opened(t, plain, err)
	return shifted, func(by string) { target.MustExec(t, "UPDATE clock SET off = CAST(? AS interval)", by) }
}

// Only the server's clock decides who has a key: how far the clients' clocks
// are off, in either direction, changes nothing (the server's own is set off too, but
// for Redis and SQLite, where it is the machine's and cannot be).
// Elsewhere each node wrote lease times of its own clock, and three minutes of
// skew gave a second one the key at once. Here no time of a client's clock is
// sent at all; and the server's clock is set off for a part of its sessions.
func TestB022_ClientClocks(t *testing.T) {
	t.Parallel()
	t.Run("no time is sent", func(t *testing.T) {
		matrix.Shared(t, testB022Sent[pgx.Tx], testB022Sent[*sql.Tx])
		t.Run("redis", testB022Redis)
	})
	t.Run("server is off", func(t *testing.T) {
		matrix.Drivers(t, testB022Off[pgx.Tx], testB022Off[*sql.Tx], "postgres", "mysql", "mariadb")
	})
}

func testB022Sent[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	strategies.Tables(t, target)
	var mu sync.Mutex
	seen := 0
	watched := pool.New(target.DB)
	watched.OnStatement(func(query string, args []any) error {
		mu.Lock()
		defer mu.Unlock()
		seen++
		if s := clockTime(append([]any{query}, args...)...); s != "" {
			t.Errorf("%s is sent in %s %v", s, query, args)
		}
		return nil
	})
	leases, err := fencing.New[Tx](watched, fencing.Config{})
	opened(t, leases, err)
	tasks, err := uniquetask.New[Tx](watched, uniquetask.Config{Task: "clocks", Backoff: time.Minute})
	opened(t, tasks, err)
	table, err := casupdate.New[Tx](watched, casupdate.Config{
		Table: "job", From: "PENDING", Claimed: "PROCESSING", Done: "DONE", TTL: time.Minute,
		TokenColumn: "token", GrantColumn: "grant_id", ClaimedAtColumn: "claimed_at", HolderColumn: "holder", ExpiresColumn: "expires_at",
	})
	opened(t, table, err)
	key := newKey()
	target.MustExec(t, "INSERT INTO job (id, state) VALUES (?, 'PENDING')", key)
	for _, x := range []exclusive.Transactional[Tx]{leases, tasks, table} {
		err := x.Do(t.Context(), key, func(ctx context.Context, g exclusive.Grant) error {
			must(t, "check", inTx(ctx, target, func(ctx context.Context, tx Tx) error { return x.Check(ctx, tx, g) }))
			if err := x.Do(ctx, key, nothing); !errors.Is(err, exclusive.ErrHeld) {
				t.Errorf("a rival: %v", err)
			}
			return x.Commit(ctx, g, func(context.Context, Tx) error { return nil })
		})
		must(t, "do", err)
		err = x.Do(t.Context(), key, func(context.Context, exclusive.Grant) error { return errBusiness })
		if !errors.Is(err, errBusiness) && !errors.Is(err, exclusive.ErrDone) {
			t.Errorf("do: %v", err)
		}
	}
	lease := acquire(t, leases, key)
	must(t, "renew", lease.Renew(t.Context()))
	must(t, "release", lease.Release(t.Context()))
	_, err = leases.Once(t.Context(), *new(Tx), key, nil, nil)
	wantErr(t, "once without a transaction", err, exclusive.ErrInvalid)
	must(t, "once", inTx(t.Context(), target, func(ctx context.Context, tx Tx) error {
		_, err := leases.Once(ctx, tx, key, nil, func(context.Context) ([]byte, error) { return []byte("r"), nil })
		return err
	}))
	mu.Lock()
	defer mu.Unlock()
	if seen < 10 {
		t.Errorf("only %d statements were looked at", seen)
	}
	if clockTime(fmt.Sprint(time.Now().UnixMicro())) == "" || clockTime(time.Now().Format(time.RFC3339)) == "" {
		t.Error("a time would not be found")
	}
}

// sent is a hook of go-redis that looks at each command.
type sent struct{ look func(args []any) }

func (h sent) DialHook(next redis.DialHook) redis.DialHook { return next }
func (h sent) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { h.look(cmd.Args()); return next(ctx, cmd) }
}
func (h sent) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			h.look(cmd.Args())
		}
		return next(ctx, cmds)
	}
}

func testB022Redis(t *testing.T) {
	t.Parallel()
	client, prefix := servers.Prefix(t)
	client.AddHook(sent{func(args []any) {
		if s := clockTime(args...); s != "" {
			t.Errorf("%s is sent in %v", s, args)
		}
	}})
	x, err := redisbackend.New(client, redisbackend.Config{Prefix: prefix})
	lease := acquire(t, opened(t, x, err), "k")
	must(t, "renew", lease.Renew(t.Context()))
	_, err = x.TryAcquire(t.Context(), "k")
	wantErr(t, "a rival", err, exclusive.ErrHeld)
	must(t, "release", lease.Release(t.Context()))
}

// off opens targets of which the server's clock differs from that of everybody else.
// On MySQL and MariaDB it stands still, and each target has its own.
func off[Tx any](t *testing.T, target *matrix.Target[Tx]) (at func(by time.Duration) *matrix.Target[Tx]) {
	t.Helper()
	if target.Dialect == "postgres" {
		shifted, set := shift(t, target)
		return func(by time.Duration) *matrix.Target[Tx] {
			set(fmt.Sprint(by.Microseconds(), " microseconds"))
			return shifted
		}
	}
	now := time.Now()
	return func(by time.Duration) *matrix.Target[Tx] {
		at := now.Add(by).UnixMicro()
		return target.Another(t, matrix.Options{Params: map[string]string{"timestamp": fmt.Sprintf("%d.%06d", at/1e6, at%1e6)}})
	}
}

func testB022Off[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	const ttl = 2 * time.Minute
	strategies.Tables(t, target)
	at := off(t, target)
	for _, s := range strategies.All[Tx]() {
		if s.Name != "fencing" && s.Name != "uniquetask" && s.Name != "casupdate_leased" && s.Name != "fencing_guarded_here" {
			continue
		}
		for _, by := range []time.Duration{3 * time.Minute, -3 * time.Minute} {
			there := at(by)
			place := s.SetUp(t, there)
			key := place.MustKey(t)
			x := place.New(t, there, exclusivetest.Config{TTL: ttl, NoRenew: true})
			err := x.Do(t.Context(), key, func(ctx context.Context, g exclusive.Grant) error {
				for _, early := range []time.Duration{0, ttl / 2} {
					rival := place.New(t, at(by+early), exclusivetest.Config{})
					wantErr(t, fmt.Sprint(s.Name, ": a rival after ", early), rival.Do(ctx, key, nothing), exclusive.ErrHeld)
				}
				// Past the machine's own time as well: a claim on MySQL compares
				// its session's clock with that, to know how long it has waited.
				next := place.New(t, at(by+2*ttl), exclusivetest.Config{})
				stores(t, place, next, key, "next")
				return x.Commit(context.WithoutCancel(ctx), g, func(ctx context.Context, tx Tx) error { return place.Write(ctx, tx, key, "former") })
			})
			if !errors.Is(err, exclusive.ErrFenced) && !errors.Is(err, exclusive.ErrLost) {
				t.Errorf("%s: the former holder: %v", s.Name, err)
			}
			if body, n := place.Stored(t, key); body != "next" || n != 1 {
				t.Errorf("%s: stored %q, %d results", s.Name, body, n)
			}
		}
	}
}

// A lease has its full length on the server however long its statement waited
// for the row, and one that has run out is refused in a transaction however long
// that has been open.
// Elsewhere the clock of PostgreSQL that was used stands still for as long as a
// transaction lasts: leases were born expired, and time never passed.
func TestB023_FrozenTransactionClock(t *testing.T) {
	t.Parallel()
	t.Run("row is locked", func(t *testing.T) {
		eachIssuer(t, func(t *testing.T, i *issuer) {
			if i.hold == nil {
				return // a script of Redis waits for nobody
			}
			const ttl = 4 * time.Second
			key := newKey()
			x, watch := i.watched(t, fencing.Config{TTL: ttl, NoRenew: true})
			free(t, x, key) // now it has a row
			unlock := sync.OnceFunc(i.hold(t, key))
			t.Cleanup(unlock)
			asks := newCue()
			watch.OnStatement(func(string, []any) error { asks.Give(); return nil })
			got := make(chan *exclusive.Lease, 1)
			go func() {
				lease, err := x.Acquire(soon(t), key)
				if err != nil {
					t.Errorf("acquire: %v", err)
				}
				got <- lease
			}()
			ended(t, "it asks for the row", asks.Given)
			time.Sleep(ttl / 2)
			unlocked := time.Now()
			unlock()
			lease := <-got
			if lease == nil {
				return
			}
			// It began after the row was free, however slow all is since. On MySQL it
			// begins with the statement, which has waited; so a part of it may be over
			// that is too short for the lease to be extended at once.
			const least = ttl - ttl/8 - tick
			left := i.left(t, key)
			if since := time.Since(unlocked); left+since < least {
				t.Errorf("of %v are left %v after %v", ttl, left, since)
			}
			if _, err := i.open(t, fencing.Config{}).TryAcquire(t.Context(), key); !errors.Is(err, exclusive.ErrHeld) && time.Now().Before(lease.Grant().Expires) {
				t.Errorf("a rival: %v", err)
			}
			must(t, "release", lease.Release(t.Context()))
		})
	})
	t.Run("transaction is old", func(t *testing.T) { eachStrategy(t, testB023, testB023) })
}

func testB023[Tx any](t *testing.T, target *matrix.Target[Tx], s strategies.Strategy[Tx]) {
	if s.Name != "fencing" && s.Name != "uniquetask" {
		return // whether it is current is not a question of time
	}
	place := s.SetUp(t, target)
	for name, ttl := range map[string]time.Duration{"lives": forever, "has run out": 2 * time.Second} {
		key := place.MustKey(t)
		x := place.New(t, target, exclusivetest.Config{TTL: ttl, NoRenew: true})
		old, err := target.BeginPast(t.Context())
		must(t, "begin", err)
		t.Cleanup(func() { _ = target.DB.Rollback(old) })
		if target.Networked() { // SQLite would hold on to what it has read
			must(t, "read", target.Exec(t.Context(), old, "SELECT 1 FROM result WHERE 1 = 0"))
		}
		err = x.Do(t.Context(), key, func(ctx context.Context, g exclusive.Grant) error {
			if name == "has run out" {
				time.Sleep(time.Until(g.Expires) + 300*time.Millisecond)
			}
			err := x.Check(context.WithoutCancel(ctx), old, g)
			if name == "lives" {
				must(t, "the check", err)
			} else {
				wantErr(t, "the check", err, exclusive.ErrLost)
			}
			return target.DB.Rollback(old)
		})
		if name == "lives" {
			must(t, "do", err)
		} else {
			wantErr(t, "do", err, exclusive.ErrLost)
		}
	}
}

// mysqlClocks are options of the DSN that change how times are sent, read or
// shown.
var mysqlClocks = []map[string]string{
	{"parseTime": "false"},
	{"parseTime": "true", "loc": "UTC"},
	{"parseTime": "true", "loc": "Asia/Jakarta"},
	{"interpolateParams": "true", "parseTime": "true", "loc": "America/New_York"},
	{"time_zone": "'-05:00'"},
	{"time_zone": "'+13:00'", "sql_mode": "''"},
	{"time_truncate_fractional": "1"},
}

// Whatever the DSN says about times, leases last equally long, and all who
// share a schema agree about them.
// Elsewhere stored times shifted with the DSN's zone, or could not be read.
func TestB025_TimesAndDSN(t *testing.T) {
	t.Parallel()
	matrix.Shared(t, nil, testB025, "mysql", "mariadb")
}

func testB025(t *testing.T, target *matrix.Target[*sql.Tx]) {
	strategies.Tables(t, target)
	options := mysqlClocks[:len(mysqlClocks)-1]
	if target.Dialect == "mariadb" { // its name there
		options = append(options, map[string]string{"sql_mode": "'TIME_ROUND_FRACTIONAL'"})
	} else {
		options = append(options, map[string]string{"sql_mode": "'TIME_TRUNCATE_FRACTIONAL'"})
	}
	sessionsAgree(t, target, options)
}

// sessionsAgree has each session take over from another one with other options.
func sessionsAgree[Tx any](t *testing.T, target *matrix.Target[Tx], options []map[string]string) {
	t.Helper()
	var all []*matrix.Target[Tx]
	for _, o := range options {
		all = append(all, target.Another(t, matrix.Options{Params: o, MaxConns: 2}))
	}
	var pairs sync.WaitGroup
	for n, a := range all {
		b := all[(n+1)%len(all)]
		name := fmt.Sprint(options[n], " and ", options[(n+1)%len(all)])
		const ttl = 4 * time.Second
		holder, err := fencing.New(a.DB, fencing.Config{TTL: ttl, NoRenew: true})
		opened(t, holder, err)
		rival, err := fencing.New(b.DB, fencing.Config{})
		opened(t, rival, err)
		tasks, err := uniquetask.New(a.DB, uniquetask.Config{Task: newKey(), TTL: ttl, NoRenew: true})
		opened(t, tasks, err)
		pairs.Go(func() {
			key := newKey()
			lease := acquire(t, holder, key)
			must(t, "renew", lease.Renew(t.Context()))
			early, err := rival.TryAcquire(t.Context(), key)
			if err == nil { // late, on a busy machine, or wrong
				must(t, "release", early.Release(t.Context()))
			}
			if time.Now().Before(lease.Grant().Expires) {
				if !errors.Is(err, exclusive.ErrHeld) {
					t.Errorf("%s: a rival: %v", name, err)
				}
				var e *exclusive.Error
				if errors.As(err, &e) && e.Holder != nil {
					// The server is on this machine.
					if off := e.Holder.Expires.Sub(lease.Grant().Expires); off < 0 || off > patience {
						t.Errorf("%s: the lease ends %v later for the rival", name, off)
					}
				}
			}
			next := acquire(t, rival, key)
			if left := time.Until(lease.Grant().Expires); left > 0 {
				t.Errorf("%s: taken over %v too early", name, left)
			}
			must(t, "release", next.Release(t.Context()))

			must(t, "a run", tasks.Do(t.Context(), key, nothing))
			runs, err := tasks.Runs(t.Context(), uniquetask.Filter{})
			if err != nil || len(runs) != 1 || time.Since(runs[0].Started).Abs() > time.Minute || time.Since(runs[0].Ended).Abs() > time.Minute {
				t.Errorf("%s: the list of runs is %v, %v", name, runs, err)
			}
		})
	}
	pairs.Wait()
}

// Leases have the length that was asked for to the millisecond, on every server,
// and no time column has fewer digits than that.
// Elsewhere MySQL rounded, and MariaDB cut, what a column for seconds had no
// digits for.
func TestB026_FractionsOfSeconds(t *testing.T) {
	t.Parallel()
	t.Run("lease", func(t *testing.T) {
		eachIssuer(t, func(t *testing.T, i *issuer) {
			x, rival := i.open(t, fencing.Config{TTL: fraction, NoRenew: true}), i.open(t, fencing.Config{})
			free(t, x, newKey()) // prepared
			for range 2 {
				key := newKey()
				atPoint6()
				lease := acquire(t, x, key)
				inFull(t, i.left(t, key), lease.Grant())
				early, err := rival.TryAcquire(t.Context(), key)
				if err == nil { // late, on a busy machine, or wrong
					must(t, "release", early.Release(t.Context()))
				}
				if time.Now().Before(lease.Grant().Expires) {
					wantErr(t, "a rival", err, exclusive.ErrHeld)
				}
				next := acquire(t, rival, key)
				if left := time.Until(lease.Grant().Expires); left > 0 {
					t.Errorf("taken over %v too early", left)
				}
				must(t, "release", next.Release(t.Context()))
			}
		})
	})
	t.Run("claim", func(t *testing.T) { eachLeased(t, testB026Claim, testB026Claim) })
	t.Run("columns", func(t *testing.T) {
		matrix.Shared(t, testB026[pgx.Tx], testB026[*sql.Tx], "postgres", "mysql", "mariadb")
	})
}

// fraction is the length of a lease that neither begins nor ends with a whole second
// if it begins at .6 s: what either is rounded or cut to shows.
const fraction = 1700 * time.Millisecond

// atPoint6 waits for .6 of a second.
func atPoint6() {
	now := time.Now()
	time.Sleep(now.Truncate(time.Second).Add(1600*time.Millisecond).Sub(now) % time.Second)
}

// inFull fails unless a lease of that length lasts on the server as long as here, at
// least, and no longer than it is.
func inFull(t testing.TB, left time.Duration, g exclusive.Grant) {
	t.Helper()
	if here := time.Until(g.Expires); left+tick < here {
		t.Errorf("left on the server are %v, and here %v", left, here)
	}
	if left > fraction {
		t.Errorf("left on the server are %v of %v", left, fraction)
	}
}

func testB026Claim[Tx any](t *testing.T, target *matrix.Target[Tx], s strategies.Strategy[Tx]) {
	place := s.SetUp(t, target)
	x := place.New(t, target, exclusivetest.Config{TTL: fraction, NoRenew: true})
	rival := place.New(t, target.Another(t, matrix.Options{}), exclusivetest.Config{})
	next := place.New(t, target, exclusivetest.Config{Wait: patience})
	must(t, "a first one", x.Do(t.Context(), place.MustKey(t), nothing)) // prepared
	key := place.MustKey(t)
	atPoint6()
	err := x.Do(t.Context(), key, func(_ context.Context, g exclusive.Grant) error {
		inFull(t, claimLeft(t, target, s, key), g)
		err := rival.Do(t.Context(), key, func(context.Context, exclusive.Grant) error { return errBusiness })
		if time.Now().Before(g.Expires) {
			wantErr(t, "a rival", err, exclusive.ErrHeld)
		}
		err = next.Do(soon(t), key, func(ctx context.Context, ng exclusive.Grant) error {
			if left := time.Until(g.Expires); left > 0 {
				t.Errorf("taken over %v too early", left)
			}
			return next.Commit(ctx, ng, func(ctx context.Context, tx Tx) error { return place.Write(ctx, tx, key, "next") })
		})
		must(t, "the next", err)
		return nil
	})
	if !errors.Is(err, exclusive.ErrLost) && !errors.Is(err, exclusive.ErrFenced) {
		t.Errorf("the one that ran out: %v", err)
	}
	if body, n := place.Stored(t, key); body != "next" || n != 1 {
		t.Errorf("stored %q, %d results", body, n)
	}
}

func testB026[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	strategies.Tables(t, target)
	schema := "DATABASE()"
	if target.Dialect == "postgres" {
		schema = "current_schema()"
	}
	rows, err := target.Plain.QueryContext(t.Context(), `SELECT table_name, column_name, data_type FROM information_schema.columns
		WHERE table_schema = `+schema+` AND table_name LIKE 'exclusive%'`)
	must(t, "columns", err)
	defer rows.Close()
	times := 0
	for rows.Next() {
		var table, column, kind string
		must(t, "scan", rows.Scan(&table, &column, &kind))
		if strings.HasSuffix(column, "_at") {
			times++
			if kind != "bigint" {
				t.Errorf("%s.%s is a %s", table, column, kind)
			}
		} else if strings.Contains(kind, "time") || strings.Contains(kind, "date") {
			t.Errorf("%s.%s is a %s", table, column, kind)
		}
	}
	must(t, "columns", rows.Err())
	if times < 5 {
		t.Errorf("only %d columns of times were found", times)
	}
}

// No two acquisitions share what identifies them, however fast they follow each
// other, and the handle of an earlier one can neither renew nor release.
// Elsewhere a millisecond and a length identified a holder.
func TestB028_SameMillisecond(t *testing.T) {
	t.Parallel()
	eachIssuer(t, func(t *testing.T, i *issuer) {
		key := newKey()
		x := i.open(t, fencing.Config{TTL: forever})
		ids := make(map[string]bool)
		var before *exclusive.Lease
		for range 20 {
			lease := acquire(t, x, key)
			g := lease.Grant()
			if ids[g.ID] || before != nil && g.Token <= before.Grant().Token {
				t.Fatalf("grant %v after %v", g, before.Grant())
			}
			ids[g.ID] = true
			must(t, "renew", lease.Renew(t.Context()))
			must(t, "renew", lease.Renew(t.Context()))
			if now := lease.Grant(); now.ID != g.ID || now.Token != g.Token {
				t.Errorf("renewal made %v of %v", now, g)
			}
			if before != nil {
				wantErr(t, "the earlier handle's renewal", before.Renew(t.Context()), exclusive.ErrLost)
				wantErr(t, "the earlier handle's release", before.Release(t.Context()), exclusive.ErrLost)
				must(t, "the lease after that", lease.Renew(t.Context()))
			}
			must(t, "release", lease.Release(t.Context()))
			before = lease
		}
	})
}

// Lengths that no lease can have are refused before anything is sent, and the
// longest and shortest ones work: none is without an end, and none ends at once.
// Elsewhere they were cut to 0, ran over into the past, or had no limit.
func TestB029_EdgesOfTTL(t *testing.T) {
	t.Parallel()
	t.Run("refused", func(t *testing.T) {
		matrix.Shared(t, testB029[pgx.Tx], testB029[*sql.Tx])
	})
	t.Run("limits", func(t *testing.T) {
		eachIssuer(t, func(t *testing.T, i *issuer) {
			long, key := i.open(t, fencing.Config{TTL: fencing.MaxTTL}), newKey()
			lease := acquire(t, long, key)
			if left := i.left(t, key); left < fencing.MaxTTL-time.Hour || left > fencing.MaxTTL+time.Second {
				t.Errorf("of %v are left %v", fencing.MaxTTL, left)
			}
			must(t, "release", lease.Release(t.Context()))

			short := i.open(t, fencing.Config{TTL: fencing.MinTTL})
			key = newKey()
			for range 3 {
				lease, err := short.TryAcquire(t.Context(), key)
				if err != nil { // the server is too slow for it
					wantErr(t, "the shortest lease", err, exclusive.ErrUnavailable)
					continue
				}
				if err := lease.Release(t.Context()); err != nil {
					wantErr(t, "its release", err, exclusive.ErrLost)
				}
			}
			await(t, "it ends", func() bool { return i.left(t, key) == 0 })
		})
	})
}

func testB029[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	nobody := pool.New(target.DB)
	nobody.OnStatement(func(query string, _ []any) error {
		t.Errorf("sent: %s", query)
		return errBusiness
	})
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer client.Close()
	const year = 365 * 24 * time.Hour
	for _, ttl := range []time.Duration{-1, -time.Second, 500 * time.Microsecond, time.Millisecond, 30 * year, 290 * year, 1 << 62, math.MaxInt64, math.MinInt64} {
		_, err := fencing.New[Tx](nobody, fencing.Config{TTL: ttl})
		wantErr(t, fmt.Sprint("fencing, ", ttl), err, exclusive.ErrInvalid)
		_, err = uniquetask.New[Tx](nobody, uniquetask.Config{Task: "t", TTL: ttl})
		wantErr(t, fmt.Sprint("uniquetask, ", ttl), err, exclusive.ErrInvalid)
		_, err = casupdate.New[Tx](nobody, casupdate.Config{
			Table: "job", From: "PENDING", Claimed: "PROCESSING", Done: "DONE", TTL: ttl,
			TokenColumn: "token", GrantColumn: "grant_id", ExpiresColumn: "expires_at",
		})
		wantErr(t, fmt.Sprint("casupdate, ", ttl), err, exclusive.ErrInvalid)
		_, err = redisbackend.New(client, redisbackend.Config{TTL: ttl})
		wantErr(t, fmt.Sprint("redisbackend, ", ttl), err, exclusive.ErrInvalid)
	}
	// Zero is the documented default, and no lease without an end.
	_, err := fencing.New[Tx](nobody, fencing.Config{})
	must(t, "zero", err)
}

// Sessions in different time zones agree about each lease.
// The cause is that of the DSN's zone: a time that is read in another zone than
// it was written in.
func TestClockOwn_SessionTimeZones(t *testing.T) {
	t.Parallel()
	options := []map[string]string{{"timezone": "UTC"}, {"timezone": "Asia/Kolkata"}, {"timezone": "America/St_Johns"}, {"timezone": "Pacific/Kiritimati"}}
	matrix.Shared(t,
		func(t *testing.T, target *matrix.Target[pgx.Tx]) {
			strategies.Tables(t, target)
			sessionsAgree(t, target, options)
		},
		func(t *testing.T, target *matrix.Target[*sql.Tx]) {
			strategies.Tables(t, target)
			sessionsAgree(t, target, options)
		}, "postgres")
}

// Leases work after the year 2038, where 32-bit seconds end.
func TestClockOwn_After2038(t *testing.T) {
	t.Parallel()
	matrix.Drivers(t, testAfter2038[pgx.Tx], testAfter2038[*sql.Tx], "postgres")
}

func testAfter2038[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	target, set := shift(t, target)
	set("20 years")
	i := fencingIssuer(t, target)
	key := newKey()
	lease := acquire(t, i.open(t, fencing.Config{TTL: fencing.MaxTTL}), key)
	if left := i.left(t, key); left < fencing.MaxTTL-time.Hour {
		t.Errorf("of %v are left %v", fencing.MaxTTL, left)
	}
	_, err := i.open(t, fencing.Config{}).TryAcquire(t.Context(), key)
	wantErr(t, "a rival", err, exclusive.ErrHeld)
	var e *exclusive.Error
	if errors.As(err, &e) && e.Holder.Expires.Year() < 2045 {
		t.Errorf("the lease ends at %v", e.Holder.Expires)
	}
	must(t, "renew", lease.Renew(t.Context()))
	must(t, "release", lease.Release(t.Context()))
}

// When the server's clock jumps on, a key passes on early, and what its former
// holder stores then is refused.
// A clock can be wrong for everybody at once, and the check at the destination
// is what is left.
func TestClockOwn_ServerClockJumps(t *testing.T) {
	t.Parallel()
	matrix.Drivers(t, testServerClockJumps[pgx.Tx], testServerClockJumps[*sql.Tx], "postgres")
}

func testServerClockJumps[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	target, set := shift(t, target)
	for _, s := range strategies.All[Tx]() {
		if s.Name != "fencing" && s.Name != "uniquetask" && s.Name != "casupdate_leased" && s.Name != "fencing_guarded_here" {
			continue
		}
		place := s.SetUp(t, target)
		key := place.MustKey(t)
		set("0")
		x := place.New(t, target, exclusivetest.Config{TTL: forever})
		next := place.New(t, target, exclusivetest.Config{TTL: forever, Wait: patience})
		err := x.Do(t.Context(), key, func(ctx context.Context, g exclusive.Grant) error {
			wantErr(t, s.Name+" before the jump", place.New(t, target, exclusivetest.Config{}).Do(ctx, key, nothing), exclusive.ErrHeld)
			set("1 day")
			stores(t, place, next, key, "next")
			return x.Commit(context.WithoutCancel(ctx), g, func(ctx context.Context, tx Tx) error { return place.Write(ctx, tx, key, "former") })
		})
		if !errors.Is(err, exclusive.ErrFenced) && !errors.Is(err, exclusive.ErrLost) {
			t.Errorf("%s: the former holder's commit: %v", s.Name, err)
		}
		if body, n := place.Stored(t, key); body != "next" || n != 1 {
			t.Errorf("%s: stored %q, %d results", s.Name, body, n)
		}
	}
}
