package casupdate

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/internal/ident"
	"github.com/exclusive-go/exclusive/internal/strategy"
)

// The defaults of Config, and the limits of its TTL.
const (
	DefaultKeyColumn   = "id"
	DefaultStateColumn = "state"

	MinTTL = 10 * time.Millisecond
	MaxTTL = 31 * 24 * time.Hour
)

// Config names the table and its columns, and says what its states mean. Table
// is required, and From, Claimed and Done are, unless only Transition is used.
type Config struct {
	// Schema is the schema (MySQL, MariaDB: the database; SQLite: the attached
	// database) of the table. Empty: what the connection finds by itself.
	Schema string
	// Table is the application's table.
	Table string
	// Key says how a key names a row. Zero: Text(DefaultKeyColumn).
	Key Key
	// StateColumn holds the state: text, an enum, or an integer. Empty:
	// DefaultStateColumn.
	StateColumn string

	// From, Claimed and Done are the states of a row that waits for its work,
	// is being worked on, and is finished: strings or integers, or of types
	// derived from these.
	From, Claimed, Done any
	// Failed is the state of a row whose work returned an error or panicked.
	// nil: such a row goes back to From. A row also goes back to From when
	// work ended because its context did.
	Failed any
	// Transitions are what Transition and TransitionTx may do. None leads to
	// Claimed: that is what Do is for. One that leads away from it takes the
	// row from its holder.
	Transitions []Transition

	// OnClaim, OnDone, OnRevert and OnFailed are columns to set as well when
	// the row is claimed, finished, given back and failed.
	OnClaim, OnDone, OnRevert, OnFailed Set

	// TokenColumn, 64-bit integers, counts the claims of the row: each gets a
	// token greater than all before it. GrantColumn, text of at least 26
	// characters, holds the claim's id. Set both or none; both may be NULL in
	// rows that were never claimed. With them a holder proves that the row is
	// still its own. Empty: it is whoever finds the row in state Claimed.
	TokenColumn, GrantColumn string

	// TTL is how long, on the database's clock, a row stays claimed after its
	// holder has vanished; then it can be taken over. A claim is renewed when
	// a third of it has passed. Zero: a claim does not end with time, and
	// nothing is taken over. It needs TokenColumn and ExpiresColumn.
	TTL time.Duration
	// ExpiresColumn, 64-bit integers, holds when a claim can be taken over, in
	// microseconds since 1970. NULL: never.
	ExpiresColumn string
	// NoRenew turns renewal off: each claim ends TTL after it was made.
	NoRenew bool
	// MaxHold ends a claim after this time, so that a holder that hangs lets
	// go. Zero: no limit.
	MaxHold time.Duration

	// Wait is how long Do waits for a row that is claimed. Zero: not at all. Longer
	// than TTL, if there is one: it takes over from a holder that dies meanwhile.
	Wait time.Duration

	// ClaimedAtColumn, 64-bit integers, holds when the row was claimed, in
	// microseconds since 1970. HolderColumn, text that is long enough, holds Holder.
	// Both are shown to those who are refused. Empty: not kept.
	ClaimedAtColumn, HolderColumn string
	// Holder is a name for operators. Empty: host name and process id. At most
	// 200 bytes.
	Holder string

	// VersionColumn, integers of 32 bits or more, is raised by every statement that
	// changes the row, for those who update it with a version check. Empty: none.
	VersionColumn string

	// Observer is told what happens to grants, see exclusive.Op. It may be nil.
	Observer exclusive.Observer
}

// complete fills in the defaults and reports all that is wrong. The states of
// the result are int64 or string.
func (c Config) complete(maxConns int) (Config, error) {
	if len(c.Key.columns) == 0 && c.Key.separator == "" {
		c.Key = Text(DefaultKeyColumn)
	}
	c.StateColumn = strategy.Default(c.StateColumn, DefaultStateColumn)
	holder, err := strategy.Holder(c.Holder)
	c.Holder = holder
	errs := []error{
		err,
		strategy.NotNegative("TTL", c.TTL),
		strategy.NotNegative("Wait", c.Wait),
		strategy.NotNegative("MaxHold", c.MaxHold),
		c.checkNames(),
		c.checkStates(),
		c.checkSets(),
	}
	if (c.TokenColumn == "") != (c.GrantColumn == "") {
		errs = append(errs, errors.New("set both TokenColumn and GrantColumn, or none"))
	}
	if (c.TTL == 0) != (c.ExpiresColumn == "") {
		errs = append(errs, errors.New("set both TTL and ExpiresColumn, or none"))
	}
	if c.TTL > 0 {
		errs = append(errs, strategy.Between("TTL", c.TTL, MinTTL, MaxTTL))
		if c.TokenColumn == "" {
			errs = append(errs, errors.New("takeover needs TokenColumn and GrantColumn: without them a former holder cannot be told from its successor; set them, or leave TTL at zero"))
		}
		if maxConns == 1 && !c.NoRenew {
			errs = append(errs, errors.New("the pool has one connection, and a claim cannot be renewed while work uses it; allow 2, or set NoRenew and a TTL that is long enough"))
		}
	}
	return c, strategy.InvalidConfig("casupdate", errs...)
}

// columns are those with a meaning of their own, and what they are called.
func (c Config) columns() (names, what []string) {
	for _, k := range c.Key.columns {
		names, what = append(names, k.name), append(what, "Key's column")
	}
	for _, o := range []struct{ what, name string }{
		{"StateColumn", c.StateColumn}, {"TokenColumn", c.TokenColumn}, {"GrantColumn", c.GrantColumn},
		{"ExpiresColumn", c.ExpiresColumn}, {"ClaimedAtColumn", c.ClaimedAtColumn},
		{"HolderColumn", c.HolderColumn}, {"VersionColumn", c.VersionColumn},
	} {
		if o.name != "" {
			names, what = append(names, o.name), append(what, o.what)
		}
	}
	return names, what
}

// typed are the columns that must be able to hold what is stored there.
func (c Config) typed() []strategy.Column {
	state := strategy.Column{Table: c.Table, Name: c.StateColumn}
	declared := []any{c.From, c.Claimed, c.Done, c.Failed}
	for _, t := range c.Transitions {
		declared = append(declared, t.From, t.To)
	}
	for _, s := range declared {
		switch s := s.(type) {
		case string:
			state.Values = append(state.Values, s)
		case int64:
			state.Numbers = append(state.Numbers, s)
		}
	}
	list := []strategy.Column{state}
	if c.GrantColumn != "" {
		list = append(list, strategy.Column{Table: c.Table, Name: c.GrantColumn, Length: strategy.GrantIDLength},
			strategy.Column{Table: c.Table, Name: c.TokenColumn, Wide: true})
	}
	for _, name := range []string{c.ExpiresColumn, c.ClaimedAtColumn} {
		if name != "" {
			list = append(list, strategy.Column{Table: c.Table, Name: name, Wide: true})
		}
	}
	if c.HolderColumn != "" {
		list = append(list, strategy.Column{Table: c.Table, Name: c.HolderColumn, Values: []string{c.Holder}})
	}
	if c.VersionColumn != "" {
		list = append(list, versions(c.Table, c.VersionColumn))
	}
	return list
}

// versions is a column that counts the changes of a row. Where it is full MySQL and
// MariaDB may count no further, and say nothing: no update is too late then.
func versions(table, name string) strategy.Column {
	return strategy.Column{Table: table, Name: name, Numbers: []int64{math.MaxInt32}}
}

func (c Config) checkNames() error {
	errs := []error{strategy.ValidTable(c.Schema, c.Table), c.Key.check()}
	names, what := c.columns()
	seen := make(map[string]string)
	for i, name := range names[len(c.Key.columns):] {
		errs = append(errs, ident.Check(what[len(c.Key.columns)+i], name))
	}
	for i, name := range names {
		folded := strings.ToLower(name)
		if other, ok := seen[folded]; ok && i >= len(c.Key.columns) {
			errs = append(errs, fmt.Errorf("%s and %s are both %q", other, what[i], name))
		}
		seen[folded] = what[i]
	}
	return errors.Join(errs...)
}

// checkStates also replaces the states by plain values.
func (c *Config) checkStates() error {
	var errs []error
	var known []any
	if c.claims() {
		for _, s := range []struct {
			what string
			v    *any
		}{{"From", &c.From}, {"Claimed", &c.Claimed}, {"Done", &c.Done}, {"Failed", &c.Failed}} {
			if *s.v == nil && s.what == "Failed" {
				continue
			}
			v, err := state(s.what, *s.v)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			for _, k := range known {
				if same(k, v) {
					errs = append(errs, fmt.Errorf("%s is %v, as another state, or not different enough for every server", s.what, v))
				}
			}
			known = append(known, v)
			*s.v = v
		}
	} else if len(c.Transitions) == 0 {
		errs = append(errs, errors.New("set From, Claimed and Done, or Transitions"))
	}
	declared := make([]Transition, 0, len(c.Transitions))
	for i, t := range c.Transitions {
		from, ferr := state(fmt.Sprintf("Transitions[%d].From", i), t.From)
		to, terr := state(fmt.Sprintf("Transitions[%d].To", i), t.To)
		errs = append(errs, ferr, terr)
		if c.claims() && terr == nil && c.Claimed != nil && same(to, c.Claimed) {
			errs = append(errs, fmt.Errorf("Transitions[%d] leads to Claimed; use Do", i))
		}
		declared = append(declared, Transition{from, to})
	}
	c.Transitions = declared
	return errors.Join(errs...)
}

// claims reports whether Do is configured.
func (c *Config) claims() bool {
	return c.From != nil || c.Claimed != nil || c.Done != nil || c.Failed != nil
}

func (c Config) checkSets() error {
	taken, _ := c.columns()
	var errs []error
	for _, s := range []struct {
		what string
		set  Set
	}{{"OnClaim", c.OnClaim}, {"OnDone", c.OnDone}, {"OnRevert", c.OnRevert}, {"OnFailed", c.OnFailed}} {
		_, err := s.set.assignments(s.what, taken)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// declared returns the plain values of a transition that is allowed.
func (c *Config) declared(from, to any) (Transition, error) {
	f, err := state("from", from)
	if err != nil {
		return Transition{}, err
	}
	t, err := state("to", to)
	if err != nil {
		return Transition{}, err
	}
	for _, d := range c.Transitions {
		if d.From == f && d.To == t {
			return d, nil
		}
	}
	return Transition{}, fmt.Errorf("the transition from %v to %v is not declared in Config.Transitions", f, t)
}
