package fencing_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/db/sqldb"
	"github.com/exclusive-go/exclusive/fencing"
	"github.com/exclusive-go/exclusive/integration_test/matrix"
)

// An adapter for another server is a mistake that no retry mends: it is told at
// once, also by Campaign, which tries again whatever may pass.
func TestWrongAdapter(t *testing.T) {
	postgres, mysql, sqlite := matrix.On(t, "postgres").Plain, matrix.On(t, "mysql").Plain, matrix.On(t, "sqlite").Plain
	for _, c := range []struct {
		what  string
		adapt func(*sql.DB) *sqldb.DB
		pool  *sql.DB
	}{
		{"MySQL as PostgreSQL", sqldb.NewPostgres, mysql},
		{"SQLite as PostgreSQL", sqldb.NewPostgres, sqlite},
		{"MySQL as SQLite", sqldb.NewSQLite, mysql},
		{"PostgreSQL as SQLite", sqldb.NewSQLite, postgres},
	} {
		x, err := fencing.New(c.adapt(c.pool), fencing.Config{})
		must(t, c.what, err)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		err = exclusive.Campaign(ctx, x, "k", func(context.Context, exclusive.Grant) error { t.Error("work ran"); return nil })
		if ctx.Err() != nil || !errors.Is(err, exclusive.ErrInvalid) && !errors.Is(err, exclusive.ErrSchema) {
			t.Errorf("%s: %v", c.what, err)
		}
		cancel()
		must(t, "close", x.Close())
	}
}
