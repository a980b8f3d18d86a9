package story

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/exclusive-go/exclusive"
)

// What the actors store.
const (
	byA = "report by A"
	byB = "report by B"
	byC = "report by C"
)

// Zombie plays the story of the holder that freezes: its lease runs out, a
// second holder gets the key, writes and finishes; then the first one wakes up
// and writes. The second one's value must stand.
func Zombie(ctx context.Context, r Rig, guard Guard) *Report {
	return play(ctx, ZombieStory, guard, func(ctx context.Context, p *player) error {
		a, err := p.holdFirst(ctx, r)
		if err != nil {
			return err
		}
		defer a.close()
		b := p.successor(ctx, r, a)
		defer b.stop()
		if err := a.pause(ctx, "", b.wait); err != nil {
			return b.why(err)
		}
		a.lateWrite(ctx, r, byA)
		return p.read(ctx, r, byB)
	})
}

// CheckThenWrite plays the story of the holder that freezes after its check and
// before its write. Either its successor waits until that write is committed or
// the write is refused: the successor's value must be the last.
//
// The twin checks what a program can check by itself, that its lease still
// runs, and then freezes.
func CheckThenWrite(ctx context.Context, r Rig, guard Guard) *Report {
	return play(ctx, CheckThenWriteStory, guard, func(ctx context.Context, p *player) error {
		a, err := p.holdFirst(ctx, r)
		if err != nil {
			return err
		}
		defer a.close()
		if !time.Now().Before(a.grant.Expires) {
			return &exclusive.Error{Op: "look at the lease", Key: r.Key, Kind: exclusive.ErrLost, Hint: fmt.Sprintf("A's, of %v, is over already; use a longer one", a.length)}
		}
		b := p.successor(ctx, r, a)
		defer b.stop()
		var paused error
		err = a.attempt(ctx, r, byA, func() { paused = a.pauseChecked(ctx, b) })
		if paused != nil {
			return b.why(paused)
		}
		outcome, came := Accepted, "stored; B has waited"
		if b.isDone() {
			outcome, came = Damage, overNewer
		}
		a.wrote(byA, "goes on and writes", came, outcome, err)
		if err != nil {
			a.expectRefused(err)
		}
		// A does not give the key back before: B gets in when the lease has
		// run out and A's transaction is over.
		if err := b.wait(ctx); err != nil {
			return b.why(err)
		}
		return p.read(ctx, r, byB)
	})
}

// pauseChecked freezes A between check and write. With the guard on B may wait
// for A's transaction, which no signal can tell: before it gets the key, or
// before it writes. Then A goes on after it has given B ample time.
func (h *held) pauseChecked(ctx context.Context, b *successor) error {
	until := b.wait
	if h.p.report.Guard == GuardOn {
		until = func(ctx context.Context) error {
			select {
			case <-b.in:
			default:
				return nil
			}
			ctx, cancel := context.WithTimeout(ctx, Frozen(h.length))
			defer cancel()
			if err := b.wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
				return err
			}
			return nil
		}
	}
	return h.pause(ctx, " between check and write", until)
}

// successor is B, on its own: it waits for the key, writes and finishes.
type successor struct {
	cancel   context.CancelFunc
	in, done chan struct{} // closed when it has the key, and at the end
	err      error         // the rig's failure; read it after done
}

func (p *player) successor(ctx context.Context, r Rig, a *held) *successor {
	ctx, cancel := context.WithCancel(ctx)
	s := &successor{cancel: cancel, in: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(s.done)
		b, err := p.hold(ctx, "B", r.B, r.Key)
		if err != nil {
			s.err = stillHeld(err)
			return
		}
		defer b.close()
		close(s.in)
		s.err = p.takeOver(ctx, r, b, a.grant.Token, byB)
	}()
	return s
}

// wait returns when B is done: its error, or the context's.
func (s *successor) wait(ctx context.Context) error {
	select {
	case <-s.done:
		return s.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// stillHeld adds to B's error what is most likely behind it.
func stillHeld(err error) error {
	return fmt.Errorf("%w (is A's lease renewed? turn that off)", err)
}

// why prefers B's own error to the one that came of waiting for B.
func (s *successor) why(err error) error {
	s.stop()
	if s.err != nil {
		return s.err
	}
	return err
}

// stop ends B, however far it has come.
func (s *successor) stop() {
	s.cancel()
	<-s.done
}

func (s *successor) isDone() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

// takeOver is what a holder does that comes after one with the token before.
func (p *player) takeOver(ctx context.Context, r Rig, h *held, before int64, value string) error {
	if before != 0 && h.grant.Token <= before {
		p.problem("the token went from %d to %d", before, h.grant.Token)
	}
	if err := h.write(ctx, r, value); err != nil {
		return h.cannotWrite(err)
	}
	return h.finish()
}

// restoredTries bounds how often a holder whose token went back tries again.
const restoredTries = 20

// IssuerRestored plays the story of the lease store that is restored from a
// copy older than the destination has seen. Its tokens may go back then, and
// must be refused until they are past the mark again, or never go back at all.
// A's grant, which the restored store does not know, must not come through once
// a newer one has written.
//
// Holder.Write must leave the grant as it is: Check, not Commit.
func IssuerRestored(ctx context.Context, r Rig, guard Guard) *Report {
	return play(ctx, IssuerRestoredStory, guard, func(ctx context.Context, p *player) error {
		restore, err := r.BackUp(ctx)
		if err != nil {
			return fmt.Errorf("back the lease store up: %w", err)
		}
		a, err := p.draft(ctx, r)
		if err != nil {
			return err
		}
		defer a.close()
		if err := restore(ctx); err != nil {
			return fmt.Errorf("restore the lease store: %w", err)
		}
		p.event(Event{Actor: store, Kind: Restore, Text: "leases and tokens are restored from before A"})
		if err := p.passMark(ctx, r, a); err != nil {
			return err
		}
		a.lateWrite(ctx, r, byA)
		return p.read(ctx, r, byB)
	})
}

// passMark has B try until one of its grants writes. B's grant must not write
// with a token that the destination knows from A.
func (p *player) passMark(ctx context.Context, r Rig, a *held) error {
	for range restoredTries {
		written, err := p.tryPassMark(ctx, r, a)
		if written || err != nil {
			return err
		}
		if r.Heal == nil {
			continue
		}
		if err := r.Heal(ctx, r.Key, a.grant.Token); err != nil {
			return fmt.Errorf("heal the tokens: %w", err)
		}
		p.note(store, "the tokens are lifted past %d", a.grant.Token)
	}
	p.problem("B was still refused after %d grants; nothing lifts the tokens", restoredTries)
	return nil
}

func (p *player) tryPassMark(ctx context.Context, r Rig, a *held) (written bool, err error) {
	b, err := p.hold(ctx, "B", r.B, r.Key)
	if err != nil {
		return false, err
	}
	defer b.close()
	switch err := b.write(ctx, r, byB); {
	case err == nil:
		if a.grant.Token != 0 && b.grant.Token <= a.grant.Token {
			p.problem("B wrote with token %d although the destination has seen %d from A", b.grant.Token, a.grant.Token)
		}
		return true, b.finish()
	case errors.Is(err, exclusive.ErrFenced):
		return false, b.finish()
	default:
		return false, b.cannotWrite(err)
	}
}

// DestinationRestored plays the story of the destination that is restored from
// an older copy, its marks included. What the copy lacks is gone, no lock can
// bring it back; and until the next holder has written, the copy cannot know
// that A's grant is an old one. From then on it must refuse A and B.
//
// Holder.Write must leave the grant as it is: Check, not Commit.
func DestinationRestored(ctx context.Context, r Rig, guard Guard) *Report {
	return play(ctx, DestinationRestoredStory, guard, func(ctx context.Context, p *player) error {
		a, err := p.draft(ctx, r)
		if err != nil {
			return err
		}
		defer a.close()
		restore, err := r.BackUp(ctx)
		if err != nil {
			return fmt.Errorf("back the destination up: %w", err)
		}
		// A is frozen from here on: B gets in when A's lease has run out.
		b, err := p.hold(ctx, "B", r.B, r.Key)
		if err != nil {
			return stillHeld(err)
		}
		defer b.close()
		if err := p.takeOver(ctx, r, b, a.grant.Token, byB); err != nil {
			return err
		}
		if err := restore(ctx); err != nil {
			return fmt.Errorf("restore the destination: %w", err)
		}
		p.event(Event{Actor: store, Kind: Restore, Text: "the destination is restored from before B"})
		c, err := p.hold(ctx, "C", r.B, r.Key)
		if err != nil {
			return err
		}
		defer c.close()
		if err := p.takeOver(ctx, r, c, a.grant.Token, byC); err != nil {
			return err
		}
		b.lateWrite(ctx, r, byB)
		a.lateWrite(ctx, r, byA)
		return p.read(ctx, r, byC)
	})
}
