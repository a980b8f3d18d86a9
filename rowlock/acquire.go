package rowlock

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"time"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/internal/run"
)

// wait gets the targets, trying in this process's turn for up to Config.Wait.
func (l *Locks[Tx]) wait(ctx context.Context, targets []target) (*held[Tx], error) {
	if l.cfg.Wait <= 0 {
		return l.try(ctx, ctx, targets, 0)
	}
	key, end := targets[0].key, time.Now().Add(l.cfg.Wait)
	// A little longer than the server is told, whose answer keeps the
	// connection whole.
	wctx, cancel := context.WithDeadline(ctx, end.Add(grace))
	defer cancel()
	var last run.Refusal
	h, err := l.poll(wctx, ctx, end, targets, &last)
	switch {
	case err == nil:
		return h, nil
	case db.Over(ctx) != nil:
		return nil, db.CtxError(ctx, "acquire", key, err)
	case db.Over(wctx) == nil && !errors.Is(err, exclusive.ErrHeld):
		return nil, err
	}
	return run.EndOfWait(ctx, key, last, func(actx context.Context) (*held[Tx], error) { return l.try(actx, ctx, targets, 0) })
}

// poll tries in this process's turn until end, for which ctx gives it a moment
// more. last is the last refusal.
func (l *Locks[Tx]) poll(ctx, parent context.Context, end time.Time, targets []target, last *run.Refusal) (h *held[Tx], err error) {
	key := targets[0].key
	d, err := l.server.SQL(ctx, l.server.DB)
	if err != nil {
		return nil, l.server.Fail(ctx, "acquire", key, err)
	}
	perr := l.queue.Poll(ctx, line(d, key), func() (bool, time.Duration) {
		left := time.Until(end)
		if left <= 0 && last.Err != nil {
			err = last.Err
			return true, 0
		}
		h, err = l.try(ctx, parent, targets, min(left, slice))
		if errors.Is(err, exclusive.ErrHeld) {
			*last = run.Refusal{Err: err, At: time.Now()}
			return false, max(left, time.Millisecond)
		}
		return true, 0
	})
	if perr != nil {
		return nil, db.CtxError(ctx, "acquire", key, nil)
	}
	return h, err
}

// grace: see wait.
const grace = 200 * time.Millisecond

// line names what a lock of key excludes in this process.
func line(d dialect, key string) string {
	if d.wholeDatabase() {
		return ""
	}
	return key
}

// try is one attempt to lock the targets. parent is what work's context derives
// from; wait is how long the server may wait for each.
func (l *Locks[Tx]) try(ctx, parent context.Context, targets []target, wait time.Duration) (_ *held[Tx], err error) {
	keys := make([]string, len(targets))
	for i, t := range targets {
		keys[i] = t.key
	}
	sorted := slices.SortedFunc(slices.Values(targets), func(a, b target) int { return cmp.Compare(a.key, b.key) })
	until := time.Now().Add(wait)
	lines := func(d dialect) []string {
		list := make([]string, len(keys))
		for i, key := range keys {
			list[i] = line(d, key)
		}
		return list
	}
	h, err := l.acquire(ctx, keys, lines, func(ctx context.Context, d dialect, r db.Runner) (t trace, err error) {
		for i, target := range sorted {
			left := time.Duration(0)
			if wait > 0 {
				left = max(time.Until(until), time.Millisecond)
			}
			var found bool
			t, found, err = d.lock(ctx, r, target.values, left)
			if err == nil && !found {
				err = &missing{sorted[i:]}
			}
			if err != nil || t.refused || t.oldSnapshot {
				return t, err
			}
		}
		return t, nil
	})
	if err != nil {
		return nil, err
	}
	h.start(parent)
	return h, nil
}

// missing says that there is no row for the first of these targets. The others were
// not looked at.
type missing struct{ targets []target }

func (m *missing) key() string { return m.targets[0].key }

func (m *missing) Error() string { return "there is no row for the key" }

// making says that somebody else is making a row, of this key or of one that
// would be next to it in the index. It takes them a moment.
type making struct{ error }

func (m *making) Unwrap() error { return m.error }

// refusals makes an answer of what is worth another try elsewhere: a row that
// is locked is held.
type refusals struct{ db.Classifier }

func (o refusals) Classify(err error) db.Class {
	c := o.Classifier.Classify(err)
	var m *making
	if c == db.Locked && !errors.As(err, &m) {
		return db.Other
	}
	return c
}

// acquire locks what lock locks, in a new transaction. The grants are for keys.
// Lines are what they exclude in this process, where that is known before.
func (l *Locks[Tx]) acquire(ctx context.Context, keys []string, lines func(dialect) []string, lock func(context.Context, dialect, db.Runner) (trace, error)) (h *held[Tx], err error) {
	ctx, end := l.observed.Start(ctx, exclusive.Event{Op: exclusive.OpAcquire, Key: keys[0]})
	defer func() {
		if h != nil {
			end(h.grants[0], nil)
		} else {
			end(exclusive.Grant{}, err)
		}
	}()
	d, err := l.server.SQL(ctx, l.server.DB)
	if err != nil {
		return nil, l.server.Fail(ctx, "acquire", keys[0], err)
	}
	h = &held[Tx]{locks: l, dialect: d, lines: lines(d), use: make(chan struct{}, 1)}
	if holder := l.holderOf(h.lines); holder != nil {
		return nil, &exclusive.Error{Op: "acquire", Key: keys[0], Kind: exclusive.ErrHeld, Holder: holder}
	}
	if err := db.RoomForAll(ctx, l.server.DB); err != nil {
		return nil, err
	}
	err = db.Retry(ctx, refusals{l.server.DB}, func(ctx context.Context) error { return l.begin(ctx, h, lock) })
	var none *missing
	switch {
	case err == nil:
	case errors.Is(err, errReadOnly):
		return nil, &exclusive.Error{Op: "acquire", Key: keys[0], Kind: exclusive.ErrUnavailable, Err: err}
	case ctx.Err() == nil && l.server.DB.Classify(err) == db.Locked:
		return nil, &exclusive.Error{Op: "acquire", Key: keys[0], Kind: exclusive.ErrHeld, Err: err}
	case errors.As(err, &none) && l.cfg.Table != "":
		return nil, &exclusive.Error{Op: "acquire", Key: none.key(), Kind: exclusive.ErrNoRow}
	case errors.As(err, &none):
		return nil, &exclusive.Error{Op: "acquire", Key: none.key(), Kind: exclusive.ErrConflict, Hint: "the key's row is deleted again and again", Err: err}
	default:
		return nil, l.server.Fail(ctx, "acquire", keys[0], err)
	}
	h.since = time.Now()
	for _, key := range keys {
		h.grants = append(h.grants, exclusive.Grant{Key: key, ID: rand.Text(), Attempt: 1})
	}
	l.enter(h)
	return h, nil
}

// begin begins the transaction of h and locks. What keeps it from that it mends
// once: keys of ours that have no row yet, and a default isolation in which the
// transaction would read the world from before its lock.
func (l *Locks[Tx]) begin(ctx context.Context, h *held[Tx], lock func(context.Context, dialect, db.Runner) (trace, error)) error {
	for tries := 0; ; tries++ {
		err := l.beginOnce(ctx, h, lock)
		var none *missing
		switch {
		case errors.Is(err, errOldSnapshot) && tries < 3: // begun before another caller had found it out
			l.latest.Store(true)
		case errors.As(err, &none) && l.cfg.Table == "" && tries < 3:
			if err := l.create(ctx, h.dialect, none.targets); err != nil {
				return err
			}
		default:
			return err
		}
	}
}

// create makes the rows of all targets that have none; the first is known to.
func (l *Locks[Tx]) create(ctx context.Context, d dialect, targets []target) error {
	for i, t := range targets {
		// Again by itself: on MySQL the makers of different new keys are in each other's
		// way, and each attempt to lock would be one more lock on the gap.
		err := db.Retry(ctx, refusals{l.server.DB}, func(ctx context.Context) error { return d.create(ctx, l.server.DB, t.values[0].([]byte)) })
		switch class := l.server.DB.Classify(err); {
		case class == db.Locked && i == 0:
			return &making{err}
		case class == db.Locked, class == db.Duplicate: // its row is there, and may be locked
		case err != nil:
			return err
		}
	}
	return nil
}

// What is wrong with a lock that the server did give; see trace.
var (
	errOldSnapshot = errors.New("the transaction would read the state from before its lock")
	errReadOnly    = errors.New("the server is read-only; connect to the primary")
)

func (l *Locks[Tx]) beginOnce(ctx context.Context, h *held[Tx], lock func(context.Context, dialect, db.Runner) (trace, error)) error {
	tx, err := db.Open(ctx, l.server.DB, func(ctx context.Context, r db.Runner) (err error) {
		if l.latest.Load() {
			if _, err := r.Exec(ctx, readLatest); err != nil {
				return err
			}
		}
		h.trace, err = lock(ctx, h.dialect, r)
		switch {
		case err != nil:
			return err
		case h.trace.refused:
			return errReadOnly
		case h.trace.oldSnapshot:
			return errOldSnapshot
		}
		return nil
	})
	if err != nil {
		return err
	}
	h.tx = tx
	h.runner, err = l.server.DB.Within(tx)
	return err
}
