package adapters_test

import (
	"context"
	"database/sql"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/exclusive-go/exclusive/integration_test/matrix"
	"github.com/exclusive-go/exclusive/internal/db"
)

// What is wrong with a statement or its values.
func TestClassOfStatements(t *testing.T) {
	matrix.Each(t, testClassOfStatements, testClassOfStatements)
}

func testClassOfStatements[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	createTable(t, target)
	target.MustExec(t, "CREATE TABLE u (a varchar(3) NOT NULL UNIQUE, b smallint)")
	target.MustExec(t, "INSERT INTO u VALUES ('a', 1)")
	tests := []struct {
		query string
		want  db.Class
	}{
		{"SELECT n FROM missing", db.Schema},
		{"SELECT missing FROM t", db.Schema},
		{"INSERT INTO t (id, missing) VALUES (2, 2)", db.Schema},
		{"UPDATE missing SET n = 1", db.Schema},
		{"INSERT INTO t VALUES (1, 1)", db.Duplicate},
		{"INSERT INTO u VALUES ('a', 2)", db.Duplicate},
		{"SELEC 1", db.Syntax},
	}
	if target.Dialect != "sqlite" { // which takes any value
		tests = append(tests, []struct {
			query string
			want  db.Class
		}{
			{"SELECT n FROM nowhere.t", db.Schema},
			{"INSERT INTO u VALUES ('too long', 2)", db.Data},
			{"INSERT INTO u VALUES ('b', 70000)", db.Data},
		}...)
	}
	switch target.Dialect {
	case "postgres":
		tests = append(tests, struct {
			query string
			want  db.Class
		}{"SELECT nextval('missing')", db.Schema})
	case "mariadb":
		tests = append(tests, struct {
			query string
			want  db.Class
		}{"SELECT NEXTVAL(missing)", db.Schema})
	}
	for _, test := range tests {
		_, err := target.DB.Exec(t.Context(), test.query)
		wantClass(t, target, "exec: "+test.query, err, test.want)
		err = target.DB.Query(t.Context(), test.query, nil, func(db.Scan) error { return nil })
		wantClass(t, target, "query: "+test.query, err, test.want)
	}
	healthy(t, target)
}

// Servers that cannot be reached, and those that do not let us in.
func TestClassOfConnecting(t *testing.T) {
	matrix.Each(t, testClassOfConnecting, testClassOfConnecting, "postgres", "mysql", "mariadb")
}

func testClassOfConnecting[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	createUser, limited := "CREATE USER '%s'@'%%' IDENTIFIED BY '%s'", " WITH MAX_USER_CONNECTIONS 1"
	dropUser := "DROP USER '%s'@'%%'"
	if target.Dialect == "postgres" {
		createUser, limited, dropUser = `CREATE USER "%s" PASSWORD '%s'`, " CONNECTION LIMIT 1", `DROP USER "%s"`
	}
	// Accounts are the server's, not the database's.
	name := strings.ToLower(t.Name()[strings.LastIndexByte(t.Name(), '/')+1:]) + fmt.Sprint(time.Now().UnixNano()%1e9)
	for _, user := range []struct{ name, options string }{{name, ""}, {name + "_1", limited}} {
		target.MustExec(t, fmt.Sprintf(createUser, user.name, secret)+user.options)
		t.Cleanup(func() {
			if _, err := target.Plain.ExecContext(context.Background(), fmt.Sprintf(dropUser, user.name)); err != nil {
				t.Error(err)
			}
		})
	}
	createTable(t, target)
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := nobody.Addr().String()
	if err := nobody.Close(); err != nil {
		t.Fatal(err)
	}

	tests := []struct {
		name    string
		options matrix.Options
		want    db.Class
	}{
		{"nobody listens", matrix.Options{Addr: closed}, db.Unreachable},
		{"no such host", matrix.Options{Addr: "no-such-host.invalid:1"}, db.Unreachable},
		{"wrong password", matrix.Options{User: name, Password: secret + "x"}, db.Denied},
		{"no such account", matrix.Options{User: name + "x", Password: secret}, db.Denied},
		{"no privilege", matrix.Options{User: name, Password: secret}, db.Denied},
	}
	for _, test := range tests {
		another := target.Another(t, test.options)
		_, err := another.DB.Exec(t.Context(), "UPDATE t SET n = 1")
		wantClass(t, another, test.name+", exec", err, test.want)
		err = another.DB.Query(t.Context(), "SELECT n FROM t", nil, func(db.Scan) error { return nil })
		wantClass(t, another, test.name+", query", err, test.want)
		err = db.InTx(t.Context(), another.DB, func(ctx context.Context, tx Tx, _ db.Runner) error {
			return another.Exec(ctx, tx, "UPDATE t SET n = 1")
		})
		wantClass(t, another, test.name+", transaction", err, test.want)
		idle(t, another)
	}

	// The only connection that the account may have is taken.
	another := target.Another(t, matrix.Options{User: name + "_1", Password: secret})
	if target.Dialect != "postgres" {
		target.MustExec(t, fmt.Sprintf("GRANT SELECT ON t TO '%s'@'%%'", name+"_1"))
	}
	err = db.InTx(t.Context(), another.DB, func(ctx context.Context, _ Tx, _ db.Runner) error {
		_, err := another.DB.Exec(ctx, "SELECT 1")
		return err
	})
	wantClass(t, another, "too many connections", err, db.Unreachable)

	another.ClosePool()
	_, err = another.DB.Exec(t.Context(), "SELECT 1")
	wantClass(t, another, "closed pool", err, db.Unreachable)
	_, err = another.DB.Begin(t.Context())
	wantClass(t, another, "closed pool, begin", err, db.Unreachable)
}

// A server, or a session, that may only read.
func TestClassOfReadOnly(t *testing.T) { matrix.Each(t, testClassOfReadOnly, testClassOfReadOnly) }

func testClassOfReadOnly[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	createTable(t, target)
	params := map[string]map[string]string{
		"postgres": {"default_transaction_read_only": "on"},
		"mysql":    {"transaction_read_only": "1"},
		"mariadb":  {"tx_read_only": "1"},
		"sqlite":   {"_pragma": "query_only(1)"},
	}[target.Dialect]
	another := target.Another(t, matrix.Options{Params: params})
	wantClass(t, another, "exec", set(t.Context(), another, another.DB, 1), db.ReadOnly)
	err := db.InTx(t.Context(), another.DB, func(ctx context.Context, tx Tx, r db.Runner) error {
		return set(ctx, another, r, 1)
	})
	// lib/pq begins all transactions with READ WRITE, which overrides the
	// session's default (not a standby's refusal).
	if !strings.HasPrefix(target.Name, "lib_pq") {
		wantClass(t, another, "transaction", err, db.ReadOnly)
	}
	healthy(t, another)
}

// Time-outs look alike, and mean different things.
func TestClassOfTimeouts(t *testing.T) { matrix.Each(t, testClassOfTimeouts, testClassOfTimeouts) }

func testClassOfTimeouts[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	createTable(t, target)
	target.MustExec(t, "INSERT INTO t VALUES (2, 0)")
	holder, err := target.DB.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r, err := target.DB.Within(holder)
	if err != nil {
		t.Fatal(err)
	}
	if err := set(t.Context(), target, r, 1); err != nil {
		t.Fatal(err)
	}
	const wait = "UPDATE t SET n = n + 1 WHERE id = 1"
	type test struct {
		name   string
		params map[string]string
		query  string
		want   db.Class
	}
	// Where the limit governs the statements that need not wait as well, it is long.
	tests := map[string][]test{
		"postgres": {
			{"lock_timeout", map[string]string{"lock_timeout": "200"}, wait, db.Locked},
			{"statement_timeout", map[string]string{"statement_timeout": "2000"}, wait, db.Timeout},
			{"NOWAIT", nil, "SELECT n FROM t WHERE id = 1 FOR UPDATE NOWAIT", db.Locked},
		},
		"mysql": {
			{"innodb_lock_wait_timeout", map[string]string{"innodb_lock_wait_timeout": "1"}, wait, db.Locked},
			{"max_execution_time", map[string]string{"max_execution_time": "2000"},
				"SELECT COUNT(*) FROM information_schema.columns a, information_schema.columns b, information_schema.columns c", db.Timeout},
			{"NOWAIT", nil, "SELECT n FROM t WHERE id = 1 FOR UPDATE NOWAIT", db.Locked},
		},
		"mariadb": {
			{"innodb_lock_wait_timeout", map[string]string{"innodb_lock_wait_timeout": "1"}, wait, db.Locked},
			{"max_statement_time", map[string]string{"max_statement_time": "2"}, wait, db.Timeout},
			{"NOWAIT", nil, "SELECT n FROM t WHERE id = 1 FOR UPDATE NOWAIT", db.Locked},
		},
		"sqlite": {
			{"busy_timeout", map[string]string{"_pragma": "busy_timeout(100)"}, wait, db.Locked},
		},
	}[target.Dialect]
	for _, test := range tests {
		another := target.Another(t, matrix.Options{Params: test.params})
		err := another.DB.Query(t.Context(), test.query, nil, func(db.Scan) error { return nil })
		wantClass(t, another, test.name, err, test.want)
		// In a transaction that has written before: nothing of it stays.
		err = db.InTx(t.Context(), another.DB, func(ctx context.Context, _ Tx, r db.Runner) error {
			if target.Dialect != "sqlite" {
				if _, err := r.Exec(ctx, "UPDATE t SET n = n + 1 WHERE id = 2"); err != nil {
					t.Errorf("%s: %v", test.name, err)
				}
			}
			_, err := r.Exec(ctx, test.query)
			return err
		})
		wantClass(t, another, test.name+" in a transaction", err, test.want)
		healthy(t, another)
		another.ClosePool()
	}
	if err := target.DB.Commit(t.Context(), holder); err != nil {
		t.Error(err)
	}
	if got := target.Int(t, "SELECT n FROM t WHERE id = 2"); got != 0 {
		t.Errorf("half of a transaction was committed: n is %d", got)
	}
	healthy(t, target)
}

// The server ends a transaction that sits idle, and the connection with it.
func TestIdleInTransaction(t *testing.T) {
	matrix.Each(t, testIdleInTransaction, testIdleInTransaction, "postgres", "mariadb")
}

func testIdleInTransaction[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	createTable(t, target)
	params := map[string]string{"idle_in_transaction_session_timeout": "200"}
	if target.Dialect == "mariadb" {
		params = map[string]string{"idle_transaction_timeout": "1"}
	}
	another := target.Another(t, matrix.Options{Params: params})
	err := db.InTx(t.Context(), another.DB, func(ctx context.Context, _ Tx, r db.Runner) error {
		if err := set(ctx, another, r, 1); err != nil {
			return err
		}
		time.Sleep(1500 * time.Millisecond)
		return nil
	})
	wantClass(t, another, "commit", err, db.Disconnected)
	if got := n(t, target); got != 0 {
		t.Errorf("n is %d", got)
	}
	healthy(t, another)
}

// Serialization failures say so, wherever they come up.
func TestClassOfConflicts(t *testing.T) {
	matrix.Each(t, testClassOfConflicts, testClassOfConflicts, "postgres", "sqlite")
}

func testClassOfConflicts[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	createTable(t, target)
	target.MustExec(t, "INSERT INTO t VALUES (2, 0)")
	params := map[string]string{"default_transaction_isolation": "serializable"}
	if target.Dialect == "sqlite" {
		params = nil // transactions always are
	}
	another := target.Another(t, matrix.Options{Params: params})
	// Read, let another transaction write, then write.
	err := db.InTx(t.Context(), another.DB, func(ctx context.Context, _ Tx, r db.Runner) error {
		if err := r.Query(ctx, "SELECT n FROM t", nil, func(db.Scan) error { return nil }); err != nil {
			return err
		}
		if err := set(ctx, another, another.DB, 1); err != nil {
			t.Error(err)
		}
		return set(ctx, another, r, 2)
	})
	wantClass(t, another, "write", err, db.Conflict)
	if target.Dialect == "postgres" {
		// Write skew: the failure comes at COMMIT.
		err := db.InTx(t.Context(), another.DB, func(ctx context.Context, _ Tx, one db.Runner) error {
			err := db.InTx(ctx, another.DB, func(ctx context.Context, _ Tx, two db.Runner) error {
				for id, r := range map[int64]db.Runner{1: one, 2: two} {
					if err := r.Query(ctx, "SELECT SUM(n) FROM t", nil, func(db.Scan) error { return nil }); err != nil {
						return err
					}
					if _, err := r.Exec(ctx, another.Bind("UPDATE t SET n = 5 WHERE id = ?"), id); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
			return nil
		})
		wantClass(t, another, "commit", err, db.Conflict)
	}
	healthy(t, another)
}

// Files of SQLite that are none, or cannot be written.
func TestClassOfSQLiteFiles(t *testing.T) {
	matrix.Each(t, nil, func(t *testing.T, target *matrix.Target[*sql.Tx]) {
		createTable(t, target)
		readOnly := target.Another(t, matrix.Options{Params: map[string]string{"mode": "ro"}})
		wantClass(t, readOnly, "read-only", set(t.Context(), readOnly, readOnly.DB, 1), db.ReadOnly)
	}, "sqlite")
}
