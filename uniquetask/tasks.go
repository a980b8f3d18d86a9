package uniquetask

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
	"github.com/exclusive-go/exclusive/internal/lease"
	"github.com/exclusive-go/exclusive/internal/run"
	"github.com/exclusive-go/exclusive/internal/strategy"
)

// ErrFailed: an earlier attempt failed, or vanished, and the run may not begin
// again: not yet, if Error.Holder is set (then its Expires says when), or not at
// all, because of Config.MaxAttempts. Work did not run now. Effects of earlier
// attempts that are outside of a Commit may exist. Error.Hint has the error of
// the last attempt. Try later, or mend the cause and Forget the run.
var ErrFailed = errors.New("an earlier attempt failed, and the run may not begin again now")

// Tasks runs each run of one task once, and remembers how it went. It is safe
// for concurrent use. Tx is the adapter's transaction type.
type Tasks[Tx any] struct {
	cfg      Config
	server   *server[Tx]
	observed run.Observed
	leaser   *lease.Leaser
	floored  atomic.Bool // the task has a floor, which a claim can lock

	mu      sync.Mutex
	results map[string][]byte // by the id of each grant that works here
}

// New makes Tasks from an adapter: pgxdb.New, sqldb.NewPostgres,
// sqldb.NewSQLite or mysqldb.New. It does no I/O; the first claim checks the
// schema once.
func New[Tx any](d db.DB[Tx], cfg Config) (*Tasks[Tx], error) {
	if err := strategy.ValidAdapter("uniquetask", d); err != nil {
		return nil, err
	}
	cfg, err := cfg.complete(d.MaxConns())
	if err != nil {
		return nil, err
	}
	t := &Tasks[Tx]{
		cfg:      cfg,
		server:   newServer(d, cfg),
		observed: run.Observed{Strategy: "uniquetask", Observer: cfg.Observer},
		results:  make(map[string][]byte),
	}
	t.leaser = lease.NewLeaser(lease.Config{
		Observed: t.observed,
		TTL:      cfg.TTL,
		NoRenew:  cfg.NoRenew,
		MaxHold:  cfg.MaxHold,
		Classify: d.Classify,
	}, cfg.Wait, store[Tx]{t})
	return t, nil
}

// Promises implements exclusive.Exclusive. OncePerKey holds until the run is
// forgotten or pruned.
func (t *Tasks[Tx]) Promises() exclusive.Promises { return exclusive.PromisesOf("uniquetask") }

// Close stops the heartbeats and waits for what runs in the background, and for
// attempts to claim a run that are under way: a few seconds if the server is silent or
// runs are still to be given back or marked as done. Runs that are under way can be
// taken over when Config.TTL has passed, and who waits for one goes on waiting: end
// their contexts first. The database handle stays open. It may be called again.
func (t *Tasks[Tx]) Close() error {
	t.leaser.Keeper.Close()
	return nil
}

// Do implements exclusive.Exclusive. The key is the run.
//
// It returns ErrDone for a run that is done, with its result in Error.Result,
// ErrHeld for one that somebody works on, after it has waited for up to
// Config.Wait, and ErrFailed for one that may not begin again.
//
// If work returns nil without Commit the run is marked as done after it. If that
// is refused Do returns ErrFenced (somebody has taken the run over) or ErrLost; if
// it cannot be recorded ErrOutcomeUnknown: the work has run, and may run again. It
// is tried for as long as the lease lasts, at least for 5 s, after which the end of
// ctx ends it: the try that is under way has up to 5 s, and the error matches that of
// ctx too. If work returns an error, panics or calls runtime.Goexit, the attempt has failed.
func (t *Tasks[Tx]) Do(ctx context.Context, key string, work exclusive.Work) error {
	return run.Do(ctx, t.observed, key, work, func(ctx context.Context) (*run.Claim, error) {
		h, err := t.leaser.Claim(ctx, key)
		if err != nil {
			return nil, err
		}
		g := h.Grant()
		return &run.Claim{
			Grant:   g,
			Context: h.Context(),
			Commits: &h.Commits,
			Finish: func(ctx context.Context) error {
				result := t.result(g) // it may be stored when Do has returned
				return h.Finish(ctx, notDone, func(ctx context.Context, g exclusive.Grant) error { return t.finish(ctx, g, result) })
			},
			Until:   h.Expires,
			Abandon: func(ctx context.Context, cause error) error { return t.abandon(ctx, h, cause) },
			Ended: func() {
				h.Forget()
				t.drop(g.ID)
			},
		}, nil
	})
}

// SetResult says what the run's result is. Call it in work, before Commit if
// there is one: the result is stored when the run is finished, in the same
// statement, and not at all if the attempt fails. The last call counts. Those
// who ask for the run later get a copy, in Error.Result and Run.Result. Results
// should be small; up to 1 GB is what the smallest of the servers takes.
func (t *Tasks[Tx]) SetResult(g exclusive.Grant, result []byte) error {
	h, ours := t.leaser.Keeper.Find(g.ID)
	if !ours || h.Finished() {
		return &exclusive.Error{Op: "set the result", Key: g.Key, Kind: exclusive.ErrInvalid, Hint: "the grant is finished, or not one of this process"}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.results[g.ID] = append([]byte{}, result...)
	return nil
}

// result is what SetResult was given, or nil.
func (t *Tasks[Tx]) result(g exclusive.Grant) []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.results[g.ID]
}

func (t *Tasks[Tx]) drop(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.results, id)
}

// notDone is a Do whose work is done, but whose run could not be marked as done.
var notDone = exclusive.Error{Op: "finish", Kind: exclusive.ErrOutcomeUnknown,
	Hint: "the work has run, but that could not be recorded; unless Outcome says that it is done it will run again"}

// finish marks the run as done after work without Commit.
func (t *Tasks[Tx]) finish(ctx context.Context, g exclusive.Grant, result []byte) error {
	return t.end(ctx, "finish", g, Done, func(ctx context.Context, d dialect) (bool, error) {
		return d.finish(ctx, t.server.DB, g, result)
	})
}

// abandon marks the attempt as failed. cause is nil after a panic or Goexit.
func (t *Tasks[Tx]) abandon(ctx context.Context, h *lease.Held, cause error) error {
	g := h.Grant()
	text, rest := "work panicked or called runtime.Goexit", t.cfg.rest(g.Attempt)
	if cause != nil {
		text = oneLine(cause.Error(), maxText)
	}
	if h.Stopped() {
		rest = 0
	}
	if errors.Is(cause, run.ErrNotBegun) {
		return h.ReleaseWith(ctx, func(ctx context.Context, g exclusive.Grant) error { return t.unclaim(ctx, g, text) })
	}
	return h.ReleaseWith(ctx, func(ctx context.Context, g exclusive.Grant) error {
		return t.end(ctx, "fail", g, Failed, func(ctx context.Context, d dialect) (bool, error) {
			return d.fail(ctx, t.server.DB, g, text, rest.Microseconds())
		})
	})
}

// end ends a grant outside of any transaction, which leaves the run in state.
func (t *Tasks[Tx]) end(ctx context.Context, op string, g exclusive.Grant, state State, end func(context.Context, dialect) (bool, error)) error {
	d, err := t.server.OwnSQL(ctx)
	if err != nil {
		return t.server.Fail(ctx, op, g.Key, err)
	}
	var ok bool
	err = db.Retry(ctx, t.server.DB, func(ctx context.Context) error {
		var err error
		ok, err = end(ctx, d)
		return err
	})
	if err != nil {
		return t.server.Fail(ctx, op, g.Key, err)
	}
	if ok {
		return nil
	}
	r, found, err := d.read(ctx, t.server.DB, g.Key, false)
	if err != nil {
		return t.server.Fail(ctx, op, g.Key, err)
	}
	if found && r.id == g.ID && r.state == string(state) {
		return nil // this ran before and its answer was lost
	}
	if found && r.id != g.ID && state == Failed && slices.ContainsFunc(parseHistory(r.history), func(a Attempt) bool {
		return a.Token == g.Token && a.State == Failed
	}) {
		return nil // so it has, and somebody has begun another attempt since
	}
	e := stale(op, g, r, found)
	if e.Kind == exclusive.ErrFenced && state != Done {
		e.Kind = exclusive.ErrLost // no write of work's was refused
	}
	return e
}

// stale says why a grant is not current.
func stale(op string, g exclusive.Grant, r row, found bool) *exclusive.Error {
	e := &exclusive.Error{Op: op, Key: g.Key, Kind: exclusive.ErrLost}
	switch {
	case !found:
		e.Hint = "the run was forgotten"
	case r.id == g.ID && r.state != string(Running):
		e.Hint = "the grant is over: the run is " + r.state
	case r.id == g.ID && r.token != g.Token:
		e.Hint = "the grant is over; a copy of its claim has arrived since, and has the run until its TTL has passed"
	case r.id == g.ID:
		e.Hint = "its heartbeat was missing for too long, or an operator released it; nobody has taken it over yet"
	default:
		e.Kind, e.Holder, e.Hint = exclusive.ErrFenced, r.who(), "the run was taken over"
	}
	return e
}

// who describes the row's holder, or is nil if nobody works on it.
func (t *row) who() *exclusive.Holder {
	if !t.live() {
		return nil
	}
	return t.last()
}

// last describes the last holder.
func (t *row) last() *exclusive.Holder {
	return &exclusive.Holder{ID: t.id, Name: t.holder, Token: t.token, Since: moment(t.started), Expires: moment(t.free)}
}

// moment turns microseconds into a time; 0 is the zero time.
func moment(us int64) time.Time {
	if us == 0 {
		return time.Time{}
	}
	return time.UnixMicro(us)
}

// refused says what is in the way of a claim, or returns nil if nothing is any
// more.
func (c Config) refused(key string, t row) *exclusive.Error {
	e := &exclusive.Error{Op: "claim", Key: key}
	switch {
	case t.state == string(Done):
		e.Kind, e.Result = exclusive.ErrDone, t.result
	case t.live():
		e.Kind, e.Holder = exclusive.ErrHeld, t.who()
	case t.attempt >= c.maxAttempts():
		e.Kind = ErrFailed
		e.Hint = fmt.Sprintf("attempt %d of %d by %s failed: %s; mend the cause and Forget the run", t.attempt, c.MaxAttempts, t.holder, t.why())
	// Without a rest free_at is when the attempt ended, which may be past this
	// row's now: that is when a statement began, on some servers.
	case t.free > t.now && t.free > t.ended:
		e.Kind, e.Holder = ErrFailed, t.last()
		e.Hint = fmt.Sprintf("attempt %d failed: %s; the run may begin again when its rest is over", t.attempt, t.why())
	default:
		return nil
	}
	return e
}

// why says how the last attempt ended.
func (t *row) why() string {
	if t.state == string(Running) {
		return "its heartbeat went missing"
	}
	return t.text
}

// store is where the leaser keeps runs that are under way.
type store[Tx any] struct{ *Tasks[Tx] }

// Acquire implements lease.Store.
func (s store[Tx]) Acquire(ctx context.Context, key, id string, waiting bool) (g exclusive.Grant, requested time.Time, err error) {
	d, err := s.server.Checked(ctx)
	if err != nil {
		return g, requested, s.server.Fail(ctx, "claim", key, err)
	}
	var got claimed
	var unanswered bool
	c := claim{run: key, id: id, holder: s.cfg.Holder, ttl: s.cfg.TTL.Microseconds(), maxAttempts: s.cfg.maxAttempts()}
	begun := time.Now()
	err = db.Retry(ctx, s.server.DB, func(ctx context.Context) error {
		if !s.floored.Load() {
			if err := d.raise(ctx, s.server.DB, 0); err != nil {
				return err
			}
			s.floored.Store(true)
		}
		return strategy.Settle(ctx, func(ctx context.Context) (settled bool, err error) {
			requested = time.Now()
			got, err = d.claim(ctx, s.server.DB, c)
			if locked := err; err != nil && s.server.RowLocked(err) {
				var found bool
				got = claimed{pending: got.pending} // a transaction has the row
				got.row, found, err = d.read(ctx, s.server.DB, key, false)
				// Without a row it can be the floor that is locked: it is raised
				// when a process begins and when runs are removed. With ours, a
				// rival's claim is about to be refused.
				if err == nil && (!found && !waiting && time.Since(begun) < strategy.ClaimWait || got.row.id == id && got.row.live()) {
					err = locked // Retry
				}
			}
			unanswered = unanswered || got.pending || db.MayHaveRun(s.server.DB, err)
			return got.won || s.cfg.refused(key, got.row) != nil || waiting, err
		})
	})
	if unanswered && (err != nil || !got.won) { // the row is told before it is stored
		s.leaser.Abandon(key, id)
	}
	if err != nil {
		return g, requested, s.server.Fail(ctx, "claim", key, err)
	}
	if got.won {
		return exclusive.Grant{Key: key, ID: id, Token: got.row.token, Attempt: int(got.row.attempt)}, requested, nil
	}
	if e := s.cfg.refused(key, got.row); e != nil {
		return g, requested, e
	}
	if got.row.state == "" && !waiting { // a waiter comes again
		if err := d.lookAtFloor(ctx, s.server.DB); s.server.RowLocked(err) {
			return g, requested, &exclusive.Error{Op: "claim", Key: key, Kind: exclusive.ErrUnavailable, Err: err,
				Hint: "a transaction keeps the task's row of the floor table locked, which new runs need; end it, and try again"}
		}
	}
	return g, requested, &exclusive.Error{Op: "claim", Key: key, Kind: exclusive.ErrHeld, Hint: "a transaction has its row"}
}

// Renew implements lease.Backend.
func (s store[Tx]) Renew(ctx context.Context, grants []exclusive.Grant) (lost, waiting []string, err error) {
	return s.server.Renew(ctx, func(ctx context.Context, d dialect) (lost, waiting []string, err error) {
		extended, err := d.renew(ctx, s.server.DB, grants, s.cfg.TTL.Microseconds())
		if err != nil {
			return nil, nil, err
		}
		return lease.Unrenewed(grants, extended, func(g exclusive.Grant) (bool, error) {
			r, found, err := d.read(ctx, s.server.DB, g.Key, false)
			return found && r.id == g.ID && r.token == g.Token && r.live(), err
		})
	})
}

// Release implements lease.Backend: it gives back a claim whose answer was lost.
func (s store[Tx]) Release(ctx context.Context, g exclusive.Grant) error {
	return s.unclaim(ctx, g, "never began")
}

// unclaim gives back a run of which work never began, which text says: it does not
// count as an attempt.
func (t *Tasks[Tx]) unclaim(ctx context.Context, g exclusive.Grant, text string) error {
	return t.end(ctx, "give back", g, Failed, func(ctx context.Context, d dialect) (bool, error) {
		return d.unclaim(ctx, t.server.DB, g, text)
	})
}
