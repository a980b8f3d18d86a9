package uniquetask

import (
	"context"

	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/internal/strategy"
)

// Tables says where the tables are. The fields mean what those of Config mean.
type Tables struct {
	Schema string
	Prefix string
}

// Names lists the tasks of which there are runs, in their order, compared byte by
// byte. It is one plain read for each task, along the key.
func Names[Tx any](ctx context.Context, d db.DB[Tx], at Tables) (names []string, err error) {
	if err := strategy.ValidAdapter("uniquetask", d); err != nil {
		return nil, err
	}
	at.Prefix = strategy.Default(at.Prefix, DefaultPrefix)
	if err := strategy.InvalidConfig("uniquetask", validNames(at.Schema, at.Prefix)); err != nil {
		return nil, err
	}
	s := newServer(d, Config{Schema: at.Schema, Prefix: at.Prefix})
	for after := ""; ; {
		var next string
		var found bool
		err := s.Ask(ctx, "list tasks", "", func(ctx context.Context, q dialect) (err error) {
			next, found, err = q.nextTask(ctx, d, after)
			return err
		})
		switch {
		case err != nil:
			return nil, err
		case !found:
			return names, nil
		}
		names, after = append(names, next), next
	}
}
