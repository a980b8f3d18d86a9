package redisbackend

import (
	_ "embed"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/exclusive-go/exclusive"
)

// The scripts. Each is one round trip: EVALSHA, and EVAL when the server does
// not have it yet.
var (
	//go:embed lua/acquire.lua
	acquireLua string
	//go:embed lua/token.lua
	tokenLua string
	//go:embed lua/renew.lua
	renewLua string
	//go:embed lua/release.lua
	releaseLua string
	//go:embed lua/free.lua
	freeLua string
	//go:embed lua/advance.lua
	advanceLua string

	acquireScript = redis.NewScript(acquireLua)
	tokenScript   = redis.NewScript(tokenLua)
	renewScript   = redis.NewScript(renewLua)
	releaseScript = redis.NewScript(releaseLua)
	freeScript    = redis.NewScript(freeLua)
	advanceScript = redis.NewScript(advanceLua)
)

// What the scripts answer.
const (
	refused   = 0
	won       = 1
	exhausted = 2 // acquire: no more tokens; token: the source is behind
	over      = 3 // acquire: the grant has had the key, and has it no longer
)

// reply is what acquire and release answer.
type reply struct {
	code int64
	row  row   // zero if there is none
	now  int64 // the server's clock in microseconds; acquire, refused
	left int64 // until the lease ends, in milliseconds; -1: never
}

// row is a stored lease.
type row struct {
	id, holder            string
	token, attempt, since int64
}

func parseReply(answer any) (r reply, err error) {
	fields, ok := answer.([]any)
	if !ok || len(fields) == 0 {
		return r, fmt.Errorf("answer %v", answer)
	}
	if r.code, ok = fields[0].(int64); !ok {
		return r, fmt.Errorf("answer %v", answer)
	}
	if len(fields) > 1 && fields[1] != nil {
		stored, _ := fields[1].(string)
		if r.row, err = parseRow(stored); err != nil {
			return r, err
		}
	}
	if len(fields) > 3 {
		now, _ := fields[2].(string)
		if r.now, err = strconv.ParseInt(now, 10, 64); err != nil {
			return r, err
		}
		r.left, _ = fields[3].(int64)
	}
	return r, nil
}

// parseRow reads "id token attempt since holder".
func parseRow(stored string) (r row, err error) {
	part := strings.SplitN(stored, " ", 5)
	if len(part) != 5 {
		return r, fmt.Errorf("stored lease %.100q", stored)
	}
	r.id, r.holder = part[0], part[4]
	for i, n := range []*int64{&r.token, &r.attempt, &r.since} {
		if *n, err = strconv.ParseInt(part[i+1], 10, 64); err != nil {
			return r, fmt.Errorf("stored lease %.100q", stored)
		}
	}
	return r, nil
}

// holder describes who is in the way.
func (r reply) holder() *exclusive.Holder {
	h := &exclusive.Holder{ID: r.row.id, Name: r.row.holder, Token: r.row.token, Since: time.UnixMicro(r.row.since)}
	if r.now > 0 && r.left > 0 {
		h.Expires = time.UnixMicro(r.now + r.left*1000)
	}
	return h
}

// unreadable says that a Redis key holds what this package has not written.
func unreadable(op, key string, err error) error {
	return &exclusive.Error{Op: op, Key: key, Kind: exclusive.ErrUnavailable, Hint: foreign, Err: err}
}
