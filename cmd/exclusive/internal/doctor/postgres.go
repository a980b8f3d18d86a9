package doctor

import (
	"fmt"
	"time"
)

var onPostgres = []string{postgres}

var postgresChecks = []Check{
	{
		ID: "pooler", Title: "What is between here and the server", On: onPostgres,
		Why: "No strategy needs a session of its own, so poolers in session and in transaction mode are fine. In transaction mode LISTEN is not heard, so waiters poll, and pgx before PgBouncer 1.21 needs default_query_exec_mode=exec. " +
			"Statement mode has no transactions.",
		Outcomes: []Outcome{
			{Name: "direct", Status: OK, When: "nothing"},
			{Name: "proxy", Status: OK, When: "a proxy or address translation: the same session, from another port"},
			{Name: "session", Status: OK, When: "a pooler, and a connection keeps its server session"},
			{Name: "transaction", Status: OK, When: "a pooler in transaction mode: a connection was seen on another server session"},
			{Name: "statement", Status: Fail, When: "a pooler in statement mode", Mend: "PgBouncer: pool_mode = transaction"},
		},
		needs: "@pooler",
		judge: func(f *Facts) (string, string) {
			switch f.get("@pooler") {
			case "direct":
				return "direct", "a direct connection"
			case "proxy":
				return "proxy", "a proxy or address translation"
			}
			return f.get("@pooler"), "a pooler in " + f.get("@pooler") + " mode"
		},
	},
	limit(timeLimit{"idle_in_transaction_session_timeout", time.Millisecond, probe}, "Time-out of idle transactions",
		"It ends a session that does nothing within a transaction. rowlock keeps its transaction alive with a statement each second; a shorter limit ends the lock while work runs (ErrLost).",
		"{alter:idle_in_transaction_session_timeout} SET idle_in_transaction_session_timeout = '10s'", postgres),
	limit(timeLimit{"transaction_timeout", time.Millisecond, 10 * time.Minute}, "Time-out of transactions (PostgreSQL 17)",
		"It ends every transaction of that age. rowlock's lasts as long as its work (ErrLost); those of the other strategies are short.",
		"give rowlock's work a deadline below it, or {alter:transaction_timeout} SET transaction_timeout = 0", postgres),
	limit(timeLimit{"idle_session_timeout", time.Millisecond, time.Minute}, "Time-out of idle sessions",
		"It closes pooled connections that nobody uses, and the one on which waiters are woken (they poll meanwhile). Each is one failed statement or one reconnect.",
		"keep the pool's idle time below it, or {alter:idle_session_timeout} SET idle_session_timeout = 0", postgres),
	limit(timeLimit{"statement_timeout", time.Millisecond, 5 * time.Second}, "Time-out of statements",
		"A statement that waits for a row lock counts as running: rowlock with Wait, and Check or Commit behind another transaction, end early (ErrUnavailable, and nothing was written).",
		"{alter:statement_timeout} SET statement_timeout = '30s'", postgres),
	limit(timeLimit{"lock_timeout", time.Millisecond, time.Second}, "Time-out of waits for locks",
		"It ends waits before Config.Wait does, and a Check or Commit that meets another transaction is ErrConflict rather than a short wait.",
		"{alter:lock_timeout} SET lock_timeout = '5s'", postgres),
	{
		ID: "synchronous_commit", Title: "A commit that was confirmed is stored", On: onPostgres,
		Why: "If a crash of the server loses commits that were confirmed, a token that was handed out is handed out again, and a run that was done runs again.",
		Outcomes: []Outcome{
			{Name: "waits", Status: OK, When: "synchronous_commit is on, local, remote_write or remote_apply"},
			{Name: "lost", Status: Fail, When: "off", Mend: "{alter:synchronous_commit} SET synchronous_commit = on"},
		},
		needs: "synchronous_commit",
		judge: func(f *Facts) (string, string) {
			found := "synchronous_commit is " + f.get("synchronous_commit")
			if f.is("synchronous_commit", "off") {
				return "lost", found
			}
			return "waits", found
		},
	},
	{
		ID: "fsync", Title: "The disk is waited for", On: onPostgres,
		Why: "Without it a crash of the machine can destroy the database, or bring back an older state of it, older tokens included.",
		Outcomes: []Outcome{
			{Name: "waits", Status: OK, When: "fsync and full_page_writes are on"},
			{Name: "lost", Status: Fail, When: "one of them is off", Mend: "ALTER SYSTEM SET fsync = on; ALTER SYSTEM SET full_page_writes = on; SELECT pg_reload_conf()"},
		},
		needs: "fsync",
		judge: func(f *Facts) (string, string) {
			found := fmt.Sprintf("fsync is %s, full_page_writes is %s", f.get("fsync"), f.get("full_page_writes"))
			if !f.on("fsync") || !f.on("full_page_writes") {
				return "lost", found
			}
			return "waits", found
		},
	},
}
