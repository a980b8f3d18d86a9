package fencing

import (
	"context"
	"fmt"
	"time"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/internal/lease"
	"github.com/exclusive-go/exclusive/internal/run"
	"github.com/exclusive-go/exclusive/internal/strategy"
)

// Leases hands out leases that are stored in a database, and checks them in
// transactions on that same database. It is safe for concurrent use. Tx is the
// adapter's transaction type.
type Leases[Tx any] struct {
	ops[Tx]
	cfg      Config
	observed run.Observed
	leaser   *lease.Leaser
}

// New makes Leases from an adapter: pgxdb.New, sqldb.NewPostgres,
// sqldb.NewSQLite or mysqldb.New. It does no I/O; the first acquire checks the
// schema once.
func New[Tx any](d db.DB[Tx], cfg Config) (*Leases[Tx], error) {
	if err := strategy.ValidAdapter("fencing", d); err != nil {
		return nil, err
	}
	cfg, err := cfg.complete(d.MaxConns())
	if err != nil {
		return nil, err
	}
	l := &Leases[Tx]{cfg: cfg, observed: run.Observed{Strategy: "fencing", Observer: cfg.Observer}}
	l.server = newServer(d, cfg.Schema, cfg.Prefix)
	l.leaser = lease.NewLeaser(lease.Config{
		Observed: l.observed,
		TTL:      cfg.TTL,
		NoRenew:  cfg.NoRenew,
		MaxHold:  cfg.MaxHold,
		Classify: d.Classify,
	}, cfg.Wait, backend[Tx]{l})
	return l, nil
}

// Promises implements exclusive.Exclusive.
func (l *Leases[Tx]) Promises() exclusive.Promises { return exclusive.PromisesOf("fencing") }

// Close stops renewing and waits for what runs in the background, and for attempts to
// acquire a key that are under way: a few seconds if the server is silent or keys are
// still to be given back. Leases that are still held run out, and who waits for a key
// goes on waiting: end their contexts first. The database handle stays open. After
// Close, leases can be acquired but are not renewed. It may be called again.
func (l *Leases[Tx]) Close() error {
	l.leaser.Keeper.Close()
	return nil
}

// Do implements exclusive.Exclusive. It waits up to Config.Wait for a key that
// is held.
func (l *Leases[Tx]) Do(ctx context.Context, key string, work exclusive.Work) error {
	return l.leaser.Do(ctx, key, work)
}

// TryAcquire implements exclusive.Leaser. On MySQL it waits, up to a second,
// for a Commit or Check on the same key that is under way.
func (l *Leases[Tx]) TryAcquire(ctx context.Context, key string) (*exclusive.Lease, error) {
	return l.leaser.TryAcquire(ctx, key)
}

// Acquire implements exclusive.Leaser. It polls, at most every 250 ms, and no
// later than the holder's lease runs out; a release in this process wakes it.
func (l *Leases[Tx]) Acquire(ctx context.Context, key string) (*exclusive.Lease, error) {
	return l.leaser.Acquire(ctx, key)
}

// Advance makes the next token of key greater than atLeast. It mends an issuer
// that was restored from an older copy, whose tokens a destination refuses:
// pass the token that the destination has seen.
func (l *Leases[Tx]) Advance(ctx context.Context, key string, atLeast int64) error {
	if err := strategy.ValidAdvance(key, atLeast); err != nil {
		return err
	}
	return l.server.Ask(ctx, "advance", key, func(ctx context.Context, d dialect) error { return d.advance(ctx, l.server.DB, key, atLeast) })
}

// MinPrune is the least age that Prune takes: well over the time for which a
// statement that acquires a key can be under way.
const MinPrune = time.Hour

// Prune removes the rows of keys that nobody has had for olderThan, at least
// MinPrune: released ones, and those whose leases ran out. Their tokens do not
// come back, so marks at destinations stay good; what a key forgets is who had
// it last, and the number of the attempt. Rows with tokens past the sequence
// (PostgreSQL, MariaDB) are kept, since they alone know them: Advance has lifted
// them, or the sequence went back, which exclusive doctor tells and mends. On MySQL
// at READ COMMITTED run the first Prune of a database while no pruned key is being
// acquired: it makes the row by which later ones wait for a claim that has stalled.
//
// It returns how many rows were removed, also beside an error. They are removed
// in batches, with three statements each; rows that stay are not locked. After
// each batch progress is told how many were removed so far. It needs privileges
// that leases do not: DELETE on exclusive_lease, and SELECT (MySQL: INSERT and
// UPDATE too) on exclusive_token.
func (l *Leases[Tx]) Prune(ctx context.Context, olderThan time.Duration, progress ...func(removed int64)) (removed int64, err error) {
	if olderThan < MinPrune {
		return 0, &exclusive.Error{Op: "prune", Kind: exclusive.ErrInvalid, Hint: fmt.Sprintf("the age is %v; it must be %v or more", olderThan, MinPrune)}
	}
	age := olderThan.Microseconds()
	return l.server.Prune(ctx, progress, func(ctx context.Context, d dialect, after string) (keys [][]byte, n int64, err error) {
		keys, token, err := d.old(ctx, l.server.DB, after, age)
		if err != nil || len(keys) == 0 {
			return nil, 0, err
		}
		// The floor first: if this breaks off in between, nothing is lost.
		floor, err := d.raise(ctx, l.server.DB, token)
		if err == nil {
			n, err = d.prune(ctx, l.server.DB, keys, age, floor)
		}
		return keys, n, err
	})
}

// backend stores the leases that the keeper keeps.
type backend[Tx any] struct{ *Leases[Tx] }

// Acquire implements lease.Store.
func (b backend[Tx]) Acquire(ctx context.Context, key, id string, waiting bool) (g exclusive.Grant, requested time.Time, err error) {
	var got acquired
	var unanswered bool
	a := acquisition{key: key, id: id, holder: b.cfg.Holder, ttl: b.cfg.TTL.Microseconds(), waiting: waiting}
	err = db.Retry(ctx, b.server.DB, func(ctx context.Context) error {
		d, err := b.server.Checked(ctx)
		if err != nil {
			return err
		}
		return strategy.Settle(ctx, func(ctx context.Context) (settled bool, err error) {
			requested = time.Now()
			got, err = d.acquire(ctx, b.server.DB, a)
			if err != nil && b.server.RowLocked(err) {
				got = acquired{} // a transaction has the row
				got.row, _, err = d.lease(ctx, b.server.DB, key, false)
			}
			unanswered = unanswered || got.pending || db.MayHaveRun(b.server.DB, err)
			return got.won || got.row.live() || got.row.id == id || waiting, err
		})
	})
	if unanswered && (err != nil || !got.won) { // the row is told before it is stored
		b.leaser.Abandon(key, id)
	}
	if err != nil {
		return g, requested, b.server.Fail(ctx, "acquire", key, err)
	}
	switch {
	case !got.won && got.row.id == id:
		return g, requested, &exclusive.Error{Op: "acquire", Key: key, Kind: exclusive.ErrUnavailable,
			Hint: fmt.Sprintf("the key was had, and the answer to that came when it was over; use a TTL longer than %v if this happens again", b.cfg.TTL)}
	case !got.won:
		return g, requested, &exclusive.Error{Op: "acquire", Key: key, Kind: exclusive.ErrHeld, Holder: got.row.who()}
	}
	return exclusive.Grant{Key: key, ID: id, Token: got.row.token, Attempt: int(got.row.attempt)}, requested, nil
}

// Renew implements lease.Backend.
func (b backend[Tx]) Renew(ctx context.Context, grants []exclusive.Grant) (lost, waiting []string, err error) {
	return b.server.Renew(ctx, func(ctx context.Context, d dialect) (lost, waiting []string, err error) {
		renewed, err := d.renew(ctx, b.server.DB, grants, b.cfg.TTL.Microseconds())
		if err != nil {
			return nil, nil, err
		}
		return lease.Unrenewed(grants, renewed, func(g exclusive.Grant) (bool, error) {
			row, found, err := d.lease(ctx, b.server.DB, g.Key, false)
			return found && row.id == g.ID && row.live(), err
		})
	})
}

// Release implements lease.Backend.
func (b backend[Tx]) Release(ctx context.Context, g exclusive.Grant) error {
	return b.end(ctx, g, released)
}

// GiveUp implements lease.Counter.
func (b backend[Tx]) GiveUp(ctx context.Context, g exclusive.Grant) error {
	return b.end(ctx, g, gaveUp)
}

// Unclaim implements lease.Counter.
func (b backend[Tx]) Unclaim(ctx context.Context, g exclusive.Grant) error {
	return b.end(ctx, g, unclaimed)
}

func (b backend[Tx]) end(ctx context.Context, g exclusive.Grant, how ending) error {
	var ok, found, unanswered bool
	var row leaseRow
	var since time.Duration // the first was sent, when the row was asked for
	began := time.Now()
	err := db.Retry(ctx, b.server.DB, func(ctx context.Context) error {
		d, err := b.server.OwnSQL(ctx)
		if err != nil {
			return err
		}
		ok, err = d.finish(ctx, b.server.DB, g, how)
		if err == nil && !ok {
			since = time.Since(began)
			row, found, err = d.lease(ctx, b.server.DB, g.Key, false)
		}
		unanswered = unanswered || db.MayHaveRun(b.server.DB, err)
		return err
	})
	switch {
	case err != nil:
		return b.server.Fail(ctx, "release", g.Key, err)
	case ok:
		return nil
	// This release ran before and its answer was lost: the row shows it, or somebody
	// else has got the key since it was first sent. Before that nobody had, so even if
	// it was an operator who freed it the grant has lasted until its holder was done.
	case found && row.id == g.ID && row.ended(),
		unanswered && found && row.id != g.ID && row.now-row.acquired < since.Microseconds():
		return nil
	}
	return stale("release", g, row, found)
}

// stale says why a grant is not current.
func stale(op string, g exclusive.Grant, row leaseRow, found bool) error {
	e := &exclusive.Error{Op: op, Key: g.Key, Kind: exclusive.ErrLost}
	switch {
	case !found:
		e.Hint = "the lease's row is gone: nobody has had the key for long (Prune), or it was deleted by hand"
	case row.id == g.ID && row.expires == committed.expires:
		e.Hint = "the grant is over: its Commit has succeeded"
	case row.id == g.ID && row.expires == freed.expires:
		e.Hint = "an operator has freed the key; nobody has it yet"
	case row.id == g.ID && row.ended():
		e.Hint = "the lease was given back"
	case row.id == g.ID:
		e.Hint = "the lease ran out before this; nobody has taken it over yet"
	case op == "release":
		e.Hint, e.Holder = "somebody else has the key: the lease ran out, an operator freed it, or this release was sent before and got no answer", row.who()
	default:
		e.Kind, e.Holder = exclusive.ErrFenced, row.who()
	}
	return e
}
