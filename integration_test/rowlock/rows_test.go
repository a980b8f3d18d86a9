package rowlock_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/integration_test/matrix"
	"github.com/exclusive-go/exclusive/rowlock"
)

// accounts are rows of the application's own, with a key of two columns.
func accounts() rowlock.Config {
	return rowlock.Config{
		Table: "account", KeyColumns: []string{"region", "id"},
		KeyValues: func(key string) ([]any, error) {
			region, id, _ := strings.Cut(key, "/")
			n, err := strconv.ParseInt(id, 10, 64)
			return []any{region, n}, err
		},
	}
}

func TestOwnRows(t *testing.T) { matrix.Each(t, testOwnRows, testOwnRows) }

func testOwnRows[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	target.MustExec(t, "CREATE TABLE account (region varchar(20) NOT NULL, id bigint NOT NULL, n bigint NOT NULL, PRIMARY KEY (region, id))")
	target.MustExec(t, "INSERT INTO account VALUES ('eu', 7, 0), ('eu', 8, 0), ('us', 7, 0)")
	ctx := t.Context()
	x := newLocks(t, target, accounts())
	patient := accounts()
	patient.Wait = time.Minute
	other := target.Another(t, matrix.Options{})
	rival, waiter := newLocks(t, other, accounts()), newLocks(t, other, patient)
	next := make(chan error)
	must(t, "run", x.Run(ctx, "eu/7", func(ctx context.Context, tx Tx, g exclusive.Grant) error {
		wantErr(t, "a rival", rival.Do(ctx, "eu/7", mustNotRun(t)), exclusive.ErrHeld)
		if target.Networked() {
			must(t, "other rows", rival.DoAll(ctx, []string{"us/7", "eu/8"}, func(context.Context, []exclusive.Grant) error { return nil }))
		}
		go func() {
			next <- waiter.Run(t.Context(), "eu/7", func(ctx context.Context, tx Tx, _ exclusive.Grant) error {
				return target.Exec(ctx, tx, "UPDATE account SET n = n * 10 WHERE region = 'eu' AND id = 7")
			})
		}()
		return target.Exec(ctx, tx, "UPDATE account SET n = 5 WHERE region = 'eu' AND id = 7")
	}))
	must(t, "the waiter", <-next)
	if n := target.Int(t, "SELECT n FROM account WHERE region = 'eu' AND id = 7"); n != 50 {
		t.Errorf("stored %d", n)
	}
	wantErr(t, "a row that does not exist", x.Do(ctx, "eu/9", mustNotRun(t)), exclusive.ErrNoRow)
	wantErr(t, "one of several", x.DoAll(ctx, []string{"eu/7", "eu/9"}, func(context.Context, []exclusive.Grant) error { return nil }), exclusive.ErrNoRow)
	wantErr(t, "a key that KeyValues refuses", x.Do(ctx, "eu/x", mustNotRun(t)), exclusive.ErrInvalid, strconv.ErrSyntax)
	free(t, target, x, "eu/7")
}

// Rows whose names a collation takes for the same have keys of their own, and
// are still found by the index: rows beside them are not in the way.
func TestExactKeys(t *testing.T) { matrix.Each(t, testExactKeys, testExactKeys) }

func testExactKeys[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	column := map[string]string{
		"postgres": `varchar(20) COLLATE "nocase"`, "sqlite": "text COLLATE NOCASE",
		"mysql": "varchar(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci", "mariadb": "varchar(20) CHARACTER SET latin1 COLLATE latin1_swedish_ci",
	}[target.Dialect]
	if target.Dialect == "postgres" {
		target.MustExec(t, `CREATE COLLATION "nocase" (provider = icu, locale = 'und-u-ks-level1', deterministic = false)`)
	}
	target.MustExec(t, "CREATE TABLE page (name "+column+" NOT NULL, part bigint NOT NULL, PRIMARY KEY (name, part))")
	target.MustExec(t, "INSERT INTO page VALUES ('r\u00e9port', 1), ('r\u00e9port', 2), ('other', 1)")
	if n := target.Int(t, "SELECT COUNT(*) FROM page WHERE name = 'R\u00e9PORT'"); n != 2 {
		t.Errorf("the collation finds %d rows, so this proves nothing", n)
	}
	cfg := rowlock.Config{Table: "page", KeyColumns: []string{"name", "part"}, KeyValues: func(key string) ([]any, error) {
		name, part, _ := strings.Cut(key, "/")
		n, err := strconv.Atoi(part)
		return []any{name, n}, err
	}}
	patient := cfg
	patient.Wait = time.Minute
	for _, x := range []*rowlock.Locks[Tx]{newLocks(t, target, cfg), newLocks(t, target, patient)} {
		for _, key := range []string{"R\u00e9port/1", "r\u00e9port /1", "report/1"} {
			wantErr(t, key, x.Do(t.Context(), key, mustNotRun(t)), exclusive.ErrNoRow)
			wantErr(t, key, x.DoAll(t.Context(), []string{"r\u00e9port/1", key}, func(context.Context, []exclusive.Grant) error { return nil }), exclusive.ErrNoRow)
		}
		err := x.Do(t.Context(), "r\u00e9port/1", func(ctx context.Context, _ exclusive.Grant) error {
			rival := newLocks(t, target.Another(t, matrix.Options{}), cfg)
			wantErr(t, "a rival", rival.Do(ctx, "r\u00e9port/1", mustNotRun(t)), exclusive.ErrHeld)
			want := exclusive.ErrHeld // a locked row is not looked at
			if target.Dialect == "postgres" {
				want = exclusive.ErrNoRow
			}
			wantErr(t, "a rival with another name", rival.Do(ctx, "R\u00e9port/1", mustNotRun(t)), want)
			if target.Networked() {
				must(t, "rows beside it", rival.DoAll(ctx, []string{"r\u00e9port/2", "other/1"}, func(context.Context, []exclusive.Grant) error { return nil }))
			}
			return nil
		})
		must(t, "do", err)
	}
}

// Strings also name rows in columns of other types.
func TestKeyTypes(t *testing.T) { matrix.Each(t, testKeyTypes, testKeyTypes) }

func testKeyTypes[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	const id = "123e4567-e89b-12d3-a456-426614174000"
	uuid, binary, kind := "char(36)", "binary(3)", "char(5)"
	switch target.Dialect {
	case "postgres":
		target.MustExec(t, "CREATE TYPE kind AS ENUM ('big')")
		uuid, binary, kind = "uuid", "bytea", "kind"
	case "mariadb":
		uuid, kind = "uuid", "enum('big')"
	case "mysql":
		kind = "enum('big')"
	case "sqlite":
		binary = "blob"
	}
	for i, c := range []struct {
		column, value string
		key           any
	}{
		{"bigint", "17", int64(17)},
		{uuid, "'" + id + "'", id},
		{binary, "'abc'", []byte("abc")},
		{kind, "'big'", "big"},
		{"char(5)", "'big'", "big"},
		{"date", "'2026-11-29'", "2026-11-29"},
	} {
		table := fmt.Sprint("t", i)
		value := c.value
		if c.column == "blob" {
			value = "x'616263'"
		}
		target.MustExec(t, "CREATE TABLE "+table+" (k "+c.column+" NOT NULL PRIMARY KEY)")
		target.MustExec(t, "INSERT INTO "+table+" VALUES ("+value+")")
		x := newLocks(t, target, rowlock.Config{Table: table, KeyColumns: []string{"k"}, KeyValues: func(string) ([]any, error) { return []any{c.key}, nil }})
		must(t, c.column, x.Do(t.Context(), "a key", nothing))
	}
}

// jobs are rows that Next claims.
func jobs() rowlock.Config {
	return rowlock.Config{Table: "job", KeyColumns: []string{"id"}, Where: "done = 0", OrderBy: []string{"due", "id"},
		KeyValues: func(key string) ([]any, error) { n, err := strconv.ParseInt(key, 10, 64); return []any{n}, err }}
}

const jobTable = "CREATE TABLE job (id bigint PRIMARY KEY, due bigint NOT NULL, done bigint NOT NULL, runs bigint NOT NULL)"

func TestNext(t *testing.T) { matrix.Each(t, testNext, testNext) }

func testNext[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	target.MustExec(t, jobTable)
	target.MustExec(t, "CREATE INDEX job_next ON job (done, due, id)")
	const total = 40
	for i := range total {
		target.MustExec(t, "INSERT INTO job VALUES (?, ?, 0, 0)", i, total-i)
	}
	ctx := t.Context()
	x := newLocks(t, target, jobs())
	rival := newLocks(t, target.Another(t, matrix.Options{}), jobs())
	finish := func(ctx context.Context, tx Tx, rows [][]string) error {
		for _, row := range rows {
			err := target.Exec(ctx, tx, target.Bind("UPDATE job SET done = 1, runs = runs + 1 WHERE id = ?"), row[0])
			if err != nil {
				return err
			}
		}
		return nil
	}
	broken := errors.New("work failed")
	n, err := x.Next(ctx, 2, func(ctx context.Context, tx Tx, rows [][]string) error {
		if len(rows) != 2 || rows[0][0] != "39" || rows[1][0] != "38" {
			t.Errorf("the first rows are %q", rows)
		}
		must(t, "finish", finish(ctx, tx, rows))
		n, err := rival.Next(ctx, 2, func(ctx context.Context, tx Tx, rows [][]string) error {
			if rows[0][0] != "37" || rows[1][0] != "36" {
				t.Errorf("the rival's rows are %q", rows)
			}
			return finish(ctx, tx, rows)
		})
		if target.Networked() {
			must(t, "the rival's next", err)
			if n != 2 {
				t.Errorf("the rival got %d", n)
			}
		} else {
			wantErr(t, "the rival's next", err, exclusive.ErrHeld)
		}
		return broken
	})
	wantErr(t, "failing work", err, broken)
	if n != 2 {
		t.Errorf("%d rows", n)
	}
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for {
				n, err := []*rowlock.Locks[Tx]{x, rival}[i%2].Next(ctx, 3, finish)
				if errors.Is(err, exclusive.ErrHeld) && !target.Networked() || errors.Is(err, exclusive.ErrConflict) {
					time.Sleep(time.Millisecond) // as documented
					continue
				}
				must(t, "next", err)
				if n == 0 || err != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	// Rows that a claimer passed over are still there for the next one.
	for {
		n, err := x.Next(ctx, 100, finish)
		must(t, "next", err)
		if n == 0 || err != nil {
			break
		}
	}
	if n := target.Int(t, "SELECT COUNT(*) FROM job WHERE runs = 1"); n != total {
		t.Errorf("%d of %d rows were worked on once", n, total)
	}
	n, err = x.Next(ctx, 1, func(context.Context, Tx, [][]string) error { t.Error("work ran without rows"); return nil })
	if n != 0 || err != nil {
		t.Errorf("with no rows left: %d, %v", n, err)
	}
	for _, n := range []int{0, -1, rowlock.MaxRows + 1} {
		_, err := x.Next(ctx, n, finish)
		wantErr(t, fmt.Sprint("next ", n), err, exclusive.ErrInvalid)
	}
	_, err = newLocks(t, target, rowlock.Config{}).Next(ctx, 1, finish)
	wantErr(t, "next without a table", err, exclusive.ErrInvalid)
	target.Idle(t)
}

// The twin of TestNext: claimers that read without a lock get the same rows.
func TestNextWithoutLock(t *testing.T) {
	matrix.Drivers(t, testNextWithoutLock, testNextWithoutLock)
}

func testNextWithoutLock[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	target.MustExec(t, jobTable)
	target.MustExec(t, "INSERT INTO job VALUES (1, 1, 0, 0)")
	next := func() int64 { return target.Int(t, "SELECT MIN(id) FROM job WHERE done = 0") }
	for _, id := range []int64{next(), next()} { // both have read before one has written
		target.MustExec(t, "UPDATE job SET done = 1, runs = runs + 1 WHERE id = ?", id)
	}
	if n := target.Int(t, "SELECT runs FROM job"); n != 2 {
		t.Errorf("the row was worked on %d times; without a lock it should be twice", n)
	}
}

// Different new keys do not get into each other's way: a lock on the gap around
// a missing key would.
func TestNewKeys(t *testing.T) { matrix.Drivers(t, testNewKeys, testNewKeys) }

func testNewKeys[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	if !target.Networked() {
		return
	}
	setUp(t, target)
	x := newLocks(t, target, rowlock.Config{})
	for _, key := range []string{"a", "z"} {
		must(t, "do", x.Do(t.Context(), key, nothing))
	}
	const workers = 8
	for round := range 12 {
		var all, wg sync.WaitGroup
		all.Add(workers)
		for i := range workers {
			wg.Go(func() {
				key := fmt.Sprintf("m/%d/%d", round, i)
				entered := false
				err := x.Do(t.Context(), key, func(context.Context, exclusive.Grant) error {
					entered = true
					all.Done()
					all.Wait() // every key is held at the same time
					return nil
				})
				must(t, "do with a new key", err)
				if !entered {
					all.Done()
				}
			})
		}
		wg.Wait()
	}
}

// Any number of new keys can be had at once.
func TestManyNewKeys(t *testing.T) { matrix.Drivers(t, testManyNewKeys, testManyNewKeys) }

func testManyNewKeys[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	if !target.Networked() {
		return
	}
	setUp(t, target)
	const many = 100
	x := newLocks(t, target.Another(t, matrix.Options{MaxConns: many}), rowlock.Config{})
	for round := range 5 {
		var wg sync.WaitGroup
		for i := range many {
			wg.Go(func() {
				if err := x.Do(t.Context(), fmt.Sprint(round, "/", i), nothing); err != nil {
					t.Errorf("do with a new key: %v", err)
				}
			})
		}
		wg.Wait()
	}
	if n := target.Int(t, "SELECT COUNT(*) FROM exclusive_lock"); n != 5*many {
		t.Errorf("%d keys have rows", n)
	}
}

func TestNames(t *testing.T) { matrix.Drivers(t, testNames, testNames) }

// testNames has names that must be quoted, and a decoy that an unqualified name
// would find.
func testNames[Tx any](t *testing.T, target *matrix.Target[Tx]) {
	for _, prefix := range []string{"order ", "Tenant-1 "} {
		name := `"` + prefix + `lock"`
		if target.Dialect == "mysql" || target.Dialect == "mariadb" {
			name = "`" + prefix + "lock`"
		}
		kind := map[string]string{"postgres": "bytea", "sqlite": "blob"}[target.Dialect]
		if kind == "" {
			kind = "varbinary(200)"
		}
		target.MustExec(t, "CREATE TABLE "+name+" (lock_key "+kind+" NOT NULL PRIMARY KEY)")
		x := newLocks(t, target, rowlock.Config{Prefix: prefix})
		must(t, "do", x.Do(t.Context(), "k", nothing))
		must(t, "do", x.Do(t.Context(), strings.Repeat("k", exclusive.MaxKeyBytes), nothing))
		want := int64(2)
		if !target.Networked() {
			want = 0
		}
		if n := target.Int(t, "SELECT COUNT(*) FROM "+name); n != want {
			t.Errorf("%s has %d rows", name, n)
		}
	}
	if target.Dialect != "postgres" {
		return
	}
	schema := target.Schema(t, "Tenant")
	target.MustExec(t, `CREATE TABLE "`+schema+`".exclusive_lock (lock_key bytea NOT NULL PRIMARY KEY)`)
	target.Migrate(t, "rowlock") // the decoy
	x := newLocks(t, target, rowlock.Config{Schema: schema})
	must(t, "do", x.Do(t.Context(), "k", nothing))
	if n := target.Int(t, "SELECT COUNT(*) FROM exclusive_lock"); n != 0 {
		t.Error("a table of another schema was used")
	}
}
