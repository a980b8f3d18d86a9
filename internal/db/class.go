package db

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"time"
)

// How long the adapters wait for what must be finished although the caller's
// context has ended.
const (
	CommitWait   = 10 * time.Second
	RollbackWait = 5 * time.Second
)

// Class is what an error of a driver means to a strategy.
type Class uint8

const (
	// Other: none of the below; a mistake in the statement or the call.
	Other Class = iota
	// Conflict: the transaction is dead (deadlock, serialization failure).
	// Run it again.
	Conflict
	// Locked: somebody else has the lock (NOWAIT, lock time-out, a busy SQLite
	// file). On MySQL the transaction still lives and must be rolled back.
	Locked
	// Timeout: the server's time limit for statements.
	Timeout
	// Disconnected: the connection broke; the statement may have run.
	Disconnected
	// Unreachable: nothing was sent (refused, no such host, pool closed, too
	// many connections, shutting down).
	Unreachable
	// ReadOnly: a standby, or a server set read-only.
	ReadOnly
	// Denied: the password or a privilege is missing.
	Denied
	// Schema: a table, column, sequence or schema does not exist.
	Schema
	// Duplicate: a unique key exists already.
	Duplicate
	// Data: the value does not fit the column.
	Data
	// Syntax: the server does not understand the statement: it is another one
	// than the adapter is for, or too old. No repetition helps.
	Syntax
)

// MayHaveRun reports whether the statement may have had its effect although it
// failed: its answer is what was lost.
func (c Class) MayHaveRun() bool { return c == Disconnected || c == Timeout }

// MayHaveRun is Class.MayHaveRun for an error. A statement whose context ended
// may have run as well.
func MayHaveRun(c Classifier, err error) bool {
	return err != nil && (c.Classify(err).MayHaveRun() || isContext(err))
}

// SQLState classifies an error code of PostgreSQL (manual, appendix A).
func SQLState(code string) Class {
	switch code {
	case "40001", "40P01":
		return Conflict
	case "55P03":
		return Locked
	case "57014":
		return Timeout
	case "25006":
		return ReadOnly
	case "42501", "0LP01", "0L000":
		return Denied
	case "42P01", "42703", "3F000", "42883", "3D000":
		return Schema
	case "42601":
		return Syntax
	case "23505":
		return Duplicate
	// The transaction is gone or was ended by the server: idle time-outs
	// close the connection, 25P02 follows an error that somebody ignored.
	case "25P02", "25P01":
		return Conflict
	case "25P03", "25P04", "57P01", "57P02", "57P04", "57P05", "40003":
		return Disconnected
	case "57P03", "53300":
		return Unreachable
	}
	// 22023 is about a setting, as of the DSN, and about no value of ours.
	if len(code) != 5 || code == "22023" {
		return Other
	}
	switch code[:2] {
	case "08":
		return Disconnected
	case "28":
		return Denied
	case "22":
		return Data
	case "42": // types, constraints and kinds of objects that are not as they must be
		return Schema
	case "40":
		return Conflict
	case "53", "58":
		return Unreachable
	}
	return Other
}

// Network classifies what drivers share: errors of database/sql, the network
// and the operating system. The context's own errors are Other: look at the
// context.
func Network(err error) Class {
	var op *net.OpError
	var dns *net.DNSError
	switch {
	case err == nil, errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return Other
	case errors.As(err, &dns), errors.As(err, &op) && op.Op == "dial", errors.Is(err, syscall.ECONNREFUSED):
		return Unreachable
	case errors.Is(err, ErrNotCommitted), errors.Is(err, sql.ErrTxDone):
		return Conflict
	case errors.Is(err, driver.ErrBadConn), errors.Is(err, sql.ErrConnDone),
		errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed),
		errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, syscall.EPIPE),
		errors.Is(err, syscall.ECONNRESET), errors.As(err, &op):
		return Disconnected
	// database/sql has no value for this one.
	case err.Error() == "sql: database is closed":
		return Unreachable
	}
	return Other
}
