package exclusive

import (
	"context"
	"errors"
	"log/slog"
	"time"
)

// Op names what an [Event] is about.
type Op string

// The operations that are observed: a Do, and what happens to its grant or to that
// of a lease. Renew and Lose are not about a caller's call but about what happens
// behind it.
//
// Not observed are the calls that are about no grant of the caller's: transitions
// and updates of casupdate, questions (Status, State, Outcome, lists), an
// operator's Release, Forget, Prune and Advance, and Once, which runs in a
// transaction of the caller's own. Nor is Lease.Renew, a Check or Commit that is
// refused for its arguments, or the giving back of what an acquire may have got
// whose answer was lost.
const (
	OpDo      Op = "do"
	OpAcquire Op = "acquire"
	OpRenew   Op = "renew"   // one statement for all leases of a process; Key is empty
	OpLose    Op = "lose"    // a lease ended before its release; only End is called
	OpRelease Op = "release" // giving back, or finishing, by the caller or by Do; not by a Commit
	OpCheck   Op = "check"   // also a Guard's Register
	OpCommit  Op = "commit"  // also a call that is refused because another one is under way
)

// Event is one operation. Err and Duration are set at its end.
type Event struct {
	Op       Op
	Strategy string // "fencing", "rowlock", …
	Key      string
	Grant    Grant // zero until one is known
	Count    int   // OpRenew: leases in the statement
	Duration time.Duration
	Err      error
}

// Observer is told about the operations of a strategy, for logs, metrics and
// traces. Its methods are called synchronously and concurrently: be quick, and
// do not call the strategy from them.
type Observer interface {
	// Start is called before an operation. The context that it returns is the
	// operation's and comes back to End, so a span can travel in it.
	Start(ctx context.Context, e Event) context.Context
	// End is called after it.
	End(ctx context.Context, e Event)
}

// Slog returns an Observer that writes to log: losses at Warn, other failures
// at Info, the rest at Debug. A key that is held, or already done, is not a
// failure.
func Slog(log *slog.Logger) Observer { return slogObserver{log} }

type slogObserver struct{ log *slog.Logger }

func (o slogObserver) Start(ctx context.Context, _ Event) context.Context { return ctx }

func (o slogObserver) End(ctx context.Context, e Event) {
	level := slog.LevelDebug
	switch {
	case e.Op == OpLose:
		level = slog.LevelWarn
	case e.Err != nil && !errors.Is(e.Err, ErrHeld) && !errors.Is(e.Err, ErrDone):
		level = slog.LevelInfo
	}
	attrs := make([]slog.Attr, 0, 8)
	attrs = append(attrs, slog.String("strategy", e.Strategy), slog.Duration("duration", e.Duration))
	if e.Key != "" {
		attrs = append(attrs, slog.String("key", e.Key))
	}
	if e.Grant.ID != "" {
		attrs = append(attrs, slog.Int64("token", e.Grant.Token), slog.Int("attempt", e.Grant.Attempt))
	}
	if e.Count > 0 {
		attrs = append(attrs, slog.Int("count", e.Count))
	}
	if e.Err != nil {
		attrs = append(attrs, slog.Any("error", e.Err))
	}
	o.log.LogAttrs(ctx, level, "exclusive "+string(e.Op), attrs...)
}
