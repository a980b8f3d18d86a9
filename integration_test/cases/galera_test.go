package cases_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/exclusivetest"
	"github.com/exclusive-go/exclusive/integration_test/matrix"
	"github.com/exclusive-go/exclusive/integration_test/servers"
	"github.com/exclusive-go/exclusive/integration_test/strategies"
	"github.com/exclusive-go/exclusive/rowlock"
	"github.com/exclusive-go/exclusive/uniquetask"
)

// A conflict that a cluster finds at COMMIT is never told as success: nothing is done
// without a durable row, and the same call made again does the work. On two nodes of a
// Galera cluster nobody overlaps and no count is lost with a strategy whose grant is a
// row that is written; rowlock's lock is known on one node only, and doctor says so. In
// the field Galera answered 1213 to COMMIT, and two nodes ran the section, or none had
// its row.
func TestB056_ConflictAtCommit(t *testing.T) {
	t.Parallel()
	t.Run("refused", testConflictAtCommit)
	t.Run("two_nodes", testTwoNodes)
}

func testTwoNodes(t *testing.T) {
	t.Parallel()
	var nodes [2]*matrix.Target[*sql.Tx]
	for i, dsn := range servers.Galera(t) {
		nodes[i] = matrix.OnSQL(t, matrix.Address{Name: "mariadb", DSN: dsn})
	}
	code, output := buildCommand(t).run(t, commandDSN(t, nodes[1]), "doctor")
	if !strings.Contains(output, "Galera with 2 node(s)") || !strings.Contains(output, "rowlock") {
		t.Errorf("doctor ended with %d, and does not say what holds here: %s", code, output)
	}
	for _, s := range strategies.All[*sql.Tx]() {
		t.Run(s.Name, func(t *testing.T) {
			place := s.SetUp(t, nodes[0])
			if s.Table == "rowlock" {
				overlapOnTwoNodes(t, nodes)
				return
			}
			countOnTwoNodes(t, nodes, place)
			if s.Table == "uniquetask" {
				forgetBesideClaims(t, nodes)
			}
		})
	}
}

// awaitRow waits until a node knows a row that was made on the other; it may not even know
// the table yet.
func awaitRow(t *testing.T, node *matrix.Target[*sql.Tx], query string, args ...any) {
	t.Helper()
	await(t, query, func() bool {
		var one int
		return node.Plain.QueryRowContext(t.Context(), query, args...).Scan(&one) == nil
	})
}

// countOnTwoNodes reads and writes what it has read plus one, so that whoever is let
// in beside another is told by a count that is lost. The keys are neighbours: nodes
// also meet in the gaps between rows, and in what hands out tokens.
func countOnTwoNodes(t *testing.T, nodes [2]*matrix.Target[*sql.Tx], place *strategies.Place[*sql.Tx]) {
	type counter struct {
		key       string
		inside    atomic.Int32
		committed atomic.Int64
	}
	keys := make([]*counter, 10)
	for i := range keys {
		keys[i] = &counter{key: place.MustKey(t)}
	}
	// A node applies what another has written in the order in which that was committed,
	// and not at once.
	awaitRow(t, nodes[1], "SELECT 1 FROM result WHERE name = ?", keys[len(keys)-1].key)
	ctx, cancel := context.WithTimeout(t.Context(), 10*patience)
	defer cancel()
	count := func(x exclusive.Transactional[*sql.Tx], k *counter) (did bool, err error) {
		err = x.Do(ctx, k.key, func(ctx context.Context, g exclusive.Grant) error {
			if k.inside.Add(1) != 1 {
				t.Errorf("two at once under %s", k.key)
			}
			leave := sync.OnceFunc(func() { k.inside.Add(-1) })
			defer leave()
			err := x.Commit(ctx, g, func(ctx context.Context, tx *sql.Tx) error {
				defer leave() // the key is free before Commit returns
				var n int64
				if err := tx.QueryRowContext(ctx, "SELECT n FROM result WHERE name = ?", k.key).Scan(&n); err != nil {
					return err
				}
				_, err := tx.ExecContext(ctx, "UPDATE result SET n = ? WHERE name = ?", n+1, k.key)
				return err
			})
			if err == nil {
				did = true
				k.committed.Add(1)
			}
			return err
		})
		if errors.Is(err, exclusive.ErrDone) {
			err = place.Reopen(ctx, k.key)
		}
		if errors.Is(err, exclusive.ErrHeld) || errors.Is(err, exclusive.ErrConflict) {
			err = nil
		}
		return did, err
	}
	var wg sync.WaitGroup
	for i, node := range nodes {
		x := place.New(t, node, exclusivetest.Config{Wait: patience})
		var commits atomic.Int64
		for range 4 {
			wg.Go(func() {
				for commits.Load() < int64(size(1500, 150)) && !t.Failed() {
					did, err := count(x, keys[rand.N(len(keys))])
					if err != nil {
						t.Errorf("node %d: %v", i+1, err)
					}
					if did {
						commits.Add(1)
					}
				}
			})
		}
	}
	wg.Wait()
	for _, k := range keys {
		want := k.committed.Load()
		for i, node := range nodes {
			stored := func() int64 { return node.Int(t, "SELECT n FROM result WHERE name = ?", k.key) }
			// What the other node has committed may not be here yet.
			await(t, "the other node's writes", func() bool { return stored() >= want || t.Failed() })
			if n := stored(); n != want {
				t.Errorf("node %d counts %d of %s after %d commits", i+1, n, k.key, want)
			}
		}
	}
}

// overlapOnTwoNodes is the twin: why docs and doctor send all users of rowlock to one
// node.
func overlapOnTwoNodes(t *testing.T, nodes [2]*matrix.Target[*sql.Tx]) {
	a, b := locksOn(t, nodes[0], rowlock.Config{}), locksOn(t, nodes[1], rowlock.Config{})
	must(t, "the key's row", a.Do(t.Context(), "key", nothing))
	awaitRow(t, nodes[1], "SELECT 1 FROM exclusive_lock WHERE lock_key = 'key'")
	both := false
	err := a.Do(t.Context(), "key", func(ctx context.Context, _ exclusive.Grant) error {
		return b.Do(t.Context(), "key", func(context.Context, exclusive.Grant) error { both = true; return nil })
	})
	if err != nil || !both {
		t.Errorf("the second node was kept out (%v): docs and doctor say otherwise", err)
	}
}

// forgetBesideClaims raises the floor of a task's tokens on one node while runs begin on
// the other, which look at it. A claim that locks it before it writes makes both nodes
// stand still for innodb_lock_wait_timeout, once in some hundred claims.
func forgetBesideClaims(t *testing.T, nodes [2]*matrix.Target[*sql.Tx]) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*patience)
	defer cancel()
	x := tasksOn(t, nodes[1], uniquetask.Config{Task: "floor"})
	must(t, "the floor's row", x.Do(ctx, "first", nothing))
	awaitRow(t, nodes[0], "SELECT 1 FROM exclusive_task_floor WHERE task = 'floor'")
	const workers = 4
	runs := size(250, 100)
	var forgetting, claiming sync.WaitGroup
	claimed := make(chan struct{})
	forgetting.Go(func() {
		for {
			select {
			case <-claimed:
				return
			default: // as Forget and Prune do
			}
			if _, err := nodes[0].Plain.ExecContext(ctx, "UPDATE exclusive_task_floor SET token = token + 1 WHERE task = 'floor'"); err != nil {
				t.Errorf("raising the floor: %v", err)
				return
			}
		}
	})
	for worker := range workers {
		claiming.Go(func() {
			for n := 0; n < runs && ctx.Err() == nil; n++ {
				if err := beginPastFloor(ctx, t, nodes[1], x, fmt.Sprintf("new %d/%d", worker, n)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	claiming.Wait()
	close(claimed)
	forgetting.Wait()
	for i, node := range nodes {
		done := func() int64 {
			return node.Int(t, "SELECT COUNT(*) FROM exclusive_task WHERE task = 'floor' AND state = 'done'")
		}
		await(t, "the other node's writes", func() bool { return t.Failed() || done() == int64(1+workers*runs) })
		if t.Failed() {
			t.Logf("node %d has %d", i+1, done())
		}
	}
}

// beginPastFloor does a new run once the claims that collide with the floor let it. Its
// token must be past what the floor was before.
func beginPastFloor(ctx context.Context, t *testing.T, node *matrix.Target[*sql.Tx], x exclusive.Exclusive, run string) error {
	var floor int64
	if err := node.Plain.QueryRowContext(ctx, "SELECT token FROM exclusive_task_floor WHERE task = 'floor'").Scan(&floor); err != nil {
		return fmt.Errorf("the floor: %w", err)
	}
	for {
		err := x.Do(ctx, run, func(_ context.Context, g exclusive.Grant) error {
			if g.Token <= floor {
				t.Errorf("%s has token %d, and the floor was %d before it began", run, g.Token, floor)
			}
			return nil
		})
		if err == nil || ctx.Err() != nil || !errors.Is(err, exclusive.ErrConflict) && !errors.Is(err, exclusive.ErrUnavailable) && !errors.Is(err, exclusive.ErrHeld) {
			return err
		}
	}
}
