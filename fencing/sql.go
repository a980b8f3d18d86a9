package fencing

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/internal/strategy"
)

// dialect is the SQL of this package on one kind of server. Each method is one
// statement, so one round trip, and may be run twice without harm.
type dialect interface {
	// ready fails if a table is missing, or the sequence is not as it must be.
	ready(ctx context.Context, r db.Runner) error

	// acquire takes the key if it is free or has run out, or belongs to this
	// grant already (the statement ran before and its answer was lost). The
	// former is one more attempt. A grant that is over is not had again: such a
	// statement is a copy of one that ran before. When it does not take the key the
	// row says who has it, as far as the server told.
	acquire(ctx context.Context, r db.Runner, a acquisition) (acquired, error)
	// renew extends what still belongs to its grant, except rows that are
	// locked, and returns the grant ids that it extended.
	renew(ctx context.Context, r db.Runner, grants []exclusive.Grant, ttl int64) (extended []string, err error)
	// finish ends the grant, in the given way, if it is current and reports
	// whether it was. In a transaction the row stays locked until that ends.
	finish(ctx context.Context, r db.Runner, g exclusive.Grant, how ending) (bool, error)
	// prove locks the lease's row and reports whether the grant is current.
	prove(ctx context.Context, r db.Runner, g exclusive.Grant) (bool, error)
	// reread reads the row in a transaction in which prove or finish has just
	// refused, as it is now and not as an old snapshot shows it.
	reread(ctx context.Context, r db.Runner, key string) (row leaseRow, found bool, err error)
	// lease reads a row; lock waits for the transactions that hold it.
	lease(ctx context.Context, r db.Runner, key string, lock bool) (row leaseRow, found bool, err error)
	// list reads up to limit rows behind after, in the order of their keys.
	list(ctx context.Context, r db.Runner, after string, held bool, limit int64) ([]leaseRow, error)
	// advance makes the next token of key greater than floor.
	advance(ctx context.Context, r db.Runner, key string, floor int64) error

	// old reads which rows behind after were free at least age microseconds ago,
	// and had their last grant then too, up to strategy.PruneBatch, and their highest
	// token.
	old(ctx context.Context, r db.Runner, after string, age int64) (keys [][]byte, token int64, err error)
	// raise makes the tokens of new rows greater than token, where that can be
	// done, and returns the token which those of new rows exceed.
	raise(ctx context.Context, r db.Runner, token int64) (floor int64, err error)
	// prune removes those of the rows that are still like that and have no
	// token past floor. It returns their number.
	prune(ctx context.Context, r db.Runner, keys [][]byte, age, floor int64) (int64, error)

	// mark locks the mark's row and moves it to g, if g is allowed to. Outside of a
	// transaction the answer counts for inUse only.
	mark(ctx context.Context, r db.Runner, g exclusive.Grant, how use) (accepted bool, err error)
	// readMark reads a mark; lock waits for the transactions that hold it.
	readMark(ctx context.Context, r db.Runner, key string, lock bool) (m markRow, found bool, err error)

	// beginOp inserts the operation unless it exists, waiting for whoever is
	// inserting it, and reports whether it was inserted.
	beginOp(ctx context.Context, r db.Runner, opID string, payload []byte) (bool, error)
	// readOp reads an operation that exists.
	readOp(ctx context.Context, r db.Runner, opID string) (o opRow, found bool, err error)
	// endOp stores the result.
	endOp(ctx context.Context, r db.Runner, opID string, result []byte) error
}

// acquisition is what acquire is given.
type acquisition struct {
	key, id, holder string
	ttl             int64 // microseconds
	waiting         bool  // it will be tried again until the key is free
}

// acquired is what came of it.
type acquired struct {
	row leaseRow
	won bool
	// pending is whether a statement was given up that may yet take effect.
	pending bool
}

// leaseRow is a row of the lease table, and the server's time when it was read.
type leaseRow struct {
	key                               string // only from list
	id, holder                        string
	token, attempt, acquired, expires int64
	now                               int64
}

// scan reads the columns of leaseColumns.
func (l *leaseRow) scan(scan db.Scan) error {
	return scan(&l.id, &l.holder, &l.token, &l.attempt, &l.acquired, &l.expires, &l.now)
}

// leaseColumns is what leaseRow.scan reads.
const leaseColumns = `grant_id, holder, token, attempt, acquired_at, expires_at, {now}`

// ending is how a grant ended. The row's expiry keeps it: long past on any
// clock, so that a clock that goes back does not make a free key held.
type ending struct {
	attempts int64 // what the attempts are multiplied with: 0 = in good order
	never    int64 // how many of them were none after all
	expires  int64
}

var (
	released  = ending{0, 0, 0}
	gaveUp    = ending{1, 0, 0}
	unclaimed = ending{1, 1, 0} // the acquire's answer was lost
	committed = ending{0, 0, 1}
	freed     = ending{1, 0, 2} // by an operator: its holder has lost it
)

// status is what operators see of a row.
func (l *leaseRow) status(key string) exclusive.Status {
	s := exclusive.Status{Key: key, Held: l.live(), Attempt: int(l.attempt), Last: exclusive.Holder{
		ID: l.id, Name: l.holder, Token: l.token, Since: time.UnixMicro(l.acquired),
	}}
	if l.expires > freed.expires {
		s.Last.Expires = time.UnixMicro(l.expires)
	}
	return s
}

// live reports whether the row is held.
func (l *leaseRow) live() bool { return l.attempt > 0 && l.expires > l.now }

// ended reports whether the last grant was ended, and did not run out.
func (l *leaseRow) ended() bool { return l.expires <= committed.expires }

// who describes the holder for an error, or is nil if there is none.
func (l *leaseRow) who() *exclusive.Holder {
	if !l.live() {
		return nil
	}
	return &exclusive.Holder{
		ID: l.id, Name: l.holder, Token: l.token,
		Since: time.UnixMicro(l.acquired), Expires: time.UnixMicro(l.expires),
	}
}

type markRow struct {
	token    int64
	id       string
	finished use
}

// use is how far a mark's grant has come, in the column "finished".
type use int64

const (
	inUse      use = iota
	useEnded       // by a Commit
	useStopped     // its Do has returned without one
)

type opRow struct {
	payload, result []byte
	applied         int64 // not to be seen in an empty result: drivers differ
}

// names are the quoted names of a configuration's tables.
type names struct{ lease, token, mark, op string }

// text fills the names and the dialect's clock into a statement.
func (n names) text(now string) func(string) string {
	return strings.NewReplacer(
		"{columns}", strings.ReplaceAll(leaseColumns, "{now}", now),
		"{lease}", n.lease, "{token}", n.token, "{mark}", n.mark, "{op}", n.op,
		"{now}", now, "{maxwait}", strategy.MaxWaited, "{pack}", strconv.Itoa(strategy.Pack),
	).Replace
}

// tables quotes the names of the tables.
func tables(d db.Dialect, schema, prefix string) names {
	q := func(name string) string { return strategy.Table(d, schema, prefix, name) }
	return names{lease: q("lease"), token: q("token"), mark: q("mark"), op: q("op")}
}

// newDialect makes the SQL for a server.
func newDialect(d db.Dialect, schema, prefix string) dialect {
	n := tables(d, schema, prefix)
	switch d {
	case db.Postgres:
		return newPostgres(n)
	case db.MySQL:
		return newMySQL(n)
	case db.MariaDB:
		return newMariaDB(n)
	default:
		return newSQLite(n)
	}
}
