package adapters_test

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/exclusive-go/exclusive/integration_test/matrix"
	"github.com/exclusive-go/exclusive/integration_test/proxy"
	"github.com/exclusive-go/exclusive/internal/db"
)

// valueColumns are the columns that statements exchange values with.
var valueColumns = map[string]string{
	"postgres": "i bigint, s text, b bytea",
	"mysql":    "i bigint, s longtext CHARACTER SET utf8mb4, b longblob",
	"mariadb":  "i bigint, s longtext CHARACTER SET utf8mb4, b longblob",
	"sqlite":   "i integer, s text, b blob",
}

var valueSets = []struct {
	name string
	i    int64
	s    string
	b    []byte
}{
	{"plain", 7, "text", []byte("bytes")},
	{"empty", 0, "", []byte{}},
	{"largest", math.MaxInt64, "é 漢字 \U0001F600", []byte{0, 1, 0x7f, 0x80, 0xff}},
	{"smallest", math.MinInt64, `'";\%_--/*#?$1` + "`\n\t\x1a", []byte("'\"\\?\x00$1")},
	{"like_hex", -1, `\x6162`, []byte(`\x6162`)},
	{"trailing", 1, "a  ", []byte("a  ")},
	{"long", 1, strings.Repeat("é", 20_000), bytes.Repeat([]byte{0xff, 0}, 20_000)},
}

// Every kind of argument comes back as what it was, through every kind of scan
// target that the seam allows.
func TestValues(t *testing.T) { matrix.Each(t, testValues, testValues) }

func testValues[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	target.MustExec(t, "CREATE TABLE v (name varchar(20) NOT NULL PRIMARY KEY, "+valueColumns[target.Dialect]+")")
	roundTrip(t, target, target.DB)
	err := db.InTx(t.Context(), target.DB, func(ctx context.Context, _ Tx, r db.Runner) error {
		if _, err := r.Exec(ctx, "DELETE FROM v"); err != nil {
			return err
		}
		roundTrip(t, target, r)
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	healthy(t, target)
}

func roundTrip[Tx any](t *testing.T, target *matrix.Target[Tx], r db.Runner) {
	t.Helper()
	ctx := t.Context()
	for _, v := range valueSets {
		if _, err := r.Exec(ctx, target.Bind("INSERT INTO v (name, i, s, b) VALUES (?, ?, ?, ?)"), v.name, v.i, v.s, v.b); err != nil {
			t.Errorf("%s: %v", v.name, err)
			continue
		}
		var i int64
		var s string
		var b, sAsBytes []byte
		var ni sql.NullInt64
		var ns sql.NullString
		query := target.Bind("SELECT i, s, b, s, i, s FROM v WHERE name = ? AND i = ? AND s = ? AND b = ?")
		rows := 0
		err := r.Query(ctx, query, []any{v.name, v.i, v.s, v.b}, func(scan db.Scan) error {
			rows++
			return scan(&i, &s, &b, &sAsBytes, &ni, &ns)
		})
		if err != nil || rows != 1 {
			t.Errorf("%s: %d rows, %v", v.name, rows, err)
			continue
		}
		if i != v.i || s != v.s || !bytes.Equal(b, v.b) || string(sAsBytes) != v.s ||
			ni != (sql.NullInt64{Int64: v.i, Valid: true}) || ns != (sql.NullString{String: v.s, Valid: true}) {
			t.Errorf("%s: read back i %d %v, s %.40q %.40q, b %.40q", v.name, i, ni, s, sAsBytes, b)
		}
	}

	// NULL, said in both ways.
	if _, err := r.Exec(ctx, target.Bind("INSERT INTO v (name, i, s, b) VALUES (?, ?, ?, ?)"), "null", nil, nil, []byte(nil)); err != nil {
		t.Fatalf("null: %v", err)
	}
	b := []byte("left over")
	ni, ns, nb := sql.NullInt64{Int64: 1}, sql.NullString{String: "x"}, sql.NullBool{Bool: true}
	var yes, no bool
	query := target.Bind("SELECT i, s, b, i = 1, name = ?, name <> ? FROM v WHERE name = ? AND i IS NULL AND s IS NULL AND b IS NULL")
	rows := 0
	err := r.Query(ctx, query, []any{"null", "null", "null"}, func(scan db.Scan) error {
		rows++
		return scan(&ni, &ns, &b, &nb, &yes, &no)
	})
	if err != nil || rows != 1 || ni.Valid || ns.Valid || nb.Valid || b != nil || !yes || no {
		t.Errorf("null: %d rows, %v; read back %v %v %q %v %v %v", rows, err, ni, ns, b, nb, yes, no)
	}

	// Bytes are the reader's own: the next row does not change them.
	var all [][]byte
	err = r.Query(ctx, "SELECT b FROM v WHERE b IS NOT NULL ORDER BY name", nil, func(scan db.Scan) error {
		var b []byte
		err := scan(&b)
		all = append(all, b)
		return err
	})
	if err != nil || len(all) != len(valueSets) {
		t.Errorf("%d rows, %v", len(all), err)
	}
	for i, b := range all {
		for _, v := range valueSets {
			if len(b) == len(v.b) && bytes.Equal(b, v.b) {
				all[i] = nil
			}
		}
		if all[i] != nil {
			t.Errorf("row %d changed after it was read", i)
		}
	}
}

// The number of rows affected, and on MySQL a number that a statement leaves,
// come back the same in all modes. (UPDATEs that change nothing differ on
// MySQL: see db.Result.)
func TestResult(t *testing.T) { matrix.Each(t, testResult, testResult) }

func testResult[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	createTable(t, target)
	isMySQL := target.Dialect == "mysql" || target.Dialect == "mariadb"
	tests := []struct {
		query string
		args  []any
		want  db.Result
	}{
		{"INSERT INTO t VALUES (?, ?), (?, ?)", []any{int64(2), int64(0), int64(3), int64(0)}, db.Result{Rows: 2}},
		{"UPDATE t SET n = ?", []any{int64(4)}, db.Result{Rows: 3}},
		{"UPDATE t SET n = ? WHERE id = ?", []any{int64(5), int64(99)}, db.Result{}},
		{"DELETE FROM t WHERE id > ?", []any{int64(1)}, db.Result{Rows: 2}},
	}
	if isMySQL {
		tests = append(tests, []struct {
			query string
			args  []any
			want  db.Result
		}{
			{"UPDATE t SET n = LAST_INSERT_ID(n + ?) WHERE id = ?", []any{int64(6), int64(1)}, db.Result{Rows: 1, LastID: 10}},
			{"UPDATE t SET n = LAST_INSERT_ID(n + ?) WHERE id = ?", []any{int64(6), int64(99)}, db.Result{}},
		}...)
	}
	for _, test := range tests {
		got, err := target.DB.Exec(t.Context(), target.Bind(test.query), test.args...)
		if err != nil || got != test.want {
			t.Errorf("%s: %+v, %v; want %+v", test.query, got, err, test.want)
		}
	}
}

// Query stops where it is told to, and whatever it was stopped by leaves the
// connection usable, in a transaction too.
func TestQueryStops(t *testing.T) { matrix.Each(t, testQueryStops, testQueryStops) }

func testQueryStops[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	createTable(t, target)
	for id := range 50 {
		target.MustExec(t, "INSERT INTO t VALUES (?, 0)", id+2)
	}
	stop := fmt.Errorf("that will do")
	err := db.InTx(t.Context(), target.DB, func(ctx context.Context, _ Tx, r db.Runner) error {
		rows := 0
		err := r.Query(ctx, "SELECT id FROM t", nil, func(db.Scan) error {
			rows++
			return stop
		})
		if err != stop || rows != 1 {
			t.Errorf("%d rows, %v", rows, err)
		}
		// Text is no number.
		err = r.Query(ctx, "SELECT 'text'", nil, func(scan db.Scan) error {
			var n int64
			return scan(&n)
		})
		if err == nil {
			t.Error("a wrong target is no error")
		}
		return set(ctx, target, r, 1)
	})
	if err != nil {
		t.Error(err)
	}
	if got := n(t, target); got != 1 {
		t.Errorf("n is %d", got)
	}
	// An error that comes late, when some rows have been read.
	if target.Dialect == "postgres" {
		rows := 0
		err := target.DB.Query(t.Context(), "SELECT 1 / (51 - id) FROM t ORDER BY id", nil, func(scan db.Scan) error {
			var n int64
			rows++
			return scan(&n)
		})
		wantClass(t, target, "division by zero", err, db.Data)
	}
	healthy(t, target)
}

// Settings of the session do not change what MySQL reads. The column for text is
// a binary one, as in all tables of this module: out of others the server
// converts text to the character set of the connection.
func TestValuesUnderSettings(t *testing.T) {
	settings := []map[string]string{
		{"sql_mode": "'ANSI_QUOTES,NO_BACKSLASH_ESCAPES,STRICT_ALL_TABLES'"},
		{"sql_mode": "''"},
		{"sql_mode": "'PIPES_AS_CONCAT,IGNORE_SPACE'", "charset": "latin1"},
		{"charset": "gbk"},
		{"collation": "utf8mb4_bin", "parseTime": "true"},
	}
	matrix.Drivers(t, nil, func(t *testing.T, target *matrix.Target[*sql.Tx]) {
		target.MustExec(t, "CREATE TABLE v (name varchar(20) NOT NULL PRIMARY KEY, i bigint, s longblob, b longblob)")
		for _, params := range settings {
			another := target.Another(t, matrix.Options{Params: params})
			if _, err := another.DB.Exec(t.Context(), "DELETE FROM v"); err != nil {
				t.Fatalf("%v: %v", params, err)
			}
			roundTrip(t, another, another.DB)
		}
	}, "mysql", "mariadb")
}

// Statements find their rows by the index, and each takes one round trip with
// nothing prepared, whatever the DSN says.
func TestMySQLStatements(t *testing.T) {
	matrix.Each(t, nil, func(t *testing.T, target *matrix.Target[*sql.Tx]) {
		target.MustExec(t, "CREATE TABLE k (b varbinary(200) PRIMARY KEY, s varchar(100) CHARACTER SET utf8mb4, n bigint NOT NULL, KEY (s))")
		for i := range 200 {
			target.MustExec(t, "INSERT INTO k VALUES (?, ?, 0)", fmt.Sprint("b", i), fmt.Sprint("s", i))
		}
		through := proxy.Start(t, target.Addr(t))
		// The counters are the session's, so there must be one only.
		one := target.Another(t, matrix.Options{Addr: through.Addr(), MaxConns: 1, NoPing: true})
		prepared := status(t, one, "Com_stmt_prepare")
		tests := []struct {
			query string
			arg   any
		}{
			{"SELECT n FROM k WHERE b = ?", []byte("b7")},
			{"SELECT n FROM k WHERE b = ?", "b7"},
			{"SELECT n FROM k WHERE s = ?", "s7"},
			{"SELECT n FROM k WHERE b = ? FOR UPDATE", []byte("b7")},
			{"UPDATE k SET n = n + 1 WHERE b = ?", []byte("b7")},
			{"UPDATE k SET n = n + 1 WHERE s = ?", "s7"},
		}
		for _, test := range tests {
			read, trips := rowsRead(t, one), through.RoundTrips()
			var err error
			if strings.HasPrefix(test.query, "SELECT") {
				err = one.DB.Query(t.Context(), test.query, []any{test.arg}, func(db.Scan) error { return nil })
			} else {
				_, err = one.DB.Exec(t.Context(), test.query, test.arg)
			}
			if err != nil {
				t.Errorf("%s: %v", test.query, err)
			}
			if trips := through.RoundTrips() - trips; trips != 1 {
				t.Errorf("%s: %d round trips", test.query, trips)
			}
			if read := rowsRead(t, one) - read; read > 5 {
				t.Errorf("%s with %T: %d rows were read", test.query, test.arg, read)
			}
		}
		// The counter does see a scan.
		read := rowsRead(t, one)
		if err := one.DB.Query(t.Context(), "SELECT b FROM k WHERE n = ?", []any{int64(99)}, func(db.Scan) error { return nil }); err != nil {
			t.Error(err)
		}
		if read := rowsRead(t, one) - read; read < 200 {
			t.Errorf("a scan counts as %d rows", read)
		}
		if n := status(t, one, "Com_stmt_prepare") - prepared; n != 0 {
			t.Errorf("%d statements were prepared", n)
		}
	}, "mysql", "mariadb")
}

func rowsRead[Tx any](t *testing.T, target *matrix.Target[Tx]) int64 {
	t.Helper()
	var sum int64
	for _, name := range []string{"Handler_read_first", "Handler_read_key", "Handler_read_next", "Handler_read_rnd", "Handler_read_rnd_next"} {
		sum += status(t, target, name)
	}
	return sum
}

// status is a counter of the only session of a pool.
func status[Tx any](t *testing.T, target *matrix.Target[Tx], name string) int64 {
	t.Helper()
	var value int64
	err := target.DB.Query(t.Context(), "SHOW SESSION STATUS LIKE '"+name+"'", nil, func(scan db.Scan) error {
		return scan(&name, &value)
	})
	if err != nil {
		t.Fatal(err)
	}
	return value
}
