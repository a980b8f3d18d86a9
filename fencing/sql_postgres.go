package fencing

import (
	"context"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/internal/strategy"
)

type postgres struct {
	common
	sequenceQ, acquireQ, renewQ string
}

func newPostgres(n names) dialect {
	f := n.text(strategy.PostgresNow)
	p := &postgres{
		// The cast fails with "does not exist" if the sequence is missing.
		sequenceQ: f(`SELECT seqcache, seqcycle::int FROM pg_catalog.pg_sequence
			WHERE seqrelid = '{token}'::regclass
			  AND NOT EXISTS (SELECT FROM {lease} WHERE false)`),

		// - A held key is refused by a plain read: no row lock, no write. So is this
		//   grant when it is over.
		// - A row that somebody has locked is held too: SKIP LOCKED, instead of
		//   waiting for a Commit that is under way.
		// - ON CONFLICT locks the row before it evaluates SET and WHERE, so the
		//   token is drawn, and the clock read, after the lock was granted. The
		//   number drawn in SELECT is used only if no row exists.
		// - GREATEST: if the sequence went back (restored, or not replicated)
		//   the key's token still rises.
		// - statement_timestamp(): a statement that waited longer than its
		//   caller did does nothing.
		acquireQ: f(`WITH got AS (
			INSERT INTO {lease} AS l (lease_key, grant_id, holder, token, attempt, acquired_at, expires_at)
			SELECT $1::bytea, $2::text, $3::text, nextval('{token}'), 1, {now}, {now} + $4::bigint
			WHERE NOT EXISTS (SELECT FROM {lease} WHERE lease_key = $1::bytea AND (expires_at > {now}) <> (grant_id = $2::text))
			  AND (NOT EXISTS (SELECT FROM {lease} WHERE lease_key = $1::bytea)
			       OR EXISTS (SELECT FROM {lease} WHERE lease_key = $1::bytea FOR UPDATE SKIP LOCKED))
			ON CONFLICT (lease_key) DO UPDATE SET
				grant_id = EXCLUDED.grant_id,
				holder = EXCLUDED.holder,
				token = GREATEST(nextval('{token}'), l.token + 1),
				attempt = CASE WHEN l.expires_at > {now} THEN l.attempt ELSE l.attempt + 1 END,
				acquired_at = {now},
				expires_at = {now} + $4::bigint
			WHERE (l.expires_at > {now}) = (l.grant_id = EXCLUDED.grant_id)
			  AND clock_timestamp() < statement_timestamp() + interval '{maxwait} microseconds'
			RETURNING {columns}
		)
		SELECT 1 AS won, got.* FROM got
		UNION ALL
		SELECT 0, {columns} FROM {lease} WHERE lease_key = $1::bytea AND NOT EXISTS (SELECT FROM got)`),

		// SKIP LOCKED: one row in a long transaction must not hold up the
		// renewal of all others.
		renewQ: f(`WITH mine AS (
			SELECT l.lease_key FROM {lease} l
			JOIN unnest(string_to_array($1::text, ','), string_to_array($2::text, ',')) AS g (k, id)
			  ON l.lease_key = decode(g.k, 'hex') AND l.grant_id = g.id
			WHERE l.attempt > 0 AND l.expires_at > {now}
			FOR UPDATE OF l SKIP LOCKED
		)
		UPDATE {lease} l SET expires_at = GREATEST(l.expires_at, {now} + $3::bigint)
		FROM mine WHERE l.lease_key = mine.lease_key
		RETURNING l.grant_id`),

		common: common{
			operate:    newOperate(db.Postgres, f),
			leaseQ:     f(`SELECT {columns} FROM {lease} WHERE lease_key = $1`),
			lockLeaseQ: f(`SELECT {columns} FROM {lease} WHERE lease_key = $1 FOR UPDATE`),
			finishQ: f(`UPDATE {lease} SET attempt = attempt * $1 - $2, expires_at = $3
				WHERE lease_key = $4 AND grant_id = $5 AND attempt > 0 AND expires_at > {now}`),
			proveQ: f(`SELECT 1 FROM {lease}
				WHERE lease_key = $1 AND grant_id = $2 AND attempt > 0 AND expires_at > {now} FOR UPDATE`),
			advanceQ: f(`INSERT INTO {lease} AS l (lease_key, grant_id, holder, token, attempt, acquired_at, expires_at)
				VALUES ($1, '', '', $2, 0, {now}, 0)
				ON CONFLICT (lease_key) DO UPDATE SET token = EXCLUDED.token WHERE l.token < EXCLUDED.token`),

			// The row is locked even if WHERE refuses it. Equal token: only the
			// same grant.
			markQ: f(`INSERT INTO {mark} AS m (mark_key, token, grant_id, finished) VALUES ($1, $2, $3, $4)
				ON CONFLICT (mark_key) DO UPDATE SET token = EXCLUDED.token, grant_id = EXCLUDED.grant_id, finished = EXCLUDED.finished
				WHERE m.token < EXCLUDED.token OR (m.token = EXCLUDED.token AND m.grant_id = EXCLUDED.grant_id AND m.finished = 0)`),
			readMarkQ: f(`SELECT token, grant_id, finished FROM {mark} WHERE mark_key = $1`),
			lockMarkQ: f(`SELECT token, grant_id, finished FROM {mark} WHERE mark_key = $1 FOR UPDATE`),

			// DO NOTHING waits for a transaction that is inserting the same id,
			// and does not abort the caller's transaction.
			beginOpQ: f(`INSERT INTO {op} (op_id, payload, created_at) VALUES ($1, $2, {now}) ON CONFLICT (op_id) DO NOTHING`),
			readOpQ:  f(`SELECT payload, result, CASE WHEN result IS NULL THEN 0 ELSE 1 END FROM {op} WHERE op_id = $1`),
			endOpQ:   f(`UPDATE {op} SET result = $1 WHERE op_id = $2`),
		},
	}
	p.pruning(db.Postgres, f)
	p.floorQ = f(`SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {token}`)
	return p
}

func (p *postgres) ready(ctx context.Context, r db.Runner) error {
	return sequenceReady(ctx, r, p.sequenceQ, "ALTER SEQUENCE … CACHE 1 NO CYCLE")
}

func (p *postgres) acquire(ctx context.Context, r db.Runner, a acquisition) (got acquired, err error) {
	_, err = strategy.One(ctx, r, p.acquireQ, []any{[]byte(a.key), a.id, a.holder, a.ttl}, func(scan db.Scan) error {
		var w int64
		row := &got.row
		err := scan(&w, &row.id, &row.holder, &row.token, &row.attempt, &row.acquired, &row.expires, &row.now)
		got.won = w == 1
		return err
	})
	return got, err
}

func (p *postgres) renew(ctx context.Context, r db.Runner, grants []exclusive.Grant, ttl int64) ([]string, error) {
	keys, ids, _ := strategy.Lists(grants)
	return strategy.Strings(ctx, r, p.renewQ, []any{keys, ids, ttl})
}
