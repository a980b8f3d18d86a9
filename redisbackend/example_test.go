package redisbackend_test

import (
	"context"
	"database/sql"
	"log"

	"github.com/redis/go-redis/v9"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/db/sqldb"
	"github.com/exclusive-go/exclusive/fencing"
	"github.com/exclusive-go/exclusive/redisbackend"
)

// A lease in Redis, and the result in a database that refuses former holders.
func Example() {
	ctx := context.Background()
	leases, err := redisbackend.New(redis.NewClient(&redis.Options{Addr: "localhost:6379"}), redisbackend.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer leases.Close()

	var pool *sql.DB // of your application
	guard, err := fencing.NewGuard(sqldb.NewPostgres(pool), fencing.GuardConfig{})
	if err != nil {
		log.Fatal(err)
	}
	x := fencing.Guarded(leases, guard)
	err = x.Do(ctx, "report/2026-11-29", func(ctx context.Context, g exclusive.Grant) error {
		report := "…" // long work, no transaction is open
		return x.Commit(ctx, g, func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, `UPDATE report SET body = $1 WHERE day = '2026-11-29'`, report)
			return err
		})
	})
	if err != nil {
		log.Print(err)
	}
}

// Tokens from the database where results are stored rise even if Redis loses
// all that it has.
func ExampleNewTokens() {
	var pool *sql.DB // of your application
	tokens, err := redisbackend.NewTokens(sqldb.NewPostgres(pool), redisbackend.TokensConfig{})
	if err != nil {
		log.Fatal(err)
	}
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	leases, err := redisbackend.New(client, redisbackend.Config{Tokens: tokens})
	if err != nil {
		log.Fatal(err)
	}
	defer leases.Close()
}
