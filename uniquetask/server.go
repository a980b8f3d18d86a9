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
	s.Keys = strategy.KeyColumns{Schema: cfg.Schema, Prefix: cfg.Prefix, Columns: []string{"task.task", "task.run", "task_floor.task"}}
	return s
}
