package fencing

import (
	"context"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/internal/strategy"
)

type mariadb struct {
	mysqlFamily
	sequenceQ, acquireQ string
}

func newMariaDB(n names) dialect {
	f := n.text(strategy.MySQLNow)
	m := &mariadb{
		mysqlFamily: newMySQLFamily(f),
		sequenceQ:   f(`SELECT cache_size, cycle_option FROM {token} WHERE NOT EXISTS (SELECT 1 FROM {lease} WHERE FALSE)`),

		// One statement for new keys and known ones, refused or not: RETURNING
		// shows the row as it stands (manual, "INSERT...RETURNING"). acquired_at
		// decides, once, and what follows looks at it and the grant's id. The token
		// is drawn, and compared with the last one in case the sequence went back,
		// while the row is locked; the number drawn in VALUES is used only if no row
		// exists, also by an attempt that is refused. A locked row is held: do not wait for a Commit that is under
		// way.
		acquireQ: f(`SET STATEMENT innodb_lock_wait_timeout = 0 FOR
			INSERT INTO {lease} (lease_key, grant_id, holder, token, attempt, acquired_at, expires_at)
			VALUES (?, ?, ?, NEXTVAL({token}), 1, {now}, {now} + ?)
			ON DUPLICATE KEY UPDATE
				acquired_at = IF(` + takes + `, {now}, acquired_at),
				grant_id = IF(acquired_at = {now} AND expires_at <= {now}, ?, grant_id),
				attempt = IF(` + taken + ` AND expires_at <= {now}, attempt + 1, attempt),
				token = IF(` + taken + `, GREATEST(NEXTVAL({token}), token + 1), token),
				holder = IF(` + taken + `, ?, holder),
				expires_at = IF(` + taken + `, {now} + ?, expires_at)
			RETURNING {columns}`),
	}
	m.renewQ += " RETURNING grant_id"
	m.pruning(db.MariaDB, f)
	m.floorQ = f(`SELECT next_not_cached_value - 1 FROM {token}`)
	return m
}

func (m *mariadb) ready(ctx context.Context, r db.Runner) error {
	return sequenceReady(ctx, r, m.sequenceQ, "ALTER SEQUENCE … NOCACHE NOCYCLE")
}

func (m *mariadb) acquire(ctx context.Context, r db.Runner, a acquisition) (got acquired, err error) {
	if row, taken, err := m.look(ctx, r, a); err != nil || taken {
		return acquired{row: row}, err
	}
	_, err = strategy.One(ctx, r, m.acquireQ, []any{[]byte(a.key), a.id, a.holder, a.ttl,
		a.id, a.id, a.id, a.id, a.id, a.holder, a.id, a.ttl}, got.row.scan)
	got.won = got.row.id == a.id && got.row.live()
	return got, err
}

func (m *mariadb) renew(ctx context.Context, r db.Runner, grants []exclusive.Grant, ttl int64) ([]string, error) {
	return strategy.Strings(ctx, r, strategy.PairText(m.renewQ, grants), append(strategy.Pairs(grants), ttl))
}
