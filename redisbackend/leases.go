package redisbackend

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/internal/lease"
	"github.com/exclusive-go/exclusive/internal/run"
	"github.com/exclusive-go/exclusive/internal/strategy"
)

// Leases hands out leases that are stored in Redis or Valkey. It is safe for
// concurrent use.
type Leases struct {
	client redis.UniversalClient
	cfg    Config
	leaser *lease.Leaser
	wakes  *wakeups
}

// New makes Leases on a client of any kind: redis.NewClient,
// redis.NewFailoverClient (Sentinel), redis.NewClusterClient. It does no I/O.
//
// Calls end when their context does, whatever the client's options say.
func New(client redis.UniversalClient, cfg Config) (*Leases, error) {
	cfg, err := cfg.complete(client)
	if err != nil {
		return nil, err
	}
	l := &Leases{client: client, cfg: cfg}
	l.leaser = lease.NewLeaser(lease.Config{
		Observed: run.Observed{Strategy: "redisbackend", Observer: cfg.Observer},
		TTL:      cfg.TTL,
		NoRenew:  cfg.NoRenew,
		MaxHold:  cfg.MaxHold,
		Classify: classifier{}.Classify,
	}, cfg.Wait, store{l})
	l.wakes = newWakeups(client, l.leaser.Queue.Wake)
	return l, nil
}

// Promises implements exclusive.Exclusive. They hold as long as the server
// keeps what it has confirmed; see the package's documentation.
func (l *Leases) Promises() exclusive.Promises { return exclusive.PromisesOf("redisbackend") }

// Close stops renewing and waits for what runs in the background, and for attempts to
// acquire a key that are under way: a few seconds if the server is silent or keys are
// still to be given back. Leases that are still held run out, and who waits for a key
// goes on waiting: end their contexts first. The client stays open. After Close, leases
// can be acquired but are not renewed. It may be called again.
func (l *Leases) Close() error {
	l.leaser.Keeper.Close()
	return l.wakes.close()
}

// Do implements exclusive.Exclusive. It waits up to Config.Wait for a key that
// is held.
func (l *Leases) Do(ctx context.Context, key string, work exclusive.Work) error {
	return l.leaser.Do(ctx, key, work)
}

// TryAcquire implements exclusive.Leaser.
func (l *Leases) TryAcquire(ctx context.Context, key string) (*exclusive.Lease, error) {
	return l.leaser.TryAcquire(ctx, key)
}

// Acquire implements exclusive.Leaser. A release wakes it. It also polls, at
// most every 250 ms, and no later than the holder's lease runs out.
func (l *Leases) Acquire(ctx context.Context, key string) (*exclusive.Lease, error) {
	return l.leaser.Acquire(ctx, key)
}

// Advance makes the next token of key greater than atLeast. It mends a counter
// that was lost, whose tokens a destination refuses: pass the token that the
// destination has seen. With Config.Tokens it asks the source, which must have
// an Advance method; otherwise it is ErrUnsupported.
func (l *Leases) Advance(ctx context.Context, key string, atLeast int64) error {
	if err := strategy.ValidAdvance(key, atLeast); err != nil {
		return err
	}
	if l.cfg.Tokens != nil {
		return l.advanceSource(ctx, key, atLeast)
	}
	_, err := l.run(ctx, advanceScript, []string{l.names(key).counter}, atLeast)
	return fail(ctx, "advance", key, err)
}

// run runs a script, and again after a broken connection: each may run twice
// without harm.
func (l *Leases) run(ctx context.Context, s *redis.Script, keys []string, args ...any) (answer any, err error) {
	err = db.Retry(ctx, classifier{}, func(ctx context.Context) error {
		answer, err = l.once(ctx, s, nil, keys, args...)
		return err
	})
	return answer, err
}

// once runs a script once. after is as in bounded.
func (l *Leases) once(ctx context.Context, s *redis.Script, after func(late bool), keys []string, args ...any) (any, error) {
	return bounded(ctx, func(ctx context.Context) (any, error) { return s.Run(ctx, l.client, keys, args...).Result() }, after)
}

// ttl is the length of a lease in milliseconds, rounded up: here it counts as
// over a moment before the server lets it go, never after.
func (l *Leases) ttl() int64 { return int64((l.cfg.TTL + time.Millisecond - 1) / time.Millisecond) }

// store stores the leases that the leaser hands out.
type store struct{ *Leases }

// waitMemory is how long, in ms, a refusal is remembered as somebody waiting:
// longer than the longest pause between two polls.
const waitMemory = 1000

// Acquire implements lease.Store.
func (s store) Acquire(ctx context.Context, key, id string, waiting bool) (g exclusive.Grant, requested time.Time, err error) {
	n := s.names(key)
	count, wait := 1, 0
	if s.cfg.Tokens != nil {
		count = 0
	}
	if waiting {
		wait = waitMemory
	}
	giveBack := func() { s.leaser.Abandon(key, id) }
	sent := &counted{text: id}
	var answer any
	err = db.Retry(ctx, classifier{}, func(ctx context.Context) error {
		requested = time.Now()
		ended := s.leaser.Keeper.Claiming() // it may go on when the caller has left
		answer, err = s.once(ctx, acquireScript, func(late bool) {
			defer ended()
			if late && sent.times.Load() > 0 {
				giveBack()
			}
		}, []string{n.lease, n.counter, n.waiters}, sent, s.ttl(), s.cfg.Holder, int64(strategy.MaxToken), count, wait)
		return err
	})
	if err != nil {
		if sent.mayHaveRun(err) {
			giveBack()
		}
		return g, requested, fail(ctx, "acquire", key, err)
	}
	reply, err := parseReply(answer)
	if err != nil {
		return g, requested, unreadable("acquire", key, err)
	}
	switch reply.code {
	case refused:
		return g, requested, &exclusive.Error{Op: "acquire", Key: key, Kind: exclusive.ErrHeld, Holder: reply.holder()}
	case exhausted:
		return g, requested, &exclusive.Error{Op: "acquire", Key: key, Kind: exclusive.ErrUnavailable,
			Hint: fmt.Sprintf("the counter %q has reached the largest token; it was set by somebody else", n.counter)}
	case over:
		return g, requested, &exclusive.Error{Op: "acquire", Key: key, Kind: exclusive.ErrUnavailable,
			Hint: "an operator freed the key before the answer that it was had; try again"}
	}
	g = exclusive.Grant{Key: key, ID: id, Token: reply.row.token, Attempt: int(reply.row.attempt)}
	if s.cfg.Tokens != nil {
		g.Token, requested, err = s.draw(ctx, key, id)
		if err != nil {
			giveBack()
			return exclusive.Grant{}, requested, err
		}
	}
	return g, requested, nil
}

// Listen implements lease.Waker.
func (s store) Listen(key string) (stop func()) {
	return s.wakes.listen(s.names(key).channel, key)
}

// Renew implements lease.Backend: one round trip for all, or one to each node
// of a cluster at the same time. A node that is much slower than another does
// not hold up what that has answered; its leases stay as they were.
func (s store) Renew(ctx context.Context, grants []exclusive.Grant) (lost, waiting []string, err error) {
	groups := s.byNode(ctx, grants)
	answers := make(chan renewal, len(groups))
	for _, group := range groups {
		go func() { answers <- s.renew(ctx, group) }()
	}
	open := make(map[string]bool, len(grants)) // not answered
	for _, g := range grants {
		open[g.ID] = true
	}
	var patience <-chan time.Time // begins with the first answer
	for range groups {
		select {
		case r := <-answers:
			err = errors.Join(err, r.err)
			lost = append(lost, r.lost...)
			for _, id := range r.answered {
				delete(open, id)
			}
			if patience == nil && r.answered != nil {
				patience = time.After(s.cfg.TTL / 6)
			}
			continue
		case <-patience:
			err = errors.Join(err, errSlowNode)
		}
		break
	}
	if len(open) == len(grants) {
		return nil, nil, fail(ctx, "renew", "", err)
	}
	return lost, slices.Collect(maps.Keys(open)), fail(ctx, "renew", "", err)
}

var errSlowNode = errors.New("another node of the cluster has answered, the one that has this key has not yet")

// byNode splits grants by the node of a cluster that has their keys, so that
// one that hangs does not hold up the leases on all others.
func (s store) byNode(ctx context.Context, grants []exclusive.Grant) [][]exclusive.Grant {
	cluster, ok := s.client.(*redis.ClusterClient)
	if !ok || len(grants) == 1 {
		return [][]exclusive.Grant{grants}
	}
	nodes := make(map[*redis.Client]int)
	var groups [][]exclusive.Grant
	for _, g := range grants {
		node, err := bounded(ctx, func(ctx context.Context) (*redis.Client, error) {
			return cluster.MasterForKey(ctx, s.names(g.Key).lease)
		}, nil)
		if err != nil {
			node = nil // those without a node share a group
		}
		i, known := nodes[node]
		if !known {
			i = len(groups)
			nodes[node] = i
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], g)
	}
	return groups
}

// renewal is what came of the renewals of a group.
type renewal struct {
	answered, lost []string // ids of grants
	err            error
}

// renew sends the renewals of a group in one pipeline.
func (s store) renew(ctx context.Context, grants []exclusive.Grant) renewal {
	r, err := bounded(ctx, func(ctx context.Context) (renewal, error) {
		cmds := s.renewPipe(ctx, grants, renewScript.EvalSha)
		var unknown []exclusive.Grant
		var at []int
		for i, cmd := range cmds {
			if redis.HasErrorPrefix(cmd.Err(), "NOSCRIPT") {
				unknown, at = append(unknown, grants[i]), append(at, i)
			}
		}
		if unknown != nil {
			for i, cmd := range s.renewPipe(ctx, unknown, renewScript.Eval) {
				cmds[at[i]] = cmd
			}
		}
		var r renewal
		for i, cmd := range cmds {
			n, err := cmd.Int64()
			if err != nil {
				r.err = err
				continue
			}
			r.answered = append(r.answered, grants[i].ID)
			if n == 0 {
				r.lost = append(r.lost, grants[i].ID)
			}
		}
		return r, nil
	}, nil)
	if err != nil { // ctx has ended
		r.err = err
	}
	return r
}

type eval func(ctx context.Context, c redis.Scripter, keys []string, args ...any) *redis.Cmd

func (s store) renewPipe(ctx context.Context, grants []exclusive.Grant, eval eval) []*redis.Cmd {
	pipe := s.client.Pipeline()
	cmds := make([]*redis.Cmd, len(grants))
	for i, g := range grants {
		cmds[i] = eval(ctx, pipe, []string{s.names(g.Key).lease}, g.ID, s.ttl())
	}
	_, _ = pipe.Exec(ctx) // each command has its own error
	return cmds
}

// forgetAfter is how long, in ms, the counter of a key is kept that nobody has,
// if tokens come from elsewhere: long enough to recognise a repeated release.
const forgetAfter = 10 * 60 * 1000

// keep is how long the scripts keep the counter of a key that nobody has; 0: for ever.
func (l *Leases) keep() int {
	if l.cfg.Tokens == nil {
		return 0
	}
	return forgetAfter
}

// Release implements lease.Backend.
func (s store) Release(ctx context.Context, g exclusive.Grant) error { return s.end(ctx, g, released) }

// GiveUp implements lease.Counter.
func (s store) GiveUp(ctx context.Context, g exclusive.Grant) error { return s.end(ctx, g, gaveUp) }

// Unclaim implements lease.Counter.
func (s store) Unclaim(ctx context.Context, g exclusive.Grant) error {
	return s.end(ctx, g, unclaimed)
}

// How a grant ends, as the script release takes it.
const (
	released  = iota
	gaveUp    // the next grant is one more attempt
	unclaimed // nobody has had it: it was no attempt
)

func (s store) end(ctx context.Context, g exclusive.Grant, how int) error {
	n := s.names(g.Key)
	answer, err := s.run(ctx, releaseScript, []string{n.lease, n.counter, n.waiters}, g.ID, n.channel, s.keep(), how)
	if err != nil {
		return fail(ctx, "release", g.Key, err)
	}
	reply, err := parseReply(answer)
	switch {
	case err != nil:
		return unreadable("release", g.Key, err)
	case reply.code == won:
		return nil
	case reply.row.id == "":
		return &exclusive.Error{Op: "release", Key: g.Key, Kind: exclusive.ErrLost, Hint: "the lease ran out before this; nobody has taken it over yet"}
	}
	return &exclusive.Error{Op: "release", Key: g.Key, Kind: exclusive.ErrLost, Hint: "the lease ran out and was taken over", Holder: reply.holder()}
}
