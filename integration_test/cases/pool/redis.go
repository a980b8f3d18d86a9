package pool

import (
	"context"
	"fmt"
	"net"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Redis is a hook that shows what a client of Redis sends: of a script its name, or
// its text if the server does not know it yet, and its keys and arguments.
type Redis struct{ Watch }

var _ redis.Hook = (*Redis)(nil)

// DialHook implements redis.Hook.
func (r *Redis) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

// ProcessHook implements redis.Hook.
func (r *Redis) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		return r.show(func() error { return next(ctx, cmd) }, cmd)
	}
}

// ProcessPipelineHook implements redis.Hook.
func (r *Redis) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		return r.show(func() error { return next(ctx, cmds) }, cmds...)
	}
}

func (r *Redis) show(send func() error, cmds ...redis.Cmder) error {
	var names []string
	var args []any
	for _, cmd := range cmds {
		names = append(names, fmt.Sprint(cmd.Args()[:min(2, len(cmd.Args()))]...))
		args = append(args, cmd.Args()...)
	}
	query := strings.Join(names, "; ")
	if err := r.see(query, args); err != nil {
		return err
	}
	defer r.answered(query)
	return send()
}
