package casupdate

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/exclusive-go/exclusive/internal/ident"
)

// Set is columns to set beside the state. A value is a string, a []byte, an
// integer, nil, Now or NowMicros; types derived from string and from the
// integers too.
type Set map[string]any

// clock is a value that the database computes.
type clock int

const (
	// Now is the database's clock in a column for timestamps. On MySQL,
	// MariaDB and SQLite, whose columns have no time zone, it is UTC.
	Now clock = iota + 1
	// NowMicros is the database's clock in microseconds since 1970, UTC, in a
	// column of 64-bit integers.
	NowMicros
)

// Transition is a change of state that is allowed.
type Transition struct {
	From, To any // strings or integers
}

// StateError is the state that a row was found in, when that is why a call was
// refused. errors.As finds it.
type StateError struct {
	State string // as text, also where the column holds integers
}

func (e *StateError) Error() string { return fmt.Sprintf("the row is in state %q", e.State) }

// plain turns v into a type that every driver takes.
func plain(v any) (any, error) {
	switch v := v.(type) {
	case nil, int64, string:
		return v, nil
	case []byte:
		if v == nil {
			return nil, nil
		}
		return v, nil
	case clock:
		return v, nil
	}
	r := reflect.ValueOf(v)
	switch {
	case r.Kind() == reflect.String:
		return r.String(), nil
	case r.CanInt():
		return r.Int(), nil
	case r.CanUint() && r.Uint() <= 1<<63-1:
		return int64(r.Uint()), nil
	}
	return nil, fmt.Errorf("a value is of type %T; a string, a []byte, an integer, nil, Now or NowMicros is needed", v)
}

// state checks a state's value.
func state(what string, v any) (any, error) {
	p, err := plain(v)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	switch p := p.(type) {
	case int64:
		return p, nil
	case string:
		if p != "" && utf8.ValidString(p) && strings.IndexByte(p, 0) < 0 {
			return p, nil
		}
		return nil, fmt.Errorf("%s is %q; a state is text that is not empty, or an integer", what, p)
	}
	return nil, fmt.Errorf("%s is %v; a state is text or an integer", what, v)
}

// same reports whether some server could take two states for the same: MySQL's
// usual collations ignore case, and blanks at the end.
func same(a, b any) bool {
	return strings.EqualFold(strings.TrimRight(stateText(a), " "), strings.TrimRight(stateText(b), " "))
}

func stateText(v any) string {
	if n, ok := v.(int64); ok {
		return strconv.FormatInt(n, 10)
	}
	s, _ := v.(string)
	return s
}

// assignment is an entry of a Set.
type assignment struct {
	column string
	value  any
}

// assignments checks a Set and puts it in order. taken are the columns that
// are set or compared otherwise.
func (s Set) assignments(what string, taken []string) ([]assignment, error) {
	var errs []error
	var list []assignment
	for _, column := range slices.Sorted(maps.Keys(s)) {
		errs = append(errs, ident.Check(what, column))
		// Column names are the same in any case, except on PostgreSQL.
		if slices.ContainsFunc(taken, func(t string) bool { return strings.EqualFold(t, column) }) {
			errs = append(errs, fmt.Errorf("%s sets %q, which has a meaning of its own", what, column))
		}
		value, err := plain(s[column])
		if err != nil {
			errs = append(errs, fmt.Errorf("%s, column %q: %w", what, column, err))
		}
		list = append(list, assignment{column, value})
	}
	return list, errors.Join(errs...)
}
