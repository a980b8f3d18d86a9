package matrix

import (
	"context"

	"github.com/exclusive-go/exclusive/internal/db"
)

// Patient is an adapter whose statements outside of transactions run to their end,
// although their caller gives them up: a test can stall them for as long as it needs.
type Patient[Tx any] struct{ db.DB[Tx] }

// Exec implements db.Runner.
func (p Patient[Tx]) Exec(ctx context.Context, query string, args ...any) (db.Result, error) {
	return p.DB.Exec(context.WithoutCancel(ctx), query, args...)
}

// Query implements db.Runner.
func (p Patient[Tx]) Query(ctx context.Context, query string, args []any, each func(db.Scan) error) error {
	return p.DB.Query(context.WithoutCancel(ctx), query, args, each)
}
