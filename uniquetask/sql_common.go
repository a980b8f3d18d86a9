package uniquetask

import (
	"context"
	"fmt"
	"strings"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/internal/strategy"
)

// common is what the dialects do alike. The arguments are in the order of their
// placeholders, so that ? and $n mean the same.
type common struct {
	bind func(string) string // db.Dialect.Bind
	task []byte

	readyQ, finishQ, failQ, unclaimQ, releaseQ, proveQ         string
	readQ, lockQ, listQ, floorQ, raiseQ, forgetQ, oldQ, pruneQ string
	nextTaskQ                                                  string
}

// What a grant may still end: nobody has taken the run over, and its
// heartbeat was in time. Who ends it later than that may have overlapped. The
// token: a copy of the grant's own claim may have arrived after its end.
const (
	live    = `WHERE task = ? AND run = ? AND grant_id = ? AND state = 'running' AND free_at > {now}`
	current = live + ` AND token = ?`
)

func newCommon(x texter, task []byte) common {
	f := func(query string) string { return x.d.Bind(x.text(query)) }
	return common{
		bind: x.d.Bind, task: task,

		readyQ:   f(`SELECT COUNT(*) FROM {task} t, {floor} f WHERE t.task = f.task AND 1 = 0`),
		finishQ:  f(`UPDATE {task} SET result = ?, state = 'done', ended_at = {now}, free_at = {now} ` + current),
		failQ:    f(`UPDATE {task} SET error = ?, state = 'failed', ended_at = {now}, free_at = {now} + ? ` + current),
		unclaimQ: f(`UPDATE {task} SET error = ?, state = 'failed', attempt = attempt - 1, ended_at = {now}, free_at = {now} ` + live),
		releaseQ: f(`UPDATE {task} SET free_at = {now} ` + live),
		// Locked, not only read, so that nobody takes the run over until the
		// caller's transaction has ended; a locking read also sees the
		// present, where a plain one could show an old snapshot.
		proveQ: f(`SELECT 1 FROM {task} ` + current + ` FOR UPDATE`),

		readQ: f(`SELECT run, history, {columns} FROM {task} WHERE task = ? AND run = ?`),
		lockQ: f(`SELECT run, history, {columns} FROM {task} WHERE task = ? AND run = ? FOR UPDATE`),
		// Results may be large, and are left out.
		listQ: strings.Replace(f(`SELECT run, history, {columns} FROM {task} WHERE task = ? AND run > ?{state} ORDER BY run LIMIT ?`),
			"result, CASE WHEN result IS NULL THEN 0 ELSE 1 END", "NULL, 0", 1),

		floorQ: f(`SELECT token FROM {floor} WHERE task = ?`),
		// Not DISTINCT, which would read all runs.
		nextTaskQ: f(`SELECT task FROM {task} WHERE task > ? ORDER BY task LIMIT 1`),

		raiseQ: f(`INSERT INTO {floor} AS f (task, token) VALUES (?, ?)
			ON CONFLICT (task) DO UPDATE SET token = EXCLUDED.token WHERE f.token < EXCLUDED.token`),
		// As it was seen: it may have been claimed or have ended meanwhile, or
		// removed and inserted again.
		forgetQ: f(`DELETE FROM {task} WHERE task = ? AND run = ? AND grant_id = ? AND token = ? AND state = ? AND (state <> 'running' OR free_at <= {now})`),

		oldQ: f(`SELECT run, token FROM {task} WHERE task = ? AND run > ? AND free_at <= {now} - ? ORDER BY run LIMIT ?`),
		// By key, so that no row beside those is locked. The condition again:
		// a row may have been claimed meanwhile. The token: it may have ended
		// again, past the floor.
		pruneQ: x.text(`DELETE FROM {task} WHERE task = ? AND free_at <= {now} - ? AND token <= ? AND run IN ({runs})`),
	}
}

func (c *common) ready(ctx context.Context, r db.Runner) error {
	_, err := strategy.Exists(ctx, r, c.readyQ)
	return err
}

func (c *common) finish(ctx context.Context, r db.Runner, g exclusive.Grant, result []byte) (bool, error) {
	return strategy.Changed(ctx, r, c.finishQ, result, c.task, []byte(g.Key), g.ID, g.Token)
}

func (c *common) fail(ctx context.Context, r db.Runner, g exclusive.Grant, text string, rest int64) (bool, error) {
	return strategy.Changed(ctx, r, c.failQ, text, rest, c.task, []byte(g.Key), g.ID, g.Token)
}

func (c *common) unclaim(ctx context.Context, r db.Runner, g exclusive.Grant, text string) (bool, error) {
	return strategy.Changed(ctx, r, c.unclaimQ, text, c.task, []byte(g.Key), g.ID)
}

func (c *common) release(ctx context.Context, r db.Runner, run, id string) (bool, error) {
	return strategy.Changed(ctx, r, c.releaseQ, c.task, []byte(run), id)
}

func (c *common) prove(ctx context.Context, r db.Runner, g exclusive.Grant) (bool, error) {
	return strategy.Exists(ctx, r, c.proveQ, c.task, []byte(g.Key), g.ID, g.Token)
}

func (c *common) read(ctx context.Context, r db.Runner, run string, lock bool) (t row, found bool, err error) {
	query := c.readQ
	if lock {
		query = c.lockQ
	}
	found, err = strategy.One(ctx, r, query, []any{c.task, []byte(run)}, t.scanAll)
	return t, found, err
}

// scanAll reads the columns of read and list.
func (t *row) scanAll(scan db.Scan) error {
	var run []byte
	err := t.scanAnd(scan, &run, &t.history)
	t.run = string(run)
	return err
}

func (c *common) list(ctx context.Context, r db.Runner, after, state string, limit int64) (rows []row, err error) {
	filter := ""
	if state != "" {
		filter = fmt.Sprintf(" AND state = '%s'", state) // one of our constants
	}
	query := strings.Replace(c.listQ, "{state}", filter, 1)
	err = r.Query(ctx, query, []any{c.task, []byte(after), limit}, func(scan db.Scan) error {
		var t row
		err := t.scanAll(scan)
		rows = append(rows, t)
		return err
	})
	return rows, err
}

func (c *common) nextTask(ctx context.Context, r db.Runner, after string) (task string, found bool, err error) {
	found, err = strategy.One(ctx, r, c.nextTaskQ, []any{[]byte(after)}, func(scan db.Scan) error {
		var name []byte
		err := scan(&name)
		task = string(name)
		return err
	})
	return task, found, err
}

// raise: a claim that inserts a row has locked the floor, in share mode, when it
// reads it, and keeps it so until the row is there. So no claim has read a floor
// that is lower than this one when raise has returned, and rows can be removed:
// what is inserted later begins past it. Usually the floor is high enough, and
// then there is nothing to wait for. On Galera no lock is known to other nodes, and
// a claim reads the floor when its row is there: then all that was done before the old
// row went is there too, as nodes apply it in one order.
func (c *common) raise(ctx context.Context, r db.Runner, token int64) error {
	var floor int64
	found, err := strategy.One(ctx, r, c.floorQ, []any{c.task}, func(scan db.Scan) error { return scan(&floor) })
	if err != nil || found && floor >= token {
		return err
	}
	_, err = r.Exec(ctx, c.raiseQ, c.task, token)
	return err
}

func (c *common) lookAtFloor(context.Context, db.Runner) error { return nil }

func (c *common) forget(ctx context.Context, r db.Runner, seen Run) (bool, error) {
	return strategy.Changed(ctx, r, c.forgetQ, c.task, []byte(seen.Run), seen.GrantID, seen.Token, string(seen.State))
}

func (c *common) old(ctx context.Context, r db.Runner, after string, age int64) (runs [][]byte, token int64, err error) {
	err = r.Query(ctx, c.oldQ, []any{c.task, []byte(after), age, int64(strategy.PruneBatch)}, func(scan db.Scan) error {
		var run []byte
		var t int64
		err := scan(&run, &t)
		runs, token = append(runs, run), max(token, t)
		return err
	})
	return runs, token, err
}

func (c *common) prune(ctx context.Context, r db.Runner, runs [][]byte, age, token int64) (int64, error) {
	query := strings.Replace(c.pruneQ, "{runs}", strings.Repeat(", ?", len(runs))[2:], 1)
	args := []any{c.task, age, token}
	for _, run := range runs {
		args = append(args, run)
	}
	res, err := r.Exec(ctx, c.bind(query), args...)
	return res.Rows, err
}
