package fencing

import (
	"context"
	"fmt"
	"strings"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/internal/strategy"
)

// common is what the dialects do alike; only the text differs.
type common struct {
	operate
	readyQ                                        string // where there is no sequence to look at
	leaseQ, lockLeaseQ, finishQ, proveQ, advanceQ string
	markQ, readMarkQ, lockMarkQ                   string
	beginOpQ, readOpQ, endOpQ                     string
	oldQ, pruneQ                                  string
	floorQ                                        string // the highest token that was drawn, of a sequence
	raiseQ                                        string // where there is none
	bind                                          func(string) string
}

// pruning fills in the statements of Prune. A row that is free has an expiry
// long past, or one that has passed; its last grant began before that.
func (c *common) pruning(d db.Dialect, f func(string) string) {
	const unused = `expires_at <= {now} - ? AND acquired_at <= {now} - ?`
	c.bind = d.Bind
	c.oldQ = d.Bind(f(`SELECT lease_key, token FROM {lease} WHERE lease_key > ? AND ` + unused + ` ORDER BY lease_key LIMIT ?`))
	// By key, so that no row beside those is locked. The conditions again: a row
	// may have been acquired meanwhile.
	c.pruneQ = f(`DELETE FROM {lease} WHERE ` + unused + ` AND token <= ? AND lease_key IN ({keys})`)
}

func (c *common) ready(ctx context.Context, r db.Runner) error {
	_, err := strategy.Exists(ctx, r, c.readyQ)
	return err
}

func (c *common) old(ctx context.Context, r db.Runner, after string, age int64) (keys [][]byte, token int64, err error) {
	err = r.Query(ctx, c.oldQ, []any{[]byte(after), age, age, int64(strategy.PruneBatch)}, func(scan db.Scan) error {
		var key []byte
		var t int64
		err := scan(&key, &t)
		keys, token = append(keys, key), max(token, t)
		return err
	})
	return keys, token, err
}

func (c *common) raise(ctx context.Context, r db.Runner, token int64) (floor int64, err error) {
	if c.floorQ != "" {
		_, err = strategy.One(ctx, r, c.floorQ, nil, func(scan db.Scan) error { return scan(&floor) })
		return floor, err
	}
	_, err = r.Exec(ctx, c.raiseQ, token)
	return token, err
}

func (c *common) prune(ctx context.Context, r db.Runner, keys [][]byte, age, floor int64) (int64, error) {
	args := []any{age, age, floor}
	for _, key := range keys {
		args = append(args, key)
	}
	res, err := r.Exec(ctx, c.bind(strings.Replace(c.pruneQ, "{keys}", strings.Repeat(", ?", len(keys))[2:], 1)), args...)
	return res.Rows, err
}

func (c *common) finish(ctx context.Context, r db.Runner, g exclusive.Grant, how ending) (bool, error) {
	return strategy.Changed(ctx, r, c.finishQ, how.attempts, how.never, how.expires, []byte(g.Key), g.ID)
}

func (c *common) reread(ctx context.Context, r db.Runner, key string) (leaseRow, bool, error) {
	return c.lease(ctx, r, key, false)
}

func (c *common) prove(ctx context.Context, r db.Runner, g exclusive.Grant) (bool, error) {
	return strategy.Exists(ctx, r, c.proveQ, []byte(g.Key), g.ID)
}

func (c *common) lease(ctx context.Context, r db.Runner, key string, lock bool) (row leaseRow, found bool, err error) {
	query := c.leaseQ
	if lock {
		query = c.lockLeaseQ
	}
	found, err = strategy.One(ctx, r, query, []any{[]byte(key)}, row.scan)
	return row, found, err
}

func (c *common) advance(ctx context.Context, r db.Runner, key string, floor int64) error {
	_, err := r.Exec(ctx, c.advanceQ, []byte(key), floor)
	return err
}

func (c *common) mark(ctx context.Context, r db.Runner, g exclusive.Grant, how use) (bool, error) {
	return strategy.Changed(ctx, r, c.markQ, []byte(g.Key), g.Token, g.ID, int64(how))
}

func (c *common) readMark(ctx context.Context, r db.Runner, key string, lock bool) (m markRow, found bool, err error) {
	query := c.readMarkQ
	if lock {
		query = c.lockMarkQ
	}
	found, err = strategy.One(ctx, r, query, []any{[]byte(key)}, func(scan db.Scan) error {
		return scan(&m.token, &m.id, &m.finished)
	})
	return m, found, err
}

func (c *common) beginOp(ctx context.Context, r db.Runner, opID string, payload []byte) (bool, error) {
	return strategy.Changed(ctx, r, c.beginOpQ, []byte(opID), payload)
}

func (c *common) readOp(ctx context.Context, r db.Runner, opID string) (o opRow, found bool, err error) {
	found, err = strategy.One(ctx, r, c.readOpQ, []any{[]byte(opID)}, func(scan db.Scan) error {
		return scan(&o.payload, &o.result, &o.applied)
	})
	return o, found, err
}

func (c *common) endOp(ctx context.Context, r db.Runner, opID string, result []byte) error {
	stored, err := strategy.Changed(ctx, r, c.endOpQ, result, []byte(opID))
	if err == nil && !stored {
		// MySQL rolls a transaction back that has lost in a deadlock, and apply
		// has overlooked it.
		return &exclusive.Error{Op: "once", Key: opID, Kind: exclusive.ErrConflict, Hint: "the server has ended the transaction; apply must return every error"}
	}
	return err
}

// sequenceReady checks a sequence's cache and cycle options.
func sequenceReady(ctx context.Context, r db.Runner, query, mend string) error {
	var cache, cycle int64
	if _, err := strategy.One(ctx, r, query, nil, func(scan db.Scan) error { return scan(&cache, &cycle) }); err != nil {
		return err
	}
	switch {
	case cache > 1:
		return &exclusive.Error{Op: "check the schema", Kind: exclusive.ErrSchema,
			Hint: fmt.Sprintf("the token sequence has CACHE %d, so a later grant could get a smaller token; run %s", cache, mend)}
	case cycle != 0:
		return &exclusive.Error{Op: "check the schema", Kind: exclusive.ErrSchema,
			Hint: "the token sequence has CYCLE, so tokens could start again; run " + mend}
	}
	return nil
}
