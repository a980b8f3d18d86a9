package strategies_test

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/exclusivetest"
	"github.com/exclusive-go/exclusive/integration_test/cases/session"
	"github.com/exclusive-go/exclusive/integration_test/matrix"
	"github.com/exclusive-go/exclusive/integration_test/proxy"
	"github.com/exclusive-go/exclusive/integration_test/strategies"
)

// A key that nobody has is not held because a statement that changes nothing has
// its row locked for a moment, as a renewal has that arrives after the release.
func TestLockedThoughFree(t *testing.T) {
	matrix.Drivers(t, testLockedThoughFree[pgx.Tx], testLockedThoughFree[*sql.Tx], "postgres", "mysql", "mariadb")
}

// rows locks the row that a strategy claims.
var rows = map[string]string{
	"casupdate":        "SELECT 1 FROM job WHERE id = ? FOR UPDATE",
	"casupdate_leased": "SELECT 1 FROM job WHERE id = ? FOR UPDATE",
	"uniquetask":       "SELECT 1 FROM exclusive_task WHERE task = 'reports' AND run = ? FOR UPDATE",
	"fencing":          "SELECT 1 FROM exclusive_lease WHERE lease_key = ? FOR UPDATE",
}

func testLockedThoughFree[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	played := 0
	for _, s := range strategies.All[Tx]() {
		query, ok := rows[s.Name]
		if !ok {
			continue
		}
		played++
		t.Run(s.Name, func(t *testing.T) { lockedThoughFree(t, target, s, query) })
	}
	if played != len(rows) {
		t.Errorf("%d of %d strategies were played", played, len(rows))
	}
}

func lockedThoughFree[Tx any](t *testing.T, target *matrix.Target[Tx], s strategies.Strategy[Tx], query string) {
	ctx := t.Context()
	place := s.SetUp(t, target)
	p := proxy.Start(t, target.Addr(t))
	x := place.New(t, target.Another(t, matrix.Options{Addr: p.Addr()}), exclusivetest.Config{NoRenew: true})
	key := place.MustKey(t)
	errFree := errors.New("this work only makes the row")
	if err := x.Do(ctx, key, func(context.Context, exclusive.Grant) error { return errFree }); !errors.Is(err, errFree) {
		t.Fatal(err)
	}

	tx, err := target.Plain.BeginTx(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }() // if it is still open
	var arg any = key
	if target.Dialect == "postgres" && s.Table != "casupdate" {
		arg = []byte(key)
	}
	var one int
	if err := tx.QueryRowContext(ctx, target.Bind(query), arg).Scan(&one); err != nil {
		t.Fatal(err)
	}

	// What is sent about the key after the first claim, on this server an answer
	// to it, waits until the row is not locked any more.
	var sent atomic.Int64
	refused, unlocked := make(chan struct{}), make(chan struct{})
	unlock := sync.OnceFunc(func() { close(unlocked) })
	t.Cleanup(unlock) // the proxy's end waits for who waits for this
	text, digits := []byte(key), []byte(hex.EncodeToString([]byte(key)))
	p.Intercept(func(data []byte) proxy.Verdict {
		if bytes.Contains(data, text) || bytes.Contains(bytes.ToLower(data), digits) {
			switch sent.Add(1) {
			case 1:
				return proxy.Pass
			case 2:
				close(refused)
			}
			<-unlocked
		}
		return proxy.Pass
	})
	got := make(chan error, 1)
	go func() { got <- x.Do(ctx, key, func(context.Context, exclusive.Grant) error { return nil }) }()
	session.AwaitWaiting(t, target.Plain, target.Dialect, 1, func() bool { // MySQL's claims wait
		select {
		case <-refused:
			return true
		default:
			return len(got) > 0
		}
	})
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	unlock()
	if err := <-got; err != nil {
		t.Errorf("a free key whose row was locked for a moment: %v", err)
	}
	if sent.Load() == 0 {
		t.Error("the claim was not seen")
	}
}
