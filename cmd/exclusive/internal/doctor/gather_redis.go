package doctor

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/cmd/exclusive/internal/target"
	"github.com/exclusive-go/exclusive/internal/strategy"
	"github.com/exclusive-go/exclusive/redisbackend"
)

func (g *gatherer) redis(ctx context.Context, pool *target.Open) {
	client := pool.Redis.(*goredis.Client)
	info, err := g.info(ctx, client)
	if err != nil {
		// An account need not be allowed to ask. Whether there is a server at
		// all the trial will tell.
		if perr := g.bounded(ctx, func(ctx context.Context) error { return client.Ping(ctx).Err() }); perr != nil && !denied(perr) {
			g.fail("@connect", perr)
			return
		}
		g.failAll(err, "@version", "@recovery", "maxmemory_policy", "aof_enabled", "@replicas", "@limit_size")
	}
	for name, value := range info {
		g.Values[name] = value
	}
	g.redisProduct()
	g.set("prefix", g.redisPrefix())
	g.set("account", strategy.Default(client.Options().Username, "default"))
	g.config(ctx, client)
	if g.known("role") {
		g.set("recovery", g.is("role", "slave", "replica"))
		g.set("replicas", atoi(g.get("connected_slaves")))
		// Neither INFO nor an account without CONFIG says 0.
		g.set("waits", atoi(g.get("min-replicas-to-write")) > 0 || g.known("min_slaves_good_slaves"))
	}
	if g.known("maxclients") {
		g.set("limit", "maxclients")
		g.set("limit_size", g.get("maxclients"))
		g.set("used", g.get("connected_clients"))
	}
	g.clock(ctx, func(ctx context.Context) (n int64, err error) {
		err = g.bounded(ctx, func(ctx context.Context) error {
			now, err := client.Time(ctx).Result()
			n = now.UnixMicro()
			return err
		})
		return n, err
	})
	var keys goredis.UniversalClient = client
	if g.on("cluster_enabled") {
		if text, err := client.ClusterInfo(ctx).Result(); err != nil {
			g.fail("cluster_state", err)
		} else {
			for name, value := range lines(text) {
				g.Values[name] = value
			}
		}
		cluster := target.Cluster(client.Options())
		defer func() { _ = cluster.Close() }()
		keys = cluster
	}
	if g.on("@recovery") {
		g.Unread["@trial"] = "a replica is not written to"
		return
	}
	g.trial(ctx, keys)
}

// bounded limits how long a call takes.
func (g *gatherer) bounded(ctx context.Context, call func(context.Context) error) error {
	return target.Within(ctx, g.answerWait, call)
}

// denied reports whether an account lacks a right.
func denied(err error) bool {
	return err != nil && (strings.Contains(err.Error(), "NOPERM") || strings.Contains(err.Error(), "unknown command"))
}

func (g *gatherer) info(ctx context.Context, client *goredis.Client) (map[string]string, error) {
	var text string
	err := g.bounded(ctx, func(ctx context.Context) (err error) {
		text, err = client.Info(ctx).Result()
		return err
	})
	return lines(text), err
}

// lines reads lines of name:value.
func lines(text string) map[string]string {
	values := make(map[string]string)
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			values[name] = value
		}
	}
	return values
}

// redisProduct tells the products apart that speak its protocol.
func (g *gatherer) redisProduct() {
	for _, name := range []string{"redis_version", "valkey_version"} {
		if g.known(name) {
			g.set("version", g.get(name))
		}
	}
	switch {
	case g.is("server_name", "valkey"):
		g.set("flavour", "Valkey")
	case g.known("dragonfly_version"):
		g.set("product", "Dragonfly")
	case strings.Contains(g.get("executable"), "keydb"):
		g.set("product", "KeyDB")
	}
}

// config asks for what INFO does not tell. Managed servers refuse it.
func (g *gatherer) config(ctx context.Context, client *goredis.Client) {
	for _, name := range []string{"save", "appendfsync", "min-replicas-to-write", "maxclients"} {
		var values map[string]string
		if err := g.bounded(ctx, func(ctx context.Context) (err error) {
			values, err = client.ConfigGet(ctx, name).Result()
			return err
		}); err != nil {
			g.failAll(err, name)
			continue
		}
		if value, ok := values[name]; ok {
			g.Values[name] = value
		}
	}
}

// trialTTL makes the trial's lease be renewed soon.
const trialTTL = 600 * time.Millisecond

// trial does with a key of its own what the strategies do.
func (g *gatherer) trial(ctx context.Context, client goredis.UniversalClient) {
	ctx, cancel := context.WithTimeout(ctx, 2*g.answerWait)
	defer cancel()
	key := "doctor/" + strings.ToLower(rand.Text()[:16])
	prefix := g.redisPrefix()
	renewed := make(renewals, 1)
	x, err := redisbackend.New(client, redisbackend.Config{Prefix: prefix, TTL: trialTTL, Holder: "exclusive doctor", Observer: renewed})
	if err != nil {
		g.fail("@trial", err)
		return
	}
	defer func() { _ = x.Close() }()
	names := []string{"lease", "counter", "waiters"}
	for i, name := range names {
		names[i] = prefix + "{" + key + "}:" + name
	}
	defer func() {
		// Without the right to delete there is nothing that was written.
		_ = g.bounded(context.WithoutCancel(ctx), func(ctx context.Context) error { return client.Del(ctx, names...).Err() })
	}()
	err = x.Do(ctx, key, func(ctx context.Context, _ exclusive.Grant) error {
		select {
		case err := <-renewed:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	if err != nil {
		g.set("trial", "refused")
		g.set("trial_error", g.target.Hide(err))
		return
	}
	g.set("trial", "may")
	if err := g.hear(ctx, client, prefix+"{"+key+"}:free"); err != nil {
		g.set("trial", "deaf")
		g.set("trial_error", g.target.Hide(err))
	}
}

// renewals are the outcomes of renewals.
type renewals chan error

func (r renewals) Start(ctx context.Context, _ exclusive.Event) context.Context { return ctx }

func (r renewals) End(_ context.Context, e exclusive.Event) {
	if e.Op != exclusive.OpRenew {
		return
	}
	select {
	case r <- e.Err:
	default:
	}
}

// hear publishes on a channel and waits for it to come back.
func (g *gatherer) hear(ctx context.Context, client goredis.UniversalClient, channel string) error {
	ctx, cancel := context.WithTimeout(ctx, g.answerWait)
	defer cancel()
	sub := client.Subscribe(ctx, channel)
	defer func() { _ = sub.Close() }()
	if _, err := sub.Receive(ctx); err != nil {
		return fmt.Errorf("SUBSCRIBE: %w", err)
	}
	if err := client.Publish(ctx, channel, "").Err(); err != nil {
		return fmt.Errorf("PUBLISH: %w", err)
	}
	if _, err := sub.ReceiveMessage(ctx); err != nil {
		return fmt.Errorf("what was published did not arrive: %w", err)
	}
	return nil
}
