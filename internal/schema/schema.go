// Package schema compares the tables of a live database with what the
// strategies need, and makes those that are missing. What they need is in the
// files of package migrations, and nowhere else.
package schema

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/internal/templates"
)

// Querier is what Check needs of a *sql.DB, *sql.Conn or *sql.Tx.
type Querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// Difference is something in which a database is not as the strategies need it.
type Difference struct {
	Template string  `json:"template,omitempty"` // that makes the object; empty for a schema
	Object   string  `json:"object"`             // its kind and its quoted name
	Problem  Problem `json:"problem"`
	Text     string  `json:"text"` // what is wrong
	Mend     string  `json:"mend"` // what to do
}

// HaveMade adds what makes the tables that are missing to what mends that.
func HaveMade(found []Difference, by string) []Difference {
	for i, d := range found {
		if d.Problem == Missing && d.Template != "" {
			found[i].Mend += ", or have the tables made: " + by
		}
	}
	return found
}

// Problem is a kind of Difference.
type Problem string

// The problems that a database can have.
const (
	Missing   Problem = "missing"   // it does not exist, or this user may not see it
	Kind      Problem = "kind"      // it is not a table, or not a sequence
	Column    Problem = "column"    // a column is missing, has the wrong type, or is one too many
	Key       Problem = "key"       // the primary key is another
	Setting   Problem = "setting"   // storage or sequence: what is stored could be lost or go back
	Privilege Problem = "privilege" // this user may not do what the strategies do
)

// Check compares the tables with those that the templates make, for the user
// who asks. present are the strategies of which something is there; without
// strategies it looks at these, or at all if there are none. It changes nothing
// and takes no locks that others would wait for. Columns that are more than
// needed do no harm, unless each row must have a value there.
func Check(ctx context.Context, q Querier, s templates.Selection) (found []Difference, present []string, err error) {
	if found, err = checkAll(ctx, q, s); err != nil {
		return nil, nil, err
	}
	if len(found) == 1 && found[0].Template == "" {
		return found, nil, nil // the schema itself
	}
	list, err := templates.Of(s.Dialect, s.Strategies)
	if err != nil {
		return nil, nil, err
	}
	for _, t := range list {
		missing := slices.ContainsFunc(found, func(d Difference) bool { return d.Template == t.Name && d.Problem == Missing })
		if !missing && !slices.Contains(present, t.Strategy) {
			present = append(present, t.Strategy)
		}
	}
	if len(s.Strategies) == 0 && len(present) > 0 {
		found = slices.DeleteFunc(found, func(d Difference) bool {
			strategy, _, _ := strings.Cut(d.Template, "_")
			return !slices.Contains(present, strategy)
		})
	}
	return found, present, nil
}

// checkAll is Check of all strategies, if none are named.
func checkAll(ctx context.Context, q Querier, s templates.Selection) ([]Difference, error) {
	if err := s.Names.Validate(); err != nil {
		return nil, err
	}
	list, err := templates.Of(s.Dialect, s.Strategies)
	if err != nil {
		return nil, err
	}
	c := newCatalog(q, s.Dialect)
	if s.Names.Schema != "" {
		problem, text, err := c.schema(ctx, s.Names.Schema)
		if err != nil {
			return nil, fmt.Errorf("read the catalog: %w", err)
		}
		if text != "" { // nothing in it can be seen
			return []Difference{{Object: "schema " + s.Names.Schema, Problem: problem, Text: text, Mend: "make it, or name another schema"}}, nil
		}
	}
	var found []Difference
	for _, t := range list {
		more, err := check(ctx, c, t, s.Names)
		if err != nil {
			return nil, fmt.Errorf("read the catalog: %w", err)
		}
		found = append(found, more...)
	}
	return found, nil
}

// live is an object as it is in the database.
type live struct {
	id      int64 // PostgreSQL's
	kind    templates.Kind
	columns []column
	key     []string
	faults  []fault
}

type column struct {
	templates.Column
	collation   string
	mustBeGiven bool // a row without a value for it is refused
}

// fault is a setting that is wrong, and how it is set right.
type fault struct{ text, mend string }

// catalog is what a dialect tells about its objects.
type catalog interface {
	// schema says what is wrong with a schema, or nothing.
	schema(ctx context.Context, name string) (p Problem, text string, err error)
	// find reads an object. Its kind is empty if it is neither a table nor a
	// sequence.
	find(ctx context.Context, t templates.Template, n templates.Names) (o live, found bool, err error)
	// refused says why the user does not have a privilege, or nothing.
	refused(ctx context.Context, t templates.Template, n templates.Names, o live, privilege string) (text string, err error)
	// settings reads what can only be read with privileges.
	settings(ctx context.Context, t templates.Template, n templates.Names) ([]fault, error)
	// user is the name to grant to.
	user(ctx context.Context) (string, error)
	// fits reports whether a column's type will do.
	fits(want, got string) bool
}

func newCatalog(q Querier, d db.Dialect) catalog {
	switch d {
	case db.Postgres:
		return postgres{q}
	case db.SQLite:
		return sqlite{q}
	default:
		return mysql{q}
	}
}

func check(ctx context.Context, c catalog, t templates.Template, n templates.Names) (found []Difference, err error) {
	object := string(t.Object.Kind) + " " + t.Quoted(n)
	byHand := "change it by hand as in the migration " + t.Name + ", or have other names with another prefix"
	differ := func(p Problem, mend, format string, args ...any) {
		found = append(found, Difference{t.Name, object, p, fmt.Sprintf(format, args...), mend})
	}
	o, ok, err := c.find(ctx, t, n)
	switch {
	case err != nil:
		return nil, err
	case !ok:
		differ(Missing, "apply the migration "+t.Name, "it does not exist, or this user may not see it")
		return found, nil
	case o.kind != t.Object.Kind:
		differ(Kind, byHand, "something else has this name")
		return found, nil
	}
	for _, want := range t.Object.Columns {
		i := slices.IndexFunc(o.columns, func(c column) bool { return strings.EqualFold(c.Name, want.Name) })
		if i < 0 {
			differ(Column, byHand, "the column %s is missing", want.Name)
			continue
		}
		got := o.columns[i]
		if !c.fits(want.Type, got.Type) {
			with := ""
			if got.collation != "" {
				with = " with the collation " + got.collation + ", under which different values can be equal"
			}
			differ(Column, byHand, "the column %s is %s%s; it must be %s", want.Name, got.Type, with, want.Type)
		}
		if want.Null != got.Null {
			differ(Column, byHand, "the column %s must %s", want.Name, map[bool]string{true: "allow NULL", false: "be NOT NULL"}[want.Null])
		}
	}
	for _, got := range o.columns {
		if got.mustBeGiven && !slices.ContainsFunc(t.Object.Columns, func(c templates.Column) bool { return strings.EqualFold(c.Name, got.Name) }) {
			differ(Column, "give the column a default, or drop it", "the column %s is not ours and has no default, so that no row can be inserted", got.Name)
		}
	}
	if t.Object.Kind == templates.Table && !slices.EqualFunc(o.key, t.Object.PrimaryKey, strings.EqualFold) {
		is := "there is no primary key that rows can be told apart by"
		if len(o.key) > 0 {
			is = "the primary key is (" + strings.Join(o.key, ", ") + ")"
		}
		differ(Key, byHand, "%s; it must be (%s)", is, strings.Join(t.Object.PrimaryKey, ", "))
	}
	denied := false
	for _, privilege := range t.Object.Privileges {
		text, err := c.refused(ctx, t, n, o, privilege)
		if err != nil {
			return nil, err
		}
		if text == "" {
			continue
		}
		denied = true
		user, err := c.user(ctx)
		if err != nil {
			return nil, err
		}
		differ(Privilege, t.GrantOf(privilege, n, user), "%s", text)
	}
	if !denied {
		faults, err := c.settings(ctx, t, n)
		if err != nil {
			return nil, err
		}
		o.faults = append(o.faults, faults...)
	}
	for _, f := range o.faults {
		differ(Setting, f.mend, "%s", f.text)
	}
	return found, nil
}

// sequenceFaults says what is wrong with a sequence. none is how the dialect
// writes that there is no cache and no cycle.
func sequenceFaults(name, none string, cache, cycle, increment int64) (faults []fault) {
	mend := "ALTER SEQUENCE " + name + " " + none
	if cache > 1 {
		faults = append(faults, fault{fmt.Sprintf("it has CACHE %d, so a later grant could get a smaller token than an earlier", cache), mend})
	}
	if cycle != 0 {
		faults = append(faults, fault{"it has CYCLE, so tokens could start again", mend})
	}
	if increment < 1 {
		faults = append(faults, fault{fmt.Sprintf("it counts by %d, so tokens do not rise", increment), "ALTER SEQUENCE " + name + " INCREMENT BY 1"})
	}
	return faults
}

// each runs a query and calls scan for each row.
func each(ctx context.Context, q Querier, query string, args []any, scan func(*sql.Rows) error) (err error) {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// names runs a query of one column.
func names(ctx context.Context, q Querier, query string, args []any) (list []string, err error) {
	err = each(ctx, q, query, args, func(rows *sql.Rows) error {
		var name string
		err := rows.Scan(&name)
		list = append(list, name)
		return err
	})
	return list, err
}

// one is each for a query of at most one row.
func one(ctx context.Context, q Querier, query string, args []any, dest ...any) (found bool, err error) {
	err = each(ctx, q, query, args, func(rows *sql.Rows) error {
		found = true
		return rows.Scan(dest...)
	})
	return found, err
}
