package uniquetask

import (
	"context"
	"strconv"
	"strings"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/internal/strategy"
)

// dialect is the SQL of this package for one task on one kind of server. Each
// method is one statement, so one round trip, unless it says otherwise, and may
// be run twice without harm.
type dialect interface {
	// ready fails if a table is missing.
	ready(ctx context.Context, r db.Runner) error

	// claim begins the run, takes it over, tries it again, or finds that it is
	// this grant's already (the statement ran before and its answer was lost).
	// When it does none of this the row says what is in the way, as far as the
	// server told. A refused claim writes nothing.
	claim(ctx context.Context, r db.Runner, c claim) (claimed, error)
	// renew is the heartbeat: it extends what still belongs to its grant,
	// except rows that are locked, and returns the grant ids that it extended.
	renew(ctx context.Context, r db.Runner, grants []exclusive.Grant, ttl int64) (extended []string, err error)
	// prove locks the row and reports whether the grant is current.
	prove(ctx context.Context, r db.Runner, g exclusive.Grant) (bool, error)

	// finish, fail and unclaim end the grant if it is current and report
	// whether it was. In a transaction the row stays locked until that ends.
	finish(ctx context.Context, r db.Runner, g exclusive.Grant, result []byte) (bool, error)
	fail(ctx context.Context, r db.Runner, g exclusive.Grant, text string, rest int64) (bool, error)
	unclaim(ctx context.Context, r db.Runner, g exclusive.Grant, text string) (bool, error)

	// read reads a row; lock waits for the transactions that hold it.
	read(ctx context.Context, r db.Runner, run string, lock bool) (t row, found bool, err error)
	// list reads up to limit rows behind after, in the order of their keys,
	// without their results. An empty state stands for all.
	list(ctx context.Context, r db.Runner, after, state string, limit int64) ([]row, error)

	// nextTask finds the task behind after.
	nextTask(ctx context.Context, r db.Runner, after string) (task string, found bool, err error)

	// release ends a grant of a running run if it is current, and reports
	// whether it was. The run stays as one whose heartbeat is missing.
	release(ctx context.Context, r db.Runner, run, id string) (bool, error)
	// raise makes the tokens of new rows greater than token. It waits for the
	// claims that have read the floor, unless that is high enough: then it is one
	// statement, otherwise two.
	raise(ctx context.Context, r db.Runner, token int64) error
	// lookAtFloor fails if the floor is locked, where a claim does not say so.
	lookAtFloor(ctx context.Context, r db.Runner) error
	// forget removes a row if it is as it was seen, and nobody works on it.
	forget(ctx context.Context, r db.Runner, seen Run) (bool, error)
	// old reads which rows behind after ended at least age microseconds ago, up
	// to strategy.PruneBatch, and the highest of their tokens.
	old(ctx context.Context, r db.Runner, after string, age int64) (runs [][]byte, token int64, err error)
	// prune removes those of the rows that are still like that and have no
	// token past the given one. It returns their number.
	prune(ctx context.Context, r db.Runner, runs [][]byte, age, token int64) (int64, error)
}

// claim is what a claim is given.
type claim struct {
	run, id, holder  string
	ttl, maxAttempts int64 // ttl in microseconds
}

// claimed is what came of it.
type claimed struct {
	row row
	won bool
	// pending is whether a statement was given up that may yet take effect, or that
	// has left the row to this grant unfinished.
	pending bool
}

// row is a row of the task table, and the server's time when it was read.
type row struct {
	run, history              string // only from list and read
	state, id, holder, text   string
	token, attempt            int64
	started, ended, free, now int64
	result                    []byte // nil: none
}

// columns is what row.scan reads. Drivers differ in what an empty value is, so
// the statement says what is NULL.
const columns = `state, grant_id, holder, token, attempt, started_at, ended_at, free_at, error, {now},
	result, CASE WHEN result IS NULL THEN 0 ELSE 1 END`

func (t *row) scan(scan db.Scan) error { return t.scanAnd(scan) }

// scanAnd reads further columns, which come first.
func (t *row) scanAnd(scan db.Scan, first ...any) error {
	var result []byte
	var has int64
	err := scan(append(first, &t.state, &t.id, &t.holder, &t.token, &t.attempt, &t.started, &t.ended, &t.free, &t.text, &t.now,
		&result, &has)...)
	t.result = nil
	if has == 1 {
		t.result = append([]byte{}, result...)
	}
	return err
}

// live reports whether a holder works on it.
func (t *row) live() bool { return t.state == string(Running) && t.free > t.now }

// maxHistory is how much of its history a row keeps, the newest part.
const maxHistory = 16 << 10

// maxText is how much is kept of an attempt's error.
const maxText = 1000

// texter fills a dialect's names, clock and functions into a statement.
type texter struct {
	d           db.Dialect
	task, floor string
}

func (x texter) text(query string) string {
	now := strategy.Now(x.d)
	return strings.NewReplacer(
		"{task}", x.task, "{floor}", x.floor, "{now}", now,
		"{columns}", strings.ReplaceAll(columns, "{now}", now),
		"{maxwait}", strategy.MaxWaited, "{pack}", strconv.Itoa(strategy.Pack),
		"{history}", strconv.Itoa(maxHistory),
	).Replace(query)
}

// newDialect makes the SQL for a server.
func newDialect(d db.Dialect, cfg Config) dialect {
	x := texter{
		d:     d,
		task:  strategy.Table(d, cfg.Schema, cfg.Prefix, "task"),
		floor: strategy.Table(d, cfg.Schema, cfg.Prefix, "task_floor"),
	}
	task := []byte(cfg.Task)
	switch d {
	case db.Postgres:
		return newPostgres(x, task)
	case db.MySQL:
		return newMySQL(x, task)
	case db.MariaDB:
		return newMariaDB(x, task)
	default:
		return newSQLite(x, task)
	}
}
