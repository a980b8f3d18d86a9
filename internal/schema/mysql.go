package schema

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/exclusive-go/exclusive/internal/ident"
	"github.com/exclusive-go/exclusive/internal/templates"
)

// mysql is MySQL and MariaDB.
type mysql struct{ q Querier }

func (m mysql) schema(ctx context.Context, name string) (Problem, string, error) {
	var number int64
	found, err := one(ctx, m.q, `SELECT 1 FROM information_schema.schemata WHERE schema_name = ?`, []any{name}, &number)
	if err != nil || found {
		return "", "", err
	}
	return Missing, "it does not exist, or this user may not see it", nil
}

// at are the arguments that find an object in the tables of information_schema.
func at(t templates.Template, n templates.Names) []any { return []any{n.Schema, t.Bare(n)} }

const here = ` WHERE table_schema = COALESCE(NULLIF(?, ''), DATABASE()) AND table_name = ?`

func (m mysql) find(ctx context.Context, t templates.Template, n templates.Names) (o live, found bool, err error) {
	var kind, engine string
	found, err = one(ctx, m.q, `SELECT table_type, COALESCE(engine, '') FROM information_schema.tables`+here, at(t, n), &kind, &engine)
	if err != nil || !found {
		return o, found, err
	}
	switch kind {
	case "BASE TABLE", "SYSTEM VERSIONED":
		o.kind = templates.Table
	case "SEQUENCE":
		o.kind = templates.Sequence
	}
	if !strings.EqualFold(engine, "InnoDB") && o.kind != "" {
		o.faults = append(o.faults, fault{"its engine is " + engine + ", which has no transactions and no row locks", "ALTER TABLE " + t.Quoted(n) + " ENGINE = InnoDB"})
	}
	if o.kind != templates.Table {
		return o, true, nil
	}
	err = each(ctx, m.q, `SELECT column_name, column_type, is_nullable = 'YES', COALESCE(collation_name, ''),
			is_nullable = 'NO' AND column_default IS NULL AND extra NOT LIKE '%auto_increment%' AND extra NOT LIKE '%GENERATED%'
		FROM information_schema.columns`+here+` ORDER BY ordinal_position`, at(t, n),
		func(rows *sql.Rows) error {
			var c column
			err := rows.Scan(&c.Name, &c.Type, &c.Null, &c.collation, &c.mustBeGiven)
			o.columns = append(o.columns, c)
			return err
		})
	if err != nil {
		return o, true, err
	}
	// A key of the beginnings of values would merge two keys.
	o.key, err = names(ctx, m.q, `SELECT IF(sub_part IS NULL, column_name, CONCAT(column_name, '(', sub_part, ')'))
		FROM information_schema.statistics`+here+` AND index_name = 'PRIMARY' ORDER BY seq_in_index`, at(t, n))
	return o, true, err
}

// refused has the server look at a statement without running it: EXPLAIN needs
// the privileges of what it explains, from wherever the user has them.
func (m mysql) refused(ctx context.Context, t templates.Template, n templates.Names, o live, privilege string) (string, error) {
	name := t.Quoted(n)
	var statement string
	switch {
	case o.kind == templates.Sequence && privilege == "INSERT": // what NEXTVAL needs
		statement = `SELECT NEXTVAL(` + name + `)`
	case privilege == "SELECT":
		statement = `SELECT 1 FROM ` + name
	case privilege == "INSERT":
		statement = `INSERT INTO ` + name + ` () VALUES ()`
	case privilege == "UPDATE":
		statement = `UPDATE ` + name + ` SET ` + ident.Quote("`", "", o.columns[0].Name) + ` = '' WHERE FALSE`
	case privilege == "DELETE":
		statement = `DELETE FROM ` + name + ` WHERE FALSE`
	default:
		return "", fmt.Errorf("nobody knows how to find out about %s", privilege)
	}
	nothing := func(*sql.Rows) error { return nil }
	err := each(ctx, m.q, "EXPLAIN "+statement, nil, nothing)
	if err == nil {
		return "", nil
	}
	// The driver's error is not known here. If anything else can be asked it
	// was about the statement.
	if again := each(ctx, m.q, "SELECT 1", nil, nothing); again != nil {
		return "", err
	}
	return "this user lacks " + privilege + " (" + err.Error() + ")", nil
}

func (m mysql) settings(ctx context.Context, t templates.Template, n templates.Names) ([]fault, error) {
	if t.Object.Kind != templates.Sequence {
		return nil, nil
	}
	var cache, cycle, increment int64
	_, err := one(ctx, m.q, `SELECT cache_size, cycle_option, increment FROM `+t.Quoted(n), nil, &cache, &cycle, &increment)
	return sequenceFaults(t.Quoted(n), "NOCACHE NOCYCLE", cache, cycle, increment), err
}

func (m mysql) user(ctx context.Context) (name string, err error) {
	_, err = one(ctx, m.q, `SELECT CURRENT_USER()`, nil, &name)
	// user@host, where a host has no @
	user, host := name, ""
	if i := strings.LastIndexByte(name, '@'); i >= 0 {
		user, host = name[:i], "@'"+name[i+1:]+"'"
	}
	return "'" + strings.ReplaceAll(user, "'", "''") + "'" + host, err
}

// fits takes wider columns too. Some servers write the width of numbers, which
// means nothing.
func (m mysql) fits(want, got string) bool {
	wantName, wantSize := size(want)
	gotName, gotSize := size(got)
	switch {
	case wantName == "varbinary":
		return gotName == wantName && gotSize >= wantSize
	case strings.HasSuffix(wantName, "int"):
		return gotName == wantName
	case wantName == "blob":
		return gotName == "blob" || gotName == "mediumblob" || gotName == "longblob"
	}
	return got == want
}

// size cuts a type like varbinary(200). What follows it, as unsigned does, stays
// part of the name.
func size(typ string) (name string, n int) {
	before, after, ok := strings.Cut(typ, "(")
	if !ok {
		return typ, 0
	}
	number, rest, _ := strings.Cut(after, ")")
	if _, err := fmt.Sscan(number, &n); err != nil {
		return typ, 0
	}
	return before + rest, n
}
