package story

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/exclusive-go/exclusive"
)

// errInApply is a failure of the application's own.
var errInApply = errors.New("the story's own failure after the effect was made")

// LostAnswer plays the story of the commit whose answer gets lost: the caller
// cannot know that it happened and sends the operation again. The effect must
// exist once, and the second call must get the first one's result.
func LostAnswer(ctx context.Context, r OnceRig, guard Guard) *Report {
	return play(ctx, LostAnswerStory, guard, func(ctx context.Context, p *player) error {
		o := &once{p: p, r: r}
		if guard == GuardOff {
			return o.withoutIDs(ctx)
		}
		for _, step := range []func(context.Context) error{o.again, o.mismatch, o.failure, o.together} {
			if err := step(ctx); err != nil {
				return err
			}
		}
		return nil
	})
}

// once is the state of the story of the lost answer.
type once struct {
	p       *player
	r       OnceRig
	effects int // that should be stored
}

// id makes an operation id that is this story's own: ids are shared by all keys
// of a destination.
func (o *once) id(op string) string { return o.r.Key + "/" + op }

var payload = []byte("pay 10 to Bob")

// withoutIDs sends the same twice.
func (o *once) withoutIDs(ctx context.Context) error {
	for _, e := range []Event{
		{Actor: "A", Kind: Write, Outcome: Accepted, Text: "pays 10; the answer is lost on the way"},
		{Actor: "A", Kind: Write, Outcome: Damage, Text: "sends it again: paid a second time"},
	} {
		if err := o.r.Plain(ctx, o.r.Key); err != nil {
			return fmt.Errorf("pay without an operation id: %w", err)
		}
		o.p.event(e)
	}
	o.effects = 1
	return o.count(ctx)
}

// again is the story itself.
func (o *once) again(ctx context.Context) error {
	first, err := o.r.Once(ctx, o.r.Key, o.id("op-1"), payload, ok)
	if err != nil {
		return fmt.Errorf("apply op-1: %w", err)
	}
	o.effects++
	o.p.event(Event{Actor: "A", Kind: Write, Outcome: Accepted, Text: "pays 10 as op-1; the answer is lost on the way"})
	applied := false
	second, err := o.r.Once(ctx, o.r.Key, o.id("op-1"), payload, func() error { applied = true; return nil })
	switch {
	case err != nil:
		o.p.problem("op-1 sent again gives an error instead of its result: %v", err)
	case applied:
		o.p.problem("op-1 sent again was applied again")
	case !bytes.Equal(first, second):
		o.p.problem("op-1 sent again gives %q; its result was %q", second, first)
	default:
		o.p.event(Event{Actor: "A", Kind: Write, Outcome: Replayed, Text: fmt.Sprintf("sends op-1 again: nothing runs, the stored result comes back (%.40s)", second)})
	}
	return o.count(ctx)
}

// mismatch uses the id for something else.
func (o *once) mismatch(ctx context.Context) error {
	_, err := o.r.Once(ctx, o.r.Key, o.id("op-1"), []byte("pay 99 to Eve"), ok)
	if !errors.Is(err, exclusive.ErrMismatch) {
		o.p.problem("op-1 with another payload gives %v; it should be ErrMismatch", err)
	} else {
		o.p.event(Event{Actor: "A", Kind: Write, Outcome: Refused, Text: "sends op-1 with another payload: REFUSED (ErrMismatch)"})
	}
	return o.count(ctx)
}

// failure fails after the effect was made: neither it nor the id may stay.
func (o *once) failure(ctx context.Context) error {
	_, err := o.r.Once(ctx, o.r.Key, o.id("op-2"), payload, func() error { return errInApply })
	if !errors.Is(err, errInApply) {
		o.p.problem("a failure inside op-2 gives %v; errors.Is should find the failure", err)
	}
	o.p.note("A", "pays 10 as op-2 and fails before the commit: nothing stays")
	if err := o.count(ctx); err != nil {
		return err
	}
	if _, err := o.r.Once(ctx, o.r.Key, o.id("op-2"), payload, ok); err != nil {
		o.p.problem("op-2 cannot be applied after it has failed: %v", err)
		return nil
	}
	o.effects++
	o.p.event(Event{Actor: "A", Kind: Write, Outcome: Accepted, Text: "pays 10 as op-2 again: stored"})
	return o.count(ctx)
}

// conflictTries bounds how often a caller repeats what conflicted.
const conflictTries = 20

// together sends one operation twice at the same time.
func (o *once) together(ctx context.Context) error {
	var wg sync.WaitGroup
	var results [2][]byte
	var errs [2]error
	for i := range results {
		wg.Go(func() {
			for range conflictTries {
				results[i], errs[i] = o.r.Once(ctx, o.r.Key, o.id("op-3"), payload, ok)
				if !errors.Is(errs[i], exclusive.ErrConflict) {
					return
				}
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		o.p.problem("op-3 sent twice at the same time fails: %v", err)
	} else if !bytes.Equal(results[0], results[1]) {
		o.p.problem("op-3 sent twice at the same time gives %q and %q", results[0], results[1])
	}
	o.effects++
	o.p.event(Event{Actor: "A, B", Kind: Write, Outcome: Replayed, Text: "send op-3 at the same moment: both get the one result"})
	return o.count(ctx)
}

func ok() error { return nil }

// count compares what is stored with what should be.
func (o *once) count(ctx context.Context) error {
	n, err := o.r.Effects(ctx, o.r.Key)
	if err != nil {
		return fmt.Errorf("count the effects: %w", err)
	}
	r := o.p.report
	r.Stored, r.Want = o.paid(n), o.paid(o.effects)
	r.Damaged = n > o.effects
	if n != o.effects {
		o.p.problem("%s; it should be %s", r.Stored, r.Want)
	}
	return nil
}

// paid says how many payments there are for the operations so far.
func (o *once) paid(n int) string {
	return plural(o.effects, "order") + ", " + plural(n, "payment")
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
