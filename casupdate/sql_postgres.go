package casupdate

import (
	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/internal/strategy"
)

var postgresTexts = texts{
	now:          strategy.PostgresNow,
	timestamp:    `clock_timestamp()`,
	stateText:    `{state}::text`,
	unpadded:     `::text`,
	claimReturns: true,
	renewReturns: true,
	bytesAsText:  true,

	exactly: strategy.Exactly(db.Postgres),

	//   - A row that is not free is refused by a plain read: no row lock, no
	//     write.
	//   - SKIP LOCKED: an UPDATE alone would wait, with a connection in its
	//     hands, for a Commit that is under way. NO KEY UPDATE is what the UPDATE
	//     takes too; the rows that refer to this one by a foreign key do not
	//     matter.
	//   - The UPDATE has the condition again: it sees the row as it is, the
	//     sub-select perhaps as it was.
	//   - A refused claim says why in the same round trip.
	claim: `WITH got AS (
			UPDATE {table} SET {claim} WHERE {row} AND {free}
			AND EXISTS (SELECT FROM {table} WHERE {row} AND {free} FOR NO KEY UPDATE SKIP LOCKED)
			RETURNING {columns}
		)
		SELECT 1, got.* FROM got
		UNION ALL
		SELECT 0, {columns} FROM {table} WHERE {row} AND NOT EXISTS (SELECT FROM got)`,

	prove:      proveText + ` FOR NO KEY UPDATE`,
	lockedRead: readText + ` FOR NO KEY UPDATE`,

	// SKIP LOCKED: one row in a long transaction must not hold up the renewal
	// of all others.
	renew: `WITH mine AS (
			SELECT {keys} FROM {table} WHERE {state} = {:claimed} AND ({batch}) FOR NO KEY UPDATE SKIP LOCKED
		)
		UPDATE {table} SET {expires} = GREATEST({expires}, {now} + {:ttl}){raise}
		FROM mine WHERE {same_keys} RETURNING {grant}{unpadded}`,

	lockedVersion: versionText + ` FOR NO KEY UPDATE`,
}
