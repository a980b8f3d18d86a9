package schema

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/exclusive-go/exclusive/internal/templates"
)

type postgres struct{ q Querier }

func (p postgres) schema(ctx context.Context, name string) (Problem, string, error) {
	var usable bool
	found, err := one(ctx, p.q, `SELECT has_schema_privilege(oid, 'USAGE') FROM pg_catalog.pg_namespace WHERE nspname = $1`, []any{name}, &usable)
	switch {
	case err != nil:
		return "", "", err
	case !found:
		return Missing, "it does not exist", nil
	case !usable:
		return Privilege, "this user lacks USAGE on it", nil
	}
	return "", "", nil
}

func (p postgres) find(ctx context.Context, t templates.Template, n templates.Names) (o live, found bool, err error) {
	var kind, persistence string
	found, err = one(ctx, p.q, `SELECT oid::bigint, relkind::text, relpersistence::text FROM pg_catalog.pg_class
		WHERE oid = to_regclass($1::text)`, []any{t.Quoted(n)}, &o.id, &kind, &persistence)
	if err != nil || !found {
		return o, found, err
	}
	switch kind {
	case "r", "p":
		o.kind = templates.Table
	case "S":
		o.kind = templates.Sequence
	}
	switch persistence {
	case "u":
		o.faults = append(o.faults, fault{"it is UNLOGGED: a crash of the server empties it, and a standby does not have it",
			fmt.Sprintf("ALTER %s %s SET LOGGED", t.Object.Kind, t.Quoted(n))})
	case "t":
		o.faults = append(o.faults, fault{"it is TEMPORARY: no other session sees it", "apply the migration " + t.Name + " where the temporary one does not exist"})
	}
	if o.kind != templates.Table {
		return o, true, nil
	}
	err = each(ctx, p.q, `SELECT attname, format_type(atttypid, atttypmod), NOT attnotnull,
			attnotnull AND NOT atthasdef AND attidentity = ''
		FROM pg_catalog.pg_attribute WHERE attrelid = $1::bigint::oid AND attnum > 0 AND NOT attisdropped ORDER BY attnum`, []any{o.id},
		func(rows *sql.Rows) error {
			var c column
			err := rows.Scan(&c.Name, &c.Type, &c.Null, &c.mustBeGiven)
			o.columns = append(o.columns, c)
			return err
		})
	if err != nil {
		return o, true, err
	}
	// A deferrable key does not serve ON CONFLICT.
	o.key, err = names(ctx, p.q, `SELECT a.attname FROM pg_catalog.pg_index i
		CROSS JOIN LATERAL unnest(i.indkey) WITH ORDINALITY AS k (attnum, n)
		JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
		WHERE i.indrelid = $1::bigint::oid AND i.indisprimary AND i.indisvalid AND i.indimmediate ORDER BY k.n`, []any{o.id})
	return o, true, err
}

func (p postgres) refused(ctx context.Context, _ templates.Template, _ templates.Names, o live, privilege string) (string, error) {
	function := "has_table_privilege"
	if o.kind == templates.Sequence {
		function = "has_sequence_privilege"
	}
	var has bool
	if _, err := one(ctx, p.q, `SELECT `+function+`($1::bigint::oid, $2::text)`, []any{o.id, privilege}, &has); err != nil || has {
		return "", err
	}
	return "this user lacks " + privilege, nil
}

func (p postgres) settings(ctx context.Context, t templates.Template, n templates.Names) ([]fault, error) {
	if t.Object.Kind != templates.Sequence {
		return nil, nil
	}
	var cache, cycle, increment int64
	_, err := one(ctx, p.q, `SELECT seqcache, seqcycle::int, seqincrement FROM pg_catalog.pg_sequence WHERE seqrelid = to_regclass($1::text)`,
		[]any{t.Quoted(n)}, &cache, &cycle, &increment)
	return sequenceFaults(t.Quoted(n), "CACHE 1 NO CYCLE", cache, cycle, increment), err
}

func (p postgres) user(ctx context.Context) (name string, err error) {
	_, err = one(ctx, p.q, `SELECT quote_ident(current_user)`, nil, &name)
	return name, err
}

func (p postgres) fits(want, got string) bool { return want == got }
