// Package strategies makes every strategy of the toolkit on every target of
// package matrix, so that one test body runs on all of them:
//
//	func TestX(t *testing.T) { matrix.Drivers(t, strategies.Each(testX[pgx.Tx]), strategies.Each(testX[*sql.Tx])) }
//
//	func testX[Tx any](t *testing.T, target *matrix.Target[Tx], s strategies.Strategy[Tx]) {
//		place := s.SetUp(t, target)
//		x := place.New(t, target, exclusivetest.Config{})
//		…
//	}
//
// Only the constructors differ.
package strategies

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/casupdate"
	"github.com/exclusive-go/exclusive/exclusivetest"
	"github.com/exclusive-go/exclusive/fencing"
	"github.com/exclusive-go/exclusive/integration_test/cases/session"
	"github.com/exclusive-go/exclusive/integration_test/matrix"
	"github.com/exclusive-go/exclusive/integration_test/servers"
	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/redisbackend"
	"github.com/exclusive-go/exclusive/rowlock"
	"github.com/exclusive-go/exclusive/uniquetask"
)

// Strategy is a strategy in one configuration.
type Strategy[Tx any] struct {
	// Name is made for the names of subtests.
	Name string

	// Table is the name in the table of promises, exclusive.Strategies.
	Table string

	// Promises are those of the strategy as it is configured here.
	Promises exclusive.Promises

	setUp func(t testing.TB, p *Place[Tx])
}

// All lists the strategies, weakest and cheapest first.
func All[Tx any]() []Strategy[Tx] {
	proving := exclusive.PromisesOf("casupdate")
	proving.RefusesStale = true
	leased := proving
	leased.OneAtATime, leased.TimeBound = false, true
	guarded := exclusive.PromisesOf("redisbackend")
	guarded.RefusesStale, guarded.InTx = true, true
	return []Strategy[Tx]{
		{"casupdate", "casupdate", proving, casUpdate[Tx](0)},
		{"casupdate_leased", "casupdate", leased, casUpdate[Tx](30 * time.Second)},
		{"rowlock", "rowlock", exclusive.PromisesOf("rowlock"), rowLock[Tx]},
		{"uniquetask", "uniquetask", exclusive.PromisesOf("uniquetask"), uniqueTask[Tx]},
		{"fencing", "fencing", exclusive.PromisesOf("fencing"), fenced[Tx]},
		{"fencing_guarded_here", "fencing", exclusive.PromisesOf("fencing"), guardedHere[Tx]},
		{"fencing_guarded_elsewhere", "fencing", exclusive.PromisesOf("fencing"), guardedElsewhere[Tx]},
		{"redisbackend_guarded", "redisbackend", guarded, redisGuarded[Tx]},
	}
}

// Each makes a test of a target out of one of a strategy: a parallel subtest for
// each strategy. They share the target's database, except on SQLite, where one
// transaction stops all others.
func Each[Tx any](test func(t *testing.T, target *matrix.Target[Tx], s Strategy[Tx])) func(*testing.T, *matrix.Target[Tx]) {
	return each(test, func(target *matrix.Target[Tx]) bool { return target.Networked() })
}

// EachAlone is Each with a database for each strategy on every server.
func EachAlone[Tx any](test func(t *testing.T, target *matrix.Target[Tx], s Strategy[Tx])) func(*testing.T, *matrix.Target[Tx]) {
	return each(test, func(*matrix.Target[Tx]) bool { return false })
}

func each[Tx any](test func(*testing.T, *matrix.Target[Tx], Strategy[Tx]), share func(*matrix.Target[Tx]) bool) func(*testing.T, *matrix.Target[Tx]) {
	return func(t *testing.T, target *matrix.Target[Tx]) {
		Tables(t, target) // the subtests are parallel
		for _, s := range All[Tx]() {
			t.Run(s.Name, func(t *testing.T) {
				t.Parallel()
				own := target
				if !share(target) {
					own = target.Fresh(t)
				}
				test(t, own, s)
			})
		}
	}
}

// Main is a TestMain that lets more tests run at the same time than there are
// processors: these wait for leases and servers most of the time. In the end,
// when all is closed, no goroutine may be left. Then ends are called.
func Main(m *testing.M, ends ...func() error) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		if err := flag.Set("test.parallel", "8"); err != nil {
			panic(err)
		}
	}
	code := m.Run()
	if err := matrix.DropShared(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	// Servers that this process has started live as long as it does.
	if err := goleak.Find(); err != nil && !strings.Contains(err.Error(), "integration_test/servers.") {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	for _, end := range ends {
		if err := end(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
	}
	os.Exit(code)
}

// Place is a strategy with a target that was set up for it: the strategy's
// tables, the application's own, and the table "result" as destination.
type Place[Tx any] struct {
	// New opens the strategy as one process would, on the target of SetUp or
	// another pool of the same database. It is closed when the test ends.
	// Fields of the configuration that the strategy does not have are ignored.
	New func(t testing.TB, target *matrix.Target[Tx], cfg exclusivetest.Config) exclusive.Transactional[Tx]

	// Reopen puts a key that is done back, so that it can be worked on again.
	// It is nil where keys are not done for good. ErrHeld: it is worked on.
	Reopen func(ctx context.Context, key string) error

	// TakeAway takes a key from its holder, as an operator would. It is nil
	// where nobody can.
	TakeAway func(ctx context.Context, key string) error

	// BackUpIssuer copies the state of what hands out tokens; see
	// exclusivetest.TxBackend. nil: it is not a store of its own.
	BackUpIssuer func(ctx context.Context) (restore func(ctx context.Context) error, err error)

	target   *matrix.Target[Tx]
	strategy string
	ticket   Ticket                                      // what Enter was called with, or setUp has filled in
	guarded  bool                                        // the issuer is not the destination, and does not go back with it
	insert   func(ctx context.Context, key string) error // the application's row; nil: it needs none

	mu   sync.Mutex
	made []string // the keys of this place
}

// SetUp makes the tables in target's database, if they are not there yet, and
// what else the strategy needs.
func (s Strategy[Tx]) SetUp(t testing.TB, target *matrix.Target[Tx]) *Place[Tx] {
	t.Helper()
	Tables(t, target)
	p := &Place[Tx]{target: target, strategy: s.Name}
	s.setUp(t, p)
	return p
}

// Ticket is what another process needs to use a Place.
type Ticket struct {
	Target   matrix.Address
	Strategy string
	// Issuer is where leases are, if that is another server: one of ours, or
	// Redis with a prefix.
	Issuer        matrix.Address
	Redis, Prefix string
}

// Ticket of the place.
func (p *Place[Tx]) Ticket() Ticket {
	ticket := p.ticket
	ticket.Target, ticket.Strategy = p.target.Address(), p.strategy
	return ticket
}

// Enter opens the place of a ticket on target, in another process.
func Enter[Tx any](t testing.TB, target *matrix.Target[Tx], ticket Ticket) *Place[Tx] {
	t.Helper()
	p := &Place[Tx]{target: target, strategy: ticket.Strategy, ticket: ticket}
	for _, s := range All[Tx]() {
		if s.Name == ticket.Strategy {
			s.setUp(t, p)
			return p
		}
	}
	t.Fatalf("no strategy %q", ticket.Strategy)
	return nil
}

// making is locked while tables are made: targets can share a database.
var making sync.Mutex

// Tables makes those of all strategies, the application's own table for
// casupdate, and the destination, if they are not there yet.
func Tables[Tx any](t testing.TB, target *matrix.Target[Tx]) {
	t.Helper()
	making.Lock()
	defer making.Unlock()
	if _, err := target.Plain.ExecContext(t.Context(), "SELECT 1 FROM result WHERE 1 = 0"); err == nil {
		return
	}
	// MariaDB's own default is latin1, which cannot hold every key.
	charset := ""
	if target.Dialect == "mysql" || target.Dialect == "mariadb" {
		charset = " CHARACTER SET utf8mb4"
	}
	target.Migrate(t, "")
	target.MustExec(t, `CREATE TABLE job (id varchar(200) PRIMARY KEY, state varchar(20) NOT NULL, token bigint,
		grant_id varchar(64), holder varchar(200), claimed_at bigint, expires_at bigint)`+charset)
	target.MustExec(t, "CREATE TABLE result (name varchar(200) PRIMARY KEY, body varchar(200) NOT NULL, n bigint NOT NULL)"+charset)
}

// keys makes the keys of this process different.
var keys atomic.Int64

// Key makes a key that nobody has used, with the application's row where the
// strategy needs one and with an empty result.
func (p *Place[Tx]) Key(ctx context.Context) (string, error) {
	key := fmt.Sprintf("report/%d", keys.Add(1))
	p.mu.Lock()
	p.made = append(p.made, key)
	p.mu.Unlock()
	if p.insert != nil {
		if err := p.insert(ctx, key); err != nil {
			return "", err
		}
	}
	_, err := p.target.Plain.ExecContext(ctx, p.target.Bind("INSERT INTO result VALUES (?, '', 0)"), key)
	return key, err
}

// MustKey is Key for the test's goroutine.
func (p *Place[Tx]) MustKey(t testing.TB) string {
	t.Helper()
	key, err := p.Key(t.Context())
	if err != nil {
		t.Fatalf("make a key: %v", err)
	}
	return key
}

// InTx runs fn in a transaction of the application's own.
func (p *Place[Tx]) InTx(ctx context.Context, fn func(ctx context.Context, tx Tx) error) error {
	return db.InTx(ctx, p.target.DB, func(ctx context.Context, tx Tx, _ db.Runner) error { return fn(ctx, tx) })
}

// BackUpDestination copies all that the destination's database knows of the
// place's keys: results, marks, and leases or claims where they are there too.
// See exclusivetest.TxBackend. Other places may share the database.
func (p *Place[Tx]) BackUpDestination(ctx context.Context) (restore func(ctx context.Context) error, err error) {
	p.mu.Lock()
	keys := slices.Clone(p.made)
	p.mu.Unlock()
	type place struct{ table, column, key string }
	copies := make(map[place][]any)
	tables := map[string]string{"result": "name", "exclusive_mark": "mark_key"}
	if !p.guarded {
		tables = map[string]string{"result": "name", "job": "id", "exclusive_lease": "lease_key", "exclusive_task": "run"}
	}
	for table, column := range tables {
		for _, key := range keys {
			row, err := p.row(ctx, table, column, key)
			if err != nil {
				return nil, err
			}
			copies[place{table, column, key}] = row
		}
	}
	var tokens int64
	sequence := p.target.Dialect == "postgres" && !p.guarded
	if sequence {
		err = p.target.Plain.QueryRowContext(ctx, "SELECT last_value FROM exclusive_token").Scan(&tokens)
	}
	return func(ctx context.Context) error {
		for at, row := range copies {
			_, err := p.target.Plain.ExecContext(ctx, p.target.Bind("DELETE FROM "+at.table+" WHERE "+at.column+" = ?"), keyArg(at.table, at.key))
			if err == nil && row != nil {
				_, err = p.target.Plain.ExecContext(ctx, p.target.Bind("INSERT INTO "+at.table+" VALUES (?"+strings.Repeat(", ?", len(row)-1)+")"), row...)
			}
			if err != nil {
				return fmt.Errorf("restore %s: %w", at.table, err)
			}
		}
		if sequence {
			_, err := p.target.Plain.ExecContext(ctx, "SELECT setval('exclusive_token', $1)", tokens)
			return err
		}
		return nil
	}, err
}

// row reads a row of which column is key; nil if there is none.
func (p *Place[Tx]) row(ctx context.Context, table, column, key string) ([]any, error) {
	rows, err := p.target.Plain.QueryContext(ctx, p.target.Bind("SELECT * FROM "+table+" WHERE "+column+" = ?"), keyArg(table, key))
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil || !rows.Next() {
		return nil, errors.Join(err, rows.Err())
	}
	row, dest := make([]any, len(columns)), make([]any, len(columns))
	for i := range row {
		dest[i] = &row[i]
	}
	return row, errors.Join(rows.Scan(dest...), rows.Err())
}

// keyArg is a key as the column of a table has it: bytes in those of the toolkit.
func keyArg(table, key string) any {
	if strings.HasPrefix(table, "exclusive_") {
		return []byte(key)
	}
	return key
}

// Write stores body as the result of key and counts one effect more.
func (p *Place[Tx]) Write(ctx context.Context, tx Tx, key, body string) error {
	return p.target.Exec(ctx, tx, p.target.Bind("UPDATE result SET body = ?, n = n + 1 WHERE name = ?"), body, key)
}

// Read returns the result of key.
func (p *Place[Tx]) Read(ctx context.Context, tx Tx, key string) (body string, err error) {
	r, err := p.target.DB.Within(tx)
	if err != nil {
		return "", err
	}
	query := p.target.Bind("SELECT body FROM result WHERE name = ?")
	err = r.Query(ctx, query, []any{key}, func(scan db.Scan) error { return scan(&body) })
	return body, err
}

// Stored returns the result of key and the number of effects, as committed.
func (p *Place[Tx]) Stored(t testing.TB, key string) (body string, n int64) {
	t.Helper()
	row := p.target.Plain.QueryRowContext(t.Context(), p.target.Bind("SELECT body, n FROM result WHERE name = ?"), key)
	if err := row.Scan(&body, &n); err != nil {
		t.Fatalf("read the result of %s: %v", key, err)
	}
	return body, n
}

// must ends the test if a constructor fails, and closes what it made at the end.
func must[X any](t testing.TB, x X, err error) X {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if c, ok := any(x).(io.Closer); ok {
			if err := c.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		}
	})
	return x
}

func casUpdate[Tx any](ttl time.Duration) func(testing.TB, *Place[Tx]) {
	return func(t testing.TB, p *Place[Tx]) {
		p.insert = func(ctx context.Context, key string) error {
			_, err := p.target.Plain.ExecContext(ctx, p.target.Bind("INSERT INTO job (id, state) VALUES (?, 'PENDING')"), key)
			return err
		}
		open := func(t testing.TB, target *matrix.Target[Tx], c exclusivetest.Config) *casupdate.Table[Tx] {
			cfg := casupdate.Config{
				Table: "job", From: "PENDING", Claimed: "PROCESSING", Done: "DONE",
				TokenColumn: "token", GrantColumn: "grant_id", ClaimedAtColumn: "claimed_at", HolderColumn: "holder",
				Transitions: []casupdate.Transition{{From: "DONE", To: "PENDING"}, {From: "PROCESSING", To: "PENDING"}},
				Wait:        c.Wait, MaxHold: c.MaxHold, Holder: c.Holder,
			}
			if ttl > 0 {
				cfg.ExpiresColumn, cfg.TTL, cfg.NoRenew = "expires_at", ttl, c.NoRenew
				if c.TTL > 0 {
					cfg.TTL = c.TTL
				}
			}
			x, err := casupdate.New(target.DB, cfg)
			return must(t, x, err)
		}
		operator := open(t, p.target, exclusivetest.Config{})
		p.New = func(t testing.TB, target *matrix.Target[Tx], c exclusivetest.Config) exclusive.Transactional[Tx] {
			return open(t, target, c)
		}
		p.Reopen = func(ctx context.Context, key string) error {
			return unlessDone(operator.Transition(ctx, key, "DONE", "PENDING"))
		}
		p.TakeAway = func(ctx context.Context, key string) error {
			return operator.Transition(ctx, key, "PROCESSING", "PENDING")
		}
	}
}

// unlessDone forgets that the row was in the state already.
func unlessDone(err error) error {
	if errors.Is(err, exclusive.ErrDone) {
		return nil
	}
	return err
}

func rowLock[Tx any](t testing.TB, p *Place[Tx]) {
	p.New = func(t testing.TB, target *matrix.Target[Tx], c exclusivetest.Config) exclusive.Transactional[Tx] {
		x, err := rowlock.New(target.DB, rowlock.Config{Wait: c.Wait})
		return must(t, x, err)
	}
	if p.target.Networked() {
		p.TakeAway = func(ctx context.Context, _ string) error {
			return session.Kill(ctx, p.target.Plain, p.target.Dialect)
		}
	}
}

func uniqueTask[Tx any](t testing.TB, p *Place[Tx]) {
	open := func(t testing.TB, target *matrix.Target[Tx], c exclusivetest.Config) *uniquetask.Tasks[Tx] {
		x, err := uniquetask.New(target.DB, uniquetask.Config{
			Task: "reports", TTL: c.TTL, Wait: c.Wait, NoRenew: c.NoRenew, MaxHold: c.MaxHold, Holder: c.Holder,
		})
		return must(t, x, err)
	}
	operator := open(t, p.target, exclusivetest.Config{})
	p.New = func(t testing.TB, target *matrix.Target[Tx], c exclusivetest.Config) exclusive.Transactional[Tx] {
		return open(t, target, c)
	}
	p.Reopen, p.TakeAway = operator.Forget, operator.Release
}

func fenced[Tx any](t testing.TB, p *Place[Tx]) {
	p.New = func(t testing.TB, target *matrix.Target[Tx], c exclusivetest.Config) exclusive.Transactional[Tx] {
		return leases(t, target, c)
	}
	p.TakeAway = release(t, p.target)
}

func leases[Tx any](t testing.TB, target *matrix.Target[Tx], c exclusivetest.Config) *fencing.Leases[Tx] {
	x, err := fencing.New(target.DB, fencing.Config{TTL: c.TTL, Wait: c.Wait, NoRenew: c.NoRenew, MaxHold: c.MaxHold, Holder: c.Holder})
	return must(t, x, err)
}

// release is what an operator frees keys with.
func release[Tx any](t testing.TB, target *matrix.Target[Tx]) func(context.Context, string) error {
	operator, err := fencing.New(target.DB, fencing.Config{})
	return must(t, operator, err).Release
}

// guard makes a Guard on target.
func guard[Tx any](t testing.TB, target *matrix.Target[Tx]) *fencing.Guard[Tx] {
	g, err := fencing.NewGuard(target.DB, fencing.GuardConfig{})
	return must(t, g, err)
}

// guardedHere has the issuer's leases on the destination's database, which would
// not need a Guard: the two do not know that.
func guardedHere[Tx any](t testing.TB, p *Place[Tx]) {
	p.guarded = true
	p.New = func(t testing.TB, target *matrix.Target[Tx], c exclusivetest.Config) exclusive.Transactional[Tx] {
		return fencing.Guarded(leases(t, target, c), guard(t, target))
	}
	p.TakeAway = release(t, p.target)
}

// guardedElsewhere has the issuer's leases on another server.
func guardedElsewhere[Tx any](t testing.TB, p *Place[Tx]) {
	p.guarded = true
	issuer := p.issuer(t)
	p.New = func(t testing.TB, target *matrix.Target[Tx], c exclusivetest.Config) exclusive.Transactional[Tx] {
		return fencing.Guarded(leases(t, issuer, c), guard(t, target))
	}
	p.TakeAway = release(t, issuer)
	p.BackUpIssuer = func(ctx context.Context) (func(context.Context) error, error) { return backUpLeases(ctx, issuer) }
}

// issuer is a database on another server, with the tables of leases.
func (p *Place[Tx]) issuer(t testing.TB) *matrix.Target[*sql.Tx] {
	t.Helper()
	if p.ticket.Issuer.DSN != "" {
		return matrix.OnSQL(t, p.ticket.Issuer)
	}
	dialect := "postgres"
	if p.target.Dialect == dialect {
		dialect = "mysql"
	}
	if p.target.Shared {
		issuer := matrix.SharedOn(t, dialect)
		Tables(t, issuer)
		p.ticket.Issuer = issuer.Address()
		return issuer
	}
	issuer := matrix.On(t, dialect)
	issuer.Migrate(t, "fencing")
	p.ticket.Issuer = issuer.Address()
	return issuer
}

// backUpLeases copies the tokens, and brings them back without the leases.
func backUpLeases(ctx context.Context, issuer *matrix.Target[*sql.Tx]) (func(context.Context) error, error) {
	copies := make(map[string]int64)
	rows, err := issuer.Plain.QueryContext(ctx, "SELECT lease_key, token FROM exclusive_lease")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var key []byte
		var token int64
		if err := rows.Scan(&key, &token); err != nil {
			return nil, err
		}
		copies[string(key)] = token
	}
	return func(ctx context.Context) error {
		_, err := issuer.Plain.ExecContext(ctx, "DELETE FROM exclusive_lease")
		if issuer.Dialect == "postgres" {
			_, seqErr := issuer.Plain.ExecContext(ctx, "SELECT setval('exclusive_token', 1, false)")
			err = errors.Join(err, seqErr)
		}
		for key, token := range copies {
			_, insertErr := issuer.Plain.ExecContext(ctx, issuer.Bind(`INSERT INTO exclusive_lease
				(lease_key, grant_id, holder, token, attempt, acquired_at, expires_at) VALUES (?, 'restored', '', ?, 0, 0, 0)`), []byte(key), token)
			err = errors.Join(err, insertErr)
		}
		return err
	}, rows.Err()
}

func redisGuarded[Tx any](t testing.TB, p *Place[Tx]) {
	p.guarded = true
	client, prefix := p.redis(t)
	p.New = func(t testing.TB, target *matrix.Target[Tx], c exclusivetest.Config) exclusive.Transactional[Tx] {
		x, err := redisbackend.New(client, redisbackend.Config{
			Prefix: prefix, TTL: c.TTL, Wait: c.Wait, NoRenew: c.NoRenew, MaxHold: c.MaxHold, Holder: c.Holder,
		})
		return fencing.Guarded(must(t, x, err), guard(t, target))
	}
	operator, err := redisbackend.New(client, redisbackend.Config{Prefix: prefix})
	p.TakeAway = must(t, operator, err).Release
	p.BackUpIssuer = func(ctx context.Context) (func(context.Context) error, error) {
		return backUpCounters(ctx, client, prefix)
	}
}

// redis is a client, and a prefix that the place has for itself.
func (p *Place[Tx]) redis(t testing.TB) (*redis.Client, string) {
	t.Helper()
	if p.ticket.Redis == "" {
		client, prefix := servers.Prefix(t)
		p.ticket.Redis, p.ticket.Prefix = servers.Shared(t, servers.Redis).DSN, prefix
		return client, prefix
	}
	options, err := redis.ParseURL(p.ticket.Redis)
	if err != nil {
		t.Fatal("the DSN of Redis is not a URL")
	}
	return must(t, redis.NewClient(options), nil), p.ticket.Prefix
}

// backUpCounters copies the counters, and brings them back without the leases.
func backUpCounters(ctx context.Context, client *redis.Client, prefix string) (restore func(context.Context) error, err error) {
	copies := make(map[string]string)
	keys, err := client.Keys(ctx, prefix+"*:counter").Result()
	for _, key := range keys {
		dump, dumpErr := client.Dump(ctx, key).Result()
		err = errors.Join(err, dumpErr)
		copies[key] = dump
	}
	return func(ctx context.Context) error {
		keys, err := client.Keys(ctx, prefix+"*").Result()
		if err == nil && len(keys) > 0 {
			err = client.Del(ctx, keys...).Err()
		}
		for key, dump := range copies {
			err = errors.Join(err, client.RestoreReplace(ctx, key, 0, dump).Err())
		}
		return err
	}, err
}
