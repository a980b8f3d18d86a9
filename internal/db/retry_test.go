package db

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestRetryTries(t *testing.T) {
	tests := []struct {
		class Class
		tries int
	}{
		{Other, 1},
		{Conflict, conflictTries},
		{Timeout, 1},
		{Disconnected, disconnectTries},
		{Unreachable, 1},
		{ReadOnly, 1},
		{Denied, 1},
		{Schema, 1},
		{Duplicate, 1},
		{Data, 1},
	}
	for _, test := range tests {
		synctest.Test(t, func(t *testing.T) {
			tries := 0
			start := time.Now()
			err := Retry(t.Context(), classes{}, func(context.Context) error {
				tries++
				return classError{test.class}
			})
			if err != (classError{test.class}) {
				t.Errorf("class %d: the error is %v", test.class, err)
			}
			if tries != test.tries {
				t.Errorf("class %d: %d tries, want %d", test.class, tries, test.tries)
			}
			if most := time.Duration(tries-1) * backoffMax; time.Since(start) > most {
				t.Errorf("class %d: %v passed, at most %v are allowed", test.class, time.Since(start), most)
			}
		})
	}
}

// Who is patient waits for a server that is away, or a standby that is not promoted
// yet, for longer than any number of tries would take.
func TestRetryIsPatient(t *testing.T) {
	for _, class := range []Class{Disconnected, Unreachable, ReadOnly} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(Patient(t.Context()), time.Minute)
			defer cancel()
			start := time.Now()
			err := Retry(ctx, classes{}, func(context.Context) error {
				if time.Since(start) < 30*time.Second {
					return classError{class}
				}
				return nil
			})
			if err != nil {
				t.Errorf("class %d: %v after %v", class, err, time.Since(start))
			}
		})
	}
}

// What is repeated by Retry is not repeated by others, until it has been.
func TestRetryAsksForOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var once []bool
		_ = Retry(t.Context(), classes{}, func(ctx context.Context) error {
			once = append(once, Once(ctx))
			return classError{[]Class{Conflict, Disconnected, Conflict, Other}[len(once)-1]}
		})
		if !slices.Equal(once, []bool{true, true, false, false}) || Once(t.Context()) {
			t.Error(once)
		}
	})
}

func TestRetryLockedUntilTimePasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		err := Retry(t.Context(), classes{}, func(context.Context) error {
			time.Sleep(time.Second) // SQLite's busy time-out, or a server's
			return classError{Locked}
		})
		if err != (classError{Locked}) {
			t.Errorf("the error is %v", err)
		}
		if passed := time.Since(start); passed < lockedWait || passed > lockedWait+2*time.Second+10*backoffMax {
			t.Errorf("gave up after %v", passed)
		}
	})
}

func TestRetrySucceeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failures := []error{classError{Conflict}, classError{Locked}, classError{Disconnected}, classError{Conflict}}
		err := Retry(t.Context(), classes{}, func(context.Context) error {
			if len(failures) == 0 {
				return nil
			}
			err := failures[0]
			failures = failures[1:]
			return err
		})
		if err != nil {
			t.Error(err)
		}
	})
}

func TestRetryLeavesUnknownCommitAlone(t *testing.T) {
	tries := 0
	err := Retry(t.Context(), classes{}, func(context.Context) error {
		tries++
		return CommitError(classes{}, classError{Disconnected})
	})
	if tries != 1 || !errors.Is(err, ErrCommitUnknown) {
		t.Errorf("%d tries, %v", tries, err)
	}
}

func TestRetryEndsWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 7*time.Millisecond)
		defer cancel()
		start := time.Now()
		err := Retry(ctx, classes{}, func(context.Context) error { return classError{Locked} })
		if passed := time.Since(start); passed != 7*time.Millisecond {
			t.Errorf("ended after %v", passed)
		}
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, classError{Locked}) {
			t.Errorf("%v does not match both errors", err)
		}
	})
}

func TestRetryReportsContextOverDriver(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	err := Retry(ctx, classes{}, func(context.Context) error {
		cancel()
		return classError{Other}
	})
	if !errors.Is(err, context.Canceled) || !errors.Is(err, classError{Other}) {
		t.Errorf("%v does not match both errors", err)
	}
}
