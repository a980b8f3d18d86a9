package uniquetask

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/internal/strategy"
)

// The limits of Config.TTL, and what it is when it is zero.
const (
	DefaultTTL = 30 * time.Second
	MinTTL     = 10 * time.Millisecond
	MaxTTL     = 31 * 24 * time.Hour
)

// DefaultMaxBackoff is what Config.MaxBackoff is when it is zero.
const DefaultMaxBackoff = time.Hour

// DefaultPrefix is what the names of the tables begin with.
const DefaultPrefix = strategy.DefaultPrefix

// Config configures Tasks. Only Task must be set.
type Config struct {
	// Schema is the schema (MySQL, MariaDB: the database; SQLite: the attached
	// database) of the tables. Empty: what the connection finds by itself.
	Schema string
	// Prefix is what the names of the tables begin with. Empty: DefaultPrefix.
	Prefix string

	// Task names what runs, for example "nightly-report". The key that Do is
	// given is the run, for example "2026-11-29". The rules of
	// exclusive.ValidateKey hold for both.
	Task string

	// TTL is how long a holder's heartbeat may be missing, on the database's
	// clock, before the run is taken over. Zero: DefaultTTL. The heartbeat is
	// sent when a third of it has passed.
	TTL time.Duration
	// Wait is how long Do waits for a run that is held: for it to become free,
	// or done. Zero: not at all. Longer than TTL: it takes over from a holder
	// that dies meanwhile.
	Wait time.Duration
	// NoRenew turns the heartbeat off: a run is taken over TTL after it began.
	NoRenew bool
	// MaxHold ends the heartbeat after this time, so that a holder that hangs
	// lets go. Zero: no limit.
	MaxHold time.Duration

	// MaxAttempts is how often a run may begin, whether its attempts failed or
	// vanished. 1: never again after a failure. Zero: no limit.
	MaxAttempts int
	// Backoff is how long a failed run rests before its second attempt. It
	// doubles with each further attempt. An attempt that ends after the caller's
	// context has, or after its grant was lost, takes no rest: it was stopped,
	// and did not fail by itself. Zero: no rest.
	Backoff time.Duration
	// MaxBackoff limits the doubling. Zero: DefaultMaxBackoff, or Backoff if
	// that is longer.
	MaxBackoff time.Duration

	// Holder is a name for operators, kept with the run and shown to those who
	// are refused. Empty: host name and process id. At most 200 bytes.
	Holder string

	// Observer is told what happens to grants, see exclusive.Op. It may be nil.
	Observer exclusive.Observer
}

// complete fills in the defaults and reports all that is wrong.
func (c Config) complete(maxConns int) (Config, error) {
	c.Prefix = strategy.Default(c.Prefix, DefaultPrefix)
	c.TTL = strategy.Default(c.TTL, DefaultTTL)
	c.MaxBackoff = strategy.Default(c.MaxBackoff, max(DefaultMaxBackoff, c.Backoff))
	holder, err := strategy.Holder(c.Holder)
	c.Holder = oneLine(holder, len(holder))
	errs := []error{
		err,
		validNames(c.Schema, c.Prefix),
		strategy.Between("TTL", c.TTL, MinTTL, MaxTTL),
		strategy.NotNegative("Wait", c.Wait),
		strategy.NotNegative("MaxHold", c.MaxHold),
		strategy.NotNegative("Backoff", c.Backoff),
	}
	if c.Task == "" {
		errs = append(errs, errors.New("Task is empty; name what runs"))
	} else if err := exclusive.ValidateKey("name the task", c.Task); err != nil {
		errs = append(errs, err)
	}
	if c.MaxAttempts < 0 {
		errs = append(errs, fmt.Errorf("MaxAttempts is %d; it must not be negative", c.MaxAttempts))
	}
	if c.MaxBackoff < c.Backoff {
		errs = append(errs, fmt.Errorf("MaxBackoff is %v; it must not be less than Backoff, %v", c.MaxBackoff, c.Backoff))
	}
	if maxConns == 1 && !c.NoRenew {
		errs = append(errs, errors.New("the pool has one connection, and the heartbeat cannot be sent while work uses it; allow 2, or set NoRenew and a TTL that is long enough"))
	}
	return c, strategy.InvalidConfig("uniquetask", errs...)
}

func validNames(schema, prefix string) error {
	return strategy.ValidNames(schema, prefix, "task_floor")
}

// maxAttempts is the limit as statements compare it.
func (c Config) maxAttempts() int64 {
	if c.MaxAttempts == 0 {
		return 1<<63 - 1
	}
	return int64(c.MaxAttempts)
}

// rest is how long the run rests after this attempt has failed.
func (c Config) rest(attempt int) time.Duration {
	rest := c.Backoff
	for i := 1; i < attempt && rest > 0; i++ {
		if rest > c.MaxBackoff/2 { // what is doubled must not overflow either
			return c.MaxBackoff
		}
		rest *= 2
	}
	return rest
}

// oneLine makes s fit for a line of the history: valid UTF-8 without control
// characters, and at most limit bytes.
func oneLine(s string, limit int) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, s)
	if len(s) > limit {
		s = s[:limit]
	}
	return strings.ToValidUTF8(s, "")
}
