// Package pool wraps an adapter so that a test sees, replaces and fails what
// the strategies ask of it.
package pool

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/exclusive-go/exclusive/internal/db"
)

// Watch shows what is asked of a backend.
type Watch struct {
	onStatement atomic.Pointer[func(query string, args []any) error]
	onAnswer    atomic.Pointer[func(query string)]
}

// Pool is an adapter in front of another one.
type Pool[Tx any] struct {
	Watch
	current  atomic.Pointer[db.DB[Tx]]
	onCommit atomic.Pointer[func(commit func() error) error]
}

// OnStatement has every statement shown to see first. If it returns an error
// the statement is not sent. nil: none is.
func (w *Watch) OnStatement(see func(query string, args []any) error) {
	if see == nil {
		w.onStatement.Store(nil)
		return
	}
	w.onStatement.Store(&see)
}

// OnAnswer has every statement shown to see when it has run, before its answer is
// handed on. nil: none is.
func (w *Watch) OnAnswer(see func(query string)) {
	if see == nil {
		w.onAnswer.Store(nil)
		return
	}
	w.onAnswer.Store(&see)
}

func (w *Watch) see(query string, args []any) error {
	if see := w.onStatement.Load(); see != nil {
		return (*see)(query, args)
	}
	return nil
}

func (w *Watch) answered(query string) {
	if see := w.onAnswer.Load(); see != nil {
		(*see)(query)
	}
}

var _ db.Pinner[int] = (*Pool[int])(nil)

// New makes a Pool in front of d.
func New[Tx any](d db.DB[Tx]) *Pool[Tx] {
	p := new(Pool[Tx])
	p.Swap(d)
	return p
}

// Swap puts d in place of what is behind the pool, as a failover does.
// Transactions that are open stay where they are.
func (p *Pool[Tx]) Swap(d db.DB[Tx]) { p.current.Store(&d) }

// OnCommit has every COMMIT done by do, which is given the real one. A
// transaction that it does not commit is rolled back. nil: by the adapter itself.
func (p *Pool[Tx]) OnCommit(do func(commit func() error) error) {
	if do == nil {
		p.onCommit.Store(nil)
		return
	}
	p.onCommit.Store(&do)
}

func (p *Pool[Tx]) db() db.DB[Tx] { return *p.current.Load() }

// Exec implements db.Runner.
func (p *Pool[Tx]) Exec(ctx context.Context, query string, args ...any) (db.Result, error) {
	return runner[Tx]{p, p.db()}.Exec(ctx, query, args...)
}

// Query implements db.Runner.
func (p *Pool[Tx]) Query(ctx context.Context, query string, args []any, each func(db.Scan) error) error {
	return runner[Tx]{p, p.db()}.Query(ctx, query, args, each)
}

// Dialect implements db.DB.
func (p *Pool[Tx]) Dialect(ctx context.Context, via db.Runner) (db.Dialect, error) {
	return p.db().Dialect(ctx, via)
}

// Begin implements db.DB.
func (p *Pool[Tx]) Begin(ctx context.Context) (Tx, error) { return p.db().Begin(ctx) }

// Within implements db.DB.
func (p *Pool[Tx]) Within(tx Tx) (db.Runner, error) {
	r, err := p.db().Within(tx)
	if err != nil {
		return nil, err
	}
	return runner[Tx]{p, r}, nil
}

// Commit implements db.DB.
func (p *Pool[Tx]) Commit(ctx context.Context, tx Tx) error {
	do := p.onCommit.Load()
	if do == nil {
		return p.db().Commit(ctx, tx)
	}
	committed := false
	err := (*do)(func() error { committed = true; return p.db().Commit(ctx, tx) })
	if !committed {
		err = errors.Join(err, p.db().Rollback(tx))
	}
	return err
}

// Rollback implements db.DB.
func (p *Pool[Tx]) Rollback(tx Tx) error { return p.db().Rollback(tx) }

// Classify implements db.DB.
func (p *Pool[Tx]) Classify(err error) db.Class { return p.db().Classify(err) }

// MaxConns implements db.DB.
func (p *Pool[Tx]) MaxConns() int { return p.db().MaxConns() }

// Pin implements db.Pinner, for adapters that do.
func (p *Pool[Tx]) Pin(ctx context.Context, tx Tx) error {
	if pinner, ok := p.db().(db.Pinner[Tx]); ok {
		return pinner.Pin(ctx, tx)
	}
	return nil
}

// Unpin implements db.Pinner.
func (p *Pool[Tx]) Unpin(ctx context.Context, tx Tx) error {
	if pinner, ok := p.db().(db.Pinner[Tx]); ok {
		return pinner.Unpin(ctx, tx)
	}
	return nil
}

// runner shows its statements to the pool's watcher.
type runner[Tx any] struct {
	pool *Pool[Tx]
	db.Runner
}

func (r runner[Tx]) Exec(ctx context.Context, query string, args ...any) (db.Result, error) {
	if err := r.pool.see(query, args); err != nil {
		return db.Result{}, err
	}
	defer r.pool.answered(query)
	return r.Runner.Exec(ctx, query, args...)
}

func (r runner[Tx]) Query(ctx context.Context, query string, args []any, each func(db.Scan) error) error {
	if err := r.pool.see(query, args); err != nil {
		return err
	}
	defer r.pool.answered(query)
	return r.Runner.Query(ctx, query, args, each)
}
