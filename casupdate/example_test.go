package casupdate_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	_ "modernc.org/sqlite"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/casupdate"
	"github.com/exclusive-go/exclusive/db/sqldb"
)

func Example() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	pool, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "app.db")+"?_pragma=busy_timeout(5000)")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	ctx := context.Background()
	_, err = pool.ExecContext(ctx, `CREATE TABLE invoice (id INTEGER PRIMARY KEY, status TEXT NOT NULL, total INTEGER,
		claim_token INTEGER, claim_grant TEXT, claim_expires INTEGER);
		INSERT INTO invoice (id, status) VALUES (17, 'NEW')`)
	if err != nil {
		log.Fatal(err)
	}

	invoices, err := casupdate.New(sqldb.NewSQLite(pool), casupdate.Config{
		Table: "invoice", Key: casupdate.Bigint("id"), StateColumn: "status",
		From: "NEW", Claimed: "BILLING", Done: "BILLED",
		TokenColumn: "claim_token", GrantColumn: "claim_grant",
		ExpiresColumn: "claim_expires", TTL: 30 * time.Second, // taken over if its holder vanishes
	})
	if err != nil {
		log.Fatal(err)
	}
	defer invoices.Close()

	bill := func(ctx context.Context, g exclusive.Grant) error {
		total := 4200 // long work; no transaction is open
		return invoices.Commit(ctx, g, func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, `UPDATE invoice SET total = ? WHERE id = 17`, total)
			return err
		})
	}
	fmt.Println("first:", invoices.Do(ctx, "17", bill))
	fmt.Println("second is done already:", errors.Is(invoices.Do(ctx, "17", bill), exclusive.ErrDone))
	// Output:
	// first: <nil>
	// second is done already: true
}
