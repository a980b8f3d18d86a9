package doctor

import (
	"slices"
	"strings"

	"github.com/exclusive-go/exclusive/internal/schema"
)

// sqlChecks are those that are the same on several kinds of server.
var sqlChecks = []Check{
	{
		ID: "schema", Title: "The tables are there", On: inSQL,
		Why: "A strategy whose tables are missing or different says ErrSchema, and no work runs.",
		Outcomes: []Outcome{
			{Name: "complete", Status: OK, When: "all of the strategies that --strategy names; without it, of each that has a table at all"},
			{Name: "none", Status: Warn, When: "no strategy has a table, and --strategy is not given", Mend: "copy the migrations (see exclusive migrations copy --help), or have the tables made: {exclusive init}; casupdate needs none"},
			{Name: "differs", Status: Fail, When: "a table, sequence or column is missing or different", Mend: "what is printed: the migration to apply, or the change to make"},
		},
		judge: func(f *Facts) (string, string) {
			if why, ok := f.Unread["@schema"]; ok {
				return unread, why
			}
			if bad := f.problems(schema.Missing, schema.Kind, schema.Column, schema.Key); len(bad) > 0 {
				return "differs", listed(bad)
			}
			if !f.known("@strategies") {
				return "", ""
			}
			if f.get("@strategies") == "" {
				return "none", "no table of any strategy"
			}
			return "complete", f.get("@strategies")
		},
		mend: func(f *Facts) string {
			return mends(f.problems(schema.Missing, schema.Kind, schema.Column, schema.Key))
		},
	},
	{
		ID: "privileges", Title: "The account may use them", On: inSQL,
		Why: "A statement that is not permitted is ErrUnavailable, and no work runs. The strategies need what is listed in the migrations, and no right to change tables.",
		Outcomes: []Outcome{
			{Name: "enough", Status: OK, When: "all that the strategies need"},
			{Name: "lacks", Status: Fail, When: "one is missing", Mend: "the GRANT statements that are printed"},
		},
		judge: func(f *Facts) (string, string) {
			if bad := f.problems(schema.Privilege); len(bad) > 0 {
				return "lacks", listed(bad)
			}
			if f.get("@strategies") == "" {
				return "", ""
			}
			return "enough", "all that " + f.get("@strategies") + " needs"
		},
		mend: func(f *Facts) string { return mends(f.problems(schema.Privilege)) },
	},
	{
		ID: "storage", Title: "Tables and sequences keep what they were given", On: inSQL,
		Why: "With a sequence's CACHE above 1 each connection hands out numbers of its own block, so a later grant can get a smaller token than an earlier one, and a guard refuses the right holder; with CYCLE tokens begin again. " +
			"An UNLOGGED table of PostgreSQL is empty after a crash. A table of MySQL or MariaDB that is not InnoDB has no transactions.",
		Outcomes: []Outcome{
			{Name: "kept", Status: OK, When: "logged tables, InnoDB, sequences with CACHE 1 and NO CYCLE"},
			{Name: "lost", Status: Fail, When: "something else", Mend: "the ALTER statements that are printed"},
		},
		judge: func(f *Facts) (string, string) {
			if bad := f.problems(schema.Setting); len(bad) > 0 {
				return "lost", listed(bad)
			}
			if f.get("@strategies") == "" {
				return "", ""
			}
			return "kept", "as the migrations make them"
		},
		mend: func(f *Facts) string { return mends(f.problems(schema.Setting)) },
	},
	{
		ID: "tokens", Title: "The sequence is past all leases", On: []string{postgres, mariadb},
		Why: "New keys, and those whose rows were pruned, get tokens from a sequence that is behind: numbers that were handed out before, which a Guard on another database refuses to the rightful holder, and EXCLUSIVE_TOKEN goes back. " +
			"It is so after the tables were restored without the sequence, or after a switch-over that leaves sequences behind. Keys with rows go on from their own tokens; Prune keeps those rows. " +
			"Advance lifts single keys past the sequence too, which needs no mend, and the mend does no harm then. From that it cannot be told apart, and keys with rows are not affected, so this is a warning and no failure: an installation that is as it should be must not fail its check. See which of the two it is. Pruned keys may have been higher than what is found here: if the backup or the former server tells a higher number, use that. " +
			"There is no index on tokens: all leases are read once, without a lock, and for no longer than an answer may take. (On MySQL and SQLite each row counts by itself. Their floor for new keys is that of pruned rows, which are not there to compare it with.)",
		Outcomes: []Outcome{
			{Name: "past", Status: OK, When: "the next token is higher than all that leases have"},
			{Name: "behind", Status: Warn, When: "the sequence is behind the leases", MendOn: map[string]string{
				postgres: "SELECT setval({sequence_text}, {token_highest})",
				mariadb:  "ALTER SEQUENCE {sequence} RESTART WITH {token_next}",
			}},
		},
		needs: "@token_highest",
		judge: func(f *Facts) (string, string) {
			drawn, highest := f.get("@token_drawn"), f.get("@token_highest")
			if f.on("@token_behind") {
				return "behind", "the sequence stands at " + drawn + ", and a lease has token " + highest
			}
			return "past", "the sequence stands at " + drawn + ", and the highest token of a lease is " + highest
		},
	},
	{
		ID: "isolation", Title: "Default isolation level", On: sqlServers,
		Why: "The strategies work at every level, but what they need is READ COMMITTED. At the higher levels a Check or Commit in a transaction that began before the last holder's write is refused (ErrConflict: repeat the whole transaction). " +
			"SERIALIZABLE on MySQL and MariaDB makes plain reads lock rows. At READ UNCOMMITTED a strategy would tell of a Commit that is rolled back in the end, so sessions of MySQL and MariaDB at that level are refused (ErrUnsupported).",
		Outcomes: []Outcome{
			{Name: "fine", Status: OK, When: "PostgreSQL: READ COMMITTED (READ UNCOMMITTED is the same there); MySQL, MariaDB: READ COMMITTED or REPEATABLE READ"},
			{Name: "strict", Status: Warn, When: "PostgreSQL: REPEATABLE READ or SERIALIZABLE; MySQL, MariaDB: SERIALIZABLE", MendOn: map[string]string{
				postgres: "retry on ErrConflict, or {alter:default_transaction_isolation} SET default_transaction_isolation = 'read committed'",
				mysql:    "retry on ErrConflict, or SET GLOBAL transaction_isolation = 'READ-COMMITTED'",
				mariadb:  "retry on ErrConflict, or SET GLOBAL tx_isolation = 'READ-COMMITTED'",
			}},
			{Name: "dirty", Status: Fail, When: "MySQL, MariaDB: READ UNCOMMITTED", MendOn: map[string]string{
				mysql:   "SET GLOBAL transaction_isolation = 'READ-COMMITTED'",
				mariadb: "SET GLOBAL tx_isolation = 'READ-COMMITTED'",
			}},
		},
		needs: "@isolation_level",
		judge: func(f *Facts) (string, string) {
			level := strings.ToUpper(strings.ReplaceAll(f.get("@isolation_level"), "-", " "))
			switch {
			case level == "SERIALIZABLE", level == "REPEATABLE READ" && f.Kind == postgres:
				return "strict", level
			case level == "READ UNCOMMITTED" && f.Kind != postgres:
				return "dirty", level
			}
			return "fine", level
		},
	},
	{
		ID: "replication", Title: "A failover keeps what was confirmed", On: servers,
		Why: "A standby that is behind does not have the newest commits. After a failover to it leases, done runs and tokens of that time are gone. A Guard's marks in another database notice tokens that went back; nothing else does.",
		Outcomes: []Outcome{
			{Name: "alone", Status: OK, When: "there is no replica"},
			{Name: "hidden", Status: Warn, When: "MySQL, MariaDB: no replica is seen, and the account may not see the sessions of others", Mend: "GRANT PROCESS ON *.* TO {grantee}, or run doctor with an account that has this privilege"},
			{Name: "synchronous", Status: OK, When: "commits wait for a replica (Redis: writes stop without one)"},
			{Name: "asynchronous", Status: Warn, When: "there are replicas, and commits do not wait for one", MendOn: map[string]string{
				postgres: "ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (*)'; SELECT pg_reload_conf()",
				mysql:    "INSTALL PLUGIN rpl_semi_sync_source SONAME 'semisync_source.so'; SET PERSIST rpl_semi_sync_source_enabled = 1 (and the same on the replica's side)",
				mariadb:  "SET GLOBAL rpl_semi_sync_master_enabled = 1 (and rpl_semi_sync_slave_enabled on the replicas)",
				redis:    "CONFIG SET min-replicas-to-write 1, and CONFIG REWRITE (it makes the loss rarer, not impossible)",
			}},
		},
		needs: "@replicas",
		judge: func(f *Facts) (string, string) {
			switch {
			case f.number("@replicas") == 0 && f.Unread["@others"] != "":
				return "hidden", "whether there is a replica cannot be known: " + f.Unread["@others"]
			case f.number("@replicas") == 0:
				return "alone", "no replica"
			case f.on("@waits"):
				return "synchronous", f.get("@replicas") + " replica(s), and commits wait for one"
			}
			return "asynchronous", f.get("@replicas") + " replica(s), and no commit waits for one"
		},
	},
}

// problems are the differences of these kinds.
func (f *Facts) problems(kinds ...schema.Problem) (list []schema.Difference) {
	for _, d := range f.Differences {
		if slices.Contains(kinds, d.Problem) {
			list = append(list, d)
		}
	}
	return list
}

// listed says what is wrong, in a line.
func listed(bad []schema.Difference) string {
	var texts []string
	for _, d := range bad {
		texts = append(texts, d.Object+": "+d.Text)
	}
	return strings.Join(texts, "; ")
}

// mends are the mends of problems, each once, one a line.
func mends(bad []schema.Difference) string {
	var lines []string
	for _, d := range bad {
		if !slices.Contains(lines, d.Mend) {
			lines = append(lines, d.Mend)
		}
	}
	return strings.Join(lines, "\n")
}
