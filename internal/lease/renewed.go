package lease

import (
	"slices"

	"github.com/exclusive-go/exclusive"
)

// Unrenewed sorts out the grants that a renewal did not extend. current asks
// whether a grant still has its key; then its row was locked. That is rare.
// When current fails the rest count as locked: they are asked about again soon,
// and what was renewed stays renewed. Its error comes beside them.
func Unrenewed(grants []exclusive.Grant, renewed []string, current func(exclusive.Grant) (bool, error)) (lost, waiting []string, err error) {
	for _, g := range grants {
		if slices.Contains(renewed, g.ID) {
			continue
		}
		has := true
		if err == nil {
			has, err = current(g)
		}
		if has || err != nil {
			waiting = append(waiting, g.ID)
		} else {
			lost = append(lost, g.ID)
		}
	}
	return lost, waiting, err
}

// Counted finds out which grants were renewed on a server that only counts
// them: when some were not, halving finds them. Renewing twice does no harm.
func Counted(grants []exclusive.Grant, renew func([]exclusive.Grant) (n int64, err error)) (renewed []string, err error) {
	n, err := renew(grants)
	if err != nil || n == 0 {
		return nil, err
	}
	if n == int64(len(grants)) {
		for _, g := range grants {
			renewed = append(renewed, g.ID)
		}
		return renewed, nil
	}
	first, err := Counted(grants[:len(grants)/2], renew)
	if err != nil {
		return nil, err
	}
	second, err := Counted(grants[len(grants)/2:], renew)
	return append(first, second...), err
}
