package bench

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/casupdate"
	"github.com/exclusive-go/exclusive/cmd/exclusive/internal/target"
	"github.com/exclusive-go/exclusive/fencing"
	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/internal/schema"
	"github.com/exclusive-go/exclusive/internal/strategy"
	"github.com/exclusive-go/exclusive/internal/templates"
	"github.com/exclusive-go/exclusive/rowlock"
	"github.com/exclusive-go/exclusive/uniquetask"
)

// SQLStrategies and RedisStrategies are what can be measured.
var (
	SQLStrategies   = []string{"casupdate", "rowlock", "uniquetask", "fencing"}
	RedisStrategies = []string{"redisbackend"}
)

// sqlStage is a database with tables of its own.
type sqlStage struct {
	*target.Open
	options Options
	prefix  string
	next    atomic.Int64 // numbers of rows and runs, each used once
}

// table is the quoted name of a table.
func (s *sqlStage) table(name string) string {
	return strategy.Table(s.Dialect, s.options.Schema, s.prefix, name)
}

// ownTables are those of the application, and those of what is done by hand. A
// worker has its own rows, so that nobody is in the way.
var ownTables = map[string]string{
	"result": "(name varchar(40) PRIMARY KEY, n bigint NOT NULL)",
	"job":    "(id bigint PRIMARY KEY, state varchar(10) NOT NULL)",
	// By hand:
	"hand_lock":  "(name varchar(40) PRIMARY KEY)",
	"hand_run":   "(run varchar(40) PRIMARY KEY, state varchar(10) NOT NULL)",
	"hand_lease": "(name varchar(40) PRIMARY KEY, token bigint NOT NULL, owner varchar(40) NOT NULL, expires_at bigint NOT NULL)",
}

func openSQL(ctx context.Context, o *target.Open, options Options) (*stage, error) {
	s := &sqlStage{Open: o, options: options}
	s.prefix = strategy.Default(options.Prefix, strategy.DefaultPrefix) + "bench_" + strings.ToLower(rand.Text()[:8]) + "_"
	st := &stage{name: o.Name, held: func() int { return o.SQL.Stats().InUse }}
	if err := s.makeTables(ctx, st); err != nil {
		return st, fmt.Errorf("make the tables: %w", err)
	}
	return st, s.makePairs(st)
}

// makeTables notes what is to be dropped before it is made: an answer may be lost.
// The end of ctx is looked at between statements only. MySQL goes on with one
// whose connection is gone, and would make the table after it was dropped.
func (s *sqlStage) makeTables(interrupt context.Context, st *stage) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(interrupt), tidyWait)
	defer cancel()
	drop := func(kind, name string) {
		st.undo = append(st.undo, func(ctx context.Context) error {
			if _, err := s.SQL.ExecContext(ctx, "DROP "+kind+" IF EXISTS "+name); err != nil {
				return fmt.Errorf("drop %s: %w", name, err)
			}
			return nil
		})
	}
	selection := templates.Selection{
		Dialect: s.Dialect, Strategies: []string{"fencing", "rowlock", "uniquetask"},
		Names: templates.Names{Schema: s.options.Schema, Prefix: s.prefix},
	}
	list, err := templates.Of(selection.Dialect, selection.Strategies)
	if err := errors.Join(err, selection.Names.Validate()); err != nil {
		return err
	}
	for _, t := range list {
		drop(strings.ToUpper(string(t.Object.Kind)), t.Quoted(selection.Names))
	}
	if _, err := schema.Init(ctx, s.SQL, selection); err != nil {
		return err
	}
	for name, columns := range ownTables {
		if err := interrupt.Err(); err != nil {
			return err
		}
		drop("TABLE", s.table(name))
		if _, err := s.SQL.ExecContext(ctx, "CREATE TABLE "+s.table(name)+" "+columns); err != nil {
			return err
		}
	}
	for worker := range s.options.Workers {
		if err := interrupt.Err(); err != nil {
			return err
		}
		for _, statement := range []string{
			"INSERT INTO " + s.table("result") + " (name, n) VALUES (?, 0)",
			"INSERT INTO " + s.table("hand_lock") + " (name) VALUES (?)",
			"INSERT INTO " + s.table("hand_lease") + " (name, token, owner, expires_at) VALUES (?, 0, '', 0)",
		} {
			if _, err := s.SQL.ExecContext(ctx, s.Dialect.Bind(statement), key(worker)); err != nil {
				return err
			}
		}
	}
	return nil
}

// key is a worker's own.
func key(worker int) string { return fmt.Sprintf("worker/%d", worker) }

// makePairs opens the strategies.
func (s *sqlStage) makePairs(st *stage) error {
	schema := s.options.Schema
	jobs, err1 := casupdate.New(s.Adapter, casupdate.Config{
		Schema: schema, Table: s.prefix + "job", Key: casupdate.Bigint("id"), From: "NEW", Claimed: "BUSY", Done: "DONE",
	})
	lock := rowlock.Config{Schema: schema, Prefix: s.prefix}
	if s.Dialect == db.SQLite {
		lock.Wait = time.Minute // the keys are free, and the database is locked as a whole
	}
	locks, err2 := rowlock.New(s.Adapter, lock)
	tasks, err3 := uniquetask.New(s.Adapter, uniquetask.Config{Schema: schema, Prefix: s.prefix, Task: "bench"})
	leases, err4 := fencing.New(s.Adapter, fencing.Config{Schema: schema, Prefix: s.prefix})
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return err
	}
	st.undo = append(st.undo, func(context.Context) error { return errors.Join(jobs.Close(), tasks.Close(), leases.Close()) })
	newKey := func(int) string { return fmt.Sprintf("%d", s.next.Add(1)) }
	all := []pair{
		{"casupdate", s.fed(s.ours(jobs, nil)), s.fed(s.byHand(s.handState()))},
		{"rowlock", keyed(key, s.ours(locks, locks.Run)), keyed(key, s.byHand(s.handLock()))},
		{"uniquetask", keyed(newKey, s.ours(tasks, nil)), keyed(newKey, s.byHand(s.handRun()))},
		{"fencing", keyed(key, s.ours(leases, nil)), keyed(key, s.byHand(s.handLease()))},
	}
	st.pairs = slices.DeleteFunc(all, func(p pair) bool {
		return len(s.options.Strategies) > 0 && !slices.Contains(s.options.Strategies, p.strategy)
	})
	if !s.options.Empty {
		// What the write costs that nothing protects.
		st.pairs = slices.Insert(st.pairs, 0, pair{byHand: keyed(key, func(ctx context.Context, worker int, _ string, inside func()) error {
			inside()
			return s.write(ctx, s.SQL, worker)
		})})
	}
	return nil
}

// keyedOperation is an operation for a key.
type keyedOperation func(ctx context.Context, worker int, key string, inside func()) error

func timed(op func() error) (time.Duration, error) {
	begin := time.Now()
	err := op()
	return time.Since(begin), err
}

// keyed gives an operation its keys.
func keyed(keyOf func(worker int) string, op keyedOperation) operation {
	return func(ctx context.Context, worker int, inside func()) (time.Duration, error) {
		key := keyOf(worker)
		return timed(func() error { return op(ctx, worker, key, inside) })
	}
}

// batch is how many rows are inserted at a time for operations that use one up.
const batch = 200

// fed gives an operation rows of the table job, which it uses up. To insert them
// does not count as time; as round trips it does, one in batch.
func (s *sqlStage) fed(op keyedOperation) operation {
	left := make([][]string, s.options.Workers)
	return func(ctx context.Context, worker int, inside func()) (time.Duration, error) {
		if len(left[worker]) == 0 {
			var values []string
			for range batch {
				id := fmt.Sprint(s.next.Add(1))
				left[worker] = append(left[worker], id)
				values = append(values, "("+id+", 'NEW')")
			}
			if _, err := s.SQL.ExecContext(ctx, "INSERT INTO "+s.table("job")+" (id, state) VALUES "+strings.Join(values, ", ")); err != nil {
				return 0, err
			}
		}
		key := left[worker][0]
		left[worker] = left[worker][1:]
		return timed(func() error { return op(ctx, worker, key, inside) })
	}
}

// execer is a pool or a transaction.
type execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// write is the work: it stores a result.
func (s *sqlStage) write(ctx context.Context, q execer, worker int) error {
	return s.exec(ctx, q, "UPDATE "+s.table("result")+" SET n = n + 1 WHERE name = ?", key(worker))
}

// errNotOurs says that somebody else has a key, which nobody else knows.
var errNotOurs = errors.New("the statement changed no row")

// exec runs a statement that changes a row.
func (s *sqlStage) exec(ctx context.Context, q execer, query string, args ...any) error {
	res, err := q.ExecContext(ctx, s.Dialect.Bind(query), args...)
	if err != nil {
		return err
	}
	n, err := res.RowsAffected()
	if err == nil && n != 1 {
		err = errNotOurs
	}
	return err
}

// transactional is what all SQL strategies are.
type transactional = exclusive.Transactional[*sql.Tx]

// ours does it with a strategy: with run, if there is one, or with Commit.
func (s *sqlStage) ours(x transactional, run func(context.Context, string, func(context.Context, *sql.Tx, exclusive.Grant) error) error) keyedOperation {
	return func(ctx context.Context, worker int, key string, inside func()) error {
		switch {
		case s.options.Empty:
			return x.Do(ctx, key, func(context.Context, exclusive.Grant) error {
				inside()
				return nil
			})
		case run != nil:
			return run(ctx, key, func(ctx context.Context, tx *sql.Tx, _ exclusive.Grant) error {
				inside()
				return s.write(ctx, tx, worker)
			})
		}
		return x.Do(ctx, key, func(ctx context.Context, g exclusive.Grant) error {
			inside()
			return x.Commit(ctx, g, func(ctx context.Context, tx *sql.Tx) error { return s.write(ctx, tx, worker) })
		})
	}
}

// byHand does it in plain SQL: the claim, then the write and the finish in one
// transaction. A lock is taken in that transaction.
func (s *sqlStage) byHand(h hand) keyedOperation {
	return func(ctx context.Context, worker int, key string, inside func()) error {
		var token int64
		if h.claim != nil {
			var err error
			if token, err = h.claim(ctx, key); err != nil {
				return err
			}
			inside()
			if s.options.Empty {
				return h.finish(ctx, s.SQL, key, token)
			}
		}
		tx, err := s.SQL.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }() // nothing to do after Commit
		if h.lock != nil {
			if err := h.lock(ctx, tx, key); err != nil {
				return err
			}
			inside()
		}
		if !s.options.Empty {
			if err := s.write(ctx, tx, worker); err != nil {
				return err
			}
		}
		if h.finish != nil {
			if err := h.finish(ctx, tx, key, token); err != nil {
				return err
			}
		}
		return tx.Commit()
	}
}
