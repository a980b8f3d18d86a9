package redisbackend

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/redis/go-redis/v9"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/internal/strategy"
)

// The limits of a lease's length, and what Config.TTL is when it is zero.
const (
	DefaultTTL = 30 * time.Second
	MinTTL     = 10 * time.Millisecond
	MaxTTL     = 31 * 24 * time.Hour
)

// DefaultPrefix is what the names of Redis keys and channels begin with.
const DefaultPrefix = "exclusive:"

// Config configures Leases. The zero value is ready to use.
type Config struct {
	// Prefix is what the names of Redis keys and channels begin with. Empty:
	// DefaultPrefix. At most 100 bytes, without braces.
	Prefix string

	// TTL is the length of a lease on the server's clock: how long a key stays
	// taken after its holder has vanished. Zero: DefaultTTL. A lease is renewed
	// when a third of it has passed. Redis counts it in whole milliseconds,
	// rounded up.
	TTL time.Duration
	// Wait is how long Do waits for a key that is held. Zero: not at all. Longer
	// than TTL: it takes over from a holder that dies meanwhile.
	Wait time.Duration
	// NoRenew turns renewal off: each lease ends TTL after it was acquired.
	NoRenew bool
	// MaxHold ends renewal after this time, so that a holder that hangs lets
	// go. Zero: no limit.
	MaxHold time.Duration

	// Holder is a name for operators, kept with the lease and shown to those
	// who are refused. Empty: host name and process id. At most 200 bytes.
	Holder string

	// Observer is told what happens to grants, see exclusive.Op. It may be nil.
	Observer exclusive.Observer

	// Tokens is where tokens come from. nil: a counter in Redis. All processes
	// that share keys must have the same source.
	Tokens TokenSource
}

// complete fills in the defaults and reports all that is wrong.
func (c Config) complete(client redis.UniversalClient) (Config, error) {
	c.Prefix = strategy.Default(c.Prefix, DefaultPrefix)
	c.TTL = strategy.Default(c.TTL, DefaultTTL)
	holder, err := strategy.Holder(c.Holder)
	c.Holder = holder
	errs := []error{
		err,
		validPrefix(c.Prefix),
		strategy.Between("TTL", c.TTL, MinTTL, MaxTTL),
		strategy.NotNegative("Wait", c.Wait),
		strategy.NotNegative("MaxHold", c.MaxHold),
	}
	if client == nil {
		errs = append(errs, errors.New("the Redis client is nil"))
	}
	return c, strategy.InvalidConfig("redisbackend", errs...)
}

// validPrefix refuses braces: Redis Cluster would take what is between them for
// the hash tag, and all keys would go to one node.
func validPrefix(p string) error {
	if len(p) > 100 || !utf8.ValidString(p) || strings.ContainsAny(p, "{}") || strings.ContainsFunc(p, unicode.IsControl) {
		return fmt.Errorf("Prefix %.120q must be at most 100 bytes of valid UTF-8 without braces and control characters", p)
	}
	return nil
}
