package exclusive

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// DoAll gets a grant for each of keys and runs work under all of them. It takes
// the keys in the order of their bytes, so that two callers with keys in common
// do not block each other for ever, and ends the grants in reverse. grants are
// in the order of keys.
//
// If a key cannot be had work does not run, and the grants so far end as after
// an error in work: on uniquetask and casupdate that is a failed attempt. The
// loss of one grant cancels work's context. On rowlock each key holds a
// connection; use the strategy's own way to lock several keys there.
func DoAll(ctx context.Context, x Exclusive, keys []string, work func(ctx context.Context, grants []Grant) error) error {
	if len(keys) == 0 || work == nil {
		return &Error{Op: "do all", Kind: ErrInvalid, Hint: "it needs a key and work"}
	}
	order := make([]int, len(keys)) // the places in keys, by key
	for i, key := range keys {
		if err := ValidateKey("do all", key); err != nil {
			return err
		}
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return strings.Compare(keys[a], keys[b]) })
	for i := range order[1:] {
		if key := keys[order[i]]; key == keys[order[i+1]] {
			return &Error{Op: "do all", Key: key, Kind: ErrInvalid, Hint: fmt.Sprintf("it is given twice among %d keys", len(keys))}
		}
	}
	return doAll(ctx, x, keys, order, make([]Grant, len(keys)), work)
}

func doAll(ctx context.Context, x Exclusive, keys []string, order []int, grants []Grant, work func(context.Context, []Grant) error) error {
	if len(order) == 0 {
		return work(ctx, grants)
	}
	return x.Do(ctx, keys[order[0]], func(ctx context.Context, g Grant) error {
		grants[order[0]] = g
		return doAll(ctx, x, keys, order[1:], grants, work)
	})
}
