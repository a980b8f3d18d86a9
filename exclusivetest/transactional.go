package exclusivetest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/internal/story"
)

// TxBackend is a transactional strategy on a backend that was set up for one
// case, with a destination.
type TxBackend[Tx any] struct {
	// New and Key are as in [Backend].
	New func(cfg Config) (exclusive.Transactional[Tx], error)
	Key func(ctx context.Context) (string, error)

	// InTx runs fn in a transaction of the destination's database and commits
	// it, unless fn fails or panics. It knows nothing of the strategy.
	InTx func(ctx context.Context, fn func(ctx context.Context, tx Tx) error) error
	// Write stores value under key, and Read returns what is stored, "" if
	// nothing is.
	Write func(ctx context.Context, tx Tx, key, value string) error
	Read  func(ctx context.Context, tx Tx, key string) (string, error)

	// BackUpIssuer and BackUpDestination are for the stories of restored
	// copies; see [Rig]. nil skips these.
	BackUpIssuer, BackUpDestination func(ctx context.Context) (restore func(ctx context.Context) error, err error)
}

// RunTransactional runs the cases of [Run], those for Check and Commit, and the
// stories with both. Operation ids are tested where the strategy has Once, as
// package fencing has it, and tokens are healed by Advance where it has that.
func RunTransactional[Tx any](t *testing.T, setup func(t *testing.T) TxBackend[Tx]) {
	t.Helper()
	Run(t, func(t *testing.T) Backend {
		b := setup(t)
		return Backend{Key: b.Key, New: func(cfg Config) (exclusive.Exclusive, error) { return b.New(cfg) }}
	})
	for _, c := range txCases[Tx]() {
		t.Run(c.name, func(t *testing.T) {
			verdict(t, runTxCase(t.Context(), c, setup(t)))
		})
	}
	for _, s := range scenes {
		t.Run(s.name, func(t *testing.T) {
			r, err := story.Patiently(func(longer time.Duration) (*story.Report, error) {
				return playScene(t.Context(), s, setup(t), longer*TTL)
			})
			judgeOr(t, r, err)
		})
	}
	for _, guard := range bothWays {
		t.Run("LostAnswer/"+guard.name, func(t *testing.T) {
			r, err := playLostAnswer(t.Context(), guard.on, setup(t))
			judgeOr(t, r, err)
		})
	}
}

func judgeOr(t *testing.T, r *story.Report, err error) {
	t.Helper()
	if err != nil {
		verdict(t, err)
		return
	}
	judge(t, r)
}

// txCase proves one thing about Check and Commit.
type txCase[Tx any] struct {
	name string
	need exclusive.Promises
	run  func(ctx context.Context, d *destination[Tx]) error
}

func txCases[Tx any]() []txCase[Tx] {
	return []txCase[Tx]{
		{"InTx", exclusive.Promises{InTx: true}, commitStores[Tx]},
		{"CommitFailureLeavesNothing", exclusive.Promises{InTx: true}, commitFailureLeavesNothing[Tx]},
		{"NilApply", exclusive.Promises{InTx: true}, nilApply[Tx]},
		{"CommitLeftBehind", exclusive.Promises{InTx: true}, commitLeftBehind[Tx]},
		{"AfterDo", exclusive.Promises{InTx: true}, afterDo[Tx]},
		{"AfterRelease", exclusive.Promises{InTx: true}, afterRelease[Tx]},
		{"CheckTwice", exclusive.Promises{InTx: true}, checkTwice[Tx]},
		{"EqualTokenOfAnother", exclusive.Promises{InTx: true, RefusesStale: true}, equalTokenOfAnother[Tx]},
		{"RefusesStale", exclusive.Promises{InTx: true, RefusesStale: true}, refusesStale[Tx]},
	}
}

func runTxCase[Tx any](ctx context.Context, c txCase[Tx], b TxBackend[Tx]) error {
	ctx, cancel := context.WithTimeout(ctx, caseLimit)
	defer cancel()
	d, err := newDestination(ctx, b, Config{})
	if err != nil {
		return err
	}
	if err := notPromised(d.x, c.need); err != nil {
		return err
	}
	return c.run(ctx, d)
}

// destination is a strategy with the place where its holders store results.
type destination[Tx any] struct {
	TxBackend[Tx]
	x   exclusive.Transactional[Tx]
	key string
}

func newDestination[Tx any](ctx context.Context, b TxBackend[Tx], cfg Config) (*destination[Tx], error) {
	x, err := b.New(cfg)
	if err != nil {
		return nil, fmt.Errorf("open the strategy with %+v: %w", cfg, err)
	}
	d := &destination[Tx]{TxBackend: b, x: x, key: keyOr("")}
	if b.Key != nil {
		if d.key, err = b.Key(ctx); err != nil {
			return nil, fmt.Errorf("make a key: %w", err)
		}
	}
	return d, nil
}

// read returns what is stored under key.
func (d *destination[Tx]) read(ctx context.Context, key string) (stored string, err error) {
	err = d.InTx(ctx, func(ctx context.Context, tx Tx) error {
		stored, err = d.Read(ctx, tx, key)
		return err
	})
	return stored, err
}

// expect compares what is stored with what should be.
func (d *destination[Tx]) expect(ctx context.Context, value, after string) error {
	stored, err := d.read(ctx, d.key)
	if err != nil {
		return err
	}
	if stored != value {
		return fmt.Errorf("%q is stored after %s; it should be %q", stored, after, value)
	}
	return nil
}

// checked writes value in a transaction of the caller's own.
func (d *destination[Tx]) checked(ctx context.Context, x exclusive.Transactional[Tx], g exclusive.Grant, value string, between func()) error {
	return d.InTx(ctx, func(ctx context.Context, tx Tx) error {
		err := x.Check(ctx, tx, g)
		if errors.Is(err, exclusive.ErrUnsupported) {
			return checkUnsupported
		}
		if err != nil {
			return err
		}
		between()
		return d.Write(ctx, tx, g.Key, value)
	})
}

const checkUnsupported skipped = "not offered: the strategy cannot check in a transaction of the caller's own"

// committed writes value in the transaction that finishes the grant.
func (d *destination[Tx]) committed(ctx context.Context, x exclusive.Transactional[Tx], g exclusive.Grant, value string, between func()) error {
	return x.Commit(ctx, g, func(ctx context.Context, tx Tx) error {
		between()
		return d.Write(ctx, tx, g.Key, value)
	})
}

// unguarded writes value past the strategy.
func (d *destination[Tx]) unguarded(ctx context.Context, key, value string) error {
	return d.InTx(ctx, func(ctx context.Context, tx Tx) error { return d.Write(ctx, tx, key, value) })
}

func nothing() {}

// commitStores commits twice: the first stores and finishes, and work goes on; the
// second is a mistake of the caller's.
func commitStores[Tx any](ctx context.Context, d *destination[Tx]) error {
	err := d.x.Do(ctx, d.key, func(wctx context.Context, g exclusive.Grant) error {
		if err := d.committed(wctx, d.x, g, "first", nothing); err != nil {
			return fmt.Errorf("Commit: %w", err)
		}
		if wctx.Err() != nil {
			return fmt.Errorf("Commit ends work's context, with %w", context.Cause(wctx))
		}
		if err := d.expect(wctx, "first", "Commit has returned nil"); err != nil {
			return err
		}
		return errors.Join(
			want("a second Commit", d.committed(ctx, d.x, g, "second", nothing), exclusive.ErrInvalid),
			orUnsupported(want("a Check after Commit", d.checked(ctx, d.x, g, "third", nothing), exclusive.ErrInvalid)))
	})
	if err != nil {
		return err
	}
	return d.expect(ctx, "first", "a second Commit of the same grant")
}

// orUnsupported takes it for right that a Check is not offered.
func orUnsupported(err error) error {
	if errors.Is(err, checkUnsupported) {
		return nil
	}
	return err
}

// another is d with another key.
func (d *destination[Tx]) another(ctx context.Context) (*destination[Tx], error) {
	other := *d
	other.key = keyOr("")
	if d.Key != nil {
		var err error
		if other.key, err = d.Key(ctx); err != nil {
			return nil, fmt.Errorf("make a key: %w", err)
		}
	}
	return &other, nil
}

// over wants Commit and Check to refuse a grant as lost, and to write nothing.
// Nobody has had the key since.
func (d *destination[Tx]) over(ctx context.Context, g exclusive.Grant, after string) error {
	before, err := d.read(ctx, d.key)
	if err != nil {
		return err
	}
	return errors.Join(
		want("Commit after "+after, d.committed(ctx, d.x, g, "late", nothing), exclusive.ErrLost),
		orUnsupported(want("Check after "+after, d.checked(ctx, d.x, g, "late", nothing), exclusive.ErrLost)),
		d.expect(ctx, before, "Commit and Check after "+after))
}

// afterDo uses grants whose Do has returned, as a goroutine does that work has
// left behind.
func afterDo[Tx any](ctx context.Context, first *destination[Tx]) error {
	for _, c := range []struct {
		after string
		work  func(ctx context.Context, d *destination[Tx], g exclusive.Grant) error
		want  error
	}{
		{"a Do whose work has committed", func(ctx context.Context, d *destination[Tx], g exclusive.Grant) error {
			return d.committed(ctx, d.x, g, "in time", nothing)
		}, nil},
		{"a Do whose work returned nil", func(context.Context, *destination[Tx], exclusive.Grant) error { return nil }, nil},
		{"a Do whose work failed", func(context.Context, *destination[Tx], exclusive.Grant) error { return errWork }, errWork},
	} {
		d, err := first.another(ctx)
		if err != nil {
			return err
		}
		var g exclusive.Grant
		err = d.x.Do(ctx, d.key, func(ctx context.Context, granted exclusive.Grant) error {
			g = granted
			return c.work(ctx, d, g)
		})
		if !errors.Is(err, c.want) {
			return fmt.Errorf("%s: Do returns %w", c.after, errOrNil(err))
		}
		if err := d.over(ctx, g, c.after); err != nil {
			return err
		}
	}
	return nil
}

// afterRelease uses the grants of leases that were given back.
func afterRelease[Tx any](ctx context.Context, first *destination[Tx]) error {
	x, ok := first.x.(exclusive.Leaser)
	if !ok {
		return noLeaser
	}
	for _, commits := range []bool{false, true} {
		d, err := first.another(ctx)
		if err != nil {
			return err
		}
		lease, err := x.TryAcquire(ctx, d.key)
		if err != nil {
			return fmt.Errorf("TryAcquire: %w", err)
		}
		after := "Release"
		if commits {
			after = "Commit and Release"
			if err := d.committed(ctx, d.x, lease.Grant(), "in time", nothing); err != nil {
				return fmt.Errorf("Commit: %w", err)
			}
			if err := want("a second Commit", d.committed(ctx, d.x, lease.Grant(), "again", nothing), exclusive.ErrInvalid); err != nil {
				return err
			}
		}
		if err := lease.Release(ctx); err != nil {
			return fmt.Errorf("%s: %w", after, err)
		}
		if err := d.over(ctx, lease.Grant(), after); err != nil {
			return err
		}
	}
	return nil
}

// commitFailureLeavesNothing has apply fail, and panic, after it has written.
func commitFailureLeavesNothing[Tx any](ctx context.Context, d *destination[Tx]) error {
	fail := func(how func() error) error {
		return d.x.Do(ctx, d.key, func(ctx context.Context, g exclusive.Grant) error {
			return d.x.Commit(ctx, g, func(ctx context.Context, tx Tx) error {
				if err := d.Write(ctx, tx, g.Key, "half"); err != nil {
					return err
				}
				return how()
			})
		})
	}
	if err := want("Do whose apply fails", fail(func() error { return errWork }), errWork); err != nil {
		return err
	}
	if err := d.expect(ctx, "", "apply has failed"); err != nil {
		return err
	}
	if got := panicIn(func() { _ = fail(func() error { panic(errWork) }) }); got != errWork {
		return fmt.Errorf("Do whose apply panics passes %v on; it should be the panic's value", got)
	}
	if err := d.expect(ctx, "", "apply has panicked"); err != nil {
		return err
	}
	// The key is free, and what failed can be done again.
	err := d.x.Do(ctx, d.key, func(ctx context.Context, g exclusive.Grant) error {
		return d.committed(ctx, d.x, g, "whole", nothing)
	})
	if err != nil {
		return fmt.Errorf("once more after apply has failed: %w", err)
	}
	return d.expect(ctx, "whole", "doing it again")
}

// commitLeftBehind has work return nil while its Commit is under way, in a
// goroutine that nobody waits for: Do answers by what becomes of it.
func commitLeftBehind[Tx any](ctx context.Context, first *destination[Tx]) error {
	for _, applyErr := range []error{nil, errWork} {
		d, err := first.another(ctx)
		if err != nil {
			return err
		}
		returned := make(chan struct{})
		left := make(chan error, 1)
		err = d.x.Do(ctx, d.key, func(_ context.Context, g exclusive.Grant) error {
			applies := make(chan struct{})
			go func() {
				left <- d.x.Commit(ctx, g, func(ctx context.Context, tx Tx) error {
					close(applies)
					select {
					case <-returned: // too early, as the Commit is still under way
					case <-time.After(TTL):
					}
					return errors.Join(d.Write(ctx, tx, g.Key, "late"), applyErr)
				})
			}()
			select {
			case <-applies:
				return nil
			case err := <-left:
				return fmt.Errorf("apply does not run: %w", errOrNil(err))
			}
		})
		close(returned)
		commitErr := <-left
		if applyErr == nil {
			if err != nil || commitErr != nil {
				return fmt.Errorf("a Commit that was left behind gives %v, and its Do %v; both should be nil", commitErr, err)
			}
			if err := d.expect(ctx, "late", "a Commit that was left behind"); err != nil {
				return err
			}
			continue
		}
		if err := errors.Join(
			want("a Commit that was left behind, and fails,", commitErr, applyErr),
			want("its Do, whose work has returned nil,", err, applyErr),
			d.expect(ctx, "", "a Commit that was left behind has failed")); err != nil {
			return err
		}
		// What failed can be done again.
		err = d.x.Do(ctx, d.key, func(ctx context.Context, g exclusive.Grant) error {
			return d.committed(ctx, d.x, g, "whole", nothing)
		})
		if err != nil {
			return fmt.Errorf("once more after a Commit that was left behind has failed: %w", err)
		}
	}
	return nil
}

// nilApply commits without saying what, which is a mistake of the caller's and
// leaves the grant as it was.
func nilApply[Tx any](ctx context.Context, d *destination[Tx]) error {
	err := d.x.Do(ctx, d.key, func(ctx context.Context, g exclusive.Grant) error {
		var err error
		if got := panicIn(func() { err = d.x.Commit(ctx, g, nil) }); got != nil {
			return fmt.Errorf("Commit panics when apply is nil: %v", got)
		}
		if err := want("Commit when apply is nil", err, exclusive.ErrInvalid); err != nil {
			return err
		}
		return d.committed(ctx, d.x, g, "right", nothing)
	})
	if err != nil {
		return err
	}
	return d.expect(ctx, "right", "a Commit that was called rightly")
}

// checkTwice writes twice under one grant, and then commits.
func checkTwice[Tx any](ctx context.Context, d *destination[Tx]) error {
	err := d.x.Do(ctx, d.key, func(ctx context.Context, g exclusive.Grant) error {
		for _, value := range []string{"one", "two"} {
			if err := d.checked(ctx, d.x, g, value, nothing); err != nil {
				return fmt.Errorf("a guarded write of the holder: %w", err)
			}
		}
		if err := d.expect(ctx, "two", "two guarded writes"); err != nil {
			return err
		}
		return d.committed(ctx, d.x, g, "three", nothing)
	})
	if err != nil {
		return err
	}
	return d.expect(ctx, "three", "Commit")
}

// equalTokenOfAnother writes with the holder's token, but with another grant's
// id: what an issuer hands out that was restored or has failed over.
func equalTokenOfAnother[Tx any](ctx context.Context, d *destination[Tx]) error {
	err := d.x.Do(ctx, d.key, func(ctx context.Context, g exclusive.Grant) error {
		if g.Token == 0 {
			return skipped("not offered: the strategy has no tokens")
		}
		if err := d.checked(ctx, d.x, g, "right", nothing); err != nil {
			return fmt.Errorf("a guarded write of the holder: %w", err)
		}
		other := g
		other.ID = rand.Text()
		return want("a write with the token of another grant", d.checked(ctx, d.x, other, "wrong", nothing), exclusive.ErrFenced)
	})
	if err != nil {
		return err
	}
	return d.expect(ctx, "right", "a write with the token of another grant")
}

// refusesStale writes with a grant that was given back, when the next holder
// works but has not written yet.
func refusesStale[Tx any](ctx context.Context, d *destination[Tx]) error {
	var former exclusive.Grant
	err := d.x.Do(ctx, d.key, func(_ context.Context, g exclusive.Grant) error {
		former = g
		return errWork
	})
	if err := want("Do whose work fails", err, errWork); err != nil {
		return err
	}
	err = d.x.Do(ctx, d.key, func(ctx context.Context, _ exclusive.Grant) error {
		return errors.Join(
			refused("Commit of the former holder", d.committed(ctx, d.x, former, "wrong", nothing)),
			refused("a checked write of the former holder", d.checked(ctx, d.x, former, "wrong", nothing)))
	})
	if err != nil {
		return err
	}
	return d.expect(ctx, "", "the writes of a former holder")
}

// refused wants the error of a write whose grant is over.
func refused(what string, err error) error {
	if errors.Is(err, exclusive.ErrLost) || errors.Is(err, checkUnsupported) {
		return nil
	}
	return want(what, err, exclusive.ErrFenced)
}

// scene is a story as it is played on a TxBackend.
type scene struct {
	name   string
	play   play
	guard  story.Guard
	do     bool // the key is held by Do, not by Acquire
	commit bool // written with Commit, not with Check
	backUp int  // what the story restores
	final  bool // A commits before B gets the key
}

const (
	restoresNothing = iota
	restoresIssuer
	restoresDestination
)

const on, off = story.GuardOn, story.GuardOff

var scenes = []scene{
	{"Zombie/acquire/commit", story.Zombie, on, false, true, restoresNothing, false},
	{"Zombie/acquire/check", story.Zombie, on, false, false, restoresNothing, false},
	{"Zombie/acquire/unguarded", story.Zombie, off, false, false, restoresNothing, false},
	{"Zombie/do/commit", story.Zombie, on, true, true, restoresNothing, false},
	{"Zombie/do/check", story.Zombie, on, true, false, restoresNothing, false},
	{"Zombie/do/unguarded", story.Zombie, off, true, false, restoresNothing, false},
	{"CheckThenWrite/commit", story.CheckThenWrite, on, true, true, restoresNothing, true},
	{"CheckThenWrite/check", story.CheckThenWrite, on, true, false, restoresNothing, false},
	{"CheckThenWrite/unguarded", story.CheckThenWrite, off, true, false, restoresNothing, false},
	{"IssuerRestored/check", story.IssuerRestored, on, true, false, restoresIssuer, false},
	{"IssuerRestored/unguarded", story.IssuerRestored, off, true, false, restoresIssuer, false},
	{"DestinationRestored/check", story.DestinationRestored, on, true, false, restoresDestination, false},
	{"DestinationRestored/unguarded", story.DestinationRestored, off, true, false, restoresDestination, false},
}

func playScene[Tx any](ctx context.Context, s scene, b TxBackend[Tx], ttl time.Duration) (*story.Report, error) {
	// A freezes and renews nothing. B is in good health, and its lease is long:
	// on SQLite it cannot be renewed while A's transaction is open.
	a, err := newDestination(ctx, b, Config{TTL: ttl, NoRenew: true, Holder: "A"})
	if err != nil {
		return nil, err
	}
	if s.final && a.x.Promises().OncePerKey {
		return nil, skipped("does not apply: what A commits is done, and B is not to do it again")
	}
	if s.guard == on {
		if err := notPromised(a.x, exclusive.Promises{RefusesStale: true, InTx: true}); err != nil {
			return nil, err
		}
	}
	other, err := b.New(Config{TTL: untilEnd, Holder: "B"})
	if err != nil {
		return nil, fmt.Errorf("open the strategy: %w", err)
	}
	r := story.Rig{Key: a.key, A: holder(a, a.x, s), B: holder(a, other, s), Unguarded: a.unguarded, Read: a.read}
	if !s.do && !leasesBoth(r) {
		return nil, noLeaser
	}
	switch s.backUp {
	case restoresIssuer:
		r.BackUp = b.BackUpIssuer
		if h, ok := other.(interface {
			Advance(ctx context.Context, key string, atLeast int64) error
		}); ok {
			r.Heal = h.Advance
		}
	case restoresDestination:
		r.BackUp = b.BackUpDestination
	}
	if r.BackUp == nil && s.backUp != restoresNothing {
		return nil, skipped("not offered: no way to restore an older copy")
	}
	return s.play(ctx, r, s.guard), nil
}

func holder[Tx any](d *destination[Tx], x exclusive.Transactional[Tx], s scene) story.Holder {
	h := story.Holder{Exclusive: x}
	if s.do {
		h.Exclusive = doOnly{x}
	}
	write := d.checked
	if s.commit {
		write = d.committed
	}
	h.Write = func(ctx context.Context, g exclusive.Grant, value string, between func()) error {
		return write(ctx, x, g, value, between)
	}
	return h
}

// once is what strategies have that replay results.
type once[Tx any] interface {
	Once(ctx context.Context, tx Tx, opID string, payload []byte, apply func(ctx context.Context) ([]byte, error)) ([]byte, error)
}

func playLostAnswer[Tx any](ctx context.Context, guard story.Guard, b TxBackend[Tx]) (*story.Report, error) {
	d, err := newDestination(ctx, b, Config{})
	if err != nil {
		return nil, err
	}
	x, ok := d.x.(once[Tx])
	if !ok {
		return nil, skipped("not offered: the strategy has no operation ids")
	}
	return story.LostAnswer(ctx, story.OnceRig{
		Key: d.key,
		Once: func(ctx context.Context, key, opID string, payload []byte, after func() error) (result []byte, err error) {
			err = d.InTx(ctx, func(ctx context.Context, tx Tx) error {
				result, err = x.Once(ctx, tx, opID, payload, func(ctx context.Context) ([]byte, error) {
					n, err := d.add(ctx, tx, key)
					if err != nil {
						return nil, err
					}
					return []byte(n), after()
				})
				return err
			})
			return result, err
		},
		Plain: func(ctx context.Context, key string) error {
			return d.InTx(ctx, func(ctx context.Context, tx Tx) error {
				_, err := d.add(ctx, tx, key)
				return err
			})
		},
		Effects: func(ctx context.Context, key string) (int, error) {
			stored, err := d.read(ctx, key)
			if err != nil || stored == "" {
				return 0, err
			}
			return strconv.Atoi(stored)
		},
	}, guard), nil
}

// add counts one effect more under key.
func (d *destination[Tx]) add(ctx context.Context, tx Tx, key string) (string, error) {
	stored, err := d.Read(ctx, tx, key)
	if err != nil {
		return "", err
	}
	n := 0
	if stored != "" {
		if n, err = strconv.Atoi(stored); err != nil {
			return "", err
		}
	}
	stored = strconv.Itoa(n + 1)
	return stored, d.Write(ctx, tx, key, stored)
}
