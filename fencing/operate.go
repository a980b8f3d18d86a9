package fencing

import (
	"context"
	"errors"
	"fmt"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/internal/strategy"
)

// What operators do, with the keys of others.

// Filter says which keys to list. The zero value lists the first ones.
type Filter struct {
	Held  bool   // only keys that somebody has
	After string // only keys that come after this one
	Limit int    // how many at most. Zero: 100; at most 1,000
}

// List lists keys in their order, compared byte by byte, whoever has them or had
// them last. To go on pass the last key as Filter.After. It is one plain read of
// the table: where the pool goes to a replica it is as old as that. A key whose
// Commit is under way is still held.
func (l *Leases[Tx]) List(ctx context.Context, f Filter) ([]exclusive.Status, error) {
	if f.Limit == 0 {
		f.Limit = 100
	}
	if f.Limit < 0 || f.Limit > 1000 {
		return nil, &exclusive.Error{Op: "list keys", Kind: exclusive.ErrInvalid, Hint: fmt.Sprintf("Limit is %d; it must be from 0 to 1000", f.Limit)}
	}
	var list []exclusive.Status
	err := l.server.Ask(ctx, "list keys", "", func(ctx context.Context, d dialect) error {
		rows, err := d.list(ctx, l.server.DB, f.After, f.Held, int64(f.Limit))
		list = nil
		for i := range rows {
			list = append(list, rows[i].status(rows[i].key))
		}
		return err
	})
	return list, err
}

// Status says who has a key, or had it last. Last is empty for a key that nobody
// has had. It is a plain read, as List is; decide by what Release and ReleaseSeen
// say.
func (l *Leases[Tx]) Status(ctx context.Context, key string) (exclusive.Status, error) {
	s := exclusive.Status{Key: key}
	if err := exclusive.ValidateKey("status", key); err != nil {
		return s, err
	}
	err := l.server.Ask(ctx, "status", key, func(ctx context.Context, d dialect) error {
		row, found, err := d.lease(ctx, l.server.DB, key, false)
		if found {
			s = row.status(key)
		}
		return err
	})
	return s, err
}

// Release takes a key from whoever has it, alive or not: see ReleaseSeen. It does
// nothing if nobody holds the key. ErrHeld if the key changes hands meanwhile: the
// newcomer keeps it.
func (l *Leases[Tx]) Release(ctx context.Context, key string) error {
	if err := exclusive.ValidateKey("release", key); err != nil {
		return err
	}
	var row leaseRow
	err := l.server.Ask(ctx, "release", key, func(ctx context.Context, d dialect) (err error) {
		// A server that only reads refuses a locking read, which goes where
		// writes go: a replica may not have heard of the holder.
		row, _, err = d.lease(ctx, l.server.DB, key, true)
		return err
	})
	if err != nil || !row.live() {
		return err
	}
	if err := l.ReleaseSeen(ctx, row.status(key)); !errors.Is(err, exclusive.ErrLost) {
		return err
	}
	return nil // it has ended by itself
}

// ReleaseSeen takes a key from the holder that Status or List has shown, alive or
// not, and from nobody else: the key can be had at once, with a higher token. The
// old holder's Check, Commit and release are refused from now on, and its context
// ends with ErrLost at its next renewal, which is within a third of its TTL: until
// then it may still work beside its successor. A Guard on another database refuses
// it from the successor's first grant there. A Commit that is under way is waited
// for.
//
// nil means that it was this holder's, and that this has ended it. ErrHeld:
// somebody else has the key by now, Error.Holder, and keeps it. ErrLost: the grant
// had ended before, and nobody has the key.
func (l *Leases[Tx]) ReleaseSeen(ctx context.Context, seen exclusive.Status) error {
	if err := strategy.ValidSeen("release", seen.Key, seen.Last.ID); err != nil {
		return err
	}
	g := exclusive.Grant{Key: seen.Key, ID: seen.Last.ID}
	err := l.server.Ask(ctx, "release", g.Key, func(ctx context.Context, d dialect) error {
		ended, err := d.finish(ctx, l.server.DB, g, freed)
		if ended || err != nil {
			return err
		}
		row, found, err := d.lease(ctx, l.server.DB, g.Key, true) // see Release
		switch {
		case err != nil:
			return err
		case found && row.live():
			return strategy.NotReleased(g.Key, row.who())
		case found && row.id == g.ID && row.expires == freed.expires:
			return nil // this ran before and its answer was lost
		}
		return strategy.NotReleased(g.Key, nil)
	})
	if err == nil {
		l.leaser.Queue.Wake(g.Key)
	}
	return err
}

// operate is the SQL for that, which is the same on all servers.
type operate struct{ listQ, listHeldQ string }

func newOperate(d db.Dialect, text func(string) string) operate {
	const held = "attempt > 0 AND expires_at > {now}"
	f := func(query string) string { return d.Bind(text(query)) }
	return operate{
		listQ:     f(`SELECT lease_key, {columns} FROM {lease} WHERE lease_key > ? ORDER BY lease_key LIMIT ?`),
		listHeldQ: f(`SELECT lease_key, {columns} FROM {lease} WHERE lease_key > ? AND ` + held + ` ORDER BY lease_key LIMIT ?`),
	}
}

func (o *operate) list(ctx context.Context, r db.Runner, after string, held bool, limit int64) (rows []leaseRow, err error) {
	query := o.listQ
	if held {
		query = o.listHeldQ
	}
	err = r.Query(ctx, query, []any{[]byte(after), limit}, func(scan db.Scan) error {
		var key []byte
		var l leaseRow
		err := l.scan(func(dest ...any) error { return scan(append([]any{&key}, dest...)...) })
		l.key = string(key)
		rows = append(rows, l)
		return err
	})
	return rows, err
}
