package strategy

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/internal/ident"
)

// DefaultPrefix is what the names of our own tables begin with.
const DefaultPrefix = "exclusive_"

// The servers' wall clocks in microseconds since 1970. Never the start of a
// transaction: that may be long ago.
const (
	PostgresNow = `(extract(epoch FROM clock_timestamp()) * 1000000)::bigint`
	// UTC, so that no session time zone and no daylight saving comes in. It is
	// the time at which the statement began, before any wait for a lock.
	MySQLNow = `TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))`
	// It has milliseconds, and needs SQLite 3.42.
	SQLiteNow = `CAST(unixepoch('subsec') * 1000000 AS INTEGER)`
)

// Now returns the dialect's clock.
func Now(d db.Dialect) string {
	switch d {
	case db.Postgres:
		return PostgresNow
	case db.SQLite:
		return SQLiteNow
	default:
		return MySQLNow
	}
}

// Quote returns the character that encloses identifiers.
func Quote(d db.Dialect) string {
	if d == db.MySQL || d == db.MariaDB {
		return "`"
	}
	return `"`
}

// Table quotes the name of one of our own tables.
func Table(d db.Dialect, schema, prefix, name string) string {
	return ident.Quote(Quote(d), schema, prefix+name)
}

// ValidNames checks what Table quotes. longest is the longest name that is made
// with the prefix.
func ValidNames(schema, prefix, longest string) error {
	return errors.Join(validSchema(schema), ident.Check("Prefix with a table's name", prefix+longest))
}

// ValidTable checks the name of a table of the application's own.
func ValidTable(schema, table string) error {
	return errors.Join(ident.Check("Table", table), validSchema(schema))
}

func validSchema(schema string) error {
	if schema == "" {
		return nil // what the connection finds by itself
	}
	return ident.Check("Schema", schema)
}

// Default returns v, or def if v is the zero value.
func Default[T comparable](v, def T) T {
	if v == *new(T) {
		return def
	}
	return v
}

// NotNegative checks a duration of which zero means none.
func NotNegative(name string, d time.Duration) error {
	if d < 0 {
		return fmt.Errorf("%s is %v; it must not be negative", name, d)
	}
	return nil
}

// Between checks a duration that has limits.
func Between(name string, d, least, most time.Duration) error {
	if d < least || d > most {
		return fmt.Errorf("%s is %v; it must be from %v to %v", name, d, least, most)
	}
	return nil
}

// Holder returns name, or host name and process id if it is empty.
func Holder(name string) (string, error) {
	if name == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "unknown-host"
		}
		return fmt.Sprintf("%.150s/%d", host, os.Getpid()), nil
	}
	if len(name) > MaxHolder || !utf8.ValidString(name) || strings.IndexByte(name, 0) >= 0 {
		return name, fmt.Errorf("Holder must be at most %d bytes of valid UTF-8 without NUL", MaxHolder)
	}
	return name, nil
}

// InvalidConfig joins what is wrong with a configuration, or returns nil.
func InvalidConfig(strategy string, errs ...error) error {
	if err := errors.Join(errs...); err != nil {
		return &exclusive.Error{Op: "configure " + strategy, Kind: exclusive.ErrInvalid, Err: err}
	}
	return nil
}

// ValidAdapter fails if there is no adapter.
func ValidAdapter[Tx any](strategy string, d db.DB[Tx]) error {
	if d == nil {
		return InvalidConfig(strategy, errors.New("the adapter is nil"))
	}
	return nil
}
