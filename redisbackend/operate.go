package redisbackend

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/internal/strategy"
)

// What operators do, with the keys of others.

// List lists the keys with the prefix that somebody has, in their order. It walks
// through all keys of the server (SCAN), or of each primary of a cluster, a
// thousand at a time. Keys that are taken or given back meanwhile may be missing.
// A replica answers with what it has heard of.
func (l *Leases) List(ctx context.Context) ([]exclusive.Status, error) {
	all := make(map[string]exclusive.Status) // SCAN may name a key twice
	var mu sync.Mutex
	walk := func(ctx context.Context, node redis.UniversalClient) error {
		for cursor := uint64(0); ; {
			p, err := l.page(ctx, node, cursor)
			if err != nil {
				return err
			}
			mu.Lock()
			for _, s := range p.found {
				all[s.Key] = s
			}
			mu.Unlock()
			if cursor = p.next; cursor == 0 {
				return nil
			}
		}
	}
	list, err := bounded(ctx, func(ctx context.Context) (list []exclusive.Status, err error) {
		if cluster, ok := l.client.(*redis.ClusterClient); ok {
			err = cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error { return walk(ctx, node) })
		} else {
			err = walk(ctx, l.client)
		}
		return slices.SortedFunc(maps.Values(all), func(a, b exclusive.Status) int { return strings.Compare(a.Key, b.Key) }), err
	}, nil)
	if err != nil {
		return nil, fail(ctx, "list keys", "", err)
	}
	return list, nil
}

// Status says who has a key. Last is empty if nobody has it: Redis remembers no
// earlier holders. A replica does not answer it.
func (l *Leases) Status(ctx context.Context, key string) (exclusive.Status, error) {
	if err := exclusive.ValidateKey("status", key); err != nil {
		return exclusive.Status{Key: key}, err
	}
	return l.status(ctx, "status", key)
}

func (l *Leases) status(ctx context.Context, op, key string) (exclusive.Status, error) {
	s := exclusive.Status{Key: key}
	reply, err := l.free(ctx, op, key, "") // which is nobody's id
	if err == nil && reply.row.id != "" {
		s.Held, s.Last, s.Attempt = true, *reply.holder(), int(reply.row.attempt)
	}
	return s, err
}

// free takes the key from the grant with this id, if it has it; otherwise it
// answers who has. It is a script that may write, so a replica refuses it.
func (l *Leases) free(ctx context.Context, op, key, id string) (reply, error) {
	n := l.names(key)
	answer, err := l.run(ctx, freeScript, []string{n.lease, n.counter, n.waiters}, id, n.channel, l.keep())
	if err != nil {
		return reply{}, fail(ctx, op, key, err)
	}
	r, err := parseReply(answer)
	if err != nil {
		return reply{}, unreadable(op, key, err)
	}
	return r, nil
}

// page is an answer of SCAN, with what its keys hold.
type page struct {
	found []exclusive.Status
	next  uint64
}

// scanCount is how many keys the server looks at for one answer.
const scanCount = 1000

func (l *Leases) page(ctx context.Context, node redis.UniversalClient, cursor uint64) (p page, err error) {
	err = db.Retry(ctx, classifier{}, func(ctx context.Context) error {
		names, next, err := node.Scan(ctx, cursor, glob.Replace(l.cfg.Prefix)+"{*}:lease", scanCount).Result()
		p = page{next: next}
		if err == nil && len(names) > 0 {
			p.found, err = l.read(ctx, node, names)
		}
		return err
	})
	return p, err
}

// glob makes a prefix one that SCAN takes as it is.
var glob = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`)

// unescape undoes escape.
var unescape = strings.NewReplacer("%7B", "{", "%7D", "}", "%25", "%")

// read reads leases by their names. Those that have ended are left out.
func (l *Leases) read(ctx context.Context, node redis.UniversalClient, names []string) (list []exclusive.Status, err error) {
	pipe := node.Pipeline()
	clock := pipe.Time(ctx)
	rows, left := make([]*redis.StringCmd, len(names)), make([]*redis.DurationCmd, len(names))
	for i, name := range names {
		rows[i], left[i] = pipe.Get(ctx, name), pipe.PTTL(ctx, name)
	}
	if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return nil, err
	}
	for i, name := range names {
		stored, err := rows[i].Result()
		if errors.Is(err, redis.Nil) {
			continue
		}
		key := unescape.Replace(strings.TrimSuffix(strings.TrimPrefix(name, l.cfg.Prefix+"{"), "}:lease"))
		r, err := parseRow(stored)
		if err != nil {
			return nil, unreadable("list keys", key, err)
		}
		reply := reply{row: r, now: clock.Val().UnixMicro(), left: left[i].Val().Milliseconds()}
		list = append(list, exclusive.Status{Key: key, Held: true, Last: *reply.holder(), Attempt: int(r.attempt)})
	}
	return list, nil
}

// Release takes a key from whoever has it, alive or not: see ReleaseSeen. It does
// nothing if nobody holds the key. ErrHeld if the key changes hands meanwhile: the
// newcomer keeps it.
func (l *Leases) Release(ctx context.Context, key string) error {
	if err := exclusive.ValidateKey("release", key); err != nil {
		return err
	}
	s, err := l.status(ctx, "release", key)
	if err != nil || !s.Held {
		return err
	}
	if err := l.ReleaseSeen(ctx, s); !errors.Is(err, exclusive.ErrLost) {
		return err
	}
	return nil // it has ended by itself
}

// ReleaseSeen takes a key from the holder that Status or List has shown, alive or
// not, and from nobody else: the key can be had at once, with a higher token. The
// old holder's context ends with ErrLost at its next renewal, which is within a
// third of its TTL: until then it may still work beside its successor. A Guard
// refuses it from the successor's first grant there.
//
// nil means that it was this holder's, and that this has ended it. ErrHeld:
// somebody else has the key by now, Error.Holder, and keeps it. ErrLost: the grant
// had ended before, and nobody has the key.
func (l *Leases) ReleaseSeen(ctx context.Context, seen exclusive.Status) error {
	if err := strategy.ValidSeen("release", seen.Key, seen.Last.ID); err != nil {
		return err
	}
	reply, err := l.free(ctx, "release", seen.Key, seen.Last.ID)
	switch {
	case err != nil:
		return err
	case reply.code == won:
		l.leaser.Queue.Wake(seen.Key)
		return nil
	case reply.row.id != "":
		return strategy.NotReleased(seen.Key, reply.holder())
	}
	return strategy.NotReleased(seen.Key, nil)
}
