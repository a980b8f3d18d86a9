package story_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/exclusivetest"
	"github.com/exclusive-go/exclusive/internal/story"
)

type play = func(context.Context, story.Rig, story.Guard) *story.Report

var errBroken = errors.New("the rig is broken")

// rig is one on the reference. aConfig is that of the holder that freezes.
func rig(t *testing.T, aConfig exclusivetest.Config) story.Rig {
	t.Helper()
	db := exclusivetest.NewMemoryDB()
	holder := func(cfg exclusivetest.Config) story.Holder {
		m, err := exclusivetest.NewMemory(db, cfg)
		if err != nil {
			t.Fatal(err)
		}
		return story.Holder{Exclusive: m, Write: func(ctx context.Context, g exclusive.Grant, value string, between func()) error {
			return db.InTx(ctx, func(ctx context.Context, tx *exclusivetest.MemoryTx) error {
				if err := m.Check(ctx, tx, g); err != nil {
					return err
				}
				between()
				return tx.Put(ctx, g.Key, value)
			})
		}}
	}
	return story.Rig{
		Key: "k",
		A:   holder(aConfig), B: holder(exclusivetest.Config{}),
		Unguarded: func(ctx context.Context, key, value string) error {
			return db.InTx(ctx, func(ctx context.Context, tx *exclusivetest.MemoryTx) error { return tx.Put(ctx, key, value) })
		},
		Read:   func(_ context.Context, key string) (string, error) { return db.Get(key), nil },
		BackUp: db.BackUpData,
	}
}

var frozen = exclusivetest.Config{TTL: 200 * time.Millisecond, NoRenew: true}

func TestTimeline(t *testing.T) {
	for guard, want := range map[story.Guard]string{
		story.GuardOn: `
     0 ms  A      gets the lease (token 1) for 200 ms
     0 ms  A      freezes for 500 ms
   200 ms  B      gets the lease (token 2), after waiting 200 ms
   200 ms  B      writes "report by B" (token 2): stored
   500 ms  A      comes late and writes "report by A" (token 1): REFUSED (ErrFenced)
   500 ms  store  has "report by B" in the end
`,
		story.GuardOff: `
     0 ms  A      gets the lease (token 1) for 200 ms
     0 ms  A      freezes for 500 ms
   200 ms  B      gets the lease (token 2), after waiting 200 ms
   200 ms  B      writes "report by B" (token 2): stored
   500 ms  A      comes late and writes "report by A" (token 1): STORED, the newer result is gone
   500 ms  store  has "report by A" in the end
`,
	} {
		t.Run(guard.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				report := story.Zombie(t.Context(), rig(t, frozen), guard)
				if err := report.Failure(); err != nil {
					t.Error(err)
				}
				if got := "\n" + report.Timeline(); got != want {
					t.Errorf("timeline:%s\nwant:%s", got, want)
				}
				for _, e := range report.Events {
					if e.Actor == "B" && e.Kind == story.Lease && e.Until != e.At {
						t.Errorf("B's lease is drawn until %v although B gave it back at %v", e.Until, e.At)
					}
				}
			})
		})
	}
}

// A rig that does not work must not pass for a promise that was held, nor for
// one that was broken.
func TestBrokenRigs(t *testing.T) {
	stories := map[string]play{
		"zombie": story.Zombie, "check": story.CheckThenWrite,
		"issuer": story.IssuerRestored, "destination": story.DestinationRestored,
	}
	for _, c := range []struct {
		name    string
		stories []string // all, if there are none
		spoil   func(r *story.Rig)
		want    string
	}{
		{"A renews", []string{"zombie", "destination"}, func(r *story.Rig) {
			r.A = rig(t, exclusivetest.Config{TTL: time.Second}).A
			r.B.Exclusive = r.A.Exclusive
		}, "is A's lease renewed?"},
		{"A's lease is long", []string{"zombie", "check", "destination"}, func(r *story.Rig) { r.A = r.B }, "use a short one"},
		{"nothing can be read", nil, func(r *story.Rig) {
			r.Read = func(context.Context, string) (string, error) { return "", errBroken }
		}, "read what is stored"},
		{"B's write fails", nil, func(r *story.Rig) {
			r.B.Write = func(context.Context, exclusive.Grant, string, func()) error { return errBroken }
		}, "holder B has the key, and its write fails"},
		{"between is not called", nil, func(r *story.Rig) {
			r.B.Write = func(ctx context.Context, g exclusive.Grant, value string, _ func()) error {
				return r.Unguarded(ctx, g.Key, value)
			}
		}, "called between 0 times"},
		{"A's first write fails", []string{"issuer", "destination"}, func(r *story.Rig) {
			r.A.Write = func(context.Context, exclusive.Grant, string, func()) error { return errBroken }
		}, "holder A has the key, and its write fails"},
		{"no backup", []string{"issuer", "destination"}, func(r *story.Rig) {
			r.BackUp = func(context.Context) (func(context.Context) error, error) { return nil, errBroken }
		}, "up: the rig is broken"},
		{"no restore", []string{"issuer", "destination"}, func(r *story.Rig) {
			r.BackUp = func(context.Context) (func(context.Context) error, error) {
				return func(context.Context) error { return errBroken }, nil
			}
		}, "restore the"},
		{"no key", nil, func(r *story.Rig) { r.Key = "" }, "does not get the key"},
	} {
		for name, play := range stories {
			if c.stories != nil && !slices.Contains(c.stories, name) {
				continue
			}
			t.Run(c.name+"/"+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r := rig(t, frozen)
					c.spoil(&r)
					report := play(t.Context(), r, story.GuardOn)
					if report.Err == nil || !strings.Contains(report.Failure().Error(), c.want) {
						t.Errorf("%v\n%s", report.Failure(), report.Timeline())
					}
				})
			})
		}
	}
}

// A write that fails is not a write that was refused: the one may be tried
// again, the other must not.
func TestFailureIsNoRefusal(t *testing.T) {
	for name, play := range map[string]play{"zombie": story.Zombie, "check": story.CheckThenWrite} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := rig(t, frozen)
				r.A.Write = func(context.Context, exclusive.Grant, string, func()) error { return errBroken }
				err := play(t.Context(), r, story.GuardOn).Failure()
				if err == nil || !strings.Contains(err.Error(), "failed instead of being refused") {
					t.Error(err)
				}
			})
		})
	}
}

// A guard may let the successor get the key and have its write wait for the
// transaction of the one before, as a mark does.
func TestSuccessorWaitsAtItsWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := rig(t, frozen)
		guards := exclusivetest.NewMemoryDB() // marks, beside the leases
		for _, h := range []*story.Holder{&r.A, &r.B} {
			h.Write = func(ctx context.Context, g exclusive.Grant, value string, between func()) error {
				return guards.InTx(ctx, func(ctx context.Context, tx *exclusivetest.MemoryTx) error {
					if err := tx.Put(ctx, g.Key, "mark"); err != nil {
						return err
					}
					between()
					return r.Unguarded(ctx, g.Key, value)
				})
			}
		}
		report := story.CheckThenWrite(t.Context(), r, story.GuardOn)
		if err := report.Failure(); err != nil {
			t.Errorf("%v\n%s", err, report.Timeline())
		}
	})
}

func TestNotTimeBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := rig(t, frozen)
		r.A.Exclusive = endless{}
		if err := story.Zombie(t.Context(), r, story.GuardOn).Err; !errors.Is(err, story.ErrNotTimeBound) {
			t.Error(err)
		}
	})
}

// endless hands out grants that do not expire.
type endless struct{}

func (endless) Promises() exclusive.Promises { return exclusive.Promises{} }

func (endless) Do(ctx context.Context, key string, work exclusive.Work) error {
	return work(ctx, exclusive.Grant{Key: key, ID: "id"})
}

// A call that is refused as wrong, although nothing has finished the grant, is a
// mistake of the rig's, and proves nothing about the guard.
func TestWrongCallIsNoRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := rig(t, exclusivetest.Config{TTL: 200 * time.Millisecond, NoRenew: true})
		r.A.Write = func(context.Context, exclusive.Grant, string, func()) error {
			return &exclusive.Error{Op: "check", Kind: exclusive.ErrInvalid}
		}
		err := story.Zombie(t.Context(), r, story.GuardOn).Failure()
		if err == nil || !strings.Contains(err.Error(), "failed instead of being refused") {
			t.Errorf("the verdict is %v", err)
		}
	})
}

// unavailable is a strategy that always answers with an error.
type unavailable struct {
	exclusive.Exclusive
	err error
}

func (u unavailable) Do(context.Context, string, exclusive.Work) error { return u.err }

// What could not be played on a slow machine is played again, with longer leases.
// What is broken is told at once, and what can never be played in the end.
func TestPatiently(t *testing.T) {
	slow := &exclusive.Error{Op: "acquire", Kind: exclusive.ErrUnavailable}
	refuses := func(err error) func(*story.Rig) {
		return func(r *story.Rig) {
			r.B.Write = func(context.Context, exclusive.Grant, string, func()) error { return err }
		}
	}
	for _, c := range []struct {
		name  string
		spoil func(r *story.Rig, play int)
		plays int
		want  string // in the failure; none if empty
	}{
		{"sound", func(*story.Rig, int) {}, 1, ""},
		{"slow once", func(r *story.Rig, play int) {
			if play < 2 {
				r.A.Exclusive = unavailable{r.A.Exclusive, slow}
			}
		}, 2, ""},
		{"slow twice", func(r *story.Rig, play int) {
			if play < 3 {
				r.A.Exclusive = unavailable{r.A.Exclusive, slow}
			}
		}, 3, ""},
		{"slow with a lease", func(r *story.Rig, play int) {
			if play < 2 {
				r.B.Write = func(_ context.Context, g exclusive.Grant, _ string, _ func()) error {
					time.Sleep(time.Until(g.Expires))
					return exclusive.ErrLost
				}
			}
		}, 2, ""},
		{"always slow", func(r *story.Rig, _ int) { r.A.Exclusive = unavailable{r.A.Exclusive, slow} }, 3, "could not be played"},
		{"the rightful holder is refused", func(r *story.Rig, play int) {
			if play < 2 {
				refuses(exclusive.ErrFenced)(r)
			}
		}, 1, "its write fails"},
		{"the rightful holder meets what no slow machine explains", func(r *story.Rig, play int) {
			if play < 2 {
				refuses(exclusive.ErrConflict)(r)
			}
		}, 1, "its write fails"},
		{"work does not run", func(r *story.Rig, play int) {
			if play < 2 {
				r.A.Exclusive = unavailable{r.A.Exclusive, nil}
			}
		}, 1, "could not be played"},
		{"the rightful holder has lost its lease early", func(r *story.Rig, play int) {
			if play < 2 {
				refuses(exclusive.ErrLost)(r)
			}
		}, 1, "should still last"},
		{"a promise is broken, and then the machine is slow", func(r *story.Rig, play int) {
			if play < 2 {
				r.B.Exclusive = sameToken{r.B.Exclusive}
				refuses(slow)(r)
			}
		}, 1, "token"},
		{"a late write is accepted", func(r *story.Rig, play int) {
			if play < 2 {
				r.A.Write = func(ctx context.Context, g exclusive.Grant, value string, between func()) error {
					between()
					return r.Unguarded(ctx, g.Key, value)
				}
			}
		}, 1, "A's late write was accepted"},
		{"it hangs", func(r *story.Rig, play int) {
			if play < 2 {
				r.B.Exclusive = unavailable{r.B.Exclusive, exclusive.ErrHeld}
			}
		}, 1, "is A's lease renewed?"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				plays := 0
				var lease time.Duration
				report, err := story.Patiently(func(longer time.Duration) (*story.Report, error) {
					plays++
					if longer*frozen.TTL <= lease {
						t.Errorf("play %d has a lease of %v after one of %v", plays, longer*frozen.TTL, lease)
					}
					lease = longer * frozen.TTL
					r := rig(t, exclusivetest.Config{TTL: lease, NoRenew: true})
					c.spoil(&r, plays)
					return story.Zombie(t.Context(), r, story.GuardOn), nil
				})
				if err != nil || plays != c.plays {
					t.Errorf("%d plays, %v", plays, err)
				}
				if failure := report.Failure(); (failure == nil) != (c.want == "") || failure != nil && !strings.Contains(failure.Error(), c.want) {
					t.Errorf("the verdict is %v", failure)
				}
			})
		})
	}
	for _, err := range []error{errBroken, story.ErrNotTimeBound} {
		plays := 0
		_, got := story.Patiently(func(time.Duration) (*story.Report, error) {
			plays++
			if err == errBroken {
				return nil, err
			}
			return &story.Report{Err: err}, nil
		})
		if plays != 1 || (got == nil) == (err == errBroken) {
			t.Errorf("%v: %d plays, %v", err, plays, got)
		}
	}
}

// sameToken hands out the same token again and again.
type sameToken struct{ exclusive.Exclusive }

func (s sameToken) Do(ctx context.Context, key string, work exclusive.Work) error {
	return s.Exclusive.Do(ctx, key, func(ctx context.Context, g exclusive.Grant) error {
		g.Token = 1
		return work(ctx, g)
	})
}
