// Package redisbackend_test proves package redisbackend on real servers.
package redisbackend_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/integration_test/proxy"
	"github.com/exclusive-go/exclusive/integration_test/servers"
	"github.com/exclusive-go/exclusive/redisbackend"
)

// options are those of the shared server.
func options(t testing.TB) *redis.Options {
	t.Helper()
	o, err := redis.ParseURL(servers.Shared(t, servers.Redis).DSN)
	must(t, "parse the DSN", err)
	return o
}

// open opens a client that is closed when the test ends.
func open(t testing.TB, o *redis.Options) *redis.Client {
	t.Helper()
	client := redis.NewClient(o)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// through opens a client that goes through a proxy.
func through(t testing.TB, change func(*redis.Options)) (*redis.Client, *proxy.Proxy) {
	t.Helper()
	o := options(t)
	p := proxy.Start(t, o.Addr)
	o.Addr = p.Addr()
	o.MinIdleConns = 0
	if change != nil {
		change(o)
	}
	return open(t, o), p
}

// newLeases makes Leases that are closed when the test ends.
func newLeases(t testing.TB, client redis.UniversalClient, cfg redisbackend.Config) *redisbackend.Leases {
	t.Helper()
	l, err := redisbackend.New(client, cfg)
	must(t, "new", err)
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

func wantErr(t testing.TB, what string, err error, kinds ...error) {
	t.Helper()
	for _, kind := range kinds {
		if !errors.Is(err, kind) {
			t.Fatalf("%s: %v; want an error that matches %q", what, err, kind)
		}
	}
}

func must(t testing.TB, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func acquire(t testing.TB, l exclusive.Leaser, key string) *exclusive.Lease {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	lease, err := l.Acquire(ctx, key)
	must(t, "acquire", err)
	return lease
}

func nothing(context.Context, exclusive.Grant) error { return nil }
