// Package uniquetask runs each run of a task once: the nightly report of a day,
// the import of a file, the statement of a customer. A run is a row with a unique
// (task, run) key, which remembers how it went: result, error, attempts.
//
//	x, err := uniquetask.New(pgxdb.New(pool), uniquetask.Config{Task: "nightly-report"})
//	err = x.Do(ctx, uniquetask.RunDay(scheduled, zone), func(ctx context.Context, g exclusive.Grant) error {
//		report, err := render(ctx) // long work; no transaction is open
//		if err != nil {
//			return err // this attempt has failed; the next Do tries again
//		}
//		return x.Commit(ctx, g, func(ctx context.Context, tx pgx.Tx) error {
//			_, err := tx.Exec(ctx, `UPDATE report SET …`) // atomic with "done"
//			return err
//		})
//	})
//	if errors.Is(err, exclusive.ErrDone) { … } // somebody did it before, perhaps days ago
//
// # What is promised
//
//   - OneWinner: of all who try a free run at the same moment one gets it; the
//     others get ErrHeld, or ErrDone if they came late.
//   - OncePerKey: a run that is done does not go again, until it is forgotten
//     or pruned. Those who ask get ErrDone with its result.
//   - TimeBound: nobody else gets the run before Grant.Expires. The heartbeat
//     moves that on; work's context ends before it.
//   - RefusesStale: a Commit or Check by a holder whose run was taken over is
//     refused. The row's lock keeps it so until the transaction has ended.
//   - InTx: Commit marks the run as done in the transaction that stores the
//     result. No crash leaves "stored, but not done", or the other way round.
//
// # What is not
//
//   - Work that was begun may be begun again: after a failure, a crash, or a
//     heartbeat that was missing for Config.TTL. What it did outside of Commit
//     (mails, payments, files) is then done twice, unless the other side knows
//     the run: hand it task and run as an idempotency key. With
//     Config.MaxAttempts 1 work begins at most once, and may never be completed.
//   - Two holders may overlap for as long as one of them is paused past its
//     lease; of their Commits one is accepted.
//   - Do without Commit records "done" in a statement of its own, after work.
//     If the process dies between the two, work goes again.
//   - A lock is not this: a key that is free again runs again. Whoever wants a
//     job to go once a day on ten machines whose clocks differ wants this
//     package, and whoever wants it not to overlap with itself wants a lease.
//
// # States
//
//	(none) ──claim──▶ running ──Commit, or work returns nil──▶ done
//	                  running ──work fails──▶ failed ──claim, after its rest──▶ running, attempt+1, token+1
//	                  running ──heartbeat missing for TTL, claim──▶ running, attempt+1, token+1
//	                  running ──Release──▶ running, free to be claimed
//	done, failed, running without a holder ──Forget, Prune──▶ (none)
//
// # What happens when
//
//	work returns an error, panics,    the attempt has failed, with its error. The next Do tries again,
//	or calls runtime.Goexit           after Config.Backoff, up to Config.MaxAttempts; then ErrFailed
//	the caller's context ends         as above, without a rest
//	the process dies                  the next Do takes over when the heartbeat has been missing for TTL
//	the holder is paused longer       its context ends with ErrLost when it wakes; its Commit gets
//	                                  ErrFenced, or ErrLost while nobody has taken over; so does
//	                                  "done" without Commit
//	the database is away              heartbeats are repeated; work's context ends with ErrLost before
//	                                  anybody else can have the run
//	"done" cannot be recorded         ErrOutcomeUnknown; ask Outcome, on the primary. It is recorded
//	                                  later if the server is back before the run's TTL has passed
//	COMMIT gets no answer             the row is looked up: nil, ErrConflict (it did not happen), or
//	                                  ErrOutcomeUnknown if nobody answers
//	a claim gets no answer            it is repeated, and knows its own; or given back, and is no attempt
//	its first copy arrives after      the former holder gets nothing back; a run that can be claimed has
//	that attempt has ended            one more attempt, which nobody has, until TTL has passed
//	the answer to a claim is slow     the lease is renewed before work begins
//	the table is missing              ErrSchema
//	the server is away or read-only   ErrUnavailable; work did not run
//
// # Tokens
//
// Grant.Token rises with every grant of a run, also across Forget and Prune,
// which keep a floor for the task: a claim that inserts a row locks the floor
// in share mode for the length of that statement. A row that is removed in SQL,
// past them, takes its token with it. Grant.Attempt counts the attempts since the
// run was new; it begins anew after Forget. Token and grant id together are what
// is compared.
//
// # Cost
//
// Round trips of Do without contention: claim 1, finish 1. The first claim of a
// Tasks also looks for the task's floor, and makes it if need be. With Commit:
// claim 1, and BEGIN, finish, COMMIT around what apply does (with pgx BEGIN
// travels with the finish, which saves one); on MySQL and MariaDB 2 more, which
// prove that the server has not ended the transaction by itself. A refused Do is
// 1, on MySQL 2, and writes nothing. On a Galera cluster the claim of a new run
// has 3 more, other claims and the heartbeats 2 (docs/decisions/0032-galera.md
// says why). The heartbeats of all runs of a Tasks are one statement each third
// of Config.TTL. No connection is held while work runs or while Do waits.
// Waiting is polling, every 10 to 250 ms, by one waiter for each run in a
// process.
//
// On MySQL a Do waits up to 1.5 s for a Commit of the same run that is under
// way, and gets ErrHeld if that takes longer; elsewhere it gets ErrHeld at once.
//
// # Schema
//
// The uniquetask files of package migrations: exclusive_task, one row for each
// run, and exclusive_task_floor, one row for each task. Roles that claim must be
// allowed to INSERT and UPDATE in both. Names of tasks and runs are compared
// byte for byte. Rows stay until Prune removes them.
package uniquetask
