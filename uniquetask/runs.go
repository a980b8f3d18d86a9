package uniquetask

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/exclusive-go/exclusive"
	"github.com/exclusive-go/exclusive/internal/strategy"
)

// State is where a run or an attempt is.
type State string

// The states. Their values are those in the database.
const (
	None    State = ""        // never claimed, forgotten or pruned
	Running State = "running" // claimed; whether the holder lives is Run.Live
	Done    State = "done"
	Failed  State = "failed" // the last attempt failed
	Lost    State = "lost"   // of attempts: their holder vanished, and another took over
)

// Run is what is known about a run. Times are on the database's clock.
type Run struct {
	Run   string
	State State
	// Live: somebody works on it, and the heartbeat is not missing.
	Live    bool
	Token   int64 // of the last grant; on Galera 0 while it is about to get one
	Attempt int
	GrantID string
	Holder  string
	Started time.Time // of the last attempt
	Ended   time.Time // zero while running
	// Free is when it may begin again: while running when the heartbeat counts
	// as missing unless another comes, after a failure when its rest is over.
	Free time.Time
	// Result is nil if none was set.
	Result []byte
	// Err is the error of the last attempt in one line, if that failed. It is
	// cut at 1,000 bytes.
	Err string
	// Earlier are the attempts before the last one, oldest first. Of very many
	// only the newest are kept, 16 KB of text.
	Earlier []Attempt
}

// Attempt is an attempt that ended without a result.
type Attempt struct {
	Token   int64
	Attempt int
	State   State // Failed or Lost
	Holder  string
	Started time.Time
	Ended   time.Time // if lost, when the heartbeat counted as missing
	Err     string
}

// public is what callers see of a row.
func (t *row) public() Run {
	return Run{
		Run: t.run, State: State(t.state), Live: t.live(),
		Token: t.token, Attempt: int(t.attempt), GrantID: t.id, Holder: t.holder,
		Started: moment(t.started), Ended: moment(t.ended), Free: moment(t.free),
		Result: t.result, Err: t.text, Earlier: parseHistory(t.history),
	}
}

// parseHistory reads the lines of a row's history. Each begins with a line
// break, so what is in front of the first one was cut.
func parseHistory(history string) []Attempt {
	var list []Attempt
	for i, line := range strings.Split(history, "\n") {
		f := strings.SplitN(line, "\t", 7)
		if i == 0 || len(f) < 7 {
			continue
		}
		var n [4]int64
		for i, s := range []string{f[0], f[1], f[3], f[4]} {
			n[i], _ = strconv.ParseInt(s, 10, 64) // written by our own statement
		}
		list = append(list, Attempt{
			Token: n[0], Attempt: int(n[1]), State: State(f[2]),
			Started: moment(n[2]), Ended: moment(n[3]), Holder: f[5], Err: f[6],
		})
	}
	return list
}

// Outcome says how a run stands, with its result. State is None for a run that
// nobody knows. It is one plain read: where the pool goes to a replica it is as
// old as that. Done stays true; whether a run that is not done may begin is for Do
// to say, which asks the primary.
func (t *Tasks[Tx]) Outcome(ctx context.Context, key string) (Run, error) {
	return t.read(ctx, "outcome", key, false)
}

// read reads a run. What is decided by it needs a lock: a server that only reads refuses
// a locking read, which goes where writes go, and a replica may not have heard of the run.
func (t *Tasks[Tx]) read(ctx context.Context, op, key string, lock bool) (Run, error) {
	if err := exclusive.ValidateKey(op, key); err != nil {
		return Run{}, err
	}
	out := Run{Run: key}
	err := t.server.Ask(ctx, op, key, func(ctx context.Context, d dialect) error {
		r, found, err := d.read(ctx, t.server.DB, key, lock)
		if found {
			out = r.public()
		}
		return err
	})
	return out, err
}

// Filter says which runs to list. The zero value lists the first ones.
type Filter struct {
	State State  // None: all
	After string // only runs whose keys come after this one
	Limit int    // how many at most. Zero: 100; at most 1,000
}

// Runs lists the task's runs in the order of their keys, compared byte by byte,
// without their results. To go on pass the last key as Filter.After.
func (t *Tasks[Tx]) Runs(ctx context.Context, f Filter) ([]Run, error) {
	if f.Limit == 0 {
		f.Limit = 100
	}
	var hint string
	switch {
	case f.Limit < 0 || f.Limit > 1000:
		hint = fmt.Sprintf("Limit is %d; it must be from 0 to 1000", f.Limit)
	case f.State != None && f.State != Running && f.State != Done && f.State != Failed:
		hint = fmt.Sprintf("%q is no state of a run", f.State)
	}
	if hint != "" {
		return nil, &exclusive.Error{Op: "list runs", Kind: exclusive.ErrInvalid, Hint: hint}
	}
	var list []Run
	err := t.server.Ask(ctx, "list runs", "", func(ctx context.Context, d dialect) error {
		rows, err := d.list(ctx, t.server.DB, f.After, string(f.State), int64(f.Limit))
		list = nil
		for i := range rows {
			list = append(list, rows[i].public())
		}
		return err
	})
	return list, err
}

// Release takes a run from whoever works on it, alive or not: see ReleaseSeen. It
// does nothing if nobody does. ErrHeld if the run changes hands meanwhile: the
// newcomer keeps it.
func (t *Tasks[Tx]) Release(ctx context.Context, key string) error {
	r, err := t.read(ctx, "release", key, true)
	if err != nil || !r.Live {
		return err
	}
	if err := t.ReleaseSeen(ctx, r); !errors.Is(err, exclusive.ErrLost) {
		return err
	}
	return nil // it has ended by itself
}

// ReleaseSeen takes a run from the holder that Outcome or Runs has shown, alive or
// not, and from nobody else: it can be claimed at once, with a higher token. The
// old holder's context ends with ErrLost at its next heartbeat, and its Commit and
// its finish are refused from now on.
//
// nil means that it was this holder's, and that this has ended it. ErrHeld:
// somebody else has the run by now, Error.Holder, and keeps it. ErrLost: the
// attempt had ended before, and nobody works on the run. A Commit that is under way
// is waited for.
func (t *Tasks[Tx]) ReleaseSeen(ctx context.Context, seen Run) error {
	if err := strategy.ValidSeen("release", seen.Run, seen.GrantID); err != nil {
		return err
	}
	tries := 0
	return t.server.Ask(ctx, "release", seen.Run, func(ctx context.Context, d dialect) error {
		tries++
		ended, err := d.release(ctx, t.server.DB, seen.Run, seen.GrantID)
		if ended || err != nil {
			return err
		}
		r, found, err := d.read(ctx, t.server.DB, seen.Run, true) // see Tasks.read
		switch {
		case err != nil:
			return err
		case found && r.live():
			return strategy.NotReleased(seen.Run, r.who())
		case tries > 1 && found && r.id == seen.GrantID && r.state == string(Running):
			return nil // this ran before and its answer was lost
		}
		return strategy.NotReleased(seen.Run, nil)
	})
}

// Forget removes what is known about a run, so that it can begin anew: see
// ForgetSeen. It does nothing if nobody knows the run.
func (t *Tasks[Tx]) Forget(ctx context.Context, key string) error {
	r, err := t.read(ctx, "forget", key, true)
	if err != nil || r.State == None {
		return err
	}
	return t.ForgetSeen(ctx, r)
}

// ForgetSeen removes what is known about a run, so that it can begin anew, if it
// still is as Outcome or Runs has shown it: it is for runs that are done or failed,
// and those whose holder is gone. ErrHeld if somebody works on it; release it
// first. ErrConflict if it was claimed or has ended since, with the one who did so in
// Error.Holder: look again. The next grant still has a higher token than any before.
// It does nothing if nobody knows the run any more. A Commit that is under way is
// waited for.
func (t *Tasks[Tx]) ForgetSeen(ctx context.Context, seen Run) error {
	if err := strategy.ValidSeen("forget", seen.Run, seen.GrantID); err != nil {
		return err
	}
	return t.server.Ask(ctx, "forget", seen.Run, func(ctx context.Context, d dialect) error {
		for {
			r, found, err := d.read(ctx, t.server.DB, seen.Run, true) // see Tasks.read
			if err != nil || !found {
				return err
			}
			if err := seen.changed(r); err != nil {
				return err
			}
			// The floor first: if this breaks off in between, nothing is lost.
			if err := d.raise(ctx, t.server.DB, r.token); err != nil {
				return err
			}
			gone, err := d.forget(ctx, t.server.DB, seen)
			if gone || err != nil {
				return err
			}
			// Somebody was faster: look again.
		}
	})
}

// changed says why a run is not forgotten, as it stands now; nil if nothing is in
// the way.
func (r Run) changed(now row) error {
	switch {
	case now.live():
		return &exclusive.Error{Op: "forget", Key: r.Run, Kind: exclusive.ErrHeld, Holder: now.who(), Hint: "release it first"}
	case now.id != r.GrantID || now.token != r.Token || now.state != string(r.State):
		return &exclusive.Error{Op: "forget", Key: r.Run, Kind: exclusive.ErrConflict, Holder: now.last(),
			Hint: fmt.Sprintf("it is %s now, and not as it was seen; it was left alone", now.state)}
	}
	return nil
}

// Prune removes runs that ended at least olderThan ago: those done, those
// failed, and those whose holder vanished that long ago. A run that was removed
// would run again, so choose a time after which nobody asks for it. It returns
// how many were removed, also beside an error. Rows are removed in batches, with
// three statements each; rows that stay are not locked. After each batch progress
// is told how many were removed so far.
func (t *Tasks[Tx]) Prune(ctx context.Context, olderThan time.Duration, progress ...func(removed int64)) (removed int64, err error) {
	if olderThan < 0 {
		return 0, &exclusive.Error{Op: "prune", Kind: exclusive.ErrInvalid, Hint: fmt.Sprintf("the age is %v; it must not be negative", olderThan)}
	}
	age := olderThan.Microseconds()
	return t.server.Prune(ctx, progress, func(ctx context.Context, d dialect, after string) (runs [][]byte, n int64, err error) {
		runs, token, err := d.old(ctx, t.server.DB, after, age)
		if err != nil || len(runs) == 0 {
			return nil, 0, err
		}
		// The floor first: if this breaks off in between, nothing is lost.
		if err = d.raise(ctx, t.server.DB, token); err == nil {
			n, err = d.prune(ctx, t.server.DB, runs, age, token)
		}
		return runs, n, err
	})
}
