package bench

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/internal/strategy"
	"github.com/exclusive-go/exclusive/redisbackend"
)

// unlock deletes a key that has a value still: the release of a lock by hand.
var unlock = redis.NewScript(`if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`)

// openRedis compares with SET NX and a script that compares and deletes. Work
// writes nothing: where its results go is another database.
func openRedis(client redis.UniversalClient, options Options) (*stage, error) {
	prefix := strategy.Default(options.Prefix, redisbackend.DefaultPrefix) + "bench:" + strings.ToLower(rand.Text()[:8]) + ":"
	leases, err := redisbackend.New(client, redisbackend.Config{Prefix: prefix})
	if err != nil {
		return nil, err
	}
	st := &stage{name: "Redis", held: func() int {
		stats := client.PoolStats()
		return int(stats.TotalConns - stats.IdleConns)
	}}
	st.undo = append(st.undo,
		func(ctx context.Context) error { return deleteKeys(ctx, client, prefix) },
		func(context.Context) error { return leases.Close() })
	st.pairs = []pair{{
		strategy: "redisbackend",
		ours: func(ctx context.Context, worker int, inside func()) (time.Duration, error) {
			return timed(func() error {
				return leases.Do(ctx, key(worker), func(context.Context, exclusive.Grant) error {
					inside()
					return nil
				})
			})
		},
		byHand: func(ctx context.Context, worker int, inside func()) (time.Duration, error) {
			name, id := prefix+"hand:"+key(worker), rand.Text()
			return timed(func() error {
				got, err := client.SetNX(ctx, name, id, 30*time.Second).Result()
				if err == nil && !got {
					err = errNotOurs
				}
				if err != nil {
					return err
				}
				inside()
				return unlock.Run(ctx, client, []string{name}, id).Err()
			})
		},
	}}
	return st, nil
}

// deleteKeys deletes the keys that begin with prefix.
func deleteKeys(ctx context.Context, client redis.UniversalClient, prefix string) error {
	if cluster, ok := client.(*redis.ClusterClient); ok { // it would scan one node
		return cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error { return deleteKeys(ctx, node, prefix) })
	}
	var errs []error
	keys := client.Scan(ctx, 0, prefix+"*", 1000).Iterator()
	for keys.Next(ctx) {
		errs = append(errs, client.Unlink(ctx, keys.Val()).Err())
	}
	return errors.Join(append(errs, keys.Err())...)
}
