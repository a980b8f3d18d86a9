package redisbackend

import (
	"errors"
	"io"
	"net"
	"syscall"
	"testing"

	"github.com/redis/go-redis/v9"
)

// replied is an error that the server has answered with.
type replied string

func (r replied) Error() string { return string(r) }
func (replied) RedisError()     {}

// What may have run although the last attempt says otherwise.
func TestMayHaveRun(t *testing.T) {
	refused := &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	var _ redis.Error = replied("")
	for _, c := range []struct {
		written int
		err     error
		want    bool
	}{
		{0, refused, false},
		{0, replied("WRONGPASS invalid username-password pair"), false},
		{0, redis.ErrPoolTimeout, false},
		{1, io.EOF, true},
		{1, errors.New("anything"), true},
		{1, refused, true}, // the answer to the first was lost
		{1, replied("WRONGPASS invalid username-password pair"), true},
		{1, replied("OOM command not allowed when used memory > 'maxmemory'."), false},
		{1, replied("NOPERM this user has no permissions to run the 'evalsha' command"), false},
		{2, replied("LOADING Redis is loading the dataset in memory"), true},
		{2, refused, true},
	} {
		sent := &counted{text: "id"}
		for range c.written {
			if b, err := sent.MarshalBinary(); string(b) != "id" || err != nil {
				t.Fatalf("written as %q, %v", b, err)
			}
		}
		if got := sent.mayHaveRun(c.err); got != c.want {
			t.Errorf("written %d times, then %v: %v", c.written, c.err, got)
		}
	}
}
