// Package story plays what goes wrong with expiring locks, step by step, with
// two holders against a destination, and judges by what was stored.
//
// The steps wait for signals, never for a while. The one thing that is timed is
// the lease itself: a holder pauses for longer than its lease lasts. Each story
// has a twin with the guard off, which must show the damage: a rig that cannot
// go wrong proves nothing.
package story

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/exclusive-go/exclusive"
)

// Guard says whether the destination checks.
type Guard bool

// The story, and its twin.
const (
	GuardOff Guard = false
	GuardOn  Guard = true
)

func (g Guard) String() string {
	if g {
		return "guard on"
	}
	return "guard off"
}

// Holder is one of the processes of a story.
type Holder struct {
	// Exclusive grants the key. A Leaser is asked by Acquire, others by Do.
	Exclusive exclusive.Exclusive

	// Write stores value as the holder of g, with the guard on. It calls
	// between after the check and right before the statement that writes.
	Write func(ctx context.Context, g exclusive.Grant, value string, between func()) error
}

// Backup copies a store's state and returns what brings that copy back.
type Backup func(ctx context.Context) (restore func(ctx context.Context) error, err error)

// Rig is what a story is played with.
type Rig struct {
	Key string
	// A is the one that freezes: its leases are short and not renewed. B is in
	// good health: its leases are renewed, or long.
	A, B Holder

	Unguarded func(ctx context.Context, key, value string) error
	Read      func(ctx context.Context, key string) (string, error)

	// BackUp is for the stories that restore something.
	BackUp Backup
	// Heal lifts the issuer's tokens to at least the given one. It is for the
	// story of the restored issuer and may be nil.
	Heal func(ctx context.Context, key string, atLeast int64) error
}

// OnceRig is what the story of the lost answer is played with.
type OnceRig struct {
	Key string

	// Once adds one effect under an operation id and returns a result to
	// replay. It calls after when the effect is made, before the commit; an
	// error from after must undo the effect.
	Once func(ctx context.Context, key, opID string, payload []byte, after func() error) ([]byte, error)
	// Plain adds one effect without an operation id.
	Plain func(ctx context.Context, key string) error
	// Effects counts the effects that are stored.
	Effects func(ctx context.Context, key string) (int, error)
}

// Outcome is how a step ended.
type Outcome string

// The outcomes. Damage is an accepted write that should not have been.
const (
	Accepted Outcome = "accepted"
	Refused  Outcome = "refused"
	Replayed Outcome = "replayed"
	Failed   Outcome = "failed"
	Damage   Outcome = "damage"
)

// Kind is what a step is about.
type Kind string

// The kinds. A lease and a pause last until Event.Until.
const (
	Lease   Kind = "lease"
	Pause   Kind = "pause"
	Write   Kind = "write"
	Restore Kind = "restore"
	Note    Kind = "note"
)

// Event is a step of a story. Times are counted from its beginning.
type Event struct {
	At      time.Duration
	Until   time.Duration
	Actor   string
	Kind    Kind
	Token   int64   // 0 = none
	Value   string  // what was to be stored
	Outcome Outcome // empty if nothing was at stake
	Text    string  // for people
}

// Report is how a story went.
type Report struct {
	Story   Story
	Guard   Guard
	Events  []Event // in the order of time
	Stored  string  // at the destination, in the end
	Want    string  // what should be stored
	Damaged bool    // the destination shows what the guard is there to prevent

	// Problems are broken promises; with the guard off there are none to break.
	Problems []string
	// Err says why the story could not be played. The rest is void then.
	Err error
}

// Story names a story and its promise.
type Story struct {
	ID      string
	Title   string
	Promise string
}

// The stories.
var (
	ZombieStory = Story{
		ID:      "zombie",
		Title:   "a holder freezes and wakes up late",
		Promise: "A former holder cannot overwrite its successor's result.",
	}
	CheckThenWriteStory = Story{
		ID:      "check-then-write",
		Title:   "a holder freezes between its check and its write",
		Promise: "What was checked stays true until the write is committed.",
	}
	LostAnswerStory = Story{
		ID:      "lost-answer",
		Title:   "the answer to a commit is lost, so it is sent again",
		Promise: "One operation id has one effect; sent again it replays the stored result.",
	}
	IssuerRestoredStory = Story{
		ID:      "issuer-restored",
		Title:   "the lease store is restored from an older copy",
		Promise: "A token that the destination has seen is never accepted again from another grant.",
	}
	DestinationRestoredStory = Story{
		ID:      "destination-restored",
		Title:   "the destination is restored from an older copy",
		Promise: "From the next holder's first write on, every older grant is refused.",
	}
)

// ErrNotTimeBound says that a story does not apply: time does not end the
// grants of this strategy, so a pause makes no former holder.
var ErrNotTimeBound = errors.New("time does not bound the grants of this strategy")

// OK reports whether the story went as it must: kept promises with the guard
// on, visible damage with the guard off.
func (r *Report) OK() bool { return r.Failure() == nil }

// Failure says what is wrong with the run, or returns nil.
func (r *Report) Failure() error {
	switch {
	case r.Err != nil:
		var broken string
		for _, problem := range r.Problems {
			broken += problem + "; then it "
		}
		return fmt.Errorf("%s (%s): %scould not be played: %w", r.Story.ID, r.Guard, broken, r.Err)
	case r.Guard == GuardOff && !r.Damaged:
		return fmt.Errorf("%s (%s): %q is stored and no damage to be seen, so this rig cannot tell a guard that works from one that does not", r.Story.ID, r.Guard, r.Stored)
	case len(r.Problems) > 0:
		return fmt.Errorf("%s (%s): %s", r.Story.ID, r.Guard, strings.Join(r.Problems, "; "))
	}
	return nil
}

// Timeline writes the events for people, one a line.
func (r *Report) Timeline() string {
	var b strings.Builder
	for _, e := range r.Events {
		fmt.Fprintf(&b, "%6d ms  %-5s  %s\n", e.At.Milliseconds(), e.Actor, e.Text)
	}
	return b.String()
}

// Patiently plays a story, and again with leases that are longer by the factor if one
// was over too soon to play it, as happens on a busy machine: that proves nothing. An
// error of play's own is passed on at once.
func Patiently(play func(longer time.Duration) (*Report, error)) (r *Report, err error) {
	for _, longer := range []time.Duration{1, 4, 8} { // with more A would freeze for too long: see holdFirst
		if r, err = play(longer); err != nil || !r.tooSlow() {
			break
		}
	}
	return r, err
}

// tooSlow reports whether a lease that was over too soon can be why the story could not
// be played: it says so by ErrUnavailable if it has come too late, and by ErrLost. Not
// if a promise was broken until then, or the lease was lost before its time was over.
func (r *Report) tooSlow() bool {
	return (errors.Is(r.Err, exclusive.ErrUnavailable) || errors.Is(r.Err, exclusive.ErrLost)) &&
		!errors.Is(r.Err, errEarly) && r.Problems == nil
}

// limit bounds a whole story. It only ever passes when something hangs.
const limit = 30 * time.Second

// player records a story while it is played.
type player struct {
	report *Report
	start  time.Time

	mu     sync.Mutex // guards events and report.Problems: actors run at the same time
	events []*Event
}

// play runs script and completes its report.
func play(ctx context.Context, s Story, guard Guard, script func(context.Context, *player) error) *Report {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	p := &player{report: &Report{Story: s, Guard: guard}, start: time.Now()}
	p.report.Err = script(ctx, p)
	for _, e := range p.events {
		p.report.Events = append(p.report.Events, *e)
	}
	// A pause is recorded when it is over.
	slices.SortStableFunc(p.report.Events, func(a, b Event) int { return cmp.Compare(a.At, b.At) })
	return p.report
}

// problem notes a broken promise.
func (p *player) problem(format string, args ...any) {
	if p.report.Guard == GuardOff {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.report.Problems = append(p.report.Problems, fmt.Sprintf(format, args...))
}

// event records e as happening now.
func (p *player) event(e Event) *Event {
	e.At = time.Since(p.start)
	e.Until = max(e.Until, e.At)
	return p.record(e)
}

func (p *player) record(e Event) *Event {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.events = append(p.events, &e)
	return &e
}

// note records what somebody does or sees.
func (p *player) note(actor, format string, args ...any) {
	p.event(Event{Actor: actor, Kind: Note, Text: fmt.Sprintf(format, args...)})
}

// store is the actor of what happens at the destination.
const store = "store"

// read judges where it matters: by what is stored. The damage is that of A's late write.
func (p *player) read(ctx context.Context, r Rig, want string) error {
	stored, err := r.Read(ctx, r.Key)
	if err != nil {
		return fmt.Errorf("read what is stored: %w", err)
	}
	p.report.Stored, p.report.Want, p.report.Damaged = stored, want, stored == byA
	if stored != want {
		p.problem("%q is stored in the end; it should be %q", stored, want)
	}
	p.note(store, "has %q in the end", stored)
	return nil
}
