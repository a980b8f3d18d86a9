package cases_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/fencing"
	"github.com/exclusive-go/exclusive/integration_test/cases/pool"
	"github.com/exclusive-go/exclusive/integration_test/matrix"
	"github.com/exclusive-go/exclusive/integration_test/proxy"
	"github.com/exclusive-go/exclusive/integration_test/servers"
	"github.com/exclusive-go/exclusive/integration_test/strategies"
	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/internal/strategy"
	"github.com/exclusive-go/exclusive/redisbackend"
)

// buildFolder is where the command is, once it has been built.
var buildFolder string

func TestMain(m *testing.M) {
	strategies.Main(m, func() error { return os.RemoveAll(buildFolder) })
}

// patience is how long something may take that happens at once on a machine
// with nothing else to do. Leases that must not run out by themselves are longer.
const (
	patience = 20 * time.Second
	forever  = 10 * time.Minute
)

// tick is how exactly a server tells how long a lease lasts: Redis in whole
// milliseconds, rounded down.
const tick = time.Millisecond

// size is a number of rounds, keys or callers: the report's own in a long run, and
// one that takes a second or two otherwise.
func size(full, quick int) int {
	if matrix.Long() {
		return full
	}
	return quick
}

func must(t testing.TB, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// wantErr fails unless err matches all kinds.
func wantErr(t testing.TB, what string, err error, kinds ...error) {
	t.Helper()
	for _, kind := range kinds {
		if !errors.Is(err, kind) {
			t.Fatalf("%s: %v; want an error that matches %q", what, err, kind)
		}
	}
}

// opened ends the test if a constructor failed, and closes at its end what was
// made.
func opened[X io.Closer](t testing.TB, x X, err error) X {
	t.Helper()
	must(t, "open", err)
	t.Cleanup(func() {
		if err := x.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return x
}

// soon bounds what a test waits for.
func soon(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func acquire(t testing.TB, l exclusive.Leaser, key string) *exclusive.Lease {
	t.Helper()
	lease, err := l.Acquire(soon(t), key)
	must(t, "acquire", err)
	return lease
}

// free fails unless key can be had soon; its holder's lease must last longer.
func free(t testing.TB, l exclusive.Leaser, key string) {
	t.Helper()
	must(t, "release", acquire(t, l, key).Release(t.Context()))
}

// await waits until ok.
func await(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited %v for: %s", patience, what)
		}
	}
}

// ended waits for a channel to be closed or sent to.
func ended[E any](t testing.TB, what string, c <-chan E) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(patience):
		t.Fatalf("waited %v for: %s", patience, what)
	}
}

// through puts a proxy between a new pool of target and its server.
func through[Tx any](t testing.TB, target *matrix.Target[Tx], o matrix.Options) (*matrix.Target[Tx], *proxy.Proxy) {
	t.Helper()
	p := proxy.Start(t, target.Addr(t))
	o.Addr = p.Addr()
	return target.Another(t, o), p
}

// watched opens one more pool of target, which shows what is asked of it.
func watched[Tx any](t testing.TB, target *matrix.Target[Tx]) (*matrix.Target[Tx], *pool.Pool[Tx]) {
	t.Helper()
	another := target.Another(t, matrix.Options{})
	p := pool.New(another.DB)
	another.DB = p
	return another, p
}

// inTx runs fn in a transaction of the application's own.
func inTx[Tx any](ctx context.Context, target *matrix.Target[Tx], fn func(ctx context.Context, tx Tx) error) error {
	return db.InTx(ctx, target.DB, func(ctx context.Context, tx Tx, _ db.Runner) error { return fn(ctx, tx) })
}

// issuer is a place that hands out leases: a database, or Redis.
type issuer struct {
	dialect string // of the database, or "redis"

	// open makes a Leaser as a process of its own would. redisbackend takes
	// from cfg what it has as well.
	open func(t testing.TB, cfg fencing.Config) exclusive.Leaser
	// watched is open on a pool or client of its own, which shows what is asked of it.
	watched func(t testing.TB, cfg fencing.Config) (exclusive.Leaser, *pool.Watch)
	// far is open with a proxy in between. It is nil on SQLite.
	far func(t testing.TB, cfg fencing.Config) (exclusive.Leaser, *proxy.Proxy)
	// remove takes the lease from its holder past the toolkit.
	remove func(t testing.TB, key string)
	// left is how long the lease of key lasts yet, on the server's clock. 0:
	// there is none.
	left func(t testing.TB, key string) time.Duration
	// until is when the lease of key ends, on the server's clock.
	until func(t testing.TB, key string) time.Duration
	// freeIf takes the lease from its holder if it ends at that time, and reports
	// whether it did.
	freeIf func(t testing.TB, key string, until time.Duration) bool
	// hold keeps the lease's row locked, and everything with it on SQLite,
	// until done is called. On Redis it is nil.
	hold func(t testing.TB, key string) (done func())
}

// networked reports whether there is a server on the other end of a connection.
func (i *issuer) networked() bool { return i.far != nil }

// eachIssuer runs a test on fencing on every server with each driver, and on
// redisbackend.
func eachIssuer(t *testing.T, test func(t *testing.T, i *issuer)) {
	t.Helper()
	matrix.Shared(t, onIssuer[pgx.Tx](test), onIssuer[*sql.Tx](test))
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		test(t, redisIssuer(t))
	})
}

func onIssuer[Tx any](test func(*testing.T, *issuer)) func(*testing.T, *matrix.Target[Tx]) {
	return func(t *testing.T, target *matrix.Target[Tx]) { test(t, fencingIssuer(t, target)) }
}

// clocks are those of the servers, in microseconds.
var clocks = map[string]string{"postgres": strategy.PostgresNow, "mysql": strategy.MySQLNow, "mariadb": strategy.MySQLNow, "sqlite": strategy.SQLiteNow}

func fencingIssuer[Tx any](t testing.TB, target *matrix.Target[Tx]) *issuer {
	t.Helper()
	strategies.Tables(t, target)
	open := func(t testing.TB, target *matrix.Target[Tx], c fencing.Config) exclusive.Leaser {
		l, err := fencing.New(target.DB, c)
		return opened(t, l, err)
	}
	now := clocks[target.Dialect]
	i := &issuer{
		dialect: target.Dialect,
		open:    func(t testing.TB, c fencing.Config) exclusive.Leaser { return open(t, target, c) },
		watched: func(t testing.TB, c fencing.Config) (exclusive.Leaser, *pool.Watch) {
			near, p := watched(t, target)
			return open(t, near, c), &p.Watch
		},
		remove: func(t testing.TB, key string) {
			target.MustExec(t, "DELETE FROM exclusive_lease WHERE lease_key = ?", []byte(key))
		},
		left: func(t testing.TB, key string) time.Duration {
			micros := target.Int(t, "SELECT COALESCE(MAX(expires_at), 0) - "+now+" FROM exclusive_lease WHERE lease_key = ?", []byte(key))
			return max(0, time.Duration(micros)*time.Microsecond)
		},
		until: func(t testing.TB, key string) time.Duration {
			return time.Duration(target.Int(t, "SELECT expires_at FROM exclusive_lease WHERE lease_key = ?", []byte(key))) * time.Microsecond
		},
		freeIf: func(t testing.TB, key string, until time.Duration) bool {
			result, err := target.Plain.ExecContext(t.Context(), target.Bind("DELETE FROM exclusive_lease WHERE lease_key = ? AND expires_at = ?"), []byte(key), until.Microseconds())
			must(t, "delete the lease", err)
			n, err := result.RowsAffected()
			must(t, "delete the lease", err)
			return n > 0
		},
		hold: func(t testing.TB, key string) func() {
			tx, err := target.Plain.BeginTx(t.Context(), nil)
			must(t, "begin", err)
			_, err = tx.ExecContext(t.Context(), target.Bind("UPDATE exclusive_lease SET holder = 'looked at' WHERE lease_key = ?"), []byte(key))
			must(t, "lock the row", err)
			return func() { must(t, "rollback", tx.Rollback()) }
		},
	}
	if target.Networked() {
		i.far = func(t testing.TB, c fencing.Config) (exclusive.Leaser, *proxy.Proxy) {
			far, p := through(t, target, matrix.Options{})
			return open(t, far, c), p
		}
	}
	return i
}

// redisOptions are those of the shared server.
func redisOptions(t testing.TB) *redis.Options {
	t.Helper()
	o, err := redis.ParseURL(servers.Shared(t, servers.Redis).DSN)
	must(t, "parse the DSN", err)
	return o
}

func redisIssuer(t testing.TB) *issuer {
	t.Helper()
	client, prefix := servers.Prefix(t)
	open := func(t testing.TB, client *redis.Client, c fencing.Config) exclusive.Leaser {
		l, err := redisbackend.New(client, redisbackend.Config{Prefix: prefix, TTL: c.TTL, Wait: c.Wait, NoRenew: c.NoRenew, MaxHold: c.MaxHold, Holder: c.Holder, Observer: c.Observer})
		return opened(t, l, err)
	}
	name := func(key string) string { return prefix + "{" + key + "}:lease" }
	return &issuer{
		dialect: "redis",
		open:    func(t testing.TB, c fencing.Config) exclusive.Leaser { return open(t, client, c) },
		watched: func(t testing.TB, c fencing.Config) (exclusive.Leaser, *pool.Watch) {
			client, hook := opened(t, redis.NewClient(redisOptions(t)), nil), new(pool.Redis)
			client.AddHook(hook)
			return open(t, client, c), &hook.Watch
		},
		far: func(t testing.TB, c fencing.Config) (exclusive.Leaser, *proxy.Proxy) {
			o := redisOptions(t)
			p := proxy.Start(t, o.Addr)
			o.Addr = p.Addr()
			return open(t, opened(t, redis.NewClient(o), nil), c), p
		},
		remove: func(t testing.TB, key string) {
			must(t, "delete the lease", client.Del(t.Context(), name(key)).Err())
		},
		until: func(t testing.TB, key string) time.Duration {
			d, err := client.PExpireTime(t.Context(), name(key)).Result()
			must(t, "PEXPIRETIME", err)
			return d
		},
		freeIf: func(t testing.TB, key string, until time.Duration) bool {
			n, err := client.Eval(t.Context(), `if redis.call('PEXPIRETIME', KEYS[1]) == tonumber(ARGV[1]) then return redis.call('DEL', KEYS[1]) end return 0`,
				[]string{name(key)}, until.Milliseconds()).Int()
			must(t, "delete the lease", err)
			return n > 0
		},
		left: func(t testing.TB, key string) time.Duration {
			d, err := client.PTTL(t.Context(), name(key)).Result()
			must(t, "PTTL", err)
			return max(0, d)
		},
	}
}

// cue is given once or more often, and is seen by all.
type cue struct {
	Given chan struct{}
	Give  func()
}

func newCue() *cue {
	given := make(chan struct{})
	return &cue{given, sync.OnceFunc(func() { close(given) })}
}

// held is the first that is asked of a backend from now on, and is held: before it is
// sent, or once it has run and is not answered yet.
type held struct {
	There <-chan struct{} // closed when it is held
	Let   func()          // lets it go on
	Over  <-chan struct{} // closed when it is answered
}

func hold(t testing.TB, w *pool.Watch, unsent bool) held {
	t.Helper()
	there, goOn, over := make(chan struct{}), make(chan struct{}), make(chan struct{})
	let := sync.OnceFunc(func() { close(goOn) })
	t.Cleanup(let)
	stop := func() { close(there); <-goOn }
	var first atomic.Pointer[string]
	w.OnAnswer(func(query string) {
		if f := first.Load(); f == nil || *f != query {
			return
		}
		w.OnAnswer(nil)
		if !unsent {
			stop()
		}
		close(over)
	})
	w.OnStatement(func(query string, _ []any) error {
		if first.CompareAndSwap(nil, &query) && unsent {
			stop()
		}
		return nil
	})
	return held{there, let, over}
}

// unique numbers the keys of a process.
var unique atomic.Int64

// newKey is a key that nobody has used here.
func newKey() string { return fmt.Sprint("key/", unique.Add(1)) }

func nothing(context.Context, exclusive.Grant) error { return nil }

// heldSignal is an Observer that tells when an attempt is refused because the key is
// held.
type heldSignal struct {
	mu   sync.Mutex
	told chan struct{}
}

func newHeldSignal() *heldSignal { return &heldSignal{told: make(chan struct{})} }

// next is closed when the next attempt is refused.
func (h *heldSignal) next() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.told
}

// await waits until an attempt is refused.
func (h *heldSignal) await(ctx context.Context) error {
	select {
	case <-h.next():
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the other is not told that the key is held: %w", ctx.Err())
	}
}

// Start implements exclusive.Observer.
func (h *heldSignal) Start(ctx context.Context, _ exclusive.Event) context.Context { return ctx }

// End implements exclusive.Observer.
func (h *heldSignal) End(_ context.Context, e exclusive.Event) {
	if e.Op != exclusive.OpAcquire || !errors.Is(e.Err, exclusive.ErrHeld) {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	close(h.told)
	h.told = make(chan struct{})
}
