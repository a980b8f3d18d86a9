// Package rowlock holds a key by locking a row, with SELECT … FOR UPDATE, for
// the life of one transaction: a row of the application's own, or of the table
// exclusive_lock for keys that are no rows.
//
//	x, err := rowlock.New(pgxdb.New(pool), rowlock.Config{})
//	err = x.Run(ctx, "account/7", func(ctx context.Context, tx pgx.Tx, g exclusive.Grant) error {
//		_, err := tx.Exec(ctx, `UPDATE account SET …`) // in the transaction that holds the lock
//		return err
//	})
//
// # What is promised
//
//   - OneWinner: of all who try a free key at the same moment one gets it; the
//     others get ErrHeld.
//   - OneAtATime: nobody else gets the key while the transaction is open,
//     however long work takes. A crash frees the key with the connection.
//   - RefusesStale: the lock and what Run and Commit write are one transaction.
//     Whoever has lost the lock has lost the transaction, and nothing that was
//     written in it survives. Do never returns nil after a loss.
//   - InTx: what is written in Run and Commit is committed with the lock.
//
// # What is not
//
//   - Nothing protects writes outside of the transaction: on another
//     connection, to files, to other services. If the lock's connection breaks,
//     they may overlap with the next holder's, until work notices that its
//     context has ended. Where that matters use package fencing.
//   - There is no token: Grant.Token is 0.
//   - Work that was done for a key may run again: see package uniquetask.
//   - A grant cannot be proven in a second transaction: Check takes the locking
//     one only.
//   - The lock is not reentrant: Do inside the work of the same key gets ErrHeld.
//   - A cluster with several writable nodes (Galera, group replication) locks
//     rows on one node only: two nodes let two works in under one key, and both
//     can COMMIT unless they have written the same row at the same time. Let all
//     who share keys use one node.
//
// # Modes
//
// Without Config.Wait a row that is locked is refused at once (NOWAIT). With it
// Do waits, at most that long, and no longer than its context. Next passes over
// rows that are locked (SKIP LOCKED) and never waits.
//
// While it waits on PostgreSQL, one waiter of this process for each key blocks
// in the server, on a connection of the pool, in the order in which all
// processes came. The statement is cancelled when the context ends, and limited
// by lock_timeout to 5 s, so that none waits for long that cannot be cancelled:
// after that the waiter comes again, as the last. On MySQL and MariaDB such a waiter could not be stopped and
// would take the row later, so there waiting is polling with NOWAIT, every 10 to
// 250 ms, without a connection between two polls; SQLite likewise. The other
// waiters of the process queue locally and hold no connection. A release in the
// process wakes the first of them.
//
// # States
//
//	free ──locked──▶ held ──Commit, or work returns nil──▶ free, committed
//	                      ──error, panic, ctx ends──▶ free, rolled back
//	                      ──connection lost, transaction ended by the server──▶ free, rolled back; ErrLost
//
// # What happens when
//
//	the process dies          the server ends the transaction with the connection: for a kill at
//	                          once, for a lost machine when TCP keep-alive finds out
//	the connection breaks     the next probe (Config.Probe) ends work's context with ErrLost;
//	                          Commit and Do return ErrLost, nothing is written
//	an idle time-out of the   the probe keeps it away if it is longer than Config.Probe; otherwise as
//	server, or of a proxy     above. PostgreSQL 17's transaction_timeout: as above
//	work hangs                the key stays taken, and probes keep the connection open: give work a
//	                          deadline
//	apply fails in Commit     its writes are undone, the lock stays; unless a deadlock on MySQL or
//	                          MariaDB (ErrConflict), a cancelled statement (the context's error) or
//	                          a broken connection (ErrLost) has ended the transaction
//	COMMIT gets no answer     PostgreSQL is asked what became of the transaction: nil or ErrLost.
//	                          MySQL and MariaDB cannot tell: ErrOutcomeUnknown from Commit and Run;
//	                          from Do without Commit, which has written nothing, ErrLost
//	work leaves a Commit      Do waits for it, and answers by it; its apply has 5 s. After that Do
//	behind                    is ErrLost, and the transaction, with the lock, is rolled back when
//	                          apply returns
//	the pool is exhausted,    Do waits until its context ends; with Config.Wait until that, and 3 s
//	or the server is silent   more, have passed: ErrUnavailable
//	work, or apply, has the   what is called inside with its context, and needs another one, is
//	pool's only connection    ErrUnavailable: with rowlock, also on other Locks of that pool, and
//	                          with the other strategies. A lock inside work is so too when works
//	                          have all of several connections
//	the server is read-only   ErrUnavailable
//	the table is missing      ErrSchema
//	the row is missing        in the application's table ErrNoRow, also if one has a name that only
//	                          the column's collation takes for the same; in ours it is made
//
// # Cost
//
// One connection of the pool is held while work runs: keep work short, and the
// pool larger than the number of works at a time. The transaction also keeps
// PostgreSQL from vacuuming what was deleted since, and MySQL from purging it,
// once it has read.
//
// Round trips of Do without contention are 3: BEGIN, SELECT, COMMIT. With pgx
// they are 2, here and below one less: BEGIN travels with the SELECT, which
// database/sql cannot do. Run adds none on PostgreSQL and SQLite, and 2 on MySQL
// and MariaDB, for a savepoint that proves at the end that the server has not
// ended the transaction by itself. Commit adds 1 for the savepoint to which a
// failing apply is undone, 2 on MySQL and MariaDB. DoAll has one SELECT for each
// key. A refusal is BEGIN, SELECT and ROLLBACK, and nothing at all if the holder
// is in this process. A key that is new to exclusive_lock costs 4 more, once.
// MySQL and MariaDB write nothing for a lock; PostgreSQL writes a mark on the
// row, and flushes it once.
//
// A database of PostgreSQL whose default isolation is REPEATABLE READ or
// SERIALIZABLE would show a holder the state from before its lock. There the
// transaction is set to READ COMMITTED, which costs one more.
//
// # Schema
//
// The table is made by the rowlock files of package migrations. For rows of the
// application's own see Config.Table; there FOR NO KEY UPDATE is used on
// PostgreSQL, so that rows which refer to the locked one can still be inserted.
//
// # SQLite
//
// SQLite has no row locks. A lock takes the only write lock of the database: all
// keys exclude each other and every other writer, and a writer of no concern
// makes Do return ErrHeld. That exclusion is real, also between processes. Work
// must write in Run or Commit; on another connection it would wait for itself.
// With _txlock=immediate in the DSN, BEGIN takes the lock, and waits for it as
// long as the connection's busy time-out says.
package rowlock
