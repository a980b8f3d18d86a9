package casupdate_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/casupdate"
	"github.com/exclusive-go/exclusive/integration_test/matrix"
	"github.com/exclusive-go/exclusive/integration_test/proxy"
)

func TestPromises(t *testing.T) { matrix.Drivers(t, testPromises, testPromises) }

func testPromises[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	base := exclusive.PromisesOf("casupdate")
	if p := newTable(t, target, bare()).Promises(); p != base {
		t.Errorf("bare: %v", p)
	}
	base.RefusesStale = true
	if p := newTable(t, target, proving()).Promises(); p != base {
		t.Errorf("proving: %v", p)
	}
	base.OneAtATime, base.TimeBound = false, true
	if p := newTable(t, target, leased(time.Second)).Promises(); p != base {
		t.Errorf("leased: %v", p)
	}
	only := casupdate.Config{Table: "job", Transitions: []casupdate.Transition{{From: 1, To: 2}}}
	x := newTable(t, target, only)
	if p := x.Promises(); p != (exclusive.Promises{}) {
		t.Errorf("transitions only: %v", p)
	}
	wantErr(t, "Do with transitions only", x.Do(t.Context(), "k", nothing), exclusive.ErrUnsupported)
}

// expiries notes the end of each grant that an event tells of.
type expiries struct {
	mu   sync.Mutex
	seen map[exclusive.Op]time.Time
}

func (e *expiries) Start(ctx context.Context, _ exclusive.Event) context.Context { return ctx }

func (e *expiries) End(_ context.Context, event exclusive.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if event.Grant.ID != "" {
		e.seen[event.Op] = event.Grant.Expires
	}
}

// A claim without a TTL is not bounded by time, whoever says so.
func TestExpires(t *testing.T) { matrix.Drivers(t, testExpires, testExpires) }

func testExpires[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	for name, cfg := range map[string]casupdate.Config{"bare": bare(), "proving": proving(), "leased": leased(time.Minute)} {
		insert(t, target, name)
		events := &expiries{seen: make(map[exclusive.Op]time.Time)}
		cfg.Observer = events
		ends := map[string]time.Time{}
		must(t, name, newTable(t, target, cfg).Do(t.Context(), name, func(ctx context.Context, g exclusive.Grant) error {
			now, ok := exclusive.CurrentGrant(ctx)
			if !ok || now.ID != g.ID {
				t.Errorf("%s: the context stands for %+v, %v", name, now, ok)
			}
			ends["work's"], ends["the current"] = g.Expires, now.Expires
			return nil
		}))
		for _, op := range []exclusive.Op{exclusive.OpDo, exclusive.OpAcquire, exclusive.OpRelease} {
			ends[string(op)] = events.seen[op]
			if _, ok := events.seen[op]; !ok {
				t.Errorf("%s: no event %s with a grant", name, op)
			}
		}
		for what, end := range ends {
			if end.IsZero() != (cfg.TTL == 0) {
				t.Errorf("%s: %s grant ends at %v", name, what, end)
			}
		}
	}
}

// New says all that is wrong at once, and bad calls do no I/O.
func TestInvalid(t *testing.T) { matrix.Drivers(t, testInvalid, testInvalid) }

func testInvalid[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	cfg := casupdate.Config{
		Schema: `a"b`, Table: "job;", Key: casupdate.Composite("", casupdate.Text("a"), casupdate.Text("a")), StateColumn: "a'",
		From: "pending", Claimed: "PENDING ", Done: 1.5, TokenColumn: "token", TTL: time.Hour, Wait: -1, MaxHold: -1,
		Transitions: []casupdate.Transition{{From: nil, To: "x"}, {From: "x", To: "pending"}}, Holder: strings.Repeat("x", 201),
		OnClaim: casupdate.Set{"token": 1, "x": 1.5}, VersionColumn: "token",
	}
	_, err := casupdate.New(target.DB, cfg)
	wantErr(t, "New", err, exclusive.ErrInvalid)
	for _, part := range []string{`a\"b`, "job;", "no separator", "twice", "StateColumn", "Claimed is", "Done", "GrantColumn", "ExpiresColumn",
		"Wait", "MaxHold", "Transitions[0].From", "leads to Claimed", "Holder", `sets "token"`, `column "x"`, "VersionColumn"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("New does not say %q: %v", part, err)
		}
	}
	for name, cfg := range map[string]casupdate.Config{
		"zero":                       {},
		"no states":                  {Table: "job"},
		"no Claimed":                 {Table: "job", From: 1, Done: 2},
		"takeover without a token":   {Table: "job", From: 1, Claimed: 2, Done: 3, TTL: time.Second, ExpiresColumn: "e"},
		"takeover without an expiry": {Table: "job", From: 1, Claimed: 2, Done: 3, TTL: time.Second, TokenColumn: "t", GrantColumn: "g"},
		"column used twice":          {Table: "job", From: 1, Claimed: 2, Done: 3, TokenColumn: "T", GrantColumn: "t"},
		"TTL too short":              {Table: "job", From: 1, Claimed: 2, Done: 3, TTL: 1, ExpiresColumn: "e", TokenColumn: "t", GrantColumn: "g"},
	} {
		_, err := casupdate.New(target.DB, cfg)
		wantErr(t, name, err, exclusive.ErrInvalid)
	}
	one := target.Another(t, matrix.Options{MaxConns: 1})
	_, err = casupdate.New(one.DB, leased(time.Second))
	wantErr(t, "renewal with a pool of one", err, exclusive.ErrInvalid)

	// There is no table, so I/O would be another error.
	cfg = proving()
	cfg.Transitions = []casupdate.Transition{{From: "A", To: "B"}}
	x := newTable(t, target, cfg)
	ctx := t.Context()
	g := exclusive.Grant{Key: "k", ID: "id", Token: 1}
	noGrant, noToken := g, g
	noGrant.ID, noToken.Token = "", 0
	apply := func(context.Context, Tx) error { return nil }
	var nilTx Tx
	for what, err := range map[string]error{
		"empty key":             x.Do(ctx, "", nothing),
		"nil work":              x.Do(ctx, "k", nil),
		"undeclared transition": x.Transition(ctx, "k", "B", "A"),
		"no state":              x.Transition(ctx, "k", nil, "A"),
		"bad Set":               x.Transition(ctx, "k", "A", "B", casupdate.Set{"state": "C"}),
		"bad column":            x.Transition(ctx, "k", "A", "B", casupdate.Set{`a"`: "C"}),
		"nil transaction":       x.TransitionTx(ctx, nilTx, "k", "A", "B"),
		"nil apply":             x.Commit(ctx, g, nil),
		"no grant id":           x.Commit(ctx, noGrant, apply),
		"no token":              x.Check(ctx, nilTx, noToken),
		"Check in no tx":        x.Check(ctx, nilTx, g),
	} {
		wantErr(t, what, err, exclusive.ErrInvalid)
	}
	wantErr(t, "a missing table", x.Do(ctx, "k", nothing), exclusive.ErrSchema)
	wantErr(t, "a missing table", x.Transition(ctx, "k", "A", "B"), exclusive.ErrSchema)
	b := newTable(t, target, bare())
	wantErr(t, "somebody else's grant", b.Commit(ctx, g, apply), exclusive.ErrLost)
}

// Round trips are counted on the wire. Drivers that prepare statements on each
// connection do so before the count.
func TestRoundTrips(t *testing.T) { matrix.Drivers(t, testRoundTrips, testRoundTrips) }

func testRoundTrips[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	if !target.Networked() {
		return
	}
	setUp(t, target, "held")
	p := proxy.Start(t, target.Addr(t))
	far := target.Another(t, matrix.Options{Addr: p.Addr(), MaxConns: 2, NoPing: true})
	ctx := t.Context()
	// lib/pq sends a statement with arguments in two steps, always.
	each := int64(1)
	if strings.HasPrefix(target.Name, "lib") {
		each = 2
	}
	refused, stays := int64(1), map[string]int64{"bare": 1, "leased": 1}
	if target.Dialect != "postgres" {
		refused = 2       // to read why
		stays["bare"] = 6 // a transaction
	}
	count := func(f func()) int64 {
		before := p.RoundTrips()
		f()
		return p.RoundTrips() - before
	}
	for name, cfg := range map[string]casupdate.Config{"bare": bare(), "leased": leased(time.Minute)} {
		cfg.Transitions = []casupdate.Transition{{From: "DONE", To: "DONE"}, {From: "DONE", To: "PENDING"}}
		x := newTable(t, far, cfg)
		for i := range 3 {
			want := func(what string, got, want int64) {
				if i > 0 && got != want*each {
					t.Errorf("%s, %s: %d round trips, want %d", name, what, got, want*each)
				}
			}
			key := fmt.Sprint(name, i)
			insert(t, target, key)
			want("claim and finish", count(func() { must(t, "Do", x.Do(ctx, key, nothing)) }), 2)
			want("refused", count(func() { wantErr(t, "Do", x.Do(ctx, key, nothing), exclusive.ErrDone) }), refused)
			want("transition to the same state", count(func() { must(t, "Transition", x.Transition(ctx, key, "DONE", "DONE")) }), stays[name])
			want("transition", count(func() { must(t, "Transition", x.Transition(ctx, key, "DONE", "PENDING")) }), 1)
			want("claim and give back", count(func() { wantErr(t, "Do", x.Do(ctx, key, failing), errBiz) }), 2)
		}
	}
}

// Only the schema that was named is used, whatever the search path.
func TestSchema(t *testing.T) { matrix.Drivers(t, testSchema, testSchema) }

func testSchema[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	if target.Dialect != "postgres" {
		return // of MySQL's kind only databases would be left, whose names are not ours to choose
	}
	for _, schema := range []string{"locks", "Tenant", "order by"} {
		schema, tenant := target.Schema(t, schema), target.Schema(t, schema)
		for _, s := range []string{schema, tenant} {
			target.MustExec(t, `CREATE TABLE "`+s+`".job (id text PRIMARY KEY, state text NOT NULL, token bigint, grant_id text, holder text, claimed_at bigint, expires_at bigint)`)
			target.MustExec(t, `INSERT INTO "`+s+`".job (id, state) VALUES ('k', 'PENDING')`)
		}
		for _, path := range []string{`"` + tenant + `",public`, `""`} {
			far := target.Another(t, matrix.Options{Params: map[string]string{"search_path": path}})
			cfg := leased(time.Minute)
			cfg.Schema = schema
			cfg.Transitions = []casupdate.Transition{{From: "DONE", To: "PENDING"}}
			x := newTable(t, far, cfg)
			must(t, schema, x.Do(t.Context(), "k", func(ctx context.Context, g exclusive.Grant) error {
				return x.Commit(ctx, g, func(context.Context, Tx) error { return nil })
			}))
			must(t, schema, x.Transition(t.Context(), "k", "DONE", "PENDING"))
			if n := target.Int(t, `SELECT COUNT(*) FROM "`+tenant+`".job WHERE state = 'PENDING' AND token IS NULL`); n != 1 {
				t.Error("another schema's table was changed")
			}
		}
		if n := target.Int(t, `SELECT token FROM "`+schema+`".job`); n != 2 {
			t.Errorf("token %d after two claims", n)
		}
	}
}

// renewals tells of each that succeeded.
type renewals chan struct{}

func (r renewals) Start(ctx context.Context, _ exclusive.Event) context.Context { return ctx }

func (r renewals) End(_ context.Context, event exclusive.Event) {
	if event.Op == exclusive.OpRenew && event.Err == nil {
		select {
		case r <- struct{}{}:
		default:
		}
	}
}

// Columns of a fixed length come back padded from some servers: the claim is the
// holder's own all the same.
func TestFixedLengthColumns(t *testing.T) {
	matrix.Drivers(t, testFixedLengthColumns, testFixedLengthColumns)
}

func testFixedLengthColumns[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	ctx := t.Context()
	target.MustExec(t, "CREATE TABLE fixed (id varchar(100) PRIMARY KEY, state char(20) NOT NULL, token bigint, grant_id char(40), holder char(60), claimed_at bigint, expires_at bigint)")
	target.MustExec(t, "INSERT INTO fixed (id, state) VALUES ('k', 'PENDING')")
	renewed := make(renewals)
	cfg := leased(3 * time.Second)
	cfg.Table, cfg.Holder, cfg.Observer = "fixed", "A", renewed
	x := newTable(t, target, cfg)
	for _, workErr := range []error{errBiz, nil} {
		err := x.Do(ctx, "k", func(ctx context.Context, g exclusive.Grant) error {
			select {
			case <-renewed:
			case <-ctx.Done():
				t.Fatalf("ended while it was renewed: %v", context.Cause(ctx))
			}
			var e *exclusive.Error
			if err := x.Do(ctx, "k", nothing); !errors.As(err, &e) || !errors.Is(e, exclusive.ErrHeld) || e.Holder.Name != "A" || e.Holder.ID != g.ID {
				t.Errorf("another Do: %v", err)
			}
			must(t, "Check", inTx(t, target, func(tx Tx) error { return x.Check(ctx, tx, g) }))
			return workErr
		})
		if !errors.Is(err, workErr) {
			t.Errorf("Do: %v; want %v", err, workErr)
		}
	}
	if state, err := x.State(ctx, "k"); err != nil || state != "DONE" {
		t.Errorf("state %q, %v", state, err)
	}
}

// Columns that are set along are set by the statement that changes the state.
func TestSet(t *testing.T) { matrix.Each(t, testSet, testSet) }

type worker string

func testSet[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	kind := map[string]string{"postgres": "timestamptz", "mysql": "datetime(6)", "mariadb": "datetime(6)", "sqlite": "text"}[target.Dialect]
	setUp(t, target, "k")
	target.MustExec(t, "ALTER TABLE job ADD COLUMN at "+kind)
	target.MustExec(t, "ALTER TABLE job ADD COLUMN micros bigint")
	target.MustExec(t, "ALTER TABLE job ADD COLUMN n int")
	odd := map[bool]string{true: "`{odd}`", false: `"{odd}"`}[target.Dialect == "mysql" || target.Dialect == "mariadb"]
	target.MustExec(t, "ALTER TABLE job ADD COLUMN "+odd+" int")
	cfg := bare()
	cfg.OnClaim = casupdate.Set{"note": worker("w"), "n": uint8(7), "at": casupdate.Now, "micros": casupdate.NowMicros}
	cfg.OnRevert = casupdate.Set{"note": nil, "n": 8}
	cfg.OnDone = casupdate.Set{"n": 9, "{odd}": 1}
	x := newTable(t, target, cfg)
	check := func(when, query string) {
		if target.Int(t, "SELECT COUNT(*) FROM job WHERE "+query) != 1 {
			t.Errorf("%s not: %s", when, query)
		}
	}
	wantErr(t, "Do", x.Do(t.Context(), "k", func(context.Context, exclusive.Grant) error {
		check("claimed", "note = 'w' AND n = 7 AND at IS NOT NULL")
		if at := time.UnixMicro(target.Int(t, "SELECT micros FROM job")); time.Since(at).Abs() > time.Minute {
			t.Errorf("the clock is %v", at)
		}
		return errBiz
	}), errBiz)
	check("given back", "note IS NULL AND n = 8")
	must(t, "Do", x.Do(t.Context(), "k", nothing))
	check("done", "note = 'w' AND n = 9 AND "+odd+" = 1")
}

// A key that names several rows is told, and claims none of them for good.
func TestNotUnique(t *testing.T) { matrix.Drivers(t, testNotUnique, testNotUnique) }

func testNotUnique[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target, "a", "b")
	target.MustExec(t, "UPDATE job SET note = 'n'")
	for _, cfg := range []casupdate.Config{bare(), proving()} {
		cfg.Key = casupdate.Text("note")
		x := newTable(t, target, cfg)
		wantErr(t, "Do", x.Do(t.Context(), "n", func(context.Context, exclusive.Grant) error {
			t.Error("work ran")
			return nil
		}), exclusive.ErrSchema)
		wantState(t, target, "a", "PENDING")
		wantState(t, target, "b", "PENDING")
	}
}

// A trigger on the application's table hides no answer.
func TestTriggers(t *testing.T) { matrix.Each(t, testTriggers, testTriggers) }

func testTriggers[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target, "a", "b", "c")
	target.MustExec(t, "CREATE TABLE audit (id varchar(100) NOT NULL)")
	switch target.Dialect {
	case "postgres":
		target.MustExec(t, "CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO audit VALUES (NEW.id); RETURN NEW; END $$")
		target.MustExec(t, "CREATE TRIGGER audit AFTER UPDATE ON job FOR EACH ROW EXECUTE FUNCTION audit()")
	case "sqlite":
		target.MustExec(t, "CREATE TRIGGER audit AFTER UPDATE ON job FOR EACH ROW BEGIN INSERT INTO audit VALUES (NEW.id); END")
	default:
		target.MustExec(t, "CREATE TRIGGER audit AFTER UPDATE ON job FOR EACH ROW INSERT INTO audit VALUES (NEW.id)")
	}
	cfg := leased(time.Minute)
	cfg.Transitions = []casupdate.Transition{{From: "DONE", To: "PENDING"}}
	x := newTable(t, target, cfg)
	for _, token := range []int64{1, 2} {
		must(t, "do", x.Do(t.Context(), "a", func(ctx context.Context, g exclusive.Grant) error {
			if g.Token != token {
				t.Errorf("the token is %d; want %d", g.Token, token)
			}
			return x.Commit(ctx, g, store(target, "a", fmt.Sprint(token)))
		}))
		wantStored(t, target, "a", fmt.Sprint(token))
		must(t, "transition", x.Transition(t.Context(), "a", "DONE", "PENDING"))
	}
	must(t, "do without columns", newTable(t, target, bare()).Do(t.Context(), "b", nothing))
	wantState(t, target, "b", "DONE")
	v, err := casupdate.NewVersioned(target.DB, casupdate.VersionConfig{Table: "job"})
	must(t, "new", err)
	version, err := v.Update(t.Context(), "c", 0, casupdate.Set{"note": "x"})
	if err != nil || version != 1 {
		t.Errorf("update: version %d, %v", version, err)
	}
	if target.Int(t, "SELECT COUNT(*) FROM audit") == 0 {
		t.Error("the trigger never ran: the test proves nothing")
	}

	// A row that stays as it is, which MySQL and MariaDB count or not.
	modes := []map[string]string{nil}
	if target.Dialect == "mysql" || target.Dialect == "mariadb" {
		modes = []map[string]string{{"clientFoundRows": "false"}, {"clientFoundRows": "true"}}
	}
	for i, params := range modes {
		own := target.Another(t, matrix.Options{Params: params})
		for name, cfg := range map[string]casupdate.Config{"bare": bare(), "proving": proving()} {
			what := fmt.Sprint(name, params)
			cfg.Transitions = []casupdate.Transition{{From: "PENDING", To: "PENDING"}, {From: "DONE", To: "DONE"}}
			x := newTable(t, own, cfg)
			key := fmt.Sprint(name, i)
			insert(t, target, key)
			set := casupdate.Set{"note": "kept"}
			for range 2 { // the second time nothing changes
				must(t, what, x.Transition(t.Context(), key, "PENDING", "PENDING", set))
				must(t, what+", in a transaction", inTx(t, own, func(tx Tx) error { return x.TransitionTx(t.Context(), tx, key, "PENDING", "PENDING", set) }))
			}
			wantErr(t, what+", in another state", x.Transition(t.Context(), key, "DONE", "DONE", casupdate.Set{"note": "lost"}), exclusive.ErrConflict)
			wantErr(t, what+", no row", x.Transition(t.Context(), "nowhere", "PENDING", "PENDING", set), exclusive.ErrNoRow)
			wantErr(t, what+", in another state, in a transaction", inTx(t, own, func(tx Tx) error {
				return x.TransitionTx(t.Context(), tx, key, "DONE", "DONE", casupdate.Set{"note": "lost"})
			}), exclusive.ErrConflict)
			if note := text(t, target, "SELECT note FROM job WHERE id = ?", key); note != "kept" {
				t.Errorf("%s: the note is %q", what, note)
			}
			if n := target.Int(t, "SELECT COUNT(*) FROM audit WHERE id = ?", key); n != 4 {
				t.Errorf("%s: %d updates of the row; want 4", what, n)
			}
		}
	}
}

// Columns that cannot hold what is stored there are told before a claim, also where the
// server would store something else and say nothing; all others are used. SQLite's types
// limit nothing.
func TestColumnTypes(t *testing.T) {
	matrix.Drivers(t, testColumnTypes, testColumnTypes, "postgres", "mysql", "mariadb")
}

func testColumnTypes[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	ctx := t.Context()
	type types struct{ state, token, grant, expires, claimed, holder, version string }
	type states struct{ from, claimed, done, failed any }
	words := states{from: "PENDING", claimed: "WORKING", done: "IS DONE"}
	use := func(t *testing.T, target *matrix.Target[Tx], table string, c types, s states) error {
		charset := ""
		if target.Dialect != "postgres" {
			charset = " CHARACTER SET utf8mb4"
		}
		target.MustExec(t, "CREATE TABLE "+table+" (id varchar(20) PRIMARY KEY, state "+cmp.Or(c.state, "varchar(20)")+" NOT NULL, token "+cmp.Or(c.token, "bigint")+
			", grant_id "+cmp.Or(c.grant, "varchar(64)")+", expires "+cmp.Or(c.expires, "bigint")+", claimed "+cmp.Or(c.claimed, "bigint")+
			", holder "+cmp.Or(c.holder, "varchar(200)")+", version "+cmp.Or(c.version, "bigint")+")"+charset)
		target.MustExec(t, fmt.Sprintf("INSERT INTO %s (id, state) VALUES ('k', '%v')", table, s.from))
		x, err := casupdate.New(target.DB, casupdate.Config{Table: table, From: s.from, Claimed: s.claimed, Done: s.done, Failed: s.failed,
			TokenColumn: "token", GrantColumn: "grant_id", ExpiresColumn: "expires", TTL: 10 * time.Minute,
			ClaimedAtColumn: "claimed", HolderColumn: "holder", Holder: "the holder", VersionColumn: "version"})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = x.Close() }()
		return x.Do(ctx, "k", func(ctx context.Context, g exclusive.Grant) error {
			return x.Commit(ctx, g, func(context.Context, Tx) error { return nil })
		})
	}
	list := "('PENDING', 'WORKING', 'IS DONE')"
	good := []types{
		{state: "char(9)", grant: "char(26)", holder: "varchar(10)", version: "int"},
		{token: "decimal(19,0)", expires: "decimal(25,0)", holder: "char(20)", version: "decimal(10,0)"},
	}
	bad := []types{
		{token: "decimal(18,0)"}, {expires: "decimal(20,2)"}, {token: "smallint"},
		{claimed: "int"}, {claimed: "smallint"}, {holder: "varchar(9)"}, {holder: "char(3)"}, {version: "smallint"}, {version: "decimal(9,0)"},
	}
	if target.Dialect == "postgres" {
		for _, q := range []string{
			"CREATE DOMAIN wide AS bigint CHECK (VALUE > 0)", "CREATE DOMAIN wider AS wide", "CREATE DOMAIN narrow AS integer", "CREATE DOMAIN narrower AS narrow",
			"CREATE DOMAIN short AS varchar(8)", "CREATE DOMAIN shorter AS short", "CREATE DOMAIN long AS varchar(30)", "CREATE DOMAIN few AS numeric(10)",
			"CREATE TYPE states AS ENUM " + list, "CREATE TYPE others AS ENUM ('PENDING', 'working', 'IS DONE', 'it''s', E'a\\\\b')",
		} {
			target.MustExec(t, q)
		}
		good = append(good, types{token: "wider", grant: "long", expires: "wide"}, types{token: "numeric"}, types{state: "states"}, types{state: "text", grant: "text"})
		bad = append(bad, types{state: "others"}, types{grant: "others"}, types{token: "others"}, types{token: "narrower"}, types{expires: "narrow"}, types{grant: "shorter"}, types{expires: "few"}, types{token: "real"})
	} else {
		good = append(good,
			types{token: "bigint unsigned", expires: "bigint unsigned"},
			types{state: "enum" + list},
			types{state: "enum" + strings.ToLower(list) + " COLLATE utf8mb4_general_ci"},
			types{state: "binary(7)", grant: "binary(26)"},
			types{state: "varbinary(7)", grant: "tinytext"})
		for _, typ := range []string{"varchar(10)", "varchar(30)", "datetime", "timestamp NULL", "bit(20)", "bit(64)", "varbinary(8)", "year", "set('a')", "enum('a')", "time", "double", "double(30,0)"} {
			bad = append(bad, types{expires: typ}, types{token: typ})
		}
		bad = append(bad,
			types{state: "set" + list}, types{state: "binary(12)"}, types{grant: "binary(30)"},
			types{grant: "set('a','b','c','d','e','f','g','h','i','j','k','l','m','n')"},
			types{grant: "enum('a text that is as long as a grant')"},
			types{state: "enum('PENDING', 'IS DONE', '''WORKING''')"},
			types{state: "enum('PENDING', 'IS DONE,''WORKING'',')"})
		target = target.Another(t, matrix.Options{Params: map[string]string{"sql_mode": "''"}})
	}
	for i, c := range good {
		if err := use(t, target, fmt.Sprint("good", i), c, words); err != nil {
			t.Errorf("%+v: %v", c, err)
		}
	}
	for i, c := range bad {
		if err := use(t, target, fmt.Sprint("bad", i), c, words); !errors.Is(err, exclusive.ErrSchema) {
			t.Errorf("%+v: %v; want ErrSchema", c, err)
		}
	}
	type number struct {
		state string
		has   states
	}
	fit := []number{{"smallint", states{-32768, 0, 32767, 1}}, {"int", states{1, math.MaxInt32, math.MinInt32, 2}}, {"decimal(3,0)", states{-999, 0, 999, nil}}}
	tooGreat := []number{{"smallint", states{1, 2, 3, 32768}}, {"smallint", states{1, 70000, 3, nil}}, {"int", states{1, 2, -1 << 40, nil}}, {"decimal(3,0)", states{1, 2, 1000, nil}}}
	if target.Dialect != "postgres" {
		fit = append(fit, number{"tinyint unsigned", states{0, 1, 255, 254}}, number{"bigint unsigned", states{0, 1, int64(math.MaxInt64), nil}})
		tooGreat = append(tooGreat, number{"tinyint", states{1, 200, 3, nil}}, number{"int unsigned", states{0, -1, 1, nil}},
			number{"enum('1', '2', '3')", states{1, 2, 3, nil}}, number{"varchar(20)", states{1, 2, 3, nil}}, number{"year", states{2001, 2002, 2003, nil}})
	}
	for i, c := range fit {
		if err := use(t, target, fmt.Sprint("fit", i), types{state: c.state}, c.has); err != nil {
			t.Errorf("%+v: %v", c, err)
		}
	}
	for i, c := range tooGreat {
		if err := use(t, target, fmt.Sprint("great", i), types{state: c.state}, c.has); !errors.Is(err, exclusive.ErrSchema) {
			t.Errorf("%+v: %v; want ErrSchema", c, err)
		}
	}
	// One who only updates by a version, and one who only moves rows.
	target.MustExec(t, "CREATE TABLE counted (id varchar(20) PRIMARY KEY, state smallint NOT NULL, version smallint NOT NULL)")
	target.MustExec(t, "INSERT INTO counted (id, state, version) VALUES ('k', 1, 1)")
	v, err := casupdate.NewVersioned(target.DB, casupdate.VersionConfig{Table: "counted"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = v.Update(ctx, "k", 1, casupdate.Set{"state": 2})
	wantErr(t, "a version that ends early", err, exclusive.ErrSchema)
	x := newTable(t, target, casupdate.Config{Table: "counted", Transitions: []casupdate.Transition{{From: 1, To: 40000}, {From: 1, To: 2}}})
	wantErr(t, "a transition from a table with one that cannot be", x.Transition(ctx, "k", 1, 2), exclusive.ErrSchema)
	if n := target.Int(t, "SELECT 10 * state + version FROM counted"); n != 11 {
		t.Errorf("the row was changed: %d", n)
	}
}
