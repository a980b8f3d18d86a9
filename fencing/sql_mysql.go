package fencing

import (
	"context"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/internal/lease"
	"github.com/exclusive-go/exclusive/internal/strategy"
)

// mysqlFamily is what MySQL and MariaDB do alike. A statement that must say
// whether it was refused says it through LAST_INSERT_ID(expr), which comes back
// in the same answer (MySQL manual, "Information Functions"): counts of
// affected rows depend on the DSN. The columns of ON DUPLICATE KEY UPDATE are
// assigned from left to right, each seeing the assignments before it.
type mysqlFamily struct {
	common
	renewQ string
}

func newMySQLFamily(f func(string) string) mysqlFamily {
	return mysqlFamily{
		// SKIP LOCKED: one row in a long transaction must not hold up the
		// renewal of all others; an UPDATE could not skip. expires_at + 1: a
		// renewed row really changes, also within one tick of the clock.
		renewQ: f(`INSERT INTO {lease} (lease_key, grant_id, holder, token, attempt, acquired_at, expires_at)
			SELECT c.lease_key, c.grant_id, c.holder, c.token, c.attempt, c.acquired_at, c.expires_at FROM {lease} c
			WHERE (c.lease_key, c.grant_id) IN ({pairs}) AND c.attempt > 0 AND c.expires_at > {now}
			FOR UPDATE SKIP LOCKED
			ON DUPLICATE KEY UPDATE expires_at = GREATEST({lease}.expires_at + 1, {now} + ?)`),
		common: common{
			operate:    newOperate(db.MySQL, f),
			leaseQ:     f(`SELECT {columns} FROM {lease} WHERE lease_key = ?`),
			lockLeaseQ: f(`SELECT {columns} FROM {lease} WHERE lease_key = ? FOR UPDATE`),
			finishQ: f(`UPDATE {lease} SET attempt = attempt * ? - ?, expires_at = ?
				WHERE lease_key = ? AND grant_id = ? AND attempt > 0 AND expires_at > {now}`),
			// A locking read sees the present, also in an old snapshot.
			proveQ: f(`SELECT 1 FROM {lease}
				WHERE lease_key = ? AND grant_id = ? AND attempt > 0 AND expires_at > {now} FOR UPDATE`),
			advanceQ: f(`INSERT INTO {lease} (lease_key, grant_id, holder, token, attempt, acquired_at, expires_at)
				VALUES (?, '', '', ?, 0, {now}, 0)
				ON DUPLICATE KEY UPDATE token = GREATEST(token, ?)`),

			// The first assignment decides, once. Equal token: only the same
			// grant, so then grant_id stays.
			markQ: f(`INSERT INTO {mark} (mark_key, token, grant_id, finished) VALUES (?, LAST_INSERT_ID(?), ?, ?)
				ON DUPLICATE KEY UPDATE
					finished = IF(token < ? OR (token = ? AND grant_id = ? AND finished = 0),
						? + LAST_INSERT_ID(?) - ?, finished + LAST_INSERT_ID(0)),
					grant_id = IF(token < ?, ?, grant_id),
					token = GREATEST(token, ?)`),
			// A locking read sees the present, also in an old snapshot.
			readMarkQ: f(`SELECT token, grant_id, finished FROM {mark} WHERE mark_key = ? FOR UPDATE`),
			lockMarkQ: f(`SELECT token, grant_id, finished FROM {mark} WHERE mark_key = ? FOR UPDATE`),

			// Not INSERT IGNORE: that hides every other error too.
			beginOpQ: f(`INSERT INTO {op} (op_id, payload, created_at) VALUES (?, ?, LAST_INSERT_ID({now}))
				ON DUPLICATE KEY UPDATE created_at = created_at + LAST_INSERT_ID(0)`),
			// A locking read: a plain one could miss the row in an old snapshot.
			readOpQ: f(`SELECT payload, result, result IS NOT NULL FROM {op} WHERE op_id = ? FOR UPDATE`),
			endOpQ:  f(`UPDATE {op} SET result = ? WHERE op_id = ?`),
		},
	}
}

// look is what an acquire does first that waits for its key, and tells whether it is
// still taken. On MySQL it must not queue for the row's lock again and again while a
// transaction of the holder has it; on MariaDB it would draw a number each time.
func (m *mysqlFamily) look(ctx context.Context, r db.Runner, a acquisition) (row leaseRow, taken bool, err error) {
	if !a.waiting {
		return leaseRow{}, false, nil
	}
	row, found, err := m.lease(ctx, r, a.key, false)
	return row, found && row.live(), err
}

// reread is a locking read; the statement before it has locked the row anyway.
func (m *mysqlFamily) reread(ctx context.Context, r db.Runner, key string) (leaseRow, bool, error) {
	return m.lease(ctx, r, key, true)
}

func (m *mysqlFamily) advance(ctx context.Context, r db.Runner, key string, floor int64) error {
	_, err := r.Exec(ctx, m.advanceQ, []byte(key), floor, floor)
	return err
}

func (m *mysqlFamily) mark(ctx context.Context, r db.Runner, g exclusive.Grant, how use) (bool, error) {
	t, id, fin := g.Token, g.ID, int64(how)
	res, err := r.Exec(ctx, m.markQ, []byte(g.Key), t, id, fin, t, t, id, fin, t, t, t, id, t)
	switch {
	case err != nil || res.LastID == t:
		return err == nil, err
	case how == inUse: // Register has no transaction, but then the row tells
		row, found, err := m.readMark(ctx, r, g.Key, true)
		return found && row == markRow{t, id, inUse}, err
	}
	last, err := lastID(ctx, r)
	return last == t, err
}

// lastID is the answer of the statement before in the same transaction. A trigger
// on its table keeps that from coming back with the statement, not from being asked
// for. (The cast: some poolers answer a plain LAST_INSERT_ID() by themselves.)
func lastID(ctx context.Context, r db.Runner) (id int64, err error) {
	_, err = strategy.One(ctx, r, "SELECT CAST(LAST_INSERT_ID() AS SIGNED)", nil, func(scan db.Scan) error { return scan(&id) })
	return id, err
}

func (m *mysqlFamily) beginOp(ctx context.Context, r db.Runner, opID string, payload []byte) (bool, error) {
	res, err := r.Exec(ctx, m.beginOpQ, []byte(opID), payload)
	if err != nil || res.LastID > 0 {
		return err == nil, err
	}
	last, err := lastID(ctx, r)
	return last > 0, err
}

// What an acquire does with a row that is there, in the order of its assignments.
const (
	takes = `(expires_at > {now}) = (grant_id = ?)` // it runs, and is this grant's; or is over, and is not
	taken = `grant_id = ? AND acquired_at = {now}`  // once both are assigned
)

type mysql struct {
	mysqlFamily
	acquireQ string
}

func newMySQL(n names) dialect {
	f := n.text(strategy.MySQLNow)
	m := &mysql{
		mysqlFamily: newMySQLFamily(f),

		// One statement for new keys and known ones; each row counts its own
		// tokens while it is locked. acquired_at decides, once, and what follows
		// looks at it and the grant's id. A refused statement writes
		// nothing. It cannot be told not to wait for a locked row, so it does
		// nothing if it has waited longer than its caller did. The answer has
		// room for one number: token and attempt are packed into it. LOCK IN
		// SHARE MODE: Prune raises the floor before it removes rows, and so waits
		// for a claim that has read the old one, also at READ COMMITTED.
		acquireQ: f(`INSERT INTO {lease} (lease_key, grant_id, holder, token, attempt, acquired_at, expires_at)
			SELECT ?, ?, ?, f.first + 0 * LAST_INSERT_ID(f.first * {pack} + 1), 1, {now}, {now} + ?
			FROM (SELECT COALESCE(MAX(floor), 0) + 1 AS first FROM {token} LOCK IN SHARE MODE) f
			ON DUPLICATE KEY UPDATE
				acquired_at = IF(` + takes + ` AND ` + strategy.MySQLWaited + ` < {maxwait}, {now}, acquired_at),
				grant_id = IF(acquired_at = {now} AND expires_at <= {now}, ?, grant_id),
				attempt = IF(` + taken + ` AND expires_at <= {now}, attempt + 1, attempt),
				token = IF(` + taken + `,
					token + 1 + 0 * LAST_INSERT_ID((token + 1) * {pack} + LEAST(attempt, {pack} - 1)),
					token + LAST_INSERT_ID(0)),
				holder = IF(` + taken + `, ?, holder),
				expires_at = IF(` + taken + `, {now} + ?, expires_at)`),
	}
	m.pruning(db.MySQL, f)
	m.readyQ = f(`SELECT COUNT(*) FROM {token} WHERE NOT EXISTS (SELECT 1 FROM {lease} WHERE FALSE)`)
	m.raiseQ = f(`INSERT INTO {token} (id, floor) SELECT n.id, n.floor FROM (SELECT 1 AS id, ? AS floor) n
		ON DUPLICATE KEY UPDATE floor = GREATEST({token}.floor, n.floor)`)
	return m
}

func (m *mysql) ready(ctx context.Context, r db.Runner) error {
	if err := m.common.ready(ctx, r); err != nil {
		return err
	}
	return strategy.MeasuresWaits(ctx, r)
}

// acquire is one round trip when it wins. When it does not, a second one reads
// who is in the way.
func (m *mysql) acquire(ctx context.Context, r db.Runner, a acquisition) (acquired, error) {
	if row, taken, err := m.look(ctx, r, a); err != nil || taken {
		return acquired{row: row}, err
	}
	key := []byte(a.key)
	var res db.Result
	gaveUp, err := strategy.Impatient(ctx, func(ctx context.Context) (err error) {
		res, err = r.Exec(ctx, m.acquireQ, key, a.id, a.holder, a.ttl,
			a.id, a.id, a.id, a.id, a.id, a.holder, a.id, a.ttl)
		return err
	})
	if err != nil {
		return acquired{}, err
	}
	if res.LastID > 0 {
		row := leaseRow{id: a.id, token: res.LastID / strategy.Pack, attempt: res.LastID % strategy.Pack}
		return acquired{row: row, won: true}, nil
	}
	row, found, err := m.lease(ctx, r, a.key, false)
	// A trigger on the table keeps LAST_INSERT_ID from coming back.
	return acquired{row: row, won: row.id == a.id && row.live(), pending: gaveUp && !found}, err
}

// renew is one round trip when all are renewed. The answer only counts.
func (m *mysql) renew(ctx context.Context, r db.Runner, grants []exclusive.Grant, ttl int64) ([]string, error) {
	return lease.Counted(grants, func(grants []exclusive.Grant) (int64, error) {
		res, err := r.Exec(ctx, strategy.PairText(m.renewQ, grants), append(strategy.Pairs(grants), ttl)...)
		// A changed row counts twice (manual, "INSERT … ON DUPLICATE KEY UPDATE").
		return res.Rows / 2, err
	})
}
