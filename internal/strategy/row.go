package strategy

import (
	"fmt"
	"strings"

	"github.com/exclusive-go/exclusive/internal/db"
)

// Exactly is the condition that {column}, which holds text, has the bytes of
// {:bytes}, whatever its collation. No index helps with it: it goes beside a
// plain comparison.
func Exactly(d db.Dialect) string {
	switch d {
	case db.Postgres:
		// "C" compares bytes, also where the column's own collation is not
		// deterministic or the type is citext.
		return `{column}::text COLLATE "C" = {:bytes}::text`
	case db.SQLite:
		// The column may be declared NOCASE or RTRIM.
		return `{column} COLLATE BINARY = {:bytes}`
	default:
		// The usual collations ignore case, accents and blanks at the end, and
		// a number equals each text that begins with it.
		return `CAST(CONVERT({column} USING utf8mb4) AS BINARY) = {:bytes}`
	}
}

// RowCondition says that columns, which are quoted names, have the values of
// RowArgs, and strings byte for byte. Its placeholders are question marks.
func RowCondition(d db.Dialect, columns []string) string {
	var equal, exact []string
	for _, c := range columns {
		equal = append(equal, c+" = ?")
		// NULL, if the value is no string, is no condition.
		exact = append(exact, "COALESCE("+strings.NewReplacer("{column}", c, "{:bytes}", "?").Replace(Exactly(d))+", true)")
	}
	return strings.Join(append(equal, exact...), " AND ")
}

// RowArgs are the arguments of RowCondition.
func RowArgs(d db.Dialect, values []any) []any {
	args := make([]any, 2*len(values))
	copy(args, values)
	for i, v := range values {
		text, ok := v.(string)
		switch {
		case !ok:
		case d == db.MySQL || d == db.MariaDB: // a string would bring a collation along
			args[len(values)+i] = []byte(text)
		default:
			args[len(values)+i] = text
		}
	}
	return args
}

// RowValues makes arguments, which every driver takes, of the values that
// identify a row of the application's own.
func RowValues(id []any, want int) ([]any, error) {
	if len(id) != want {
		return nil, fmt.Errorf("%d values for %d key columns", len(id), want)
	}
	args := make([]any, len(id))
	for i, v := range id {
		switch v := v.(type) {
		case string, []byte, int64:
			args[i] = v
		case int:
			args[i] = int64(v)
		case int32:
			args[i] = int64(v)
		default:
			return nil, fmt.Errorf("a key column's value is a %T; use a string, an integer or a byte slice", v)
		}
	}
	return args, nil
}
