package fencing

import (
	"errors"
	"time"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/internal/strategy"
)

// The limits of a lease's length, and what Config.TTL is when it is zero.
const (
	DefaultTTL = 30 * time.Second
	MinTTL     = 10 * time.Millisecond
	MaxTTL     = 31 * 24 * time.Hour
)

// DefaultPrefix is what the names of the tables begin with.
const DefaultPrefix = strategy.DefaultPrefix

// Config configures Leases. The zero value is ready to use.
type Config struct {
	// Schema is the schema (MySQL, MariaDB: the database; SQLite: the attached
	// database) of the tables. Empty: what the connection finds by itself.
	Schema string
	// Prefix is what the names of the tables begin with. Empty: DefaultPrefix.
	Prefix string

	// TTL is the length of a lease on the database's clock: how long a key
	// stays taken after its holder has vanished. Zero: DefaultTTL. A lease is
	// renewed when a third of it has passed.
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
}

// GuardConfig configures a Guard. The zero value is ready to use. The fields
// mean what those of Config mean.
type GuardConfig struct {
	Schema   string
	Prefix   string
	Observer exclusive.Observer
}

// complete fills in the defaults and reports all that is wrong.
func (c Config) complete(maxConns int) (Config, error) {
	c.Prefix = strategy.Default(c.Prefix, DefaultPrefix)
	c.TTL = strategy.Default(c.TTL, DefaultTTL)
	holder, err := strategy.Holder(c.Holder)
	c.Holder = holder
	errs := []error{
		err,
		validNames(c.Schema, c.Prefix),
		strategy.Between("TTL", c.TTL, MinTTL, MaxTTL),
		strategy.NotNegative("Wait", c.Wait),
		strategy.NotNegative("MaxHold", c.MaxHold),
	}
	if maxConns == 1 && !c.NoRenew {
		errs = append(errs, errors.New("the pool has one connection, and a lease cannot be renewed while work uses it; allow 2, or set NoRenew and a TTL that is long enough"))
	}
	return c, invalidConfig(errs...)
}

func (c GuardConfig) complete() (GuardConfig, error) {
	c.Prefix = strategy.Default(c.Prefix, DefaultPrefix)
	return c, invalidConfig(validNames(c.Schema, c.Prefix))
}

func validNames(schema, prefix string) error { return strategy.ValidNames(schema, prefix, "lease") }

func invalidConfig(errs ...error) error { return strategy.InvalidConfig("fencing", errs...) }
