package exclusivetest

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/internal/run"
	"github.com/exclusive-go/exclusive/internal/strategy"
)

// Config is what a case of the suite asks of a strategy. The fields mean what
// they mean in the strategies' own configurations, and in that of [Memory].
type Config struct {
	TTL     time.Duration // how long a lease lasts unless it is renewed; 0 = 30 s
	Wait    time.Duration // how long Do waits for a held key; 0 = answer at once
	NoRenew bool          // leases are not renewed in the background
	MaxHold time.Duration // the longest time that a lease is renewed; 0 = no limit
	Holder  string        // a name for people
}

// These are the limits and the default of the strategies.
const (
	defaultTTL = 30 * time.Second
	minTTL     = 10 * time.Millisecond
	maxTTL     = 31 * 24 * time.Hour
)

// complete fills in the defaults and reports all that is wrong.
func (c Config) complete() (Config, error) {
	c.TTL = strategy.Default(c.TTL, defaultTTL)
	holder, err := strategy.Holder(c.Holder)
	c.Holder = holder
	return c, strategy.InvalidConfig("memory",
		err,
		strategy.Between("TTL", c.TTL, minTTL, maxTTL),
		strategy.NotNegative("Wait", c.Wait),
		strategy.NotNegative("MaxHold", c.MaxHold),
	)
}

// Memory is the reference: leases with rising tokens, proven in the
// transactions of a [MemoryDB]. It keeps its promises within one process, so
// unit tests can use it in place of a strategy that needs a server: it takes
// what those take and fails as they fail.
//
// It starts no goroutines of its own, only timers, so it works inside the
// bubbles of testing/synctest, where leases end without anybody waiting.
type Memory struct {
	db  *MemoryDB
	cfg Config
}

var (
	_ exclusive.Leaser                   = (*Memory)(nil)
	_ exclusive.Transactional[*MemoryTx] = (*Memory)(nil)
)

// NewMemory makes a strategy on d, as one process would have it. Several on the
// same MemoryDB are several processes on the same database.
func NewMemory(d *MemoryDB, cfg Config) (*Memory, error) {
	if d == nil {
		return nil, strategy.InvalidConfig("memory", errors.New("the MemoryDB is nil"))
	}
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	return &Memory{db: d, cfg: cfg}, nil
}

// leaseRow is what the database knows of a key. The row stays when the lease
// ends: it is also the key's token counter.
type leaseRow struct {
	id       string
	holder   string
	token    int64
	attempt  int // 0: given back in good order
	since    time.Time
	expires  time.Time
	held     bool
	finished bool         // by a Commit
	lease    *memoryLease // whoever has it, to be told before it passes on
}

// markRow is the highest token that was accepted, with its grant.
type markRow struct {
	token int64
	id    string
}

// opRow is an operation that was applied, with the result to replay.
type opRow struct {
	payload [sha256.Size]byte
	result  []byte
}

// Promises implements exclusive.Exclusive.
func (m *Memory) Promises() exclusive.Promises {
	return exclusive.Promises{OneWinner: true, TimeBound: true, RefusesStale: true, InTx: true}
}

// TryAcquire implements exclusive.Leaser.
func (m *Memory) TryAcquire(ctx context.Context, key string) (*exclusive.Lease, error) {
	if err := exclusive.ValidateKey("acquire", key); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, db.CtxError(ctx, "acquire", key, nil)
	}
	l, err := m.try(context.Background(), key)
	if err != nil {
		return nil, err
	}
	return exclusive.NewLease(l), nil
}

// Acquire implements exclusive.Leaser.
func (m *Memory) Acquire(ctx context.Context, key string) (*exclusive.Lease, error) {
	if err := exclusive.ValidateKey("acquire", key); err != nil {
		return nil, err
	}
	l, err := m.acquire(ctx, context.Background(), key)
	if err != nil {
		return nil, err
	}
	return exclusive.NewLease(l), nil
}

// Do implements exclusive.Exclusive.
func (m *Memory) Do(ctx context.Context, key string, work exclusive.Work) error {
	return run.Do(ctx, run.Observed{Strategy: "memory"}, key, work, func(ctx context.Context) (*run.Claim, error) {
		l, err := m.claim(ctx, key)
		if err != nil {
			return nil, err
		}
		l.keepCtx = true // nobody else has it yet
		return &run.Claim{
			Grant:   l.Grant(),
			Context: l.ctx,
			Commits: &l.commits,
			Finish:  func(ctx context.Context) error { return l.release(ctx, true) },
			Abandon: func(ctx context.Context, _ error) error { return l.release(ctx, false) },
			Ended:   l.drop,
		}, nil
	})
}

// claim gets the key for Do, waiting as configured.
func (m *Memory) claim(ctx context.Context, key string) (*memoryLease, error) {
	if m.cfg.Wait == 0 {
		return m.try(ctx, key)
	}
	wctx, cancel := context.WithTimeout(ctx, m.cfg.Wait)
	defer cancel()
	l, err := m.acquire(wctx, ctx, key)
	if err != nil && wctx.Err() != nil && ctx.Err() == nil {
		return m.try(ctx, key) // in time after all, or ErrHeld
	}
	return l, err
}

// acquire waits for the key until ctx ends.
func (m *Memory) acquire(ctx, parent context.Context, key string) (*memoryLease, error) {
	d := m.db
	d.mu.Lock()
	defer d.mu.Unlock()
	for {
		if ctx.Err() != nil {
			return nil, db.CtxError(ctx, "acquire", key, nil)
		}
		l, err := m.tryLocked(parent, key)
		if err == nil {
			return l, nil
		}
		r := row{leases, key}
		wait, cancel := ctx, context.CancelFunc(func() {})
		if d.locks[r] == nil {
			wait, cancel = context.WithDeadline(ctx, get[leaseRow](d.rows, r).expires)
		}
		d.wait(wait)
		cancel()
	}
}

func (m *Memory) try(parent context.Context, key string) (*memoryLease, error) {
	m.db.mu.Lock()
	defer m.db.mu.Unlock()
	return m.tryLocked(parent, key)
}

// tryLocked takes a free key. The caller holds db.mu.
func (m *Memory) tryLocked(parent context.Context, key string) (*memoryLease, error) {
	d, r, now := m.db, row{leases, key}, time.Now()
	before := get[leaseRow](d.rows, r)
	// A transaction that has the row locked has proven the grant: it stays
	// current until that transaction ends, however late it is.
	if before.held && now.Before(before.expires) || d.locks[r] != nil {
		return nil, &exclusive.Error{Op: "acquire", Key: key, Kind: exclusive.ErrHeld, Holder: before.who()}
	}
	if before.held {
		before.lease.lose("it ran out and was taken over")
	}
	l := &memoryLease{m: m, grant: exclusive.Grant{
		Key: key,
		ID:  rand.Text(),
		// Past the mark too: the leases may have been restored from an older
		// copy than the data.
		Token:   max(before.token, get[markRow](d.rows, row{marks, key}).token) + 1,
		Attempt: before.attempt + 1,
	}}
	l.ctx, l.cancel = context.WithCancelCause(exclusive.WithHolding(parent, l))
	if m.cfg.MaxHold > 0 {
		l.last = now.Add(m.cfg.MaxHold)
	}
	l.extend(leaseRow{
		id: l.grant.ID, holder: m.cfg.Holder, token: l.grant.Token, attempt: l.grant.Attempt,
		since: now, held: true, lease: l,
	})
	l.startTimers()
	return l, nil
}

func (r leaseRow) who() *exclusive.Holder {
	return &exclusive.Holder{ID: r.id, Name: r.holder, Token: r.token, Since: r.since, Expires: r.expires}
}

// Revoke takes the key from its holder, as an operator would: its writes are
// refused from now on, and it learns with its next renewal.
func (m *Memory) Revoke(ctx context.Context, key string) error {
	if err := exclusive.ValidateKey("revoke", key); err != nil {
		return err
	}
	r := row{leases, key}
	return m.db.update(ctx, "revoke", r, func() error {
		// Whose it was stays, as nobody has it yet: decision 0012.
		if now := get[leaseRow](m.db.rows, r); now.held {
			now.held = false
			m.db.rows[r] = now
			m.db.wake()
		}
		return nil
	})
}

// Check implements exclusive.Transactional.
func (m *Memory) Check(ctx context.Context, tx *MemoryTx, g exclusive.Grant) error {
	return m.check(ctx, "check", tx, g)
}

func (m *Memory) check(ctx context.Context, op string, tx *MemoryTx, g exclusive.Grant) error {
	fail := func(kind error, hint string) error {
		return &exclusive.Error{Op: op, Key: g.Key, Kind: kind, Hint: hint}
	}
	if err := strategy.ValidGrant(op, g); err != nil {
		return err
	}
	if tx == nil || tx.db != m.db {
		return &exclusive.Error{Op: op, Key: g.Key, Kind: exclusive.ErrInvalid, Err: errForeignTx}
	}
	if err := tx.lock(ctx, row{leases, g.Key}); err != nil {
		return err
	}
	switch now := txGet[leaseRow](tx, row{leases, g.Key}); {
	case now.id == "":
		return fail(exclusive.ErrLost, "the key has no lease")
	case now.id != g.ID:
		return &exclusive.Error{Op: op, Key: g.Key, Kind: exclusive.ErrFenced, Holder: now.who()}
	case now.token != g.Token:
		return fail(exclusive.ErrInvalid, "the token is not this grant's")
	case now.finished && now.lease.m == m && !now.lease.dropped:
		return fail(exclusive.ErrInvalid, "the grant is finished: its Commit has succeeded")
	case now.finished:
		return fail(exclusive.ErrLost, "the grant is over: its Commit has succeeded")
	case !now.held:
		return fail(exclusive.ErrLost, "the lease was released, or revoked; nobody has the key")
	case !time.Now().Before(now.expires):
		return fail(exclusive.ErrLost, "the lease ran out")
	}
	if err := tx.lock(ctx, row{marks, g.Key}); err != nil {
		return err
	}
	mark := txGet[markRow](tx, row{marks, g.Key})
	if mark.token > g.Token || mark.token == g.Token && mark.id != g.ID {
		return fail(exclusive.ErrFenced, fmt.Sprintf("the destination has accepted token %d of another grant", mark.token))
	}
	return tx.put(ctx, row{marks, g.Key}, markRow{token: g.Token, id: g.ID})
}

// Commit implements exclusive.Transactional.
func (m *Memory) Commit(ctx context.Context, g exclusive.Grant, apply func(ctx context.Context, tx *MemoryTx) error) error {
	if err := strategy.ValidCommit(g, apply); err != nil {
		return err
	}
	if l := m.find(g); l != nil {
		sending := run.Sending(&l.commits, g, apply)
		locking := func(ctx context.Context, tx *MemoryTx) error {
			l.lock()
			return sending(ctx, tx)
		}
		return run.Observed{}.Commit(ctx, g,
			func() error { return l.commits.Begin(g) },
			func(err error) { l.unlock(); l.commits.End(err) },
			func(ctx context.Context) error { return m.commit(ctx, g, locking) })
	}
	return m.commit(ctx, g, apply)
}

// find returns the lease of g, if somebody has it here.
func (m *Memory) find(g exclusive.Grant) *memoryLease {
	m.db.mu.Lock()
	defer m.db.mu.Unlock()
	now := get[leaseRow](m.db.rows, row{leases, g.Key})
	if now.id != g.ID || now.lease == nil || now.lease.m != m || now.lease.dropped {
		return nil
	}
	return now.lease
}

func (m *Memory) commit(ctx context.Context, g exclusive.Grant, apply func(ctx context.Context, tx *MemoryTx) error) error {
	return m.db.InTx(ctx, func(ctx context.Context, tx *MemoryTx) error {
		if err := m.check(ctx, "commit", tx, g); err != nil {
			return err
		}
		if err := apply(ctx, tx); err != nil {
			return err
		}
		r := row{leases, g.Key}
		now := txGet[leaseRow](tx, r)
		tx.onCommit = append(tx.onCommit, now.lease.finish)
		now.held, now.finished, now.attempt = false, true, 0
		return tx.put(ctx, r, now)
	})
}

// Once runs apply in tx, once for all time: the result is stored under opID,
// and later calls get it without running apply. Another payload under the same
// id is ErrMismatch. After an error roll tx back.
func (m *Memory) Once(ctx context.Context, tx *MemoryTx, opID string, payload []byte, apply func(ctx context.Context) ([]byte, error)) ([]byte, error) {
	if err := exclusive.ValidateKey("once", opID); err != nil {
		return nil, err
	}
	if tx == nil || tx.db != m.db {
		return nil, &exclusive.Error{Op: "once", Key: opID, Kind: exclusive.ErrInvalid, Err: errForeignTx}
	}
	if apply == nil {
		return nil, &exclusive.Error{Op: "once", Key: opID, Kind: exclusive.ErrInvalid, Hint: "apply is nil"}
	}
	r, hash := row{operations, opID}, sha256.Sum256(payload)
	if err := tx.lock(ctx, r); err != nil {
		return nil, err
	}
	// A result is never nil in the table, not even an empty one.
	if op := txGet[opRow](tx, r); op.result != nil {
		if op.payload != hash {
			return nil, &exclusive.Error{Op: "once", Key: opID, Kind: exclusive.ErrMismatch}
		}
		return bytes.Clone(op.result), nil
	}
	result, err := apply(ctx)
	if err != nil {
		return nil, err
	}
	return result, tx.put(ctx, r, opRow{payload: hash, result: append([]byte{}, result...)})
}
