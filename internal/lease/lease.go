// Package lease keeps the leases of a process alive: it renews them in batches,
// knows from the local monotonic clock when each ends, and cancels what depends
// on one before anybody else can have the key.
//
// An idle lease costs one timer and no goroutine. Its states:
//
//	held ──Release──▶ over       the context ends with context.Canceled
//	held ──Release fails──▶ unreleased ──Release, or it goes on in the background──▶ over
//	held ──deadline, or the backend says so──▶ lost    … with ErrLost
//	held ──Lock──▶ locked ──End(nil)──▶ over
//	                      ──End(err)──▶ held, or lost if the time has passed
//	lost ──End(nil)──▶ over      lost here, but the backend still took the Commit
//
// Locked means that a transaction holds the lease's row at the backend: nobody
// can take the key over, however late it is, so the deadline is suspended.
package lease

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/internal/run"
)

// Batch is how many leases one renewal statement carries.
const Batch = 500

// Backend is what stores the leases.
type Backend interface {
	// Renew extends the grants by their full length in one statement. A grant
	// that is in neither result was renewed. Waiting means that it was not, as its
	// row is locked for the moment or could not be asked about: try again soon. An
	// error beside waiting is the reason; without waiting no grant was renewed.
	Renew(ctx context.Context, grants []exclusive.Grant) (lost, waiting []string, err error)
	// Release gives the key back. ErrLost if the grant had ended before.
	Release(ctx context.Context, g exclusive.Grant) error
}

// releaseWait is how long a release waits for a renewal that is under way: not for
// as long as a connection that hangs may take.
const releaseWait = 200 * time.Millisecond

// Config says how leases are kept.
type Config struct {
	run.Observed
	TTL     time.Duration // 0: time does not end a lease, so it is not renewed either
	NoRenew bool
	MaxHold time.Duration // 0 = no limit
	// SendOnce says that the backend does not know a release again that has run
	// before: the next holder's key would be given back. So there is one call of it
	// for each lease, and none in the background.
	SendOnce bool
	// Classify says what an error of the backend means; nil is db.Network.
	Classify func(error) db.Class
	// Freed is called with a key that has been given back. It may be nil.
	Freed func(key string)
}

// margin is how long before its end, as computed here, a lease counts as over:
// time for work to notice, and for clocks that do not run at the same rate.
func (c Config) margin() time.Duration {
	return min(max(c.TTL/10, 2*time.Millisecond), time.Second)
}

// coarse is by how much a lease may be shorter at the backend than it was asked to
// be: the clocks of SQLite and Redis are cut to milliseconds, and SQLite's is
// computed with floats.
const coarse = time.Millisecond + 10*time.Microsecond

// ends is the earliest moment at which a lease can be over at the backend that
// was asked for, or extended, at requested.
func (c Config) ends(requested time.Time) time.Time { return requested.Add(c.TTL - coarse) }

func (c Config) interval() time.Duration { return c.TTL / 3 }

// retry is the pause after a renewal that did not get through: short enough
// for several more before the lease ends.
func (c Config) retry() time.Duration { return max(c.TTL/30, time.Millisecond) }

// Keeper keeps the leases that one strategy has in this process.
type Keeper struct {
	cfg     Config
	backend Backend

	mu      sync.Mutex
	held    map[string]*Held // by grant id
	renewer bool             // its goroutine runs
	looks   time.Time        // when that looks at held again
	closed  bool
	wake    chan struct{}
	start   time.Time       // of the ticks at which leases are renewed
	ctx     context.Context // ended by Close
	stop    context.CancelFunc
	last    context.Context // ended run.EndWait later
	end     context.CancelFunc
	work    sync.WaitGroup // goroutines of this keeper
	giving  chan struct{}  // one for each that gives back at this moment
	claims  int            // under way that began before Close
	claimed chan struct{}  // closed when there are none after Close
}

// NewKeeper makes a keeper of leases at backend.
func NewKeeper(cfg Config, backend Backend) *Keeper {
	cfg.NoRenew = cfg.NoRenew || cfg.TTL == 0
	k := &Keeper{
		cfg: cfg, backend: backend,
		held:   make(map[string]*Held),
		wake:   make(chan struct{}, 1),
		start:  time.Now(),
		giving: make(chan struct{}, givingWidth),

		claimed: make(chan struct{}),
	}
	k.ctx, k.stop = context.WithCancel(context.Background())
	k.last, k.end = context.WithCancel(context.Background())
	return k
}

type state uint8

const (
	held state = iota
	locked
	lost
	unreleased
	over
)

// Held is a lease in this process. It implements exclusive.Holding.
type Held struct {
	// Commits are those of the grant. A row in one is not renewed.
	Commits run.Commits

	keeper *Keeper
	ctx    context.Context
	cancel context.CancelCauseFunc
	timer  *time.Timer

	// Guarded by keeper.mu.
	grant     exclusive.Grant
	state     state
	until     time.Time     // MaxHold; zero = none
	renewAt   time.Time     // when it is due
	abandoned bool          // no more renewals
	forgotten bool          // nobody will end it
	keepCtx   bool          // a Commit does not end the context: Do does
	committed bool          // over by a Commit
	renewing  int           // statements under way that renew it
	renewed   chan struct{} // closed when renewing is 0 again
	lastErr   error         // of the last renewal, for the message of a loss
	later     chan struct{} // closed when a release in the background has ended; nil if there is none
	laterErr  error         // what came of it
	onceErr   error         // with SendOnce, of the release that is not repeated
}

// Hold keeps g alive. parent is the context that work's is derived from; when
// it ends renewals stop. requested is when the request for g was sent: the
// lease's end is counted from then, not from the answer.
func (k *Keeper) Hold(parent context.Context, g exclusive.Grant, requested time.Time) *Held {
	h := &Held{keeper: k, grant: g}
	h.ctx, h.cancel = context.WithCancelCause(exclusive.WithHolding(parent, h))
	h.extend(requested)
	h.abandoned = k.cfg.NoRenew
	if k.cfg.MaxHold > 0 {
		h.until = requested.Add(k.cfg.MaxHold)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.held[g.ID] = h
	h.timer = time.AfterFunc(h.left(), h.expire)
	if k.closed {
		h.abandoned = true
	} else if !h.abandoned {
		k.ensureRenewer(h.renewAt)
	}
	return h
}

// Find returns the lease of a grant that somebody in this process still has: Do
// has not returned, or the lease was not released. It may be lost, or committed.
func (k *Keeper) Find(id string) (*Held, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	h, ok := k.held[id]
	return h, ok
}

// background runs f as one of the keeper's goroutines. It reports false, and does
// nothing, if the keeper is closed.
func (k *Keeper) background(f func()) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return false
	}
	k.work.Go(f)
	return true
}

// Claiming says that a claim is under way, until ended is called: Close waits for it.
// What it may have got is to be given back if its caller has left, and afterwards
// nobody is there who could: the pool is often closed next.
func (k *Keeper) Claiming() (ended func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return func() {}
	}
	k.claims++
	return func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.claims--; k.claims == 0 && k.closed {
			close(k.claimed)
		}
	}
}

// Close stops renewing and waits for claims that are under way and for the keeper's
// goroutines. What they have to give back has run.EndWait for it. Leases that are still
// held end when their time has passed. Another Close waits for the same.
func (k *Keeper) Close() {
	k.mu.Lock()
	if !k.closed && k.claims == 0 {
		close(k.claimed)
	}
	k.closed = true
	k.mu.Unlock()
	k.stop()
	timer := time.AfterFunc(run.EndWait, k.end)
	select {
	case <-k.claimed:
	case <-k.last.Done():
	}
	k.work.Wait()
	timer.Stop()
	k.end()
}

// extend counts the lease's length from requested. The caller holds mu, or the
// only reference.
func (h *Held) extend(requested time.Time) {
	if k := h.keeper; k.cfg.TTL > 0 {
		h.grant.Expires = k.cfg.ends(requested)
		h.renewAt = k.tick(requested)
	}
}

// left is how long it is until the lease counts as over here. The caller holds
// mu, or the only reference.
func (h *Held) left() time.Duration {
	left := time.Duration(math.MaxInt64)
	if !h.grant.Expires.IsZero() {
		left = time.Until(h.grant.Expires.Add(-h.keeper.cfg.margin()))
	}
	if !h.until.IsZero() {
		left = min(left, time.Until(h.until))
	}
	return left
}

// expire is the timer's function. Renewals do not move the timer: it finds out
// here that there is time left.
func (h *Held) expire() {
	k := h.keeper
	k.mu.Lock()
	defer k.mu.Unlock()
	if h.state == held {
		h.waitOrLose()
	}
}

// waitOrLose waits for the deadline, or ends the lease if it has passed. The
// caller holds mu.
func (h *Held) waitOrLose() {
	if left := h.left(); left > 0 {
		h.timer.Reset(left)
		return
	}
	hint := "it ran out before it was renewed"
	switch {
	case !h.until.IsZero() && !time.Now().Before(h.until):
		hint = "it has reached the longest time that it may be held (MaxHold)"
	case h.keeper.cfg.NoRenew:
		hint = "it ran out; renewal is off"
	case h.ctx.Err() != nil:
		hint = "it ran out; renewal stopped when the caller's context ended"
	}
	h.lose(hint, h.lastErr)
}

// lose ends the lease as lost. The caller holds mu, so the observer is told
// from a goroutine of its own.
func (h *Held) lose(hint string, cause error) {
	h.state = lost
	h.timer.Stop()
	if h.forgotten {
		delete(h.keeper.held, h.grant.ID)
	}
	err := &exclusive.Error{Op: "hold", Key: h.grant.Key, Kind: exclusive.ErrLost, Hint: hint, Err: cause}
	h.cancel(err)
	if h.keeper.cfg.Observer != nil {
		go h.keeper.cfg.Lose(context.WithoutCancel(h.ctx), h.grant, err)
	}
}

// Grant implements exclusive.Holding.
func (h *Held) Grant() exclusive.Grant {
	h.keeper.mu.Lock()
	defer h.keeper.mu.Unlock()
	return h.grant
}

// Expires is when the lease ends unless it is renewed, or zero.
func (h *Held) Expires() time.Time { return h.Grant().Expires }

// Context implements exclusive.Holding.
func (h *Held) Context() context.Context { return h.ctx }

// Stopped reports whether work was told to stop: its caller's context has ended,
// or the lease has. What work returned then says nothing about the work. It does
// if work had returned before, and has left its Commit behind.
func (h *Held) Stopped() bool {
	return db.Over(h.ctx) != nil && !errors.Is(context.Cause(h.ctx), run.ErrLeftBehind)
}

// Forget says that nobody refers to the lease any more: it is not renewed, and
// ends by itself.
func (h *Held) Forget() {
	h.keeper.mu.Lock()
	defer h.keeper.mu.Unlock()
	h.abandoned, h.forgotten = true, true
	if h.state == lost || h.state == over {
		delete(h.keeper.held, h.grant.ID)
	}
}

// Renew implements exclusive.Holding. While a transaction has the row it tries
// again, until ctx ends or the lease does.
func (h *Held) Renew(ctx context.Context) error {
	k := h.keeper
	for {
		k.mu.Lock()
		switch {
		case h.ended():
			k.mu.Unlock()
			return h.gone("renew")
		case h.state == locked:
			k.mu.Unlock()
			return &exclusive.Error{Op: "renew", Key: h.grant.Key, Kind: exclusive.ErrInvalid, Hint: "a Commit of this lease is under way, and holds the key by its transaction"}
		}
		g := h.grant
		h.begin()
		k.mu.Unlock()

		requested := time.Now()
		gone, waiting, err := k.backend.Renew(ctx, []exclusive.Grant{g})

		k.mu.Lock()
		h.end()
		if err == nil && waiting == nil {
			k.extended(h, requested, gone != nil)
		}
		ended := h.ended()
		k.mu.Unlock()
		switch {
		case err != nil:
			return err
		case ended:
			return h.gone("renew")
		case waiting == nil:
			return nil
		}
		pause := time.NewTimer(k.cfg.retry())
		select {
		case <-pause.C:
		case <-h.ctx.Done():
		case <-ctx.Done():
			pause.Stop()
			return db.CtxError(ctx, "renew", g.Key, errRowLocked)
		}
	}
}

var errRowLocked = errors.New("a transaction holds the lease's row")

// ended reports whether there is nothing left to renew. The caller holds mu.
func (h *Held) ended() bool { return h.state != held && h.state != locked }

// extended notes what the backend said. The caller holds mu.
func (k *Keeper) extended(h *Held, requested time.Time, gone bool) {
	if h.state != held { // meanwhile released, lost, or in a Commit
		return
	}
	if gone {
		h.lose("the backend no longer has it: it ran out, was taken over, or was released by an operator", nil)
		return
	}
	h.lastErr = nil
	h.extend(requested)
}

// tick is when a lease that was extended at requested is due again: at the last
// tick within the interval. All leases share the ticks, so they share their
// statements, whenever they were acquired.
func (k *Keeper) tick(requested time.Time) time.Time {
	next := requested.Add(k.cfg.interval())
	return next.Add(-next.Sub(k.start) % k.cfg.interval())
}

// begin and end enclose a renewal of h. The caller holds mu.
func (h *Held) begin() {
	if h.renewing++; h.renewing == 1 {
		h.renewed = make(chan struct{})
	}
}

func (h *Held) end() {
	if h.renewing--; h.renewing == 0 {
		close(h.renewed)
	}
}

// gone is the error for a lease that is over.
func (h *Held) gone(op string) error {
	e := &exclusive.Error{Op: op, Key: h.grant.Key, Kind: exclusive.ErrLost, Hint: "the lease is over"}
	if cause := context.Cause(h.ctx); errors.Is(cause, exclusive.ErrLost) {
		e.Err = cause
	}
	return e
}

// Release implements exclusive.Holding.
func (h *Held) Release(ctx context.Context) error {
	return h.ReleaseWith(ctx, h.keeper.backend.Release)
}

// ReleaseWith is Release for a backend that knows more than one way to give a
// grant back: release does it, as Backend's Release would. What ctx has not let
// come to its end goes on in the background; the next call waits for that.
func (h *Held) ReleaseWith(ctx context.Context, release func(context.Context, exclusive.Grant) error) error {
	k := h.keeper
	k.mu.Lock()
	before, g := h.state, h.grant
	switch {
	case h.later != nil:
		later := h.later
		k.mu.Unlock()
		return h.await(ctx, later)
	case before == over:
		committed := h.committed
		delete(k.held, g.ID)
		k.mu.Unlock()
		if committed {
			return nil // the Commit has given it back
		}
		return h.gone("release")
	case before == locked:
		k.mu.Unlock()
		return &exclusive.Error{Op: "release", Key: g.Key, Kind: exclusive.ErrInvalid, Hint: "a Commit of this lease is under way"}
	case h.onceErr != nil:
		err := h.onceErr
		k.mu.Unlock()
		return err
	case before == held:
		h.state = unreleased
		h.timer.Stop()
	}
	if k.cfg.SendOnce {
		h.onceErr = &exclusive.Error{Op: "release", Key: g.Key, Kind: exclusive.ErrInvalid, Hint: "a release of this lease is under way, and is not sent twice"}
	}
	delete(k.held, g.ID)
	k.mu.Unlock()
	ended := ctx.Err() != nil
	h.cancel(context.Canceled)
	if own, _ := exclusive.CurrentGrant(ctx); own.ID == g.ID && !ended && ctx.Err() != nil { // it stems from the lease's
		var cancel context.CancelFunc
		ctx, cancel = run.Detach(ctx)
		defer cancel()
	}

	r := &releasing{h: h, before: before, grant: g, release: release}
	if ended {
		if !r.later(ctx) { // nobody would wait for it
			var cancel context.CancelFunc
			ctx, cancel = run.Detach(ctx)
			defer cancel()
			return r.now(ctx)
		}
		err := goesOn(db.CtxError(ctx, "release", g.Key, nil))
		if before == lost {
			err = errors.Join(h.gone("release"), err)
		}
		return err
	}
	err := r.now(ctx)
	if !answered(err) && db.Over(ctx) != nil && r.later(ctx) {
		return goesOn(err)
	}
	return err
}

// await waits for a release that goes on in the background, and says what came of it.
func (h *Held) await(ctx context.Context, later chan struct{}) error {
	select {
	case <-later:
	case <-ctx.Done():
		return goesOn(db.CtxError(ctx, "release", h.Grant().Key, nil))
	}
	h.keeper.mu.Lock()
	defer h.keeper.mu.Unlock()
	if h.later == later { // others may have waited too, and one has begun since
		h.later = nil
	}
	return h.laterErr
}

// goesOn adds to the error of a release that this is not the end of it.
func goesOn(err error) error {
	var e *exclusive.Error
	if !errors.As(err, &e) {
		return err
	}
	told, hint := *e, "the release goes on in the background"
	if told.Hint != "" {
		hint = told.Hint + "; " + hint
	}
	told.Hint = hint
	return &told
}

// releasing is a release of a lease that was in the state before.
type releasing struct {
	h       *Held
	before  state
	grant   exclusive.Grant
	release func(context.Context, exclusive.Grant) error
}

// now releases while ctx lasts.
func (r *releasing) now(ctx context.Context) error {
	return r.observed(ctx, r.once)
}

// later goes on when ctx has ended, in the background, unless another release of
// the lease does. It reports false, and does nothing, if the keeper is closed, or
// releases are sent once.
func (r *releasing) later(ctx context.Context) bool {
	h, k := r.h, r.h.keeper
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.closed || k.cfg.SendOnce:
		return false
	case h.later != nil:
		return true
	}
	ended := make(chan struct{})
	h.later = ended
	k.work.Go(func() {
		defer close(ended)
		ctx, cancel := k.patience(ctx)
		defer cancel()
		err := r.observed(ctx, func(ctx context.Context) error { return k.insist(ctx, r.once) })
		k.mu.Lock()
		defer k.mu.Unlock()
		h.laterErr = err
	})
	return true
}

// once sends the release. A renewal that comes after it changes nothing at the
// backend, but holds the row for a moment: so one that is under way is waited for,
// though not for long.
func (r *releasing) once(ctx context.Context) error {
	k := r.h.keeper
	k.mu.Lock()
	renewing, renewed := r.h.renewing > 0, r.h.renewed
	k.mu.Unlock()
	if renewing {
		select {
		case <-renewed:
		case <-time.After(releaseWait):
		case <-ctx.Done():
		}
	}
	return r.release(ctx, r.grant)
}

// observed tells of the release that f is, and says what it means.
func (r *releasing) observed(ctx context.Context, f func(context.Context) error) error {
	h, k, g := r.h, r.h.keeper, r.grant
	ctx, end := k.cfg.Start(ctx, exclusive.Event{Op: exclusive.OpRelease, Key: g.Key, Grant: g})
	err := f(ctx)
	end(g, err)
	if !answered(err) {
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.cfg.SendOnce {
			h.onceErr = err
		}
		return err // may be called again
	}
	k.mu.Lock()
	h.state = over
	k.mu.Unlock()
	if err == nil && k.cfg.Freed != nil {
		k.cfg.Freed(g.Key)
	}
	if r.before == lost && !errors.Is(err, exclusive.ErrFenced) { // given back early, which changes nothing for the holder
		return h.gone("release")
	}
	return err
}

// Finish is ReleaseWith for a Do whose work has returned nil without Commit. What
// the backend says counts: if it took the finish nobody else has had the key, even
// when the lease was lost here a moment before. Refused, it is ErrFenced if there
// is a newer holder and what was refused is more than giving the key back, and
// ErrLost otherwise. After anything else the effects of work exist: failed says
// what that means.
func (h *Held) Finish(ctx context.Context, failed exclusive.Error, finish func(context.Context, exclusive.Grant) error) error {
	var took atomic.Bool // it may go on in the background
	err := h.ReleaseWith(ctx, func(ctx context.Context, g exclusive.Grant) error {
		err := finish(ctx, g)
		took.Store(err == nil)
		return err
	})
	switch {
	case took.Load():
		return nil
	case err == nil, errors.Is(err, exclusive.ErrLost), errors.Is(err, exclusive.ErrFenced):
		return err
	}
	failed.Key, failed.Err = h.Grant().Key, run.Cause(err)
	return &failed
}

// Usable says why the grant cannot be used any more, as far as that is known
// without asking the backend: ErrInvalid after a Commit, which its own work must
// have seen, ErrLost after a release.
func (h *Held) Usable(op string) error {
	h.keeper.mu.Lock()
	defer h.keeper.mu.Unlock()
	return h.usable(op)
}

// usable is Usable. The caller holds mu.
func (h *Held) usable(op string) error {
	switch {
	case h.committed:
		return &exclusive.Error{Op: op, Key: h.grant.Key, Kind: exclusive.ErrInvalid, Hint: "the grant is finished: its Commit has succeeded"}
	case h.state == over, h.state == unreleased:
		return h.gone(op)
	}
	return nil
}

// Begin marks the start of a Commit: only one may run, and renewal leaves the
// row alone. Every Begin that returns nil needs an End.
func (h *Held) Begin() error {
	h.keeper.mu.Lock()
	defer h.keeper.mu.Unlock()
	if err := h.usable("commit"); err != nil {
		return err
	}
	return h.Commits.Begin(h.grant)
}

// Lock suspends the deadline: the Commit's transaction holds the row now. A
// lease that was lost here a moment before the backend let it go stays lost.
func (h *Held) Lock() {
	h.keeper.mu.Lock()
	defer h.keeper.mu.Unlock()
	if h.state == held {
		h.state = locked
	}
}

// End marks the end of a Commit. Without an error it has finished the grant, and
// the lease is over.
func (h *Held) End(err error) {
	k, finished := h.keeper, err == nil
	k.mu.Lock()
	switch {
	case finished:
		h.state, h.committed = over, true
		h.timer.Stop()
		if h.forgotten {
			delete(k.held, h.grant.ID)
		}
	case h.state == locked:
		h.state = held
		h.renewAt = time.Now()
		h.waitOrLose()
	case errors.Is(err, exclusive.ErrLost), errors.Is(err, exclusive.ErrFenced):
		h.renewAt = time.Now() // the backend has refused it: let work know
	}
	k.mu.Unlock()
	h.Commits.End(err)
	if !finished {
		k.poke() // the row may be renewed again
		return
	}
	if !h.keepCtx {
		h.cancel(context.Canceled)
	}
	if k.cfg.Freed != nil {
		k.cfg.Freed(h.grant.Key)
	}
}

// Finished reports whether a Commit or Release has ended the lease.
func (h *Held) Finished() bool {
	h.keeper.mu.Lock()
	defer h.keeper.mu.Unlock()
	return h.state == over
}

// ensureRenewer sees to it that the renewing goroutine looks at held when a
// lease is due. The caller holds mu.
func (k *Keeper) ensureRenewer(due time.Time) {
	switch {
	case !k.renewer:
		k.renewer, k.looks = true, due
		k.work.Go(k.renewLoop)
	case due.Before(k.looks):
		k.poke()
	}
}

func (k *Keeper) poke() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// renewLoop renews what is due until nothing is left to renew.
func (k *Keeper) renewLoop() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		due, next, more := k.due(time.Now())
		if !more {
			return
		}
		// At the same time: one that hangs must not make the others late.
		var batches sync.WaitGroup
		for batch := range slices.Chunk(due, Batch) {
			batches.Go(func() { k.renewBatch(batch) })
		}
		batches.Wait()
		if due != nil {
			continue
		}
		timer.Reset(time.Until(next))
		select {
		case <-timer.C:
		case <-k.wake:
		case <-k.ctx.Done():
		}
	}
}

// due returns the leases to renew now, or else when to look again.
func (k *Keeper) due(now time.Time) (due []*Held, next time.Time, more bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.closed {
		for _, h := range k.held {
			if h.abandoned || h.ended() || h.ctx.Err() != nil {
				continue
			}
			more = true
			if h.state != held || h.Commits.Running() { // End pokes
				continue
			}
			if !h.renewAt.After(now) {
				due = append(due, h)
			}
			if next.IsZero() || h.renewAt.Before(next) {
				next = h.renewAt
			}
		}
	}
	if !more {
		k.renewer = false
		return nil, time.Time{}, false
	}
	if next.IsZero() { // all are in a Commit
		next = now.Add(k.cfg.interval())
	}
	k.looks = next
	return due, next, true
}

// renewBatch sends one statement. If it fails the leases stay as they are, and
// are due again soon: a blip is not a loss, and each has its own deadline.
func (k *Keeper) renewBatch(batch []*Held) {
	k.mu.Lock()
	batch = slices.DeleteFunc(batch, func(h *Held) bool { return h.state != held || h.Commits.Running() })
	grants := make([]exclusive.Grant, len(batch))
	for i, h := range batch {
		grants[i] = h.grant
		h.begin()
	}
	k.mu.Unlock()
	if len(batch) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(k.ctx, k.cfg.interval())
	defer cancel()
	ctx, end := k.cfg.Start(ctx, exclusive.Event{Op: exclusive.OpRenew, Count: len(batch)})
	requested := time.Now()
	gone, waiting, err := k.backend.Renew(ctx, grants)
	end(exclusive.Grant{}, err)

	k.mu.Lock()
	defer k.mu.Unlock()
	again := time.Now().Add(k.cfg.retry())
	for _, h := range batch {
		h.end()
		switch {
		case err != nil && waiting == nil, slices.Contains(waiting, h.grant.ID):
			h.lastErr, h.renewAt = err, again
		default:
			k.extended(h, requested, slices.Contains(gone, h.grant.ID))
		}
	}
}
