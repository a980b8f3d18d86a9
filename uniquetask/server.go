package uniquetask

import (
	"context"

	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/internal/strategy"
)

// server is a database with the SQL of this package.
type server[Tx any] = strategy.Server[Tx, dialect]

func newServer[Tx any](d db.DB[Tx], cfg Config) *server[Tx] {
	texts := func(d db.Dialect) dialect { return newDialect(d, cfg) }
	s := strategy.NewServer(d, "uniquetask", texts, func(ctx context.Context, r db.Runner, d dialect) error { return d.ready(ctx, r) })
	s.Columns = strategy.Columns{Schema: cfg.Schema, Prefix: cfg.Prefix, Ours: true, List: []strategy.Column{
		{Table: "task", Name: "task", Key: true},
		{Table: "task", Name: "run", Key: true},
		{Table: "task", Name: "state", Values: []string{string(Running), string(Done), string(Failed)}},
		{Table: "task", Name: "grant_id", Length: strategy.MaxGrantIDLength},
		{Table: "task", Name: "holder", Length: strategy.MaxHolder},
		{Table: "task", Name: "token", Wide: true},
		{Table: "task", Name: "attempt", Wide: true},
		{Table: "task", Name: "started_at", Wide: true},
		{Table: "task", Name: "ended_at", Wide: true},
		{Table: "task", Name: "free_at", Wide: true},
		{Table: "task", Name: "result", Length: strategy.MaxBlob},
		{Table: "task", Name: "error", Length: maxText},
		{Table: "task", Name: "history", Length: maxHistory},
		{Table: "task_floor", Name: "task", Key: true},
		{Table: "task_floor", Name: "token", Wide: true},
	}}
	return s
}
