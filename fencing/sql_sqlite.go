package fencing

import (
	"context"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/internal/strategy"
)

// SQLite has one writer at a time and no row locks: a transaction that has
// written holds the database. So each statement here that must hold a row
// writes, and it is the first of its transaction: a read first, and the
// upgrade would fail at once if somebody else wrote meanwhile, whatever the
// busy time-out (manual, "Isolation In SQLite").
type sqlite struct {
	common
	acquireQ, renewQ string
}

func newSQLite(n names) dialect {
	f := n.text(strategy.SQLiteNow)
	s := &sqlite{

		// Each row counts its own tokens.
		acquireQ: f(`INSERT INTO {lease} AS l (lease_key, grant_id, holder, token, attempt, acquired_at, expires_at)
			SELECT ?1, ?2, ?3, COALESCE((SELECT MAX(floor) FROM {token}), 0) + 1, 1, {now}, {now} + ?4
			WHERE true
			ON CONFLICT (lease_key) DO UPDATE SET
				attempt = CASE WHEN l.expires_at > {now} THEN l.attempt ELSE l.attempt + 1 END,
				grant_id = ?2,
				token = l.token + 1,
				holder = ?3,
				acquired_at = {now},
				expires_at = {now} + ?4
			WHERE (l.expires_at > {now}) = (l.grant_id = ?2)
			RETURNING {columns}`),

		renewQ: f(`UPDATE {lease} SET expires_at = MAX(expires_at, {now} + ?)
			WHERE attempt > 0 AND expires_at > {now} AND (lease_key, grant_id) IN (VALUES {pairs})
			RETURNING grant_id`),

		common: common{
			operate:    newOperate(db.SQLite, f),
			leaseQ:     f(`SELECT {columns} FROM {lease} WHERE lease_key = ?1`),
			lockLeaseQ: f(`UPDATE {lease} SET token = token WHERE lease_key = ?1 RETURNING {columns}`),
			finishQ: f(`UPDATE {lease} SET attempt = attempt * ?1 - ?2, expires_at = ?3
				WHERE lease_key = ?4 AND grant_id = ?5 AND attempt > 0 AND expires_at > {now}`),
			proveQ: f(`UPDATE {lease} SET token = token
				WHERE lease_key = ?1 AND grant_id = ?2 AND attempt > 0 AND expires_at > {now} RETURNING 1`),
			advanceQ: f(`INSERT INTO {lease} AS l (lease_key, grant_id, holder, token, attempt, acquired_at, expires_at)
				VALUES (?1, '', '', ?2, 0, {now}, 0)
				ON CONFLICT (lease_key) DO UPDATE SET token = ?2 WHERE l.token < ?2`),

			// Equal token: only the same grant.
			markQ: f(`INSERT INTO {mark} AS m (mark_key, token, grant_id, finished) VALUES (?1, ?2, ?3, ?4)
				ON CONFLICT (mark_key) DO UPDATE SET token = ?2, grant_id = ?3, finished = ?4
				WHERE m.token < ?2 OR (m.token = ?2 AND m.grant_id = ?3 AND m.finished = 0)`),
			readMarkQ: f(`SELECT token, grant_id, finished FROM {mark} WHERE mark_key = ?1`),
			lockMarkQ: f(`UPDATE {mark} SET token = token WHERE mark_key = ?1 RETURNING token, grant_id, finished`),

			beginOpQ: f(`INSERT INTO {op} (op_id, payload, created_at) VALUES (?1, ?2, {now}) ON CONFLICT (op_id) DO NOTHING`),
			readOpQ:  f(`SELECT payload, result, CASE WHEN result IS NULL THEN 0 ELSE 1 END FROM {op} WHERE op_id = ?1`),
			endOpQ:   f(`UPDATE {op} SET result = ?1 WHERE op_id = ?2`),
		},
	}
	s.pruning(db.SQLite, f)
	s.readyQ = f(`SELECT COUNT(*) FROM {token} WHERE NOT EXISTS (SELECT 1 FROM {lease} WHERE FALSE)`)
	s.raiseQ = f(`INSERT INTO {token} (id, floor) VALUES (1, ?1) ON CONFLICT (id) DO UPDATE SET floor = ?1 WHERE floor < ?1`)
	return s
}

func (s *sqlite) acquire(ctx context.Context, r db.Runner, a acquisition) (got acquired, err error) {
	got.won, err = strategy.One(ctx, r, s.acquireQ, []any{[]byte(a.key), a.id, a.holder, a.ttl}, got.row.scan)
	if err == nil && !got.won {
		got.row, _, err = s.lease(ctx, r, a.key, false)
	}
	return got, err
}

func (s *sqlite) renew(ctx context.Context, r db.Runner, grants []exclusive.Grant, ttl int64) ([]string, error) {
	return strategy.Strings(ctx, r, strategy.PairText(s.renewQ, grants), append([]any{ttl}, strategy.Pairs(grants)...))
}
