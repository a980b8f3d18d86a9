package uniquetask

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
	claimQ, renewQ string
}

func newSQLite(x texter, task []byte) dialect {
	// Our own claim, which ran before and whose answer was lost.
	const ours = `(l.grant_id = ?3 AND l.state = 'running' AND l.free_at > {now})`
	s := &sqlite{
		// As on PostgreSQL, without its care for rows that are locked: here
		// nobody else writes while a statement does.
		claimQ: x.text(`INSERT INTO {task} AS l (task, run, state, grant_id, holder, token, attempt, started_at, ended_at, free_at, error, history)
			SELECT ?1, ?2, 'running', ?3, ?4, COALESCE((SELECT token FROM {floor} WHERE task = ?1), 0) + 1, 1, {now}, 0, {now} + ?5, '', ''
			WHERE true
			ON CONFLICT (task, run) DO UPDATE SET
				history = CASE WHEN ` + ours + ` THEN l.history ELSE substr(l.history
					|| char(10) || l.token || char(9) || l.attempt
					|| char(9) || CASE l.state WHEN 'running' THEN 'lost' ELSE l.state END
					|| char(9) || l.started_at
					|| char(9) || CASE l.state WHEN 'running' THEN l.free_at ELSE l.ended_at END
					|| char(9) || l.holder || char(9) || l.error, -{history}) END,
				token = CASE WHEN ` + ours + ` THEN l.token ELSE l.token + 1 END,
				attempt = CASE WHEN ` + ours + ` THEN l.attempt ELSE l.attempt + 1 END,
				state = 'running',
				grant_id = ?3,
				holder = ?4,
				started_at = {now},
				ended_at = 0,
				free_at = {now} + ?5,
				error = ''
			WHERE (l.state <> 'done' AND l.free_at <= {now} AND l.attempt < ?6) OR ` + ours + `
			RETURNING {columns}`),

		renewQ: x.text(`UPDATE {task} SET free_at = MAX(free_at, {now} + ?)
			WHERE task = ? AND state = 'running' AND free_at > {now} AND (run, grant_id, token) IN (VALUES {triples})
			RETURNING grant_id`),

		common: newCommon(x, task),
	}
	s.proveQ = x.text(`UPDATE {task} SET token = token
		WHERE task = ? AND run = ? AND grant_id = ? AND state = 'running' AND free_at > {now} AND token = ? RETURNING 1`)
	s.lockQ = x.text(`UPDATE {task} SET token = token WHERE task = ? AND run = ? RETURNING run, history, {columns}`)
	return s
}

func (s *sqlite) claim(ctx context.Context, r db.Runner, c claim) (got claimed, err error) {
	got.won, err = strategy.One(ctx, r, s.claimQ, []any{s.task, []byte(c.run), c.id, c.holder, c.ttl, c.maxAttempts}, got.row.scan)
	if err == nil && !got.won {
		got.row, _, err = s.read(ctx, r, c.run, false)
	}
	return got, err
}

func (s *sqlite) renew(ctx context.Context, r db.Runner, grants []exclusive.Grant, ttl int64) ([]string, error) {
	args := append([]any{ttl, s.task}, strategy.Triples(grants)...)
	return strategy.Strings(ctx, r, strategy.PairText(s.renewQ, grants), args)
}
