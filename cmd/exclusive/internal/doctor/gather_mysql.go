package doctor

import (
	"context"
	"database/sql"
	"errors"
	"strings"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/cmd/exclusive/internal/target"
	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/internal/strategy"
)

// mysqlSettings are those that checks look at.
var mysqlSettings = []string{
	"autocommit", "init_connect", "sql_mode", "transaction_isolation", "tx_isolation", "transaction_read_only", "tx_read_only",
	"read_only", "super_read_only", "innodb_read_only",
	"wait_timeout", "idle_transaction_timeout", "idle_write_transaction_timeout", "max_statement_time",
	"innodb_lock_wait_timeout", "innodb_flush_log_at_trx_commit", "log_bin", "sync_binlog",
	"max_connections", "max_user_connections",
	"rpl_semi_sync_source_enabled", "rpl_semi_sync_master_enabled",
	"wsrep_on", "group_replication_single_primary_mode", "group_replication_group_name",
}

func (g *gatherer) mysql(ctx context.Context, runner db.Runner) {
	if !g.connect(ctx, "SELECT CURRENT_USER(), DATABASE(), VERSION(), @@version_comment", "@account", "@database", "@version", "@comment") {
		return
	}
	dialect := db.MySQL
	version := strings.ToLower(g.get("@version"))
	if strings.Contains(version, "mariadb") {
		g.Kind, dialect = mariadb, db.MariaDB
	}
	for _, product := range []string{"TiDB", "Vitess", "OceanBase", "SingleStore"} {
		if strings.Contains(version+strings.ToLower(g.get("@comment")), strings.ToLower(product)) {
			g.set("product", product)
		}
	}

	quoted := "'" + strings.Join(mysqlSettings, "','") + "'"
	if err := g.pairs(ctx, "SHOW SESSION VARIABLES WHERE Variable_name IN ("+quoted+")"); err != nil {
		g.failAll(err, mysqlSettings...)
		g.failAll(err, "@isolation_level", "@limit_size", "@recovery", "@measures_waits")
		return
	}
	for _, name := range []string{"tx_isolation", "transaction_isolation"} {
		if v, ok := g.Values[name]; ok {
			g.set("isolation_level", v)
		}
	}
	for _, name := range []string{"transaction_read_only", "tx_read_only", "innodb_read_only", "super_read_only", "read_only"} {
		if g.on(name) {
			g.set("readonly", "on")
			g.set("readonly_by", name)
		}
	}
	g.sqlClock(ctx, strategy.MySQLNow)
	err := target.Within(ctx, g.answerWait, func(ctx context.Context) error { return strategy.MeasuresWaits(ctx, runner) })
	if err == nil || errors.Is(err, exclusive.ErrUnsupported) {
		g.set("measures_waits", err == nil)
	} else {
		g.fail("@measures_waits", err)
	}
	g.mysqlStatus(ctx)
	g.tables(ctx, dialect)
}

func (g *gatherer) mysqlStatus(ctx context.Context) {
	if err := g.pairs(ctx, `SHOW GLOBAL STATUS WHERE Variable_name IN ('Threads_connected', 'wsrep_local_state_comment', 'wsrep_cluster_status', 'wsrep_cluster_size')`); err != nil {
		g.failAll(err, "@limit_size")
	} else {
		g.set("limit", "max_connections")
		g.set("limit_size", g.get("max_connections"))
		g.set("used", g.get("threads_connected"))
	}
	if processes, err := g.processes(ctx); err != nil {
		g.fail("@replicas", err)
	} else {
		account, host := g.get("@account"), ""
		if at := strings.LastIndexByte(account, '@'); at >= 0 {
			account, host = account[:at], account[at+1:]
		}
		replicas, used := 0, 0
		for _, p := range processes {
			if strings.HasPrefix(p.command, "Binlog Dump") {
				replicas++
			}
			if p.user == account {
				used++
			}
		}
		g.set("replicas", replicas)
		// Without the privilege PROCESS only sessions of the same account are seen.
		// This needs it, wherever it comes from.
		if err := target.Within(ctx, g.answerWait, func(ctx context.Context) error {
			_, err := g.pool.ExecContext(ctx, "SHOW ENGINE INNODB STATUS")
			return err
		}); err != nil {
			g.fail("@others", err)
			g.set("grantee", "'"+account+"'@'"+host+"'")
		}
		// The session's value is the limit of the account, whoever set it.
		if own := atoi(g.get("max_user_connections")); own > 0 && own-used < atoi(g.get("@limit_size"))-atoi(g.get("@used")) {
			g.set("limit", "max_user_connections")
			g.set("limit_size", own)
			g.set("used", used)
		}
	}
	g.set("waits", g.on("rpl_semi_sync_source_enabled") || g.on("rpl_semi_sync_master_enabled"))
}

// process is a session of the server.
type process struct{ user, command string }

// processes lists the sessions that the account may see. It is not read from
// information_schema: on MySQL that fails (error 3854) while anybody runs a
// statement with bytes that are no UTF-8 of three bytes at most.
func (g *gatherer) processes(ctx context.Context) (all []process, err error) {
	ctx, cancel := context.WithTimeout(ctx, g.answerWait)
	defer cancel()
	rows, err := g.pool.QueryContext(ctx, "SHOW PROCESSLIST")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	columns, err := rows.Columns() // MariaDB has one more
	if err != nil {
		return nil, err
	}
	values, into := make([]sql.NullString, len(columns)), make([]any, len(columns))
	for i := range values {
		into[i] = &values[i]
	}
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			return nil, err
		}
		var p process
		for i, name := range columns {
			switch strings.ToLower(name) {
			case "user":
				p.user = values[i].String
			case "command":
				p.command = values[i].String
			}
		}
		all = append(all, p)
	}
	return all, rows.Err()
}
