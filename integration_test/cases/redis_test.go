package cases_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/fencing"
	"github.com/exclusive-go/exclusive/integration_test/matrix"
	"github.com/exclusive-go/exclusive/integration_test/proxy"
	"github.com/exclusive-go/exclusive/integration_test/rediscluster"
	"github.com/exclusive-go/exclusive/integration_test/servers"
	"github.com/exclusive-go/exclusive/internal/strategy"
	"github.com/exclusive-go/exclusive/redisbackend"
)

// redisThrough opens a client of the shared Redis that goes through a proxy.
func redisThrough(t testing.TB, change func(*redis.Options)) (*redis.Client, *proxy.Proxy) {
	t.Helper()
	o := redisOptions(t)
	p := proxy.Start(t, o.Addr)
	o.Addr = p.Addr()
	if change != nil {
		change(o)
	}
	client := redis.NewClient(o)
	t.Cleanup(func() { _ = client.Close() })
	return client, p
}

func redisLeases(t testing.TB, client redis.UniversalClient, cfg redisbackend.Config) *redisbackend.Leases {
	t.Helper()
	l, err := redisbackend.New(client, cfg)
	return opened(t, l, err)
}

// not fails if err matches one of kinds.
func not(t testing.TB, what string, err error, kinds ...error) {
	t.Helper()
	for _, kind := range kinds {
		if errors.Is(err, kind) {
			t.Fatalf("%s: %v; it must not match %q", what, err, kind)
		}
	}
}

// claiming is a holder's name by which a proxy knows the script that acquires:
// no other has it among its arguments.
const claiming = "claiming-holder"

func isClaim(data []byte) bool { return bytes.Contains(data, []byte(claiming)) }

// storedLease is the token and the grant id that the server keeps with a lease.
func storedLease(t testing.TB, client redis.UniversalClient, prefix, key string) (id string, token int64) {
	t.Helper()
	value, err := client.Get(t.Context(), prefix+"{"+key+"}:lease").Result()
	must(t, "read the lease", err)
	fields := strings.Fields(value)
	token, err = strconv.ParseInt(fields[1], 10, 64)
	must(t, "read the token", err)
	return fields[0], token
}

// An acquire whose answer is lost is held by its caller, or soon by nobody. In
// the field SET NX had run, the client's retry found the key taken, and the
// caller was told that somebody else had it: for a whole TTL nobody did.
func TestB031_LostAnswerOfAcquire(t *testing.T) {
	t.Parallel()
	plain, prefix := servers.Prefix(t)
	other := redisLeases(t, plain, redisbackend.Config{Prefix: prefix})

	t.Run("client_retries", func(t *testing.T) {
		t.Parallel()
		client, p := redisThrough(t, nil)
		x := redisLeases(t, client, redisbackend.Config{Prefix: prefix, Holder: claiming, TTL: forever})
		// The server knows the script now: what is lost is not the answer that it does not.
		must(t, "the first", x.Do(t.Context(), "retried", nothing))
		lost := loseFirst(p, isClaim)
		lease, err := x.TryAcquire(t.Context(), "retried")
		must(t, "acquire", err)
		if !lost() {
			t.Error("no answer was lost")
		}
		g := lease.Grant()
		if id, token := storedLease(t, plain, prefix, "retried"); id != g.ID || token != g.Token || token != 2 {
			t.Errorf("the caller has grant %s with token %d, the server %s with %d; want 2", g.ID, g.Token, id, token)
		}
		_, err = other.TryAcquire(t.Context(), "retried")
		wantErr(t, "another", err, exclusive.ErrHeld)
		must(t, "release", lease.Release(t.Context()))
		must(t, "free at once", other.Do(t.Context(), "retried", nothing))
	})
	t.Run("client_gives_up", func(t *testing.T) {
		t.Parallel()
		client, p := redisThrough(t, func(o *redis.Options) { o.MaxRetries = -1 })
		x := redisLeases(t, client, redisbackend.Config{Prefix: prefix, Holder: claiming, TTL: forever})
		must(t, "the first", x.Do(t.Context(), "given back", nothing)) // as above
		p.Intercept(func(data []byte) proxy.Verdict {
			if isClaim(data) {
				return proxy.CutAfter
			}
			return proxy.Pass
		})
		_, err := x.TryAcquire(t.Context(), "given back")
		wantErr(t, "acquire", err, exclusive.ErrUnavailable)
		not(t, "acquire", err, exclusive.ErrHeld)
		// Only a give-back lets another have it: the lease outlasts the test.
		next := acquire(t, other, "given back")
		if token := next.Grant().Token; token != 3 {
			t.Errorf("token %d; want 3, after that of the acquire whose answer was lost", token)
		}
		must(t, "release", next.Release(t.Context()))
	})
	t.Run("twin", func(t *testing.T) {
		t.Parallel()
		client, p := redisThrough(t, nil)
		loseFirst(p, isClaim)
		won, err := client.SetNX(t.Context(), prefix+"naive", claiming, time.Minute).Result()
		if err != nil || won {
			t.Errorf("SET NX and a retry: %v, %v; want it held by nobody", won, err)
		}
	})
}

// loseFirst loses the answer to the first piece of data that is as given.
func loseFirst(p *proxy.Proxy, is func([]byte) bool) (lost func() bool) {
	var met atomic.Bool
	p.Intercept(func(data []byte) proxy.Verdict {
		if is(data) && met.CompareAndSwap(false, true) {
			return proxy.CutAfter
		}
		return proxy.Pass
	})
	return met.Load
}

// The token that a caller has is the token that is stored with its lease, however
// often the client has sent the script. In the field INCR was sent again after a
// network error and ran twice, so lock and caller had different numbers.
func TestB032_RepeatedCommands(t *testing.T) {
	t.Parallel()
	plain, prefix := servers.Prefix(t)
	client, p := redisThrough(t, nil)
	x := redisLeases(t, client, redisbackend.Config{Prefix: prefix, Holder: claiming})
	var claims, lost atomic.Int64
	p.Intercept(func(data []byte) proxy.Verdict {
		if isClaim(data) && claims.Add(1)%3 == 0 {
			lost.Add(1)
			return proxy.CutAfter
		}
		return proxy.Pass
	})
	var last int64
	for range 100 {
		lease, err := x.TryAcquire(t.Context(), "k")
		must(t, "acquire", err)
		g := lease.Grant()
		if id, token := storedLease(t, plain, prefix, "k"); token != g.Token || id != g.ID || token <= last {
			t.Fatalf("the caller has token %d, the server %d, and the one before was %d", g.Token, token, last)
		}
		last = g.Token
		must(t, "release", lease.Release(t.Context()))
	}
	if lost.Load() < 30 {
		t.Errorf("only %d answers were lost", lost.Load())
	}

	// The twin: INCR runs twice, and a token is nobody's.
	p.Intercept(nil)
	loseFirst(p, func(data []byte) bool { return bytes.Contains(data, []byte("naive")) })
	if n, err := client.Incr(t.Context(), prefix+"naive").Result(); n != 2 || err != nil {
		t.Errorf("INCR whose answer was lost gave %d, %v; want 2", n, err)
	}
}

// A script that fails half way leaves no lease that nobody holds, and the key can
// be had as soon as the cause is mended. In the field SET came before INCR: Redis
// does not roll a script back.
func TestB034_HalfExecutedScript(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	server := rediscluster.Start(t)
	admin := server.Client(t)
	const lease, counter = "exclusive:{k}:lease", "exclusive:{k}:counter"
	must(t, "ACL", admin.Do(ctx, "ACL", "SETUSER", "leases-only", "on", ">pw", "~*:lease", "~naive:lock", "&*", "+@all").Err())
	some := redis.NewClient(&redis.Options{Addr: server.Addr, Username: "leases-only", Password: "pw"})
	t.Cleanup(func() { _ = some.Close() })
	// The counter is no declared key: otherwise the server refuses at the start
	// what a user may not touch.
	naive := `redis.call('SET', KEYS[1], 'x', 'NX', 'PX', 60000) return redis.call('HINCRBY', ARGV[1], 'token', 1)`
	for _, c := range []struct {
		name   string
		client *redis.Client
		damage func(counter string) error
	}{
		{"counter_is_a_list", admin, func(counter string) error { return admin.RPush(ctx, counter, 1).Err() }},
		{"counter_is_full", admin, func(counter string) error { return admin.HSet(ctx, counter, "token", "9223372036854775807").Err() }},
		{"counter_is_forbidden", some, func(string) error { return nil }},
	} {
		must(t, "damage", c.damage(counter))
		must(t, "damage", c.damage("naive:counter"))
		_, err := redisLeases(t, c.client, redisbackend.Config{TTL: time.Minute}).TryAcquire(ctx, "k")
		wantErr(t, c.name, err, exclusive.ErrUnavailable)
		if n := admin.Exists(ctx, lease).Val(); n != 0 {
			t.Errorf("%s: a lease is left that nobody holds", c.name)
		}
		if err := c.client.Eval(ctx, naive, []string{"naive:lock"}, "naive:counter").Err(); err == nil || admin.Exists(ctx, "naive:lock").Val() != 1 {
			t.Errorf("%s: SET before INCR leaves no lock: %v", c.name, err)
		}
		must(t, "repair", admin.Del(ctx, counter, "naive:lock", "naive:counter").Err())
		must(t, c.name+", repaired", redisLeases(t, admin, redisbackend.Config{}).Do(ctx, "k", nothing))
		must(t, "clean up", admin.Del(ctx, counter).Err())
	}
}

// keySpy notes the keys that scripts are given.
type keySpy struct {
	mu   sync.Mutex
	seen [][]string
}

func (s *keySpy) note(cmd redis.Cmder) {
	args := cmd.Args()
	if name := cmd.Name(); name != "evalsha" && name != "eval" {
		return
	}
	n, _ := args[2].(int)
	var keys []string
	for _, key := range args[3 : 3+n] {
		keys = append(keys, fmt.Sprint(key))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = append(s.seen, keys)
}

func (s *keySpy) take() [][]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := s.seen
	s.seen = nil
	return seen
}

func (s *keySpy) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (s *keySpy) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { s.note(cmd); return next(ctx, cmd) }
}

func (s *keySpy) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			s.note(cmd)
		}
		return next(ctx, cmds)
	}
}

// braces are names that a careless hash tag tears apart, or throws together.
var braces = []string{"a", "user:42", "x{y}z", "{", "}", "{}", "}{", "a{}b{c}", "}x", "%7B", "%", "{a}", "a}:lease", "y"}

// All Redis keys of one name are in one slot of a cluster, whatever braces the
// name has, and nothing but keys is passed as one. In the field lock and counter
// hashed to different slots, and every acquire failed with CROSSSLOT.
func TestB035_Crossslot(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	nodes := rediscluster.StartCluster(t)
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{nodes[0].Addr, nodes[1].Addr, nodes[2].Addr}})
	t.Cleanup(func() { _ = cluster.Close() })
	spy := &keySpy{}
	cluster.AddHook(spy)
	x := redisLeases(t, cluster, redisbackend.Config{})
	slot := func(key string) int64 {
		n, err := cluster.ClusterKeySlot(ctx, key).Result()
		must(t, "slot", err)
		return n
	}
	owner := make(map[string]string) // of each lease's Redis key
	var held []*exclusive.Lease
	for _, name := range braces {
		lease, err := x.TryAcquire(ctx, name)
		must(t, "acquire "+name, err)
		held = append(held, lease)
		must(t, "renew "+name, lease.Renew(ctx))
		_, err = x.TryAcquire(ctx, name)
		wantErr(t, "a second acquire of "+name, err, exclusive.ErrHeld)
		must(t, "advance "+name, x.Advance(ctx, name, 100))
		for _, keys := range spy.take() {
			for _, key := range keys {
				if !strings.HasPrefix(key, redisbackend.DefaultPrefix) {
					t.Errorf("%q: %q is passed as a key", name, key)
				}
				if slot(key) != slot(keys[0]) {
					t.Errorf("%q: the keys %q are in different slots", name, keys)
				}
				if strings.HasSuffix(key, ":lease") {
					if other, known := owner[key]; known && other != name {
						t.Errorf("%q and %q share the Redis key %q", name, other, key)
					}
					owner[key] = name
				}
			}
		}
	}
	if len(owner) != len(braces) {
		t.Errorf("%d leases of %d names", len(owner), len(braces))
	}
	for _, lease := range held {
		must(t, "release "+lease.Grant().Key, lease.Release(ctx))
	}
	for _, keys := range spy.take() {
		if !slices.ContainsFunc(keys, func(key string) bool { return slot(key) != slot(keys[0]) }) {
			continue
		}
		t.Errorf("release: the keys %q are in different slots", keys)
	}

	// The twin: the name as it is between braces.
	err := cluster.Eval(ctx, "return 1", []string{"lock:{}x}", "fence:{}x}"}).Err()
	if slot("lock:{}x}") == slot("fence:{}x}") || err == nil {
		t.Errorf("a naive hash tag does no harm: %v", err)
	}
}

// guardOn makes a Guard on the target, and what checks a grant there and writes.
func guardOn[Tx any](t *testing.T, target *matrix.Target[Tx]) (*fencing.Guard[Tx], func(g exclusive.Grant, body string) error) {
	t.Helper()
	target.Migrate(t, "fencing")
	target.MustExec(t, "CREATE TABLE result (name varchar(20) PRIMARY KEY, body varchar(200) NOT NULL)")
	target.MustExec(t, "INSERT INTO result VALUES ('r', '')")
	guard, err := fencing.NewGuard(target.DB, fencing.GuardConfig{})
	must(t, "new guard", err)
	return guard, func(g exclusive.Grant, body string) error {
		return inTx(t.Context(), target, func(ctx context.Context, tx Tx) error {
			if err := guard.Check(ctx, tx, g); err != nil {
				return err
			}
			return target.Exec(ctx, tx, target.Bind("UPDATE result SET body = ? WHERE name = 'r'"), body)
		})
	}
}

// body is what is stored at the destination.
func body[Tx any](t *testing.T, target *matrix.Target[Tx]) string {
	t.Helper()
	var s string
	must(t, "read the result", target.Plain.QueryRowContext(t.Context(), "SELECT body FROM result WHERE name = 'r'").Scan(&s))
	return s
}

// naive is a destination of the test's own, without the toolkit's guard: a write is
// accepted if its condition holds. It reports whether it was.
func naive[Tx any](t *testing.T, target *matrix.Target[Tx], condition string) (write func(g exclusive.Grant, body string) bool, stored func() string) {
	t.Helper()
	target.MustExec(t, "CREATE TABLE naive (body varchar(200) NOT NULL, token bigint NOT NULL)")
	target.MustExec(t, "INSERT INTO naive VALUES ('', 0)")
	write = func(g exclusive.Grant, body string) bool {
		res, err := target.Plain.ExecContext(t.Context(), target.Bind("UPDATE naive SET body = ?, token = ? WHERE "+condition), body, g.Token, g.Token)
		must(t, "a naive write", err)
		n, err := res.RowsAffected()
		must(t, "its rows", err)
		return n == 1
	}
	return write, func() (s string) {
		must(t, "read", target.Plain.QueryRowContext(t.Context(), "SELECT body FROM naive").Scan(&s))
		return s
	}
}

// After an eviction the former holder's write is refused, and so is a token of a
// counter that began again, with the cause named; exclusive doctor tells of a server
// that would evict. In the field an LRU policy evicted locks and counters, and two
// workers wrote.
func TestB037_Eviction(t *testing.T) {
	t.Parallel()
	t.Run("doctor", func(t *testing.T) {
		t.Parallel()
		exclusively := buildCommand(t)
		server := rediscluster.Start(t)
		for _, policy := range []string{"noeviction", "allkeys-lru", "allkeys-lfu", "allkeys-random", "volatile-lru", "volatile-lfu", "volatile-random", "volatile-ttl"} {
			must(t, policy, server.Client(t).ConfigSet(t.Context(), "maxmemory-policy", policy).Err())
			want := "warn" // no limit of its memory is set yet
			if policy == "noeviction" {
				want = "ok"
			}
			if status, _ := doctorCheck(t, exclusively, "redis://"+server.Addr+"/0", "redisbackend", "maxmemory-policy"); status != want {
				t.Errorf("doctor says %q of %s; want %q", status, policy, want)
			}
		}
	})
	matrix.Drivers(t, testEviction[pgx.Tx], testEviction[*sql.Tx])
}

func testEviction[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	ctx := t.Context()
	client, prefix := servers.Prefix(t)
	x := redisLeases(t, client, redisbackend.Config{Prefix: prefix, NoRenew: true, TTL: forever})
	guard, write := guardOn(t, target)
	must(t, "earlier tokens", x.Advance(ctx, "k", 4))
	a := acquire(t, x, "k").Grant()
	must(t, "A's first write", write(a, "A"))
	must(t, "evict the lease", client.Del(ctx, prefix+"{k}:lease").Err())
	b := acquire(t, x, "k")
	if a.Token != 5 || b.Grant().Token != 6 {
		t.Errorf("A has token %d and B %d; want 5 and 6", a.Token, b.Grant().Token)
	}
	must(t, "B's write", write(b.Grant(), "B"))
	wantErr(t, "A's write after B's", write(a, "A again"), exclusive.ErrFenced)

	must(t, "evict all", client.Del(ctx, prefix+"{k}:lease", prefix+"{k}:counter").Err())
	c := acquire(t, x, "k")
	if c.Grant().Token >= b.Grant().Token {
		t.Fatalf("the counter survived: token %d", c.Grant().Token)
	}
	err := write(c.Grant(), "C")
	wantErr(t, "a token from a counter that began again", err, exclusive.ErrFenced)
	if !strings.Contains(err.Error(), "Advance") {
		t.Errorf("%v does not name the cause and the repair", err)
	}
	if got := body(t, target); got != "B" {
		t.Errorf("%q is stored; want B", got)
	}
	// Guarded repairs it by itself.
	must(t, "release", c.Release(ctx))
	both := fencing.Guarded(x, guard)
	must(t, "guarded do", both.Do(ctx, "k", func(ctx context.Context, g exclusive.Grant) error {
		return both.Commit(ctx, g, func(ctx context.Context, tx Tx) error {
			return target.Exec(ctx, tx, "UPDATE result SET body = 'D' WHERE name = 'r'")
		})
	}))
	if got := body(t, target); got != "D" {
		t.Errorf("%q is stored; want D", got)
	}

	// The twin: nothing is compared, and the former holder's write stands.
	naively, stored := naive(t, target, "0 < ?")
	if !naively(a, "A") || !naively(b.Grant(), "B") || !naively(a, "A again") || stored() != "A again" {
		t.Errorf("without a guard an eviction does no harm: %q is stored", stored())
	}
}

// Each name leaves one small counter that never expires, as documented, and
// tokens rise whatever time passes. In the field counters with a TTL let tokens
// begin again, and those without filled a third of a server unannounced.
func TestB038_CountersPileUp(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	client, prefix := servers.Prefix(t)
	x := redisLeases(t, client, redisbackend.Config{Prefix: prefix})
	brief := redisLeases(t, client, redisbackend.Config{Prefix: prefix, TTL: 3 * time.Second, NoRenew: true})
	const names = 2000
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			for i := worker; i < names; i += 8 {
				if err := x.Do(ctx, fmt.Sprint("name ", i), nothing); err != nil {
					t.Errorf("do: %v", err)
				}
			}
		})
	}
	wg.Wait()
	first := acquire(t, brief, "name 7").Grant().Token
	rediscluster.Await(t, "every expiry to pass", func(ctx context.Context) error {
		keys, err := client.Keys(ctx, prefix+"*").Result()
		if err == nil && len(keys) != names {
			err = fmt.Errorf("%d Redis keys are left of %d names", len(keys), names)
		}
		return err
	})
	keys, err := client.Keys(ctx, prefix+"*").Result()
	must(t, "keys", err)
	for _, key := range keys {
		if ttl := client.TTL(ctx, key).Val(); ttl != -1 {
			t.Errorf("%s expires in %v: tokens would begin again", key, ttl)
		}
	}
	if second := acquire(t, brief, "name 7").Grant().Token; second <= first {
		t.Errorf("token %d after %d", second, first)
	}
	// The twin: a counter with an expiry begins again.
	naive := prefix + "naive"
	must(t, "incr", client.Incr(ctx, naive).Err())
	must(t, "expire", client.PExpire(ctx, naive, time.Millisecond).Err())
	rediscluster.Await(t, "the expiry", func(ctx context.Context) error {
		if client.Exists(ctx, naive).Val() == 1 {
			return errors.New("it is there")
		}
		return nil
	})
	if n := client.Incr(ctx, naive).Val(); n != 1 {
		t.Errorf("a counter that expired goes on at %d", n)
	}
}

// A call ends when its context does, whatever the client's options, and what it
// may have got is given back. In the field go-redis waited for a slow answer long
// past the deadline, and did not see a cancellation at all.
func TestB040_DeadlineIgnored(t *testing.T) {
	t.Parallel()
	for _, option := range []bool{false, true} {
		for _, how := range []error{context.DeadlineExceeded, context.Canceled} {
			t.Run(fmt.Sprintf("ContextTimeoutEnabled_%v_%v", option, how), func(t *testing.T) {
				t.Parallel()
				plain, prefix := servers.Prefix(t)
				client, p := redisThrough(t, func(o *redis.Options) { o.ContextTimeoutEnabled, o.ReadTimeout = option, patience })
				x := redisLeases(t, client, redisbackend.Config{Prefix: prefix, Holder: claiming, TTL: forever, NoRenew: true})
				other := redisLeases(t, plain, redisbackend.Config{Prefix: prefix})
				held, given := acquire(t, x, "held"), acquire(t, x, "given")
				slow := make(chan struct{})
				delayed := make(chan struct{}, 100)
				var claimed atomic.Bool
				p.Intercept(func(data []byte) proxy.Verdict {
					if isClaim(data) {
						claimed.Store(true)
					}
					if bytes.Contains(bytes.ToLower(data), []byte("eval")) {
						delayed <- struct{}{}
						<-slow
					}
					return proxy.Pass
				})
				var once sync.Once
				answer := func() { once.Do(func() { close(slow) }) }
				defer answer()
				for name, call := range map[string]func(context.Context) error{
					"acquire": func(ctx context.Context) error { _, err := x.TryAcquire(ctx, "k"); return err },
					"renew":   held.Renew,
					"release": given.Release,
				} {
					ctx, cancel := context.WithCancel(t.Context())
					if how == context.DeadlineExceeded {
						ctx, cancel = context.WithTimeout(t.Context(), 200*time.Millisecond)
					}
					done := make(chan error, 1)
					go func() { done <- call(ctx) }()
					if how == context.Canceled {
						<-delayed // it is on its way
						cancel()
					}
					select {
					case err := <-done:
						wantErr(t, name, err, how)
						not(t, name, err, exclusive.ErrHeld, exclusive.ErrLost)
					case <-time.After(patience / 2): // less than the client's own time-outs
						t.Errorf("%s goes on although its context has ended", name)
					}
					cancel()
				}
				answer()
				// It runs when nobody waits for it any more, and holds nothing in the end.
				// (On a busy machine the deadline may pass before it is sent.)
				if claimed.Load() || how == context.Canceled {
					await(t, "the acquire runs", func() bool { return plain.Exists(t.Context(), prefix+"{k}:counter").Val() == 1 })
				}
				free(t, other, "k")
			})
		}
	}
}

// A server that has become a replica is unavailable, never "held", and the same
// client goes on after its promotion, with a higher token. In the field READONLY
// was reported as "not acquired", or the client stayed stuck.
func TestB041_ReadonlyReplica(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	primary := rediscluster.Start(t)
	replica := rediscluster.StartReplica(t, primary)
	address := proxy.Start(t, primary.Addr) // which moves
	client := opened(t, redis.NewClient(&redis.Options{Addr: address.Addr()}), nil)
	x := redisLeases(t, client, redisbackend.Config{TTL: forever, NoRenew: true})
	kept, given := acquire(t, x, "kept"), acquire(t, x, "given")
	last := kept.Grant().Token
	// WAIT is about what its own connection has written.
	must(t, "write, and wait for the replica", primary.Client(t).Watch(ctx, func(tx *redis.Tx) error {
		n, err := tx.Set(ctx, "written", 1, 0).Result()
		if err == nil {
			var replicas int64
			replicas, err = tx.Wait(ctx, 1, patience).Result()
			if err == nil && replicas != 1 {
				err = fmt.Errorf("%s, and %d replicas have it", n, replicas)
			}
		}
		return err
	}))
	address.Retarget(replica.Addr)
	address.Cut()
	for name, call := range map[string]func() error{
		"acquire a free key": func() error { _, err := x.TryAcquire(ctx, "free"); return err },
		"acquire a held key": func() error { _, err := x.TryAcquire(ctx, "kept"); return err },
		"do":                 func() error { return x.Do(ctx, "free", nothing) },
		"renew":              func() error { return kept.Renew(ctx) },
		"release":            func() error { return given.Release(ctx) },
	} {
		err := call()
		wantErr(t, name, err, exclusive.ErrUnavailable)
		not(t, name, err, exclusive.ErrHeld, exclusive.ErrLost)
		if !strings.Contains(err.Error(), "primary") {
			t.Errorf("%s: %v does not say what to do", name, err)
		}
	}
	must(t, "promote", replica.Client(t).Do(ctx, "REPLICAOF", "NO", "ONE").Err())
	must(t, "renew", kept.Renew(ctx))
	must(t, "release", kept.Release(ctx))
	lease := acquire(t, x, "kept")
	if token := lease.Grant().Token; token <= last {
		t.Errorf("token %d after %d", token, last)
	}
	must(t, "do", x.Do(ctx, "free", nothing))
}

// Of two owners with an equal token the destination accepts one. In the field a
// failover lost the last increment, so that a second client got the same number
// while the first one still worked, and both wrote.
func TestB043_EqualTokens(t *testing.T) {
	t.Parallel()
	matrix.Drivers(t, testEqualTokens[pgx.Tx], testEqualTokens[*sql.Tx])
}

func testEqualTokens[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	ctx := t.Context()
	client, prefix := servers.Prefix(t)
	x := redisLeases(t, client, redisbackend.Config{Prefix: prefix, TTL: forever, NoRenew: true})
	_, write := guardOn(t, target)
	must(t, "earlier tokens", x.Advance(ctx, "k", 4))
	a := acquire(t, x, "k").Grant()
	must(t, "A's write", write(a, "A"))
	// What a promoted replica may have: neither the lease nor the last count.
	must(t, "fail over", client.HSet(ctx, prefix+"{k}:counter", "token", 4).Err())
	must(t, "fail over", client.Del(ctx, prefix+"{k}:lease").Err())
	first := acquire(t, x, "k")
	b, equal := first.Grant(), first.Grant()
	if a.Token != 5 || b.Token != 5 || a.ID == b.ID {
		t.Fatalf("A has %d and B %d; want 5 and 5, of two grants", a.Token, b.Token)
	}
	wantErr(t, "B's write with A's token", write(b, "B"), exclusive.ErrFenced)
	must(t, "A writes on", write(a, "A again"))
	must(t, "release", first.Release(ctx))
	b = acquire(t, x, "k").Grant()
	must(t, "B's write with the next token", write(b, "B"))
	wantErr(t, "A's write after B's", write(a, "A too late"), exclusive.ErrFenced)
	if got := body(t, target); b.Token != 6 || got != "B" {
		t.Errorf("B has token %d and %q is stored; want 6 and B", b.Token, got)
	}

	// The twin: tokens alone are compared, and both owners of 5 write.
	naively, stored := naive(t, target, "token <= ?")
	if !naively(a, "A") || !naively(equal, "B") || !naively(a, "A again") || stored() != "A again" {
		t.Errorf("to compare tokens alone does no harm: %q is stored", stored())
	}
}

// A release whose answer is lost frees its own lease only, and is no loss,
// although another has the key when the client sends it again. The cause is that
// of B031: a client that repeats what the server has done.
func TestRedisOwn_LostAnswerOfRelease(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	plain, prefix := servers.Prefix(t)
	client, p := redisThrough(t, nil)
	x := redisLeases(t, client, redisbackend.Config{Prefix: prefix, TTL: forever, NoRenew: true})
	other := redisLeases(t, plain, redisbackend.Config{Prefix: prefix, TTL: forever, NoRenew: true})
	must(t, "load the scripts", x.Do(ctx, "k", nothing))
	lease := acquire(t, x, "k")
	// The channel is among the arguments of a release alone.
	again := loseThenHold(t, p, func(data []byte) bool { return bytes.Contains(data, []byte("}:free")) })
	var next *exclusive.Lease
	again(func() { next = acquire(t, other, "k") })
	must(t, "release", lease.Release(ctx))
	if next == nil {
		t.Fatal("the release was not sent again")
	}
	if id, _ := storedLease(t, plain, prefix, "k"); id != next.Grant().ID {
		t.Errorf("the lease is %s; want the newer holder's %s", id, next.Grant().ID)
	}
	must(t, "the newer holder's release", next.Release(ctx))

	// The twin: a release by name frees whoever has the key.
	must(t, "first", plain.Set(ctx, prefix+"naive", "first", forever).Err())
	again = loseThenHold(t, p, func(data []byte) bool { return bytes.Contains(data, []byte("naive")) })
	again(func() { must(t, "second", plain.Set(ctx, prefix+"naive", "second", forever).Err()) })
	must(t, "DEL", client.Del(ctx, prefix+"naive").Err())
	if plain.Exists(ctx, prefix+"naive").Val() != 0 {
		t.Error("a release by name does no harm")
	}
}

// loseThenHold loses the answer to the first piece of data that is as given, and
// holds the second one up while what again was given runs.
func loseThenHold(t testing.TB, p *proxy.Proxy, is func([]byte) bool) (again func(meanwhile func())) {
	t.Helper()
	return func(meanwhile func()) {
		var met atomic.Int64
		p.Intercept(func(data []byte) proxy.Verdict {
			if !is(data) {
				return proxy.Pass
			}
			switch met.Add(1) {
			case 1:
				return proxy.CutAfter
			case 2:
				meanwhile()
			}
			return proxy.Pass
		})
	}
}

// A lease that the server has evicted is lost at the next renewal and is not made
// again; a server that evicts nothing keeps it, and refuses new ones. The cause is
// that of B037, with a server that really evicts.
func TestRedisOwn_EvictedByTheServer(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	t.Run("evicts", func(t *testing.T) {
		t.Parallel()
		client := rediscluster.Start(t, "--maxmemory", "8mb", "--maxmemory-policy", "allkeys-random").Client(t)
		x := redisLeases(t, client, redisbackend.Config{TTL: 3 * time.Second})
		err := x.Do(ctx, "k", func(ctx context.Context, _ exclusive.Grant) error {
			for i := 0; client.Exists(t.Context(), "exclusive:{k}:lease").Val() != 0; i++ {
				if err := client.Set(t.Context(), fmt.Sprint("cache:", i), strings.Repeat("x", 10_000), 0).Err(); err != nil {
					return err
				}
			}
			<-ctx.Done()
			return nil
		})
		wantErr(t, "do", err, exclusive.ErrLost)
		if client.Exists(ctx, "exclusive:{k}:lease").Val() != 0 {
			t.Error("the evicted lease was made again")
		}
	})
	t.Run("noeviction", func(t *testing.T) {
		t.Parallel()
		client := rediscluster.Start(t, "--maxmemory-policy", "noeviction").Client(t)
		x := redisLeases(t, client, redisbackend.Config{TTL: forever})
		lease := acquire(t, x, "k")
		must(t, "a full server", client.ConfigSet(ctx, "maxmemory", "1").Err())
		_, err := x.TryAcquire(ctx, "another")
		wantErr(t, "acquire on a full server", err, exclusive.ErrUnavailable)
		must(t, "renew on a full server", lease.Renew(ctx))
		must(t, "release on a full server", lease.Release(ctx))
	})
}

// Tokens stay exact up to the largest, after which none is given out: Lua's
// numbers are exact to 2^53 only.
func TestTrap_TokensBeyondLua(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	client, prefix := servers.Prefix(t)
	x := redisLeases(t, client, redisbackend.Config{Prefix: prefix})
	must(t, "advance", x.Advance(ctx, "k", strategy.MaxToken-2))
	for _, want := range []int64{strategy.MaxToken - 1, strategy.MaxToken} {
		lease := acquire(t, x, "k")
		if _, stored := storedLease(t, client, prefix, "k"); lease.Grant().Token != want || stored != want {
			t.Errorf("token %d, stored %d; want %d", lease.Grant().Token, stored, want)
		}
		must(t, "release", lease.Release(ctx))
	}
	for _, beyond := range []string{fmt.Sprint(int64(strategy.MaxToken)), "9007199254740993", "9223372036854775807"} {
		must(t, "set", client.HSet(ctx, prefix+"{k}:counter", "token", beyond).Err())
		_, err := x.TryAcquire(ctx, "k")
		wantErr(t, "after the largest token", err, exclusive.ErrUnavailable)
		if client.Exists(ctx, prefix+"{k}:lease").Val() != 0 {
			t.Error("a lease is left that nobody holds")
		}
	}
	// The twin: what Lua makes of a larger number.
	if n := client.Eval(ctx, "return string.format('%.0f', tonumber(ARGV[1]))", nil, "9007199254740993").Val(); n == "9007199254740993" {
		t.Error("Lua counts further than 2^53")
	}
}
