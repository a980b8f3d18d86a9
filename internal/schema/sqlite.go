package schema

import (
	"cmp"
	"context"
	"database/sql"
	"slices"
	"strings"

	"github.com/exclusive-go/exclusive/internal/templates"
)

type sqlite struct{ q Querier }

func (s sqlite) schema(ctx context.Context, name string) (Problem, string, error) {
	var number int64
	found, err := one(ctx, s.q, `SELECT seq FROM pragma_database_list WHERE name = ? COLLATE NOCASE`, []any{name}, &number)
	if err != nil || found {
		return "", "", err
	}
	return Missing, "no database of this name is attached to the connection", nil
}

func (s sqlite) find(ctx context.Context, t templates.Template, n templates.Names) (o live, found bool, err error) {
	name := t.Bare(n)
	// Without a schema a name is looked for in temp, then main, then what is
	// attached. A view has columns too.
	query, args := `SELECT type FROM pragma_table_list WHERE name = ? COLLATE NOCASE
		ORDER BY CASE schema WHEN 'temp' THEN 0 WHEN 'main' THEN 1 ELSE 2 END LIMIT 1`, []any{name}
	columns := `SELECT name, type, "notnull" = 0 AND pk = 0, "notnull" = 1 AND dflt_value IS NULL AND pk = 0, pk FROM pragma_table_info(?)`
	if n.Schema != "" {
		query, args = `SELECT type FROM pragma_table_list WHERE name = ? COLLATE NOCASE AND schema = ? COLLATE NOCASE`, []any{name, n.Schema}
		columns = strings.Replace(columns, "(?)", "(?, ?)", 1)
	}
	var kind string
	found, err = one(ctx, s.q, query, args, &kind)
	if err != nil || !found {
		return o, found, err
	}
	if kind != "table" {
		return o, true, nil
	}
	o.kind = templates.Table
	key := make(map[string]int64)
	err = each(ctx, s.q, columns, args, func(rows *sql.Rows) error {
		var c column
		var place int64
		err := rows.Scan(&c.Name, &c.Type, &c.Null, &c.mustBeGiven, &place)
		c.Type = strings.ToLower(c.Type)
		if o.columns = append(o.columns, c); place > 0 {
			o.key = append(o.key, c.Name)
			key[c.Name] = place
		}
		return err
	})
	slices.SortFunc(o.key, func(a, b string) int { return cmp.Compare(key[a], key[b]) })
	return o, true, err
}

// A file's permissions are for the whole of it.
func (s sqlite) refused(context.Context, templates.Template, templates.Names, live, string) (string, error) {
	return "", nil
}

func (s sqlite) settings(context.Context, templates.Template, templates.Names) ([]fault, error) {
	return nil, nil
}

func (s sqlite) user(context.Context) (string, error) { return "", nil }

func (s sqlite) fits(want, got string) bool { return want == got }
