package redisbackend_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"

	"github.com/exclusive-go/exclusive/integration_test/servers"
	"github.com/exclusive-go/exclusive/redisbackend"
)

// pair takes a free key and gives it back, with nothing in between.
type pair func(ctx context.Context, key string) error

// pairs are ours, the least that could do, and other libraries: with one client,
// and with default settings but for what would make them wait.
func pairs(b *testing.B, client *redis.Client, prefix string) map[string]pair {
	x := newLeases(b, client, redisbackend.Config{Prefix: prefix})
	// Two scripts written by hand, without renewal, deadline or attempt.
	acquire := redis.NewScript(`if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return redis.call('INCR', KEYS[2]) end return 0`)
	release := redis.NewScript(`if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`)
	sync, obtain := redsync.New(goredis.NewPool(client)), redislock.New(client)
	return map[string]pair{
		"exclusive": func(ctx context.Context, key string) error { return x.Do(ctx, key, nothing) },
		"by_hand": func(ctx context.Context, key string) error {
			keys := []string{prefix + "{" + key + "}:lock", prefix + "{" + key + "}:token"}
			if err := acquire.Run(ctx, client, keys, "id", time.Minute.Milliseconds()).Err(); err != nil {
				return err
			}
			return release.Run(ctx, client, keys[:1], "id").Err()
		},
		"redsync": func(ctx context.Context, key string) error {
			m := sync.NewMutex(prefix + "redsync:" + key)
			if err := m.TryLockContext(ctx); err != nil {
				return err
			}
			_, err := m.UnlockContext(ctx)
			return err
		},
		"redislock": func(ctx context.Context, key string) error {
			lock, err := obtain.Obtain(ctx, prefix+"redislock:"+key, time.Minute, nil)
			if err != nil {
				return err
			}
			return lock.Release(ctx)
		},
	}
}

// The cost of a Do with empty work.
func BenchmarkDo(b *testing.B) {
	client, prefix := servers.Prefix(b)
	for name, do := range pairs(b, client, prefix) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				must(b, name, do(b.Context(), "k"))
			}
		})
	}
}

// The same of several clients with a key each, as ratios: all in one run, in turns,
// so that they share what else the machine does. The medians of the turns count.
func BenchmarkPeers(b *testing.B) {
	for _, clients := range []int{1, 8, 64} {
		b.Run(fmt.Sprint(clients, "_clients"), func(b *testing.B) {
			client, prefix := servers.Prefix(b)
			contenders := pairs(b, client, prefix)
			took := make(map[string][]time.Duration)
			for b.Loop() {
				for name, do := range contenders { // in any order
					begin := time.Now()
					var wg sync.WaitGroup
					for n := range clients {
						wg.Go(func() {
							for range 20 {
								must(b, name, do(b.Context(), fmt.Sprint(n)))
							}
						})
					}
					wg.Wait()
					took[name] = append(took[name], time.Since(begin))
				}
			}
			b.ReportMetric(0, "ns/op") // of all of them: says nothing
			for name := range contenders {
				if name != "by_hand" {
					b.ReportMetric(median(took[name])/median(took["by_hand"]), name+"/by_hand")
				}
			}
		})
	}
}

func median(d []time.Duration) float64 {
	slices.Sort(d)
	return float64(d[len(d)/2])
}
