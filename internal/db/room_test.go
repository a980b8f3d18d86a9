package db

import (
	"context"
	"errors"
	"testing"

	"github.com/exclusive-go/exclusive"
)

// pooled is an adapter of a pool.
type pooled struct {
	DB[int]
	pool  *int
	conns int
}

func (p *pooled) Pool() any     { return p.pool }
func (p *pooled) MaxConns() int { return p.conns }

// alone is one that does not say which pool it adapts.
type alone struct{ DB[int] }

func (alone) MaxConns() int { return 1 }

func TestRoom(t *testing.T) {
	pool, elsewhere := new(int), new(int)
	a, b, other, unlimited := &pooled{pool: pool, conns: 2}, &pooled{pool: pool, conns: 2}, &pooled{pool: elsewhere, conns: 1}, &pooled{pool: new(int)}
	room := func(what string, ctx context.Context, d DB[int], want, wantForAll bool) {
		t.Helper()
		err, forAll := Room(ctx, d), RoomForAll(ctx, d)
		if (err == nil) != want || (forAll == nil) != wantForAll {
			t.Errorf("%s: Room gives %v, RoomForAll %v", what, err, forAll)
		}
		for _, err := range []error{err, forAll} {
			if err != nil && !errors.Is(err, exclusive.ErrUnavailable) {
				t.Errorf("%s: %v", what, err)
			}
		}
	}
	none := t.Context()
	one, oneOver := Take(none, a, true)
	room("in no work", none, b, true, true)
	room("one of two", one, b, true, true)
	room("another pool", one, other, true, true)
	two, twoOver := Take(one, b, true)
	room("both", two, a, false, false)
	room("both in other works", none, a, true, true)
	room("one here, one in a work inside", one, a, true, false)
	oneOver()
	oneOver()
	room("the outer one is over", two, a, true, true)
	twoOver()
	room("both are over", two, a, true, true)

	apply, applyOver := Take(none, other, false)
	room("in apply", apply, other, false, false)
	applyOver()
	room("after apply", apply, other, true, true)
	work, workOver := Take(none, a, true)
	_, applyOver = Take(none, b, false)
	room("while another one commits", work, a, true, true)
	applyOver()
	workOver()

	many, manyOver := Take(none, unlimited, true)
	room("no limit", many, unlimited, true, true)
	manyOver()

	lone := &alone{}
	ctx, over := Take(none, lone, true)
	room("an adapter that is its own pool", ctx, lone, false, false)
	room("another one", ctx, &alone{DB: a}, true, true)
	over()
	if len(taken.conns) != 0 {
		t.Errorf("kept: %v", taken.conns)
	}
}
