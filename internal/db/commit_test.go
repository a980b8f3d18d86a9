package db

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/exclusive-go/exclusive"
)

// classes classifies errors that say their class themselves.
type classError struct{ class Class }

func (e classError) Error() string { return fmt.Sprintf("an error of class %d", e.class) }

type classes struct{}

func (classes) Classify(err error) Class {
	var e classError
	if errors.As(err, &e) {
		return e.class
	}
	return Network(err)
}

func TestCommitError(t *testing.T) {
	if err := CommitError(classes{}, nil); err != nil {
		t.Errorf("no error became %v", err)
	}
	tests := []struct {
		err     error
		unknown bool
	}{
		{classError{Conflict}, false},
		{classError{Locked}, false},
		{classError{ReadOnly}, false},
		{classError{Other}, false},
		{classError{Unreachable}, false},
		{classError{Disconnected}, true},
		{classError{Timeout}, true},
		{fmt.Errorf("read: %w", context.DeadlineExceeded), true},
		{context.Canceled, true},
		{NotCommitted(classError{Disconnected}), false},
	}
	for _, test := range tests {
		err := CommitError(classes{}, test.err)
		if !errors.Is(err, test.err) {
			t.Errorf("%v: the driver's error is out of reach in %v", test.err, err)
		}
		if got := errors.Is(err, ErrCommitUnknown); got != test.unknown {
			t.Errorf("%v: unknown is %v, want %v", test.err, got, test.unknown)
		}
		if twice := CommitError(classes{}, err); twice.Error() != err.Error() {
			t.Errorf("%v: marked twice: %v", test.err, twice)
		}
	}
}

func TestNotCommittedIsConflict(t *testing.T) {
	if c := Network(NotCommitted(errors.New("x"))); c != Conflict {
		t.Errorf("its class is %d, want Conflict", c)
	}
}

func TestEnded(t *testing.T) {
	driver := errors.New("interrupted")
	live := t.Context()
	if err := Ended(live, driver); err != driver {
		t.Errorf("with a live context: %v", err)
	}
	ended, cancel := context.WithCancel(live)
	cancel()
	if err := Ended(ended, nil); err != nil {
		t.Errorf("no error became %v", err)
	}
	if err := Ended(ended, driver); !errors.Is(err, context.Canceled) || !errors.Is(err, driver) {
		t.Errorf("%v does not match both", err)
	}
	if err := Ended(ended, context.Canceled); err != context.Canceled {
		t.Errorf("the context's own error became %v", err)
	}
}

// slowContext notices its deadline late, as a timer on a busy machine does.
type slowContext struct {
	context.Context
	deadline time.Time
}

func (c slowContext) Deadline() (time.Time, bool) { return c.deadline, true }

// The network keeps the context's deadline too. What it says when it is faster
// is the end of the context, and no failure of the server.
func TestNetworkFasterThanContext(t *testing.T) {
	network := fmt.Errorf("read: %w", os.ErrDeadlineExceeded)
	for name, tell := range map[string]func(context.Context) error{
		"Ended": func(ctx context.Context) error { return Ended(ctx, network) },
		"Fail":  func(ctx context.Context) error { return Fail(ctx, classes{}, "op", "k", "", network) },
		"Retry": func(ctx context.Context) error {
			return Retry(ctx, classes{}, func(context.Context) error { return network })
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			late, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			err := tell(slowContext{late, time.Now()})
			if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, exclusive.ErrUnavailable) {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
}
