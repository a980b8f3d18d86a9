// Package exclusivetest proves promises: those of a strategy or backend that
// you wrote, and those of the place where you store results.
//
// # Your own destination
//
// [Zombie] plays the story that expiring locks are known for: A gets a lease
// and freezes, B takes over, writes and finishes, A wakes up and writes. A
// [Rig] is two holders and three functions of yours: a guarded write, the same
// write without the guard, and a read. The story is judged by what is stored.
// It is played a second time with the guard off, and then the damage must show:
// a test that cannot fail proves nothing.
//
// [CheckThenWrite], [LostAnswer], [IssuerRestored] and [DestinationRestored]
// are further stories for the same rig.
//
// # Your own backend
//
// [Run] runs the cases for the promises that a strategy makes, and
// [RunTransactional] those and the stories. What is not promised is skipped,
// and said. [Bench] measures it.
//
// # Unit tests
//
// [Memory] is a strategy in memory, on a [MemoryDB] with real transactions. It
// works in the bubbles of testing/synctest.
package exclusivetest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/internal/story"
)

// TTL is how long the leases of A in a [Rig] should last: long enough for a few
// statements on a busy machine, short enough to wait for.
const TTL = 200 * time.Millisecond

// Holder is one of the two processes of a story.
type Holder struct {
	// Exclusive grants the key. Both holders' are on the same backend.
	Exclusive exclusive.Exclusive

	// Write stores value as the holder of g, with the guard on: Commit, or
	// Check and a write in one transaction, or whatever your destination does
	// with g.Token. It calls between once, after the check and right before
	// the statement that writes (at the start, if they are one statement).
	//
	// A refusal is an error that matches exclusive.ErrFenced (or ErrLost,
	// ErrConflict, and once g may have been finished ErrInvalid); any other
	// error counts as a failure.
	Write func(ctx context.Context, g exclusive.Grant, value string, between func()) error
}

// Rig is what a story is played with: two holders and a destination. All
// functions are called concurrently.
type Rig struct {
	// Key is what the holders compete for; empty means a random one.
	Key string

	// A is the one that freezes: its leases last for [TTL] and are not renewed.
	// B is in good health: its leases are renewed, or long.
	A, B Holder

	// Unguarded stores value under key with the guard off.
	Unguarded func(ctx context.Context, key, value string) error
	// Read returns what is stored under key.
	Read func(ctx context.Context, key string) (string, error)

	// BackUp copies a store's state, and the function that it returns brings
	// that copy back: the issuer's for IssuerRestored, the destination's with
	// its marks for DestinationRestored. The other stories do not use it.
	BackUp func(ctx context.Context) (restore func(ctx context.Context) error, err error)
	// Heal lifts the issuer's tokens for key to at least the given one. Only
	// IssuerRestored uses it, after a refusal; nil means that there is no such
	// thing.
	Heal func(ctx context.Context, key string, atLeast int64) error
}

// OnceRig is what [LostAnswer] is played with. All functions are called
// concurrently.
type OnceRig struct {
	// Key is where the effects go; operation ids begin with it. Empty means a
	// random one.
	Key string

	// Once adds one effect to key in a transaction that also records opID, and
	// returns a result to replay. It calls after when the effect is made,
	// before the commit; an error from after must undo the effect.
	Once func(ctx context.Context, key, opID string, payload []byte, after func() error) (result []byte, err error)
	// Plain adds one effect to key without an operation id.
	Plain func(ctx context.Context, key string) error
	// Effects counts the effects that are stored under key.
	Effects func(ctx context.Context, key string) (int, error)
}

// Zombie plays the story of the holder that freezes and writes late: its write
// must be refused and its successor's value stand. With the guard off the late
// value must be the one that stands, or the rig could not tell.
//
// Where the strategy is a Leaser it is played with leases from Acquire and with
// Do. rig is called afresh for each; use t.Cleanup in it. A story takes about
// three times the lease.
func Zombie(t *testing.T, rig func(t *testing.T) Rig) {
	t.Helper()
	playBoth(t, rig, story.Zombie)
}

// CheckThenWrite plays the story of the holder that freezes after its check and
// before its write. Its successor must wait until that write is committed, or
// the write must be refused: in the end the successor's value must stand. The
// twin checks that its lease still runs, freezes, and writes unguarded.
func CheckThenWrite(t *testing.T, rig func(t *testing.T) Rig) {
	t.Helper()
	playBoth(t, rig, story.CheckThenWrite)
}

// IssuerRestored plays the story of the lease store that is restored from an
// older copy, so that it may hand tokens out for a second time. A token that
// the destination has seen from one grant must not be accepted from another,
// and the next holder must get through in the end: because tokens do not go
// back, because Heal lifts them, or because they rise with every grant.
//
// Holder.Write must leave the grant as it is: Check, not Commit.
func IssuerRestored(t *testing.T, rig func(t *testing.T) Rig) {
	t.Helper()
	playBoth(t, needsBackUp(rig), story.IssuerRestored)
}

// DestinationRestored plays the story of the destination that is restored from
// an older copy, its marks included. What the copy lacks is gone, and until the
// next holder has written (or a Guard was told of it) the copy cannot know
// which grants are old. From then on all of them must be refused.
//
// Holder.Write must leave the grant as it is: Check, not Commit.
func DestinationRestored(t *testing.T, rig func(t *testing.T) Rig) {
	t.Helper()
	playBoth(t, needsBackUp(rig), story.DestinationRestored)
}

// LostAnswer plays the story of the commit whose answer is lost, so that the
// caller sends it again: there must be one effect, and the first result again.
// The same id with another payload must be ErrMismatch, a failure must leave
// nothing behind, and two callers at the same moment must make one effect.
func LostAnswer(t *testing.T, rig func(t *testing.T) OnceRig) {
	t.Helper()
	for _, guard := range bothWays {
		t.Run(guard.name, func(t *testing.T) {
			r := rig(t)
			if r.Once == nil || r.Plain == nil || r.Effects == nil {
				t.Fatal("set Once, Plain and Effects of the OnceRig")
			}
			judge(t, story.LostAnswer(t.Context(), story.OnceRig{
				Key: keyOr(r.Key), Once: r.Once, Plain: r.Plain, Effects: r.Effects,
			}, guard.on))
		})
	}
}

// bothWays are a story and its twin.
var bothWays = []struct {
	name string
	on   story.Guard
}{{"guarded", story.GuardOn}, {"unguarded", story.GuardOff}}

type play func(ctx context.Context, r story.Rig, guard story.Guard) *story.Report

// playBoth plays a story and its twin, with Acquire where there is one and with
// Do.
func playBoth(t *testing.T, rig func(t *testing.T) Rig, play play) {
	t.Helper()
	for _, how := range []string{"acquire", "do"} {
		for _, guard := range bothWays {
			t.Run(how+"/"+guard.name, func(t *testing.T) {
				r := rig(t)
				if err := r.check(); err != nil {
					t.Fatal(err)
				}
				if how == "do" {
					r.A.Exclusive, r.B.Exclusive = doOnly{r.A.Exclusive}, doOnly{r.B.Exclusive}
				}
				played := r.story()
				if how == "acquire" && !leasesBoth(played) {
					t.Skip(noLeaser)
				}
				judge(t, play(t.Context(), played, guard.on))
			})
		}
	}
}

// doOnly hides the other methods of a strategy.
type doOnly struct{ exclusive.Exclusive }

func (r Rig) check() error {
	if r.A.Exclusive == nil || r.B.Exclusive == nil || r.A.Write == nil || r.B.Write == nil || r.Unguarded == nil || r.Read == nil {
		return errors.New("set Exclusive and Write of both holders, Unguarded and Read of the Rig")
	}
	return nil
}

func leasesBoth(r story.Rig) bool {
	_, a := r.A.Exclusive.(exclusive.Leaser)
	_, b := r.B.Exclusive.(exclusive.Leaser)
	return a && b
}

func (r Rig) story() story.Rig {
	return story.Rig{
		Key: keyOr(r.Key), A: story.Holder(r.A), B: story.Holder(r.B),
		Unguarded: r.Unguarded, Read: r.Read, BackUp: r.BackUp, Heal: r.Heal,
	}
}

func needsBackUp(rig func(t *testing.T) Rig) func(t *testing.T) Rig {
	return func(t *testing.T) Rig {
		t.Helper()
		r := rig(t)
		if r.BackUp == nil {
			t.Fatal("set BackUp of the Rig: this story restores it")
		}
		return r
	}
}

// judge logs how a story went, for -v and for failures, and gives the verdict.
func judge(t *testing.T, r *story.Report) {
	t.Helper()
	if errors.Is(r.Err, story.ErrNotTimeBound) {
		t.Skipf("does not apply: %v", r.Err)
	}
	t.Logf("%s, %s\n%s", r.Story.Title, r.Guard, r.Timeline())
	if err := r.Failure(); err != nil {
		t.Error(err)
	}
}

// keyOr returns key, or one that nobody else has.
func keyOr(key string) string {
	if key != "" {
		return key
	}
	return fmt.Sprintf("exclusivetest/%s", rand.Text())
}
