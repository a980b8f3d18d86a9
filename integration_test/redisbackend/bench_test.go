package redisbackend_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/exclusive-go/exclusive/integration_test/servers"
	"github.com/exclusive-go/exclusive/redisbackend"
)

// The cost of a Do with empty work, beside the least that could do: two scripts
// written by hand, without renewal, deadline or attempt.
func BenchmarkDo(b *testing.B) {
	b.Run("redisbackend", func(b *testing.B) {
		client, prefix := servers.Prefix(b)
		x := newLeases(b, client, redisbackend.Config{Prefix: prefix})
		b.ReportAllocs()
		for b.Loop() {
			must(b, "do", x.Do(b.Context(), "k", nothing))
		}
	})
	b.Run("floor", func(b *testing.B) {
		client, prefix := servers.Prefix(b)
		acquire := redis.NewScript(`if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return redis.call('INCR', KEYS[2]) end return 0`)
		release := redis.NewScript(`if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`)
		keys := []string{prefix + "{k}:lock", prefix + "{k}:token"}
		b.ReportAllocs()
		for b.Loop() {
			must(b, "acquire", acquire.Run(b.Context(), client, keys, "id", time.Minute.Milliseconds()).Err())
			must(b, "release", release.Run(b.Context(), client, keys[:1], "id").Err())
		}
	})
}
