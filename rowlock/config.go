package rowlock

import (
	"errors"
	"strings"
	"time"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/internal/ident"
	"github.com/exclusive-go/exclusive/internal/strategy"
)

// The limits of Config.Probe, and what it is when it is zero.
const (
	DefaultProbe = time.Second
	MinProbe     = 10 * time.Millisecond
	MaxProbe     = time.Hour
)

// DefaultPrefix is what the name of our own table begins with.
const DefaultPrefix = strategy.DefaultPrefix

// Config configures Locks. The zero value is ready to use: keys are rows of
// exclusive_lock, and a key that is held is refused at once.
type Config struct {
	// Schema is the schema (MySQL, MariaDB: the database; SQLite: the attached
	// database) of the table. Empty: what the connection finds by itself.
	Schema string
	// Prefix is what the name of our own table begins with. Empty:
	// DefaultPrefix. It goes with an empty Table only.
	Prefix string

	// Table is a table of the application's own whose rows are locked. Empty:
	// exclusive_lock, where every key exists.
	Table string
	// KeyColumns is what identifies a row of Table. It needs a unique index:
	// without one, MySQL and MariaDB lock every row that they look at.
	KeyColumns []string
	// KeyValues turns a key into the values of KeyColumns, which are strings,
	// integers or byte slices of the columns' own types. Strings are compared
	// byte for byte, whatever the collation, so that "Report" is not the row of
	// "report". An error is ErrInvalid. Nil, for one column: the key itself, as
	// text.
	KeyValues func(key string) ([]any, error)

	// Where is the condition on a row that Next claims, in SQL, such as
	// "done_at IS NULL". It goes into the statement as it is: never build it
	// from input. Empty: every row.
	Where string
	// OrderBy are the columns that say which rows Next claims first. Empty:
	// KeyColumns.
	OrderBy []string

	// Wait is how long Do, DoAll and Run wait for a key that is held. Zero:
	// not at all. The context's end ends the wait too. See the package's
	// documentation for who holds a connection while it waits.
	Wait time.Duration

	// Probe is how often the connection that holds a lock is asked whether it
	// lives while work runs elsewhere. If it does not, work's context ends
	// with ErrLost. It also keeps the server's idle time-outs away. Zero:
	// DefaultProbe.
	Probe time.Duration
	// NoProbe turns that off: a loss shows when work has returned.
	NoProbe bool

	// Observer is told what happens to grants, see exclusive.Op. It may be nil.
	Observer exclusive.Observer
}

// complete fills in the defaults and reports all that is wrong.
func (c Config) complete() (Config, error) {
	errs := []error{strategy.NotNegative("Wait", c.Wait)}
	if c.Table == "" {
		c.Prefix = strategy.Default(c.Prefix, DefaultPrefix)
		errs = append(errs, strategy.ValidNames(c.Schema, c.Prefix, "lock"))
		if c.KeyColumns != nil || c.KeyValues != nil || c.Where != "" || c.OrderBy != nil {
			errs = append(errs, errors.New("KeyColumns, KeyValues, Where and OrderBy need a Table"))
		}
	} else {
		errs = append(errs, c.ownRows()...)
		if c.OrderBy == nil {
			c.OrderBy = c.KeyColumns
		}
	}
	if c.NoProbe && c.Probe != 0 {
		errs = append(errs, errors.New("Probe is set although NoProbe is"))
	}
	c.Probe = strategy.Default(c.Probe, DefaultProbe)
	errs = append(errs, strategy.Between("Probe", c.Probe, MinProbe, MaxProbe))
	return c, strategy.InvalidConfig("rowlock", errs...)
}

// ownRows reports what is wrong with the names of the application's own table.
func (c Config) ownRows() []error {
	errs := []error{strategy.ValidTable(c.Schema, c.Table)}
	if c.Prefix != "" {
		errs = append(errs, errors.New("Prefix goes with our own table; Table names yours"))
	}
	if len(c.KeyColumns) == 0 {
		errs = append(errs, errors.New("KeyColumns is empty"))
	}
	if len(c.KeyColumns) > 1 && c.KeyValues == nil {
		errs = append(errs, errors.New("several KeyColumns need KeyValues"))
	}
	for _, name := range c.KeyColumns {
		errs = append(errs, ident.Check("KeyColumns", name))
	}
	for _, name := range c.OrderBy {
		errs = append(errs, ident.Check("OrderBy", name))
	}
	// Not a parser: these would end the statement or hide the rest of it, and
	// placeholders have no values.
	if strings.ContainsAny(c.Where, ";?$\\") || strings.Contains(c.Where, "--") || strings.Contains(c.Where, "/*") || strings.Contains(c.Where, "#") {
		errs = append(errs, errors.New("Where has a semicolon, a placeholder, a backslash or a comment"))
	}
	return errs
}

// values are the arguments that find key's row.
func (c Config) values(key string) ([]any, error) {
	switch {
	case c.Table == "":
		return []any{[]byte(key)}, nil
	case c.KeyValues == nil:
		return []any{key}, nil
	}
	values, err := c.KeyValues(key)
	if err != nil {
		return nil, err
	}
	return strategy.RowValues(values, len(c.KeyColumns))
}

// table is the quoted name of the table whose rows are locked.
func (c Config) table(d db.Dialect) string {
	if c.Table == "" {
		return strategy.Table(d, c.Schema, c.Prefix, "lock")
	}
	return ident.Quote(strategy.Quote(d), c.Schema, c.Table)
}
