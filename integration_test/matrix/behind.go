package matrix

import (
	"context"
	"strings"

	"github.com/exclusive-go/exclusive/internal/db"
)

// Behind is an adapter for a pool that sends plain reads to a replica, which has
// not heard of anything yet.
type Behind[Tx any] struct{ db.DB[Tx] }

// Query finds no row for a plain read with arguments.
func (b Behind[Tx]) Query(ctx context.Context, query string, args []any, each func(db.Scan) error) error {
	query = strings.TrimSpace(query)
	if len(args) > 0 && strings.HasPrefix(query, "SELECT") && !strings.Contains(query, "FOR UPDATE") {
		return ctx.Err()
	}
	return b.DB.Query(ctx, query, args, each)
}
