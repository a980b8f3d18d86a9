package db

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"testing"
)

type fakeTx struct{}

// fakeDB writes down which of its methods InTx calls, and fails where told.
type fakeDB struct {
	calls []string
	fail  map[string]error
}

func (d *fakeDB) call(name string) error {
	d.calls = append(d.calls, name)
	return d.fail[name]
}

func (d *fakeDB) Begin(context.Context) (*fakeTx, error)                       { return &fakeTx{}, d.call("begin") }
func (d *fakeDB) Within(*fakeTx) (Runner, error)                               { return d, d.call("within") }
func (d *fakeDB) Commit(context.Context, *fakeTx) error                        { return d.call("commit") }
func (d *fakeDB) Rollback(*fakeTx) error                                       { return d.call("rollback") }
func (d *fakeDB) Classify(error) Class                                         { return Other }
func (d *fakeDB) MaxConns() int                                                { return 0 }
func (d *fakeDB) Dialect(context.Context, Runner) (Dialect, error)             { return Postgres, nil }
func (d *fakeDB) Exec(context.Context, string, ...any) (Result, error)         { return Result{}, nil }
func (d *fakeDB) Query(context.Context, string, []any, func(Scan) error) error { return nil }

// pinningDB is one of a server that has to be watched.
type pinningDB struct{ *fakeDB }

func (d pinningDB) Pin(context.Context, *fakeTx) error   { return d.call("pin") }
func (d pinningDB) Unpin(context.Context, *fakeTx) error { return d.call("unpin") }

func TestInTx(t *testing.T) {
	broken := errors.New("broken")
	tests := []struct {
		fail  string // the method that fails, "work" for fn
		pins  bool
		calls string
	}{
		{"", false, "begin within work commit"},
		{"begin", false, "begin"},
		{"within", false, "begin within rollback"},
		{"work", false, "begin within work rollback"},
		{"commit", false, "begin within work commit"}, // Commit itself ends the transaction
		{"", true, "begin within pin work unpin commit"},
		{"pin", true, "begin within pin rollback"},
		{"work", true, "begin within pin work rollback"},
		{"unpin", true, "begin within pin work unpin rollback"},
	}
	for _, test := range tests {
		// A rollback that fails as well must not hide the first error.
		fake := &fakeDB{fail: map[string]error{"rollback": errors.New("rollback failed")}}
		var want error
		if test.fail != "" {
			want = broken
			fake.fail[test.fail] = broken
		}
		var d DB[*fakeTx] = fake
		if test.pins {
			d = pinningDB{fake}
		}
		err := InTx(t.Context(), d, func(context.Context, *fakeTx, Runner) error { return fake.call("work") })
		if err != want {
			t.Errorf("with %q failing: the error is %v, want %v", test.fail, err, want)
		}
		if got := strings.Join(fake.calls, " "); got != test.calls {
			t.Errorf("with %q failing: the calls are %q, want %q", test.fail, got, test.calls)
		}
	}
}

func TestInTxPanic(t *testing.T) {
	fake := &fakeDB{}
	defer func() {
		if got := recover(); got != "boom" {
			t.Errorf("recovered %v", got)
		}
		if want := []string{"begin", "within", "rollback"}; !slices.Equal(fake.calls, want) {
			t.Errorf("the calls are %q, want %q", fake.calls, want)
		}
	}()
	err := InTx(t.Context(), fake, func(context.Context, *fakeTx, Runner) error { panic("boom") })
	t.Errorf("the panic was swallowed: %v", err)
}

func TestInTxGoexit(t *testing.T) {
	fake := &fakeDB{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		err := InTx(t.Context(), fake, func(context.Context, *fakeTx, Runner) error {
			runtime.Goexit()
			return nil
		})
		t.Errorf("Goexit was stopped: %v", err)
	}()
	<-done
	if want := []string{"begin", "within", "rollback"}; !slices.Equal(fake.calls, want) {
		t.Errorf("the calls are %q, want %q", fake.calls, want)
	}
}
