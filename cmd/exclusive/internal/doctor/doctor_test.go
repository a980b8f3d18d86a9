package doctor

import (
	"flag"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/exclusive-go/exclusive/internal/schema"
)

var update = flag.Bool("update", false, "write docs/doctor.md")

// staged are facts that lead to an outcome.
type staged struct {
	check, kind string
	values      map[string]string
	unread      map[string]string
	outcome     string // "" if the check does not apply
	found       string // part of what was found
	mend        string // part of the mend
}

// v makes values of alternating names and values.
func v(pairs ...string) map[string]string {
	m := make(map[string]string)
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i]] = pairs[i+1]
	}
	return m
}

var stagings = []staged{
	{"connect", postgres, v("@account", "me"), nil, "answers", "connected as me", ""},
	{"connect", sqlite, v(), nil, "answers", "the account", ""},
	{"connect", mysql, v(), v("@connect", "connection refused"), "silent", "refused", "firewall"},

	{"version", postgres, v("@version", "12.0"), nil, "supported", "PostgreSQL 12.0", ""},
	{"version", postgres, v("@version", "19beta1"), nil, "supported", "PostgreSQL 19beta1", ""},
	{"version", postgres, v("@version", "11.22", "@oldest", "12"), nil, "old", "", "upgrade to 12 or later"},
	{"version", postgres, v("@version", "v23.1", "@product", "CockroachDB"), nil, "other", "CockroachDB, which is not PostgreSQL", "exclusivetest"},
	{"version", mysql, v("@version", "8.0.19"), nil, "supported", "", ""},
	{"version", mysql, v("@version", "8.0.18-debug", "@oldest", "8.0.19"), nil, "old", "", ""},
	{"version", mysql, v("@version", "5.7.44", "@oldest", "8.0.19"), nil, "old", "", ""},
	{"version", mariadb, v("@version", "10.11.6-MariaDB-0+deb12u1"), nil, "supported", "", ""},
	{"version", mariadb, v("@version", "10.5.9-MariaDB"), nil, "old", "", ""},
	{"version", sqlite, v("@version", "3.51.2"), nil, "supported", "", ""},
	{"version", sqlite, v("@version", "3.5.9"), nil, "old", "", ""},
	{"version", redis, v("@version", "7.0.15"), nil, "supported", "Redis 7.0.15", ""},
	{"version", redis, v("@version", "8.1.0", "@flavour", "Valkey"), nil, "supported", "Valkey 8.1.0", ""},
	{"version", redis, v("@version", "6.2.14"), nil, "old", "", ""},

	{"writable", postgres, v("@recovery", "f", "@readonly", "off"), nil, "writable", "", ""},
	{"writable", postgres, v("@recovery", "true", "@readonly", "on"), nil, "standby", "", "target_session_attrs"},
	{"writable", postgres, v("@recovery", "false", "@readonly", "on", "@readonly_by", "x", "@alter:default_transaction_read_only", "ALTER ROLE \"me\""), nil, "readonly", "x is on", `ALTER ROLE "me" SET default_transaction_read_only = off`},
	{"writable", mysql, v("@readonly", "on", "@readonly_by", "read_only"), nil, "readonly", "read_only is on", "SET GLOBAL read_only = 0"},
	{"writable", mariadb, v("@readonly", "on", "@readonly_by", "tx_read_only"), nil, "readonly", "", "tx_read_only = 0"},
	{"writable", sqlite, v("@file", "/a.db"), v("@write", "attempt to write a readonly database"), "file", "readonly database", "write access to /a.db"},
	{"writable", redis, v("@recovery", "true"), nil, "standby", "", ""},
	{"writable", redis, v(), v("@recovery", "NOPERM"), unread, "NOPERM", ""},

	{"clock", postgres, v("@skew", "1500", "@skew_width", "200"), nil, "agree", "2ms ahead", ""},
	{"clock", postgres, v("@skew", "-4900000", "@skew_width", "200"), nil, "agree", "4.9s behind", ""},
	{"clock", mysql, v("@skew", "5100000", "@skew_width", "200000"), nil, "agree", "", ""}, // as good as 5 s
	{"clock", mysql, v("@skew", "-61000000", "@skew_width", "200"), nil, "differ", "1m1s behind", "chrony"},
	{"clock", redis, v(), v("@skew", "NOPERM"), unread, "NOPERM", ""},

	{"connections", postgres, v("@limit", "max_connections", "@limit_size", "100", "@used", "90"), nil, "left", "90 of 100", ""},
	{"connections", postgres, v("@limit", "max_connections", "@limit_size", "100", "@used", "91"), nil, "few", "91 of 100", "raise max_connections"},
	{"connections", mysql, v("@limit", "max_user_connections", "@limit_size", "50", "@used", "1", "@pool", "11", "@processes", "5"), nil, "over", "5 processes with 11", "raise max_user_connections"},
	{"connections", mysql, v("@limit", "max_user_connections", "@limit_size", "55", "@used", "1", "@pool", "11", "@processes", "5"), nil, "left", "", ""},
	{"connections", mysql, v("@limit_size", "50", "@used", "1", "@pool", "1", "@processes", "0"), nil, "single", "", "allow 2 connections"},
	{"connections", redis, v(), v("@limit_size", "NOPERM"), unread, "NOPERM", ""},

	{"isolation", postgres, v("@isolation_level", "read committed"), nil, "fine", "READ COMMITTED", ""},
	{"isolation", postgres, v("@isolation_level", "read uncommitted"), nil, "fine", "", ""},
	{"isolation", postgres, v("@isolation_level", "repeatable read", "@alter:default_transaction_isolation", "ALTER DATABASE d"), nil, "strict", "", "ALTER DATABASE d SET default_transaction_isolation = 'read committed'"},
	{"isolation", postgres, v("@isolation_level", "serializable"), nil, "strict", "", ""},
	{"isolation", mysql, v("@isolation_level", "REPEATABLE-READ"), nil, "fine", "", ""},
	{"isolation", mysql, v("@isolation_level", "SERIALIZABLE"), nil, "strict", "", "SET GLOBAL transaction_isolation"},
	{"isolation", mariadb, v("@isolation_level", "READ-UNCOMMITTED"), nil, "dirty", "", "tx_isolation"},

	{"tokens", postgres, v("@token_drawn", "9", "@token_highest", "9", "@token_next", "10", "@token_behind", "false"), nil, "past", "stands at 9", ""},
	{"tokens", postgres, v("@token_drawn", "1", "@token_highest", "9", "@token_next", "10", "@token_behind", "true", "@sequence_text", `'"a"."token"'`), nil, "behind", "stands at 1, and a lease has token 9", `SELECT setval('"a"."token"', 9)`},
	{"tokens", mariadb, v("@token_drawn", "1", "@token_highest", "9", "@token_next", "10", "@token_behind", "1", "@sequence", "`a`.`token`"), nil, "behind", "", "ALTER SEQUENCE `a`.`token` RESTART WITH 10"},
	{"tokens", mariadb, v("@token_drawn", "1"), v("@token_highest", "max_statement_time exceeded"), unread, "max_statement_time", ""},
	{"tokens", postgres, v(), nil, "", "", ""}, // without fencing

	{"pooler", postgres, v("@pooler", "direct"), nil, "direct", "", ""},
	{"pooler", postgres, v("@pooler", "proxy"), nil, "proxy", "", ""},
	{"pooler", postgres, v("@pooler", "session"), nil, "session", "", ""},
	{"pooler", postgres, v("@pooler", "transaction"), nil, "transaction", "", ""},
	{"pooler", postgres, v("@pooler", "statement"), nil, "statement", "", "pool_mode = transaction"},

	{"idle_in_transaction_session_timeout", postgres, v("idle_in_transaction_session_timeout", "0"), nil, "none", "", ""},
	{"idle_in_transaction_session_timeout", postgres, v("idle_in_transaction_session_timeout", "2000"), nil, "long", "is 2s", ""},
	{"idle_in_transaction_session_timeout", postgres, v("idle_in_transaction_session_timeout", "1999", "@alter:idle_in_transaction_session_timeout", "ALTER ROLE me"), nil, "short", "is 1.999s", "ALTER ROLE me SET"},
	{"transaction_timeout", postgres, v(), nil, "", "", ""}, // before 17
	{"transaction_timeout", postgres, v("transaction_timeout", "0"), nil, "none", "", ""},
	{"transaction_timeout", postgres, v("transaction_timeout", "3600000"), nil, "long", "", ""},
	{"transaction_timeout", postgres, v("transaction_timeout", "60000"), nil, "short", "", ""},
	{"idle_session_timeout", postgres, v("idle_session_timeout", "0"), nil, "none", "", ""},
	{"idle_session_timeout", postgres, v("idle_session_timeout", "60000"), nil, "long", "", ""},
	{"idle_session_timeout", postgres, v("idle_session_timeout", "1000"), nil, "short", "", ""},
	{"statement_timeout", postgres, v("statement_timeout", "0"), nil, "none", "", ""},
	{"statement_timeout", postgres, v("statement_timeout", "5000"), nil, "long", "", ""},
	{"statement_timeout", postgres, v("statement_timeout", "200"), nil, "short", "", ""},
	{"statement_timeout", postgres, v(), v("statement_timeout", "no answer"), unread, "no answer", ""},
	{"lock_timeout", postgres, v("lock_timeout", "0"), nil, "none", "", ""},
	{"lock_timeout", postgres, v("lock_timeout", "1000"), nil, "long", "", ""},
	{"lock_timeout", postgres, v("lock_timeout", "10"), nil, "short", "", ""},

	{"synchronous_commit", postgres, v("synchronous_commit", "on"), nil, "waits", "", ""},
	{"synchronous_commit", postgres, v("synchronous_commit", "remote_apply"), nil, "waits", "", ""},
	{"synchronous_commit", postgres, v("synchronous_commit", "off", "@alter:synchronous_commit", "ALTER ROLE me"), nil, "lost", "", "ALTER ROLE me SET synchronous_commit = on"},
	{"fsync", postgres, v("fsync", "on", "full_page_writes", "on"), nil, "waits", "", ""},
	{"fsync", postgres, v("fsync", "off", "full_page_writes", "on"), nil, "lost", "fsync is off", ""},
	{"fsync", postgres, v("fsync", "on", "full_page_writes", "off"), nil, "lost", "full_page_writes is off", ""},

	{"replication", postgres, v("@replicas", "0"), nil, "alone", "", ""},
	{"replication", mariadb, v("@replicas", "0", "@grantee", "'app'@'%'"), v("@others", "you need PROCESS"), "hidden", "cannot be known: you need PROCESS", "GRANT PROCESS ON *.* TO 'app'@'%'"},
	{"replication", mysql, v("@replicas", "1"), v("@others", "you need PROCESS"), "asynchronous", "1 replica(s)", ""}, // of the same account
	{"replication", postgres, v("@replicas", "2", "@waits", "true"), nil, "synchronous", "2 replica(s)", ""},
	{"replication", redis, v("@replicas", "2", "@waits", "false"), nil, "asynchronous", "", "min-replicas-to-write"},

	{"schema", postgres, v("@strategies", "fencing"), nil, "complete", "fencing", ""},
	{"schema", postgres, v("@strategies", "", "@exclusive init", "exclusive init --prefix a_"), nil, "none", "no table", "made: exclusive init --prefix a_"},
	{"schema", sqlite, v(), v("@schema", "no answer"), unread, "no answer", ""},
	{"privileges", mysql, v("@strategies", "fencing"), nil, "enough", "", ""},
	{"privileges", mysql, v("@strategies", ""), nil, "", "", ""},
	{"storage", mariadb, v("@strategies", "fencing"), nil, "kept", "", ""},
	{"storage", mariadb, v("@strategies", ""), nil, "", "", ""},

	{"autocommit", mysql, v("autocommit", "ON"), nil, "on", "", ""},
	{"autocommit", mysql, v("autocommit", "OFF"), nil, "off", "", "SET GLOBAL autocommit = 1"},
	{"init_connect", mysql, v("init_connect", ""), nil, "nothing", "empty", ""},
	{"init_connect", mysql, v("init_connect", "SET NAMES utf8mb4"), nil, "nothing", "SET NAMES", ""},
	{"init_connect", mariadb, v("init_connect", "SET AUTOCOMMIT=0"), nil, "changes", "", "init_connect = ''"},
	{"sql_mode", mysql, v("sql_mode", "ONLY_FULL_GROUP_BY,STRICT_TRANS_TABLES"), nil, "strict", "", ""},
	{"sql_mode", mysql, v("sql_mode", "NO_ENGINE_SUBSTITUTION"), nil, "lax", "NO_ENGINE", "STRICT_TRANS_TABLES"},
	{"wait_timeout", mysql, v("wait_timeout", "28800"), nil, "long", "8h0m0s", ""},
	{"wait_timeout", mysql, v("wait_timeout", "0"), nil, "none", "", ""},
	{"wait_timeout", mysql, v("wait_timeout", "5"), nil, "short", "5s", ""},
	{"idle_transaction_timeout", mariadb, v("idle_transaction_timeout", "0"), nil, "none", "", ""},
	{"idle_transaction_timeout", mariadb, v("idle_transaction_timeout", "2"), nil, "long", "", ""},
	{"idle_transaction_timeout", mariadb, v("idle_transaction_timeout", "1"), nil, "short", "", ""},
	{"idle_write_transaction_timeout", mariadb, v("idle_write_transaction_timeout", "0"), nil, "none", "", ""},
	{"idle_write_transaction_timeout", mariadb, v("idle_write_transaction_timeout", "2"), nil, "long", "", ""},
	{"idle_write_transaction_timeout", mariadb, v("idle_write_transaction_timeout", "1"), nil, "short", "", ""},
	{"max_statement_time", mariadb, v("max_statement_time", "0.000000"), nil, "none", "", ""},
	{"max_statement_time", mariadb, v("max_statement_time", "5.000000"), nil, "long", "", ""},
	{"max_statement_time", mariadb, v("max_statement_time", "0.500000"), nil, "short", "500ms", ""},
	{"innodb_lock_wait_timeout", mysql, v("innodb_lock_wait_timeout", "50"), nil, "some", "50s", ""},
	{"innodb_lock_wait_timeout", mariadb, v("innodb_lock_wait_timeout", "0"), nil, "none", "", ""},
	{"innodb_lock_wait_timeout", mysql, v("innodb_lock_wait_timeout", "121"), nil, "long", "", ""},
	{"sysdate_is_now", mysql, v("@measures_waits", "true"), nil, "moves", "goes on", ""},
	{"sysdate_is_now", mariadb, v("@measures_waits", "false"), nil, "stands", "stands still", "--sysdate-is-now"},
	{"sysdate_is_now", mysql, v(), v("@measures_waits", "no answer"), unread, "no answer", ""},
	{"innodb_flush_log_at_trx_commit", mysql, v("innodb_flush_log_at_trx_commit", "1"), nil, "disk", "", ""},
	{"innodb_flush_log_at_trx_commit", mariadb, v("innodb_flush_log_at_trx_commit", "3"), nil, "disk", "", ""},
	{"innodb_flush_log_at_trx_commit", mysql, v("innodb_flush_log_at_trx_commit", "2"), nil, "system", "", ""},
	{"innodb_flush_log_at_trx_commit", mysql, v("innodb_flush_log_at_trx_commit", "0"), nil, "lost", "", "= 1"},
	{"sync_binlog", mysql, v("log_bin", "ON", "sync_binlog", "1"), nil, "each", "", ""},
	{"sync_binlog", mysql, v("log_bin", "ON", "sync_binlog", "0"), nil, "some", "", ""},
	{"sync_binlog", mariadb, v("log_bin", "OFF", "sync_binlog", "0"), nil, "off", "", ""},
	{"galera", mysql, v(), nil, "one", "", ""},
	{"galera", mariadb, v("wsrep_on", "OFF"), nil, "one", "", ""},
	{"galera", mariadb, v("wsrep_on", "ON", "wsrep_local_state_comment", "Synced", "wsrep_cluster_status", "Primary", "wsrep_cluster_size", "3"), nil, "many", "3 node(s)", "single writer"},
	{"galera", mariadb, v("wsrep_on", "ON", "wsrep_local_state_comment", "Initialized", "wsrep_cluster_status", "non-Primary"), nil, "apart", "", "Synced"},
	{"galera", mariadb, v("wsrep_on", "ON", "wsrep_local_state_comment", "Joined", "wsrep_cluster_status", "Primary"), nil, "apart", "", ""},
	{"galera", mysql, v("group_replication_single_primary_mode", "OFF", "group_replication_group_name", "8a94f357"), nil, "many", "multi-primary", ""},
	{"galera", mysql, v("group_replication_single_primary_mode", "OFF", "group_replication_group_name", ""), nil, "one", "", ""},

	{"journal_mode", sqlite, v("journal_mode", "wal"), nil, "wal", "WAL", ""},
	{"journal_mode", sqlite, v("journal_mode", "delete"), nil, "rollback", "", "WAL"},
	{"journal_mode", sqlite, v("journal_mode", "memory"), nil, "lost", "", ""},
	{"synchronous", sqlite, v("synchronous", "2"), nil, "waits", "", ""},
	{"synchronous", sqlite, v("synchronous", "3"), nil, "waits", "", ""},
	{"synchronous", sqlite, v("synchronous", "1"), nil, "some", "", ""},
	{"synchronous", sqlite, v("synchronous", "0"), nil, "lost", "", ""},
	{"busy_timeout", sqlite, v("@busy_timeout", "1000"), nil, "waits", "", ""},
	{"busy_timeout", sqlite, v("@busy_timeout", "999"), nil, "short", "", "busy_timeout(5000)"},
	{"locking_mode", sqlite, v("locking_mode", "normal"), nil, "normal", "", ""},
	{"locking_mode", sqlite, v("locking_mode", "exclusive"), nil, "exclusive", "", ""},
	{"file_system", sqlite, v("@file_system", "ext4", "@file_system_kind", "local"), nil, "local", "", ""},
	{"file_system", sqlite, v("@file_system", "NFS", "@file_system_kind", "network"), nil, "network", "NFS", "local disk"},
	{"file_system", sqlite, v("@file_system", "FUSE", "@file_system_kind", "unsure"), nil, "unsure", "", ""},

	{"scripts", redis, v("@trial", "may"), nil, "may", "", ""},
	{"scripts", redis, v("@trial", "deaf", "@trial_error", "NOPERM publish", "@account", "app", "@prefix", "exclusive:"), nil, "deaf", "NOPERM", "ACL SETUSER app &exclusive:* +publish"},
	{"scripts", redis, v("@trial", "refused", "@trial_error", "NOPERM hset", "@account", "app", "@prefix", "p:"), nil, "refused", "NOPERM", "ACL SETUSER app ~p:* &p:* +evalsha"},
	{"maxmemory-policy", redis, v("maxmemory_policy", "noeviction", "maxmemory", "100"), nil, "kept", "", ""},
	{"maxmemory-policy", redis, v("maxmemory_policy", "allkeys-lru", "maxmemory", "0"), nil, "unlimited", "", ""},
	{"maxmemory-policy", redis, v("maxmemory_policy", "volatile-lru", "maxmemory", "100"), nil, "evicted", "", "noeviction"},
	{"persistence", redis, v("aof_enabled", "1", "appendfsync", "everysec"), nil, "log", "", ""},
	{"persistence", redis, v("aof_enabled", "1", "appendfsync", "no"), nil, "unsynced", "", ""},
	{"persistence", redis, v("aof_enabled", "0", "save", "900 1"), nil, "snapshots", "900 1", ""},
	{"persistence", redis, v("aof_enabled", "0"), nil, "snapshots", "cannot be read", ""},
	{"persistence", redis, v("aof_enabled", "0", "save", ""), nil, "none", "", "appendonly yes"},
	{"cluster", redis, v("cluster_enabled", "0"), nil, "none", "", ""},
	{"cluster", redis, v("cluster_enabled", "1", "cluster_state", "ok", "cluster_known_nodes", "3"), nil, "whole", "3 nodes", ""},
	{"cluster", redis, v("cluster_enabled", "1", "cluster_state", "fail"), nil, "broken", "fail", "--cluster check"},
}

// Every outcome of every check comes of some facts, and of no others.
func TestOutcomes(t *testing.T) {
	t.Parallel()
	reached := make(map[string]bool)
	checks := make(map[string]Check)
	for _, c := range Checks() {
		if _, ok := checks[c.ID]; ok {
			t.Errorf("two checks are named %s", c.ID)
		}
		checks[c.ID] = c
	}
	for _, s := range stagings {
		c, ok := checks[s.check]
		if !ok || !slices.Contains(c.On, s.kind) {
			t.Errorf("no check %s on %s", s.check, s.kind)
			continue
		}
		f := newFacts(s.kind)
		maps.Copy(f.Values, s.values)
		maps.Copy(f.Unread, s.unread)
		outcome, found := c.outcome(f)
		if outcome != s.outcome || !strings.Contains(found, s.found) {
			t.Errorf("%s on %s with %v %v: %q, found %q; want %q, %q", s.check, s.kind, s.values, s.unread, outcome, found, s.outcome, s.found)
			continue
		}
		reached[s.check+"."+outcome] = true
		if outcome == "" {
			continue
		}
		finding, _ := c.examine(f)
		if !strings.Contains(finding.Mend, s.mend) || finding.Found == "" {
			t.Errorf("%s on %s with %v: %+v; want the mend %q", s.check, s.kind, s.values, finding, s.mend)
		}
		if (finding.Status == OK) != (finding.Mend == "") || (finding.Status == OK) != (finding.Why == "") {
			t.Errorf("%s on %s with %v: %+v", s.check, s.kind, s.values, finding)
		}
	}
	for _, c := range Checks() {
		for _, o := range c.Outcomes {
			if !reached[c.ID+"."+o.Name] && !(c.mend != nil && o.Status == Fail) { // TestDifferences
				t.Errorf("nothing leads to %s.%s", c.ID, o.Name)
			}
			for _, kind := range c.On {
				if o.MendOn[kind] == "" && o.MendOn != nil && o.Mend == "" {
					if kind != postgres || o.Name != "dirty" { // PostgreSQL has no such level
						t.Errorf("%s.%s says nothing for %s", c.ID, o.Name, kind)
					}
				}
			}
		}
	}
}

// What is wrong with tables comes from package schema, mends included.
func TestDifferences(t *testing.T) {
	t.Parallel()
	for check, problems := range map[string][]schema.Problem{
		"schema":     {schema.Missing, schema.Kind, schema.Column, schema.Key},
		"privileges": {schema.Privilege},
		"storage":    {schema.Setting},
	} {
		for _, problem := range problems {
			f := newFacts(postgres)
			f.Values["@strategies"] = "fencing"
			f.Differences = []schema.Difference{
				{Object: "table a", Problem: problem, Text: "is odd", Mend: "ALTER a"},
				{Object: "table b", Problem: problem, Text: "is odd too", Mend: "ALTER b"},
				{Object: "table c", Problem: problem, Text: "as well", Mend: "ALTER a"},
			}
			for _, f := range Examine(f, nil) {
				switch {
				case f.Check == check && (f.Status != Fail || f.Found != "table a: is odd; table b: is odd too; table c: as well" || f.Mend != "ALTER a\nALTER b"):
					t.Errorf("%s: %+v", problem, f)
				case f.Check != check && f.Status == Fail && (f.Check == "schema" || f.Check == "privileges" || f.Check == "storage"):
					t.Errorf("%s is told by %s as well", problem, f.Check)
				}
			}
		}
	}
}

func TestExamine(t *testing.T) {
	t.Parallel()
	f := newFacts(postgres)
	maps.Copy(f.Values, v("@version", "15.1", "fsync", "off", "full_page_writes", "on"))
	findings := Examine(f, nil)
	if Good(findings) {
		t.Error("fsync is off, and all is good")
	}
	if findings = Examine(f, []string{"fsync"}); !Good(findings) {
		t.Errorf("fsync is ignored: %+v", findings)
	}
	if i := slices.IndexFunc(findings, func(f Finding) bool { return f.Check == "fsync" }); i < 0 || findings[i].Status != Fail || !findings[i].Ignored {
		t.Errorf("what is ignored is still shown: %+v", findings)
	}
	// When nobody answers there is nothing else to say.
	f = newFacts(mysql)
	f.Unread["@connect"] = "connection refused"
	if findings := Examine(f, nil); len(findings) != 1 || Good(findings) {
		t.Errorf("%+v", findings)
	}
}

// docs/doctor.md is made from the checks.
func TestPage(t *testing.T) {
	t.Parallel()
	const path = "../../../../docs/doctor.md"
	want := Page()
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Error("docs/doctor.md does not say what the checks do: go test ./cmd/exclusive/internal/doctor -update")
	}
}
