package fencing

import (
	"context"
	"crypto/sha256"

	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/internal/strategy"
)

// server is a database with the SQL of this package.
type server[Tx any] = strategy.Server[Tx, dialect]

func newServer[Tx any](d db.DB[Tx], schema, prefix string) *server[Tx] {
	texts := func(d db.Dialect) dialect { return newDialect(d, schema, prefix) }
	s := strategy.NewServer(d, "fencing", texts, func(ctx context.Context, r db.Runner, d dialect) error { return d.ready(ctx, r) })
	s.Columns = strategy.Columns{Schema: schema, Prefix: prefix, Ours: true, List: []strategy.Column{
		{Table: "lease", Name: "lease_key", Key: true},
		{Table: "lease", Name: "grant_id", Length: strategy.MaxGrantIDLength},
		{Table: "lease", Name: "holder", Length: strategy.MaxHolder},
		{Table: "lease", Name: "token", Wide: true},
		{Table: "lease", Name: "attempt", Wide: true},
		{Table: "lease", Name: "acquired_at", Wide: true},
		{Table: "lease", Name: "expires_at", Wide: true},
		{Table: "token", Name: "floor", Wide: true},
		{Table: "mark", Name: "mark_key", Key: true},
		{Table: "mark", Name: "grant_id", Length: strategy.MaxGrantIDLength},
		{Table: "mark", Name: "token", Wide: true},
		{Table: "mark", Name: "finished", Numbers: []int64{int64(useStopped)}},
		{Table: "op", Name: "op_id", Key: true},
		{Table: "op", Name: "payload", Length: sha256.Size},
		{Table: "op", Name: "result", Length: strategy.MaxBlob},
		{Table: "op", Name: "created_at", Wide: true},
	}}
	return s
}
