// Package casupdate claims rows of the application's own table by a change of
// their state: UPDATE … SET state = 'PROCESSING' WHERE id = … AND state =
// 'PENDING'. There is no table of ours and no migration.
//
// # Promised
//
//   - OneWinner: of all who claim a row at the same moment one gets it.
//   - OneAtATime: while a row is claimed nobody else gets it.
//   - OncePerKey: a row that is done is not claimed again.
//   - InTx: Commit stores the result and "done" in one transaction.
//   - RefusesStale, with TokenColumn and GrantColumn: Commit and Check of a
//     former holder are refused.
//
// With a TTL a claim can be taken over when its holder has vanished. Then
// TimeBound stands in place of OneAtATime: a holder that is paused past its
// Grant.Expires may overlap with the next one, whose Commit then counts.
//
// # Not promised
//
//   - Without a TTL nothing frees the row of a process that has died. Set it
//     back with Transition, when you know that the process is gone. The same
//     goes for a row that was claimed by nobody: the network can hold a claim
//     back whose answer is missed and which is sent again, until that grant has
//     ended and given the row back. With a TTL such a row is free after it.
//   - Without a GrantColumn a row does not know who has claimed it. If it was
//     set back and claimed again its former holder can finish it, or give it
//     back, under the new one. If the answer to a claim is lost the row stays
//     claimed, and nobody can tell whose it is.
//   - Statements of the application's own that change the state, the token or
//     the grant are not checked. Use Transition.
//   - Effects outside the database are not undone.
//
// # States
//
//	From ──Do──▶ Claimed ──work returned nil, or Commit──▶ Done
//	               │ ▲ └──work failed, and Failed is set──▶ Failed
//	               │ └──the TTL has passed: taken over, next token
//	               └──work failed, or its context ended──▶ From
//
// Transition makes the others, as far as Config.Transitions declares them.
//
// # Failures
//
//	the process dies in work     with a TTL: taken over; without: stays Claimed
//	ctx ends in work             the row goes back to From, on a context of its own
//	panic, runtime.Goexit        the row goes to Failed or From; the panic goes on
//	the answer to a claim,       with a GrantColumn: sent again, and its own effect
//	  finish or transition lost    recognized. If the first copy of a claim
//	                               arrives after the end the row is claimed by
//	                               nobody, for a TTL; without: see above,
//	                               ErrOutcomeUnknown
//	no answer to a claim at all  with a GrantColumn: the row is given back, when the
//	                               server is back; without a TTL for as long as the
//	                               Table is open
//	the answer to COMMIT lost    looked up in the row
//	finish fails                 ErrOutcomeUnknown; the row may still be Claimed
//	renewal fails                repeated until the TTL has almost passed; then
//	                               work's context ends with ErrLost
//	a transaction has the row    ErrHeld at once; Transition waits
//
// # Cost
//
// Do is two round trips, the claim and the finish; with Commit they are the
// claim and the transaction, which with pgx begins and finishes the row in one.
// A refused claim is one round trip on PostgreSQL, two elsewhere, and writes
// nothing. No connection is held while work runs. All claims of a process that
// have a TTL are renewed by one statement.
//
// # Schema
//
// The columns are the application's; see Config for their types. One of those in
// Config that is too small, or pads or cuts what it is given, is ErrSchema. The key's
// columns need a unique index, and on MySQL and MariaDB text keys a character set that
// has every character of a key (utf8mb4).
// These are for a table that has none of them yet:
//
//	ALTER TABLE job ADD COLUMN claim_token bigint;        -- TokenColumn
//	ALTER TABLE job ADD COLUMN claim_grant varchar(64);   -- GrantColumn
//	ALTER TABLE job ADD COLUMN claim_expires bigint;      -- ExpiresColumn
//
// The files casupdate_columns.sql.example of package migrations have these, and
// those for operators, as each database would have them.
package casupdate
