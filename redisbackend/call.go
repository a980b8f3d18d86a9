package redisbackend

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/internal/db"
)

// bounded runs f so that ctx bounds it: while go-redis waits for an answer it
// looks at a deadline only if Options.ContextTimeoutEnabled is set, and at a
// cancellation not at all. When ctx ends first, f goes on for as long as the
// client's time-outs let it. after is called after it, and told whether ctx has
// ended first; it may be nil.
func bounded[T any](ctx context.Context, f func(context.Context) (T, error), after func(late bool)) (T, error) {
	if after == nil {
		after = func(bool) {}
	}
	if ctx.Done() == nil {
		defer after(false)
		return f(ctx)
	}
	type outcome struct {
		value T
		err   error
	}
	answer := make(chan outcome, 1)
	var decided atomic.Bool // whoever comes first: the answer, or ctx
	go func() {
		value, err := f(ctx)
		inTime := decided.CompareAndSwap(false, true)
		after(!inTime)
		if inTime {
			answer <- outcome{value, err}
		}
	}()
	select {
	case o := <-answer:
		return o.value, o.err
	case <-ctx.Done():
		if decided.CompareAndSwap(false, true) {
			return *new(T), ctx.Err()
		}
		o := <-answer
		return o.value, o.err
	}
}

// counted is an argument that counts how often its command was written to a
// connection: go-redis repeats commands by itself, and tells how the last attempt
// went.
type counted struct {
	text  string
	times atomic.Int32
}

// MarshalBinary is what go-redis calls for each attempt.
func (c *counted) MarshalBinary() ([]byte, error) {
	c.times.Add(1)
	return []byte(c.text), nil
}

func (c *counted) String() string { return c.text }

// mayHaveRun reports whether the server may have run the command of which the last
// attempt gave err. Only if it was written once is err about that attempt; and not
// even then if it says that a further connection was not let in.
func (c *counted) mayHaveRun(err error) bool {
	var reply redis.Error
	switch c.times.Load() {
	case 0:
		return false
	case 1:
		return !errors.As(err, &reply) || redis.HasErrorPrefix(err, "WRONGPASS")
	}
	return true
}

// The hints that more than one error has.
const (
	foreign      = "the Redis keys of this key hold what this package has not written; remove them, or use another Prefix"
	notPermitted = "the ACL of this user does not permit it; the package's documentation lists what it needs"
)

// faults says what the errors of a server mean. The first that matches counts.
var faults = []struct {
	prefix string
	class  db.Class
	hint   string
}{
	{"READONLY", db.ReadOnly, "the server is a replica; connect to the primary"},
	{"LOADING", db.Unreachable, "the server is loading its data; try again when it has"},
	{"MASTERDOWN", db.Unreachable, "the server is a replica that has lost its primary"},
	{"CLUSTERDOWN", db.Unreachable, "the cluster does not serve this key's slot; see CLUSTER INFO"},
	{"TRYAGAIN", db.Unreachable, "this key's slot is being moved; try again"},
	{"NOREPLICAS", db.Unreachable, "fewer replicas are connected than min-replicas-to-write asks for"},
	{"OOM", db.Unreachable, "the server has reached its maxmemory; give it more, or remove data"},
	{"MISCONF", db.Unreachable, "the server refuses writes because it cannot save to its disk"},
	{"BUSY", db.Unreachable, "the server is busy with a script of somebody's"},
	{"max number of clients", db.Unreachable, "the server has as many clients as it allows (maxclients)"},
	{"NOPERM", db.Denied, notPermitted},
	{"The user executing the script", db.Denied, notPermitted},
	{"NOAUTH", db.Denied, "the server wants a password"},
	// It reads no long command from a client that has not given the password.
	{"Protocol error: unauthenticated", db.Denied, "the server wants a password"},
	{"WRONGPASS", db.Denied, "the server does not accept this user and password"},
	{"WRONGTYPE", db.Data, foreign},
	{"hash value is not an integer", db.Data, foreign},
	{"MOVED", db.Other, "the server is part of a cluster; use redis.NewClusterClient"},
	{"This instance has cluster support disabled", db.Other, "the server is not part of a cluster; use redis.NewClient"},
	{"Error compiling script", db.Other, "the server does not know scripts that begin with #!lua; use Redis 7 or later, or Valkey"},
	{"unknown command", db.Other, "the server lacks a command; use Redis 7 or later, or Valkey"},
}

// fault finds what err means; -1 if it is no error of a server that we know.
func fault(err error) int {
	var reply redis.Error
	if !errors.As(err, &reply) {
		return -1
	}
	text := strings.TrimPrefix(reply.Error(), "ERR ")
	for i, f := range faults {
		if strings.HasPrefix(text, f.prefix) {
			return i
		}
	}
	return -1
}

// classifier is what db.Retry and db.Fail know go-redis by.
type classifier struct{}

func (classifier) Classify(err error) db.Class {
	if i := fault(err); i >= 0 {
		return faults[i].class
	}
	if errors.Is(err, redis.ErrClosed) || errors.Is(err, redis.ErrPoolTimeout) {
		return db.Unreachable
	}
	return db.Network(err)
}

// fail turns an error of go-redis into the one that callers tell apart.
func fail(ctx context.Context, op, key string, err error) error {
	var ours *exclusive.Error
	if i := fault(err); i >= 0 && db.Over(ctx) == nil && !errors.As(err, &ours) {
		return &exclusive.Error{Op: op, Key: key, Kind: exclusive.ErrUnavailable, Hint: faults[i].hint, Err: err}
	}
	return db.Fail(ctx, classifier{}, op, key, "", err)
}
