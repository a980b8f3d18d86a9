package strategy

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/internal/ident"
)

// The lengths of what is stored.
const (
	GrantIDLength    = 26        // of the ids that our grants have
	MaxGrantIDLength = 64        // of those of other issuers
	MaxBlob          = 1<<32 - 1 // of a LONGBLOB
)

// Columns are columns whose type matters, beyond what the server says by itself.
type Columns struct {
	Schema, Prefix string
	// Ours: they are in tables that the migrations make. On PostgreSQL those have
	// no type that limits a value.
	Ours bool
	List []Column
}

// Column is a column, and what it must be able to hold.
type Column struct {
	Table, Name string
	Key         bool     // any key, byte for byte
	Length      int64    // a text of so many characters, or bytes
	Values      []string // each of these texts
	Wide        bool     // any 64-bit integer
}

// column is what the server tells about a column.
type column struct {
	table, name string
	base, full  string // its type without and with what is in brackets
	length      int64  // of a text, in characters or bytes; -1: it is none
}

// check fails if a column is too small for what is stored there, or would take two
// keys for one. MySQL and MariaDB cut a text that is too long, and take the nearest
// number that fits, where sql_mode is not strict; PostgreSQL refuses the statement,
// but not before there is something to store. SQLite has no such types. Tables and
// columns that are missing show at their first use.
func (c Columns) check(ctx context.Context, via db.Runner, d db.Dialect) error {
	if len(c.List) == 0 || d == db.SQLite || d == db.Postgres && c.Ours {
		return nil
	}
	query, args := c.mysqlQuery()
	if d == db.Postgres {
		query, args = c.postgresQuery()
	}
	var wrong []string
	err := via.Query(ctx, query, args, func(scan db.Scan) error {
		var got column
		if err := scan(&got.table, &got.name, &got.base, &got.full, &got.length); err != nil {
			return err
		}
		for _, want := range c.List {
			if strings.EqualFold(got.table, c.Prefix+want.Table) && strings.EqualFold(got.name, want.Name) {
				if must := want.unlike(got); must != "" {
					wrong = append(wrong, fmt.Sprintf("%s.%s is %s and must %s", got.table, got.name, got.full, must))
				}
			}
		}
		return nil
	})
	if err != nil || len(wrong) == 0 {
		return err
	}
	mend := "change the type"
	if c.Ours {
		mend = "make it what it is in the migration"
	}
	return &exclusive.Error{Op: "check the schema", Kind: exclusive.ErrSchema,
		Hint: strings.Join(wrong, "; ") + ": otherwise the server may store another value than it was given, or take two keys for one; " + mend}
}

// unlike says what a column must be, if it is not so.
func (c Column) unlike(got column) string {
	length := c.Length
	for _, v := range c.Values {
		n := utf8.RuneCountInString(v)
		if strings.HasSuffix(got.base, "binary") {
			n = len(v)
		}
		length = max(length, int64(n))
	}
	switch {
	case c.Key && (got.base != "varbinary" || got.length < exclusive.MaxKeyBytes):
		return fmt.Sprintf("be VARBINARY(%d)", exclusive.MaxKeyBytes)
	case c.Wide && slices.Contains([]string{"tinyint", "smallint", "mediumint", "int", "int2", "int4", "float", "double"}, got.base):
		return "be BIGINT"
	case length > 0 && got.length < length:
		return fmt.Sprintf("hold a text of %d characters", length)
	case got.base == "enum":
		for _, v := range c.Values {
			if !strings.Contains(strings.ToLower(got.full), strings.ToLower("'"+strings.ReplaceAll(v, "'", "''")+"'")) {
				return fmt.Sprintf("have the value %q", v)
			}
		}
	}
	return ""
}

func (c Columns) mysqlQuery() (query string, args []any) {
	var schema any // NULL: that of the connection
	if c.Schema != "" {
		schema = c.Schema
	}
	args = []any{schema}
	for _, want := range c.List {
		args = append(args, c.Prefix+want.Table, want.Name)
	}
	return `SELECT TABLE_NAME, COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, COALESCE(CHARACTER_MAXIMUM_LENGTH, -1) FROM information_schema.COLUMNS
		WHERE TABLE_SCHEMA = COALESCE(?, DATABASE())
		AND (TABLE_NAME, COLUMN_NAME) IN (` + strings.Repeat(", (?, ?)", len(c.List))[2:] + `)`, args
}

func (c Columns) postgresQuery() (query string, args []any) {
	var pairs []string
	for _, want := range c.List {
		args = append(args, ident.Quote(Quote(db.Postgres), c.Schema, c.Prefix+want.Table), want.Name)
		pairs = append(pairs, fmt.Sprintf("(to_regclass($%d::text), $%d::text)", len(args)-1, len(args)))
	}
	// A type that has no length, or is no text, is one that the server knows best.
	return `SELECT c.relname::text, a.attname::text, t.typname::text, format_type(a.atttypid, a.atttypmod),
			CASE WHEN t.typname IN ('varchar', 'bpchar') AND a.atttypmod > 0 THEN a.atttypmod::bigint - 4 ELSE 4294967295 END
		FROM pg_catalog.pg_attribute a
		JOIN pg_catalog.pg_class c ON c.oid = a.attrelid JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
		WHERE (a.attrelid, a.attname) IN (` + strings.Join(pairs, ", ") + `)`, args
}
