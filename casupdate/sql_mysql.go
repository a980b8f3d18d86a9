package casupdate

import (
	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/internal/strategy"
)

// mysqlTexts is for MySQL and MariaDB. Neither has UPDATE … RETURNING; the
// token comes back in the same answer through LAST_INSERT_ID(expr) (MySQL
// manual, "Information Functions").
var mysqlTexts = texts{
	now:       strategy.MySQLNow,
	timestamp: `UTC_TIMESTAMP(6)`,
	stateText: `CAST({state} AS CHAR)`,
	byLastID:  true,

	exactly: strategy.Exactly(db.MySQL),

	// UPDATE cannot skip a locked row, a derived table can. LIMIT keeps it from
	// being merged into the UPDATE, and STRAIGHT_JOIN has it read first. It is
	// a locking read, so the row is as it says until the UPDATE has changed it.
	// Nothing is written when it is refused. FORCE INDEX: a scan, which is what
	// the optimizer prefers in a small table, would lock the rows of others,
	// and wait for them.
	claim: `UPDATE (SELECT {keys}{own_column} FROM {table} FORCE INDEX ({index}) WHERE {row} AND {free} LIMIT 1 FOR UPDATE SKIP LOCKED) free
		STRAIGHT_JOIN {table} FORCE INDEX ({index}) ON {same_keys} SET {claim}`,
	// The index that makes the key unique.
	index: `SELECT INDEX_NAME FROM information_schema.STATISTICS
		WHERE TABLE_SCHEMA = COALESCE({:schema}, DATABASE()) AND TABLE_NAME = {:table} AND NON_UNIQUE = 0
		GROUP BY INDEX_NAME HAVING COUNT(*) = SUM(COLUMN_NAME IN ({:columns}))
		ORDER BY INDEX_NAME <> 'PRIMARY', INDEX_NAME LIMIT 1`,
	empty: `SELECT 1 FROM {table} WHERE FALSE`,

	prove:      proveText + ` FOR UPDATE`,
	lockedRead: readText + ` FOR UPDATE`,

	// + 1: a renewed row really changes, also within one tick of the clock.
	renew: `UPDATE (SELECT {keys} FROM {table} FORCE INDEX ({index}) WHERE {state} = {:claimed} AND ({batch}) LIMIT {size} FOR UPDATE SKIP LOCKED) mine
		STRAIGHT_JOIN {table} FORCE INDEX ({index}) ON {same_keys} SET {expires} = GREATEST({expires} + 1, {now} + {:ttl}){raise}`,

	// A locking read: a plain one could show an old snapshot.
	lockedVersion: versionText + ` FOR UPDATE`,
}
