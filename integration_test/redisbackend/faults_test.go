package redisbackend_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/integration_test/proxy"
	"github.com/exclusive-go/exclusive/integration_test/rediscluster"
	"github.com/exclusive-go/exclusive/integration_test/servers"
	"github.com/exclusive-go/exclusive/redisbackend"
)

// marked is a holder's name by which a proxy knows an acquire.
const marked = "marked-holder"

func isAcquire(data []byte) bool { return bytes.Contains(data, []byte(marked)) }
func isRelease(data []byte) bool { return bytes.Contains(data, []byte(":free")) }
func isScript(data []byte) bool  { return bytes.Contains(bytes.ToLower(data), []byte("evalsha")) }

// The script runs and its answer is lost: the client's retry gets the same
// lease and token again.
func TestLostAnswerOfAcquire(t *testing.T) {
	ctx := t.Context()
	plain, prefix := servers.Prefix(t)
	client, p := through(t, nil)
	x := newLeases(t, client, redisbackend.Config{Prefix: prefix, Holder: marked})
	must(t, "load the scripts", x.Do(ctx, "warm up", nothing))
	var n, lost atomic.Int64
	p.Intercept(func(data []byte) proxy.Verdict {
		if isAcquire(data) && n.Add(1)%3 == 1 {
			lost.Add(1)
			return proxy.CutAfter
		}
		return proxy.Pass
	})
	var last int64
	for range 50 {
		lease, err := x.TryAcquire(ctx, "k")
		must(t, "acquire", err)
		g := lease.Grant()
		stored := plain.Get(ctx, prefix+"{k}:lease").Val()
		if !strings.HasPrefix(stored, fmt.Sprintf("%s %d 1 ", g.ID, g.Token)) || g.Token <= last {
			t.Fatalf("after token %d: grant %+v, stored %q", last, g, stored)
		}
		last = g.Token
		must(t, "release", lease.Release(ctx))
	}
	if lost.Load() < 20 || last != 50 {
		t.Errorf("%d answers were lost, and the last of 50 tokens is %d", lost.Load(), last)
	}
}

// A claim whose caller has left, and that the server gets while Close waits for it, is
// given back before Close returns: the client is closed next.
func TestCloseWaitsForAClaimOnItsWay(t *testing.T) {
	plain, prefix := servers.Prefix(t)
	client, p := through(t, func(o *redis.Options) { o.ReadTimeout = time.Minute })
	x := newLeases(t, client, redisbackend.Config{Prefix: prefix, Holder: marked, TTL: 10 * time.Minute})
	must(t, "load the scripts", x.Do(t.Context(), "warm up", nothing))
	arrived, pass := make(chan struct{}), make(chan struct{})
	p.Intercept(func(data []byte) proxy.Verdict {
		if isAcquire(data) {
			close(arrived)
			<-pass
		}
		return proxy.Pass
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-arrived; cancel() }()
	_, err := x.TryAcquire(ctx, "k")
	wantErr(t, "cancelled on its way", err, context.Canceled)
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		_ = x.Close()
		_ = client.Close()
	}()
	select {
	case <-closed:
		t.Error("Close has not waited")
	case <-time.After(100 * time.Millisecond):
	}
	close(pass)
	<-closed
	for end := time.Now().Add(10 * time.Second); plain.Exists(t.Context(), prefix+"{k}:counter").Val() == 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the claim has not arrived")
		}
	}
	if stored := plain.Get(t.Context(), prefix+"{k}:lease").Val(); stored != "" {
		t.Errorf("the key is held by nobody: %q", stored)
	}
}

// The twin: a script that does not know its grant again says that the key is
// held, by nobody.
func TestLostAnswerTwin(t *testing.T) {
	ctx := t.Context()
	_, prefix := servers.Prefix(t)
	client, p := through(t, nil)
	var once sync.Once
	p.Intercept(func(data []byte) (v proxy.Verdict) {
		if isAcquire(data) {
			once.Do(func() { v = proxy.CutAfter })
		}
		return v
	})
	won, err := client.SetNX(ctx, prefix+"lock", marked, time.Minute).Result()
	if won || err != nil {
		t.Errorf("without a grant's id: %v, %v", won, err)
	}
}

// Without retries of the client's the key is given back, if the error is one.
func TestLostAnswersForGood(t *testing.T) {
	ctx := t.Context()
	plain, prefix := servers.Prefix(t)
	client, p := through(t, func(o *redis.Options) { o.MaxRetries = -1 })
	x := newLeases(t, client, redisbackend.Config{Prefix: prefix, Holder: marked})
	other := newLeases(t, plain, redisbackend.Config{Prefix: prefix})
	p.Intercept(func(data []byte) proxy.Verdict {
		if isAcquire(data) {
			return proxy.CutAfter
		}
		return proxy.Pass
	})
	gone := newLeases(t, plain, redisbackend.Config{Prefix: prefix, TTL: time.Hour, NoRenew: true})
	acquire(t, gone, "vanished")
	runOut(t, plain, prefix+"{vanished}:lease")
	for key, attempt := range map[string]int{"fresh": 1, "vanished": 2} {
		_, err := x.TryAcquire(ctx, key)
		wantErr(t, "acquire", err, exclusive.ErrUnavailable)
		// By another, long before the TTL. It was no attempt.
		lease := acquire(t, other, key)
		if g := lease.Grant(); g.Attempt != attempt || g.Token != int64(attempt)+1 {
			t.Errorf("%s: %+v, want attempt %d", key, g, attempt)
		}
		must(t, "release", lease.Release(ctx))
	}
}

// An acquire that has run without its answer is given back when the server is back,
// however go-redis' last repetition ended: nobody listens, or the server is loading.
func TestLostAnswerThenAway(t *testing.T) {
	for name, hint := range map[string]string{"refused": "connection refused", "loading": "LOADING"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			plain, prefix := servers.Prefix(t)
			var away atomic.Bool
			loading := loadingServer(t, &away)
			client, p := through(t, func(o *redis.Options) {
				o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
					if name == "loading" && away.Load() {
						addr = loading
					}
					return new(net.Dialer).DialContext(ctx, network, addr)
				}
			})
			x := newLeases(t, client, redisbackend.Config{Prefix: prefix, Holder: marked, TTL: 10 * time.Minute})
			other := newLeases(t, plain, redisbackend.Config{Prefix: prefix})
			again := func() error { return nil }
			p.Intercept(func(data []byte) proxy.Verdict {
				switch {
				case away.Load():
					return proxy.Cut // connections from before
				case !isAcquire(data):
					return proxy.Pass
				}
				away.Store(true)
				if name == "refused" {
					again = p.Refuse()
				}
				return proxy.CutAfter
			})
			_, err := x.TryAcquire(ctx, "k")
			wantErr(t, "acquire", err, exclusive.ErrUnavailable)
			if !strings.Contains(err.Error(), hint) {
				t.Errorf("the last attempt ended with %v; want %s", err, hint)
			}
			_, err = other.TryAcquire(ctx, "k")
			wantErr(t, "while it is away", err, exclusive.ErrHeld)
			away.Store(false)
			p.Intercept(nil)
			must(t, "listen again", again())
			lease := acquire(t, other, "k")
			if g := lease.Grant(); g.Attempt != 1 || g.Token != 2 {
				t.Errorf("%+v; want attempt 1, token 2", g)
			}
			must(t, "release", lease.Release(ctx))
		})
	}
}

// loadingServer answers each command as a server that has just been started, while
// loading; then it closes its connections.
func loadingServer(t *testing.T, loading *atomic.Bool) (addr string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, "listen", err)
	var conns sync.WaitGroup
	t.Cleanup(func() { _ = listener.Close(); conns.Wait() })
	conns.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // closed
			}
			conns.Go(func() {
				defer conn.Close()
				in := bufio.NewReader(conn)
				for {
					var args, length int
					if _, err := fmt.Fscanf(in, "*%d\r\n", &args); err != nil {
						return
					}
					for range args {
						if _, err := fmt.Fscanf(in, "$%d\r\n", &length); err != nil {
							return
						}
						if _, err := in.Discard(length + len("\r\n")); err != nil {
							return
						}
					}
					if !loading.Load() {
						return
					}
					if _, err := io.WriteString(conn, "-LOADING Redis is loading the dataset in memory\r\n"); err != nil {
						return
					}
				}
			})
		}
	})
	return listener.Addr().String()
}

func TestLostAnswerOfRelease(t *testing.T) {
	ctx := t.Context()
	_, prefix := servers.Prefix(t)
	client, p := through(t, nil)
	x := newLeases(t, client, redisbackend.Config{Prefix: prefix})
	must(t, "load the scripts", x.Do(ctx, "k", nothing))
	var once sync.Once
	lost := false
	p.Intercept(func(data []byte) (v proxy.Verdict) {
		if isRelease(data) {
			once.Do(func() { v, lost = proxy.CutAfter, true })
		}
		return v
	})
	must(t, "do", x.Do(ctx, "k", nothing))
	if !lost {
		t.Error("no answer was lost")
	}
}

// A call ends with its context although the server is silent and go-redis would
// wait, and what it may have got is given back.
func TestContextBoundsCalls(t *testing.T) {
	for _, enabled := range []bool{false, true} {
		for _, how := range []string{"deadline", "cancel"} {
			t.Run(fmt.Sprintf("%s_%v", how, enabled), func(t *testing.T) {
				t.Parallel()
				plain, prefix := servers.Prefix(t)
				client, p := through(t, func(o *redis.Options) {
					o.ContextTimeoutEnabled = enabled
					o.ReadTimeout = time.Minute // as long would go-redis wait
				})
				x := newLeases(t, client, redisbackend.Config{Prefix: prefix, Holder: marked, TTL: time.Minute, NoRenew: true})
				other := newLeases(t, plain, redisbackend.Config{Prefix: prefix})
				held := acquire(t, x, "held")
				released := acquire(t, x, "released")
				p.Intercept(func(data []byte) proxy.Verdict {
					if isScript(data) {
						return proxy.Mute
					}
					return proxy.Pass
				})
				for name, call := range map[string]func(context.Context) error{
					"acquire": func(ctx context.Context) error { _, err := x.TryAcquire(ctx, "k"); return err },
					"renew":   held.Renew,
					"release": released.Release,
				} {
					ctx, cancel := context.WithCancel(t.Context())
					want := context.Canceled
					if how == "deadline" {
						ctx, cancel = context.WithTimeout(t.Context(), 200*time.Millisecond)
						want = context.DeadlineExceeded
					} else {
						time.AfterFunc(200*time.Millisecond, cancel)
					}
					begin := time.Now()
					err := call(ctx)
					cancel()
					wantErr(t, name, err, want)
					if took := time.Since(begin); took > 20*time.Second {
						t.Errorf("%s took %v", name, took)
					}
				}
				p.Intercept(nil)
				p.Cut()
				wctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
				defer cancel()
				lease, err := other.Acquire(wctx, "k")
				must(t, "acquire of what the cancelled call had got", err)
				must(t, "release", lease.Release(t.Context()))
			})
		}
	}
}

// 100 rounds of a cancellation at a random moment leave nothing held, and no key
// that is renewed.
func TestCancelAtRandom(t *testing.T) {
	plain, prefix := servers.Prefix(t)
	x := newLeases(t, open(t, options(t)), redisbackend.Config{Prefix: prefix, TTL: 20 * time.Second})
	other := newLeases(t, plain, redisbackend.Config{Prefix: prefix})
	blocker := acquire(t, other, "blocked")
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			time.AfterFunc(rand.N(4*time.Millisecond), cancel)
			err := x.Do(ctx, fmt.Sprint("k", i%10), func(context.Context, exclusive.Grant) error {
				time.Sleep(rand.N(2 * time.Millisecond))
				return nil
			})
			if err != nil {
				if !isAny(err, context.Canceled, exclusive.ErrHeld) {
					t.Errorf("do: %v", err)
				}
			}
			_, err = x.Acquire(ctx, "blocked")
			if !isAny(err, context.Canceled) || isAny(err, exclusive.ErrHeld) {
				t.Errorf("acquire: %v", err)
			}
		})
	}
	wg.Wait()
	must(t, "release", blocker.Release(t.Context()))
	for i := range 10 {
		must(t, "release", acquire(t, other, fmt.Sprint("k", i)).Release(t.Context()))
	}
}

func isAny(err error, kinds ...error) bool {
	return slices.ContainsFunc(kinds, func(kind error) bool { return errors.Is(err, kind) })
}

// One broken connection is no loss: the renewal is repeated.
func TestBrokenConnectionIsNoLoss(t *testing.T) {
	_, prefix := servers.Prefix(t)
	client, p := through(t, func(o *redis.Options) { o.MaxRetries = -1 })
	x := newLeases(t, client, redisbackend.Config{Prefix: prefix, TTL: 4 * time.Second})
	lease := acquire(t, x, "k")
	for range 8 {
		time.Sleep(time.Second)
		p.Cut()
	}
	must(t, "kept", context.Cause(lease.Context()))
	must(t, "release", lease.Release(t.Context()))
}

// The holder learns that its time is over without any answer, before another
// can have the key.
func TestPartition(t *testing.T) {
	plain, prefix := servers.Prefix(t)
	client, p := through(t, nil)
	x := newLeases(t, client, redisbackend.Config{Prefix: prefix, TTL: time.Second})
	other := newLeases(t, plain, redisbackend.Config{Prefix: prefix})
	lease := acquire(t, x, "k")
	p.Intercept(func([]byte) proxy.Verdict { return proxy.Swallow })
	over := make(chan struct{})
	go func() {
		<-lease.Context().Done()
		close(over)
	}()
	next := acquire(t, other, "k")
	select {
	case <-over:
	default:
		t.Error("another has the key, and the holder has not been told")
	}
	wantErr(t, "the end of the lease", context.Cause(lease.Context()), exclusive.ErrLost)
	must(t, "release", next.Release(t.Context()))
}

// A renewal that failed for one of its leases is no success, and that lease's loss
// says why. The others are renewed.
func TestPartlyFailedRenewal(t *testing.T) {
	plain, prefix := servers.Prefix(t)
	o := new(renewals)
	x := newLeases(t, plain, redisbackend.Config{Prefix: prefix, TTL: 6 * time.Second, Observer: o})
	broken, sound := acquire(t, x, "broken"), acquire(t, x, "sound")
	ctx := t.Context()
	must(t, "remove", plain.Del(ctx, prefix+"{broken}:lease").Err())
	must(t, "break", plain.LPush(ctx, prefix+"{broken}:lease", "no lease").Err())
	until := sound.Grant().Expires
	select {
	case <-broken.Context().Done():
	case <-time.After(time.Minute):
		t.Fatal("the lease that cannot be renewed has not ended")
	}
	cause := context.Cause(broken.Context())
	wantErr(t, "the end of the broken lease", cause, exclusive.ErrLost)
	if !strings.Contains(cause.Error(), "WRONGTYPE") {
		t.Errorf("the loss does not say why: %v", cause)
	}
	if o.failed.Load() == 0 || o.ok.Load() != 0 {
		t.Errorf("%d renewals were told to have failed, %d of both to have succeeded", o.failed.Load(), o.ok.Load())
	}
	must(t, "the sound lease", sound.Context().Err())
	if !sound.Grant().Expires.After(until) {
		t.Error("the sound lease was not renewed")
	}
	must(t, "release", sound.Release(ctx))
}

// renewals counts what an observer hears of renewals: those that failed, and those of
// two leases that did not.
type renewals struct{ ok, failed atomic.Int64 }

func (r *renewals) Start(ctx context.Context, _ exclusive.Event) context.Context { return ctx }
func (r *renewals) End(_ context.Context, e exclusive.Event) {
	switch {
	case e.Op != exclusive.OpRenew:
	case e.Err != nil:
		r.failed.Add(1)
	case e.Count > 1:
		r.ok.Add(1)
	}
}

// A Release does not wait for a renewal that hangs.
func TestReleaseBesideHangingRenewal(t *testing.T) {
	_, prefix := servers.Prefix(t)
	client, p := through(t, nil)
	x := newLeases(t, client, redisbackend.Config{Prefix: prefix, TTL: 9 * time.Second})
	lease := acquire(t, x, "k")
	renewing := make(chan struct{}, 10)
	p.Intercept(func(data []byte) proxy.Verdict {
		if isScript(data) && !isRelease(data) {
			renewing <- struct{}{}
			return proxy.Swallow
		}
		return proxy.Pass
	})
	<-renewing
	begin := time.Now()
	must(t, "release", lease.Release(t.Context()))
	if took := time.Since(begin); took > 2500*time.Millisecond {
		t.Errorf("release took %v", took)
	}
}

// Renewal and release race without harm.
func TestRenewalRacesRelease(t *testing.T) {
	plain, prefix := servers.Prefix(t)
	x := newLeases(t, open(t, options(t)), redisbackend.Config{Prefix: prefix, TTL: 2 * time.Second})
	other := newLeases(t, plain, redisbackend.Config{Prefix: prefix})
	for range 300 {
		lease, err := x.TryAcquire(t.Context(), "k")
		must(t, "acquire", err)
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := lease.Renew(t.Context()); err != nil && !errors.Is(err, exclusive.ErrLost) {
				t.Errorf("renew: %v", err)
			}
		})
		must(t, "release", lease.Release(t.Context()))
		must(t, "free at once", other.Do(t.Context(), "k", nothing))
		wg.Wait()
		if n := plain.Exists(t.Context(), prefix+"{k}:lease").Val(); n != 0 {
			t.Fatal("renewal made the lease again")
		}
	}
}

func TestPanicAndGoexitRelease(t *testing.T) {
	client, prefix := servers.Prefix(t)
	x := newLeases(t, client, redisbackend.Config{Prefix: prefix})
	for name, end := range map[string]func(){"panic": func() { panic("boom") }, "goexit": runtime.Goexit} {
		ended := make(chan any, 1)
		go func() {
			defer func() { ended <- recover() }()
			_ = x.Do(t.Context(), "k", func(context.Context, exclusive.Grant) error { end(); return nil })
		}()
		if value := <-ended; name == "panic" && value != "boom" {
			t.Errorf("panic came out as %v", value)
		}
		must(t, "after "+name, x.Do(t.Context(), "k", nothing))
	}
}

// Acquire and release are one round trip each, and so is a refusal.
func TestRoundTrips(t *testing.T) {
	ctx := t.Context()
	_, prefix := servers.Prefix(t)
	client, p := through(t, func(o *redis.Options) { o.PoolSize = 1 })
	x := newLeases(t, client, redisbackend.Config{Prefix: prefix})
	must(t, "load the scripts", x.Do(ctx, "k", nothing))
	lease := acquire(t, x, "held")
	_, err := x.TryAcquire(ctx, "held")
	wantErr(t, "held", err, exclusive.ErrHeld)
	must(t, "renew", lease.Renew(ctx))
	count := func(what string, want int64, f func()) {
		t.Helper()
		before := p.RoundTrips()
		f()
		if got := p.RoundTrips() - before; got != want {
			t.Errorf("%s: %d round trips, want %d", what, got, want)
		}
	}
	count("do", 2, func() { must(t, "do", x.Do(ctx, "k", nothing)) })
	count("refusal", 1, func() { _, err = x.TryAcquire(ctx, "held") })
	count("renew", 1, func() { must(t, "renew", lease.Renew(ctx)) })
	count("release", 1, func() { must(t, "release", lease.Release(ctx)) })
	must(t, "load the script", x.Advance(ctx, "k", 100))
	count("advance", 1, func() { must(t, "advance", x.Advance(ctx, "k", 200)) })
}

// What a server refuses is told as what it is, and is never "held".
func TestServerFaults(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	server := rediscluster.Start(t)
	admin := server.Client(t)
	set := func(name, value string) { must(t, "config", admin.ConfigSet(ctx, name, value).Err()) }
	try := func(t *testing.T, client redis.UniversalClient, hint string) {
		t.Helper()
		x := newLeases(t, client, redisbackend.Config{})
		runs := 0
		err := x.Do(ctx, "k", func(context.Context, exclusive.Grant) error { runs++; return nil })
		wantErr(t, hint, err, exclusive.ErrUnavailable)
		if errors.Is(err, exclusive.ErrHeld) || !strings.Contains(err.Error(), hint) || runs != 0 {
			t.Errorf("%d runs, error %v; want a hint of %q", runs, err, hint)
		}
		if admin.Exists(ctx, "exclusive:{k}:lease").Val() != 0 {
			t.Errorf("%s: a lease is left that nobody holds", hint)
		}
	}
	as := func(user, password string) *redis.Client {
		return open(t, &redis.Options{Addr: server.Addr, Username: user, Password: password, MaxRetries: -1})
	}
	x := newLeases(t, admin, redisbackend.Config{})

	t.Run("OOM", func(t *testing.T) {
		held := acquire(t, x, "held")
		set("maxmemory", "1")
		defer set("maxmemory", "0")
		try(t, admin, "maxmemory")
		must(t, "renew on a full server", held.Renew(ctx))
		must(t, "release on a full server", held.Release(ctx))
	})
	t.Run("NOREPLICAS", func(t *testing.T) {
		set("min-replicas-to-write", "1")
		defer set("min-replicas-to-write", "0")
		try(t, admin, "min-replicas-to-write")
	})
	t.Run("MISCONF", func(t *testing.T) {
		set("save", "3600 1")
		defer set("save", "")
		must(t, "remove the folder", os.RemoveAll(server.Dir))
		_ = admin.BgSave(ctx).Err()
		rediscluster.Await(t, "a failed save", func(ctx context.Context) error {
			info := admin.Info(ctx, "persistence").Val()
			if !strings.Contains(info, "rdb_last_bgsave_status:err") {
				return fmt.Errorf("%.200s", info)
			}
			return nil
		})
		try(t, admin, "save to its disk")
	})
	for _, missing := range []string{"-get", "-set", "-hset", "-hincrby", "-time", "-evalsha", "resetkeys ~exclusive:*:lease", "resetkeys ~exclusive:*:counter"} {
		t.Run("ACL_"+strings.Fields(missing)[0]+missing[len(missing)-4:], func(t *testing.T) {
			rules := append([]any{"ACL", "SETUSER", "some", "reset", "on", ">pw", "allkeys", "allchannels", "+@all"}, anys(strings.Fields(missing))...)
			must(t, "ACL", admin.Do(ctx, rules...).Err())
			if missing == "-hset" { // only the release needs it
				lease, err := newLeases(t, as("some", "pw"), redisbackend.Config{}).TryAcquire(ctx, "k2")
				must(t, "acquire", err)
				wantErr(t, "release", lease.Release(ctx), exclusive.ErrUnavailable)
				return
			}
			try(t, as("some", "pw"), "ACL")
		})
	}
	t.Run("documented_ACL", func(t *testing.T) {
		must(t, "ACL", admin.Do(ctx, anys(strings.Fields("ACL SETUSER app reset on >pw ~exclusive:* &exclusive:* "+
			"+evalsha +eval +time +get +set +del +exists +pexpire +pttl +persist +hget +hset +hincrby +publish +subscribe +unsubscribe +ping"))...).Err())
		client := as("app", "pw")
		hammer(t, func() redis.UniversalClient { return client }, "exclusive:", 8, 1)
		app := newLeases(t, client, redisbackend.Config{TTL: 2 * time.Second})
		must(t, "advance", app.Advance(ctx, "a", 5))
		must(t, "renewed", app.Do(ctx, "a", func(ctx context.Context, _ exclusive.Grant) error {
			time.Sleep(4 * time.Second)
			return ctx.Err()
		}))
	})
	t.Run("WRONGPASS", func(t *testing.T) { try(t, as("app", "wrong"), "password") })
	t.Run("NOAUTH", func(t *testing.T) {
		set("requirepass", "secret")
		client := open(t, &redis.Options{Addr: server.Addr, MaxRetries: -1})
		err := newLeases(t, client, redisbackend.Config{}).Do(ctx, "k", nothing)
		wantErr(t, "no password", err, exclusive.ErrUnavailable)
		if !strings.Contains(err.Error(), "password") {
			t.Errorf("%v does not speak of a password", err)
		}
	})
}

func anys(list []string) []any {
	out := make([]any, len(list))
	for i, s := range list {
		out[i] = s
	}
	return out
}

// A replica refuses everything, also to say that a key is held, and the same
// client goes on when it is promoted.
func TestReplica(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	primary := rediscluster.Start(t)
	replica := rediscluster.StartReplica(t, primary)
	onPrimary := newLeases(t, primary.Client(t), redisbackend.Config{})
	client := replica.Client(t)
	onReplica := newLeases(t, client, redisbackend.Config{})
	lease := acquire(t, onPrimary, "k")
	rediscluster.Await(t, "replication", func(ctx context.Context) error { return client.Get(ctx, "exclusive:{k}:lease").Err() })
	for _, key := range []string{"k", "free"} {
		_, err := onReplica.TryAcquire(ctx, key)
		wantErr(t, "acquire on a replica", err, exclusive.ErrUnavailable)
		if !strings.Contains(err.Error(), "replica") {
			t.Errorf("%v does not speak of a replica", err)
		}
		wantErr(t, "operator's release on a replica", onReplica.Release(ctx, key), exclusive.ErrUnavailable)
		_, err = onReplica.Status(ctx, key)
		wantErr(t, "status of a replica", err, exclusive.ErrUnavailable)
	}
	must(t, "promote", client.Do(ctx, "REPLICAOF", "NO", "ONE").Err())
	_, err := onReplica.TryAcquire(ctx, "k")
	wantErr(t, "the lease was replicated", err, exclusive.ErrHeld)
	must(t, "release", lease.Release(ctx))
	must(t, "a free key", onReplica.Do(ctx, "free", nothing))
	must(t, "remove", client.Del(ctx, "exclusive:{k}:lease").Err())
	if token := acquire(t, onReplica, "k").Grant().Token; token != lease.Grant().Token+1 {
		t.Errorf("token %d after promotion", token)
	}
}

// After a failover the same client goes on at the new primary.
func TestSentinel(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	primary := rediscluster.Start(t)
	replica := rediscluster.StartReplica(t, primary).Client(t)
	sentinel := rediscluster.StartSentinel(t, primary, 1)
	client := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "main", SentinelAddrs: []string{sentinel.Addr}})
	t.Cleanup(func() { _ = client.Close() })
	x := newLeases(t, client, redisbackend.Config{TTL: 10 * time.Second})
	var last int64
	do := func(ctx context.Context) error {
		return x.Do(ctx, "k", func(_ context.Context, g exclusive.Grant) error {
			if g.Token <= last {
				t.Errorf("token %d after %d", g.Token, last)
			}
			last = g.Token
			return nil
		})
	}
	for range 5 {
		must(t, "do", do(ctx))
	}
	rediscluster.Await(t, "replication", func(ctx context.Context) error {
		token, err := replica.HGet(ctx, "exclusive:{k}:counter", "token").Result()
		if err == nil && (token != "5" || replica.Exists(ctx, "exclusive:{k}:lease").Val() != 0) {
			err = fmt.Errorf("token %s", token)
		}
		return err
	})
	primary.Kill()
	rediscluster.Await(t, "the failover", func(ctx context.Context) error {
		err := do(ctx)
		if err != nil && !errors.Is(err, exclusive.ErrUnavailable) {
			t.Errorf("during the failover: %v", err)
		}
		return err
	})
	if last < 6 {
		t.Errorf("the last token is %d", last)
	}
}

func TestCluster(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	nodes := rediscluster.StartCluster(t)
	var addrs []string
	for _, node := range nodes {
		addrs = append(addrs, node.Addr)
	}
	client := func() *redis.ClusterClient {
		c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs})
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	c := client()
	const ttl = 4 * time.Second
	x := newLeases(t, c, redisbackend.Config{TTL: ttl})
	t.Run("keys", func(t *testing.T) { holdAll(t, x) })
	t.Run("single_client", func(t *testing.T) {
		single := newLeases(t, nodes[0].Client(t), redisbackend.Config{})
		moved := false
		for i := range 20 {
			if err := single.Do(ctx, fmt.Sprint("s", i), nothing); err != nil {
				wantErr(t, "single client", err, exclusive.ErrUnavailable)
				moved = moved || strings.Contains(err.Error(), "NewClusterClient")
			}
		}
		if !moved {
			t.Error("a client that is not for clusters works, or is not told apart")
		}
	})
	t.Run("hammer", func(t *testing.T) {
		hammer(t, func() redis.UniversalClient { return client() }, "hammer:", 16, 1)
		hammer(t, func() redis.UniversalClient { return client() }, "hammer:many:", 16, 20)
	})
	t.Run("dead_node", func(t *testing.T) {
		held := make(map[string]*exclusive.Lease)
		dead := make(map[string]bool)
		for i := range 30 {
			key := fmt.Sprint("d", i)
			held[key] = acquire(t, x, key)
			node, err := c.MasterForKey(ctx, "exclusive:{"+key+"}:lease")
			must(t, "node", err)
			dead[key] = node.Options().Addr == nodes[2].Addr
		}
		// renewed waits until a lease is renewed after a moment, or is over.
		renewed := func(lease *exclusive.Lease, moment time.Time) error {
			for lease.Context().Err() == nil && !lease.Grant().Expires.After(moment.Add(ttl)) {
				time.Sleep(5 * time.Millisecond)
			}
			return context.Cause(lease.Context())
		}
		acquired := time.Now()
		for _, lease := range held {
			must(t, "renewal", renewed(lease, acquired))
		}
		nodes[2].Kill()
		killed := time.Now()
		kept, lost := 0, 0
		for key, lease := range held {
			if dead[key] {
				<-lease.Context().Done()
				wantErr(t, "lease of the dead node", context.Cause(lease.Context()), exclusive.ErrLost)
				lost++
			}
		}
		for key, lease := range held {
			if dead[key] {
				continue
			}
			if err := renewed(lease, killed); err != nil {
				t.Errorf("lease of a living node: %v", err)
			} else {
				kept++
			}
		}
		if kept == 0 || lost == 0 {
			t.Errorf("%d leases are kept and %d lost", kept, lost)
		}
		for key := range dead {
			if dead[key] {
				dctx, cancel := context.WithTimeout(ctx, 10*time.Second)
				err := x.Do(dctx, key, nothing)
				cancel()
				wantErr(t, "dead node", err, exclusive.ErrUnavailable)
				break
			}
		}
	})
}
