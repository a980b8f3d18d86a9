// Package exclusive stops things from happening twice, on the database a team
// already runs.
//
// Five strategies share the interface [Exclusive]. They differ in what they
// promise (see [Promises]), so a team takes the weakest mechanism that keeps
// its invariant and can change its mind by changing a constructor ([Require]
// catches a promise that is lost by that):
//
//   - casupdate claims a row of the application's own table by a state transition
//   - rowlock holds SELECT … FOR UPDATE for the life of one transaction
//   - uniquetask inserts a unique (task, run) row and records the outcome
//   - fencing hands out leases with rising tokens, checked where results are stored
//   - redisbackend does the same with a lease and a counter in Redis
//
// # Words
//
// A key names what must not happen twice. Work is the function that does it. A
// holder has a [Grant]: the right to work on a key. A token is an integer that
// rises with every grant of a key. A lease is a grant bounded by time. The
// destination is where results are stored; a guard is the destination's check,
// and a mark is the highest token that a destination has accepted. A claim
// starts a grant, a finish ends it, and a takeover passes it on from a holder
// that is gone. An operation id names a write that must have one effect.
//
// This package links the standard library only. Adapters for database drivers
// are in db/pgxdb, db/sqldb and db/mysqldb.
package exclusive

import (
	"context"
	"time"
)

// Work is what must not run twice at once, or twice at all, depending on the
// strategy. Its context is cancelled when the caller's is, and, with a cause
// that matches [ErrLost], when the grant is lost: stop then, somebody else may
// be about to start. A Commit does not cancel it.
type Work func(ctx context.Context, g Grant) error

// Exclusive is what all strategies share. Implementations are safe for
// concurrent use.
type Exclusive interface {
	// Do gets a grant for key, runs work under it and ends the grant.
	//
	// It returns nil when work returned nil and the grant was finished. It
	// returns ErrHeld when somebody else holds the key and ErrDone when there
	// is nothing left to do; work did not run then. An error from work is
	// returned as it is: a Do inside work that finds its key held makes the
	// outer one match ErrHeld too. Do ends the grant also when work panics
	// or calls runtime.Goexit, on a context that the caller's cancellation
	// does not reach, bounded in time. If ctx ends while work runs, Do reports
	// that even if work returned nil, unless work had committed.
	//
	// Work should wait for its Commit. One that it has left behind in another
	// goroutine is waited for, bounded in time, and an error of it that comes
	// after work has returned counts as work's; apply has a few seconds, and after
	// that is not committed (ErrLost). The key is given back when that Commit ends.
	Do(ctx context.Context, key string, work Work) error

	// Promises says what this strategy, as configured, keeps.
	Promises() Promises
}

// Transactional strategies can prove a grant inside a database transaction. Tx
// is the transaction type of the adapter, for example pgx.Tx or *sql.Tx.
type Transactional[Tx any] interface {
	Exclusive

	// Check proves in the caller's transaction that g is current and keeps it
	// so until that transaction ends: whoever would take the key over waits.
	// After an error roll the transaction back: ErrFenced (a newer holder
	// exists), ErrLost (the grant ended), ErrConflict (retry it as a whole).
	// Keep the transaction shorter than the grant: renewal waits for it too.
	// After g's own Commit it is ErrInvalid, as a second Commit is.
	Check(ctx context.Context, tx Tx, g Grant) error

	// Commit runs apply in a transaction of its own in which g is proven
	// current and finished. Nil means that the write is durable and the grant
	// is over: a second Commit of the same grant is ErrInvalid. When Do has
	// returned, or the lease was released, it is ErrLost, whether g had
	// committed or not, or ErrFenced once a newer holder exists. After any
	// other result nothing was written, except ErrOutcomeUnknown: then nobody
	// can tell yet. If COMMIT gets no answer what became of it is asked for until
	// the lease ends, or ctx's deadline if that is later, at least for 5 s, after
	// which the end of ctx ends it.
	//
	// apply must not commit or roll back tx, by method or by statement, must
	// not keep it, and must return every error of its statements: after some,
	// the server has ended the transaction, and what is written next is
	// written outside it. It runs at most once per call.
	Commit(ctx context.Context, g Grant, apply func(ctx context.Context, tx Tx) error) error
}

// Leaser hands out leases for work that is not one function call.
type Leaser interface {
	Exclusive

	// TryAcquire answers at once: a lease, or ErrHeld.
	TryAcquire(ctx context.Context, key string) (*Lease, error)

	// Acquire waits for the key until ctx ends. ctx bounds the wait, not the
	// lease. Waiting holds no connection.
	Acquire(ctx context.Context, key string) (*Lease, error)
}

// Grant is the right to work on a key, as handed to [Work].
type Grant struct {
	// Key is what the grant is for. It is stable across attempts and
	// takeovers, which makes it the right idempotency key for effects outside
	// any database. With uniquetask it is the run alone: there take task and
	// run.
	Key string

	// ID is unique to this grant, drawn from crypto/rand.
	ID string

	// Token rises with every grant of the key. 0 means that the strategy has
	// none. Hand it to every destination that can compare it.
	Token int64

	// Attempt counts, from 1, the grants since the key was last finished in
	// good order: 2 or more says that an earlier holder failed or vanished.
	// Not on all strategies: casupdate with a TokenColumn counts all claims of
	// the row, so that Attempt is the token; casupdate without one, and
	// rowlock, remember nothing, so that it is always 1.
	Attempt int

	// Expires is the earliest moment on this machine's clock at which another
	// holder may exist, unless the grant is renewed before. The zero time
	// means that time does not bound the grant.
	Expires time.Time
}
