package rowlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/internal/run"
	"github.com/exclusive-go/exclusive/internal/strategy"
	"github.com/exclusive-go/exclusive/internal/wait"
)

// Locks holds keys by locking their rows, each time for the life of one
// transaction. It is safe for concurrent use. Tx is the adapter's transaction
// type.
type Locks[Tx any] struct {
	server   *strategy.Server[Tx, dialect]
	cfg      Config
	observed run.Observed
	queue    wait.Queue
	latest   atomic.Bool // transactions must be told to read the latest state

	mu    sync.Mutex
	byID  map[string]*held[Tx] // by grant id
	lines map[string]*held[Tx] // by line, see line
}

// New makes Locks from an adapter: pgxdb.New, sqldb.NewPostgres,
// sqldb.NewSQLite or mysqldb.New. It does no I/O.
func New[Tx any](d db.DB[Tx], cfg Config) (*Locks[Tx], error) {
	if err := strategy.ValidAdapter("rowlock", d); err != nil {
		return nil, err
	}
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	text := func(kind db.Dialect) dialect { return newDialect(kind, cfg) }
	server := strategy.NewServer(d, "rowlock", text, nil)
	if cfg.Table == "" {
		server.Columns = strategy.Columns{Schema: cfg.Schema, Prefix: cfg.Prefix, Ours: true, List: []strategy.Column{{Table: "lock", Name: "lock_key", Key: true}}}
	} else {
		server.Mend = fmt.Sprintf("Config must name the table and its columns as they are; its Table is %q, its Schema %q, its KeyColumns are %q", cfg.Table, cfg.Schema, cfg.KeyColumns)
	}
	return &Locks[Tx]{
		server:   server,
		cfg:      cfg,
		observed: run.Observed{Strategy: "rowlock", Observer: cfg.Observer},
		byID:     make(map[string]*held[Tx]),
		lines:    make(map[string]*held[Tx]),
	}, nil
}

// Close does nothing: no lock outlives its call. It is there so that a program
// can change its strategy. The database handle stays open.
func (l *Locks[Tx]) Close() error { return nil }

// Promises implements exclusive.Exclusive.
func (l *Locks[Tx]) Promises() exclusive.Promises { return exclusive.PromisesOf("rowlock") }

// Do implements exclusive.Exclusive. The transaction that holds the lock stays
// open while work runs, and with it a connection of the pool. It is committed
// when work returns nil, also if nothing was written in it: a lock that was
// lost shows there at the latest, as ErrLost.
func (l *Locks[Tx]) Do(ctx context.Context, key string, work exclusive.Work) error {
	return l.do(ctx, key, work, l.claim([]string{key}))
}

// DoAll is Do for several keys: work runs when all are held, in one
// transaction, and gets their grants in the order of keys. They are locked one
// by one in the order of their bytes, so that two callers cannot wait for each
// other. A Commit of any of the grants commits the transaction of all.
func (l *Locks[Tx]) DoAll(ctx context.Context, keys []string, work func(ctx context.Context, grants []exclusive.Grant) error) error {
	if len(keys) == 0 {
		return invalid("do", "", "no keys")
	}
	for i, key := range keys {
		if err := exclusive.ValidateKey("do", key); err != nil {
			return err
		}
		if slices.Contains(keys[:i], key) {
			return invalid("do", key, "the key is listed twice")
		}
	}
	var one exclusive.Work
	if work != nil {
		one = func(ctx context.Context, g exclusive.Grant) error {
			h, _ := l.find(g.ID) // it is there until do returns
			return work(ctx, slices.Clone(h.grants))
		}
	}
	return l.do(ctx, keys[0], one, l.claim(slices.Clone(keys)))
}

// Run is Do for work whose effects are in the transaction that holds the lock.
// It commits tx when work returns nil, and rolls it back otherwise. work must
// not do either, and must not keep tx.
func (l *Locks[Tx]) Run(ctx context.Context, key string, work func(ctx context.Context, tx Tx, g exclusive.Grant) error) error {
	var do exclusive.Work
	if work != nil {
		do = func(ctx context.Context, g exclusive.Grant) error {
			return l.commit(ctx, g, false, func(ctx context.Context, tx Tx) error { return work(ctx, tx, g) })
		}
	}
	return l.Do(ctx, key, do)
}

// MaxRows is the largest number of rows that Next claims.
const MaxRows = 10_000

// Next locks up to n rows of Config.Table that fulfil Config.Where and that
// nobody has locked, and passes over those that somebody has. work gets the
// values of their key columns, as text, and the transaction, in which it must
// delete or change the rows: otherwise they are next again. The transaction is
// committed when work returns nil, and rolled back otherwise.
//
// Next returns how many rows it gave to work. If there are none it returns 0
// and nil, and work does not run. It does not wait. SQLite cannot pass over
// rows: there it returns ErrHeld while anybody else writes to the database.
func (l *Locks[Tx]) Next(ctx context.Context, n int, work func(ctx context.Context, tx Tx, rows [][]string) error) (int, error) {
	switch {
	case l.cfg.Table == "":
		return 0, invalid("do", "", "Next needs a Config with a Table")
	case n < 1 || n > MaxRows:
		return 0, invalid("do", "", fmt.Sprintf("n is %d; it must be from 1 to %d", n, MaxRows))
	}
	var rows [][]string
	var do exclusive.Work
	if work != nil {
		do = func(ctx context.Context, g exclusive.Grant) error {
			return l.commit(ctx, g, false, func(ctx context.Context, tx Tx) error { return work(ctx, tx, rows) })
		}
	}
	none := errors.New("no row is free")
	err := l.do(ctx, l.cfg.Table, do, func(ctx context.Context) (*held[Tx], error) {
		lines := func(d dialect) []string {
			if d.wholeDatabase() {
				return []string{line(d, "")}
			}
			return nil // rows that are locked are passed over
		}
		h, err := l.acquire(ctx, []string{l.cfg.Table}, lines, func(ctx context.Context, d dialect, r db.Runner) (t trace, err error) {
			if t, rows, err = d.next(ctx, r, int64(n)); err == nil && len(rows) == 0 {
				err = &exclusive.Error{Op: "acquire", Key: l.cfg.Table, Kind: exclusive.ErrHeld, Err: none}
			}
			return t, err
		})
		if err != nil {
			return nil, err
		}
		h.start(ctx)
		return h, nil
	})
	if errors.Is(err, none) {
		return 0, nil
	}
	return len(rows), err
}

func invalid(op, key, hint string) error {
	return &exclusive.Error{Op: op, Key: key, Kind: exclusive.ErrInvalid, Hint: hint}
}

// do runs work under the lock that claim gets.
func (l *Locks[Tx]) do(ctx context.Context, key string, work exclusive.Work, claim func(context.Context) (*held[Tx], error)) error {
	return run.Do(ctx, l.observed, key, work, func(ctx context.Context) (*run.Claim, error) {
		h, err := claim(ctx)
		if err != nil {
			return nil, err
		}
		return h.claim(), nil
	})
}

// claim gets keys, and waits for them as configured.
func (l *Locks[Tx]) claim(keys []string) func(context.Context) (*held[Tx], error) {
	return func(ctx context.Context) (*held[Tx], error) {
		t, err := l.targets(keys)
		if err != nil {
			return nil, err
		}
		return l.wait(ctx, t)
	}
}

// target is a row to lock.
type target struct {
	key    string
	values []any
}

// targets are the rows of keys, in their order. try sorts them.
func (l *Locks[Tx]) targets(keys []string) ([]target, error) {
	list := make([]target, len(keys))
	for i, key := range keys {
		values, err := l.cfg.values(key)
		if err != nil {
			return nil, &exclusive.Error{Op: "acquire", Key: key, Kind: exclusive.ErrInvalid, Hint: "KeyValues refuses the key", Err: err}
		}
		list[i] = target{key, values}
	}
	return list, nil
}

// find returns the lock of a grant that this process was given.
func (l *Locks[Tx]) find(id string) (*held[Tx], bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h, ok := l.byID[id]
	return h, ok
}

// enter notes that h holds lines.
func (l *Locks[Tx]) enter(h *held[Tx]) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, g := range h.grants {
		l.byID[g.ID] = h
	}
	for _, line := range h.lines {
		l.lines[line] = h
	}
}

// freed notes that h holds nothing any more, and wakes those who wait for it.
func (l *Locks[Tx]) freed(h *held[Tx]) {
	l.mu.Lock()
	for _, line := range h.lines {
		if l.lines[line] == h {
			delete(l.lines, line)
		}
	}
	l.mu.Unlock()
	for _, line := range h.lines {
		l.queue.Wake(line)
	}
}

// forget drops the grants of h.
func (l *Locks[Tx]) forget(h *held[Tx]) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, g := range h.grants {
		delete(l.byID, g.ID)
	}
}

// holderOf is who holds a line in this process, if anybody does.
func (l *Locks[Tx]) holderOf(lines []string) *exclusive.Holder {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range lines {
		if h := l.lines[line]; h != nil {
			return &exclusive.Holder{ID: h.grants[0].ID, Since: h.since}
		}
	}
	return nil
}

// slice is the longest that one statement waits in the server. If it cannot be
// cancelled, which needs a connection of its own, it ends by itself.
const slice = 5 * time.Second
