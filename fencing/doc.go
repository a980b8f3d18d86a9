// Package fencing hands out leases with rising tokens from a database, and
// checks them where results are stored. Use it when work is longer than a
// transaction should be, and a holder that was paused must not overwrite what
// its successor stored.
//
// # Promise
//
//   - OneWinner: of all who try a free key, one gets it.
//   - TimeBound: nobody else gets the key before Grant.Expires. A lease is
//     renewed in the background, so for a holder that runs this has no end.
//   - RefusesStale: a former holder's Check and Commit are refused from the
//     moment of the takeover. The check locks the lease's own row, so nothing
//     slips in between the check and the write.
//   - InTx: the check, the business write and the release are one transaction.
//
// # No promise
//
//   - Two holders may work at the same time, when one is paused past its lease.
//     What the first does outside guarded transactions (a mail, a payment)
//     happens. Hand the key on as idempotency key, or the token to whoever can
//     compare it.
//   - Work is not done only once: a lease that was given back can be had again.
//     For "once per day" use uniquetask; for a write that may be repeated, Once.
//
// # States of a key
//
//	free ──acquire: new grant, next token, attempt 1──▶ held
//	held ──renew──▶ held                        the same token
//	held ──release, or Commit──▶ free           in good order
//	held ──work fails or panics──▶ given up     free; the next attempt counts on
//	held ──its time passes──▶ expired
//	expired, given up ──acquire: next token, attempt+1──▶ held
//
// All times are on the database's wall clock; only durations cross the driver.
// The holder counts from before each request on its own monotonic clock, minus
// a margin (a tenth of the lease, at most a second), and ends work's context
// then: before anybody else can have the key, and without needing an answer.
//
// # What happens when
//
//	the holder crashes              the key is taken over when the lease ends
//	the holder is paused            as above; its later writes are ErrFenced
//	a renewal fails                 it is retried until the lease ends here; then ErrLost
//	an operator frees it (Release)  ErrLost at the next renewal; writes are refused at once
//	the database is away            ErrUnavailable; a held lease runs out, ErrLost
//	COMMIT gets no answer           the lease's row tells; if not, ErrOutcomeUnknown
//	acquire gets no answer          retried under the same grant id, else given back, and is no attempt
//	ctx ends before a release       that goes on in the background; so does one that is
//	  has an answer                 given back after an acquire, while the server is away
//	a release gets no answer        retried; ErrLost if somebody else has had the key for longer
//	                                than that, or it went on in the background
//	the answer comes too late       ErrUnavailable if the lease was over by then; no work runs
//	the sequence went back          the key's token still rises; see Advance
//	the lease table was restored    a guard on another database refuses; Advance mends it
//	the database's clock jumps on   a lease may be taken over early; the former holder's
//	                                writes are refused all the same
//	the VM is suspended             as a pause; its clock may stop with it
//	the server ends a Commit's      nothing was written; its context stays open until the
//	transaction (idle time-out)     Commit finds out, though the key may pass on
//
// # Cost
//
// Without rivals an acquire is one round trip, a release one, and the renewal of
// up to 500 leases of a process one. Commit carries the release in its own
// transaction: BEGIN, the check, your statements, COMMIT; with pgx BEGIN and the
// check are one round trip; on MySQL and MariaDB two more, to notice when the
// server has ended the transaction on its own. No connection is held while work
// runs or while somebody waits. A waiting process polls once per key, however
// many of its goroutines wait, at most every 250 ms and as soon as the holder's
// lease ends; a release in the same process wakes it. A refused attempt writes
// nothing, except that on MariaDB the first one of a caller draws a number from the
// sequence, which it does not use; on MySQL it is two round trips, elsewhere one. lib/pq sends each
// statement in two steps; use pgx where that matters.
//
// A pool needs two connections, one for work and one for renewal; one will do
// with Config.NoRenew.
//
// # Schema
//
// The fencing files of package migrations: exclusive_lease (one row per key,
// removed by Prune, never by hand: its tokens would start again),
// exclusive_token (a sequence on PostgreSQL and MariaDB, a floor elsewhere),
// exclusive_mark (of Guard) and exclusive_op (of Once).
//
// # Other issuers, other destinations
//
// Leases checks against its own row. If results are stored in another database,
// or leases come from elsewhere, [Guarded] puts a [Guard] in front of the
// destination. [RowGuard] keeps the mark in columns of your own table.
//
// For results that are files or objects: write them aside under a name with the
// token in it, then switch a pointer row in a Commit. A stale holder's file is
// never pointed to.
package fencing
