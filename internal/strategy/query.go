package strategy

import (
	"context"

	"github.com/exclusive-go/exclusive/internal/db"
)

// One runs a query of at most one row.
func One(ctx context.Context, r db.Runner, query string, args []any, row func(db.Scan) error) (found bool, err error) {
	err = r.Query(ctx, query, args, func(scan db.Scan) error {
		found = true
		return row(scan)
	})
	return found, err
}

// Exists runs a query of one integer, and reports whether it has a row.
func Exists(ctx context.Context, r db.Runner, query string, args ...any) (bool, error) {
	return One(ctx, r, query, args, func(scan db.Scan) error {
		var n int64
		return scan(&n)
	})
}

// Changed runs a statement that changes one row or none. It must be written so
// that a row it matches really changes: MySQL counts changed rows or matched
// rows, as the DSN says, and then both are the same.
func Changed(ctx context.Context, r db.Runner, query string, args ...any) (bool, error) {
	res, err := r.Exec(ctx, query, args...)
	return res.Rows > 0, err
}

// Strings runs a query of one column of text.
func Strings(ctx context.Context, r db.Runner, query string, args []any) (list []string, err error) {
	err = r.Query(ctx, query, args, func(scan db.Scan) error {
		var s string
		if err := scan(&s); err != nil {
			return err
		}
		list = append(list, s)
		return nil
	})
	return list, err
}
