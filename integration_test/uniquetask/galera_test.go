package uniquetask_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/integration_test/cases/session"
	"github.com/exclusive-go/exclusive/integration_test/matrix"
	"github.com/exclusive-go/exclusive/internal/db"
	"github.com/exclusive-go/exclusive/uniquetask"
)

// asGalera is an adapter whose server says that it is a node of a Galera cluster: there a
// claim of a new run is two statements. On a cluster it is TestB056_ConflictAtCommit that
// tries them.
type asGalera struct {
	db.DB[*sql.Tx]
	db.Pinner[*sql.Tx]
	second func(run func() error) error // is given the second statement; nil: runs it
}

func (d *asGalera) Query(ctx context.Context, query string, args []any, each func(db.Scan) error) error {
	if strings.Contains(query, "'wsrep_on'") {
		return each(func(dest ...any) error {
			*dest[0].(*string), *dest[1].(*string) = "wsrep_on", "ON"
			return nil
		})
	}
	return d.DB.Query(ctx, query, args, each)
}

func (d *asGalera) Exec(ctx context.Context, query string, args ...any) (res db.Result, err error) {
	run := func() error {
		res, err = d.DB.Exec(ctx, query, args...)
		return err
	}
	if d.second == nil || !strings.Contains(query, "SET token = ? WHERE") {
		return res, run()
	}
	return res, d.second(run)
}

// onGalera is the target as such a node.
func onGalera(target *matrix.Target[*sql.Tx]) (*matrix.Target[*sql.Tx], *asGalera) {
	node, adapter := *target, &asGalera{DB: target.DB, Pinner: target.DB.(db.Pinner[*sql.Tx])}
	node.DB = adapter
	return &node, adapter
}

// What holds for a claim in one statement holds for one in two.
func TestOnGalera(t *testing.T) {
	for name, test := range map[string]func(*testing.T, *matrix.Target[*sql.Tx]){
		"lifecycle":      testLifecycle[*sql.Tx],
		"takeover":       testTakeover[*sql.Tx],
		"retries":        testRetryPolicy[*sql.Tx],
		"forget":         testForgetSeen[*sql.Tx],
		"prune":          testPrune[*sql.Tx],
		"tokens":         testTokensRise[*sql.Tx],
		"tokens of many": testTokensHammer[*sql.Tx],
		"one winner":     testOneWinner[*sql.Tx],
		"insert race":    testInsertRace[*sql.Tx],
		"late claim":     testLateClaim[*sql.Tx],
		"no return":      testLateClaimIsNoReturn[*sql.Tx],
		"names":          testNamesOnGalera,
		"second":         testSecondStatement,
		"writes first":   testWritesFirst,
	} {
		t.Run(name, func(t *testing.T) {
			matrix.Drivers(t, nil, func(t *testing.T, target *matrix.Target[*sql.Tx]) {
				node, _ := onGalera(target)
				test(t, node)
			}, "mariadb")
		})
	}
}

func testNamesOnGalera(t *testing.T, target *matrix.Target[*sql.Tx]) {
	setUp(t, target)
	for table, name := range map[string]string{"exclusive_task": "my_task", "exclusive_task_floor": "my_task_floor"} {
		target.MustExec(t, "CREATE TABLE "+name+" LIKE "+table)
	}
	var schema string
	must(t, "the database's name", target.Plain.QueryRowContext(t.Context(), "SELECT DATABASE()").Scan(&schema))
	x := newTasks(t, target, uniquetask.Config{Schema: schema, Prefix: "my_"})
	for range 2 {
		must(t, "do", x.Do(t.Context(), "r", nothing))
		must(t, "forget", x.Forget(t.Context(), "r"))
	}
	if n := target.Int(t, "SELECT token FROM my_task_floor"); n != 2 {
		t.Errorf("the floor is %d after 2 runs", n)
	}
}

// Whatever becomes of the second statement, work begins with a token past the floor, and
// no run is held by nobody.
func testSecondStatement(t *testing.T, target *matrix.Target[*sql.Tx]) {
	setUp(t, target)
	plain := *target
	plain.DB = target.DB.(*asGalera).DB
	onOneServer, onCluster := newTasks(t, &plain, uniquetask.Config{}), newTasks(t, target, uniquetask.Config{})
	must(t, "the floor's row", onOneServer.Do(t.Context(), "first", nothing))
	target.MustExec(t, "UPDATE exclusive_task_floor SET token = 7")
	begins := func(x *uniquetask.Tasks[*sql.Tx], run string, attempt int) {
		t.Helper()
		var got exclusive.Grant
		must(t, run, x.Do(t.Context(), run, func(_ context.Context, g exclusive.Grant) error { got = g; return nil }))
		if o := outcome(t, x, run); got.Token <= 7 || got.Attempt != attempt || o.State != uniquetask.Done || o.Token != got.Token {
			t.Errorf("%s: grant %+v, in the end %+v", run, got, o)
		}
	}
	claims := func(second func(run func() error) error) *uniquetask.Tasks[*sql.Tx] {
		node, adapter := onGalera(&plain)
		first := true
		adapter.second = func(run func() error) error {
			if !first {
				return run()
			}
			first = false
			return second(run)
		}
		return newTasks(t, node, uniquetask.Config{})
	}

	begins(claims(func(func() error) error { return mysql.ErrInvalidConn }), "it does not arrive", 1)
	begins(claims(func(run func() error) error {
		must(t, "the second statement", run())
		return mysql.ErrInvalidConn
	}), "its answer is lost", 1)
	begins(claims(func(run func() error) error {
		rival, err := target.Plain.BeginTx(t.Context(), nil)
		must(t, "begin", err)
		defer time.AfterFunc(200*time.Millisecond, func() { _ = rival.Rollback() })
		_, err = rival.ExecContext(t.Context(), "SELECT 1 FROM exclusive_task WHERE run = 'a rival has the row' FOR UPDATE")
		must(t, "lock", err)
		err = run()
		if err == nil {
			t.Error("the rival's lock was not in the way")
		}
		return err
	}), "a rival has the row", 1)

	for run, next := range map[string]*uniquetask.Tasks[*sql.Tx]{"gone, cluster": onCluster, "gone, one server": onOneServer} {
		ctx, cancel := context.WithCancel(t.Context())
		x := claims(func(func() error) error {
			cancel()
			return ctx.Err()
		})
		wantErr(t, run, x.Do(ctx, run, nothing), context.Canceled)
		must(t, "close", x.Close()) // has given it back
		begins(next, run, 1)
	}
	for run, next := range map[string]*uniquetask.Tasks[*sql.Tx]{"killed, cluster": onCluster, "killed, one server": onOneServer} {
		target.MustExec(t, `INSERT INTO exclusive_task (task, run, state, grant_id, holder, token, attempt, started_at, ended_at, free_at, error, history)
			VALUES ('report', ?, 'running', 'g', 'killed', 0, 1, 1, 0, 2, '', '')`, []byte(run))
		begins(next, run, 2)
	}
}

// A claim that is about to insert its row has not locked the floor. The twin is a claim on
// one server, which has.
func testWritesFirst(t *testing.T, target *matrix.Target[*sql.Tx]) {
	setUp(t, target)
	plain := *target
	plain.DB = target.DB.(*asGalera).DB
	var done sync.WaitGroup
	defer done.Wait()
	defer stallInserts(t, target, "stalled")()
	for run, on := range map[string]*matrix.Target[*sql.Tx]{"cluster": target, "one server": &plain} {
		patient := *on
		patient.DB = matrix.Patient[*sql.Tx]{DB: on.DB}
		x := newTasks(t, &patient, uniquetask.Config{Task: run, Holder: "stalled"})
		done.Go(func() {
			if err := x.Do(t.Context(), run, nothing); err != nil {
				t.Errorf("%s: %v", run, err)
			}
		})
	}
	session.AwaitWaiting(t, target.Plain, target.Dialect, 2, nil) // in the trigger, before the insert
	locked := func(task string) bool {
		var token int64
		err := target.Plain.QueryRowContext(t.Context(), "SELECT token FROM exclusive_task_floor WHERE task = ? FOR UPDATE NOWAIT", task).Scan(&token)
		if server := new(mysql.MySQLError); err != nil && (!errors.As(err, &server) || server.Number != 1205) {
			t.Errorf("the floor of %s: %v", task, err)
		}
		return err != nil
	}
	if locked("cluster") {
		t.Error("a claim on a cluster has locked the floor before it has written")
	}
	if !locked("one server") {
		t.Error("the twin has not locked the floor: this test cannot tell")
	}
}
