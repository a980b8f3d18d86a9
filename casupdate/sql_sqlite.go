package casupdate

import (
	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/internal/strategy"
)

// SQLite has one writer at a time and no row locks: a transaction that has
// written holds the database. So each statement here that must hold a row
// writes, and it is the first of its transaction: a read first, and the
// upgrade would fail at once if somebody else wrote meanwhile, whatever the
// busy time-out (manual, "Isolation In SQLite").
var sqliteTexts = texts{
	now:          strategy.SQLiteNow,
	timestamp:    `strftime('%Y-%m-%d %H:%M:%f', 'now')`,
	stateText:    `CAST({state} AS TEXT)`,
	renewReturns: true,
	bytesAsText:  true,

	exactly: strategy.Exactly(db.SQLite),

	claim: `UPDATE {table} SET {claim} WHERE {row} AND {free} RETURNING 1, {columns}`,

	prove:      `UPDATE {table} SET {state} = {state} WHERE {current} RETURNING 1`,
	lockedRead: `UPDATE {table} SET {state} = {state} WHERE {row} RETURNING {columns}`,

	renew: `UPDATE {table} SET {expires} = MAX({expires}, {now} + {:ttl}){raise}
		WHERE {state} = {:claimed} AND ({batch}) RETURNING {grant}`,

	lockedVersion: `UPDATE {table} SET {version} = {version} WHERE {row} RETURNING {version}`,
}
