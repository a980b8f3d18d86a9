package exclusive

import (
	"fmt"
	"slices"
	"strings"
)

// Promises are what a strategy keeps. The zero value promises nothing. The
// suite in exclusivetest proves each that is set, for each backend.
type Promises struct {
	// OneWinner: of all who try a free key at the same moment, one gets it and
	// the others are told that it is held.
	OneWinner bool

	// OneAtATime: while a holder works on a key nobody else gets it, however
	// long that takes. It implies TimeBound.
	OneAtATime bool

	// TimeBound: nobody else gets a key before its holder's Grant.Expires. A
	// holder that is paused past it may overlap with the next one.
	TimeBound bool

	// OncePerKey: work that was finished for a key does not run again.
	OncePerKey bool

	// RefusesStale: a Commit or Check by a former holder is refused, so that
	// a paused holder cannot overwrite its successor's result.
	RefusesStale bool

	// InTx: a grant can be proven inside the database transaction that stores
	// the result.
	InTx bool
}

// promiseNames lists the promises in the order of the fields.
var promiseNames = []struct {
	name string
	has  func(Promises) bool
}{
	{"OneWinner", func(p Promises) bool { return p.OneWinner }},
	{"OneAtATime", func(p Promises) bool { return p.OneAtATime }},
	{"TimeBound", func(p Promises) bool { return p.TimeBound || p.OneAtATime }},
	{"OncePerKey", func(p Promises) bool { return p.OncePerKey }},
	{"RefusesStale", func(p Promises) bool { return p.RefusesStale }},
	{"InTx", func(p Promises) bool { return p.InTx }},
}

// Names returns the names of the promises that are kept, in a fixed order.
func (p Promises) Names() []string {
	var names []string
	for _, n := range promiseNames {
		if n.has(p) {
			names = append(names, n.name)
		}
	}
	return names
}

// Missing returns the names of the promises in need that p does not keep.
func (p Promises) Missing(need Promises) []string {
	var names []string
	for _, n := range promiseNames {
		if n.has(need) && !n.has(p) {
			names = append(names, n.name)
		}
	}
	return names
}

// String lists what is promised.
func (p Promises) String() string {
	if names := p.Names(); names != nil {
		return strings.Join(names, ", ")
	}
	return "nothing"
}

// Strategy is a row of the table from which a team chooses.
type Strategy struct {
	Name      string
	Mechanism string   // in one line
	Promises  Promises // as configured by default
	Cost      string   // per Do on PostgreSQL, where nobody is in the way
}

// strategies is the one source of the table: weakest and cheapest first. The
// strategies, the README and Choose all read it.
var strategies = []Strategy{
	{
		Name:      "casupdate",
		Mechanism: "conditional UPDATE of your own row's state",
		Promises:  Promises{OneWinner: true, OneAtATime: true, OncePerKey: true, InTx: true},
		Cost:      "2 round trips, no connection held",
	},
	{
		Name:      "rowlock",
		Mechanism: "SELECT … FOR UPDATE for one transaction",
		Promises:  Promises{OneWinner: true, OneAtATime: true, RefusesStale: true, InTx: true},
		Cost:      "3 round trips (2 with pgx), 1 connection held",
	},
	{
		Name:      "uniquetask",
		Mechanism: "INSERT of a unique (task, run) row",
		Promises:  Promises{OneWinner: true, TimeBound: true, OncePerKey: true, RefusesStale: true, InTx: true},
		Cost:      "2 round trips, no connection held",
	},
	{
		Name:      "fencing",
		Mechanism: "lease with a rising token, checked at the destination",
		Promises:  Promises{OneWinner: true, TimeBound: true, RefusesStale: true, InTx: true},
		Cost:      "2 round trips, no connection held",
	},
	{
		Name:      "redisbackend",
		Mechanism: "lease and counter in one Redis script; `fencing.Guarded` adds RefusesStale and InTx",
		Promises:  Promises{OneWinner: true, TimeBound: true},
		Cost:      "2 round trips to Redis",
	},
}

// Strategies returns the table, weakest and cheapest first.
func Strategies() []Strategy { return slices.Clone(strategies) }

// PromisesOf returns what the named strategy promises as configured by
// default. The name must be one of the table's.
func PromisesOf(name string) Promises {
	for _, s := range strategies {
		if s.Name == name {
			return s.Promises
		}
	}
	panic(fmt.Sprintf("exclusive: no strategy is named %q", name))
}

// Choose lists the strategies that keep all promises in need, weakest and
// cheapest first.
func Choose(need Promises) []Strategy {
	var suffice []Strategy
	for _, s := range strategies {
		if len(s.Promises.Missing(need)) == 0 {
			suffice = append(suffice, s)
		}
	}
	return suffice
}

// Require fails with ErrUnsupported if x is too weak for need. Call it at
// start-up, where the invariant is known and the strategy is configured.
func Require(x Exclusive, need Promises) error {
	missing := x.Promises().Missing(need)
	if missing == nil {
		return nil
	}
	hint := fmt.Sprintf("%s not promised", strings.Join(missing, ", "))
	var names []string
	for _, s := range Choose(need) {
		names = append(names, s.Name)
	}
	if names == nil {
		hint += "; no single strategy promises all of that"
	} else {
		hint += "; these do, as configured by default: " + strings.Join(names, ", ")
	}
	return &Error{Op: "require", Kind: ErrUnsupported, Hint: hint}
}
