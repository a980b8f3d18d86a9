package exclusivetest

import (
	"context"
	"errors"
	"maps"
	"sync"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/internal/db"
)

// MemoryDB is a tiny database in memory: rows of strings with locks and
// transactions, and beside them the leases, marks and operations of [Memory].
// It is safe for concurrent use.
type MemoryDB struct {
	mu      sync.Mutex
	rows    map[row]any
	locks   map[row]*MemoryTx
	changed chan struct{} // closed and replaced when a lock or a lease ends
}

// row identifies a row. A row that is not there reads as its zero value.
type row struct {
	table table
	key   string
}

type table uint8

const (
	values     table = iota // string
	leases                  // leaseRow
	marks                   // markRow
	operations              // opRow
)

// NewMemoryDB makes an empty database.
func NewMemoryDB() *MemoryDB {
	return &MemoryDB{
		rows:    make(map[row]any),
		locks:   make(map[row]*MemoryTx),
		changed: make(chan struct{}),
	}
}

// Get returns the committed value of key, "" if it has none.
func (d *MemoryDB) Get(key string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return get[string](d.rows, row{values, key})
}

// BackUpLeases copies the leases and tokens, as the backup of an issuer, and
// returns what restores the copy.
func (d *MemoryDB) BackUpLeases(context.Context) (restore func(context.Context) error, err error) {
	return d.backUp(leases), nil
}

// BackUpData copies the values with their marks and operations, as the backup
// of a destination, and returns what restores the copy.
func (d *MemoryDB) BackUpData(context.Context) (restore func(context.Context) error, err error) {
	return d.backUp(values, marks, operations), nil
}

func (d *MemoryDB) backUp(tables ...table) func(context.Context) error {
	concerned := make(map[table]bool)
	for _, t := range tables {
		concerned[t] = true
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	saved := maps.Clone(d.rows)
	maps.DeleteFunc(saved, func(r row, _ any) bool { return !concerned[r.table] })
	return func(context.Context) error {
		d.mu.Lock()
		defer d.mu.Unlock()
		maps.DeleteFunc(d.rows, func(r row, _ any) bool { return concerned[r.table] })
		maps.Copy(d.rows, saved)
		// Transactions that were open did not survive.
		for _, tx := range d.locks {
			tx.over = true
		}
		clear(d.locks)
		d.wake()
		return nil
	}
}

// wake has everybody look again who waits for a lock or a lease. The caller
// holds mu.
func (d *MemoryDB) wake() {
	close(d.changed)
	d.changed = make(chan struct{})
}

// update runs fn when no transaction has r locked. fn runs under mu.
func (d *MemoryDB) update(ctx context.Context, op string, r row, fn func() error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for ctx.Err() == nil {
		if d.locks[r] == nil {
			return fn()
		}
		d.wait(ctx)
	}
	return db.CtxError(ctx, op, r.key, nil)
}

// wait returns when something has changed, or ctx has ended. The caller holds
// mu, which is free meanwhile.
func (d *MemoryDB) wait(ctx context.Context) {
	changed := d.changed
	d.mu.Unlock()
	defer d.mu.Lock()
	select {
	case <-changed:
	case <-ctx.Done():
	}
}

// get reads a row of a known type.
func get[T any](rows map[row]any, r row) T {
	v, _ := rows[r].(T)
	return v
}

// MemoryTx is a transaction. It reads what is committed, and its own writes;
// each row that it writes, or reads for update, is locked until it ends. Like
// other transactions it is for one goroutine.
type MemoryTx struct {
	db       *MemoryDB
	ctx      context.Context
	writes   map[row]any
	onCommit []func() // run under db.mu

	// Guarded by db.mu.
	waits *row // the row that it waits for
	over  bool
}

// Begin starts a transaction. When ctx ends it cannot be committed any more.
func (d *MemoryDB) Begin(ctx context.Context) *MemoryTx {
	return &MemoryTx{db: d, ctx: ctx, writes: make(map[row]any)}
}

// InTx runs fn in a transaction and commits it, unless fn fails or panics.
func (d *MemoryDB) InTx(ctx context.Context, fn func(ctx context.Context, tx *MemoryTx) error) error {
	tx := d.Begin(ctx)
	defer tx.Rollback() // does nothing after a commit
	if err := fn(ctx, tx); err != nil {
		return err
	}
	return tx.Commit()
}

// Get returns the value of key, "" if it has none.
func (tx *MemoryTx) Get(key string) string {
	return txGet[string](tx, row{values, key})
}

func txGet[T any](tx *MemoryTx, r row) T {
	if _, ok := tx.writes[r]; ok {
		return get[T](tx.writes, r)
	}
	tx.db.mu.Lock()
	defer tx.db.mu.Unlock()
	return get[T](tx.db.rows, r)
}

// GetForUpdate locks key and returns its value.
func (tx *MemoryTx) GetForUpdate(ctx context.Context, key string) (string, error) {
	if err := tx.lock(ctx, row{values, key}); err != nil {
		return "", err
	}
	return tx.Get(key), nil
}

// Put locks key and stores value under it.
func (tx *MemoryTx) Put(ctx context.Context, key, value string) error {
	return tx.put(ctx, row{values, key}, value)
}

func (tx *MemoryTx) put(ctx context.Context, r row, v any) error {
	if err := tx.lock(ctx, r); err != nil {
		return err
	}
	tx.writes[r] = v
	return nil
}

// lock waits for the row's lock. It fails with ErrConflict rather than wait
// for ever: on a deadlock, and after the transaction has ended.
func (tx *MemoryTx) lock(ctx context.Context, r row) error {
	d := tx.db
	d.mu.Lock()
	defer d.mu.Unlock()
	for {
		if err := tx.alive("lock", r.key); err != nil {
			return err
		}
		switch owner := d.locks[r]; {
		case owner == nil:
			d.locks[r] = tx
			return nil
		case owner == tx:
			return nil
		case tx.blocks(owner):
			return &exclusive.Error{Op: "lock", Key: r.key, Kind: exclusive.ErrConflict, Hint: "deadlock"}
		}
		tx.waits = &r
		d.wait(ctx)
		tx.waits = nil
		if ctx.Err() != nil {
			return db.CtxError(ctx, "lock", r.key, nil)
		}
	}
}

// blocks reports whether owner waits for tx, over however many others. The
// caller holds db.mu.
func (tx *MemoryTx) blocks(owner *MemoryTx) bool {
	for owner != nil && owner.waits != nil {
		owner = tx.db.locks[*owner.waits]
		if owner == tx {
			return true
		}
	}
	return false
}

// alive says why the transaction cannot go on. The caller holds db.mu.
func (tx *MemoryTx) alive(op, key string) error {
	if tx.over {
		return &exclusive.Error{Op: op, Key: key, Kind: exclusive.ErrConflict, Hint: "the transaction is over"}
	}
	if tx.ctx.Err() != nil {
		return db.CtxError(tx.ctx, op, key, nil)
	}
	return nil
}

// Commit makes the writes durable, all or none. It fails if the transaction is
// over, or if its context is.
func (tx *MemoryTx) Commit() error {
	d := tx.db
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := tx.alive("commit", ""); err != nil {
		tx.end()
		return err
	}
	maps.Copy(d.rows, tx.writes)
	for _, f := range tx.onCommit {
		f()
	}
	tx.end()
	return nil
}

// Rollback ends the transaction and forgets its writes. After Commit it does
// nothing.
func (tx *MemoryTx) Rollback() {
	tx.db.mu.Lock()
	defer tx.db.mu.Unlock()
	if !tx.over {
		tx.end()
	}
}

// end frees the locks. The caller holds db.mu.
func (tx *MemoryTx) end() {
	tx.over = true
	maps.DeleteFunc(tx.db.locks, func(_ row, owner *MemoryTx) bool { return owner == tx })
	tx.db.wake()
}

// errForeignTx says that a transaction does not belong to the database.
var errForeignTx = errors.New("the transaction is nil, or of another MemoryDB")
