package exclusivetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/exclusive-go/exclusive"
)

// byLeaseAndDo plays a case with leases where there are any, and with Do, which
// every strategy has and most callers use.
func byLeaseAndDo(byLease, byDo func(ctx context.Context, p *processes) error) func(context.Context, *processes) error {
	return func(ctx context.Context, p *processes) error {
		if err := byLease(ctx, p); err != nil && !errors.Is(err, noLeaser) {
			return err
		}
		if err := byDo(ctx, p); err != nil {
			return fmt.Errorf("by Do: %w", err)
		}
		return nil
	}
}

// overstay is how a holder fared whose work goes on inside Do, whatever becomes
// of its grant, while another process wants the key.
type overstay struct {
	former, next exclusive.Grant
	lost         context.Context // of the former holder's work
	began        time.Time       // when the next one's work did
	ended        error           // what the next one's Do returned; its work fails
	leave        func() error    // has the former one's work return nil; what its Do returns
}

// soon is how long after its time a key may stay held: clocks of backends may
// be coarse, but a key that is held for good is not bound by time.
const soon = 2 * time.Second

// overstay has a hold the key by Do until b, which tries again and again, has got
// it by Do too. Then it calls met, if there is one, while both work. A grant of
// a's must end by itself when it has lasted for bound.
func (p *processes) overstay(ctx context.Context, a, b exclusive.Exclusive, bound time.Duration, met func(*overstay) error) (*overstay, error) {
	o := &overstay{}
	granted, left, answer := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		answer <- a.Do(ctx, p.key, func(wctx context.Context, g exclusive.Grant) error {
			o.former, o.lost = g, wctx
			if err := bounded(a, g); err != nil {
				return err
			}
			close(granted)
			<-left
			return nil
		})
	}()
	select {
	case <-granted:
	case err := <-answer:
		return o, fmt.Errorf("Do of a free key: %w", errOrNil(err))
	}
	o.leave = sync.OnceValue(func() error { close(left); return <-answer })
	defer func() { _ = o.leave() }()

	free := time.Now().Add(bound)
	if o.former.Expires.After(free) {
		free = o.former.Expires
	}
	for tries := 1; ; tries++ {
		tried, in := time.Now(), false
		var wrong error
		o.ended = b.Do(ctx, p.key, func(_ context.Context, g exclusive.Grant) error {
			o.next, o.began, in = g, time.Now(), true
			if met != nil {
				wrong = met(o)
			}
			return errFree
		})
		switch {
		case wrong != nil:
			return nil, wrong
		case in && tries == 1 && !o.began.Before(o.former.Expires):
			return nil, &exclusive.Error{Op: "hold", Key: p.key, Kind: exclusive.ErrUnavailable, Hint: "the grant was over before anybody else could try"}
		case in:
			return o, nil
		case !errors.Is(o.ended, exclusive.ErrHeld):
			return nil, want("Do of a held key", o.ended, exclusive.ErrHeld)
		case tried.After(free.Add(soon)):
			return nil, fmt.Errorf("the key is still held %v after its holder's time was over: %w", tried.Sub(free), o.ended)
		}
		select {
		case <-time.After(TTL / 20):
		case <-ctx.Done():
			return nil, fmt.Errorf("the key does not become free: %w", ctx.Err())
		}
	}
}

// early wants the next holder's work not to have begun before expires.
func (o *overstay) early(expires time.Time) error {
	if early := expires.Sub(o.began); early > 0 {
		return fmt.Errorf("another process got the key %v before its holder's Grant.Expires", early)
	}
	return nil
}

// timeBoundByDo has one process work on and another one try until it gets in,
// which must not be before the grant has run out.
func timeBoundByDo(ctx context.Context, p *processes) error {
	a, b, err := p.short()
	if err != nil {
		return err
	}
	o, err := p.overstay(ctx, a, b, p.ttl, nil)
	if err != nil {
		return err
	}
	return o.early(o.former.Expires)
}

// short opens one strategy whose grants are short, as of a process that is
// frozen, and one whose grants last until the case's end.
func (p *processes) short() (short, long exclusive.Exclusive, err error) {
	if short, err = p.open(Config{TTL: p.ttl, NoRenew: true}); err != nil {
		return nil, nil, err
	}
	long, err = p.open(Config{TTL: untilEnd})
	return short, long, err
}

// tokensRiseByDo looks at grants that follow a failure and a takeover. Work
// always fails, or a key that is done would give no more.
func tokensRiseByDo(ctx context.Context, p *processes) error {
	a, b, err := p.short()
	if err != nil {
		return err
	}
	var list grants
	fail := func() error {
		var g exclusive.Grant
		err := b.Do(ctx, p.key, func(_ context.Context, granted exclusive.Grant) error { g = granted; return errFree })
		if !errors.Is(err, errFree) {
			return fmt.Errorf("Do of a free key: %w", errOrNil(err))
		}
		return list.add(p.key, g, len(list)+1)
	}
	for range 2 {
		if err := fail(); err != nil {
			return err
		}
	}
	o, err := p.overstay(ctx, a, b, p.ttl, nil)
	if err != nil && !errors.Is(err, unbounded) {
		return err
	}
	if err := list.add(p.key, o.former, 3); err != nil {
		return err
	}
	if err == nil { // otherwise nobody takes over, and work has failed once more
		if err := list.add(p.key, o.next, 4); err != nil {
			return err
		}
	}
	return fail()
}

// grants are those of one key, in their order.
type grants []exclusive.Grant

// add wants g to be a new grant of key with a higher token.
func (list *grants) add(key string, g exclusive.Grant, attempt int) error {
	var before exclusive.Grant
	if n := len(*list); n > 0 {
		before = (*list)[n-1]
	}
	*list = append(*list, g)
	switch {
	case g.Token == 0:
		return skipped("not offered: the strategy has no tokens")
	case g.Token <= before.Token:
		return fmt.Errorf("the token goes from %d to %d", before.Token, g.Token)
	case g.ID == "" || g.ID == before.ID:
		return fmt.Errorf("the grant's id %q is not its own", g.ID)
	case g.Key != key:
		return fmt.Errorf("the grant is for %q; %q was asked for", g.Key, key)
	case g.Attempt != attempt:
		return fmt.Errorf("grant %d has attempt %d; it should be %d", len(*list), g.Attempt, attempt)
	}
	return nil
}

// lateReleaseByDo has the work of a former holder return: its Do must not give
// back what its successor has.
func lateReleaseByDo(ctx context.Context, p *processes) error {
	a, b, err := p.short()
	if err != nil {
		return err
	}
	c, err := p.open(Config{})
	if err != nil {
		return err
	}
	o, err := p.overstay(ctx, a, b, p.ttl, func(o *overstay) error {
		if err := want("Do of a former holder, whose work returned nil,", o.leave(), exclusive.ErrLost); err != nil {
			return err
		}
		err := c.Do(ctx, p.key, func(context.Context, exclusive.Grant) error { return errFree })
		return want("Do of a third process, when that of a former holder has returned and its successor works,", err, exclusive.ErrHeld)
	})
	if err != nil {
		return err
	}
	if errors.Is(o.ended, exclusive.ErrLost) {
		return fmt.Errorf("the current holder loses its grant when the Do of a former one has returned: %w", o.ended)
	}
	return nil
}

// maxHoldByDo has work outlive the longest time for which its grant is renewed.
func maxHoldByDo(ctx context.Context, p *processes) error {
	a, err := p.open(Config{TTL: p.ttl, MaxHold: 2 * p.ttl})
	if err != nil {
		return err
	}
	b, err := p.open(Config{TTL: untilEnd})
	if err != nil {
		return err
	}
	_, err = p.overstay(ctx, a, b, 3*p.ttl, func(o *overstay) error {
		last, ok := exclusive.CurrentGrant(o.lost)
		if !ok {
			last = o.former
		}
		if err := o.early(last.Expires); err != nil {
			return err
		}
		select { // a busy machine may be late with what was due before
		case <-o.lost.Done():
		case <-ctx.Done():
			return errors.New("the context of work that has reached MaxHold does not end")
		}
		return errors.Join(
			want("the cause of the context of work that has reached MaxHold", context.Cause(o.lost), exclusive.ErrLost),
			want("Do that has reached MaxHold, and whose work returned nil,", o.leave(), exclusive.ErrLost))
	})
	return err
}
