package uniquetask

import (
	"context"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/internal/strategy"
)

type postgres struct {
	common
	claimQ, renewQ string
}

func newPostgres(x texter, task []byte) dialect {
	const (
		key       = `task = $1::bytea AND run = $2::bytea`
		claimable = `state <> 'done' AND free_at <= {now} AND attempt < $6::bigint`
		// Our own claim, which ran before and whose answer was lost.
		ours = `l.grant_id = $3::text AND l.state = 'running' AND l.free_at > {now}`
	)
	return &postgres{
		// - A run that is done, held or at rest is refused by a plain read: no
		//   row lock, no write. Nor does it abort a transaction, as a unique
		//   violation would.
		// - A row that somebody has locked is held too: SKIP LOCKED, instead
		//   of waiting for a Commit that is under way.
		// - ON CONFLICT locks the row before it evaluates SET and WHERE, so
		//   the clock is read after the lock was granted.
		// - The first token is past the floor. FOR SHARE: see common.raise. A row
		//   that is seen here is not removed, since this has locked it, so its
		//   claim leaves the floor alone.
		// - statement_timestamp(): a statement that waited longer than its
		//   caller did does nothing.
		claimQ: x.text(`WITH got AS (
			INSERT INTO {task} AS l (task, run, state, grant_id, holder, token, attempt, started_at, ended_at, free_at, error, history)
			SELECT $1::bytea, $2::bytea, 'running', $3::text, $4::text,
				CASE WHEN EXISTS (SELECT FROM {task} WHERE ` + key + `) THEN 1
					ELSE COALESCE((SELECT token FROM {floor} WHERE task = $1::bytea FOR SHARE), 0) + 1 END,
				1, {now}, 0, {now} + $5::bigint, '', ''
			WHERE NOT EXISTS (SELECT FROM {task} WHERE ` + key + ` AND grant_id <> $3::text AND NOT (` + claimable + `))
			  AND (NOT EXISTS (SELECT FROM {task} WHERE ` + key + `)
			       OR EXISTS (SELECT FROM {task} WHERE ` + key + ` FOR UPDATE SKIP LOCKED))
			ON CONFLICT (task, run) DO UPDATE SET
				history = CASE WHEN ` + ours + ` THEN l.history ELSE right(l.history
					|| chr(10) || l.token || chr(9) || l.attempt
					|| chr(9) || CASE l.state WHEN 'running' THEN 'lost' ELSE l.state END
					|| chr(9) || l.started_at
					|| chr(9) || CASE l.state WHEN 'running' THEN l.free_at ELSE l.ended_at END
					|| chr(9) || l.holder || chr(9) || l.error, {history}) END,
				token = CASE WHEN ` + ours + ` THEN l.token ELSE l.token + 1 END,
				attempt = CASE WHEN ` + ours + ` THEN l.attempt ELSE l.attempt + 1 END,
				state = 'running',
				grant_id = EXCLUDED.grant_id,
				holder = EXCLUDED.holder,
				started_at = {now},
				ended_at = 0,
				free_at = {now} + $5::bigint,
				error = ''
			WHERE ((l.state <> 'done' AND l.free_at <= {now} AND l.attempt < $6::bigint) OR (` + ours + `))
			  AND clock_timestamp() < statement_timestamp() + interval '{maxwait} microseconds'
			RETURNING {columns}
		)
		SELECT 1 AS won, got.* FROM got
		UNION ALL
		SELECT 0, {columns} FROM {task} WHERE ` + key + ` AND NOT EXISTS (SELECT FROM got)`),

		// SKIP LOCKED: one row in a long transaction must not hold up the
		// heartbeat of all others.
		renewQ: x.text(`WITH mine AS (
			SELECT l.run FROM {task} l
			JOIN unnest(string_to_array($2::text, ','), string_to_array($3::text, ','), string_to_array($4::text, ',')::bigint[]) AS g (k, id, n)
			  ON l.run = decode(g.k, 'hex') AND l.grant_id = g.id AND l.token = g.n
			WHERE l.task = $1::bytea AND l.state = 'running' AND l.free_at > {now}
			FOR UPDATE OF l SKIP LOCKED
		)
		UPDATE {task} l SET free_at = GREATEST(l.free_at, {now} + $5::bigint)
		FROM mine WHERE l.task = $1::bytea AND l.run = mine.run
		RETURNING l.grant_id`),

		common: newCommon(x, task),
	}
}

func (p *postgres) claim(ctx context.Context, r db.Runner, c claim) (got claimed, err error) {
	_, err = strategy.One(ctx, r, p.claimQ, []any{p.task, []byte(c.run), c.id, c.holder, c.ttl, c.maxAttempts}, func(scan db.Scan) error {
		var w int64
		err := got.row.scanAnd(scan, &w)
		got.won = w == 1
		return err
	})
	return got, err
}

func (p *postgres) renew(ctx context.Context, r db.Runner, grants []exclusive.Grant, ttl int64) ([]string, error) {
	runs, ids, tokens := strategy.Lists(grants)
	return strategy.Strings(ctx, r, p.renewQ, []any{p.task, runs, ids, tokens, ttl})
}
