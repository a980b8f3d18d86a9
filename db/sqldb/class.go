package sqldb

import (
	"context"
	"errors"
	"strings"

	"github.com/exclusive-go/exclusive/internal/db"
)

// classifyPostgres needs of a driver that its errors have SQLState, as those
// of pgx and lib/pq do.
func classifyPostgres(err error) db.Class {
	var state interface{ SQLState() string }
	var broken interface{ SafeToRetry() bool }
	switch {
	case err == nil:
		return db.Other
	case errors.Is(err, db.ErrNotCommitted), errors.Is(err, db.ErrEndedEarly):
		return db.Conflict
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return db.Other
	case errors.As(err, &state):
		// lib/pq begins every transaction with READ WRITE, which a standby
		// refuses with "feature not supported".
		if state.SQLState() == "0A000" && strings.Contains(err.Error(), "read-write mode during recovery") {
			return db.ReadOnly
		}
		return db.SQLState(state.SQLState())
	// pgx of a closed connection. The promise that nothing was sent is not to
	// be relied on: see package pgxdb.
	case errors.As(err, &broken) && broken.SafeToRetry():
		return db.Disconnected
	// What the drivers say themselves of a COMMIT that the server answered
	// with ROLLBACK; the values can be had only by importing them.
	case strings.Contains(err.Error(), "commit unexpectedly resulted in rollback"), // pgx
		strings.Contains(err.Error(), "in a failed transaction"),         // lib/pq
		strings.Contains(err.Error(), "unexpected command tag ROLLBACK"), // lib/pq
		strings.Contains(err.Error(), "unexpected transaction status"):   // lib/pq
		return db.Conflict
	case otherServer(err.Error()):
		return db.Syntax
	}
	return db.Network(err)
}

// otherServer reports whether an error's text is what a server says to the SQL
// of another kind of server: the pool is not what the constructor says.
func otherServer(text string) bool {
	return strings.Contains(text, "syntax error") || strings.Contains(text, "unrecognized token") || // PostgreSQL, SQLite
		strings.Contains(text, "error in your SQL syntax") // MySQL, MariaDB
}

// Primary result codes of SQLite (sqlite.org/rescode.html), and the extended
// ones that mean something else than their primary code.
const (
	sqlitePerm       = 3
	sqliteBusy       = 5
	sqliteLocked     = 6
	sqliteReadOnly   = 8
	sqliteIOErr      = 10
	sqliteCorrupt    = 11
	sqliteFull       = 13
	sqliteCantOpen   = 14
	sqliteProtocol   = 15
	sqliteSchema     = 17
	sqliteTooBig     = 18
	sqliteConstraint = 19
	sqliteMismatch   = 20
	sqliteAuth       = 23
	sqliteRange      = 25
	sqliteNotADB     = 26

	sqliteBusySnapshot         = sqliteBusy | 2<<8
	sqliteConstraintPrimaryKey = sqliteConstraint | 6<<8
	sqliteConstraintUnique     = sqliteConstraint | 8<<8
	sqliteConstraintRowID      = sqliteConstraint | 10<<8
)

// classifySQLite takes the result code of a driver whose errors have Code, as
// modernc.org/sqlite's do. Others, as github.com/mattn/go-sqlite3, have it in
// fields of their own types, out of reach without importing them; they all
// print SQLite's own message, which is what is left to go by.
func classifySQLite(err error) db.Class {
	var code interface{ Code() int }
	switch {
	case err == nil:
		return db.Other
	case errors.Is(err, db.ErrNotCommitted), errors.Is(err, db.ErrEndedEarly):
		return db.Conflict
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return db.Other
	case errors.As(err, &code):
		if c := sqliteCode(code.Code()); c != db.Other {
			return c
		}
		return sqliteText(err.Error())
	}
	if c := db.Network(err); c != db.Other {
		return c
	}
	return sqliteText(err.Error())
}

func sqliteCode(code int) db.Class {
	switch code {
	// The transaction reads an old snapshot and so can never write; or the
	// schema changed under a statement more often than SQLite itself retries.
	case sqliteBusySnapshot, sqliteSchema:
		return db.Conflict
	case sqliteConstraintPrimaryKey, sqliteConstraintUnique, sqliteConstraintRowID:
		return db.Duplicate
	}
	switch code & 0xff {
	case sqliteBusy, sqliteLocked, sqliteProtocol:
		return db.Locked
	case sqliteReadOnly:
		return db.ReadOnly
	case sqlitePerm, sqliteAuth:
		return db.Denied
	case sqliteIOErr, sqliteCorrupt, sqliteFull, sqliteCantOpen, sqliteNotADB:
		return db.Unreachable
	case sqliteTooBig, sqliteConstraint, sqliteMismatch, sqliteRange:
		return db.Data
	}
	return db.Other
}

// sqliteTexts are pieces of SQLite's messages, the more particular ones first.
// SQLITE_ERROR has no extended code for a missing table, so that its text is
// needed with every driver.
var sqliteTexts = []struct {
	piece string
	class db.Class
}{
	{"no such table", db.Schema},
	{"no such column", db.Schema},
	{"has no column named", db.Schema},
	{"no such function", db.Schema},
	{"does not exist", db.Schema}, // says PostgreSQL
	{"no transaction is active", db.Conflict},
	{"UNIQUE constraint failed", db.Duplicate},
	{"PRIMARY KEY must be unique", db.Duplicate},
	{"constraint failed", db.Data},
	{"database is locked", db.Locked},
	{"database table is locked", db.Locked},
	{"database schema is locked", db.Locked},
	{"locking protocol", db.Locked},
	{"readonly database", db.ReadOnly},
	{"unable to open database file", db.Unreachable},
	{"file is not a database", db.Unreachable},
	{"disk I/O error", db.Unreachable},
	{"database or disk is full", db.Unreachable},
	{"malformed", db.Unreachable},
	{"access permission denied", db.Denied},
	{"not authorized", db.Denied},
	{"datatype mismatch", db.Data},
	{"string or blob too big", db.Data},
}

func sqliteText(text string) db.Class {
	for _, t := range sqliteTexts {
		if strings.Contains(text, t.piece) {
			return t.class
		}
	}
	if otherServer(text) {
		return db.Syntax
	}
	return db.Other
}
