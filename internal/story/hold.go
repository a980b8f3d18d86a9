package story

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/exclusive-go/exclusive"
)

// held is a grant that an actor has.
type held struct {
	p      *player
	actor  string
	holder Holder
	grant  exclusive.Grant
	length time.Duration // of the lease
	lease  *Event
	end    func(workErr error) error
	ended  bool
	stored bool // a write of its own was accepted, which was a Commit perhaps
}

// retryEvery is the pause between two tries of a Do that does not wait.
const retryEvery = 10 * time.Millisecond

// noticed is how long a wait must be to be worth a word.
const noticed = 20 * time.Millisecond

// hold waits for the key. Every held must be closed.
func (p *player) hold(ctx context.Context, actor string, holder Holder, key string) (*held, error) {
	asked := time.Now()
	h := &held{p: p, actor: actor, holder: holder}
	var err error
	if leaser, ok := holder.Exclusive.(exclusive.Leaser); ok {
		err = h.acquire(ctx, leaser, key)
	} else {
		err = h.do(ctx, key)
	}
	if err != nil {
		return nil, fmt.Errorf("holder %s does not get the key: %w", actor, err)
	}
	if h.grant.Expires.IsZero() {
		return nil, errors.Join(ErrNotTimeBound, h.end(nil))
	}
	h.length = time.Until(h.grant.Expires)
	text := "gets the lease" + withToken(h.grant.Token)
	if waited := time.Since(asked); waited > noticed {
		text += fmt.Sprintf(", after waiting %d ms", waited.Milliseconds())
	}
	h.lease = p.event(Event{Actor: actor, Kind: Lease, Token: h.grant.Token, Until: h.grant.Expires.Sub(p.start), Text: text})
	return h, nil
}

func withToken(token int64) string {
	if token == 0 {
		return ""
	}
	return fmt.Sprintf(" (token %d)", token)
}

func (h *held) acquire(ctx context.Context, leaser exclusive.Leaser, key string) error {
	lease, err := leaser.Acquire(ctx, key)
	if err != nil {
		return err
	}
	h.grant = lease.Grant()
	h.end = func(error) error { return lease.Release(ctx) }
	return nil
}

// do keeps work waiting inside Do until end is called.
func (h *held) do(ctx context.Context, key string) error {
	for {
		granted := make(chan exclusive.Grant, 1)
		work, answer := make(chan error, 1), make(chan error, 1)
		go func() {
			answer <- h.holder.Exclusive.Do(ctx, key, func(_ context.Context, g exclusive.Grant) error {
				granted <- g
				// Not interrupted by work's context: the actors of the stories
				// are those that do not notice.
				select {
				case err := <-work:
					return err
				case <-ctx.Done():
					return ctx.Err()
				}
			})
		}()
		select {
		case h.grant = <-granted:
			h.end = func(workErr error) error {
				work <- workErr
				return <-answer
			}
			return nil
		case err := <-answer:
			// Lost before work began: the machine is slow and the lease short.
			if !errors.Is(err, exclusive.ErrHeld) && !errors.Is(err, exclusive.ErrLost) {
				if err == nil {
					err = errors.New("its Do returned nil without running work")
				}
				return err
			}
		}
		select {
		case <-time.After(retryEvery):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// finish ends the grant in good order. A grant that a Commit has finished, or
// that was lost, is over already.
func (h *held) finish() error {
	h.ended = true
	if err := h.end(nil); err != nil && !errors.Is(err, exclusive.ErrLost) {
		return fmt.Errorf("holder %s ends its grant: %w", h.actor, err)
	}
	h.lease.Until = min(h.lease.Until, time.Since(h.p.start))
	return nil
}

// errLeft is what work returns if the story ends before it does.
var errLeft = errors.New("the story is over")

// close ends the grant of an actor that the story leaves behind. Nothing hangs
// on how that goes: it is late, or the story has failed already.
func (h *held) close() {
	if !h.ended {
		h.ended = true
		_ = h.end(errLeft)
	}
}

// write stores value, through the guard or past it, and records how that went.
// The error is the destination's.
func (h *held) write(ctx context.Context, r Rig, value string) error {
	err := h.attempt(ctx, r, value, nothing)
	h.wrote(value, "writes", "stored", Accepted, err)
	return err
}

// overNewer is what comes of a write that does damage.
const overNewer = "STORED, the newer result is gone"

// lateWrite is a write after somebody else's, which must be refused. With the
// guard off it is what does the damage.
func (h *held) lateWrite(ctx context.Context, r Rig, value string) {
	err := h.attempt(ctx, r, value, nothing)
	h.wrote(value, "comes late and writes", overNewer, Damage, err)
	h.expectRefused(err)
}

// errEarly says that a grant was lost well before its time was over.
var errEarly = errors.New("its lease should still last")

// cannotWrite says that a holder in good order could not write.
func (h *held) cannotWrite(err error) error {
	// A holder may count its lease as lost a moment before the server does.
	if errors.Is(err, exclusive.ErrLost) && time.Until(h.grant.Expires) > h.length/4 {
		err = fmt.Errorf("%w (%w)", err, errEarly)
	}
	return fmt.Errorf("holder %s has the key, and its write fails: %w", h.actor, err)
}

// attempt writes; between is called after the check.
func (h *held) attempt(ctx context.Context, r Rig, value string, between func()) error {
	if h.p.report.Guard == GuardOff {
		between()
		return r.Unguarded(ctx, r.Key, value)
	}
	calls := 0
	err := h.holder.Write(ctx, h.grant, value, func() { calls++; between() })
	if err == nil && calls != 1 {
		return fmt.Errorf("the rig's Write called between %d times; call it once, right before the statement that writes", calls)
	}
	return err
}

// wrote records a write: what was done, and what came of it if it got through.
func (h *held) wrote(value, did, came string, outcome Outcome, err error) {
	refusal := h.refusal(err)
	switch {
	case err == nil:
		h.stored = true
	case refusal != "":
		outcome, came = Refused, "REFUSED ("+refusal+")"
	default:
		outcome, came = Failed, "failed: "+err.Error()
	}
	token := h.grant.Token
	h.p.event(Event{
		Actor: h.actor, Kind: Write, Token: token, Value: value, Outcome: outcome,
		Text: fmt.Sprintf("%s %q%s: %s", did, value, withToken(token), came),
	})
}

// nothing happens between check and write.
func nothing() {}

// refusal names the error that says that the writer may not write, or returns
// "". Anything else is a failure, which must not pass for a refusal.
func (h *held) refusal(err error) string {
	switch {
	case errors.Is(err, exclusive.ErrFenced):
		return "ErrFenced"
	case errors.Is(err, exclusive.ErrLost):
		return "ErrLost"
	case errors.Is(err, exclusive.ErrConflict):
		return "ErrConflict"
	case errors.Is(err, exclusive.ErrInvalid) && (h.ended || h.stored): // the grant was finished before
		return "ErrInvalid"
	}
	return ""
}

// expectRefused notes a problem if a former holder's write was not refused.
func (h *held) expectRefused(err error) {
	switch {
	case err == nil:
		h.p.problem("%s's late write was accepted", h.actor)
	case h.refusal(err) == "":
		h.p.problem("%s's late write failed instead of being refused: %v", h.actor, err)
	}
}

// holdFirst is hold for the actor that freezes.
func (p *player) holdFirst(ctx context.Context, r Rig) (*held, error) {
	h, err := p.hold(ctx, "A", r.A, r.Key)
	if err == nil && Frozen(h.length) > limit/4 {
		h.close()
		return nil, fmt.Errorf("the lease of A lasts for %v, and it freezes for longer than that: use a short one", h.length)
	}
	if err == nil {
		h.lease.Text += fmt.Sprintf(" for %d ms", h.length.Round(time.Millisecond).Milliseconds())
	}
	return h, err
}

// draftTries bounds how often A starts again because its short lease was over
// before it had written.
const draftTries = 10

// draft has A get the key and write once while it has it.
func (p *player) draft(ctx context.Context, r Rig) (*held, error) {
	for tries := 1; ; tries++ {
		a, err := p.holdFirst(ctx, r)
		if err != nil {
			return nil, err
		}
		err = a.write(ctx, r, "draft by A")
		if err == nil {
			return a, nil
		}
		failed := a.cannotWrite(err)
		a.close()
		if tries == draftTries || !errors.Is(err, exclusive.ErrLost) {
			return nil, failed
		}
	}
}

// pause keeps the actor frozen for well over its lease, and then until until
// returns.
func (h *held) pause(ctx context.Context, where string, until func(context.Context) error) error {
	began := time.Since(h.p.start)
	timer := time.NewTimer(Frozen(h.length))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := until(ctx); err != nil {
		return err
	}
	ended := time.Since(h.p.start)
	h.p.record(Event{
		At: began, Until: ended, Actor: h.actor, Kind: Pause,
		Text: fmt.Sprintf("freezes%s for %d ms", where, (ended - began).Milliseconds()),
	})
	return nil
}

// Frozen is how long a holder pauses whose lease lasts for lease.
func Frozen(lease time.Duration) time.Duration { return lease * 5 / 2 }
