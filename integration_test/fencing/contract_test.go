package fencing_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/fencing"
	"github.com/exclusive-go/exclusive/integration_test/matrix"
	"github.com/exclusive-go/exclusive/integration_test/proxy"
)

// Round trips are counted on the wire. Drivers that prepare statements on each
// connection do so before the count.
func TestRoundTrips(t *testing.T) { matrix.Drivers(t, testRoundTrips, testRoundTrips) }

func testRoundTrips[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	if !target.Networked() {
		return
	}
	setUp(t, target)
	p := proxy.Start(t, target.Addr(t))
	far := target.Another(t, matrix.Options{Addr: p.Addr(), MaxConns: 2, NoPing: true})
	x := newLeases(t, far, fencing.Config{TTL: time.Minute})
	ctx := t.Context()
	// lib/pq sends a statement with arguments in two steps, always.
	each := int64(1)
	if strings.HasPrefix(target.Name, "lib") {
		each = 2
	}
	count := func(f func()) int64 {
		before := p.RoundTrips()
		f()
		return p.RoundTrips() - before
	}
	var lease *exclusive.Lease
	trip := func(key string, i int) {
		var n int64
		want := func(what string, most int64) {
			if i > 1 && n != most*each {
				t.Errorf("%s: %d round trips, want %d", what, n, most*each)
			}
		}
		n = count(func() { lease = acquire(t, x, key) })
		want("acquire", 1)
		n = count(func() { must(t, "renew", lease.Renew(ctx)) })
		want("renewal", 1)
		n = count(func() { must(t, "release", lease.Release(ctx)) })
		want("release", 1)
	}
	for i := range 4 {
		trip("known", i)
	}
	for i := range 4 {
		trip(fmt.Sprint("new", i), i)
	}

	// The renewal of many is one statement.
	var seen renewals
	const ttl = 4 * time.Second
	many := newLeases(t, far, fencing.Config{TTL: ttl, Observer: &seen})
	var held []*exclusive.Lease
	for i := range 50 {
		held = append(held, acquire(t, many, fmt.Sprint("many", i)))
	}
	begun, _ := seen.count()
	before, since := p.RoundTrips(), time.Now()
	time.Sleep(3 * time.Second)
	statements, leases := seen.count()
	trips := p.RoundTrips() - before
	statements -= begun
	if statements == 0 || leases < 50 || trips > each*int64(statements+2) { // one may be under way at either end
		t.Errorf("%d round trips for %d renewals, of %d leases at most", trips, statements, leases)
	}
	for _, lease := range held { // dropped leases would not be renewed
		must(t, "a lease of many", context.Cause(lease.Context()))
	}
	// One a tick, and one of a lease that was acquired across a tick.
	if took := time.Since(since); statements > int(took/(ttl/3))+2 {
		t.Errorf("%d renewals in %v of 50 leases of %v", statements, took, ttl)
	}
}

// renewals counts the renewals that are observed, and the most leases in one.
type renewals struct {
	mu         sync.Mutex
	statements int
	leases     int
}

func (r *renewals) Start(ctx context.Context, _ exclusive.Event) context.Context { return ctx }

func (r *renewals) End(_ context.Context, e exclusive.Event) {
	if e.Op == exclusive.OpRenew && e.Err == nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.statements++
		r.leases = max(r.leases, e.Count)
	}
}

func (r *renewals) count() (statements, leases int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.statements, r.leases
}

// The token is drawn while the row is locked: a waiter's is greater than those
// that were drawn while it waited.
func TestTokenOfWaiter(t *testing.T) { matrix.Drivers(t, testTokenOfWaiter, testTokenOfWaiter) }

// The same for the first grant of a key, where every server waits: another
// session is inserting the row.
func TestTokenOfFirstWaiter(t *testing.T) {
	matrix.Drivers(t, testTokenOfFirstWaiter, testTokenOfFirstWaiter)
}

func testTokenOfFirstWaiter[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	if !target.Networked() {
		return // one writer at a time: nobody waits inside a statement
	}
	setUp(t, target)
	ctx := t.Context()
	x := newLeases(t, target, fencing.Config{})
	must(t, "do", x.Do(ctx, "other", nothing)) // the schema is checked
	tx, err := target.BeginPast(ctx)
	must(t, "begin", err)
	must(t, "insert", target.Exec(ctx, tx, "INSERT INTO exclusive_lease (lease_key, grant_id, holder, token, attempt, acquired_at, expires_at) VALUES ('k', 'gone', '', 5000, 1, 1, 2)"))
	got := make(chan *exclusive.Lease)
	go func() {
		lease, err := x.Acquire(ctx, "k")
		if err != nil {
			t.Error(err)
		}
		got <- lease
	}()
	time.Sleep(200 * time.Millisecond) // let it wait; if it has not begun to, the test is only weaker
	must(t, "commit", target.DB.Commit(ctx, tx))
	if lease := <-got; lease != nil && (lease.Grant().Token <= 5000 || lease.Grant().Attempt != 2) {
		t.Errorf("the waiter got %+v; the row that it waited for had token 5000", lease.Grant())
	}
}

func testTokenOfWaiter[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	if !target.Networked() {
		return // one writer at a time: nobody waits inside a statement
	}
	setUp(t, target)
	ctx := t.Context()
	x := newLeases(t, target, fencing.Config{})
	must(t, "do", x.Do(ctx, "k", nothing))
	// Another session has the key's row, and moves its token on meanwhile.
	tx, err := target.BeginPast(ctx)
	must(t, "begin", err)
	must(t, "lock", target.Exec(ctx, tx, target.Bind("UPDATE exclusive_lease SET token = token + ? WHERE lease_key = 'k'"), int64(1000)))
	got := make(chan *exclusive.Lease)
	go func() {
		lease, err := x.Acquire(ctx, "k")
		if err != nil {
			t.Error(err)
		}
		got <- lease
	}()
	other := newLeases(t, target.Another(t, matrix.Options{}), fencing.Config{})
	var drawn int64
	for range 50 { // on other keys, from the same sequence
		must(t, "do", other.Do(ctx, "other", func(_ context.Context, g exclusive.Grant) error {
			drawn = g.Token
			return nil
		}))
	}
	must(t, "commit", target.DB.Commit(ctx, tx))
	lease := <-got
	if token := lease.Grant().Token; token <= 1000 || target.Dialect == "postgres" && token <= drawn {
		t.Errorf("the waiter got token %d; its row had 1001, and %d was drawn meanwhile", token, drawn)
	}
}

// A lease has its full length on the database's clock, also when the acquire
// waited, and however the session is set.
func TestFullLength(t *testing.T) { matrix.Drivers(t, testFullLength, testFullLength) }

func testFullLength[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	if !target.Networked() {
		return
	}
	setUp(t, target)
	ctx := t.Context()
	x := newLeases(t, target, fencing.Config{TTL: 5 * time.Second})
	must(t, "do", x.Do(ctx, "k", nothing))
	tx, err := target.BeginPast(ctx)
	must(t, "begin", err)
	must(t, "lock", target.Exec(ctx, tx, "UPDATE exclusive_lease SET holder = 'someone else' WHERE lease_key = 'k'"))
	got := make(chan *exclusive.Lease)
	go func() {
		lease, err := x.Acquire(ctx, "k")
		if err != nil {
			t.Error(err)
		}
		got <- lease
	}()
	time.Sleep(time.Second) // the row stays locked meanwhile: more than TTL/8, less than a claim waits for it
	unlocked := time.Now()
	must(t, "commit", target.DB.Commit(ctx, tx))
	lease := <-got
	if lease == nil {
		return
	}
	// It began after the row was free, however slow all is since.
	if left, since := time.Until(lease.Grant().Expires), time.Since(unlocked); left+since < 4300*time.Millisecond {
		t.Errorf("%v are left of a lease of 5 s after %v", left, since)
	}
	rival := newLeases(t, target.Another(t, matrix.Options{}), fencing.Config{})
	_, err = rival.TryAcquire(ctx, "k")
	var e *exclusive.Error
	if !errors.Is(err, exclusive.ErrHeld) || !errors.As(err, &e) || e.Holder == nil || time.Until(e.Holder.Expires)+time.Since(unlocked) < 4*time.Second {
		t.Errorf("a rival is told %v", err)
	}
}

// Sequences that hand out blocks, or start again, are found.
func TestSequenceIsChecked(t *testing.T) {
	matrix.Drivers(t, testSequenceIsChecked, testSequenceIsChecked)
}

func testSequenceIsChecked[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	var bad []string
	switch target.Dialect {
	case "postgres":
		bad = []string{"ALTER SEQUENCE exclusive_token CACHE 20", "ALTER SEQUENCE exclusive_token CACHE 1 CYCLE"}
	case "mariadb":
		bad = []string{"ALTER SEQUENCE exclusive_token CACHE 20", "ALTER SEQUENCE exclusive_token NOCACHE CYCLE"}
	default:
		return // a counter in the key's own row
	}
	setUp(t, target)
	for _, statement := range bad {
		target.MustExec(t, statement)
		x := newLeases(t, target, fencing.Config{})
		err := x.Do(t.Context(), "k", func(context.Context, exclusive.Grant) error { t.Error("work ran"); return nil })
		wantErr(t, statement, err, exclusive.ErrSchema)
		if !strings.Contains(err.Error(), "ALTER SEQUENCE") {
			t.Errorf("the mend is not named: %v", err)
		}
	}
}

// A sequence that went back does not take the key's token back.
func TestSequenceWentBack(t *testing.T) {
	matrix.Drivers(t, testSequenceWentBack, testSequenceWentBack)
}

func testSequenceWentBack[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	reset := map[string]string{
		"postgres": "SELECT setval('exclusive_token', 1, false)",
		"mariadb":  "ALTER SEQUENCE exclusive_token RESTART 1",
	}[target.Dialect]
	if reset == "" {
		return
	}
	setUp(t, target)
	ctx := t.Context()
	x := newLeases(t, target, fencing.Config{})
	must(t, "advance", x.Advance(ctx, "k", 500))
	lease := acquire(t, x, "k")
	must(t, "release", lease.Release(ctx))
	target.MustExec(t, reset)
	if next := acquire(t, x, "k"); next.Grant().Token <= lease.Grant().Token {
		t.Errorf("token %d after %d", next.Grant().Token, lease.Grant().Token)
	}
}

func TestBadConfig(t *testing.T) { matrix.Drivers(t, testBadConfig, testBadConfig) }

func testBadConfig[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	for name, cfg := range map[string]fencing.Config{
		"negative TTL":    {TTL: -1},
		"TTL 500 µs":      {TTL: 500 * time.Microsecond},
		"TTL 30 years":    {TTL: 30 * 365 * 24 * time.Hour},
		"TTL overflows":   {TTL: math.MaxInt64},
		"negative Wait":   {Wait: -1},
		"negative hold":   {MaxHold: -1},
		"quote":           {Prefix: `a"b`},
		"backtick":        {Prefix: "a`b"},
		"semicolon":       {Schema: "a; DROP TABLE x"},
		"backslash":       {Schema: `a\`},
		"NUL":             {Prefix: "a\x00"},
		"not UTF-8":       {Prefix: "a\xff"},
		"long prefix":     {Prefix: strings.Repeat("p", 60)},
		"long holder":     {Holder: strings.Repeat("h", 201)},
		"holder not text": {Holder: "\xff"},
	} {
		_, err := fencing.New(target.DB, cfg)
		if !errors.Is(err, exclusive.ErrInvalid) {
			t.Errorf("%s: %v; want ErrInvalid", name, err)
		}
	}
	_, err := fencing.New(target.DB, fencing.Config{TTL: -1, Wait: -1, Prefix: `"`})
	for _, part := range []string{"TTL", "Wait", "Prefix"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("New does not name %s among all that is wrong: %v", part, err)
		}
	}
	one := target.Another(t, matrix.Options{MaxConns: 1})
	if _, err := fencing.New(one.DB, fencing.Config{}); !errors.Is(err, exclusive.ErrInvalid) {
		t.Errorf("a pool of one: %v", err)
	}
	for name, cfg := range map[string]fencing.RowConfig{
		"no table":   {KeyColumns: []string{"id"}},
		"no key":     {Table: "t"},
		"quoted key": {Table: "t", KeyColumns: []string{`i"d`}},
		"bad token":  {Table: "t", KeyColumns: []string{"id"}, TokenColumn: "a;b"},
	} {
		if _, err := fencing.NewRowGuard(target.DB, cfg); !errors.Is(err, exclusive.ErrInvalid) {
			t.Errorf("%s: %v; want ErrInvalid", name, err)
		}
	}
}

// A pool of one connection works, without renewal, and cannot deadlock.
func TestPoolOfOne(t *testing.T) { matrix.Drivers(t, testPoolOfOne, testPoolOfOne) }

func testPoolOfOne[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	one := target.Another(t, matrix.Options{MaxConns: 1})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	x := newLeases(t, one, fencing.Config{NoRenew: true})
	must(t, "do", x.Do(ctx, "k", func(ctx context.Context, g exclusive.Grant) error {
		return x.Commit(ctx, g, store(target, "one"))
	}))
	// A guard that knows nothing yet of the server asks through the caller's
	// transaction, which has the only connection.
	guard, err := fencing.NewGuard(one.DB, fencing.GuardConfig{})
	must(t, "new guard", err)
	must(t, "check", inTx(t, one, func(tx Tx) error {
		return guard.Check(ctx, tx, exclusive.Grant{Key: "k", ID: "a", Token: 1})
	}))
	if body := stored(t, target); body != "one" {
		t.Errorf("stored %q", body)
	}
}

// What is wrong with the server is said by the right error, before work runs.
func TestUnusableServer(t *testing.T) { matrix.Drivers(t, testUnusableServer, testUnusableServer) }

func testUnusableServer[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	ran := func(context.Context, exclusive.Grant) error { t.Error("work ran"); return nil }
	attempt := func(what string, target *matrix.Target[Tx], kind error) {
		t.Helper()
		x := newLeases(t, target, fencing.Config{Wait: 5 * time.Second})
		guard, err := fencing.NewGuard(target.DB, fencing.GuardConfig{})
		must(t, "new guard", err)
		_, tryErr := x.TryAcquire(t.Context(), "k")
		for name, err := range map[string]error{
			"do":       x.Do(t.Context(), "k", ran),
			"try":      tryErr,
			"register": guard.Register(t.Context(), exclusive.Grant{Key: "k", ID: "a", Token: 1}),
			"advance":  x.Advance(t.Context(), "k", 5),
		} {
			if !errors.Is(err, kind) || errors.Is(err, exclusive.ErrHeld) {
				t.Errorf("%s, %s: %v; want %q", what, name, err, kind)
			}
			var e *exclusive.Error
			if errors.As(err, &e) && (e.Hint == "" || e.Err == nil) {
				t.Errorf("%s, %s: no hint or no cause in %#v", what, name, e)
			}
			if err != nil && (strings.Contains(err.Error(), "wrong-password") || strings.Contains(err.Error(), "test:test")) {
				t.Errorf("%s, %s: the message has a password: %v", what, name, err)
			}
		}
	}
	attempt("no tables", target, exclusive.ErrSchema)
	setUp(t, target)
	if target.Networked() {
		attempt("wrong password", target.Another(t, matrix.Options{User: "test", Password: "wrong-password"}), exclusive.ErrUnavailable)
		attempt("nobody listens", target.Another(t, matrix.Options{Addr: "127.0.0.1:1"}), exclusive.ErrUnavailable)
	}
	target.ClosePool()
	attempt("closed pool", target, exclusive.ErrUnavailable)
}

// A session in which nothing is stored without COMMIT is refused.
func TestNoAutocommit(t *testing.T) { matrix.Drivers(t, testNoAutocommit, testNoAutocommit) }

func testNoAutocommit[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	if target.Dialect != "mysql" && target.Dialect != "mariadb" {
		return // PostgreSQL's is the client's affair, and SQLite has no such setting
	}
	setUp(t, target)
	x := newLeases(t, target.Another(t, matrix.Options{Params: map[string]string{"autocommit": "0"}}), fencing.Config{})
	err := x.Do(t.Context(), "k", func(context.Context, exclusive.Grant) error { t.Error("work ran"); return nil })
	wantErr(t, "do", err, exclusive.ErrUnsupported)
}

func TestBadKeysAndGrants(t *testing.T) {
	matrix.Drivers(t, testBadKeysAndGrants, testBadKeysAndGrants)
}

func testBadKeysAndGrants[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	// No table exists: a statement that was sent would say ErrSchema.
	x := newLeases(t, target, fencing.Config{})
	guard, err := fencing.NewGuard(target.DB, fencing.GuardConfig{})
	must(t, "new guard", err)
	ctx := t.Context()
	var tx Tx // never looked at
	apply := func(context.Context, Tx) error { t.Error("apply ran"); return nil }
	for _, key := range []string{"", strings.Repeat("k", 201), strings.Repeat("é", 101), "a\x00b", "a\xffb"} {
		g := exclusive.Grant{Key: key, ID: "a", Token: 1}
		_, try := x.TryAcquire(ctx, key)
		_, wait := x.Acquire(ctx, key)
		_, once := guard.Once(ctx, tx, key, nil, func(context.Context) ([]byte, error) { t.Error("apply ran"); return nil, nil })
		for name, err := range map[string]error{
			"do": x.Do(ctx, key, nothing), "try": try, "acquire": wait, "once": once,
			"check": x.Check(ctx, tx, g), "commit": x.Commit(ctx, g, apply), "advance": x.Advance(ctx, key, 1),
			"guard check": guard.Check(ctx, tx, g), "guard commit": guard.Commit(ctx, g, apply), "register": guard.Register(ctx, g),
		} {
			if !errors.Is(err, exclusive.ErrInvalid) {
				t.Errorf("key of %d bytes, %s: %v; want ErrInvalid", len(key), name, err)
			}
		}
	}
	for _, g := range []exclusive.Grant{
		{Key: "k", ID: "a"}, {Key: "k", ID: "a", Token: -1}, {Key: "k", Token: 1},
		{Key: "k", ID: "a", Token: math.MaxInt64}, {Key: "k", ID: strings.Repeat("a", 65), Token: 1},
	} {
		for name, err := range map[string]error{
			"check": x.Check(ctx, tx, g), "commit": x.Commit(ctx, g, apply),
			"guard check": guard.Check(ctx, tx, g), "guard commit": guard.Commit(ctx, g, apply), "register": guard.Register(ctx, g),
		} {
			if !errors.Is(err, exclusive.ErrInvalid) {
				t.Errorf("%+v, %s: %v; want ErrInvalid", g, name, err)
			}
		}
	}
	good := exclusive.Grant{Key: "k", ID: "a", Token: 1}
	_, onceErr := guard.Once(ctx, tx, "op", nil, func(context.Context) ([]byte, error) { return nil, nil })
	for name, err := range map[string]error{
		"check": x.Check(ctx, tx, good), "guard check": guard.Check(ctx, tx, good), "once": onceErr,
	} {
		if !errors.Is(err, exclusive.ErrInvalid) {
			t.Errorf("nil transaction, %s: %v; want ErrInvalid", name, err)
		}
	}
}

// Keys are bytes: what collations merge stays apart, and the longest are whole.
func TestKeysStayApart(t *testing.T) { matrix.Drivers(t, testKeysStayApart, testKeysStayApart) }

func testKeysStayApart[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	x := newLeases(t, target, fencing.Config{})
	keys := []string{
		"report", "Report", "report ", " report", "r\u00e9port", "re\u0301port", "STRASSE", "stra\u00dfe", "'", `"`, `\`, "`", "?", "$1", "%", "--", "a;b", "\n",
		"plumless", "buckeroo", "costarring", "liquid", "Aa", "BB", "0", "641",
		strings.Repeat("k", 199) + "a", strings.Repeat("k", 199) + "b", strings.Repeat("𝄞", 50),
	}
	for _, key := range keys {
		lease, err := x.TryAcquire(t.Context(), key)
		if err != nil {
			t.Errorf("%q: %v", key, err)
			continue
		}
		defer func() { must(t, "release", lease.Release(t.Context())) }()
	}
	if n := target.Int(t, "SELECT COUNT(*) FROM exclusive_lease"); n != int64(len(keys)) {
		t.Errorf("%d rows for %d keys", n, len(keys))
	}
}

// commits notes how Commits ended.
type commits struct {
	mu   sync.Mutex
	errs []error
}

func (c *commits) Start(ctx context.Context, _ exclusive.Event) context.Context { return ctx }
func (c *commits) End(_ context.Context, e exclusive.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e.Op == exclusive.OpCommit {
		c.errs = append(c.errs, e.Err)
	}
}

// A Commit that is refused because another one of its grant is under way is
// observed like any other.
func TestRefusedCommitIsObserved(t *testing.T) {
	matrix.Drivers(t, testRefusedCommitIsObserved, testRefusedCommitIsObserved)
}

func testRefusedCommitIsObserved[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	var own, atGuard commits
	leases := newLeases(t, target, fencing.Config{Observer: &own})
	guard, err := fencing.NewGuard(target.DB, fencing.GuardConfig{Observer: &atGuard})
	must(t, "new guard", err)
	for _, c := range []struct {
		x    exclusive.Transactional[Tx]
		seen *commits
	}{{leases, &own}, {fencing.Guarded[Tx](newLeases(t, target, fencing.Config{}), guard), &atGuard}} {
		must(t, "do", c.x.Do(t.Context(), "observed", func(ctx context.Context, g exclusive.Grant) error {
			return c.x.Commit(ctx, g, func(context.Context, Tx) error {
				wantErr(t, "a Commit in a Commit", c.x.Commit(ctx, g, store(target, "twice")), exclusive.ErrInvalid)
				return nil
			})
		}))
		if len(c.seen.errs) != 2 || !errors.Is(c.seen.errs[0], exclusive.ErrInvalid) || c.seen.errs[1] != nil {
			t.Errorf("observed Commits that end with %v", c.seen.errs)
		}
	}
}

// A Commit whose apply panics is not observed as one that has succeeded, also where no
// lease of this process is behind it.
func TestPanickedCommitIsObserved(t *testing.T) {
	matrix.Drivers(t, testPanickedCommitIsObserved, testPanickedCommitIsObserved)
}

func testPanickedCommitIsObserved[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	var seen commits
	guard, err := fencing.NewGuard(target.DB, fencing.GuardConfig{Observer: &seen})
	must(t, "new guard", err)
	func() {
		defer func() { _ = recover() }()
		_ = guard.Commit(t.Context(), exclusive.Grant{Key: "observed", ID: "id", Token: 1}, func(context.Context, Tx) error { panic("boom") })
	}()
	if len(seen.errs) != 1 || seen.errs[0] == nil {
		t.Errorf("observed Commits that end with %v", seen.errs)
	}
}
