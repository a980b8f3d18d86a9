package fencing

import (
	"context"

	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/internal/strategy"
)

// server is a database with the SQL of this package.
type server[Tx any] = strategy.Server[Tx, dialect]

func newServer[Tx any](d db.DB[Tx], schema, prefix string) *server[Tx] {
	texts := func(d db.Dialect) dialect { return newDialect(d, schema, prefix) }
	s := strategy.NewServer(d, "fencing", texts, func(ctx context.Context, r db.Runner, d dialect) error { return d.ready(ctx, r) })
	s.Keys = strategy.KeyColumns{Schema: schema, Prefix: prefix, Columns: []string{"lease.lease_key", "mark.mark_key", "op.op_id"}}
	return s
}
