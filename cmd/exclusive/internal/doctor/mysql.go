package doctor

import (
	"fmt"
	"strings"
	"time"
)

var mysqlChecks = []Check{
	{
		ID: "autocommit", Title: "Statements commit on their own", On: family,
		Why: "The strategies begin transactions where they need one. In a session without autocommit every other statement is never stored: it is refused (ErrUnsupported).",
		Outcomes: []Outcome{
			{Name: "on", Status: OK, When: "autocommit is on in new sessions"},
			{Name: "off", Status: Fail, When: "it is off", Mend: "take autocommit out of the DSN, or: SET GLOBAL autocommit = 1, and the same in the server's configuration (and in init_connect)"},
		},
		needs: "autocommit",
		judge: func(f *Facts) (string, string) {
			if !f.on("autocommit") {
				return "off", "autocommit is off"
			}
			return "on", "autocommit is on"
		},
	},
	{
		ID: "init_connect", Title: "What the server runs in each new session", On: family,
		Why: "It runs for every account without the privilege to administer connections, so yours may not be the session that was looked at here.",
		Outcomes: []Outcome{
			{Name: "nothing", Status: OK, When: "nothing, or nothing that matters"},
			{Name: "changes", Status: Warn, When: "it sets autocommit, the isolation level, or read-only transactions", Mend: "SET GLOBAL init_connect = '', or run doctor with the application's account"},
		},
		needs: "init_connect",
		judge: func(f *Facts) (string, string) {
			text := f.get("init_connect")
			if text == "" {
				return "nothing", "init_connect is empty"
			}
			for _, word := range []string{"autocommit", "isolation", "read_only", "read only"} {
				if strings.Contains(strings.ToLower(text), word) {
					return "changes", fmt.Sprintf("init_connect is %.200q", text)
				}
			}
			return "nothing", fmt.Sprintf("init_connect is %.200q", text)
		},
	},
	{
		ID: "sql_mode", Title: "Values that do not fit are refused", On: family,
		Why: "Without a strict mode the server cuts a value that is too long, and says nothing. The keys of the strategies are checked before they are sent; your own results are not.",
		Outcomes: []Outcome{
			{Name: "strict", Status: OK, When: "sql_mode has STRICT_TRANS_TABLES or STRICT_ALL_TABLES"},
			{Name: "lax", Status: Warn, When: "it has neither", Mend: "add STRICT_TRANS_TABLES to sql_mode, of the server or in the DSN: sql_mode='STRICT_TRANS_TABLES'"},
		},
		needs: "sql_mode",
		judge: func(f *Facts) (string, string) {
			if strings.Contains(f.get("sql_mode"), "STRICT_") {
				return "strict", "sql_mode is strict"
			}
			return "lax", fmt.Sprintf("sql_mode is %q", f.get("sql_mode"))
		},
	},
	limit(timeLimit{"wait_timeout", time.Second, 30 * time.Second}, "Time-out of idle connections",
		"It closes a connection that has been idle that long: a pooled one, and the one that holds a lock of rowlock (which says something each second).",
		"SET GLOBAL wait_timeout = 300, and keep the pool's ConnMaxIdleTime below it", mysql, mariadb),
	limit(timeLimit{"idle_transaction_timeout", time.Second, probe}, "Time-out of idle transactions (MariaDB)",
		"It closes a connection that does nothing within a transaction. rowlock's says something each second; a shorter limit ends the lock while work runs (ErrLost).",
		"SET GLOBAL idle_transaction_timeout = 10", mariadb),
	limit(timeLimit{"idle_write_transaction_timeout", time.Second, probe}, "Time-out of idle transactions that have written (MariaDB)",
		"As idle_transaction_timeout.", "SET GLOBAL idle_write_transaction_timeout = 10", mariadb),
	limit(timeLimit{"max_statement_time", time.Second, 5 * time.Second}, "Time-out of statements (MariaDB)",
		"A statement that waits for a row lock counts as running: a Check or Commit behind another transaction ends early, and nothing was written.",
		"SET GLOBAL max_statement_time = 30", mariadb),
	{
		ID: "innodb_lock_wait_timeout", Title: "Time-out of waits for row locks", On: family,
		Why: "A Check or Commit that meets another transaction on its row waits that long, and is then ErrConflict.",
		Outcomes: []Outcome{
			{Name: "some", Status: OK, When: "1 s to 120 s (the default is 50)"},
			{Name: "none", Status: Warn, When: "0 (MariaDB): every wait fails at once", Mend: "SET GLOBAL innodb_lock_wait_timeout = 50"},
			{Name: "long", Status: Warn, When: "more than 120 s: longer than most leases last", Mend: "SET GLOBAL innodb_lock_wait_timeout = 50"},
		},
		needs: "innodb_lock_wait_timeout",
		judge: func(f *Facts) (string, string) {
			seconds := f.number("innodb_lock_wait_timeout")
			found := fmt.Sprintf("innodb_lock_wait_timeout is %.0fs", seconds)
			switch {
			case seconds < 1:
				return "none", found
			case seconds > 120:
				return "long", found
			}
			return "some", found
		},
	},
	{
		ID: "sysdate_is_now", Title: "A statement can tell how long it has waited", On: family,
		Why: "A claim whose caller has gone must not take the key late, so it measures by SYSDATE() for how long it has waited. Where that cannot be measured uniquetask, and on MySQL fencing, refuse to work (ErrUnsupported).",
		Outcomes: []Outcome{
			{Name: "moves", Status: OK, When: "SYSDATE() goes on while a statement runs"},
			{Name: "stands", Status: Fail, When: "it is the time of the statement's beginning, as NOW() is", Mend: "start the server without --sysdate-is-now"},
		},
		needs: "@measures_waits",
		judge: func(f *Facts) (string, string) {
			if f.on("@measures_waits") {
				return "moves", "SYSDATE() goes on while a statement runs"
			}
			return "stands", "SYSDATE() stands still while a statement runs"
		},
	},
	{
		ID: "innodb_flush_log_at_trx_commit", Title: "A commit that was confirmed is stored", On: family,
		Why: "If a crash loses commits that were confirmed, a token that was handed out is handed out again, and a run that was done runs again.",
		Outcomes: []Outcome{
			{Name: "disk", Status: OK, When: "1 (MariaDB also 3): the disk is waited for"},
			{Name: "system", Status: Warn, When: "2: a crash of the machine loses the last second, one of the server nothing", Mend: "SET GLOBAL innodb_flush_log_at_trx_commit = 1"},
			{Name: "lost", Status: Fail, When: "0: every crash loses the last second", Mend: "SET GLOBAL innodb_flush_log_at_trx_commit = 1"},
		},
		needs: "innodb_flush_log_at_trx_commit",
		judge: func(f *Facts) (string, string) {
			found := "innodb_flush_log_at_trx_commit is " + f.get("innodb_flush_log_at_trx_commit")
			switch f.get("innodb_flush_log_at_trx_commit") {
			case "0":
				return "lost", found
			case "2":
				return "system", found
			}
			return "disk", found
		},
	},
	{
		ID: "sync_binlog", Title: "The binary log is stored with the commit", On: family,
		Why: "After a crash of the machine the binary log, and every replica that follows it, lacks the last commits: a failover then goes back in time, tokens included.",
		Outcomes: []Outcome{
			{Name: "off", Status: OK, When: "there is no binary log"},
			{Name: "each", Status: OK, When: "sync_binlog is 1"},
			{Name: "some", Status: Warn, When: "another value", Mend: "SET GLOBAL sync_binlog = 1"},
		},
		needs: "log_bin",
		judge: func(f *Facts) (string, string) {
			switch {
			case !f.on("log_bin"):
				return "off", "no binary log"
			case f.is("sync_binlog", "1"):
				return "each", "sync_binlog is 1"
			}
			return "some", "sync_binlog is " + f.get("sync_binlog")
		},
	},
	{
		ID: "galera", Title: "Several servers that take writes", On: family,
		Why: "Of two nodes that write the same row one fails at COMMIT, and begins again or tells ErrConflict. So casupdate, uniquetask and fencing, whose grants are rows that are written, hold there, as does what Commit and Guard protect. Row locks are known to one node only: two nodes let two works in under the same key of rowlock, and both can COMMIT; a Check that only locks its row may pass beside the next holder's. A node that lags, or is cut off, answers from old data.",
		Outcomes: []Outcome{
			{Name: "one", Status: OK, When: "no Galera, no Group Replication with several primaries"},
			{Name: "many", Status: Warn, When: "Galera, or Group Replication in multi-primary mode", Mend: "let all processes that use rowlock, or Check in transactions of their own, use one node (a proxy with a single writer); casupdate, uniquetask and fencing may use all. Set wsrep_sync_wait = 7 where reads decide"},
			{Name: "apart", Status: Fail, When: "a Galera node that is not in step, or outside of the primary component", Mend: "name a node whose wsrep_local_state_comment is Synced in a component that is Primary"},
		},
		judge: func(f *Facts) (string, string) {
			switch {
			case f.on("wsrep_on"):
				state, component := f.get("wsrep_local_state_comment"), f.get("wsrep_cluster_status")
				found := fmt.Sprintf("Galera with %s node(s), this one %s, component %s", f.get("wsrep_cluster_size"), state, component)
				if !f.is("wsrep_local_state_comment", "Synced", "Donor/Desynced") || !f.is("wsrep_cluster_status", "Primary") {
					return "apart", found
				}
				return "many", found
			case f.is("group_replication_single_primary_mode", "OFF") && f.get("group_replication_group_name") != "":
				return "many", "Group Replication in multi-primary mode"
			}
			return "one", "one server takes writes"
		},
	},
}
