package strategy

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
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
	MaxHolder        = 200       // of a holder's name
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
	Numbers     []int64  // each of these integers
	Wide        bool     // any 64-bit integer
}

// column is what the server tells about a column.
type column struct {
	table, name string
	base, full  string // its type without and with what is in brackets
	length      int64  // of a text, in characters or bytes; -1: it is none
	digits      int64  // of an exact number before the point; -1: it is none, or bits says
	exact       bool   // case counts in the values of an enum
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
		got := column{exact: d == db.Postgres}
		if err := scan(&got.table, &got.name, &got.base, &got.full, &got.length, &got.digits); err != nil {
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

// bits are those of the types of integers.
var bits = map[string]int{"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64, "int2": 16, "int4": 32}

// holds reports whether a column of exact numbers can have the value n.
func (got column) holds(n int64) bool {
	unsigned := strings.Contains(got.full, "unsigned")
	if n < 0 && unsigned {
		return false
	}
	if got.digits >= 0 {
		return int64(len(strings.TrimPrefix(strconv.FormatInt(n, 10), "-"))) <= got.digits
	}
	width := bits[got.base]
	if !unsigned {
		width--
	}
	return width > 62 || width > 0 && n >= -1<<width && n < 1<<width
}

// unlike says what a column must be, if it is not so.
func (c Column) unlike(got column) string {
	length := c.Length
	bytes := strings.HasSuffix(got.base, "binary")
	padded := got.base == "binary" && length > 0 && got.length != length
	for _, v := range c.Values {
		n := int64(utf8.RuneCountInString(v))
		if bytes {
			n = int64(len(v))
		}
		padded = padded || got.base == "binary" && got.length != n
		length = max(length, n)
	}
	for _, n := range c.Numbers {
		if !got.holds(n) {
			return fmt.Sprintf("be a type of integers that has %d", n)
		}
	}
	switch {
	case c.Key && (got.base != "varbinary" || got.length < exclusive.MaxKeyBytes):
		return fmt.Sprintf("be VARBINARY(%d)", exclusive.MaxKeyBytes)
	case c.Wide && !got.holds(math.MaxInt64):
		return "be BIGINT"
	case length > 0 && got.length < length:
		return fmt.Sprintf("hold a text of %d characters", length)
	case padded:
		return "be VARBINARY, whose values keep their length"
	case length > 0 && (got.base == "set" || got.base == "enum" && c.Values == nil):
		return "be a text"
	case got.base == "enum":
		has := enumValues(got.full)
		for _, v := range c.Values {
			if !slices.ContainsFunc(has, func(h string) bool { return h == v || !got.exact && strings.EqualFold(h, v) }) {
				return fmt.Sprintf("have the value %q", v)
			}
		}
	}
	return ""
}

// enumValues are those in a type as information_schema and postgresQuery have it:
// enum('a','it”s').
func enumValues(full string) (values []string) {
	var value strings.Builder
	in := false
	for i := 0; i < len(full); i++ {
		switch ch := full[i]; {
		case !in:
			in = ch == '\''
		case ch == '\\' && i+1 < len(full):
			i++
			value.WriteString(unescape.Replace(full[i : i+1]))
		case ch != '\'':
			value.WriteByte(ch)
		case strings.HasPrefix(full[i+1:], "'"):
			i++
			value.WriteByte(ch)
		default:
			values = append(values, value.String())
			value.Reset()
			in = false
		}
	}
	return values
}

// unescape is for what comes after a backslash.
var unescape = strings.NewReplacer("n", "\n", "r", "\r", "0", "\x00")

func (c Columns) mysqlQuery() (query string, args []any) {
	var schema any // NULL: that of the connection
	if c.Schema != "" {
		schema = c.Schema
	}
	args = []any{schema}
	for _, want := range c.List {
		args = append(args, c.Prefix+want.Table, want.Name)
	}
	return `SELECT TABLE_NAME, COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, COALESCE(CHARACTER_MAXIMUM_LENGTH, -1),
			CASE WHEN DATA_TYPE = 'decimal' THEN CAST(NUMERIC_PRECISION AS SIGNED) - CAST(NUMERIC_SCALE AS SIGNED) ELSE -1 END
		FROM information_schema.COLUMNS
		WHERE TABLE_SCHEMA = COALESCE(?, DATABASE())
		AND (TABLE_NAME, COLUMN_NAME) IN (` + strings.Repeat(", (?, ?)", len(c.List))[2:] + `)`, args
}

func (c Columns) postgresQuery() (query string, args []any) {
	var pairs []string
	for _, want := range c.List {
		args = append(args, ident.Quote(Quote(db.Postgres), c.Schema, c.Prefix+want.Table), want.Name)
		pairs = append(pairs, fmt.Sprintf("(to_regclass($%d::text), $%d::text)", len(args)-1, len(args)))
	}
	// A column of a domain has the type at its bottom. What has no limit, or is no type
	// of the server's own, is what the server knows best, except the values of an enum.
	return `WITH RECURSIVE typed (relname, attname, written, id, modifier) AS (
			SELECT c.relname::text, a.attname::text, format_type(a.atttypid, a.atttypmod), a.atttypid, a.atttypmod
			FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
			WHERE (a.attrelid, a.attname) IN (` + strings.Join(pairs, ", ") + `)
			UNION ALL
			SELECT d.relname, d.attname, d.written, t.typbasetype, GREATEST(d.modifier, t.typtypmod)
			FROM typed d JOIN pg_catalog.pg_type t ON t.oid = d.id WHERE t.typtype = 'd'
		)
		SELECT d.relname, d.attname, CASE t.typtype WHEN 'e' THEN 'enum' ELSE t.typname::text END,
			CASE t.typtype WHEN 'e' THEN 'enum(' || COALESCE((SELECT string_agg(quote_literal(e.enumlabel::text), ',' ORDER BY e.enumsortorder)
				FROM pg_catalog.pg_enum e WHERE e.enumtypid = t.oid), '') || ')' ELSE d.written END,
			CASE WHEN t.typname IN ('varchar', 'bpchar') AND d.modifier > 0 THEN d.modifier::bigint - 4 ELSE 4294967295 END,
			CASE WHEN t.typtype = 'e' THEN -1
				WHEN t.typnamespace <> 'pg_catalog'::regnamespace THEN 19
				WHEN t.typname IN ('int2', 'int4', 'float4') THEN -1
				WHEN t.typname = 'numeric' AND d.modifier > 0 THEN (d.modifier - 4) / 65536 - (d.modifier - 4) % 2048
				ELSE 19 END::bigint
		FROM typed d JOIN pg_catalog.pg_type t ON t.oid = d.id WHERE t.typtype <> 'd'`, args
}
