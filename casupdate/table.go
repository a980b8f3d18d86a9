package casupdate

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/internal/lease"
	"github.com/exclusive-go/exclusive/internal/run"
	"github.com/exclusive-go/exclusive/internal/strategy"
)

// Table claims rows of the application's table. It is safe for concurrent use.
// Tx is the adapter's transaction type.
type Table[Tx any] struct {
	cfg      Config
	server   *strategy.Server[Tx, *dialect]
	observed run.Observed
	leaser   *lease.Leaser
	taken    []string // the columns that a Set must not have
}

// New makes a Table from an adapter: pgxdb.New, sqldb.NewPostgres,
// sqldb.NewSQLite or mysqldb.New. It does no I/O; the first call asks once for the
// types of columns, except on SQLite, and on MySQL and MariaDB the first claim for
// the name of the key's unique index.
func New[Tx any](d db.DB[Tx], cfg Config) (*Table[Tx], error) {
	if err := strategy.ValidAdapter("casupdate", d); err != nil {
		return nil, err
	}
	cfg, err := cfg.complete(d.MaxConns())
	if err != nil {
		return nil, err
	}
	t := &Table[Tx]{cfg: cfg, observed: run.Observed{Strategy: "casupdate", Observer: cfg.Observer}}
	t.taken, _ = cfg.columns()
	texts := func(d db.Dialect) *dialect { return newDialect(d, cfg) }
	t.server = strategy.NewServer(d, "casupdate", texts, ready)
	t.server.Mend = "Config must name the table and the columns as they are"
	t.server.Columns = strategy.Columns{Schema: cfg.Schema, List: cfg.typed()}
	t.leaser = lease.NewLeaser(lease.Config{
		Observed: t.observed,
		TTL:      cfg.TTL,
		NoRenew:  cfg.NoRenew,
		MaxHold:  cfg.MaxHold,
		Classify: d.Classify,
		SendOnce: !t.proves(),
	}, cfg.Wait, store[Tx]{t})
	return t, nil
}

// Promises implements exclusive.Exclusive. With TokenColumn and GrantColumn it
// has RefusesStale. With a TTL, OneAtATime becomes TimeBound. Without From,
// Claimed and Done there are none.
func (t *Table[Tx]) Promises() exclusive.Promises {
	if !t.cfg.claims() {
		return exclusive.Promises{}
	}
	p := exclusive.PromisesOf("casupdate")
	p.RefusesStale = t.proves()
	if t.cfg.TTL > 0 {
		p.OneAtATime, p.TimeBound = false, true
	}
	return p
}

// proves reports whether a holder can prove that a row is still its own.
func (t *Table[Tx]) proves() bool { return t.cfg.GrantColumn != "" }

// Close stops renewing and waits for what runs in the background, and for attempts to
// claim a row that are under way: a few seconds if the server is silent or rows are
// still to be given back. Claims with a TTL that are still held run out, and who waits
// for a row goes on waiting: end their contexts first. The database handle stays open.
// It may be called again.
func (t *Table[Tx]) Close() error {
	t.leaser.Keeper.Close()
	return nil
}

// Do implements exclusive.Exclusive. It claims the row (From → Claimed), runs
// work, and finishes the row (Claimed → Done), unless work has done that by
// Commit. If work fails the row goes back to From, or to Failed. It waits up
// to Config.Wait for a row that is claimed.
//
// ErrNoRow, ErrHeld and ErrDone say that there is no such row, or that it is
// claimed or done; ErrConflict with a *StateError that it is in another state,
// from which somebody must move it on before a retry helps.
// A row that a transaction has locked is ErrHeld too.
//
// If work returned nil and the row could not be finished Do returns ErrFenced
// (somebody has taken it over), ErrLost (it had been taken away otherwise), or
// ErrOutcomeUnknown: the row may still be claimed although its work is done. With
// a GrantColumn and a TTL that is tried for as long as the claim lasts, at least
// for 5 s, after which the end of ctx ends it: the try that is under way has up to
// 5 s, and the error matches that of ctx too.
func (t *Table[Tx]) Do(ctx context.Context, key string, work exclusive.Work) error {
	return run.Do(ctx, t.observed, key, work, func(ctx context.Context) (*run.Claim, error) {
		if !t.cfg.claims() {
			return nil, &exclusive.Error{Op: "do", Key: key, Kind: exclusive.ErrUnsupported, Hint: "Config has no From, Claimed and Done"}
		}
		if _, err := t.call("do", key, ""); err != nil {
			return nil, err
		}
		h, err := t.leaser.Claim(ctx, key)
		if err != nil {
			return nil, err
		}
		var until func() time.Time
		if t.proves() { // otherwise nobody knows what a repetition would finish
			until = h.Expires
		}
		return &run.Claim{
			Grant:   h.Grant(),
			Context: h.Context(),
			Commits: &h.Commits,
			Finish:  func(ctx context.Context) error { return h.Finish(ctx, notDone, t.finish) },
			Until:   until,
			Abandon: func(ctx context.Context, _ error) error {
				failed := t.cfg.Failed != nil && !h.Stopped()
				return h.ReleaseWith(ctx, func(ctx context.Context, g exclusive.Grant) error {
					return t.giveBack(ctx, g, failed)
				})
			},
			Ended: h.Forget,
		}, nil
	})
}

// call makes the arguments of a statement.
func (t *Table[Tx]) call(op, key, grant string) (call, error) {
	if err := exclusive.ValidateKey(op, key); err != nil {
		return call{}, err
	}
	values, err := t.cfg.Key.parse(key)
	if err != nil {
		return call{}, &exclusive.Error{Op: op, Key: key, Kind: exclusive.ErrInvalid, Err: err}
	}
	return call{key: values, grant: grant}, nil
}

// retry runs a statement again where that may help. Without a grant's id in the
// row nobody can tell whether a statement whose answer was lost has run, and
// somebody else may have claimed the row since: then it is not repeated.
func (t *Table[Tx]) retry(ctx context.Context, fn func(ctx context.Context) error) error {
	if t.proves() {
		return db.Retry(ctx, t.server.DB, fn)
	}
	return db.Retry(ctx, sendOnce{t.server.DB}, fn)
}

// sendOnce makes errors final after which a statement may have run.
type sendOnce struct{ db.Classifier }

func (s sendOnce) Classify(err error) db.Class {
	if c := s.Classifier.Classify(err); !c.MayHaveRun() {
		return c
	}
	return db.Other
}

// store keeps the claims in the table.
type store[Tx any] struct{ *Table[Tx] }

// Acquire implements lease.Store.
func (s store[Tx]) Acquire(ctx context.Context, key, id string, waiting bool) (g exclusive.Grant, requested time.Time, err error) {
	c, err := s.call("claim", key, id)
	if err != nil {
		return g, requested, err
	}
	d, err := s.server.Checked(ctx)
	if err != nil {
		return g, requested, s.server.Fail(ctx, "claim", key, err)
	}
	var r row
	var found, won, unanswered bool
	err = s.retry(ctx, func(ctx context.Context) error {
		return strategy.Settle(ctx, func(ctx context.Context) (settled bool, err error) {
			requested = time.Now()
			r, found, won, err = d.claim(ctx, s.server.DB, c)
			unanswered = unanswered || db.MayHaveRun(s.server.DB, err)
			return won || !found || r.is != isFrom || waiting, err
		})
	})
	// However the last attempt ended, an earlier one may have the row, or get it.
	if unanswered && !won && s.proves() {
		s.leaser.Abandon(key, id)
	}
	switch {
	case errors.Is(err, errNotUnique):
		_ = s.Release(ctx, exclusive.Grant{Key: key, ID: id})
		return g, requested, err
	case err != nil:
		return g, requested, s.unclaimed(ctx, key, unanswered, err)
	case !won:
		return g, requested, refused(key, r, found)
	}
	g = exclusive.Grant{Key: key, ID: id, Token: r.token, Attempt: 1}
	if r.token > 1 {
		g.Attempt = int(min(r.token, math.MaxInt32))
	}
	return g, requested, nil
}

// unclaimed is a claim that failed.
func (s store[Tx]) unclaimed(ctx context.Context, key string, unanswered bool, err error) error {
	failed := s.server.Fail(ctx, "claim", key, err)
	if !unanswered || s.proves() {
		return failed
	}
	var e *exclusive.Error
	if errors.As(failed, &e) {
		e.Hint = "the row may have been claimed before the answer was lost; it then stays claimed until you set it back (a GrantColumn would have told)"
	}
	return failed
}

// refused says why a row could not be claimed.
func refused(key string, r row, found bool) error {
	e := &exclusive.Error{Op: "claim", Key: key}
	switch {
	case !found:
		e.Kind = exclusive.ErrNoRow
	case r.is == isClaimed:
		e.Kind, e.Holder = exclusive.ErrHeld, r.who()
	case r.is == isDone:
		e.Kind = exclusive.ErrDone
	case r.is == isFrom:
		e.Kind, e.Hint = exclusive.ErrHeld, "it is being claimed, or a transaction has locked its row"
	default:
		e.Kind, e.Err = exclusive.ErrConflict, &StateError{r.state}
		e.Hint = "only a row that waits for its work can be claimed; to try again does not help until somebody moves the row on"
	}
	return e
}

// Renew implements lease.Backend.
func (s store[Tx]) Renew(ctx context.Context, grants []exclusive.Grant) (lost, waiting []string, err error) {
	return s.server.Renew(ctx, func(ctx context.Context, d *dialect) (lost, waiting []string, err error) {
		var renewed []string
		if d.texts.renewReturns {
			text, args := d.renewal(s.calls(grants))
			renewed, err = strategy.Strings(ctx, s.server.DB, text, args)
		} else {
			renewed, err = lease.Counted(grants, func(grants []exclusive.Grant) (int64, error) {
				text, args := d.renewal(s.calls(grants))
				res, err := s.server.DB.Exec(ctx, text, args...)
				return res.Rows, err
			})
		}
		if err != nil {
			return nil, nil, err
		}
		return lease.Unrenewed(grants, renewed, func(g exclusive.Grant) (bool, error) {
			r, found, err := d.read(ctx, s.server.DB, s.calls([]exclusive.Grant{g})[0], false)
			return found && r.is == isClaimed && r.grant == g.ID && r.token == g.Token, err
		})
	})
}

// calls are the arguments for grants of this process, whose keys are good.
func (t *Table[Tx]) calls(grants []exclusive.Grant) []call {
	list := make([]call, len(grants))
	for i, g := range grants {
		values, _ := t.cfg.Key.parse(g.Key)
		list[i] = call{key: values, grant: g.ID, token: g.Token}
	}
	return list
}

// Release implements lease.Backend: the row goes back to From.
func (s store[Tx]) Release(ctx context.Context, g exclusive.Grant) error {
	return s.giveBack(ctx, g, false)
}

// giveBack moves the row to From, or to Failed.
func (t *Table[Tx]) giveBack(ctx context.Context, g exclusive.Grant, failed bool) error {
	return t.end(ctx, "release", g, func(d *dialect) *statement {
		if failed {
			return &d.failS
		}
		return &d.revertS
	}, func(r row) bool {
		return r.is != isClaimed // this ran before and its answer was lost
	})
}

// notDone is a Do whose work is done, but whose row could not be finished.
var notDone = exclusive.Error{Op: "finish", Kind: exclusive.ErrOutcomeUnknown, Hint: "work is done, but its row may still be claimed"}

// finish moves the row to Done after work has returned nil.
func (t *Table[Tx]) finish(ctx context.Context, g exclusive.Grant) error {
	return t.end(ctx, "finish", g, func(d *dialect) *statement { return &d.finishS },
		func(r row) bool { return r.is == isDone })
}

// end ends a claim by a statement of its own. over reports, for a row that has
// the grant's id, whether the statement has run before.
func (t *Table[Tx]) end(ctx context.Context, op string, g exclusive.Grant, which func(*dialect) *statement, over func(row) bool) error {
	c, err := t.call(op, g.Key, g.ID)
	if err != nil {
		return err
	}
	c.token = g.Token
	d, err := t.server.OwnSQL(ctx)
	if err != nil {
		return t.server.Fail(ctx, op, g.Key, err)
	}
	var ok bool
	err = t.retry(ctx, func(ctx context.Context) error {
		var err error
		ok, err = d.change(ctx, t.server.DB, which(d), c)
		return err
	})
	if err != nil {
		return t.server.Fail(ctx, op, g.Key, err)
	}
	if ok {
		return nil
	}
	r, found, err := d.read(ctx, t.server.DB, c, false)
	switch {
	case err != nil:
		return t.server.Fail(ctx, op, g.Key, err)
	case found && t.proves() && r.grant == g.ID && over(r):
		return nil
	}
	return t.stale(op, g, r, found)
}

// stale says why a grant is not current.
func (t *Table[Tx]) stale(op string, g exclusive.Grant, r row, found bool) error {
	e := &exclusive.Error{Op: op, Key: g.Key, Kind: exclusive.ErrLost}
	switch {
	case !found:
		e.Hint = "the row was deleted"
		return e
	case t.proves() && r.grant != g.ID && (r.token > g.Token || r.is == isClaimed):
		if op != "release" {
			e.Kind = exclusive.ErrFenced
		}
		e.Holder = r.who()
	case t.proves() && r.is == isClaimed && r.grant == g.ID && r.token > g.Token:
		e.Hint = "the grant is over; a copy of its claim has arrived since, and has the row"
	case r.is == isClaimed:
		e.Kind, e.Hint = exclusive.ErrConflict, "the row was changed while it was looked at"
	case r.is == isDone && (!t.proves() || r.grant == g.ID):
		e.Hint = "the row is done"
	default:
		e.Hint = "the row was taken out of its state of being claimed"
	}
	e.Err = &StateError{r.state}
	return e
}
