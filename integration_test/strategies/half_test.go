package strategies_test

import (
	"context"
	"database/sql"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/exclusivetest"
	"github.com/exclusive-go/exclusive/integration_test/matrix"
	"github.com/exclusive-go/exclusive/integration_test/strategies"
	"github.com/exclusive-go/exclusive/internal/db"
)

// half is an adapter whose connections break behind the row of a statement that
// returns it, as long as broken.
type half[Tx any] struct {
	db.DB[Tx]
	broken atomic.Bool
}

func (h *half[Tx]) Query(ctx context.Context, query string, args []any, each func(db.Scan) error) error {
	err := h.DB.Query(ctx, query, args, each)
	if err == nil && h.broken.Load() && strings.Contains(query, "RETURNING ") {
		return io.ErrUnexpectedEOF
	}
	return err
}

// A claim that was told of its row, and not that it is stored, is given back: the
// answer is only half of it.
func TestHalfAnAnswer(t *testing.T) {
	matrix.Drivers(t, testHalfAnAnswer[pgx.Tx], testHalfAnAnswer[*sql.Tx], "postgres", "mariadb")
}

func testHalfAnAnswer[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	for _, s := range strategies.All[Tx]() {
		if claimed[s.Name] == "" || target.Dialect == "mariadb" && s.Table == "casupdate" {
			continue // its claims are no such statements
		}
		t.Run(s.Name, func(t *testing.T) {
			place := s.SetUp(t, target)
			key := place.MustKey(t)
			server := &half[Tx]{DB: target.DB}
			server.broken.Store(true)
			node := *target
			node.DB = server
			err := place.New(t, &node, exclusivetest.Config{TTL: time.Hour}).Do(t.Context(), key, func(context.Context, exclusive.Grant) error {
				t.Error("work runs")
				return nil
			})
			if err == nil {
				t.Error("half an answer is taken for one")
			}
			next := place.New(t, target, exclusivetest.Config{Wait: 30 * time.Second})
			if err := next.Do(t.Context(), key, func(context.Context, exclusive.Grant) error { return nil }); err != nil {
				t.Errorf("the next holder: %v", err)
			}
		})
	}
}
