package stdsql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/exclusive-go/exclusive/internal/db"
)

// abandonGrace is how long a driver may take to notice that a context ended.
// Its own answer is better than ours: it says what the server did.
const abandonGrace = 50 * time.Millisecond

// LeavesOnContext reports whether the driver returns soon after a context has
// ended although the server is silent. lib/pq does not: it asks the server to
// cancel, and waits for its answer. Of a driver that is not known to, the worst
// is assumed.
func LeavesOnContext(d driver.Driver) bool {
	t := reflect.TypeOf(d)
	if t == nil {
		return false // a connector need not name its driver
	}
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return strings.HasPrefix(t.PkgPath(), "github.com/jackc/pgx/")
}

// Abandoning makes statements on q return soon after their context has ended.
// One that the driver has not left by then is abandoned: its connection stays
// in use until the network's own time-outs free it.
func Abandoning(q Querier) Querier { return abandoning{q} }

type abandoning struct{ Querier }

// ExecContext implements Querier.
func (a abandoning) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	var res sql.Result
	err := abandon(ctx, func() error {
		var err error
		res, err = a.Querier.ExecContext(ctx, query, args...)
		return err
	})
	if err != nil {
		return nil, err
	}
	return res, nil
}

// queryAbandoning is Query for such a driver. No row is looked at after it has
// returned.
func queryAbandoning(ctx context.Context, q Querier, each func(db.Scan) error, query string, args ...any) error {
	var mu sync.Mutex
	over := false
	err := abandon(ctx, func() error {
		return Query(ctx, q, func(scan db.Scan) error {
			mu.Lock()
			defer mu.Unlock()
			if over {
				return ctx.Err()
			}
			return each(scan)
		}, query, args...)
	})
	mu.Lock()
	defer mu.Unlock()
	over = true
	return err
}

// abandon runs call and waits for it, but not long after ctx has ended. What
// call sets must not be read after an error.
func abandon(ctx context.Context, call func() error) error {
	done := make(chan error, 1)
	go func() { done <- call() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	grace := time.NewTimer(abandonGrace)
	defer grace.Stop()
	select {
	case err := <-done:
		return err
	case <-grace.C:
		return db.Ended(ctx, errHung)
	}
}
