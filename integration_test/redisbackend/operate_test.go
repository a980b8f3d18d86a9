package redisbackend_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/fencing"
	"github.com/exclusive-go/exclusive/integration_test/matrix"
	"github.com/exclusive-go/exclusive/integration_test/proxy"
	"github.com/exclusive-go/exclusive/integration_test/rediscluster"
	"github.com/exclusive-go/exclusive/integration_test/servers"
	"github.com/exclusive-go/exclusive/redisbackend"
)

func TestReleaseByOperator(t *testing.T) {
	ctx := t.Context()
	client, prefix := servers.Prefix(t)
	x := newLeases(t, client, redisbackend.Config{Prefix: prefix, TTL: 3 * time.Second})
	operator := newLeases(t, client, redisbackend.Config{Prefix: prefix, TTL: time.Hour})

	must(t, "release of a key that nobody has", operator.Release(ctx, "k"))
	var token int64
	err := x.Do(ctx, "k", func(ctx context.Context, g exclusive.Grant) error {
		token = g.Token
		must(t, "release", operator.Release(t.Context(), "k"))
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Second):
			t.Error("the holder never heard of it")
		}
		return nil
	})
	wantErr(t, "do", err, exclusive.ErrLost)

	// A waiter gets it at once, as one more attempt with a higher token.
	next := make(chan exclusive.Grant, 1)
	holder := acquire(t, x, "k")
	go func() {
		lease, err := operator.Acquire(ctx, "k")
		if err == nil {
			next <- lease.Grant()
		}
		close(next)
	}()
	for client.Exists(ctx, prefix+"{k}:waiters").Val() == 0 {
		time.Sleep(time.Millisecond)
	}
	must(t, "release", x.Release(ctx, "k"))
	if g := <-next; g.Token <= max(token, holder.Grant().Token) || g.Attempt != 3 {
		t.Errorf("the next grant is %+v", g)
	}
	wantErr(t, "release by the old holder", holder.Release(ctx), exclusive.ErrLost)
	if n := client.Exists(ctx, prefix+"{k}:lease").Val(); n != 1 {
		t.Error("the old holder has released the next one's lease")
	}
}

// An operator saw a holder, and meanwhile the key has passed on: the successor
// keeps it, and its write is stored.
func TestReleaseSeen(t *testing.T) { matrix.Drivers(t, testReleaseSeen, testReleaseSeen) }

func testReleaseSeen[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	setUp(t, target)
	target.MustExec(t, "INSERT INTO result VALUES ('k', 'nothing')")
	ctx := t.Context()
	client, prefix := servers.Prefix(t)
	guard, err := fencing.NewGuard(target.DB, fencing.GuardConfig{})
	must(t, "new guard", err)
	holder := func(name string) *redisbackend.Leases {
		return newLeases(t, client, redisbackend.Config{Prefix: prefix, TTL: time.Hour, NoRenew: true, Holder: name})
	}
	a, b, operator := holder("A"), holder("B"), holder("operator")
	write := func(l *redisbackend.Leases, g exclusive.Grant, body string) error {
		return fencing.Guarded(l, guard).Commit(ctx, g, func(ctx context.Context, tx Tx) error {
			return target.Exec(ctx, tx, target.Bind("UPDATE result SET body = ? WHERE name = 'k'"), body)
		})
	}
	stored := func(want string) {
		t.Helper()
		var body string
		must(t, "read", target.Plain.QueryRowContext(ctx, "SELECT body FROM result").Scan(&body))
		if body != want {
			t.Errorf("stored %q, not %q", body, want)
		}
	}
	see := func() exclusive.Status {
		s, err := operator.Status(ctx, "k")
		must(t, "status", err)
		return s
	}

	lease := acquire(t, a, "k")
	seen := see()
	must(t, "release by A", lease.Release(ctx))
	next := acquire(t, b, "k")
	err = operator.ReleaseSeen(ctx, seen)
	wantErr(t, "release of A", err, exclusive.ErrHeld)
	if e := new(exclusive.Error); !errors.As(err, &e) || e.Holder == nil || e.Holder.ID != next.Grant().ID || e.Holder.Name != "B" {
		t.Errorf("who has it now: %v", err)
	}
	must(t, "write by B", write(b, next.Grant(), "B"))
	must(t, "release by B", next.Release(ctx))
	stored("B")
	wantErr(t, "release of A when nobody has it", operator.ReleaseSeen(ctx, seen), exclusive.ErrLost)

	// The one that was seen, once or again.
	lease = acquire(t, a, "k")
	seen = see()
	must(t, "release of A", operator.ReleaseSeen(ctx, seen))
	must(t, "release of A again", operator.ReleaseSeen(ctx, seen))
	wantErr(t, "release by A", lease.Release(ctx), exclusive.ErrLost)

	// The twin: what goes by the key alone takes it from B, and the next holder's
	// write refuses B's.
	next = acquire(t, b, "k")
	must(t, "release", operator.Release(ctx, "k"))
	must(t, "write by A", write(a, acquire(t, a, "k").Grant(), "A"))
	wantErr(t, "write by B", write(b, next.Grant(), "B again"), exclusive.ErrFenced)
	stored("A")
	wantErr(t, "nobody was seen", operator.ReleaseSeen(ctx, exclusive.Status{Key: "k"}), exclusive.ErrInvalid)
}

// The answer to a release is lost, and the key passes on before the operator asks
// again, or does not.
func TestOperatorWithoutAnswer(t *testing.T) {
	ctx := t.Context()
	client, prefix := servers.Prefix(t)
	a := newLeases(t, client, redisbackend.Config{Prefix: prefix, TTL: time.Hour, Holder: "A"})
	far, p := through(t, func(o *redis.Options) { o.MaxRetries = -1 })
	operator := newLeases(t, far, redisbackend.Config{Prefix: prefix})
	acquire(t, a, "warm")
	must(t, "the script is known", operator.Release(ctx, "warm"))
	for _, passesOn := range []bool{true, false} {
		lease := acquire(t, a, "k")
		var mu sync.Mutex
		var next *exclusive.Lease
		lost := false
		p.Intercept(func(data []byte) proxy.Verdict {
			mu.Lock()
			defer mu.Unlock()
			switch {
			case !proxy.Mentions(data, lease.Grant().ID) || !bytes.Contains(bytes.ToLower(data), []byte("eval")):
			case !lost:
				lost = true
				return proxy.CutAfter
			case client.Exists(ctx, prefix+"{k}:lease").Val() == 1:
				lost = false // the server had forgotten the script, and nothing ran
			case passesOn && next == nil: // the operator comes again
				next = acquire(t, a, "k")
			}
			return proxy.Pass
		})
		err := operator.Release(ctx, "k")
		if !lost || passesOn && next == nil {
			t.Fatalf("the operator did not ask again: %v", err)
		}
		wantErr(t, "release by the old holder", lease.Release(ctx), exclusive.ErrLost)
		must(t, "release", err)
		if passesOn {
			must(t, "release by the successor", next.Release(ctx))
		}
	}
}

func TestList(t *testing.T) {
	client, prefix := servers.Prefix(t)
	testList(t, client, prefix+"*?[a]\\")
}

func TestListOfCluster(t *testing.T) {
	var addrs []string
	for _, s := range rediscluster.StartCluster(t) {
		addrs = append(addrs, s.Addr)
	}
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs})
	t.Cleanup(func() { _ = client.Close() })
	testList(t, client, "some:")
}

func testList(t *testing.T, client redis.UniversalClient, prefix string) {
	ctx := t.Context()
	x := newLeases(t, client, redisbackend.Config{Prefix: prefix, TTL: time.Hour, Holder: "X"})
	if list, err := x.List(ctx); err != nil || len(list) != 0 {
		t.Errorf("nothing is held: %v, %v", list, err)
	}
	keys := []string{"A", "a", "a ", "{b}:lease", "%7B", "é"}
	slices.Sort(keys)
	held := make(map[string]exclusive.Grant)
	for _, key := range keys {
		held[key] = acquire(t, x, key).Grant()
	}
	must(t, "do", x.Do(ctx, "done", nothing))
	other := newLeases(t, client, redisbackend.Config{Prefix: "b" + prefix, TTL: time.Hour})
	acquire(t, other, "of another prefix")

	list, err := x.List(ctx)
	must(t, "list", err)
	var got []string
	for _, s := range list {
		got = append(got, s.Key)
		g := held[s.Key]
		if !s.Held || s.Last.ID != g.ID || s.Last.Token != g.Token || s.Last.Name != "X" || s.Attempt != 1 ||
			s.Last.Expires.Sub(s.Last.Since).Round(time.Minute) != time.Hour {
			t.Errorf("%q: %+v", s.Key, s)
		}
		if one, err := x.Status(ctx, s.Key); err != nil || !one.Held || one.Key != s.Key || one.Last.ID != g.ID {
			t.Errorf("%q by itself: %+v, %v", s.Key, one, err)
		}
	}
	if !slices.Equal(got, keys) {
		t.Errorf("listed %q, not %q", got, keys)
	}
	if s, err := x.Status(ctx, "done"); err != nil || s != (exclusive.Status{Key: "done"}) {
		t.Errorf("done: %+v, %v", s, err)
	}
	canceled, cancel := context.WithCancel(ctx)
	cancel()
	_, err = x.List(canceled)
	wantErr(t, "list without time", err, context.Canceled)
}

// A late copy of an acquire does not give the key back to a grant that has ended: it
// was released, or freed by an operator, whose holder hears that it has lost the key.
func TestLateCopyOfAcquire(t *testing.T) {
	client, prefix := servers.Prefix(t)
	var drawn atomic.Int64
	for name, tokens := range map[string]redisbackend.TokenSource{"own tokens": nil, "other tokens": source(func(context.Context, string) (int64, error) { return drawn.Add(1), nil })} {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			far, p := through(t, nil)
			cfg := redisbackend.Config{Prefix: prefix + name, TTL: time.Hour, NoRenew: true, Tokens: tokens}
			l, operator := newLeases(t, far, cfg), newLeases(t, client, cfg)
			must(t, "the script is known", acquire(t, l, "warm").Release(ctx))
			for end, freed := range map[string]bool{"freed": true, "released": false} {
				var mu sync.Mutex
				var sent []byte
				p.Intercept(func(data []byte) proxy.Verdict {
					mu.Lock()
					defer mu.Unlock()
					if sent == nil && proxy.Mentions(data, "{"+end+"}:lease") {
						sent = bytes.Clone(data)
					}
					return proxy.Pass
				})
				lease := acquire(t, l, end)
				p.Intercept(nil)
				copied := func() {
					t.Helper()
					conn, err := net.Dial("tcp", options(t).Addr)
					must(t, "connect", err)
					defer func() { _ = conn.Close() }()
					must(t, "deadline", conn.SetDeadline(time.Now().Add(30*time.Second)))
					_, err = conn.Write(sent)
					must(t, "send the copy", err)
					answer, err := bufio.NewReader(conn).ReadString('\n')
					if must(t, "answer", err); !strings.HasPrefix(answer, "*") {
						t.Fatalf("the copy of the acquire was answered %q", answer)
					}
				}
				if !proxy.Mentions(sent, lease.Grant().ID) {
					t.Fatalf("what was sent first is no acquire: %q", sent)
				}
				copied() // while it has the key
				must(t, "renew", lease.Renew(ctx))
				if freed {
					must(t, "free", operator.Release(ctx, end))
				} else {
					must(t, "release", lease.Release(ctx))
				}
				copied()
				if status, err := operator.Status(ctx, end); err != nil || status.Held {
					t.Errorf("%s, and then the copy: %+v, %v; want the key free", end, status, err)
				}
				if freed {
					wantErr(t, "renewal by the old holder", lease.Renew(ctx), exclusive.ErrLost)
				}
				must(t, "release by the next", acquire(t, operator, end).Release(ctx))
			}
		})
	}
}
