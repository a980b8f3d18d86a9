package uniquetask

import (
	"context"
	"sync/atomic"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/internal/lease"
	"github.com/exclusive-go/exclusive/internal/strategy"
)

// mysqlFamily is what MySQL and MariaDB do alike.
type mysqlFamily struct {
	common
	renewQ, lookQ string
}

func newMySQLFamily(x texter, task []byte) mysqlFamily {
	m := mysqlFamily{
		// SKIP LOCKED: one row in a long transaction must not hold up the
		// heartbeat of all others; an UPDATE could not skip. free_at + 1: a
		// renewed row really changes, also within one tick of the clock.
		renewQ: x.text(`INSERT INTO {task} (task, run, state, grant_id, holder, token, attempt, started_at, ended_at, free_at, error, history)
			SELECT c.task, c.run, c.state, c.grant_id, c.holder, c.token, c.attempt, c.started_at, c.ended_at, c.free_at, '', '' FROM {task} c
			WHERE c.task = ? AND (c.run, c.grant_id, c.token) IN ({triples}) AND c.state = 'running' AND c.free_at > {now}
			FOR UPDATE SKIP LOCKED
			ON DUPLICATE KEY UPDATE free_at = GREATEST({task}.free_at + 1, {now} + ?)`),

		// FOR SHARE, which is all that a claim needs.
		lookQ: x.text(`SELECT token FROM {floor} WHERE task = ? FOR SHARE NOWAIT`),

		common: newCommon(x, task),
	}
	m.raiseQ = x.text(`INSERT INTO {floor} (task, token) SELECT n.t, n.token FROM (SELECT ? AS t, ? AS token) n
		ON DUPLICATE KEY UPDATE token = GREATEST({floor}.token, n.token)`)
	return m
}

// pastFloor is the token of a new run. LOCK IN SHARE MODE: see common.raise. In both
// dialects it reads the present.
const pastFloor = `COALESCE((SELECT f.token FROM {floor} f WHERE f.task = ? LOCK IN SHARE MODE), 0) + 1`

// claimText is the claim. first is the token of a new run, and of one that was left
// without: see claimOnGalera.
func claimText(x texter, first string) string {
	const (
		claimable = `(state <> 'done' AND free_at <= {now} AND attempt < c.most)`
		won       = `grant_id = c.id AND ended_at = 0 AND (free_at > {now} OR attempt < c.most)` // once both are assigned
		begun     = `grant_id = c.id AND started_at = {now}`                                     // the same, once attempt is
	)
	// One statement for new runs and known ones. The columns of ON
	// DUPLICATE KEY UPDATE are assigned from left to right, each seeing
	// the assignments before it. grant_id decides, once, and what follows
	// looks at it: grant ids never repeat. What is claimable is asked again
	// after that, so state, attempt and free_at come last.
	//
	// A row can have this grant's id already. Only if it is still running is
	// it our claim, which ran before and whose answer was lost; a copy that
	// arrives after the attempt has ended must not undo that, and one that
	// arrives after its time is over, as an operator's release has it, is one
	// more attempt if there may be one. ended_at, which is 0 while running,
	// decides it for what comes after.
	//
	// The answer goes through LAST_INSERT_ID(expr), which comes back with
	// it (MySQL manual, "Information Functions"), since counts of affected
	// rows depend on the DSN. It has room for one number: token and attempt
	// are packed into it. 0 says refused; then nothing is written.
	//
	// MySQL cannot be told here not to wait for a locked row, so the
	// statement takes no row over if it has waited longer than its caller
	// did.
	return x.text(`INSERT INTO {task} (task, run, state, grant_id, holder, token, attempt, started_at, ended_at, free_at, error, history)
		SELECT c.t, c.r, 'running', c.id, c.who, c.first + 0 * LAST_INSERT_ID(c.first * {pack} + 1), 1, {now}, 0, {now} + c.ttl, '', ''
		FROM (SELECT ? AS t, ? AS r, ? AS id, ? AS who, ? AS ttl, ? AS most, ` + first + ` AS first) c
		ON DUPLICATE KEY UPDATE
			grant_id = IF(` + claimable + ` AND ` + strategy.MySQLWaited + ` < {maxwait}, c.id, grant_id),
			history = IF(grant_id = c.id AND ` + claimable + `, RIGHT(CONCAT(history,
				CHAR(10), token, CHAR(9), attempt,
				CHAR(9), IF(state = 'running', 'lost', state),
				CHAR(9), started_at,
				CHAR(9), IF(state = 'running', free_at, ended_at),
				CHAR(9), holder, CHAR(9), error), {history}), history),
			ended_at = IF(grant_id = c.id AND ` + claimable + `, 0, ended_at),
			token = IF(` + won + ` AND ` + claimable + `, IF(token = 0, c.first, token + 1), token),
			holder = IF(` + won + `, c.who, holder),
			started_at = IF(` + won + `, {now}, started_at),
			error = IF(` + won + `, '', error),
			attempt = IF(` + won + ` AND ` + claimable + `, attempt + 1, attempt),
			state = IF(` + begun + `, 'running', state),
			free_at = IF(` + begun + `,
				GREATEST(free_at, {now} + c.ttl) + 0 * LAST_INSERT_ID(token * {pack} + LEAST(attempt, {pack} - 1)),
				free_at + LAST_INSERT_ID(0))`)
}

func (m *mysqlFamily) ready(ctx context.Context, r db.Runner) error {
	if err := m.common.ready(ctx, r); err != nil {
		return err
	}
	return strategy.MeasuresWaits(ctx, r)
}

// lookAtFloor tells a floor that is locked from the row of a run that somebody is
// inserting: a claim waits for either.
func (m *mysqlFamily) lookAtFloor(ctx context.Context, r db.Runner) error {
	_, err := strategy.Exists(ctx, r, m.lookQ, m.task)
	return err
}

// claimArgs are the arguments of a claim, without those of first.
func (m *mysqlFamily) claimArgs(c claim) []any {
	return []any{m.task, []byte(c.run), c.id, c.holder, c.ttl, c.maxAttempts}
}

// renewArgs are the text and the arguments of renewQ.
func (m *mysqlFamily) renewArgs(grants []exclusive.Grant, ttl int64) (string, []any) {
	args := append([]any{m.task}, strategy.Triples(grants)...)
	return strategy.PairText(m.renewQ, grants), append(args, ttl)
}

type mysql struct {
	mysqlFamily
	claimQ string
}

func newMySQL(x texter, task []byte) dialect {
	return &mysql{newMySQLFamily(x, task), claimText(x, pastFloor)}
}

// claim is one round trip when it wins. When it does not, a second one reads
// what is in the way.
func (m *mysql) claim(ctx context.Context, r db.Runner, c claim) (got claimed, err error) {
	var res db.Result
	gaveUp, err := strategy.Impatient(ctx, func(ctx context.Context) (err error) {
		res, err = r.Exec(ctx, m.claimQ, append(m.claimArgs(c), m.task)...)
		return err
	})
	if err != nil {
		return claimed{}, err
	}
	if res.LastID > 0 {
		t := row{id: c.id, token: res.LastID / strategy.Pack, attempt: res.LastID % strategy.Pack}
		return claimed{row: t, won: true}, nil
	}
	t, found, err := m.read(ctx, r, c.run, false)
	// A trigger on the table keeps LAST_INSERT_ID from coming back.
	return claimed{row: t, won: t.id == c.id && t.live(), pending: gaveUp && !found}, err
}

// renew is one round trip when all are renewed.
func (m *mysql) renew(ctx context.Context, r db.Runner, grants []exclusive.Grant, ttl int64) ([]string, error) {
	return lease.Counted(grants, func(grants []exclusive.Grant) (int64, error) {
		query, args := m.renewArgs(grants, ttl)
		res, err := r.Exec(ctx, query, args...)
		// A changed row counts twice (manual, "INSERT … ON DUPLICATE KEY UPDATE").
		return res.Rows / 2, err
	})
}

type mariadb struct {
	mysqlFamily
	claimQ         string
	galera         atomic.Bool // the server is a node of a Galera cluster
	galeraQ, liftQ string
}

func newMariaDB(x texter, task []byte) dialect {
	// RETURNING shows the row as it stands, whether the claim won or not
	// (manual, "INSERT...RETURNING"). A locked row is held: do not wait for a
	// Commit that is under way.
	claim := func(first, returning string) string {
		return "SET STATEMENT innodb_lock_wait_timeout = 0 FOR " + claimText(x, first) + x.text(" RETURNING "+returning)
	}
	m := &mariadb{
		mysqlFamily: newMySQLFamily(x, task),
		claimQ:      claim(pastFloor, "{columns}"),
		// Of the row's own task: so the floor is read when the row is there.
		galeraQ: claim("0", `CASE token WHEN 0 THEN
			COALESCE((SELECT f.token FROM {floor} f WHERE f.task = {task}.task LOCK IN SHARE MODE), 0) ELSE 0 END, {columns}`),
		liftQ: x.text("SET STATEMENT innodb_lock_wait_timeout = 0 FOR UPDATE {task} SET token = ? " + current),
	}
	m.renewQ += " RETURNING grant_id"
	m.lookQ = x.text(`SELECT token FROM {floor} WHERE task = ? LOCK IN SHARE MODE NOWAIT`)
	return m
}

func (m *mariadb) ready(ctx context.Context, r db.Runner) error {
	galera, err := strategy.One(ctx, r, "SHOW SESSION VARIABLES WHERE Variable_name = 'wsrep_on' AND Value = 'ON'", nil,
		func(scan db.Scan) error { return scan(new(string), new(string)) })
	if err != nil {
		return err
	}
	m.galera.Store(galera)
	return m.mysqlFamily.ready(ctx, r)
}

func (m *mariadb) claim(ctx context.Context, r db.Runner, c claim) (got claimed, err error) {
	if m.galera.Load() {
		return m.claimOnGalera(ctx, r, c)
	}
	_, err = strategy.One(ctx, r, m.claimQ, append(m.claimArgs(c), m.task), got.row.scan)
	got.won = got.row.id == c.id && got.row.live() // it may have ended before this copy
	return got, err
}

// claimOnGalera is claim where a transaction that locks the floor before it has written
// can make the whole cluster stand still: the server may not undo it for the sake of a
// node that has raised the floor, and then its COMMIT waits for that node's transaction,
// which waits for its lock. So a new run has token 0, which no grant has, until its row is
// there, and a second statement lifts that past the floor. A late copy of the claim
// inserts a row with token 0 as well.
func (m *mariadb) claimOnGalera(ctx context.Context, r db.Runner, c claim) (got claimed, err error) {
	var floor int64
	_, err = strategy.One(ctx, r, m.galeraQ, m.claimArgs(c), func(scan db.Scan) error { return got.row.scanAnd(scan, &floor) })
	got.won = got.row.id == c.id && got.row.live()
	if err != nil || !got.won || got.row.token != 0 {
		return got, err
	}
	// Of a run that was not forgotten since, token and attempt stay as far apart: Commit
	// goes by that to find out what became of it.
	token := floor + got.row.attempt
	lifted, err := strategy.Changed(ctx, r, m.liftQ, token, m.task, []byte(c.run), c.id, got.row.token)
	if err != nil || !lifted { // not lifted: the claim is run again, and tells why
		return claimed{pending: true}, err
	}
	got.row.token = token
	return got, nil
}

func (m *mariadb) renew(ctx context.Context, r db.Runner, grants []exclusive.Grant, ttl int64) ([]string, error) {
	query, args := m.renewArgs(grants, ttl)
	return strategy.Strings(ctx, r, query, args)
}
